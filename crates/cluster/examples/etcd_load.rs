//! Measures what the requests of a cluster cost etcd: three members on the loopback interface, the
//! CPU time of all of them together, and how many requests they answered.
//!
//! `cargo run --release -p evfs-cluster --example etcd_load`

use cluster::{Drain, Endpoints, Host, Own, Seen, Store};
use cluster_proto::{Answer, Ask, Name, Record};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use test_support::etcd::Etcd;

const WITHIN: Duration = Duration::from_secs(10);
/// How long each kind of request is repeated.
const TIME: Duration = Duration::from_secs(5);
/// Clients that send requests at the same time.
const CLIENTS: usize = 8;
/// Units that a machine may serve: 20 for each machine, and four machines for each.
const UNITS: usize = 80;
/// Machines that watch.
const WATCHERS: u64 = 50;
/// Records that a machine reads when it starts.
const RECORDS: usize = 10_000;

fn main() {
    let place = tempfile::tempdir().expect("a directory");
    let etcd = Etcd::start(place.path(), 3);
    let endpoints = Endpoints {
        urls: etcd.endpoints(),
        ..Endpoints::default()
    };
    let stores: Vec<Store> = (0..CLIENTS).map(|_| open(&endpoints)).collect();
    println!("| request | CPU of all members | answered |\n|---|---|---|");

    let leases: Vec<u64> = stores.iter().map(grant).collect();
    measure(&etcd, "renewal of a lease", |client, _| {
        let renewed = stores[client].etcd().renew(leases[client], WITHIN);
        assert!(renewed.expect("an answer"));
    });

    let record = Record::new(["m1", "m2", "m3", "m4"].map(Name::from).to_vec());
    let create = |client: usize, unit: String| {
        let created = stores[client].create(&unit, &record, WITHIN);
        assert!(created.expect("an answer"));
    };
    measure(&etcd, "new record", |client, turn| {
        create(client, format!("c{client}-{turn}"));
    });

    // What concerns machines goes to all of them.
    let ends = AtomicBool::new(false);
    let (_, revision) = stores[0].state(WITHIN).expect("a state");
    std::thread::scope(|scope| {
        for number in 0..WATCHERS {
            let (ends, endpoints) = (&ends, &endpoints);
            scope.spawn(move || {
                let mut goes_on = |_: Seen| !ends.load(Relaxed);
                open(endpoints).watch(&own(number), revision + 1, &mut goes_on);
            });
        }
        std::thread::sleep(Duration::from_secs(1));
        let before = cpu(&etcd);
        std::thread::sleep(TIME);
        let each = (cpu(&etcd) - before) * 1e6 / TIME.as_secs_f64() / WATCHERS as f64;
        println!("| second of a machine that watches | {each:.0} us | |");
        let name = format!("change of a machine, noticed by {WATCHERS}");
        measure(&etcd, &name, |client, turn| {
            let drain = Drain {
                machine: format!("d{client}").into(),
                is_drained: turn % 2 == 0,
            };
            stores[client].set_drain(&drain, WITHIN).expect("an answer");
        });
        ends.store(true, Relaxed);
    });

    for number in 0..RECORDS {
        create(0, format!("r{number}"));
    }
    let (state, _) = stores[0].state(WITHIN).expect("a state");
    let name = format!("state of {UNITS} of {} units", state.units.len());
    measure(&etcd, &name, |client, _| {
        let (answer, _) = stores[client].carry_out(&own(0), &Ask::Load, WITHIN);
        assert!(matches!(answer, Answer::Loaded(_)));
    });
}

fn open(endpoints: &Endpoints) -> Store {
    Store::new(endpoints, "/evfs").expect("addresses")
}

fn grant(store: &Store) -> u64 {
    let granted = store.etcd().grant(Duration::from_secs(60), WITHIN);
    granted.expect("a lease").0
}

fn own(number: u64) -> Own {
    let units = (0..UNITS).map(|unit| Name::from(format!("r{unit}")));
    Own {
        name: format!("m{number}").into(),
        host: Host {
            host: "host".into(),
        },
        units: units.collect(),
    }
}

/// Lets all clients repeat a request, and prints what one cost.
fn measure(etcd: &Etcd, name: &str, request: impl Fn(usize, u64) + Sync) {
    let before = cpu(etcd);
    let began = Instant::now();
    let total = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (request, total) = (&request, &total);
            scope.spawn(move || {
                for turn in 0.. {
                    if began.elapsed() > TIME {
                        break;
                    }
                    request(client, turn);
                    total.fetch_add(1, Relaxed);
                }
            });
        }
    });
    let (total, time) = (total.into_inner() as f64, began.elapsed().as_secs_f64());
    let each = (cpu(etcd) - before) * 1e6 / total;
    println!("| {name} | {each:.0} us | {:.0}/s |", total / time);
}

/// The CPU time of all members, in seconds.
fn cpu(etcd: &Etcd) -> f64 {
    let of = |process: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
        let fields: Vec<&str> = stat[stat.rfind(')').expect("a name")..]
            .split(' ')
            .collect();
        let ticks = |at: usize| fields[at].parse::<f64>().expect("a number");
        // User and system time, in hundredths of a second.
        (ticks(12) + ticks(13)) / 100.0
    };
    etcd.processes().into_iter().map(of).sum()
}
