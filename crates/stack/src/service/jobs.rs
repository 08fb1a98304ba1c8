//! Work that a service does in the background for a command: checks and defragmentation of its file
//! system.
//!
//! One job runs at a time. Its result is kept until the next one begins, because the command that
//! asked for it may have been interrupted. Findings of a check are in the log, and in the status until
//! a check finds none.

use super::health::State;
use super::status::Status;
use crate::control::{JobKind, JobRequest, Run};
use crate::filesystem::online::{self, Followed};
use crate::filesystem::{Checked, Report};
use crate::text::json_of;
use crate::{Error, Result, unix_time};
use ::fs::{Fs, Pace};
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Findings of a check that are logged; further ones are only counted.
const LOGGED_MAX: usize = 20;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The job of a service.
#[derive(Default)]
pub(super) struct Jobs {
    current: Mutex<Option<Running>>,
    /// Description of the problems that the last check found.
    warning: Arc<Mutex<Option<String>>>,
}

struct Running {
    job: Arc<Job>,
    thread: Option<JoinHandle<()>>,
}

struct Job {
    id: u64,
    kind: JobKind,
    run: Run,
    pace: Arc<Pace>,
    progress: Mutex<(u64, u64)>,
    result: Mutex<Option<::fs::Result<Value>>>,
}

impl Job {
    fn is_over(&self) -> bool {
        lock(&self.result).is_some()
    }

    fn followed(&self, name: &str) -> Result<Value> {
        let result = lock(&self.result).clone();
        let result = result.transpose().map_err(|error| {
            let verb = match self.kind {
                JobKind::Check { .. } => "check",
                JobKind::Defrag(_) => "defragment",
            };
            Error::files(format!("cannot {verb} {name}"))(error)
        })?;
        let (done, total) = *lock(&self.progress);
        let id = self.id;
        Ok(json_of(&Followed {
            id,
            done,
            total,
            result,
        }))
    }
}

/// Sets the result of a job whose thread has panicked.
struct Ends(Arc<Job>);

impl Drop for Ends {
    fn drop(&mut self) {
        let failed = || Err(::fs::Error::new(::fs::Kind::Io, "its thread has panicked"));
        lock(&self.0.result).get_or_insert_with(failed);
    }
}

impl Jobs {
    /// Answers a request to the service `name`. `own` is the fileset of paths without one.
    pub fn answer(
        &self,
        (fs, name): (&Arc<Fs>, &str),
        own: Option<&str>,
        ask: &JobRequest,
        run: Run,
    ) -> Result<Value> {
        let mut current = lock(&self.current);
        let kind = match ask {
            JobRequest::Start(kind) => kind,
            JobRequest::Follow { id } => {
                let running = current.as_ref().filter(|running| running.job.id == *id);
                let over = || Error::Failed("another job has begun since its end".into());
                return running.ok_or_else(over)?.job.followed(name);
            }
        };
        let running = current.as_ref().filter(|running| !running.job.is_over());
        if let Some(running) = running {
            if (&running.job.kind, running.job.run) == (kind, run) {
                return running.job.followed(name);
            }
            return Err(Error::Busy(format!(
                "another check or defragmentation of `{name}` is in progress; wait for its end"
            )));
        }
        let rate = match kind {
            JobKind::Check { rate, .. } => *rate,
            JobKind::Defrag(what) => what.rate,
        };
        let job = Arc::new(Job {
            id: unix_time::now().as_nanos() as u64,
            kind: kind.clone(),
            run,
            pace: Arc::new(Pace::new(rate)),
            progress: Mutex::default(),
            result: Mutex::default(),
        });
        let work = Work {
            fs: Arc::clone(fs),
            name: name.to_owned(),
            own: own.map(str::to_owned),
            warning: Arc::clone(&self.warning),
        };
        let thread = std::thread::Builder::new().name("evfs-job".into());
        let ends = Ends(Arc::clone(&job));
        let spawned = thread.spawn(move || {
            let result = work.execute(&ends.0);
            // Before the result: a client that waits for it may close the file system.
            drop(work);
            *lock(&ends.0.result) = Some(result);
        });
        let failed = |e| Error::Failed(format!("cannot start a thread: {e}"));
        let thread = Some(spawned.map_err(failed)?);
        let answer = job.followed(name);
        *current = Some(Running { job, thread });
        answer
    }

    /// Stops the job in progress, and waits for its end.
    pub fn stop(&self) {
        if let Some(running) = lock(&self.current).as_mut() {
            running.job.pace.stop();
            // A panic has been reported already.
            let _ = running.thread.take().map(JoinHandle::join);
        }
    }

    /// Adds the problems that the last check found.
    pub fn note(&self, status: &mut Status) {
        if let Some(warning) = &*lock(&self.warning) {
            status.warn_of(State::Degraded, warning.clone());
        }
    }
}

struct Work {
    fs: Arc<Fs>,
    name: String,
    own: Option<String>,
    warning: Arc<Mutex<Option<String>>>,
}

impl Work {
    fn execute(&self, job: &Job) -> ::fs::Result<Value> {
        let mut progress = |done, total| *lock(&job.progress) = (done, total);
        match &job.kind {
            JobKind::Check { repair, .. } => {
                let repair = *repair && job.run == Run::Real;
                let checked = online::check(&self.fs, &job.pace, repair, &mut progress)?;
                self.report(&checked);
                Ok(json_of(&checked))
            }
            JobKind::Defrag(what) => {
                let (own, pace) = (self.own.as_deref(), &job.pace);
                let done = online::defrag_files(&self.fs, what, own, pace, job.run, &mut progress)?;
                Ok(json_of(&done))
            }
        }
    }

    /// Logs the findings of a check, and keeps them for the status.
    fn report(&self, checked: &Checked) {
        let left: &Report = checked.left();
        for finding in left.problems.iter().take(LOGGED_MAX) {
            tracing::error!(name: "EVFS-0815", volume = self.name, "a check has found: {finding}");
        }
        let count = left.problem_count;
        let warning = left.problems.first().map(|first| {
            format!(
                "a check of the metadata has found problems: {count}; the first: {first}; `evfs \
                 fsck --online` lists them, and `evfs fsck --repair` repairs them once it is detached"
            )
        });
        if warning.is_none() {
            tracing::info!(
                volume = self.name,
                "a check of the metadata has found no problem"
            );
        }
        *lock(&self.warning) = warning;
    }
}
