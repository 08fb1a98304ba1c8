//! Every limit of the configuration holds, whatever unknown peers and slow applications do.

mod common;

use common::strangers::{Strangers, stranger};
use common::{CLIENT, Link, Pair, Random, SERVER, SERVICE, seed};
use rx_proto::{
    ACK_BYTES_MIN, Config, Event, HEADER_BYTES, Header, PACKET_DATA_BYTES, PacketType, Read, Route,
    Shared, WriteError, flag,
};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Bytes that an unread full packet counts for.
const PACKET_COST: usize = PACKET_DATA_BYTES + 256;

#[test]
fn strangers_that_do_not_answer_take_turns() {
    let config = Config {
        unproven_max: 100,
        unproven_packets: 2,
        ..Config::default()
    };
    let mut strangers = Strangers::new(config);
    for n in 0..5000 {
        let from = stranger(n);
        for seq in 1..=4 {
            strangers.send(from, from.data(seq, 0, &[0; PACKET_DATA_BYTES]));
        }
        assert!(strangers.endpoint.connections() <= 100);
        assert!(strangers.endpoint.calls() <= 100);
        assert!(strangers.endpoint.held_bytes() <= 100 * 2 * PACKET_COST);
    }
    // A peer that answers gets through in the crowd.
    let from = stranger(9999);
    assert!(strangers.call(from, b"hello").is_some());
    assert_eq!(strangers.endpoint.connections(), 100);
    strangers.pass(MINUTE);
    assert_eq!(strangers.endpoint.connections(), 1);
}

#[test]
fn a_packet_in_anothers_name_brings_it_one_small_packet() {
    let mut strangers = Strangers::new(Config::default());
    let mut random = Random::new(seed(41));
    let largest = HEADER_BYTES + ACK_BYTES_MIN;
    let mut received = 0u64;
    for n in 0..3000 {
        let from = stranger(n % 700);
        let kind = [1, 1, 1, 2, 3, 4, 5, 6, 7, 9][random.below(10) as usize];
        let mut bytes = from.data(1 + random.below(4) as u32, 0, &[0; 40]);
        bytes[20] = kind;
        bytes[27] = if random.chance(0.1) {
            99
        } else {
            SERVICE as u8
        };
        received += 1;
        let sent = strangers.send(from, bytes);
        assert!(
            sent.len() <= 1 && sent.iter().all(|p| p.len() <= largest),
            "{sent:?}"
        );
    }
    // And none later, by any timer.
    let out = strangers.endpoint.stats().datagrams_out;
    assert!(out <= received);
    for _ in 0..200 {
        strangers.pass(Duration::from_secs(1));
        assert!(strangers.sent().is_empty());
    }
}

#[test]
fn connections_are_limited_for_each_host_and_in_all() {
    let config = Config {
        connections_max: 40,
        connections_per_host: 10,
        ..Config::default()
    };
    let mut strangers = Strangers::new(config);
    let mut taken = 0;
    for n in 0..160 {
        let from = stranger(n);
        if let Some(call) = strangers.call(from, b"hello") {
            strangers.endpoint.finish(strangers.now, call).unwrap();
            let sent = strangers.sent();
            assert_eq!(sent.len(), 1);
            taken += 1;
        }
    }
    assert_eq!((taken, strangers.endpoint.connections()), (40, 40));
    assert_eq!(strangers.endpoint.stats().connections_refused, 120);
    // Connections that were idle for two minutes are evicted. (Their last replies were never
    // acknowledged, and their calls timed out.)
    for _ in 0..24 {
        strangers.pass(Duration::from_secs(10));
    }
    while strangers.endpoint.poll_event().is_some() {}
    assert!(strangers.call(stranger(1000), b"hello").is_some());
    assert_eq!(strangers.endpoint.connections(), 40);
}

