//! Two Rx endpoints that communicate over a network controlled by the input, and strangers that
//! interfere.
//!
//! The input is a list of steps: a packet between the two is delivered, dropped, duplicated,
//! delayed or modified; a packet is forged, in the name of the other side or of a stranger; an
//! application starts, writes, finishes, reads or abandons a call; time passes.
//!
//! Claims: nothing panics; every limit holds; a stranger that does not answer receives at most one
//! packet of at most 65 bytes for each packet it sends, and is never reported to the application;
//! as long as no packet between the two is forged or modified, the data read equals the data
//! written and each call is reported once; in the end both sides come to rest and hold no state.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rx_proto::{
    ACK_BYTES_MIN, Ack, CallId, Config, Connect, ConnectionId, DataPackets, Endpoint, Event,
    HEADER_BYTES, Header, Read, Reason, Route, Service, Shared, Timeouts, Timestamp,
    Transmit,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

/// Default maximum length of an input in libFuzzer: no packet is longer.
const INPUT_MAX: usize = 4096;

/// Maximum number of packets and timers until both sides must be at rest.
const REST_STEPS: usize = 20_000;

fn config(jumbo: bool) -> Config {
    Config {
        receive_window: 20,
        send_buffer_bytes: 40_000,
        jumbo_packets: if jumbo { 4 } else { 1 },
        connections_max: 8,
        unproven_max: 4,
        unproven_packets: 2,
        calls_max: 6,
        receive_bytes_max: 30_000,
        control_packets_max: 16,
        ..Config::default()
    }
}

/// Maximum number of bytes held: beyond the limit, a packet of each call and a window of gaps.
const HELD_MAX: usize = 30_000 + 26 * (INPUT_MAX + 256) + 20 * 256;

struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// A call held by an application. Its bytes count from 0 to 250 repeatedly.
struct Open {
    call: CallId,
    written: usize,
    read: usize,
    finished: bool,
}

struct Side {
    endpoint: Endpoint<Shared, Shared>,
    connections: [ConnectionId; 2],
    open: Vec<Open>,
    started: usize,
    shown: usize,
}

struct World {
    now: Timestamp,
    sides: [Side; 2],
    /// Packets in transit, with their destination side.
    wire: VecDeque<(usize, Vec<u8>)>,
    /// Last packet that each side sent, as the template of forged packets.
    last: [Vec<u8>; 2],
    /// No packet between the two was forged or modified.
    honest: bool,
    batch: Transmit<Shared>,
}

fn address(side: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, side as u8], 7001))
}

fn stranger(number: u8) -> SocketAddr {
    SocketAddr::from(([198, 51, 100, number], 7001))
}

fn route(peer: SocketAddr) -> Route {
    Route { peer, local: None }
}

fn side(side: usize, jumbo: bool, now: Timestamp) -> Side {
    let mut endpoint = Endpoint::new(config(jumbo), [side as u8; 32]);
    let classes = vec![0];
    endpoint.serve(Service { id: 1, classes });
    let mut connect = || {
        let connect = Connect {
            route: route(address(1 - side)),
            service: 1,
            timeouts: Timeouts::default(),
            security: None,
        };
        endpoint.connect(now, connect)
    };
    Side {
        connections: [connect(), connect()],
        endpoint,
        open: Vec::new(),
        started: 0,
        shown: 0,
    }
}

impl World {
    fn new(jumbo: bool) -> World {
        let now = Timestamp::from_nanos(1_000_000_000);
        World {
            now,
            sides: [side(0, jumbo, now), side(1, jumbo, now)],
            wire: VecDeque::new(),
            last: Default::default(),
            honest: true,
            batch: Transmit::new(8),
        }
    }

