//! The place of one connection in the table.

use super::{AREA_BYTES, Kept, PLACE_HEADER_WORDS, SLOT_WORDS, SLOTS, distance, name_of, position};
use crate::socket::{Pipe, Raw};
use crate::step::step;
use block::Buf;
use nbd_proto::{Command, Errno, REQUEST_BYTES, RequestHeader};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use survival::sealed::{checksum, unseal};
use survival::{Area, sockets};

// Words of a place.
pub(super) const STATE: usize = 0;
/// The key of its session, and the checksum of it.
const KEY: usize = 1;
const KEY_SUM: usize = 2;
/// Position at which the kernel's count of received bytes began; while it begins again, these differ.
const COUNTED_NEXT: usize = 3;
const COUNTED: usize = 4;
/// Position up to which input was processed, and whether later bytes are payload in its buffers.
const PARSED: usize = 5;
/// Position of the first byte of the input area, and which of the two it is.
const INPUT: usize = 6;
/// TCP: the kernel's count of sent bytes at position 0. Unix: the position behind what is in the
/// pipe, and whether more is being written to it.
const SENT: usize = 7;

// Words of a slot: the position of the request, its header, a checksum, and the result.
const AT: usize = 0;
const HEADER: usize = 1;
const HEADER_WORDS: usize = 4;
const SUM: usize = HEADER + HEADER_WORDS;
const DONE: usize = SUM + 1;

/// Bits of [`DONE`], above the position.
const HAS_ENDED: u64 = 1 << 40;
const IS_QUEUED: u64 = 1 << 41;
const ERROR_SHIFT: u32 = 42;
/// Errors by their number in [`DONE`], from 1 on.
const ERRORS: [Errno; 8] = [
    Errno::Permission,
    Errno::Io,
    Errno::NoMemory,
    Errno::Invalid,
    Errno::NoSpace,
    Errno::Overflow,
    Errno::NotSupported,
    Errno::Shutdown,
];

/// Received bytes after which the kernel's count begins again; few in tests, so that they see it.
const COUNT_MAX: u64 = if cfg!(test) { 1 << 14 } else { 1 << 30 };

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Everything is in the input area, from the first byte on.
    Negotiating,
    /// Requests follow; the client has `left` if none does any more.
    Transmission {
        export: usize,
        structured: bool,
        key: Option<u64>,
        left: bool,
    },
    /// It cannot be continued: it has TLS, or waits for a fence.
    Unfit,
}

/// [`STATE`] of a connection that the first worker has to continue from its first byte on.
pub(super) const NEGOTIATES: u64 = 1;

// Bits of [`STATE`].
const PHASE_BITS: u64 = 3;
const WORKER_SHIFT: u32 = 2;
const EXPORT_SHIFT: u32 = 16;
const IS_STRUCTURED: u64 = 1 << 32;
const HAS_KEY: u64 = 1 << 33;
const HAS_LEFT: u64 = 1 << 34;

pub(super) fn worker(state: u64) -> usize {
    (state >> WORKER_SHIFT) as usize & 0x3fff
}

/// Result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    No,
    /// The reply has no position in the output yet.
    Unqueued(Option<Errno>),
    /// Position of the reply.
    At(u64, Option<Errno>),
}

impl Done {
    fn pack(self) -> u64 {
        let number = |error: Option<Errno>| {
            let at = ERRORS.iter().position(|other| Some(*other) == error);
            (at.map_or(0, |at| at as u64 + 1)) << ERROR_SHIFT
        };
        match self {
            Done::No => 0,
            Done::Unqueued(error) => HAS_ENDED | number(error),
            Done::At(at, error) => HAS_ENDED | IS_QUEUED | number(error) | position(at),
        }
    }

    fn unpack(value: u64) -> Option<Done> {
        let error = match (value >> ERROR_SHIFT) as usize {
            0 => None,
            number => Some(*ERRORS.get(number - 1)?),
        };
        Some(match (value & HAS_ENDED != 0, value & IS_QUEUED != 0) {
            (false, _) => Done::No,
            (true, false) => Done::Unqueued(error),
            (true, true) => Done::At(position(value), error),
        })
    }
}

