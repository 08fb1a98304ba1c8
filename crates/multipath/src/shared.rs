//! State that all threads of a LUN share.

use crate::attributes::Attributes;
use crate::clock::Clock;
use crate::identity::Proof;
use crate::log::Log;
use crate::mailbox::{QueueId, QueueMessage, QueueShared};
use crate::path::{Admin, PATHS_MAX, Port, SharedPath};
use crate::policy::{PathView, Policy};
use crate::refusal::Refusal;
use crate::sync::lock;
use crate::unanswered::UnansweredWrites;
use block::{DeviceInfo, Error, ErrorKind, Result};
use lunpath::{Identity, Lunpath};
use numa::{LOCAL, Topology};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::Duration;

/// Configuration of one path when a LUN is opened.
pub struct PathSpec {
    /// The path itself.
    pub path: Arc<dyn Lunpath>,
    /// Legacy name of the path, `cXtYdZ`.
    pub legacy: String,
    /// If false, the path is known but not used.
    pub enabled: bool,
}

/// State shared by all threads of a LUN.
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) info: DeviceInfo,
    pub(crate) clock: Clock,
    /// Incremented by each change of paths or attributes.
    pub(crate) generation: AtomicU64,
    pub(crate) unanswered: UnansweredWrites,
    pub(crate) log: Log,
    pub(crate) connect_within: Duration,
    pub(crate) closing: AtomicBool,
    /// Set for a forced close: I/O no longer waits for a path.
    pub(crate) abandoned: AtomicBool,
    /// Held while a path is proven. Proofs run one at a time, so that none finds the nonce of
    /// another, and so that of several paths that return together each is compared with the first.
    pub(crate) proving: Mutex<()>,
    pub(crate) queues: Mutex<Vec<Arc<QueueShared>>>,
    pub(crate) identity: Mutex<Identity>,
    pub(crate) proof: Proof,
    pub(crate) attributes: RwLock<Arc<Attributes>>,
    pub(crate) paths: RwLock<Vec<Arc<SharedPath>>>,
    pub(crate) wake: (Mutex<bool>, Condvar),
    pub(crate) topology: Topology,
    pub(crate) next_queue: AtomicU64,
}

impl Shared {
    pub(crate) fn attributes(&self) -> Arc<Attributes> {
        Arc::clone(&self.attributes.read().unwrap_or_else(|e| e.into_inner()))
    }

    pub(crate) fn put(&self, attributes: Attributes) {
        *self.attributes.write().unwrap_or_else(|e| e.into_inner()) = Arc::new(attributes);
        self.changed();
    }

    pub(crate) fn policy(&self) -> Policy {
        self.attributes().load_bal_policy
    }

    pub(crate) fn paths(&self) -> Vec<Arc<SharedPath>> {
        self.paths.read().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Builds the part of the path views that is constant between changes of paths or attributes.
    pub(crate) fn views(&self, paths: &[Arc<SharedPath>], own_cell: Option<u32>) -> Vec<PathView> {
        let attributes = self.attributes();
        let names = |path: &SharedPath, name: &str| {
            !name.is_empty() && (path.path.name() == name || path.legacy == name)
        };
        let view = |path: &Arc<SharedPath>| {
            let mut weights = attributes.wrr_path_weight.iter();
            let cell = Some(path.cell.load(Relaxed)).filter(|c| *c != u32::MAX);
            // Without distance information, every path counts as local.
            let distance = own_cell
                .zip(cell)
                .and_then(|(a, b)| self.topology.distance(a, b));
            PathView {
                usable: false,
                optimized: true,
                in_flight: 0,
                bytes_in_flight: 0,
                cell,
                distance: distance.unwrap_or(LOCAL),
                weight: weights
                    .find(|(name, _)| names(path, name))
                    .map_or(1, |(_, w)| *w),
                port: path.port.index,
                throughput: 1,
                preferred: names(path, &attributes.preferred_path),
                preferred_port: path.port.name == attributes.pref_tport,
                lockdown: names(path, &attributes.lpt_to_lockdown),
            }
        };
        paths.iter().map(view).collect()
    }

    pub(crate) fn wake_monitor(&self) {
        *lock(&self.wake.0) = true;
        self.wake.1.notify_one();
    }

    /// Blocks until the monitor is woken, or for at most `time`.
    pub(crate) fn monitor_sleep(&self, time: Duration) {
        let woken = lock(&self.wake.0);
        let (mut woken, _) = self
            .wake
            .1
            .wait_timeout_while(woken, time, |woken| !*woken)
            .unwrap_or_else(|e| e.into_inner());
        *woken = false;
    }

    pub(crate) fn forget_queue(&self, id: QueueId) {
        lock(&self.queues).retain(|q| q.id != id);
    }

    pub(crate) fn changed(&self) {
        self.generation.fetch_add(1, Release);
        for queue in lock(&self.queues).iter() {
            queue.post(QueueMessage::Recheck);
        }
        self.wake_monitor();
    }

    /// Notifies all queues that a path is out of use.
    pub(crate) fn drop_path(&self, path: &SharedPath) {
        for queue in lock(&self.queues).iter() {
            queue.post(QueueMessage::Drop(path.id));
        }
    }

    pub(crate) fn refuse(&self, path: &SharedPath, refusal: Refusal) {
        let (name, why) = (path.path.name(), &refusal.why);
        tracing::error!(name: "EVFS-0401", lun = self.name, path = name, "AUTH_FAILED: {why}");
        self.log
            .add(name, format!("refused (AUTH_FAILED): {why}"), 0);
        path.refuse(refusal, self.clock.now());
        self.drop_path(path);
    }

    pub(crate) fn add_path(&self, spec: PathSpec) -> Result<Arc<SharedPath>> {
        let mut paths = self.paths.write().unwrap_or_else(|e| e.into_inner());
        let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, &self.name, why));
        if paths.len() >= PATHS_MAX {
            return invalid(format!("a LUN has at most {PATHS_MAX} paths"));
        }
        let same = |p: &&Arc<SharedPath>| p.path.name() == spec.path.name();
        if paths
            .iter()
            .find(same)
            .is_some_and(|p| p.admin() != Admin::Removed)
        {
            return invalid(format!(
                "`{}` is already one of its paths",
                spec.path.name()
            ));
        }
        let name = spec.path.target_port();
        let known = paths.iter().find(|p| p.port.name == name);
        let port = known.map(|p| Arc::clone(&p.port)).unwrap_or_else(|| {
            let index = paths.iter().map(|p| p.port.index + 1).max().unwrap_or(0);
            let in_flight = Default::default();
            Arc::new(Port {
                name,
                index,
                in_flight,
            })
        });
        let path = SharedPath::new(paths.len(), spec.path, spec.legacy, port);
        if !spec.enabled {
            path.set_admin(Admin::Disabled);
        }
        let path = Arc::new(path);
        paths.push(Arc::clone(&path));
        Ok(path)
    }
}
