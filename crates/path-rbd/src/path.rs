//! An image as a path to a LUN, and as a standalone device.

use crate::address::RbdAddress;
use crate::errors::{self, Failure};
use crate::handle::{Image, Pool};
use crate::options::{Lock, Options};
use crate::queue::RbdQueue;
use crate::session::{self, Closing, FENCE_SECS, Session, blocklist_address, lock, own_client};
use block::{Access, BlockDevice, DeviceInfo, Error, ErrorKind, GrowingInfo, Queue, Result};
use lunpath::{Connection, Identity, Lunpath, PathQueue, Transport};
use rustix::event::{EventfdFlags, eventfd};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Time that dropping a path waits for its image to be closed.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);
/// Time in which a cluster that answers closes an image.
const CLOSED_WITHIN: Duration = Duration::from_secs(10);
/// Limit for requests of a client that only asks questions.
const ASK_WITHIN: Duration = Duration::from_secs(30);

/// Silence after which the monitors are asked for the reason.
const STALLED_AFTER: Duration = Duration::from_secs(3);

/// Checks in the monitors' list of pools whether a pool has the flag that stops writes.
fn is_full(answer: &[u8], pool: &str) -> bool {
    let pools: serde_json::Value = serde_json::from_slice(answer).unwrap_or_default();
    let mut pools = pools.as_array().into_iter().flatten();
    let flags = pools
        .find(|known| known["pool_name"] == pool)
        .and_then(|known| known["flags_names"].as_str());
    let mut flags = flags.unwrap_or_default().split(',');
    flags.any(|flag| flag == "full" || flag == "full_quota")
}

/// An RBD image as a path to a LUN.
pub struct RbdPath {
    shared: Arc<Shared>,
}

/// The parts of a path that the thread which opens its image needs.
struct Shared {
    name: String,
    address: RbdAddress,
    options: Options,
    state: Mutex<State>,
    changed: Condvar,
    closing: Arc<Closing>,
}

#[derive(Default)]
struct State {
    session: Option<Arc<Session>>,
    /// A thread is opening the image.
    opening: bool,
    /// Number of attempts that have ended, and the result of the last one that failed.
    attempts: u64,
    failed: Option<Error>,
    /// The path is closed: an image that is opened later is not kept.
    closed: bool,
    /// Another client has fenced this path, which must not come back.
    evicted: bool,
}

impl RbdPath {
    /// Parses an address. Does not connect, and does not need the library.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is not such an address.
    pub fn parse(text: &str, options: Options) -> Result<RbdPath> {
        let shared = Shared {
            name: text.to_owned(),
            address: RbdAddress::parse(text)?,
            options,
            state: Mutex::default(),
            changed: Condvar::new(),
            closing: Arc::default(),
        };
        Ok(RbdPath {
            shared: Arc::new(shared),
        })
    }

    /// Opens the path as a standalone device. Blocks for at most `within`.
    ///
    /// # Errors
    /// Same as [`Lunpath::connect`].
    pub fn open(self, within: Duration) -> Result<RbdDevice> {
        let session = self.shared.session(within)?;
        let info = Arc::clone(session.info());
        Ok(RbdDevice {
            path: self,
            info,
            within,
        })
    }
}

impl Shared {
    fn error(&self, kind: ErrorKind, why: impl Into<String>) -> Error {
        Error::new(kind, &self.name, why)
    }

    fn silent(&self, within: Duration) -> Error {
        let secs = within.as_secs_f32();
        let why = format!("the cluster did not answer in {secs:.1} s; check `ceph status`");
        self.error(ErrorKind::PathLost, why)
    }

