//! The control plane of a LUN: makes connections, proves who answers, fences what was lost. It may
//! wait; the threads that carry I/O never wait for it.

use crate::access;
use crate::attributes::Recovery;
use crate::identity;
use crate::lun::Shared;
use crate::state::{
    Admin, LINK_CONNECTING, LINK_DOWN, LINK_UP, Mail, QueueShared, SharedPath, lock,
};
use block::{Connection, Error, ErrorKind, Identity, Result};
use std::collections::HashSet;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often paths that are down are looked at.
const ROUND: Duration = Duration::from_millis(20);
/// How often nothing being down is looked at.
const IDLE_ROUND: Duration = Duration::from_millis(500);
/// While no queue is open nothing is to be done before somebody says so.
const REST: Duration = Duration::from_secs(60);
/// First pause between two tries, doubled with each, up to the last.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_LAST: Duration = Duration::from_secs(1);
/// Pause between the answers that a path under observation has to give.
const WATCH_PAUSE: Duration = Duration::from_millis(200);

/// The thread that watches a LUN's connections. Ends with the LUN.
pub(crate) struct Monitor;

impl Monitor {
    pub(crate) fn start(shared: Arc<Shared>) -> Result<Monitor> {
        let name = shared.name.clone();
        std::thread::Builder::new()
            .name("lun-monitor".into())
            .spawn(move || watch(&shared))
            .map_err(|e| Error::from_io(name, e))?;
        Ok(Monitor)
    }
}

fn watch(shared: &Arc<Shared>) {
    let fencing = Arc::new(Mutex::new(HashSet::new()));
    while !shared.closing.load(Acquire) || !lock(&shared.queues).is_empty() {
        let mut down = false;
        let queues = lock(&shared.queues).clone();
        for queue in &queues {
            for path in shared.paths() {
                down |= connect_if_due(shared, queue, &path);
            }
        }
        if !queues.is_empty() {
            for path in shared.paths() {
                down |= access::ask_if_due(shared, &path);
            }
        }
        for (path, key) in shared.ghosts.keys() {
            if lock(&fencing).insert(key) {
                start_fence(shared, path, key, &fencing);
            }
        }
        shared.monitor_sleep(match down {
            true => ROUND,
            false if queues.is_empty() && shared.ghosts.len() == 0 => REST,
            false => IDLE_ROUND,
        });
    }
}

/// Starts a connection where one is missing; says whether one is.
fn connect_if_due(shared: &Arc<Shared>, queue: &Arc<QueueShared>, path: &Arc<SharedPath>) -> bool {
    let cell = &queue.links[path.id];
    if !wants_link(path, queue.only) || cell.load(Acquire) == LINK_UP {
        return false;
    }
    // A port that carries nothing is asked, until it does, and not connected to.
    if !path.access.carries() && shared.attributes().alua_enabled {
        return false;
    }
    let due = queue.next_try[path.id].load(Relaxed) <= shared.clock.now();
    let taken = due
        && cell
            .compare_exchange(LINK_DOWN, LINK_CONNECTING, Release, Relaxed)
            .is_ok();
    if taken {
        let (shared, queue, path) = (Arc::clone(shared), Arc::clone(queue), Arc::clone(path));
        let task = move || {
            match admit(&shared, &path) {
                Ok(Some(connection)) => {
                    queue.tries[path.id].store(0, Relaxed);
                    // A queue that sleeps takes it when it wakes.
                    path.failing.store(false, Relaxed);
                    queue.post(Mail::Connected(path.id, connection));
                }
                Ok(None) => queue.links[path.id].store(LINK_DOWN, Release),
                Err(error) if error.kind() == ErrorKind::NotNow => {
                    access::ask(&shared, &path);
                    pause(&shared, &queue, path.id);
                    queue.links[path.id].store(LINK_DOWN, Release);
                }
                Err(error) => {
                    path.failing.store(true, Relaxed);
                    pause(&shared, &queue, path.id);
                    queue.links[path.id].store(LINK_DOWN, Release);
                    tracing::debug!(path = path.path.name(), "not connected: {error}");
                }
            }
        };
        // Each attempt has a thread of its own: a path that does not answer holds up no other.
        if std::thread::Builder::new()
            .name("lun-connect".into())
            .spawn(task)
            .is_err()
        {
            cell.store(LINK_DOWN, Release);
        }
    }
    true
}

/// The next try is due later each time.
fn pause(shared: &Shared, queue: &QueueShared, path: usize) {
    let failed = queue.tries[path].fetch_add(1, Relaxed).min(16);
    let pause = RETRY_LAST.min(RETRY_FIRST * (1 << failed));
    let next = shared.clock.now() + pause.as_nanos() as u64;
    queue.next_try[path].store(next, Relaxed);
}

