//! A process that outlives its server: it holds what the server must not lose, and starts the server
//! again after a crash.
//!
//! ```text
//!   keeper ── fork ──► server, generation 0 ── dies
//!      │  ◄── descriptors, by name ──┘
//!      └───── fork ──► server, generation 1, which begins with them
//! ```
//!
//! The keeper has one thread, parses nothing but the messages of its server, and reads neither the
//! descriptors nor the memory behind them. If the keeper dies, the kernel asks the server to stop in
//! order.

mod link;
mod process;

pub use link::{Kept, Link};

use crate::process::{Event, Present, Signals, fork};
use std::io;
use std::time::{Duration, Instant};

/// Starts in a row that may fail before the keeper gives up.
const STARTS_MAX: u32 = 8;

/// Pause after the first of several starts in a row that failed; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(50);

/// Time for which a server may remain after it has closed its descriptors.
const LINGERS: Duration = Duration::from_millis(200);

/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What a server begins with.
pub struct Begin {
    /// The connection to the keeper.
    pub link: Link,
    /// What the predecessor has left; empty for the first server.
    pub kept: Kept,
    /// Number of predecessors that served.
    pub generation: u32,
}

/// Result of [`keep`], which returns in more than one process.
pub enum Side {
    /// The keeper, with the exit code of the last server.
    Keeper(u8),
    /// A child process, with what it needs to serve.
    Server(Begin),
}

/// Becomes a keeper, and returns in each server: in a child process, and in another one whenever a
/// signal has ended the last, unless several in a row end before they serve. `forked` is called in the
/// keeper after each start. Must be called while the process has a single thread.
///
/// # Errors
/// The system refuses a process or a descriptor.
pub fn keep(mut forked: impl FnMut()) -> io::Result<Side> {
    let signals = Signals::block()?;
    let (mut kept, mut generation, mut failures) = (Kept::default(), 0, 0);
    let (mut delayed, mut lingering) = (Vec::new(), Vec::new());
    loop {
        let (ours, theirs) = Link::pair()?;
        let Some(child) = fork()? else {
            drop(ours);
            signals.unblock();
            return Ok(Side::Server(Begin {
                link: theirs,
                kept,
                generation,
            }));
        };
        drop(theirs);
        forked();
        let began = Instant::now();
        let is_first = generation == 0;
        let present = &mut Present {
            child: &child,
            link: &ours,
            signals: &signals,
            lingering: &mut lingering,
        };
        let ended = wait(present, &mut kept, (is_first, &mut delayed))?;
        if ended.lingers {
            lingering.push(child);
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
        failures = if ended.served { 0 } else { failures + 1 };
        if failures == STARTS_MAX {
            tracing::error!(
                name: "EVFS-0818",
                "the server ended {STARTS_MAX} times while it started; given up: what was not synced \
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
            std::thread::sleep((PAUSE * (1 << (failures - 1))).min(PAUSE_MAX));
        }
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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Code(u8),
    Signal(u8),
}

/// Takes what the server sends, and passes signals on, until the server has ended. A successor gets
/// them when it serves: before that it could not end in order, and what its predecessor left would
/// be lost.
fn wait(
    present: &mut Present<'_>,
    kept: &mut Kept,
    (is_first, delayed): (bool, &mut Vec<i32>),
) -> io::Result<Ended> {
    let Present { child, link, .. } = *present;
    let (mut served, mut was_asked) = (false, false);
    loop {
        match present.event()? {
            Event::Message => {
                let received = link.receive(kept)?;
                served |= received.serves;
                if received.is_over {
                    // Its descriptors are closed, so it serves no more. A thread of it may still wait
                    // for a request to the mount, which only a successor can answer.
                    let how = child.ends_within(LINGERS)?;
                    return Ok(Ended {
                        lingers: how.is_none(),
                        how: how.unwrap_or(How::Signal(libc::SIGKILL as u8)),
                        served,
                        was_asked,
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
                });
            }
        }
        if served || is_first {
            for signal in delayed.drain(..) {
                was_asked |= matches!(signal, libc::SIGTERM | libc::SIGINT | libc::SIGQUIT);
                child.signal(signal);
            }
        }
    }
}
