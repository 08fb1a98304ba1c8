//! The frames of a cache that hold data which the disk lacks: an entry for each frame.
//!
//! ```text
//!   header │ frame 0 │ frame 1 │ ...        an entry:
//!                                             object a
//!                                             object b
//!                                             page (42 bits), check (22 bits)
//!                                             mark (4 bits), sequence (50 bits), check (10 bits)
//! ```
//!
//! An entry counts once its last word is not zero. Before an entry changes, that word becomes zero; it
//! is stored after all others. The check covers the frame's number, object, page and sequence. The
//! mark keeps damage of a few bits from making an entry empty.
//!
//! Of two frames for one page the one with the higher sequence is newer: the page moved to another
//! frame while the first one was being written to the disk.
//!
//! **Invariant:** each prefix of the stores lists a frame as what it was before or is after, or not at
//! all; the owner of the table makes sure that it is listed only while its bytes are complete.

use crate::check::Check;
use crate::memory::{Memory, WORD_BYTES};
use rustix::fs::SeekFrom;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// First word: the magic, and the version in the last byte.
const MAGIC: u64 = u64::from_le_bytes(*b"EVFSpag\x02");
/// Words before the entries; the last ones are spare.
const HEADER_WORDS: usize = 8;
/// Words of an entry.
const ENTRY_WORDS: usize = 4;
/// Words of the header that its check covers, which follows them.
const CHECKED_WORDS: usize = 4;
/// Most frames of a table: 4 TiB of pages.
const FRAMES_MAX: usize = 1 << 30;

/// Number of bits of a page index.
const PAGE_BITS: u32 = 42;
/// Bits of the check beside the page.
const UPPER_BITS: u32 = 64 - PAGE_BITS;
/// Bits of the check beside the sequence.
const LOWER_BITS: u32 = 32 - UPPER_BITS;
/// Number of bits of a sequence: at a million changes in a second they last for 35 years.
const SEQUENCE_BITS: u32 = 50;
const SEQUENCE_MASK: u64 = (1 << SEQUENCE_BITS) - 1;
const MARK_SHIFT: u32 = SEQUENCE_BITS + LOWER_BITS;
const MARK: u64 = 0b1011;

/// Exclusive upper bound of page indexes.
pub const PAGES_MAX: u64 = 1 << PAGE_BITS;

/// Why a successor cannot use a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The content is not what a server has written.
    #[error("the table of pages in memory is damaged: {0}")]
    Damaged(&'static str),
    /// The memory cannot be mapped or created.
    #[error("the memory of the table of pages cannot be used: {0}")]
    Memory(io::ErrorKind),
}

impl From<io::Error> for Unusable {
    fn from(error: io::Error) -> Unusable {
        Unusable::Memory(error.kind())
    }
}

/// A frame with data that the disk lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub frame: u32,
    /// Tree and inode.
    pub object: (u64, u64),
    /// Index of the page in the file.
    pub page: u64,
    /// Of two frames for one page the higher one is newer.
    pub sequence: u64,
}

/// A table of frames. See the module.
pub struct Pages {
    memory: Memory,
    frames: usize,
    identity: OnceLock<[u8; 16]>,
    /// The last sequence that was given out.
    last: AtomicU64,
}

impl Pages {
    /// Creates an empty table for `frames` frames of files of one file system, whose UUID is
    /// `identity`. Takes 32 bytes for a frame, once the frame or one near it is first listed.
    ///
    /// # Errors
    /// The system refuses the memory; more than 2^30 frames.
    pub fn create(frames: usize, identity: [u8; 16]) -> Result<Pages, Unusable> {
        let pages = Pages::unclaimed(frames)?;
        pages.claim(identity);
        Ok(pages)
    }

    /// Creates an empty table for the files of the file system that claims it first.
    ///
    /// # Errors
    /// As [`Pages::create`].
    pub fn unclaimed(frames: usize) -> Result<Pages, Unusable> {
        if frames > FRAMES_MAX {
            return Err(Unusable::Memory(io::ErrorKind::InvalidInput));
        }
        Ok(Pages {
            memory: Memory::create("evfs-pages", HEADER_WORDS + frames * ENTRY_WORDS)?,
            frames,
            identity: OnceLock::new(),
            last: AtomicU64::new(0),
        })
    }

