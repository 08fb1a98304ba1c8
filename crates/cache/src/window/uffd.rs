//! The parts of the kernel's userfaultfd that windows use: a file descriptor that reports faults in
//! registered ranges, and five ways to resolve them.
//!
//! Source: <linux/userfaultfd.h> of Linux 6.6, and Documentation/admin-guide/mm/userfaultfd.rst.
//! Deliberately absent: COPY, ZEROPAGE and MOVE (windows fill pages through a view of their own),
//! and asynchronous write protection, whose report of written pages is outdated on arrival.

use super::Access;
use block::{Error, ErrorKind, Result};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Page size in bytes; windows reject machines with another size.
pub(super) const PAGE: usize = 4096;

const API_VERSION: u64 = 0xaa;
const FEATURES: &[(u64, &str)] = &[
    (1 << 5, "missing pages of shared memory (Linux 4.11)"),
    (1 << 10, "minor faults of shared memory (5.14)"),
    (1 << 12, "write protection of shared memory (5.19)"),
    (1 << 14, "poisoned pages (6.6)"),
];

/// Flag of userfaultfd(2): report faults of user mode only (5.11). Unprivileged processes may use
/// no other kind.
const USER_MODE_ONLY: libc::c_int = 1;

const REGISTER_MISSING: u64 = 1;
const REGISTER_WP: u64 = 2;
const REGISTER_MINOR: u64 = 4;
const CONTINUE_WP: u64 = 2;
const WRITEPROTECT_WP: u64 = 1;
const WRITEPROTECT_DONTWAKE: u64 = 2;

const EVENT_PAGEFAULT: u8 = 0x12;
const PAGEFAULT_WRITE: u64 = 1;
const PAGEFAULT_WP: u64 = 2;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Span {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Register {
    span: Span,
    mode: u64,
    ioctls: u64,
}

/// Argument of CONTINUE and POISON, which have the same layout.
#[repr(C)]
struct Resolve {
    span: Span,
    mode: u64,
    bytes: i64,
}

#[repr(C)]
struct Protect {
    span: Span,
    mode: u64,
}

#[repr(C)]
#[derive(Default)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u64,
}

const READ: u32 = 2;
const READ_WRITE: u32 = 3;

/// Computes `_IOC` of <asm-generic/ioctl.h> with the type of userfaultfd.
const fn ioc<T>(direction: u32, number: u32) -> libc::Ioctl {
    let request = direction << 30 | (size_of::<T>() as u32) << 16 | 0xaa << 8 | number;
    request as libc::Ioctl
}

const IOC_API: libc::Ioctl = ioc::<Api>(READ_WRITE, 0x3f);
const IOC_REGISTER: libc::Ioctl = ioc::<Register>(READ_WRITE, 0);
const IOC_WAKE: libc::Ioctl = ioc::<Span>(READ, 2);
const IOC_WRITEPROTECT: libc::Ioctl = ioc::<Protect>(READ_WRITE, 6);
const IOC_CONTINUE: libc::Ioctl = ioc::<Resolve>(READ_WRITE, 7);
const IOC_POISON: libc::Ioctl = ioc::<Resolve>(READ_WRITE, 8);
/// `USERFAULTFD_IOC_NEW` on /dev/userfaultfd; its argument is the flags, not a pointer.
const IOC_NEW: libc::Ioctl = 0xaa00;

/// A fault that a thread is blocked in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fault {
    /// Address of the page.
    pub address: usize,
    /// The access is a store.
    pub store: bool,
}

/// Faults that a userfaultfd serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Faults {
    /// Those of programs and, if the system permits it, those of the kernel on behalf of a thread.
    All,
    /// Those of programs only.
    UserOnly,
}

/// One userfaultfd. Any thread may receive and resolve its faults.
pub(super) struct Uffd {
    fd: OwnedFd,
    kernel_faults: bool,
}

