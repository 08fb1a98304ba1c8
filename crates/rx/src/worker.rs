//! The threads that listen to sockets and serve calls.
//!
//! A thread that listens serves a call itself and leaves its socket to another one that has nothing to do,
//! if there is one: so a short call is answered by the thread that its packet woke, while the other
//! wakes.
//!
//! **Invariant:** a call is with one thread from its beginning to its end; there are never more calls
//! served than the setting says; each socket is with a thread, or with one that is on its way. A host whose
//! calls wait is served in turn with the others, and gets a thread only while it has no more than are
//! free: one host has half of them and one more at most, the next half of the rest, and for a host that
//! has none there is one as long as there are few that have many.

use crate::bytes::Bytes;
use crate::call::Call;
use crate::error::Abort;
use crate::port::Intake;
use crate::settings::Service;
use crate::shard::Shard;
use rx_proto::{Host, Incoming, code};
use std::collections::{HashMap, VecDeque};
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

/// The calls of a host.
#[derive(Default)]
struct Share {
    /// Those that wait.
    jobs: VecDeque<Job>,
    /// Threads that serve others of them.
    served: usize,
}

#[derive(Default)]
struct Queue {
    hosts: HashMap<Host, Share>,
    /// The hosts of which calls wait; whose turn it is comes first.
    turns: VecDeque<Host>,
    /// Sockets that a thread has left to another one.
    left: VecDeque<Box<Intake>>,
    /// Threads that serve a call, and threads that wait for something to do.
    busy: usize,
    idle: usize,
    /// Sockets, each of which has a thread.
    sockets: usize,
    threads: Vec<JoinHandle<()>>,
    stopped: bool,
}

impl Queue {
    fn add(&mut self, job: Job) {
        let host = Host::of(job.incoming.peer);
        let share = self.hosts.entry(host).or_default();
        if share.jobs.is_empty() {
            self.turns.push_back(host);
        }
        share.jobs.push_back(job);
    }

    /// Whose call is to be served next, as a place in `turns`. At most as many hosts are passed over as
    /// there are threads that serve theirs.
    fn next(&self, threads_max: usize) -> Option<usize> {
        let free = threads_max - self.busy;
        let fits = |host: &Host| self.hosts.get(host).is_some_and(|s| s.served <= free);
        if free == 0 {
            return None;
        }
        self.turns.iter().position(fits)
    }

    /// Takes a call to serve it.
    fn take(&mut self, threads_max: usize) -> Option<Job> {
        let host = self.turns.remove(self.next(threads_max)?)?;
        let share = self.hosts.get_mut(&host)?;
        let job = share.jobs.pop_front()?;
        share.served += 1;
        self.busy += 1;
        if !share.jobs.is_empty() {
            self.turns.push_back(host);
        }
        Some(job)
    }

    /// Counts a call of a host as served, if it may be.
    fn begin(&mut self, host: Host, threads_max: usize) -> bool {
        let share = self.hosts.entry(host).or_default();
        let may = self.busy < threads_max && share.served <= threads_max - self.busy;
        share.served += usize::from(may);
        self.busy += usize::from(may);
        may
    }

    /// A call of this host is served no more.
    fn done(&mut self, host: Host) {
        self.busy -= 1;
        if let Some(share) = self.hosts.get_mut(&host) {
            share.served -= 1;
            if share.served == 0 && share.jobs.is_empty() {
                self.hosts.remove(&host);
            }
        }
    }
}

/// The threads, and the calls that wait for one.
pub(crate) struct Workers {
    services: Vec<Service>,
    threads_max: usize,
    thread_name: &'static str,
    queue: Mutex<Queue>,
    wake: Condvar,
}

impl Workers {
    pub(crate) fn new(
        services: Vec<Service>,
        threads_max: usize,
        thread_name: &'static str,
    ) -> Arc<Workers> {
        Arc::new(Workers {
            services,
            threads_max: threads_max.max(1),
            thread_name,
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
        if !queue.stopped {
            queue.add(job);
            self.rouse(&mut queue);
        }
    }

    /// Sees to it that a thread takes the next call, if one may be served.
    fn rouse(self: &Arc<Self>, queue: &mut Queue) {
        if queue.next(self.threads_max).is_none() {
            return;
        }
        if queue.idle > 0 {
            // It rouses the next one.
            self.wake.notify_one();
        } else if queue.threads.len() < self.threads_max + queue.sockets
            && let Err(e) = self.add_thread(queue)
        {
            tracing::warn!("no thread for a call, which waits: {e}");
        }
    }

    /// Hands in a socket, for which there is always a thread.
    pub(crate) fn listen(self: &Arc<Self>, intake: Intake) -> io::Result<()> {
        let mut queue = self.lock();
        queue.sockets += 1;
        queue.left.push_back(Box::new(intake));
        self.add_thread(&mut queue)
    }

    /// Leaves a socket to another thread, if one has nothing else to do, so that this one may serve a
    /// call of `host`.
    pub(crate) fn leave(&self, intake: Box<Intake>, host: Host) -> Result<(), Box<Intake>> {
        let mut queue = self.lock();
        let is_quiet = !queue.stopped && queue.turns.is_empty();
        if !is_quiet || queue.left.len() >= queue.idle || !queue.begin(host, self.threads_max) {
            return Err(intake);
        }
        queue.left.push_back(intake);
        drop(queue);
        self.wake.notify_one();
        Ok(())
    }

    fn add_thread(self: &Arc<Self>, queue: &mut Queue) -> io::Result<()> {
        let workers = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name(self.thread_name.to_owned())
            .spawn(move || workers.work())?;
        queue.threads.push(thread);
        Ok(())
    }

    fn work(self: &Arc<Self>) {
        let mut last = None;
        while let Some((work, waited)) = self.next(last.take()) {
            let (job, waited) = match work {
                Work::Serve(job) => (job, waited),
                Work::Listen(intake) => match intake.run(self) {
                    Some(job) => (job, false),
                    None => continue,
                },
            };
            last = Some(Host::of(job.incoming.peer));
            // A client that gave up while its call waited costs no work.
            if waited && job.shard.has_ended(job.incoming.call) {
                Call::incoming(job).abort(code::USER_ABORT);
                continue;
            }
            self.serve(Call::incoming(job));
        }
    }

    fn serve(&self, mut call: Call) {
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

    /// What to do next, after a call of the host `last`, and whether it waited for this thread; `None` if
    /// there will be no more.
    fn next(self: &Arc<Self>, last: Option<Host>) -> Option<(Work, bool)> {
        let mut queue = self.lock();
        if let Some(host) = last {
            queue.done(host);
        }
        let mut waited = true;
        loop {
            if queue.stopped {
                return None;
            }
            if let Some(intake) = queue.left.pop_front() {
                self.rouse(&mut queue);
                return Some((Work::Listen(intake), waited));
            }
            if let Some(job) = queue.take(self.threads_max) {
                self.rouse(&mut queue);
                return Some((Work::Serve(job), waited));
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
        let waiting = (
            std::mem::take(&mut queue.hosts),
            std::mem::take(&mut queue.left),
        );
        queue.turns.clear();
        drop(queue);
        self.wake.notify_all();
        drop(waiting);
        for thread in threads {
            // Its panics were caught.
            let _ = thread.join();
        }
    }
}