    /// Reports whether the table is for the files of the file system with this UUID, which claims the
    /// table if none has.
    pub fn claim(&self, identity: [u8; 16]) -> bool {
        *self.identity.get_or_init(|| {
            let header = header_of(self.frames, identity);
            for (index, word) in header.into_iter().enumerate() {
                store(self.memory.words(), index, word);
            }
            identity
        }) == identity
    }

    /// Reads the table of a predecessor, without a change.
    ///
    /// # Errors
    /// It is not a table.
    pub fn adopt(memory: Memory) -> Result<Pages, Unusable> {
        let words = memory.words();
        if words.len() < HEADER_WORDS {
            return Err(Unusable::Damaged("it is too short"));
        }
        let header: [u64; CHECKED_WORDS + 1] = std::array::from_fn(|i| words[i].load(Acquire));
        let [magic, frames, low, high, _] = header;
        if magic != MAGIC {
            return Err(Unusable::Damaged("it has another format"));
        }
        let identity = (u128::from(low) | u128::from(high) << 64).to_le_bytes();
        let frames = usize::try_from(frames).unwrap_or(usize::MAX);
        if header != header_of(frames, identity) {
            return Err(Unusable::Damaged("the header is wrong"));
        }
        let room = words.len() - HEADER_WORDS;
        if frames > FRAMES_MAX || frames * ENTRY_WORDS != room {
            return Err(Unusable::Damaged("it has another length than it says"));
        }
        let last = AtomicU64::new(0);
        let pages = Pages {
            memory,
            frames,
            identity: OnceLock::from(identity),
            last,
        };
        let all = pages.all()?;
        let last = all.iter().map(|entry| entry.sequence).max();
        pages.last.store(last.unwrap_or(0), Relaxed);
        Ok(pages)
    }

    /// Returns the number of frames.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Returns the UUID of the file system; zeros before one has claimed the table.
    pub fn identity(&self) -> [u8; 16] {
        self.identity.get().copied().unwrap_or_default()
    }

