//! Times of a call, and the slow timers: pings, time limits, and the end of a silent peer's call.

use crate::config::Timeouts;
use crate::event::End;
use crate::time::{Timestamp, nanos};

/// Time in nanoseconds that a server waits for the first packet of a request of which it has later
/// packets. If the first packet does not arrive, the request began before the server did.
pub(crate) const HEAD_NANOS: u64 = 5_000_000_000;

/// Action that a slow timer of a call requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    Ping,
    End(End),
}

/// Interests of a call that decide which slow timers run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interest {
    /// The application owns the call.
    pub(crate) held: bool,
    /// The call waits for data of the peer or for its acknowledgement of ours.
    pub(crate) waits_for_peer: bool,
    /// Data is being retransmitted.
    pub(crate) resends: bool,
}

/// Times of a call.
#[derive(Debug)]
pub(crate) struct Clocks {
    pub(crate) started: Timestamp,
    /// Times at which the peer was last heard, at which we last sent something, and of the last
    /// progress of data.
    pub(crate) heard: Timestamp,
    pub(crate) spoke: Timestamp,
    pub(crate) moved: Timestamp,
    /// Time of an ICMP error that reported the peer's port closed, if the peer was not heard since.
    refused: Option<Timestamp>,
    /// Time at which a slow timer may expire; never later than the earliest of them.
    pub(crate) slow_at: Timestamp,
}

impl Clocks {
    pub(crate) const fn new(now: Timestamp) -> Clocks {
        Clocks {
            started: now,
            heard: now,
            spoke: now,
            moved: now,
            refused: None,
            slow_at: now,
        }
    }

    /// Records an ICMP error. Only the first counts, and only if the peer was never heard. Returns
    /// whether it counts; the slow timers are then due.
    pub(crate) fn refuse(&mut self, now: Timestamp) -> bool {
        let counts = self.refused.is_none() && self.heard == self.started;
        if counts {
            self.refused = Some(now);
            self.slow_at = now;
        }
        counts
    }

    /// Evaluates the slow timers and schedules the next evaluation.
    pub(crate) fn evaluate(
        &mut self,
        now: Timestamp,
        timeouts: &Timeouts,
        interest: Interest,
    ) -> Due {
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
            } else if at <= now && !interest.resends {
                look_at = now + limit;
            } else {
                dead_at = dead_at.min(at);
            }
        }
        let hard_at = after(timeouts.hard, self.started);
        let idle_at = if interest.waits_for_peer {
            after(timeouts.idle, self.moved)
        } else {
            Timestamp::NEVER
        };
        // Data that is being retransmitted needs no ping in addition.
        let ping_at = if interest.held {
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
