//! Leases: pages of a window that stay in place, for users that cannot fault.

use super::uffd::PAGE;
use super::view::View;
use super::{Access, Keep, Window};
use block::{Error, Result};
use rustix::fs::{Mode, OFlags};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Pages that stay resident while the lease lives, and a descriptor through which another process
/// can map them.
///
/// Pass [`Lease::fd`] over a Unix socket together with [`Lease::bytes`]. The receiver maps exactly
/// that range with MAP_SHARED and shares the pages with this process: each sees the stores of the
/// other.
///
/// **Why not more than the leased range.** A page that is not resident is a hole in the file behind
/// the descriptor. This process does not see the hole, because its userfaultfd stops the access
/// until the page has been loaded. A process without that userfaultfd reads zeros in its place, and
/// its stores there are no part of the file. So the receiver must not access memory outside the
/// range, nor after the lease is dropped; its mapping is not revoked. Nothing prevents it from
/// reading the other resident pages of the same file: grant leases only to processes that may read
/// the whole file.
///
/// A lease for stores keeps its pages dirty: each flush writes their current contents, and they are
/// written once more after the lease ends, because a store of another process is not reported. A
/// lease for reading has a descriptor that cannot be mapped for writing; a process of the same user
/// could reopen it.
///
/// Truncating a file removes its pages from under a lease, which then reads zeros.
pub struct Lease {
    window: Arc<Window>,
    pages: Range<u64>,
    access: Access,
    fd: OwnedFd,
}

impl Lease {
    pub(super) fn take(view: &Arc<View>, pages: Range<u64>, access: Access) -> Result<Lease> {
        let window = Arc::clone(&view.window);
        let file = window.memory.file();
        let fd = match access {
            Access::Store => file.try_clone_to_owned(),
            Access::Read => {
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                rustix::fs::open(path, flags, Mode::empty()).map_err(Into::into)
            }
        };
        let fd = fd.map_err(|e| {
            Error::from_io("cache window", e).detail("cannot create a descriptor for the lease")
        })?;
        // Entered before the pages are loaded: see `Window::holds`.
        let entry = (pages.clone(), access);
        window.leased.fetch_add(1, Relaxed);
        window
            .leases
            .lock()
            .expect("no panic under this lock")
            .push(entry);
        let lease = Lease {
            window,
            pages: pages.clone(),
            access,
            fd,
        };
        view.load(&mut Keep::default(), pages, access)?;
        Ok(lease)
    }

    /// Returns the file to map.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the leased bytes, in whole pages; offsets are those of the cached file.
    pub fn bytes(&self) -> Range<u64> {
        self.pages.start * PAGE as u64..self.pages.end * PAGE as u64
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut leases = self.window.leases.lock().expect("no panic under this lock");
        let mine =
            |(pages, access): &(Range<u64>, Access)| *pages == self.pages && *access == self.access;
        let at = leases.iter().position(mine).expect("a lease is entered");
        leases.swap_remove(at);
        self.window.leased.fetch_sub(1, Relaxed);
    }
}