#[test]
fn too_many_calls_are_told_that_the_server_is_busy() {
    let config = Config {
        calls_max: 10,
        ..Config::default()
    };
    let mut strangers = Strangers::new(config);
    let calls: Vec<_> = (0..10)
        .map(|n| strangers.call(stranger(n), b"hello").unwrap())
        .collect();
    // A known connection gets BUSY; an unknown peer is not even challenged.
    let mut second = stranger(3);
    second.cid += 1;
    let sent = strangers.send(second, second.data(1, flag::LAST_PACKET, b"and this"));
    assert_eq!(Header::parse(&sent[0]).unwrap().kind, PacketType::Busy);
    assert!(strangers.call(stranger(50), b"hello").is_none());
    assert_eq!(strangers.endpoint.calls(), 10);
    strangers.endpoint.abort(strangers.now, calls[0], 1);
    strangers.sent();
    assert!(strangers.call(second, b"and this").is_some());
}

#[test]
fn a_host_has_its_share_of_calls() {
    let config = Config {
        calls_per_host: 3,
        ..Config::default()
    };
    let mut strangers = Strangers::new(config);
    // Four calls at once, before the host has proven its address: one is deferred.
    let on_channel = |n| {
        let mut from = stranger(0);
        from.cid += n;
        from
    };
    let mut sent = Vec::new();
    for n in 0..4 {
        let from = on_channel(n);
        sent = strangers.send(from, from.data(1, flag::LAST_PACKET, b"hello"));
    }
    strangers.answer(on_channel(3), &sent);
    let mut calls = Vec::new();
    while let Some(event) = strangers.endpoint.poll_event() {
        if let Event::Call(incoming) = event {
            calls.push(incoming.call);
        }
    }
    assert_eq!((calls.len(), strangers.endpoint.calls()), (3, 3));
    // A call on a known connection gets BUSY; another port of the host is not even challenged.
    let again = on_channel(3);
    let sent = strangers.send(again, again.data(1, flag::LAST_PACKET, b"hello"));
    assert_eq!(Header::parse(&sent[0]).unwrap().kind, PacketType::Busy);
    let port = stranger(1);
    let sent = strangers.send(port, port.data(1, flag::LAST_PACKET, b"hello"));
    assert!(sent.is_empty());
    // Other hosts are served.
    assert!(strangers.call(stranger(16), b"hello").is_some());
    // Each call that ends makes room for one that was never run.
    for from in [again, port] {
        let call = calls.pop().unwrap();
        strangers.endpoint.abort(strangers.now, call, 1);
        strangers.sent();
        assert!(strangers.call(from, b"hello").is_some());
    }
}

#[test]
fn what_was_received_and_not_read_is_limited() {
    let limit = 100 * PACKET_COST;
    let config = Config {
        receive_bytes_max: limit,
        ..Config::default()
    };
    let mut pair = Pair::with([Config::default(), config], Link::default(), seed(42));
    pair.hosts[SERVER].appetite = 0;
    let mut tag = 0;
    for _ in 0..8 {
        let connection = pair.connect(CLIENT);
        for _ in 0..4 {
            pair.call(CLIENT, connection, tag, 10, 300_000).unwrap();
            tag += 1;
        }
    }
    // A call may have one packet above the limit, so that it can make progress.
    let most = limit + 33 * PACKET_COST;
    for _ in 0..2000 {
        pair.step();
        assert!(pair.hosts[SERVER].endpoint.held_bytes() <= most);
    }
    assert!(pair.hosts[SERVER].endpoint.held_bytes() >= limit);
    // When the application reads, all data arrives.
    pair.hosts[SERVER].appetite = usize::MAX;
    let now = pair.now;
    pair.hosts[SERVER].look(now);
    pair.finish_calls(CLIENT, 32, 10 * MINUTE);
    assert_eq!(pair.hosts[SERVER].endpoint.held_bytes(), 0);
}

