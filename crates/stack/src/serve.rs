//! The main loop of a process that serves attached volumes and mounted file systems: signals,
//! questions, and exports that end by themselves.
//!
//! ```text
//!   signals ──┐                        ┌── a thread for each question ──┐
//!   sockets ──┼── the thread that waits ┼── a thread for a reload ───────┼── Slot ── Serving
//!   exports ──┘                        └── a thread for each end ───────┘
//! ```
//!
//! **Invariant:** the thread that waits does nothing that could take long, so a signal is always heard, and
//! a question waits for no other, but for one that ends what it is about.

use crate::control::{self, Answer, Ask, Listener};
use crate::device::OpenLun;
use crate::signals::StopSignals;
use crate::status::Status;
use crate::{Error, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use serde_json::Value;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError};
use std::time::Duration;

/// Questions that are worked on at the same time.
const ASKERS_MAX: usize = 128;
/// How long the end of the process waits for answers that are under way.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// Something that a process serves. Dropping it without [`Serving::stop`] closes its exports all the
/// same.
pub trait Serving: Send + Sync {
    /// What `evfs status` shows.
    fn status(&self) -> &Status;

    /// Where questions come in.
    fn listener(&self) -> &Arc<Listener>;

    /// The LUN below, if there is one.
    fn lun(&self) -> Option<&Arc<OpenLun>>;

    /// Readable when its export has ended by itself, so that it is to be stopped: unmounted by hand,
    /// for example. Nothing for exports that do not.
    fn ended(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Answers a question.
    ///
    /// # Errors
    /// What was asked for cannot be done.
    fn answer(&self, ask: &Ask) -> Result<Value>;

    /// Whether nobody uses the exports in a way that keeps them from being closed.
    ///
    /// # Errors
    /// [`Error::Busy`], with who does.
    fn in_use(&self) -> Result<()>;

    /// Makes durable what was acknowledged.
    ///
    /// # Errors
    /// Not everything could be written; nothing is lost.
    fn flush(&self) -> Result<()>;

    /// Makes everything durable, closes the exports and lets the device go when it is dropped.
    ///
    /// With `force` an export that is in use is taken away from its users, and what cannot be written is
    /// given up. Without it nothing has changed when there is an error.
    ///
    /// # Errors
    /// It is still in use, or not everything could be written out. [`Error::DataLost`] means that it has
    /// ended all the same.
    fn stop(&mut self, force: bool) -> Result<()>;
}

/// How a service ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Every volume was detached.
    Detached,
    /// A signal asked for it; everything was flushed and closed.
    Signal(i32),
}

/// What a HUP is answered with, beside a flush of everything. Gives what did not work, in words.
pub type Reload = Arc<dyn Fn(&Hub) -> Vec<String> + Send + Sync>;

/// Serves until everything is detached or a signal comes.
///
/// # Errors
/// When waiting fails; when what ended by itself, or by a signal, could not be made durable, once all else
/// has ended.
pub fn serve(all: Vec<Box<dyn Serving>>, signals: &StopSignals, reload: &Reload) -> Result<Ended> {
    let hub = Arc::new(Hub::new(all)?);
    let ended = loop {
        if let Some(signal) = signals.stop_asked() {
            tracing::info!(signal, "stopping");
            hub.stop_all();
            break Ended::Signal(signal);
        }
        if hub.begins_reload(signals) {
            let reload = Arc::clone(reload);
            hub.start(move |hub| hub.reload(&reload));
        }
        let slots = hub.slots();
        if slots.is_empty() && !hub.work().reloads {
            break Ended::Detached;
        }
        let (asked, over) = hub.wait(&slots, signals)?;
        for slot in over {
            // Nobody uses it any more, so nothing can be in the way but the device.
            slot.ended_seen.store(true, Ordering::SeqCst);
            hub.start(move |hub| hub.stop_now(&slot));
        }
        asked.into_iter().for_each(|slot| hub.accept(&slot));
    };
    hub.wait_for_answers();
    let lost = lock(&hub.lost).take();
    lost.map_or(Ok(ended), Err)
}

