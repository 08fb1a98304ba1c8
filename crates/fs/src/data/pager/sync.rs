//! The thread that waits for the journal on behalf of queues, which never block on it.
//!
//! One sync serves all flushes that arrived while the thread was busy.

use crate::error::Error;
use crate::fileset::Fileset;
use block::Waker;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Completed syncs of one queue.
pub(super) struct Inbox {
    answers: Mutex<Vec<(usize, Result<(), Error>)>>,
    /// Readable while there are answers.
    waker: Waker,
}

impl Inbox {
    pub fn new(name: &str) -> block::Result<Inbox> {
        Ok(Inbox {
            answers: Mutex::default(),
            waker: Waker::new().map_err(|e| block::Error::from_io(name, e))?,
        })
    }

    fn put(&self, request: usize, result: Result<(), Error>) {
        let mut answers = self.answers.lock().expect("no panic under this lock");
        answers.push((request, result));
        self.waker.wake();
    }

    /// Takes all answers so far.
    pub fn take(&self) -> Vec<(usize, Result<(), Error>)> {
        self.waker.take();
        std::mem::take(&mut self.answers.lock().expect("no panic under this lock"))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

struct Job {
    request: usize,
    inbox: Arc<Inbox>,
}

/// Handle for sending requests to the thread.
#[derive(Clone)]
pub(super) struct SyncHandle(Sender<Job>);

impl SyncHandle {
    /// Requests a sync; the inbox receives the answer under this number.
    pub fn sync(&self, request: usize, inbox: &Arc<Inbox>) {
        let job = Job {
            request,
            inbox: Arc::clone(inbox),
        };
        if let Err(unsent) = self.0.send(job) {
            let text = "the sync thread has ended";
            let error = Error::new(crate::error::Kind::Io, text);
            unsent.0.inbox.put(request, Err(error));
        }
    }
}

/// The sync thread. It ends when the pager and the last queue have been dropped.
pub(super) struct SyncThread {
    handle: Option<SyncHandle>,
    thread: Option<JoinHandle<()>>,
}

impl SyncThread {
    pub fn start(fileset: &Fileset) -> Result<SyncThread, Error> {
        let (send, jobs) = channel();
        let fileset = fileset.clone();
        let thread = std::thread::Builder::new()
            .name("fs-sync".into())
            .spawn(move || serve(&fileset, &jobs))
            .map_err(|e| Error::from(block::Error::from_io("fs-sync", e)))?;
        Ok(SyncThread {
            handle: Some(SyncHandle(send)),
            thread: Some(thread),
        })
    }

    pub fn handle(&self) -> SyncHandle {
        self.handle.clone().expect("there until it is dropped")
    }
}

impl Drop for SyncThread {
    fn drop(&mut self) {
        self.handle = None;
        // A queue that outlives its pager keeps the thread running.
        drop(self.thread.take());
    }
}

fn serve(fileset: &Fileset, jobs: &Receiver<Job>) {
    while let Ok(first) = jobs.recv() {
        let mut all = vec![first];
        all.extend(jobs.try_iter());
        let result = fileset.sync();
        for job in all {
            job.inbox.put(job.request, result.clone());
        }
    }
}
