//! Promises to tell clients of changes.
//!
//! ```text
//!   a client looks:   give() ──► then the file is read, so that a later change finds the promise
//!                                ──► told() just before the answer, which says whether it still holds
//!   a file changes:   the change ──► take() ──► tell() everybody ──► the answer to the change
//! ```
//!
//! **Invariant:** nobody is told while a directory or a file is locked. A client that does not answer
//! in time delays one change, once; it is promised nothing more before it is heard of again.

use crate::breaks::Breaks;
use crate::fid::Fid;
use crate::hosts::{Host, with_slack};
use crate::volume::VolumeId;
use afs_proto::{AfsCallBack, AfsFid};
use fs::Ino;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

const SHARDS: usize = 64;

/// Seconds between two searches for promises that are over, where there is no room.
const SEARCH_SECONDS: u32 = 10;

/// Full seconds after which a client has seen the answer that made it a promise.
const RECENT_SECONDS: u32 = 1;

/// One client has at most this part of all promises there may be.
const SHARE: usize = 16;

/// A file, in any volume.
type File = (VolumeId, Ino);

/// All promises of a server. They do not outlive it.
pub(crate) struct Promises {
    shards: Vec<Mutex<HashMap<File, Vec<Promise>>>>,
    count: AtomicUsize,
    max: usize,
    host_max: usize,
    seconds: u32,
    started: Instant,
    searched: AtomicU32,
    /// How many were ever made.
    made: AtomicU32,
}

struct Promise {
    host: Arc<Host>,
    era: u32,
    /// In seconds of the server's run.
    until: u32,
    /// Which of all that were made it is; the same when it is prolonged.
    number: u32,
}

/// A promise that was made, to be told to the client.
pub(crate) struct Given {
    file: File,
    /// To whom, in which era, and its number; none was made otherwise.
    to: Option<(Arc<Host>, u32, u32)>,
}

impl Promises {
    pub(crate) fn new(config: &crate::Config) -> Promises {
        Promises {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
            max: config.promises_max,
            host_max: (config.promises_max / SHARE).max(1),
            seconds: config.promise_seconds,
            started: Instant::now(),
            searched: AtomicU32::new(0),
            made: AtomicU32::new(0),
        }
    }

