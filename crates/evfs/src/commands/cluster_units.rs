//! `evfs up --cluster`: the process that runs the cluster's protocol for this machine, and the claim
//! of a process that it starts for a unit.

use super::service::end;
use crate::{background, log};
use cli::{Context, output};
use cluster::{Address, Endpoints, Handle, Host, Link, Node, Options, Report, Step, Store, Units};
use cluster_proto::{Config, Name};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use stack::config::{ConfigFile, ServiceTable};
use stack::{
    Ended, Error, Held, Manager, Ownership, Result, ServiceSpec, Settings, StopSignals, exit,
};
use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Pause between two looks at a node that may be stuck.
const LOOK: Duration = Duration::from_millis(500);
/// The services of this process, for a service manager.
const SERVES: [&str; 1] = ["the units of a cluster"];

/// Creates the client of the cluster that the settings name.
///
/// # Errors
/// The settings name none, or a file of theirs cannot be read.
pub fn store(settings: &Settings) -> Result<Store> {
    let wrong = |detail: String| Error::Config {
        place: "cluster".into(),
        detail,
    };
    let [ca, certificate, key] = settings.cluster_tls_files();
    let client = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => {
            return Err(wrong(
                "set cluster.tls-cert and cluster.tls-key together".into(),
            ));
        }
    };
    let endpoints = Endpoints {
        urls: settings.cluster_etcd(),
        ca,
        client,
    };
    let store = Store::new(&endpoints, settings.cluster_prefix());
    store.map_err(|error| wrong(error.to_string()))
}

/// Checks whether a table can be a unit.
///
/// # Errors
/// It is read-only: nothing would keep its earlier owners from writing.
pub fn may_be_unit(entry: &ServiceTable) -> Result<()> {
    let is_read_only = match &entry.spec {
        ServiceSpec::Attach(spec) => spec.read_only,
        ServiceSpec::Mount(spec) => spec.read_only,
        ServiceSpec::Serve(_) => false,
    };
    if is_read_only {
        let table = entry.table();
        return Err(Error::Usage(format!(
            "{table} cannot be a unit of a cluster: it is read-only; any number of machines may \
             use `evfs up` for it"
        )));
    }
    Ok(())
}

