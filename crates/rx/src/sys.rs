//! System calls without a safe wrapper: receiving many datagrams at once with their control
//! messages, one send that the kernel segments into datagrams, and reading ICMP errors.
//!
//! **Invariant:** pointers passed to the kernel refer only to memory that outlives the call.

use libc::{c_int, c_void};
use std::io::{self, IoSlice};
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes for the control messages of one datagram: packet information, segment size, drops; that of
/// IPv6 takes 40 bytes, the others 24 or less.
const CONTROL_BYTES: usize = 128;

/// Largest number of slices of one send (`UIO_MAXIOV`).
pub(crate) const SLICES_MAX: usize = 1024;

/// Buffer for control messages, aligned as the kernel requires.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Metadata of a received buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) peer: SocketAddr,
    /// Local address to which it was sent.
    pub(crate) local: Option<IpAddr>,
    /// Total bytes of its datagrams, and bytes of each except the last.
    pub(crate) bytes: usize,
    pub(crate) segment: usize,
    /// Number of datagrams that this socket has dropped for lack of room, modulo 2^32.
    pub(crate) dropped: Option<u32>,
}

/// Sets an integer option of a socket.
pub(crate) fn set(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let bytes = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the value lives until the call returns, and `bytes` is its size.
    let done = unsafe {
        let value = (&raw const value).cast::<c_void>();
        libc::setsockopt(fd.as_raw_fd(), level, name, value, bytes)
    };
    check(done.try_into()).map(drop)
}

/// Converts the result of a system call to a number, or to its error.
fn check(result: Result<usize, std::num::TryFromIntError>) -> io::Result<usize> {
    result.map_err(|_| io::Error::last_os_error())
}

/// Buffers for the metadata of received datagrams.
pub(crate) struct Receiver {
    names: Vec<libc::sockaddr_storage>,
    controls: Vec<Control>,
}

impl Receiver {
    /// Creates a receiver for up to `buffers` buffers at once.
    pub(crate) fn new(buffers: usize) -> Receiver {
        // SAFETY: all zeros are a valid `sockaddr_storage`, of no family.
        let name = unsafe { zeroed() };
        Receiver {
            names: vec![name; buffers],
            controls: vec![Control([0; CONTROL_BYTES]); buffers],
        }
    }

    /// Receives into as many of `buffers` as there are pending datagrams for, without blocking.
    /// Yields `None` for a message that was truncated or did not come from an IP address.
    pub(crate) fn receive<'b>(
        &mut self,
        fd: BorrowedFd<'_>,
        buffers: impl Iterator<Item = &'b mut [u8]>,
        received: &mut Vec<Option<Received>>,
    ) -> io::Result<()> {
        received.clear();
        let mut slices: Vec<libc::iovec> = buffers
            .take(self.names.len())
            .map(|buffer| libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            })
            .collect();
        let places = self.names.iter_mut().zip(&mut self.controls);
        let mut messages: Vec<libc::mmsghdr> = slices
            .iter_mut()
            .zip(places)
            .map(|(slice, (name, control))| {
                // SAFETY: all zeros are a valid `mmsghdr`: null pointers of length 0.
                let mut message: libc::mmsghdr = unsafe { zeroed() };
                let header = &mut message.msg_hdr;
                header.msg_name = (&raw mut *name).cast();
                header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
                header.msg_iov = slice;
                header.msg_iovlen = 1;
                header.msg_control = control.0.as_mut_ptr().cast();
                header.msg_controllen = CONTROL_BYTES;
                message
            })
            .collect();
        let count = messages.len() as libc::c_uint;
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: each message points to one slice, whose buffer is borrowed until this function
        // returns, and to a name and a control block of `self` that no other message uses.
        let got = unsafe {
            let none = std::ptr::null_mut();
            libc::recvmmsg(fd.as_raw_fd(), messages.as_mut_ptr(), count, flags, none)
        };
        let got = check(got.try_into())?;
        received.extend(messages.iter().take(got).map(describe));
        Ok(())
    }
}

/// Bytes kept of a refused datagram: its Rx header and more.
const QUOTE_BYTES: usize = 64;

/// A datagram that could not be delivered because the peer's port is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortUnreachable {
    pub(crate) peer: SocketAddr,
    quote: [u8; QUOTE_BYTES],
    bytes: usize,
}