/// See the module.
pub(crate) struct Place {
    kept: Arc<Kept>,
    number: u32,
    worker: usize,
    free: Vec<u16>,
    /// Requests whose replies are queued, with the position behind each.
    queued: VecDeque<(u16, u64)>,
    /// Position of the next reply.
    end: u64,
    /// Position of the next byte to send.
    sent: u64,
    /// Position at which the kernel's count of received bytes began.
    counted: u64,
    received: u64,
}

impl Place {
    pub(super) fn new(kept: Arc<Kept>, number: u32, raw: &Raw) -> io::Result<Place> {
        sockets::count_received(raw)?;
        let sent = match raw {
            Raw::Tcp(_) => position(sockets::sent(raw)?),
            Raw::Unix(_) => 0,
        };
        let place = Place {
            kept,
            number,
            worker: 0,
            free: (0..SLOTS as u16).rev().collect(),
            queued: VecDeque::new(),
            end: 0,
            sent: 0,
            counted: 0,
            received: 0,
        };
        for (at, value) in [
            (COUNTED_NEXT, 0),
            (COUNTED, 0),
            (PARSED, 0),
            (INPUT, 0),
            (SENT, sent),
        ] {
            place.store(at, value);
        }
        for slot in 0..SLOTS {
            place.word(slot_word(slot as u16, AT)).0.store(0, Relaxed);
        }
        Ok(place)
    }

    /// States which worker has the connection, before it negotiates.
    pub(crate) fn assign(&mut self, worker: usize) {
        self.worker = worker;
        self.enter(Phase::Negotiating);
    }

    /// Leaves the table: the connection has ended. Its socket is shut down already.
    pub(crate) fn leave(self, areas: [Area; 2]) {
        // The keeper has died if this fails, and then no other process has the socket.
        let _ = self.kept.keep.close(&name_of(self.number));
        step();
        self.kept.clear(self.number);
        super::lock(&self.kept.free).push((self.number, areas));
    }

    /// States how far the connection is.
    pub(crate) fn enter(&self, phase: Phase) {
        let mut state = (self.worker as u64) << WORKER_SHIFT;
        state |= match phase {
            Phase::Negotiating => 1,
            Phase::Transmission { .. } => 2,
            Phase::Unfit => 3,
        };
        if let Phase::Transmission {
            export,
            structured,
            key,
            left,
        } = phase
        {
            state |= (export as u64) << EXPORT_SHIFT;
            state |= if structured { IS_STRUCTURED } else { 0 };
            state |= if left { HAS_LEFT } else { 0 };
            if let Some(key) = key {
                state |= HAS_KEY;
                self.word(KEY).0.store(key, Relaxed);
                self.word(KEY_SUM).0.store(checksum(&[key]), Relaxed);
            }
        }
        self.store(STATE, state);
    }

    /// States that received bytes before a position were processed. `in_place`: what is received
    /// from there on is payload in its buffers.
    #[inline]
    pub(crate) fn parsed(&self, at: u64, in_place: bool) {
        self.store(PARSED, position(at) << 1 | u64::from(in_place));
    }

    /// States the position of the first byte of the input area that is used from now on.
    #[inline]
    pub(crate) fn input_at(&self, at: u64, which: usize) {
        self.store(INPUT, position(at) << 1 | which as u64);
    }

    /// Counts received bytes.
    pub(crate) fn received(&mut self, bytes: usize, raw: &Raw) -> io::Result<()> {
        step();
        self.received += bytes as u64;
        if self.received - self.counted < COUNT_MAX {
            return Ok(());
        }
        self.store(COUNTED_NEXT, position(self.received));
        sockets::count_received(raw)?;
        step();
        self.counted = self.received;
        self.store(COUNTED, position(self.received));
        Ok(())
    }

    /// States that more is being written to the pipe, or has been written: `end` is the position
    /// behind what is in it for sure.
    #[inline]
    pub(crate) fn piped(&self, end: u64, is_writing: bool) {
        self.store(SENT, position(end) << 1 | u64::from(is_writing));
    }