    fn shard(&self, (volume, ino): File) -> MutexGuard<'_, HashMap<File, Vec<Promise>>> {
        let at = (u64::from(volume) ^ (ino / 2)) as usize % SHARDS;
        self.shards[at].lock().expect("no panic under this lock")
    }

    fn now(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX)
    }

    /// Promises a client to tell it when a file changes. To be called before the file is looked at.
    pub(crate) fn give(&self, host: &Arc<Host>, file: File) -> Given {
        let mut given = Given { file, to: None };
        let until = self.now().saturating_add(with_slack(self.seconds));
        if !self.has_room(host) {
            return given;
        }
        let Some(era) = host.era(until) else {
            return given;
        };
        let mut shard = self.shard(file);
        // Most files have one.
        let place = shard.entry(file);
        let promises = place.or_insert_with(|| Vec::with_capacity(1));
        let number = match promises.iter_mut().find(|p| Arc::ptr_eq(&p.host, host)) {
            Some(promise) => {
                (promise.era, promise.until) = (era, until);
                promise.number
            }
            None => {
                self.count.fetch_add(1, Relaxed);
                host.promises.fetch_add(1, Relaxed);
                let host = Arc::clone(host);
                let number = self.made.fetch_add(1, Relaxed);
                promises.push(Promise {
                    host,
                    era,
                    until,
                    number,
                });
                number
            }
        };
        given.to = Some((Arc::clone(host), era, number));
        given
    }

    /// What to tell the client, at the moment at which it is told: a promise that was over before that is
    /// none. A client that has none of a file yet may ignore that the file has changed (Linux 6.12
    /// `fs/afs/callback.c`), and would trust what it is told afterwards.
    pub(crate) fn told(&self, given: &Given) -> AfsCallBack {
        let Some((host, era, number)) = &given.to else {
            return AfsCallBack::dropped();
        };
        let shard = self.shard(given.file);
        let promises = shard.get(&given.file).map_or(&[][..], Vec::as_slice);
        let is_it = |p: &Promise| p.number == *number && Arc::ptr_eq(&p.host, host);
        match host.is_of(*era) && promises.iter().any(is_it) {
            true => AfsCallBack::promise(self.seconds),
            false => AfsCallBack::dropped(),
        }
    }

    fn has_room(&self, host: &Host) -> bool {
        let is_room =
            || self.count.load(Relaxed) < self.max && host.promises.load(Relaxed) < self.host_max;
        if is_room() {
            return true;
        }
        let (now, searched) = (self.now(), self.searched.load(Relaxed));
        if now < searched.saturating_add(SEARCH_SECONDS) && searched != 0 {
            return false;
        }
        self.searched.store(now.max(1), Relaxed);
        self.search(now);
        is_room()
    }

    /// A promise is no longer kept.
    fn forget(&self, promise: &Promise) {
        self.count.fetch_sub(1, Relaxed);
        promise.host.promises.fetch_sub(1, Relaxed);
    }

    /// Forgets promises that are over.
    fn search(&self, now: u32) {
        for shard in &self.shards {
            let mut shard = shard.lock().expect("no panic under this lock");
            shard.retain(|_, promises| {
                let is_over = |p: &mut Promise| p.until <= now || !p.host.is_of(p.era);
                promises
                    .extract_if(.., is_over)
                    .for_each(|p| self.forget(&p));
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
        let is_its = |p: &mut Promise| Arc::ptr_eq(&p.host, host);
        promises
            .extract_if(.., is_its)
            .for_each(|p| self.forget(&p));
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
        let is_told = |p: &mut Promise| knows.is_none_or(|host| !Arc::ptr_eq(&p.host, host));
        for promise in promises.extract_if(.., is_told) {
            self.forget(&promise);
            if promise.until > now && promise.host.is_of(promise.era) {
                let made = promise.until.saturating_sub(with_slack(self.seconds));
                let (host, era, fid) = (&promise.host, promise.era, fid.within(file.0));
                match now <= made.saturating_add(RECENT_SECONDS) {
                    true => breaks.add_recent(host, era, fid),
                    false => breaks.add(host, era, fid),
                }
            }
        }
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
                self.forget(&promise);
                if promise.until > now && promise.host.is_of(promise.era) {
                    breaks.add(&promise.host, promise.era, all);
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

#[cfg(test)]
mod tests {
    use super::*;
    use afs_proto::CallBackType;

    fn promises(config: crate::Config) -> Promises {
        Promises::new(&config)
    }

    fn is_shared(promises: &Promises, given: &Given) -> bool {
        promises.told(given).kind == CallBackType::Shared
    }

    #[test]
    fn a_promise_holds_longer_here_than_at_its_client() {
        for (seconds, least) in [(1, 2), (10, 20), (3600, 3660)] {
            let promises = promises(crate::Config {
                promise_seconds: seconds,
                ..Default::default()
            });
            let given = promises.give(&Host::known(), (1, 2));
            assert_eq!(promises.told(&given).expires, seconds);
            let shard = promises.shard((1, 2));
            assert!(shard[&(1, 2)][0].until >= least);
        }
    }

    #[test]
    fn a_promise_that_is_over_before_the_answer_is_none() {
        let (promises, host) = (promises(Default::default()), Host::known());
        let given = promises.give(&host, (1, 2));
        assert!(is_shared(&promises, &given));
        host.give_up_all();
        assert_eq!(promises.told(&given), AfsCallBack::dropped());
    }

    #[test]
    fn a_promise_that_was_taken_before_the_answer_is_none() {
        let (promises, host, file) = (promises(Default::default()), Host::known(), (1, 2));
        let given = promises.give(&host, file);
        let prolonged = promises.give(&host, file);
        assert!(is_shared(&promises, &given) && is_shared(&promises, &prolonged));
        let mut breaks = Breaks::default();
        promises.take(file, Fid::ROOT, None, &mut breaks);
        let later = promises.give(&host, file);
        for given in [given, prolonged] {
            assert_eq!(promises.told(&given), AfsCallBack::dropped());
        }
        assert!(is_shared(&promises, &later));
    }

    #[test]
    fn one_client_has_a_part_of_all_promises() {
        let promises = promises(crate::Config {
            promises_max: 4 * SHARE,
            ..Default::default()
        });
        let (one, other) = (Host::known(), Host::known());
        let mut fids: Vec<_> = (0..5).map(|n| (1, n)).collect();
        let given: Vec<_> = fids.iter().map(|f| promises.give(&one, *f)).collect();
        let shared: Vec<_> = given.iter().map(|g| is_shared(&promises, g)).collect();
        assert_eq!(shared, [true, true, true, true, false]);
        assert!(
            fids.iter()
                .take(4)
                .all(|f| is_shared(&promises, &promises.give(&other, *f)))
        );
        // What is given up makes room.
        promises.give_up(&one, fids[0]);
        assert!(is_shared(&promises, &promises.give(&one, fids.remove(4))));
        assert_eq!(promises.count(), 8);
        assert_eq!(one.promises.load(Relaxed), 4);
    }
}
