//! `redb` below the overlay: the last commit for reading, and the next one for writing.
//!
//! Three tables: `items` (every key of [`crate::format::key`]), `space` (a bit for each block in
//! use, 8192 to a record; a record of zeros is not stored), `state` (the number of the last commit,
//! and the bytes of all items). A commit takes two phases and saves `redb`'s own allocator state
//! with it ("quick repair"), so that opening after a crash does not walk the tree.
//!
//! **Invariant:** no content of the device makes the program panic. `redb` verifies its pages only
//! during repair, and asserts what it reads; so each call into it runs under [`guard`], which turns
//! a failed assertion into an error.

use crate::error::{Error, Result};
use crate::format::key::{Direction, KEY_BYTES, Key};
use crate::format::record::Run;
use crate::metadata::database_file::DatabaseFile;
use crate::metadata::overlay::{Change, Overlay};
use redb::{
    Database, ReadOnlyTable, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};

type ItemKey = &'static [u8; KEY_BYTES];
type Items = ReadOnlyTable<ItemKey, &'static [u8]>;

const ITEMS: TableDefinition<ItemKey, &[u8]> = TableDefinition::new("items");
const SPACE: TableDefinition<u64, &[u8; CHUNK_BYTES]> = TableDefinition::new("space");
const STATE: TableDefinition<&str, u64> = TableDefinition::new("state");
const EPOCH: &str = "epoch";
/// Name of the number that counts the bytes of all items, keys included.
const ITEM_BYTES: &str = "item_bytes";

/// Length of a bitmap record in bytes: small compared with a page of the tree, large compared with
/// its key.
const CHUNK_BYTES: usize = 1024;
/// Number of blocks that a bitmap record covers.
pub(crate) const CHUNK_BLOCKS: u64 = CHUNK_BYTES as u64 * 8;

/// Bytes of items per page of the tree: half a page, as after many deletions.
const ITEM_BYTES_PER_PAGE: u64 = 2048;

/// Run of blocks that was allocated or freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpaceChange {
    pub run: Run,
    pub used: bool,
}

/// Number of a commit of the tree, and of the records of the journal that lead to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Epoch(u64);

impl Epoch {
    /// The epoch of a tree without a commit.
    pub const FIRST: Epoch = Epoch(0);

    /// Creates the epoch of this number, which was read from the device.
    pub fn of_number(number: u64) -> Epoch {
        Epoch(number)
    }

    /// Returns the number, for the device.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Computes the epoch of the following commit.
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Treatment of the checksums of all pages when a database is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checksums {
    /// They are not compared.
    Trust,
    /// Every page is read first, and compared with its checksum.
    Verify,
}

/// Database handle of the committer.
pub(crate) struct Db {
    database: Option<Database>,
    file: Option<Arc<DatabaseFile>>,
}

/// Last commit, for any number of readers.
pub(crate) struct Base {
    items: Items,
}

/// Bitmap of the blocks in use in a commit, for any number of readers.
pub(crate) struct Bitmap {
    space: ReadOnlyTable<u64, &'static [u8; CHUNK_BYTES]>,
}

/// A file that `redb` shares with a check of its pages.
#[derive(Debug)]
struct SharedFile(Arc<DatabaseFile>);

impl StorageBackend for SharedFile {
    fn len(&self) -> std::io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> std::io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.0.write(offset, data)
    }
}

thread_local! {
    /// Whether a call into `redb` is running on this thread.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call into `redb`. A panic in it means that the metadata is damaged.
fn guard<T>(call: impl FnOnce() -> std::result::Result<T, redb::Error>) -> Result<T> {
    // Such a panic becomes an ordinary error with the same message. The default hook would make it
    // look like a defect of the program, and a repair that probes a damaged tree would report
    // thousands.
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !GUARDED.get() {
                report(panic);
            }
        }));
    });
    let before = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    GUARDED.set(before);
    match result {
        Ok(result) => result.map_err(of_redb),
        Err(panic) => {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
            let said = said.unwrap_or("unreadable page");
            Err(Error::corrupt(format!("the metadata is damaged: {said}")))
        }
    }
}

/// Converts an error of `redb`; returns our own error if it carries one.
fn of_redb(error: redb::Error) -> Error {
    match error {
        redb::Error::Io(io) => match io.get_ref().and_then(|e| e.downcast_ref::<Error>()) {
            Some(ours) => ours.clone(),
            // Not from the device: the header is not one.
            None if io.kind() == std::io::ErrorKind::InvalidData => {
                Error::corrupt(format!("the metadata is damaged: {io}"))
            }
            None => block::Error::from_io("metadata", io).into(),
        },
        redb::Error::PreviousIo => {
            let text = "the metadata is unusable after a device error";
            Error::new(crate::error::Kind::Io, text)
        }
        redb::Error::DatabaseClosed => crate::error::closed(),
        other => Error::corrupt(format!("the metadata is damaged: {other}")),
    }
}

impl Db {
    /// As [`Db::open`], and keeps the file for a check of the pages.
    pub fn open_file(file: DatabaseFile, cache_bytes: usize, checksums: Checksums) -> Result<Db> {
        let file = Arc::new(file);
        let mut db = Db::open(SharedFile(Arc::clone(&file)), cache_bytes, checksums)?;
        db.file = Some(file);
        Ok(db)
    }

