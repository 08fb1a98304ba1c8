//! One direction of a call as its receiver sees it: packets put in order, until they are read.
//!
//! What was received is never dropped: it was acknowledged, and its sender may have let it go. The
//! sender may have a window of packets beyond those that were read on its way, so memory is bounded
//! by the window, and reading slowly holds the sender back.

use crate::number::Seq;
use crate::packet::{DataPacket, flag};
use crate::payload::Payload;
use std::collections::VecDeque;

/// What a place in the window counts for beside its data: the place, and what a small packet costs
/// in the buffer it came in. Without it, empty packets would be free.
const PLACE_BYTES: usize = 256;

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placed {
    /// It is the next, and nothing was missing.
    InOrder,
    /// It fills the first hole.
    FillsHole,
    /// One before it is missing.
    Early,
    /// It was there before.
    Duplicate,
    /// It lies beyond the window.
    Beyond,
    /// It contradicts what the sender said was its last packet.
    Violation,
}

/// The receiving side of a call.
#[derive(Debug)]
pub(crate) struct Receiver<D> {
    /// Packets from `next_read` on; those that are missing are `None`.
    slots: VecDeque<Option<D>>,
    next_read: Seq,
    /// Packets at the front that are there without a hole.
    in_order: usize,
    last: Option<Seq>,
    /// The highest packet received.
    highest: Seq,
    /// Bytes of data held.
    bytes: usize,
    /// Nobody will read: what comes is let go at once.
    discarding: bool,
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
        }
    }

    /// The first packet that was not read.
    pub(crate) const fn next_read(&self) -> Seq {
        self.next_read
    }

    /// The highest packet received.
    pub(crate) const fn highest(&self) -> Seq {
        self.highest
    }

    /// Whether anything was received at all.
    pub(crate) const fn is_untouched(&self) -> bool {
        self.highest.0 == 0
    }

    /// What is held until it is read: its bytes, and its places in the window, with those between that
    /// are still empty.
    pub(crate) fn held(&self) -> usize {
        self.bytes + PLACE_BYTES * self.slots.len()
    }

    /// Whether there is something to read.
    pub(crate) const fn is_readable(&self) -> bool {
        self.in_order > 0
    }

    /// Whether the packets up to the last are all there, read or not.
    pub(crate) fn complete(&self) -> bool {
        let received = self
            .next_read
            .plus(u32::try_from(self.in_order).unwrap_or(u32::MAX));
        self.last.is_some_and(|last| received == last.next())
    }

    /// Whether a packet is missing before one that is there.
    pub(crate) fn has_gap(&self) -> bool {
        self.slots.len() > self.in_order
    }

    /// Whether everything up to the last packet was read.
    pub(crate) fn at_end(&self) -> bool {
        self.last.is_some_and(|last| self.next_read == last.next())
    }

    /// Which packets from `next_read` on are there.
    pub(crate) fn received(&self) -> impl Iterator<Item = bool> {
        self.slots.iter().map(Option::is_some)
    }

    /// Says what would become of a packet, in a window of so many packets.
    pub(crate) fn judge(&self, seq: Seq, last: bool, window: u32) -> Placed {
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

    /// Takes a packet that was judged to be new.
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

    /// The data of the next packet; the application has it now.
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

    /// The call is over: what is there is let go, in order or not.
    pub(crate) fn forget(&mut self) {
        self.slots.clear();
        (self.in_order, self.bytes) = (0, 0);
    }

    /// Nobody will read what is there and what comes.
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

    fn take(receiver: &mut Receiver<Shared>, seq: u32, last: bool) -> Placed {
        let placed = receiver.judge(Seq(seq), last, 8);
        if matches!(placed, Placed::InOrder | Placed::FillsHole | Placed::Early) {
            let byte = [u8::try_from(seq).unwrap()];
            receiver.insert(&packet(seq, last), Shared::from(&byte[..]));
        }
        placed
    }

    #[test]
    fn packets_in_any_order_are_read_in_theirs() {
        let mut receiver = Receiver::new();
        assert_eq!(take(&mut receiver, 3, false), Placed::Early);
        assert_eq!(take(&mut receiver, 5, true), Placed::Early);
        assert!(receiver.read().is_none() && !receiver.complete());
        assert_eq!(take(&mut receiver, 1, false), Placed::FillsHole);
        assert_eq!(take(&mut receiver, 2, false), Placed::FillsHole);
        let there: Vec<_> = receiver.received().collect();
        assert_eq!(there, [true, true, true, false, true]);
        assert_eq!(take(&mut receiver, 4, false), Placed::FillsHole);
        assert!(receiver.complete() && !receiver.at_end());
        let mut read = Vec::new();
        while let Some(data) = receiver.read() {
            read.extend(data.as_ref());
        }
        assert_eq!((read, receiver.held()), (vec![1, 2, 3, 4, 5], 0));
        assert!(receiver.at_end());
        assert_eq!(take(&mut receiver, 5, true), Placed::Duplicate);
    }

    #[test]
    fn duplicates_and_packets_beyond_the_window_are_told() {
        let mut receiver = Receiver::new();
        assert_eq!(take(&mut receiver, 1, false), Placed::InOrder);
        assert_eq!(take(&mut receiver, 1, false), Placed::Duplicate);
        assert_eq!(take(&mut receiver, 8, false), Placed::Early);
        assert_eq!(take(&mut receiver, 9, false), Placed::Beyond);
        receiver.read();
        assert_eq!(take(&mut receiver, 9, false), Placed::Early);
        assert_eq!(take(&mut receiver, 1, false), Placed::Duplicate);
        assert_eq!(receiver.highest(), Seq(9));
    }

    #[test]
    fn two_ends_of_a_stream_are_a_violation() {
        let mut receiver = Receiver::new();
        take(&mut receiver, 4, false);
        assert_eq!(take(&mut receiver, 3, true), Placed::Violation);
        take(&mut receiver, 5, true);
        assert_eq!(take(&mut receiver, 6, false), Placed::Violation);
        assert_eq!(take(&mut receiver, 4, true), Placed::Violation);
        assert_eq!(take(&mut receiver, 5, true), Placed::Duplicate);
    }

    #[test]
    fn what_nobody_reads_is_let_go() {
        let mut receiver = Receiver::new();
        take(&mut receiver, 1, false);
        receiver.discard();
        take(&mut receiver, 3, true);
        let places = 2 * PLACE_BYTES;
        assert_eq!(
            (receiver.held(), receiver.next_read()),
            (1 + places, Seq(2))
        );
        take(&mut receiver, 2, false);
        assert!(receiver.at_end() && receiver.held() == 0);
    }
}