/// Everything that a process serves.
pub struct Hub {
    slots: Mutex<Vec<Arc<Slot>>>,
    wake: OwnedFd,
    work: Mutex<Work>,
    idle: Condvar,
    /// The first of what could not be made durable.
    lost: Mutex<Option<Error>>,
    /// What the last HUP could not do.
    hup: Arc<Mutex<Option<String>>>,
}

/// What other threads are at.
#[derive(Default)]
struct Work {
    threads: usize,
    reloads: bool,
    stops: bool,
}

impl Hub {
    fn new(all: Vec<Box<dyn Serving>>) -> Result<Hub> {
        let failed = |e: rustix::io::Errno| Error::Failed(format!("cannot make an eventfd: {e}"));
        let hub = Hub {
            slots: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?,
            work: Mutex::default(),
            idle: Condvar::new(),
            lost: Mutex::default(),
            hup: Arc::default(),
        };
        all.into_iter().try_for_each(|serving| hub.add(serving))?;
        Ok(hub)
    }

    /// Serves this, too.
    ///
    /// # Errors
    /// The process has no descriptor left, or is about to end.
    pub fn add(&self, serving: Box<dyn Serving>) -> Result<()> {
        let slot = Arc::new(Slot::new(serving, &self.hup)?);
        let mut slots = lock(&self.slots);
        if self.work().stops {
            return Err(Error::Failed("the process ends".into()));
        }
        slots.push(slot);
        drop(slots);
        self.wake();
        Ok(())
    }

    /// The names of what is served.
    pub fn names(&self) -> Vec<String> {
        self.slots().iter().map(|slot| slot.name.clone()).collect()
    }

    /// Detaches one.
    ///
    /// # Errors
    /// Those of [`Serving::stop`] without force.
    pub fn stop(&self, name: &str) -> Result<()> {
        let slots = self.slots();
        let slot = slots.iter().find(|slot| slot.name == name);
        let stopped = slot.map_or(Ok(()), |slot| slot.stop(false));
        self.wake();
        stopped
    }

    /// Lets the status of one say something, or nothing any more.
    pub fn note(&self, name: &str, note: Option<String>) {
        if let Some(slot) = self.slots().iter().find(|slot| slot.name == name) {
            *lock(&slot.note) = note;
        }
    }

    /// Those that have not ended.
    fn slots(&self) -> Vec<Arc<Slot>> {
        let mut slots = lock(&self.slots);
        slots.retain(|slot| !slot.is_gone.load(Ordering::SeqCst));
        slots.clone()
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        lock(&self.work)
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Runs `work` on a thread of its own.
    fn start(self: &Arc<Hub>, work: impl FnOnce(&Hub) + Send + 'static) {
        /// Notes the end of the work, also of one that panics.
        struct Working(Arc<Hub>);
        impl Drop for Working {
            fn drop(&mut self) {
                self.0.work().threads -= 1;
                self.0.idle.notify_all();
                self.0.wake();
            }
        }
        self.work().threads += 1;
        let working = Working(Arc::clone(self));
        let run = move || work(&working.0);
        let started = std::thread::Builder::new()
            .name("evfs-ask".into())
            .spawn(run);
        if let Err(error) = started {
            tracing::error!("cannot start a thread: {error}");
        }
    }

    /// Waits for something to happen; says who was asked, and which ended.
    fn wait(&self, slots: &[Arc<Slot>], signals: &StopSignals) -> Result<(Slots, Slots)> {
        let ends: Vec<(&Arc<Slot>, &OwnedFd)> = slots
            .iter()
            .filter(|slot| !slot.ended_seen.load(Ordering::SeqCst))
            .filter_map(|slot| Some((slot, slot.ended.as_ref()?)))
            .collect();
        let own = [signals.as_fd(), self.wake.as_fd()];
        let listeners = slots.iter().map(|slot| slot.listener.as_fd());
        let ended = ends.iter().map(|(_, fd)| fd.as_fd());
        let watched = own.into_iter().chain(listeners).chain(ended);
        let mut fds: Vec<PollFd<'_>> = watched
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::Failed(format!("waiting for questions failed: {e}"))),
        }
        signals.drain();
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        let happened = |(_, fd): &(&Arc<Slot>, &PollFd<'_>)| !fd.revents().is_empty();
        let (listeners, ended) = fds[own.len()..].split_at(slots.len());
        let asked = slots.iter().zip(listeners).filter(happened);
        let over = ends.iter().map(|(slot, _)| *slot).zip(ended);
        let all = |found: &mut dyn Iterator<Item = (&Arc<Slot>, &PollFd<'_>)>| {
            found.map(|(slot, _)| Arc::clone(slot)).collect()
        };
        Ok((all(&mut asked.into_iter()), all(&mut over.filter(happened))))
    }

