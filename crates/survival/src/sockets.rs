//! Bytes that a stream socket has transferred, as the kernel counts them: exact also if the process was
//! killed in the middle of a system call.
//!
//! The offset for peeking (`SO_PEEK_OFF`) goes down by each byte that is received, so a large one
//! counts these bytes. Unix sockets have it in all kernels, TCP since Linux 6.9. The bytes sent by TCP
//! are those acknowledged and those in the queue.

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd};

/// The largest offset.
const FULL: i32 = i32::MAX;

/// Begins to count received bytes at zero.
///
/// # Errors
/// The kernel cannot do this with such a socket.
pub fn count_received(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd().as_raw_fd();
    let value = FULL;
    // SAFETY: the option has the size of an int, which is read.
    let set = unsafe {
        let at = (&raw const value).cast();
        let len = size_of::<i32>() as libc::socklen_t;
        libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_PEEK_OFF, at, len)
    };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Checks that received bytes of TCP sockets can be counted.
///
/// # Errors
/// Linux is older than 6.9.
pub fn can_count_tcp() -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketType, socket};
    let one = |family| socket(family, SocketType::STREAM, None);
    let any = one(AddressFamily::INET).or_else(|_| one(AddressFamily::INET6))?;
    count_received(any)
}

/// Returns the number of bytes received since the count began; exact below 2 GiB.
///
/// # Errors
/// The bytes are not counted.
pub fn received(socket: impl AsFd) -> io::Result<u64> {
    let mut value = 0i32;
    get(socket, libc::SOL_SOCKET, libc::SO_PEEK_OFF, &mut value)?;
    match u32::try_from(value) {
        Ok(left) => Ok(u64::from(FULL as u32 - left)),
        // It is -1 where nothing is counted.
        Err(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Returns the number of bytes that were sent through a TCP socket, from a fixed number on: the side
/// that connected has sent one byte for that.
///
/// # Errors
/// It is no connected TCP socket.
pub fn sent(socket: impl AsFd) -> io::Result<u64> {
    loop {
        let before = acknowledged(&socket)?;
        let mut queued = 0i32;
        // SAFETY: the request stores an int.
        let done = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &mut queued) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        if acknowledged(&socket)? == before {
            return Ok(before + queued as u64);
        }
    }
}

/// The beginning of the kernel's `struct tcp_info`, from `include/uapi/linux/tcp.h`.
#[repr(C)]
#[derive(Clone, Copy)]
struct TcpInfo {
    bytes: [u8; 8],
    words: [u32; 24],
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
}

const _: () = assert!(offset_of!(TcpInfo, bytes_acked) == 120);

fn acknowledged(socket: impl AsFd) -> io::Result<u64> {
    let mut info = TcpInfo {
        bytes: [0; 8],
        words: [0; 24],
        pacing_rate: 0,
        max_pacing_rate: 0,
        bytes_acked: 0,
    };
    get(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    Ok(info.bytes_acked)
}

/// Reads an option, all of `into`, of which any bytes are valid.
fn get<T: Copy>(socket: impl AsFd, level: i32, name: i32, into: &mut T) -> io::Result<()> {
    let socket = socket.as_fd().as_raw_fd();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `into` has room for `len` bytes, and both uses fill plain integers.
    let got = unsafe { libc::getsockopt(socket, level, name, (&raw mut *into).cast(), &mut len) };
    match got {
        0 if len as usize == size_of::<T>() => Ok(()),
        0 => Err(io::ErrorKind::Unsupported.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    fn count(mut from: impl Write, mut to: impl Read + AsFd) {
        from.write_all(&[1; 1000]).unwrap();
        to.read_exact(&mut [0; 100]).unwrap();
        assert!(received(&to).is_err(), "nothing is counted yet");
        count_received(&to).unwrap();
        assert_eq!(received(&to).unwrap(), 0);
        for part in [1, 300, 599] {
            to.read_exact(&mut vec![0; part]).unwrap();
        }
        assert_eq!(received(&to).unwrap(), 900);
        count_received(&to).unwrap();
        assert_eq!(received(&to).unwrap(), 0);
    }

    fn tcp() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn received_bytes_are_counted() {
        let (from, to) = UnixStream::pair().unwrap();
        count(from, to);
        let (from, to) = tcp();
        count(from, to);
    }

    #[test]
    fn sent_bytes_are_counted_while_they_wait_and_when_they_have_arrived() {
        let (mut from, mut to) = tcp();
        let before = sent(&from).unwrap();
        from.set_nonblocking(true).unwrap();
        let mut total = before;
        while let Ok(count) = from.write(&[1; 70_000]) {
            total += count as u64;
        }
        assert_eq!(sent(&from).unwrap(), total);
        to.read_exact(&mut vec![0; (total - before) as usize])
            .unwrap();
        assert_eq!(sent(&from).unwrap(), total);
        let (unix, _other) = UnixStream::pair().unwrap();
        assert!(sent(&unix).is_err());
    }
}
