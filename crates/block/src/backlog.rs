//! A queue for callers that do not keep the requests that it refuses.

use crate::{BufPool, Completion, DeviceInfo, Queue, Request, Result, Wait};
use std::collections::VecDeque;

/// A queue, and the requests for which it had no room, oldest first. Reaping makes room for them.
pub struct Backlog<R = Request, I = DeviceInfo> {
    queue: Box<dyn Queue<R, I>>,
    waiting: VecDeque<R>,
}

impl<R, I> Backlog<R, I> {
    /// Creates a backlog without requests.
    pub fn new(queue: Box<dyn Queue<R, I>>) -> Backlog<R, I> {
        Backlog {
            queue,
            waiting: VecDeque::new(),
        }
    }

    /// Returns the queue, for its properties.
    pub fn queue(&self) -> &dyn Queue<R, I> {
        &*self.queue
    }

    /// Reports whether requests wait for room in the queue.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Drops the waiting requests.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Submits a request after those that wait, or has it wait. Does not block.
    pub fn submit(&mut self, request: R) {
        if !self.waiting.is_empty() {
            self.waiting.push_back(request);
        } else if let Err(request) = self.queue.submit(request) {
            self.waiting.push_back(request);
        }
    }

    /// Submits waiting requests as far as the queue has room. Returns whether none waits any more.
    pub fn resume(&mut self) -> bool {
        while let Some(request) = self.waiting.pop_front() {
            if let Err(request) = self.queue.submit(request) {
                self.waiting.push_front(request);
                return false;
            }
        }
        true
    }

    /// Resumes, then kicks the queue.
    ///
    /// # Errors
    /// As [`Queue::kick`].
    pub fn kick(&mut self) -> Result<()> {
        self.resume();
        self.queue.kick()
    }

    /// Resumes, then reaps the queue. Requests may wait afterwards for which there is room now.
    ///
    /// # Errors
    /// As [`Queue::reap`].
    pub fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        self.resume();
        self.queue.reap(wait, done)
    }

    /// As [`Queue::register`].
    pub fn register(&mut self, pool: &BufPool) {
        self.queue.register(pool);
    }
}
