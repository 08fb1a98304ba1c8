//! The jobs of a session, and what each of them waits for.

use super::work::Task;
use block::{Error, Result};
use slab::Slab;
use std::time::{Duration, Instant};

/// Polling interval of a session that waits for a frame: releasing a hold on a page wakes no
/// session.
const STARVED: Duration = Duration::from_millis(5);

/// All jobs of a session. Between two steps a job is runnable, parked, delayed, or waits for its
/// own I/O.
#[derive(Default)]
pub(super) struct Jobs {
    /// `None` while the session steps the job.
    tasks: Slab<Option<Task>>,
    /// Jobs to step.
    runnable: Vec<usize>,
    /// Jobs that wait for other sessions.
    parked: Vec<usize>,
    /// Completed jobs whose completion is delayed, because there are too many dirty pages.
    delayed: Vec<(Instant, usize)>,
    /// A parked job waits for a frame.
    starved: bool,
}

impl Jobs {
    /// Adds a job, which is runnable.
    pub(super) fn add(&mut self, task: Task) -> usize {
        let id = self.tasks.insert(Some(task));
        self.runnable.push(id);
        id
    }

    pub(super) fn get(&self, id: usize) -> Option<&Task> {
        self.tasks.get(id)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: usize) -> Option<&mut Task> {
        self.tasks.get_mut(id)?.as_mut()
    }

    /// Takes a job out, for a step; its number stays reserved until [`Jobs::restore`].
    pub(super) fn take(&mut self, id: usize) -> Option<Task> {
        self.tasks.get_mut(id)?.take()
    }

    pub(super) fn restore(&mut self, id: usize, task: Task) {
        self.tasks[id] = Some(task);
    }

    pub(super) fn remove(&mut self, id: usize) -> Option<Task> {
        self.tasks.try_remove(id)?
    }

    /// Takes out the next job to step, with its number.
    pub(super) fn take_runnable(&mut self) -> Option<(usize, Task)> {
        while let Some(id) = self.runnable.pop() {
            if self.get(id).is_some_and(|task| !task.job.delayed) {
                return self.take(id).map(|task| (id, task));
            }
        }
        None
    }

    /// Records the end of an I/O of a job, which may be able to continue.
    pub(super) fn io_done(&mut self, id: Option<usize>, result: Result<()>) {
        let Some(id) = id else { return };
        let Some(task) = self.get_mut(id) else {
            return;
        };
        task.job.in_flight -= 1;
        if let Err(error) = result {
            task.job.fail(error);
        }
        self.runnable.push(id);
    }

    /// Fails all jobs and makes them runnable.
    pub(super) fn fail_all(&mut self, error: &Error) {
        for (id, task) in &mut self.tasks {
            if let Some(task) = task {
                task.job.fail(error.clone());
                self.runnable.push(id);
            }
        }
    }

    /// Parks a job that waits for another session; the waker is already registered.
    pub(super) fn park(&mut self, id: usize) {
        if !self.parked.contains(&id) {
            self.parked.push(id);
        }
    }

    /// Parks a job that waits for a frame.
    pub(super) fn park_starved(&mut self, id: usize) {
        self.starved = true;
        self.park(id);
    }

    /// Makes the parked jobs runnable, if the session was woken or a job waits for a frame.
    pub(super) fn unpark(&mut self, woken: bool) {
        if woken || self.starved {
            self.starved = false;
            self.runnable.append(&mut self.parked);
        }
    }

    /// Abandons the parked jobs.
    pub(super) fn abort_parked(&mut self) {
        for id in std::mem::take(&mut self.parked) {
            if let Some(task) = self.remove(id) {
                task.abort();
            }
        }
    }

    /// Delays the completion of a job that is done.
    pub(super) fn delay(&mut self, id: usize, time: Duration) {
        if let Some(task) = self.get_mut(id) {
            task.job.delayed = true;
            self.delayed.push((Instant::now() + time, id));
        }
    }

    pub(super) fn has_delayed(&self) -> bool {
        !self.delayed.is_empty()
    }

    /// Finds a job whose delay is over at this time.
    pub(super) fn next_released(&mut self, now: Instant) -> Option<usize> {
        let at = self.delayed.iter().position(|(until, _)| *until <= now)?;
        Some(self.delayed.swap_remove(at).1)
    }

    /// Checks whether all jobs wait for the session's own I/O.
    pub(super) fn wait_for_io_only(&self) -> bool {
        self.parked.is_empty() && self.delayed.is_empty()
    }

    /// Computes the time until the next timed event, if there is one: the end of a delay, or a
    /// retry for a frame.
    pub(super) fn next_due(&self) -> Option<Duration> {
        if self.delayed.is_empty() && !self.starved {
            return None;
        }
        let now = Instant::now();
        let delays = self.delayed.iter();
        let delays = delays.map(|(until, _)| until.saturating_duration_since(now));
        delays.chain(self.starved.then_some(STARVED)).min()
    }
}