impl Uffd {
    /// Opens a userfaultfd with all features that windows need, or returns an error that names the
    /// missing one.
    pub fn open(faults: Faults) -> Result<Uffd> {
        // Features are negotiated once per descriptor, so the query takes a descriptor of its own.
        let offered = Uffd::create(faults)?.agree(0)?;
        let missing = |&&(bit, _): &&(u64, &str)| offered & bit == 0;
        if let Some((_, what)) = FEATURES.iter().find(missing) {
            let detail = format!("the kernel's userfaultfd lacks {what}");
            return Err(Error::new(ErrorKind::Unsupported, "cache window", detail));
        }
        let uffd = Uffd::create(faults)?;
        uffd.agree(FEATURES.iter().fold(0, |all, (bit, _)| all | bit))?;
        Ok(uffd)
    }

    /// Reports whether system calls that access a missing page are served, instead of failing with
    /// EFAULT.
    pub fn kernel_faults(&self) -> bool {
        self.kernel_faults
    }

    fn create(faults: Faults) -> Result<Uffd> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        if faults == Faults::All
            && let Ok(fd) = system_call(flags).or_else(|_| device(flags))
        {
            return Ok(Uffd {
                fd,
                kernel_faults: true,
            });
        }
        let fd = system_call(flags | USER_MODE_ONLY).map_err(refused)?;
        Ok(Uffd {
            fd,
            kernel_faults: false,
        })
    }

    fn agree(&self, features: u64) -> Result<u64> {
        let mut api = Api {
            api: API_VERSION,
            features,
            ioctls: 0,
        };
        self.ioctl(IOC_API, &mut api).map_err(|e| {
            Error::from_io("cache window", e).detail("userfaultfd rejected UFFDIO_API")
        })?;
        Ok(api.features)
    }

    /// Registers a range of shared memory: every first access and first store is reported from now
    /// on.
    pub fn register(&self, range: Range<usize>) -> io::Result<()> {
        let mut register = Register {
            span: span(range),
            mode: REGISTER_MISSING | REGISTER_WP | REGISTER_MINOR,
            ioctls: 0,
        };
        self.ioctl(IOC_REGISTER, &mut register)
    }

    /// Reads the next fault; `None` if none is pending.
    pub fn next(&self) -> io::Result<Option<Fault>> {
        loop {
            let mut message = Message::default();
            // SAFETY: the buffer is a whole message, and every bit pattern is one.
            let got = unsafe {
                let into = (&raw mut message).cast();
                libc::read(self.fd.as_raw_fd(), into, size_of::<Message>())
            };
            if got < 0 {
                match io::Error::last_os_error() {
                    e if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                    e if e.kind() == io::ErrorKind::Interrupted => continue,
                    e => return Err(e),
                }
            }
            // Other events are reported only if requested.
            if message.event == EVENT_PAGEFAULT {
                return Ok(Some(Fault {
                    address: message.address as usize & !(PAGE - 1),
                    store: message.flags & (PAGEFAULT_WRITE | PAGEFAULT_WP) != 0,
                }));
            }
        }
    }

    /// Maps pages of the file (`UFFDIO_CONTINUE`) and wakes the threads waiting for them. With
    /// [`Access::Store`], stores no longer fault, even on pages that were already mapped.
    pub fn map(&self, range: Range<usize>, access: Access) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let mut resolve = Resolve {
                span: span(at..range.end),
                mode: match access {
                    Access::Read => CONTINUE_WP,
                    Access::Store => 0,
                },
                bytes: 0,
            };
            let Err(e) = self.ioctl(IOC_CONTINUE, &mut resolve) else {
                return Ok(());
            };
            match e.raw_os_error() {
                // Part of it is done, or nothing because the address space is changing: continue.
                Some(libc::EAGAIN) => at += usize::try_from(resolve.bytes).unwrap_or(0),
                Some(libc::EEXIST) => {
                    let page = at..at + PAGE;
                    match access {
                        Access::Read => self.wake(page)?,
                        Access::Store => self.unprotect(page)?,
                    }
                    at += PAGE;
                }
                _ => return Err(e),
            }
        }
        Ok(())
    }

    /// Makes stores to a range fault.
    pub fn protect(&self, range: Range<usize>) -> io::Result<()> {
        self.write_protect(range, WRITEPROTECT_WP)
    }

    /// Allows stores to a range and wakes the threads waiting for them.
    fn unprotect(&self, range: Range<usize>) -> io::Result<()> {
        self.write_protect(range, 0)
    }

    fn write_protect(&self, range: Range<usize>, mode: u64) -> io::Result<()> {
        let mut protect = Protect {
            span: span(range),
            mode,
        };
        loop {
            match self.ioctl(IOC_WRITEPROTECT, &mut protect) {
                Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {}
                other => return other,
            }
        }
    }

    /// Makes every access to unmapped pages raise SIGBUS, and wakes the threads waiting for them.
    pub fn poison(&self, range: Range<usize>) -> io::Result<()> {
        // A write-protected page that is unmapped leaves a marker behind, and poison can only be
        // set on an empty entry.
        self.write_protect(range.clone(), WRITEPROTECT_DONTWAKE)?;
        let mut at = range.start;
        while at < range.end {
            let mut resolve = Resolve {
                span: span(at..range.end),
                mode: 0,
                bytes: 0,
            };
            match self.ioctl(IOC_POISON, &mut resolve) {
                Ok(()) => return Ok(()),
                Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {
                    at += usize::try_from(resolve.bytes).unwrap_or(0);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Wakes the threads waiting in a range, which then retry.
    pub fn wake(&self, range: Range<usize>) -> io::Result<()> {
        self.ioctl(IOC_WAKE, &mut span(range))
    }

    fn ioctl<T>(&self, request: libc::Ioctl, argument: &mut T) -> io::Result<()> {
        // SAFETY: each request of this file encodes the size of its argument, and the kernel reads
        // and writes no more than that. Requests that affect a range of memory are issued only for
        // ranges that this module has mapped itself.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), request, &raw mut *argument) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn span(range: Range<usize>) -> Span {
    Span {
        start: range.start as u64,
        len: range.len() as u64,
    }
}

fn system_call(flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call takes flags and returns a descriptor or an error.
    owned(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } as libc::c_int)
}

/// Opens a userfaultfd through its device file (6.1): access to it also permits serving kernel
/// faults.
fn device(flags: libc::c_int) -> io::Result<OwnedFd> {
    let device = std::fs::File::open("/dev/userfaultfd")?;
    // SAFETY: this request takes flags and returns a descriptor or an error.
    owned(unsafe { libc::ioctl(device.as_raw_fd(), IOC_NEW, flags) })
}

fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    match fd {
        0.. => {
            // SAFETY: the kernel just created this descriptor, and no other code has it.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        }
        _ => Err(io::Error::last_os_error()),
    }
}

fn refused(e: io::Error) -> Error {
    let detail = match e.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel has no userfaultfd (CONFIG_USERFAULTFD)",
        Some(libc::EPERM) => {
            "the system forbids userfaultfd: a seccomp filter blocks it, or it requires one of \
             CAP_SYS_PTRACE, the sysctl vm.unprivileged_userfaultfd=1, or access to \
             /dev/userfaultfd"
        }
        Some(libc::EINVAL) => "the kernel's userfaultfd lacks UFFD_USER_MODE_ONLY (Linux 5.11)",
        _ => "cannot open userfaultfd",
    };
    Error::from_io("cache window", e).detail(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_have_the_numbers_of_the_kernel() {
        assert_eq!(IOC_API as u32, 0xc018_aa3f);
        assert_eq!(IOC_REGISTER as u32, 0xc020_aa00);
        assert_eq!(IOC_WAKE as u32, 0x8010_aa02);
        assert_eq!(IOC_WRITEPROTECT as u32, 0xc018_aa06);
        assert_eq!(IOC_CONTINUE as u32, 0xc020_aa07);
        assert_eq!(IOC_POISON as u32, 0xc020_aa08);
        assert_eq!(size_of::<Message>(), 32);
    }

    #[test]
    fn a_refusal_says_what_would_help() {
        let text = |errno| refused(io::Error::from_raw_os_error(errno)).to_string();
        assert!(text(libc::EPERM).contains("vm.unprivileged_userfaultfd=1"));
        assert!(text(libc::ENOSYS).contains("CONFIG_USERFAULTFD"));
        assert!(text(libc::EINVAL).contains("5.11"));
    }
}
