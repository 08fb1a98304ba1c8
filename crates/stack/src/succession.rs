//! State that a service leaves to the process that continues it after a crash, and that it has from the
//! one before it.
//!
//! ```text
//!   format       the number of the format of everything below
//!   lock         the descriptor whose open file description has the lock of the DEVICE
//!   key          what opens the volume, in secret memory
//!   log          changes of the file system that are not on the disk
//!   requests     requests that were carried out
//!   open-files   files that the kernel has open
//!   cache        the memory of the cache, and the table of its dirty pages
//!   mount        the descriptor of the mount, and its record
//!   clones-N     those by which the threads of server N receive
//!   control      the socket for requests of other processes
//!   file-mount   the descriptor of a mount with a volume as a file, its record, and its table
//!   loop         a name of the loop device
//!   flush        whether a flush of a volume has failed
//!   nbd-...      what the NBD server leaves: see the crate export-nbd
//!   rx-...       the sockets and the calls of a port of a cell: see the crate rx
//!   afs-clients  the clients of a cell: see the crate afs-server
//! ```
//!
//! The keeper holds the descriptors. **Invariant:** everything that a successor needs is held before
//! the first request is served, and what belongs together is replaced at once.

use crate::control::Listener;
use crate::{Error, Result};
use block::{BlockDevice, StickyFlush};
use cache::{Cache, CachedDevice, Predecessor};
use export_file::loopdev::LoopDevice;
use export_nbd::Keep;
use fs::{Adoption, Files, Fs, Superblock};
use fuse_mount::{Held, Record};
use keeper::{Begin, Kept, Link};
use path_file::Holder;
use secret::SecretBytes;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use survival::{Log, Memory, OpenFiles, Pages, Requests};

/// Number of the format of what a server leaves. A program that reads or writes any of it in another
/// way than the last release has another number, so that `evfs restart` goes on with the program that
/// can read it. Tables have versions of their own, too.
const FORMAT: u32 = 1;

/// Begin of the names of the descriptors by which the threads of a server receive.
const CLONES: &str = "clones-";

/// Words of the log: 32 MiB, of which a commit of the file system is begun at half.
const LOG_WORDS: usize = 4 << 20;

/// See the module.
pub struct Succession {
    link: Link,
    kept: Mutex<Kept>,
    generation: u32,
    /// Whether the program of the last [`Succession::restart`] did not serve.
    refused: bool,
    /// The descriptor that has the lock of the DEVICE.
    lock: Option<Arc<OwnedFd>>,
    tables: OnceLock<Tables>,
    /// Names of the ports of a cell.
    ports: Mutex<Vec<String>>,
}

/// Tables of the file system.
struct Tables {
    log: Arc<Log>,
    requests: Arc<Requests>,
    open_files: Arc<OpenFiles>,
}

impl fmt::Debug for Succession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Succession")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

impl Succession {
    /// Creates it from what the keeper gives to a new server.
    ///
    /// # Errors
    /// The predecessor is another program, whose tables this one does not know.
    pub fn new(begin: Begin) -> Result<Arc<Succession>> {
        let Begin {
            link,
            mut kept,
            generation,
            refused,
        } = begin;
        if generation == 0 {
            let file = rustix::fs::memfd_create("evfs-format", rustix::fs::MemfdFlags::CLOEXEC);
            let file = file.map_err(|e| lost(e.into()))?;
            rustix::io::pwrite(&file, &FORMAT.to_le_bytes(), 0).map_err(|e| lost(e.into()))?;
            link.replace("format", &[file.as_fd()]).map_err(lost)?;
        } else {
            check_format(kept.take_one("format"))?;
        }
        let lock = kept.take_one("lock").map(Arc::new);
        Ok(Arc::new(Succession {
            link,
            kept: Mutex::new(kept),
            generation,
            refused,
            lock,
            tables: OnceLock::new(),
            ports: Mutex::default(),
        }))
    }

    /// Reports whether the program that was to take over last did not serve.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Lets the program that has the place of this one now take over.
    ///
    /// # Errors
    /// The keeper has died.
    pub(crate) fn restart(&self) -> Result<()> {
        self.link.restart().map_err(lost)
    }

    /// Returns the number of predecessors.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Reports whether this process continues another one.
    pub fn is_successor(&self) -> bool {
        self.generation > 0
    }