    /// Opens the database, or creates it if the file is empty.
    pub fn open(file: impl StorageBackend, cache_bytes: usize, checksums: Checksums) -> Result<Db> {
        let mut builder = Database::builder();
        builder.set_cache_size(cache_bytes);
        builder.set_check_integrity_on_open(checksums == Checksums::Verify);
        let database = guard(|| Ok(builder.create_with_backend(file)?))?;
        let db = Db {
            database: Some(database),
            file: None,
        };
        Ok(db)
    }

    /// Returns the file of [`Db::open_file`].
    pub fn file(&self) -> Option<&Arc<DatabaseFile>> {
        self.file.as_ref()
    }

    fn database(&self) -> &Database {
        self.database.as_ref().expect("there until it is dropped")
    }

    /// Reads the state of the last commit.
    pub fn base(&self) -> Result<Base> {
        guard(|| {
            let read = self.database().begin_read()?;
            let items = read.open_table(ITEMS)?;
            Ok(Base { items })
        })
    }

    /// Reads the bitmap of the last commit. The caller prevents commits if it is to belong to a
    /// [`Base`].
    pub fn bitmap(&self) -> Result<Bitmap> {
        guard(|| {
            let read = self.database().begin_read()?;
            let space = read.open_table(SPACE)?;
            Ok(Bitmap { space })
        })
    }

    /// Reads the number of the last commit; [`Epoch::FIRST`] before the first.
    pub fn epoch(&self) -> Result<Epoch> {
        self.number(EPOCH).map(Epoch)
    }

    /// Reads every page of the last commit, compares its checksum, and recounts the pages in use.
    /// No other thread may read or write during this.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`]: a page or the count is damaged.
    pub fn verify(&mut self) -> Result<()> {
        let database = self.database.as_mut().expect("there until it is dropped");
        if guard(|| Ok(database.check_integrity()?))? {
            Ok(())
        } else {
            Err(Error::corrupt("allocated-page count mismatch"))
        }
    }

    /// Returns the bytes of all items, keys included.
    pub fn item_bytes(&self) -> Result<u64> {
        self.number(ITEM_BYTES)
    }

    /// Estimates the number of pages that all items need, from their bytes.
    pub fn item_pages(&self) -> Result<u64> {
        Ok(self.item_bytes()? / ITEM_BYTES_PER_PAGE)
    }

    fn number(&self, name: &str) -> Result<u64> {
        guard(|| {
            let read = self.database().begin_read()?;
            let state = read.open_table(STATE)?;
            Ok(state.get(name)?.map_or(0, |number| number.value()))
        })
    }

    /// Collects all runs of blocks in use, in order; a run may be returned in parts.
    pub fn used(&self, device_blocks: u64) -> Result<Vec<Run>> {
        self.bitmap()?.used(device_blocks)
    }

    /// Makes all changes durable, or none.
    pub fn commit(&self, changes: &Overlay, space: &[SpaceChange], epoch: Epoch) -> Result<()> {
        guard(|| {
            let mut write = self.database().begin_write()?;
            write.set_quick_repair(true);
            {
                let mut items = write.open_table(ITEMS)?;
                let (mut more, mut less) = (0, 0);
                for (key, change) in changes.iter() {
                    let before = match change {
                        Change::Put { value, .. } => {
                            more += (KEY_BYTES + value.len()) as u64;
                            items.insert(&key.encode(), &value[..])?
                        }
                        Change::Delete => items.remove(&key.encode())?,
                    };
                    less += before.map_or(0, |b| (KEY_BYTES + b.value().len()) as u64);
                }
                let mut table = write.open_table(SPACE)?;
                let mut chunks = BTreeMap::new();
                for change in space {
                    change_bits(*change, &mut chunks, |number| {
                        let record = table.get(number)?;
                        Ok(record.map_or([0; CHUNK_BYTES], |bits| *bits.value()))
                    })?;
                }
                for (number, bits) in chunks {
                    if bits.iter().all(|byte| *byte == 0) {
                        table.remove(number)?;
                    } else {
                        table.insert(number, &*bits)?;
                    }
                }
                let mut state = write.open_table(STATE)?;
                state.insert(EPOCH, epoch.0)?;
                let bytes = state.get(ITEM_BYTES)?.map_or(0, |bytes| bytes.value());
                state.insert(ITEM_BYTES, (bytes + more).saturating_sub(less))?;
            }
            Ok(write.commit()?)
        })
    }

    /// Closes the database cleanly: the next open finds nothing to recover.
    pub fn close(mut self) -> Result<()> {
        match self.database.take() {
            Some(database) => guard(|| Ok(database.close()?)),
            None => Ok(()),
        }
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // An error here was reported by a commit before, or will be by the next open.
        let database = self.database.take();
        let _ = guard(|| {
            drop(database);
            Ok(())
        });
    }
}

/// Key and value of an item in the last commit.
pub(crate) type BaseItem = (Key, redb::AccessGuard<'static, &'static [u8]>);

