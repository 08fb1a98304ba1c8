//! No peer can impersonate another, however much it sends and whatever it asks.

mod common;

use common::strangers::{Stranger, Strangers, stranger};
use rx_proto::{
    Config, DebugAccess, DebugPolicy, Event, HEADER_BYTES, Header, PacketType, Read, Reason,
    Serial, WriteError, flag,
};
use std::time::Duration;

const MILLISECOND: Duration = Duration::from_millis(1);

/// Returns the serial numbers of the pings among `packets`.
fn pings(packets: &[Vec<u8>]) -> Vec<Serial> {
    let is_ping = |packet: &&Vec<u8>| {
        Header::parse(packet).unwrap().kind == PacketType::Ack
            && packet[HEADER_BYTES + 16] == Reason::Ping as u8
    };
    let serial = |packet: &Vec<u8>| Header::parse(packet).unwrap().serial;
    packets.iter().filter(is_ping).map(serial).collect()
}

fn request(from: Stranger) -> Vec<u8> {
    from.data(1, flag::LAST_PACKET, b"request")
}

impl Strangers {
    /// Sends a request; returns the number of the only ping in response.
    fn ask(&mut self, from: Stranger) -> Serial {
        let sent = self.send(from, request(from));
        let pings = pings(&sent);
        assert_eq!((sent.len(), pings.len()), (1, 1));
        pings[0]
    }

    /// Returns the number of calls announced to the application.
    fn calls(&mut self) -> usize {
        std::iter::from_fn(|| self.endpoint.poll_event())
            .filter(|event| matches!(event, Event::Call(_)))
            .count()
    }
}

#[test]
fn questions_give_no_proof() {
    let mut server = Strangers::new(Config {
        questions: DebugPolicy::new(|_| DebugAccess::Full),
        ..Config::default()
    });
    let (victim, known, curious) = (stranger(0), stranger(16), stranger(32));
    assert!(server.call(known, b"hello").is_some());
    let ping = server.ask(victim);
    let secrets = [
        ping.0,
        ping.0 + 1,
        known.header(PacketType::Data, 0, 0).epoch.0,
    ];
    let mut connections = 0;
    for kind in 1..=6_u32 {
        for index in 0..4_u32 {
            let mut question = curious.header(PacketType::Debug, 0, 0).encode().to_vec();
            question[..8].fill(0);
            question.extend(kind.to_be_bytes());
            question.extend(index.to_be_bytes());
            let answer = &server.send(curious, question)[0][HEADER_BYTES..];
            let words = answer
                .chunks_exact(4)
                .map(|w| u32::from_be_bytes(w.try_into().unwrap()));
            for word in words {
                assert!(!secrets.contains(&word), "question {kind} {index}");
                // Serial numbers cannot be guessed from the answers either.
                assert!(word.abs_diff(ping.0) > 1000);
            }
            connections += usize::from(kind == 3 && answer[4..8] != [255; 4]);
        }
    }
    assert_eq!(connections, 1, "who did not answer is not shown");
}

#[test]
fn asking_again_and_again_does_not_make_guessing_easier() {
    let mut server = Strangers::new(Config::default());
    let victim = stranger(0);
    let first = server.ask(victim);
    let mut others = 0;
    for _ in 0..10_000 {
        others += usize::from(server.ask(victim) != first);
        server.pass(MILLISECOND);
    }
    assert_eq!(others, 0);
    // All guesses near known values are wrong, as are evenly spaced ones.
    for guess in 0..20_000_u32 {
        let near = first.0.wrapping_add(1 + guess % 10_000);
        let guess = if guess % 2 == 0 { near } else { guess << 15 };
        if ![first, server.ask(victim)].contains(&Serial(guess)) {
            server.send(victim, victim.pong(Serial(guess)));
        }
    }
    assert_eq!(server.calls(), 0);
    assert!(server.endpoint.stats().not_genuine > 10_000);
    // By now a right answer leads to a second challenge, and the answer to that one is proof.
    let ping = server.ask(victim);
    let second = pings(&server.send(victim, victim.pong(ping)));
    assert_eq!((server.calls(), second.len()), (0, 1));
    server.send(victim, victim.pong(second[0]));
    assert_eq!(server.calls(), 1);
    // Guessing has stopped: one answer is enough.
    server.pass(Duration::from_secs(120));
    assert!(server.call(stranger(1), b"hello").is_some());
}

