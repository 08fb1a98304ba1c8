//! Control plane of a LUN: opens connections, proves paths, fences lost ones. It may block; I/O
//! threads never wait for it.

use crate::access_query;
use crate::attributes::Recovery;
use crate::identity;
use crate::mailbox::{LINK_CONNECTING, LINK_DOWN, LINK_UP, QueueMessage, QueueShared};
use crate::path::SharedPath;
use crate::proving;
use crate::refusal::Refusal;
use crate::shared::Shared;
use crate::sync::lock;
use block::{Error, ErrorKind, Result};
use lunpath::{Connection, Identity};
use retry::{Backoff, Jitter, State};
use std::collections::HashMap;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Pause between rounds while a path is down.
const ROUND: Duration = Duration::from_millis(20);
/// Pause between rounds while no path is down.
const IDLE_ROUND: Duration = Duration::from_millis(500);
/// Pause while no queue is open; until it is woken, the monitor has no work.
const REST: Duration = Duration::from_secs(60);
/// Pauses between attempts to fence a key.
const FENCE: Backoff = Backoff::new(
    Duration::from_millis(50),
    Duration::from_secs(5),
    Jitter::Equal,
);
/// Pause between two queries of a path under observation.
const WATCH_PAUSE: Duration = Duration::from_millis(200);

/// Thread that watches a LUN's connections. It ends with the LUN.
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

/// Fences by key: number of attempts, and time of the next; `None` while an attempt is running.
type Fences = Arc<Mutex<HashMap<u64, (u32, Option<Instant>)>>>;

fn watch(shared: &Arc<Shared>) {
    let fences = Fences::default();
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
                down |= access_query::query_if_due(shared, &path);
                examine_if_due(shared, &path);
            }
        }
        let keys = shared.unanswered.keys();
        lock(&fences).retain(|key, (_, next)| next.is_none() || keys.iter().any(|k| k.1 == *key));
        for (path, key) in keys {
            let mut held = lock(&fences);
            let (_, next) = held.entry(key).or_insert((0, Some(Instant::now())));
            if next.is_some_and(|next| next <= Instant::now()) {
                *next = None;
                drop(held);
                start_fence(shared, path, key, &fences);
            }
        }
        shared.monitor_sleep(match down {
            true => ROUND,
            false if queues.is_empty() && shared.unanswered.len() == 0 => REST,
            false => IDLE_ROUND,
        });
    }
}

