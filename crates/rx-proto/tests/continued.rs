//! A server that continues the calls of one that is gone.

use rx_proto::{
    CallId, Config, Connect, ConnectionId, Endpoint, Event, KeptCall, KeptConnection, Read, Route,
    Seq, Service, Shared, Timeouts, Timestamp, Transmit,
};
use std::collections::VecDeque;

const REQUEST: usize = 400_000;
const REPLY: &[u8] = b"carried out";

type Side = Endpoint<Shared, Shared>;

fn route(host: u8) -> Route {
    Route {
        peer: ([192, 0, 2, host], 7000).into(),
        local: None,
    }
}

fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

/// A client, a server, and a network with a latency of a millisecond that drops datagrams.
struct World {
    client: Side,
    server: Side,
    now: u64,
    wire: VecDeque<(u64, bool, Vec<u8>)>,
    sent: usize,
    loses: usize,
}

impl World {
    fn new(loses: usize) -> World {
        World {
            client: Endpoint::new(Config::default(), [1; 32]),
            server: World::server(2),
            now: 1_000_000_000,
            wire: VecDeque::new(),
            sent: 0,
            loses,
        }
    }

    fn server(seed: u8) -> Side {
        let config = Config {
            keeps_requests: true,
            ..Config::default()
        };
        let mut server = Endpoint::new(config, [seed; 32]);
        server.serve(Service {
            id: 1,
            classes: vec![0],
        });
        server
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.now)
    }

    /// Lets time pass until the next datagram arrives or a timer expires.
    fn step(&mut self) {
        let mut batch = Transmit::new(4);
        for to_server in [true, false] {
            let side = if to_server {
                &mut self.client
            } else {
                &mut self.server
            };
            while side.poll_transmit(Timestamp::from_nanos(self.now), &mut batch) {
                for datagram in batch.datagrams() {
                    self.sent += 1;
                    if self.loses == 0 || !self.sent.is_multiple_of(self.loses) {
                        let at = self.now + 1_000_000;
                        self.wire.push_back((at, to_server, datagram.to_vec()));
                    }
                }
            }
        }
        let timers = [self.client.poll_timeout(), self.server.poll_timeout()];
        let timers = timers.into_iter().flatten().map(|at| at.as_nanos());
        let next = self.wire.front().map(|(at, ..)| *at);
        let next = timers.chain(next).min().expect("something happens");
        self.now = next.max(self.now);
        let now = self.now();
        self.client.handle_timeout(now);
        self.server.handle_timeout(now);
        while let Some((_, to_server, bytes)) = self.wire.pop_front_if(|(at, ..)| *at <= self.now) {
            let (side, from) = if to_server {
                (&mut self.server, 2)
            } else {
                (&mut self.client, 1)
            };
            side.handle_input(now, route(from), Shared::from(&bytes[..]));
        }
    }
}

/// What a server leaves: the connection, its call, and the bytes that it has.
struct Left {
    connection: KeptConnection,
    call: KeptCall,
    bytes: usize,
}

/// Receives a request, and keeps packets `lag` behind those read, until `until` bytes were kept.
struct Reading {
    call: CallId,
    connection: ConnectionId,
    next: Seq,
    read: usize,
    kept: VecDeque<(Seq, usize)>,
    lag: usize,
}

impl Reading {
    /// Reads what is there; reports whether the end was reached.
    fn go_on(&mut self, world: &mut World) -> bool {
        let now = world.now();
        loop {
            match world.server.read(now, self.call).expect("a call") {
                Read::Data(data) => {
                    for given in data.as_ref() {
                        assert_eq!(*given, byte(self.read));
                        self.read += 1;
                    }
                    self.next = self.next.next();
                    self.kept.push_back((self.next, self.read));
                    if self.kept.len() > self.lag {
                        self.kept.pop_front();
                        let (next, _) = self.kept[0];
                        world.server.keep(now, self.call, Some(next));
                    }
                }
                Read::Pending => return false,
                Read::End => return true,
            }
        }
    }

