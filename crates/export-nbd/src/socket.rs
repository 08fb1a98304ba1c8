//! Non-blocking client socket, plain or with TLS.

use rustls::ServerConnection;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// A connected socket.
pub(crate) enum Raw {
    Unix(UnixStream),
    Tcp(TcpStream),
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
}

impl Socket {
    /// Creates a plain socket.
    pub(crate) fn new(raw: Raw) -> Socket {
        Socket { raw, tls: None }
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

    /// Sends as much as the socket accepts now; TLS may hold back part of it, see
    /// [`Socket::wants_write`].
    pub(crate) fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        self.push()?;
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

    /// Reports whether accepted bytes have not been sent yet (TLS holds records back).
    pub(crate) fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Sends the data that TLS holds back, as far as the socket accepts it.
    pub(crate) fn push(&mut self) -> io::Result<()> {
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
