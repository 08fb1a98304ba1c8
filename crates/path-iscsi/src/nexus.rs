//! What a target keeps of this process: registrations of sessions that did not end in order.
//!
//! A registration for persistent reservations belongs to an initiator port and a target port, and
//! outlives the connection on many targets. So the name of a session that was lost (its ISID) is used
//! for the next one: the target then ends what it still has of the old session (RFC 7143, section
//! 6.3.5), the new key takes the place of the old, and nothing multiplies.
//!
//! A key says whose it is, so that the registrations of a process of this machine that died are told
//! from those of others:
//!
//! ```text
//!   24 bits: machine, process namespace, initiator name | 22: process | 4: its start | 14: a number
//! ```

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

const NUMBER_BITS: u32 = 14;
const START_BITS: u32 = 4;
const PROCESS_BITS: u32 = 22;

/// Keys of this process whose sessions have not ended at their targets. True: it has lost the
/// session.
static KEYS: Mutex<BTreeMap<u64, bool>> = Mutex::new(BTreeMap::new());

fn keys() -> MutexGuard<'static, BTreeMap<u64, bool>> {
    KEYS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a session that was lost has at the target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left {
    pub(crate) isid: [u8; 6],
    pub(crate) key: u64,
}

/// What one path has left at its target, and why.
#[derive(Debug, Default)]
pub(crate) struct Leavings {
    lost: Mutex<Vec<Left>>,
    /// Keys of other paths that were fenced through this one.
    fenced: Mutex<Vec<u64>>,
}

fn lock<T>(mutex: &Mutex<Vec<T>>) -> MutexGuard<'_, Vec<T>> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Leavings {
    /// A session that was lost, to take its place.
    pub(crate) fn take(&self) -> Option<Left> {
        lock(&self.lost).pop()
    }

    pub(crate) fn any(&self) -> bool {
        !lock(&self.lost).is_empty()
    }

    /// Keeps a session's name until it is used again.
    pub(crate) fn keep(&self, left: Left) {
        keys().insert(left.key, true);
        lock(&self.lost).push(left);
    }

    pub(crate) fn fenced(&self, key: u64) {
        lock(&self.fenced).push(key);
    }

    /// Whether a session that was fenced through this path may still be at its target. Then who is
    /// registered has to stay, or what that session sent may be carried out.
    pub(crate) fn guards(&self) -> bool {
        let keys = keys();
        let mut fenced = lock(&self.fenced);
        fenced.retain(|key| keys.contains_key(key));
        !fenced.is_empty()
    }
}

/// An identifier of the "random" format (RFC 7143, section 11.12.5).
pub(crate) fn random_isid() -> [u8; 6] {
    let mut isid = [0; 6];
    getrandom::fill(&mut isid).expect("the kernel gives random bytes");
    isid[0] = 0x80;
    isid
}

/// The session of this key has ended at the target: nothing of it is carried out any more.
pub(crate) fn ended(key: u64) {
    keys().remove(&key);
}

/// Whether a key is of no more use: of a session that this process lost, or of a process of this
/// machine that is gone.
pub(crate) fn is_left_over(key: u64, initiator: &str) -> bool {
    keys().get(&key) == Some(&true) || is_of_the_dead(key, initiator)
}

/// Whether this process has lost a session whose registration may be at a target.
pub(crate) fn any_lost() -> bool {
    keys().values().any(|lost| *lost)
}

/// The key of a new session.
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
    keys().insert(key, false);
    key
}

/// Whether a key is that of a process of this machine that does not run any more.
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
        // `/proc` may hide processes of others, and those that give nothing of themselves away.
        None => {
            let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
            pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
        }
    }
}

/// Stands for this machine, its space of process numbers, and the initiator; `None` where they have
/// no name.
fn owner(initiator: &str) -> Option<u64> {
    let machine = std::fs::read_to_string("/etc/machine-id").ok()?;
    let machine = machine.trim();
    let space = std::fs::read_link("/proc/self/ns/pid").ok()?;
    let space = space.to_str()?;
    // FNV-1a: a later version of the program has to find the same.
    let text = [machine, space, initiator].join("\n");
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (!machine.is_empty()).then_some(hash ^ hash >> 32)
}

/// When a process began, in ticks of the system's clock; `None` if there is none.
fn start(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Behind the name, which may hold anything, field 3 is the first, and 22 is meant.
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
        if owner(name).is_some() {
            assert!(is_of_the_dead(dead, name));
        }
        assert!(!is_of_the_dead(dead, "iqn.other"), "another initiator's");
        ended(own);
        assert!(!is_of_the_dead(0x1234, name) && !is_of_the_dead(u64::MAX, name));
    }
}
