//! The receiving direction of a call: packets put in order until they are read.
//!
//! Received data is never dropped: it was acknowledged, and its sender may have released it. The
//! sender may have one window of packets beyond the read ones in flight, so memory is bounded by
//! the window, and a slow reader holds back the sender.

use crate::number::Seq;
use crate::packet::{DataPacket, flag};
use crate::payload::Payload;
use std::collections::VecDeque;

/// Bytes that a slot of the window counts for in addition to its data: the slot itself, and the
/// cost of a small packet in the buffer in which it arrived. Without it, empty packets would be
/// free.
const PLACE_BYTES: usize = 256;

/// Most packets that a predecessor may have received and lost: a window.
const LOST_MAX: usize = 255;

/// Classification of a received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placed {
    /// The next packet; nothing was missing.
    InOrder,
    /// The packet fills the first gap.
    FillsHole,
    /// An earlier packet is missing.
    Early,
    /// The packet was received before.
    Duplicate,
    /// The packet lies beyond the window.
    Beyond,
    /// A violation of the end of stream announced by the sender.
    Violation,
}

/// Receiving side of a call.
#[derive(Debug)]
pub(crate) struct Receiver<D> {
    /// Packets from `next_read` on; `None` for missing ones.
    slots: VecDeque<Option<D>>,
    next_read: Seq,
    /// Number of packets at the front without a gap.
    in_order: usize,
    last: Option<Seq>,
    /// Highest packet received.
    highest: Seq,
    /// Data bytes held.
    bytes: usize,
    /// Whether received data is dropped because the application will not read it.
    discarding: bool,
    /// First packet that the peer must keep, although it may be read; `None` if it need not keep
    /// packets that were read.
    kept_before: Option<Seq>,
}

impl<D: Payload> Receiver<D> {
    pub(crate) const fn new() -> Receiver<D> {
        Receiver {
            slots: VecDeque::new(),
            next_read: Seq(1),
            in_order: 0,
            last: None,
            highest: Seq(0),
            bytes: 0,
            discarding: false,
            kept_before: None,
        }
    }

    /// Creates one of which a predecessor has kept all packets before `next`, and has received some
    /// up to `highest`, which are lost. `ends` if that was the last packet.
    pub(crate) fn continued(next: Seq, highest: Seq, ends: bool) -> Receiver<D> {
        let mut receiver = Receiver::new();
        receiver.next_read = next;
        receiver.kept_before = Some(next);
        receiver.last = ends.then_some(highest);
        receiver.highest = Seq(next.0.wrapping_sub(1));
        if highest.is_after(receiver.highest) {
            receiver.highest = highest;
            let lost = highest.distance(next) as usize + 1;
            receiver.slots.resize_with(lost.min(LOST_MAX), || None);
        }
        receiver
    }

    /// Lets the peer keep all packets until [`Receiver::keep`].
    pub(crate) const fn hold(&mut self) {
        self.kept_before = Some(Seq(1));
    }

    /// Reports whether the peer must keep packets that were read.
    pub(crate) const fn holds(&self) -> bool {
        self.kept_before.is_some()
    }

    /// Records that the peer need not keep the packets before `next`; all that were read if `None`.
    /// Returns the number of packets that this releases.
    pub(crate) fn keep(&mut self, next: Option<Seq>) -> u32 {
        let before = self.hard();
        self.kept_before = match (next, self.kept_before) {
            (Some(next), Some(held)) if next.is_after(held) => Some(next),
            (Some(_), held) => held,
            (None, _) => None,
        };
        self.hard().distance(before)
    }

    /// Returns the first packet that the peer must keep.
    pub(crate) fn hard(&self) -> Seq {
        match self.kept_before {
            Some(kept) if self.next_read.is_after(kept) => kept,
            _ => self.next_read,
        }
    }

    pub(crate) const fn next_read(&self) -> Seq {
        self.next_read
    }

