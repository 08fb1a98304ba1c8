//! What another server needs to continue the calls of a socket: a table in memory that outlives the
//! server.
//!
//! ```text
//!   connection   client, epoch, id, service, and the number of the last call of each channel, with
//!                the code by which it was aborted
//!   call         connection, channel and number; the first packet of the request; up to where the
//!                packets are kept, and up to where they were received; flags
//! ```
//!
//! The first packet of a request is stored before the request is served or acknowledged. The client
//! keeps the others until the handler has stored what they carry ([`crate::Call::keep`]), so that
//! nothing of a call is lost with the server. A call leaves the table when its reply has arrived.
//!
//! **Invariant:** the word of an entry that makes it count is stored last, and cleared first. A call
//! is entered before the number of its channel advances; a reader takes the greater one. Calls and
//! connections for which there is no room are served as ever, and are refused by a successor.

use crate::inbox::Endpoint;
use rx_proto::{
    CHANNELS, CallId, CallNumber, CallPlace, Cid, ConnectionId, Epoch, Incoming, KeptCall,
    KeptConnection, Route, Seq, Timestamp,
};
use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use survival::sealed::{self, checksum, seal, unseal};
use survival::{Memory, addresses};

/// First word: the magic, and the version in the last byte.
const MAGIC: u64 = u64::from_le_bytes(*b"EVFSrx\0\x01");
/// Words before the connections.
const HEADER_WORDS: usize = 8;

/// Connections of a socket, as many as an endpoint accepts.
const CONNECTIONS: usize = 16_384;
/// Words of a connection: its checksum, which makes it count; what it names; the number of the last
/// call of each channel; and the codes by which these were aborted.
const NAME_WORDS: usize = addresses::WORDS + 1;
const NUMBERS: usize = 1 + NAME_WORDS;
const CODES: usize = NUMBERS + CHANNELS;
const CONNECTION_WORDS: usize = CODES + CHANNELS;

/// Calls of a socket in progress: many times the threads of a server.
const CALLS: usize = 2048;
/// Longest first packet in bytes.
const HEAD_BYTES: usize = 1448;
/// Words of a call before its first packet.
const CALL_HEADER_WORDS: usize = 12;
const CALL_WORDS: usize = CALL_HEADER_WORDS + HEAD_BYTES / 8;

const WORDS: usize = HEADER_WORDS + CONNECTIONS * CONNECTION_WORDS + CALLS * CALL_WORDS;

/// Words of a call.
mod word {
    /// Its number in the table, 0 for none.
    pub(super) const ID: usize = 0;
    /// Connection, channel, and user status byte.
    pub(super) const OWNER: usize = 1;
    /// Number on the channel, and length of the first packet.
    pub(super) const NUMBER: usize = 2;
    /// Checksum of the first packet and the words above.
    pub(super) const CHECKSUM: usize = 3;
    /// Which of the two positions counts.
    pub(super) const SELECTOR: usize = 4;
    /// Two positions up to which the request is kept: a packet, and an offset in bytes.
    pub(super) const KEPT: usize = 5;
    /// Last packet received, and whether it ends the request.
    pub(super) const HIGHEST: usize = 9;
    /// The call was carried out.
    pub(super) const DONE: usize = 10;
    /// The client may have a part of the reply.
    pub(super) const REPLYING: usize = 11;
}

/// In the word of the last packet: it ends the request.
const ENDS: u64 = 1 << 32;

/// Code that tells clients of AFS to call again (`VBUSY`).
const AGAIN: i32 = 110;

/// The table of a socket.
pub(crate) struct Table(Memory);

/// Entry of a call in the table for another server.
#[derive(Clone)]
pub struct Entry {
    table: Arc<Table>,
    slot: usize,
    id: u64,
    was_done: bool,
    /// Position up to which a predecessor has stored the request, if beyond the first packet.
    pub(crate) stored: Option<(Seq, u64)>,
}

/// A call to continue.
pub(crate) struct Continued {
    pub(crate) connection: ConnectionId,
    pub(crate) call: CallId,
    pub(crate) user_status: u8,
    pub(crate) head: Vec<u8>,
    pub(crate) is_whole: bool,
    pub(crate) entry: Entry,
}