/// A connection that leads to this LUN; `None` when the path was refused or taken out of use.
fn admit(shared: &Shared, path: &SharedPath) -> Result<Option<Box<dyn Connection>>> {
    let connection;
    {
        // One thread finds out, the others of the same path profit.
        let _one = lock(&path.admission);
        if !path.proven.load(Acquire) {
            observe(shared, path)?;
        }
        connection = path.path.connect(shared.connect_within)?;
        if !path.proven.load(Acquire) {
            if let Some(why) = compare(shared, path, connection.identity())? {
                shared.refuse(path, why);
                return Ok(None);
            }
            path.proven.store(true, Release);
        }
    }
    let found = connection.identity();
    let wanted = lock(&shared.identity).clone();
    let too_short = (connection.info().max_transfer < shared.info.max_transfer)
        .then(|| "its largest transfer is shorter than that of the LUN".to_owned());
    if let Some(why) = identity::differs(&wanted, found).or(too_short) {
        shared.refuse(path, why);
        return Ok(None);
    }
    shared.learn(path, found, connection.info());
    path.access.set_varies(connection.access_varies());
    Ok(path.eligible().then_some(connection))
}

/// Why what a path leads to is not what another leads to. With no other path there is nothing to
/// compare with but who answers.
fn compare(shared: &Shared, path: &SharedPath, found: &Identity) -> Result<Option<String>> {
    let paths = shared.paths();
    let mut proven = paths
        .iter()
        .filter(|p| p.id != path.id && p.eligible() && p.proven.load(Acquire))
        .peekable();
    let none = proven.peek().is_none();
    let heeded = shared.attributes().alua_enabled;
    match proven.find(|p| p.access.carries() || !heeded) {
        Some(reference) => shared.prove(reference, path),
        // The ports that were used until now cannot be read: when an array moves a LUN, who answers
        // has to be enough, if the ID is one that no other LUN has.
        None if none || !identity::is_generic(found.wwid.as_deref()) => Ok(None),
        None => {
            let why = "no port that could prove it to be the same LUN gives access now";
            Err(Error::new(ErrorKind::NotNow, path.path.name(), why))
        }
    }
}

/// Watches a path that answers again for as long as its recovery and its past demand.
fn observe(shared: &Shared, path: &SharedPath) -> Result<()> {
    let attributes = shared.attributes();
    let penalty = path.penalty_secs(attributes.flap_penalty_secs, shared.clock.now());
    let penalty = Duration::from_secs_f64(penalty);
    let came_back = path.counters.offline_events.load(Relaxed) > 0;
    let (answers, time) = match attributes.ping_recovery {
        _ if !came_back => (0, Duration::ZERO),
        Recovery::Immediate => (0, penalty),
        Recovery::CountBased => (attributes.ping_count_threshold, penalty),
        Recovery::TimeBased => {
            let time = Duration::from_secs(u64::from(attributes.ping_time_threshold));
            (0, time.max(penalty))
        }
    };
    if answers == 0 && time.is_zero() {
        return Ok(());
    }
    path.recovering.store(true, Relaxed);
    let began = Instant::now();
    let mut seen = 0;
    let result = loop {
        if shared.closing.load(Acquire) || !path.eligible() {
            break Ok(());
        }
        if let Err(error) = path.path.identify(shared.connect_within) {
            break Err(error);
        }
        seen += 1;
        if seen >= answers && began.elapsed() >= time {
            break Ok(());
        }
        std::thread::sleep(WATCH_PAUSE);
    };
    path.recovering.store(false, Relaxed);
    result
}

/// Makes sure, through any other path, that what was sent under `key` is not carried out any more.
fn start_fence(shared: &Arc<Shared>, lost: usize, key: u64, fencing: &Arc<Mutex<HashSet<u64>>>) {
    let (shared, fencing) = (Arc::clone(shared), Arc::clone(fencing));
    let task = move || {
        let paths = shared.paths();
        let mut others: Vec<_> = paths.iter().filter(|p| p.eligible()).collect();
        // The lost path itself comes last: its server may be well, and only its way be lost.
        others.sort_by_key(|p| (p.id == lost, p.links_up.load(Relaxed) == 0));
        for path in others {
            match path.path.fence(key, shared.connect_within) {
                Ok(()) => {
                    shared.ghosts.fenced(key);
                    let name = paths[lost].path.name();
                    let what = format!("fenced through {}", path.path.name());
                    shared.log.add(name, what, 0);
                    for queue in lock(&shared.queues).iter() {
                        queue.post(Mail::Look);
                    }
                    break;
                }
                Err(error) => tracing::debug!("no fence: {error}"),
            }
        }
        lock(&fencing).remove(&key);
    };
    let _ = std::thread::Builder::new()
        .name("lun-fence".into())
        .spawn(task);
}

/// Whether a path may have a link at all.
pub(crate) fn wants_link(path: &SharedPath, only: Option<usize>) -> bool {
    path.admin() == Admin::Enabled && path.eligible() && only.is_none_or(|o| o == path.id)
}