    pub(crate) const fn highest(&self) -> Seq {
        self.highest
    }

    /// Checks whether nothing was received yet.
    pub(crate) const fn is_untouched(&self) -> bool {
        self.highest.0 == 0
    }

    /// Computes the bytes charged to the call: its unread data, and its slots in the window
    /// including empty ones.
    pub(crate) fn held(&self) -> usize {
        self.bytes + PLACE_BYTES * self.slots.len()
    }

    pub(crate) const fn is_readable(&self) -> bool {
        self.in_order > 0
    }

    /// Checks whether the last packet was received.
    pub(crate) const fn has_last(&self) -> bool {
        self.last.is_some()
    }

    /// Checks whether all packets up to the last were received, read or not.
    pub(crate) fn complete(&self) -> bool {
        let received = self
            .next_read
            .plus(u32::try_from(self.in_order).unwrap_or(u32::MAX));
        self.last.is_some_and(|last| received == last.next())
    }

    /// Checks whether a packet is missing before a received one.
    pub(crate) fn has_gap(&self) -> bool {
        self.slots.len() > self.in_order
    }

    /// Checks whether everything up to the last packet was read.
    pub(crate) fn at_end(&self) -> bool {
        self.last.is_some_and(|last| self.next_read == last.next())
    }

    /// Reports for each packet from [`Receiver::hard`] on whether it was received.
    pub(crate) fn received(&self) -> impl Iterator<Item = bool> {
        let read = self.next_read.distance(self.hard()) as usize;
        std::iter::repeat_n(true, read).chain(self.slots.iter().map(Option::is_some))
    }

    /// Classifies a packet for a window of `window` packets.
    pub(crate) fn classify(&self, seq: Seq, last: bool, window: u32) -> Placed {
        let contradicts = match self.last {
            Some(end) => seq.is_after(end) || last && seq != end,
            None => last && self.highest.is_after(seq),
        };
        if contradicts {
            return Placed::Violation;
        }
        if self.next_read.is_after(seq) {
            return Placed::Duplicate;
        }
        let ahead = seq.distance(self.next_read);
        if ahead >= window {
            return Placed::Beyond;
        }
        let ahead = ahead as usize;
        if self.slots.get(ahead).is_some_and(Option::is_some) {
            return Placed::Duplicate;
        }
        match (ahead == self.in_order, self.slots.len() > ahead) {
            (true, false) => Placed::InOrder,
            (true, true) => Placed::FillsHole,
            (false, _) => Placed::Early,
        }
    }

    /// Stores a packet that was classified as new.
    pub(crate) fn insert(&mut self, packet: &DataPacket, data: D) {
        if packet.seq.is_after(self.highest) {
            self.highest = packet.seq;
        }
        if packet.flags & flag::LAST_PACKET != 0 {
            self.last = Some(packet.seq);
        }
        let ahead = packet.seq.distance(self.next_read) as usize;
        self.bytes += data.len();
        if ahead == self.slots.len() {
            self.slots.push_back(Some(data));
        } else {
            if ahead > self.slots.len() {
                self.slots.resize_with(ahead + 1, || None);
            }
            if let Some(slot) = self.slots.get_mut(ahead) {
                *slot = Some(data);
            }
        }
        while self.slots.get(self.in_order).is_some_and(Option::is_some) {
            self.in_order += 1;
        }
        if self.discarding {
            while self.read().is_some() {}
        }
    }

    /// Removes and returns the data of the next packet.
    pub(crate) fn read(&mut self) -> Option<D> {
        if self.in_order == 0 {
            return None;
        }
        let data = self.slots.pop_front().flatten()?;
        self.in_order -= 1;
        self.next_read = self.next_read.next();
        self.bytes -= data.len();
        Some(data)
    }

    /// Drops all data, in order or not, because the call is over.
    pub(crate) fn forget(&mut self) {
        self.slots.clear();
        (self.in_order, self.bytes) = (0, 0);
    }