/// The table with what its socket has in it.
pub(crate) struct Ledger {
    table: Arc<Table>,
    connections: HashMap<ConnectionId, usize>,
    calls: HashMap<CallId, (usize, ConnectionId, usize)>,
    free_connections: Vec<usize>,
    free_calls: Vec<usize>,
}

/// Most bytes of a request that a sealed word states; files are shorter.
const BYTES_MAX: u64 = (1 << sealed::VALUE_BITS) - 1;

/// Returns the place for which a word of an entry is sealed: another one for each entry and word.
fn place(entry: u64, at: usize) -> u64 {
    entry.wrapping_mul(64).wrapping_add(at as u64)
}

/// Returns a number greater than those before it, also of earlier processes of this machine.
fn next_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    let next = |last: u64| Some(now.max(last + 1));
    let before = LAST.fetch_update(Relaxed, Relaxed, next);
    before.map_or(now, |before| now.max(before + 1))
}

impl Table {
    pub(crate) fn create() -> io::Result<Table> {
        let memory = Memory::create("evfs-rx", WORDS)?;
        memory.words()[0].store(MAGIC, Release);
        Ok(Table(memory))
    }

    pub(crate) fn adopt(memory: Memory) -> io::Result<Table> {
        let words = memory.words();
        if words.len() != WORDS || words[0].load(Acquire) != MAGIC {
            return Err(damaged());
        }
        Ok(Table(memory))
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.0.file()
    }

    fn connection(&self, index: usize) -> &[AtomicU64] {
        let first = HEADER_WORDS + index * CONNECTION_WORDS;
        &self.0.words()[first..first + CONNECTION_WORDS]
    }

    /// Stores the number of the last call of a channel.
    fn set_number(&self, index: usize, channel: usize, number: CallNumber) {
        let at = NUMBERS + channel;
        let sealed = seal(number.0.into(), place(index as u64, at));
        self.connection(index)[at].store(sealed, Release);
    }

    /// Stores the code by which a call of a channel was aborted.
    fn set_aborted(&self, index: usize, channel: usize, number: CallNumber, code: i32) {
        let at = CODES + channel;
        let value = u64::from(code as u32) << 16 | u64::from(number.0) & 0xffff;
        let sealed = seal(value, place(index as u64, at));
        self.connection(index)[at].store(sealed, Release);
    }

    fn call(&self, slot: usize) -> &[AtomicU64] {
        let first = HEADER_WORDS + CONNECTIONS * CONNECTION_WORDS + slot * CALL_WORDS;
        &self.0.words()[first..first + CALL_WORDS]
    }
}

