//! A LUN: its paths, its identity, and the administrative operations on it while it is in use.

use crate::attributes::Attributes;
use crate::clock::Clock;
use crate::contact::{NO_ANSWER, STRAGGLERS, contact, identify};
use crate::identity::{self, Proof};
use crate::log::Log;
use crate::mailbox::{LINK_UP, QueueId, QueueShared, WaitingIo};
use crate::monitor::Monitor;
use crate::path::{Admin, PathState, SharedPath};
use crate::proving;
use crate::queue::LunQueue;
use crate::refusal::Refusal;
use crate::shared::{PathSpec, Shared};
use crate::status::{LunStatus, health, path_status};
use crate::sync::lock;
use crate::trace::{Recording, Trace};
use crate::unanswered::UnansweredWrites;
use block::{BlockDevice, DeviceInfo, Error, ErrorKind, Queue, Result};
use lunpath::Identity;
use numa::Topology;
use std::cmp::Ordering;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::{Duration, Instant};

/// Upper limit of `path_fail_secs` while a forced close is in progress.
const HURRY_SECS: u32 = 5;
/// Maximum time that a path may take to clean up at its target.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// Time limit for the question to a path why its I/O waits.
const STALL_WITHIN: Duration = Duration::from_secs(1);

/// Pause between two checks for lost writes.
const SETTLE_PAUSE: Duration = Duration::from_millis(5);

/// Configuration with which a LUN is opened.
pub struct Config {
    /// Persistent name, `diskN`.
    pub name: String,
    /// Attribute values.
    pub attributes: Attributes,
    /// At least one path, at most [`crate::PATHS_MAX`].
    pub paths: Vec<PathSpec>,
    /// Identity when the LUN was last seen. `None` accepts the first path that answers.
    pub identity: Option<Identity>,
    /// Method of proving that paths lead to the same LUN.
    pub proof: Proof,
    /// Timeout of one connection attempt.
    pub connect_within: Duration,
    /// NUMA nodes of this machine, for the policies that use them. Empty: all paths are local.
    pub topology: Topology,
}

/// Treatment of the last working path of a LUN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastPath {
    /// It stays in service: the operation fails.
    Keep,
    /// It is taken out of service like any other path.
    Retire,
}

/// An open LUN.
pub struct Lun {
    shared: Arc<Shared>,
    _monitor: Monitor,
}

