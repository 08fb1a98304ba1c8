//! Units of a cluster, with real etcd and a real target: kills, cuts and pauses of owners under
//! clients that record what they see, moves in order, and what keeps a second owner out.

use afs_client::{Options, PortSet, locate};
use afs_proto::AfsFid;
use nbd_client::Client;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};
use test_support::ceph::Ceph;
use test_support::network::{Link, Network};
use tests::cluster::{ADDRESS, Cluster, Kind, MACHINES};
use tests::{Random, wait_until};

/// Number of faults in a test.
fn rounds(default: u32) -> u32 {
    let given = std::env::var("EVFS_FAULTS").ok();
    given.map_or(default, |text| {
        text.parse().expect("EVFS_FAULTS is a number")
    })
}

/// Seconds for which an owner is stopped or cut off beyond the take-over.
fn outage() -> Duration {
    let given = std::env::var("EVFS_OUTAGE_SECS").ok();
    let given = given.map(|text| text.parse().expect("EVFS_OUTAGE_SECS is a number"));
    Duration::from_secs(given.unwrap_or(0))
}

/// Prints how long clients were not served.
fn show(mut pauses: Vec<Duration>) {
    pauses.sort();
    let at = |part: usize| pauses[(pauses.len() - 1) * part / 100].as_secs_f64();
    println!(
        "{} take-overs: median {:.2} s, 99 % {:.2} s, longest {:.2} s",
        pauses.len(),
        at(50),
        at(99),
        at(100)
    );
}

mod needs_peer {
    use super::*;

    #[test]
    fn killed_owners_lose_no_flushed_write() {
        let mut cluster = Cluster::start(Kind::Volume);
        let mut recorder = cluster.record(&mut Random::from_environment());
        let mut pauses = Vec::new();
        for round in 0..rounds(5) {
            let mut killed = 0;
            // Also the process of the unit alone, or that of the protocol alone.
            let pause = cluster.take_over(&mut recorder, round % 3 != 0, |cluster, owner| {
                killed = owner;
                match round % 3 {
                    0 => cluster.kill(owner),
                    1 => tests::signal(cluster.processes(owner)[1], libc::SIGKILL),
                    _ => tests::signal(cluster.processes(owner)[0], libc::SIGKILL),
                }
            });
            pauses.push(pause);
            match round % 3 {
                0 => cluster.start_node(killed),
                1 => {}
                _ => {
                    cluster.kill(killed);
                    cluster.start_node(killed);
                }
            }
        }
        show(pauses);
        recorder.finish().check().unwrap();
    }

    #[test]
    fn owners_that_are_cut_off_or_stopped_never_answer_beside_the_next_one() {
        let mut cluster = Cluster::start(Kind::Volume);
        let mut recorder = cluster.record(&mut Random::from_environment());
        let mut pauses = Vec::new();
        let links: [&[Link]; 2] = [&[Link::Etcd], &[Link::Etcd, Link::Storage]];
        for round in 0..rounds(4) {
            let mut old = 0;
            let links = links[(round % 2) as usize];
            let is_stop = round % 4 > 1;
            let pause = cluster.take_over(&mut recorder, false, |cluster, owner| {
                old = owner;
                if is_stop {
                    cluster.signal_all(owner, libc::SIGSTOP);
                } else {
                    cluster.cut(owner, links, true);
                }
            });
            pauses.push(pause);
            recorder.wait_for(100);
            std::thread::sleep(outage());
            // The kernel has ended the unit, and removed its address, while nothing else ran there.
            assert_eq!(cluster.processes(old).len(), 1);
            assert!(!cluster.has_address(old));
            if is_stop {
                cluster.signal_all(old, libc::SIGCONT);
            } else {
                cluster.cut(old, links, false);
            }
            recorder.wait_for(100);
            let name = format!("m{old}");
            wait_until("the old owner is a machine of the cluster again", || {
                let status = cluster.status();
                let machines = status["machines"].as_array().unwrap().iter();
                machines
                    .filter(|m| !m["lease"].is_null())
                    .any(|m| m["name"] == *name)
            });
        }
        show(pauses);
        recorder.finish().check().unwrap();
    }

