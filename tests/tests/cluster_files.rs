//! Files of a cell whose owner is killed, stopped or cut off: what clients were told stays true.

use afs_client::{Client, Options, PortSet, locate};
use afs_proto::AfsFid;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use test_support::network::Link;
use tests::cluster::{ADDRESS, Cluster, Kind};
use tests::files::FileClient;
use tests::{Random, wait_until};

/// Number of clients.
const CROWD: usize = 6;

fn client(ports: &Arc<PortSet>) -> Client {
    let server = SocketAddr::new(ADDRESS.parse().unwrap(), 7000);
    let options = Options {
        retry_time: Duration::from_secs(60),
        ..Options::default()
    };
    ports
        .client(Ipv4Addr::UNSPECIFIED, server, options)
        .unwrap()
}

fn root() -> AfsFid {
    let location = SocketAddr::new(ADDRESS.parse().unwrap(), 7003);
    AfsFid {
        volume: locate(location, "root.cell").unwrap().volume,
        vnode: 1,
        unique: 1,
    }
}

mod needs_peer {
    use super::*;

    #[test]
    fn what_clients_of_a_cell_were_told_stays_true_through_every_take_over() {
        let given = std::env::var("EVFS_FAULTS").ok();
        let rounds: u32 = given.map_or(3, |text| text.parse().expect("a number"));
        let mut cluster = Cluster::start(Kind::Cell);
        let (ports, root) = (PortSet::new(), root());
        let mut random = Random::from_environment();
        let clients: Vec<FileClient> = (0..CROWD)
            .map(|number| {
                let own = Random::new(random.below(u64::MAX));
                FileClient::new(client(&ports), root, &format!("d{number}"), own)
            })
            .collect();
        let (is_over, done) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let threads: Vec<_> = clients
                .into_iter()
                .map(|mut client| {
                    let (is_over, done) = (&is_over, &done);
                    scope.spawn(move || {
                        while !is_over.load(Relaxed) {
                            client.step()?;
                            done.fetch_add(1, Relaxed);
                        }
                        client.check().map(|()| client.unknown)
                    })
                })
                .collect();
            let goes_on = || {
                let before = done.load(Relaxed);
                let is_stuck = || threads.iter().any(|thread| thread.is_finished());
                wait_until("the clients work", || {
                    is_stuck() || done.load(Relaxed) > before + 20 * CROWD as u32
                });
            };
            let faults = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for round in 0..rounds {
                    goes_on();
                    let (_, epoch, owner) = cluster.unit();
                    let owner = owner.unwrap();
                    match round % 3 {
                        0 => cluster.kill(owner),
                        1 => cluster.signal_all(owner, libc::SIGSTOP),
                        _ => cluster.cut(owner, &[Link::Etcd], true),
                    }
                    cluster.wait_for_owner(epoch, |next| next != owner);
                    goes_on();
                    match round % 3 {
                        0 => cluster.start_node(owner),
                        1 => cluster.signal_all(owner, libc::SIGCONT),
                        _ => cluster.cut(owner, &[Link::Etcd], false),
                    }
                }
            }));
            is_over.store(true, Relaxed);
            let ended = threads.into_iter().map(|thread| thread.join().unwrap());
            let unknown: Result<Vec<u32>, _> = ended.collect();
            match unknown {
                Ok(unknown) => println!("{done:?} operations, {unknown:?} without an answer"),
                Err(violation) => panic!("{violation}"),
            }
            faults.unwrap();
        });
    }

    #[test]
    fn a_file_that_the_server_loses_changes_or_brings_back_is_found() {
        let cluster = Cluster::start(Kind::Cell);
        let (ports, root) = (PortSet::new(), root());
        let other = client(&ports);
        for (number, damage) in ["lost", "changed", "back"].into_iter().enumerate() {
            let own = Random::new(number as u64);
            let mut one = FileClient::new(client(&ports), root, damage, own);
            for _ in 0..30 {
                one.step().unwrap();
            }
            one.check().unwrap();
            other.flush();
            let directory = one.directory();
            let mut names = (0..100).map(|name| format!("f{name}"));
            match damage {
                "back" => {
                    let gone = names.find(|name| other.find(directory, name).is_err());
                    other.create(directory, &gone.unwrap()).unwrap();
                }
                "changed" => {
                    let name = names.find(|name| other.find(directory, name).is_ok());
                    let file = other.find(directory, &name.unwrap()).unwrap();
                    other.write(file, 0, b"other").unwrap();
                }
                _ => {
                    let name = names.find(|name| other.find(directory, name).is_ok());
                    other.remove(directory, &name.unwrap()).unwrap();
                }
            }
            let violation = one.check().unwrap_err().to_string();
            assert!(violation.contains("should have"), "{damage}: {violation}");
        }
        drop(cluster);
    }
}
