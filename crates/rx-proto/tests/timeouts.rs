//! Effects of time on calls and connections: pings keep them alive, silence and idleness end them,
//! and unused ones are dropped.

mod common;

use common::{CLIENT, Link, Outcome, Pair, SERVER, seed};
use rx_proto::{Config, Connect, ConnectionId, End, Event, Timeouts};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn connect(pair: &mut Pair, timeouts: Timeouts) -> ConnectionId {
    let connect = Connect {
        route: pair.hosts[CLIENT].route(),
        service: common::SERVICE,
        timeouts,
        security: None,
    };
    pair.hosts[CLIENT].endpoint.connect(pair.now, connect)
}

fn outcome(pair: &Pair, tag: u32) -> Option<&Outcome> {
    pair.hosts[CLIENT].outcomes.get(&tag)
}

fn ends(pair: &Pair) -> Vec<End> {
    let reason = |e: &Event| match e {
        Event::Ended { reason, .. } => Some(*reason),
        _ => None,
    };
    pair.hosts[SERVER]
        .events
        .iter()
        .filter_map(reason)
        .collect()
}

#[test]
fn a_server_may_work_for_hours_while_it_answers_pings() {
    let mut pair = Pair::new(Link::default(), seed(31));
    let connection = pair.connect(CLIENT);
    pair.hosts[SERVER].stuck = true;
    pair.call(CLIENT, connection, 1, 10, 0).unwrap();
    pair.pass(120 * MINUTE);
    assert_eq!((outcome(&pair, 1), ends(&pair)), (None, vec![]));
    let pings = pair.hosts[CLIENT].endpoint.stats().pings;
    // At most one per 8.3 s, by either side.
    assert!((400..=864).contains(&pings), "{pings}");
    pair.hosts[SERVER].stuck = false;
    let now = pair.now;
    pair.hosts[SERVER].look(now);
    pair.finish_calls(CLIENT, 1, MINUTE);
}

#[test]
fn a_server_that_is_gone_is_noticed_within_a_minute() {
    let mut pair = Pair::new(Link::default(), seed(32));
    let connection = pair.connect(CLIENT);
    pair.hosts[SERVER].stuck = true;
    pair.call(CLIENT, connection, 1, 10, 0).unwrap();
    pair.pass(SECOND);
    pair.net.links[SERVER].loss = 1.0;
    pair.net.links[CLIENT].loss = 1.0;
    pair.pass(45 * SECOND);
    assert_eq!(outcome(&pair, 1), None);
    pair.pass(15 * SECOND);
    assert_eq!(outcome(&pair, 1), Some(&Outcome::Ended(End::Dead)));
    // The server noticed too, and notified its application.
    assert_eq!(ends(&pair), [End::Dead]);
    assert_eq!(pair.hosts[SERVER].endpoint.calls(), 0);
}

#[test]
fn a_server_that_never_was_is_noticed_too() {
    let mut pair = Pair::new(Link::default(), seed(33));
    pair.net.links[SERVER].loss = 1.0;
    let connection = pair.connect(CLIENT);
    pair.call(CLIENT, connection, 1, 10, 50_000).unwrap();
    pair.pass(MINUTE);
    assert_eq!(outcome(&pair, 1), Some(&Outcome::Ended(End::Dead)));
}

#[test]
fn a_clients_limits_end_its_calls() {
    let limits = [
        (Some(20 * SECOND), None, End::Idle),
        (None, Some(30 * SECOND), End::Hard),
        (Some(40 * SECOND), Some(30 * SECOND), End::Hard),
    ];
    for (idle, hard, end) in limits {
        let mut pair = Pair::new(Link::default(), seed(34));
        let timeouts = Timeouts {
            idle,
            hard,
            ..Timeouts::default()
        };
        let connection = connect(&mut pair, timeouts);
        pair.hosts[SERVER].stuck = true;
        pair.call(CLIENT, connection, 1, 10, 0).unwrap();
        pair.pass(19 * SECOND);
        assert_eq!(outcome(&pair, 1), None);
        pair.pass(12 * SECOND);
        assert_eq!(outcome(&pair, 1), Some(&Outcome::Ended(end)));
        // The server's application learns that the client no longer waits.
        assert_eq!(ends(&pair), [End::Aborted(rx_proto::code::CALL_TIMEOUT)]);
    }
}

#[test]
fn a_client_that_stops_within_its_request_is_given_up() {
    let mut pair = Pair::new(Link::default(), seed(35));
    let connection = pair.connect(CLIENT);
    let now = pair.now;
    let call = pair.hosts[CLIENT].endpoint.start(now, connection).unwrap();
    pair.hosts[CLIENT].adopt(call, 1);
    let bytes = rx_proto::Shared::from(vec![0; 5000]);
    pair.hosts[CLIENT].endpoint.write(now, call, bytes).unwrap();
    pair.pass(55 * SECOND);
    assert_eq!(pair.hosts[SERVER].open_calls(), 1);
    pair.pass(10 * SECOND);
    assert_eq!(ends(&pair), [End::Idle]);
    assert_eq!(pair.hosts[SERVER].endpoint.calls(), 0);
}

