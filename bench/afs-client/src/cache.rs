//! Cache of a client: statuses and chunks of data, valid while their callback promises hold.
//!
//! A caller takes a [`Cache::stamp`] before it makes a call. The result is cached under the promise
//! only if no promise was broken since: the break may concern the promise that is in flight.

use afs_proto::fs::AfsFetchStatus;
use afs_proto::{AfsCallBack, AfsFid, CallBackType};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Length in bytes of a chunk, which is fetched as a whole.
pub(crate) const CHUNK: u64 = 1 << 20;

/// Largest number of cached files; when it is reached, all are dropped.
const FILES_MAX: usize = 16_384;

/// Data of a file from a multiple of [`CHUNK`] on, shorter only at the end of the file.
pub(crate) type Chunk = Arc<Vec<u8>>;

pub(crate) struct Cache {
    known: Mutex<Known>,
    bytes_max: usize,
}

#[derive(Default)]
struct Known {
    files: HashMap<AfsFid, File>,
    bytes: usize,
    /// Number of server calls so far that broke promises.
    breaks: u64,
}

struct File {
    status: AfsFetchStatus,
    /// Time at which the promise expires; `None` without a promise.
    until: Option<Instant>,
    /// Data version of the chunks, and the chunks by number.
    version: u64,
    chunks: HashMap<u64, Chunk>,
}

/// Moment at which a call was made.
#[derive(Clone, Copy)]
pub(crate) struct CallStamp {
    breaks: u64,
    at: Instant,
}

impl Cache {
    pub(crate) fn new(bytes_max: usize) -> Cache {
        Cache {
            known: Mutex::default(),
            bytes_max,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stamp(&self) -> CallStamp {
        CallStamp {
            breaks: self.lock().breaks,
            at: Instant::now(),
        }
    }

    /// Looks up the status of a file, if a promise for it holds.
    pub(crate) fn status(&self, fid: AfsFid) -> Option<AfsFetchStatus> {
        let known = self.lock();
        let file = known.files.get(&fid)?;
        let holds = file.until.is_some_and(|until| Instant::now() < until);
        holds.then_some(file.status)
    }

    /// Checks whether a chunk is cached, of any version.
    pub(crate) fn has(&self, fid: AfsFid, number: u64) -> bool {
        let known = self.lock();
        let file = known.files.get(&fid);
        file.is_some_and(|file| file.chunks.contains_key(&number))
    }

    /// Looks up a chunk of a file with its matching status, if a promise holds.
    pub(crate) fn chunk(&self, fid: AfsFid, number: u64) -> Option<(Chunk, AfsFetchStatus)> {
        let status = self.status(fid)?;
        let known = self.lock();
        let file = known.files.get(&fid)?;
        if file.version != status.data_version {
            return None;
        }
        Some((Arc::clone(file.chunks.get(&number)?), status))
    }

    /// Caches the result of a call. Chunks of another version are dropped. The duration of a
    /// promise counts from the time of the call, so that it expires here before it does at the
    /// server; without a new promise the old one is kept.
    pub(crate) fn learn(
        &self,
        turn: CallStamp,
        fid: AfsFid,
        status: AfsFetchStatus,
        promise: Option<AfsCallBack>,
    ) {
        let mut known = self.lock();
        if known.breaks != turn.breaks {
            known.forget(fid);
            return;
        }
        if known.files.len() >= FILES_MAX && !known.files.contains_key(&fid) {
            known.clear();
        }
        let file = known.files.entry(fid).or_insert_with(|| File {
            status,
            until: None,
            version: status.data_version,
            chunks: HashMap::new(),
        });
        // An older reply that arrives late is ignored.
        if status.data_version >= file.status.data_version {
            file.status = status;
        }
        if let Some(promise) = promise {
            let seconds = Duration::from_secs(promise.expires.into());
            let is_one = promise.kind == CallBackType::Shared;
            file.until = is_one.then(|| turn.at + seconds);
        }
        if file.version != file.status.data_version {
            let gone: usize = file.chunks.drain().map(|(_, chunk)| chunk.len()).sum();
            file.version = file.status.data_version;
            known.bytes -= gone;
        }
    }

    /// Caches a chunk if its version matches `status`, after [`learn`](Cache::learn).
    pub(crate) fn insert_chunk(
        &self,
        fid: AfsFid,
        status: &AfsFetchStatus,
        number: u64,
        chunk: &Chunk,
    ) {
        let mut known = self.lock();
        if known.bytes + chunk.len() > self.bytes_max {
            known.clear_data();
        }
        let Some(file) = known.files.get_mut(&fid) else {
            return;
        };
        if file.version == status.data_version {
            let before = file.chunks.insert(number, Arc::clone(chunk));
            known.bytes += chunk.len();
            known.bytes -= before.map_or(0, |chunk| chunk.len());
        }
    }

    /// Looks up the only chunk of a directory, if it has this version, so that the change made by
    /// the server can be applied to it.
    pub(crate) fn pages(&self, fid: AfsFid, version: u64) -> Option<Chunk> {
        let known = self.lock();
        let file = known.files.get(&fid)?;
        let is_it = file.version == version;
        is_it.then(|| file.chunks.get(&0).cloned()).flatten()
    }

    /// Records that promises were broken.
    pub(crate) fn broken(&self, fids: &[AfsFid]) {
        let mut known = self.lock();
        known.breaks += 1;
        for fid in fids {
            if let Some(file) = known.files.get_mut(fid) {
                file.until = None;
            }
        }
    }

    /// Records that all promises were broken.
    pub(crate) fn all_broken(&self) {
        let mut known = self.lock();
        known.breaks += 1;
        for file in known.files.values_mut() {
            file.until = None;
        }
    }

    pub(crate) fn forget(&self, fid: AfsFid) {
        self.lock().forget(fid);
    }

    pub(crate) fn flush(&self) {
        self.lock().clear();
    }

    /// Counts the files covered by promises, and the bytes of cached data.
    pub(crate) fn count(&self) -> (usize, usize) {
        let (known, now) = (self.lock(), Instant::now());
        let holds = |file: &&File| file.until.is_some_and(|until| now < until);
        (known.files.values().filter(holds).count(), known.bytes)
    }
}

impl Known {
    fn forget(&mut self, fid: AfsFid) {
        if let Some(file) = self.files.remove(&fid) {
            self.bytes -= file.chunks.values().map(|c| c.len()).sum::<usize>();
        }
    }

    fn clear(&mut self) {
        self.files.clear();
        self.bytes = 0;
    }

    fn clear_data(&mut self) {
        self.files.values_mut().for_each(|file| file.chunks.clear());
        self.bytes = 0;
    }
}
