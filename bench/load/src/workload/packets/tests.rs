//! Tests with both ends in this process, with exact counts, and with misbehaving peers.

use super::*;
use rustix::thread::{CapabilitySet, CapabilitySets};

fn config(link: Link) -> Config {
    Config {
        exchanges: 200,
        rx_exchanges: 100,
        link,
        ..Config::default()
    }
}

#[test]
fn every_size_is_answered() {
    let outcomes = run(&config(Link::Loopback)).unwrap();
    let sizes: Vec<(usize, bool)> = outcomes.iter().map(|o| (o.size, o.rx)).collect();
    assert_eq!(
        sizes,
        [(4, false), (1500, false), (1526, false), (1500, true)]
    );
    assert!(
        outcomes
            .iter()
            .all(|o| o.secs > 0.0 && o.way == PacketRoute::Loopback)
    );
    let counts: Vec<u64> = outcomes.iter().map(|o| o.exchanges).collect();
    assert_eq!(counts, [200, 200, 200, 100]);
    assert!(outcomes[..3].iter().all(|o| o.fragments == Some(false)));
    assert_eq!(
        outcomes[2].name(),
        "1526 bytes over loopback, not in fragments"
    );
    // Six words and 1500 bytes need more than one packet and less than two.
    let rx = &outcomes[3];
    assert_eq!(rx.packets.unwrap() - rx.again, 2 * 100);
}

#[test]
fn a_link_like_an_ethernet_is_refused_without_the_privilege_for_networks() {
    // Capabilities belong to a thread; an ordinary user has none.
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none).unwrap();
    assert!(run(&config(Link::Veth)).is_err());
}

mod needs_root {
    use super::*;

    /// 1500 bytes and two headers exceed an Ethernet packet by 28 bytes; 4 bytes do not.
    #[test]
    fn on_a_link_like_an_ethernet_the_kernel_cuts_what_is_too_long() {
        test_support::needs_root("a network between two namespaces");
        let outcomes = run(&config(Link::Veth)).unwrap();
        for (outcome, packets) in outcomes.iter().zip([1, 2, 2]) {
            let sent = outcome.exchanges + outcome.again;
            assert_eq!(outcome.packets, Some(packets * sent), "{outcome:?}");
            assert_eq!(outcome.fragments, Some(packets == 2), "{outcome:?}");
        }
        assert_eq!(outcomes[2].name(), "1526 bytes over veth, in fragments");
        assert_eq!(outcomes[3].name(), "Rx 1500 bytes over veth");
        // No part of the link remains in the network of this process.
        let links = std::fs::read_to_string("/proc/self/net/dev").unwrap();
        assert!(
            !links.contains("near:") && !links.contains("far:"),
            "{links}"
        );
    }
}

#[test]
fn calls_go_to_the_port_after_the_peers() {
    // The system assigns no adjacent ports, so the Rx server is opened first.
    let (echo_to, server) = (0..100)
        .find_map(|_| {
            let server = serve(([127, 0, 0, 1], 0).into()).unwrap();
            let before = server.address().port() - 1;
            let socket = UdpSocket::bind(("127.0.0.1", before)).ok()?;
            Some((socket, server))
        })
        .unwrap();
    let peer = echo_to.local_addr().unwrap();
    let stop = AtomicBool::new(false);
    let outcomes = std::thread::scope(|scope| {
        scope.spawn(|| echo(&echo_to, &stop));
        let outcomes = run(&Config {
            peer: Some(peer),
            ..config(Link::Auto)
        });
        stop.store(true, Relaxed);
        outcomes.unwrap()
    });
    assert!(
        outcomes
            .iter()
            .all(|o| o.way == PacketRoute::Peer && o.fragments.is_none())
    );
    let calls: u64 = server.stats().sockets.iter().map(|s| s.calls_in).sum();
    assert_eq!(calls, 100);
}

#[test]
fn requests_that_are_lost_are_sent_again() {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let config = Config {
        sizes: vec![4],
        exchanges: 3,
        rx_sizes: vec![],
        peer: Some(peer.local_addr().unwrap()),
        ..Config::default()
    };
    let forgetful = std::thread::spawn(move || {
        let mut buffer = [0; 16];
        for turn in 0..4 {
            let (n, from) = peer.recv_from(&mut buffer).unwrap();
            if turn != 1 {
                peer.send_to(&buffer[..n], from).unwrap();
            }
        }
    });
    let outcome = run(&config).unwrap().remove(0);
    forgetful.join().unwrap();
    // A loaded machine may delay an answer for a second, which causes one more retransmission.
    assert!(outcome.again >= 1 && outcome.exchanges == 3, "{outcome:?}");
}

#[test]
fn what_cannot_be_sent_is_refused() {
    for sizes in [vec![3], vec![65_508]] {
        let config = Config {
            sizes,
            ..Config::default()
        };
        assert!(matches!(run(&config), Err(Error::Spec(_))));
    }
    let nothing = Config {
        sizes: vec![],
        rx_sizes: vec![],
        ..Config::default()
    };
    let elsewhere = Config {
        rx_peer: Some(([127, 0, 0, 1], 7009).into()),
        link: Link::Veth,
        ..Config::default()
    };
    for config in [nothing, elsewhere] {
        assert!(matches!(run(&config), Err(Error::Spec(_))));
    }
}
