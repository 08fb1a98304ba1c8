//! Two endpoints over networks of all kinds: every call runs once, every byte arrives.

mod common;

use common::strangers::{Stranger, Strangers, stranger};
use common::{CLIENT, Link, Pair, SERVER, seed};
use rx_proto::{Ack, Config, HEADER_BYTES, Header, PacketType, Reason, flag};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Runs calls of several sizes in both directions, four at a time, over one kind of link.
fn check(link: Link, seed: u64, calls: u32) -> Pair {
    let mut pair = Pair::new(link, seed);
    let connections = [pair.connect(CLIENT), pair.connect(SERVER)];
    let sizes = [0, 1, 4, 1412, 1413, 30_000, 300_000];
    let mut made = [0; 2];
    for round in 0..calls {
        for from in [CLIENT, SERVER] {
            let size = |n: u32| sizes[pair_index(seed, round, n) % sizes.len()];
            let (reply, filling) = (size(1) as u32, size(2));
            pair.run(40 * MINUTE, |pair| {
                pair.call(from, connections[from], round, reply, filling)
                    .is_some()
            });
            made[from] += 1;
        }
    }
    for from in [CLIENT, SERVER] {
        pair.finish_calls(from, made[from], 40 * MINUTE);
        let runs = &pair.hosts[1 - from].runs;
        assert_eq!(runs.len(), made[from]);
        assert!(runs.values().all(|n| *n == 1), "a call ran twice");
    }
    // All held resources are released.
    pair.pass(Duration::from_secs(120));
    for host in &pair.hosts {
        assert_eq!((host.endpoint.calls(), host.endpoint.held_bytes()), (0, 0));
    }
    pair
}

fn pair_index(seed: u64, round: u32, n: u32) -> usize {
    common::Random::new(seed ^ u64::from(round) << 8 ^ u64::from(n)).below(1 << 20) as usize
}

#[test]
fn calls_over_a_clean_network_send_nothing_twice_but_requests_that_wait() {
    let pair = check(Link::default(), seed(1), 30);
    let stats = pair.hosts.each_ref().map(|host| *host.endpoint.stats());
    for (own, other) in [(stats[0], stats[1]), (stats[1], stats[0])] {
        // A request of one packet whose reply is queued behind others is probed once.
        assert_eq!((own.resent, own.lost), (own.probes, 0));
        assert_eq!(own.duplicates, other.probes);
        assert!(own.probes <= own.calls_out / 10, "{own:?}");
    }
}

fn lossy(loss: f64) -> Link {
    Link {
        loss,
        ..Link::default()
    }
}

#[test]
fn calls_with_a_packet_lost_in_a_hundred() {
    check(lossy(0.01), seed(2), 40);
}

#[test]
fn calls_with_a_packet_lost_in_twenty() {
    check(lossy(0.05), seed(3), 30);
}

#[test]
fn calls_with_a_packet_lost_in_ten() {
    check(lossy(0.1), seed(4), 20);
}

#[test]
fn calls_with_a_packet_lost_in_five() {
    check(lossy(0.2), seed(5), 20);
}

#[test]
fn calls_with_every_third_packet_doubled() {
    let link = Link {
        duplicate: 0.33,
        ..Link::default()
    };
    check(link, seed(6), 30);
}

#[test]
fn calls_with_packets_out_of_order() {
    let link = Link {
        reorder: 0.2,
        delay: Duration::from_millis(5),
        ..Link::default()
    };
    check(link, seed(7), 30);
}

#[test]
fn calls_over_a_path_that_trembles() {
    let link = Link {
        delay: Duration::from_millis(10),
        jitter: Duration::from_millis(20),
        ..Link::default()
    };
    check(link, seed(8), 20);
}

#[test]
fn calls_with_all_of_it_at_once() {
    let link = Link {
        delay: Duration::from_millis(3),
        jitter: Duration::from_millis(3),
        loss: 0.08,
        duplicate: 0.08,
        reorder: 0.08,
        mtu: 1000,
        rate: Some((2_000_000, 60_000)),
    };
    for n in 0..4 {
        check(link.clone(), seed(100 + n), 12);
    }
}