/// Runs the protocol until a signal asks for the end.
pub fn serve(
    context: &Context,
    config: &ConfigFile,
    read: impl Fn(&Settings) -> Result<Vec<ServiceTable>> + Send + 'static,
    ready: Option<background::Ready>,
) -> Result<u8> {
    let signals = StopSignals::for_service()?;
    let place = config.path().display().to_string();
    let read = move |settings: &Settings| units(&place, &read(settings)?);
    let units = read(&context.settings)?;
    let store = Arc::new(store(&context.settings)?);
    let name = Name::from(context.settings.cluster_name());
    let _alone = alone(&context.settings)?;
    let program = std::env::current_exe().map_err(|e| Error::Failed(e.to_string()))?;
    let file = std::path::absolute(config.path()).unwrap_or_else(|_| config.path().to_owned());
    let command = move |unit: &str| {
        let mut command = std::process::Command::new(&program);
        command.arg("up").arg(&file);
        command.args(["--only", unit, "--claim"]);
        // Reports to a service manager are those of this process.
        command
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC");
        command
    };
    let json = context.json;
    let manager = Arc::new(Mutex::new(Manager::of_environment(false)));
    let (told, count) = (Arc::clone(&manager), units.names.len());
    let mut ready = ready;
    let machine = Name::clone(&name);
    let is_member = Arc::new(AtomicBool::new(false));
    let joined = Arc::clone(&is_member);
    let announce = move || {
        let text = format!("{machine}: a machine of the cluster, which may serve {count} units");
        joined.store(true, Relaxed);
        lock(&told).serving(SERVES.into_iter());
        match ready.take() {
            Some(ready) => ready.report_ready(if json { "" } else { &text }),
            None => output::say(json, &text),
        }
    };
    let is_alive = Arc::new(AtomicBool::new(false));
    let beats = Arc::clone(&is_alive);
    let options = Options {
        config: Config::new(name),
        host: host(),
        units,
        command: Box::new(command),
        ready: Box::new(announce),
        alive: Box::new(move || beats.store(true, Relaxed)),
    };
    let failed = |e: std::io::Error| Error::Failed(format!("cannot start a thread: {e}"));
    let (node, handle) = Node::new(store, options).map_err(failed)?;
    signals.stop_in_order();
    let signal = Arc::new(Mutex::new(0));
    let seen = Arc::clone(&signal);
    let wait = move || {
        let mut is_stopping = false;
        loop {
            // A keep-alive says that the node is not stuck, not that this thread runs.
            let limit = if is_alive.swap(false, Relaxed) {
                lock(&manager).keep_alive()
            } else {
                Some(LOOK)
            };
            let limit = limit.map(|limit| Timespec::try_from(limit).unwrap_or_default());
            let mut fds = [PollFd::new(&signals, PollFlags::IN)];
            let _ = poll(&mut fds, limit.as_ref());
            signals.drain();
            // A second INT ends this process by itself, and its units then stop in order.
            if !is_stopping && let Some(signal) = signals.stop_asked() {
                is_stopping = true;
                lock(&manager).stopping();
                *lock(&seen) = signal;
                handle.stop();
            }
            if !is_stopping && signals.reload_asked() {
                // Before it is ready, it has no state that it could return to.
                let is_member = is_member.load(Relaxed);
                if is_member {
                    lock(&manager).reloading();
                }
                reload(&read, &handle);
                if is_member {
                    lock(&manager).serving(SERVES.into_iter());
                }
            }
        }
    };
    std::thread::Builder::new()
        .name("cluster-signals".into())
        .spawn(wait)
        .map_err(failed)?;
    node.run();
    match *lock(&signal) {
        0 => Ok(exit::OK),
        signal => end(Ended::Signal(signal)),
    }
}

/// Reads the settings and the tables again. If they cannot be read, everything stays as it is.
fn reload(read: &impl Fn(&Settings) -> Result<Units>, handle: &Handle) {
    tracing::info!("HUP: reloading the settings and the units");
    let units = Settings::load().and_then(|settings| {
        let units = read(&settings)?;
        log::reload(settings.log_level());
        Ok(units)
    });
    match units {
        Ok(units) => handle.reload(units),
        Err(error) => tracing::error!(
            name: "EVFS-0807",
            "HUP: configuration not reloaded: {}",
            error.chain()
        ),
    }
}

/// The units that tables are, with their addresses. `place`: file of the tables.
///
/// # Errors
/// A table cannot be a unit, or an address is wrong or is that of two units.
fn units(place: &str, entries: &[ServiceTable]) -> Result<Units> {
    let mut units = Units::default();
    for entry in entries {
        may_be_unit(entry)?;
        let wrong = |detail: String| Error::Config {
            place: format!("{place}: {}", entry.table()),
            detail,
        };
        let name = Name::from(entry.spec.name());
        if let Some(text) = &entry.address {
            let address: Address = text.parse().map_err(wrong)?;
            let is_same = |other: &Address| other.ip == address.ip;
            if units.addresses.values().any(is_same) {
                return Err(wrong(format!(
                    "another table has the address {}, too",
                    address.ip
                )));
            }
            units.addresses.insert(Name::clone(&name), address);
        }
        units.names.insert(name);
    }
    Ok(units)
}

/// Keeps a second process for this machine from running.
fn alone(settings: &Settings) -> Result<File> {
    let path = stack::run_dir(&settings.run_dir())?.join("cluster.lock");
    let failed = |e: std::io::Error| Error::io("cannot lock", &path, e);
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::Busy(
            "`evfs up --cluster` runs on this machine already; end it first".into(),
        )),
        Err(TryLockError::Error(e)) => Err(failed(e)),
    }
}

