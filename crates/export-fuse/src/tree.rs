//! The files of a fileset as served to the kernel.

pub(crate) mod caller;
mod content;
mod convert;
mod copies;
mod handles;
mod invalidation;
mod ioctl;
mod ops;
mod privileges;
mod removed;
mod repeated;
mod snapshots;
mod syncs;
mod xattrs;

pub(crate) use invalidation::InvalidationQueue;

use crate::config::{DEFAULT_SYNC_TIMEOUT, MountConfig};
use crate::survival::Survival;
use block::Waker;
use foldhash::HashMap;
use fs::{Atime, Change, Files, Fs, Kind, Lane, Snapshots, Watch, Watcher};
use fuse_mount::{Errno, PIECE_BYTES, Reply, never_wait_for_write_back};
use handles::Handles;
use layer_cpu::{Layer, home};
use privileges::Capabilities;
use removed::RemovedDirectories;
use repeated::Succession;
use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use syncs::Syncs;

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The lanes of this thread, by the id of their tree.
    static LANES: RefCell<HashMap<u64, OwnLane>> = RefCell::default();
}

/// State of a thread for one mount.
struct OwnLane {
    lane: Lane,
    /// Buffer for data sent to the kernel.
    buf: Vec<u8>,
}

/// The mounted file system.
pub(crate) struct Tree {
    id: u64,
    files: Arc<Files>,
    handles: Handles,
    capabilities: Capabilities,
    removed: RemovedDirectories,
    /// The snapshots to show; `None` for none.
    snapshots: Option<Arc<Snapshots>>,
    /// Open files of snapshots.
    snapshot_handles: Handles,
    ttl: Duration,
    /// Whether the kernel delays writes and sets the times of delayed writes itself.
    exclusive: bool,
    /// Flags that are not used.
    without: u64,
    /// Whether each read updates the access time.
    strict_atime: bool,
    /// Whether the kernel reads files past its page cache.
    uncached: bool,
    /// Whether the kernel opens directories without a request, and caches their entries.
    no_opendir: bool,
    syncs: Syncs,
    /// `None` if a death of this server ends the mount.
    succession: Option<Succession>,
    recall: Arc<InvalidationQueue>,
    _watch: Watch,
    /// Eventfd signaled when the last request is done.
    ended: Arc<Waker>,
}

impl Tree {
    /// Registers as a separate client of the files, whose watcher `recall` receives the changes of
    /// others. Wakes `ended` when the last request is done.
    pub(crate) fn new(
        files: &Arc<Files>,
        config: &MountConfig,
        recall: Arc<InvalidationQueue>,
        ended: Arc<Waker>,
    ) -> Tree {
        let files = files.client_with(config.atime);
        if let Some(snapshots) = &config.snapshots {
            let recall = Arc::clone(&recall);
            // The kernel caches the entries of a directory as its pages.
            let names = Change::Content(snapshots::LIST, 0..u64::MAX);
            snapshots.on_change(move || recall.changed(&names));
        }
        Tree {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            _watch: files.watch(Arc::clone(&recall) as Arc<dyn Watcher>),
            recall,
            files,
            handles: Handles::default(),
            capabilities: Capabilities::default(),
            removed: RemovedDirectories::default(),
            snapshots: config.snapshots.clone(),
            snapshot_handles: Handles::default(),
            ttl: config.ttl,
            exclusive: config.exclusive,
            without: config.without,
            strict_atime: config.atime == Atime::Strict,
            uncached: false,
            no_opendir: false,
            syncs: Syncs::new(config.sync_timeout.unwrap_or(DEFAULT_SYNC_TIMEOUT)),
            succession: None,
            ended,
        }
    }

    /// Lets a successor continue what this tree serves, and continues what a predecessor has served:
    /// opens its files again, and keeps directories that were removed and may be in use.
    ///
    /// # Errors
    /// The memory of the predecessor is damaged; the metadata could not be read.
    pub(crate) fn surviving(
        mut self,
        survival: &Arc<Survival>,
        done: HashSet<u64>,
        fs: Option<&Fs>,
    ) -> Result<Tree, fuse_mount::Error> {
        let failed = |e| fuse_mount::Error::io("cannot continue the mount", e);
        let open = |ino| self.files.open(ino);
        let handles = Handles::surviving(&survival.open_files, survival.generation, open);
        self.handles = handles.map_err(std::io::Error::other).map_err(failed)?;
        self.snapshot_handles = Handles::of_generation(survival.generation);
        if survival.generation > 0 {
            let kept = self.keep_removed_directories();
            let kept = kept.and_then(|()| fs.map_or(Ok(()), Fs::end_adoption));
            kept.map_err(std::io::Error::other).map_err(failed)?;
        }
        self.succession = Some(Succession {
            survival: Arc::clone(survival),
            done,
        });
        Ok(self)
    }

