//! Two endpoints over networks of all kinds: every call is run once, every byte arrives.

mod common;

use common::{CLIENT, Link, Pair, SERVER, seed};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Calls of several sizes both ways, four at a time, over one kind of link.
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
    // Everything that was held is let go.
    pair.pass(Duration::from_secs(120));
    for host in &pair.hosts {
        assert_eq!((host.endpoint.calls(), host.endpoint.held_bytes()), (0, 0));
    }
    pair
}

fn pair_index(seed: u64, round: u32, n: u32) -> usize {
    common::Random(seed ^ u64::from(round) << 8 ^ u64::from(n)).below(1 << 20) as usize
}

#[test]
fn calls_over_a_clean_network() {
    let pair = check(Link::default(), seed(1), 30);
    for h in &pair.hosts {
        println!("{:#?}", h.endpoint.stats());
    }
    assert_eq!(pair.hosts[SERVER].endpoint.stats().resent, 0);
}