/// Starts a connection attempt if one is missing and due. Returns whether a connection is missing.
fn connect_if_due(shared: &Arc<Shared>, queue: &Arc<QueueShared>, path: &Arc<SharedPath>) -> bool {
    let cell = &queue.links[path.id];
    if !path.wants_link(queue.only) || cell.load(Acquire) == LINK_UP {
        return false;
    }
    // A port without access is queried until it has access, and not connected to.
    if !path.access.carries() && shared.attributes().alua_enabled {
        return false;
    }
    let attempts = &queue.attempts[path.id];
    let now = Duration::from_nanos(shared.clock.now());
    let due = [attempts, &path.attempts]
        .iter()
        .all(|attempts| attempts.state(now) != State::Open);
    let taken = due
        && cell
            .compare_exchange(LINK_DOWN, LINK_CONNECTING, Release, Relaxed)
            .is_ok();
    if taken {
        let (shared, queue, path) = (Arc::clone(shared), Arc::clone(queue), Arc::clone(path));
        let task = move || {
            match admit(&shared, &path) {
                Ok(Some(connection)) => {
                    // A sleeping queue adopts it when it wakes.
                    queue.post(QueueMessage::Connected(path.id, connection));
                }
                Ok(None) => queue.links[path.id].store(LINK_DOWN, Release),
                Err(error) if error.kind() == ErrorKind::NotNow => {
                    access_query::query(&shared, &path);
                    path.delay(&queue.attempts[path.id], shared.clock.now());
                    queue.links[path.id].store(LINK_DOWN, Release);
                }
                Err(error) => {
                    path.delay(&queue.attempts[path.id], shared.clock.now());
                    queue.links[path.id].store(LINK_DOWN, Release);
                    tracing::debug!(
                        path = path.path.name(),
                        "connection attempt failed: {error}"
                    );
                }
            }
        };
        // One thread per attempt: an unresponsive path does not delay others.
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

/// Opens a connection to this LUN; `None` if the path was refused or taken out of use.
fn admit(shared: &Shared, path: &SharedPath) -> Result<Option<Box<dyn Connection>>> {
    let failures = path.failures.load(Acquire);
    let connection;
    {
        // One thread tries; the others waiting for the same path share its failure and its backoff.
        let _one = lock(&path.admission);
        if path.failures.load(Acquire) != failures {
            let why = "a concurrent attempt to connect failed";
            return Err(Error::new(ErrorKind::PathLost, path.path.name(), why));
        }
        connection = match first_admitted(shared, path) {
            Ok(Some(connection)) => connection,
            Err(error) if error.kind() != ErrorKind::NotNow => {
                path.fails(error.to_string());
                path.delay(&path.attempts, shared.clock.now());
                path.failures.fetch_add(1, Release);
                return Err(error);
            }
            other => return other,
        };
        path.answers();
    }
    if let Some(why) = differs(shared, &*connection) {
        shared.refuse(path, Refusal::described(why));
        return Ok(None);
    }
    proving::learn(shared, path, connection.identity(), connection.info());
    path.access.set_varies(connection.access_varies());
    Ok(path.eligible().then_some(connection))
}

/// Connects a path. Proves it first if it is not proven yet.
fn first_admitted(shared: &Shared, path: &SharedPath) -> Result<Option<Box<dyn Connection>>> {
    observe(shared, path)?;
    let connection = path.path.connect(shared.connect_within)?;
    fits(shared, &*connection)?;
    if !path.proven.load(Acquire) {
        let _alone = lock(&shared.proving);
        if let Some(refusal) = compare(shared, path, connection.identity())? {
            shared.refuse(path, refusal);
            return Ok(None);
        }
        path.proven.store(true, Release);
    }
    Ok(Some(connection))
}

/// Determines how the target's description on a connection differs from the LUN's identity.
fn differs(shared: &Shared, connection: &dyn Connection) -> Option<String> {
    let wanted = lock(&shared.identity).clone();
    identity::differs(&wanted, connection.identity())
}

/// Checks that a connection supports the LUN's transfer size. One that does not may still lead to
/// the LUN: it is retried, and becomes usable when its limits are restored.
fn fits(shared: &Shared, connection: &dyn Connection) -> Result<()> {
    let (takes, promised) = (connection.info().max_transfer, shared.info.max_transfer);
    if takes >= promised {
        return Ok(());
    }
    let why = format!(
        "its limits changed: its maximum transfer is {takes} bytes, but the LUN was opened with \
         {promised}; raise the limit at its server, or reopen the LUN"
    );
    Err(Error::new(
        ErrorKind::PathLost,
        &connection.info().name,
        why,
    ))
}

/// Chooses the path to compare another with: proven and enabled, preferably writable, responsive
/// and connected. Also returns whether any path is proven.
fn reference(shared: &Shared, path: &SharedPath) -> (Option<Arc<SharedPath>>, bool) {
    let heeded = shared.attributes().alua_enabled;
    let mut proven = shared.paths();
    proven.retain(|p| p.id != path.id && p.eligible() && p.proven.load(Acquire));
    let any = !proven.is_empty();
    proven.retain(|p| p.access.carries() || !heeded);
    proven.sort_by_key(|p| {
        let silent = p.links_suspect.load(Relaxed) > 0;
        (
            p.read_only.load(Relaxed),
            silent,
            p.links_up.load(Relaxed) == 0,
        )
    });
    (proven.into_iter().next(), any)
}

/// Compares a path with a proven one. Without another path, only its identity can be checked.
fn compare(shared: &Shared, path: &SharedPath, found: &Identity) -> Result<Option<Refusal>> {
    match reference(shared, path) {
        (Some(reference), _) => proving::prove(shared, &reference, path),
        // The ports used until now have no access. When an array moves a LUN between ports, the
        // identity must suffice, provided that no other LUN can have the same ID.
        (None, any) if !any || !identity::is_generic(found.wwid.as_deref()) => Ok(None),
        (None, _) => {
            let why = "no accessible port can prove that it is the same LUN";
            Err(Error::new(ErrorKind::NotNow, path.path.name(), why))
        }
    }
}

/// Observes a path that answers again, for as long as its recovery mode requires, and for its flap
/// penalty if another path carries I/O.
fn observe(shared: &Shared, path: &SharedPath) -> Result<()> {
    let attributes = shared.attributes();
    let lost = !path.proven.load(Acquire) && path.counters.offline_events.load(Relaxed) > 0;
    let (answers, time) = match attributes.ping_recovery {
        Recovery::CountBased if lost => (attributes.ping_count_threshold, Duration::ZERO),
        Recovery::TimeBased if lost => {
            let time = Duration::from_secs(u64::from(attributes.ping_time_threshold));
            (0, time)
        }
        _ => (0, Duration::ZERO),
    };
    let held = || {
        path.flaps.hold_back(shared.clock.now())
            && shared.paths().iter().any(|p| {
                p.id != path.id
                    && p.eligible()
                    && p.access.carries()
                    && p.links_up.load(Relaxed) > 0
            })
    };
    if answers == 0 && time.is_zero() && !held() {
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
        if seen >= answers && began.elapsed() >= time && !held() {
            break Ok(());
        }
        std::thread::sleep(WATCH_PAUSE);
    };
    path.recovering.store(false, Relaxed);
    result
}

/// Starts another examination of a refused path if one is due.
fn examine_if_due(shared: &Arc<Shared>, path: &Arc<SharedPath>) {
    if !path.to_examine(shared.clock.now()) || path.refusals.examined.swap(true, AcqRel) {
        return;
    }
    let (owned, examined) = (Arc::clone(shared), Arc::clone(path));
    let task = move || {
        examine(&owned, &examined);
        examined.refusals.examined.store(false, Release);
    };
    let thread = std::thread::Builder::new().name("lun-examine".into());
    if thread.spawn(task).is_err() {
        path.refusals.examined.store(false, Release);
    }
}

/// Lifts a refusal if the path is proven to lead to the LUN; otherwise schedules the next
/// examination.
fn examine(shared: &Shared, path: &SharedPath) {
    let Some(refusal) = path.refusals.current() else {
        return;
    };
    match still_refused(shared, path, &refusal) {
        // An administrator may have accepted the path in the meantime.
        _ if path.refusals.current().is_none() => {}
        Ok(None) => {
            let what = "now leads to the LUN: no longer refused";
            tracing::info!(lun = shared.name, path = path.path.name(), "{what}");
            shared.log.add(path.path.name(), what.into(), 0);
            path.refusals.lift();
            shared.changed();
        }
        Ok(Some(refusal)) => path.refuse(refusal, shared.clock.now()),
        Err(error) => {
            tracing::debug!(path = path.path.name(), "cannot be checked: {error}");
            path.refuse(refusal, shared.clock.now());
        }
    }
}

/// Determines why a path is still refused. If it showed other blocks before, equal blocks now
/// prove nothing; only a nonce does. If nothing can be compared, its ID must be one that no other
/// LUN has.
fn still_refused(shared: &Shared, path: &SharedPath, refusal: &Refusal) -> Result<Option<Refusal>> {
    let connection = path.path.connect(shared.connect_within)?;
    if let Some(why) = differs(shared, &*connection) {
        let other_blocks = refusal.other_blocks;
        return Ok(Some(Refusal { why, other_blocks }));
    }
    let _alone = lock(&shared.proving);
    let found = connection.identity();
    let enough = match reference(shared, path) {
        (Some(reference), _) => {
            !refusal.other_blocks || proving::proves_by_nonce(shared, &reference)
        }
        (None, _) => !refusal.other_blocks && !identity::is_generic(found.wwid.as_deref()),
    };
    if enough {
        compare(shared, path, found)
    } else {
        Ok(Some(refusal.clone()))
    }
}

/// Starts a fence through another path, so that commands sent under `key` are no longer executed.
fn start_fence(shared: &Arc<Shared>, lost: usize, key: u64, fences: &Fences) {
    let (shared, fences) = (Arc::clone(shared), Arc::clone(fences));
    let task = move || {
        let paths = shared.paths();
        let mut others: Vec<_> = paths.iter().filter(|p| p.eligible()).collect();
        // The lost path itself is last: its server may be healthy and only the connection lost.
        others.sort_by_key(|p| (p.id == lost, p.links_up.load(Relaxed) == 0));
        for path in others {
            match path.path.fence(key, shared.connect_within) {
                Ok(()) => {
                    shared.unanswered.fenced(key);
                    let name = paths[lost].path.name();
                    let what = format!("fenced through {}", path.path.name());
                    shared.log.add(name, what, 0);
                    for queue in lock(&shared.queues).iter() {
                        queue.post(QueueMessage::Recheck);
                    }
                    break;
                }
                Err(error) => tracing::debug!("cannot fence: {error}"),
            }
        }
        if let Some((tries, next)) = lock(&fences).get_mut(&key) {
            *next = Some(Instant::now() + FENCE.pause(*tries, paths[lost].seed));
            *tries += 1;
        }
    };
    let _ = std::thread::Builder::new()
        .name("lun-fence".into())
        .spawn(task);
}
