//! Threads that listen to sockets and serve calls.
//!
//! A listening thread serves a call itself and hands its socket to an idle thread, if there is one:
//! so a short call is answered by the thread that its packet woke, while the other thread wakes up.
//!
//! **Invariant:** a call stays with one thread from its beginning to its end; the number of calls
//! served concurrently never exceeds the setting; each socket has a thread, or one that is waking
//! up for it. Hosts with waiting calls are served in turn. A host gets a thread only while it uses
//! no more threads than are free: one host uses at most half of them plus one, the next one half of
//! the rest, and so on; a host without threads still gets one as long as few hosts use many.

use crate::call::Call;
use crate::error::Abort;
use crate::intake::Intake;
use crate::settings::Service;
use crate::shard::Job;
use rx_proto::{Host, code};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Next work of a thread.
enum Work {
    Serve(Job),
    /// Listen to a socket.
    Listen(Box<Intake>),
}

/// Calls of a host.
#[derive(Default)]
struct Share {
    /// Waiting calls.
    jobs: VecDeque<Job>,
    /// Number of threads that serve other calls of the host.
    served: usize,
}

#[derive(Default)]
struct Queue {
    hosts: HashMap<Host, Share>,
    /// Hosts with waiting calls, in the order in which they are served.
    turns: VecDeque<Host>,
    /// Sockets handed to another thread.
    handed_over: VecDeque<Box<Intake>>,
    /// Number of threads that serve a call, and of threads that wait for work.
    busy: usize,
    idle: usize,
    /// Number of sockets, each of which has a thread.
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

    /// Finds the position in `turns` of the host to serve next. Skips at most as many hosts as
    /// there are threads that serve theirs.
    fn next(&self, threads_max: usize) -> Option<usize> {
        let free = threads_max - self.busy;
        let fits = |host: &Host| self.hosts.get(host).is_some_and(|s| s.served <= free);
        if free == 0 {
            return None;
        }
        self.turns.iter().position(fits)
    }

    /// Removes and returns the next call to serve.
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

    /// Counts a call of a host as served if the limits allow it; returns whether they do.
    fn begin(&mut self, host: Host, threads_max: usize) -> bool {
        let share = self.hosts.entry(host).or_default();
        let may = self.busy < threads_max && share.served <= threads_max - self.busy;
        share.served += usize::from(may);
        self.busy += usize::from(may);
        may
    }

    /// Counts a call of a host as no longer served.
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
    /// Empty after [`Workers::stop`]. A handler may own connections of the port, each of which
    /// keeps its shard and these workers alive.
    services: Mutex<Arc<[Service]>>,
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
            services: Mutex::new(services.into()),
            threads_max: threads_max.max(1),
            thread_name,
            queue: Mutex::default(),
            wake: Condvar::new(),
        })
    }

    fn services(&self) -> Arc<[Service]> {
        Arc::clone(&self.lock_services())
    }

    fn lock_services(&self) -> MutexGuard<'_, Arc<[Service]>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a call.
    pub(crate) fn push(self: &Arc<Self>, job: Job) {
        let mut queue = self.lock();
        if !queue.stopped {
            queue.add(job);
            self.rouse(&mut queue);
        }
    }

    /// Ensures that a thread takes the next call, if one may be served.
    fn rouse(self: &Arc<Self>, queue: &mut Queue) {
        if queue.next(self.threads_max).is_none() {
            return;
        }
        if queue.idle > 0 {
            // The woken thread wakes the next one.
            self.wake.notify_one();
        } else if queue.threads.len() < self.threads_max + queue.sockets
            && let Err(e) = self.add_thread(queue)
        {
            tracing::warn!(name: "EVFS-0706", "cannot start a thread for a call, which waits: {e}");
        }
    }

    /// Starts a thread for a socket; there is always one available for it.
    pub(crate) fn listen(self: &Arc<Self>, intake: Intake) -> io::Result<()> {
        let mut queue = self.lock();
        queue.sockets += 1;
        queue.handed_over.push_back(Box::new(intake));
        self.add_thread(&mut queue)
    }

    /// Hands a socket to an idle thread, if there is one, so that this thread may serve a call of
    /// `host`.
    fn hand_over(&self, intake: Box<Intake>, host: Host) -> Result<(), Box<Intake>> {
        let mut queue = self.lock();
        let is_quiet = !queue.stopped && queue.turns.is_empty();
        if !is_quiet
            || queue.handed_over.len() >= queue.idle
            || !queue.begin(host, self.threads_max)
        {
            return Err(intake);
        }
        queue.handed_over.push_back(intake);
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
        let services = self.services();
        let mut last = None;
        while let Some((work, waited)) = self.next(last.take()) {
            let (job, waited) = match work {
                Work::Serve(job) => (job, waited),
                Work::Listen(intake) => match self.listen_on(intake) {
                    Some(job) => (job, false),
                    None => continue,
                },
            };
            last = Some(Host::of(job.incoming.peer));
            // No work is done for a client that gave up while its call waited.
            if waited && job.shard.has_ended(job.incoming.call) {
                Call::incoming(job).abort(code::USER_ABORT);
                continue;
            }
            serve(&services, Call::incoming(job));
        }
    }

    /// Listens to a socket until the port is closed, or until a call arrives that this thread
    /// serves: then another thread has taken over the socket.
    fn listen_on(self: &Arc<Self>, mut intake: Box<Intake>) -> Option<Job> {
        while let Some(job) = intake.next_call() {
            match self.hand_over(intake, Host::of(job.incoming.peer)) {
                Ok(()) => return Some(job),
                Err(back) => intake = back,
            }
            self.push(job);
        }
        None
    }

    /// Returns the next work, after a call of the host `last`, and whether it waited for this
    /// thread; `None` if there will be no more.
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
            if let Some(intake) = queue.handed_over.pop_front() {
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

    /// Stops the threads, waits for them to end, and releases the handlers.
    pub(crate) fn stop(&self) {
        let mut queue = self.lock();
        queue.stopped = true;
        let threads = std::mem::take(&mut queue.threads);
        let waiting = (
            std::mem::take(&mut queue.hosts),
            std::mem::take(&mut queue.handed_over),
        );
        queue.turns.clear();
        drop(queue);
        self.wake.notify_all();
        drop(waiting);
        for thread in threads {
            // Panics of handlers were caught.
            let _ = thread.join();
        }
        let services = std::mem::take(&mut *self.lock_services());
        // Outside of the lock: the connections of a handler end with it.
        drop(services);
    }
}

/// Runs the handler of a call's service.
fn serve(services: &[Service], mut call: Call) {
    let service = services.iter().find(|s| s.id == call.service());
    let served = service.map(|s| catch_unwind(AssertUnwindSafe(|| s.handler.serve(&mut call))));
    match served {
        // An error means that the client ended the call in the meantime, so there is nothing to
        // report.
        Some(Ok(Ok(()))) => drop(call.finish()),
        Some(Ok(Err(Abort(code)))) => call.abort(code),
        Some(Err(_)) => {
            tracing::error!(name: "EVFS-0707", service = call.service(), "a call ended by an internal error");
            call.abort(code::USER_ABORT);
        }
        None => call.abort(code::INVALID_OPERATION),
    }
}