    /// Returns who has the lock of the DEVICE.
    pub(crate) fn lock_holder(&self) -> Holder {
        match &self.lock {
            Some(lock) => Holder::Predecessor(Arc::clone(lock)),
            None => Holder::Apart,
        }
    }

    /// Takes what a predecessor has left under a name.
    pub(crate) fn take(&self, name: &str) -> Vec<OwnedFd> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.take(name)
    }

    /// Takes the only descriptor of a name.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn take_one(&self, name: &str) -> Result<OwnedFd> {
        let mut all = self.take(name);
        let one = all.pop().filter(|_| all.is_empty());
        one.ok_or_else(|| Error::Failed(format!("the previous server left no {name}")))
    }

    /// Returns what opens the volume, if a predecessor has left it.
    ///
    /// # Errors
    /// It is not readable.
    pub(crate) fn key(&self) -> Result<Option<SecretBytes>> {
        let failed = |e| Error::Failed(format!("cannot read the key of the previous server: {e}"));
        let key = self.take("key").pop();
        key.map(|file| secret::handover::take(&file).map_err(failed))
            .transpose()
    }

    /// Leaves what opens the volume.
    ///
    /// # Errors
    /// As [`Succession::keep`]; the system has no memory for it.
    pub(crate) fn keep_key(&self, key: &SecretBytes) -> Result<()> {
        let file = secret::handover::give(key).map_err(lost)?;
        self.keep("key", &[file.as_fd()])
    }

    /// Leaves descriptors under a name, instead of those that are there.
    ///
    /// # Errors
    /// The keeper has died.
    pub(crate) fn keep(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        self.link.replace(name, descriptors).map_err(lost)
    }

    /// Leaves further descriptors under a name.
    ///
    /// # Errors
    /// The keeper has died.
    pub(crate) fn keep_more(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        self.link.add(name, descriptors).map_err(lost)
    }

    /// Lets the keeper close what it has under a name.
    ///
    /// # Errors
    /// The keeper has died.
    pub(crate) fn close(&self, name: &str) -> Result<()> {
        self.link.close(name).map_err(lost)
    }

    /// Announces that this process serves.
    ///
    /// # Errors
    /// The keeper has died.
    pub(crate) fn serving(&self) -> Result<()> {
        self.link.serving().map_err(lost)
    }
}

impl Succession {
    /// Creates the tables for the file system on a device, or takes those of the predecessor.
    ///
    /// # Errors
    /// There is no file system; no memory; a table of the predecessor is missing or damaged.
    pub(crate) fn of_file_system(&self, device: &dyn BlockDevice) -> Result<fs::Survival> {
        let none = || Error::NotFound(String::from("the device holds no EVFS file system"));
        let uuid = Superblock::on(device).ok_or_else(none)?.uuid;
        let made = if self.is_successor() {
            self.adopted(uuid)?
        } else {
            Tables::new(uuid)?
        };
        let tables = self.tables.get_or_init(|| made);
        Ok(fs::Survival {
            log: Arc::clone(&tables.log),
            requests: Some(Arc::clone(&tables.requests)),
            adopt: self.is_successor(),
        })
    }

    fn adopted(&self, uuid: [u8; 16]) -> Result<Tables> {
        let memory = |name| Memory::adopt(self.take_one(name)?).map_err(damaged);
        let log = Log::adopt(memory("log")?, uuid).map_err(damaged)?;
        let requests = Requests::adopt(memory("requests")?).map_err(damaged)?;
        let open_files = OpenFiles::adopt(self.take_one("open-files")?).map_err(damaged)?;
        Ok(Tables {
            log: Arc::new(log),
            requests: Arc::new(requests),
            open_files: Arc::new(open_files),
        })
    }

    /// Returns what a mount of the file system leaves to a successor.
    ///
    /// # Errors
    /// The file system was opened without the tables.
    pub(crate) fn of_mount(self: &Arc<Self>) -> Result<Arc<export_fuse::Survival>> {
        let tables = self.tables.get().ok_or_else(|| {
            Error::Usage(String::from(
                "--survive works only with EVFS's own file system; omit --survive",
            ))
        })?;
        let this = Arc::clone(self);
        Ok(Arc::new(export_fuse::Survival {
            open_files: Arc::clone(&tables.open_files),
            requests: Arc::clone(&tables.requests),
            generation: self.generation,
            hold: Box::new(move |session| this.hold(session).map_err(std::io::Error::other)),
        }))
    }

