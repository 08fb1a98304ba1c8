//! A client's socket, plain or under TLS, that never blocks.

use rustix::net::{SendAncillaryBuffer, SendFlags};
use rustls::{ServerConnection, Stream};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
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
        Ok(rustix::io::read(&*self, out)?)
    }
}

impl Write for Raw {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(data)])
    }

    /// Without a signal when the client is gone, whatever the process does about SIGPIPE.
    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut nothing = SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(
            &*self,
            data,
            &mut nothing,
            SendFlags::NOSIGNAL,
        )?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket, with or without TLS over it.
pub(crate) struct Socket {
    raw: Raw,
    tls: Option<Box<ServerConnection>>,
}

impl Socket {
    pub(crate) fn new(raw: Raw) -> Socket {
        Socket { raw, tls: None }
    }

    /// Puts TLS over it.
    pub(crate) fn start_tls(&mut self, connection: ServerConnection) {
        self.tls = Some(Box::new(connection));
    }

    /// Whether a read that gives less than it was asked for has emptied the socket. TLS gives one
    /// record at a time.
    pub(crate) fn short_read_is_empty(&self) -> bool {
        self.tls.is_none()
    }

    /// Fills the slices in turn; with TLS only the first of them.
    pub(crate) fn read_vectored(&mut self, out: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match (&mut self.tls, out) {
            (None, out) => Ok(rustix::io::readv(&self.raw, out)?),
            (Some(tls), [first, ..]) => Stream::new(&mut **tls, &mut self.raw).read(first),
            (Some(_), []) => Ok(0),
        }
    }

    pub(crate) fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.raw.write_vectored(data),
            Some(tls) => Stream::new(&mut **tls, &mut self.raw).write_vectored(data),
        }
    }

    /// Whether bytes that were taken have not been sent yet (TLS holds records back).
    pub(crate) fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Sends what TLS holds back, as far as the socket takes it.
    pub(crate) fn push(&mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() {
                tls.write_tls(&mut self.raw)?;
            }
        }
        Ok(())
    }

    /// Says goodbye, as far as the socket takes it ("shut down the TLS session").
    pub(crate) fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _ = self.push();
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.raw.as_fd()
    }
}
