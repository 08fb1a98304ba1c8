//! Files that the kernel has open, by file handle number.

use foldhash::HashMap;
use fs::{Handle, Ino};
use fuse_mount::Errno;
use slab::Slab;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock, Weak};
use survival::{OPEN_FILES_MAX, OpenFile as Survivor, OpenFiles};

/// An open file of the kernel.
pub(super) struct Open {
    pub handle: Handle,
    /// Properties at the time of the opening.
    pub how: How,
    /// Shared by all open handles of the file.
    file: Arc<OpenFile>,
    /// Number of the handle.
    number: u64,
}

/// Properties of an open file from its opening.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct How {
    /// Whether it can write.
    pub writes: bool,
    /// Whether each change is made durable (`O_SYNC`, `O_DSYNC`).
    pub syncs: bool,
    /// Whether the file had capabilities.
    pub had_capabilities: bool,
    /// Whether the kernel reads and writes past its page cache.
    pub uncached: bool,
}

/// State of a file with open handles.
#[derive(Default)]
struct OpenFile {
    /// See [`Open::note_pages`].
    paged: AtomicBool,
    /// Number of handles that can write.
    writers: AtomicUsize,
}

impl Open {
    /// Records that the kernel may have cached pages of the file.
    pub fn note_pages(&self) {
        if !self.file.paged.load(Ordering::SeqCst) {
            self.file.paged.store(true, Ordering::SeqCst);
        }
    }

    /// Reports whether the kernel may have cached pages of the file since it was first opened.
    pub fn has_pages(&self) -> bool {
        self.file.paged.load(Ordering::SeqCst)
    }
}

