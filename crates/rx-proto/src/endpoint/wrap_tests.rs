//! Wraparound of numbers: epochs, connections, calls and transmissions continue past zero.

use super::{Connect, Endpoint, Read, Service, StartError};
use crate::config::{Config, Timeouts};
use crate::connection::ConnectionKey;
use crate::event::{ConnectionId, Event};
use crate::number::{CallNumber, Epoch, Serial};
use crate::payload::Shared;
use crate::time::Timestamp;
use crate::transmit::{Route, Transmit};
use std::time::Duration;

const SERVICE: u16 = 3;

/// Addresses of the two sides.
const SERVER: &str = "192.0.2.1:7000";
const CLIENT: &str = "192.0.2.2:7001";

/// A client and a server that echoes each request, over a network with a latency of one millisecond
/// that drops each tenth datagram.
struct Echo {
    client: Endpoint<Shared, Shared>,
    server: Endpoint<Shared, Shared>,
    now: Timestamp,
    sent: u64,
}

impl Echo {
    fn new(seed: u8) -> Echo {
        let mut server = Endpoint::new(Config::default(), [seed; 32]);
        server.serve(Service {
            id: SERVICE,
            classes: vec![0],
        });
        Echo {
            client: Endpoint::new(Config::default(), [!seed; 32]),
            server,
            now: Timestamp::from_nanos(1_000_000_000),
            sent: 0,
        }
    }

    fn route(peer: &str) -> Route {
        Route {
            peer: peer.parse().unwrap(),
            local: None,
        }
    }

    fn connect(&mut self) -> ConnectionId {
        let connect = Connect {
            route: Echo::route(SERVER),
            service: SERVICE,
            timeouts: Timeouts::default(),
            security: None,
        };
        self.client.connect(self.now, connect)
    }

    /// Makes a call and checks its reply.
    fn call(&mut self, connection: ConnectionId, bytes: usize) {
        let call = self.client.start(self.now, connection).unwrap();
        let request: Vec<u8> = (0..bytes).map(|n| (n * 7) as u8).collect();
        let payload = Shared::from(&request[..]);
        self.client.write(self.now, call, payload).unwrap();
        self.client.finish(self.now, call).unwrap();
        let (mut reply, mut served) = (Vec::<u8>::new(), 0);
        for _ in 0..10_000 {
            match self.client.read(self.now, call).unwrap() {
                Read::Data(data) => reply.extend(data.as_ref()),
                Read::Pending => served += self.step(),
                Read::End => {
                    assert!(reply == request);
                    assert_eq!(served, 1);
                    return;
                }
            }
        }
        panic!("the call does not end");
    }

    /// Advances the time by a millisecond; returns the number of requests served.
    fn step(&mut self) -> usize {
        let mut served = 0;
        while let Some(event) = self.server.poll_event() {
            let (Event::Call(crate::Incoming { call, .. }) | Event::Readable(call)) = event else {
                continue;
            };
            let mut request = Vec::new();
            // Requests here are short enough to be complete when they are shown, or are read later.
            if self
                .server
                .calls
                .get(call.0)
                .is_some_and(|c| !c.receiver.complete())
            {
                self.server.queue_event(call.0, |news| news.readable = true);
                break;
            }
            while let Ok(Read::Data(data)) = self.server.read(self.now, call) {
                request.extend(data.as_ref());
            }
            self.server
                .write(self.now, call, Shared::from(request))
                .unwrap();
            self.server.finish(self.now, call).unwrap();
            served += 1;
        }
        let mut batch = Transmit::new(8);
        let mut on_the_way = Vec::new();
        for (to_server, endpoint) in [(true, &mut self.client), (false, &mut self.server)] {
            while endpoint.poll_transmit(self.now, &mut batch) {
                on_the_way.extend(batch.datagrams().into_iter().map(|d| (to_server, d)));
            }
        }
        self.now = self.now + Duration::from_millis(1);
        for (to_server, datagram) in on_the_way {
            self.sent += 1;
            if self.sent.is_multiple_of(10) {
                continue;
            }
            let (from, to) = if to_server {
                (CLIENT, &mut self.server)
            } else {
                (SERVER, &mut self.client)
            };
            to.handle_input(self.now, Echo::route(from), Shared::from(datagram));
        }
        self.client.handle_timeout(self.now);
        self.server.handle_timeout(self.now);
        served
    }
}

