//! What another server needs to continue this one, if it is killed.
//!
//! ```text
//!   keep        the sockets, and the calls in progress (crate rx)
//!   requests    operations of the file system that calls have carried out
//!   clients     clients that may trust promises, and until when
//!   locks       file locks (`lock_table.rs`)
//! ```
//!
//! A call is continued under its number. If an operation that must not be repeated was carried out
//! for it, only its reply is made again, from what the operation has left.
//!
//! **Invariant:** a client is in the table before it gets a promise. Before another server answers a
//! change, each of these clients was told that all promises have ended, or is known not to answer.

use crate::volume::Volumes;
use rx::{Entry, Keep};
use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use survival::requests::SLOTS;
use survival::sealed::checksum;
use survival::{Memory, Requests, addresses};

/// Takes over the dirty pages of the volumes of a killed server, before a call is served.
pub type Adopt = Box<dyn FnOnce(&Volumes) -> io::Result<()> + Send>;

/// Means by which another server can continue this one. See the module.
pub struct Survival {
    /// Holds descriptors.
    pub keep: Arc<dyn Keep>,
    /// Table of the file system's operations.
    pub requests: Arc<Requests>,
    /// Operations that a killed server has carried out.
    pub done: HashSet<u64>,
    /// Takes over the pages of a killed server.
    pub adopt: Adopt,
}

/// Name of the table of clients.
const CLIENTS: &str = "afs-clients";

/// First word: the magic, and the version in the last byte.
const MAGIC: u64 = u64::from_le_bytes(*b"EVFSafs\x01");
/// Second word: the time until which clients that are not in the table may trust promises.
const STRANGERS: usize = 1;
const HEADER_WORDS: usize = 2;
/// Clients of the table, as many as a server knows.
const CLIENTS_MAX: usize = 65_536;
/// Words of a client: the time until which it may trust promises, 0 for none; what names it; a
/// checksum.
const NAME_WORDS: usize = addresses::WORDS;
const CLIENT_WORDS: usize = 1 + NAME_WORDS + 1;

/// State of a server that another one can continue.
pub(crate) struct Surviving {
    requests: Arc<Requests>,
    done: HashSet<u64>,
    /// Slots of the table of operations that no thread uses.
    slots: Mutex<Vec<usize>>,
    freed: Condvar,
}

/// The call that a thread serves.
pub(crate) struct Turn<'s> {
    noted: Option<(&'s Surviving, Entry)>,
    is_done: bool,
}

impl Surviving {
    pub(crate) fn new(requests: Arc<Requests>, done: HashSet<u64>) -> Surviving {
        Surviving {
            requests,
            done,
            slots: Mutex::new((0..SLOTS).collect()),
            freed: Condvar::new(),
        }
    }

