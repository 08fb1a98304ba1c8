//! A session: one client of the cluster with the image open, which all queues of a path share.

use crate::address::RbdAddress;
use crate::api;
use crate::errors::{self, BLOCKLISTED, Failure};
use crate::handle::{Cluster, Event, Image, Io, Pool};
use crate::identity::{self, BLOCK_BYTES};
use crate::job::Job;
use crate::options::{Lock, Options};
use block::{DeviceInfo, Error, ErrorKind, GrowingInfo, Result, Waker};
use lunpath::Identity;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Time in seconds for which a fenced client stays on the blocklist: a machine that was suspended
/// may continue much later. Ceph's default is an hour.
pub(crate) const FENCE_SECS: u32 = 7 * 24 * 3600;
/// Time in seconds after which an attempt to reach a monitor ends.
const MONITOR_SECS: u32 = 30;
/// Preferred transfer length in bytes: the granularity at which `librbd` discards.
const OPTIMAL_BYTES: u32 = 64 * 1024;

/// Reason for which a session is lost.
#[derive(Debug, Clone)]
pub(crate) struct Loss {
    pub(crate) why: String,
    /// The cluster has this client on its blocklist.
    pub(crate) blocklisted: bool,
}

/// A client that has the image open, shared by the queues of a path.
pub(crate) struct Session {
    /// Taken when the session is dropped.
    image: Option<Image>,
    info: Arc<GrowingInfo>,
    identity: Identity,
    client: OwnClient,
    fence_key: Option<u64>,
    routes: Mutex<Routes>,
    queues: AtomicU32,
    lost: OnceLock<Loss>,
    pace: Pace,
    /// The header of the image has changed.
    changed: Arc<AtomicBool>,
    closing: Arc<Closing>,
}

/// Requests in flight of all queues, and when the cluster last completed one.
struct Pace {
    epoch: Instant,
    in_flight: AtomicU32,
    /// Milliseconds after `epoch`: of the last completion, or of the first request after a pause.
    heard: AtomicU64,
}

impl Pace {
    fn new() -> Pace {
        Pace {
            epoch: Instant::now(),
            in_flight: AtomicU32::new(0),
            heard: AtomicU64::new(0),
        }
    }

    fn hear(&self) {
        let now = self.epoch.elapsed().as_millis() as u64;
        self.heard.store(now, Relaxed);
    }

    fn started(&self) {
        if self.in_flight.fetch_add(1, Relaxed) == 0 {
            self.hear();
        }
    }

    fn ended(&self, count: u32) {
        self.in_flight.fetch_sub(count, Relaxed);
        self.hear();
    }

    /// Returns for how long requests have been in flight without a completion.
    fn silence(&self) -> Option<Duration> {
        let heard = Duration::from_millis(self.heard.load(Relaxed));
        let silence = self.epoch.elapsed().saturating_sub(heard);
        (self.in_flight.load(Relaxed) > 0).then_some(silence)
    }
}

/// Destinations of completions.
#[derive(Default)]
struct Routes {
    inboxes: HashMap<u32, Arc<Inbox>>,
    /// Requests whose queue was dropped, by their tokens.
    orphans: HashMap<u64, Job>,
}

/// Completions that another queue's thread has taken for a queue.
pub(crate) struct Inbox {
    pub(crate) waker: Waker,
    events: Mutex<Vec<Event>>,
}

impl Inbox {
    /// Moves all completions to `events`.
    pub(crate) fn take(&self, events: &mut Vec<Event>) {
        if self.waker.take() {
            events.append(&mut lock(&self.events));
        }
    }
}

/// Number of sessions of a path that are being closed.
#[derive(Default)]
pub(crate) struct Closing {
    count: Mutex<u32>,
    changed: Condvar,
}