/// Identifies this host until its next start, with its network namespace.
pub fn host() -> Host {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::metadata("/proc/self/ns/net").map_or(0, |meta| meta.ino());
    let host = format!("{}.{namespace}", boot.trim());
    Host { host }
}

/// The claim of this process on the unit that it serves.
pub struct Claim {
    link: Link,
    steps: Mutex<Steps>,
}

/// Steps that the node has asked for.
#[derive(Default)]
struct Steps {
    has_begun: bool,
    must_fence: bool,
    /// The node knows that earlier owners are fenced, or that they are not.
    is_fence_reported: bool,
    epoch: Option<u64>,
    may_open: bool,
    /// The node knows that this claim has failed.
    has_failed: bool,
}

impl Claim {
    /// Takes standard input as the connection to the node. Its end stops this process in order.
    ///
    /// # Errors
    /// It is none.
    pub fn of_stdin() -> Result<Claim> {
        let stop = || {
            let _ = kill_process(getpid(), Signal::TERM);
        };
        let link = Link::of_stdin(stop).map_err(|e| Error::Usage(format!("--claim: {e}")))?;
        Ok(Claim {
            link,
            steps: Mutex::default(),
        })
    }

    /// Reports that the unit is served.
    ///
    /// # Errors
    /// Nothing was opened for which this claim is needed.
    pub fn opened(&self) -> Result<()> {
        if !lock(&self.steps).may_open {
            let why = "the table opens no device for writing, so it cannot be a unit";
            return Err(Error::Usage(why.into()));
        }
        self.link.report(&Report::Opened);
        Ok(())
    }

    /// Reports that the unit is not served, unless the node knows.
    pub fn failed(&self, error: &Error) {
        if !lock(&self.steps).has_failed {
            self.link.report(&Report::Failed(error.chain()));
        }
    }

    fn next(&self, steps: &mut Steps) -> Result<()> {
        match self.link.next_step() {
            Some(Step::Fence) => steps.must_fence = true,
            Some(Step::Store(epoch)) => steps.epoch = Some(epoch),
            Some(Step::Open) => steps.may_open = true,
            None => {
                let why = "the claim on this unit has ended before it was opened";
                return Err(Error::Failed(why.into()));
            }
        }
        steps.has_begun = true;
        Ok(())
    }
}

impl Ownership for Claim {
    fn must_fence(&self) -> Result<bool> {
        let mut steps = lock(&self.steps);
        if !steps.has_begun {
            self.next(&mut steps)?;
        }
        Ok(steps.must_fence)
    }

    fn fenced(&self, result: &Result<()>) {
        let mut steps = lock(&self.steps);
        match result {
            Ok(()) if steps.is_fence_reported => {}
            Ok(()) => self.link.report(&Report::Fenced),
            Err(error) => {
                steps.has_failed = true;
                self.link.report(&Report::NotFenced(error.chain()));
            }
        }
        steps.is_fence_reported = true;
    }

    fn epoch(&self) -> Result<u64> {
        let mut steps = lock(&self.steps);
        loop {
            if let Some(epoch) = steps.epoch {
                return Ok(epoch);
            }
            self.next(&mut steps)?;
        }
    }

    fn newer(&self, epoch: u64) {
        lock(&self.steps).has_failed = true;
        self.link.report(&Report::Newer(epoch));
    }

    fn stored(&self) -> Result<()> {
        self.link.report(&Report::Stored);
        let mut steps = lock(&self.steps);
        while !steps.may_open {
            self.next(&mut steps)?;
        }
        Ok(())
    }

    fn held(&self) -> Option<Held> {
        let epoch = lock(&self.steps).epoch?;
        let left = self.link.left();
        Some(Held { epoch, left })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
