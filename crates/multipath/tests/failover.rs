//! A LUN over real NBD servers that are killed, stopped and restarted while it is in use.

mod common;

use block::{BlockDevice, Blocking, Buf, ErrorKind, Op, Request, Wait};
use block_testing::conformance;
use common::*;
use lunpath::{Connection, Identity, Lunpath, Transport};
use multipath::{LastPath, Lun, PathSpec, PathState, Proof};
use path_file::FilePath;
use path_nbd::NbdPath;
use std::cell::RefCell;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

#[test]
fn a_lun_conforms_over_two_servers_and_over_a_file() {
    let dir = TempDir::new().unwrap();
    let peers = RefCell::new(Vec::new());
    conformance::run(&|| {
        let image = format!("disk{}", peers.borrow().len());
        let pair = [0, 1].map(|port| Server::new(dir.path(), &image, port, WWID));
        let lun = lun(&[&pair[0], &pair[1]], |_| ());
        peers.borrow_mut().push(pair);
        Arc::new(lun)
    });
    drop(peers);
    let count = RefCell::new(0);
    conformance::run(&|| {
        *count.borrow_mut() += 1;
        let name = dir.path().join(format!("file{}", count.borrow()));
        let file = std::fs::File::create(&name).unwrap();
        file.set_len(SIZE).unwrap();
        let path = FilePath::new(name, path_file::Options::default());
        Arc::new(Lun::open(config(vec![Arc::new(path)])).unwrap())
    });
}

#[test]
fn a_killed_a_silent_and_a_restored_path_cost_no_error_and_no_byte() {
    let dir = TempDir::new().unwrap();
    let mut a = Server::new(dir.path(), "disk", 0, WWID);
    let mut b = Server::new(dir.path(), "disk", 1, WWID);
    let lun = Arc::new(lun(&[&a, &b], |a| a.quiesce_secs = 1));
    let load = Load::start(Arc::clone(&lun) as _, 512, 1);
    until("both carry I/O", || {
        lun.status().paths.iter().all(|p| p.reads > 50)
    });
    for round in 0..3 {
        let index = round % 2;
        let killed = if index == 0 { &mut a } else { &mut b };
        killed.kill();
        until("it failed", || states(&lun)[index] == PathState::Failed);
        until("the other is there", || {
            states(&lun)[1 - index] == PathState::Active
        });
        killed.start();
        until("it is back", || states(&lun)[index] == PathState::Active);
    }
    for round in 0..3 {
        let index = round % 2;
        let stopped = if index == 0 { &a } else { &b };
        stopped.signal("STOP");
        until("it is suspect", || {
            states(&lun)[index] == PathState::Suspect
        });
        let before = lun.status().paths[1 - index].reads;
        until("the other carries on", || {
            lun.status().paths[1 - index].reads > before + 100
        });
        stopped.signal("CONT");
        until("it is back", || states(&lun)[index] == PathState::Active);
    }
    let status = lun.status();
    let seen = |p: &multipath::PathStatus| p.offline_events >= 1 && p.suspect_events >= 1;
    assert!(status.paths.iter().all(seen));
    assert!(load.end() > 1000);
}

#[test]
fn all_paths_down_and_back_costs_time_only() {
    let dir = TempDir::new().unwrap();
    let mut a = Server::new(dir.path(), "disk", 0, WWID);
    let mut b = Server::new(dir.path(), "disk", 1, WWID);
    let lun = Arc::new(lun(&[&a, &b], |a| a.quiesce_secs = 1));
    let load = Load::start(Arc::clone(&lun) as _, 256, 2);
    until("it runs", || lun.status().paths[0].reads > 20);
    a.kill();
    b.kill();
    until("offline", || lun.status().health == "offline");
    until("I/O waits", || {
        let status = lun.status();
        status.waiting + status.held > 0
    });
    until("each was tried again in vain", || {
        let paths = lun.status().paths;
        let in_vain =
            |why: &Option<String>| why.as_ref().is_some_and(|w| w.contains("cannot connect"));
        paths.iter().all(|p| in_vain(&p.why))
    });
    b.start();
    until("limited", || lun.status().health == "limited");
    a.start();
    until("online", || lun.status().health == "online");
    assert!(load.end() > 50);
}