    /// Returns the session of this path, which is opened if there is none.
    fn session(self: &Arc<Self>, within: Duration) -> Result<Arc<Session>> {
        let until = Instant::now() + within;
        let mut state = lock(&self.state);
        let seen = state.attempts;
        loop {
            if let Some(session) = &state.session {
                let Some(loss) = session.lost() else {
                    return Ok(Arc::clone(session));
                };
                let ours = own_client(session.client(), |_| {}).is_some_and(|own| own.fenced);
                let keeps = self.options.lock == Lock::Exclusive;
                state.evicted |= loss.blocklisted && keeps && !ours;
                state.session = None;
            }
            if state.evicted {
                let why = "this client was fenced: another machine has taken the image over, or an \
                           administrator has; detach it here, and attach it again to use it";
                return Err(self.error(ErrorKind::Permission, why));
            }
            if let (Some(error), true) = (&state.failed, state.attempts != seen) {
                return Err(error.clone());
            }
            if !state.opening {
                state.opening = true;
                self.start_opening(&mut state)?;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.silent(within));
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// Starts a thread that opens the image. The thread may outlive this call and the path, because
    /// the library has no limit for most of its calls.
    fn start_opening(self: &Arc<Self>, state: &mut State) -> Result<()> {
        let shared = Arc::clone(self);
        let task = move || {
            let (name, address) = (&shared.name, &shared.address);
            let opened = Session::open(name, address, &shared.options, &shared.closing);
            let mut state = lock(&shared.state);
            state.opening = false;
            state.attempts += 1;
            match opened {
                Ok(session) if !state.closed => {
                    state.session = Some(Arc::new(session));
                    state.failed = None;
                }
                Ok(unwanted) => drop(unwanted),
                Err(error) => state.failed = Some(error),
            }
            shared.changed.notify_all();
        };
        let thread = std::thread::Builder::new().name("rbd-open".into());
        match thread.spawn(task) {
            Ok(_) => Ok(()),
            Err(error) => {
                state.opening = false;
                Err(Error::from_io(&self.name, error))
            }
        }
    }

    /// Runs a task that asks the cluster, for at most `within`. The task goes on after that, and
    /// its result is dropped.
    fn ask<T: Send + 'static>(
        self: &Arc<Self>,
        within: Duration,
        task: impl FnOnce(&Shared) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (send, answer) = sync_channel(1);
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name("rbd-ask".into());
        let task = move || {
            let _ = send.send(task(&shared));
        };
        thread
            .spawn(task)
            .map_err(|e| Error::from_io(&self.name, e))?;
        match answer.recv_timeout(within) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                Err(self.silent(within))
            }
        }
    }

    /// Opens the image for questions: as a client of its own, without the lock. Questions about the
    /// lock need an image that is open for writing.
    fn peek(&self, access: Access) -> Result<Image> {
        let (name, address) = (&self.name, &self.address);
        let cluster = session::cluster(name, address, Some(ASK_WITHIN))?;
        let failed = |failure: Failure| errors::of_open(name, failure);
        let pool = Pool::open(Arc::new(cluster), &address.pool, &address.namespace);
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let event = event.map_err(|e| Error::from_io(name, e.into()))?;
        let snapshot = address.snapshot.as_deref();
        let read_only = access.is_read_only();
        let pool = pool.map_err(failed)?;
        Image::open(pool, &address.image, snapshot, read_only, event).map_err(failed)
    }

    fn identify(&self) -> Result<Identity> {
        let image = self.peek(Access::ReadOnly)?;
        crate::identity::query(&image, &self.address, self.options.read_only)
            .map_err(|failure| errors::of_open(&self.name, failure))
    }

    /// Asks the monitors why requests have been waiting for this long.
    fn diagnose(&self, session: &Session, silence: Duration) -> String {
        let (secs, pool) = (silence.as_secs(), &self.address.pool);
        let question = r#"{"prefix":"osd pool ls","detail":"detail","format":"json"}"#;
        let Ok(answer) = session.cluster().ask_monitor(question) else {
            return format!("no answer for {secs} s, and no monitor answers; check `ceph status`");
        };
        if is_full(&answer, pool) {
            format!(
                "pool {pool} is full: writes have waited for {secs} s, and go on when it has \
                 space; add storage, or raise its quota"
            )
        } else {
            format!("no answer for {secs} s; check `ceph health detail`")
        }
    }

    /// Puts the client with this number on the blocklist.
    fn fence(&self, instance: u64) -> Result<()> {
        let failed = |failure: Failure| errors::of_open(&self.name, failure);
        let image = self.peek(Access::ReadOnly)?;
        let cluster = &image.pool.cluster;
        let client = (cluster.fsid().map_err(failed)?, instance);
        let own = own_client(&client, |own| own.fenced = true);
        let address = match own {
            // Its last request was completed before it was closed.
            Some(own) if own.closed => return Ok(()),
            Some(own) => own.address,
            None => {
                let watchers = image.watchers().map_err(failed)?;
                let found = watchers
                    .into_iter()
                    .find(|client| client.instance == instance)
                    .map(|client| blocklist_address(&client.address));
                found.ok_or_else(|| {
                    let why = format!("client {instance} does not have the image open");
                    self.error(ErrorKind::NotFound, why)
                })?
            }
        };
        cluster.blocklist(&address, FENCE_SECS).map_err(failed)?;
        // The client that takes the lock over waits for this map as well, so that every OSD knows
        // the blocklist before it serves that client.
        cluster.wait_for_latest_map().map_err(failed)
    }

    /// Puts the client that has the exclusive lock on the blocklist, and takes the lock from it.
    fn evict(&self) -> Result<()> {
        if self.options.lock != Lock::Exclusive {
            let why = "beside other paths, an image has no owner whose requests could be refused";
            return Err(self.error(ErrorKind::Unsupported, why));
        }
        let failed = |failure: Failure| errors::of_open(&self.name, failure);
        let image = self.peek(Access::ReadWrite)?;
        if !image.has_exclusive_lock_feature().map_err(failed)? {
            let why = "the image has no exclusive lock; enable it with `rbd feature enable IMAGE \
                       exclusive-lock`";
            return Err(self.error(ErrorKind::Unsupported, why));
        }
        let Some(owner) = image.lock_owner().map_err(failed)? else {
            return Ok(());
        };
        let cluster = &image.pool.cluster;
        let address = blocklist_address(&owner);
        if session::is_own_address(&cluster.fsid().map_err(failed)?, &address) {
            return Ok(());
        }
        cluster.blocklist(&address, FENCE_SECS).map_err(failed)?;
        cluster.wait_for_latest_map().map_err(failed)?;
        tracing::info!(path = self.name, owner, "fenced another owner");
        Ok(())
    }
}