    /// Processes the events and the output of a side; returns the packets it sends to strangers.
    fn drain(&mut self, at: usize) -> Vec<Vec<u8>> {
        let other = &self.sides[1 - at];
        let (honest, started) = (self.honest, other.started);
        let side = &mut self.sides[at];
        while let Some(event) = side.endpoint.poll_event() {
            match event {
                Event::Call(incoming) => {
                    assert_eq!(incoming.peer, address(1 - at), "who did not answer is shown");
                    side.shown += 1;
                    assert!(!honest || side.shown <= started, "a call is shown once");
                    side.open.push(Open::new(incoming.call));
                }
                Event::Ended { call, .. } => {
                    side.endpoint.release(self.now, call);
                    side.open.retain(|open| open.call != call);
                }
                _ => {}
            }
        }
        let mut astray = Vec::new();
        while side.endpoint.poll_transmit(self.now, &mut self.batch) {
            let to = self.batch.route().peer;
            for datagram in self.batch.datagrams() {
                if to == address(1 - at) {
                    self.last[at].clone_from(&datagram);
                    self.wire.push_back((1 - at, datagram));
                } else {
                    astray.push(datagram);
                }
            }
        }
        let own = side.open.len() + 8;
        assert!(side.endpoint.connections() <= 2 + 8);
        assert!(side.endpoint.calls() <= 6 + own);
        assert!(side.endpoint.held_bytes() <= HELD_MAX);
        astray
    }

    fn deliver(&mut self, to: usize, bytes: Vec<u8>) {
        let from = route(address(1 - to));
        let datagram = Shared::from(bytes);
        self.sides[to].endpoint.handle_input(self.now, from, datagram);
        assert!(self.drain(to).is_empty(), "nobody else is told");
    }

    /// Delivers a packet of a stranger that never answers a ping.
    fn stray(&mut self, to: usize, from: SocketAddr, bytes: Vec<u8>) {
        let answer = bytes.get(HEADER_BYTES..).and_then(Ack::parse);
        if answer.is_some_and(|ack| ack.reason == Some(Reason::PingResponse)) {
            return;
        }
        // A reply to `rxdebug` is longer, and limited in number.
        let asks = matches!(bytes.get(20), Some(8 | 13));
        let datagram = Shared::from(bytes);
        self.sides[to].endpoint.handle_input(self.now, route(from), datagram);
        let back = self.drain(to);
        let most = if asks { 284 } else { ACK_BYTES_MIN };
        assert!(back.len() <= 1 && back.iter().all(|p| p.len() <= HEADER_BYTES + most));
    }

    /// Advances the time and fires due timers; returns the number of steps.
    fn pass(&mut self, time: Duration) -> usize {
        let (end, mut steps) = (self.now + time, 0);
        loop {
            let timers = self.sides.iter_mut().filter_map(|s| s.endpoint.poll_timeout());
            let Some(next) = timers.min().filter(|at| *at <= end) else {
                break;
            };
            self.now = self.now.max(next);
            for at in 0..2 {
                self.sides[at].endpoint.handle_timeout(self.now);
                assert!(self.drain(at).is_empty(), "time alone tells strangers nothing");
            }
            steps += 1;
            assert!(steps < REST_STEPS, "timers that never come to rest");
        }
        self.now = end;
        steps
    }

    /// Runs one operation of an application.
    fn act(&mut self, at: usize, what: u8, amount: u8) {
        let (now, honest) = (self.now, self.honest);
        let side = &mut self.sides[at];
        if what == 0 {
            let connection = side.connections[usize::from(amount & 1)];
            if let Ok(call) = side.endpoint.start(now, connection) {
                side.started += 1;
                side.open.push(Open::new(call));
            }
        } else if !side.open.is_empty() {
            let index = usize::from(amount >> 4) % side.open.len();
            let open = &mut side.open[index];
            if !open.act(&mut side.endpoint, now, what, amount & 15, honest) {
                side.open.remove(index);
            }
        }
        assert!(self.drain(at).is_empty());
    }

    /// Releases all calls, delivers all packets in transit, and lets hours pass.
    fn rest(&mut self) {
        let mut steps = 0;
        for _ in 0..120 {
            for at in 0..2 {
                for open in std::mem::take(&mut self.sides[at].open) {
                    self.sides[at].endpoint.release(self.now, open.call);
                }
                self.drain(at);
            }
            while let Some((to, bytes)) = self.wire.pop_front() {
                self.deliver(to, bytes);
                steps += 1;
                assert!(steps < REST_STEPS, "answers to answers without end");
            }
            steps += self.pass(Duration::from_secs(60));
        }
        for side in &self.sides {
            let left = (side.endpoint.calls(), side.endpoint.held_bytes());
            assert_eq!(left, (0, 0));
            assert_eq!(side.endpoint.unacknowledged_bytes(), 0);
            assert_eq!(side.endpoint.connections(), 2, "those of its own");
        }
    }
}