    /// Lets somebody ask.
    fn accept(self: &Arc<Hub>, slot: &Arc<Slot>) {
        match slot.listener.accept() {
            Ok(Some(stream)) if self.work().threads < ASKERS_MAX => {
                let slot = Arc::clone(slot);
                self.start(move |_| slot.ask(stream));
            }
            Ok(Some(_)) => tracing::warn!("too many questions at the same time"),
            Ok(None) => {}
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => tracing::warn!("a question could not be read: {error}"),
        }
    }

    fn begins_reload(&self, signals: &StopSignals) -> bool {
        let mut work = self.work();
        let begins = !work.reloads && signals.reload_asked();
        work.reloads |= begins;
        begins
    }

    fn reload(&self, reload: &Reload) {
        tracing::info!("HUP: flushing, and reading the settings again");
        let mut failed = Vec::new();
        for slot in self.slots() {
            if let Some(Err(error)) = slot.with(|serving| serving.flush()) {
                failed.push(format!("cannot flush {}: {}", slot.name, error.chain()));
            }
        }
        failed.extend(reload(self));
        for why in &failed {
            tracing::error!("HUP: {why}");
        }
        let said = format!("the last HUP failed: {}", failed.join("; "));
        *lock(&self.hup) = (!failed.is_empty()).then_some(said);
        self.work().reloads = false;
    }

    /// Ends all of them at the same time.
    fn stop_all(&self) {
        self.work().stops = true;
        let slots = self.slots();
        std::thread::scope(|scope| {
            for slot in &slots {
                scope.spawn(|| self.stop_now(slot));
            }
        });
    }

    fn stop_now(&self, slot: &Slot) {
        match slot.stop(true) {
            Ok(()) => tracing::info!(volume = slot.name, "flushed and closed"),
            Err(error) => {
                tracing::error!(
                    volume = slot.name,
                    "closed with an error: {}",
                    error.chain()
                );
                lock(&self.lost).get_or_insert(error);
            }
        }
    }

    fn wait_for_answers(&self) {
        let busy = |work: &mut Work| work.threads > 0;
        let _ = self
            .idle
            .wait_timeout_while(self.work(), LAST_ANSWERS, busy);
    }
}

type Slots = Vec<Arc<Slot>>;

/// One of what is served.
struct Slot {
    name: String,
    /// What it was at the beginning, for as long as nothing newer can be had.
    status: Value,
    note: Mutex<Option<String>>,
    hup: Arc<Mutex<Option<String>>>,
    listener: Arc<Listener>,
    /// The LUN below, for as long as it is open.
    lun: Mutex<Option<Arc<OpenLun>>>,
    /// Its state when it was about to be closed.
    lun_last: OnceLock<Value>,
    ended: Option<OwnedFd>,
    ended_seen: AtomicBool,
    is_gone: AtomicBool,
    /// Questions share it; who ends it has it alone.
    serving: RwLock<Option<Box<dyn Serving>>>,
}

