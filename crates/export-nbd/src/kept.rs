//! State that a server leaves to the one that continues its connections after a crash.
//!
//! ```text
//!   nbd-listen      the listening sockets
//!   nbd-table       words with the state of each connection; what was received and not processed
//!   nbd-worker-N    the buffers of a worker, and a table of what each of them holds
//!   nbd-N           the socket of a connection; for a Unix socket also a pipe, through which it sends
//! ```
//!
//! A connection has a place in the table. The kernel counts the bytes that its socket has received
//! and sent ([`survival::sockets`]), so the table states only what these bytes mean: positions in the
//! streams are numbers of bytes, modulo 2^40.
//!
//! ```text
//!   input      ... requests that have slots | parsed ── in the input area or in buffers ── | received
//!   output     ... replies that were sent | sent ── replies that have a position ── | the next reply
//! ```
//!
//! A request has a slot from the moment that its header was parsed until its reply was sent. It
//! counts once `parsed` is behind its header, and its payload is complete once `parsed` is behind that.
//! **Invariant:** the buffers of a write are not used for anything else before its slot states that it
//! is done. So a successor repeats each request that is not done, with the same payload, and sends
//! the replies of the others from the byte on that the socket does not have yet.

#[cfg(test)]
mod deaths;
#[cfg(test)]
pub(crate) mod in_memory;
mod place;

pub(crate) use place::{Done, Entry, Known, Left, Phase, Place};

use crate::socket::{Pipe, Raw};
use crate::step::step;
use block::{Buf, BufPool};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use survival::sealed::{seal, unseal};
use survival::{Area, Memory};

