//! Synchronization of a run's worker threads, so that the measured interval excludes the setup and
//! teardown of threads, queues and buffers.
//!
//! ```text
//!   worker   set up ──► ready ........ work ──► done ........ tear down
//!   leader              all ready, snapshot, go     all done, snapshot, release
//! ```
//!
//! **Invariant:** a worker that fails or panics at any point still counts as ready and as done, so
//! the leader never hangs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

#[derive(Default)]
struct State {
    ready: u32,
    done: u32,
    go: bool,
    release: bool,
}

pub struct Gate {
    workers: u32,
    state: Mutex<State>,
    changed: Condvar,
    failed: AtomicBool,
}

impl Gate {
    pub fn new(workers: u32) -> Gate {
        Gate {
            workers,
            state: Mutex::default(),
            changed: Condvar::new(),
            failed: AtomicBool::new(false),
        }
    }

    /// Creates a worker's pass. Must be created before any step that can fail.
    pub fn pass(&self) -> Pass<'_> {
        Pass {
            gate: self,
            at: At::SetUp,
        }
    }

    /// Checks whether a worker failed; the others then stop at their next request.
    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Counts `missing` workers that could not be started as failed.
    pub fn give_up(&self, missing: u32) {
        self.failed.store(true, Ordering::Relaxed);
        let mut state = self.lock();
        state.ready += missing;
        state.done += missing;
        self.changed.notify_all();
    }

    /// Leader: waits until every worker is set up.
    pub fn wait_ready(&self) {
        self.wait(|s| s.ready == self.workers);
    }

    /// Leader: starts the workers.
    pub fn go(&self) {
        self.lock().go = true;
        self.changed.notify_all();
    }

    /// Leader: waits until every worker has finished.
    pub fn wait_done(&self) {
        self.wait(|s| s.done == self.workers);
    }

    /// Leader: lets the workers tear down.
    pub fn release(&self) {
        self.lock().release = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    fn wait(&self, until: impl Fn(&State) -> bool) {
        let state = self.lock();
        drop(
            self.changed
                .wait_while(state, |s| !until(s))
                .expect("no panic under this lock"),
        );
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    SetUp,
    Work,
    TearDown,
}

pub struct Pass<'a> {
    gate: &'a Gate,
    at: At,
}

impl Pass<'_> {
    /// Reports that setup is complete; returns when all workers may start.
    pub fn ready(&mut self) {
        self.at = At::Work;
        self.gate.lock().ready += 1;
        self.gate.changed.notify_all();
        self.gate.wait(|s| s.go);
    }

    /// Reports that the work is complete; returns when the leader has read the counters.
    pub fn done(mut self) {
        self.at = At::TearDown;
        self.gate.lock().done += 1;
        self.gate.changed.notify_all();
        self.gate.wait(|s| s.release);
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.at == At::TearDown {
            return;
        }
        self.gate.failed.store(true, Ordering::Relaxed);
        let mut state = self.gate.lock();
        state.ready += u32::from(self.at == At::SetUp);
        state.done += 1;
        drop(state);
        self.gate.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_panics_does_not_hold_the_others() {
        for panics_at in 0..3 {
            let gate = Gate::new(3);
            std::thread::scope(|scope| {
                for worker in 0..3 {
                    let gate = &gate;
                    scope.spawn(move || {
                        let caught = std::panic::catch_unwind(|| {
                            let mut pass = gate.pass();
                            assert!(worker != 1 || panics_at != 0, "in set-up");
                            pass.ready();
                            assert!(worker != 1 || panics_at != 1, "at work");
                            pass.done();
                        });
                        assert_eq!(caught.is_err(), worker == 1 && panics_at < 2);
                    });
                }
                gate.wait_ready();
                gate.go();
                gate.wait_done();
                gate.release();
            });
            assert_eq!(gate.failed(), panics_at < 2);
        }
    }
}