#[test]
fn io_ends_when_no_path_comes_back_in_time_and_a_drop_always_ends() {
    let dir = TempDir::new().unwrap();
    let mut a = Server::new(dir.path(), "disk", 0, WWID);
    let lun = lun(&[&a], |a| a.transient_secs = 1);
    let mut queue = lun.queue().unwrap();
    a.kill();
    let read = || Request {
        tag: 1,
        op: Op::Read {
            offset: 0,
            bufs: Buf::zeroed(BLOCK).into(),
        },
    };
    queue.submit(read()).unwrap();
    let mut done = Vec::new();
    while done.is_empty() {
        queue.reap(Wait::Block, &mut done).unwrap();
    }
    let error = done.remove(0).result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PathLost);
    assert!(error.to_string().contains("transient_secs"), "{error}");
    lun.set("infinite_retries_enable", "true").unwrap();
    queue.submit(read()).unwrap();
    let wait = Wait::AtMost(Duration::from_millis(1500));
    queue.reap(wait, &mut done).unwrap();
    assert!(done.is_empty(), "it waits");
    drop(queue);
}

#[test]
fn another_disk_is_refused_and_carries_nothing() {
    let dir = TempDir::new().unwrap();
    let generic = "naa.60000000000000000e00000000010001";
    let a = Server::new(dir.path(), "one", 0, generic);
    let b = Server::new(dir.path(), "other", 1, generic);
    let same = Server::new(dir.path(), "one", 2, generic);
    // A generic ID and no way to prove identity: the paths are not merged.
    let one = lun(&[&a, &b, &same], |_| ());
    let refused = PathState::AuthFailed;
    assert_eq!(states(&one), [PathState::Unopen, refused, refused]);
    let why = one.status().paths[1].why.clone().unwrap();
    assert!(why.contains("may not be unique"), "{why}");
    drop(one);
    // With a nonce, the same disk can be distinguished from a copy.
    let paths = [&a, &b, &same].map(|s| Arc::new(s.path()) as _);
    let mut config = config(paths.into());
    config.proof = Proof::Nonce { offset: 12 << 20 };
    let lun = Lun::open(config).unwrap();
    let unopen = PathState::Unopen;
    assert_eq!(states(&lun), [unopen, refused, unopen]);
    let why = lun.status().paths[1].why.clone().unwrap();
    assert!(why.contains("different storage"), "{why}");
    let mut all = Blocking::open(&lun).unwrap();
    for offset in (0..SIZE / 2).step_by(65536) {
        all.write_at(offset, &[7; 65536]).unwrap();
    }
    all.flush().unwrap();
    let status = lun.status();
    assert_eq!(status.paths[1].reads + status.paths[1].writes, 0);
    assert!(status.paths[0].writes > 0 && status.paths[2].writes > 0);
    let untouched = std::fs::read(&b.image).unwrap();
    assert!(untouched.iter().all(|b| *b == 0));
}

#[test]
fn a_path_that_becomes_another_disk_is_refused_until_it_is_accepted() {
    let dir = TempDir::new().unwrap();
    let a = Server::new(dir.path(), "disk", 0, WWID);
    let mut b = Server::new(dir.path(), "disk", 1, WWID);
    let lun = lun(&[&a, &b], |x| x.quiesce_secs = 0);
    let mut all = Blocking::open(&lun).unwrap();
    let mut pump = |byte| {
        for _ in 0..4 {
            all.write_at(0, &[byte; 4096]).unwrap();
        }
    };
    pump(1);
    b.kill();
    b.wwid = "naa.5000c500ffffffff".into();
    b.start();
    until("refused", || {
        pump(2);
        states(&lun)[1] == PathState::AuthFailed
    });
    let why = lun.status().paths[1].why.clone().unwrap();
    assert!(why.contains("ffffffff"), "{why}");
    lun.replace_wwid("c1t0d0").unwrap();
    until("accepted", || {
        pump(3);
        states(&lun)[1] == PathState::Active
    });
    assert_eq!(lun.identity().wwid.as_deref(), Some("naa.5000c500ffffffff"));
}

