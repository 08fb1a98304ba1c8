//! Telling clients that files have changed.
//!
//! ```text
//!   change ──► Outbox of each client ──► one call at a time, with all that waits, 50 files at most
//!                   ▲                          │ answered: who waited for these files goes on
//!   change ─────────┘                          └ not answered: all promises of the client are over
//! ```
//!
//! Who changes something puts it into the outboxes, starts the calls that are not under way, to all
//! clients at once, and then goes from one to the next: it takes the answer, or waits for whoever
//! takes it. So a client costs a server one call at a time, however many files change; one that is dead
//! is found out once, for everybody who waits for it, and keeps nobody who does not.
//!
//! **Invariant:** nobody waits for a client longer than for two calls: the one under way, and the next;
//! and for none after one that was not answered.

use crate::again::Repeat;
use crate::hosts::{Host, Hosts};
use afs_proto::{AfsFid, FIDS_MAX, List, cb, to_bytes};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Who has to be told of a change, and of which files.
#[derive(Default)]
pub(crate) struct Breaks {
    /// By the address in memory, which is the client's as long as it is referred to.
    by_host: HashMap<usize, (Arc<Host>, Vec<Broken>)>,
    /// Those that were promised it so shortly before that they may not know yet.
    again: Vec<Repeat>,
}

/// A file that has changed, and the era of the promise to tell of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Broken {
    era: u32,
    fid: AfsFid,
}

/// What a client is to be told.
#[derive(Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Broken>,
    /// How many files were ever put in, and how many of them are done with, those under way excepted.
    put: u64,
    done: u64,
    turn: Turn,
}

/// What becomes of what waits.
#[derive(Default)]
enum Turn {
    /// Whoever comes is to start a call.
    #[default]
    Free,
    /// Somebody starts a call, or waits for its answer.
    Taken,
    /// Whoever comes is to wait for the answer.
    Started(Started),
}

/// A call that is under way.
struct Started {
    /// The era in which it was started.
    era: u32,
    files: u64,
    /// It could not be started.
    call: Option<rx::Call>,
}

/// A turn that this thread has taken. Whatever becomes of it, the files are done with, and nobody waits for
/// it after that.
struct Taken<'t> {
    outbox: &'t Outbox,
    files: u64,
}

impl Breaks {
    /// A client is to be told of a file, as it was promised in an era.
    pub(crate) fn add(&mut self, host: &Arc<Host>, era: u32, fid: AfsFid) {
        let place = self.by_host.entry(Arc::as_ptr(host) as usize);
        let (_, files) = place.or_insert_with(|| (Arc::clone(host), Vec::with_capacity(1)));
        let broken = Broken { era, fid };
        if files.last() != Some(&broken) {
            files.push(broken);
        }
    }

    /// The same of a client that may not have seen the promise yet.
    pub(crate) fn add_recent(&mut self, host: &Arc<Host>, era: u32, fid: AfsFid) {
        self.add(host, era, fid);
        let host = Arc::clone(host);
        self.again.push(Repeat { host, era, fid });
    }

    /// Who is to be told again after [`Breaks::tell`].
    pub(crate) fn take_again(&mut self) -> Vec<Repeat> {
        std::mem::take(&mut self.again)
    }

    /// Whether nobody is to be told anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_host.is_empty()
    }

    /// Tells everybody, and waits until they have answered, or for the time there is. Gives how many calls
    /// this thread made for it.
    pub(crate) fn tell(self, hosts: &Hosts) -> u64 {
        let put = |(host, files): (Arc<Host>, Vec<Broken>)| {
            let until = host.outbox.put(&files);
            (host, until)
        };
        let mut pending: Vec<_> = self.by_host.into_values().map(put).collect();
        let mut calls = 0;
        while !pending.is_empty() {
            calls += pending.iter().filter(|(host, _)| begin(host)).count() as u64;
            for (host, until) in &pending {
                go_on(hosts, host, *until);
            }
            pending.retain(|(host, until)| host.outbox.queue().done < *until);
        }
        calls
    }
}

