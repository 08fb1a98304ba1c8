//! The path against a real target, `tgtd`.

mod target;

use block::{BlockDevice, Blocking, Buf, ErrorKind, Op, Queue, Request, Wait};
use block_testing::{Random, conformance};
use lunpath::{Lunpath, PathQueue, Transport};
use path_iscsi::{DigestPolicy, IscsiPath, Options, discover, luns};
use rustix::process::Signal;
use std::sync::Arc;
use std::time::{Duration, Instant};
use target::proxy::Proxy;
use target::{IQN, LONG, Tgtd};

fn passes(tgtd: &Tgtd, options: &Options) {
    conformance::run(&|| -> Arc<dyn BlockDevice> {
        let path = tgtd.path(0, options.clone());
        Arc::new(path.open(LONG).expect("the target answers"))
    });
}

#[test]
fn the_conformance_suite_passes() {
    passes(&Tgtd::start(), &Options::default());
}

#[test]
fn the_suite_passes_with_digests_and_solicited_data_only() {
    let tgtd = Tgtd::start();
    let set = |key: &str, value: &str| {
        tgtd.admin(&format!(
            "--op update --mode target --tid 1 -n {key} -v {value}"
        ));
    };
    set("HeaderDigest", "CRC32C");
    set("DataDigest", "CRC32C");
    let options = Options {
        header_digest: DigestPolicy::Require,
        data_digest: DigestPolicy::Require,
        immediate_data: false,
        initial_r2t: true,
        ..Options::default()
    };
    passes(&tgtd, &options);
}

#[test]
fn the_suite_passes_with_unsolicited_data_and_a_short_queue() {
    let tgtd = Tgtd::start();
    tgtd.admin("--op update --mode target --tid 1 -n InitialR2T -v No");
    let options = Options {
        queue_depth: 3,
        max_transfer: 128 * 1024,
        ..Options::default()
    };
    passes(&tgtd, &options);
}

#[test]
fn the_suite_passes_with_thin_provisioning() {
    let tgtd = Tgtd::start();
    tgtd.admin("--op update --mode logicalunit --tid 1 --lun 1 --params thin_provisioning=1");
    let device = tgtd.path(0, Options::default()).open(LONG).unwrap();
    assert!(device.info().discard);
    passes(&tgtd, &Options::default());
}

#[test]
fn a_read_only_unit_refuses_every_change() {
    let tgtd = Tgtd::start();
    tgtd.admin("--op update --mode logicalunit --tid 1 --lun 1 --params readonly=1");
    let path = tgtd.path(0, Options::default());
    assert!(path.identify(LONG).unwrap().read_only);
    conformance::run_read_only(&|| -> Arc<dyn BlockDevice> {
        Arc::new(tgtd.path(0, Options::default()).open(LONG).unwrap())
    });
}