#[test]
fn a_path_that_was_another_disk_for_a_while_needs_no_administrator() {
    let dir = TempDir::new().unwrap();
    let a = Server::new(dir.path(), "disk", 0, WWID);
    let mut b = Server::new(dir.path(), "disk", 1, WWID);
    let paths = [&a, &b].map(|s| Arc::new(s.path()) as _);
    let mut config = config(paths.into());
    config.proof = Proof::Nonce { offset: 12 << 20 };
    config.attributes.quiesce_secs = 0;
    let lun = Arc::new(Lun::open(config).unwrap());
    let load = Load::start(Arc::clone(&lun) as _, 256, 5);
    let image = b.image.clone();
    // First another description, then other blocks.
    for (wwid, content) in [("naa.5000c500ffffffff", "disk"), (WWID, "other")] {
        until("it is in use", || states(&lun)[1] == PathState::Active);
        b.kill();
        b.wwid = wwid.into();
        b.image = dir.path().join(content);
        if !b.image.exists() {
            std::fs::write(&b.image, vec![9; SIZE as usize]).unwrap();
        }
        b.start();
        until("refused", || states(&lun)[1] == PathState::AuthFailed);
        let carried = |lun: &Lun| lun.status().paths[1].reads + lun.status().paths[1].writes;
        let before = carried(&lun);
        // It is examined again and stays refused.
        let examined = format!("{:?}", lun.status().paths[1].why);
        until("the other carries on", || {
            lun.status().paths[0].reads > before + 1000
        });
        assert_eq!(states(&lun)[1], PathState::AuthFailed, "{examined}");
        assert_eq!(carried(&lun), before);
        b.kill();
        b.wwid = WWID.into();
        b.image.clone_from(&image);
        b.start();
    }
    until("it is in use again", || {
        states(&lun)[1] == PathState::Active
    });
    assert!(load.end() > 100);
}

#[test]
fn paths_that_are_proven_at_the_same_time_disturb_no_other() {
    let dir = TempDir::new().unwrap();
    let servers: Vec<_> = (0..6)
        .map(|n| Server::new(dir.path(), "disk", n, WWID))
        .collect();
    let paths = servers.iter().map(|s| Arc::new(s.path()) as _).collect();
    let mut config = config(paths);
    config.proof = Proof::Nonce { offset: 12 << 20 };
    config.attributes.quiesce_secs = 0;
    patient(&mut config.attributes);
    let lun = Arc::new(Lun::open(config).unwrap());
    let load = Load::start(Arc::clone(&lun) as _, 256, 6);
    for _ in 0..8 {
        for n in 1..6 {
            lun.disable(&format!("c{n}t0d0"), LastPath::Retire).unwrap();
        }
        until("they are let go", || {
            states(&lun)[1..].iter().all(|s| *s == PathState::Disabled)
                && lun.status().paths[1..].iter().all(|p| p.in_flight == 0)
        });
        for n in 1..6 {
            lun.enable(&format!("c{n}t0d0")).unwrap();
        }
        until("all carry I/O", || {
            let states = states(&lun);
            assert!(!states.contains(&PathState::AuthFailed), "{states:?}");
            states.iter().all(|s| *s == PathState::Active)
        });
    }
    let log = lun.status().log;
    assert!(log.iter().all(|e| !e.what.contains("AUTH_FAILED")));
    assert!(load.end() > 100);
}

#[test]
fn what_waits_for_a_path_ends_at_once_before_a_close_by_force() {
    let dir = TempDir::new().unwrap();
    let mut a = Server::new(dir.path(), "disk", 0, WWID);
    let lun = lun(&[&a], |x| x.infinite_retries_enable = true);
    let (ready, begin) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut all = Blocking::open(&lun).unwrap();
            all.write_at(0, &[1; BLOCK]).unwrap();
            ready.send(()).unwrap();
            // Succeeds until the path is lost, then waits indefinitely.
            loop {
                if let Err(error) = all.write_at(0, &[2; BLOCK]) {
                    return error;
                }
            }
        });
        begin.recv().unwrap();
        a.kill();
        until("I/O waits", || lun.status().waiting + lun.status().held > 0);
        lun.prepare_forced_close();
        let error = waits.join().unwrap();
        assert_eq!(error.kind(), ErrorKind::PathLost, "{error}");
        assert!(error.to_string().contains("by force"), "{error}");
    });
}

