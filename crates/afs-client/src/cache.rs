//! What a client knows of files: statuses and chunks of data, as long as promises hold.
//!
//! A call asks [`Cache::turn`] before it leaves. What it brings is kept under a promise only if no
//! promise was broken since: the break may be the one of the promise that is on its way.

use afs_proto::fs::AfsFetchStatus;
use afs_proto::{AfsCallBack, AfsFid, CallBackType};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a chunk, which is fetched as a whole.
pub(crate) const CHUNK: u64 = 1 << 20;

/// Files that are known at most; beyond, all are forgotten.
const FILES_MAX: usize = 16_384;

/// Data of a file from a multiple of [`CHUNK`] on: less only at the file's end.
pub(crate) type Chunk = Arc<Vec<u8>>;

pub(crate) struct Cache {
    known: Mutex<Known>,
    bytes_max: usize,
}

#[derive(Default)]
struct Known {
    files: HashMap<AfsFid, File>,
    bytes: usize,
    /// Promises that were broken so far, and times that all were.
    breaks: u64,
}

struct File {
    status: AfsFetchStatus,
    /// When the promise is over; none if there is none.
    until: Option<Instant>,
    /// The version that the chunks are of, and they by number.
    version: u64,
    chunks: HashMap<u64, Chunk>,
}

/// The moment at which a call left.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
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

    pub(crate) fn turn(&self) -> Turn {
        Turn {
            breaks: self.lock().breaks,
            at: Instant::now(),
        }
    }

    /// The status of a file, if a promise for it holds.
    pub(crate) fn status(&self, fid: AfsFid) -> Option<AfsFetchStatus> {
        let known = self.lock();
        let file = known.files.get(&fid)?;
        let holds = file.until.is_some_and(|until| Instant::now() < until);
        holds.then_some(file.status)
    }

    /// Whether there is a chunk, of whatever version.
    pub(crate) fn has(&self, fid: AfsFid, number: u64) -> bool {
        let known = self.lock();
        let file = known.files.get(&fid);
        file.is_some_and(|file| file.chunks.contains_key(&number))
    }

    /// A chunk of a file with the status that goes with it, if a promise holds.
    pub(crate) fn chunk(&self, fid: AfsFid, number: u64) -> Option<(Chunk, AfsFetchStatus)> {
        let status = self.status(fid)?;
        let known = self.lock();
        let file = known.files.get(&fid)?;
        if file.version != status.data_version {
            return None;
        }
        Some((Arc::clone(file.chunks.get(&number)?), status))
    }

    /// Keeps what a call has brought. Chunks of another version are forgotten. A promise counts from when
    /// the call left, so that it ends here first; without a new one the old one stays as it is.
    pub(crate) fn learn(
        &self,
        turn: Turn,
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
        // An older answer that comes late says nothing.
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

    /// Keeps a chunk of the version that the status says, after [`learn`](Cache::learn).
    pub(crate) fn keep(&self, fid: AfsFid, status: &AfsFetchStatus, number: u64, chunk: &Chunk) {
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

    /// The only chunk of a directory, to be changed as the directory on the server was.
    pub(crate) fn pages(&self, fid: AfsFid, version: u64) -> Option<Chunk> {
        let known = self.lock();
        let file = known.files.get(&fid)?;
        let is_it = file.version == version;
        is_it.then(|| file.chunks.get(&0).cloned()).flatten()
    }

    /// Promises were broken.
    pub(crate) fn broken(&self, fids: &[AfsFid]) {
        let mut known = self.lock();
        known.breaks += 1;
        for fid in fids {
            if let Some(file) = known.files.get_mut(fid) {
                file.until = None;
            }
        }
    }

    /// All promises are over.
    pub(crate) fn all_broken(&self) {
        let mut known = self.lock();
        known.breaks += 1;
        for file in known.files.values_mut() {
            file.until = None;
        }
    }

    /// Forgets a file.
    pub(crate) fn forget(&self, fid: AfsFid) {
        self.lock().forget(fid);
    }

    /// Forgets everything.
    pub(crate) fn flush(&self) {
        self.lock().clear();
    }

    /// Files that are covered by promises, and bytes of data.
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