/// Items of the last commit in order, from either end. A damaged tree may be out of order; reading
/// it then returns an error instead of the same key indefinitely.
pub(crate) struct BaseRange {
    range: Option<redb::Range<'static, ItemKey, &'static [u8]>>,
    /// First and last key that may still follow.
    from: Key,
    to: Key,
}

impl Bitmap {
    /// Collects all runs of blocks in use, in order; a run may be returned in parts.
    pub fn used(&self, device_blocks: u64) -> Result<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::new();
        let (mut next, mut beyond) = (0, false);
        guard(|| {
            for record in self.space.iter()? {
                let (number, bits) = record?;
                // A damaged tree may be out of order, or form a loop.
                let number = number.value();
                if number < next || number >= device_blocks.div_ceil(CHUNK_BLOCKS) {
                    beyond = true;
                    return Ok(());
                }
                next = number + 1;
                add_runs(number * CHUNK_BLOCKS, bits.value(), &mut runs);
            }
            Ok(())
        })?;
        if beyond || runs.last().is_some_and(|run| run.end() > device_blocks) {
            return Err(Error::corrupt("the bitmap extends beyond the device"));
        }
        Ok(runs)
    }
}

impl Base {
    /// Looks up the value of a key.
    pub fn get(&self, key: &Key) -> Result<Option<redb::AccessGuard<'_, &'static [u8]>>> {
        guard(|| {
            let found = self.items.get(&key.encode())?;
            // Validates the position within the page once, here, so that no later access can fail.
            let _ = found.as_ref().map(|value| value.value().len());
            Ok(found)
        })
    }

    /// Reads the items from one key to another, both included.
    pub fn range(&self, from: Key, to: Key) -> Result<BaseRange> {
        let open = || {
            let (from, to) = (from.encode(), to.encode());
            guard(|| Ok(self.items.range::<&[u8; KEY_BYTES]>(&from..=&to)?))
        };
        let range = (from <= to).then(open).transpose()?;
        Ok(BaseRange { range, from, to })
    }
}

impl BaseRange {
    /// Creates a range without items.
    pub fn empty() -> BaseRange {
        let none = Key::layer(0).0;
        BaseRange {
            range: None,
            from: none,
            to: none,
        }
    }

    /// Reads the next item from the front, or from the back with [`Direction::Backward`].
    pub fn next(&mut self, direction: Direction) -> Result<Option<BaseItem>> {
        let Some(range) = &mut self.range else {
            return Ok(None);
        };
        let next = guard(|| {
            let next = match direction {
                Direction::Forward => range.next(),
                Direction::Backward => range.next_back(),
            };
            let Some((key, value)) = next.transpose()? else {
                return Ok(None);
            };
            let _ = value.value().len();
            Ok(Some((Key::decode(key.value()), value)))
        })?;
        let Some((key, value)) = next else {
            return Ok(None);
        };
        if key < self.from || key > self.to {
            return Err(Error::corrupt(
                "the metadata is damaged: keys are out of order",
            ));
        }
        match (key.adjacent(direction), direction) {
            (Some(rest), Direction::Forward) => self.from = rest,
            (Some(rest), Direction::Backward) => self.to = rest,
            (None, _) => self.range = None,
        }
        Ok(Some((key, value)))
    }
}

fn add_runs(first: u64, bits: &[u8; CHUNK_BYTES], runs: &mut Vec<Run>) {
    for (i, byte) in bits.iter().enumerate().filter(|(_, byte)| **byte != 0) {
        for bit in (0..8).filter(|bit| byte >> bit & 1 == 1) {
            let start = first + i as u64 * 8 + bit;
            match runs.last_mut() {
                Some(run) if run.end() == start => run.blocks += 1,
                _ => runs.push(Run { start, blocks: 1 }),
            }
        }
    }
}

type Chunks = BTreeMap<u64, Box<[u8; CHUNK_BYTES]>>;

fn change_bits(
    change: SpaceChange,
    chunks: &mut Chunks,
    mut load: impl FnMut(u64) -> std::result::Result<[u8; CHUNK_BYTES], redb::Error>,
) -> std::result::Result<(), redb::Error> {
    let mut block = change.run.start;
    while block < change.run.end() {
        let number = block / CHUNK_BLOCKS;
        let bits = match chunks.entry(number) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(Box::new(load(number)?))
            }
        };
        let end = change.run.end().min((number + 1) * CHUNK_BLOCKS);
        for at in block % CHUNK_BLOCKS..block % CHUNK_BLOCKS + (end - block) {
            let mask = 1 << (at % 8);
            if change.used {
                bits[(at / 8) as usize] |= mask;
            } else {
                bits[(at / 8) as usize] &= !mask;
            }
        }
        block = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_under_guard_is_an_error_that_says_the_same() {
        let error = guard::<()>(|| panic!("page {}", 7)).unwrap_err();
        assert_eq!(error.kind(), crate::Kind::Corrupt);
        assert_eq!(error.to_string(), "the metadata is damaged: page 7");
        assert!(!GUARDED.get(), "whatever comes next is reported again");
    }
}