impl Closing {
    /// Waits until all sessions are closed, at most until `until`.
    pub(crate) fn wait(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let count = lock(&self.count);
        let closed = self
            .changed
            .wait_timeout_while(count, left, |count| *count > 0);
        drop(closed);
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client of a cluster: the ID of the cluster, and the number of the client in it.
pub(crate) type OwnClient = (String, u64);

/// State of a client of this process.
#[derive(Debug, Clone)]
pub(crate) struct OwnState {
    /// Address for the blocklist.
    pub(crate) address: String,
    /// This process has fenced it: that it is on the blocklist is no sign of a takeover.
    pub(crate) fenced: bool,
    /// It was closed, so no request of it is on its way.
    pub(crate) closed: bool,
}

/// Clients of this process, also closed ones.
static OWN: Mutex<Vec<(OwnClient, OwnState)>> = Mutex::new(Vec::new());

/// Returns what this process knows of a client, after `change`.
pub(crate) fn own_client(
    client: &OwnClient,
    change: impl FnOnce(&mut OwnState),
) -> Option<OwnState> {
    let mut own = lock(&OWN);
    let (_, state) = own.iter_mut().find(|(known, _)| known == client)?;
    change(state);
    Some(state.clone())
}

/// Reports whether a client of this process that is open has this address.
pub(crate) fn is_own_address(fsid: &str, address: &str) -> bool {
    let own = lock(&OWN);
    let mut own = own.iter();
    own.any(|((of, _), state)| of == fsid && state.address == address && !state.closed)
}

/// Connects to the cluster of an address. `give_up`: limit for requests.
pub(crate) fn cluster(
    name: &str,
    address: &RbdAddress,
    give_up: Option<Duration>,
) -> Result<Cluster> {
    let api = api::functions(name)?;
    let give_up = give_up.map_or(0, |time| time.as_secs().max(1));
    let settings = [
        ("rbd_cache", "false".to_owned()),
        ("rbd_persistent_cache_mode", "disabled".to_owned()),
        // Without its copy, librbd 16 never completes writes that fail because the lock was lost.
        ("rbd_disable_zero_copy_writes", "true".to_owned()),
        ("rbd_blocklist_on_break_lock", "true".to_owned()),
        // Another value than 0 makes librbd 16 send a command that the monitors refuse.
        ("rbd_blocklist_expire_seconds", "0".to_owned()),
        ("client_mount_timeout", MONITOR_SECS.to_string()),
        ("rados_mon_op_timeout", MONITOR_SECS.to_string()),
        ("rados_osd_op_timeout", give_up.to_string()),
        // Messages belong to this program's log, and it has a control socket already.
        ("log_to_stderr", "false".to_owned()),
        ("err_to_stderr", "false".to_owned()),
        ("admin_socket", String::new()),
    ];
    let cluster = Cluster::connect(api, &address.id, address.conf.as_deref(), &settings);
    cluster.map_err(|failure| errors::of_open(name, failure))
}

impl Session {
    /// Opens the image as a new client. Blocks until the cluster answers.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`]: another client has the exclusive lock.
    pub(crate) fn open(
        name: &str,
        address: &RbdAddress,
        options: &Options,
        closing: &Arc<Closing>,
    ) -> Result<Session> {
        let read_only = options.read_only || address.snapshot.is_some();
        let cluster = Arc::new(cluster(name, address, options.give_up)?);
        let failed = |failure: Failure| errors::of_open(name, failure);
        let pool = Pool::open(Arc::clone(&cluster), &address.pool, &address.namespace);
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let event = event.map_err(|e| Error::from_io(name, e.into()))?;
        let snapshot = address.snapshot.as_deref();
        let pool = pool.map_err(failed)?;
        let mut image =
            Image::open(pool, &address.image, snapshot, read_only, event).map_err(failed)?;
        let identity = identity::query(&image, address, read_only).map_err(failed)?;
        if identity.size == 0 {
            let why = "the image is empty; `rbd resize` gives it a size";
            return Err(Error::new(ErrorKind::Invalid, name, why));
        }
        let locks = !read_only && image.has_exclusive_lock_feature().map_err(failed)?;
        let fsid = cluster.fsid().map_err(failed)?;
        if locks && options.lock == Lock::Exclusive {
            take_lock(name, &image, &fsid)?;
        }
        let changed = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&changed);
        image
            .watch(Box::new(move || seen.store(true, SeqCst)))
            .map_err(failed)?;
        let client = (fsid, cluster.instance());
        let address = blocklist_address(&cluster.addresses().map_err(failed)?);
        let state = OwnState {
            address,
            fenced: false,
            closed: false,
        };
        lock(&OWN).push((client.clone(), state));
        Ok(Session {
            info: Arc::new(info(name, &identity, options).into()),
            identity,
            // Without the lock, a client that takes over does not wait for the blocklist to reach
            // the OSDs, so a fence would prove nothing.
            fence_key: locks.then_some(client.1),
            client,
            image: Some(image),
            routes: Mutex::default(),
            queues: AtomicU32::new(0),
            lost: OnceLock::new(),
            pace: Pace::new(),
            changed,
            closing: Arc::clone(closing),
        })
    }

    fn image(&self) -> &Image {
        self.image.as_ref().expect("taken only by drop")
    }

    pub(crate) fn info(&self) -> &Arc<GrowingInfo> {
        &self.info
    }

    /// Returns the identity with the current size.
    pub(crate) fn identity(&self) -> Identity {
        self.note_size();
        Identity {
            size: self.info.size,
            ..self.identity.clone()
        }
    }

    pub(crate) fn client(&self) -> &OwnClient {
        &self.client
    }

    pub(crate) fn fence_key(&self) -> Option<u64> {
        self.fence_key
    }

    /// Returns the reason for which the session is lost, once it is.
    pub(crate) fn lost(&self) -> Option<&Loss> {
        self.lost.get()
    }

    /// Marks the session as lost, and wakes all queues.
    pub(crate) fn lose(&self, loss: Loss) {
        if self.lost.set(loss).is_ok() {
            for inbox in lock(&self.routes).inboxes.values() {
                inbox.waker.wake();
            }
        }
    }

    /// Marks the session as lost if this error number of a request says so.
    pub(crate) fn judge(&self, errno: i32) {
        let blocklisted = errno == BLOCKLISTED;
        let why = match errno {
            BLOCKLISTED => "the cluster has this client on its blocklist: it was fenced",
            libc::EROFS if !self.info.read_only => {
                "another client has taken the exclusive lock of the image"
            }
            libc::ENOTCONN => "the client has been shut down",
            _ => return,
        };
        let why = why.to_owned();
        self.lose(Loss { why, blocklisted });
    }

    /// Adopts the size of the image, if its header has changed.
    pub(crate) fn note_size(&self) {
        if !self.changed.load(Relaxed) || !self.changed.swap(false, SeqCst) {
            return;
        }
        let Ok(size) = self.image().size() else {
            return;
        };
        let (had, size) = (self.info.size, size - size % u64::from(BLOCK_BYTES));
        match self.info.grow(size) {
            Ok(_) if size != had => {
                tracing::info!(path = self.info.name, had, size, "the image has grown");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(name: "EVFS-0412", path = self.info.name, "{error}"),
        }
    }

    /// Returns the descriptor that is readable when requests of any queue have been completed.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.image().event().as_fd()
    }

    /// Registers a queue. Returns its number, and the inbox that other queues fill.
    pub(crate) fn join(&self) -> std::io::Result<(u32, Arc<Inbox>)> {
        let inbox = Arc::new(Inbox {
            waker: Waker::new()?,
            events: Mutex::default(),
        });
        let number = self.queues.fetch_add(1, Relaxed);
        lock(&self.routes)
            .inboxes
            .insert(number, Arc::clone(&inbox));
        Ok((number, inbox))
    }

    /// Removes a queue. The session keeps its requests in flight until they are completed.
    pub(crate) fn leave(&self, number: u32, inbox: &Inbox, mut jobs: HashMap<u64, Job>) {
        let mut routes = lock(&self.routes);
        routes.inboxes.remove(&number);
        for event in lock(&inbox.events).drain(..) {
            jobs.remove(&event.token);
        }
        routes.orphans.extend(jobs);
    }

    /// Takes completions. Those of the queue `own` are appended to `events`, others passed on.
    pub(crate) fn collect(&self, own: u32, events: &mut Vec<Event>) {
        // Before the completions: later ones make the descriptor readable again.
        let _ = rustix::io::read(self.event(), &mut [0u8; 8]);
        let mut all = Vec::new();
        while self.image().poll(&mut all).is_ok_and(|count| count > 0) {}
        if !all.is_empty() {
            self.pace.ended(all.len() as u32);
        }
        for event in all {
            let queue = (event.token >> 32) as u32;
            if queue == own {
                events.push(event);
                continue;
            }
            let mut routes = lock(&self.routes);
            match routes.inboxes.get(&queue) {
                Some(inbox) => {
                    lock(&inbox.events).push(event);
                    inbox.waker.wake();
                }
                None => drop(routes.orphans.remove(&event.token)),
            }
        }
    }

    /// Starts a request, whose completion has this token.
    ///
    /// # Safety
    /// As [`Image::start`].
    pub(crate) unsafe fn start(&self, token: u64, io: Io<'_>) -> std::result::Result<(), Failure> {
        // SAFETY: the caller's promise.
        let started = unsafe { self.image().start(token, io) };
        if started.is_ok() {
            self.pace.started();
        }
        started
    }

    /// Returns for how long the cluster has completed none of the requests in flight.
    pub(crate) fn silence(&self) -> Option<Duration> {
        self.pace.silence()
    }

    /// Returns the client of the cluster.
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.image().pool.cluster
    }
}

