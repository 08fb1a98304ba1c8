//! The threads that serve calls.
//!
//! **Invariant:** a call is with one thread from its beginning to its end; there are never more threads
//! than the setting says, nor fewer than calls up to that number.

use crate::bytes::Bytes;
use crate::call::Call;
use crate::error::Abort;
use crate::settings::Service;
use crate::shard::Shard;
use rx_proto::{Incoming, code};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Answers the calls of a service.
pub trait Handler: Send + Sync {
    /// Serves one call: reads the request, writes the reply. The call's end is the return: `Ok` delivers
    /// what was written, an [`Abort`] tells the client its code. May block; may make calls of its own.
    fn serve(&self, call: &mut Call) -> Result<(), Abort>;
}

impl<F: Fn(&mut Call) -> Result<(), Abort> + Send + Sync> Handler for F {
    fn serve(&self, call: &mut Call) -> Result<(), Abort> {
        self(call)
    }
}

/// A call that is to be served, with the beginning of its request.
pub(crate) struct Job {
    pub(crate) shard: Arc<Shard>,
    pub(crate) incoming: Incoming,
    /// Which of our addresses was called.
    pub(crate) local: Option<IpAddr>,
    pub(crate) wake: Arc<Condvar>,
    pub(crate) first: Option<Bytes>,
    /// The request ends with that.
    pub(crate) at_end: bool,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Threads that wait for a job.
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    stopped: bool,
}

/// The threads, and the calls that wait for one.
pub(crate) struct Workers {
    services: Vec<Service>,
    threads_max: usize,
    queue: Mutex<Queue>,
    wake: Condvar,
}

impl Workers {
    pub(crate) fn new(services: Vec<Service>, threads_max: usize) -> Arc<Workers> {
        Arc::new(Workers {
            services,
            threads_max: threads_max.max(1),
            queue: Mutex::default(),
            wake: Condvar::new(),
        })
    }

    pub(crate) fn services(&self) -> &[Service] {
        &self.services
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands in a call.
    pub(crate) fn push(self: &Arc<Self>, job: Job) {
        let mut queue = self.lock();
        if queue.stopped {
            return;
        }
        queue.jobs.push_back(job);
        if queue.jobs.len() <= queue.idle {
            drop(queue);
            self.wake.notify_one();
        } else if queue.threads.len() < self.threads_max {
            let workers = Arc::clone(self);
            let thread = std::thread::Builder::new()
                .name(String::from("rx-worker"))
                .spawn(move || workers.work());
            match thread {
                Ok(thread) => queue.threads.push(thread),
                Err(e) => tracing::warn!("no thread for a call, which waits: {e}"),
            }
        }
    }

    fn work(&self) {
        while let Some((job, waited)) = self.next() {
            // A client that gave up while its call waited costs no work.
            if waited && job.shard.has_ended(job.incoming.call) {
                Call::incoming(job).abort(code::USER_ABORT);
                continue;
            }
            let mut call = Call::incoming(job);
            let service = self.services.iter().find(|s| s.id == call.service());
            let served =
                service.map(|s| catch_unwind(AssertUnwindSafe(|| s.handler.serve(&mut call))));
            match served {
                // That it ended meanwhile is the client's doing, who knows it.
                Some(Ok(Ok(()))) => drop(call.finish()),
                Some(Ok(Err(Abort(code)))) => call.abort(code),
                Some(Err(_)) => {
                    tracing::error!(service = call.service(), "a handler panicked");
                    call.abort(code::USER_ABORT);
                }
                None => call.abort(code::INVALID_OPERATION),
            }
        }
    }

    /// The next call to serve, and whether it waited for this thread; `None` if there will be no more.
    fn next(&self) -> Option<(Job, bool)> {
        let mut queue = self.lock();
        let mut waited = true;
        loop {
            if queue.stopped {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                return Some((job, waited));
            }
            waited = false;
            queue.idle += 1;
            queue = self
                .wake
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }

    /// Lets the threads end, and waits until they have.
    pub(crate) fn stop(&self) {
        let mut queue = self.lock();
        queue.stopped = true;
        let threads = std::mem::take(&mut queue.threads);
        let jobs = std::mem::take(&mut queue.jobs);
        drop(queue);
        self.wake.notify_all();
        drop(jobs);
        for thread in threads {
            // Its panics were caught.
            let _ = thread.join();
        }
    }
}
