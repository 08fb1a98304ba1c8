//! One UDP socket of a port: opened with large buffers, received from and sent to in batches.

use crate::bytes::Bytes;
use crate::sys::{self, SLICES_MAX};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rx_proto::{Part, Route, Transmit};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Datagrams up to this size pass everywhere: whether IP may cut them does not matter, so the socket
/// stays as it is.
const SMALL_BYTES: usize = 508;

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It left, or is lost like any datagram.
    Gone,
    /// The socket takes nothing now.
    Later,
    /// The network takes no datagrams as large as these, at most of so many bytes.
    TooLong(Route, usize),
}

/// A socket bound to a port.
pub(crate) struct Socket {
    fd: OwnedFd,
    v6: bool,
    /// The kernel cuts batches (`UDP_SEGMENT`); not all network devices let it.
    cuts: bool,
    /// IP does not fragment what is sent.
    whole: bool,
    pub(crate) errors: u64,
}

impl Socket {
    /// Binds to `address`; `shared` lets other sockets of this program share the port.
    pub(crate) fn bind(address: SocketAddr, shared: bool, buffer: usize) -> io::Result<Socket> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
        let v6 = address.is_ipv6();
        if shared {
            sockopt::set_socket_reuseport(&fd, true)?;
        }
        // Beyond the system's limit only with a privilege; within it for everybody.
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
        socket.keep_whole(false)?;
        Ok(socket)
    }

    /// Address and port that it is bound to.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        let address = rustix::net::getsockname(&self.fd)?;
        SocketAddr::try_from(address).map_err(|_| io::ErrorKind::Unsupported.into())
    }

    /// Bytes that its receive buffer got, as the kernel counts: data and what it keeps beside it.
    pub(crate) fn receive_buffer(&self) -> io::Result<usize> {
        Ok(sockopt::socket_recv_buffer_size(&self.fd)?)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Sends a batch.
    pub(crate) fn send(&mut self, batch: &Transmit<Bytes>) -> Sent {
        let largest = batch.segment_bytes();
        if largest > SMALL_BYTES && self.keep_whole(batch.dont_fragment()).is_err() {
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
            Ok(_) => Sent::Gone,
            Err(e) if segment.is_some() && is_about_cutting(&e) => {
                // EIO: the device cannot add checksums, so no batch will ever leave by it.
                self.cuts &= e.raw_os_error() != Some(libc::EIO);
                self.send_singly(batch)
            }
            Err(e) => self.failed(batch, &e),
        }
    }

    /// Sends the datagrams of a batch one by one.
    fn send_singly(&mut self, batch: &Transmit<Bytes>) -> Sent {
        let route = batch.route();
        for datagram in batch.datagrams() {
            let slices = [IoSlice::new(&datagram)];
            if let Err(e) = sys::send(self.fd(), route.peer, route.local, None, &slices) {
                // Some have left: sending those again would do no harm, but need not be.
                match self.failed(batch, &e) {
                    Sent::Later => self.errors += 1,
                    other => return other,
                }
            }
        }
        Sent::Gone
    }

    /// What an error means for a batch. Most mean that it is lost on the way, as any may be.
    fn failed(&mut self, batch: &Transmit<Bytes>, error: &io::Error) -> Sent {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Sent::Later,
            Some(libc::EMSGSIZE) if batch.dont_fragment() => {
                let shorter = batch.segment_bytes().saturating_sub(1);
                Sent::TooLong(batch.route(), shorter)
            }
            _ => {
                self.errors += 1;
                Sent::Gone
            }
        }
    }

    /// Says whether IP may fragment what is sent. Never by what the system believes to know of a path:
    /// that may have been told by anybody.
    fn keep_whole(&mut self, whole: bool) -> io::Result<()> {
        if self.whole != whole {
            let (level, name) = if self.v6 {
                (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER)
            } else {
                (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER)
            };
            // The values of IPv6 are the same.
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

/// Whether a batch was refused because it was to be cut: by a device that cannot, or because its
/// datagrams would have to be fragmented besides.
fn is_about_cutting(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE)
    )
}
