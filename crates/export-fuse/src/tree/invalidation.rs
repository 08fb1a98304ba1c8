//! Invalidates the kernel's cached data when other clients change files.
//!
//! ```text
//!   another client's thread ── changed ──► Pending ──► one thread ── write(2) ──► the kernel
//! ```
//!
//! **Invariant:** the thread that notifies the kernel holds no lock, and is none of those that
//! receive requests, unless it invalidates only attributes. During an invalidation the kernel may
//! wait for this mount: it writes back pages dirtied by stores to a mapping, and waits for
//! directories and pages that are in use by requests of its own.
//!
//! The same thread ends requests for which the kernel first has to write back pages: those threads
//! that serve requests are then free for the writes.
//!
//! Changes pending for the same object are merged into one notification. While more than
//! [`PENDING_MAX`] changes are pending, each further change delays its client by [`HELD_UP`], and
//! never longer, because the kernel may be waiting for that very client.
use fs::{Change, Ino, Watcher};
use fuse_mount::{Notifier, Reply};
use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// Number of changes that may be pending before clients are delayed.
const PENDING_MAX: usize = 16_384;

/// Delay per change of a client that is too far ahead.
const HELD_UP: Duration = Duration::from_millis(10);

/// Queue of invalidations for the kernel.
#[derive(Default)]
pub(crate) struct InvalidationQueue {
    pending: Mutex<Pending>,
    /// Signaled when there is a change to send, or no more will come.
    some: Condvar,
    /// Signaled when the pending changes have been taken.
    taken: Condvar,
    notifier: OnceLock<Notifier>,
}

/// Makes the kernel write back and drop its pages of a range of a file.
pub(super) type DropPages<'a> = &'a dyn Fn(Ino, Range<u64>);

