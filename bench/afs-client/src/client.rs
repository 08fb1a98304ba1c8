//! A client: reads through its cache, and the way it makes calls.

use crate::cache::{CHUNK, CallStamp, Chunk};
use crate::error::{Error, Result};
use crate::net::{CallbackObserver, CallbackState, Line};
use afs_proto::dir::Directory;
use afs_proto::fs::{AfsFetchStatus, FileType, Request};
use afs_proto::{Abort, AfsFid, Uuid, to_bytes};
use rx::{Connection, Timeouts};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Largest size of a directory in bytes: 1,023 pages.
const DIRECTORY_BYTES_MAX: u64 = 1023 * 2048;

/// Pause before a call that a server could not answer is retried.
const PAUSE: Duration = Duration::from_millis(10);

/// Settings of a client.
pub struct Options {
    /// Largest number of cached data bytes.
    pub cache_bytes_max: usize,
    /// Time limits of its calls.
    pub timeouts: Timeouts,
    /// Time for which idempotent calls (reads, stores) are retried while the server is down,
    /// restarts or is busy.
    pub retry_time: Duration,
    /// Observer of the calls that servers make to the client.
    pub observer: Option<CallbackObserver>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            cache_bytes_max: 16 << 20,
            timeouts: Timeouts::default(),
            retry_time: Duration::ZERO,
            observer: None,
        }
    }
}

/// A client of one file server. It may be shared by many threads.
pub struct Client {
    files: Connection,
    pub(crate) callback_state: Arc<CallbackState>,
    retry_time: Duration,
    address: SocketAddr,
    line: Arc<Line>,
}

impl Client {
    pub(crate) fn new(
        line: Arc<Line>,
        address: Ipv4Addr,
        server: SocketAddr,
        (timeouts, patience): (Timeouts, Duration),
        heard: Arc<CallbackState>,
    ) -> Client {
        Client {
            files: line.connect(address, server, afs_proto::fs::SERVICE, timeouts),
            callback_state: heard,
            retry_time: patience,
            address: (address, line.port()).into(),
            line,
        }
    }

    /// Returns the address and port of the client.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the UUID that the client reports to servers.
    pub fn uuid(&self) -> Uuid {
        self.callback_state.uuid
    }

    /// Returns the counters of its port, which other clients may share.
    pub fn port_stats(&self) -> rx::PortStats {
        self.line.stats()
    }

    /// Returns the connection to the file server, for calls without a method here.
    pub fn connection(&self) -> &Connection {
        &self.files
    }

    /// Returns the number of files covered by promises, and the bytes of cached data.
    pub fn cached(&self) -> (usize, usize) {
        self.callback_state.cache.count()
    }

    /// Drops one file from the cache, as `fs flush FILE` does.
    pub fn forget(&self, fid: AfsFid) {
        self.callback_state.cache.forget(fid);
    }

    /// Drops everything from the cache.
    pub fn flush(&self) {
        self.callback_state.cache.flush();
    }

    /// Returns the status of a file, from the cache if a promise holds.
    ///
    /// # Errors
    /// Those of a call.
    pub fn status(&self, fid: AfsFid) -> Result<AfsFetchStatus> {
        match self.callback_state.cache.status(fid) {
            Some(status) => Ok(status),
            None => Ok(self.fetch_status(fid)?.0),
        }
    }

    /// Reads up to `length` bytes from `position` on, fewer at the end of the file, chunk
    /// by chunk, each from the cache if a promise holds.
    /// cache if a promise holds.
    ///
    /// # Errors
    /// Those of a call.
    pub fn read(&self, fid: AfsFid, position: u64, length: u64) -> Result<Vec<u8>> {
        let end = position.saturating_add(length);
        let (mut at, mut all) = (position, Vec::new());
        while at < end {
            let number = at / CHUNK;
            let (chunk, status) = self.chunk(fid, number, CHUNK)?;
            let first = number * CHUNK;
            let until = end.min(first + chunk.len() as u64);
            if at < until {
                let range = (at - first) as usize..(until - first) as usize;
                all.extend_from_slice(&chunk[range]);
                at = until;
            }
            if at >= status.length || (chunk.len() as u64) < CHUNK {
                break;
            }
        }
        Ok(all)
    }

