//! Promises to tell clients of changes, and telling them.
//!
//! ```text
//!   a client looks:   give() ──► then the file is read, so that a later change finds the promise
//!   a file changes:   the change ──► take() ──► tell() all of them at once ──► the answer to the change
//! ```
//!
//! **Invariant:** nobody is told while a directory or a file is locked. A client that does not answer
//! in time delays one change, once; it is promised nothing more before it is heard of again.

use crate::fid::Fid;
use crate::hosts::{Host, Hosts};
use crate::volume::VolumeId;
use afs_proto::{AfsCallBack, AfsFid, FIDS_MAX, List, cb, to_bytes};
use fs::Ino;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

const SHARDS: usize = 64;

/// Seconds between two searches for promises that are over, where there is no room.
const SEARCH_SECONDS: u32 = 10;

/// A file, in any volume.
type File = (VolumeId, Ino);

/// All promises of a server. They do not outlive it.
pub(crate) struct Promises {
    shards: Vec<Mutex<HashMap<File, Vec<Promise>>>>,
    count: AtomicUsize,
    max: usize,
    seconds: u32,
    started: Instant,
    searched: AtomicU32,
}

struct Promise {
    host: Arc<Host>,
    era: u32,
    /// In seconds of the server's run.
    until: u32,
}

/// Who has to be told of a change, and of which files.
#[derive(Default)]
pub(crate) struct Breaks {
    by_host: Vec<(Arc<Host>, Vec<AfsFid>)>,
}

impl Promises {
    pub(crate) fn new(config: &crate::Config) -> Promises {
        Promises {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
            max: config.promises_max,
            seconds: config.promise_seconds,
            started: Instant::now(),
            searched: AtomicU32::new(0),
        }
    }

    fn shard(&self, (volume, ino): File) -> MutexGuard<'_, HashMap<File, Vec<Promise>>> {
        let at = (u64::from(volume) ^ (ino / 2)) as usize % SHARDS;
        self.shards[at].lock().expect("no panic under this lock")
    }

    fn now(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX)
    }

    /// Promises a client to tell it when a file changes; says what to tell it now. To be called before
    /// the file is looked at.
    pub(crate) fn give(&self, host: &Arc<Host>, file: File) -> AfsCallBack {
        let Some(era) = host.era().filter(|_| self.has_room()) else {
            return AfsCallBack::dropped();
        };
        let until = self.now().saturating_add(self.seconds);
        let mut shard = self.shard(file);
        let promises = shard.entry(file).or_default();
        match promises.iter_mut().find(|p| Arc::ptr_eq(&p.host, host)) {
            Some(promise) => (promise.era, promise.until) = (era, until),
            None => {
                let host = Arc::clone(host);
                promises.push(Promise { host, era, until });
                self.count.fetch_add(1, Relaxed);
            }
        }
        AfsCallBack::promise(self.seconds)
    }

    fn has_room(&self) -> bool {
        if self.count.load(Relaxed) < self.max {
            return true;
        }
        let (now, searched) = (self.now(), self.searched.load(Relaxed));
        if now < searched.saturating_add(SEARCH_SECONDS) && searched != 0 {
            return false;
        }
        self.searched.store(now.max(1), Relaxed);
        self.search(now);
        self.count.load(Relaxed) < self.max
    }

    /// Forgets promises that are over.
    fn search(&self, now: u32) {
        for shard in &self.shards {
            let mut shard = shard.lock().expect("no panic under this lock");
            shard.retain(|_, promises| {
                let before = promises.len();
                promises.retain(|promise| promise.until > now && promise.host.is_of(promise.era));
                self.count.fetch_sub(before - promises.len(), Relaxed);
                !promises.is_empty()
            });
        }
    }

    /// A client does not want to hear of a file any more.
    pub(crate) fn give_up(&self, host: &Arc<Host>, file: File) {
        let mut shard = self.shard(file);
        let Some(promises) = shard.get_mut(&file) else {
            return;
        };
        let before = promises.len();
        promises.retain(|promise| !Arc::ptr_eq(&promise.host, host));
        self.count.fetch_sub(before - promises.len(), Relaxed);
        if promises.is_empty() {
            shard.remove(&file);
        }
    }

    /// Takes the promises for a file that has changed, but for those of the client that knows already:
    /// they are over, and who had one is to be told.
    pub(crate) fn take(
        &self,
        file: File,
        fid: Fid,
        knows: Option<&Arc<Host>>,
        breaks: &mut Breaks,
    ) {
        let now = self.now();
        let mut shard = self.shard(file);
        let Some(promises) = shard.get_mut(&file) else {
            return;
        };
        let before = promises.len();
        promises.retain(|promise| {
            if knows.is_some_and(|host| Arc::ptr_eq(&promise.host, host)) {
                return true;
            }
            if promise.until > now && promise.host.is_of(promise.era) {
                breaks.add(&promise.host, fid.within(file.0));
            }
            false
        });
        self.count.fetch_sub(before - promises.len(), Relaxed);
        if promises.is_empty() {
            shard.remove(&file);
        }
    }

    /// Takes the promises for everything in a volume that has changed as a whole, or is gone.
    pub(crate) fn take_volume(&self, volume: VolumeId, breaks: &mut Breaks) {
        // The numbers that stand for all of it (`src/viced/callback.c`, Linux `fs/afs/callback.c`).
        let all = AfsFid {
            volume,
            vnode: 0,
            unique: 0,
        };
        let now = self.now();
        for shard in &self.shards {
            let mut shard = shard.lock().expect("no panic under this lock");
            let of_it = shard.extract_if(|(of, _), _| *of == volume);
            for promise in of_it.flat_map(|(_, promises)| promises) {
                self.count.fetch_sub(1, Relaxed);
                if promise.until > now && promise.host.is_of(promise.era) {
                    breaks.add_once(&promise.host, all);
                }
            }
        }
    }

    /// How many promises hold, of each client that has some.
    pub(crate) fn by_client(&self) -> HashMap<SocketAddr, usize> {
        let now = self.now();
        let mut counts = HashMap::new();
        for shard in &self.shards {
            let shard = shard.lock().expect("no panic under this lock");
            let holds = |p: &&Promise| p.until > now && p.host.is_of(p.era);
            for promise in shard.values().flatten().filter(holds) {
                *counts.entry(promise.host.address).or_default() += 1;
            }
        }
        counts
    }

    /// How many there are, those that are over and were not met since among them.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }
}