/// Rest of a request that needs the kernel's pages of a file to be written back or dropped.
type Job = Box<dyn FnOnce(DropPages<'_>) + Send>;

#[derive(Default)]
struct Pending {
    /// Bytes to invalidate; `None`: only the attributes.
    inodes: HashMap<Ino, Option<Range<u64>>>,
    entries: HashSet<(Ino, Vec<u8>)>,
    jobs: Vec<Job>,
    closed: bool,
}

impl InvalidationQueue {
    /// Starts the thread that notifies the kernel; it ends with [`InvalidationQueue::close`].
    pub fn start(self: &Arc<InvalidationQueue>, notifier: Notifier) -> io::Result<()> {
        let recall = Arc::clone(self);
        let _ = self.notifier.set(notifier.clone());
        let thread = std::thread::Builder::new().name("fuse-recall".into());
        thread.spawn(move || while recall.tell_some(&notifier) {})?;
        Ok(())
    }

    /// Invalidates the attributes of a file immediately. Waits only for a lock that the kernel
    /// holds briefly, so a thread that serves a request may call it for the inode of that request.
    pub fn forget_attributes(&self, ino: Ino) {
        if let Some(notifier) = self.notifier.get() {
            log("inode", ino, notifier.inval_inode(ino, -1, 0));
        }
    }

    /// Runs the rest of a request, which may make the kernel write back pages. It must not wait for
    /// another request of this mount in any other way.
    pub fn run(&self, job: impl FnOnce(DropPages<'_>) + Send + 'static) {
        let mut pending = self.lock();
        if pending.closed {
            drop(pending);
            return job(&|_, _| ());
        }
        pending.jobs.push(Box::new(job));
        self.some.notify_one();
    }

    /// Replies to a write once the kernel has dropped its pages of these bytes.
    pub fn reply_after(&self, ino: Ino, bytes: Range<u64>, reply: Reply<'static>) {
        let len = (bytes.end - bytes.start) as u32;
        self.run(move |drop_pages| {
            drop_pages(ino, bytes);
            reply.written(len);
        });
    }

    /// Stops notifications.
    pub fn close(&self) {
        self.lock().closed = true;
        self.some.notify_all();
        self.taken.notify_all();
    }

    /// Waits for changes and sends them to the kernel. Returns false once no more will come.
    fn tell_some(&self, notifier: &Notifier) -> bool {
        let waiting = |pending: &mut Pending| !pending.closed && pending.len() == 0;
        let pending = self.some.wait_while(self.lock(), waiting);
        let mut pending = pending.expect("no panic under this lock");
        if pending.closed {
            let left = std::mem::take(&mut pending.jobs);
            drop(pending);
            left.into_iter().for_each(|job| job(&|_, _| ()));
            return false;
        }
        let now = std::mem::take(&mut *pending);
        drop(pending);
        self.taken.notify_all();
        for (dir, name) in now.entries {
            let told = notifier.inval_entry(dir, &name);
            log("an entry of directory", dir, told);
        }
        for (ino, bytes) in now.inodes {
            invalidate(notifier, ino, bytes);
        }
        for job in now.jobs {
            job(&|ino, bytes| invalidate(notifier, ino, Some(bytes)));
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().expect("no panic under this lock")
    }
}

/// Invalidates the attributes of a file, and its bytes in a range.
fn invalidate(notifier: &Notifier, ino: Ino, bytes: Option<Range<u64>>) {
    // A negative offset means only the attributes; length 0 means up to the end.
    let (offset, len) = match bytes {
        None => (-1, 0),
        Some(bytes) if bytes.end > i64::MAX as u64 => (bytes.start as i64, 0),
        Some(bytes) => (bytes.start as i64, (bytes.end - bytes.start) as i64),
    };
    log("inode", ino, notifier.inval_inode(ino, offset, len));
}

impl Watcher for InvalidationQueue {
    fn changed(&self, change: &Change<'_>) {
        let mut pending = self.lock();
        if pending.closed {
            return;
        }
        pending.add(change);
        let is_full = pending.len() > PENDING_MAX;
        self.some.notify_one();
        if is_full {
            let full = |pending: &mut Pending| !pending.closed && pending.len() > PENDING_MAX;
            let waited = self.taken.wait_timeout_while(pending, HELD_UP, full);
            drop(waited.expect("no panic under this lock"));
        }
    }
}

impl Pending {
    fn len(&self) -> usize {
        self.inodes.len() + self.entries.len() + self.jobs.len()
    }

    fn add(&mut self, change: &Change<'_>) {
        match change {
            Change::Content(ino, bytes) => {
                let known = self.inodes.entry(*ino).or_default();
                *known = Some(match known.take() {
                    Some(old) => old.start.min(bytes.start)..old.end.max(bytes.end),
                    None => bytes.clone(),
                });
            }
            Change::Attributes(ino) => {
                self.inodes.entry(*ino).or_default();
            }
            Change::Entry(dir, name) => {
                self.entries.insert((*dir, name.to_vec()));
                // The kernel caches the entries of a directory as its pages.
                self.inodes.insert(*dir, Some(0..u64::MAX));
            }
        }
    }
}

fn log(what: &str, ino: Ino, told: io::Result<()>) {
    if let Err(error) = told {
        // The mount has ended, or the entry is in use, for example as a mount point.
        tracing::debug!("the kernel did not invalidate {what} {ino}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_one_file_become_one_and_a_directory_is_invalidated_with_its_entries() {
        let mut pending = Pending::default();
        pending.add(&Change::Attributes(5));
        pending.add(&Change::Content(5, 100..200));
        pending.add(&Change::Content(5, 50..60));
        pending.add(&Change::Attributes(5));
        pending.add(&Change::Entry(1, b"a"));
        pending.add(&Change::Entry(1, b"a"));
        assert_eq!(pending.inodes.get(&5), Some(&Some(50..200)));
        assert_eq!(pending.inodes.get(&1), Some(&Some(0..u64::MAX)));
        assert_eq!(pending.len(), 3);
    }

    #[test]
    fn a_client_faster_than_its_disk_is_slowed_and_not_stopped() {
        let recall = InvalidationQueue::default();
        for ino in 0..PENDING_MAX as u64 + 3 {
            recall.changed(&Change::Attributes(ino));
        }
        assert_eq!(recall.lock().len(), PENDING_MAX + 3);
        recall.close();
        recall.changed(&Change::Attributes(u64::MAX));
        assert_eq!(recall.lock().len(), PENDING_MAX + 3);
    }
}
