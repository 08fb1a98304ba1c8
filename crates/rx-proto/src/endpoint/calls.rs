//! Start and end of calls, and their notifications for the application.

use super::{Endpoint, PendingEvent};
use crate::call::{Call, CallEvents, Place, Role};
use crate::connection::LastCallEnd;
use crate::event::{CallId, ConnectionId, End, Event, Incoming};
use crate::number::CallNumber;
use crate::payload::{Datagram, Payload};
use crate::slab::Key;
use crate::time::Timestamp;
use crate::timers::Timer;

impl<P: Payload, D: Datagram> Endpoint<P, D> {
    /// Starts a call on a free channel.
    pub(super) fn new_call(
        &mut self,
        now: Timestamp,
        connection: Key,
        channel: usize,
        number: CallNumber,
    ) -> Option<Key> {
        let c = self.connections.get_mut(connection)?;
        let (role, proven) = (c.key.role, c.is_proven());
        let host = self.paths.get(c.path)?.host;
        let place = Place {
            connection,
            path: c.path,
            host,
            channel,
            number,
        };
        let slot = c.channels.get_mut(channel)?;
        let call = self
            .calls
            .insert(Call::new(now, role, place, c.peer_window, &c.timeouts));
        slot.call = Some(call);
        slot.number = number;
        slot.last_end = LastCallEnd::Nothing;
        c.active = now;
        self.hosts.join(host);
        match role {
            Role::Server => {
                self.calls_in += 1;
                if self.config.keeps_requests
                    && let Some(c) = self.calls.get_mut(call)
                {
                    c.receiver.hold();
                }
                if proven {
                    self.count_call(call);
                }
                self.stats.calls_in += 1;
            }
            Role::Client => self.stats.calls_out += 1,
        }
        self.set_call_timer(call);
        Some(call)
    }

    /// Counts a proven peer's call at a server against the limit of its host.
    pub(super) fn count_call(&mut self, call: Key) {
        if let Some(c) = self.calls.get_mut(call) {
            c.counted = true;
            self.hosts.called(c.place.host);
        }
    }

    /// Queues a call that has something to send.
    pub(super) fn mark_ready(&mut self, call: Key) {
        if let Some(c) = self.calls.get_mut(call)
            && !c.ready
        {
            c.ready = true;
            self.ready.push_back(call);
        }
    }

    /// Ensures that a call's timer expires when the first of its clocks is due.
    pub(super) fn set_call_timer(&mut self, call: Key) {
        self.set_call_timer_after(call, Timestamp::from_nanos(0));
    }

    /// Sets the timer of a call, but not before `earliest`.
    pub(super) fn set_call_timer_after(&mut self, call: Key, earliest: Timestamp) {
        let Some(c) = self.calls.get_mut(call) else {
            return;
        };
        let loss = match self.paths.get(c.place.path) {
            Some(path) => c.sender.deadline(c.role, &path.rtt),
            None => Timestamp::NEVER,
        };
        let deadline = loss
            .min(c.acks.delay_at)
            .min(c.clocks.slow_at)
            .max(earliest);
        self.timers
            .set(Timer::Call(call), &mut c.timer_entry, deadline);
    }

    /// Shows a server's call to the application, if its first packet was received and its peer is
    /// proven.
    pub(super) fn announce(&mut self, call: Key) {
        let Some(c) = self.calls.get_mut(call) else {
            return;
        };
        let proven = self
            .connections
            .get(c.place.connection)
            .is_some_and(|c| c.is_proven());
        if !c.user.announced && proven && c.receiver.is_readable() {
            c.user.announced = true;
            c.user.held = true;
            self.queue_event(call, |news| news.call = true);
        }
    }

    /// Queues a notification of a call for the application.
    pub(super) fn queue_event(&mut self, call: Key, what: impl FnOnce(&mut CallEvents)) {
        let Some(c) = self.calls.get_mut(call) else {
            return;
        };
        what(&mut c.user.events);
        if !c.user.events.queued {
            c.user.events.queued = true;
            self.notices.push_back(PendingEvent::Call(call));
        }
    }

