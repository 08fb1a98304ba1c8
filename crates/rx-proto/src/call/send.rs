//! The sending direction of a call: the window of packets that may not have arrived.
//!
//! ```text
//!      hard-acknowledged │ window: arrived, in flight, lost, not yet sent │ not yet cut into packets
//!                        first                                            cut
//! ```
//!
//! A packet keeps its number and its bytes from the moment it is cut until the peer
//! hard-acknowledges it; until then the peer may revoke a soft acknowledgement. In between it is
//! sent, declared lost (`loss.rs`), and retransmitted under a new serial number.

use super::Role;
use super::loss::{AckTiming, Expired, Loss, Transmission};
use super::stream::Stream;
use crate::ack::{Ack, Reason};
use crate::number::{Seq, Serial};
use crate::packet::{HEADER_BYTES, Header, JUMBO_HEADER_BYTES, PACKET_DATA_BYTES, flag};
use crate::payload::Payload;
use crate::rtt::Rtt;
use crate::security::{PacketPlace, Sealed, Security, SecurityError};
use crate::time::Timestamp;
use crate::transmit::Transmit;
use std::collections::VecDeque;

/// Window in packets assumed of a peer until it advertises one (OpenAFS, `rx_initSendWindow`).
pub(crate) const PEER_WINDOW_INITIAL: u32 = 16;

/// Smallest number of packets between two requests for an acknowledgement: our own receivers
/// acknowledge after eight, OpenAFS after two, Linux after three.
const UNASKED_MIN: u32 = 8;

/// Room in the peer's window, in packets, at which sending resumes once the window was full: two
/// full jumbograms, or a quarter of a small window. OpenAFS reports progress after each third
/// packet; sending three each time would cost several times as much.
const ROOM_MIN: u32 = 8;

/// Largest number of packets that an acknowledgement can describe.
pub(crate) const WINDOW_MAX: u32 = 255;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Cut, and not sent yet.
    Waiting,
    InFlight,
    Lost,
    /// Received by the peer, but not hard-acknowledged.
    Arrived,
}

#[derive(Debug)]
struct Packet<P> {
    start: u64,
    bytes: usize,
    state: State,
    /// Whether the packet is the last of this direction.
    last: bool,
    /// Whether the packet was sent more than once.
    again: bool,
    /// Whether the packet was sent in the same datagram as the one before.
    joined: bool,
    sent: Transmission,
    sealed: Option<Box<Sealed<P>>>,
}

impl<P: Payload> Packet<P> {
    fn wire_bytes(&self) -> usize {
        self.sealed.as_ref().map_or(self.bytes, |s| s.payload.len())
    }
}

/// Next datagram of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Datagram {
    index: usize,
    pub(crate) packets: u8,
    pub(crate) bytes: usize,
}

/// Result of an acknowledgement or of a timer expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Effect {
    /// Packets newly known to have arrived.
    pub(crate) arrived: u32,
    /// Packets declared lost that arrived after all.
    pub(crate) late: u32,
    /// Packets newly declared lost, and the number of their datagrams.
    pub(crate) lost: u32,
    pub(crate) lost_datagrams: u32,
    /// Whole jumbograms among those, and whether a jumbogram arrived.
    pub(crate) lost_jumbograms: u32,
    pub(crate) jumbogram_arrived: bool,
    /// A round-trip time sample in nanoseconds.
    pub(crate) rtt: Option<u64>,
}

/// An acknowledgement of a packet that was never sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Violation;

/// Sending side of a call.
#[derive(Debug)]
pub(crate) struct Sender<P> {
    pub(crate) stream: Stream<P>,
    window: VecDeque<Packet<P>>,
    first: Seq,
    cut: u64,
    finished: bool,
    /// Whether written data is sent even if it does not fill a packet.
    pushed: bool,
    last_cut: bool,
    peer_window: u32,
    /// Whether sending is paused because the peer's window was full and has too little room.
    held: bool,
    waiting: u32,
    in_flight: u32,
    lost: u32,
    arrived: u32,
    /// Retransmitted packets in flight.
    again: u32,
    /// Highest packet that arrived, and the peer's last received packet as reported by it.
    highest: Seq,
    previous: Seq,
    loss: Loss,
    probe_due: bool,
    /// Whether the packet put into a batch last was the last of this direction.
    put_last: bool,
    /// Packets sent since the last request for an acknowledgement.
    unasked: u32,
    resent: u64,
}

