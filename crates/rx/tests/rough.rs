//! Lossy networks, and unknown peers that send arbitrary packets.

mod common;

use common::{Random, Relay, check_echo, client, connect, echo, seed, serve, serve_with};
use rx::{Call, Config, Settings, Timeouts};
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn bytes_arrive_whole_over_networks_that_lose_double_and_swap() {
    let seed = seed();
    for per_mille in [10, 50, 100, 200] {
        let (server, client) = (serve(2, echo), client());
        let relay = Relay::new(server.address(), per_mille, seed ^ per_mille);
        let connection = client.connect(relay.address, common::SERVICE, Timeouts::default());
        std::thread::scope(|scope| {
            for caller in 0..3 {
                let connection = connection.clone();
                scope.spawn(move || {
                    for (round, len) in [4, 1500, 300_000].into_iter().enumerate() {
                        check_echo(&connection, caller * 10 + round as u64, len).unwrap();
                    }
                });
            }
        });
        assert!(
            server
                .stats()
                .sockets
                .iter()
                .map(|s| s.calls_in)
                .sum::<u64>()
                == 9
        );
    }
}

#[test]
fn a_hundred_thousand_malformed_packets_leave_a_server_serving() {
    let settings = Settings {
        rx: Config {
            connections_max: 100,
            unproven_max: 20,
            calls_max: 100,
            ..Config::default()
        },
        ..Settings::default()
    };
    let served = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&served);
    let count = move |call: &mut Call| {
        counted.fetch_add(1, Ordering::Relaxed);
        echo(call)
    };
    let (server, client) = (serve_with(&settings, count), client());
    let connection = connect(&client, &server);
    check_echo(&connection, 0, 5000).unwrap();
    let mut random = Random::new(seed());
    let strangers: Vec<UdpSocket> = (0..20)
        .map(|_| UdpSocket::bind("127.0.0.1:0").unwrap())
        .collect();
    let mut answers = 0;
    for packet in 0..100_000_u64 {
        let mut bytes = vec![0; 48];
        random.fill(&mut bytes);
        // An existing service, a known type, a low call number: most packets would pass the first
        // checks.
        bytes[20] = 1 + (packet % 13) as u8;
        bytes[21] |= (packet / 13 % 2) as u8;
        bytes[23] = 0;
        bytes[26..28].copy_from_slice(&common::SERVICE.to_be_bytes());
        bytes.truncate(random.below(49) as usize);
        let stranger = &strangers[random.below(20) as usize];
        stranger.send_to(&bytes, server.address()).unwrap();
        stranger.set_nonblocking(true).unwrap();
        answers += u64::from(stranger.recv(&mut [0; 2000]).is_ok());
        if packet % 10_000 == 0 {
            check_echo(&connection, packet, 2000).unwrap();
        }
    }
    check_echo(&connection, 1, 500_000).unwrap();
    assert!(server.stats().connections <= 101);
    assert_eq!(served.load(Ordering::Relaxed), 12, "a stranger was served");
    // At most one answer per packet, and none without a packet.
    assert!(answers < 100_000);
}