impl Slot {
    fn new(serving: Box<dyn Serving>, hup: &Arc<Mutex<Option<String>>>) -> Result<Slot> {
        let ended = serving.ended().map(|fd| fd.try_clone_to_owned());
        let failed = |e| Error::Failed(format!("cannot watch an export: {e}"));
        Ok(Slot {
            name: serving.status().name.clone(),
            status: serving.status().to_value(),
            note: Mutex::default(),
            hup: Arc::clone(hup),
            listener: Arc::clone(serving.listener()),
            lun: Mutex::new(serving.lun().cloned()),
            lun_last: OnceLock::new(),
            ended: ended.transpose().map_err(failed)?,
            ended_seen: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            serving: RwLock::new(Some(serving)),
        })
    }

    /// Does something with it; nothing if it is being ended.
    fn with<T>(&self, work: impl FnOnce(&dyn Serving) -> T) -> Option<T> {
        let serving = match self.serving.try_read() {
            Ok(serving) => serving,
            Err(TryLockError::Poisoned(serving)) => serving.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        serving.as_deref().map(work)
    }

    fn status(&self) -> Result<Value> {
        let now = self.with(|serving| serving.answer(&Ask::Status));
        let mut status = now.unwrap_or_else(|| {
            let mut status = self.status.clone();
            status["state"] = "detaching".into();
            Ok(status)
        })?;
        // Also while it is being detached: that waits for the LUN.
        let lun = lock(&self.lun).as_deref().map(crate::lun::health);
        if let Some(state) = lun.or_else(|| self.lun_last.get().cloned()) {
            status["lun_state"] = state;
        }
        for note in [&self.note, &*self.hup] {
            if let Some(note) = &*lock(note) {
                let before = status["warning"]
                    .as_str()
                    .map(|before| format!("{before}; "));
                status["warning"] = format!("{}{note}", before.unwrap_or_default()).into();
            }
        }
        Ok(status)
    }

    /// Reads a question and answers it.
    fn ask(&self, stream: UnixStream) {
        if let Ok(peer) = control::peer(&stream) {
            export_fuse::asked_by(peer.pid);
        }
        let Some((ask, asker)) = Answer::to(stream) else {
            return;
        };
        let ending = || Err(Error::Busy(format!("{} is being detached", self.name)));
        let answer = match ask {
            Ask::Status => self.status(),
            Ask::MayDetach => self
                .with(|serving| serving.in_use())
                .unwrap_or(Ok(()))
                .map(|()| Value::Null),
            Ask::Detach { force } => {
                let before = self.status.clone();
                self.stop(force).map(|()| before)
            }
            ask => self
                .with(|serving| serving.answer(&ask))
                .unwrap_or_else(ending),
        };
        match answer {
            Ok(value) => asker.value(&value),
            Err(error) => asker.error(&error),
        }
    }

    /// Ends it, once nobody asks anything of it.
    fn stop(&self, force: bool) -> Result<()> {
        if let (true, Some(lun)) = (force, &*lock(&self.lun)) {
            // Also for those that are at work now.
            lun.lun().hurry();
        }
        let serving = self.serving.write();
        let mut serving = serving.unwrap_or_else(PoisonError::into_inner);
        // Nothing: somebody else has ended it meanwhile.
        let stopped = serving
            .as_mut()
            .map_or(Ok(()), |serving| serving.stop(force));
        if matches!(stopped, Ok(()) | Err(Error::DataLost(_))) {
            *serving = None;
            // Its locks are free before anybody is told that it has ended, and may open it again.
            self.let_go_of_lun(force);
            self.listener.close();
            self.is_gone.store(true, Ordering::SeqCst);
        }
        stopped
    }

    fn let_go_of_lun(&self, force: bool) {
        let mut lun = lock(&self.lun);
        if let Some(open) = lun.as_deref() {
            let _ = self.lun_last.set(crate::lun::health(open));
        }
        let last = lun.take();
        drop(lun);
        if let (false, Some(open)) = (force, &last) {
            open.lun().settle();
        }
        // It writes to the LUN that nobody uses it any more; the status can be seen meanwhile.
        drop(last);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