impl Drop for Session {
    /// Closes the image on another thread: that waits until the cluster has carried out all
    /// requests, and the caller may carry I/O of other paths.
    fn drop(&mut self) {
        let Some(image) = self.image.take() else {
            return;
        };
        let orphans = std::mem::take(&mut lock(&self.routes).orphans);
        let (closing, client) = (Arc::clone(&self.closing), self.client.clone());
        *lock(&closing.count) += 1;
        let task = move || {
            close(image, orphans);
            own_client(&client, |state| state.closed = true);
            *lock(&closing.count) -= 1;
            closing.changed.notify_all();
        };
        let thread = std::thread::Builder::new().name("rbd-close".into());
        if let Err(error) = thread.spawn(task) {
            tracing::debug!("the image stays open: no thread to close it: {error}");
        }
    }
}

/// Closes an image after its last request.
fn close(image: Image, mut orphans: HashMap<u64, Job>) {
    let mut events = Vec::new();
    while !orphans.is_empty() {
        let mut event = [PollFd::new(image.event(), PollFlags::IN)];
        let _ = poll(&mut event, None);
        let _ = rustix::io::read(image.event(), &mut [0u8; 8]);
        while image.poll(&mut events).is_ok_and(|count| count > 0) {}
        for event in events.drain(..) {
            orphans.remove(&event.token);
        }
    }
}