    fn left(&self, world: &World) -> Left {
        let (next, bytes) = self.kept[0];
        let place = world.server.place_of(self.call).expect("a call");
        Left {
            connection: world
                .server
                .connection_to_keep(self.connection)
                .expect("a connection"),
            call: KeptCall {
                channel: place.channel,
                user_status: 0,
                next,
                highest: place.highest,
                ends: place.ends,
            },
            bytes,
        }
    }
}

/// Sends a request while servers are replaced, each after it has kept some more bytes.
fn survives(lag: usize, loses: usize, until: &[usize]) -> u64 {
    let mut world = World::new(loses);
    let connect = Connect {
        route: route(1),
        service: 1,
        timeouts: Timeouts::default(),
        security: None,
    };
    let now = world.now();
    let connection = world.client.connect(now, connect);
    let call = world.client.start(now, connection).expect("a channel");
    let request: Vec<u8> = (0..REQUEST).map(byte).collect();
    let mut unsent = &request[..];
    let (mut reading, mut deaths): (Option<Reading>, _) = (None, until.iter());
    let mut death = deaths.next();
    let mut reply = Vec::new();
    for _ in 0..1_000_000 {
        let now = world.now();
        while !unsent.is_empty() {
            let (part, rest) = unsent.split_at(unsent.len().min(20_000));
            match world.client.write(now, call, Shared::from(part)) {
                Ok(_) => unsent = rest,
                Err(_) => break,
            }
            if unsent.is_empty() {
                world.client.finish(now, call).expect("all is written");
            }
        }
        while let Some(event) = world.client.poll_event() {
            if let Event::Ended { reason, .. } = event {
                panic!("the call ended: {reason}");
            }
        }
        while let Some(event) = world.server.poll_event() {
            if let Event::Call(incoming) = event {
                assert!(reading.is_none(), "a call is served once");
                reading = Some(Reading {
                    call: incoming.call,
                    connection: incoming.connection,
                    next: Seq(1),
                    read: 0,
                    kept: VecDeque::new(),
                    lag,
                });
            }
        }
        if let Some(reading) = &mut reading
            && reading.go_on(&mut world)
        {
            assert_eq!(reading.read, REQUEST);
            let now = world.now();
            let call = reading.call;
            if world.server.write(now, call, Shared::from(REPLY)).is_ok() {
                world.server.finish(now, call).expect("all is written");
                reading.call = call;
            }
            break;
        }
        let dies = |reading: &&mut Reading| death.is_some_and(|bytes| reading.read >= *bytes);
        if let Some(reading) = reading.as_mut().filter(dies) {
            let left = reading.left(&world);
            death = deaths.next();
            world.server = World::server(until.len() as u8 - deaths.len() as u8 + 7);
            let now = world.now();
            let connection = world.server.continue_connection(now, &left.connection);
            let connection = connection.expect("no other one");
            let call = world.server.continue_call(now, connection, &left.call);
            reading.call = call.expect("no other one");
            reading.connection = connection;
            reading.next = left.call.next;
            reading.read = left.bytes;
            reading.kept = VecDeque::from([(left.call.next, left.bytes)]);
        }
        world.step();
    }
    for _ in 0..100_000 {
        world.step();
        while world.server.poll_event().is_some() {}
        while world.client.poll_event().is_some() {}
        match world.client.read(world.now(), call).expect("a reply") {
            Read::Data(data) => reply.extend_from_slice(data.as_ref()),
            Read::Pending => {}
            Read::End => break,
        }
    }
    assert_eq!(reply, REPLY);
    world.now / 1_000_000
}

#[test]
fn a_request_goes_on_where_the_server_before_has_kept_it() {
    for lag in [1, 5, 60, 200] {
        let without = survives(lag, 0, &[]);
        let with = survives(lag, 0, &[100_000]);
        assert!(with < without + 2000, "{with} ms, and {without} ms without");
        survives(lag, 0, &[5_000, 100_000, 110_000, 390_000]);
        survives(lag, 9, &[5_000, 100_000, 110_000, 390_000]);
    }
}
