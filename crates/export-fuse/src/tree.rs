//! A fileset as the kernel sees it: a mounted file system.
//!
//! ```text
//!   application ── kernel ── /dev/fuse ──► thread 1..n, each with its lane ──► cache ──► device
//! ```
//!
//! The kernel decides who may do what (`default_permissions`, with access lists), keeps names,
//! attributes and pages, and asks again when its own requests have changed them. **Invariant:** what
//! another client of the files changes, another mount or a server, the kernel is told to forget (see
//! `recall`); and no request waits while it holds a lock that another one needs, but for that of its
//! file.
//!
//! What a program opens with O_DIRECT goes past the kernel's pages and past our cache; both write out
//! first what is dirty in the range, and forget it where it changes.
//!
//! A write is in our cache when write(2) returns, so that other front ends see it, unless the mount is
//! the only client and was told so. What is appended comes in several requests where it goes over pages;
//! other clients append before it or after.
//!
//! Absent on purpose: locks, which the kernel keeps for one mount; and FUSE_PASSTHROUGH, which would have
//! the kernel read the very pages of our cache. A mapping that is made so outlives the opening, so nobody
//! could tell when its pages may go; a program that opens the file to write could not map it; and a
//! read of pages that the kernel has of its own costs the same.

mod caller;
mod convert;
mod gone;
mod handles;
mod ops;
mod privileges;
mod recall;
mod xattrs;

pub(crate) use recall::Recall;

use crate::mount::{PIECE_BYTES, TreeConfig};
use block::layer::{Layer, home};
use fs::{Files, Lane, Watch, Watcher};
use fuser::Errno;
use gone::Gone;
use handles::Handles;
use privileges::Capabilities;
use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// `PR_SET_IO_FLUSHER` of <linux/prctl.h> (Linux 5.6).
const PR_SET_IO_FLUSHER: i32 = 57;

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The lanes of this thread, by the number of their tree.
    static LANES: RefCell<HashMap<u64, OwnLane>> = RefCell::new(HashMap::new());
}

/// What a thread of the mount works with.
struct OwnLane {
    lane: Lane,
    /// Bytes on their way to the kernel.
    buf: Vec<u8>,
}

/// The file system.
pub(crate) struct Tree {
    id: u64,
    files: Arc<Files>,
    handles: Handles,
    capabilities: Capabilities,
    gone: Gone,
    ttl: Duration,
    /// The kernel holds back what is written, and says the times of that.
    exclusive: bool,
    recall: Arc<Recall>,
    _watch: Watch,
    /// Told when the last request is done.
    ended: Arc<OwnedFd>,
}

impl Tree {
    /// The files as a client of its own, who has `recall` told of what others change. `ended` is
    /// written to when the last request is done.
    pub(crate) fn new(
        files: &Arc<Files>,
        config: &TreeConfig,
        recall: Arc<Recall>,
        ended: Arc<OwnedFd>,
    ) -> Tree {
        let files = files.client_with(config.atime);
        Tree {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            _watch: files.watch(Arc::clone(&recall) as Arc<dyn Watcher>),
            recall,
            files,
            handles: Handles::default(),
            capabilities: Capabilities::default(),
            gone: Gone::default(),
            ttl: config.ttl,
            exclusive: config.exclusive,
            ended,
        }
    }

    /// Does something with this thread's lane.
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
        // This thread takes dirty pages from the kernel; memory that it needs for that must not wait
        // for dirty pages to be written. Only root may ask for it.
        // SAFETY: prctl with these arguments only sets a flag of this thread.
        unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
        Ok(OwnLane {
            lane: files.lane()?,
            buf: vec![0; PIECE_BYTES],
        })
    }
}

/// The errno of an error; those that are nobody's fault but the disk's are logged.
fn errno(error: fs::Error) -> Errno {
    if matches!(error.kind(), fs::Kind::Io | fs::Kind::Corrupt) {
        tracing::warn!("{error}");
    }
    Errno::from_i32(error.errno())
}
