//! Wakes threads that wait for the next change of the metadata.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;

/// Threads that wait for a change.
#[derive(Default)]
pub(crate) struct ChangeSignal {
    waiting: AtomicBool,
    threads: Mutex<Vec<Thread>>,
}

impl ChangeSignal {
    /// Wakes the waiting threads after a change. The caller holds the state for writing, so a
    /// thread that reads the state either sees the change or has registered before.
    pub fn notify(&self) {
        if self.waiting.load(Ordering::SeqCst) {
            let mut threads = self.threads.lock().expect("no panic under this lock");
            self.waiting.store(false, Ordering::SeqCst);
            threads.drain(..).for_each(|thread| thread.unpark());
        }
    }

    /// Registers the calling thread, to be unparked by the next change.
    pub fn will_wait(&self) {
        let mut threads = self.threads.lock().expect("no panic under this lock");
        threads.push(std::thread::current());
        self.waiting.store(true, Ordering::SeqCst);
    }
}