fn damaged() -> io::Error {
    let text = "the table of calls of the previous server is damaged";
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl Entry {
    fn words(&self) -> &[AtomicU64] {
        self.table.call(self.slot)
    }

    /// Stores a value in a word of the call, sealed for this call.
    fn set(&self, at: usize, value: u64) {
        self.words()[at].store(seal(value, place(self.id, at)), Release);
    }

    /// Stores up to where the request is kept.
    pub(crate) fn keep(&self, next: Seq, bytes: u64) {
        let words = self.words();
        let selected = unseal(
            words[word::SELECTOR].load(Relaxed),
            place(self.id, word::SELECTOR),
        );
        let other = selected.unwrap_or(0) ^ 1;
        let at = word::KEPT + 2 * other as usize;
        self.set(at, next.0.into());
        self.set(at + 1, bytes & BYTES_MAX);
        self.set(word::SELECTOR, other);
    }

    /// Returns the number of the call, which no other call of this machine has had since it was
    /// started. Later calls have greater ones.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Reports whether a killed server has marked the call as carried out.
    pub fn was_carried_out(&self) -> bool {
        self.was_done
    }

    /// Marks the call as carried out, before its reply is written: if this server is killed, another
    /// one only repeats the reply.
    pub fn carried_out(&self) {
        self.set(word::DONE, 1);
    }

    pub(crate) fn set_replying(&self) {
        self.set(word::REPLYING, 1);
    }
}

impl Ledger {
    /// Creates one with an empty table.
    pub(crate) fn new(table: Table) -> Ledger {
        Ledger {
            table: Arc::new(table),
            connections: HashMap::new(),
            calls: HashMap::new(),
            free_connections: (0..CONNECTIONS).rev().collect(),
            free_calls: (0..CALLS).rev().collect(),
        }
    }

    /// Enters a new call whose first packet is `head`.
    pub(crate) fn begin(
        &mut self,
        endpoint: &mut Endpoint,
        now: Timestamp,
        incoming: &Incoming,
        head: &[u8],
    ) -> Option<Entry> {
        let entry = self.enter(endpoint, incoming, head);
        let next = entry.as_ref().map(|_| Seq(2));
        endpoint.keep(now, incoming.call, next);
        entry
    }

    fn enter(&mut self, endpoint: &Endpoint, incoming: &Incoming, head: &[u8]) -> Option<Entry> {
        let index = self.enter_connection(endpoint, incoming.connection)?;
        let place = endpoint.place_of(incoming.call)?;
        let number = u64::from(place.number.0) << 32;
        let fits = !head.is_empty() && head.len() <= HEAD_BYTES;
        let Some(slot) = fits.then(|| self.free_calls.pop()).flatten() else {
            self.table
                .set_aborted(index, place.channel, place.number, AGAIN);
            self.table.set_number(index, place.channel, place.number);
            return None;
        };
        let entry = Entry {
            table: Arc::clone(&self.table),
            slot,
            id: next_id(),
            was_done: false,
            stored: None,
        };
        let words = entry.words();
        let owner = index as u64 | (place.channel as u64) << 32;
        let owner = owner | u64::from(incoming.user_status) << 40;
        let number_and_length = number | head.len() as u64;
        let packed = packed(head);
        for (word, value) in words[CALL_HEADER_WORDS..].iter().zip(&packed) {
            word.store(*value, Relaxed);
        }
        let fixed = [entry.id, owner, number_and_length];
        words[word::OWNER].store(owner, Relaxed);
        words[word::NUMBER].store(number_and_length, Relaxed);
        words[word::CHECKSUM].store(sum(&fixed, &packed), Relaxed);
        entry.set(word::HIGHEST, highest_of(&place));
        words[word::DONE].store(0, Relaxed);
        words[word::REPLYING].store(0, Relaxed);
        entry.keep(Seq(2), head.len() as u64);
        words[word::ID].store(entry.id, Release);
        self.table.set_number(index, place.channel, place.number);
        let owned = (slot, incoming.connection, place.channel);
        self.calls.insert(incoming.call, owned);
        Some(entry)
    }

    fn enter_connection(&mut self, endpoint: &Endpoint, id: ConnectionId) -> Option<usize> {
        if let Some(index) = self.connections.get(&id) {
            return Some(*index);
        }
        let kept = endpoint.connection_to_keep(id)?;
        let index = self.free_connections.pop()?;
        let words = self.table.connection(index);
        let name = name_of(&kept);
        for (word, value) in words[1..].iter().zip(name) {
            word.store(value, Relaxed);
        }
        for (channel, number) in kept.numbers.into_iter().enumerate() {
            // That of the present call is stored when the call is entered.
            let before = CallNumber(number.0.saturating_sub(1));
            self.table.set_number(index, channel, before);
            words[CODES + channel].store(0, Relaxed);
        }
        words[0].store(sum(&[index as u64], &name), Release);
        self.connections.insert(id, index);
        Some(index)
    }

    /// Notes how much of a request was received.
    pub(crate) fn received(&mut self, endpoint: &Endpoint, call: CallId) {
        let Some((slot, ..)) = self.calls.get(&call) else {
            return;
        };
        if let Some(now) = endpoint.place_of(call) {
            let words = self.table.call(*slot);
            let id = words[word::ID].load(Relaxed);
            let sealed = seal(highest_of(&now), place(id, word::HIGHEST));
            words[word::HIGHEST].store(sealed, Release);
        }
    }

    /// Removes a call that is over.
    pub(crate) fn over(&mut self, endpoint: &Endpoint, call: CallId) {
        let Some((slot, connection, channel)) = self.calls.remove(&call) else {
            return;
        };
        if let Some(code) = endpoint.abort_of(connection, channel)
            && let Some(index) = self.connections.get(&connection)
        {
            let words = self.table.call(slot);
            let number = CallNumber((words[word::NUMBER].load(Relaxed) >> 32) as u32);
            self.table.set_aborted(*index, channel, number, code);
        }
        self.table.call(slot)[word::ID].store(0, Release);
        self.free_calls.push(slot);
    }

    /// Removes a connection that was dropped.
    pub(crate) fn closed(&mut self, connection: ConnectionId) {
        if let Some(index) = self.connections.remove(&connection) {
            self.table.connection(index)[0].store(0, Release);
            self.free_connections.push(index);
        }
    }

    /// Continues the connections and calls in the table of a predecessor. Returns it with the calls
    /// to serve.
    pub(crate) fn continued(
        table: Table,
        endpoint: &mut Endpoint,
        now: Timestamp,
    ) -> io::Result<(Ledger, Vec<Continued>)> {
        let mut ledger = Ledger::new(table);
        let (table, mut calls) = (Arc::clone(&ledger.table), Vec::new());
        let mut of = read_calls(&table)?;
        ledger.free_connections.clear();
        for index in (0..CONNECTIONS).rev() {
            let Some((mut kept, mut codes)) = read_connection(&table, index)? else {
                ledger.free_connections.push(index);
                continue;
            };
            let own = of.remove(&index).unwrap_or_default();
            for call in &own {
                let number = &mut kept.numbers[call.channel];
                if call.number.is_after(*number) {
                    *number = call.number;
                    codes[call.channel] = None;
                }
            }
            let Some(connection) = endpoint.continue_connection(now, &kept) else {
                return Err(damaged());
            };
            ledger.connections.insert(connection, index);
            for (channel, code) in codes.into_iter().enumerate() {
                if let Some(code) = code {
                    endpoint.refuse_call(connection, channel, code);
                }
            }
            for call in own {
                // An older call of the channel is over.
                if call.number == kept.numbers[call.channel] {
                    calls.extend(ledger.continue_call(endpoint, now, connection, call));
                }
            }
        }
        ledger.free_calls.clear();
        let used: Vec<usize> = ledger.calls.values().map(|(slot, ..)| *slot).collect();
        for slot in (0..CALLS).rev().filter(|slot| !used.contains(slot)) {
            table.call(slot)[word::ID].store(0, Release);
            ledger.free_calls.push(slot);
        }
        Ok((ledger, calls))
    }

    fn continue_call(
        &mut self,
        endpoint: &mut Endpoint,
        now: Timestamp,
        connection: ConnectionId,
        call: Lost,
    ) -> Option<Continued> {
        if call.is_replying {
            // The rest would have to be the same bytes in the same packets.
            let index = *self.connections.get(&connection)?;
            let channel = call.channel;
            self.table.set_aborted(index, channel, call.number, AGAIN);
            self.table.set_number(index, channel, call.number);
            endpoint.refuse_call(connection, call.channel, AGAIN);
            return None;
        }
        let kept = KeptCall {
            channel: call.channel,
            user_status: call.user_status,
            next: call.kept.0,
            highest: Seq(call.highest as u32),
            ends: call.highest & ENDS != 0,
        };
        let id = endpoint.continue_call(now, connection, &kept)?;
        let owned = (call.slot, connection, call.channel);
        self.calls.insert(id, owned);
        let stored = (call.kept.1 > call.head.len() as u64).then_some(call.kept);
        Some(Continued {
            connection,
            call: id,
            user_status: call.user_status,
            is_whole: kept.is_whole(),
            entry: Entry {
                table: Arc::clone(&self.table),
                slot: call.slot,
                id: call.id,
                was_done: call.is_done,
                stored,
            },
            head: call.head,
        })
    }
}

/// A call of a predecessor.
struct Lost {
    slot: usize,
    id: u64,
    channel: usize,
    user_status: u8,
    number: CallNumber,
    kept: (Seq, u64),
    /// Word of the last packet received.
    highest: u64,
    is_done: bool,
    is_replying: bool,
    head: Vec<u8>,
}

/// Reads the calls of each connection.
fn read_calls(table: &Table) -> io::Result<HashMap<usize, Vec<Lost>>> {
    let mut of: HashMap<usize, Vec<Lost>> = HashMap::new();
    for slot in 0..CALLS {
        let word = |at: usize| table.call(slot)[at].load(Acquire);
        let (id, owner, number) = (word(word::ID), word(word::OWNER), word(word::NUMBER));
        if id == 0 {
            continue;
        }
        let length = number as u32 as usize;
        if length > HEAD_BYTES {
            return Err(damaged());
        }
        let packed: Vec<u64> = (0..length.div_ceil(8))
            .map(|at| word(CALL_HEADER_WORDS + at))
            .collect();
        let channel = (owner >> 32) as u8 as usize;
        if word(word::CHECKSUM) != sum(&[id, owner, number], &packed) || channel >= CHANNELS {
            return Err(damaged());
        }
        let mut head: Vec<u8> = packed.iter().flat_map(|word| word.to_le_bytes()).collect();
        head.truncate(length);
        let value = |at: usize| unseal(word(at), place(id, at)).ok_or_else(damaged);
        let flag = |at: usize| match word(at) {
            0 => Ok(false),
            _ => value(at).map(|value| value == 1),
        };
        let at = word::KEPT + 2 * (value(word::SELECTOR)? & 1) as usize;
        let lost = Lost {
            slot,
            id,
            channel,
            user_status: (owner >> 40) as u8,
            number: CallNumber((number >> 32) as u32),
            kept: (Seq(value(at)? as u32), value(at + 1)?),
            highest: value(word::HIGHEST)?,
            is_done: flag(word::DONE)?,
            is_replying: flag(word::REPLYING)?,
            head,
        };
        of.entry(owner as u32 as usize).or_default().push(lost);
    }
    Ok(of)
}

/// Reads a connection and the codes of its channels.
fn read_connection(
    table: &Table,
    index: usize,
) -> io::Result<Option<(KeptConnection, [Option<i32>; CHANNELS])>> {
    let word = |at: usize| table.connection(index)[at].load(Acquire);
    let check = word(0);
    if check == 0 {
        return Ok(None);
    }
    let name: [u64; NAME_WORDS] = std::array::from_fn(|at| word(1 + at));
    if check != sum(&[index as u64], &name) {
        return Err(damaged());
    }
    let (mut numbers, mut codes) = ([CallNumber(0); CHANNELS], [None; CHANNELS]);
    for (channel, (number, code)) in numbers.iter_mut().zip(&mut codes).enumerate() {
        let sealed = |at: usize| unseal(word(at), place(index as u64, at)).ok_or_else(damaged);
        *number = CallNumber(sealed(NUMBERS + channel)? as u32);
        if word(CODES + channel) != 0 {
            let value = sealed(CODES + channel)?;
            // It may be that of an earlier call.
            let is_its = value & 0xffff == u64::from(number.0) & 0xffff;
            *code = is_its.then_some((value >> 16) as u32 as i32);
        }
    }
    Ok(Some((connection_of(&name, numbers), codes)))
}

/// Writes what names a connection as words.
fn name_of(kept: &KeptConnection) -> [u64; NAME_WORDS] {
    let [a, b, c, d, last] = addresses::to_words(kept.route.peer, kept.route.local);
    let last = last | u64::from(kept.service) << 16;
    let id = u64::from(kept.epoch.0) << 32 | u64::from(kept.cid.0);
    [a, b, c, d, last, id]
}

fn connection_of(name: &[u64; NAME_WORDS], numbers: [CallNumber; CHANNELS]) -> KeptConnection {
    let [a, b, c, d, last, id] = *name;
    let (peer, local) = addresses::from_words(&[a, b, c, d, last]);
    KeptConnection {
        route: Route { peer, local },
        epoch: Epoch((id >> 32) as u32),
        cid: Cid(id as u32),
        service: (last >> 16) as u16,
        numbers,
    }
}

/// Returns the word of the last packet received.
fn highest_of(place: &CallPlace) -> u64 {
    let ends = if place.ends { ENDS } else { 0 };
    u64::from(place.highest.0) | ends
}

/// Packs bytes into words; the last one is filled with zeros.
fn packed(bytes: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    };
    bytes.chunks(8).map(word).collect()
}