/// With a connection timeout of an hour, a queue that waited for a connection would never open.
#[test]
fn a_queue_waits_for_no_path_that_is_lost_before_a_close_by_force() {
    let dir = TempDir::new().unwrap();
    let mut a = Server::new(dir.path(), "disk", 0, WWID);
    let mut config = config(vec![Arc::new(a.path())]);
    config.connect_within = Duration::from_secs(3600);
    config.attributes.infinite_retries_enable = true;
    let lun = Lun::open(config).unwrap();
    let mut all = Blocking::open(&lun).unwrap();
    all.write_at(0, &[1; BLOCK]).unwrap();
    a.kill();
    lun.prepare_forced_close();
    until("the path is lost", || all.write_at(0, &[2; BLOCK]).is_err());
    let error = Blocking::open(&lun).unwrap().flush().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PathLost, "{error}");
}

/// With a connection timeout of an hour, and more queues than could each wait for a moment.
#[test]
fn a_path_that_never_answers_is_waited_for_once_and_not_by_each_queue() {
    let dir = TempDir::new().unwrap();
    let a = Server::new(dir.path(), "disk", 0, WWID);
    let socket = dir.path().join("silent");
    let silent = UnixListener::bind(&socket).unwrap();
    let never = path(&format!("nbd+unix:///e?socket={}", socket.display()));
    let mut config = config(vec![Arc::new(never), Arc::new(a.path())]);
    config.connect_within = Duration::from_secs(3600);
    let lun = Lun::open(config).unwrap();
    let end = Instant::now() + WITHIN;
    for _ in 0..200 {
        let mut all = Blocking::open(&lun).unwrap();
        all.write_at(0, &[1; BLOCK]).unwrap();
        all.flush().unwrap();
        assert_eq!(states(&lun), [PathState::Failed, PathState::Active]);
        let why = lun.status().paths[0].why.clone().unwrap();
        assert!(why.contains("no answer"), "{why}");
        assert!(Instant::now() < end, "each queue waits for it");
    }
    silent.set_nonblocking(true).unwrap();
    let tried = silent.incoming().take_while(Result::is_ok).count();
    assert!((1..=2).contains(&tried), "{tried} attempts under way");
}

#[test]
fn a_path_that_is_dead_costs_a_queue_nothing_and_comes_in_when_it_answers() {
    let dir = TempDir::new().unwrap();
    let a = Server::new(dir.path(), "disk", 0, WWID);
    let mut b = Server::new(dir.path(), "disk", 1, WWID);
    b.kill();
    let counted = proxy(&b);
    let began = Instant::now();
    let lun = open(vec![through(&counted), Arc::new(a.path())], patient);
    for _ in 0..200 {
        let mut all = Blocking::open(&lun).unwrap();
        all.write_at(0, &[1; BLOCK]).unwrap();
        all.flush().unwrap();
        assert_eq!(states(&lun), [PathState::Failed, PathState::Active]);
        assert!(lun.status().paths[0].why.is_some());
        assert!(began.elapsed() < WITHIN, "each queue waits for it");
    }
    // The pauses grow to at least half a second and are shared by all queues.
    let most = 10 + 2 * began.elapsed().as_secs();
    let tried = counted.stats().connections;
    assert!((1..=most).contains(&tried), "{tried} attempts");
    let mut queue = lun.queue().unwrap();
    b.start();
    until("it is in use", || {
        queue.kick().unwrap();
        states(&lun) == [PathState::Active; 2]
    });
}