impl Open {
    fn new(call: CallId) -> Open {
        Open {
            call,
            written: 0,
            read: 0,
            finished: false,
        }
    }

    /// Runs an operation on the call; returns false if the application no longer holds it.
    fn act(
        &mut self,
        endpoint: &mut Endpoint<Shared, Shared>,
        now: Timestamp,
        what: u8,
        amount: u8,
        honest: bool,
    ) -> bool {
        match what {
            1 => {
                let until = self.written + (1 << amount);
                let bytes: Vec<u8> = (self.written..until).map(|n| (n % 251) as u8).collect();
                if endpoint.write(now, self.call, bytes.into()).is_ok() {
                    self.written = until;
                }
                true
            }
            2 if !self.finished => {
                self.finished = true;
                // This ends the part of a server; a client continues to read.
                let _ = endpoint.finish(now, self.call);
                let probe = endpoint.write(now, self.call, Shared::from(Vec::new()));
                matches!(probe, Err(rx_proto::WriteError::Finished(_)))
            }
            3 => loop {
                match endpoint.read(now, self.call) {
                    Ok(Read::Data(data)) => {
                        for byte in data.as_ref() {
                            assert!(!honest || usize::from(*byte) == self.read % 251);
                            self.read += 1;
                        }
                    }
                    // A server's call continues after the end of its request.
                    Ok(Read::End) => return !self.finished,
                    Ok(Read::Pending) | Err(_) => return true,
                }
            },
            4 => {
                endpoint.abort(now, self.call, i32::from(amount));
                false
            }
            _ => true,
        }
    }
}

/// Checks that parsed data lies within the packet, and that a header encodes to the same bytes.
fn parse(bytes: &[u8]) {
    let Some(header) = Header::parse(bytes) else { return };
    assert_eq!(header.encode(), bytes[..HEADER_BYTES]);
    for packet in DataPackets::parse(&header, bytes).into_iter().flatten() {
        assert!(packet.range.start <= packet.range.end && packet.range.end <= bytes.len());
    }
    if let Some(ack) = Ack::parse(&bytes[HEADER_BYTES..]) {
        assert!(ack.packets.len() <= 255);
    }
}

/// Forges a packet like the last one of the other side, with some of its bytes replaced.
fn made_up(script: &mut Script<'_>, last: &[u8]) -> Vec<u8> {
    let mut bytes = last.to_vec();
    bytes.resize(bytes.len().max(HEADER_BYTES), 0);
    for _ in 0..script.byte() % 8 {
        let place = usize::from(script.byte()) % bytes.len();
        bytes[place] = script.byte();
    }
    let len = usize::from(script.byte());
    match script.byte() % 3 {
        0 => bytes.extend(script.take(len)),
        1 => bytes.truncate(len),
        _ => {}
    }
    bytes
}

fuzz_target!(|data: &[u8]| {
    parse(data);
    let mut script = Script(data);
    let mut world = World::new(script.byte() & 1 != 0);
    while !script.0.is_empty() {
        let step = script.byte();
        let at = usize::from(step & 1);
        match (step >> 1) % 8 {
            0 | 1 => {
                for _ in 0..=step >> 4 {
                    if let Some((to, bytes)) = world.wire.pop_front() {
                        world.deliver(to, bytes);
                    }
                }
            }
            2 => drop(world.wire.pop_front()),
            3 => {
                // Duplicates the packet at the end of the queue.
                if let Some((to, bytes)) = world.wire.front().cloned() {
                    world.wire.rotate_left(usize::from(step & 16 != 0));
                    world.wire.push_back((to, bytes));
                }
            }
            4 => {
                let last = std::mem::take(&mut world.last[1 - at]);
                let bytes = made_up(&mut script, &last);
                world.last[1 - at] = last;
                let spoofs = step & 32 != 0;
                if spoofs {
                    world.honest = false;
                    world.deliver(at, bytes);
                } else {
                    world.stray(at, stranger(script.byte() & 7), bytes);
                }
            }
            5 => drop(world.pass(Duration::from_millis(1 << (script.byte() & 15)))),
            _ => {
                let amount = script.byte();
                world.act(at, (step >> 4) % 5, amount);
            }
        }
    }
    world.rest();
});