/// Keeps descriptors for a successor, and has those of a predecessor.
pub trait Keep: Send + Sync {
    /// Leaves descriptors under a name, instead of those that are there.
    ///
    /// # Errors
    /// They cannot be left.
    fn keep(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()>;

    /// Has the descriptors of a name closed.
    ///
    /// # Errors
    /// They cannot be closed.
    fn close(&self, name: &str) -> io::Result<()>;

    /// Takes what a predecessor has left under a name.
    fn take(&self, name: &str) -> Vec<OwnedFd>;

    /// Reports whether this process continues another one.
    fn is_successor(&self) -> bool;
}

/// Requests of one connection that have a slot.
pub(crate) const SLOTS: usize = 256;
/// Bytes of each of the two input areas of a connection.
pub(crate) const AREA_BYTES: usize = 32 * 1024;

/// First word of the table: the magic, and the version in the last byte.
const MAGIC: u64 = u64::from_le_bytes(*b"EVFSnbd\x01");
/// Words before the places.
const HEADER_WORDS: usize = 8;
/// Words of a place before its slots.
const PLACE_HEADER_WORDS: usize = 8;
const SLOT_WORDS: usize = 8;
const PLACE_WORDS: usize = PLACE_HEADER_WORDS + SLOTS * SLOT_WORDS;
/// Words of an entry in the table of buffers.
const OWNER_WORDS: usize = 2;
/// Most workers: more than any machine has CPUs.
const WORKERS_MAX: usize = 1 << 14;
/// Most places: their numbers have ten bits.
const PLACES_MAX: usize = 1 << 10;

/// Positions in a stream are counted modulo this number.
const POSITIONS: u64 = 1 << 40;

fn position(at: u64) -> u64 {
    at & (POSITIONS - 1)
}

/// Returns the distance from one position to another, at most half the circle.
pub(crate) fn distance(from: u64, to: u64) -> i64 {
    const UNUSED: u32 = 64 - POSITIONS.trailing_zeros();
    (to.wrapping_sub(from) << UNUSED) as i64 >> UNUSED
}

/// See the module.
pub(crate) struct Kept {
    keep: Arc<dyn Keep>,
    words: Memory,
    /// Areas of the places that are free, by the place.
    free: Mutex<Vec<(u32, [Area; 2])>>,
    /// Places of a predecessor that are not continued yet, with the descriptors of each. No new
    /// connection has one of them.
    inherited: Mutex<Vec<Inherited>>,
    /// Tables of buffers, by the worker.
    owners: Vec<OnceLock<Memory>>,
}

/// A place of a predecessor.
struct Inherited {
    number: u32,
    sockets: Vec<OwnedFd>,
    areas: [Area; 2],
}

fn damaged() -> io::Error {
    let text = "what the previous NBD server left is damaged";
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl Kept {
    /// Creates the table, or takes over that of a predecessor, with its numbers of places and workers.
    /// If that is damaged, all connections are closed.
    ///
    /// # Errors
    /// The system has no memory.
    pub(crate) fn new(keep: Arc<dyn Keep>, places: usize, workers: usize) -> io::Result<Arc<Kept>> {
        let places = places.min(PLACES_MAX);
        let input_words = |places| 2 * places * AREA_BYTES / survival::memory::WORD_BYTES;
        let create = || -> io::Result<(Memory, Memory)> {
            let words = Memory::create("evfs-nbd", HEADER_WORDS + places * PLACE_WORDS)?;
            let input = Memory::create("evfs-nbd-input", input_words(places))?;
            words.words()[1].store(seal(workers as u64, 1), Relaxed);
            words.words()[0].store(MAGIC, Release);
            Ok((words, input))
        };
        let adopt = || -> io::Result<(Memory, Memory)> {
            let left = keep.take("nbd-table");
            let [words, input] = <[OwnedFd; 2]>::try_from(left).map_err(|_| damaged())?;
            let (words, input) = (Memory::adopt(words)?, Memory::adopt(input)?);
            let len = words.words().len();
            let places = len.saturating_sub(HEADER_WORDS) / PLACE_WORDS;
            let fits = len == HEADER_WORDS + places * PLACE_WORDS
                && (1..=PLACES_MAX).contains(&places)
                && input.words().len() == input_words(places);
            let workers = if fits { workers_of(&words) } else { 0 };
            let is_known = (1..=WORKERS_MAX).contains(&workers);
            if !is_known || words.words()[0].load(Acquire) != MAGIC {
                return Err(damaged());
            }
            Ok((words, input))
        };
        let (words, input) = match keep.is_successor().then(adopt) {
            None => create()?,
            Some(Ok(adopted)) => adopted,
            Some(Err(why)) => {
                tracing::warn!(
                    name: "EVFS-0508",
                    "no NBD connection of the previous server can be continued: {why}"
                );
                for place in 0..PLACES_MAX as u32 {
                    if !keep.take(&name_of(place)).is_empty() {
                        keep.close(&name_of(place))?;
                    }
                }
                create()?
            }
        };
        keep.keep("nbd-table", &[words.file(), input.file()])?;
        let places = (words.words().len() - HEADER_WORDS) / PLACE_WORDS;
        let workers = workers_of(&words);
        let mut areas = Area::divide(input, AREA_BYTES).into_iter();
        let kept = Kept {
            keep,
            words,
            free: Mutex::default(),
            inherited: Mutex::default(),
            owners: (0..workers).map(|_| OnceLock::new()).collect(),
        };
        for number in 0..places as u32 {
            let (Some(one), Some(two)) = (areas.next(), areas.next()) else {
                break;
            };
            let areas = [one, two];
            let sockets = kept.keep.take(&name_of(number));
            if sockets.is_empty() {
                // If it was in use, its connection was not held yet, or has ended.
                if kept.word(number, place::STATE).0.load(Acquire) != 0 {
                    kept.clear(number);
                }
                lock(&kept.free).push((number, areas));
                continue;
            }
            lock(&kept.inherited).push(Inherited {
                number,
                sockets,
                areas,
            });
        }
        lock(&kept.free).reverse();
        Ok(Arc::new(kept))
    }

    /// Returns the number of workers, each of which has connections of its own.
    pub(crate) fn workers(&self) -> usize {
        self.owners.len()
    }

    /// Reports whether this process continues another one.
    pub(crate) fn is_successor(&self) -> bool {
        self.keep.is_successor()
    }

    /// Creates the buffers of a worker, or takes over those of a predecessor: a pool and a reserve of
    /// `counts` buffers of `bytes`.
    pub(crate) fn pools(
        &self,
        worker: usize,
        bytes: usize,
        counts: [usize; 2],
    ) -> io::Result<[BufPool; 2]> {
        let name = format!("nbd-worker-{worker}");
        let len = |count: usize| (count * bytes.next_multiple_of(block::BUF_ALIGN)) as u64;
        let words = (counts[0] + counts[1]) * OWNER_WORDS;
        let (files, owners) = if self.is_successor() {
            let left = self.keep.take(&name);
            let [one, two, owners] = <[OwnedFd; 3]>::try_from(left).map_err(|_| damaged())?;
            let (files, owners) = ([one, two], Memory::adopt(owners)?);
            for (file, count) in files.iter().zip(counts) {
                if survival::memory::file_bytes(file)? != len(count) {
                    return Err(damaged());
                }
            }
            if owners.words().len() != words {
                return Err(damaged());
            }
            (files, owners)
        } else {
            let create = |count| survival::memory::create_file("evfs-nbd-buffers", len(count));
            let files = [create(counts[0])?, create(counts[1])?];
            (files, Memory::create("evfs-nbd-owners", words)?)
        };
        let [one, two] = &files;
        self.keep
            .keep(&name, &[one.as_fd(), two.as_fd(), owners.file()])?;
        let pool = BufPool::shared(one.as_fd(), bytes, counts[0], 0)?;
        let reserve = BufPool::shared(two.as_fd(), bytes, counts[1], counts[0] as u32)?;
        // Each worker does this once.
        let _ = self.owners[worker].set(owners);
        Ok([pool, reserve])
    }

    /// Opens a place for a new connection, and leaves its socket to a successor. `None`: all are in
    /// use. The place has no worker yet.
    ///
    /// # Errors
    /// The socket cannot be left.
    pub(crate) fn open(
        self: &Arc<Kept>,
        raw: &Raw,
        pipe: Option<&Pipe>,
    ) -> io::Result<Option<(Place, [Area; 2])>> {
        let Some((number, areas)) = lock(&self.free).pop() else {
            return Ok(None);
        };
        let place = Place::new(Arc::clone(self), number, raw);
        let place = match place {
            Ok(place) => place,
            Err(e) => {
                lock(&self.free).push((number, areas));
                return Err(e);
            }
        };
        let socket = [raw.as_fd()];
        let pipe = pipe.map(Pipe::ends);
        let all = socket.into_iter().chain(pipe.into_iter().flatten());
        step();
        let kept = self.keep.keep(&name_of(number), &all.collect::<Vec<_>>());
        step();
        if let Err(e) = kept {
            place.leave(areas);
            return Err(e);
        }
        Ok(Some((place, areas)))
    }

    /// Takes over the connections of a predecessor that belong to a worker. Those that cannot be
    /// continued are closed.
    pub(crate) fn left(self: &Arc<Kept>, worker: usize) -> Vec<Left> {
        let is_own = |place: &mut Inherited| {
            // The first worker has those that were not assigned yet, and those that are damaged.
            self.worker_of(place.number).unwrap_or_default() == worker
        };
        let own: Vec<Inherited> = lock(&self.inherited).extract_if(.., is_own).collect();
        let mut all = Vec::new();
        for Inherited {
            number,
            sockets,
            areas,
        } in own
        {
            let (state, _) = self.word(number, place::STATE);
            if state.load(Acquire) == 0 {
                self.store(number, place::STATE, place::NEGOTIATES);
            }
            match Left::new(Arc::clone(self), number, sockets, areas) {
                Ok(left) => all.push(left),
                Err((areas, why)) => {
                    warn_of_end(why);
                    let _ = self.keep.close(&name_of(number));
                    self.clear(number);
                    lock(&self.free).push((number, areas));
                }
            }
        }
        all
    }

    /// Finds the buffers of the writes that are not done, by place and position of the request.
    pub(crate) fn owned(
        &self,
        worker: usize,
        pools: [&BufPool; 2],
        wanted: &dyn Fn(u32, u64) -> bool,
    ) -> HashMap<(u32, u64), Vec<(u32, Buf)>> {
        let mut found: HashMap<_, Vec<(u32, Buf)>> = HashMap::new();
        let Some(owners) = self.owners[worker].get() else {
            return found;
        };
        for (number, words) in owners.words().chunks_exact(OWNER_WORDS).enumerate() {
            let first = (number * OWNER_WORDS) as u64;
            let (what, at) = (words[0].load(Acquire), words[1].load(Acquire));
            let (Some(what), Some(at)) = (unseal(what, first), unseal(at, first + 1)) else {
                continue;
            };
            let (place, ordinal, len) = unpack_owner(what);
            if !wanted(place, at) {
                continue;
            }
            let buf = pools
                .iter()
                .find_map(|pool| pool.take_number(number as u32, len));
            if let Some(buf) = buf {
                found.entry((place, at)).or_default().push((ordinal, buf));
            }
        }
        found.values_mut().for_each(|bufs| {
            bufs.sort_by_key(|(ordinal, _)| *ordinal);
        });
        found
    }

    /// States what a buffer holds: a part of the payload of the request at a position.
    fn own(&self, worker: usize, place: u32, at: u64, ordinal: u32, buf: &Buf) {
        let (Some(owners), Some(number)) = (self.owners[worker].get(), buf.number()) else {
            return;
        };
        let first = number as usize * OWNER_WORDS;
        let [what, position] = &owners.words()[first..first + OWNER_WORDS] else {
            return;
        };
        what.store(0, Release);
        step();
        position.store(seal(at, first as u64 + 1), Release);
        step();
        let owner = pack_owner(place, ordinal, buf.len());
        what.store(seal(owner, first as u64), Release);
        step();
    }

    fn word(&self, place: u32, at: usize) -> (&AtomicU64, u64) {
        let index = HEADER_WORDS + place as usize * PLACE_WORDS + at;
        (&self.words.words()[index], index as u64)
    }

    fn load(&self, place: u32, at: usize) -> Option<u64> {
        let (word, index) = self.word(place, at);
        unseal(word.load(Acquire), index)
    }

    fn store(&self, place: u32, at: usize, value: u64) {
        let (word, index) = self.word(place, at);
        word.store(seal(value, index), Release);
        step();
    }

    fn clear(&self, place: u32) {
        self.word(place, place::STATE).0.store(0, Release);
        step();
    }

    fn worker_of(&self, place: u32) -> Option<usize> {
        let state = self.load(place, place::STATE)?;
        Some(place::worker(state))
    }
}

/// Returns the number of workers that a table is of; 0 if it is damaged.
fn workers_of(table: &Memory) -> usize {
    let workers = unseal(table.words()[1].load(Acquire), 1);
    workers.and_then(|n| n.try_into().ok()).unwrap_or(0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports that a connection ends because it cannot be continued.
pub(crate) fn warn_of_end(why: &str) {
    tracing::warn!(
        name: "EVFS-0508",
        "an NBD connection of the previous server cannot be continued: {why}"
    );
}

fn name_of(place: u32) -> String {
    format!("nbd-{place}")
}

/// Bits of a buffer's length, and of its ordinal; the place follows.
const LEN_BITS: u32 = 20;
const ORDINAL_BITS: u32 = 17;

fn pack_owner(place: u32, ordinal: u32, len: usize) -> u64 {
    u64::from(place) << (LEN_BITS + ORDINAL_BITS) | u64::from(ordinal) << LEN_BITS | len as u64
}

fn unpack_owner(value: u64) -> (u32, u32, usize) {
    let ordinal = value >> LEN_BITS & ((1 << ORDINAL_BITS) - 1);
    let len = value & ((1 << LEN_BITS) - 1);
    let place = value >> (LEN_BITS + ORDINAL_BITS);
    (place as u32, ordinal as u32, len as usize)
}

#[cfg(test)]
mod tests {
    use super::in_memory::InMemory;
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_new_connection_does_not_get_the_place_of_one_that_is_not_continued_yet() {
        let keep = Arc::new(InMemory::default());
        let new = || Kept::new(Arc::clone(&keep) as Arc<dyn Keep>, 2, 1).unwrap();
        let connect = || {
            let (one, other) = UnixStream::pair().unwrap();
            (Raw::Unix(one), Pipe::new().unwrap(), other)
        };
        let first = new();
        let (raw, pipe, _client) = connect();
        let (mut old, _) = first.open(&raw, Some(&pipe)).unwrap().unwrap();
        old.assign(0);
        drop((old, first));

        keep.succeed();
        let next = new();
        let (raw, pipe, _client) = connect();
        let (new, _) = next.open(&raw, Some(&pipe)).unwrap().unwrap();
        assert!(next.open(&raw, Some(&pipe)).unwrap().is_none());
        let left = next.left(0);
        assert_eq!(
            left.iter()
                .map(|one| one.entry.number())
                .collect::<Vec<_>>(),
            [0]
        );
        drop((new, left));
    }

    #[test]
    fn positions_go_round() {
        for (from, to, expected) in [
            (5, 9, 4),
            (9, 5, -4),
            (POSITIONS - 3, 4, 7),
            (POSITIONS * 7 + 4, POSITIONS - 3, -7),
        ] {
            assert_eq!(distance(from, to), expected);
        }
    }

    #[test]
    fn an_owner_fits_its_word() {
        let owner = (1023, (1 << ORDINAL_BITS) - 1, 1 << 19);
        let packed = pack_owner(owner.0, owner.1, owner.2);
        assert_eq!(unpack_owner(packed), owner);
        assert_eq!(unseal(seal(packed, 7), 7), Some(packed));
    }
}