    /// Returns the memory, for a successor.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.memory.file()
    }

    /// Lists a frame as the newest one for a page of an object (tree and inode), unless it is listed
    /// for it already. The frame holds the whole page, and the caller alone changes its entry.
    pub fn set(&self, frame: u32, object: (u64, u64), page: u64) {
        debug_assert!(page < PAGES_MAX);
        let (words, at) = (self.memory.words(), self.place(frame));
        let old = words[at + 3].load(Relaxed);
        if old != 0 {
            let [a, b, paged] = [0, 1, 2].map(|i| words[at + i].load(Relaxed));
            if ((a, b), paged >> UPPER_BITS) == (object, page) {
                return;
            }
            store(words, at + 3, 0);
        }
        let sequence = self.last.fetch_add(1, Relaxed).wrapping_add(1) & SEQUENCE_MASK;
        let entry = Entry {
            frame,
            object,
            page,
            sequence,
        };
        for (index, word) in entry.encode().into_iter().enumerate() {
            store(words, at + index, word);
        }
    }

    /// Removes a frame from the table, if it is listed. The caller alone changes its entry.
    pub fn clear(&self, frame: u32) {
        if self.is_listed(frame) {
            store(self.memory.words(), self.place(frame) + 3, 0);
        }
    }

    /// Checks whether a frame is listed.
    pub fn is_listed(&self, frame: u32) -> bool {
        self.memory.words()[self.place(frame) + 3].load(Relaxed) != 0
    }

    /// Returns the newest frame of each listed page, in the order of objects and pages.
    ///
    /// # Errors
    /// An entry is damaged: then no entry can be trusted, because a newer frame may be missing.
    pub fn entries(&self) -> Result<Vec<Entry>, Unusable> {
        let mut all = self.all()?;
        all.sort_unstable_by_key(|entry| (entry.object, entry.page, entry.sequence));
        let page = |entry: &Entry| (entry.object, entry.page);
        let mut newest: Vec<Entry> = Vec::with_capacity(all.len());
        for entry in all {
            match newest.last_mut() {
                Some(last) if page(last) == page(&entry) => {
                    if last.sequence == entry.sequence {
                        return Err(Unusable::Damaged("two frames are equally new"));
                    }
                    *last = entry;
                }
                _ => newest.push(entry),
            }
        }
        Ok(newest)
    }

    /// Reads all entries that are not empty, in the order of frames.
    fn all(&self) -> Result<Vec<Entry>, Unusable> {
        let words = self.memory.words();
        let mut found = Vec::new();
        for frames in self.written()? {
            for frame in frames {
                let at = self.place(frame);
                // The last word first: it is stored last.
                let last = words[at + 3].load(Acquire);
                if last != 0 {
                    let [a, b, paged] = [0, 1, 2].map(|i| words[at + i].load(Relaxed));
                    found.push(Entry::decode(frame, [a, b, paged, last])?);
                }
            }
        }
        Ok(found)
    }

    /// Finds the frames whose entries may have been stored to. The others have no memory, and reading
    /// them would take some.
    fn written(&self) -> Result<Vec<Range<u32>>, Unusable> {
        let (file, mut found) = (self.memory.file(), Vec::new());
        let seek = |from| match rustix::fs::seek(file, from) {
            Ok(at) => Ok(Some(at)),
            Err(rustix::io::Errno::NXIO) => Ok(None),
            Err(error) => Err(io::Error::from(error)),
        };
        let entry_at = |at: u64| (at / WORD_BYTES as u64).saturating_sub(HEADER_WORDS as u64);
        let (mut at, mut next) = (0, 0);
        while let Some(data) = seek(SeekFrom::Data(at))? {
            let hole = seek(SeekFrom::Hole(data))?.unwrap_or(u64::MAX);
            let first = (entry_at(data) as usize / ENTRY_WORDS).max(next);
            let end = (entry_at(hole) as usize)
                .div_ceil(ENTRY_WORDS)
                .min(self.frames);
            if first < end {
                found.push(first as u32..end as u32);
                next = end;
            }
            at = hole;
        }
        Ok(found)
    }

    fn place(&self, frame: u32) -> usize {
        HEADER_WORDS + frame as usize * ENTRY_WORDS
    }
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Pages")
            .field("frames", &self.frames)
            .finish_non_exhaustive()
    }
}

impl Entry {
    fn encode(&self) -> [u64; ENTRY_WORDS] {
        let check = u64::from(self.check());
        let (upper, lower) = (check >> LOWER_BITS, check & ((1 << LOWER_BITS) - 1));
        let ((a, b), page) = (self.object, self.page << UPPER_BITS | upper);
        [
            a,
            b,
            page,
            MARK << MARK_SHIFT | self.sequence << LOWER_BITS | lower,
        ]
    }

    fn decode(frame: u32, words: [u64; ENTRY_WORDS]) -> Result<Entry, Unusable> {
        let [a, b, paged, last] = words;
        let entry = Entry {
            frame,
            object: (a, b),
            page: paged >> UPPER_BITS,
            sequence: last >> LOWER_BITS & SEQUENCE_MASK,
        };
        if entry.encode() == words {
            Ok(entry)
        } else {
            Err(Unusable::Damaged("an entry is wrong"))
        }
    }

    fn check(&self) -> u32 {
        let (frame, (a, b)) = (self.frame.into(), self.object);
        Check::new()
            .with([frame, a, b, self.page, self.sequence])
            .value()
    }
}

/// Computes the words of the header that are in use.
fn header_of(frames: usize, identity: [u8; 16]) -> [u64; CHECKED_WORDS + 1] {
    let identity = u128::from_le_bytes(identity);
    let mut header = [
        MAGIC,
        frames as u64,
        identity as u64,
        (identity >> 64) as u64,
        0,
    ];
    let bytes: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    header[CHECKED_WORDS] = u64::from(crc32c::crc32c(&bytes));
    header
}