    /// Gives the request at a position a slot; `None` if all are in use. It counts from the next
    /// [`Place::parsed`] on.
    pub(crate) fn begin(&mut self, at: u64, header: &[u8; REQUEST_BYTES]) -> Option<u16> {
        let slot = self.free.pop()?;
        let mut bytes = [0; 8 * HEADER_WORDS];
        bytes[..REQUEST_BYTES].copy_from_slice(header);
        let mut words = [0; HEADER_WORDS + 1];
        words[0] = position(at);
        for (word, bytes) in words[1..].iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        }
        for (index, word) in words[1..].iter().enumerate() {
            let (to, _) = self.word(slot_word(slot, HEADER + index));
            to.store(*word, Relaxed);
            step();
        }
        let (sum, _) = self.word(slot_word(slot, SUM));
        sum.store(checksum(&words), Relaxed);
        step();
        self.store(slot_word(slot, DONE), 0);
        self.store(slot_word(slot, AT), words[0]);
        Some(slot)
    }

    /// States that buffers hold the payload of the request at a position, from the part `ordinal` on.
    pub(crate) fn own(&self, at: u64, ordinal: usize, bufs: &[Buf]) {
        for (index, buf) in bufs.iter().enumerate() {
            let ordinal = (ordinal + index) as u32;
            let at = position(at);
            self.kept.own(self.worker, self.number, at, ordinal, buf);
        }
    }

    /// States that a request has ended, and that its reply has no position yet.
    pub(crate) fn ended(&self, slot: u16, error: Option<Errno>) {
        self.store(slot_word(slot, DONE), Done::Unqueued(error).pack());
    }

    /// States that a request has ended, and that its reply of `bytes` is the next one.
    #[inline]
    pub(crate) fn queued(&mut self, slot: u16, error: Option<Errno>, bytes: u64) {
        self.store(slot_word(slot, DONE), Done::At(self.end, error).pack());
        self.end += bytes;
        self.queued.push_back((slot, self.end));
    }

    /// Lets a request run again, whose result was not sent.
    pub(crate) fn repeat(&self, slot: u16) {
        self.store(slot_word(slot, DONE), Done::No.pack());
    }

    /// Counts output that was sent, and frees the slots of the replies that were sent completely.
    #[inline]
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
        while let Some((slot, end)) = self.queued.front()
            && *end <= self.sent
        {
            self.word(slot_word(*slot, AT)).0.store(0, Release);
            step();
            self.free.push(*slot);
            self.queued.pop_front();
        }
    }

    /// Counts output of the negotiation, which has no slots.
    pub(crate) fn negotiated(&mut self, bytes: usize) {
        self.end += bytes as u64;
    }

    /// Begins the output again: what was sent is skipped.
    pub(crate) fn negotiates_again(&mut self) {
        self.end = 0;
    }

    /// Returns the position of the next byte to send.
    pub(crate) fn output_at(&self) -> u64 {
        self.sent
    }

    fn word(&self, at: usize) -> (&std::sync::atomic::AtomicU64, u64) {
        self.kept.word(self.number, at)
    }

    fn store(&self, at: usize, value: u64) {
        self.kept.store(self.number, at, value);
    }
}

fn slot_word(slot: u16, word: usize) -> usize {
    PLACE_HEADER_WORDS + usize::from(slot) * SLOT_WORDS + word
}

/// A request of a predecessor.
pub(crate) struct Known {
    pub(crate) slot: u16,
    pub(crate) at: u64,
    pub(crate) header: RequestHeader,
    pub(crate) done: Done,
}

/// A connection of a predecessor.
pub(crate) struct Left {
    pub(crate) entry: Entry,
    pub(crate) areas: [Area; 2],
    pub(crate) raw: Raw,
    pub(crate) pipe: Option<Pipe>,
}

/// The statements of the table about a connection of a predecessor.
pub(crate) struct Entry {
    pub(crate) place: Place,
    pub(crate) phase: Phase,
    /// Position behind the last received byte.
    pub(crate) received: u64,
    /// Position behind the processed input.
    pub(crate) parsed: u64,
    /// The bytes received from `parsed` on are payload in its buffers.
    pub(crate) in_place: bool,
    /// Position of the first byte of the input area, and which one it is.
    pub(crate) input: (u64, usize),
    /// Requests whose replies were not sent completely, in the order of the input.
    pub(crate) known: Vec<Known>,
}

