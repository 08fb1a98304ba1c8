//! Random and mutated packets: no panic, no unbounded growth, and well-behaved clients are served.

mod common;

use common::{CLIENT, Link, Pair, Random, SERVER, SERVICE, seed};
use rx_proto::{Config, HEADER_BYTES, Route, Shared};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn config() -> Config {
    Config {
        connections_max: 200,
        unproven_max: 50,
        calls_max: 300,
        receive_bytes_max: 1 << 20,
        control_packets_max: 64,
        ..Config::default()
    }
}

/// Asserts that the resources held by the server are within its limits.
fn check_limits(pair: &Pair) {
    let endpoint = &pair.hosts[SERVER].endpoint;
    assert!(endpoint.calls() <= 300 + pair.hosts[SERVER].own_calls());
    assert!(endpoint.held_bytes() <= (1 << 20) + 300 * (1416 + 256) + 255 * 256);
}

#[test]
fn random_datagrams() {
    let seed = seed(51);
    let mut random = Random::new(seed);
    let mut pair = Pair::with([Config::default(), config()], Link::default(), seed);
    let connection = pair.connect(CLIENT);
    for round in 0..20_000u32 {
        let mut bytes = vec![0; random.below(120) as usize];
        bytes.fill_with(|| random.next_u64() as u8);
        if bytes.len() >= HEADER_BYTES && random.chance(0.8) {
            // A header that belongs to a connection.
            bytes[0..4].fill(0x80);
            bytes[4..7].fill(0);
            bytes[8..16].fill(0);
            bytes[11] = random.below(3) as u8;
            bytes[15] = random.below(20) as u8;
            bytes[20] = 1 + random.below(13) as u8;
            bytes[23] = 0;
            bytes[26..28].copy_from_slice(&SERVICE.to_be_bytes());
        }
        let route = Route {
            peer: ([192, 0, 2, 9], 7000 + random.below(300) as u16).into(),
            local: None,
        };
        let now = pair.now;
        for host in [CLIENT, SERVER] {
            let datagram = Shared::from(&bytes[..]);
            pair.hosts[host].endpoint.handle_input(now, route, datagram);
        }
        if round % 100 == 0 {
            pair.pass(Duration::from_millis(100));
            check_limits(&pair);
            // A well-behaved client is served at the same time.
            pair.call(CLIENT, connection, round, 2000, 2000);
        }
    }
    pair.finish_calls(CLIENT, 200, 10 * MINUTE);
    assert!(pair.hosts[SERVER].runs.values().all(|n| *n == 1));
}

#[test]
fn mutated_packets_of_a_conversation() {
    // Flips bits of real packets that come from the right address. Calls may end, but nothing
    // panics, and data delivered as complete is right (which the host checks).
    let seed = seed(52);
    let mut random = Random::new(seed);
    let mut pair = Pair::with([Config::default(), config()], Link::default(), seed);
    let recorded = Rc::new(RefCell::new(Vec::<(usize, Vec<u8>)>::new()));
    let sink = recorded.clone();
    pair.net.tap = Some(Box::new(move |to, bytes: &[u8]| {
        let mut all = sink.borrow_mut();
        if all.len() > 2000 {
            all.clear();
        }
        all.push((to, bytes.to_vec()));
    }));
    let mut connections = [pair.connect(CLIENT), pair.connect(SERVER)];
    for round in 0..20_000u32 {
        if round % 20 == 0 {
            for from in [CLIENT, SERVER] {
                if pair
                    .call(from, connections[from], round, 20_000, 20_000)
                    .is_none()
                {
                    connections[from] = pair.connect(from);
                }
            }
            pair.pump();
        }
        let (to, mut bytes) = {
            let all = recorded.borrow();
            all[random.below(all.len() as u64) as usize].clone()
        };
        for _ in 0..=random.below(3) {
            // Only headers and acknowledgements: data has no checksum that would detect the change.
            let acks = bytes[20] == 2;
            let end = if acks { bytes.len() } else { HEADER_BYTES };
            let at = random.below(end as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
        }
        if random.chance(0.1) {
            bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
        }
        // A data packet with a changed position would be taken for another, as in every protocol
        // without integrity protection: those are left out.
        if bytes.get(20) == Some(&1) {
            continue;
        }
        pair.hosts[to].take(pair.now, bytes);
        pair.step();
        if round % 500 == 0 {
            check_limits(&pair);
        }
    }
    pair.net.tap = None;
    pair.pass(20 * MINUTE);
    for host in &pair.hosts {
        assert_eq!((host.open_calls(), host.endpoint.held_bytes()), (0, 0));
    }
}