impl Breaks {
    fn add(&mut self, host: &Arc<Host>, fid: AfsFid) {
        match self.by_host.iter_mut().find(|(h, _)| Arc::ptr_eq(h, host)) {
            Some((_, fids)) => fids.push(fid),
            None => self.by_host.push((Arc::clone(host), vec![fid])),
        }
    }

    /// The same for what may be there already.
    fn add_once(&mut self, host: &Arc<Host>, fid: AfsFid) {
        let there =
            |(h, fids): &(Arc<Host>, Vec<AfsFid>)| Arc::ptr_eq(h, host) && fids.contains(&fid);
        if !self.by_host.iter().any(there) {
            self.add(host, fid);
        }
    }

    /// Tells everybody, all at once, and waits until they have answered, or for the time there is. Gives
    /// how many calls that took.
    pub(crate) fn tell(self, hosts: &Hosts) -> u64 {
        let mut calls = Vec::with_capacity(self.by_host.len());
        for (host, fids) in self.by_host {
            for fids in fids.chunks(FIDS_MAX) {
                let call = start(&host, fids);
                calls.push((Arc::clone(&host), call));
            }
        }
        let count = calls.len() as u64;
        for (host, call) in calls {
            let answered = call.is_some_and(|mut call| call.read_to_end(0).is_ok());
            if !answered {
                hosts.lost(&host);
            }
        }
        count
    }
}

/// Begins to tell a client of files.
fn start(host: &Host, fids: &[AfsFid]) -> Option<rx::Call> {
    // No callbacks beside the files, as OpenAFS: Linux 6.12 does not take as many as there are files.
    let request = cb::Request::CallBack {
        fids: List::new(fids.to_vec()).ok()?,
        callbacks: List::new(Vec::new()).ok()?,
    };
    let mut call = host.connection()?.call().ok()?;
    call.write(to_bytes(&request)).ok()?;
    call.finish().ok()?;
    Some(call)
}
