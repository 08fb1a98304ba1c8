//! Answers to `rxdebug`, byte by byte at the offsets that it reads (OpenAFS, `src/rx/rx.h` and
//! `src/rxdebug/rxdebug.c`).

mod common;

use common::{CLIENT, Link, Pair, SERVER, endpoint, seed};
use rx_proto::{
    CallNumber, Cid, Config, DebugAccess, DebugPolicy, Endpoint, Epoch, HEADER_BYTES, Header,
    PacketType, Route, Seq, Serial, Shared, Timestamp, Transmit, flag,
};
use std::net::IpAddr;
use std::time::Duration;

/// Returns the `number`-th question of `rxdebug`, which matches answers to questions by call
/// number.
fn question(kind: PacketType, number: u32, flags: u8) -> Vec<u8> {
    let header = Header {
        epoch: Epoch(0),
        cid: Cid(0),
        call_number: CallNumber(number),
        seq: Seq(0),
        serial: Serial(0),
        kind,
        flags,
        user_status: 0,
        security_index: 0,
        checksum: 0,
        service: 0,
    };
    header.encode().to_vec()
}

/// Asks from this machine; returns the answer's header and body.
fn ask(
    endpoint: &mut Endpoint<Shared, Shared>,
    now: Timestamp,
    question: Vec<u8>,
) -> Option<(Header, Vec<u8>)> {
    ask_from("127.0.0.9:40000", endpoint, now, question)
}

/// Asks from an address that has no connection.
fn ask_from(
    peer: &str,
    endpoint: &mut Endpoint<Shared, Shared>,
    now: Timestamp,
    question: Vec<u8>,
) -> Option<(Header, Vec<u8>)> {
    let route = Route {
        peer: peer.parse().unwrap(),
        local: Some("192.0.2.2".parse().unwrap()),
    };
    endpoint.handle_input(now, route, Shared::from(question));
    let mut batch = Transmit::new(4);
    if !endpoint.poll_transmit(now, &mut batch) {
        return None;
    }
    assert_eq!((batch.route(), batch.segments()), (route, 1));
    let bytes = batch.datagrams().remove(0);
    let header = Header::parse(&bytes).unwrap();
    Some((header, bytes[HEADER_BYTES..].to_vec()))
}

/// Asks a DEBUG question with a type and an index.
fn debug(
    endpoint: &mut Endpoint<Shared, Shared>,
    now: Timestamp,
    kind: u32,
    index: u32,
) -> Vec<u8> {
    let mut packet = question(PacketType::Debug, 77, flag::CLIENT_INITIATED);
    packet.extend(kind.to_be_bytes());
    packet.extend(index.to_be_bytes());
    let (header, body) = ask(endpoint, now, packet).expect("an answer");
    assert_eq!(
        (header.kind, header.call_number, header.flags),
        (PacketType::Debug, CallNumber(77), 0)
    );
    body
}

fn word(body: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(body[at..at + 4].try_into().unwrap())
}

fn half(body: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(body[at..at + 2].try_into().unwrap())
}

#[test]
fn a_server_with_a_call_is_shown() {
    let mut pair = Pair::new(Link::default(), seed(61));
    let connection = pair.connect(CLIENT);
    pair.call(CLIENT, connection, 1, 5000, 5000).unwrap();
    pair.finish_calls(CLIENT, 1, Duration::from_secs(30));
    pair.hosts[SERVER].stuck = true;
    pair.call(CLIENT, connection, 2, 5000, 5000).unwrap();
    pair.pass(Duration::from_secs(1));
    let now = pair.now;
    let server = &mut pair.hosts[SERVER].endpoint;

    let basics = debug(server, now, 1, 0);
    assert_eq!(basics.len(), 56);
    assert_eq!(word(&basics, 8), 2, "calls");
    assert_eq!(basics[14], b'S', "version");

    for kind in [2, 3] {
        let there = debug(server, now, kind, 0);
        assert_eq!(there.len(), 176);
        assert_eq!(there[..4], [192, 0, 2, 1], "host");
        assert_eq!(half(&there, 32), 7001, "port");
        assert_eq!(there[35], 1, "a connection of which we are the server");
        let channels = [12, 16, 20, 24].map(|at| word(&there, at));
        let at = channels.iter().position(|call| *call > 0).unwrap();
        assert_eq!(there[40 + at], 2, "the call is active");
        let secret = [4, 8, 132].map(|at| word(&there, at));
        assert_eq!(secret, [0; 3], "neither id, nor serial number, nor epoch");
        let end = debug(server, now, kind, 1);
        assert_eq!((end.len(), word(&end, 4)), (176, u32::MAX));
    }

    let stats = debug(server, now, 4, 0);
    assert_eq!(stats.len(), 284);
    assert!(word(&stats, 44) >= 8, "DATA packets read");

    let peer = debug(server, now, 5, 0);
    assert_eq!((peer.len(), &peer[..4]), (132, &[192, 0, 2, 1][..]));
    assert_eq!((half(&peer, 4), half(&peer, 6)), (7001, 1444));
    assert!(word(&peer, 24) > 0, "a round-trip time");
    let end = debug(server, now, 5, 1);
    assert_eq!((end.len(), word(&end, 0)), (132, u32::MAX));

    let unknown = debug(server, now, 6, 0);
    assert_eq!(
        unknown,
        [(-8i32).to_be_bytes(), 6u32.to_be_bytes()].concat()
    );
}

