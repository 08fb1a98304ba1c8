//! The main loop of a process that serves attached volumes, mounted file systems and cells:
//! signals, control requests, and exports that end by themselves.
//!
//! ```text
//!   signals ──┐                     ┌── a thread per request ──┐
//!   sockets ──┼── the main thread ──┼── a thread per reload ───┼── Slot ── Service
//!   exports ──┘                     └── a thread per stop ─────┘
//! ```
//!
//! **Invariant:** the main thread never blocks except in `poll`, so signals are always handled, and
//! a service manager can take missing keep-alives, which this thread sends, for a failure. A
//! request waits for no other request, except one that stops the same service.

use super::counters;
use super::scrape;
use super::status::Status;
use super::{Closing, Service};
use crate::control::{ControlRequest, Listener, PendingReply, Run, WatchRequest};
use crate::device::OpenLun;
use crate::http::{self, Site};
use crate::listen::Listen;
use crate::metrics::{self, Samples};
use crate::notify::Manager;
use crate::peer::peer;
use crate::signals::StopSignals;
use crate::text::json_of;
use crate::watch::Reading;
use crate::web::Page;
use crate::{Error, Result, Settings};
use block::Waker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

/// Requests served concurrently.
const ASKERS_MAX: usize = 128;
/// Limit for the wait for requests in progress when the process ends.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// Reason for the end of [`serve`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Every service was detached.
    Detached,
    /// A signal requested the stop; everything was flushed and closed.
    Signal(i32),
}

/// Callback for HUP, after a flush of everything. Returns messages about failures.
pub type Reload = Arc<dyn Fn(&Hub) -> Vec<String> + Send + Sync>;

/// Serves until everything is detached or a signal requests a stop. Reports to the service manager
/// of the process, if it has one.
///
/// # Errors
/// Waiting for events failed. Or a service that ended by itself or by a signal could not make its
/// data durable; this is reported after all others have ended.
pub fn serve(
    all: Vec<Service>,
    signals: &StopSignals,
    reload: &Reload,
    settings: &Settings,
) -> Result<Ended> {
    let hub = Arc::new(Hub::new(all)?);
    let mut manager = Manager::of_environment(settings.succession().is_some());
    let _servers = hub.start_servers(settings);
    let ended = loop {
        if let Some(signal) = signals.stop_asked() {
            tracing::info!(signal, "stopping");
            manager.stopping();
            hub.stop_all();
            break Ended::Signal(signal);
        }
        if let Some(reloading) = hub.begin_reload(signals) {
            manager.reloading();
            let reload = Arc::clone(reload);
            hub.start(move |hub| {
                let _reloading = reloading;
                hub.reload(&reload);
            });
        }
        // In this order: a service that a reload adds is in the list once the reload is over.
        let reloads = hub.work().reloads;
        let slots = hub.slots();
        if slots.is_empty() && !reloads {
            manager.stopping();
            break Ended::Detached;
        }
        if !reloads {
            manager.serving(slots.iter().map(|slot| slot.name.as_str()));
        }
        let (asked, over) = hub.wait(&slots, signals, manager.keep_alive())?;
        for slot in over {
            // The export has no users left, so only the device can make the stop fail.
            hub.start(move |hub| {
                if slot.has_ended() {
                    hub.stop_now(&slot);
                }
            });
        }
        asked.into_iter().for_each(|slot| hub.accept(&slot));
    };
    hub.wait_for_answers();
    let lost = lock(&hub.lost).take();
    lost.map_or(Ok(ended), Err)
}

/// All services of the process.
pub struct Hub {
    slots: Mutex<Vec<Arc<Slot>>>,
    waker: Waker,
    work: Mutex<Work>,
    idle: Condvar,
    /// First error of data that could not be made durable.
    lost: Mutex<Option<Error>>,
    /// Errors of the last HUP.
    hup: Arc<Mutex<Option<String>>>,
}

/// Work in progress on other threads.
#[derive(Default)]
struct Work {
    threads: usize,
    reloads: bool,
    stops: bool,
}

