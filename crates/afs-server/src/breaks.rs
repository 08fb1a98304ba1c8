//! Callback breaks: notifies clients that files have changed.
//!
//! ```text
//!   change ──► Outbox of each client ──► one call at a time, with all waiting files, 50 at most
//!                   ▲                          │ answered: threads waiting for these files resume
//!   change ─────────┘                          └ not answered: all promises of the client end
//! ```
//!
//! A thread that changes files puts them into the outboxes of the clients, starts a call to every
//! client without one under way, and then handles one client after another: it receives the answer,
//! or waits for the thread that receives it. A client therefore costs the server one call at a
//! time, however many files change; an unreachable client is detected once for all waiting threads,
//! and delays no thread that does not wait for it.
//!
//! **Invariant:** no thread waits for a client longer than two calls: the one under way and the
//! next; and for none after an unanswered one.

use crate::hosts::{Host, Hosts};
use crate::outbox::{Broken, CallPhase, Started, Taken};
use afs_proto::{AfsFid, FIDS_MAX, List, cb, to_bytes};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Clients to notify of a change, with the changed files of each.
#[derive(Default)]
pub(crate) struct CallbackBreaks {
    /// Keyed by the address of the `Host` in memory, which is unique while the value refers to it.
    by_host: HashMap<usize, (Arc<Host>, Vec<Broken>)>,
    /// Breaks to repeat: the promise is so recent that the client may not have received it yet.
    retries: Vec<CallbackRetry>,
}

/// Break to be repeated.
#[derive(Clone)]
pub(crate) struct CallbackRetry {
    pub(crate) host: Arc<Host>,
    pub(crate) era: u32,
    pub(crate) fid: AfsFid,
}

impl CallbackRetry {
    /// Returns the key of the client, which is unique while the value exists, and the file.
    pub(crate) fn key(&self) -> (usize, AfsFid) {
        (Arc::as_ptr(&self.host) as usize, self.fid)
    }
}

impl CallbackBreaks {
    /// Adds a file of which a client, promised in `era`, is to be notified.
    pub(crate) fn add(&mut self, host: &Arc<Host>, era: u32, fid: AfsFid) {
        let place = self.by_host.entry(Arc::as_ptr(host) as usize);
        let (_, files) = place.or_insert_with(|| (Arc::clone(host), Vec::with_capacity(1)));
        let broken = Broken { era, fid };
        if files.last() != Some(&broken) {
            files.push(broken);
        }
    }

    /// Like [`CallbackBreaks::add`], for a client that may not have received the promise yet.
    pub(crate) fn add_recent(&mut self, host: &Arc<Host>, era: u32, fid: AfsFid) {
        self.add(host, era, fid);
        let host = Arc::clone(host);
        self.retries.push(CallbackRetry { host, era, fid });
    }

    /// Takes the breaks to repeat after [`CallbackBreaks::notify_all`].
    pub(crate) fn take_again(&mut self) -> Vec<CallbackRetry> {
        std::mem::take(&mut self.retries)
    }

    /// Checks whether there is no client to notify.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_host.is_empty()
    }

    /// Notifies all clients and waits for their answers or timeouts. Returns the number of calls
    /// that this thread started.
    pub(crate) fn notify_all(self, hosts: &Hosts) -> u64 {
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

/// Starts a call with the waiting files. Returns false if no file waits or a call is under way.
fn begin(host: &Arc<Host>) -> bool {
    let outbox = &host.outbox;
    let mut queue = outbox.queue();
    if !matches!(queue.call, CallPhase::Free) {
        return false;
    }
    // Promises of an era that has ended: the client was notified of its end, or will be.
    while queue.waiting.front().is_some_and(|b| !host.is_of(b.era)) {
        queue.waiting.pop_front();
        queue.done += 1;
    }
    let Some(&Broken { era, .. }) = queue.waiting.front() else {
        return false;
    };
    let count = queue.waiting.len().min(FIDS_MAX);
    let fids = queue.waiting.drain(..count).map(|b| b.fid).collect();
    queue.call = CallPhase::Taken;
    drop(queue);
    let files = count as u64;
    let taken = Taken { outbox, files };
    let call = start(host, fids);
    taken.started(Started { era, files, call });
    true
}

/// Waits until `until` files of the client are completed, or until its current call ends.
fn go_on(hosts: &Hosts, host: &Arc<Host>, until: u64) {
    let outbox = &host.outbox;
    let mut queue = outbox.queue();
    while queue.done < until {
        match std::mem::replace(&mut queue.call, CallPhase::Taken) {
            CallPhase::Free => {
                queue.call = CallPhase::Free;
                return;
            }
            CallPhase::Taken => {
                let woken = outbox.changed.wait(queue);
                queue = woken.unwrap_or_else(PoisonError::into_inner);
            }
            CallPhase::Started(started) => {
                drop(queue);
                let files = started.files;
                let _taken = Taken { outbox, files };
                return finish(started, hosts, host);
            }
        }
    }
}

/// Starts the call. No other call is under way on the connection, so this does not block.
fn start(host: &Host, fids: Vec<AfsFid>) -> Option<rx::Call> {
    // Like OpenAFS, send no callbacks with the files: Linux 6.12 rejects a callback count equal to
    // the file count.
    let request = cb::Request::CallBack {
        fids: List::new(fids).ok()?,
        callbacks: List::new(Vec::new()).ok()?,
    };
    let mut call = host.connection()?.call().ok()?;
    call.write(to_bytes(&request)).ok()?;
    call.finish().ok()?;
    Some(call)
}

/// Waits for the answer.
fn finish(started: Started, hosts: &Hosts, host: &Arc<Host>) {
    let begun = Instant::now();
    let answered = started.call.map(|mut call| call.read_to_end(0).is_ok());
    if answered != Some(true) {
        hosts.handle_unanswered(host, started.era);
    } else if begun.elapsed() > late_after(hosts.answer_time()) {
        host.record_late();
    }
}

/// Computes the time after which an answer counts as late: a client that always takes that long
/// costs others as much as one that is lost repeatedly.
fn late_after(answer_time: Duration) -> Duration {
    answer_time / 2
}

#[cfg(test)]
impl CallbackBreaks {
    /// Counts the files in all notifications.
    pub(crate) fn count(&self) -> usize {
        self.by_host.values().map(|(_, files)| files.len()).sum()
    }
}