#[test]
fn the_version_is_text_and_zeros() {
    let config = Config {
        version: "x".repeat(99),
        ..Config::default()
    };
    let mut server = endpoint(config, 1);
    let packet = question(PacketType::Version, 5, flag::CLIENT_INITIATED);
    let now = Timestamp::from_nanos(1);
    let (header, body) = ask(&mut server, now, packet).unwrap();
    assert_eq!((header.kind, header.flags), (PacketType::Version, 0));
    assert_eq!(body[..], [vec![b'x'; 64], vec![0]].concat()[..]);
}

#[test]
fn what_is_no_question_is_not_answered() {
    let now = Timestamp::from_nanos(1_000_000_000);
    let mut server = endpoint(Config::default(), 1);
    // Answers, and the keep-alives of kafs, lack the flag: two endpoints must not answer each other
    // indefinitely.
    for kind in [PacketType::Version, PacketType::Debug] {
        assert!(ask(&mut server, now, question(kind, 1, 0)).is_none());
    }
    let mut short = question(PacketType::Debug, 1, flag::CLIENT_INITIATED);
    short.extend([0, 0, 0, 1, 0, 0, 0]);
    assert!(ask(&mut server, now, short.clone()).is_none());
    short.push(0);
    assert!(ask(&mut server, now, short.clone()).is_some());
}

/// Goal: a question with a spoofed source sends nothing larger than the question to the spoofed
/// address; an address that the configuration excludes gets no answer.
#[test]
fn strangers_get_nothing_larger_than_their_questions() {
    const INSIDE: &str = "198.51.100.3:40000";
    const OUTSIDE: &str = "203.0.113.3:40000";
    let now = Timestamp::from_nanos(1_000_000_000);
    let allowed = |address: IpAddr| INSIDE.starts_with(&format!("{address}:"));
    let questions = DebugPolicy::new(move |address| {
        if allowed(address) {
            DebugAccess::Short
        } else {
            DebugAccess::None
        }
    });
    let config = Config {
        questions,
        ..Config::default()
    };
    let version = |bytes: usize| {
        let mut packet = question(PacketType::Version, 1, flag::CLIENT_INITIATED);
        packet.extend(vec![0; bytes]);
        packet
    };
    let mut debug = question(PacketType::Debug, 1, flag::CLIENT_INITIATED);
    debug.extend([0, 0, 0, 5, 0, 0, 0, 0]);
    // An acknowledgement and a reply that belong to no connection.
    let strays = [
        (PacketType::Ack, flag::CLIENT_INITIATED),
        (PacketType::Data, 0),
    ];
    let strays = strays.map(|(kind, flags)| {
        let mut packet = question(kind, 1, flags);
        packet.extend([0; 40]);
        packet
    });
    for config in [Config::default(), config] {
        let mut server = endpoint(config, 1);
        for bytes in [0, 1, 8, 65, 200] {
            let asked = version(bytes);
            let (_, body) = ask_from(INSIDE, &mut server, now, asked).unwrap();
            assert_eq!(body.len(), bytes.min(65));
        }
        assert!(ask_from(INSIDE, &mut server, now, debug.clone()).is_none());
    }
    let config = Config {
        questions: DebugPolicy::new(|_| DebugAccess::None),
        ..Config::default()
    };
    let mut server = endpoint(config, 1);
    for packet in [version(65), debug].into_iter().chain(strays.clone()) {
        assert!(ask_from(OUTSIDE, &mut server, now, packet).is_none());
    }
    let mut server = endpoint(Config::default(), 1);
    for packet in strays {
        assert!(ask_from(OUTSIDE, &mut server, now, packet).is_some());
    }
}