/// Reports whether a file is opened so that each change is made durable.
pub(super) fn syncs(flags: u32) -> bool {
    flags as i32 & (libc::O_SYNC | libc::O_DSYNC) != 0
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.how.writes {
            self.file.writers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Table of open files.
#[derive(Default)]
pub(super) struct Handles {
    inner: RwLock<Inner>,
    /// Copy of the table for a successor.
    survivor: Option<Arc<OpenFiles>>,
    /// Numbers of a server that may have a successor; `None`: they are the places in the table.
    numbers: Option<Numbers>,
}

/// Numbers that none of the next 16 million files has: the kernel may ask twice to close a file, and
/// the second time must not close another one.
struct Numbers {
    generation: u32,
    next: AtomicU64,
}

impl Numbers {
    /// Returns the number of a new file at a place in the table.
    fn of(&self, place: usize) -> u64 {
        let next = self.next.fetch_add(1, Ordering::Relaxed) & COUNT_MASK;
        u64::from(self.generation) << GENERATION_SHIFT | next << PLACE_BITS | place as u64
    }
}

/// Bits of a number for the place in the table; above them are those of a count and the generation.
const PLACE_BITS: u32 = OPEN_FILES_MAX.ilog2();
const GENERATION_SHIFT: u32 = 44;
const COUNT_MASK: u64 = (1 << (GENERATION_SHIFT - PLACE_BITS)) - 1;

/// Flags of an open file in the table for a successor.
const WRITES: u32 = 1;
const SYNCS: u32 = 2;
const UNCACHED: u32 = 4;

#[derive(Default)]
struct Inner {
    open: Slab<Arc<Open>>,
    files: HashMap<Ino, Weak<OpenFile>>,
}

/// Returns the place in the table of a number of [`Numbers`].
fn place_of(number: u64) -> usize {
    (number % OPEN_FILES_MAX as u64) as usize
}

impl Inner {
    /// Counts an open file among those of its inode.
    fn opened(&mut self, handle: Handle, how: How, number: u64) -> Open {
        let known = self.files.get(&handle.ino()).and_then(Weak::upgrade);
        let file = known.unwrap_or_default();
        self.files.insert(handle.ino(), Arc::downgrade(&file));
        if how.writes {
            file.writers.fetch_add(1, Ordering::SeqCst);
        }
        Open {
            handle,
            how,
            file,
            number,
        }
    }
}

impl Handles {
    /// Creates an empty table of a server that may have a successor.
    pub fn of_generation(generation: u32) -> Handles {
        let next = AtomicU64::new(0);
        Handles {
            numbers: Some(Numbers { generation, next }),
            ..Handles::default()
        }
    }

    /// Creates a table that keeps a copy of itself for a successor, and opens by `open` what is listed
    /// there. Files that no longer exist are left out: each use of them fails.
    ///
    /// # Errors
    /// The copy is damaged.
    pub fn surviving(
        survivor: &Arc<OpenFiles>,
        generation: u32,
        open: impl Fn(Ino) -> fs::Result<Handle>,
    ) -> Result<Handles, survival::Damaged> {
        let mut inner = Inner::default();
        let mut listed = Vec::new();
        for file in survivor.entries()? {
            let how = How {
                writes: file.flags & WRITES != 0,
                syncs: file.flags & SYNCS != 0,
                // They may have been given since.
                had_capabilities: file.flags & WRITES != 0,
                uncached: file.flags & UNCACHED != 0,
            };
            match open(file.inode) {
                Ok(handle) => {
                    let open = inner.opened(handle, how, file.handle);
                    open.note_pages();
                    listed.push((place_of(file.handle), Arc::new(open)));
                }
                Err(error) => {
                    survivor.clear(file.handle);
                    let inode = file.inode;
                    tracing::warn!(name: "EVFS-0601", "cannot open inode {inode} again: {error}");
                }
            }
        }
        inner.open = listed.into_iter().collect();
        Ok(Handles {
            inner: RwLock::new(inner),
            survivor: Some(Arc::clone(survivor)),
            ..Handles::of_generation(generation)
        })
    }

    /// Adds an open file; returns its number.
    ///
    /// # Errors
    /// `ENFILE`: the table for a successor has no room.
    pub fn insert(&self, handle: Handle, how: How) -> Result<u64, Errno> {
        let ino = handle.ino();
        let mut inner = self.inner.write().expect("no panic under this lock");
        let place = inner.open.vacant_key();
        if self.numbers.is_some() && place >= OPEN_FILES_MAX {
            return Err(Errno::NFILE);
        }
        let numbers = self.numbers.as_ref();
        let number = numbers.map_or(place as u64, |numbers| numbers.of(place));
        let open = inner.opened(handle, how, number);
        inner.open.insert(Arc::new(open));
        drop(inner);
        if let Some(survivor) = &self.survivor {
            let flags = [
                (how.writes, WRITES),
                (how.syncs, SYNCS),
                (how.uncached, UNCACHED),
            ];
            let flags = flags.iter().filter(|(is_set, _)| *is_set);
            survivor.set(Survivor {
                handle: number,
                inode: ino,
                flags: flags.map(|(_, flag)| flag).sum(),
            });
        }
        Ok(number)
    }

    /// Reports whether the kernel may hold back changes of a file: only while it is open for writing,
    /// or mapped by a process that had it open for writing.
    pub fn has_writers(&self, ino: Ino) -> bool {
        let inner = self.inner.read().expect("no panic under this lock");
        let file = inner.files.get(&ino).and_then(Weak::upgrade);
        file.is_some_and(|file| file.writers.load(Ordering::SeqCst) > 0)
    }

    /// Looks up the open file with this number.
    pub fn get(&self, number: u64) -> Option<Arc<Open>> {
        let place = self.place(number);
        let inner = self.inner.read().expect("no panic under this lock");
        let open = inner.open.get(place);
        open.filter(|open| open.number == number).cloned()
    }

    fn place(&self, number: u64) -> usize {
        match self.numbers {
            Some(_) => place_of(number),
            None => number as usize,
        }
    }

    /// Closes the file with this number.
    pub fn remove(&self, number: u64) {
        let place = self.place(number);
        let mut inner = self.inner.write().expect("no panic under this lock");
        let is_open = |open: &Arc<Open>| open.number == number;
        if !inner.open.get(place).is_some_and(is_open) {
            return;
        }
        if let Some(survivor) = &self.survivor {
            survivor.clear(number);
        }
        let open = inner.open.try_remove(place);
        if let Some(open) = &open
            && Arc::strong_count(&open.file) == 1
        {
            inner.files.remove(&open.handle.ino());
        }
        drop(inner);
        // May delete the file, which takes a while; the lock is already released.
        drop(open);
    }
}
