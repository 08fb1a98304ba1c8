//! State that a target keeps for this process: registrations of sessions that did not log out.
//!
//! A registration for persistent reservations belongs to an initiator port and a target port, and
//! survives the connection on many targets. Therefore the ISID of a lost session is reused for the
//! next one: the target then ends the old session (RFC 7143, section 6.3.5), the new key replaces
//! the old one, and registrations do not accumulate.
//!
//! A key identifies its owner, so that registrations of dead processes of this machine can be
//! distinguished from those of other owners:
//!
//! ```text
//!   24 bits: machine, PID namespace, initiator name | 22: PID | 4: its start time | 14: a counter
//! ```

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

const NUMBER_BITS: u32 = 14;
const START_BITS: u32 = 4;
const PROCESS_BITS: u32 = 22;

/// State of a session that has not ended at its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionState {
    Open,
    /// Its connection was lost; the registration may still exist.
    Lost,
}

/// Keys of this process whose sessions have not ended at their targets.
static KEYS: Mutex<BTreeMap<u64, SessionState>> = Mutex::new(BTreeMap::new());

fn keys() -> MutexGuard<'static, BTreeMap<u64, SessionState>> {
    KEYS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// ISID and key that a lost session left at its target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LostSession {
    pub(crate) isid: [u8; 6],
    pub(crate) key: u64,
}

/// Sessions and registrations that one path may have left at its target.
#[derive(Debug, Default)]
pub(crate) struct LostSessions {
    lost: Mutex<Vec<LostSession>>,
    /// Keys of other paths' sessions that were fenced through this path.
    fenced: Mutex<Vec<u64>>,
    /// Sessions of other machines were fenced, which may continue at any time.
    is_held: AtomicBool,
}

fn lock<T>(mutex: &Mutex<Vec<T>>) -> MutexGuard<'_, Vec<T>> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LostSessions {
    /// Removes and returns a lost session, so that a new session can replace it.
    pub(crate) fn take(&self) -> Option<LostSession> {
        lock(&self.lost).pop()
    }

    pub(crate) fn any(&self) -> bool {
        !lock(&self.lost).is_empty()
    }

    /// Records a lost session until its ISID is reused.
    pub(crate) fn record(&self, left: LostSession) {
        keys().insert(left.key, SessionState::Lost);
        lock(&self.lost).push(left);
    }

    /// Lets the registration and the reservation stay for good.
    pub(crate) fn hold(&self) {
        self.is_held.store(true, Relaxed);
    }

    /// Reports whether the registration and the reservation are to stay for good.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held.load(Relaxed)
    }

    pub(crate) fn fenced(&self, key: u64) {
        lock(&self.fenced).push(key);
    }

    /// Checks whether a session fenced through this path may still exist at its target. Then the
    /// registration and reservation must stay, or writes of the fenced session could still be
    /// executed.
    pub(crate) fn guards(&self) -> bool {
        if self.is_held() {
            return true;
        }
        let keys = keys();
        let mut fenced = lock(&self.fenced);
        fenced.retain(|key| keys.contains_key(key));
        !fenced.is_empty()
    }
}

/// Generates an ISID in the "random" format (RFC 7143, section 11.12.5).
pub(crate) fn random_isid() -> [u8; 6] {
    let mut isid = [0; 6];
    getrandom::fill(&mut isid).expect("the kernel gives random bytes");
    isid[0] = 0x80;
    isid
}

/// Records that the session of this key has ended at the target; none of its commands will be
/// executed.
pub(crate) fn ended(key: u64) {
    keys().remove(&key);
}

/// Checks whether a key is stale: it belongs to a session that this process lost, or to a dead
/// process of this machine.
pub(crate) fn is_left_over(key: u64, initiator: &str) -> bool {
    keys().get(&key) == Some(&SessionState::Lost) || is_of_the_dead(key, initiator)
}

/// Checks whether a key belongs to a session of this process that has not ended at its target.
pub(crate) fn is_of_this_process(key: u64) -> bool {
    keys().contains_key(&key)
}

/// Checks whether this process has lost a session whose registration may still exist.
pub(crate) fn any_lost() -> bool {
    keys().values().any(|state| *state == SessionState::Lost)
}

/// Creates a new key for a session and records it.
pub(crate) fn new_key(initiator: &str) -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let process = std::process::id();
    let mask = |bits: u32| (1u64 << bits) - 1;
    let mut key = owner(initiator).unwrap_or_else(|| {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).expect("the kernel gives random bytes");
        u64::from_ne_bytes(bytes)
    }) & mask(24);
    key = key << PROCESS_BITS | u64::from(process) & mask(PROCESS_BITS);
    key = key << START_BITS | start(process).unwrap_or(0) & mask(START_BITS);
    key = key << NUMBER_BITS | NUMBER.fetch_add(1, Relaxed) & mask(NUMBER_BITS);
    keys().insert(key, SessionState::Open);
    key
}

/// Checks whether a key belongs to a process of this machine that no longer runs.
fn is_of_the_dead(key: u64, initiator: &str) -> bool {
    let mask = |bits: u32| (1u64 << bits) - 1;
    let start_of = key >> NUMBER_BITS & mask(START_BITS);
    let process = key >> (NUMBER_BITS + START_BITS) & mask(PROCESS_BITS);
    let ours = owner(initiator).map(|owner| owner & mask(24));
    if ours != Some(key >> (NUMBER_BITS + START_BITS + PROCESS_BITS)) {
        return false;
    }
    match start(process as u32) {
        Some(start) => start & mask(START_BITS) != start_of,
        // `/proc` may hide processes of other users (`hidepid`); a signal test still finds them.
        None => {
            let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
            pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
        }
    }
}

/// Computes a hash of the machine ID, the PID namespace and the initiator name; `None` if the
/// machine ID or the namespace cannot be read.
fn owner(initiator: &str) -> Option<u64> {
    let machine = std::fs::read_to_string("/etc/machine-id").ok()?;
    let machine = machine.trim();
    let space = std::fs::read_link("/proc/self/ns/pid").ok()?;
    let space = space.to_str()?;
    // FNV-1a: must stay the same across versions of the program.
    let text = [machine, space, initiator].join("\n");
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (!machine.is_empty()).then_some(hash ^ hash >> 32)
}

/// Reads the start time of a process in clock ticks since boot; `None` if it does not exist.
fn start(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name may hold any character. After its `)` the first field is field 3; the start time is
    // field 22.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_tells_a_process_that_died_from_one_that_runs_and_from_others() {
        let name = "iqn.2026-01.org.evfs:test";
        let own = new_key(name);
        assert_ne!(own, new_key(name));
        assert!(!is_of_the_dead(own, name), "this process runs");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let mask = !(((1 << PROCESS_BITS) - 1) << (NUMBER_BITS + START_BITS));
        let dead = own & mask | u64::from(child.id()) << (NUMBER_BITS + START_BITS);
        // A machine without an ID recognizes none.
        assert_eq!(is_of_the_dead(dead, name), owner(name).is_some());
        assert!(!is_of_the_dead(dead, "iqn.other"), "another initiator's");
        ended(own);
        assert!(!is_of_the_dead(0x1234, name) && !is_of_the_dead(u64::MAX, name));
    }
}
