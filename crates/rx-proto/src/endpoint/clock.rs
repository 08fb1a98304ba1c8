//! Timer expiry: delayed acknowledgements, losses, pings, time limits.

use super::Endpoint;
use crate::ack::Reason;
use crate::call::clocks::{Due, HEAD_NANOS};
use crate::call::loss::Expired;
use crate::connection::{AddressValidation, LastCallEnd};
use crate::event::{End, code};
use crate::number::{Seq, Serial};
use crate::payload::{Datagram, Payload};
use crate::slab::Key;
use crate::time::Timestamp;
use crate::timers::Timer;

impl<P: Payload, D: Datagram> Endpoint<P, D> {
    /// Handles all timers that have expired by `now`.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        while let Some((at, timer)) = self.timers.pop(now) {
            match timer {
                Timer::Call(call) => {
                    let first = |c: &mut crate::call::Call<P, D>| c.timer_entry.expire(at);
                    if self.calls.get_mut(call).is_some_and(first) {
                        self.call_timer(now, call);
                        self.set_call_timer_after(call, now.plus(1));
                    }
                }
                Timer::Connection(connection) => {
                    let c = self.connections.get_mut(connection);
                    if c.is_some_and(|c| c.timer_entry.expire(at)) {
                        self.connection_timer(now, connection);
                    }
                }
                Timer::Path(path) => {
                    if self
                        .paths
                        .get_mut(path)
                        .is_some_and(|p| p.timer_entry.expire(at))
                    {
                        self.wake_path(now, path);
                    }
                }
            }
        }
    }

    fn call_timer(&mut self, now: Timestamp, call: Key) {
        let Some(c) = self.calls.get_mut(call) else {
            return;
        };
        if c.ended.is_some() {
            c.clocks.slow_at = Timestamp::NEVER;
            return;
        }
        c.acks.expire(now, c.receiver.has_gap());
        self.loss_timer(now, call);
        self.slow_timer(now, call);
        let c = self.calls.get(call);
        let is_due = c.is_some_and(|c| c.acks.is_due() || c.ping_due);
        if is_due || self.has_data(call) {
            self.mark_ready(call);
        }
    }

    fn loss_timer(&mut self, now: Timestamp, call: Key) {
        let Some(c) = self.calls.get_mut(call) else {
            return;
        };
        let Some(path) = self.paths.get_mut(c.place.path) else {
            return;
        };
        let (expired, effect) = c.sender.expire(now, c.role, &path.rtt);
        match expired {
            Expired::Nothing => {}
            Expired::Reordering => self.apply(now, call, &effect),
            Expired::Probe => self.stats.probes += 1,
            Expired::Timeout => {
                self.stats.timeouts += 1;
                self.stats.lost += u64::from(effect.lost);
                path.congestion.timed_out(now, effect.lost, &path.rtt);
                let path = c.place.path;
                self.wake_path(now, path);
            }
        }
    }

    fn slow_timer(&mut self, now: Timestamp, call: Key) {
        let Some(c) = self.calls.get_mut(call) else {
            return;
        };
        if now < c.clocks.slow_at {
            return;
        }
        let Some(connection) = self.connections.get(c.place.connection) else {
            return;
        };
        let (proven, timeouts) = (connection.is_proven(), connection.timeouts);
        let due = c.slow_clocks(now, &timeouts);
        if !c.user.announced && proven {
            // A server's call without its first packet.
            if now.nanos_since(c.clocks.started) >= HEAD_NANOS {
                self.end_call(now, call, End::Forgotten, Some(code::RESTARTING));
                return;
            }
            c.clocks.slow_at = c
                .clocks
                .slow_at
                .min(c.clocks.started.plus(HEAD_NANOS))
                .max(now.plus(1));
        } else if !c.user.announced {
            c.clocks.slow_at = c.clocks.slow_at.min(now.plus(HEAD_NANOS));
        }
        match due {
            Due::Nothing => {}
            Due::Ping => {
                c.ping_due = proven;
                self.mark_ready(call);
            }
            Due::End(End::Dead) => self.end_call(now, call, End::Dead, None),
            Due::End(reason) => self.end_call(now, call, reason, Some(code::CALL_TIMEOUT)),
        }
    }

    fn connection_timer(&mut self, now: Timestamp, connection: Key) {
        let Some(c) = self.connections.get_mut(connection) else {
            return;
        };
        let reach = c.created + self.config.reach_time;
        if c.validation != AddressValidation::Proven && reach <= now {
            return self.remove_connection(now, connection);
        }
        let mut next = if c.is_proven() {
            Timestamp::NEVER
        } else {
            reach
        };
        if c.is_server() && c.is_proven() && !c.has_calls() {
            let idle = c.active + self.config.connection_idle;
            if idle <= now {
                return self.remove_connection(now, connection);
            }
            next = next.min(idle);
        }
        let mut due = Vec::new();
        for (channel, slot) in c.channels.iter_mut().enumerate() {
            if let LastCallEnd::Received { last, tell_at } = &mut slot.last_end {
                if *tell_at <= now {
                    *tell_at = Timestamp::NEVER;
                    due.push((channel, *last));
                }
                next = next.min(*tell_at);
            }
        }
        for (channel, last) in due {
            self.queue_received(connection, channel, last, (Reason::Delay, Serial(0)));
        }
        if next != Timestamp::NEVER {
            self.set_connection_timer(connection, next);
        }
    }

    /// Ends a call whose reply was read completely. The server is notified immediately if it asked
    /// for it, otherwise after a delay, unless the next call on the channel implies it.
    pub(super) fn received_all(&mut self, now: Timestamp, call: Key) {
        let Some(c) = self.calls.get(call) else {
            return;
        };
        let last = Seq(c.receiver.next_read().0.wrapping_sub(1));
        let (connection, channel, asked) = (c.place.connection, c.place.channel, c.acks.asked());
        let tell_at = match asked {
            Some(_) => Timestamp::NEVER,
            None => now + self.config.ack_delay,
        };
        if let Some(prompt) = asked {
            self.queue_received(connection, channel, last, prompt);
        }
        self.set_after(connection, channel, LastCallEnd::Received { last, tell_at });
        self.set_connection_timer(connection, tell_at);
        self.remove_call(now, call);
    }
}
