//! A client's socket, plain or under TLS, that never blocks.

use rustls::{ServerConnection, StreamOwned};
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

/// A socket, with or without TLS over it.
pub(crate) enum Socket {
    Plain(Raw),
    Tls(Box<StreamOwned<ServerConnection, Raw>>),
}

impl Socket {
    pub(crate) fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Plain(raw) => raw.read(out),
            Socket::Tls(stream) => stream.read(out),
        }
    }

    pub(crate) fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Plain(raw) => raw.write_vectored(data),
            Socket::Tls(stream) => stream.write_vectored(data),
        }
    }

    /// Whether bytes that were taken have not been sent yet (TLS holds records back).
    pub(crate) fn wants_write(&self) -> bool {
        match self {
            Socket::Plain(_) => false,
            Socket::Tls(stream) => stream.conn.wants_write(),
        }
    }

    /// Sends what TLS holds back, as far as the socket takes it.
    pub(crate) fn push(&mut self) -> io::Result<()> {
        match self {
            Socket::Plain(_) => Ok(()),
            Socket::Tls(stream) => {
                while stream.conn.wants_write() {
                    stream.conn.write_tls(&mut stream.sock)?;
                }
                Ok(())
            }
        }
    }

    /// Puts TLS over a plain socket.
    pub(crate) fn into_tls(self, connection: ServerConnection) -> Socket {
        match self {
            Socket::Plain(raw) => Socket::Tls(Box::new(StreamOwned::new(connection, raw))),
            tls @ Socket::Tls(_) => tls,
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Plain(raw) => raw.as_fd(),
            Socket::Tls(stream) => stream.sock.as_fd(),
        }
    }
}