impl<P: Payload> Sender<P> {
    pub(crate) const fn new(peer_window: u32) -> Sender<P> {
        Sender {
            stream: Stream::new(),
            window: VecDeque::new(),
            first: Seq(1),
            cut: 0,
            finished: false,
            pushed: false,
            last_cut: false,
            peer_window,
            held: false,
            waiting: 0,
            in_flight: 0,
            lost: 0,
            arrived: 0,
            again: 0,
            highest: Seq(0),
            previous: Seq(0),
            loss: Loss::new(),
            probe_due: false,
            put_last: false,
            unasked: 0,
            resent: 0,
        }
    }

    /// Marks the end of the written data.
    pub(crate) const fn finish(&mut self) {
        self.finished = true;
    }

    /// Requests that written data is sent even if it does not fill a packet.
    pub(crate) const fn push(&mut self) {
        self.pushed = true;
    }

    pub(crate) const fn is_finished(&self) -> bool {
        self.finished
    }

    /// Checks whether all packets including the last were sent at least once.
    pub(crate) const fn all_sent(&self) -> bool {
        self.last_cut && self.waiting == 0
    }

    /// Checks whether the peer has everything. Soft-acknowledged packets count: a client may not
    /// drop received packets of a reply (OpenAFS, `rxi_ReceiveAckPacket`, state HOLD).
    pub(crate) fn complete(&self) -> bool {
        self.all_sent() && self.arrived as usize == self.window.len()
    }

    /// Returns the number of bytes that are in no packet yet.
    pub(crate) const fn uncut(&self) -> u64 {
        self.stream.end() - self.cut
    }

    pub(crate) const fn resent(&self) -> u64 {
        self.resent
    }

    pub(crate) const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns the first packet that is not hard-acknowledged.
    pub(crate) const fn first(&self) -> Seq {
        self.first
    }

    /// Sets the peer's window, in packets from the first that is not hard-acknowledged.
    pub(crate) fn set_peer_window(&mut self, packets: u32, ours: u32) {
        self.peer_window = packets.min(ours).min(WINDOW_MAX);
        self.note_room();
    }

    /// Computes the number of packets that may be cut within the peer's window.
    fn room(&self) -> u32 {
        self.peer_window.saturating_sub(self.len())
    }

    /// Updates whether sending is paused, from the room in the peer's window.
    fn note_room(&mut self) {
        let room = self.room();
        self.held = room == 0 || self.held && room < ROOM_MIN.min(self.peer_window.div_ceil(4));
    }

    fn len(&self) -> u32 {
        small(self.window.len())
    }

    /// Counts the packets in the window that were sent at least once.
    fn sent_count(&self) -> u32 {
        self.len() - self.waiting
    }

    /// Checks whether a packet can be cut now. A full packet is not cut until it is known whether
    /// it is the last, because its flags have to say so.
    fn can_cut(&self, room: usize) -> bool {
        let uncut = self.uncut();
        let enough = self.finished || uncut > room as u64 || self.pushed && uncut > 0;
        let ends = || self.finished && uncut <= u64::from(self.room()) * room as u64;
        !self.last_cut && enough && self.room() > 0 && (!self.held || ends())
    }

    /// Checks whether there is something to send as soon as the path allows it.
    pub(crate) fn has_work(&self, room: usize) -> bool {
        self.probe_due || self.lost > 0 || self.new_allowed() || self.can_cut(room)
    }

    fn new_allowed(&self) -> bool {
        self.waiting > 0 && self.sent_count() < self.peer_window
    }

