//! Dispatch of waiting jobs to links.

use super::LunQueue;
use crate::link::{Link, LinkState};
use crate::policy::Nanos;
use block::Request;
use lunpath::Access;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

impl LunQueue {
    fn refresh_views(&mut self) {
        let attributes = Arc::clone(&self.attributes);
        let heeded = attributes.alua_enabled;
        let any_up = self.links.iter().any(|l| l.serves(heeded));
        for (view, link) in self.selection.views_mut().zip(&self.links) {
            let path = &link.path;
            let queue = link.queue.as_ref();
            let room = queue.is_some_and(|q| q.room() > 0);
            let access = path.access.get();
            let state = match link.state {
                LinkState::Up => true,
                LinkState::Suspect(_) => !any_up,
                LinkState::Down => false,
            };
            view.in_flight = path.in_flight.load(Relaxed);
            view.bytes_in_flight = path.bytes_in_flight.load(Relaxed);
            view.optimized = access == Access::Optimized || !heeded;
            view.usable = state
                && (access.carries() || !heeded)
                && room
                && (!self.shared.is_limited || path.is_below(&attributes))
                && self.shared.only.is_none_or(|only| only == path.id);
        }
    }

    /// Sends waiting jobs as far as paths and limits permit.
    pub(super) fn dispatch(&mut self, now: Nanos) {
        if self.waiting.is_empty() {
            return;
        }
        let max_bytes = self.attributes.max_bytes;
        let mut later = VecDeque::new();
        while let Some(slot) = self.waiting.pop_front() {
            let job = self.jobs.job(slot);
            let (io, avoid, bound, after) =
                (job.io, job.avoid, job.flush_of.map(|f| f.0), job.after);
            if after > now || (self.bytes > 0 && self.bytes + u64::from(io.bytes) > max_bytes) {
                later.push_back(slot);
                continue;
            }
            self.refresh_views();
            if io.write {
                self.leave_to_writable(now);
            }
            if let Some(avoid) = avoid.filter(|a| self.selection.has_other(*a)) {
                self.selection.exclude(avoid);
            }
            if let Some(to) = bound.filter(|b| self.links[*b].path.lost_writes.load(Acquire)) {
                self.fail_flush(slot, to, now);
                continue;
            }
            // A silent path gets only the flushes that no other path can cover.
            let own = !self.attributes.shared_cache;
            if let Some(to) = bound.filter(|b| own && self.links[*b].queue.is_none()) {
                if now - self.jobs.job(slot).first > self.grace() {
                    self.fail_flush(slot, to, now)
                } else {
                    later.push_back(slot)
                }
                continue;
            }
            let bound = bound.filter(|b| {
                let link = &self.links[*b];
                link.serves(self.attributes.alua_enabled) || (own && link.queue.is_some())
            });
            let chosen = bound.or_else(|| self.selection.select(io, now));
            match chosen {
                Some(path) if self.send(slot, path, now) => {}
                Some(_) => later.push_back(slot),
                None => {
                    later.push_back(slot);
                    // No path takes a similar job either, except parts of flushes, which have their
                    // own path.
                    if avoid.is_none() && !io.write {
                        later.append(&mut self.waiting);
                        break;
                    }
                }
            }
        }
        self.waiting = later;
        self.shared
            .waiting
            .store(self.waiting.len() as u32, Relaxed);
    }

    /// Restricts writes to writable paths, and spares paths that recently refused writes if another
    /// path takes them.
    fn leave_to_writable(&mut self, now: Nanos) {
        let heeded = self.attributes.alua_enabled;
        let takes = |l: &Link| !l.path.read_only.load(Relaxed);
        let spare = |l: &Link| l.serves(heeded) && takes(l) && !l.path.flaps.hold_back(now);
        let spared = self.shared.only.is_none() && self.links.iter().any(spare);
        for (view, link) in self.selection.views_mut().zip(&self.links) {
            view.usable &= takes(link) && !(spared && link.path.flaps.hold_back(now));
        }
    }

    /// Submits a job to a link. Returns `false` if the link does not accept it.
    pub(super) fn send(&mut self, slot: u32, path: usize, now: Nanos) -> bool {
        let tag = self.jobs.tag(slot);
        let link = &mut self.links[path];
        let job = self.jobs.job(slot);
        let Some(queue) = link.queue.as_mut() else {
            return false;
        };
        let Some(op) = job.op.take() else {
            return false;
        };
        if let Err(request) = queue.submit(Request { tag, op }) {
            job.op = Some(request.op);
            return false;
        }
        job.path = path;
        job.started = now;
        let io = job.io;
        if link.jobs.is_empty() {
            link.heard = now;
        }
        link.jobs.push(slot);
        link.fresh = true;
        link.path.in_flight.fetch_add(1, Relaxed);
        link.path
            .bytes_in_flight
            .fetch_add(u64::from(io.bytes), Relaxed);
        link.path.port.in_flight.fetch_add(1, Relaxed);
        self.bytes += u64::from(io.bytes);
        self.selection.started(path, io, now);
        true
    }

    /// Removes a job from the accounting of a link. Returns the start of its attempt.
    pub(super) fn unload(&mut self, path: usize, slot: u32) -> Nanos {
        let job = self.jobs.job(slot);
        let (io, started) = (job.io, job.started);
        let shared = &self.links[path].path;
        shared.in_flight.fetch_sub(1, Relaxed);
        shared
            .bytes_in_flight
            .fetch_sub(u64::from(io.bytes), Relaxed);
        shared.port.in_flight.fetch_sub(1, Relaxed);
        self.bytes -= u64::from(io.bytes);
        started
    }
}
