//! Work of a service that is done again and again.

use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread that works until this is dropped, which waits for the end of the work in progress.
pub(super) struct Recurring {
    over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Recurring {
    /// Starts a thread that calls `work` and then waits for the time that it returns.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(
        name: &str,
        mut work: impl FnMut() -> Duration + Send + 'static,
    ) -> std::io::Result<Recurring> {
        let over: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let shared = Arc::clone(&over);
        let run = move || {
            let (over, changed) = &*shared;
            let mut is_over = over.lock().expect("no panic under this lock");
            while !*is_over {
                drop(is_over);
                let pause = work();
                is_over = over.lock().expect("no panic under this lock");
                let waited = changed.wait_timeout_while(is_over, pause, |over| !*over);
                is_over = waited.expect("no panic under this lock").0;
            }
        };
        let thread = std::thread::Builder::new().name(name.into());
        Ok(Recurring {
            over,
            thread: Some(thread.spawn(run)?),
        })
    }
}

impl Drop for Recurring {
    fn drop(&mut self) {
        *self.over.0.lock().expect("no panic under this lock") = true;
        self.over.1.notify_all();
        // A panic has been reported already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