impl Shared {
    /// Opens a queue. Waits for the first connection, and for a limited time for the others, but
    /// not for a path that is known to be lost: it is added when it answers. During a forced close,
    /// does not wait even for the first connection if every path is lost.
    fn queue(self: &Arc<Self>, only: Option<usize>, is_limited: bool) -> Result<Box<dyn Queue>> {
        let id = QueueId::new(self.next_queue.fetch_add(1, Relaxed));
        let made = QueueShared::new(id, only, is_limited);
        let queue = Arc::new(made.map_err(|e| Error::from_io(&self.name, e))?);
        lock(&self.queues).push(Arc::clone(&queue));
        self.wake_monitor();
        let opened = LunQueue::open(Arc::clone(self), Arc::clone(&queue), self.info.clone());
        if opened.is_err() {
            self.forget_queue(id);
        }
        let mut opened = opened?;
        let until = Instant::now() + self.connect_within;
        let mut first = None;
        loop {
            opened.kick()?;
            let paths = self.paths();
            let heeded = self.attributes().alua_enabled;
            let wants =
                |p: &&Arc<SharedPath>| p.wants_link(only) && (p.access.carries() || !heeded);
            let wanted = paths.iter().filter(wants);
            let missing: Vec<_> = wanted
                .filter(|p| queue.links[p.id].load(Acquire) != LINK_UP)
                .collect();
            let enough = if opened.links_up() > 0 {
                let first = first.get_or_insert_with(Instant::now);
                let mut awaited = missing.iter().filter(|p| p.is_awaited()).peekable();
                let over = first.elapsed() > STRAGGLERS;
                if over {
                    awaited.by_ref().for_each(|p| p.is_late(NO_ANSWER));
                }
                over || awaited.peek().is_none()
            } else {
                let lost = missing.iter().all(|p| p.failing.load(Relaxed));
                missing.is_empty() || (lost && self.abandoned.load(Acquire))
            };
            if enough || Instant::now() > until {
                return Ok(Box::new(opened));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Lun {
    /// Opens a LUN: queries the identity on each path and proves that all paths lead to the same
    /// LUN. Paths that do not answer are retried later; a path to something else is refused and
    /// shown as such.
    ///
    /// # Errors
    /// No path leads to the LUN, or another user has it on every path ([`ErrorKind::Busy`]); the
    /// detail lists the reason for each path.
    pub fn open(config: Config) -> Result<Lun> {
        let enabled = config.paths.iter().enumerate().filter(|(_, p)| p.enabled);
        let enabled: Vec<_> = enabled.map(|(i, p)| (i, Arc::clone(&p.path))).collect();
        let within = config.connect_within;
        let contacts = contact(&enabled, within, move |path| {
            let connection = path.connect(within)?;
            Ok((connection.identity().clone(), connection.info().clone()))
        });
        let mut failures = Vec::new();
        let mut lost = Vec::new();
        let mut is_in_use = !enabled.is_empty();
        let mut answers: Vec<(usize, Identity, DeviceInfo)> = Vec::new();
        for contact in contacts {
            match contact.answer {
                Ok((identity, info)) => answers.push((contact.path, identity, info)),
                Err(error) => {
                    failures.push(error.to_string());
                    is_in_use &= error.kind() == ErrorKind::Busy;
                    // A port without access reports that when its access state is queried.
                    if error.kind() != ErrorKind::NotNow {
                        lost.push((contact.path, error.to_string()));
                    }
                }
            }
        }
        let known = config.identity.clone();
        let fits = |found: &Identity| {
            known
                .as_ref()
                .is_none_or(|k| identity::differs(k, found).is_none())
        };
        let Some((_, identity, info)) = answers.iter().find(|(_, found, _)| fits(found)).cloned()
        else {
            for (path, found, _) in &answers {
                if let Some(why) = known.as_ref().and_then(|k| identity::differs(k, found)) {
                    let name = config.paths[*path].path.name();
                    failures.push(format!("{name}: AUTH_FAILED: {why}"));
                }
            }
            let why = format!("no usable path: {}", failures.join("; "));
            let kind = if is_in_use && answers.is_empty() {
                ErrorKind::Busy
            } else {
                ErrorKind::PathLost
            };
            return Err(Error::new(kind, &config.name, why));
        };
        let good: Vec<_> = answers
            .iter()
            .filter(|(_, i, _)| identity::differs(&identity, i).is_none())
            .collect();
        let transfers = good.iter().map(|(_, _, i)| i.max_transfer).min();
        let info = DeviceInfo {
            name: config.name.clone(),
            wwid: identity.wwid.clone().unwrap_or_else(|| info.wwid.clone()),
            size: known
                .as_ref()
                .map_or(identity.size, |k| k.size.max(identity.size)),
            max_transfer: transfers.unwrap_or(info.max_transfer),
            volatile_write_cache: good.iter().any(|(_, _, i)| i.volatile_write_cache),
            read_only: good.iter().all(|(_, _, i)| i.read_only),
            discard: good.iter().all(|(_, _, i)| i.discard || i.read_only),
            ..info
        };
        let shared = Arc::new(Shared {
            name: config.name,
            info,
            clock: Clock::new(),
            generation: AtomicU64::new(1),
            unanswered: UnansweredWrites::default(),
            log: Log::default(),
            connect_within: config.connect_within,
            closing: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            proving: Mutex::new(()),
            queues: Mutex::new(Vec::new()),
            identity: Mutex::new(identity.clone()),
            proof: config.proof,
            attributes: RwLock::new(Arc::new(config.attributes)),
            paths: RwLock::new(Vec::new()),
            wake: (Mutex::new(false), Condvar::new()),
            topology: config.topology,
            next_queue: AtomicU64::new(1),
        });
        for spec in config.paths {
            shared.add_path(spec)?;
        }
        for (path, why) in lost {
            shared.paths()[path].fails(why);
        }
        shared.settle_identities(&answers, &identity);
        let monitor = Monitor::start(Arc::clone(&shared))?;
        Ok(Lun {
            shared,
            _monitor: monitor,
        })
    }

    /// Returns the persistent name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the identity of the LUN.
    pub fn identity(&self) -> Identity {
        lock(&self.shared.identity).clone()
    }

    /// Returns the LUN under the legacy name of one of its paths. It uses all paths, unless
    /// `leg_mpath_enable` is false; then it uses that path only, whatever its state.
    ///
    /// # Errors
    /// No path has this name.
    pub fn legacy(&self, name: &str) -> Result<LunView> {
        let path = self.find(name)?;
        let alone = !self.shared.attributes().leg_mpath_enable;
        Ok(LunView {
            only: alone.then_some(path.id),
            ..self.whole()
        })
    }

    /// Returns a view of the LUN with all its paths.
    pub fn whole(&self) -> LunView {
        LunView {
            shared: Arc::clone(&self.shared),
            only: None,
            is_limited: true,
        }
    }

    fn find(&self, name: &str) -> Result<Arc<SharedPath>> {
        let paths = self.shared.paths();
        let mut known = paths.iter().filter(|p| p.admin() != Admin::Removed);
        let found = known
            .find(|p| p.path.name() == name || p.legacy == name)
            .cloned();
        found.ok_or_else(|| {
            let names: Vec<_> = paths.iter().map(|p| p.path.name()).collect();
            let why = format!("unknown path `{name}`; its paths are {}", names.join(", "));
            Error::new(ErrorKind::NotFound, &self.shared.name, why)
        })
    }

    /// Adds a path; queues use it once it is proven.
    ///
    /// # Errors
    /// The path exists already, or the LUN has too many paths.
    pub fn add(&self, spec: PathSpec) -> Result<()> {
        let path = self.shared.add_path(spec)?;
        self.shared.log.add(path.path.name(), "added".into(), 0);
        self.shared.changed();
        Ok(())
    }

    /// Removes a path from the LUN. Its I/O in flight is resubmitted on other paths.
    ///
    /// # Errors
    /// No path has this name, or no other path works and the last one is to be kept.
    pub fn remove(&self, name: &str, last: LastPath) -> Result<()> {
        self.retire(name, Admin::Removed, last)
    }

    /// Disables a path.
    ///
    /// # Errors
    /// Same as [`Lun::remove`].
    pub fn disable(&self, name: &str, last: LastPath) -> Result<()> {
        self.retire(name, Admin::Disabled, last)
    }

    fn retire(&self, name: &str, to: Admin, last: LastPath) -> Result<()> {
        let path = self.find(name)?;
        let queues = lock(&self.shared.queues).len();
        let paths = self.shared.paths();
        let mut others = paths.iter().filter(|p| p.id != path.id);
        let works = |p: &Arc<SharedPath>| match queues {
            0 => p.eligible(),
            _ => {
                let state = p.state(queues);
                state == PathState::Active || state == PathState::Standby && p.access.carries()
            }
        };
        if last == LastPath::Keep && !others.any(works) {
            let why = format!("`{name}` is its only working path; use --force to override");
            return Err(Error::new(ErrorKind::Busy, &self.shared.name, why));
        }
        path.set_admin(to);
        let what = if to == Admin::Removed {
            "removed"
        } else {
            "disabled"
        };
        self.shared.log.add(path.path.name(), what.into(), 0);
        self.shared.drop_path(&path);
        self.shared.changed();
        Ok(())
    }

    /// Enables a disabled path.
    ///
    /// # Errors
    /// No path has this name.
    pub fn enable(&self, name: &str) -> Result<()> {
        let path = self.find(name)?;
        path.set_admin(Admin::Enabled);
        self.shared.log.add(path.path.name(), "enabled".into(), 0);
        self.shared.changed();
        Ok(())
    }

    /// Accepts the identity found on a refused path. It becomes the identity of the whole LUN.
    /// Content is still compared.
    ///
    /// # Errors
    /// No path has this name, the path does not answer, or it has a smaller size or another block
    /// size than the LUN.
    pub fn replace_wwid(&self, name: &str) -> Result<()> {
        let path = self.find(name)?;
        let found = path.path.identify(self.shared.connect_within)?;
        if found.size < self.shared.info.size
            || found.logical_block_size != self.shared.info.logical_block_size
        {
            let why = format!(
                "`{name}` has a different size or block size, so it cannot be a path to this LUN"
            );
            return Err(Error::new(ErrorKind::Invalid, &self.shared.name, why));
        }
        *lock(&self.shared.identity) = found;
        path.refusals.lift();
        self.shared
            .log
            .add(path.path.name(), "its identity was accepted".into(), 0);
        self.shared.changed();
        Ok(())
    }

    /// Finds the current size of the storage: the smallest that a path in use reports. The LUN keeps the
    /// size with which it was opened, because its connections do.
    ///
    /// # Errors
    /// No path answers.
    pub fn storage_size(&self) -> Result<u64> {
        let own = self.identity();
        let paths = self.shared.paths();
        let used = paths.iter().filter(|p| p.admin() == Admin::Enabled);
        let used: Vec<_> = used.map(|p| Arc::clone(&p.path)).collect();
        let answers = identify(&used, self.shared.connect_within);
        let found = answers.into_iter().filter_map(Result::ok);
        let same = |found: &Identity| {
            let size = own.size;
            let found = Identity {
                size,
                ..found.clone()
            };
            identity::differs(&own, &found).is_none()
        };
        let size = found.filter(same).map(|found| found.size).min();
        size.ok_or_else(|| {
            let why = "no path reports its size";
            Error::new(ErrorKind::PathLost, &self.shared.name, why)
        })
    }

    /// Reports whether the storage keeps other clients out while this LUN is open: it has one path,
    /// which is exclusive.
    pub fn is_exclusive(&self) -> bool {
        let paths = self.shared.paths();
        let [only] = &paths[..] else { return false };
        only.path.is_exclusive()
    }

    /// Returns the current attribute values.
    pub fn attributes(&self) -> Arc<Attributes> {
        self.shared.attributes()
    }

    /// Sets an attribute; takes effect immediately.
    ///
    /// # Errors
    /// Same as [`Attributes::set`].
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        let mut attributes = (*self.shared.attributes()).clone();
        attributes
            .set(name, value)
            .map_err(|why| Error::new(ErrorKind::Invalid, &self.shared.name, why))?;
        self.shared.put(attributes);
        Ok(())
    }

    /// Prepares a forced close: I/O that waits for a path or for a lost write fails now, and so
    /// does later I/O that finds no path. I/O in flight on a responsive path completes. May be
    /// called while other threads use the LUN or wait for it.
    pub fn prepare_forced_close(&self) {
        let mut attributes = (*self.shared.attributes()).clone();
        attributes.transient_secs = 0;
        attributes.infinite_retries_enable = false;
        attributes.path_fail_secs = attributes.path_fail_secs.min(HURRY_SECS);
        self.shared.abandoned.store(true, Release);
        self.shared.put(attributes);
    }

    /// Prepares an orderly close, after every queue is closed: waits until no write that a lost
    /// path left unanswered can still be executed, because the next opener of the LUN does not know
    /// of it. Returns immediately if none exists; otherwise waits for its fence, for at most
    /// `quiesce_secs`.
    pub fn prepare_close(&self) {
        let shared = &self.shared;
        let until = Instant::now() + shared.attributes().quiesce();
        while shared.unanswered.pending(shared.clock.now()) {
            if shared.abandoned.load(Acquire) || Instant::now() > until {
                let count = shared.unanswered.len();
                let lun = &shared.name;
                tracing::warn!(
                    name: "EVFS-0403",
                    lun,
                    "{count} writes of a lost path were neither acknowledged nor fenced"
                );
                return;
            }
            std::thread::sleep(SETTLE_PAUSE);
        }
    }

    /// Resets counters and latencies to zero.
    pub fn clear_stat(&self) {
        self.shared.paths().iter().for_each(|p| p.clear_counters());
    }

    /// Returns the waiting I/Os, each with the reason.
    pub fn waiting(&self) -> Vec<WaitingIo> {
        let queues = lock(&self.shared.queues);
        queues.iter().flat_map(|q| lock(&q.shown).clone()).collect()
    }

    /// Returns the most recent I/O, with the facts from which other policies would have chosen.
    pub fn recording(&self) -> Recording {
        let paths = self.shared.paths();
        let trace = {
            let queues = lock(&self.shared.queues);
            let recorders: Vec<_> = queues.iter().map(|q| lock(&q.recorder)).collect();
            Trace::collect(paths.len() as u16, recorders.iter().map(|r| &**r))
        };
        let node = self.shared.topology.current_node();
        let mut views = self.shared.views(&paths, node);
        views.iter_mut().for_each(|v| v.usable = true);
        Recording {
            trace,
            views,
            policy: self.shared.policy(),
            node,
        }
    }

    /// Finds the paths whose storage keeps I/O waiting, and why.
    fn stalls(&self) -> Vec<(String, String)> {
        let paths = self.shared.paths();
        let busy = paths.iter().filter(|p| p.in_flight.load(Relaxed) > 0);
        let stalls = busy.filter_map(|p| {
            let why = p.path.stalled(STALL_WITHIN)?;
            Some((p.path.name().to_owned(), why))
        });
        stalls.collect()
    }

    /// Returns the status of the LUN and its paths.
    pub fn status(&self) -> LunStatus {
        // Before the lock: a path may ask its storage.
        let stalls = self.stalls();
        let queues = lock(&self.shared.queues);
        let count = queues.len();
        let sum = |f: fn(&QueueShared) -> u32| queues.iter().map(|q| f(q)).sum();
        let identity = lock(&self.shared.identity).clone();
        let paths = self.shared.paths();
        let shown = paths.iter().filter(|p| p.admin() != Admin::Removed);
        let mut paths: Vec<_> = shown.map(|p| path_status(p, count)).collect();
        for path in &mut paths {
            let stall = stalls.iter().find(|(name, _)| *name == path.name);
            path.why = path.why.take().or_else(|| Some(stall?.1.clone()));
        }
        LunStatus {
            name: self.shared.name.clone(),
            wwid: identity.wwid,
            serial: identity.serial,
            vendor: identity.vendor,
            product: identity.product,
            size: self.shared.info.size,
            block_size: self.shared.info.logical_block_size,
            health: health(&paths, self.shared.attributes().alua_enabled),
            policy: self.shared.policy().to_string(),
            queues: count,
            waiting: sum(|q| q.waiting.load(Relaxed)),
            held: sum(|q| q.held.load(Relaxed)),
            lost_writes: self.shared.unanswered.len(),
            paths,
            log: self.shared.log.list(),
        }
    }
}

impl Drop for Lun {
    fn drop(&mut self) {
        self.shared.closing.store(true, Release);
        self.shared.wake_monitor();
        let paths = self.shared.paths();
        for path in paths.iter().chain(&paths) {
            path.path.close(CLOSE_WITHIN);
        }
    }
}

impl BlockDevice for Lun {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn update_size(&self) -> Result<u64> {
        let (size, found) = (self.shared.info.size, self.storage_size()?);
        let failed = |kind, why| Err(Error::new(kind, &self.shared.name, why));
        match found.cmp(&size) {
            Ordering::Less => failed(ErrorKind::Media, "it has become smaller; restore its size"),
            Ordering::Equal => Ok(size),
            Ordering::Greater => failed(
                ErrorKind::Unsupported,
                "its connections keep its size; close it, and open it again",
            ),
        }
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        self.shared.queue(None, true)
    }
}

/// A LUN as some of its users have it: under the legacy name of a path, or without limits.
#[derive(Clone)]
pub struct LunView {
    shared: Arc<Shared>,
    only: Option<usize>,
    is_limited: bool,
}

impl LunView {
    /// Returns a view whose few I/Os do not wait for those of others: the limits on I/Os in flight
    /// (`max_q_depth`, `tport_max_qdepth`) are not applied to them. For I/O on which a thread waits
    /// that has to take the answers of others.
    #[must_use]
    pub fn without_limits(mut self) -> LunView {
        self.is_limited = false;
        self
    }
}

impl BlockDevice for LunView {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        self.shared.queue(self.only, self.is_limited)
    }
}

impl Shared {
    /// Decides about every path that answered when the LUN was opened.
    fn settle_identities(&self, answers: &[(usize, Identity, DeviceInfo)], identity: &Identity) {
        let paths = self.paths();
        let mut reference: Option<Arc<SharedPath>> = None;
        for (id, found, info) in answers {
            let path = &paths[*id];
            proving::learn(self, path, found, info);
            if let Some(why) = identity::differs(identity, found) {
                self.refuse(path, Refusal::described(why));
                continue;
            }
            match &reference {
                None => {
                    path.proven.store(true, Release);
                    reference = Some(Arc::clone(path));
                }
                Some(reference) => {
                    // A path that cannot be proven now is proven when it is connected.
                    match proving::prove(self, reference, path) {
                        Ok(Some(refusal)) => self.refuse(path, refusal),
                        Ok(None) => path.proven.store(true, Release),
                        Err(error) => tracing::warn!(name: "EVFS-0404", "{error}"),
                    }
                }
            }
        }
    }
}