impl PortUnreachable {
    /// Returns the beginning of its payload, as far as the ICMP error quotes it.
    pub(crate) fn quoted(&self) -> &[u8] {
        &self.quote[..self.bytes]
    }
}

/// Reads one ICMP error from the socket's error queue, without blocking; the inner `None` is an
/// irrelevant error. An error left in the queue keeps `poll` from blocking.
pub(crate) fn take_error(fd: BorrowedFd<'_>) -> io::Result<Option<PortUnreachable>> {
    let mut quote = [0; QUOTE_BYTES];
    let mut slice = libc::iovec {
        iov_base: quote.as_mut_ptr().cast(),
        iov_len: quote.len(),
    };
    let mut control = Control([0; CONTROL_BYTES]);
    // SAFETY: all zeros are a valid `sockaddr_storage`, of no family, and a valid `msghdr`.
    let (mut name, mut header): (libc::sockaddr_storage, libc::msghdr) =
        unsafe { (zeroed(), zeroed()) };
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    header.msg_iov = &raw mut slice;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL_BYTES;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: name, slice and control block live until the call returns.
    let got = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, flags) };
    let bytes = check(got.try_into())?.min(QUOTE_BYTES);
    if !is_refusal(&header) {
        return Ok(None);
    }
    // SAFETY: the kernel wrote an address of the named family there, or left the zeros of no
    // family.
    let peer = unsafe { address(&name) };
    Ok(peer.map(|peer| PortUnreachable { peer, quote, bytes }))
}

/// Checks whether a message of the error queue reports a closed port.
fn is_refusal(header: &libc::msghdr) -> bool {
    // SAFETY: the kernel left a chain of control messages in the block, and set its length.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !next.is_null() {
        // SAFETY: `next` is a control message within the block, complete with its data, whose type
        // follows from its level and type.
        unsafe {
            let kind = ((*next).cmsg_level, (*next).cmsg_type);
            if let (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) =
                kind
            {
                let data = libc::CMSG_DATA(next).cast::<libc::sock_extended_err>();
                let error = data.read_unaligned();
                let origins = [libc::SO_EE_ORIGIN_ICMP, libc::SO_EE_ORIGIN_ICMP6];
                let refused = libc::ECONNREFUSED.unsigned_abs();
                return error.ee_errno == refused && origins.contains(&error.ee_origin);
            }
            next = libc::CMSG_NXTHDR(header, next);
        }
    }
    false
}

/// Checks whether a socket call may have failed because of an ICMP error for an earlier datagram,
/// perhaps to another peer: the kernel reports each error once, to the next call.
pub(crate) fn is_of_earlier(error: &io::Error) -> bool {
    const REPORTED: &[c_int] = &[
        libc::EACCES,
        libc::ECONNREFUSED,
        libc::EHOSTDOWN,
        libc::EHOSTUNREACH,
        libc::EMSGSIZE,
        libc::ENETUNREACH,
        libc::ENONET,
        libc::ENOPROTOOPT,
        libc::EOPNOTSUPP,
        libc::EPROTO,
    ];
    error.raw_os_error().is_some_and(|e| REPORTED.contains(&e))
}

/// Extracts the metadata of a received message.
fn describe(message: &libc::mmsghdr) -> Option<Received> {
    let header = &message.msg_hdr;
    if header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
        return None;
    }
    let bytes = message.msg_len as usize;
    let mut received = Received {
        // SAFETY: the kernel wrote an address of the named family there, or left the zeros of no
        // family.
        peer: unsafe { address(&*header.msg_name.cast::<libc::sockaddr_storage>()) }?,
        local: None,
        bytes,
        segment: bytes,
        dropped: None,
    };
    // SAFETY: the kernel left a chain of control messages in the block, and set its length.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !next.is_null() {
        // SAFETY: `next` is a control message within the block, complete with its data, whose type
        // follows from its level and type.
        unsafe {
            let data = libc::CMSG_DATA(next);
            match ((*next).cmsg_level, (*next).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                    let octets = info.ipi_addr.s_addr.to_ne_bytes();
                    received.local = Some(Ipv4Addr::from(octets).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                    received.local = Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                }
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    let segment = data.cast::<c_int>().read_unaligned();
                    received.segment = usize::try_from(segment).unwrap_or(bytes).max(1);
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                    received.dropped = Some(data.cast::<u32>().read_unaligned());
                }
                _ => {}
            }
            next = libc::CMSG_NXTHDR(header, next);
        }
    }
    Some(received)
}

