//! State of one call: both directions, ownership by the application, and timers.
//!
//! A call has two phases that do not overlap: the request, from client to server, and the reply.
//! The first packet of the reply implies that all of the request was received.

pub(crate) mod acks;
pub(crate) mod loss;
pub(crate) mod recv;
pub(crate) mod send;
mod stream;

use crate::config::Timeouts;
use crate::event::End;
use crate::number::CallNumber;
use crate::payload::Payload;
use crate::slab::Key;
use crate::time::{Timestamp, nanos};
use crate::timers::TimerEntry;
use acks::Acks;
use loss::Transmission;
use recv::Receiver;
use send::Sender;

/// Time in nanoseconds that a server waits for the first packet of a request of which it has later
/// packets. If the first packet does not arrive, the request began before the server did.
pub(crate) const HEAD_NANOS: u64 = 5_000_000_000;

/// Side of a connection, and of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    Client,
    Server,
}

/// Pending notifications of a call for the application.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CallEvents {
    pub(crate) call: bool,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) ended: bool,
    /// Whether the call is in the notification queue.
    pub(crate) queued: bool,
}

/// Action that a slow timer of a call requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    Ping,
    End(End),
}

/// State of a call.
#[derive(Debug)]
pub(crate) struct Call<P, D> {
    pub(crate) role: Role,
    pub(crate) connection: Key,
    pub(crate) path: Key,
    /// Share of the peer's host, and whether the call counts against its limit.
    pub(crate) host: Key,
    pub(crate) counted: bool,
    pub(crate) channel: usize,
    pub(crate) number: CallNumber,
    pub(crate) sender: Sender<P>,
    pub(crate) receiver: Receiver<D>,
    pub(crate) acks: Acks,

    /// Whether the application owns the call.
    pub(crate) held: bool,
    /// Whether the application was notified of the call, or began it.
    pub(crate) announced: bool,
    pub(crate) ended: Option<End>,
    /// Whether a read found nothing, and whether a write was blocked.
    pub(crate) reader_waits: bool,
    pub(crate) writer_waits: bool,
    pub(crate) events: CallEvents,
    pub(crate) user_status: u8,

    /// Whether the call is in the queue of calls with data to send, and whether it waits for its
    /// path.
    pub(crate) ready: bool,
    pub(crate) waiting: bool,
    /// Whether a ping has to be sent; the last ping sent and its time.
    pub(crate) ping_due: bool,
    pub(crate) pinged: Option<Transmission>,

    pub(crate) started: Timestamp,
    /// Times at which the peer was last heard, at which we last sent something, and of the last
    /// progress of data.
    pub(crate) heard: Timestamp,
    pub(crate) spoke: Timestamp,
    pub(crate) moved: Timestamp,
    /// Time of an ICMP error that reported the peer's port closed, if the peer was not heard since.
    pub(crate) refused: Option<Timestamp>,
    /// Time at which a slow timer may expire; never later than the earliest of them.
    pub(crate) slow_at: Timestamp,
    pub(crate) timer_entry: TimerEntry,
}

/// Position of a call: its connection, path, host share, channel and number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) connection: Key,
    pub(crate) path: Key,
    pub(crate) host: Key,
    pub(crate) channel: usize,
    pub(crate) number: CallNumber,
}

impl<P: Payload, D: Payload> Call<P, D> {
    pub(crate) fn new(
        now: Timestamp,
        role: Role,
        place: Place,
        peer_window: u32,
        timeouts: &Timeouts,
    ) -> Call<P, D> {
        let mut call = Call {
            role,
            connection: place.connection,
            path: place.path,
            host: place.host,
            counted: false,
            channel: place.channel,
            number: place.number,
            sender: Sender::new(peer_window),
            receiver: Receiver::new(),
            acks: Acks::new(),
            held: role == Role::Client,
            announced: role == Role::Client,
            ended: None,
            reader_waits: false,
            writer_waits: false,
            events: CallEvents::default(),
            user_status: 0,
            ready: false,
            waiting: false,
            ping_due: false,
            pinged: None,
            started: now,
            heard: now,
            spoke: now,
            moved: now,
            refused: None,
            slow_at: now,
            timer_entry: TimerEntry::new(),
        };
        call.slow_clocks(now, timeouts);
        if role == Role::Server {
            call.slow_at = call.slow_at.min(now.plus(HEAD_NANOS));
        }
        call
    }

    /// Checks whether the phase of the call allows sending data: a reply follows the whole
    /// request.
    pub(crate) fn may_send(&self) -> bool {
        self.ended.is_none() && (self.role == Role::Client || self.receiver.complete())
    }

    /// Checks whether there is data to send and the phase allows it.
    pub(crate) fn has_data(&self, room: usize) -> bool {
        self.may_send() && self.sender.has_work(room)
    }

    /// Checks whether the call waits for data of the peer or for its acknowledgement of ours. Data
    /// that could not be sent yet counts too, because a peer could leave its window closed
    /// indefinitely.
    fn waits_for_peer(&self) -> bool {
        match self.role {
            Role::Client => self.sender.is_finished() && !self.receiver.complete(),
            Role::Server if self.receiver.complete() => {
                self.sender.stream.held() > 0 || self.sender.in_flight() > 0
            }
            Role::Server => true,
        }
    }

    /// Evaluates the slow timers and schedules the next evaluation.
    pub(crate) fn slow_clocks(&mut self, now: Timestamp, timeouts: &Timeouts) -> Due {
        let dead = nanos(timeouts.dead);
        let ping = (dead / 6).max(1);
        let after = |limit: Option<std::time::Duration>, since: Timestamp| {
            limit.map_or(Timestamp::NEVER, |limit| since + limit)
        };
        let mut dead_at = self.heard.plus(dead);
        let mut look_at = Timestamp::NEVER;
        if let (Some(refused), Some(limit)) = (self.refused, timeouts.refused) {
            let at = refused + limit;
            if self.heard > refused {
                self.refused = None;
            } else if at <= now && self.sender.resent() == 0 {
                look_at = now + limit;
            } else {
                dead_at = dead_at.min(at);
            }
        }
        let hard_at = after(timeouts.hard, self.started);
        let idle_at = if self.waits_for_peer() {
            after(timeouts.idle, self.moved)
        } else {
            Timestamp::NEVER
        };
        // Data that is being retransmitted needs no ping in addition.
        let ping_at = if self.held {
            self.spoke.plus(ping)
        } else {
            Timestamp::NEVER
        };
        let end_at = dead_at.min(hard_at).min(idle_at);
        let next_ping = if ping_at <= now {
            now.plus(ping)
        } else {
            ping_at
        };
        self.slow_at = end_at.min(next_ping).min(look_at).max(now.plus(1));
        if dead_at <= now {
            Due::End(End::Dead)
        } else if hard_at <= now {
            Due::End(End::Hard)
        } else if idle_at <= now {
            Due::End(End::Idle)
        } else if ping_at <= now {
            Due::Ping
        } else {
            Due::Nothing
        }
    }
}