    /// Leaves everything that a successor needs, before the first request is served.
    fn hold(&self, session: &Held<'_>) -> Result<()> {
        let Some(tables) = self.tables.get() else {
            return Ok(());
        };
        self.hold_tables(tables)?;
        let record = session.record().map_err(lost)?;
        self.keep("mount", &[session.device, record.as_fd()])?;
        self.keep_more(&clones(self.generation), &session.clones)
    }

    /// Leaves the tables of the file system, unless a predecessor has.
    fn hold_tables(&self, tables: &Tables) -> Result<()> {
        if !self.is_successor() {
            self.keep("log", &[tables.log.file()])?;
            self.keep("requests", &[tables.requests.file()])?;
            self.keep("open-files", &[tables.open_files.file()])?;
        }
        Ok(())
    }

    /// Returns what a cell on the file system `fs` leaves to a successor.
    ///
    /// # Errors
    /// The file system was opened without the tables; the keeper has died.
    pub(crate) fn of_cell(
        self: &Arc<Self>,
        fs: &Arc<Fs>,
        cache: &Arc<Cache>,
    ) -> Result<afs_server::Survival> {
        let none = || {
            Error::Failed(String::from(
                "the file system has no tables for a successor",
            ))
        };
        let tables = self.tables.get().ok_or_else(none)?;
        self.hold_tables(tables)?;
        let (this, fs, cache) = (Arc::clone(self), Arc::clone(fs), Arc::clone(cache));
        let adopt = move |volumes: &afs_server::Volumes| {
            let all = volumes.all();
            let one = |before: &Predecessor, files: &Files| files.adopt(before).map(|a| a.pages);
            this.adopt_pages_by(&cache, |before| {
                let pages = all.iter().map(|volume| one(before, &volume.files));
                pages.sum::<fs::Result<u64>>().map_err(damaged)
            })
            .and_then(|()| fs.end_adoption().map_err(damaged))
            .map_err(io::Error::other)
        };
        Ok(afs_server::Survival {
            keep: Arc::clone(self) as Arc<dyn rx::Keep>,
            requests: Arc::clone(&tables.requests),
            done: tables.requests.done(),
            adopt: Box::new(adopt),
        })
    }

    /// Lets the keeper close the ports of a cell, which ends in order: others may use them at once.
    ///
    /// # Errors
    /// The keeper has died.
    pub(crate) fn close_ports(&self) -> Result<()> {
        let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        ports.drain(..).try_for_each(|name| self.close(&name))
    }

    /// Takes over the dirty pages of the predecessor, and leaves those of this process: from now on a
    /// successor finds all of them in its memory.
    ///
    /// # Errors
    /// The table of the predecessor is damaged; a page cannot be taken over.
    pub(crate) fn adopt_pages(&self, cache: &Cache, files: &Files) -> Result<()> {
        self.adopt_pages_by(cache, |before| {
            files
                .adopt(before)
                .map(|adopted| adopted.pages)
                .map_err(damaged)
        })
    }

    /// As [`Succession::adopt_pages`], for a volume.
    ///
    /// # Errors
    /// As [`Succession::adopt_pages`].
    pub(crate) fn adopt_device(&self, cache: &Cache, device: &CachedDevice) -> Result<()> {
        self.adopt_pages_by(cache, |before| device.adopt(before).map_err(damaged))
    }

    /// Takes over pages by `adopt`, which returns their number.
    fn adopt_pages_by(
        &self,
        cache: &Cache,
        adopt: impl FnOnce(&Predecessor) -> Result<u64>,
    ) -> Result<()> {
        if self.is_successor() {
            let mut kept = self.take("cache");
            let (Some(pages), Some(memory)) = (kept.pop(), kept.pop()) else {
                return Err(damaged("its cache is missing"));
            };
            let pages = Memory::adopt(pages).map_err(damaged)?;
            let pages = Pages::adopt(pages).map_err(damaged)?;
            let before = Predecessor::new(memory, &pages).map_err(damaged)?;
            let pages = adopt(&before)?;
            tracing::debug!("{pages} dirty pages of the previous server");
        }
        let (Some(memory), Some(pages)) = (cache.memory_fd(), cache.surviving()) else {
            return Err(Error::Usage(String::from(
                "--survive needs a cache in shared memory, which this system does not give; omit \
                 --survive",
            )));
        };
        self.keep("cache", &[memory, pages.file()])
    }