impl Outbox {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts files in; they are done with when that many are.
    fn put(&self, files: &[Broken]) -> u64 {
        let mut queue = self.queue();
        queue.waiting.extend(files);
        queue.put += files.len() as u64;
        queue.put
    }
}

/// Begins to tell a client what waits for it; not if that is nothing, or if it is being told something.
fn begin(host: &Arc<Host>) -> bool {
    let outbox = &host.outbox;
    let mut queue = outbox.queue();
    if !matches!(queue.turn, Turn::Free) {
        return false;
    }
    // Promises of an era that has ended meanwhile: the client was told that, or will be.
    while queue.waiting.front().is_some_and(|b| !host.is_of(b.era)) {
        queue.waiting.pop_front();
        queue.done += 1;
    }
    let Some(&Broken { era, .. }) = queue.waiting.front() else {
        return false;
    };
    let count = queue.waiting.len().min(FIDS_MAX);
    let fids = queue.waiting.drain(..count).map(|b| b.fid).collect();
    queue.turn = Turn::Taken;
    drop(queue);
    let files = count as u64;
    let taken = Taken { outbox, files };
    let call = start(host, fids);
    taken.started(Started { era, files, call });
    true
}

/// Waits until a client is done with that many files, or with what it is being told.
fn go_on(hosts: &Hosts, host: &Arc<Host>, until: u64) {
    let outbox = &host.outbox;
    let mut queue = outbox.queue();
    while queue.done < until {
        match std::mem::replace(&mut queue.turn, Turn::Taken) {
            Turn::Free => {
                queue.turn = Turn::Free;
                return;
            }
            Turn::Taken => {
                let woken = outbox.changed.wait(queue);
                queue = woken.unwrap_or_else(PoisonError::into_inner);
            }
            Turn::Started(started) => {
                drop(queue);
                let files = started.files;
                let _taken = Taken { outbox, files };
                return started.finish(hosts, host);
            }
        }
    }
}

/// Starts the call. No other is under way on the connection, so it does not wait.
fn start(host: &Host, fids: Vec<AfsFid>) -> Option<rx::Call> {
    // No callbacks beside the files, as OpenAFS: Linux 6.12 does not take as many as there are files.
    let request = cb::Request::CallBack {
        fids: List::new(fids).ok()?,
        callbacks: List::new(Vec::new()).ok()?,
    };
    let mut call = host.connection()?.call().ok()?;
    call.write(to_bytes(&request)).ok()?;
    call.finish().ok()?;
    Some(call)
}

impl Started {
    /// Waits for the answer.
    fn finish(self, hosts: &Hosts, host: &Arc<Host>) {
        let begun = Instant::now();
        let answered = self.call.map(|mut call| call.read_to_end(0).is_ok());
        if answered != Some(true) {
            hosts.lost(host, self.era);
        } else if begun.elapsed() > late(hosts.answer_time()) {
            host.late();
        }
    }
}

/// What counts as an answer that was long in coming: who always takes that long costs others as much as
/// one who is lost again and again.
fn late(answer_time: Duration) -> Duration {
    answer_time / 2
}

impl Taken<'_> {
    /// The call is under way: others may wait for its answer.
    fn started(self, started: Started) {
        self.outbox.queue().turn = Turn::Started(started);
        self.outbox.changed.notify_all();
        std::mem::forget(self);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut queue = self.outbox.queue();
        queue.turn = Turn::Free;
        queue.done += self.files;
        drop(queue);
        self.outbox.changed.notify_all();
    }
}

#[cfg(test)]
impl Breaks {
    /// Of how many files clients are told.
    pub(crate) fn count(&self) -> usize {
        self.by_host.values().map(|(_, files)| files.len()).sum()
    }
}