    /// Takes the next notification of a call; the call stays in the queue while there are more.
    pub(super) fn next_event(&mut self, call: Key) -> Option<Event> {
        let c = self.calls.get_mut(call)?;
        let id = CallId(call);
        let news = &mut c.user.events;
        let event = if std::mem::take(&mut news.call) {
            let connection = self.connections.get(c.place.connection)?;
            Event::Call(Incoming {
                call: id,
                connection: ConnectionId(c.place.connection),
                peer: connection.key.peer,
                service: connection.service,
                user_status: c.user_status,
            })
        } else if std::mem::take(&mut news.received) {
            Event::Received(id)
        } else if std::mem::take(&mut news.readable) {
            Event::Readable(id)
        } else if std::mem::take(&mut news.writable) {
            Event::Writable(id)
        } else if std::mem::take(&mut news.ended) {
            let reason = c.ended.unwrap_or(End::Closed);
            Event::Ended { call: id, reason }
        } else {
            news.queued = false;
            return None;
        };
        self.notices.push_front(PendingEvent::Call(call));
        Some(event)
    }

    /// Ends a call early, and sends an ABORT if there is a code. If the application owns the call,
    /// it keeps it until it is notified and releases it.
    pub(super) fn end_call(&mut self, now: Timestamp, call: Key, reason: End, abort: Option<i32>) {
        let Some(c) = self.calls.get_mut(call) else {
            return;
        };
        if c.ended.is_some() {
            return;
        }
        // The application need not know of a call that was not shown to it.
        let held = c.user.held && !c.user.events.call;
        let (connection, channel) = (c.place.connection, c.place.channel);
        c.ended = Some(reason);
        self.let_go(now, call);
        if let Some(code) = abort {
            self.queue_abort(connection, channel, code);
            self.set_after(connection, channel, LastCallEnd::Aborted(code));
        }
        if held {
            self.queue_event(call, |news| {
                *news = CallEvents {
                    ended: true,
                    queued: news.queued,
                    ..CallEvents::default()
                }
            });
        } else {
            self.remove_call(now, call);
        }
    }

    /// Drops the data of a call in both directions.
    fn let_go(&mut self, now: Timestamp, call: Key) {
        let Some(c) = self.calls.get_mut(call) else {
            return;
        };
        self.held_bytes -= c.receiver.held();
        c.receiver.forget();
        c.acks.data_sent();
        let path = c.place.path;
        self.hosts.released(c.place.host, c.sender.stream.held());
        let in_flight = c.sender.clear();
        if let Some(path) = self.paths.get_mut(path) {
            path.congestion.forgotten(in_flight);
        }
        self.wake_path(now, path);
    }

    pub(super) fn set_after(&mut self, connection: Key, channel: usize, after: LastCallEnd) {
        if let Some(c) = self.connections.get_mut(connection)
            && let Some(slot) = c.channels.get_mut(channel)
        {
            slot.last_end = after;
        }
    }

    /// Removes a call and frees its channel.
    pub(super) fn remove_call(&mut self, now: Timestamp, call: Key) {
        self.let_go(now, call);
        let Some(c) = self.calls.remove(call) else {
            return;
        };
        if c.waiting
            && let Some(path) = self.paths.get_mut(c.place.path)
        {
            path.waiting.retain(|waiting| *waiting != call);
        }
        if c.role == Role::Server {
            self.calls_in -= 1;
            if self.config.keeps_requests && c.user.announced {
                let over = Event::Over(CallId(call));
                self.notices.push_back(PendingEvent::Event(over));
            }
        }
        if c.counted {
            self.hosts.call_over(c.place.host);
        }
        self.hosts.leave(c.place.host);
        let Some(connection) = self.connections.get_mut(c.place.connection) else {
            return;
        };
        connection.active = now;
        if let Some(slot) = connection.channels.get_mut(c.place.channel)
            && slot.call == Some(call)
        {
            slot.call = None;
        }
        if std::mem::take(&mut connection.channel_wanted) {
            let free = Event::ChannelFree(ConnectionId(c.place.connection));
            self.notices.push_back(PendingEvent::Event(free));
        }
        let until = now + self.config.connection_idle;
        self.set_connection_timer(c.place.connection, until);
    }

    /// Removes a server's call if the peer has the whole reply and the application has finished.
    pub(super) fn remove_if_done(&mut self, now: Timestamp, call: Key) {
        let done = self.calls.get(call).is_some_and(|c| {
            c.role == Role::Server && !c.user.held && c.user.announced && c.sender.complete()
        });
        if done {
            self.remove_call(now, call);
        }
    }
}