impl Hub {
    fn new(all: Vec<Service>) -> Result<Hub> {
        let failed = |e: std::io::Error| Error::Failed(format!("cannot create an eventfd: {e}"));
        let hub = Hub {
            slots: Mutex::default(),
            waker: Waker::new().map_err(failed)?,
            work: Mutex::default(),
            idle: Condvar::new(),
            lost: Mutex::default(),
            hup: Arc::default(),
        };
        all.into_iter().try_for_each(|service| hub.add(service))?;
        Ok(hub)
    }

    /// Adds a service.
    ///
    /// # Errors
    /// The process has no descriptor left, or is about to end.
    pub fn add(&self, service: Service) -> Result<()> {
        let slot = Arc::new(Slot::new(service, &self.hup)?);
        let mut slots = lock(&self.slots);
        if self.work().stops {
            return Err(Error::Failed("the process is shutting down".into()));
        }
        slots.push(slot);
        drop(slots);
        self.waker.wake();
        Ok(())
    }

    /// Lists the names of all services.
    pub fn names(&self) -> Vec<String> {
        self.slots().iter().map(|slot| slot.name.clone()).collect()
    }

    /// Detaches the service `name`.
    ///
    /// # Errors
    /// The service is still in use, or not all its data could be written; it continues then.
    pub fn stop(&self, name: &str) -> Result<()> {
        let slots = self.slots();
        let slot = slots.iter().find(|slot| slot.name == name);
        let stopped = slot.map_or(Ok(()), |slot| slot.stop(Closing::InOrder));
        self.waker.wake();
        stopped
    }

    /// Sets or clears an additional warning in the status of a service.
    pub fn note(&self, name: &str, note: Option<String>) {
        if let Some(slot) = self.slots().iter().find(|slot| slot.name == name) {
            *lock(&slot.note) = note;
        }
    }

    /// Starts the servers of the metrics and of the web page that the settings have addresses for.
    fn start_servers(self: &Arc<Hub>, settings: &Settings) -> Vec<http::Server> {
        let run_dir = settings.run_dir();
        let mut sites: Vec<(Listen, Box<dyn Site>)> = Vec::new();
        if let Some(at) = settings.web_listen() {
            sites.push((at, Box::new(Page::new(&run_dir))));
        }
        if let Some(at) = settings.metrics_listen() {
            let (hub, dir) = (Arc::clone(self), run_dir.clone());
            let site = metrics::Site::new(move || hub.metrics(&dir));
            sites.push((at, Box::new(site)));
        }
        http::Server::start_all(sites, &run_dir)
    }

    /// Collects the metrics of all services of the directory, as text.
    fn metrics(&self, run_dir: &Path) -> String {
        let began = Instant::now();
        let slots = self.slots();
        let own = slots.iter().map(|slot| (slot.name.clone(), slot.samples()));
        scrape::text(run_dir, own.collect(), began)
    }

    /// Lists the services that have not ended.
    fn slots(&self) -> Vec<Arc<Slot>> {
        let mut slots = lock(&self.slots);
        slots.retain(|slot| !slot.is_gone.load(Ordering::SeqCst));
        slots.clone()
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        lock(&self.work)
    }

    /// Runs `work` on a thread of its own.
    fn start(self: &Arc<Hub>, work: impl FnOnce(&Hub) + Send + 'static) {
        /// Records the end of the work, even if it panics.
        struct Working(Arc<Hub>);
        impl Drop for Working {
            fn drop(&mut self) {
                self.0.work().threads -= 1;
                self.0.idle.notify_all();
                self.0.waker.wake();
            }
        }
        self.work().threads += 1;
        let working = Working(Arc::clone(self));
        let run = move || work(&working.0);
        let started = std::thread::Builder::new()
            .name("evfs-ask".into())
            .spawn(run);
        if let Err(error) = started {
            tracing::error!(name: "EVFS-0806", "cannot start a thread: {error}");
        }
    }