#[test]
fn a_first_call_lives_through_a_flood() {
    let config = Config {
        unproven_max: 10,
        ..Config::default()
    };
    let mut server = Strangers::new(config);
    let honest = stranger(7);
    let flood = |server: &mut Strangers, round: u32| {
        for n in 0..50 {
            let forged = stranger(1000 + 50 * round + n);
            server.send(forged, request(forged));
        }
        assert!(server.endpoint.connections() <= 11);
        server.pass(MILLISECOND);
    };
    let first = server.ask(honest);
    flood(&mut server, 0);
    let second = pings(&server.send(honest, honest.pong(first)));
    assert_eq!(
        second.len(),
        1,
        "what it answers is known although it made room"
    );
    flood(&mut server, 1);
    server.send(honest, honest.pong(second[0]));
    assert_eq!(server.calls(), 0);
    flood(&mut server, 2);
    server.send(honest, request(honest));
    assert_eq!(server.calls(), 1);
}

#[test]
fn late_copies_of_a_request_and_of_its_proof_do_not_run_it_again() {
    let mut server = Strangers::new(Config::default());
    let client = stranger(7);
    let ping = server.ask(client);
    server.send(client, client.pong(ping));
    assert_eq!(server.calls(), 1);
    // The client closes its connection, and the server drops all state of it.
    let mut close = client.header(PacketType::Abort, 0, 0);
    close.call_number = rx_proto::CallNumber(0);
    server.send(client, [close.encode().to_vec(), vec![0; 4]].concat());
    assert_eq!(server.endpoint.connections(), 0);
    // Copies of its packets arrive, in any order; the client does not answer for finished calls.
    for _ in 0..3 {
        server.send(client, request(client));
        server.send(client, client.pong(ping));
        server.send(client, client.pong(ping));
        assert_eq!(server.calls(), 0);
        server.pass(Duration::from_secs(7));
    }
    for _ in 0..10 {
        server.pass(Duration::from_secs(7));
        server.send(client, client.pong(ping));
        server.send(client, request(client));
        assert_eq!(server.calls(), 0);
    }
}

#[test]
fn a_peer_that_takes_nothing_does_not_keep_its_call() {
    let config = Config::default();
    let idle = config.idle_time.unwrap();
    let mut server = Strangers::new(config);
    let client = stranger(1);
    let call = server.call(client, b"give").unwrap();
    while let Ok(Read::Data(_)) = server.endpoint.read(server.now, call) {}
    server.send(client, client.ack(10, Reason::Idle, Serial(0), 0));
    // The time that the server needs to prepare its answer does not count.
    for serial in 0..10 {
        server.pass(Duration::from_secs(20));
        server.send(client, client.ack(100 + serial, Reason::Ping, Serial(0), 0));
    }
    let page = rx_proto::Shared::from(vec![0; 4096]);
    let blocked = loop {
        match server.endpoint.write(server.now, call, page.clone()) {
            Ok(_) => {}
            Err(WriteError::Blocked(_)) => break server.now,
            Err(error) => panic!("{error:?}"),
        }
    };
    // The client is alive and answers, and accepts nothing.
    let mut serial = 200;
    let ended = loop {
        server.pass(Duration::from_secs(1));
        serial += 1;
        server.send(client, client.ack(serial, Reason::Ping, Serial(0), 0));
        let events: Vec<Event> = std::iter::from_fn(|| server.endpoint.poll_event()).collect();
        if events.iter().any(|e| matches!(e, Event::Ended { .. })) {
            break server.now;
        }
        assert!(server.now.since(blocked) < 2 * idle, "held for ever");
    };
    assert!(ended.since(blocked) >= idle);
    assert_eq!(server.endpoint.unacknowledged_bytes(), 0);
}