/// Returns a checksum, never 0.
fn sum(fixed: &[u64], rest: &[u64]) -> u64 {
    checksum(&[fixed, rest].concat()).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Bytes;
    use rx_proto::{Config, Connect, Event, RXNULL, Service, Timeouts, Transmit};
    use std::os::fd::AsFd;

    const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000);

    fn server(seed: u8) -> Endpoint {
        let config = Config {
            keeps_requests: true,
            ..Config::default()
        };
        let mut server = Endpoint::new(config, [seed; 32]);
        server.serve(Service {
            id: 1,
            classes: vec![RXNULL],
        });
        server
    }

    fn route(host: u8) -> Route {
        Route {
            peer: ([192, 0, 2, host], 7000).into(),
            local: Some([192, 0, 2, 9].into()),
        }
    }

    /// Lets a client begin a call with `request`, and returns it as the server sees it.
    fn called(server: &mut Endpoint, request: &[u8]) -> (Incoming, Endpoint) {
        let mut client = Endpoint::new(Config::default(), [1; 32]);
        let connect = Connect {
            route: route(1),
            service: 1,
            timeouts: Timeouts::default(),
            security: None,
        };
        let connection = client.connect(NOW, connect);
        let call = client.start(NOW, connection).unwrap();
        client.write(NOW, call, Bytes::from(request)).unwrap();
        client.finish(NOW, call).unwrap();
        let mut batch = Transmit::new(1);
        for _ in 0..10 {
            while client.poll_transmit(NOW, &mut batch) {
                for datagram in batch.datagrams() {
                    server.handle_input(NOW, route(2), Bytes::from(&datagram[..]));
                }
            }
            while server.poll_transmit(NOW, &mut batch) {
                for datagram in batch.datagrams() {
                    client.handle_input(NOW, route(1), Bytes::from(&datagram[..]));
                }
            }
            if let Some(Event::Call(incoming)) = server.poll_event() {
                return (incoming, client);
            }
        }
        panic!("no call arrives");
    }

    /// A call as a successor has it: its first packet, whether that is all, whether it was carried
    /// out, and the bytes that were stored.
    type Shown = (Vec<u8>, bool, bool, Option<u64>);

    /// Returns the calls of a table that a successor continues.
    fn continued(file: BorrowedFd<'_>) -> io::Result<Vec<Shown>> {
        let file = file.try_clone_to_owned()?;
        let table = Table::adopt(Memory::adopt(file)?)?;
        let (_, calls) = Ledger::continued(table, &mut server(7), NOW)?;
        let shown = |call: Continued| {
            let stored = call.entry.stored.map(|(_, bytes)| bytes);
            (call.head, call.is_whole, call.entry.was_done, stored)
        };
        Ok(calls.into_iter().map(shown).collect())
    }

    #[test]
    fn a_successor_has_the_calls_in_progress_and_notices_each_flipped_bit() {
        let mut of = server(2);
        let (incoming, _client) = called(&mut of, b"a request");
        let mut ledger = Ledger::new(Table::create().unwrap());
        let entry = ledger.begin(&mut of, NOW, &incoming, b"a request");
        let entry = entry.unwrap();
        let file = ledger.table.file().try_clone_to_owned().unwrap();
        let request = || b"a request".to_vec();
        assert_eq!(
            continued(file.as_fd()).unwrap(),
            [(request(), true, false, None)]
        );
        entry.keep(Seq(5), 4000);
        entry.carried_out();
        let wanted = [(request(), true, true, Some(4000))];
        assert_eq!(continued(file.as_fd()).unwrap(), wanted);
        let words = ledger.table.0.words();
        let used: Vec<usize> = (0..WORDS)
            .filter(|at| words[*at].load(Relaxed) != 0)
            .collect();
        let mut noticed = 0;
        for at in used {
            let before = words[at].load(Relaxed);
            for bit in 0..64 {
                words[at].store(before ^ 1 << bit, Relaxed);
                match continued(file.as_fd()) {
                    Err(_) => noticed += 1,
                    // The position that does not count.
                    Ok(calls) => assert_eq!(calls, wanted, "bit {bit} of word {at}"),
                }
                words[at].store(before, Relaxed);
            }
        }
        assert!(noticed > 10 * 64, "{noticed}");
        entry.set_replying();
        assert!(continued(file.as_fd()).unwrap().is_empty());
        ledger.over(&of, incoming.call);
        assert!(continued(file.as_fd()).unwrap().is_empty());
    }
}