/// The areas of a connection that cannot be continued, and why.
type Unfit = ([Area; 2], &'static str);

impl Left {
    pub(super) fn new(
        kept: Arc<Kept>,
        number: u32,
        sockets: Vec<OwnedFd>,
        areas: [Area; 2],
    ) -> Result<Left, Unfit> {
        let mut sockets = sockets.into_iter();
        let raw = sockets.next().and_then(|socket| Raw::adopt(socket).ok());
        let Some(raw) = raw else {
            return Err((areas, "its socket is unusable"));
        };
        let ends = sockets.next().zip(sockets.next());
        let pipe = ends.map(|(from, to)| Pipe::adopt(from, to));
        match Entry::read(kept, number, &raw, pipe.as_ref()) {
            Ok(entry) => Ok(Left {
                entry,
                areas,
                raw,
                pipe,
            }),
            Err(why) => {
                let _ = raw.shut_down();
                Err((areas, why))
            }
        }
    }

    /// Returns the place and the position of each write that is not done.
    pub(crate) fn unfinished_writes(&self) -> Vec<(u32, u64)> {
        let entry = &self.entry;
        let is_unfinished = |known: &&Known| {
            known.done == Done::No && matches!(known.header.command, Command::Write)
        };
        let known = entry.known.iter().filter(is_unfinished);
        known.map(|known| (entry.number(), known.at)).collect()
    }

    /// Gives up: closes the connection and frees its place.
    pub(crate) fn give_up(self) {
        let _ = self.raw.shut_down();
        self.entry.place.leave(self.areas);
    }
}

impl Entry {
    fn read(
        kept: Arc<Kept>,
        number: u32,
        raw: &Raw,
        pipe: Option<&Pipe>,
    ) -> Result<Entry, &'static str> {
        const DAMAGED: &str = "its entry in the table is damaged";
        const LOST: &str = "the system does not tell how far it was";
        let load = |at| kept.load(number, at).ok_or(DAMAGED);
        let state = load(STATE)?;
        let phase = match state & PHASE_BITS {
            1 => Phase::Negotiating,
            2 => {
                let key = kept.word(number, KEY).0.load(Acquire);
                let has_key = state & HAS_KEY != 0;
                if has_key && kept.word(number, KEY_SUM).0.load(Acquire) != checksum(&[key]) {
                    return Err(DAMAGED);
                }
                Phase::Transmission {
                    export: (state >> EXPORT_SHIFT) as usize & 0xffff,
                    structured: state & IS_STRUCTURED != 0,
                    key: has_key.then_some(key),
                    left: state & HAS_LEFT != 0,
                }
            }
            _ => return Err("it has TLS, or waited for a fence"),
        };
        let (counted, next) = (load(COUNTED)?, load(COUNTED_NEXT)?);
        let count = sockets::received(raw).map_err(|_| LOST)?;
        // Between these two, the count was about to begin again, or has done so.
        let is_certain = counted == next;
        let counted = if count == 0 { next } else { counted };
        let received = counted + count;
        let sent = match (raw, pipe) {
            (Raw::Tcp(_), _) => {
                let now = sockets::sent(raw).map_err(|_| LOST)?;
                position(now.wrapping_sub(load(SENT)?))
            }
            (Raw::Unix(_), Some(pipe)) => {
                let (word, waiting) = (load(SENT)?, pipe.len().map_err(|_| LOST)?);
                let is_writing = word & 1 != 0;
                // The pipe was empty when this write began.
                (word >> 1) + if is_writing { waiting as u64 } else { 0 }
            }
            (Raw::Unix(_), None) => return Err(LOST),
        };
        let (parsed, input) = (load(PARSED)?, load(INPUT)?);
        let (parsed, in_place) = (parsed >> 1, parsed & 1 != 0);
        let mut known = Vec::new();
        let mut free: Vec<u16> = Vec::new();
        for slot in (0..SLOTS as u16).rev() {
            let request = known_at(&kept, number, slot).map_err(|()| DAMAGED)?;
            // One that is not behind `parsed` is parsed again.
            match request {
                Some(request) if distance(request.at, parsed) > 0 => known.push(request),
                stale => {
                    if stale.is_some() {
                        // The next successor must not take it for the request at that position.
                        kept.word(number, slot_word(slot, AT)).0.store(0, Release);
                        step();
                    }
                    free.push(slot);
                }
            }
        }
        known.sort_by_key(|request| distance(parsed, request.at));
        let place = Place {
            kept: Arc::clone(&kept),
            number,
            worker: worker(state),
            free,
            queued: VecDeque::new(),
            end: sent,
            sent,
            counted,
            received,
        };
        if !is_certain {
            place.store(COUNTED_NEXT, position(counted));
            place.store(COUNTED, position(counted));
        }
        if pipe.is_some() {
            place.piped(sent, false);
        }
        Ok(Entry {
            place,
            phase,
            received,
            parsed,
            in_place,
            input: (input >> 1, input as usize & 1),
            known,
        })
    }

    /// Frees the slots of requests whose replies were sent, and lets the others be queued again in
    /// their order, except a reply that was sent in part: its position and that of the next reply
    /// stay. Returns what is left of it to skip: the slot, and the number of bytes that were sent.
    ///
    /// # Errors
    /// The positions contradict each other.
    pub(crate) fn sort_output(
        &mut self,
        len: impl Fn(&RequestHeader, Option<Errno>) -> u64,
    ) -> Result<Option<(u16, u64)>, &'static str> {
        let place = &mut self.place;
        let (sent, mut partial, mut waiting) = (place.sent, None, Vec::new());
        self.known.retain_mut(|request| {
            let Done::At(at, error) = request.done else {
                return true;
            };
            let (start, bytes) = (distance(sent, at), len(&request.header, error) as i64);
            if start + bytes <= 0 {
                place.word(slot_word(request.slot, AT)).0.store(0, Release);
                step();
                place.free.push(request.slot);
                return false;
            }
            if start < 0 {
                partial = Some((request.slot, -start as u64));
                place.end = sent.wrapping_add((start + bytes) as u64);
                place.queued.push_back((request.slot, place.end));
            } else {
                request.done = Done::Unqueued(error);
                waiting.push((start, request.slot, error));
            }
            true
        });
        waiting.sort_unstable_by_key(|(start, ..)| *start);
        if partial.is_none() && waiting.first().is_some_and(|(start, ..)| *start > 0) {
            return Err("its replies have a gap");
        }
        // From the last one on: if this server dies here, the others still follow without a gap.
        for (_, slot, error) in waiting.into_iter().rev() {
            place.ended(slot, error);
        }
        Ok(partial)
    }

    /// Returns the number of its place.
    pub(crate) fn number(&self) -> u32 {
        self.place.number
    }

    /// Returns the length of the input that is in the area, if it fits.
    pub(crate) fn input_len(&self) -> Option<usize> {
        let len = distance(self.input.0, self.received);
        (0..=AREA_BYTES as i64)
            .contains(&len)
            .then_some(len as usize)
    }
}

