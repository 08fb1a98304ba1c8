//! A process that outlives its server: it holds what the server must not lose, and starts the server
//! again after a crash.
//!
//! ```text
//!   keeper ── fork ──► server, generation 0 ── dies
//!      │  ◄── descriptors, by name ──┘
//!      └───── fork ──► server, generation 1, which begins with them
//! ```
//!
//! Asked by its server, it kills it, and executes the program that has the place of its own now. If
//! that does not serve, the program before it goes on. The keeper itself remains the same.
//!
//! The keeper has one thread, parses nothing but the messages of its server, and reads neither the
//! descriptors nor the memory behind them. If the keeper dies, the kernel asks the server to stop in
//! order.

mod link;
mod process;
mod program;

pub use link::{Kept, Link};
pub use program::is_executed;

use crate::process::{Event, Present, Signals, fork};
use crate::program::{Place, Program};
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

/// Starts in a row that may fail before the keeper gives up.
const STARTS_MAX: u32 = 8;

/// Time without a server before the keeper gives up because of starts that a signal has ended: what
/// has sent it, such as the kernel for lack of memory, may end.
const KILLED_FOR: Duration = Duration::from_secs(30);

/// Pause after the first of several starts in a row that failed; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(50);

/// Time for which a server may remain after it has closed its descriptors.
const LINGERS: Duration = Duration::from_millis(200);

/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Time in which a new program must serve.
const NEW_PROGRAM_STARTS: Duration = Duration::from_secs(60);

/// What a server begins with.
pub struct Begin {
    /// The connection to the keeper.
    pub link: Link,
    /// What the predecessor has left; empty for the first server.
    pub kept: Kept,
    /// Number of predecessors.
    pub generation: u32,
    /// Whether the last program that was to replace the server did not serve.
    pub refused: bool,
}

/// Result of [`keep`], which returns in more than one process.
pub enum Side {
    /// The keeper, with the exit code of the last server.
    Keeper(u8),
    /// A child process, with what it needs to serve.
    Server(Begin),
}

/// Becomes a keeper, and returns in each server: in a child process, and in another one whenever a
/// signal has ended the last, unless several in a row end before they serve. In a program that a
/// keeper executed, returns in the server at once. `forked` is called in the keeper after each start.
/// Must be called once, and while the process has a single thread.
///
/// # Errors
/// The system refuses a process or a descriptor; what a keeper left for this program is damaged.
pub fn keep(mut forked: impl FnMut()) -> io::Result<Side> {
    if let Some(begin) = program::begin()? {
        return Ok(Side::Server(begin));
    }
    let signals = Signals::block()?;
    let mut programs = Programs::new();
    let (mut kept, mut generation, mut failures) = (Kept::default(), 0, 0);
    let (mut delayed, mut lingering) = (Vec::new(), Vec::new());
    let mut last_served = Instant::now();
    loop {
        let (ours, theirs) = Link::pair()?;
        let Some(child) = fork()? else {
            drop(ours);
            signals.unblock();
            let begin = Begin {
                link: theirs,
                kept,
                generation,
                refused: programs.refused,
            };
            return Ok(Side::Server(match programs.now {
                None => begin,
                Some(program) => program.serve(&begin),
            }));
        };
        drop(theirs);
        forked();
        let began = Instant::now();
        let is_first = generation == 0;
        let limit = programs.is_tried().then(|| began + NEW_PROGRAM_STARTS);
        let present = &mut Present {
            child: &child,
            link: &ours,
            signals: &signals,
            lingering: &mut lingering,
        };
        let ended = wait(present, &mut kept, (is_first, &mut delayed), limit)?;
        if ended.lingers {
            lingering.push(child);
        }
        if !kept.is_empty() && programs.change_after(&ended) {
            generation += 1;
            (failures, last_served) = (0, Instant::now());
            continue;
        }
        let signal = match ended.how {
            How::Code(code) if !ended.served && generation > 0 => {
                tracing::error!(
                    name: "EVFS-0817",
                    "the server could not start again: it ended with exit code {code}"
                );
                None
            }
            How::Code(code) => return Ok(Side::Keeper(code)),
            How::Signal(signal) if ended.was_asked => return Ok(Side::Keeper(by_signal(signal))),
            How::Signal(signal) => Some(signal),
        };
        if kept.is_empty() {
            // There is nothing to continue.
            return Ok(Side::Keeper(signal.map_or(1, by_signal)));
        }
        generation += 1;
        if ended.served {
            (failures, last_served) = (0, Instant::now());
        } else {
            failures += 1;
        }
        let is_long = signal.is_none() || last_served.elapsed() >= KILLED_FOR;
        if failures >= STARTS_MAX && is_long {
            tracing::error!(
                name: "EVFS-0818",
                "the server ended {failures} times while it started; given up: what was not synced \
                 is lost"
            );
            return Ok(Side::Keeper(1));
        }
        if let Some(signal) = signal {
            tracing::warn!(
                name: "EVFS-0816",
                "the server was ended by signal {signal} after {:?}; it is started again",
                began.elapsed()
            );
        }
        if failures > 0 {
            std::thread::sleep((PAUSE * (1 << (failures - 1).min(8))).min(PAUSE_MAX));
        }
    }
}

