//! Non-blocking client socket, plain or with TLS.

use crate::step::step;
use rustix::pipe::{PipeFlags, SpliceFlags};
use rustls::ServerConnection;
use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// A connected socket.
pub(crate) enum Raw {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Raw {
    /// Takes over a socket of a predecessor.
    pub(crate) fn adopt(socket: OwnedFd) -> io::Result<Raw> {
        use rustix::net::{AddressFamily, sockopt};
        Ok(match sockopt::socket_domain(&socket)? {
            AddressFamily::UNIX => Raw::Unix(socket.into()),
            AddressFamily::INET | AddressFamily::INET6 => Raw::Tcp(socket.into()),
            _ => return Err(io::ErrorKind::Unsupported.into()),
        })
    }

    /// Returns the address of the client.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self {
            Raw::Unix(_) => None,
            Raw::Tcp(s) => s.peer_addr().ok().map(|address| address.ip()),
        }
    }

    /// Ends the connection, also if another process has the socket.
    pub(crate) fn shut_down(&self) -> io::Result<()> {
        match self {
            Raw::Unix(s) => s.shutdown(Shutdown::Both),
            Raw::Tcp(s) => s.shutdown(Shutdown::Both),
        }
    }
}

/// A pipe before a Unix socket, so that what the socket has taken is known: the rest is in the pipe.
pub(crate) struct Pipe {
    from: OwnedFd,
    to: OwnedFd,
    /// Bytes in it.
    len: usize,
}

/// Bytes of a pipe, if the system permits it.
const PIPE_BYTES: usize = 1 << 20;

impl Pipe {
    pub(crate) fn new() -> io::Result<Pipe> {
        let (from, to) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A refusal makes writes smaller.
        let _ = rustix::pipe::fcntl_setpipe_size(&to, PIPE_BYTES);
        Ok(Pipe { from, to, len: 0 })
    }

    /// Takes over the pipe of a predecessor.
    pub(crate) fn adopt(from: OwnedFd, to: OwnedFd) -> Pipe {
        let len = rustix::io::ioctl_fionread(&from).unwrap_or(0) as usize;
        Pipe { from, to, len }
    }

    /// Queries the number of bytes in it.
    pub(crate) fn len(&self) -> io::Result<usize> {
        Ok(rustix::io::ioctl_fionread(&self.from)? as usize)
    }

    /// Returns both ends, for a successor.
    pub(crate) fn ends(&self) -> [BorrowedFd<'_>; 2] {
        [self.from.as_fd(), self.to.as_fd()]
    }

    /// Moves its bytes to the socket, as far as it takes them.
    fn drain(&mut self, raw: &Raw) -> io::Result<()> {
        while self.len > 0 {
            let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
            let moved = rustix::pipe::splice(&self.from, None, raw, None, self.len, flags)?;
            if moved == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.len -= moved;
            step();
        }
        Ok(())
    }
}

impl AsFd for Raw {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Raw::Unix(s) => s.as_fd(),
            Raw::Tcp(s) => s.as_fd(),
        }
    }
}

impl Read for Raw {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Raw::Unix(s) => s.read(out),
            Raw::Tcp(s) => s.read(out),
        }
    }
}

impl Write for Raw {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self {
            Raw::Unix(s) => s.write(data),
            Raw::Tcp(s) => s.write(data),
        }
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Raw::Unix(s) => s.write_vectored(data),
            Raw::Tcp(s) => s.write_vectored(data),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket, plain or with TLS.
///
/// rustls' own stream is not used: when the socket accepts no data it receives while it sends, and
/// data that it has decrypted then is no longer in the socket, so no event would report it as
/// readable.
pub(crate) struct Socket {
    raw: Raw,
    tls: Option<Box<ServerConnection>>,
    pipe: Option<Pipe>,
}

impl Socket {
    /// Creates a plain socket that sends through a pipe, if there is one.
    pub(crate) fn new(raw: Raw, pipe: Option<Pipe>) -> Socket {
        Socket {
            raw,
            tls: None,
            pipe,
        }
    }

    pub(crate) fn raw(&self) -> &Raw {
        &self.raw
    }

    pub(crate) fn has_pipe(&self) -> bool {
        self.pipe.is_some()
    }

    /// Adds TLS.
    pub(crate) fn start_tls(&mut self, connection: ServerConnection) {
        self.tls = Some(Box::new(connection));
    }

    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub(crate) fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let raw = &mut self.raw;
        let Some(tls) = &mut self.tls else {
            return raw.read(out);
        };
        loop {
            match tls.reader().read(out) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            if tls.read_tls(raw)? == 0 {
                return Ok(0);
            }
            if let Err(e) = tls.process_new_packets() {
                // Sends the alert with the reason, as far as the socket accepts it.
                let _ = tls.write_tls(raw);
                return Err(io::Error::new(io::ErrorKind::InvalidData, e));
            }
        }
    }

    /// Sends as much as the socket accepts now; TLS or a pipe may hold back part of it, see
    /// [`Socket::wants_write`].
    pub(crate) fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        self.push()?;
        if let Some(pipe) = &mut self.pipe {
            let taken = rustix::io::writev(&pipe.to, data)?;
            step();
            pipe.len += taken;
            return Ok(taken);
        }
        let Some(tls) = &mut self.tls else {
            return self.raw.write_vectored(data);
        };
        let taken = tls.writer().write_vectored(data)?;
        match self.push() {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
            _ if taken == 0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(taken),
        }
    }

    /// Reports whether accepted bytes have not been sent yet.
    pub(crate) fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
            || self.pipe.as_ref().is_some_and(|pipe| pipe.len > 0)
    }

    /// Sends the data that TLS or a pipe holds back, as far as the socket accepts it.
    pub(crate) fn push(&mut self) -> io::Result<()> {
        if let Some(pipe) = &mut self.pipe {
            return pipe.drain(&self.raw);
        }
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() {
                tls.write_tls(&mut self.raw)?;
            }
        }
        Ok(())
    }

    /// Sends an end-of-data notice, if the protocol has one; returns whether it has.
    pub(crate) fn send_close_notify(&mut self) -> bool {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
        }
        self.tls.is_some()
    }

    /// Discards input; returns whether the input has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        let mut scratch = [0; 4096];
        loop {
            match self.read(&mut scratch) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return e.kind() != io::ErrorKind::WouldBlock,
            }
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.raw.as_fd()
    }
}