#[test]
fn a_client_that_does_not_read_holds_nothing_indefinitely() {
    let mut pair = Pair::new(Link::default(), seed(36));
    let connection = pair.connect(CLIENT);
    pair.hosts[CLIENT].appetite = 0;
    pair.call(CLIENT, connection, 1, 3_000_000, 0).unwrap();
    // The window fills; the client answers pings and does nothing else.
    pair.pass(SECOND);
    let sent = pair.hosts[SERVER].endpoint.stats().packets_out[0];
    assert!((250..=256).contains(&sent), "{sent}");
    pair.pass(55 * SECOND);
    assert_eq!(ends(&pair), []);
    pair.pass(15 * SECOND);
    assert_eq!(ends(&pair), [End::Idle]);
}

#[test]
fn connections_are_forgotten_when_they_are_not_used() {
    let mut pair = Pair::new(Link::default(), seed(37));
    let connection = pair.connect(CLIENT);
    for tag in 0..3 {
        pair.run(MINUTE, |pair| {
            pair.call(CLIENT, connection, tag, 10, 0).is_some()
        });
        pair.pass(9 * MINUTE);
        assert_eq!(
            pair.hosts[SERVER].endpoint.connections(),
            1,
            "used again in time"
        );
    }
    pair.pass(2 * MINUTE);
    assert_eq!(pair.hosts[SERVER].endpoint.connections(), 0);
    let closed = |e: &&Event| matches!(e, Event::Closed(_));
    assert_eq!(pair.hosts[SERVER].events.iter().filter(closed).count(), 1);
    // The client's connection belongs to its application.
    assert_eq!(pair.hosts[CLIENT].endpoint.connections(), 1);
    pair.call(CLIENT, connection, 9, 10, 0).unwrap();
    pair.finish_calls(CLIENT, 4, MINUTE);
    let now = pair.now;
    pair.hosts[CLIENT].endpoint.close(now, connection);
    assert_eq!(pair.hosts[CLIENT].endpoint.connections(), 0);
    // Only timers that are known to be due remain.
    pair.pass(20 * MINUTE);
    assert_eq!(pair.hosts[SERVER].endpoint.connections(), 0);
    assert_eq!(
        pair.hosts
            .iter_mut()
            .filter_map(|h| h.endpoint.poll_timeout())
            .count(),
        0
    );
}

#[test]
fn a_client_notices_that_its_server_restarted() {
    let mut pair = Pair::new(Link::default(), seed(38));
    let connection = pair.connect(CLIENT);
    pair.hosts[SERVER].stuck = true;
    pair.call(CLIENT, connection, 1, 10, 3_000_000).unwrap();
    pair.run(MINUTE, |pair| {
        pair.hosts[SERVER].endpoint.stats().packets_in[0] > 700
    });
    let fresh = common::endpoint(Config::default(), 4711);
    let (address, peer) = (pair.hosts[SERVER].address, pair.hosts[CLIENT].address);
    pair.hosts[SERVER] = common::Host::new(fresh, SERVER, address, peer);
    pair.run(MINUTE, |pair| outcome(pair, 1).is_some());
    assert_eq!(outcome(&pair, 1), Some(&Outcome::Ended(End::Forgotten)));
    assert!(pair.hosts[SERVER].runs.is_empty());
}

#[test]
fn a_client_that_has_sent_everything_notices_a_server_restart() {
    let mut pair = Pair::new(Link::default(), seed(39));
    let connection = pair.connect(CLIENT);
    pair.hosts[SERVER].stuck = true;
    pair.call(CLIENT, connection, 1, 10, 30_000).unwrap();
    // All of the request was acknowledged, and the client waits for the reply.
    pair.pass(Duration::from_secs(1));
    let fresh = common::endpoint(Config::default(), 4711);
    let (address, peer) = (pair.hosts[SERVER].address, pair.hosts[CLIENT].address);
    pair.hosts[SERVER] = common::Host::new(fresh, SERVER, address, peer);
    let begun = pair.now;
    pair.run(MINUTE, |pair| outcome(pair, 1).is_some());
    let restarting = End::Aborted(rx_proto::code::RESTARTING);
    assert_eq!(outcome(&pair, 1), Some(&Outcome::Ended(restarting)));
    // With the next ping, and not after the dead time.
    assert!(pair.now.since(begun) < Timeouts::default().dead / 4);
    assert!(pair.hosts[SERVER].runs.is_empty());
}

/// Goal: replies to a client that restarted do not delay those to the new one.
#[test]
fn a_server_forgets_the_replies_to_a_client_that_restarted() {
    let link = Link {
        rate: Some((1_000_000, 60_000)),
        ..Link::default()
    };
    let mut pair = Pair::new(link, seed(40));
    let connection = pair.connect(CLIENT);
    for tag in 0..4 {
        pair.call(CLIENT, connection, tag, 300_000, 10).unwrap();
    }
    pair.pass(Duration::from_millis(200));
    assert_eq!(pair.hosts[SERVER].endpoint.calls(), 4);
    let fresh = common::endpoint(Config::default(), 4712);
    let (address, peer) = (pair.hosts[CLIENT].address, pair.hosts[SERVER].address);
    pair.hosts[CLIENT] = common::Host::new(fresh, CLIENT, address, peer);
    pair.pass(Duration::from_secs(5));
    assert_eq!(pair.hosts[SERVER].endpoint.calls(), 0);
    assert_eq!(pair.hosts[SERVER].endpoint.unacknowledged_bytes(), 0);
    let connection = pair.connect(CLIENT);
    pair.call(CLIENT, connection, 9, 300_000, 10).unwrap();
    pair.finish_calls(CLIENT, 1, MINUTE);
}

