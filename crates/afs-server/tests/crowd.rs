//! A thousand concurrent clients, each with its own address, of a server in a separate process.
//!
//! Goal: all clients are served, none waits much longer than the others, no client sees data that
//! was replaced before its request, and the server's memory beside its cache stays within a limit.

mod common;

use afs_client::{Client, Options, PortSet};
use afs_proto::AfsFid;
use block_testing::Random;
use common::process::{Disk, Process};
use common::{CACHE_BYTES, seed};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const CLIENTS: usize = 1000;
/// Size in bytes of each file that is read.
const BYTES: usize = 1 << 20;
const FILES: usize = 8;
/// Limit on the server's memory beside its cache, in bytes.
const MEMORY_MAX: usize = 512 << 20;
/// Calls of each client in the mixed run.
const ROUNDS: usize = 30;
/// Size in bytes of the files of the mixed run.
const SMALL: usize = 4096;
/// Stack size of a client's thread in bytes.
const STACK: usize = 256 << 10;

/// Returns the `n`-th client address in 127/8.
fn address(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(
        127,
        1 + (n >> 16) as u8,
        (n >> 8) as u8,
        1 + (n % 250) as u8,
    )
}

fn crowd(server: &Process) -> Vec<Client> {
    let net = PortSet::new();
    // A client that answered a callback too late is busy to the server, and asks again, as others do.
    let options = || Options {
        retry_time: Duration::from_secs(120),
        ..Options::default()
    };
    let made = (0..CLIENTS).map(|n| net.client(address(n), server.address, options()));
    made.map(|client| client.expect("a client")).collect()
}

/// Runs a job for all clients concurrently and returns the sorted durations.
fn all_at_once(clients: &[Client], job: impl Fn(usize, &Client) + Sync) -> Vec<Duration> {
    let ready = Barrier::new(clients.len());
    let mut times: Vec<Duration> = std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(n, client)| {
                let (ready, job) = (&ready, &job);
                let thread = std::thread::Builder::new().stack_size(STACK);
                let run = move || {
                    ready.wait();
                    let begun = Instant::now();
                    job(n, client);
                    begun.elapsed()
                };
                thread.spawn_scoped(scope, run).expect("a thread")
            })
            .collect();
        let ends = threads.into_iter().map(|thread| thread.join());
        ends.map(|time| time.expect("every client is served"))
            .collect()
    });
    times.sort_unstable();
    times
}

fn check(what: &str, times: &[Duration], server: &Process) {
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    let beside = server.memory().saturating_sub(CACHE_BYTES as usize);
    println!(
        "{what}: median {median:?}, worst {worst:?}, {:.1} times; {} MiB beside the cache, {} threads",
        worst.as_secs_f64() / median.as_secs_f64(),
        beside >> 20,
        server.threads(),
    );
    assert!(worst <= 5 * median, "some wait much longer than others");
    assert!(beside <= MEMORY_MAX, "{beside} bytes");
}

#[test]
fn a_thousand_clients_read_a_megabyte_each() {
    let disk = Disk::new("crowd-read", 256 << 20);
    let server = Process::start(&disk.0, 0);
    let clients = crowd(&server);
    let mut random = Random::new(seed(1));
    let files: Vec<(AfsFid, Vec<u8>)> = (0..FILES)
        .map(|n| {
            let mut data = vec![0; BYTES];
            random.fill(&mut data);
            let (fid, _) = clients[0]
                .create(server.root(), &format!("f{n}"))
                .expect("made");
            clients[0]
                .store_data(fid, 0, &data, data.len() as u64)
                .expect("stored");
            (fid, data)
        })
        .collect();
    // In the second round the server knows the clients, and their caches are flushed.
    for round in ["strangers", "known"] {
        clients.iter().for_each(Client::flush);
        let times = all_at_once(&clients, |n, client| {
            let (fid, data) = &files[n % FILES];
            let read = client.read(*fid, 0, BYTES as u64).expect("served");
            assert!(read == *data, "other bytes");
        });
        check(round, &times, &server);
    }
}

/// Small file, and the number in its last acknowledged content.
struct Shared {
    fid: AfsFid,
    answered: AtomicU64,
}

#[test]
fn a_thousand_clients_look_read_and_write() {
    let disk = Disk::new("crowd-mixed", 256 << 20);
    let server = Process::start(&disk.0, 0);
    let clients = crowd(&server);
    let seed = seed(2);
    // One client in four writes a file of its own, and all clients read all files.
    let files: Vec<Arc<Shared>> = (0..CLIENTS / 4)
        .map(|n| {
            let (fid, _) = clients[4 * n]
                .create(server.root(), &format!("m{n}"))
                .expect("made");
            clients[4 * n]
                .store_data(fid, 0, &[0; SMALL], SMALL as u64)
                .expect("stored");
            let answered = AtomicU64::new(0);
            Arc::new(Shared { fid, answered })
        })
        .collect();
    let times = all_at_once(&clients, |n, client| {
        let mut random = Random::new(seed ^ (n as u64) << 20);
        for round in 1..=ROUNDS as u64 {
            // Few of the files, so that readers and writers meet.
            let file = &files[random.below(16) as usize % files.len()];
            match random.below(4) {
                0 if n % 4 == 0 => {
                    let own = &files[n / 4];
                    let data = round.to_be_bytes().repeat(SMALL / 8);
                    client
                        .store_data(own.fid, 0, &data, SMALL as u64)
                        .expect("stored");
                    own.answered.store(round, Ordering::Release);
                }
                0 | 1 => {
                    client.status(file.fid).expect("served");
                }
                _ => {
                    let before = file.answered.load(Ordering::Acquire);
                    let data = client.read(file.fid, 0, SMALL as u64).expect("served");
                    assert_eq!(data.len(), SMALL);
                    for word in data.as_chunks().0 {
                        let number = u64::from_be_bytes(*word);
                        assert!(number >= before, "{number} after {before} was answered");
                    }
                }
            }
        }
    });
    check("mixed", &times, &server);
}
