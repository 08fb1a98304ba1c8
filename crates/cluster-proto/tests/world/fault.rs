//! What happens to a world.

use super::{Event, Link, MS, PATHS, SECOND, World, name, unit};
use cluster_proto::{At, Name};
use std::time::Duration;

/// What happens to a world.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// The process of a machine dies, and another one starts after that time.
    Kill(usize, u64),
    /// The process of a machine is stopped for that time; its clock goes on.
    Stop(usize, u64),
    /// All of a machine stands still for that time, its clock too.
    Freeze(usize, u64),
    /// A machine does not reach the store.
    NoStore(usize, u64),
    /// A machine does not reach the disks by one path, or by all.
    NoDisks(usize, Option<usize>, u64),
    /// The store answers nothing.
    Stall(u64),
    /// A machine gives up its units for that time.
    Drain(usize, u64),
    /// The configuration of a machine has no table for a unit for that time.
    Retire(usize, usize, u64),
    /// An administrator moves a unit.
    Move(usize, usize),
}

impl World {
    /// Ends the process of a host.
    pub(super) fn kill(&mut self, host: usize, restart: u64) {
        let units: Vec<Name> = self.hosts[host].serving.keys().cloned().collect();
        for unit in units {
            self.ends_service(host, &unit);
        }
        let own = &mut self.hosts[host];
        own.machine = None;
        own.process += 1;
        own.tasks.clear();
        own.held.clear();
        (own.stopped, own.wakes, own.frozen_at) = (0, u64::MAX, None);
        own.clock.1 = own.clock.1.min(self.now);
        self.store.forget(host);
        self.push(restart, host, Event::Restart);
    }

    /// Lets a fault happen.
    pub fn suffer(&mut self, fault: Fault) {
        self.note(|| format!("{fault:?}"));
        match fault {
            Fault::Kill(host, restart) => self.kill(host, restart),
            Fault::Stop(host, time) | Fault::Freeze(host, time) => {
                if self.hosts[host].machine.is_none() || self.hosts[host].stopped > self.now {
                    return;
                }
                let is_frozen = matches!(fault, Fault::Freeze(..));
                let shown = self.clock(host);
                let own = &mut self.hosts[host];
                own.stopped = self.now + time;
                if is_frozen {
                    own.frozen_at = Some(shown);
                    own.clock = (shown, self.now + time, own.clock.2);
                }
                self.push(time, host, Event::Continue);
            }
            Fault::NoStore(host, time) => {
                self.hosts[host].store = false;
                self.push(time, host, Event::Reach(Link::Store));
            }
            Fault::NoDisks(host, path, time) => {
                let affected = |at: usize| path.is_none_or(|path| path == at);
                for at in (0..PATHS).filter(|at| affected(*at)) {
                    self.hosts[host].disks[at] = false;
                }
                self.push(time, host, Event::Reach(Link::Disks(path)));
            }
            Fault::Stall(time) => self.store.stall(self.now, time),
            Fault::Drain(host, time) => {
                let now = At(Duration::from_nanos(self.clock(host)));
                if self.hosts[host].stopped <= self.now {
                    self.with(host, |machine| machine.drain(now, true));
                    self.push(time, host, Event::Drained);
                }
            }
            Fault::Retire(host, number, time) => {
                self.hosts[host].absent.insert(unit(number));
                self.push(0, host, Event::Hangup);
                self.push(time, host, Event::Restored(unit(number)));
            }
            Fault::Move(number, to) => {
                let told = self.store.wish(&unit(number), name(to));
                self.pass_on(told);
            }
        }
    }

    pub(super) fn reach(&mut self, host: usize, link: Link) {
        match link {
            Link::Store => {
                self.hosts[host].store = true;
                let missed = self.store.reconnects(host);
                self.push(50 * MS, host, Event::Noticed(missed));
            }
            Link::Disks(path) => {
                let affected = |at: usize| path.is_none_or(|path| path == at);
                for at in (0..PATHS).filter(|at| affected(*at)) {
                    self.hosts[host].disks[at] = true;
                }
            }
        }
    }

    /// A process goes on, unless its own timer has killed it.
    pub(super) fn go_on(&mut self, host: usize) {
        if self.hosts[host].stopped > self.now || self.hosts[host].machine.is_none() {
            return;
        }
        let is_serving = !self.hosts[host].serving.is_empty();
        if is_serving && self.hosts[host].until <= self.clock(host) {
            self.kill(host, SECOND);
            return;
        }
        self.hosts[host].wakes = u64::MAX;
        let held = std::mem::take(&mut self.hosts[host].held);
        for event in held {
            self.push(0, host, event);
        }
        let now = At(Duration::from_nanos(self.clock(host)));
        self.with(host, |machine| machine.tick(now));
    }
}
