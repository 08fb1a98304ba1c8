//! Decides when to acknowledge received data.
//!
//! An acknowledgement is sent immediately when the sender requests it, or when a packet is missing,
//! is a duplicate or fills a gap; otherwise after a number of packets, and at the latest after a
//! delay. After a loss the sender restarts with a small window, as at the start of a call, so
//! packets are then acknowledged as often as at the start. In addition, OpenAFS resets the doubled
//! timeout of a retransmission only on an acknowledgement that was not delayed, and retransmits a
//! missing packet before that timeout only after three consecutive acknowledgements that report the
//! gap: so a persistent gap is reported twice more. Acknowledgements are built when the driver
//! sends, so one covers all that the driver had received by then.

use crate::ack::Reason;
use crate::config::Config;
use crate::number::Serial;
use crate::time::Timestamp;

/// Number of times that a gap is reported again after the delay, if nothing was received since.
const GAP_REPEATS: u8 = 2;

/// Acknowledgements that a call owes its peer.
#[derive(Debug)]
pub(crate) struct Acks {
    /// Reason and transmission of an acknowledgement to send immediately.
    due: Option<(Reason, Serial)>,
    /// Serial number of a ping to answer.
    pub(crate) ping: Option<Serial>,
    /// Packets received, and packets read, since the last acknowledgement.
    unspoken: u32,
    unspoken_read: u32,
    /// Packets received since the call began, or since the last missing or duplicate packet.
    since_loss: u32,
    pub(crate) delay_at: Timestamp,
    /// Number of times that a gap was reported again since the last packet.
    gap_repeats: u8,
}

impl Acks {
    pub(crate) const fn new() -> Acks {
        Acks {
            due: None,
            ping: None,
            unspoken: 0,
            unspoken_read: 0,
            since_loss: 0,
            delay_at: Timestamp::NEVER,
            gap_repeats: 0,
        }
    }

    /// Requests an immediate acknowledgement. The most significant reason wins, and among requested
    /// ones the latest (Linux, `rxrpc_ack_priority`).
    #[inline]
    pub(crate) fn prompt(&mut self, reason: Reason, serial: Serial) {
        let weight = |reason| match reason {
            Reason::Idle => 1,
            Reason::Delay => 2,
            Reason::Requested => 3,
            Reason::Duplicate => 4,
            Reason::ExceedsWindow => 5,
            Reason::NoSpace => 6,
            Reason::OutOfSequence => 7,
            Reason::Ping | Reason::PingResponse => 0,
        };
        if matches!(reason, Reason::OutOfSequence | Reason::Duplicate) {
            self.since_loss = 0;
        }
        let newer = |held| weight(held) == weight(reason) && serial != Serial(0);
        let stronger = |held| weight(held) < weight(reason) || newer(held);
        if self.due.is_none_or(|(held, _)| stronger(held)) {
            self.due = Some((reason, serial));
        }
    }

    /// Records a packet that needs no immediate acknowledgement.
    #[inline]
    pub(crate) fn received(&mut self, now: Timestamp, serial: Serial, config: &Config) {
        self.unspoken += 1;
        self.gap_repeats = 0;
        self.since_loss = self.since_loss.saturating_add(1);
        // A short stride at first: the sender's window grows with each acknowledgement.
        let early = self.since_loss <= config.ack_start_packets;
        let stride = if early {
            config.ack_stride_start
        } else {
            config.ack_stride
        };
        if self.unspoken >= stride {
            self.prompt(Reason::Idle, serial);
        }
        self.delay_at = self.delay_at.min(now + config.ack_delay);
    }

    /// Records that the application has read a packet, so that the sender may release it.
    #[inline]
    pub(crate) fn read(&mut self, now: Timestamp, config: &Config) {
        self.unspoken_read += 1;
        if self.unspoken_read >= config.ack_stride {
            self.prompt(Reason::Idle, Serial(0));
        }
        self.delay_at = self.delay_at.min(now + config.ack_delay);
    }

    /// Records that an acknowledgement was sent while a packet is missing.
    pub(crate) fn gap_reported(&mut self, now: Timestamp, config: &Config) {
        if self.gap_repeats < GAP_REPEATS {
            self.delay_at = self.delay_at.min(now + config.ack_delay);
        }
    }