#[test]
fn paths_come_and_go_under_load() {
    let dir = TempDir::new().unwrap();
    let servers: Vec<_> = (0..3)
        .map(|n| Server::new(dir.path(), "disk", n, WWID))
        .collect();
    let lun = Arc::new(lun(&[&servers[0]], patient));
    let load = Load::start(Arc::clone(&lun) as _, 256, 3);
    until("it runs", || lun.status().paths[0].reads > 20);
    let last = lun.disable("c0t0d0", LastPath::Keep).unwrap_err();
    assert_eq!(last.kind(), ErrorKind::Busy, "the last path stays");
    for (n, server) in servers.iter().enumerate().skip(1) {
        lun.add(PathSpec {
            path: Arc::new(server.path()),
            legacy: format!("c{n}t0d0"),
            enabled: true,
        })
        .unwrap();
        until("it carries I/O", || lun.status().paths[n].reads > 20);
    }
    lun.remove("c0t0d0", LastPath::Keep).unwrap();
    until("two are left", || lun.status().paths.len() == 2);
    lun.disable("c1t0d0", LastPath::Keep).unwrap();
    until("it drains", || lun.status().paths[0].in_flight == 0);
    let total = |n: usize| {
        let path = &lun.status().paths[n];
        path.reads + path.writes
    };
    let (still, other) = (total(0), total(1));
    until("the other carries on", || total(1) > other + 50);
    assert_eq!(total(0), still);
    lun.enable("c1t0d0").unwrap();
    until("it is back", || total(0) > still + 20);
    lun.set("load_bal_policy", "preferred_path").unwrap();
    lun.set("preferred_path", "c2t0d0").unwrap();
    // The queue has applied the change, and earlier I/O has completed.
    let preferred = total(1);
    until("the preferred one carries on", || total(1) > preferred + 50);
    until("it drains", || lun.status().paths[0].in_flight == 0);
    let (before, preferred) = (total(0), total(1));
    until("the preferred one carries on", || total(1) > preferred + 50);
    assert_eq!(total(0), before);
    assert!(load.end() > 200);
}

#[test]
fn a_legacy_name_alone_fails_with_its_path() {
    let dir = TempDir::new().unwrap();
    let mut a = Server::new(dir.path(), "disk", 0, WWID);
    let b = Server::new(dir.path(), "disk", 1, WWID);
    let lun = lun(&[&a, &b], |x| {
        x.leg_mpath_enable = false;
        x.transient_secs = 1;
        x.quiesce_secs = 0;
    });
    let alone = lun.legacy("c0t0d0").unwrap();
    let mut one = Blocking::open(&alone).unwrap();
    one.write_at(0, &[1; 65536]).unwrap();
    let status = lun.status();
    assert_eq!((status.paths[0].writes, status.paths[1].writes), (1, 0));
    lun.set("leg_mpath_enable", "true").unwrap();
    let both = lun.legacy("c0t0d0").unwrap();
    a.kill();
    let mut all = Blocking::open(&both).unwrap();
    all.write_at(0, &[2; 65536]).unwrap();
    let error = one.write_at(0, &[3; 65536]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PathLost);
    assert!(lun.legacy("c9t0d0").is_err());
}

#[test]
fn a_path_that_takes_fewer_than_the_limit_allows_is_filled_and_no_more() {
    let dir = TempDir::new().unwrap();
    let a = Server::new(dir.path(), "disk", 0, WWID);
    let lun = lun(&[&a], |x| x.max_q_depth = 4096);
    let mut queue = lun.queue().unwrap();
    let mut done = Vec::new();
    for tag in 0..queue.capacity() as u64 {
        let bufs = Buf::zeroed(BLOCK).into();
        let offset = tag * BLOCK as u64;
        let op = Op::Read { offset, bufs };
        queue.submit(Request { tag, op }).unwrap();
    }
    queue.kick().unwrap();
    while queue.in_flight() > 0 {
        queue.reap(Wait::Block, &mut done).unwrap();
    }
    assert!(done.iter().all(|c| c.result.is_ok()));
    assert_eq!(done.len(), queue.capacity());
}

