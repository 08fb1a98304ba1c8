//! Writing out when nothing happens: what was changed is durable soon, though nobody syncs.
//!
//! ```text
//!   changes ... changes ── nothing for QUIET ──► pages below ──► journal ── REST ──► ...
//! ```
//!
//! Where changes go on, this does nothing, and the periods of the cache and of the commits count. **Invariant:** it waits
//! for nobody but the device, and while nothing has changed it sleeps.

use super::Shared;
use crate::fs::Inner;
use block::layer::{Layer, home};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long nothing has changed, and the device has had nothing to do, before all is written out.
const QUIET: Duration = Duration::from_millis(100);

/// And how long after that it is not done again, so that somebody who changes a little now and then does not keep the
/// device flushing.
const REST: Duration = Duration::from_millis(400);

/// Threads that wait for a change.
#[derive(Default)]
pub(crate) struct Stir {
    waiting: AtomicBool,
    threads: Mutex<Vec<Thread>>,
}

impl Stir {
    /// Something has changed. By whoever holds the state for writing, so that who looks at it sees the change, or has
    /// said before that it waits.
    pub fn happened(&self) {
        if self.waiting.load(Ordering::SeqCst) {
            let mut threads = self.threads.lock().expect("no panic under this lock");
            self.waiting.store(false, Ordering::SeqCst);
            threads.drain(..).for_each(|thread| thread.unpark());
        }
    }

    fn will_wait(&self) {
        let mut threads = self.threads.lock().expect("no panic under this lock");
        threads.push(std::thread::current());
        self.waiting.store(true, Ordering::SeqCst);
    }
}

/// The thread that writes out. Dropping this ends it, after what it is just writing.
pub(super) struct Idle {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Idle {
    /// Starts the thread for these files; it does not keep them.
    pub fn start(files: &Arc<Shared>) -> std::io::Result<Idle> {
        let over = Arc::new(AtomicBool::new(false));
        let watch = Watch {
            files: Arc::downgrade(files),
            fs: Arc::clone(&files.fileset.fs),
            over: Arc::clone(&over),
        };
        let seen = watch.changes();
        let thread = std::thread::Builder::new().name("fs-idle".into());
        Ok(Idle {
            over,
            thread: Some(thread.spawn(move || watch.run(seen))?),
        })
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let Some(thread) = self.thread.take() else {
            return;
        };
        thread.thread().unpark();
        // The thread may be the last one who had the files.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

struct Watch {
    files: Weak<Shared>,
    fs: Arc<Inner>,
    over: Arc<AtomicBool>,
}

impl Watch {
    /// `seen` are the changes that somebody else cares for.
    fn run(&self, mut seen: u64) {
        home(Layer::Fs);
        while self.wait_for_change(seen) && self.wait_for_quiet() {
            // What changes from here on is seen the next time; and what this changes itself, in vain.
            seen = self.changes();
            let Some(files) = self.files.upgrade() else {
                return;
            };
            let written = files.volume.write_out();
            if let Err(error) = written
                .map_err(crate::Error::from)
                .and_then(|()| self.fs.sync())
            {
                // Whoever syncs hears of it; the cache tries again.
                tracing::debug!("{}: not written out: {error}", self.fs.name);
            }
            drop(files);
            self.pause(REST);
        }
    }

    fn changes(&self) -> u64 {
        self.fs.read().changes
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn wait_for_change(&self, seen: u64) -> bool {
        while !self.is_over() {
            self.fs.stir.will_wait();
            if self.changes() != seen {
                return true;
            }
            if !self.is_over() {
                std::thread::park();
            }
        }
        false
    }

    fn wait_for_quiet(&self) -> bool {
        while !self.is_over() {
            let before = self.changes();
            self.pause(QUIET);
            if self.changes() == before && !self.fs.space.is_busy() {
                return true;
            }
        }
        false
    }

    fn pause(&self, time: Duration) {
        let end = Instant::now() + time;
        while !self.is_over() {
            match end.checked_duration_since(Instant::now()) {
                Some(left) => std::thread::park_timeout(left),
                None => return,
            }
        }
    }
}
