//! Loss, duplication and reordering between clients and a server, over real sockets.
//!
//! Goal: at 1, 5, 10 and 20 % all bytes arrive unchanged, and callbacks with them; at 1 % a client
//! has at least half of the throughput of the same relay without loss.

mod common;

use afs_client::{Client, Options, PortSet};
use afs_proto::AfsFid;
use block_testing::Random;
use common::relay::Relay;
use common::{Cell, seed};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// Client of a cell through a relay that loses, duplicates and reorders `per_mille` of 1,000
/// datagrams.
struct Far {
    client: Client,
    _relay: Relay,
}

impl Far {
    fn new(cell: &Cell, per_mille: u64, seed: u64) -> Far {
        let relay = Relay::new(cell.server.file_service(), per_mille, seed);
        let options = Options {
            cache_bytes_max: 64 << 20,
            ..Options::default()
        };
        let client = PortSet::new().client(Ipv4Addr::LOCALHOST, relay.address, options);
        Far {
            client: client.expect("a port"),
            _relay: relay,
        }
    }
}

fn random_bytes(random: &mut Random, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

#[test]
fn bytes_and_callbacks_arrive_whole_whatever_is_lost() {
    let seed = seed(1);
    for per_mille in [10, 50, 100, 200] {
        let begun = Instant::now();
        let mut random = Random::new(seed ^ per_mille);
        let cell = Cell::with(afs_server::Config {
            answer_time: Duration::from_secs(30),
            ..common::config()
        });
        let (writer, reader) = (
            Far::new(&cell, per_mille, seed),
            Far::new(&cell, per_mille, seed + 1),
        );
        for round in 0..3 {
            let length = 1 + random.below(400 << 10) as usize;
            let data = random_bytes(&mut random, length);
            let (fid, _) = writer
                .client
                .create(cell.root(), &format!("f{round}"))
                .expect("made");
            writer
                .client
                .store_data(fid, 0, &data, length as u64)
                .expect("stored");
            let found = reader
                .client
                .walk(cell.root(), &format!("f{round}"))
                .expect("there");
            assert_eq!(found, fid);
            let read = reader.client.read(fid, 0, 4 << 20).expect("read");
            assert!(read == data, "other bytes at {per_mille} of 1000");
            // The reader's cache must be invalidated by the writer's next store.
            let data = random_bytes(&mut random, 5000);
            writer
                .client
                .store_data(fid, 0, &data, 5000)
                .expect("stored");
            assert!(reader.client.read(fid, 0, 4 << 20).expect("read") == data);
        }
        println!("{per_mille} of 1000: {:?}", begun.elapsed());
    }
}

/// Bytes of one measurement.
const BYTES: usize = 8 << 20;
const ROUNDS: usize = 8;

/// Returns the throughput of a store and of a fetch in MB/s.
fn measure(far: &Far, fid: AfsFid, data: &[u8]) -> [f64; 2] {
    let rate = |begun: Instant| data.len() as f64 / 1e6 / begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    far.client
        .store_data(fid, 0, data, data.len() as u64)
        .expect("stored");
    let store = rate(begun);
    let begun = Instant::now();
    let (read, ..) = far
        .client
        .fetch_data(fid, 0, data.len() as u64)
        .expect("fetched");
    let fetch = rate(begun);
    assert!(read == data);
    [store, fetch]
}

#[test]
fn one_packet_lost_in_a_hundred_leaves_half_of_the_throughput() {
    let seed = seed(2);
    let cell = Cell::new();
    let ways = [0, 10].map(|per_mille| Far::new(&cell, per_mille, seed));
    let data = random_bytes(&mut Random::new(seed), BYTES);
    let (fid, _) = ways[0].client.create(cell.root(), "file").expect("made");
    let mut rates = [[[0.0; 2]; ROUNDS]; 2];
    for round in 0..ROUNDS {
        for (way, rates) in ways.iter().zip(&mut rates) {
            rates[round] = measure(way, fid, &data);
        }
    }
    // The best round of each: background load only slows rounds down.
    let best = |way: usize, what: usize| {
        let all = rates[way].iter().map(|round: &[f64; 2]| round[what]);
        all.fold(0.0, f64::max)
    };
    for (what, name) in ["store", "fetch"].into_iter().enumerate() {
        let (clean, lossy) = (best(0, what), best(1, what));
        println!(
            "{name}: {clean:.0} MB/s clean, {lossy:.0} MB/s at 1 %, {:.2}",
            lossy / clean
        );
        assert!(
            lossy >= clean / 2.0,
            "{name}: {lossy:.1} of {clean:.1} MB/s"
        );
    }
}