/// Number of attempts for a send that fails with an earlier datagram's error.
const TRIES: usize = 3;

/// Sends the bytes of `slices`, as one datagram or segmented into datagrams of `segment` bytes,
/// without blocking.
pub(crate) fn send(
    fd: BorrowedFd<'_>,
    to: SocketAddr,
    from: Option<IpAddr>,
    segment: Option<u16>,
    slices: &[IoSlice<'_>],
) -> io::Result<usize> {
    let mut sent = send_once(fd, to, from, segment, slices);
    for _ in 1..TRIES {
        match &sent {
            Err(error) if is_of_earlier(error) => {
                sent = send_once(fd, to, from, segment, slices);
            }
            _ => break,
        }
    }
    sent
}

fn send_once(
    fd: BorrowedFd<'_>,
    to: SocketAddr,
    from: Option<IpAddr>,
    segment: Option<u16>,
    slices: &[IoSlice<'_>],
) -> io::Result<usize> {
    let (mut name, name_bytes) = storage(to);
    let mut control = Control([0; CONTROL_BYTES]);
    // SAFETY: all zeros are a valid `msghdr`: null pointers of length 0.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = name_bytes;
    header.msg_iov = slices.as_ptr().cast_mut().cast();
    header.msg_iovlen = slices.len();
    let mut used = 0;
    match (from, to) {
        (Some(IpAddr::V4(from)), SocketAddr::V4(_)) => {
            let info = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: in_addr(from),
                ipi_addr: in_addr(Ipv4Addr::UNSPECIFIED),
            };
            used += control.push(used, libc::IPPROTO_IP, libc::IP_PKTINFO, info);
        }
        (Some(IpAddr::V6(from)), SocketAddr::V6(_)) => {
            let info = libc::in6_pktinfo {
                ipi6_addr: in6_addr(from),
                ipi6_ifindex: 0,
            };
            used += control.push(used, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
        }
        _ => {}
    }
    if let Some(segment) = segment {
        used += control.push(used, libc::SOL_UDP, libc::UDP_SEGMENT, segment);
    }
    if used > 0 {
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = used;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: name, control block and slices live until the call returns; `IoSlice` has the layout
    // of `iovec`, and the kernel only reads through it.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const header, flags) };
    check(sent.try_into())
}

impl Control {
    /// Appends a control message after the first `used` bytes; returns its length in bytes.
    fn push<T: Copy>(&mut self, used: usize, level: c_int, kind: c_int, value: T) -> usize {
        let bytes = size_of::<T>() as libc::c_uint;
        // SAFETY: these only compute with lengths.
        let (space, length) = unsafe { (libc::CMSG_SPACE(bytes), libc::CMSG_LEN(bytes)) };
        let message = &mut self.0[used..used + space as usize];
        let head = libc::cmsghdr {
            cmsg_len: length as usize,
            cmsg_level: level,
            cmsg_type: kind,
        };
        // SAFETY: the slice has room for a header and, `CMSG_LEN(0)` bytes into it, for the value.
        unsafe {
            let start = message.as_mut_ptr();
            start.cast::<libc::cmsghdr>().write_unaligned(head);
            let data = start.add(libc::CMSG_LEN(0) as usize);
            data.cast::<T>().write_unaligned(value);
        }
        space as usize
    }
}

const fn in_addr(address: Ipv4Addr) -> libc::in_addr {
    libc::in_addr {
        s_addr: u32::from_ne_bytes(address.octets()),
    }
}

const fn in6_addr(address: Ipv6Addr) -> libc::in6_addr {
    libc::in6_addr {
        s6_addr: address.octets(),
    }
}

/// Converts an address to the kernel's form.
fn storage(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all zeros are a valid `sockaddr_storage`, of no family.
    let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
    let place = &raw mut storage;
    let bytes = match address {
        SocketAddr::V4(v4) => {
            let name = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: in_addr(*v4.ip()),
                sin_zero: [0; 8],
            };
            // SAFETY: `sockaddr_storage` is as large as any address, and aligned for each.
            unsafe { place.cast::<libc::sockaddr_in>().write(name) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let name = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: in6_addr(*v6.ip()),
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { place.cast::<libc::sockaddr_in6>().write(name) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, bytes as libc::socklen_t)
}

/// Converts an address from the kernel's form; `None` if it is not an IP address.
///
/// # Safety
/// `storage` must hold an address of the family that it names.
unsafe fn address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let place = &raw const *storage;
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: guaranteed by the caller.
            let name = unsafe { &*place.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes());
            let port = u16::from_be(name.sin_port);
            Some(SocketAddrV4::new(ip, port).into())
        }
        libc::AF_INET6 => {
            // SAFETY: guaranteed by the caller.
            let name = unsafe { &*place.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
            let port = u16::from_be(name.sin6_port);
            let (flow, scope) = (name.sin6_flowinfo, name.sin6_scope_id);
            Some(SocketAddrV6::new(ip, port, flow, scope).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn addresses_go_to_the_kernel_and_back() {
        for text in ["192.0.2.7:7000", "[2001:db8::7%3]:7001", "[::1]:1"] {
            let there: SocketAddr = text.parse().unwrap();
            let (storage, _) = storage(there);
            // SAFETY: it was made from an address of its family.
            assert_eq!(unsafe { address(&storage) }, Some(there));
        }
    }

    #[test]
    fn a_closed_port_is_reported_once_with_its_address_and_what_was_sent() {
        use rustix::event::{PollFd, PollFlags, poll};
        for (local, level, option) in [
            ("127.0.0.1:0", libc::IPPROTO_IP, libc::IP_RECVERR),
            ("[::1]:0", libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
        ] {
            let socket = UdpSocket::bind(local).unwrap();
            set(socket.as_fd(), level, option, 1).unwrap();
            let open = UdpSocket::bind(local).unwrap();
            let closed = UdpSocket::bind(local).unwrap().local_addr().unwrap();
            let is_quiet = || {
                let mut ready = [PollFd::new(&socket, PollFlags::IN)];
                poll(&mut ready, Some(&rustix::time::Timespec::default())).unwrap();
                ready[0].revents().is_empty()
            };
            assert!(is_quiet());
            let bytes = [IoSlice::new(b"some bytes")];
            send(socket.as_fd(), closed, None, None, &bytes).unwrap();
            while is_quiet() {
                std::thread::yield_now();
            }
            // A datagram to another peer is still sent.
            let other = open.local_addr().unwrap();
            assert_eq!(send(socket.as_fd(), other, None, None, &bytes).unwrap(), 10);
            let refused = take_error(socket.as_fd()).unwrap().unwrap();
            assert_eq!(refused.peer, closed);
            assert_eq!(refused.quoted(), b"some bytes");
            let error = take_error(socket.as_fd()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            assert!(is_quiet(), "an error that was taken keeps nobody awake");
        }
    }

    #[test]
    fn a_cut_send_arrives_in_pieces_with_both_addresses() {
        let receiver = UdpSocket::bind("0.0.0.0:0").unwrap();
        let sender = UdpSocket::bind("0.0.0.0:0").unwrap();
        set(receiver.as_fd(), libc::IPPROTO_IP, libc::IP_PKTINFO, 1).unwrap();
        set(receiver.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).unwrap();
        let port = receiver.local_addr().unwrap().port();
        let to: SocketAddr = ([127, 0, 0, 9], port).into();
        let from: IpAddr = [127, 0, 0, 8].into();
        let (first, second) = ([1; 150], [2; 100]);
        let slices = [IoSlice::new(&first), IoSlice::new(&second)];
        let sent = send(sender.as_fd(), to, Some(from), Some(100), &slices).unwrap();
        assert_eq!(sent, 250);
        let (mut pieces, mut memory) = (Vec::new(), vec![vec![0; 65_536]; 4]);
        let mut room = Receiver::new(4);
        while pieces.iter().map(Vec::len).sum::<usize>() < 250 {
            let mut received = Vec::new();
            let buffers = memory.iter_mut().map(Vec::as_mut_slice);
            match room.receive(receiver.as_fd(), buffers, &mut received) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                result => result.unwrap(),
            }
            for (received, memory) in received.iter().flatten().zip(&memory) {
                assert_eq!(received.peer.ip(), from);
                assert_eq!(received.local, Some(to.ip()));
                let datagrams = memory[..received.bytes].chunks(received.segment);
                pieces.extend(datagrams.map(<[u8]>::to_vec));
            }
        }
        let lengths: Vec<usize> = pieces.iter().map(Vec::len).collect();
        assert_eq!(lengths, [100, 100, 50]);
        assert_eq!(pieces.concat(), [&first[..], &second[..]].concat());
    }
}
