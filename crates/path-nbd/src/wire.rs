//! A non-blocking stream to a server: a socket, or TLS over a socket.

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use rustls::ClientConnection;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A non-blocking socket.
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

/// A stream to the server, plain or TLS.
pub(crate) struct Wire {
    socket: Socket,
    tls: Option<Box<ClientConnection>>,
}

impl Wire {
    pub(crate) fn new(socket: Socket, tls: Option<Box<ClientConnection>>) -> Wire {
        Wire { socket, tls }
    }

    /// Switches the stream to TLS on the same socket.
    pub(crate) fn with_tls(self, tls: Box<ClientConnection>) -> Wire {
        Wire::new(self.socket, Some(tls))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.0.as_fd()
    }

    /// Sends as much as the socket accepts and returns the number of bytes taken.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if the socket accepts nothing, and errors of the socket.
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

    /// Sends a final message and lets the kernel deliver it after the close.
    pub(crate) fn send_last(&mut self, words: &[u8]) {
        let _ = rustix::net::sockopt::set_socket_linger(&self.socket.0, None);
        let _ = self.send(&[IoSlice::new(words)]);
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Reports whether bytes taken by [`Wire::send`] are still buffered.
    pub(crate) fn holds_output(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Sends buffered bytes of an earlier [`Wire::send`].
    pub(crate) fn push(&mut self) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => drain(tls, &self.socket),
            None => Ok(()),
        }
    }

    /// Fills the slices in order with available bytes. Returns 0 at the end of the stream.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if no bytes are available, and errors of the socket.
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