#[test]
fn a_writer_is_held_back_and_told_when_to_go_on() {
    let config = Config {
        send_buffer_bytes: 10_000,
        send_buffer_pieces: 50,
        ..Config::default()
    };
    let mut strangers = Strangers::new(config);
    let call = strangers.call(stranger(1), b"hello").unwrap();
    let now = strangers.now;
    let mut write = |bytes: usize| {
        let payload = Shared::from(vec![0; bytes]);
        strangers.endpoint.write(now, call, payload)
    };
    assert_eq!(write(4000), Ok(6000));
    assert_eq!(write(100_000), Ok(0));
    assert_eq!(write(1), Err(WriteError::Blocked(Shared::from(vec![0]))));
    let call = strangers.call(stranger(2), b"hello").unwrap();
    for n in 0..60 {
        let written = strangers
            .endpoint
            .write(now, call, Shared::from(vec![0]))
            .is_ok();
        assert_eq!(written, n < 50);
    }
    // The applications of the pair always write like this; this checks that they had to wait.
    let config = Config {
        send_buffer_bytes: 10_000,
        send_buffer_pieces: 50,
        ..Config::default()
    };
    let mut pair = Pair::with([config.clone(), config], Link::default(), seed(43));
    let connection = pair.connect(CLIENT);
    pair.call(CLIENT, connection, 1, 500_000, 500_000).unwrap();
    pair.finish_calls(CLIENT, 1, MINUTE);
    for host in &pair.hosts {
        let writable = |e: &&Event| matches!(e, Event::Writable(_));
        assert!(host.events.iter().filter(writable).count() >= 10);
    }
}

#[test]
fn what_was_written_and_not_acknowledged_is_limited() {
    let limit = 500_000;
    let config = Config {
        send_bytes_max: limit,
        ..Config::default()
    };
    let mut strangers = Strangers::new(config);
    let page = Shared::from(vec![7; 4096]);
    let mut written = Vec::new();
    for n in 0..40 {
        let call = strangers.call(stranger(n), b"give").unwrap();
        while let Ok(Read::Data(_)) = strangers.endpoint.read(strangers.now, call) {}
        let mut bytes = 0;
        while strangers
            .endpoint
            .write(strangers.now, call, page.clone())
            .is_ok()
        {
            bytes += 4096;
        }
        strangers.sent();
        written.push(bytes);
    }
    // The first writer took the whole limit; each later one can still make progress.
    assert!(
        written[0] >= limit && written[0] < limit + 2 * 4096,
        "{written:?}"
    );
    let crowded = 16 * PACKET_DATA_BYTES;
    let later = &written[1..];
    assert!(
        later.iter().all(|n| *n >= crowded && *n < crowded + 4096),
        "{written:?}"
    );
    let all: usize = written.iter().sum();
    assert_eq!(strangers.endpoint.unacknowledged_bytes(), all as u64);
    // No peer acknowledges anything: the calls time out, and the written data is released.
    for _ in 0..200 {
        strangers.pass(Duration::from_secs(1));
        strangers.sent();
    }
    assert_eq!(strangers.endpoint.unacknowledged_bytes(), 0);
}

#[test]
fn a_host_that_acknowledges_nothing_does_not_take_what_others_may_have() {
    let limit = 200_000;
    let config = Config {
        send_bytes_per_host: limit,
        ..Config::default()
    };
    let room = config.send_buffer_bytes;
    let mut strangers = Strangers::new(config);
    let mut written = |n: u32| {
        let call = strangers.call(stranger(n), b"give").unwrap();
        let page = Shared::from(vec![7; 4096]);
        let mut bytes = 0;
        while strangers
            .endpoint
            .write(strangers.now, call, page.clone())
            .is_ok()
        {
            bytes += 4096;
        }
        bytes
    };
    let (first, crowded) = (written(0), 16 * PACKET_DATA_BYTES);
    assert!((limit..limit + 8192).contains(&first), "{first}");
    for n in 1..16 {
        let later = written(n);
        assert!((crowded..crowded + 4096).contains(&later), "{later}");
    }
    // A call of another host is limited by its own share, or its own buffer.
    let other = written(16);
    assert!((limit.min(room)..limit + 8192).contains(&other), "{other}");
}

