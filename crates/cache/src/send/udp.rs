//! Datagrams in batches: consecutive ones of equal size are sent in one call, and are split only
//! after the expensive layers of the stack (`UDP_SEGMENT`, udp(7)).

use super::parts::{Held, Parts, SLICES_MAX};
use rustix::net::addr::SocketAddrArg;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg, sendmsg_addr};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Most datagrams in one call (the smallest `UDP_MAX_SEGMENTS` of any kernel).
const BATCH_MAX: usize = 64;
/// Most bytes in one call: the limit of a 16-bit length that includes the headers of IPv4.
const BATCH_BYTES_MAX: usize = 65_507;

/// A list of datagrams, each made of the caller's bytes and those of held pages.
#[derive(Default)]
pub struct Datagrams<'a> {
    parts: Parts<'a>,
    /// The entries and the size of each datagram.
    datagrams: Vec<Datagram>,
    /// Index of the first datagram that has not been sent.
    next: usize,
}

struct Datagram {
    slices: Range<usize>,
    bytes: usize,
}

impl<'a> Datagrams<'a> {
    /// Creates an empty list.
    pub fn new() -> Datagrams<'a> {
        Datagrams::default()
    }

    /// Appends a datagram: a header, and a range of the bytes of consecutive pages, counted from
    /// the first byte of the first one.
    ///
    /// # Panics
    /// The range ends beyond the pages.
    pub fn push<H: Held>(&mut self, header: &'a [u8], pages: &'a [H], range: Range<usize>) {
        let (slices, bytes) = (self.parts.slices().len(), self.parts.len());
        self.parts.bytes(header).pages(pages, range);
        self.datagrams.push(Datagram {
            slices: slices..self.parts.slices().len(),
            bytes: self.parts.len() - bytes,
        });
    }

    /// Returns the number of unsent datagrams.
    pub fn len(&self) -> usize {
        self.datagrams.len() - self.next
    }

    /// Reports whether all datagrams have been sent.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Computes how many of the next datagrams fit one call: they have one size, except for the
    /// last, which may be shorter.
    fn batch(&self) -> usize {
        let rest = &self.datagrams[self.next..];
        let (size, mut bytes, mut shorter) = (rest[0].bytes, 0, false);
        let first_slice = rest[0].slices.start;
        let fits = |datagram: &&Datagram| {
            bytes += datagram.bytes;
            let fits = datagram.bytes <= size
                && datagram.bytes > 0
                && !shorter
                && bytes <= BATCH_BYTES_MAX
                && datagram.slices.end - first_slice <= SLICES_MAX;
            shorter = datagram.bytes < size;
            fits
        };
        rest.iter().take(BATCH_MAX).take_while(fits).count().max(1)
    }

    fn slices(&self, count: usize) -> &[IoSlice<'a>] {
        let batch = &self.datagrams[self.next..self.next + count];
        let (first, last) = (&batch[0], &batch[count - 1]);
        &self.parts.slices()[first.slices.start..last.slices.end]
    }
}

/// Sends datagrams, and remembers which batches the path from its socket rejects.
#[derive(Debug)]
pub struct UdpSender {
    /// Datagrams of this size or more are sent one by one.
    batched_below: usize,
}

impl Default for UdpSender {
    fn default() -> UdpSender {
        UdpSender {
            batched_below: usize::MAX,
        }
    }
}

impl UdpSender {
    /// Creates a sender for one socket.
    pub fn new() -> UdpSender {
        UdpSender::default()
    }

    /// Sends datagrams to `to`, or to the peer of a connected socket; removes those that the kernel
    /// has taken from the list.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when the socket is full, and other errors of the socket. The
    /// first remaining datagram has not been sent then.
    pub fn send(
        &mut self,
        socket: impl AsFd,
        to: Option<SocketAddr>,
        datagrams: &mut Datagrams<'_>,
    ) -> io::Result<()> {
        let socket = socket.as_fd();
        while !datagrams.is_empty() {
            let size = datagrams.datagrams[datagrams.next].bytes;
            let mut count = if size < self.batched_below {
                datagrams.batch()
            } else {
                1
            };
            let mut sent = send_batch(socket, to, datagrams.slices(count), size, count);
            if let (true, Err(error)) = (count > 1, &sent)
                && let Some(limit) = refused(error, size)
            {
                self.batched_below = limit;
                count = 1;
                sent = send_batch(socket, to, datagrams.slices(1), size, 1);
            }
            sent?;
            datagrams.next += count;
        }
        Ok(())
    }
}

/// Returns the size from which datagrams cannot be batched, if that is the meaning of an error: the
/// packets would exceed the path's limit, or the device cannot compute checksums.
fn refused(error: &io::Error, size: usize) -> Option<usize> {
    match error.raw_os_error() {
        Some(libc::EINVAL) => Some(size),
        Some(libc::EIO | libc::EOPNOTSUPP | libc::ENOPROTOOPT) => Some(0),
        _ => None,
    }
}

/// Sends `count` datagrams of `size` bytes, the last of which may be shorter, in one call.
fn send_batch(
    socket: BorrowedFd<'_>,
    to: Option<SocketAddr>,
    slices: &[IoSlice<'_>],
    size: usize,
    count: usize,
) -> io::Result<()> {
    if count == 1 {
        return send_one(socket, to, slices);
    }
    let size = u16::try_from(size).expect("two of them are shorter than 64 KiB");
    let sent = match to {
        // SAFETY: the address is valid for the duration of the closure.
        Some(to) => unsafe {
            to.with_sockaddr(|at, len| sendmsg_cut(socket, (at.cast(), len), slices, size))
        },
        None => sendmsg_cut(socket, (std::ptr::null(), 0), slices, size),
    };
    sent.map(drop)
}

fn send_one(
    socket: BorrowedFd<'_>,
    to: Option<SocketAddr>,
    slices: &[IoSlice<'_>],
) -> io::Result<()> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let control = &mut SendAncillaryBuffer::default();
    rustix::io::retry_on_intr(|| match &to {
        Some(to) => sendmsg_addr(socket, to, slices, control, flags),
        None => sendmsg(socket, slices, control, flags),
    })?;
    Ok(())
}

/// A control message of 16 bits, with the layout of cmsg(3).
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    size: u16,
}

/// Calls `sendmsg` with the segment size into which the kernel splits the data. `name` is an
/// address that outlives the call, or null.
fn sendmsg_cut(
    socket: BorrowedFd<'_>,
    name: (*const libc::c_void, u32),
    slices: &[IoSlice<'_>],
    size: u16,
) -> io::Result<usize> {
    let header_bytes = std::mem::offset_of!(Control, size);
    let mut control = Control {
        header: libc::cmsghdr {
            cmsg_len: (header_bytes + size_of::<u16>()) as _,
            cmsg_level: libc::SOL_UDP,
            cmsg_type: libc::UDP_SEGMENT,
        },
        size,
    };
    let message = libc::msghdr {
        msg_name: name.0.cast_mut(),
        msg_namelen: name.1,
        msg_iov: slices.as_ptr().cast_mut().cast(),
        msg_iovlen: slices.len() as _,
        msg_control: (&raw mut control).cast(),
        msg_controllen: size_of::<Control>() as _,
        msg_flags: 0,
    };
    loop {
        // SAFETY: everything that the message points to lives until the call returns, which only
        // reads it; an `IoSlice` has the layout of an `iovec`.
        let sent = unsafe {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            libc::sendmsg(socket.as_raw_fd(), &message, flags)
        };
        if let Ok(sent) = usize::try_from(sent) {
            return Ok(sent);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
