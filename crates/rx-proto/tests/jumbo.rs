//! Jumbograms where a probe of the path succeeded, single packets where it failed, and small
//! packets where the network carries no larger ones.

mod common;

use common::{CLIENT, Link, Pair, SERVER, seed};
use rx_proto::{Config, PacketType};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Transfers a reply of three megabytes over a path that carries datagrams of `mtu` bytes.
fn transfer(mtu: usize, packets: u8, seed: u64) -> Pair {
    let link = Link {
        mtu,
        ..Link::default()
    };
    let config = Config {
        jumbo_packets: packets,
        ..Config::default()
    };
    let mut pair = Pair::with([config.clone(), config], link, seed);
    let connection = pair.connect(CLIENT);
    // A store first: the client probes the path and advertises the result.
    pair.call(CLIENT, connection, 1, 10, 3_000_000).unwrap();
    pair.finish_calls(CLIENT, 1, MINUTE);
    pair.call(CLIENT, connection, 2, 3_000_000, 0).unwrap();
    pair.finish_calls(CLIENT, 2, MINUTE);
    pair
}

#[test]
fn a_path_that_carries_large_datagrams_gets_them() {
    let pair = transfer(65_507, 4, seed(71));
    for host in &pair.hosts {
        assert_eq!(host.largest_seen, 5688);
        let stats = host.endpoint.stats();
        assert_eq!((stats.lost, stats.resent), (0, 0));
        assert!(
            stats.datagrams_out < stats.packets_out[0],
            "several packets in a datagram"
        );
    }
}

#[test]
fn an_ethernet_does_not_get_them() {
    let pair = transfer(1472, 4, seed(72));
    for host in &pair.hosts {
        // The local network stack refused the probe and reported it.
        assert!(host.largest_seen <= 5688);
        assert_eq!(host.endpoint.stats().lost, 0);
    }
    assert!(pair.net.dropped <= 2);
}

#[test]
fn jumbograms_can_be_turned_off() {
    let pair = transfer(65_507, 1, seed(73));
    assert!(pair.hosts.iter().all(|host| host.largest_seen == 1440));
}

#[test]
fn a_path_that_narrows_gets_single_packets_again() {
    let mut pair = transfer(65_507, 4, seed(74));
    let connection = pair.connect(CLIENT);
    pair.call(CLIENT, connection, 9, 10, 0).unwrap();
    pair.finish_calls(CLIENT, 3, MINUTE);
    // Large datagrams are silently dropped from now on.
    pair.net.swallow = Some(2000);
    for host in &mut pair.hosts {
        host.largest_seen = 0;
    }
    pair.call(CLIENT, connection, 10, 3_000_000, 0).unwrap();
    let time = pair.finish_calls(CLIENT, 4, MINUTE);
    assert!(time < Duration::from_secs(5), "{time:?}");
    let lost = pair.hosts[SERVER].endpoint.stats().lost;
    assert!((4..1000).contains(&lost), "{lost}");
    pair.hosts[SERVER].largest_seen = 0;
    pair.call(CLIENT, connection, 11, 3_000_000, 0).unwrap();
    pair.finish_calls(CLIENT, 5, MINUTE);
    assert_eq!(pair.hosts[SERVER].largest_seen, 1440);
}

#[test]
fn jumbograms_survive_loss_and_disorder() {
    let link = Link {
        mtu: 65_507,
        loss: 0.05,
        duplicate: 0.05,
        reorder: 0.05,
        ..Link::default()
    };
    let mut pair = Pair::new(link, seed(75));
    let connection = pair.connect(CLIENT);
    for tag in 0..12 {
        pair.run(10 * MINUTE, |pair| {
            pair.call(CLIENT, connection, tag, 500_000, 500_000)
                .is_some()
        });
    }
    pair.finish_calls(CLIENT, 12, 10 * MINUTE);
    assert!(pair.hosts.iter().any(|host| host.largest_seen > 1440));
}

#[test]
fn a_small_network_gets_small_packets() {
    let mut pair = Pair::new(Link::default(), seed(76));
    pair.net.links[CLIENT].mtu = 600;
    let route = pair.hosts[SERVER].route();
    let connection = pair.connect(CLIENT);
    pair.call(CLIENT, connection, 1, 100_000, 0).unwrap();
    pair.run(MINUTE, |pair| {
        pair.hosts[SERVER].endpoint.stats().packets_out[0] > 5
    });
    pair.hosts[SERVER].endpoint.too_long(route, 600);
    pair.hosts[SERVER].largest_seen = 0;
    pair.finish_calls(CLIENT, 1, MINUTE);
    pair.hosts[SERVER].largest_seen = 0;
    pair.call(CLIENT, connection, 2, 100_000, 0).unwrap();
    pair.finish_calls(CLIENT, 2, MINUTE);
    assert_eq!(pair.hosts[SERVER].largest_seen, 600);
    let data = PacketType::Data as usize - 1;
    assert!(pair.hosts[SERVER].endpoint.stats().packets_out[data] > 100_000 / 572 * 2 - 80);
}
