//! Input of a connection that is not received in its place.

use crate::socket::Socket;
use std::io;

/// Bytes received at once when a header is expected: several headers, or a header and a small
/// payload. The rest of a large payload is received directly into its buffer.
const HEAD_BYTES: usize = 8 * 1024;
/// Maximum bytes buffered of an unfinished negotiation.
const HANDSHAKE_BYTES_MAX: usize = 128 * 1024;

/// Received bytes that are not payload in its place: requests, the negotiation, and the beginning of
/// a payload.
#[derive(Default)]
pub(super) struct Input {
    /// All of it is initialized, so that receiving does not zero it each time.
    bytes: Vec<u8>,
    /// Bytes before this offset have been processed.
    used: usize,
    /// Bytes before this offset have been received.
    filled: usize,
    /// The last receive emptied the socket. The epoll is level-triggered: it reports later input.
    is_drained: bool,
}

/// Result of [`Input::fill`].
pub(super) enum Filled {
    Some,
    /// No input is available now.
    NotNow,
    End,
}

impl Input {
    /// Returns the bytes that have not been processed.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.used..self.filled]
    }

    /// Reports that the socket may have input: something was received past this buffer.
    pub(super) fn was_bypassed(&mut self) {
        self.is_drained = false;
    }

    /// Marks bytes as processed.
    pub(super) fn consume(&mut self, len: usize) {
        self.used += len;
    }

    /// Receives more bytes.
    pub(super) fn fill(&mut self, socket: &mut Socket) -> io::Result<Filled> {
        if std::mem::take(&mut self.is_drained) {
            return Ok(Filled::NotNow);
        }
        self.bytes.copy_within(self.used..self.filled, 0);
        self.filled -= std::mem::take(&mut self.used);
        if self.filled >= HANDSHAKE_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the negotiation is too long",
            ));
        }
        let end = self.filled + HEAD_BYTES;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        match socket.read(&mut self.bytes[self.filled..end]) {
            Ok(0) => Ok(Filled::End),
            Ok(got) => {
                self.filled += got;
                self.is_drained = got < HEAD_BYTES && !socket.has_tls();
                Ok(Filled::Some)
            }
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(Filled::NotNow)
            }
            Err(e) => Err(e),
        }
    }
}