#[test]
fn a_slow_reader_holds_its_sender_back_to_a_window() {
    let config = Config {
        receive_window: 20,
        ..Config::default()
    };
    let mut pair = Pair::with([config.clone(), config], Link::default(), seed(44));
    let connection = pair.connect(CLIENT);
    pair.hosts[CLIENT].appetite = 0;
    pair.call(CLIENT, connection, 1, 1_000_000, 0).unwrap();
    pair.pass(Duration::from_secs(5));
    let held = pair.hosts[CLIENT].endpoint.held_bytes();
    assert_eq!(held, 20 * PACKET_COST);
    // The application reads a packet now and then.
    pair.hosts[CLIENT].appetite = 1;
    for _ in 0..100 {
        let now = pair.now;
        pair.hosts[CLIENT].look(now);
        pair.pass(Duration::from_millis(50));
        assert!(pair.hosts[CLIENT].endpoint.held_bytes() <= held);
    }
    pair.hosts[CLIENT].appetite = usize::MAX;
    let now = pair.now;
    pair.hosts[CLIENT].look(now);
    pair.finish_calls(CLIENT, 1, MINUTE);
}

#[test]
fn questions_are_answered_at_a_rate_and_answers_wait_in_a_short_queue() {
    let config = Config {
        stray_answers_per_second: 10,
        control_packets_max: 5,
        ..Config::default()
    };
    let mut strangers = Strangers::new(config);
    let ask = |strangers: &mut Strangers, n: u32| {
        let from = stranger(n);
        let bytes = from.header(PacketType::Version, 0, 0).encode().to_vec();
        strangers.send(from, bytes).len()
    };
    assert_eq!((0..100).map(|n| ask(&mut strangers, n)).sum::<usize>(), 10);
    strangers.pass(Duration::from_millis(500));
    assert_eq!((0..100).map(|n| ask(&mut strangers, n)).sum::<usize>(), 5);
    strangers.pass(Duration::from_secs(10));
    for n in 0..10 {
        let from = stranger(n);
        let route = Route {
            peer: from.peer,
            local: None,
        };
        let bytes = from.header(PacketType::Version, 0, 0).encode().to_vec();
        strangers
            .endpoint
            .handle_input(strangers.now, route, Shared::from(bytes));
    }
    assert_eq!(strangers.sent().len(), 5);
    assert_eq!(strangers.endpoint.stats().control_dropped, 5);
}

#[test]
fn an_unknown_service_or_class_is_refused() {
    let mut strangers = Strangers::new(Config::default());
    for (at, value) in [(27, 99), (23, 2)] {
        let from = stranger(1);
        let mut bytes = from.data(1, flag::LAST_PACKET, b"hello");
        bytes[at] = value;
        let sent = strangers.send(from, bytes);
        assert_eq!(Header::parse(&sent[0]).unwrap().kind, PacketType::Abort);
        assert_eq!(sent[0][28..], (-2i32).to_be_bytes());
    }
    assert_eq!(strangers.endpoint.connections(), 0);
}

#[test]
fn a_call_that_is_over_is_unknown() {
    let mut strangers = Strangers::new(Config::default());
    let call = strangers.call(stranger(1), b"hello").unwrap();
    let now = strangers.now;
    assert!(matches!(
        strangers.endpoint.read(now, call),
        Ok(Read::Data(_))
    ));
    strangers.endpoint.release(now, call);
    assert!(strangers.endpoint.read(now, call).is_err());
    assert!(strangers.endpoint.finish(now, call).is_err());
    let write = strangers.endpoint.write(now, call, Shared::from(vec![0]));
    assert!(matches!(write, Err(WriteError::Call(..))));
    strangers.endpoint.abort(now, call, 5);
    assert_eq!(strangers.sent().len(), 1, "one abort");
}
