//! A request runs at most once, whatever the network does with its packets, and its reply is
//! delivered even if packets that carry it are lost.

mod common;

use common::{CLIENT, Link, Outcome, Pair, Random, SERVER, seed};
use rx_proto::{Config, End, Event, Header, PacketType};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Records all datagrams that reach the server.
fn record(pair: &mut Pair) -> std::rc::Rc<std::cell::RefCell<Vec<Vec<u8>>>> {
    let all = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let sink = all.clone();
    pair.net.tap = Some(Box::new(move |to, bytes: &[u8]| {
        if to == SERVER {
            sink.borrow_mut().push(bytes.to_vec());
        }
    }));
    all
}

#[test]
fn every_datagram_ever_sent_may_come_again_at_any_time() {
    let seed = seed(21);
    let mut pair = Pair::new(Link::default(), seed);
    let recorded = record(&mut pair);
    let mut random = Random::new(seed);
    let connection = pair.connect(CLIENT);
    for tag in 0..60 {
        pair.run(MINUTE, |pair| {
            pair.call(CLIENT, connection, tag, 3000, 3000).is_some()
        });
        pair.pump();
        for _ in 0..20 {
            let old = {
                let all = recorded.borrow();
                all[random.below(all.len() as u64) as usize].clone()
            };
            pair.hosts[SERVER].take(pair.now, old);
            pair.step();
        }
    }
    pair.finish_calls(CLIENT, 60, MINUTE);
    let everything = recorded.borrow().clone();
    for old in everything {
        pair.hosts[SERVER].take(pair.now, old);
        pair.pump();
    }
    pair.pass(MINUTE);
    assert!(pair.hosts[SERVER].runs.values().all(|n| *n == 1));
    assert_eq!(pair.hosts[SERVER].endpoint.calls(), 0);
}

#[test]
fn a_request_that_outlived_its_connection_is_not_run_again() {
    let mut pair = Pair::new(Link::default(), seed(22));
    let recorded = record(&mut pair);
    let connection = pair.connect(CLIENT);
    for tag in 0..9 {
        pair.run(MINUTE, |pair| {
            pair.call(CLIENT, connection, tag, 10, 10).is_some()
        });
    }
    pair.finish_calls(CLIENT, 9, MINUTE);
    // The server drops the connection, which takes ten minutes; then old requests arrive.
    pair.pass(11 * MINUTE);
    assert_eq!(pair.hosts[SERVER].endpoint.connections(), 0);
    let requests = recorded.borrow().clone();
    for request in requests {
        let header = Header::parse(&request).unwrap();
        if header.kind == PacketType::Data {
            pair.hosts[SERVER].take(pair.now, request);
            pair.pass(Duration::from_secs(1));
        }
    }
    // The client is challenged, and does not answer for finished calls.
    assert!(pair.hosts[SERVER].endpoint.stats().pings >= 9);
    assert!(pair.hosts[SERVER].runs.values().all(|n| *n == 1));
}

#[test]
fn a_reply_that_is_lost_again_and_again_arrives_without_a_second_run() {
    let mut pair = Pair::new(Link::default(), seed(23));
    let connection = pair.connect(CLIENT);
    pair.call(CLIENT, connection, 0, 10, 0).unwrap();
    pair.finish_calls(CLIENT, 1, MINUTE);
    pair.net.links[CLIENT].loss = 1.0;
    pair.call(CLIENT, connection, 1, 10, 0).unwrap();
    pair.pass(Duration::from_secs(20));
    assert_eq!(pair.hosts[SERVER].runs[&1], 1);
    assert_eq!(pair.hosts[CLIENT].outcomes.get(&1), None);
    pair.net.links[CLIENT].loss = 0.0;
    pair.finish_calls(CLIENT, 2, MINUTE);
    assert_eq!(pair.hosts[SERVER].runs[&1], 1);
}

#[test]
fn a_new_call_waits_until_the_server_gave_the_old_one_back() {
    let patience = Config {
        dead_time: Duration::from_secs(600),
        idle_time: None,
        ..Config::default()
    };
    let mut pair = Pair::with([Config::default(), patience], Link::default(), seed(24));
    let connection = pair.connect(CLIENT);
    pair.hosts[SERVER].stuck = true;
    // Four calls, so that the fifth has to reuse a channel.
    let calls: Vec<_> = (0..4)
        .map(|tag| pair.call(CLIENT, connection, tag, 10, 0).unwrap())
        .collect();
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.hosts[SERVER].open_calls(), 4);
    // The abort is lost; the next call on the channel notifies the server.
    pair.net.links[SERVER].loss = 1.0;
    pair.hosts[CLIENT].endpoint.release(pair.now, calls[2]);
    pair.pump();
    pair.net.links[SERVER].loss = 0.0;
    pair.hosts[SERVER].stuck = false;
    pair.call(CLIENT, connection, 9, 10, 0).unwrap();
    pair.run(MINUTE, |pair| pair.hosts[CLIENT].outcomes.contains_key(&9));
    assert_eq!(pair.hosts[CLIENT].outcomes[&9], Outcome::Done);
    let superseded = |e: &&Event| {
        matches!(
            e,
            Event::Ended {
                reason: End::Superseded,
                ..
            }
        )
    };
    assert_eq!(
        pair.hosts[SERVER].events.iter().filter(superseded).count(),
        1
    );
    assert_eq!(pair.hosts[SERVER].endpoint.stats().busy, 1);
}
