//! Idle write-back: changes become durable soon after activity stops, even without a sync.
//!
//! ```text
//!   changes ... changes ── nothing for QUIET ──► write pages ──► journal ── REST ──► ...
//! ```
//!
//! While changes continue, the thread does nothing, and the intervals of the cache and of the
//! commits apply. **Invariant:** the thread waits only for the device, and sleeps while nothing has
//! changed.

use super::Shared;
use crate::metadata::shared::FsShared;
use layer_cpu::{Layer, home};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time after the last change at which everything is written back, if there is no device I/O.
const QUIET: Duration = Duration::from_millis(100);

/// Interval at which changes are noticed during that time.
const STEP: Duration = Duration::from_millis(25);

/// Pause after a write-back, in times of its duration, so that a client that makes small changes now
/// and then does not keep the device flushing.
const REST: u32 = 4;

/// Longest such pause.
const REST_MAX: Duration = Duration::from_millis(400);

/// The idle write-back thread. Dropping this ends it after the write in progress.
pub(super) struct Idle {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Idle {
    /// Starts the thread for these files, to which it keeps a weak reference only.
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
        // This may be the thread itself, if it held the last reference to the files.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

struct Watch {
    files: Weak<Shared>,
    fs: Arc<FsShared>,
    over: Arc<AtomicBool>,
}

impl Watch {
    /// Runs the thread. `seen` is the number of changes that others take care of.
    fn run(&self, mut seen: u64) {
        home(Layer::Fs);
        while self.wait_for_change(seen) && self.wait_for_quiet() {
            // Later changes count for the next round. So do changes made by the write-back itself,
            // which then finds nothing to write.
            seen = self.changes();
            let Some(files) = self.files.upgrade() else {
                return;
            };
            let start = Instant::now();
            let written = files.volume.write_out();
            if let Err(error) = written
                .map_err(crate::Error::from)
                .and_then(|()| self.fs.sync())
            {
                // The next sync reports the error; the cache tries again.
                tracing::debug!("{}: write-back failed: {error}", self.fs.name);
            }
            drop(files);
            self.pause((start.elapsed() * REST).min(REST_MAX));
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
            self.fs.changes.will_wait();
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
        let mut seen = self.changes();
        let mut since = Instant::now();
        while !self.is_over() {
            self.pause(STEP);
            let changes = self.changes();
            if changes != seen {
                // The last change was at most one step ago.
                (seen, since) = (changes, Instant::now());
            } else if since.elapsed() + STEP >= QUIET && !self.fs.space.is_busy() {
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
