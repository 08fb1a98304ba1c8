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
pub(crate) enum Socket {
    Plain(Raw),
    Tls(Box<ServerConnection>, Raw),
}

impl Socket {
    pub(crate) fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Plain(raw) => raw.read(out),
            Socket::Tls(tls, raw) => loop {
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
            },
        }
    }

    /// Sends as much as the socket accepts now; TLS may hold back part of it, see
    /// [`Socket::wants_write`].
    pub(crate) fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        self.push()?;
        match self {
            Socket::Plain(raw) => raw.write_vectored(data),
            Socket::Tls(tls, raw) => {
                let taken = tls.writer().write_vectored(data)?;
                match drain(tls, raw) {
                    Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
                    _ if taken == 0 => Err(io::ErrorKind::WouldBlock.into()),
                    _ => Ok(taken),
                }
            }
        }
    }

    /// Reports whether accepted bytes have not been sent yet (TLS holds records back).
    pub(crate) fn wants_write(&self) -> bool {
        match self {
            Socket::Plain(_) => false,
            Socket::Tls(tls, _) => tls.wants_write(),
        }
    }

    /// Sends the data that TLS holds back, as far as the socket accepts it.
    pub(crate) fn push(&mut self) -> io::Result<()> {
        match self {
            Socket::Plain(_) => Ok(()),
            Socket::Tls(tls, raw) => drain(tls, raw),
        }
    }

    /// Sends an end-of-data notice, if the protocol has one; returns whether it has.
    pub(crate) fn send_close_notify(&mut self) -> bool {
        match self {
            Socket::Plain(_) => false,
            Socket::Tls(tls, _) => {
                tls.send_close_notify();
                true
            }
        }
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

    /// Adds TLS to a plain socket.
    pub(crate) fn into_tls(self, connection: ServerConnection) -> Socket {
        match self {
            Socket::Plain(raw) => Socket::Tls(Box::new(connection), raw),
            tls @ Socket::Tls(..) => tls,
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Plain(raw) | Socket::Tls(_, raw) => raw.as_fd(),
        }
    }
}

fn drain(tls: &mut ServerConnection, raw: &mut Raw) -> io::Result<()> {
    while tls.wants_write() {
        tls.write_tls(raw)?;
    }
    Ok(())
}