    /// Checks whether the file system has all changes of the predecessor.
    ///
    /// # Errors
    /// It has not: the mount ends, because no further successor can have them.
    pub(crate) fn check_adopted(&self, fs: &Fs) -> Result<()> {
        let is_complete = match fs.adoption() {
            Adoption::Adopted { .. } => true,
            // Without writers there are no changes.
            Adoption::None => fs.read_only_because().is_some(),
            Adoption::Refused(_) => false,
        };
        if is_complete || !self.is_successor() {
            return Ok(());
        }
        self.link.give_up().map_err(lost)?;
        Err(Error::Failed(String::from(
            "the mount cannot be continued: the changes of the previous server are not complete",
        )))
    }

    /// Returns the mount of the predecessor, whose file system was opened as `fs`.
    ///
    /// # Errors
    /// It left none, or what it left is damaged: the mount cannot be continued.
    pub(crate) fn mount(&self, fs: &Arc<Fs>) -> Result<export_fuse::Predecessor> {
        self.check_adopted(fs)?;
        let done = self.tables.get().map(|tables| tables.requests.done());
        let mut kept = self.take("mount");
        let (Some(record), Some(device)) = (kept.pop(), kept.pop()) else {
            return Err(Error::Failed(String::from(
                "the previous server left no mount",
            )));
        };
        Ok(export_fuse::Predecessor {
            device,
            session: Record::read(&record).map_err(damaged)?,
            fs: Arc::clone(fs),
            done: done.unwrap_or_default(),
        })
    }

    /// Announces that the mount is served, so that the keeper closes what only earlier servers used,
    /// also those that died while they started.
    ///
    /// # Errors
    /// The keeper has died.
    pub(crate) fn mounted(&self) -> Result<()> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut earlier = kept.names().filter(|name| name.starts_with(CLONES));
        earlier.try_for_each(|name| self.close(name))?;
        drop(earlier);
        drop(kept);
        self.serving()
    }
}

impl Succession {
    /// Listens for requests of other processes. They wait while no server runs.
    ///
    /// # Errors
    /// The name is taken; the keeper has died.
    pub(crate) fn listener(&self, run_dir: &Path, name: &str) -> Result<Listener> {
        let listener = match self.take("control").pop() {
            Some(socket) if self.is_successor() => Listener::continued(run_dir, name, socket)?,
            _ => Listener::bind(run_dir, name)?,
        };
        self.keep("control", &[listener.as_fd()])?;
        Ok(listener)
    }

    /// Notes that a mount cannot be continued by this server. If it was unmounted, no other one tries.
    ///
    /// # Errors
    /// The keeper has died.
    pub(crate) fn failed(&self, error: &fuse_mount::Error) -> Result<()> {
        if error.is_gone() {
            self.link.give_up().map_err(lost)?;
        }
        Ok(())
    }