    /// Calls `work` with this thread's lane and buffer.
    fn with_lane<T>(
        &self,
        work: impl FnOnce(&mut Lane, &mut Vec<u8>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        LANES.with_borrow_mut(|lanes| {
            let own = match lanes.entry(self.id) {
                std::collections::hash_map::Entry::Occupied(own) => own.into_mut(),
                std::collections::hash_map::Entry::Vacant(place) => {
                    place.insert(OwnLane::open(&self.files).map_err(errno)?)
                }
            };
            work(&mut own.lane, &mut own.buf)
        })
    }
}

impl OwnLane {
    fn open(files: &Arc<Files>) -> fs::Result<OwnLane> {
        home(Layer::Protocol);
        never_wait_for_write_back();
        Ok(OwnLane {
            lane: files.lane()?,
            buf: vec![0; PIECE_BYTES],
        })
    }
}

/// Converts an error to its errno; logs it if the cause is the disk.
fn errno(error: fs::Error) -> Errno {
    if matches!(error.kind(), Kind::Io | Kind::Corrupt) {
        tracing::warn!(name: "EVFS-0601", "{error}");
    }
    Errno::from_raw_os_error(error.errno())
}

/// Treats a directory that another client has removed as empty: it may be open here, which the
/// kernel does not say.
fn or_removed(listed: fs::Result<()>) -> fs::Result<()> {
    listed.or_else(|error| match error.kind() {
        Kind::Stale => Ok(()),
        _ => Err(error),
    })
}

/// Replies with a value to a caller with a buffer of `size` bytes, or with its length for size 0.
pub(crate) fn give(reply: Reply<'_>, value: &[u8], size: u32) {
    match size as usize {
        0 => reply.xattr_size(value.len() as u32),
        size if size < value.len() => reply.error(Errno::RANGE),
        _ => reply.data(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::BlockDevice;
    use block_testing::{Mem, PowerCut, Tear};
    use cache::{Cache, Config};
    use fs::{FIRST_FILESET, FileType, New, Options, ROOT, WritePosition};
    use fuse_mount::Serve;
    use fuse_mount::fuse_proto::{Header, Operation, Request};
    use std::io::Read;

    /// Sends a request without a mount; returns the error number of the reply.
    fn ask(tree: &Tree, operation: Operation<'_>) -> i32 {
        let (mut from, to) = std::io::pipe().unwrap();
        let header = Header {
            node: ROOT,
            ..Header::default()
        };
        let request = Request { header, operation };
        tree.serve(&request, Reply::over(to.into(), 7));
        let mut reply = Vec::new();
        from.read_to_end(&mut reply).unwrap();
        assert_eq!(reply[8..16], 7u64.to_ne_bytes());
        i32::from_ne_bytes(reply[4..8].try_into().unwrap())
    }

    /// Sent to a mount of the type fuseblk, for FIBMAP and swapon(2).
    #[test]
    fn a_request_for_a_block_of_the_device_is_answered() {
        let disk: Arc<dyn BlockDevice> = Arc::new(Mem::new(64 << 20, 4096));
        Fs::format(Arc::clone(&disk), "").unwrap();
        let fs = Fs::open(disk, Options::default()).unwrap();
        let main = fs.fileset_named(FIRST_FILESET).unwrap();
        let cache = Cache::new(Config::new(8 << 20)).unwrap();
        let files = Files::new(&main, &cache).unwrap();
        let config = MountConfig::new("/".into());
        let ended = Arc::new(Waker::new().unwrap());
        let tree = Tree::new(&files, &config, Arc::default(), ended);
        let request = Operation::BMap {
            block: 0,
            block_bytes: 4096,
        };
        assert_eq!(ask(&tree, request), -libc::ENOSYS);
    }

    #[test]
    fn the_kernels_request_to_sync_all_makes_everything_durable() {
        let disk = Mem::new(64 << 20, 4096);
        let cut = Arc::new(PowerCut::new(&disk));
        let device: Arc<dyn BlockDevice> = Arc::clone(&cut) as _;
        Fs::format(Arc::clone(&device), "").unwrap();
        let fs = Fs::open(device, Options::default()).unwrap();
        let main = fs.fileset_named(FIRST_FILESET).unwrap();
        let cache = Cache::new(Config::new(8 << 20)).unwrap();
        let files = Files::new(&main, &cache).unwrap();
        let config = MountConfig::new("/".into());
        let ended = Arc::new(Waker::new().unwrap());
        let tree = Tree::new(&files, &config, Arc::default(), ended);

        let new = New::of_root(FileType::File, 0o644);
        let ino = files.create(ROOT, b"file", &new).unwrap().ino;
        let handle = files.open(ino).unwrap();
        let mut lane = files.lane().unwrap();
        let data = vec![9; 100_000];
        lane.write(&handle, WritePosition::End, &data).unwrap();
        assert_eq!(ask(&tree, Operation::SyncFs), 0);

        let image = cut.crash(cut.events(), Tear::Drop);
        let fs = Fs::open(Arc::new(image), Options::default()).unwrap();
        let main = fs.fileset_named(FIRST_FILESET).unwrap();
        let files = Files::new(&main, &cache).unwrap();
        let ino = files.lookup(ROOT, b"file").unwrap().ino;
        let handle = files.open(ino).unwrap();
        let mut read = vec![0; 100_001];
        let len = files.lane().unwrap().read(&handle, 0, &mut read).unwrap();
        assert!(read[..len] == data);
    }
}
