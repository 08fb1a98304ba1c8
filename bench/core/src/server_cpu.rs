//! CPU time of a server in this process, separate from its clients: that of the server's threads,
//! by the kernel's accounting per thread.
//!
//! **Invariant:** the mean is exact, from the two edges of a phase. Only the maximum is sampled,
//! and its interval is part of its name.
//!
//! Not counted: work that the kernel does for a server in another context, such as receiving
//! packets on the sender's CPU, as on a loopback.

use crate::record::PhaseFigure;
use std::fs;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval between two samples. A sample reads a file per thread of the process, about a
/// millisecond.
const INTERVAL: Duration = Duration::from_millis(100);

/// Sums the CPU time in nanoseconds of this process's threads whose names begin with one of
/// `threads`.
fn cpu_ns(threads: &[&str]) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    let of = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let ours = threads.iter().any(|thread| name.starts_with(thread));
        let schedule = ours.then(|| fs::read_to_string(task.path().join("schedstat")));
        schedule?
            .ok()?
            .split_whitespace()
            .next()?
            .parse::<u64>()
            .ok()
    };
    tasks.flatten().filter_map(of).sum()
}

/// A server that is sampled until a phase ends.
pub struct Watched {
    threads: &'static [&'static str],
    began: Instant,
    before: u64,
    stop: Sender<()>,
    most: JoinHandle<f64>,
}

impl Watched {
    pub fn start(threads: &'static [&'static str]) -> Watched {
        let (stop, stopped) = channel();
        let (began, before) = (Instant::now(), cpu_ns(threads));
        let most = std::thread::spawn(move || {
            let (mut at, mut ns, mut most) = (began, before, 0.0);
            loop {
                let ended = stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout);
                let (now, then) = (Instant::now(), cpu_ns(threads));
                let spent = now - at;
                // The rest of an interval counts only if no full interval came before it.
                if !ended || at == began {
                    most = f64::max(most, percent(then.saturating_sub(ns), spent));
                }
                if ended {
                    return most;
                }
                (at, ns) = (now, then);
            }
        });
        Watched {
            threads,
            began,
            before,
            stop,
            most,
        }
    }

    /// Stops sampling; returns mean and maximum in percent of a core.
    pub fn end(self) -> Vec<PhaseFigure> {
        let spent = cpu_ns(self.threads).saturating_sub(self.before);
        let wall = self.began.elapsed();
        drop(self.stop);
        let most = self.most.join().expect("a thread that reads files");
        let unit = "% of a core";
        let whole = wall.as_secs_f64();
        vec![
            PhaseFigure::cost("server CPU", unit, percent(spent, wall) * whole, whole),
            PhaseFigure::cost("server CPU, most in 0.1 s", unit, most, 1.0),
        ]
    }
}

fn percent(cpu_ns: u64, wall: Duration) -> f64 {
    cpu_ns as f64 * 100.0 / (wall.as_nanos() as f64).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::time::{ClockId, clock_gettime};

    fn thread_ns() -> u64 {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }

    #[test]
    fn threads_are_told_by_their_names() {
        const BURNT: u64 = 300_000_000;
        let watched = Watched::start(&["burns-cpu"]);
        let burn = || {
            while thread_ns() < BURNT {
                std::hint::spin_loop();
            }
        };
        // Another thread that is as busy must not be counted.
        let other = std::thread::spawn(burn);
        let (tell, told) = channel::<()>();
        let (done, is_done) = channel();
        let thread = std::thread::Builder::new().name("burns-cpu-1".into());
        let own = thread.spawn(move || {
            burn();
            done.send(()).unwrap();
            // The thread must still exist when it is sampled.
            let _ = told.recv();
        });
        is_done.recv().unwrap();
        let cells = watched.end();
        drop(tell);
        own.unwrap().join().unwrap();
        other.join().unwrap();
        let spent = cells[0].spent / 100.0;
        // The kernel's accounting lags behind the clock of a thread by a tick.
        assert!((0.28..0.45).contains(&spent), "{cells:?}");
        assert!(cells[1].spent >= cells[0].value() * 0.9, "{cells:?}");
    }
}
