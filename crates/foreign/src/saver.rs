//! A thread that saves the changes of a file system from time to time.

use crate::files::Files;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Saves changes until it is dropped.
pub struct Saver {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Saver {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(files: &Arc<Files>, every: Duration) -> std::io::Result<Saver> {
        let (stop, stopped) = channel();
        let files: Weak<Files> = Arc::downgrade(files);
        let run = move || {
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let Some(files) = files.upgrade() else {
                    return;
                };
                if let Err(error) = files.sync() {
                    tracing::warn!(name: "EVFS-0601", "{error}");
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("saver".into())
            .spawn(run)?;
        Ok(Saver {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the thread itself.
            let _ = thread.join();
        }
    }
}
