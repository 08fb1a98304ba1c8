//! The parts of a cluster, before a cluster is tried with them: machines and their networks, etcd,
//! and a target that several machines share.

mod needs_peer {
    use block::{Blocking, ErrorKind};
    use lunpath::{Connection, Lunpath};
    use path_iscsi::{IscsiPath, Options};
    use std::path::Path;
    use std::time::{Duration, Instant};
    use test_support::etcd::Etcd;
    use test_support::network::{Link, Machine, Network};
    use test_support::tgtd::{IQN, Tgtd};
    use test_support::wait_until;

    /// Longer than any step takes on a busy machine.
    const LONG: Duration = Duration::from_secs(60);

    /// Directory for data of the servers.
    fn place() -> &'static Path {
        Path::new(env!("CARGO_TARGET_TMPDIR"))
    }

    /// Sends a packet to an address, and reports whether it is answered within a second.
    fn answers(from: &Machine, to: std::net::Ipv4Addr) -> bool {
        let connect = || {
            let to = (to, 9).into();
            std::net::TcpStream::connect_timeout(&to, Duration::from_secs(1))
        };
        // No port is open there, and the refusal is the answer.
        let error = from.inside(connect).expect_err("no port 9 is open");
        error.kind() == std::io::ErrorKind::ConnectionRefused
    }

    #[test]
    fn a_cut_machine_reaches_no_one_on_that_link_and_all_on_the_others() {
        let network = Network::new(3);
        let machines = network.machines();
        let reached = |from: &Machine, link| {
            let is_other = |machine: &&Machine| machine.number() != from.number();
            let others = machines.iter().filter(is_other).map(|m| m.address(link));
            let all = others.chain([network.address(link)]).collect::<Vec<_>>();
            std::thread::scope(|scope| {
                let probes = all.iter().map(|to| scope.spawn(move || answers(from, *to)));
                let probes = probes.collect::<Vec<_>>();
                let answered = probes
                    .into_iter()
                    .map(|probe| probe.join().expect("a probe"));
                answered.filter(|answered| *answered).count()
            })
        };
        for link in Link::ALL {
            assert_eq!(machines.iter().map(|m| reached(m, link)).sum::<usize>(), 9);
            network.cut(1, link);
            assert_eq!(reached(&machines[1], link), 0, "{link:?}");
            assert_eq!(reached(&machines[0], link), 2, "{link:?}");
            let carrier = format!("/sys/class/net/{}/carrier", link.name());
            // `sysfs` shows the interfaces of the namespace in which it was mounted.
            let up = machines[1]
                .command("unshare")
                .args(["--mount", "sh", "-c"])
                .arg(format!("mount -t sysfs none /sys && cat {carrier}"))
                .output()
                .expect("it starts");
            assert_eq!(String::from_utf8_lossy(&up.stdout), "1\n", "{up:?}");
        }
        network.heal(1, Link::Storage);
        assert_eq!(reached(&machines[1], Link::Storage), 3);
        assert_eq!(reached(&machines[1], Link::Etcd), 0);
    }

    #[test]
    fn a_machine_cut_off_from_etcd_is_not_answered_until_the_cut_is_healed() {
        let network = Network::new(3);
        let machines = network.machines();
        let etcd = Etcd::start_on(place(), machines);
        assert_eq!(etcd.endpoints()[2], "http://10.91.1.3:2379");
        etcd.ctl(&["put", "key", "one"]);
        let get = |from| etcd.try_ctl(Some(from), &["get", "--print-value-only", "key"]);
        assert_eq!(get(&machines[0]).as_deref(), Ok("one\n"));
        // The machine reaches its own member, which has no quorum.
        network.cut(0, Link::Etcd);
        etcd_leader_other_than(&etcd, 0);
        etcd.ctl(&["put", "key", "two"]);
        let why = get(&machines[0]).expect_err("a member without a quorum does not answer");
        assert!(
            why.contains("deadline") || why.contains("timed out"),
            "{why}"
        );
        assert_eq!(get(&machines[1]).as_deref(), Ok("two\n"));
        network.heal(0, Link::Etcd);
        wait_until("the machine is answered", LONG, || {
            get(&machines[0]).is_ok()
        });
        assert_eq!(get(&machines[0]).as_deref(), Ok("two\n"));
    }

    fn etcd_leader_other_than(etcd: &Etcd, member: usize) {
        wait_until("another member leads", LONG, || etcd.leader() != member);
    }

    #[test]
    fn another_member_of_etcd_leads_when_the_leader_is_killed_or_stops() {
        let mut etcd = Etcd::start(place(), 3);
        etcd.ctl(&["put", "key", "kept"]);
        let killed = etcd.leader();
        etcd.kill(killed);
        etcd_leader_other_than(&etcd, killed);
        assert!(etcd.ctl(&["get", "key"]).contains("kept"));
        etcd.start_member(killed);
        etcd.wait_until_healthy();
        let stopped = etcd.leader();
        etcd.stop(stopped);
        etcd_leader_other_than(&etcd, stopped);
        let before = Instant::now();
        assert!(etcd.ctl(&["get", "key"]).contains("kept"));
        assert!(before.elapsed() < LONG);
        etcd.cont(stopped);
        etcd.wait_until_healthy();
        // Two dead members of three are no quorum.
        etcd.kill(0);
        etcd.kill(1);
        etcd.try_ctl(None, &["get", "key"]).expect_err("no quorum");
    }

    /// Opens the LUN of a target from a machine, with persistent reservations.
    fn initiator(machine: &Machine, tgtd: &Tgtd) -> (IscsiPath, Box<dyn Connection>) {
        let options = Options {
            persistent_reservations: true,
            ..Options::default()
        };
        let uri = format!("iscsi://{}/{IQN}/1", tgtd.portals[0]);
        let path = IscsiPath::parse(&uri, options).expect("an address");
        let connection = machine
            .inside(|| path.connect(LONG))
            .expect("the target answers");
        (path, connection)
    }

    #[test]
    fn a_persistent_reservation_keeps_the_fenced_machine_of_two_from_the_shared_target() {
        let network = Network::new(3);
        let [storage, old, new] = network.machines() else {
            panic!("three machines");
        };
        let tgtd = Tgtd::start_on(storage, place(), 16 << 20);
        assert_eq!(tgtd.portals, ["10.91.2.1:3260"]);
        let (_, connection) = initiator(old, &tgtd);
        let key = connection.fence_key().expect("a key is registered");
        let queue = connection.open().expect("a queue");
        let mut of_old = Blocking::over(queue);
        of_old.write_at(0, &[1; 4096]).expect("the owner writes");
        let (path, connection) = initiator(new, &tgtd);
        new.inside(|| path.fence(key, LONG)).expect("a fence");
        let queue = connection.open().expect("a queue");
        let mut of_new = Blocking::over(queue);
        let error = of_old.write_at(0, &[2; 4096]).expect_err("it is fenced");
        assert_eq!(error.kind(), ErrorKind::PathLost, "{error}");
        let mut back = [0; 4096];
        of_new.read_at(0, &mut back).expect("the new owner reads");
        assert_eq!(back, [1; 4096]);
        of_new
            .write_at(0, &[3; 4096])
            .expect("the new owner writes");
    }
}