/// Stores a word after all earlier stores.
fn store(words: &[AtomicU64], index: usize, value: u64) {
    #[cfg(test)]
    tests::STORES.with_borrow_mut(|stores| stores.push((index, value)));
    words[index].store(value, Release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    thread_local! {
        /// The stores of this thread.
        pub static STORES: RefCell<Vec<(usize, u64)>> = const { RefCell::new(Vec::new()) };
    }

    const IDENTITY: [u8; 16] = *b"a file system id";

    /// Copies the words, as a successor finds them.
    fn copy_of(words: &[u64]) -> Memory {
        let memory = Memory::create("evfs-test", words.len()).unwrap();
        for (word, value) in memory.words().iter().zip(words) {
            word.store(*value, Relaxed);
        }
        memory
    }

    fn words_of(pages: &Pages) -> Vec<u64> {
        pages
            .memory
            .words()
            .iter()
            .map(|word| word.load(Relaxed))
            .collect()
    }

    fn read(words: &[u64]) -> Result<Vec<Entry>, Unusable> {
        Pages::adopt(copy_of(words))?.entries()
    }

    /// Numbers that look random, from a linear congruential generator.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (self.0 >> 33) % end
        }
    }

    /// One change of a table.
    #[derive(Debug, Clone, Copy)]
    enum Change {
        Set(u32, (u64, u64), u64),
        Clear(u32),
    }

    fn apply(pages: &Pages, change: Change) {
        match change {
            Change::Set(frame, object, page) => pages.set(frame, object, page),
            Change::Clear(frame) => pages.clear(frame),
        }
    }

    fn random(numbers: &mut Numbers, frames: u32) -> Change {
        let frame = numbers.below(frames.into()) as u32;
        if numbers.below(3) == 0 {
            return Change::Clear(frame);
        }
        Change::Set(
            frame,
            (numbers.below(2), u64::MAX - numbers.below(2)),
            numbers.below(4),
        )
    }

    /// What each frame is listed as.
    fn by_frame(pages: &Pages) -> BTreeMap<u32, ((u64, u64), u64, u64)> {
        let all = pages.all().unwrap().into_iter();
        all.map(|e| (e.frame, (e.object, e.page, e.sequence)))
            .collect()
    }

    #[test]
    fn the_newest_frame_of_each_page_is_listed() {
        let pages = Pages::create(1000, IDENTITY).unwrap();
        assert_eq!(pages.entries().unwrap(), []);
        let last_page = PAGES_MAX - 1;
        pages.set(7, (1, 2), 3);
        pages.set(999, (1, 2), last_page);
        pages.set(0, (1, 2), 3);
        pages.set(5, (1, 3), 3);
        let names = |pages: &Pages| -> Vec<_> {
            let entries = pages.entries().unwrap();
            entries
                .iter()
                .map(|e| (e.frame, e.object, e.page))
                .collect()
        };
        let all = [(0, (1, 2), 3), (999, (1, 2), last_page), (5, (1, 3), 3)];
        assert_eq!(names(&pages), all);
        // Listing the older frame again does not make it newer.
        pages.set(7, (1, 2), 3);
        assert_eq!(names(&pages), all);
        pages.clear(0);
        assert_eq!(names(&pages)[0], (7, (1, 2), 3));
        pages.clear(7);
        pages.clear(7);
        assert_eq!(names(&pages), all[1..]);
        let adopted = Pages::adopt(copy_of(&words_of(&pages))).unwrap();
        assert_eq!((adopted.frames(), adopted.identity()), (1000, IDENTITY));
        assert_eq!(adopted.entries(), pages.entries());
        adopted.set(8, (1, 3), 3);
        assert_eq!(names(&adopted)[1].0, 8, "newer than all of the predecessor");
    }

    #[test]
    fn a_large_table_with_few_frames_is_read_without_taking_memory() {
        let pages = Pages::create(1 << 24, IDENTITY).unwrap();
        let frames = [0, 126, 127, 128, 4_000_000, (1 << 24) - 1];
        for frame in frames {
            pages.set(frame, (1, 1), frame.into());
        }
        let file = pages.file().try_clone_to_owned().unwrap();
        let taken = || rustix::fs::fstat(&file).unwrap().st_blocks;
        let before = taken();
        let adopted =
            Pages::adopt(Memory::adopt(pages.file().try_clone_to_owned().unwrap()).unwrap());
        let found: Vec<u32> = adopted
            .unwrap()
            .entries()
            .unwrap()
            .iter()
            .map(|e| e.frame)
            .collect();
        assert_eq!((found.as_slice(), taken()), (frames.as_slice(), before));
    }

    #[test]
    fn every_prefix_of_the_stores_is_a_table() {
        let mut numbers = Numbers(1);
        let mut cuts = 0;
        for _ in 0..20 {
            let pages = Pages::create(6, IDENTITY).unwrap();
            for _ in 0..50 {
                let (mut words, before) = (words_of(&pages), by_frame(&pages));
                STORES.take();
                let change = random(&mut numbers, 6);
                apply(&pages, change);
                let (stores, after) = (STORES.take(), by_frame(&pages));
                let (Change::Set(frame, ..) | Change::Clear(frame)) = change;
                for (index, value) in stores {
                    // Cut before this store.
                    cuts += 1;
                    let seen = by_frame(&Pages::adopt(copy_of(&words)).unwrap());
                    let own = seen.get(&frame);
                    let may = [before.get(&frame), None];
                    assert!(may.contains(&own), "{change:?}: {own:?}");
                    let others = |of: &BTreeMap<u32, _>| {
                        let mut of = of.clone();
                        of.remove(&frame);
                        of
                    };
                    assert_eq!(others(&seen), others(&before), "{change:?}");
                    assert_eq!(others(&seen), others(&after), "{change:?}");
                    words[index] = value;
                }
                assert_eq!(words, words_of(&pages), "no store was missed");
                if let Change::Set(frame, object, page) = change {
                    let (is, at, _) = after[&frame];
                    assert_eq!((is, at), (object, page));
                }
            }
        }
        println!("{cuts} cuts");
        assert!(cuts > 1000);
    }

    #[test]
    fn a_frame_that_is_listed_already_is_listed_throughout() {
        let pages = Pages::create(2, IDENTITY).unwrap();
        pages.set(0, (1, 1), 1);
        STORES.take();
        pages.set(0, (1, 1), 1);
        assert_eq!(STORES.take(), []);
    }

    #[test]
    fn damaged_words_are_an_error_or_change_nothing() {
        let mut numbers = Numbers(2);
        let (mut refused, mut unchanged) = (0, 0);
        for round in 0..100 {
            let pages = Pages::create(8, IDENTITY).unwrap();
            (0..30).for_each(|_| apply(&pages, random(&mut numbers, 8)));
            let (words, entries) = (words_of(&pages), pages.entries());
            for _ in 0..100 {
                let mut damaged = words.clone();
                for _ in 0..1 + round % 3 {
                    let bit = numbers.below(words.len() as u64 * 64) as usize;
                    damaged[bit / 64] ^= 1 << (bit % 64);
                }
                match read(&damaged) {
                    Err(_) => refused += 1,
                    found => {
                        assert_eq!(found, entries, "a flip is noticed, or has no effect");
                        unchanged += 1;
                    }
                }
            }
        }
        println!("10,000 damaged tables: {refused} refused, {unchanged} unchanged");
        assert!(refused > 1000 && unchanged > 1000);
    }

    #[test]
    fn every_single_flip_of_an_entry_in_use_is_an_error() {
        let pages = Pages::create(1, IDENTITY).unwrap();
        pages.set(0, (u64::MAX, 0), 0);
        let words = words_of(&pages);
        for bit in 0..words.len() * 64 {
            let mut damaged = words.clone();
            damaged[bit / 64] ^= 1 << (bit % 64);
            let spare = (CHECKED_WORDS + 1..HEADER_WORDS).contains(&(bit / 64));
            assert_eq!(read(&damaged).is_err(), !spare, "bit {bit}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_words_are_a_table_or_an_error(
            mut words in proptest::collection::vec(proptest::num::u64::ANY, 1..80),
            valid in proptest::bool::ANY,
        ) {
            let frames = words.len().saturating_sub(HEADER_WORDS) / ENTRY_WORDS;
            if valid && words.len() >= HEADER_WORDS {
                words.truncate(HEADER_WORDS + frames * ENTRY_WORDS);
                words[..=CHECKED_WORDS].copy_from_slice(&header_of(frames, IDENTITY));
            }
            if let Ok(entries) = read(&words) {
                proptest::prop_assert!(entries.len() <= frames);
            }
        }
    }
}