#[test]
fn a_target_is_discovered_with_its_portals_and_units() {
    let tgtd = Tgtd::start();
    let options = Options::default();
    let targets = discover(&tgtd.portals[1], &options, LONG).unwrap();
    assert_eq!(targets.len(), 1);
    assert_eq!(targets[0].iqn, IQN);
    // This target reports only the portal that was queried.
    assert_eq!(targets[0].portals, [tgtd.portals[1].clone()]);
    assert_eq!(luns(&tgtd.portals[0], IQN, &options, LONG).unwrap(), [0, 1]);
    let error = luns(&tgtd.portals[0], "iqn.none", &options, LONG).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let controller = format!("iscsi://{}/{IQN}/0", tgtd.portals[0]);
    let path = IscsiPath::parse(&controller, options).unwrap();
    let error = path.identify(LONG).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[test]
fn both_portals_give_one_identity_and_so_does_an_unrelated_target() {
    let (one, other) = (Tgtd::start(), Tgtd::start());
    let first = one.path(0, Options::default());
    assert_eq!(first.transport(), Transport::Iscsi);
    assert_eq!(first.target_port(), one.portals[0]);
    let identity = first.identify(LONG).unwrap();
    assert_eq!(identity.serial.as_deref(), Some("beaf11"));
    let naa = "naa.60000000000000000e00000000010001";
    assert_eq!(identity.wwid.as_deref(), Some(naa));
    assert_eq!(
        (identity.vendor.as_str(), identity.product.as_str()),
        ("IET", "VIRTUAL-DISK")
    );
    assert_eq!(
        (identity.size, identity.logical_block_size),
        (32 << 20, 512)
    );
    assert!(!identity.read_only);
    assert_eq!(
        one.path(1, Options::default()).identify(LONG).unwrap(),
        identity
    );
    // The default identity of this target is not unique: the multipath layer needs other evidence.
    assert_eq!(
        other.path(0, Options::default()).identify(LONG).unwrap(),
        identity
    );
    other.admin("--op update --mode logicalunit --tid 1 --lun 1 --params scsi_id=abc,scsi_sn=s1");
    let changed = other.path(0, Options::default()).identify(LONG).unwrap();
    assert_eq!(changed.serial.as_deref(), Some("s1"));
    assert_ne!(changed.wwid, identity.wwid);
}

#[test]
fn chap_lets_in_who_knows_the_secret_and_checks_the_target() {
    let tgtd = Tgtd::start();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    tgtd.admin("--op new --mode account --user joe --password correct-horse");
    tgtd.admin("--op bind --mode account --tid 1 --user joe");
    let with = |secret, target_secret| Options {
        chap_user: Some("joe".into()),
        chap_secret_file: secret,
        chap_target_secret_file: target_secret,
        ..Options::default()
    };
    let kind = |options: Options| {
        let result = tgtd.path(0, options).identify(LONG);
        result.err().map(|e| e.kind())
    };
    let good = || file("good", "correct-horse\n");
    assert_eq!(kind(with(good(), None)), None);
    assert_eq!(kind(Options::default()), Some(ErrorKind::Permission));
    assert_eq!(
        kind(with(file("bad", "wrong"), None)),
        Some(ErrorKind::Permission)
    );
    assert_eq!(kind(with(None, None)), Some(ErrorKind::Invalid));
    // Without a secret of its own, the target cannot authenticate itself.
    assert_ne!(kind(with(good(), file("mutual", "battery"))), None);
    tgtd.admin("--op new --mode account --user tgt --password battery-staple");
    tgtd.admin("--op bind --mode account --tid 1 --user tgt --outgoing");
    assert_eq!(kind(with(good(), file("mutual", "battery-staple"))), None);
    let wrong = kind(with(good(), file("mutual", "battery-stable")));
    assert_eq!(wrong, Some(ErrorKind::Permission));
    let same = kind(with(good(), file("mutual", "correct-horse")));
    assert_eq!(same, Some(ErrorKind::Invalid));
}

#[test]
fn digests_that_the_target_does_not_have_fail_the_login() {
    let tgtd = Tgtd::start();
    let options = |policy| Options {
        data_digest: policy,
        ..Options::default()
    };
    assert!(
        tgtd.path(0, options(DigestPolicy::Prefer))
            .identify(LONG)
            .is_ok()
    );
    tgtd.admin("--op update --mode target --tid 1 -n DataDigest -v None");
    let required = tgtd.path(0, options(DigestPolicy::Require)).identify(LONG);
    assert!(required.is_err());
    assert!(
        tgtd.path(0, options(DigestPolicy::Prefer))
            .identify(LONG)
            .is_ok()
    );
}

fn write_op(offset: u64, data: &[u8]) -> Op {
    Op::Write {
        offset,
        bufs: Buf::copy_of(data).into(),
        fua: false,
    }
}

fn read_op(offset: u64, len: usize) -> Op {
    Op::Read {
        offset,
        bufs: Buf::zeroed(len).into(),
    }
}

fn submit(queue: &mut dyn Queue, tag: u64, op: Op) {
    assert!(queue.submit(Request { tag, op }).is_ok(), "there is room");
}

fn queue_of(path: &dyn Lunpath) -> Box<dyn PathQueue> {
    path.connect(LONG).unwrap().open().unwrap()
}

#[test]
fn long_writes_many_at_a_time_arrive_whole() {
    const LEN: usize = 1 << 20;
    let tgtd = Tgtd::start();
    let queue = &mut *queue_of(&tgtd.path(0, Options::default()));
    assert_eq!(queue.info().max_transfer as usize, LEN);
    let mut data = vec![0; 24 * LEN];
    Random::new(9).fill(&mut data);
    for (tag, part) in data.chunks(LEN).enumerate() {
        submit(queue, tag as u64, write_op((tag * LEN) as u64, part));
    }
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.reap(Wait::Block, &mut done).unwrap();
    }
    assert!(done.drain(..).all(|d| d.result.is_ok()));
    assert!(std::fs::read(&tgtd.image).unwrap()[..data.len()] == data);
    for tag in 0..24 {
        submit(queue, tag, read_op(tag * LEN as u64, LEN));
    }
    while queue.in_flight() > 0 {
        queue.reap(Wait::Block, &mut done).unwrap();
    }
    for completion in done {
        completion.result.unwrap();
        let at = completion.tag as usize * LEN;
        let Op::Read { bufs, .. } = completion.op else {
            unreachable!("only reads were sent")
        };
        assert!(bufs.iter().flat_map(|b| b.iter()).eq(&data[at..at + LEN]));
    }
}

