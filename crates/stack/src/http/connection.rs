//! The connection of a client: one request and one response, each with a time limit for all of its
//! reads or writes together.

use super::message::{Method, Request, Response, Status};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Time limit for a request, and for a response.
const CLIENT_TIME: Duration = Duration::from_secs(5);
/// Longest head of a request, in bytes.
pub(super) const HEAD_BYTES_MAX: usize = 8 << 10;
/// Longest body of a request, in bytes.
const BODY_BYTES_MAX: usize = 1 << 10;

/// A connected socket.
pub(super) enum Connection {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Connection {
    /// Reads a request, or returns the status with which it is refused.
    ///
    /// # Errors
    /// The client closed the connection, or was too slow.
    pub(super) fn request(&self) -> io::Result<Result<Request, Status>> {
        let mut timed = Timed::new(self);
        let mut bytes = Vec::new();
        let (end, begin) = loop {
            if let Some(found) = end_of_head(&bytes) {
                break found;
            }
            if bytes.len() >= HEAD_BYTES_MAX {
                return Ok(Err(Status::HeadTooLarge));
            }
            if timed.read_more(&mut bytes)? == 0 {
                return Ok(Err(Status::BadRequest));
            }
        };
        let is_unix = matches!(self, Connection::Unix(_));
        let head = bytes.get(..end).unwrap_or_default();
        let Some(mut request) = Request::parse(head, is_unix) else {
            return Ok(Err(Status::BadRequest));
        };
        let length = match request.body_length() {
            None => return Ok(Err(Status::BadRequest)),
            Some(length) if length > BODY_BYTES_MAX => return Ok(Err(Status::ContentTooLarge)),
            Some(length) => length,
        };
        let mut body = bytes.split_off(begin);
        while body.len() < length {
            if timed.read_more(&mut body)? == 0 {
                return Ok(Err(Status::BadRequest));
            }
        }
        body.truncate(length);
        request.body = body;
        Ok(Ok(request))
    }

    /// Sends the response to a request with this method.
    ///
    /// # Errors
    /// The client closed the connection, or was too slow.
    pub(super) fn respond(&self, response: &Response, method: Method) -> io::Result<()> {
        let mut timed = Timed::new(self);
        timed.write_all(response.head().as_bytes())?;
        if method == Method::Head {
            return Ok(());
        }
        timed.write_all(response.body.bytes())
    }

    /// Ends all reads and writes of other threads.
    pub(super) fn close(&self) {
        // It fails only if the client has closed the connection.
        let _ = match self {
            Connection::Unix(stream) => stream.shutdown(Shutdown::Both),
            Connection::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    /// Limits the time of the next read or write.
    fn limit(&self, time: Duration) -> io::Result<()> {
        let time = Some(time);
        match self {
            Connection::Unix(stream) => {
                stream.set_read_timeout(time)?;
                stream.set_write_timeout(time)
            }
            Connection::Tcp(stream) => {
                stream.set_read_timeout(time)?;
                stream.set_write_timeout(time)
            }
        }
    }
}

/// Finds the empty line after the head of a request. Returns the positions after the last header
/// and after the empty line.
fn end_of_head(bytes: &[u8]) -> Option<(usize, usize)> {
    let find = |end: &[u8]| {
        let at = bytes.windows(end.len()).position(|window| window == end)?;
        Some((at, at + end.len()))
    };
    let (strict, lenient) = (find(b"\r\n\r\n"), find(b"\n\n"));
    strict.into_iter().chain(lenient).min()
}

/// A connection with a deadline for all of its reads and writes.
struct Timed<'a> {
    connection: &'a Connection,
    end: Instant,
}

impl Timed<'_> {
    fn new(connection: &Connection) -> Timed<'_> {
        Timed {
            connection,
            end: Instant::now() + CLIENT_TIME,
        }
    }

    /// Appends the next bytes, and returns their number; 0 at the end.
    fn read_more(&mut self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        let mut part = [0; 1024];
        let len = self.read(&mut part)?;
        bytes.extend_from_slice(part.get(..len).unwrap_or_default());
        Ok(len)
    }

    fn limit(&self) -> io::Result<()> {
        match self.end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => self.connection.limit(left),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.limit()?;
        match self.connection {
            Connection::Unix(stream) => {
                let mut stream = stream;
                stream.read(into)
            }
            Connection::Tcp(stream) => {
                let mut stream = stream;
                stream.read(into)
            }
        }
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.limit()?;
        match self.connection {
            Connection::Unix(stream) => {
                let mut stream = stream;
                stream.write(bytes)
            }
            Connection::Tcp(stream) => {
                let mut stream = stream;
                stream.write(bytes)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a request from a client that sends `parts` and then nothing more.
    fn sent(parts: &[&[u8]]) -> Result<Request, Status> {
        let (mut client, server) = UnixStream::pair().unwrap();
        for part in parts {
            client.write_all(part).unwrap();
        }
        client.shutdown(Shutdown::Write).unwrap();
        Connection::Unix(server).request().unwrap()
    }

    #[test]
    fn a_request_is_read_in_any_parts_and_without_what_follows() {
        let whole = b"POST /login HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcdef";
        for at in 0..whole.len() {
            let request = sent(&[&whole[..at], &whole[at..]]).unwrap();
            assert_eq!(request.body, b"abc");
            assert!(request.is_unix);
        }
        let plain = sent(&[b"GET / HTTP/1.0\n\nx\r\n\r\n"]).unwrap();
        assert_eq!((plain.method, plain.body), (Method::Get, Vec::new()));
    }

    #[test]
    fn sizes_are_limited_and_incomplete_requests_refused() {
        let post = |length: usize| {
            format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n").into_bytes()
        };
        for (bytes, status) in [
            (vec![b'x'; HEAD_BYTES_MAX], Status::HeadTooLarge),
            (post(BODY_BYTES_MAX + 1), Status::ContentTooLarge),
            (post(1), Status::BadRequest),
            (b"GET / HTTP/1.1\r\n".to_vec(), Status::BadRequest),
            (Vec::new(), Status::BadRequest),
        ] {
            assert_eq!(sent(&[&bytes]), Err(status));
        }
    }
}
