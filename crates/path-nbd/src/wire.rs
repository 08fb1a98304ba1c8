//! A non-blocking stream to a server: a socket, or TLS over one.

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use rustls::ClientConnection;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A socket, non-blocking.
#[derive(Debug)]
pub(crate) struct Socket(pub(crate) OwnedFd);

impl Read for &Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let (read, _) = rustix::net::recv(&self.0, bytes, RecvFlags::empty())?;
        Ok(read)
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The stream.
pub(crate) struct Wire {
    socket: Socket,
    tls: Option<Box<ClientConnection>>,
}

impl Wire {
    pub(crate) fn new(socket: Socket, tls: Option<Box<ClientConnection>>) -> Wire {
        Wire { socket, tls }
    }

    /// The same socket, from here on under TLS.
    pub(crate) fn with_tls(self, tls: Box<ClientConnection>) -> Wire {
        Wire::new(self.socket, Some(tls))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.0.as_fd()
    }

    /// Sends what the socket takes now and says how many bytes that was.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when it takes nothing, and what the socket says.
    pub(crate) fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            let mut control = SendAncillaryBuffer::default();
            let sent =
                rustix::net::sendmsg(&self.socket.0, slices, &mut control, SendFlags::NOSIGNAL)?;
            return Ok(sent);
        };
        drain(tls, &self.socket)?;
        let taken = tls.writer().write_vectored(slices)?;
        match drain(tls, &self.socket) {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
            _ if taken == 0 => Err(Errno::AGAIN.into()),
            _ => Ok(taken),
        }
    }

    /// Sends last words, and lets the kernel deliver them after the close.
    pub(crate) fn leave(&mut self, words: &[u8]) {
        let _ = rustix::net::sockopt::set_socket_linger(&self.socket.0, None);
        let _ = self.send(&[IoSlice::new(words)]);
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether bytes that [`Wire::send`] took are still here.
    pub(crate) fn holds_output(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Sends what an earlier [`Wire::send`] took.
    pub(crate) fn push(&mut self) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => drain(tls, &self.socket),
            None => Ok(()),
        }
    }

    /// Fills the slices in order, as far as bytes are there; 0 at the end of the stream.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there are none, and what the socket says.
    pub(crate) fn recv(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return Ok(rustix::io::readv(&self.socket.0, slices)?);
        };
        loop {
            match tls.reader().read_vectored(slices) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            if tls.read_tls(&mut &self.socket)? == 0 {
                return Ok(0);
            }
            let state = tls.process_new_packets();
            state.map_err(|e| io::Error::new(io::ErrorKind::ConnectionAborted, e))?;
        }
    }
}

fn drain(tls: &mut ClientConnection, socket: &Socket) -> io::Result<()> {
    while tls.wants_write() {
        tls.write_tls(&mut &*socket)?;
    }
    Ok(())
}