    /// Carries out an operation for a call.
    fn carry_out<T, E>(&self, entry: &Entry, act: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = loop {
            match slots.pop() {
                Some(slot) => break slot,
                None => {
                    let woken = self.freed.wait(slots);
                    slots = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        drop(slots);
        self.requests.begin(slot, entry.id());
        let result = act();
        if result.is_ok() {
            entry.carried_out();
        }
        self.requests.end();
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.push(slot);
        self.freed.notify_one();
        result
    }
}

impl<'s> Turn<'s> {
    pub(crate) fn new(surviving: Option<&'s Surviving>, entry: Option<&Entry>) -> Turn<'s> {
        let noted = surviving.zip(entry.cloned());
        let is_done = noted.as_ref().is_some_and(|(surviving, entry)| {
            entry.was_carried_out() || surviving.done.contains(&entry.id())
        });
        Turn { noted, is_done }
    }

    /// Reports whether a killed server has carried out the call, so that only its reply is missing.
    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Returns the number of the call, 0 if it has none.
    pub(crate) fn id(&self) -> u64 {
        self.noted.as_ref().map_or(0, |(_, entry)| entry.id())
    }

    /// Reports whether another server could continue the call.
    pub(crate) fn is_kept(&self) -> bool {
        self.noted.is_some()
    }

    /// Carries out the one operation of the file system that must not be repeated.
    pub(crate) fn once<T, E>(&self, act: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        match &self.noted {
            Some((surviving, entry)) => surviving.carry_out(entry, act),
            None => act(),
        }
    }

    /// Notes that the call has been carried out, before its reply is written.
    pub(crate) fn finished(&self) {
        if let Some((_, entry)) = &self.noted {
            entry.carried_out();
        }
    }
}

/// Table of the clients that may trust promises.
pub(crate) struct Clients {
    memory: Memory,
    free: Mutex<Vec<usize>>,
}

/// A client of the table; leaves it when it is dropped.
pub(crate) struct KeptClient {
    of: Arc<Clients>,
    slot: usize,
}

/// A client that trusts promises of a killed server.
pub(crate) struct Holder {
    pub(crate) address: SocketAddr,
    pub(crate) local: Option<IpAddr>,
    /// End of its trust, in seconds of the machine's monotonic clock.
    pub(crate) until: u64,
    pub(crate) kept: KeptClient,
}

/// Returns the seconds of the machine's monotonic clock.
pub(crate) fn machine_seconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or_default()
}

impl Clients {
    /// Creates the table, or takes over that of a killed server with the clients in it.
    pub(crate) fn open(keep: &dyn Keep) -> io::Result<(Arc<Clients>, Option<Vec<Holder>>)> {
        let words = HEADER_WORDS + CLIENTS_MAX * CLIENT_WORDS;
        let left = keep.take(CLIENTS).pop();
        let is_successor = left.is_some();
        let memory = match left {
            Some(file) => Memory::adopt(file)?,
            None => Memory::create(CLIENTS, words)?,
        };
        let magic = &memory.words()[0];
        if memory.words().len() != words || is_successor && magic.load(Acquire) != MAGIC {
            return Err(damaged());
        }
        magic.store(MAGIC, Release);
        keep.keep(CLIENTS, &[memory.file().as_fd()])?;
        let clients = Arc::new(Clients {
            memory,
            free: Mutex::default(),
        });
        let holders = is_successor.then(|| clients.read()).transpose()?;
        let used: HashSet<usize> = holders.iter().flatten().map(|h| h.kept.slot).collect();
        let free = (0..CLIENTS_MAX).rev().filter(|slot| !used.contains(slot));
        *clients.free() = free.collect();
        Ok((clients, holders))
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn words(&self, slot: usize) -> &[AtomicU64] {
        let first = HEADER_WORDS + slot * CLIENT_WORDS;
        &self.memory.words()[first..first + CLIENT_WORDS]
    }

    /// Returns the time until which clients that are not in the table may trust promises.
    pub(crate) fn strangers(&self) -> u64 {
        self.memory.words()[STRANGERS].load(Acquire)
    }

    pub(crate) fn set_strangers(&self, until: u64) {
        self.memory.words()[STRANGERS].fetch_max(until, Release);
    }

    /// Enters a client, which trusts no promise yet; `None` if there is no room.
    pub(crate) fn enter(
        self: &Arc<Self>,
        address: SocketAddr,
        local: Option<IpAddr>,
    ) -> Option<KeptClient> {
        let slot = self.free().pop()?;
        let words = self.words(slot);
        let name = addresses::to_words(address, local);
        words[0].store(0, Release);
        for (word, value) in words[1..].iter().zip(name) {
            word.store(value, Relaxed);
        }
        words[1 + NAME_WORDS].store(checksum(&name), Release);
        Some(KeptClient {
            of: Arc::clone(self),
            slot,
        })
    }

    fn read(self: &Arc<Self>) -> io::Result<Vec<Holder>> {
        let mut holders = Vec::new();
        for slot in 0..CLIENTS_MAX {
            let words = self.words(slot);
            let until = words[0].load(Acquire);
            if until == 0 {
                continue;
            }
            let name: [u64; NAME_WORDS] = std::array::from_fn(|at| words[1 + at].load(Acquire));
            if words[1 + NAME_WORDS].load(Acquire) != checksum(&name) {
                return Err(damaged());
            }
            let (address, local) = addresses::from_words(&name);
            holders.push(Holder {
                address,
                local,
                until,
                kept: KeptClient {
                    of: Arc::clone(self),
                    slot,
                },
            });
        }
        Ok(holders)
    }
}

impl KeptClient {
    /// Notes that the client may trust promises until a time, if that is later.
    pub(crate) fn trust(&self, until: u64) {
        self.of.words(self.slot)[0].fetch_max(until, Release);
    }

    /// Notes that the client trusts no promise.
    pub(crate) fn distrust(&self) {
        self.of.words(self.slot)[0].store(0, Release);
    }
}

impl Drop for KeptClient {
    fn drop(&mut self) {
        self.distrust();
        self.of.free().push(self.slot);
    }
}

fn damaged() -> io::Error {
    let text = "the table of clients of the previous server is damaged";
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Lets changes be answered once the holders of a killed server's promises know that they have ended.
#[derive(Default)]
pub(crate) struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn set_closed(&self, closed: bool) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = closed;
        self.opened.notify_all();
    }

    /// Waits until it is open.
    pub(crate) fn pass(&self) {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        while *closed {
            let woken = self.opened.wait(closed);
            closed = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for `time`, or until it is opened.
    pub(crate) fn pass_within(&self, time: std::time::Duration) {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .opened
            .wait_timeout_while(closed, time, |closed| *closed);
        drop(waited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{BorrowedFd, OwnedFd};

    /// What a keeper has.
    #[derive(Default)]
    struct Left(Mutex<Vec<OwnedFd>>);

    impl Keep for Left {
        fn take(&self, _name: &str) -> Vec<OwnedFd> {
            let all = self.0.lock().unwrap();
            all.iter().map(|fd| fd.try_clone().unwrap()).collect()
        }

        fn keep(&self, _name: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
            let all = descriptors.iter().map(|fd| fd.try_clone_to_owned());
            *self.0.lock().unwrap() = all.collect::<io::Result<_>>()?;
            Ok(())
        }
    }

    #[test]
    fn a_successor_finds_the_clients_that_trust_promises() {
        let left = Left::default();
        let (clients, holders) = Clients::open(&left).unwrap();
        assert!(holders.is_none());
        let addresses: [SocketAddr; 4] = [
            ([10, 0, 0, 1], 7001).into(),
            ([10, 0, 0, 2], 7001).into(),
            "[2001:db8::1]:7001".parse().unwrap(),
            ([10, 0, 0, 3], 7001).into(),
        ];
        let local = Some([10, 0, 0, 9].into());
        let kept = addresses.map(|address| clients.enter(address, local).unwrap());
        kept[0].trust(70);
        kept[0].trust(60);
        kept[1].trust(80);
        kept[1].distrust();
        kept[2].trust(90);
        let [first, second, third, gone] = kept;
        gone.trust(100);
        drop(gone);
        clients.set_strangers(50);
        let (again, holders) = Clients::open(&left).unwrap();
        let holders = holders.unwrap();
        let found: Vec<_> = holders.iter().map(|h| (h.address, h.until)).collect();
        assert_eq!(found, [(addresses[0], 70), (addresses[2], 90)]);
        assert_eq!((holders[0].local, again.strangers()), (local, 50));
        std::mem::forget((holders, first, second, third));
        let word = &clients.words(0)[2];
        word.store(word.load(Relaxed) ^ 1, Relaxed);
        assert!(Clients::open(&left).is_err());
    }
}