/// Takes the exclusive lock, unless a client that answers has it.
fn take_lock(name: &str, image: &Image, fsid: &str) -> Result<()> {
    let failed = |failure: Failure| errors::of_open(name, failure);
    let in_use = |by: &str| {
        let why = format!(
            "another client has the exclusive lock of the image ({by}); stop it, or put it on the \
             blocklist by `ceph osd blocklist add {by}`; a client that has died loses the lock \
             after 30 s"
        );
        Error::new(ErrorKind::Busy, name, why)
    };
    let owner = image.lock_owner().map_err(failed)?;
    if let Some(owner) = &owner {
        let owner = blocklist_address(owner);
        let mut own = lock(&OWN);
        let ours = own
            .iter_mut()
            .find(|((of, _), state)| of == fsid && state.address == owner && !state.closed);
        match ours {
            // A session that was lost: `librbd` fences it to take the lock.
            Some((_, state)) => state.fenced = true,
            None => {
                drop(own);
                let watchers = image.watchers().map_err(failed)?;
                if watchers
                    .iter()
                    .any(|client| blocklist_address(&client.address) == owner)
                {
                    return Err(in_use(&owner));
                }
            }
        }
    }
    image.lock().map_err(|failure| match failure.errno {
        libc::EROFS | libc::EBUSY | libc::EAGAIN => in_use(owner.as_deref().unwrap_or("unknown")),
        _ => failed(failure),
    })?;
    // `librbd` has put the former owner on the blocklist, for an hour only.
    if let Some(owner) = owner {
        let longer = image
            .pool
            .cluster
            .blocklist(&blocklist_address(&owner), FENCE_SECS);
        if let Err(failure) = longer {
            tracing::debug!(path = name, "fenced for an hour only: {}", failure.text());
        }
    }
    Ok(())
}

/// Converts an address of a client to the form that the blocklist takes: `IP:PORT/NONCE`.
pub(crate) fn blocklist_address(text: &str) -> String {
    let first = text.trim_start_matches('[').split([',', ']']).next();
    let first = first.unwrap_or_default();
    // An IPv6 address has brackets of its own.
    let text = if first.contains('/') { first } else { text };
    let plain = ["v1:", "v2:", "any:"]
        .iter()
        .find_map(|kind| text.strip_prefix(kind));
    plain.unwrap_or(text).to_owned()
}

fn info(name: &str, identity: &Identity, options: &Options) -> DeviceInfo {
    let longest = options.max_transfer.max(BLOCK_BYTES);
    DeviceInfo {
        name: name.to_owned(),
        wwid: identity.wwid.clone().unwrap_or_default(),
        size: identity.size,
        logical_block_size: BLOCK_BYTES,
        optimal_io_size: OPTIMAL_BYTES,
        max_transfer: longest - longest % BLOCK_BYTES,
        // A completed write is on stable storage. Gateways report a cache, and all paths of a LUN
        // must agree; a flush of an image without a cache costs nothing.
        volatile_write_cache: true,
        read_only: identity.read_only,
        discard: !identity.read_only,
        numa_node: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_blocklist_takes_the_first_address_without_its_version() {
        for (text, expected) in [
            ("127.0.0.1:0/123", "127.0.0.1:0/123"),
            ("v1:127.0.0.1:0/123", "127.0.0.1:0/123"),
            ("[v2:10.0.0.1:0/7,v1:10.0.0.1:0/7]", "10.0.0.1:0/7"),
            ("[2001:db8::1]:0/9", "[2001:db8::1]:0/9"),
            ("v2:[2001:db8::1]:0/9", "[2001:db8::1]:0/9"),
        ] {
            assert_eq!(blocklist_address(text), expected);
        }
    }
}
