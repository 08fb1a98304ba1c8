//! A device that one machine of a cluster owns: what has to happen between its opening and its use.
//!
//! ```text
//!   paths ── must_fence? ── evict on each ── fenced ── epoch? ── record ── stored ── may be used
//! ```

use crate::{Error, Result};
use block::ErrorKind;
use lunpath::Lunpath;
use std::sync::Arc;
use std::time::Duration;

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

    /// Returns the epoch of the claim, once it is to be stored.
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

fn evict(paths: &[Arc<dyn Lunpath>], name: &str, within: Duration) -> Result<()> {
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
