//! One UDP socket of a port, with large buffers and batched receives and sends.

use crate::bytes::Bytes;
use crate::sys::{self, SLICES_MAX};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rx_proto::{Part, Route, Transmit};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Every network carries datagrams up to this size, so the fragmentation setting of the socket does
/// not matter for them.
const SMALL_BYTES: usize = 508;

/// Result of sending a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendResult {
    /// The batch was sent, or is lost like any datagram.
    Gone,
    /// The send buffer is full.
    Later,
    /// The network carries no datagrams of this size, at most the given number of bytes.
    TooLong(Route, usize),
}

/// Use of a port by the sockets of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// One socket alone.
    Exclusive,
    /// Several sockets, among which the kernel distributes the peers.
    Shared,
}

/// A socket bound to a port.
pub(crate) struct Socket {
    fd: OwnedFd,
    v6: bool,
    /// Whether the kernel segments batches (`UDP_SEGMENT`), which not all network devices allow.
    cuts: bool,
    /// Whether IP must not fragment sent datagrams.
    whole: bool,
    pub(crate) errors: u64,
}

impl Socket {
    /// Binds to `address`, with a receive and a send buffer of `buffer` bytes.
    pub(crate) fn bind(address: SocketAddr, sharing: Sharing, buffer: usize) -> io::Result<Socket> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
        let v6 = address.is_ipv6();
        if sharing == Sharing::Shared {
            sockopt::set_socket_reuseport(&fd, true)?;
        }
        // Exceeding the system's limit requires a privilege.
        if sockopt::set_socket_recv_buffer_size_force(&fd, buffer).is_err() {
            sockopt::set_socket_recv_buffer_size(&fd, buffer)?;
        }
        sockopt::set_socket_send_buffer_size(&fd, buffer)?;
        if v6 {
            sockopt::set_ipv6_v6only(&fd, true)?;
            sys::set(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
            sys::set(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
        } else {
            sys::set(fd.as_fd(), libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
            sys::set(fd.as_fd(), libc::IPPROTO_IP, libc::IP_RECVERR, 1)?;
        }
        sys::set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
        sys::set(fd.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1)?;
        rustix::net::bind(&fd, &address)?;
        let mut socket = Socket {
            fd,
            v6,
            cuts: true,
            whole: true,
            errors: 0,
        };
        socket.set_whole(false)?;
        Ok(socket)
    }

    /// Takes over the socket of a predecessor.
    pub(crate) fn adopt(fd: OwnedFd) -> io::Result<Socket> {
        let mut socket = Socket {
            fd,
            v6: false,
            cuts: true,
            whole: true,
            errors: 0,
        };
        socket.v6 = socket.address()?.is_ipv6();
        socket.set_whole(false)?;
        Ok(socket)
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        let address = rustix::net::getsockname(&self.fd)?;
        SocketAddr::try_from(address).map_err(|_| io::ErrorKind::Unsupported.into())
    }

    /// Reads the size of the receive buffer as counted by the kernel: data and its overhead.
    pub(crate) fn receive_buffer(&self) -> io::Result<usize> {
        Ok(sockopt::socket_recv_buffer_size(&self.fd)?)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn send(&mut self, batch: &Transmit<Bytes>) -> SendResult {
        let largest = batch.segment_bytes();
        if largest > SMALL_BYTES && self.set_whole(batch.dont_fragment()).is_err() {
            self.errors += 1;
        }
        let slices: Vec<IoSlice<'_>> = batch
            .parts()
            .map(|part| match part {
                Part::Header(bytes) => IoSlice::new(bytes),
                Part::Payload(payload) => IoSlice::new(payload.as_ref()),
            })
            .collect();
        if slices.len() > SLICES_MAX || batch.segments() > 1 && !self.cuts {
            return self.send_singly(batch);
        }
        let segment = (batch.segments() > 1).then(|| u16::try_from(largest).unwrap_or(u16::MAX));
        let route = batch.route();
        match sys::send(self.fd(), route.peer, route.local, segment, &slices) {
            Ok(_) => SendResult::Gone,
            Err(e) if segment.is_some() && is_about_cutting(&e) => {
                // EIO: the device cannot compute checksums, so no batch will ever leave through it.
                self.cuts &= e.raw_os_error() != Some(libc::EIO);
                self.send_singly(batch)
            }
            Err(e) => self.failed(batch, &e),
        }
    }

    /// Sends the datagrams of a batch one by one.
    fn send_singly(&mut self, batch: &Transmit<Bytes>) -> SendResult {
        let route = batch.route();
        for datagram in batch.datagrams() {
            let slices = [IoSlice::new(&datagram)];
            if let Err(e) = sys::send(self.fd(), route.peer, route.local, None, &slices) {
                // Some datagrams have left: sending those again would be harmless, but is
                // unnecessary.
                match self.failed(batch, &e) {
                    SendResult::Later => self.errors += 1,
                    other => return other,
                }
            }
        }
        SendResult::Gone
    }

    /// Interprets an error for a batch. Most errors mean that it is lost, like any
    /// datagram.
    fn failed(&mut self, batch: &Transmit<Bytes>, error: &io::Error) -> SendResult {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => SendResult::Later,
            Some(libc::EMSGSIZE) if batch.dont_fragment() => {
                let shorter = batch.segment_bytes().saturating_sub(1);
                SendResult::TooLong(batch.route(), shorter)
            }
            _ => {
                self.errors += 1;
                SendResult::Gone
            }
        }
    }

    /// Sets whether IP must not fragment sent datagrams. Never relies on the kernel's knowledge of
    /// a path's MTU, which third parties may have forged.
    fn set_whole(&mut self, whole: bool) -> io::Result<()> {
        if self.whole != whole {
            let (level, name) = if self.v6 {
                (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER)
            } else {
                (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER)
            };
            // The values for IPv6 are the same.
            let value = if whole {
                libc::IP_PMTUDISC_PROBE
            } else {
                libc::IP_PMTUDISC_DONT
            };
            sys::set(self.fd(), level, name, value)?;
            self.whole = whole;
        }
        Ok(())
    }
}

/// Checks whether a batch was refused because of segmentation: by a device that does not support
/// it, or because its datagrams would also have to be fragmented.
fn is_about_cutting(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE)
    )
}
