//! State of one call: both directions, ownership by the application, and timers.
//!
//! A call has two phases that do not overlap: the request, from client to server, and the reply.
//! The first packet of the reply implies that all of the request was received.

pub(crate) mod acks;
pub(crate) mod clocks;
pub(crate) mod loss;
pub(crate) mod recv;
pub(crate) mod send;
mod stream;

use crate::config::Timeouts;
use crate::event::End;
use crate::number::CallNumber;
use crate::payload::Payload;
use crate::slab::Key;
use crate::time::Timestamp;
use crate::timers::TimerEntry;
use acks::Acks;
use clocks::{Clocks, Due, HEAD_NANOS, Interest};
use loss::Transmission;
use recv::Receiver;
use send::Sender;

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
    pub(crate) received: bool,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) ended: bool,
    /// Whether the call is in the notification queue.
    pub(crate) queued: bool,
}

/// A call as its application sees it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct User {
    /// Whether the application owns the call.
    pub(crate) held: bool,
    /// Whether the application was notified of the call, or began it.
    pub(crate) announced: bool,
    /// Whether a read found nothing, and whether a write was blocked.
    pub(crate) reader_waits: bool,
    pub(crate) writer_waits: bool,
    pub(crate) events: CallEvents,
}

/// State of a call.
#[derive(Debug)]
pub(crate) struct Call<P, D> {
    pub(crate) role: Role,
    pub(crate) place: Place,
    /// Whether the call counts against the limit of its host.
    pub(crate) counted: bool,
    pub(crate) sender: Sender<P>,
    pub(crate) receiver: Receiver<D>,
    pub(crate) acks: Acks,

    pub(crate) user: User,
    pub(crate) ended: Option<End>,
    pub(crate) user_status: u8,
    /// Whether another server began the call, and may have sent its reply.
    pub(crate) continued: bool,

    /// Whether the call is in the queue of calls with data to send, and whether it waits for its
    /// path.
    pub(crate) ready: bool,
    pub(crate) waiting: bool,
    /// Whether a ping has to be sent; the last ping sent and its time.
    pub(crate) ping_due: bool,
    pub(crate) pinged: Option<Transmission>,

    pub(crate) clocks: Clocks,
    pub(crate) timer_entry: TimerEntry,
}

/// Position of a call: its connection, path, share of the peer's host, channel and number.
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
            place,
            counted: false,
            sender: Sender::new(peer_window),
            receiver: Receiver::new(),
            acks: Acks::new(),
            user: User {
                held: role == Role::Client,
                announced: role == Role::Client,
                ..User::default()
            },
            ended: None,
            user_status: 0,
            continued: false,
            ready: false,
            waiting: false,
            ping_due: false,
            pinged: None,
            clocks: Clocks::new(now),
            timer_entry: TimerEntry::new(),
        };
        call.slow_clocks(now, timeouts);
        if role == Role::Server {
            let clocks = &mut call.clocks;
            clocks.slow_at = clocks.slow_at.min(now.plus(HEAD_NANOS));
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
        let interest = Interest {
            held: self.user.held,
            waits_for_peer: self.waits_for_peer(),
            resends: self.sender.resent() > 0,
        };
        self.clocks.evaluate(now, timeouts, interest)
    }
}