    /// Mounts a volume as a file, or continues the mount of the predecessor.
    ///
    /// # Errors
    /// As [`export_file::Mount::start_held`] and [`export_file::Mount::resume`]; what the predecessor
    /// left is damaged.
    pub(crate) fn mount_file(
        &self,
        config: export_file::Config,
        export: export_file::Export,
    ) -> Result<export_file::Mount> {
        let clones = clones(self.generation);
        let mut hold = |mount: &export_file::HeldMount<'_>| {
            let record = mount.session.record()?;
            let all = [mount.session.device, record.as_fd(), mount.table];
            self.link.replace("file-mount", &all)?;
            self.link.add(&clones, &mount.session.clones)
        };
        let left = <[OwnedFd; 3]>::try_from(self.take("file-mount"));
        let Ok([device, record, table]) = left else {
            return Ok(export_file::Mount::start_held(
                config,
                vec![export],
                &mut hold,
            )?);
        };
        let before = export_file::Predecessor::new(device, &record, table).map_err(damaged)?;
        Ok(export_file::Mount::resume(
            config,
            vec![export],
            before,
            &mut hold,
        )?)
    }

    /// Reports whether the predecessor has left a mount.
    pub(crate) fn has_mount(&self) -> bool {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.has("file-mount")
    }

    /// Creates a loop device, or continues that of the predecessor. The mount is served.
    ///
    /// # Errors
    /// As [`LoopDevice::attach`]; the keeper has died.
    pub(crate) fn loop_device(
        &self,
        mount: &export_file::Mount,
        name: &str,
        (block, read_only): (u32, bool),
    ) -> Result<LoopDevice> {
        let device = if self.is_successor() {
            mount.adopt_loop(name, self.take("loop").pop(), (block, read_only))?
        } else {
            LoopDevice::attach(&mount.path_of(name), block, read_only)?
        };
        self.keep("loop", &[device.descriptor()?.as_fd()])?;
        Ok(device)
    }

    /// Lets a failed flush stay final for successors.
    ///
    /// # Errors
    /// The keeper has died; what the predecessor left is missing or damaged.
    pub(crate) fn keep_failure(&self, device: &StickyFlush) -> Result<()> {
        let memory = if self.is_successor() {
            Memory::adopt(self.take_one("flush")?).map_err(damaged)?
        } else {
            Memory::create("evfs-flush", 1).map_err(lost)?
        };
        self.keep("flush", &[memory.file()])?;
        if self.is_successor() {
            device.continue_after(memory.words()[0].load(Acquire) != 0);
        }
        device.note_failure(move || memory.words()[0].store(1, Release));
        Ok(())
    }
}

impl Keep for Succession {
    fn keep(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.link.replace(name, descriptors)
    }

    fn close(&self, name: &str) -> io::Result<()> {
        self.link.close(name)
    }

    fn take(&self, name: &str) -> Vec<OwnedFd> {
        Succession::take(self, name)
    }

    fn is_successor(&self) -> bool {
        Succession::is_successor(self)
    }
}

impl rx::Keep for Succession {
    fn take(&self, name: &str) -> Vec<OwnedFd> {
        Succession::take(self, name)
    }

    fn keep(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        ports.push(name.to_owned());
        self.link.replace(name, descriptors)
    }
}

impl Tables {
    fn new(uuid: [u8; 16]) -> Result<Tables> {
        let failed = |e: &dyn fmt::Display| {
            Error::Failed(format!("cannot create the memory for a successor: {e}"))
        };
        Ok(Tables {
            log: Arc::new(Log::create(LOG_WORDS, uuid).map_err(|e| failed(&e))?),
            requests: Arc::new(Requests::create().map_err(|e| failed(&e))?),
            open_files: Arc::new(OpenFiles::create().map_err(|e| failed(&e))?),
        })
    }
}

/// Checks that this program knows the tables of the predecessor.
fn check_format(file: Option<OwnedFd>) -> Result<()> {
    let mut number = [0; 4];
    let read = file.map(|file| rustix::io::pread(&file, &mut number, 0));
    let found = u32::from_le_bytes(number);
    match read {
        Some(Ok(4)) if found == FORMAT => Ok(()),
        Some(Ok(4)) => Err(Error::Failed(format!(
            "this program cannot continue the running server: its tables have format {found}, and \
             this program knows format {FORMAT}; detach, and start the service again"
        ))),
        _ => Err(damaged("its format is missing")),
    }
}

/// Returns the name of the descriptors by which the threads of a server receive.
fn clones(generation: u32) -> String {
    format!("{CLONES}{generation}")
}

fn damaged(error: impl fmt::Display) -> Error {
    Error::Failed(format!(
        "the mount cannot be continued: what the previous server left is damaged: {error}"
    ))
}

fn lost(error: std::io::Error) -> Error {
    Error::Failed(format!(
        "cannot leave a descriptor to the process that would start this server again: {error}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_format_is_refused() {
        let left = |bytes: &[u8]| {
            let file = tempfile::tempfile().unwrap();
            rustix::io::pwrite(&file, bytes, 0).unwrap();
            check_format(Some(file.into()))
        };
        assert!(left(&FORMAT.to_le_bytes()).is_ok());
        let other = left(&(FORMAT + 1).to_le_bytes()).unwrap_err();
        assert!(
            other.chain().contains("start the service again"),
            "{}",
            other.chain()
        );
        assert!(left(&[1]).is_err() && check_format(None).is_err());
    }
}