impl Lunpath for RbdPath {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn transport(&self) -> Transport {
        Transport::Rbd
    }

    fn target_port(&self) -> String {
        let conf = &self.shared.address.conf;
        conf.clone().unwrap_or_else(|| "/etc/ceph/ceph.conf".into())
    }

    fn identify(&self, within: Duration) -> Result<Identity> {
        let open = lock(&self.shared.state).session.clone();
        match open.filter(|session| session.lost().is_none()) {
            Some(session) => Ok(session.identity()),
            None => self.shared.ask(within, Shared::identify),
        }
    }

    fn connect(&self, within: Duration) -> Result<Box<dyn Connection>> {
        let session = self.shared.session(within)?;
        Ok(Box::new(RbdConnection {
            identity: session.identity(),
            info: DeviceInfo::clone(session.info()),
            session,
            depth: self.shared.options.queue_depth.clamp(1, 4096),
        }))
    }

    fn fence(&self, key: u64, within: Duration) -> Result<()> {
        self.shared.ask(within, move |shared| shared.fence(key))
    }

    fn is_exclusive(&self) -> bool {
        let state = lock(&self.shared.state);
        let session = state.session.as_ref();
        // A client that takes the lock away puts this one on the blocklist, for good.
        let has_lock = session.is_some_and(|session| session.fence_key().is_some());
        has_lock && self.shared.options.lock == Lock::Exclusive
    }

    /// The session that is opened next takes the lock from the client on the blocklist.
    fn evict(&self, within: Duration) -> Result<()> {
        self.shared.ask(within, Shared::evict)
    }

    fn stalled(&self, within: Duration) -> Option<String> {
        let session = lock(&self.shared.state).session.clone()?;
        let silence = session.silence().filter(|time| *time >= STALLED_AFTER)?;
        let secs = silence.as_secs();
        let why = self
            .shared
            .ask(within, move |shared| Ok(shared.diagnose(&session, silence)));
        let none = || format!("no answer for {secs} s, and no monitor answers in time");
        Some(why.unwrap_or_else(|_| none()))
    }

    /// A client that ends without closing the image keeps its lock for 30 s. So a cluster that answers
    /// is given more time.
    fn close(&self, within: Duration) {
        let session = {
            let mut state = lock(&self.shared.state);
            state.closed = true;
            state.session.take()
        };
        let answers = |s: &Arc<Session>| s.lost().is_none() && s.silence().is_none();
        let within = match &session {
            Some(session) if answers(session) => within.max(CLOSED_WITHIN),
            _ => within,
        };
        drop(session);
        self.shared.closing.wait(Instant::now() + within);
    }
}

impl Drop for RbdPath {
    fn drop(&mut self) {
        self.close(LEAVE_WITHIN);
    }
}

/// A session that is open.
struct RbdConnection {
    session: Arc<Session>,
    info: DeviceInfo,
    identity: Identity,
    depth: u32,
}

impl Connection for RbdConnection {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn fence_key(&self) -> Option<u64> {
        self.session.fence_key()
    }

    fn open(self: Box<Self>) -> Result<Box<dyn PathQueue>> {
        Ok(Box::new(RbdQueue::open(self.session, self.depth)?))
    }
}

/// An image as a standalone device.
pub struct RbdDevice {
    path: RbdPath,
    info: Arc<GrowingInfo>,
    within: Duration,
}

impl BlockDevice for RbdDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn update_size(&self) -> Result<u64> {
        let identity = self.path.identify(self.within)?;
        self.info.grow(identity.size)
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(self.path.connect(self.within)?.open()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_full_if_the_monitors_say_so() {
        let answer = br#"[{"pool_name":"a","flags_names":"hashpspool,full_quota,full"},
            {"pool_name":"b","flags_names":"hashpspool,nearfull"}]"#;
        assert!(is_full(answer, "a") && !is_full(answer, "b"));
        assert!(!is_full(answer, "c") && !is_full(b"{]", "a"));
    }
}
