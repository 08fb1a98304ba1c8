//! A descriptor of `/dev/fuse`, and memory for the requests that it yields.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// `FUSE_DEV_IOC_CLONE` of <linux/fuse.h>.
const CLONE: libc::c_ulong = 0x8004_e500;

/// Descriptor over which requests of one mount arrive.
pub(crate) struct Device(OwnedFd);

/// Result of reading a descriptor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A request of this length.
    Request(usize),
    /// None yet.
    Nothing,
    /// None will come: the mount has ended.
    Ended,
}

impl Device {
    /// Opens a descriptor that belongs to no mount yet.
    pub fn open(flags: OFlags) -> io::Result<Device> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | flags;
        Ok(Device(rustix::fs::open("/dev/fuse", flags, Mode::empty())?))
    }

    /// Opens another descriptor for the same mount. A request is answered on the descriptor that it
    /// was read from.
    pub fn another(&self, flags: OFlags) -> io::Result<Device> {
        let copy = Device::open(flags)?;
        let this = self.0.as_raw_fd();
        // SAFETY: the kernel reads one integer, which lives through the call.
        match unsafe { libc::ioctl(copy.0.as_raw_fd(), CLONE as _, &this) } {
            0 => Ok(copy),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Reports whether the kernel has ended the session: its file system is mounted nowhere, in no
    /// mount namespace, or was aborted.
    pub fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::empty())];
        let ready = poll(&mut polled, Some(&Timespec::default()));
        ready.is_ok() && polled[0].revents().contains(PollFlags::ERR)
    }

    /// Reads one request.
    ///
    /// # Errors
    /// Those that do not belong to a request.
    pub fn receive(&self, buf: &mut [u8]) -> io::Result<Received> {
        use rustix::io::Errno;
        loop {
            match rustix::io::read(&self.0, &mut *buf) {
                Ok(len) => return Ok(Received::Request(len)),
                // The request was interrupted before it was read, or this thread was.
                Err(Errno::NOENT | Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(Received::Ended),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends one reply or notification.
    pub fn send(&self, parts: &[IoSlice<'_>]) -> rustix::io::Result<()> {
        loop {
            // The kernel takes one part from write(2) in less time.
            let sent = match parts {
                [one] => rustix::io::write(&self.0, one),
                _ => rustix::io::writev(&self.0, parts),
            };
            match sent {
                Err(rustix::io::Errno::INTR) => {}
                sent => return sent.map(drop),
            }
        }
    }
}

impl From<OwnedFd> for Device {
    fn from(descriptor: OwnedFd) -> Device {
        Device(descriptor)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Memory for one request, aligned to a page. Only the parts that were used take memory.
pub(crate) struct Buffer {
    memory: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone, and to no thread.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Allocates `len` bytes.
    pub fn new(len: usize) -> io::Result<Buffer> {
        Buffer::with(len, MapFlags::PRIVATE)
    }

    /// Allocates `len` bytes that are present. If a process is killed while the kernel copies a request
    /// to memory that is not, the request fails.
    pub fn present(len: usize) -> io::Result<Buffer> {
        Buffer::with(len, MapFlags::PRIVATE | MapFlags::POPULATE)
    }

    fn with(len: usize, flags: MapFlags) -> io::Result<Buffer> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, flags) }?;
        // A child would make the kernel copy the pages that it writes to. SAFETY: the range was mapped
        // just now.
        unsafe { libc::madvise(memory, len, libc::MADV_DONTFORK) };
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Buffer { memory, len })
    }

    /// Returns the memory.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this length, is initialized with zeros, and is accessed only
        // through this value.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and no reference to it is left.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.len) };
    }
}