    /// Handles the expiry of the delay; `gap` tells whether a packet is missing.
    pub(crate) fn expire(&mut self, now: Timestamp, gap: bool) {
        if self.delay_at > now {
            return;
        }
        self.delay_at = Timestamp::NEVER;
        if gap && self.gap_repeats < GAP_REPEATS {
            self.gap_repeats += 1;
            self.prompt(Reason::OutOfSequence, Serial(0));
        } else {
            self.prompt(Reason::Delay, Serial(0));
        }
    }

    pub(crate) const fn is_due(&self) -> bool {
        self.due.is_some() || self.ping.is_some()
    }

    /// Takes the acknowledgement to send: its reason and transmission. A ping comes first,
    /// because its answer carries the same information.
    pub(crate) fn take(&mut self) -> Option<(Reason, Serial)> {
        let ping = self.ping.map(|serial| (Reason::PingResponse, serial));
        let due = ping.or(self.due)?;
        self.ping = None;
        self.data_sent();
        Some(due)
    }

    /// Returns the acknowledgement that the peer requested and has not received yet.
    pub(crate) fn asked(&self) -> Option<(Reason, Serial)> {
        let ping = self.ping.map(|serial| (Reason::PingResponse, serial));
        ping.or(self.due.filter(|(_, serial)| *serial != Serial(0)))
    }

    /// Records that data of the other direction is about to be sent, which implies that everything
    /// was received.
    pub(crate) const fn data_sent(&mut self) {
        self.due = None;
        self.unspoken = 0;
        self.unspoken_read = 0;
        self.delay_at = Timestamp::NEVER;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn every_second_packet_at_first_then_every_eighth() {
        let (config, mut acks) = (Config::default(), Acks::new());
        let mut spoken = Vec::new();
        for packet in 1..=100 {
            acks.received(at(0), Serial(packet), &config);
            if acks.take().is_some() {
                spoken.push(packet);
            }
        }
        assert_eq!(spoken[..3], [2, 4, 6]);
        assert_eq!(spoken[31..], [64, 72, 80, 88, 96]);
        assert_eq!(acks.delay_at, at(10));
        let gap = false;
        acks.expire(at(9), gap);
        assert!(!acks.is_due());
        acks.expire(at(10), gap);
        assert_eq!(acks.take(), Some((Reason::Delay, Serial(0))));
        assert_eq!(acks.delay_at, Timestamp::NEVER);
    }

    #[test]
    fn every_second_packet_again_after_one_was_missing_or_came_twice() {
        for reason in [Reason::OutOfSequence, Reason::Duplicate] {
            let (config, mut acks) = (Config::default(), Acks::new());
            for packet in 1..=100 {
                acks.received(at(0), Serial(packet), &config);
            }
            acks.prompt(reason, Serial(101));
            assert_eq!(acks.take(), Some((reason, Serial(101))));
            acks.received(at(0), Serial(102), &config);
            assert!(!acks.is_due());
            acks.received(at(0), Serial(103), &config);
            assert_eq!(acks.take(), Some((Reason::Idle, Serial(103))));
        }
    }

    #[test]
    fn the_most_telling_reason_is_given() {
        let mut acks = Acks::new();
        acks.prompt(Reason::Requested, Serial(4));
        acks.prompt(Reason::Requested, Serial(5));
        acks.prompt(Reason::Idle, Serial(0));
        acks.prompt(Reason::Requested, Serial(0));
        assert_eq!(acks.take(), Some((Reason::Requested, Serial(5))));
        acks.prompt(Reason::OutOfSequence, Serial(6));
        acks.prompt(Reason::Duplicate, Serial(7));
        acks.ping = Some(Serial(8));
        assert_eq!(acks.take(), Some((Reason::PingResponse, Serial(8))));
        assert_eq!(acks.take(), None);
    }

    #[test]
    fn reading_is_told_so_that_the_window_moves() {
        let (config, mut acks) = (Config::default(), Acks::new());
        for _ in 0..8 {
            assert!(!acks.is_due());
            acks.read(at(0), &config);
        }
        assert_eq!(acks.take(), Some((Reason::Idle, Serial(0))));
    }
}
