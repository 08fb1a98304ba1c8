//! Callback promises: the server's obligation to notify clients of changes.
//!
//! ```text
//!   a client reads a file:  promise ──► the file is read, so that a later change finds the promise
//!                                   ──► reply_callback() just before the reply: does the promise still hold?
//!   a file changes:         the change ──► take() ──► notify_all() all clients ──► reply to the change
//! ```
//!
//! **Invariant:** no client is notified while a directory or file is locked. A client that does not
//! answer in time delays one change, once, and gets no promise until it calls again.

use crate::breaks::CallbackBreaks;
use crate::hosts::{Host, with_slack};
use crate::survival::machine_seconds;
use crate::volume::VolumeId;
use afs_proto::{AfsCallBack, AfsFid, Fid};
use fs::Ino;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

const SHARDS: usize = 64;

/// Minimum interval in seconds between searches for expired promises when the table is full.
const SEARCH_SECONDS: u32 = 10;

/// Age in whole seconds after which the client must have received the reply with the promise.
const RECENT_SECONDS: u32 = 1;

/// One client may hold at most 1/`SHARE` of all promises.
const SHARE: usize = 16;

/// File in any volume.
type File = (VolumeId, Ino);

/// All promises of a server. They are not persistent.
pub(crate) struct Promises {
    shards: Vec<Mutex<HashMap<File, Vec<Promise>>>>,
    count: AtomicUsize,
    max: usize,
    host_max: usize,
    seconds: u32,
    started: Instant,
    searched: AtomicU32,
    /// Number of promises ever made.
    made: AtomicU32,
    /// Whether another server may have to end the promises.
    survives: bool,
}

struct Promise {
    host: Arc<Host>,
    era: u32,
    /// Expiry in seconds since the server's start.
    until: u32,
    /// Sequence number of the promise; renewal keeps it.
    number: u32,
}

/// Promise to be included in a reply.
pub(crate) struct GrantedPromise {
    file: File,
    /// Client, era and number of the promise; `None` if none was made.
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
            survives: false,
        }
    }

    /// Lets another server end the promises.
    pub(crate) fn surviving(self, survives: bool) -> Promises {
        Promises { survives, ..self }
    }

    fn shard(&self, (volume, ino): File) -> MutexGuard<'_, HashMap<File, Vec<Promise>>> {
        let at = (u64::from(volume) ^ (ino / 2)) as usize % SHARDS;
        self.shards[at].lock().expect("no panic under this lock")
    }

    fn now(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX)
    }

    /// Makes or renews a promise. Must be called before the file is read.
    pub(crate) fn grant(&self, host: &Arc<Host>, file: File) -> GrantedPromise {
        let mut given = GrantedPromise { file, to: None };
        let until = self.now().saturating_add(with_slack(self.seconds));
        if !self.has_room(host) {
            return given;
        }
        // A second more than here, as the fractions of both clocks differ.
        let kept_until = || machine_seconds() + u64::from(with_slack(self.seconds)) + 1;
        let Some(era) = host.era(until, self.survives.then(kept_until)) else {
            return given;
        };
        let mut shard = self.shard(file);
        // Most files have one promise.
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

    /// Builds the callback to send, evaluated when the reply is written: a promise that has ended
    /// is reported as dropped. A client without a promise for a file may ignore a break of it
    /// (Linux 6.12 `fs/afs/callback.c`), and would then trust a promise that arrives later.
    pub(crate) fn reply_callback(&self, given: &GrantedPromise) -> AfsCallBack {
        let Some((host, era, number)) = &given.to else {
            return AfsCallBack::dropped();
        };
        let shard = self.shard(given.file);
        let promises = shard.get(&given.file).map_or(&[][..], Vec::as_slice);
        let is_it = |p: &Promise| p.number == *number && Arc::ptr_eq(&p.host, host);
        if host.is_of(*era) && promises.iter().any(is_it) {
            AfsCallBack::promise(self.seconds)
        } else {
            AfsCallBack::dropped()
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

    /// Updates the counters for a removed promise.
    fn forget(&self, promise: &Promise) {
        self.count.fetch_sub(1, Relaxed);
        promise.host.promises.fetch_sub(1, Relaxed);
    }

    /// Removes expired promises.
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

    /// Removes a client's promise for a file at the client's request.
    pub(crate) fn release(&self, host: &Arc<Host>, file: File) {
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

    /// Takes the promises for a changed file, except those of the client `knows`, which learns of
    /// the change from its reply. The promises end and their holders are added to `breaks`.
    pub(crate) fn take(
        &self,
        file: File,
        fid: Fid,
        knows: Option<&Arc<Host>>,
        breaks: &mut CallbackBreaks,
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
                if now <= made.saturating_add(RECENT_SECONDS) {
                    breaks.add_recent(host, era, fid)
                } else {
                    breaks.add(host, era, fid)
                }
            }
        }
        if promises.is_empty() {
            shard.remove(&file);
        }
    }

    /// Takes the promises for all files of a volume that changed as a whole or was removed.
    pub(crate) fn take_volume(&self, volume: VolumeId, breaks: &mut CallbackBreaks) {
        // Vnode and uniquifier 0 denote the whole volume (`src/viced/callback.c`, Linux
        // `fs/afs/callback.c`).
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

    /// Counts the valid promises of each client.
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

    /// Returns the number of stored promises, including expired ones not removed yet.
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

    fn is_shared(promises: &Promises, given: &GrantedPromise) -> bool {
        promises.reply_callback(given).kind == CallBackType::Shared
    }

    #[test]
    fn a_promise_holds_longer_here_than_at_its_client() {
        for (seconds, least) in [(1, 2), (10, 20), (3600, 3660)] {
            let promises = promises(crate::Config {
                promise_seconds: seconds,
                ..Default::default()
            });
            let given = promises.grant(&Host::known(), (1, 2));
            assert_eq!(promises.reply_callback(&given).expires, seconds);
            let shard = promises.shard((1, 2));
            assert!(shard[&(1, 2)][0].until >= least);
        }
    }

    #[test]
    fn a_promise_that_is_over_before_the_answer_is_none() {
        let (promises, host) = (promises(Default::default()), Host::known());
        let given = promises.grant(&host, (1, 2));
        assert!(is_shared(&promises, &given));
        host.give_up_all();
        assert_eq!(promises.reply_callback(&given), AfsCallBack::dropped());
    }

    #[test]
    fn a_promise_that_was_taken_before_the_answer_is_none() {
        let (promises, host, file) = (promises(Default::default()), Host::known(), (1, 2));
        let given = promises.grant(&host, file);
        let prolonged = promises.grant(&host, file);
        assert!(is_shared(&promises, &given) && is_shared(&promises, &prolonged));
        let mut breaks = CallbackBreaks::default();
        promises.take(file, Fid::ROOT, None, &mut breaks);
        let later = promises.grant(&host, file);
        for given in [given, prolonged] {
            assert_eq!(promises.reply_callback(&given), AfsCallBack::dropped());
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
        let given: Vec<_> = fids.iter().map(|f| promises.grant(&one, *f)).collect();
        let shared: Vec<_> = given.iter().map(|g| is_shared(&promises, g)).collect();
        assert_eq!(shared, [true, true, true, true, false]);
        assert!(
            fids.iter()
                .take(4)
                .all(|f| is_shared(&promises, &promises.grant(&other, *f)))
        );
        // A released promise makes room.
        promises.release(&one, fids[0]);
        assert!(is_shared(&promises, &promises.grant(&one, fids.remove(4))));
        assert_eq!(promises.count(), 8);
        assert_eq!(one.promises.load(Relaxed), 4);
    }
}