    /// Drops all present and future data, because the application will not read it.
    pub(crate) fn discard(&mut self) {
        self.discarding = true;
        while self.read().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::Serial;
    use crate::payload::Shared;

    fn packet(seq: u32, last: bool) -> DataPacket {
        DataPacket {
            seq: Seq(seq),
            serial: Serial(seq),
            flags: if last { flag::LAST_PACKET } else { 0 },
            checksum: 0,
            range: 0..1,
        }
    }

    fn take(receiver: &mut Receiver<Shared>, seq: u32) -> Placed {
        take_packet(receiver, seq, false)
    }

    fn take_last(receiver: &mut Receiver<Shared>, seq: u32) -> Placed {
        take_packet(receiver, seq, true)
    }

    fn take_packet(receiver: &mut Receiver<Shared>, seq: u32, last: bool) -> Placed {
        let placed = receiver.classify(Seq(seq), last, 8);
        if matches!(placed, Placed::InOrder | Placed::FillsHole | Placed::Early) {
            let byte = [u8::try_from(seq).unwrap()];
            receiver.insert(&packet(seq, last), Shared::from(&byte[..]));
        }
        placed
    }

    #[test]
    fn packets_in_any_order_are_read_in_theirs() {
        let mut receiver = Receiver::new();
        assert_eq!(take(&mut receiver, 3), Placed::Early);
        assert_eq!(take_last(&mut receiver, 5), Placed::Early);
        assert!(receiver.read().is_none() && !receiver.complete());
        assert_eq!(take(&mut receiver, 1), Placed::FillsHole);
        assert_eq!(take(&mut receiver, 2), Placed::FillsHole);
        let there: Vec<_> = receiver.received().collect();
        assert_eq!(there, [true, true, true, false, true]);
        assert_eq!(take(&mut receiver, 4), Placed::FillsHole);
        assert!(receiver.complete() && !receiver.at_end());
        let mut read = Vec::new();
        while let Some(data) = receiver.read() {
            read.extend(data.as_ref());
        }
        assert_eq!((read, receiver.held()), (vec![1, 2, 3, 4, 5], 0));
        assert!(receiver.at_end());
        assert_eq!(take_last(&mut receiver, 5), Placed::Duplicate);
    }

    #[test]
    fn duplicates_and_packets_beyond_the_window_are_told() {
        let mut receiver = Receiver::new();
        assert_eq!(take(&mut receiver, 1), Placed::InOrder);
        assert_eq!(take(&mut receiver, 1), Placed::Duplicate);
        assert_eq!(take(&mut receiver, 8), Placed::Early);
        assert_eq!(take(&mut receiver, 9), Placed::Beyond);
        receiver.read();
        assert_eq!(take(&mut receiver, 9), Placed::Early);
        assert_eq!(take(&mut receiver, 1), Placed::Duplicate);
        assert_eq!(receiver.highest(), Seq(9));
    }

    #[test]
    fn two_ends_of_a_stream_are_a_violation() {
        let mut receiver = Receiver::new();
        take(&mut receiver, 4);
        assert_eq!(take_last(&mut receiver, 3), Placed::Violation);
        take_last(&mut receiver, 5);
        assert_eq!(take(&mut receiver, 6), Placed::Violation);
        assert_eq!(take_last(&mut receiver, 4), Placed::Violation);
        assert_eq!(take_last(&mut receiver, 5), Placed::Duplicate);
    }

    #[test]
    fn unread_data_is_released() {
        let mut receiver = Receiver::new();
        take(&mut receiver, 1);
        receiver.discard();
        take_last(&mut receiver, 3);
        let places = 2 * PLACE_BYTES;
        assert_eq!(
            (receiver.held(), receiver.next_read()),
            (1 + places, Seq(2))
        );
        take(&mut receiver, 2);
        assert!(receiver.at_end() && receiver.held() == 0);
    }
}