#[test]
fn calls_over_a_narrow_path_with_a_short_queue() {
    let link = Link {
        delay: Duration::from_millis(10),
        rate: Some((1_000_000, 20_000)),
        ..Link::default()
    };
    check(link, seed(9), 12);
}

#[test]
fn calls_whose_ways_there_and_back_differ() {
    let mut pair = Pair::new(Link::default(), seed(10));
    pair.net.links[SERVER].delay = Duration::from_millis(80);
    pair.net.links[SERVER].loss = 0.1;
    pair.net.links[CLIENT].delay = Duration::from_millis(2);
    pair.net.links[CLIENT].jitter = Duration::from_millis(30);
    let connection = pair.connect(CLIENT);
    for tag in 0..4 {
        pair.call(CLIENT, connection, tag, 300_000, 200_000)
            .unwrap();
    }
    pair.finish_calls(CLIENT, 4, 10 * MINUTE);
}

#[test]
fn acknowledgements_that_are_lost_do_not_stop_a_call() {
    let mut pair = Pair::new(Link::default(), seed(11));
    pair.net.links[SERVER].loss = 0.4;
    let connection = pair.connect(CLIENT);
    pair.call(CLIENT, connection, 1, 2_000_000, 0).unwrap();
    pair.finish_calls(CLIENT, 1, 10 * MINUTE);
}

/// Goal: OpenAFS's sender continues immediately after a loss. It takes round-trip samples, and ends
/// its doubled timeouts, only from acknowledgements that were not delayed and that name a packet;
/// and it sends a handful of packets before it waits for the next acknowledgement.
#[test]
fn after_a_loss_acknowledgements_come_at_once_and_name_what_came() {
    let mut server = Strangers::new(Config::default());
    let client = stranger(0);
    assert!(server.call(client, b"hello").is_some());
    // Another channel of the same connection.
    let client = Stranger {
        cid: client.cid + 1,
        ..client
    };
    let mut acks = |seq: u32, flags: u8| {
        let sent = server.send(client, client.data(seq, flags, &[7; 1412]));
        let ack = sent.iter().find_map(|packet| {
            let is_ack = Header::parse(packet)?.kind == PacketType::Ack;
            is_ack.then(|| Ack::parse(&packet[HEADER_BYTES..]))?
        });
        ack.map(|ack| (ack.reason.unwrap(), ack.serial.0))
    };
    for seq in 1..=96 {
        acks(seq, 0);
    }
    assert_eq!(acks(97, 0), None, "in the long run each eighth");
    for seq in 99..=101 {
        assert_eq!(acks(seq, 0), Some((Reason::OutOfSequence, seq)));
    }
    assert_eq!(acks(98, 0), Some((Reason::Idle, 98)));
    for seq in 102..=120 {
        let expected = (seq % 2 == 1).then_some((Reason::Idle, seq));
        assert_eq!(acks(seq, 0), expected);
    }
    acks(122, 0);
    let asks = flag::REQUEST_ACK;
    assert_eq!(acks(121, asks), Some((Reason::Requested, 121)));
}

/// Goal: OpenAFS's sender, which retransmits a missing packet when three acknowledgements in a row
/// report the gap, receives three reports although only one packet arrived after it.
#[test]
fn a_gap_that_stays_is_told_of_three_times() {
    let mut server = Strangers::new(Config::default());
    let client = stranger(0);
    assert!(server.call(client, b"hello").is_some());
    let client = Stranger {
        cid: client.cid + 1,
        ..client
    };
    let gaps = |sent: &[Vec<u8>]| {
        let is_gap = |packet: &&Vec<u8>| {
            let ack = Ack::parse(&packet[HEADER_BYTES..]);
            ack.is_some_and(|ack| ack.reason == Some(Reason::OutOfSequence))
        };
        sent.iter().filter(is_gap).count()
    };
    server.send(client, client.data(1, 0, &[7; 1412]));
    let sent = server.send(client, client.data(3, 0, &[7; 1412]));
    let mut told = gaps(&sent);
    for _ in 0..100 {
        server.pass(Duration::from_millis(1));
        told += gaps(&server.sent());
    }
    assert_eq!(told, 3);
}