/// Timeouts of calls that react to ICMP errors about closed ports.
const HEEDS: Timeouts = Timeouts {
    dead: Duration::from_secs(30),
    idle: None,
    hard: None,
    refused: Some(SECOND),
};

/// Returns a pair whose server was called before, and the datagrams that the client sends to it.
fn refusing(timeouts: Timeouts) -> (Pair, ConnectionId, Rc<RefCell<Vec<Vec<u8>>>>) {
    let mut pair = Pair::new(Link::default(), seed(41));
    let connection = connect(&mut pair, timeouts);
    pair.call(CLIENT, connection, 0, 10, 0).unwrap();
    pair.finish_calls(CLIENT, 1, MINUTE);
    let sent: Rc<RefCell<Vec<Vec<u8>>>> = Rc::default();
    let tap = Rc::clone(&sent);
    pair.net.tap = Some(Box::new(move |to, bytes| {
        if to == SERVER {
            tap.borrow_mut().push(bytes.to_vec());
        }
    }));
    (pair, connection, sent)
}

fn refuse(pair: &mut Pair, peer: SocketAddr, quoted: &[u8]) {
    let now = pair.now;
    pair.hosts[CLIENT].endpoint.refused(now, peer, quoted);
}

/// Goal: a closed port ends a call early, but never before the call was retransmitted and stayed
/// unanswered.
#[test]
fn a_peer_whose_port_is_closed_is_given_up_soon_and_not_at_once() {
    let (mut pair, connection, sent) = refusing(HEEDS);
    pair.net.links[SERVER].loss = 1.0;
    let begun = pair.now;
    pair.call(CLIENT, connection, 1, 10, 0).unwrap();
    pair.pump();
    let peer = pair.hosts[SERVER].address;
    let quoted = sent.borrow()[0].clone();
    refuse(&mut pair, peer, &quoted);
    pair.run(MINUTE, |pair| outcome(pair, 1).is_some());
    assert_eq!(outcome(&pair, 1), Some(&Outcome::Ended(End::Dead)));
    let took = pair.now.since(begun);
    assert!((SECOND..2 * SECOND).contains(&took), "{took:?}");
    assert!(sent.borrow().len() > 1, "it was not sent again");
}

/// Goal: forged ICMP errors end no call with a peer that answers, however slow its answer is.
#[test]
fn a_peer_that_answers_is_not_given_up_whatever_the_network_says() {
    let (mut pair, connection, sent) = refusing(HEEDS);
    pair.hosts[SERVER].stuck = true;
    pair.call(CLIENT, connection, 1, 10, 0).unwrap();
    let peer = pair.hosts[SERVER].address;
    for _ in 0..100 {
        pair.pump();
        let quoted = sent.borrow().last().cloned().unwrap();
        refuse(&mut pair, peer, &quoted);
        pair.pass(SECOND / 10);
    }
    assert_eq!(outcome(&pair, 1), None);
    pair.hosts[SERVER].stuck = false;
    let now = pair.now;
    pair.hosts[SERVER].look(now);
    pair.finish_calls(CLIENT, 2, MINUTE);
}

#[test]
fn a_refusal_counts_only_where_it_is_heeded_and_quotes_what_was_sent() {
    type Forge = fn(&mut Vec<u8>, &mut SocketAddr);
    let cases: [(Timeouts, Forge); 6] = [
        (
            Timeouts {
                refused: None,
                ..HEEDS
            },
            |_, _| {},
        ),
        (HEEDS, |_, peer| peer.set_port(9)),
        (HEEDS, |quoted, _| quoted.truncate(8)),
        (HEEDS, |quoted, _| quoted[3] ^= 1),
        (HEEDS, |quoted, _| quoted[6] ^= 1),
        (HEEDS, |quoted, _| quoted[11] ^= 4),
    ];
    for (timeouts, forge) in cases {
        let (mut pair, connection, sent) = refusing(timeouts);
        pair.net.links[SERVER].loss = 1.0;
        pair.call(CLIENT, connection, 1, 10, 0).unwrap();
        pair.pump();
        let (mut quoted, mut peer) = (sent.borrow()[0].clone(), pair.hosts[SERVER].address);
        forge(&mut quoted, &mut peer);
        refuse(&mut pair, peer, &quoted);
        pair.pass(29 * SECOND);
        assert_eq!(outcome(&pair, 1), None);
        pair.pass(2 * SECOND);
        assert_eq!(outcome(&pair, 1), Some(&Outcome::Ended(End::Dead)));
    }
}