    #[test]
    fn a_volume_on_ceph_is_taken_over_from_owners_that_are_killed_or_stopped() {
        let network = Network::new(7);
        let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let ceph = Ceph::start_at(network.address(Link::Storage), place, 1);
        ceph.create_image("disk", 64 << 20);
        let device = ceph.address("disk");
        let mut cluster = Cluster::on(network, device, None, Kind::Volume);
        cluster.start_all();
        let mut recorder = cluster.record(&mut Random::from_environment());
        let mut pauses = Vec::new();
        for round in 0..rounds(2) {
            let mut old = 0;
            let pause = cluster.take_over(&mut recorder, false, |cluster, owner| {
                old = owner;
                match round % 2 {
                    0 => cluster.kill(owner),
                    _ => cluster.signal_all(owner, libc::SIGSTOP),
                }
            });
            pauses.push(pause);
            match round % 2 {
                0 => cluster.start_node(old),
                _ => cluster.signal_all(old, libc::SIGCONT),
            }
        }
        show(pauses);
        recorder.finish().check().unwrap();
    }

    /// The number of clients of the report of 1990.
    const CROWD: u8 = 15;

    #[test]
    fn clients_of_a_cell_pass_a_take_over_without_an_error() {
        let mut cluster = Cluster::start(Kind::Cell);
        let ports = PortSet::new();
        let server = SocketAddr::new(ADDRESS.parse().unwrap(), 7000);
        let root = AfsFid {
            volume: locate(SocketAddr::new(server.ip(), 7003), "root.cell")
                .unwrap()
                .volume,
            vnode: 1,
            unique: 1,
        };
        let (is_over, done) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for number in 0..CROWD {
                let (ports, is_over, done) = (&ports, &is_over, &done);
                scope.spawn(move || {
                    let options = Options {
                        retry_time: Duration::from_secs(60),
                        ..Options::default()
                    };
                    let client = ports
                        .client(Ipv4Addr::UNSPECIFIED, server, options)
                        .unwrap();
                    let (file, _) = client.create(root, &format!("file{number}")).unwrap();
                    let mut round = 0_u32;
                    while !is_over.load(Relaxed) {
                        round += 1;
                        let data = round.to_le_bytes().repeat(1024);
                        client.write(file, 0, &data).unwrap();
                        // From the server, not from the cache.
                        client.forget(file);
                        assert_eq!(client.read(file, 0, 4096).unwrap(), data);
                        done.fetch_add(1, Relaxed);
                    }
                });
            }
            let goes_on = |what: &str| {
                let before = done.load(Relaxed);
                wait_until(what, || done.load(Relaxed) > before + 3 * u32::from(CROWD));
            };
            let fault = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for _ in 0..rounds(2) {
                    goes_on("the clients work");
                    let (_, epoch, owner) = cluster.unit();
                    let owner = owner.unwrap();
                    let began = Instant::now();
                    cluster.kill(owner);
                    cluster.wait_for_owner(epoch, |next| next != owner);
                    goes_on("the clients work again");
                    println!("the clients work again after {:?}", began.elapsed());
                    cluster.start_node(owner);
                }
            }));
            is_over.store(true, Relaxed);
            fault.unwrap();
        });
    }

    #[test]
    fn an_owner_without_its_storage_keeps_the_unit_and_goes_on() {
        let cluster = Cluster::start(Kind::Volume);
        let recorder = cluster.record(&mut Random::from_environment());
        let (_, epoch, owner) = cluster.unit();
        let owner = owner.unwrap();
        for _ in 0..rounds(1) {
            recorder.wait_for(100);
            cluster.cut(owner, &[Link::Storage], true);
            std::thread::sleep(Duration::from_secs(4));
            cluster.cut(owner, &[Link::Storage], false);
        }
        recorder.wait_for(100);
        assert_eq!(cluster.unit(), ("served".into(), epoch, Some(owner)));
        recorder.finish().check().unwrap();
    }

    #[test]
    fn a_unit_moves_away_from_a_machine_that_is_cut_off_from_its_storage() {
        let mut cluster = Cluster::start(Kind::Volume);
        let mut recorder = cluster.record(&mut Random::from_environment());
        cluster.take_over(&mut recorder, false, |cluster, owner| {
            let next = (owner + 1) % MACHINES;
            cluster.cut(owner, &[Link::Storage], true);
            let to = format!("m{next}");
            cluster.evfs(next, &["cluster", "move", "disk", &to]).ok();
            assert_eq!(cluster.unit().2, Some(next));
            // The log of the old owner says that unflushed writes are lost.
            cluster.expect_log(owner, "EVFS-0809");
            cluster.cut(owner, &[Link::Storage], false);
        });
        recorder.finish().check().unwrap();
    }

    #[test]
    fn an_owner_that_stood_still_with_its_clock_reaches_the_device_no_more() {
        const WRITES: u64 = 8;
        const PATIENCE: Duration = Duration::from_secs(1);
        let mut cluster = Cluster::prepared(Kind::Volume);
        cluster.without_timers();
        cluster.start_all();
        let server: SocketAddr = format!("{ADDRESS}:10809").parse().unwrap();
        let connect = || {
            let mut client = None;
            wait_until("the export is served", || {
                client = Client::connect_tcp(server, "disk", PATIENCE).ok();
                client.is_some()
            });
            client.unwrap()
        };
        for next_stays in [true, false] {
            let (_, epoch, owner) = cluster.unit();
            let old = owner.unwrap();
            let mut clients: Vec<Client> = (0..WRITES).map(|_| connect()).collect();
            cluster.signal_all(old, libc::SIGSTOP);
            // They wait in the sockets of the owner, and clients give them up.
            for (at, client) in clients.iter_mut().enumerate() {
                client
                    .write_at(at as u64 * 4096, &[b'o'; 4096])
                    .unwrap_err();
            }
            cluster.wait_for_owner(epoch, |next| next != old);
            let mut client = connect();
            for at in 0..WRITES {
                client.write_at(at * 4096, &[b'n'; 4096]).unwrap();
            }
            client.flush().unwrap();
            drop(client);
            let stood = cluster.processes(old);
            assert_eq!(stood.len(), 2, "no timer has ended it");
            let others: Vec<usize> = (0..MACHINES).filter(|node| *node != old).collect();
            if !next_stays {
                for node in &others {
                    assert_eq!(cluster.stop(*node), Some(143));
                }
            }
            // The process of the unit alone: that of the protocol would end it.
            tests::signal(stood[1], libc::SIGCONT);
            std::thread::sleep(Duration::from_secs(5));
            if !next_stays {
                others.iter().for_each(|node| cluster.start_node(*node));
                cluster.wait_until_served();
            }
            let mut client = connect();
            for at in 0..WRITES {
                let mut content = [0; 4096];
                client.read_at(at * 4096, &mut content).unwrap();
                assert_eq!(content, [b'n'; 4096], "block {at}, {next_stays}");
            }
            cluster.kill(old);
            cluster.start_node(old);
        }
    }

    #[test]
    fn jumps_of_the_clock_change_no_owner() {
        let mut cluster = Cluster::prepared(Kind::Volume);
        // Programs see the time of this file, which is only that of the calendar.
        let jump = cluster.with_calendar();
        let owner = cluster.start_all();
        let (_, epoch, _) = cluster.unit();
        let recorder = cluster.record(&mut Random::from_environment());
        for pid in cluster.processes(owner) {
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
            assert!(maps.contains("libfaketime"), "it sees the real time");
        }
        for hours in ["+0h", "+5h", "-3000h", "+90000h", "+0h"] {
            std::fs::write(&jump, hours).unwrap();
            recorder.wait_for(400);
            std::thread::sleep(Duration::from_secs(4));
        }
        assert_eq!(cluster.unit(), ("served".into(), epoch, Some(owner)));
        recorder.finish().check().unwrap();
    }

    #[test]
    fn moves_and_orderly_stops_lose_nothing_at_all() {
        let mut cluster = Cluster::start(Kind::Volume);
        let recorder = cluster.record(&mut Random::from_environment());
        for _ in 0..rounds(3) {
            recorder.wait_for(100);
            let owner = cluster.unit().2.unwrap();
            let next = (owner + 1) % MACHINES;
            let to = format!("m{next}");
            cluster.evfs(owner, &["cluster", "move", "disk", &to]).ok();
            assert_eq!(cluster.unit().2, Some(next));
            recorder.wait_for(100);
            cluster.evfs(owner, &["cluster", "drain", &to]).ok();
            assert_ne!(cluster.wait_until_served(), next);
            cluster
                .evfs(owner, &["cluster", "move", "disk", &to])
                .code(11);
            cluster
                .evfs(owner, &["cluster", "drain", &to, "--cancel"])
                .ok();
            recorder.wait_for(100);
            let owner = cluster.wait_until_served();
            // A stop takes as long as it takes: it is asked for once.
            let unit = cluster.processes(owner)[1];
            tests::signal(unit, libc::SIGSTOP);
            let slow = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(800));
                tests::signal(unit, libc::SIGCONT);
            });
            assert_eq!(cluster.stop(owner), Some(143));
            slow.join().unwrap();
            assert_ne!(cluster.wait_until_served(), owner);
            cluster.start_node(owner);
        }
        // No crash is in the history, so no write may be lost.
        recorder.finish().check().unwrap();
    }

    #[test]
    fn a_new_leader_of_etcd_changes_no_owner_and_without_etcd_the_owner_stops() {
        let mut cluster = Cluster::start(Kind::Volume);
        let mut recorder = cluster.record(&mut Random::from_environment());
        let (_, epoch, owner) = cluster.unit();
        let owner = owner.unwrap();
        for _ in 0..rounds(3) {
            let leader = cluster.etcd.leader();
            cluster.etcd.kill(leader);
            recorder.wait_for(400);
            cluster.etcd.start_member(leader);
            cluster.etcd.wait_until_healthy();
        }
        assert_eq!(cluster.unit(), ("served".into(), epoch, Some(owner)));
        println!("longest operation: {:?}", recorder.longest());
        recorder.crash(|recorder| {
            (0..3).for_each(|member| cluster.etcd.kill(member));
            wait_until("the unit has ended", || cluster.processes(owner).len() == 1);
            wait_until("the machine says why", || {
                cluster.log(owner).contains("EVFS-1003")
            });
            cluster.evfs(owner, &["cluster", "status"]).code(1);
            (0..3).for_each(|member| cluster.etcd.start_member(member));
            cluster.etcd.wait_until_healthy();
            cluster.wait_for_owner(epoch, |_| true);
            recorder.wait_for(100);
        });
        recorder.finish().check().unwrap();
    }

    #[test]
    fn a_path_without_a_fence_blocks_until_an_administrator_says_that_the_machine_is_dead() {
        let network = Network::new(7);
        let storage = network.machines()[6].clone();
        let place = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let image = place.path().join("image");
        std::fs::File::create(&image)
            .unwrap()
            .set_len(64 << 20)
            .unwrap();
        let mut server = storage.command(test_support::installed("qemu-nbd"));
        server.args(["--shared=0", "-t", "-f", "raw", "-x", "disk", "-b"]);
        server.arg(storage.address(Link::Storage).to_string());
        let mut server = server.arg(&image).spawn().unwrap();
        let device = format!("nbd://{}/disk", storage.address(Link::Storage));
        let reaches = || std::net::TcpStream::connect((storage.address(Link::Storage), 10809));
        wait_until("the server listens", || reaches().is_ok());
        let mut cluster = Cluster::on(network, device, None, Kind::Volume);
        let owner = cluster.start_all();
        let others = (owner + 1) % MACHINES;
        let name = format!("m{owner}");
        // Its lease is renewed.
        let dead = [
            "cluster",
            "unfence",
            &name,
            "--i-know-the-machine-is-dead",
            "--yes",
        ];
        cluster.evfs(others, &dead).code(11);
        cluster.kill(owner);
        wait_until("the next machine says why it does not take over", || {
            (0..MACHINES).any(|node| cluster.log(node).contains("EVFS-1008"))
        });
        assert_ne!(cluster.unit().0, "served");
        cluster.evfs(others, &dead[..3]).code(2);
        cluster.evfs(others, &dead[..4]).code(2);
        cluster
            .evfs(others, &["cluster", "unfence", "m9", dead[3], "--yes"])
            .code(10);
        cluster.evfs(others, &dead).ok();
        assert_ne!(cluster.wait_until_served(), owner);
        drop(cluster);
        server.kill().unwrap();
        server.wait().unwrap();
    }
}
