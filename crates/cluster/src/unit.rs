//! The process of one claim on a unit, and its connection to the process that runs the protocol.
//!
//! ```text
//!   node ── until, fence, store, open ──►  unit     lines of JSON over a socket pair,
//!        ◄── fenced, stored, opened ─────           standard input of the unit
//! ```
//!
//! **Invariant:** a unit does nothing before it has a deadline, and its deadline ends it, whatever
//! state it is in. The end of the connection asks it to stop in order.

use crate::deadline::{Deadline, now};
use cluster_proto::At;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A command to a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Command {
    /// The process has to have ended at this time, in nanoseconds of `CLOCK_BOOTTIME`.
    Until(u64),
    Fence,
    /// Store this epoch.
    Store(u64),
    Open,
}

/// A report of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Report {
    /// The storage refuses all requests of earlier claims, on every path.
    Fenced,
    /// It does not; why.
    NotFenced(String),
    /// The storage has the epoch of this claim.
    Stored,
    /// The storage has a newer epoch, this one.
    Newer(u64),
    /// The unit is served.
    Opened,
    /// It cannot be served, and everything that was opened for it is closed again.
    Failed(String),
}

/// Step of a claim that a unit is told to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Fence,
    /// Store this epoch.
    Store(u64),
    Open,
}

/// A unit's end of the connection.
pub struct Link {
    writer: Mutex<UnixStream>,
    steps: Mutex<Receiver<Step>>,
    /// The deadline, as in [`Command::Until`].
    until: Arc<AtomicU64>,
}

impl Link {
    /// Takes standard input as the connection, and waits for the deadline. `stop` is called once
    /// when the connection ends.
    ///
    /// # Errors
    /// Standard input is no such connection.
    pub fn of_stdin(stop: impl FnOnce() + Send + 'static) -> io::Result<Link> {
        let null = std::fs::File::open("/dev/null")?;
        let stdin = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
        rustix::stdio::dup2_stdin(&null)?;
        Link::new(UnixStream::from(stdin), stop)
    }

    fn new(stream: UnixStream, stop: impl FnOnce() + Send + 'static) -> io::Result<Link> {
        let deadline = Deadline::new()?;
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().transpose()?.unwrap_or_default();
        let Ok(Command::Until(first)) = serde_json::from_str(&first) else {
            let why = "this option is for processes that `evfs up --cluster` starts";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        };
        let until = Arc::new(AtomicU64::new(first));
        let known = Arc::clone(&until);
        let set = move |at: u64| {
            deadline.set(At(Duration::from_nanos(at)))?;
            known.store(at, Relaxed);
            Ok(())
        };
        set(first)?;
        let (send, steps) = channel();
        let reader = move || {
            read(lines, &set, &send);
            stop();
        };
        std::thread::Builder::new()
            .name("cluster-link".into())
            .spawn(reader)?;
        Ok(Link {
            writer: Mutex::new(stream),
            steps: Mutex::new(steps),
            until,
        })
    }

    /// Returns the time left until the deadline.
    pub fn left(&self) -> Duration {
        let until = Duration::from_nanos(self.until.load(Relaxed));
        until.saturating_sub(now().0)
    }

    /// Waits for the next step. `None`: the unit is to stop.
    pub fn next_step(&self) -> Option<Step> {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.recv().ok()
    }

    /// Reports to the node. A node that is gone is noticed by the reader.
    pub fn report(&self, report: &Report) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(writer, "{}", line(report));
    }
}

fn read(
    lines: impl Iterator<Item = io::Result<String>>,
    set_deadline: &dyn Fn(u64) -> io::Result<()>,
    steps: &Sender<Step>,
) {
    for text in lines.map_while(Result::ok) {
        let Ok(command) = serde_json::from_str(&text) else {
            return;
        };
        let step = match command {
            Command::Until(at) => {
                if set_deadline(at).is_err() {
                    return;
                }
                continue;
            }
            Command::Fence => Step::Fence,
            Command::Store(epoch) => Step::Store(epoch),
            Command::Open => Step::Open,
        };
        let _ = steps.send(step);
    }
}

pub(crate) fn line(message: &impl Serialize) -> String {
    serde_json::to_string(message).unwrap_or_default()
}

/// Converts a time to that of [`Command::Until`].
pub(crate) fn nanos(at: At) -> u64 {
    u64::try_from(at.0.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_arrive_in_order_and_the_end_of_the_connection_stops() {
        let (node, unit) = UnixStream::pair().unwrap();
        let (stop, stopped) = channel();
        let until = |secs| Command::Until(nanos(now() + Duration::from_secs(secs)));
        for command in [until(300), Command::Fence, until(600), Command::Open] {
            writeln!(&node, "{}", line(&command)).unwrap();
        }
        let link = Link::new(unit, move || stop.send(()).unwrap()).unwrap();
        assert_eq!(link.next_step(), Some(Step::Fence));
        assert_eq!(link.next_step(), Some(Step::Open));
        let left = link.left().as_secs();
        assert!(
            (590..700).contains(&left),
            "the last deadline counts: {left} s"
        );
        link.report(&Report::Newer(7));
        let mut answer = String::new();
        BufReader::new(&node).read_line(&mut answer).unwrap();
        assert_eq!(
            serde_json::from_str::<Report>(&answer).unwrap(),
            Report::Newer(7)
        );
        drop(node);
        stopped.recv().unwrap();
        assert_eq!(link.next_step(), None);
    }

    #[test]
    fn a_unit_without_a_deadline_does_not_start() {
        let (node, unit) = UnixStream::pair().unwrap();
        writeln!(&node, "{}", line(&Command::Open)).unwrap();
        let refused = Link::new(unit, || {}).err().unwrap();
        assert!(refused.to_string().contains("--cluster"), "{refused}");
    }
}