    /// Waits for an event, at most for `limit`; returns the services with a new request, and those
    /// whose export ended.
    fn wait(
        &self,
        slots: &[Arc<Slot>],
        signals: &StopSignals,
        limit: Option<Duration>,
    ) -> Result<(Slots, Slots)> {
        let ends: Vec<(&Arc<Slot>, Arc<OwnedFd>)> = slots
            .iter()
            .filter_map(|slot| Some((slot, lock(&slot.ended).clone()?)))
            .collect();
        let own = [signals.as_fd(), self.waker.as_fd()];
        let listeners = slots.iter().map(|slot| slot.listener.as_fd());
        let ended = ends.iter().map(|(_, fd)| fd.as_fd());
        let watched = own.into_iter().chain(listeners).chain(ended);
        let mut fds: Vec<PollFd<'_>> = watched
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let limit = limit.map(|limit| Timespec::try_from(limit).unwrap_or_default());
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::Failed(format!("cannot wait for requests: {e}"))),
        }
        signals.drain();
        self.waker.take();
        let happened = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let (listeners, ended) = fds[own.len()..].split_at(slots.len());
        let asked = slots.iter().zip(listeners);
        let asked = asked.filter(|(_, fd)| happened(fd));
        let over = ends.iter().zip(ended);
        let over = over.filter(|(_, fd)| happened(fd)).map(|((slot, fd), _)| {
            slot.unwatch(fd);
            Arc::clone(slot)
        });
        Ok((
            asked.map(|(slot, _)| Arc::clone(slot)).collect(),
            over.collect(),
        ))
    }

    /// Accepts a connection with a control request.
    fn accept(self: &Arc<Hub>, slot: &Arc<Slot>) {
        match slot.listener.accept() {
            Ok(Some(stream)) if self.work().threads < ASKERS_MAX => {
                let slot = Arc::clone(slot);
                self.start(move |_| slot.ask(stream));
            }
            Ok(Some(_)) => tracing::warn!(
                name: "EVFS-0804",
                "rejected a request: too many at the same time"
            ),
            Ok(None) => {}
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => tracing::warn!(name: "EVFS-0805", "cannot accept a request: {error}"),
        }
    }

    /// Begins a reload if HUP has requested one and none is in progress.
    fn begin_reload(self: &Arc<Hub>, signals: &StopSignals) -> Option<Reloading> {
        let begins = !self.work().reloads && signals.reload_asked();
        begins.then(|| Reloading::new(self))
    }

    fn reload(&self, reload: &Reload) {
        tracing::info!("HUP: flushing, and reloading the settings");
        let mut failed = Vec::new();
        for slot in self.slots() {
            if let Some(Err(error)) = slot.with(|service| service.flush()) {
                failed.push(format!("cannot flush {}: {}", slot.name, error.chain()));
            }
        }
        failed.extend(reload(self));
        for why in &failed {
            tracing::error!(name: "EVFS-0807", "HUP: {why}");
        }
        let said = format!("the last HUP failed: {}", failed.join("; "));
        *lock(&self.hup) = (!failed.is_empty()).then_some(said);
    }

    /// Stops all services concurrently.
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
        match slot.stop(Closing::ByForce) {
            Ok(()) => tracing::info!(volume = slot.name, "flushed and closed"),
            Err(error) => {
                tracing::error!(
                    name: "EVFS-0809",
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

/// A reload in progress. It ends with this value, even if its thread panics or does not start.
struct Reloading(Arc<Hub>);

impl Reloading {
    fn new(hub: &Arc<Hub>) -> Reloading {
        hub.work().reloads = true;
        Reloading(Arc::clone(hub))
    }
}

impl Drop for Reloading {
    fn drop(&mut self) {
        self.0.work().reloads = false;
        self.0.waker.wake();
    }
}

type Slots = Vec<Arc<Slot>>;

/// One service of the process.
pub(super) struct Slot {
    name: String,
    /// Status as of the start, for use when no newer one is available.
    status: Status,
    note: Mutex<Option<String>>,
    hup: Arc<Mutex<Option<String>>>,
    listener: Arc<Listener>,
    settings: Settings,
    /// Underlying LUN, while it is open.
    lun: Mutex<Option<Arc<OpenLun>>>,
    /// State of the LUN just before it was closed.
    lun_last: OnceLock<Value>,
    /// Readable when the export has ended by itself; `None` once that was noticed.
    ended: Mutex<Option<Arc<OwnedFd>>>,
    is_gone: AtomicBool,
    /// Locked shared by requests, exclusively by a stop.
    service: RwLock<Option<Service>>,
}

impl Slot {
    pub(super) fn new(service: Service, hup: &Arc<Mutex<Option<String>>>) -> Result<Slot> {
        let slot = Slot {
            name: service.status().name.clone(),
            status: service.status().clone(),
            note: Mutex::default(),
            hup: Arc::clone(hup),
            listener: Arc::clone(&service.listener),
            settings: service.settings.clone(),
            lun: Mutex::new(service.open.disk.lun().cloned()),
            lun_last: OnceLock::new(),
            ended: Mutex::default(),
            is_gone: AtomicBool::new(false),
            service: RwLock::default(),
        };
        slot.watch(&service)?;
        *slot.service.write().expect("no other user yet") = Some(service);
        Ok(slot)
    }

    /// Watches the export of the service.
    fn watch(&self, service: &Service) -> Result<()> {
        let ended = service.ended().map(|fd| fd.try_clone_to_owned());
        let failed = |e| Error::Failed(format!("cannot watch an export: {e}"));
        *lock(&self.ended) = ended.transpose().map_err(failed)?.map(Arc::new);
        Ok(())
    }

    /// Ends the watch of an export whose end was noticed, unless another one has taken its place.
    fn unwatch(&self, ended: &Arc<OwnedFd>) {
        lock(&self.ended).take_if(|watched| Arc::ptr_eq(watched, ended));
    }

    /// Reports whether the export has ended by itself. Waits for a stop in progress, which ends it,
    /// too, but opens it again if it fails.
    pub(super) fn has_ended(&self) -> bool {
        let service = self.service.read();
        let service = service.unwrap_or_else(PoisonError::into_inner);
        service.as_ref().is_some_and(Service::has_ended)
    }

    /// Runs `work` on the service; returns `None` if it is being stopped.
    fn with<T>(&self, work: impl FnOnce(&Service) -> T) -> Option<T> {
        let service = match self.service.try_read() {
            Ok(service) => service,
            Err(TryLockError::Poisoned(service)) => service.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        service.as_ref().map(work)
    }

    /// Returns the current status, with the state of the LUN.
    pub(super) fn status_now(&self) -> Status {
        let mut status = self.with(Service::status_now).unwrap_or_else(|| {
            let mut status = self.status.clone();
            status.note_stop();
            status
        });
        status.note_claim(&self.settings);
        // Also during a detach, which waits for the LUN.
        let lun = lock(&self.lun).as_deref().map(crate::lun::health);
        let lun = lun.or_else(|| self.lun_last.get().cloned());
        if let Some(lun) = &lun {
            status.health.add_lun(lun);
        }
        status.lun_state = lun;
        status
    }

    fn status(&self) -> Value {
        let mut status = self.status_now().to_value();
        for note in [&self.note, &*self.hup] {
            if let Some(note) = &*lock(note) {
                let before = status["warning"]
                    .as_str()
                    .map(|before| format!("{before}; "));
                status["warning"] = format!("{}{note}", before.unwrap_or_default()).into();
            }
        }
        status
    }

    /// Collects the metrics of the service and of its process.
    pub(super) fn samples(&self) -> Samples {
        let mut samples = Samples::default();
        scrape::of_status(&self.status_now(), &mut samples);
        self.with(|service| service.add_samples(&mut samples));
        if let Some(lun) = lock(&self.lun).as_deref() {
            scrape::of_lun(&self.name, lun, &mut samples);
        }
        samples
    }

    /// Reads the status and the counters of the service, of its LUN and of its process.
    fn reading(&self, wanted: &WatchRequest) -> Reading {
        let counted = self.with(|service| service.reading(wanted));
        let lun = lock(&self.lun);
        let paths = lun.as_deref().map_or_else(Vec::new, counters::of_lun);
        drop(lun);
        Reading {
            status: self.status(),
            paths,
            ..counted.unwrap_or_default()
        }
    }

    /// Reads a request and answers it.
    fn ask(&self, stream: UnixStream) {
        if let Ok(peer) = peer(&stream) {
            fuse_mount::asked_by(peer.pid);
        }
        let Some((ask, asker)) = PendingReply::to(stream) else {
            return;
        };
        let restarts = ask == ControlRequest::Restart;
        let answer = match ask {
            ControlRequest::Restart => self.answer(Service::prepare_restart),
            ControlRequest::Status => Ok(self.status()),
            ControlRequest::Metrics => Ok(json_of(&self.samples())),
            ControlRequest::Watch(wanted) => Ok(json_of(&self.reading(&wanted))),
            ControlRequest::MayDetach => self
                .with(|service| service.in_use())
                .unwrap_or(Ok(()))
                .map(|()| Value::Null),
            ControlRequest::Detach { force } => {
                let before = self.status.to_value();
                self.stop(Closing::by_force_if(force)).map(|()| before)
            }
            ControlRequest::Sync => self.answer(|service| service.flush().map(|()| Value::Null)),
            ControlRequest::Stats => self.answer(|service| Ok(json_of(&service.stats.snapshot()))),
            ControlRequest::Lun(request) => self.answer(|service| service.lun(&request)),
            ControlRequest::Cache(request) => self.answer(|service| service.cache(&request)),
            ControlRequest::Grow(request) => self.answer(|s| s.grow(&request, Run::Real)),
            ControlRequest::PlanGrow(request) => self.answer(|s| s.grow(&request, Run::Dry)),
            ControlRequest::Files(request) => self.answer(|s| s.files(&request, Run::Real)),
            ControlRequest::PlanFiles(request) => self.answer(|s| s.files(&request, Run::Dry)),
            ControlRequest::Cell(request) => self.answer(|s| s.cell(&request, Run::Real)),
            ControlRequest::PlanCell(request) => self.answer(|s| s.cell(&request, Run::Dry)),
        };
        let restarts = restarts && answer.is_ok();
        asker.send(answer);
        if let Some(succession) = self.settings.succession().filter(|_| restarts)
            && let Err(error) = succession.restart()
        {
            tracing::error!(name: "EVFS-0819", "cannot restart: {}", error.chain());
        }
    }

    /// Calls a function with the service.
    fn answer(&self, work: impl FnOnce(&Service) -> Result<Value>) -> Result<Value> {
        let ending = || Err(Error::Busy(format!("{} is being detached", self.name)));
        self.with(work).unwrap_or_else(ending)
    }

    /// Stops the service once all requests in progress are done.
    pub(super) fn stop(&self, closing: Closing) -> Result<()> {
        if let (Closing::ByForce, Some(lun)) = (closing, &*lock(&self.lun)) {
            // This also ends requests in progress that wait for a path.
            lun.lun().prepare_forced_close();
        }
        let service = self.service.write();
        let mut service = service.unwrap_or_else(PoisonError::into_inner);
        // `None`: another thread has stopped it in the meantime.
        let stopped = service
            .as_mut()
            .map_or(Ok(()), |service| service.stop(closing));
        if matches!(stopped, Ok(()) | Err(Error::DataLost(_))) {
            *service = None;
            // Releases the locks before a client learns of the end and opens the device again.
            self.let_go_of_lun(closing);
            self.listener.close();
            self.is_gone.store(true, Ordering::SeqCst);
        } else if let Some(service) = &*service
            && let Err(error) = self.watch(service)
        {
            tracing::error!(name: "EVFS-0810", volume = self.name, "{}", error.chain());
        }
        stopped
    }

    fn let_go_of_lun(&self, closing: Closing) {
        let mut lun = lock(&self.lun);
        if let Some(open) = lun.as_deref() {
            let _ = self.lun_last.set(crate::lun::health(open));
        }
        let last = lun.take();
        drop(lun);
        if let (Closing::InOrder, Some(open)) = (closing, &last) {
            open.lun().prepare_close();
        }
        // The drop writes to the LUN that it is not in use; the status is available during the
        // write.
        drop(last);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_whose_thread_dies_is_over() {
        let hub = Arc::new(Hub::new(Vec::new()).unwrap());
        let reloading = Reloading::new(&hub);
        hub.start(move |_| {
            let _reloading = reloading;
            panic!("a panic of the test");
        });
        hub.wait_for_answers();
        assert!(!hub.work().reloads);
    }
}