#[test]
fn a_killed_target_ends_everything_in_flight_and_later() {
    let mut tgtd = Tgtd::start();
    let path = tgtd.path(0, Options::default());
    let queue = &mut *queue_of(&path);
    tgtd.signal(Signal::STOP);
    for tag in 0..8 {
        submit(queue, tag, read_op(tag * 4096, 4096));
        submit(
            queue,
            100 + tag,
            write_op((1 << 20) + tag * 65_536, &[7; 65_536]),
        );
    }
    queue.kick().unwrap();
    let mut done = Vec::new();
    assert_eq!(
        queue
            .reap(Wait::AtMost(Duration::from_millis(50)), &mut done)
            .unwrap(),
        0
    );
    tgtd.kill();
    while queue.in_flight() > 0 {
        queue.reap(Wait::Block, &mut done).unwrap();
    }
    submit(queue, 200, Op::Flush);
    queue.reap(Wait::Poll, &mut done).unwrap();
    assert_eq!(done.len(), 17);
    for completion in done {
        let error = completion.result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PathLost, "{error}");
    }
    let error = path.identify(LONG).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PathLost, "{error}");
}

#[test]
fn requests_are_taken_back_from_a_silent_target_and_settled_when_it_speaks() {
    let tgtd = Tgtd::start();
    let path = tgtd.path(0, Options::default());
    let queue = &mut *queue_of(&path);
    let mut data = vec![0; 1 << 20];
    Random::new(3).fill(&mut data);
    tgtd.signal(Signal::STOP);
    // More than the sockets hold, so that writes are stuck at every stage: not begun, in the middle
    // of a PDU, waiting for an R2T.
    for tag in 0..48 {
        submit(queue, tag, read_op(tag * 4096, 65_536));
    }
    for tag in 48..64 {
        let at = (tag - 48) << 20;
        submit(queue, tag, write_op(at + (8 << 20), &data));
    }
    queue.kick().unwrap();
    let mut done = Vec::new();
    queue
        .reap(Wait::AtMost(Duration::from_millis(50)), &mut done)
        .unwrap();
    assert!(done.is_empty() && queue.in_flight() == 64);
    for tag in 0..64 {
        let mut request = queue.withdraw(tag).expect("in flight");
        assert_eq!(request.tag, tag);
        // The caller owns its memory again; data that the target sends or receives is elsewhere.
        match &mut request.op {
            Op::Read { bufs, .. } => bufs.iter_mut().for_each(|b| b.fill(0x55)),
            Op::Write { bufs, .. } => {
                assert!(bufs.iter().flat_map(|b| b.iter()).eq(&data));
                bufs.iter_mut().for_each(|b| b.fill(0x66));
            }
            _ => {}
        }
    }
    assert_eq!((queue.in_flight(), queue.withdraw(5).is_none()), (0, true));
    let mut late = Vec::new();
    queue.drain_late(&mut late);
    assert!(late.is_empty(), "nothing is settled: {late:?}");
    // A read of the first written block queues behind all the writes and shows that framing held.
    submit(queue, 500, read_op(8 << 20, 4096));
    tgtd.signal(Signal::CONT);
    let started = Instant::now();
    while late.len() < 64 || queue.in_flight() > 0 {
        queue
            .reap(Wait::AtMost(Duration::from_millis(10)), &mut done)
            .unwrap();
        queue.drain_late(&mut late);
        assert!(started.elapsed() < LONG, "{} settled", late.len());
        if queue.in_flight() == 0 && late.len() < 64 {
            // Without requests in flight, `reap` does not wait, but late responses still arrive.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    late.sort_unstable();
    assert!(late.iter().copied().eq(0..64));
    assert!(done.len() == 1 && done[0].result.is_ok());
    let mut blocking = Blocking::over(queue_of(&path));
    let mut back = vec![0; data.len()];
    for at in 0..16 {
        blocking.read_at((8 << 20) + (at << 20), &mut back).unwrap();
        assert!(back == data, "the late write {at} went through whole");
    }
}

#[test]
fn a_reset_unit_is_no_error() {
    let tgtd = Tgtd::start();
    let path = tgtd.path(0, Options::default());
    let queue = &mut *queue_of(&path);
    for round in 0..4 {
        tgtd.path(1, Options::default()).reset(LONG).unwrap();
        let mut done = Vec::new();
        for tag in 0..16 {
            submit(queue, tag, write_op(tag * 4096, &[round; 4096]));
        }
        while queue.in_flight() > 0 {
            queue.reap(Wait::Block, &mut done).unwrap();
        }
        for completion in done {
            completion.result.unwrap();
        }
    }
}

#[test]
fn a_fence_stops_every_late_write_of_a_lost_connection() {
    let tgtd = Tgtd::start();
    let options = Options {
        persistent_reservations: true,
        ..Options::default()
    };
    let (lost, good) = (tgtd.path(0, options.clone()), tgtd.path(1, options));
    let connection = lost.connect(LONG).unwrap();
    let key = connection.fence_key().expect("a key is registered");
    let other = good.connect(LONG).unwrap();
    assert!(other.fence_key().is_some_and(|other| other != key));
    let mut late = connection.open().unwrap();
    let mut other = Blocking::over(other.open().unwrap());
    let mut done = Vec::new();
    submit(&mut *late, 0, write_op(0, &[1; 4096]));
    late.reap(Wait::Block, &mut done).unwrap();
    assert!(done.pop().unwrap().result.is_ok(), "both may write before");
    good.fence(key, LONG).unwrap();
    good.fence(key, LONG).unwrap();
    other.write_at(0, &[2; 4096]).unwrap();
    for tag in 0..5 {
        submit(&mut *late, tag, write_op(tag * 4096, &[3; 4096]));
    }
    while late.in_flight() > 0 {
        late.reap(Wait::Block, &mut done).unwrap();
    }
    for completion in done {
        let error = completion.result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PathLost, "{error}");
    }
    let mut back = vec![0; 5 * 4096];
    other.read_at(0, &mut back).unwrap();
    assert!(back[..4096] == [2; 4096] && back[4096..].iter().all(|b| *b == 0));
    // Unregistered initiators are kept out too, and a path without the option cannot fence.
    let plain = tgtd.path(0, Options::default());
    let mut stranger = Blocking::over(queue_of(&plain));
    let error = stranger.write_at(0, &[4; 4096]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert_eq!(
        plain.fence(key, LONG).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
}

/// Holds writes in the network, closes their connection, overwrites the same range through another
/// path, then releases the held writes. Returns whether the old data reappears.
fn a_late_write_comes_back(fenced: bool) -> bool {
    const LEN: usize = 5 * 4096;
    let tgtd = Tgtd::start();
    let proxy = Proxy::start(&tgtd.portals[0]);
    let options = Options {
        persistent_reservations: fenced,
        ..Options::default()
    };
    let uri = format!("iscsi://{}/{IQN}/1", proxy.portal);
    let lost = IscsiPath::parse(&uri, options.clone()).unwrap();
    let good = tgtd.path(1, options);
    let connection = lost.connect(LONG).unwrap();
    let key = connection.fence_key();
    assert_eq!(key.is_some(), fenced);
    let mut queue = connection.open().unwrap();
    let mut other = Blocking::over(queue_of(&good));
    proxy.hold();
    for tag in 0..5 {
        submit(&mut *queue, tag, write_op(tag * 4096, &[1; 4096]));
    }
    queue.kick().unwrap();
    let started = Instant::now();
    while proxy.held() < LEN {
        assert!(started.elapsed() < LONG, "nothing is on its way");
        std::thread::sleep(Duration::from_millis(1));
    }
    for tag in 0..5 {
        assert!(queue.withdraw(tag).is_some());
    }
    drop(queue);
    if let Some(key) = key {
        good.fence(key, LONG).unwrap();
    }
    other.write_at(0, &[1; LEN]).unwrap();
    other.write_at(0, &[2; LEN]).unwrap();
    // The target receives all of it, then the end of the connection.
    proxy.release();
    let (started, mut back) = (Instant::now(), [0; LEN]);
    loop {
        let closed = proxy.is_closed();
        other.read_at(0, &mut back).unwrap();
        if back != [2; LEN] {
            return true;
        }
        if fenced && closed {
            return false;
        }
        assert!(started.elapsed() < LONG, "nothing comes of what was late");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn late_writes_come_back_without_a_fence_and_never_with_one() {
    assert!(a_late_write_comes_back(false), "the test sees them");
    assert!(!a_late_write_comes_back(true));
}

#[test]
fn a_clean_close_leaves_neither_session_nor_reservation() {
    let tgtd = Tgtd::start();
    let options = Options {
        persistent_reservations: true,
        ..Options::default()
    };
    let path = tgtd.path(0, options);
    drop(queue_of(&path));
    drop(path.connect(LONG).unwrap());
    path.identify(LONG).unwrap();
    let started = Instant::now();
    while tgtd.show("target").contains("I_T nexus: ") {
        assert!(started.elapsed() < LONG, "{}", tgtd.show("target"));
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut stranger = Blocking::over(queue_of(&tgtd.path(1, Options::default())));
    stranger.write_at(0, &[4; 4096]).unwrap();
}