    fn chunk(&self, fid: AfsFid, number: u64, bytes: u64) -> Result<(Chunk, AfsFetchStatus)> {
        let cache = &self.callback_state.cache;
        if cache.has(fid, number) {
            // Without a promise the chunk is valid as long as the version is the same.
            self.status(fid)?;
        }
        if let Some(found) = cache.chunk(fid, number) {
            return Ok(found);
        }
        let (data, status, _) = self.fetch_data(fid, number * CHUNK, bytes)?;
        let chunk = Arc::new(data);
        cache.insert_chunk(fid, &status, number, &chunk);
        Ok((chunk, status))
    }

    /// Reads the pages of a directory, in the format of [`afs_proto::dir`].
    ///
    /// # Errors
    /// Those of a call.
    pub fn directory(&self, fid: AfsFid) -> Result<Arc<Vec<u8>>> {
        Ok(self.chunk(fid, 0, DIRECTORY_BYTES_MAX)?.0)
    }

    /// Looks up the file that a name in a directory refers to.
    ///
    /// # Errors
    /// [`Error::NoEntry`], [`Error::Nonsense`], those of a call.
    pub fn find(&self, directory: AfsFid, name: &str) -> Result<AfsFid> {
        let pages = self.directory(directory)?;
        let entries =
            Directory::verify(&pages).map_err(|_| Error::Nonsense("an invalid directory"))?;
        let found = entries.lookup(name.as_bytes());
        let fid = found.ok_or_else(|| Error::NoEntry(name.to_owned()))?;
        Ok(fid.within(directory.volume))
    }

    /// Finds the file that a path refers to, relative to a directory: names separated by slashes.
    ///
    /// # Errors
    /// As for [`find`](Client::find); [`Error::NoEntry`] if a name on the way is not a directory.
    pub fn walk(&self, from: AfsFid, path: &str) -> Result<AfsFid> {
        let mut at = from;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            if self.status(at)?.file_type != FileType::Directory {
                return Err(Error::NoEntry(path.to_owned()));
            }
            at = self.find(at, name)?;
        }
        Ok(at)
    }

    /// Writes bytes into a file, which grows to hold them; the server has them when this returns.
    ///
    /// # Errors
    /// Those of a call.
    pub fn write(&self, fid: AfsFid, position: u64, data: &[u8]) -> Result<AfsFetchStatus> {
        let length = self.status(fid)?.length;
        let end = position.saturating_add(data.len() as u64);
        self.store_data(fid, position, data, length.max(end))
    }

    pub(crate) fn stamp(&self) -> CallStamp {
        self.callback_state.cache.stamp()
    }

    /// Makes a call: sends the request and the data after it, and returns at most `most` bytes of
    /// the reply. Retries idempotent calls.
    pub(crate) fn call(&self, request: &Request<'_>, data: &[u8], most: usize) -> Result<Vec<u8>> {
        let until = Instant::now() + self.retry_time;
        loop {
            let error = match self.exchange(to_bytes(request), data, most) {
                Err(error) if is_harmless(request) && may_pass(&error) => error,
                done => return done,
            };
            if Instant::now() >= until {
                return Err(error);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Makes a call with arbitrary bytes, once: sends them, and returns at most `most` bytes of the
    /// reply.
    ///
    /// # Errors
    /// The server's code; [`Error::Broken`].
    pub fn exchange(&self, head: Vec<u8>, data: &[u8], most: usize) -> Result<Vec<u8>> {
        let mut call = self.files.call()?;
        call.write(head)?;
        data.chunks(1 << 20).try_for_each(|part| call.write(part))?;
        call.finish()?;
        Ok(call.read_to_end(most)?)
    }
}

/// Checks whether a call is idempotent. Creating or removing a name a second time has a different
/// result.
fn is_harmless(request: &Request<'_>) -> bool {
    !matches!(
        request,
        Request::CreateFile { .. }
            | Request::MakeDir { .. }
            | Request::Symlink { .. }
            | Request::Link { .. }
            | Request::RemoveFile { .. }
            | Request::RemoveDir { .. }
            | Request::Rename { .. }
            | Request::SetLock { .. }
            | Request::ReleaseLock { .. }
    )
}

/// Checks whether a retry may succeed.
fn may_pass(error: &Error) -> bool {
    match error {
        Error::Abort(code) => matches!(*code, Abort::VRESTARTING | Abort::VBUSY),
        Error::Broken(error) => !matches!(error, rx::Error::Stopped),
        _ => false,
    }
}