/// The programs of the servers; `None` is this one.
struct Programs {
    place: Place,
    /// The one that serves.
    now: Option<Program>,
    /// The one before it, until it serves.
    before: Option<Option<Program>>,
    /// Whether the last one that was to replace another did not serve.
    refused: bool,
}

impl Programs {
    fn new() -> Programs {
        Programs {
            place: Place::of_this_process(),
            now: None,
            before: None,
            refused: false,
        }
    }

    /// Reports whether the program has yet to serve for the first time.
    fn is_tried(&self) -> bool {
        self.before.is_some()
    }

    /// Chooses another program for the next server, if the last one asked for it or was one that did
    /// not serve.
    fn change_after(&mut self, ended: &Ended) -> bool {
        let before = self.before.take().filter(|_| !ended.served);
        if ended.replace && matches!(ended.how, How::Signal(_)) {
            match self.place.open() {
                Ok(next) => {
                    self.before = Some(self.now.replace(next));
                    self.refused = false;
                }
                Err(e) => self.refuse(&format!("cannot open the new program: {e}")),
            }
            return true;
        }
        let Some(before) = before else {
            return false;
        };
        self.now = before;
        let how = ended.how;
        self.refuse(&format!(
            "the new program did not serve: it ended with {how}"
        ));
        true
    }

    fn refuse(&mut self, why: &str) {
        tracing::error!(name: "EVFS-0819", "{why}; the program before it goes on");
        self.refused = true;
    }
}

/// Returns the exit code for an end by a signal, as shells do.
fn by_signal(signal: u8) -> u8 {
    128u8.saturating_add(signal)
}

/// End of a server.
struct Ended {
    how: How,
    /// Whether a thread of it is left, which waits for a successor.
    lingers: bool,
    /// Whether it has announced that it serves.
    served: bool,
    /// Whether this process was asked to stop.
    was_asked: bool,
    /// Whether another program takes its place.
    replace: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Code(u8),
    Signal(u8),
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            How::Code(code) => write!(f, "exit code {code}"),
            How::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// Takes what the server sends, and passes signals on, until the server has ended. A successor gets
/// them when it serves: before that it could not end in order, and what its predecessor left would
/// be lost. One that does not serve until `limit` is killed.
fn wait(
    present: &mut Present<'_>,
    kept: &mut Kept,
    (is_first, delayed): (bool, &mut Vec<i32>),
    mut limit: Option<Instant>,
) -> io::Result<Ended> {
    let Present { child, link, .. } = *present;
    let (mut served, mut was_asked, mut replace) = (false, false, false);
    loop {
        match present.event(limit)? {
            Event::Late => {
                limit = None;
                child.signal(libc::SIGKILL);
            }
            Event::Message => {
                let received = link.receive(kept)?;
                served |= received.serves;
                if served {
                    limit = None;
                }
                if received.replace && !replace && !was_asked {
                    replace = true;
                    child.signal(libc::SIGKILL);
                }
                if received.is_over {
                    // Its descriptors are closed, so it serves no more. A thread of it may still wait
                    // for a request to the mount, which only a successor can answer.
                    let how = child.ends_within(LINGERS)?;
                    return Ok(Ended {
                        lingers: how.is_none(),
                        how: how.unwrap_or(How::Signal(libc::SIGKILL as u8)),
                        served,
                        was_asked,
                        replace,
                    });
                }
            }
            Event::Signal(signal) => delayed.push(signal),
            Event::Ended(how) => {
                // What it sent before it died is still in the socket.
                served |= link.receive(kept)?.serves;
                return Ok(Ended {
                    lingers: false,
                    how,
                    served,
                    was_asked,
                    replace,
                });
            }
        }
        if (served || is_first) && !replace {
            for signal in delayed.drain(..) {
                was_asked |= matches!(signal, libc::SIGTERM | libc::SIGINT | libc::SIGQUIT);
                child.signal(signal);
            }
        }
    }
}
