//! The threads that listen to sockets and serve calls.
//!
//! A thread that listens serves a call itself and leaves its socket to another one that has nothing to do,
//! if there is one: so a short call is answered by the thread that its packet woke, while the other
//! wakes.
//!
//! **Invariant:** a call is with one thread from its beginning to its end; there are never more calls
//! served than the setting says, nor fewer than calls up to that number; each socket is with a thread, or
//! with one that is on its way.

use crate::bytes::Bytes;
use crate::call::Call;
use crate::error::Abort;
use crate::port::Intake;
use crate::settings::Service;
use crate::shard::Shard;
use rx_proto::{Incoming, code};
use std::collections::VecDeque;
use std::io;
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

/// What a thread does next.
enum Work {
    Serve(Job),
    /// Listen to a socket.
    Listen(Box<Intake>),
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Work>,
    /// Threads that wait for something to do.
    idle: usize,
    /// Sockets, each of which has a thread.
    sockets: usize,
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
        queue.jobs.push_back(Work::Serve(job));
        if queue.jobs.len() <= queue.idle {
            drop(queue);
            self.wake.notify_one();
        } else if queue.threads.len() < self.threads_max + queue.sockets
            && let Err(e) = self.add_thread(&mut queue)
        {
            tracing::warn!("no thread for a call, which waits: {e}");
        }
    }

    /// Hands in a socket, for which there is always a thread.
    pub(crate) fn listen(self: &Arc<Self>, intake: Intake) -> io::Result<()> {
        let mut queue = self.lock();
        queue.sockets += 1;
        queue.jobs.push_back(Work::Listen(Box::new(intake)));
        self.add_thread(&mut queue)
    }

    /// Leaves a socket to another thread, if one has nothing else to do.
    pub(crate) fn leave(&self, intake: Box<Intake>) -> Result<(), Box<Intake>> {
        let mut queue = self.lock();
        if queue.stopped || queue.jobs.len() >= queue.idle {
            return Err(intake);
        }
        queue.jobs.push_front(Work::Listen(intake));
        drop(queue);
        self.wake.notify_one();
        Ok(())
    }

    fn add_thread(self: &Arc<Self>, queue: &mut Queue) -> io::Result<()> {
        let workers = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name(String::from("rx-worker"))
            .spawn(move || workers.work())?;
        queue.threads.push(thread);
        Ok(())
    }

    fn work(self: &Arc<Self>) {
        while let Some((work, waited)) = self.next() {
            match work {
                Work::Listen(intake) => {
                    if let Some(job) = intake.run(self) {
                        self.serve(job);
                    }
                }
                // A client that gave up while its call waited costs no work.
                Work::Serve(job) if waited && job.shard.has_ended(job.incoming.call) => {
                    Call::incoming(job).abort(code::USER_ABORT);
                }
                Work::Serve(job) => self.serve(job),
            }
        }
    }

    fn serve(&self, job: Job) {
        let mut call = Call::incoming(job);
        let service = self.services.iter().find(|s| s.id == call.service());
        let served = service.map(|s| catch_unwind(AssertUnwindSafe(|| s.handler.serve(&mut call))));
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

    /// What to do next, and whether it waited for this thread; `None` if there will be no more.
    fn next(&self) -> Option<(Work, bool)> {
        let mut queue = self.lock();
        let mut waited = true;
        loop {
            if queue.stopped {
                return None;
            }
            if let Some(work) = queue.jobs.pop_front() {
                return Some((work, waited));
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
