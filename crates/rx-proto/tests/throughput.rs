//! Throughput of calls in virtual time: on clean networks, and on those that lose one packet in a
//! hundred.

mod common;

use common::{CLIENT, Link, Pair, SERVER, seed};
use std::time::Duration;

/// Returns the megabytes per second of `calls` replies of `bytes` bytes, `channels` at a time.
fn speed(link: &Link, seed: u64, channels: u32, calls: u32, bytes: u32) -> f64 {
    let mut pair = Pair::new(link.clone(), seed);
    let connection = pair.connect(CLIENT);
    // The first call proves the address and probes the path.
    pair.call(CLIENT, connection, 0, 1000, 0).unwrap();
    pair.finish_calls(CLIENT, 1, Duration::from_secs(60));
    let (start, mut made) = (pair.now, 1);
    while pair.hosts[CLIENT].outcomes.len() <= calls as usize {
        let open = made - pair.hosts[CLIENT].outcomes.len() as u32;
        if made <= calls && open < channels {
            pair.call(CLIENT, connection, made, bytes, 0).unwrap();
            made += 1;
        } else {
            assert!(pair.step());
        }
    }
    let time = pair.now.since(start);
    let stats = pair.hosts[SERVER].endpoint.stats();
    println!(
        "{channels} x {bytes} B: {:.1} MB/s; {} packets, {} lost, {} late, {} probes, {} timeouts, dropped {}",
        f64::from(calls) * f64::from(bytes) / time.as_secs_f64() / 1e6,
        stats.packets_out[0],
        stats.lost,
        stats.late,
        stats.probes,
        stats.timeouts,
        pair.net.dropped,
    );
    f64::from(calls) * f64::from(bytes) / time.as_secs_f64() / 1e6
}

/// Asserts that a loss of 1 % costs at most half of the throughput.
fn check(name: &str, link: Link) {
    let lossy = Link {
        loss: 0.01,
        ..link.clone()
    };
    for (channels, calls, bytes) in [(1, 1, 20_000_000), (1, 200, 131_072), (4, 200, 131_072)] {
        println!("{name}:");
        let clean = speed(&link, seed(1), channels, calls, bytes);
        let lossy = speed(&lossy, seed(2), channels, calls, bytes);
        println!("    ratio {:.2}", lossy / clean);
        assert!(
            lossy >= clean / 2.0,
            "{name}: {lossy:.1} of {clean:.1} MB/s"
        );
    }
}

#[test]
fn a_local_network() {
    check(
        "local",
        Link {
            delay: Duration::from_micros(50),
            rate: Some((1_000_000_000, 400_000)),
            ..Link::default()
        },
    );
}

#[test]
fn a_campus_at_a_hundred_megabits() {
    check(
        "campus",
        Link {
            delay: Duration::from_millis(2),
            rate: Some((12_500_000, 100_000)),
            ..Link::default()
        },
    );
}

#[test]
fn a_distant_place() {
    check(
        "distant",
        Link {
            delay: Duration::from_millis(20),
            rate: Some((12_500_000, 400_000)),
            ..Link::default()
        },
    );
}
