//! Many calls, large calls, simultaneous calls in both directions, and the four channels of a
//! connection.

mod common;

use common::{CLIENT, Link, Outcome, Pair, SERVER, seed};
use rx_proto::{CHANNELS, Config, Event, StartError};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_thousand_calls_at_once() {
    for loss in [0.0, 0.02] {
        let link = Link {
            loss,
            rate: Some((125_000_000, 500_000)),
            ..Link::default()
        };
        let mut pair = Pair::new(link, seed(61));
        let connections: Vec<_> = (0..250).map(|_| pair.connect(CLIENT)).collect();
        for tag in 0..1000 {
            let connection = connections[tag as usize / 4];
            pair.call(CLIENT, connection, tag, 20_000, 5000).unwrap();
        }
        assert_eq!(pair.hosts[CLIENT].open_calls(), 1000);
        let time = pair.finish_calls(CLIENT, 1000, 10 * MINUTE);
        println!("a thousand calls with {loss} lost: {time:?}");
        let runs = &pair.hosts[SERVER].runs;
        assert!(runs.len() == 1000 && runs.values().all(|n| *n == 1));
        pair.pass(MINUTE);
        assert_eq!(pair.hosts[SERVER].endpoint.calls(), 0);
    }
}

#[test]
fn a_connection_has_four_channels_and_tells_when_one_is_free() {
    let mut pair = Pair::new(Link::default(), seed(62));
    let connection = pair.connect(CLIENT);
    for tag in 0..CHANNELS as u32 {
        pair.call(CLIENT, connection, tag, 10, 0).unwrap();
    }
    let now = pair.now;
    let fifth = pair.hosts[CLIENT].endpoint.start(now, connection);
    assert_eq!(fifth, Err(StartError::NoChannel));
    pair.finish_calls(CLIENT, CHANNELS, MINUTE);
    let free = |e: &&Event| matches!(e, Event::ChannelFree(c) if *c == connection);
    assert_eq!(pair.hosts[CLIENT].events.iter().filter(free).count(), 1);
    pair.call(CLIENT, connection, 9, 10, 0).unwrap();
    pair.finish_calls(CLIENT, CHANNELS + 1, MINUTE);
}

#[test]
fn calls_in_turn_use_one_channel_and_acknowledge_one_another() {
    let mut pair = Pair::new(Link::default(), seed(63));
    let connection = pair.connect(CLIENT);
    for tag in 0..50 {
        pair.run(MINUTE, |pair| {
            pair.call(CLIENT, connection, tag, 100, 0).is_some()
        });
        pair.finish_calls(CLIENT, tag as usize + 1, MINUTE);
    }
    let stats = pair.hosts[CLIENT].endpoint.stats();
    // A request and a reply each; the only acknowledgements are the answer to the first ping, and
    // the one after the last call.
    assert_eq!(stats.packets_out[0], 50);
    assert!(stats.packets_out[1] <= 2, "{}", stats.packets_out[1]);
    assert_eq!(
        pair.hosts[SERVER].endpoint.stats().packets_out[..2],
        [50, 1]
    );
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.hosts[SERVER].endpoint.calls(), 0);
}

#[test]
fn a_server_calls_its_client_back_on_the_same_port_while_it_serves_it() {
    let mut pair = Pair::new(Link::default(), seed(64));
    let up = pair.connect(CLIENT);
    let down = pair.connect(SERVER);
    for tag in 0..100 {
        pair.run(MINUTE, |pair| {
            pair.call(CLIENT, up, tag, 50_000, 100).is_some()
        });
        pair.run(MINUTE, |pair| {
            pair.call(SERVER, down, tag, 100, 50_000).is_some()
        });
    }
    pair.finish_calls(CLIENT, 100, MINUTE);
    pair.finish_calls(SERVER, 100, MINUTE);
    assert_eq!(pair.hosts[CLIENT].runs.len(), 100);
    assert_eq!(pair.hosts[SERVER].runs.len(), 100);
}

#[test]
fn two_hundred_megabytes_in_one_call() {
    let link = Link {
        delay: Duration::from_micros(20),
        ..Link::default()
    };
    let mut pair = Pair::new(link, seed(65));
    let connection = pair.connect(CLIENT);
    let bytes = 200 << 20;
    pair.call(CLIENT, connection, 1, bytes, 0).unwrap();
    pair.finish_calls(CLIENT, 1, 10 * MINUTE);
    assert!(
        pair.hosts[SERVER].segments_seen >= 32,
        "batches for segmentation offload"
    );
}

#[test]
fn nothing_of_an_empty_call_is_lost() {
    let mut pair = Pair::new(Link::default(), seed(66));
    let connection = pair.connect(CLIENT);
    pair.call(CLIENT, connection, 1, 0, 0).unwrap();
    pair.finish_calls(CLIENT, 1, MINUTE);
    assert_eq!(pair.hosts[CLIENT].outcomes[&1], Outcome::Done);
}

#[test]
fn a_peer_with_a_small_window_gets_no_more_than_it() {
    // OpenAFS advertises a window of 32 packets.
    let config = Config {
        receive_window: 32,
        ..Config::default()
    };
    let link = Link {
        delay: Duration::from_millis(10),
        ..Link::default()
    };
    let mut pair = Pair::with([config, Config::default()], link, seed(67));
    let connection = pair.connect(CLIENT);
    pair.call(CLIENT, connection, 1, 3_000_000, 0).unwrap();
    let time = pair.finish_calls(CLIENT, 1, MINUTE);
    assert_eq!(pair.hosts[CLIENT].endpoint.stats().refused, 0);
    // 32 packets per round trip, and not much less.
    let rounds = 3_000_000.0 / (32.0 * 1412.0);
    assert!(time.as_secs_f64() < 1.3 * rounds * 0.02, "{time:?}");
}