    /// Cuts packets of at most `room` bytes until `want` packets wait to be sent, or no more can be
    /// cut.
    pub(crate) fn cut<D>(
        &mut self,
        want: u32,
        room: usize,
        place: PacketPlace,
        mut security: Option<&mut (dyn Security<P, D> + 'static)>,
    ) -> Result<(), SecurityError> {
        let capacity = security
            .as_ref()
            .map_or(room, |s| s.capacity(room).min(room))
            .max(1);
        while self.waiting < want && self.can_cut(capacity) {
            let uncut = self.uncut();
            let bytes = usize::try_from(uncut).map_or(capacity, |uncut| uncut.min(capacity));
            let last = self.finished && bytes as u64 == uncut;
            let mut packet = Packet {
                start: self.cut,
                bytes,
                state: State::Waiting,
                last,
                again: false,
                joined: false,
                sent: Transmission {
                    at: Timestamp::NEVER,
                    serial: Serial(0),
                },
                sealed: None,
            };
            if let Some(security) = &mut security {
                let mut pieces = Vec::new();
                self.stream.slices(self.cut, bytes, |p| pieces.push(p));
                let seq = self.first.plus(self.len());
                let sealed = security.seal(&PacketPlace { seq, ..place }, &pieces)?;
                packet.sealed = Some(Box::new(sealed));
            }
            self.window.push_back(packet);
            self.cut += bytes as u64;
            self.pushed &= self.uncut() > 0;
            self.last_cut = last;
            self.waiting += 1;
            self.note_room();
        }
        Ok(())
    }

    /// Chooses the datagram to send next: lost packets first, then new ones, up to `jumbo` per
    /// datagram. A due probe uses new packets, or the highest one in flight.
    pub(crate) fn next(&self, jumbo: u8) -> Option<Datagram> {
        if self.lost > 0 {
            let index = self.window.iter().position(|p| p.state == State::Lost)?;
            return self.datagram(index, 1);
        }
        if self.new_allowed() {
            let most = self.waiting.min(self.peer_window - self.sent_count());
            let most = u8::try_from(most).unwrap_or(u8::MAX).min(jumbo).max(1);
            return self.datagram(self.sent_count() as usize, most);
        }
        if self.probe_due {
            let index = self
                .window
                .iter()
                .rposition(|p| p.state == State::InFlight)?;
            return self.datagram(index, 1);
        }
        None
    }

    fn datagram(&self, index: usize, most: u8) -> Option<Datagram> {
        let mut bytes = HEADER_BYTES + self.window.get(index)?.wire_bytes();
        let mut packets = 1;
        while packets < most {
            let before = self.window.get(index + usize::from(packets) - 1)?;
            let Some(packet) = self.window.get(index + usize::from(packets)) else {
                break;
            };
            if before.wire_bytes() != PACKET_DATA_BYTES {
                break;
            }
            bytes += JUMBO_HEADER_BYTES + packet.wire_bytes();
            packets += 1;
        }
        Some(Datagram {
            index,
            packets,
            bytes,
        })
    }

    /// Checks whether a probe is due, which may be sent although the window is full.
    pub(crate) const fn probe_due(&self) -> bool {
        self.probe_due
    }

    /// Puts a datagram into `out`, with serial numbers from `header.serial` on. Returns the number
    /// of packets that were not in flight before.
    pub(crate) fn send(
        &mut self,
        now: Timestamp,
        datagram: Datagram,
        mut header: Header,
        out: &mut Transmit<P>,
    ) -> u32 {
        out.segment(datagram.bytes);
        let side = header.flags & flag::CLIENT_INITIATED;
        let mut departed = 0;
        for inner in 0..usize::from(datagram.packets) {
            let index = datagram.index + inner;
            let Some(packet) = self.window.get_mut(index) else {
                break;
            };
            match packet.state {
                State::Waiting => self.waiting -= 1,
                State::Lost => self.lost -= 1,
                State::InFlight | State::Arrived => {}
            }
            let new = packet.state == State::Waiting;
            departed += u32::from(packet.state != State::InFlight);
            let counted = packet.again && packet.state == State::InFlight;
            self.again += u32::from(!new && !counted);
            self.resent += u64::from(!new);
            packet.again = !new;
            packet.joined = inner > 0;
            packet.state = State::InFlight;
            packet.sent = Transmission {
                at: now,
                serial: header.serial,
            };
            self.put_last = packet.last;
            self.unasked += 1;
            let mut flags = side;
            if packet.last {
                flags |= flag::LAST_PACKET;
            }
            if inner + 1 < usize::from(datagram.packets) {
                flags |= flag::JUMBO_PACKET;
            }
            let checksum = packet.sealed.as_ref().map_or(0, |s| s.checksum);
            if inner == 0 {
                header.seq = self.first.plus(small(index));
                header.flags = flags;
                header.checksum = checksum;
                out.data_header(&header.encode(), 21);
            } else {
                let [high, low] = checksum.to_be_bytes();
                out.data_header(&[flags, 0, high, low], 0);
            }
            match &packet.sealed {
                Some(sealed) => out.payload(sealed.payload.clone()),
                None => {
                    self.stream
                        .slices(packet.start, packet.bytes, |p| out.payload(p));
                }
            }
            header.serial = header.serial.next();
        }
        self.in_flight += departed;
        self.loss.sent(now);
        if self.probe_due {
            self.probe_due = false;
            self.loss
                .probe_sent(Serial(header.serial.0.wrapping_sub(1)));
        }
        departed
    }

    /// Decides whether the assembled batch should request an acknowledgement: if nothing follows
    /// for now (`idle`), if so few packets are in flight that the peer might wait for more, or if
    /// it is time for another. Otherwise the peer acknowledges on its own, which costs both sides
    /// less.
    ///
    /// A request of a single packet does not ask, on a path with a known round trip: the reply
    /// implies its arrival, and if the reply takes long, the probe asks.
    pub(crate) fn asks(&mut self, idle: bool, role: Role, rtt: &Rtt) -> bool {
        let alone = self.window.len() == 1 && self.put_last && role == Role::Client;
        if alone && rtt.known() && self.first == Seq(1) && self.resent == 0 {
            return false;
        }
        let time = self.unasked >= UNASKED_MIN.max(self.in_flight / 4);
        let asks = idle || self.in_flight <= 2 * UNASKED_MIN || time;
        if asks {
            self.unasked = 0;
        }
        asks
    }

    /// Returns how many of the packets put into a batch last must not request an acknowledgement:
    /// the last packet of a reply. OpenAFS would answer before the application has read it, and
    /// then never hard-acknowledge it (Linux, `rxrpc_prepare_data_subpacket`).
    pub(crate) fn must_not_ask(&self, role: Role) -> usize {
        usize::from(role == Role::Server && self.put_last)
    }

    /// Processes an acknowledgement.
    pub(crate) fn acknowledge(
        &mut self,
        now: Timestamp,
        ack: &Ack<'_>,
        rtt: &mut Rtt,
    ) -> Result<Effect, Violation> {
        let mut effect = Effect::default();
        let hard = ack.first.distance(self.first);
        if ack.first == Seq(0) {
            return Err(Violation);
        }
        if self.first.is_after(ack.first) || !self.is_news(ack, hard) {
            return Ok(effect);
        }
        if hard as usize + ack.packets.len() > self.sent_count() as usize {
            return Err(Violation);
        }
        let named = (ack.serial != Serial(0)).then_some(ack.serial);
        let recovering = self.lost + self.again > 0;
        effect.rtt = self.sample(now, ack);
        if let Some(sample) = effect.rtt {
            rtt.sample(now, sample);
        }
        for _ in 0..hard {
            self.note_arrival(now, 0, named, rtt, &mut effect);
            self.window.pop_front();
            self.first = self.first.next();
            self.arrived -= 1;
        }
        self.note_room();
        let start = self.window.front().map_or(self.cut, |p| p.start);
        self.stream.release(start);
        self.take_soft(now, ack.packets, named, rtt, &mut effect);
        self.loss.reset_backoff();
        if let (Some(Reason::Duplicate), Some(serial)) = (ack.reason, named) {
            self.loss.was_not_lost(serial, rtt);
        }
        if effect.arrived + effect.late > 0 {
            self.loss.progress(now, rtt);
            if recovering && self.lost + self.again == 0 {
                self.loss.recovered();
            }
        }
        self.detect(now, rtt, &mut effect);
        Ok(effect)
    }

    /// Checks whether an acknowledgement without new hard-acknowledged packets is at least not
    /// older than another. Its age follows from the last packet that the peer received; some peers
    /// put a serial number there, which lies beyond the window (OpenAFS, `ack_is_valid`).
    fn is_news(&mut self, ack: &Ack<'_>, hard: u32) -> bool {
        let is_seq = ack.previous.distance(self.first) < self.peer_window
            || self.first.is_after(ack.previous);
        if hard == 0 && is_seq && self.previous.is_after(ack.previous) {
            return false;
        }
        if is_seq {
            self.previous = ack.previous;
        }
        true
    }

    /// Finds the round trip of the transmission that prompted an acknowledgement, unless the peer
    /// delayed it.
    fn sample(&self, now: Timestamp, ack: &Ack<'_>) -> Option<u64> {
        let prompt = !matches!(
            ack.reason?,
            Reason::Delay | Reason::Ping | Reason::PingResponse
        );
        if !prompt || ack.serial == Serial(0) {
            return None;
        }
        let named = |p: &&Packet<P>| p.state != State::Waiting && p.sent.serial == ack.serial;
        let likely = self.window.get(ack.previous.distance(self.first) as usize);
        let packet = likely
            .filter(named)
            .or_else(|| self.window.iter().find(named))?;
        Some(now.nanos_since(packet.sent.at))
    }

    /// Records that packet `index` of the window has arrived.
    fn note_arrival(
        &mut self,
        now: Timestamp,
        index: usize,
        named: Option<Serial>,
        rtt: &Rtt,
        effect: &mut Effect,
    ) {
        let Some(packet) = self.window.get_mut(index) else {
            return;
        };
        match packet.state {
            State::InFlight => {
                self.in_flight -= 1;
                self.again -= u32::from(packet.again);
                effect.arrived += 1;
            }
            State::Lost => {
                // It was subtracted from the packets in flight when it was declared lost.
                self.lost -= 1;
                effect.late += 1;
            }
            State::Waiting | State::Arrived => return,
        }
        packet.state = State::Arrived;
        self.arrived += 1;
        effect.jumbogram_arrived |= packet.joined;
        if !(packet.again && packet.sent.is_unrelated(now, named, rtt)) {
            self.loss.arrived(now, packet.sent);
        }
        let seq = self.first.plus(small(index));
        if seq.is_after(self.highest) {
            self.highest = seq;
        } else if !packet.again {
            self.loss.reordered();
        }
    }

    /// Processes soft acknowledgements, including revoked ones.
    fn take_soft(
        &mut self,
        now: Timestamp,
        packets: &[u8],
        named: Option<Serial>,
        rtt: &Rtt,
        effect: &mut Effect,
    ) {
        let mut confirmed = 0;
        for (index, byte) in packets.iter().enumerate() {
            if byte & 1 != 0 {
                self.note_arrival(now, index, named, rtt, effect);
                confirmed += 1;
            }
        }
        if self.arrived == confirmed {
            return;
        }
        // The peer dropped packets that it had; packets that it does not mention were dropped too.
        for (index, packet) in self.window.iter_mut().enumerate() {
            let there = packets.get(index).is_some_and(|byte| byte & 1 != 0);
            if packet.state == State::Arrived && !there {
                packet.state = State::Lost;
                self.arrived -= 1;
                self.lost += 1;
            }
        }
    }

    /// Declares packets lost that are overdue by now.
    fn detect(&mut self, now: Timestamp, rtt: &Rtt, effect: &mut Effect) {
        self.loss.begin_scan();
        let beyond_first = self.highest.next().distance(self.first);
        let gap = self.arrived > 0 && self.arrived != beyond_first;
        if self.in_flight == 0 || !(gap || self.again > 0) {
            return;
        }
        let recovering = self.lost > 0;
        let window = self.loss.window(recovering, self.arrived, rtt);
        let mut before = (false, false);
        for packet in &mut self.window {
            let lost =
                packet.state == State::InFlight && self.loss.is_lost(now, packet.sent, window);
            if lost {
                packet.state = State::Lost;
                self.in_flight -= 1;
                self.lost += 1;
                self.again -= u32::from(packet.again);
                effect.lost += 1;
                effect.lost_datagrams += u32::from(!(packet.joined && before.0));
                // The second packet of a jumbogram whose first was lost too stands for all of it.
                effect.lost_jumbograms += u32::from(packet.joined && before == (true, false));
            }
            before = (lost, packet.joined);
        }
    }

    /// Computes the expiry of the loss timer.
    pub(crate) fn deadline(&self, role: Role, rtt: &Rtt) -> Timestamp {
        self.loss
            .deadline(self.in_flight, self.ack_timing(role), rtt)
    }

    /// Returns when the peer is expected to acknowledge the packets in flight.
    fn ack_timing(&self, role: Role) -> AckTiming {
        let last = |p: &Packet<P>| p.last && p.state == State::InFlight;
        if role == Role::Server && self.window.back().is_some_and(last) {
            AckTiming::Delayed
        } else {
            AckTiming::Prompt
        }
    }

    /// Handles an expiry of the loss timer.
    pub(crate) fn expire(&mut self, now: Timestamp, role: Role, rtt: &Rtt) -> (Expired, Effect) {
        let mut effect = Effect::default();
        let expired = self
            .loss
            .expire(now, self.in_flight, self.ack_timing(role), rtt);
        match expired {
            Expired::Nothing => {}
            Expired::Reordering => self.detect(now, rtt, &mut effect),
            Expired::Probe => self.probe_due = true,
            Expired::Timeout => {
                effect.lost = self.in_flight;
                for packet in &mut self.window {
                    if packet.state == State::InFlight {
                        packet.state = State::Lost;
                    }
                }
                self.lost += self.in_flight;
                self.in_flight = 0;
                self.again = 0;
            }
        }
        (expired, effect)
    }

    /// Computes the time since the last packet was sent, if it was sent once: an upper bound of the
    /// round trip when a reply arrives, because it includes the server's processing time.
    pub(crate) fn since_last(&self, now: Timestamp) -> Option<u64> {
        let last = self.window.back()?;
        let once = last.last && !last.again && last.state == State::InFlight;
        once.then(|| now.nanos_since(last.sent.at))
    }

    /// Records that everything arrived, as implied by something other than an acknowledgement.
    pub(crate) fn all_arrived(&mut self, now: Timestamp, rtt: &mut Rtt) {
        self.loss.progress(now, rtt);
    }

    /// Drops the window, because everything has arrived or the call is over. Returns the number of
    /// packets that were in flight.
    pub(crate) fn clear(&mut self) -> u32 {
        let in_flight = self.in_flight;
        self.first = self.first.plus(self.len());
        self.window.clear();
        self.stream.clear();
        self.cut = self.stream.end();
        (self.finished, self.last_cut) = (true, true);
        (self.waiting, self.in_flight, self.lost) = (0, 0, 0);
        (self.arrived, self.again) = (0, 0);
        self.probe_due = false;
        in_flight
    }
}

/// Converts a number of packets in a window, at most 255.
fn small(packets: usize) -> u32 {
    u32::try_from(packets).unwrap_or(u32::MAX)
}