#[test]
fn serial_numbers_go_around_within_calls() {
    for before_the_end in 0..20 {
        let mut echo = Echo::new(1);
        let connection = echo.connect();
        echo.call(connection, 10);
        let near = Serial(u32::MAX - before_the_end);
        echo.client
            .connections
            .get_mut(connection.0)
            .unwrap()
            .set_serial(near);
        let (server_side, _) = echo.server.connections.iter().next().unwrap();
        echo.server
            .connections
            .get_mut(server_side)
            .unwrap()
            .set_serial(near);
        echo.call(connection, 30_000);
        echo.call(connection, 10);
        let next = echo
            .client
            .connections
            .get(connection.0)
            .unwrap()
            .next_serial();
        assert!(next.0 < 1000 && near.0 > 1000);
    }
}

#[test]
fn call_numbers_end_and_a_server_takes_those_that_go_around() {
    let mut echo = Echo::new(2);
    let connection = echo.connect();
    for channel in &mut echo
        .client
        .connections
        .get_mut(connection.0)
        .unwrap()
        .channels
    {
        channel.number = CallNumber(u32::MAX - 2);
    }
    for _ in 0..8 {
        echo.call(connection, 2000);
    }
    // Our own client makes another connection instead of wrapping around.
    let exhausted = echo.client.start(echo.now, connection);
    assert_eq!(exhausted, Err(StartError::Exhausted));
    let connection = echo.connect();
    echo.call(connection, 10);
    // A client that does wrap around is served: 0 is never a call, 1 follows the last number.
    let mut echo = Echo::new(3);
    let connection = echo.connect();
    for number in [u32::MAX - 1, u32::MAX, 0, 1, 2] {
        let numbers = &mut echo
            .client
            .connections
            .get_mut(connection.0)
            .unwrap()
            .channels;
        for channel in numbers {
            channel.number = CallNumber(number.wrapping_sub(1));
        }
        if number != 0 {
            echo.call(connection, 2000);
        }
    }
}

#[test]
fn connection_ids_do_not_tell_of_each_other() {
    let mut echo = Echo::new(4);
    let connections = [(); 6].map(|()| echo.connect());
    let cid = |c: &ConnectionId| echo.client.connections.get(c.0).unwrap().key.cid.0;
    let cids = connections.each_ref().map(cid);
    assert!(cids.iter().all(|cid| cid % 4 == 0));
    let mut steps: Vec<u32> = cids.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
    steps.sort_unstable();
    steps.dedup();
    assert_eq!(steps.len(), 5, "{cids:x?}");
    assert!(steps.iter().all(|step| *step > 1000), "{cids:x?}");
    for connection in connections {
        echo.call(connection, 5000);
    }
    assert_eq!(echo.server.connections(), 6);
}

#[test]
fn epochs_are_names_and_nothing_more() {
    let mut echo = Echo::new(5);
    for epoch in [u32::MAX, 0, 1, 0x7fff_ffff, 0x8000_0000].map(Epoch) {
        echo.client.epoch = epoch;
        let connection = echo.connect();
        for _ in 0..3 {
            echo.call(connection, 3000);
        }
        let key = ConnectionKey {
            peer: Echo::route(CLIENT).peer,
            epoch,
            cid: echo.client.connections.get(connection.0).unwrap().key.cid,
            role: crate::call::Role::Server,
        };
        assert!(echo.server.connections.find(&key).is_some());
        echo.client.close(echo.now, connection);
    }
    assert_eq!(echo.server.connections(), 5);
}
