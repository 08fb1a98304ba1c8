//! A device that one machine of a cluster owns: what has to happen between its opening and its use.
//!
//! ```text
//!   paths ── must_fence? ── evict on each ── fenced ── epoch? ── record ── evict ── stored ── in use
//! ```
//!
//! **Invariant:** no earlier owner reaches the device once it is in use. An earlier owner that
//! connects again (it may not know that it is one) is evicted the second time, or it connects after
//! that, and then reads the record of the new owner before its first request ([`OwnedPath`]).

use crate::{Error, Result};
use block::{Buf, ErrorKind, Op, Request, Wait};
use lunpath::{Access, Connection, Identity, Lunpath, Transport};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The claim of this process on the device that it serves. Each step waits until the cluster wants
/// it; an error means that the claim is over.
pub trait Ownership: Send + Sync {
    /// Reports whether earlier owners have to be fenced, also after they were.
    ///
    /// # Errors
    /// The claim is over.
    fn must_fence(&self) -> Result<bool>;

    /// Takes the result of the fence; a later one counts only if it failed.
    fn fenced(&self, result: &Result<()>);

    /// The epoch of the claim, once it is to be stored.
    ///
    /// # Errors
    /// The claim is over.
    fn epoch(&self) -> Result<u64>;

    /// Takes the note that the storage has a newer epoch.
    fn newer(&self, epoch: u64);

    /// Takes the note that the storage has the epoch, and waits until the content may be used.
    ///
    /// # Errors
    /// The claim is over.
    fn stored(&self) -> Result<()>;

    /// Returns what this process knows of the claim, once it has an epoch.
    fn held(&self) -> Option<Held>;
}

/// A claim with an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Each owner of the device has a higher one than the owner before it.
    pub epoch: u64,
    /// Time after which the kernel ends this process, unless the lease of its machine is renewed.
    pub left: Duration,
}

/// Fences earlier owners on every path, if that is necessary. Without paths, the device is a file or
/// a disk. Waits at most `within`.
///
/// # Errors
/// A path is not proven to be fenced; the claim is over.
pub(crate) fn fence(
    ownership: &dyn Ownership,
    paths: &[Arc<dyn Lunpath>],
    name: &str,
    within: Duration,
) -> Result<()> {
    if !ownership.must_fence()? {
        return Ok(());
    }
    let result = evict(paths, name, within);
    ownership.fenced(&result);
    result
}

/// Lets the storage refuse the requests of all others, on each path.
///
/// # Errors
/// A path cannot, or there is none.
pub(crate) fn evict(paths: &[Arc<dyn Lunpath>], name: &str, within: Duration) -> Result<()> {
    if paths.is_empty() {
        let why = "a file or a disk of this machine cannot refuse requests of other machines; use \
                   iscsi:// or rbd: for units of a cluster";
        return Err(block::Error::new(ErrorKind::Unsupported, name, why).into());
    }
    let results: Vec<block::Result<()>> = std::thread::scope(|scope| {
        let evict = |path: &'_ Arc<dyn Lunpath>| {
            let path = Arc::clone(path);
            scope.spawn(move || path.evict(within))
        };
        let threads: Vec<_> = paths.iter().map(evict).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, block::Result<()>>| {
            let lost = || block::Error::new(ErrorKind::Io, name, "a thread ended unexpectedly");
            thread.join().unwrap_or_else(|_| Err(lost()))
        };
        threads.into_iter().map(join).collect()
    });
    results
        .into_iter()
        .try_for_each(|result| Ok::<(), Error>(result?))
}

/// Tests whether the bytes of a record are those of this process.
type IsOwn = Box<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// The place of an in-use record of this process, and the test whether a record is still that.
pub(crate) struct OwnRecord {
    /// Offset in bytes.
    pub(crate) at: u64,
    /// Length in bytes.
    pub(crate) len: usize,
    /// Tests the bytes of the record.
    pub(crate) is_own: IsOwn,
}

/// A path of a device that has one owner. Once there is an own record, each new connection reads it
/// before it is used.
pub(crate) struct OwnedPath {
    path: Arc<dyn Lunpath>,
    record: Arc<OnceLock<OwnRecord>>,
}

impl OwnedPath {
    pub(crate) fn new(path: Arc<dyn Lunpath>, record: &Arc<OnceLock<OwnRecord>>) -> OwnedPath {
        let record = Arc::clone(record);
        OwnedPath { path, record }
    }

    /// Fails if another owner has replaced the record.
    fn verify(&self, record: &OwnRecord, within: Duration) -> block::Result<()> {
        let until = Instant::now() + within;
        let mut queue = self.path.connect(within)?.open()?;
        let failed = |kind, why: &str| block::Error::new(kind, self.name(), why);
        let bufs = Buf::zeroed(record.len).into();
        let op = Op::Read {
            offset: record.at,
            bufs,
        };
        let full = || failed(ErrorKind::Io, "a new connection takes no request");
        queue.submit(Request { tag: 0, op }).map_err(|_| full())?;
        queue.kick()?;
        let mut done = Vec::new();
        while done.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = "the in-use record cannot be read in time";
                return Err(failed(ErrorKind::PathLost, why));
            }
            queue.reap(Wait::AtMost(left), &mut done)?;
        }
        for completion in done {
            completion.result?;
            if let Op::Read { bufs, .. } = completion.op
                && !bufs.into_first().is_some_and(|buf| (record.is_own)(&buf))
            {
                let why = "another machine has taken the device over";
                return Err(failed(ErrorKind::Permission, why));
            }
        }
        Ok(())
    }
}

impl Lunpath for OwnedPath {
    fn name(&self) -> &str {
        self.path.name()
    }

    fn transport(&self) -> Transport {
        self.path.transport()
    }

    fn target_port(&self) -> String {
        self.path.target_port()
    }

    fn identify(&self, within: Duration) -> block::Result<Identity> {
        self.path.identify(within)
    }

    /// The connection is made before the record is read: if the record is own, the new owner, if
    /// there is one, has yet to evict this connection.
    fn connect(&self, within: Duration) -> block::Result<Box<dyn Connection>> {
        let connection = self.path.connect(within)?;
        if let Some(record) = self.record.get() {
            self.verify(record, within)?;
        }
        Ok(connection)
    }

    fn access(&self, within: Duration) -> block::Result<Option<Access>> {
        self.path.access(within)
    }

    fn fence(&self, key: u64, within: Duration) -> block::Result<()> {
        self.path.fence(key, within)
    }

    fn evict(&self, within: Duration) -> block::Result<()> {
        self.path.evict(within)
    }

    fn is_exclusive(&self) -> bool {
        self.path.is_exclusive()
    }

    fn stalled(&self, within: Duration) -> Option<String> {
        self.path.stalled(within)
    }

    fn close(&self, within: Duration) {
        self.path.close(within);
    }
}