#[test]
fn a_view_without_limits_does_not_wait_for_io_whose_thread_waits_for_it() {
    let dir = TempDir::new().unwrap();
    let a = Server::new(dir.path(), "disk", 0, WWID);
    let lun = lun(&[&a], |x| x.max_q_depth = 1);
    let mut queue = lun.queue().unwrap();
    let read = |tag| {
        let bufs = Buf::zeroed(BLOCK).into();
        let op = Op::Read { offset: 0, bufs };
        Request { tag, op }
    };
    queue.submit(read(0)).unwrap();
    queue.kick().unwrap();
    assert_eq!(lun.status().paths[0].in_flight, 1);
    // No thread takes its answer.
    let mut other = lun.queue().unwrap();
    let mut done = Vec::new();
    other.submit(read(1)).unwrap();
    other.kick().unwrap();
    let soon = Wait::AtMost(Duration::from_millis(300));
    other.reap(soon, &mut done).unwrap();
    assert!(done.is_empty(), "the limit holds for others");
    for view in [lun.whole(), lun.legacy("c0t0d0").unwrap()] {
        let mut beside = Blocking::open(&view.without_limits()).unwrap();
        beside.read_at(0, &mut [0; BLOCK]).unwrap();
        beside.write_at(0, &[7; BLOCK]).unwrap();
    }
    assert_eq!(lun.status().paths[0].in_flight, 1);
    for queue in [&mut queue, &mut other] {
        while queue.in_flight() > 0 {
            queue.reap(Wait::Block, &mut done).unwrap();
        }
    }
    assert!(done.iter().all(|c| c.result.is_ok()));
}

/// A path whose target keeps other clients out, or does not.
struct Owned {
    path: NbdPath,
    is_exclusive: bool,
}

impl Lunpath for Owned {
    fn name(&self) -> &str {
        self.path.name()
    }

    fn transport(&self) -> Transport {
        self.path.transport()
    }

    fn target_port(&self) -> String {
        self.path.target_port()
    }

    fn identify(&self, within: Duration) -> block::Result<Identity> {
        self.path.identify(within)
    }

    fn connect(&self, within: Duration) -> block::Result<Box<dyn Connection>> {
        self.path.connect(within)
    }

    fn fence(&self, key: u64, within: Duration) -> block::Result<()> {
        self.path.fence(key, within)
    }

    fn is_exclusive(&self) -> bool {
        self.is_exclusive
    }
}

#[test]
fn a_silent_path_that_keeps_other_clients_out_is_waited_for_and_not_closed() {
    let dir = TempDir::new().unwrap();
    for is_exclusive in [false, true] {
        let server = Server::new(dir.path(), "disk", usize::from(is_exclusive), WWID);
        let path = server.path();
        let path: Arc<dyn Lunpath> = Arc::new(Owned { path, is_exclusive });
        let lun = open(vec![path], |attributes| {
            attributes.path_fail_secs = 1;
            attributes.esd_secs = 1;
        });
        let mut queue = lun.queue().unwrap();
        until("it is in use", || {
            queue.kick().unwrap();
            states(&lun) == [PathState::Active]
        });
        server.signal("STOP");
        assert!(queue.submit(write(1, 0, &[1; BLOCK])).is_ok());
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3) {
            assert!(reap(&mut *queue, Duration::from_millis(100)).is_empty());
        }
        let lost = lun.status().paths[0].offline_events;
        assert_eq!(lost, u64::from(!is_exclusive));
        server.signal("CONT");
        answer(&mut *queue).result.unwrap();
        assert_eq!(lun.status().paths[0].offline_events, lost);
        // I/O without an answer ends in time, as without a path.
        lun.set("transient_secs", "1").unwrap();
        server.signal("STOP");
        assert!(queue.submit(write(3, 0, &[3; BLOCK])).is_ok());
        let error = answer(&mut *queue).result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PathLost, "{error}");
        server.signal("CONT");
        lun.set("transient_secs", "120").unwrap();
        until("it is in use again", || {
            queue.kick().unwrap();
            states(&lun) == [PathState::Active]
        });
        // A close by force waits for no path.
        server.signal("STOP");
        assert!(queue.submit(write(2, 0, &[2; BLOCK])).is_ok());
        lun.prepare_forced_close();
        let error = answer(&mut *queue).result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PathLost, "{error}");
        server.signal("CONT");
    }
}