fn known_at(kept: &Kept, number: u32, slot: u16) -> Result<Option<Known>, ()> {
    let word = |word| kept.word(number, slot_word(slot, word));
    let (at, index) = word(AT);
    let at = match at.load(Acquire) {
        0 => return Ok(None),
        sealed => unseal(sealed, index).ok_or(())?,
    };
    let mut words = [at; HEADER_WORDS + 1];
    for (index, value) in words[1..].iter_mut().enumerate() {
        *value = word(HEADER + index).0.load(Acquire);
    }
    if word(SUM).0.load(Acquire) != checksum(&words) {
        return Err(());
    }
    let mut bytes = [0; 8 * HEADER_WORDS];
    for (to, word) in bytes.chunks_exact_mut(8).zip(&words[1..]) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    let header = bytes.first_chunk::<REQUEST_BYTES>().ok_or(())?;
    let header = RequestHeader::parse(header).map_err(|_| ())?;
    let (done, index) = word(DONE);
    let done = unseal(done.load(Acquire), index).ok_or(())?;
    let done = Done::unpack(done).ok_or(())?;
    Ok(Some(Known {
        slot,
        at,
        header,
        done,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use survival::sealed::seal;

    #[test]
    fn results_fit_their_word() {
        let mut all = vec![Done::No, Done::Unqueued(None), Done::At(5, None)];
        all.extend(ERRORS.map(|error| Done::At((1 << 40) - 1, Some(error))));
        all.extend(ERRORS.map(|error| Done::Unqueued(Some(error))));
        for done in all {
            let word = seal(done.pack(), 3);
            assert_eq!(unseal(word, 3).and_then(Done::unpack), Some(done));
        }
    }
}
