//! The path against a scripted target that misbehaves on demand.

#[path = "scripted/mod.rs"]
mod target;

use block::{BlockDevice, Buf, ErrorKind, Op, Queue, Request, Result, Wait};
use lunpath::{Access, AccessHint, Lunpath, PathQueue};
use path_iscsi::{DigestPolicy, IscsiPath, Options};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use std::time::{Duration, Instant};
use target::disk::{self, Disk};
use target::reserve::Reservations;
use target::{Manner, Reply, Script, Scripted, start, start_moved};

const LONG: Duration = Duration::from_secs(20);
/// Unit of the retry delay that a target names in a status qualifier. The measured delay must be at
/// least this long, however slow the machine is.
const UNIT_OF_DELAY: Duration = Duration::from_millis(100);

/// Opens a queue as the multipath layer does: a request that the target cannot take now is
/// returned.
fn queue_with(target: &Scripted, options: Options) -> Box<dyn PathQueue> {
    let path = IscsiPath::parse(&target.uri, options).unwrap();
    path.connect(LONG).unwrap().open().unwrap()
}

/// Opens a queue as a standalone device, with no other path behind it.
fn alone(target: &Scripted) -> Box<dyn Queue> {
    let path = IscsiPath::parse(&target.uri, Options::default()).unwrap();
    path.open(LONG).unwrap().queue().unwrap()
}

fn scripted(
    script: impl FnMut(&[u8; 16]) -> Reply + Send + 'static,
) -> (Scripted, Box<dyn PathQueue>) {
    let target = start(Manner::default(), Box::new(script));
    let queue = queue_with(&target, Options::default());
    (target, queue)
}

/// Returns a script with replies to the first commands; later commands succeed.
fn first(replies: Vec<Reply>) -> Script {
    let mut replies = replies.into_iter();
    Box::new(move |_| replies.next().unwrap_or(Reply::Good))
}

fn read(len: usize) -> Op {
    Op::Read {
        offset: 0,
        bufs: Buf::zeroed(len).into(),
    }
}

fn write() -> Op {
    Op::Write {
        offset: 0,
        bufs: Buf::zeroed(4096).into(),
        fua: false,
    }
}

fn write_with_fua() -> Op {
    Op::Write {
        offset: 0,
        bufs: Buf::zeroed(4096).into(),
        fua: true,
    }
}

fn run(queue: &mut dyn Queue, op: Op) -> Result<()> {
    assert!(queue.submit(Request { tag: 0, op }).is_ok());
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.reap(Wait::Block, &mut done).unwrap();
    }
    done.pop().unwrap().result
}

fn kind_after(op: Op, reply: Reply) -> Option<ErrorKind> {
    let (_target, mut queue) = scripted(first(vec![reply]));
    run(&mut *queue, op).err().map(|e| e.kind())
}

#[test]
fn faults_have_their_kinds() {
    for (sense, kind) in [
        (&[0x72, 3, 0x11, 0][..], ErrorKind::Media),
        (&[0x72, 7, 0x27, 0], ErrorKind::ReadOnly),
        (&[0x72, 7, 0x27, 7], ErrorKind::NoSpace),
        (&[0x72, 5, 0x20, 0], ErrorKind::Unsupported),
        (&[0x72, 5, 0x25, 0], ErrorKind::PathLost),
        (&[0x72, 2, 0x04, 0x0a], ErrorKind::NotNow),
        (&[0x72, 2, 0x04, 0x0b], ErrorKind::NotNow),
        (&[0x72, 2, 0x04, 0x0c], ErrorKind::NotNow),
        (&[0x72, 4, 0x44, 0], ErrorKind::Io),
    ] {
        let got = kind_after(write(), Reply::Status(2, 0, sense));
        assert_eq!(got, Some(kind), "{sense:?}");
    }
    let conflict = kind_after(write(), Reply::Status(0x18, 0, &[]));
    assert_eq!(conflict, Some(ErrorKind::Busy));
    assert_eq!(kind_after(read(8192), Reply::Half), Some(ErrorKind::Io));
    assert_eq!(
        kind_after(read(8192), Reply::Leave),
        Some(ErrorKind::PathLost)
    );
}

#[test]
fn what_happened_beside_a_command_is_no_error() {
    let attention = Reply::Status(2, 0, &[0x70, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x29, 0]);
    assert_eq!(kind_after(read(4096), attention), None);
    assert_eq!(kind_after(read(4096), Reply::Status(0x40, 0, &[])), None);
    assert_eq!(kind_after(read(4096), Reply::AfterPing), None);
    let recovered = Reply::Status(2, 0, &[0x72, 1, 0x17, 0]);
    assert_eq!(kind_after(write(), recovered), None);
}

#[test]
fn a_busy_target_is_asked_again_after_the_delay_it_names() {
    let target = start(Manner::default(), first(vec![Reply::Status(8, 2, &[])]));
    let mut queue = alone(&target);
    let started = Instant::now();
    assert!(
        queue
            .submit(Request {
                tag: 0,
                op: read(4096)
            })
            .is_ok()
    );
    let mut done = Vec::new();
    // Like an export: sleeps on the descriptor, which must signal the end of the delay.
    while queue.reap(Wait::Poll, &mut done).unwrap() == 0 {
        let limit = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        let fd = queue.wait_fd().unwrap();
        assert_eq!(
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)),
            Ok(1)
        );
    }
    assert!(done.pop().unwrap().result.is_ok());
    assert!(started.elapsed() >= 2 * UNIT_OF_DELAY);
    assert_eq!(*target.seen.lock().unwrap(), [0x88, 0x88]);
}

#[test]
fn a_full_queue_delays_and_fails_nothing() {
    let full = || Reply::Status(0x28, 0, &[]);
    let target = start(Manner::default(), first((0..20).map(|_| full()).collect()));
    let mut queue = alone(&target);
    let mut done = Vec::new();
    for tag in 0..40 {
        assert!(
            queue
                .submit(Request {
                    tag,
                    op: read(4096)
                })
                .is_ok()
        );
    }
    while queue.in_flight() > 0 {
        queue.reap(Wait::Block, &mut done).unwrap();
    }
    assert!(done.len() == 40 && done.into_iter().all(|d| d.result.is_ok()));
    assert_eq!(target.seen.lock().unwrap().len(), 60);
}

#[test]
fn who_knows_another_way_is_told_at_once_and_how_long_to_leave_the_path_alone() {
    let (target, mut queue) = scripted(first(vec![Reply::Status(8, 3, &[])]));
    let room = queue.room();
    let started = Instant::now();
    let error = run(&mut *queue, read(4096)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotNow, "{error}");
    while queue.room() == 0 {
        assert!(started.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(started.elapsed() >= 3 * UNIT_OF_DELAY);
    assert_eq!(queue.room(), room);
    run(&mut *queue, read(4096)).unwrap();
    assert_eq!(*target.seen.lock().unwrap(), [0x88, 0x88]);
    // With a full queue, there is room for as many requests as were in it.
    let (_target, mut queue) = scripted(first(vec![Reply::Status(0x28, 0, &[])]));
    for tag in 0..8 {
        let op = read(4096);
        assert!(queue.submit(Request { tag, op }).is_ok());
    }
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.reap(Wait::Block, &mut done).unwrap();
    }
    let failed: Vec<_> = done
        .iter()
        .filter_map(|d| d.result.as_ref().err())
        .collect();
    assert_eq!((done.len(), failed.len()), (8, 1));
    assert_eq!(failed[0].kind(), ErrorKind::NotNow);
    assert_eq!(queue.room(), 7);
}

#[test]
fn access_is_heard_of_with_io_and_asked_for_beside_it() {
    let access = [disk::OPTIMIZED, disk::STANDBY];
    let array = Arc::new(Disk::new(1 << 20, access));
    let port = |number| {
        let manner = Manner {
            port: Some((Arc::clone(&array), number)),
            ..Manner::default()
        };
        let target = start(manner, first(Vec::new()));
        IscsiPath::parse(&target.uri, Options::default()).unwrap()
    };
    let [active, passive] = [port(0), port(1)];
    assert_eq!(active.access(LONG).unwrap(), Some(Access::Optimized));
    assert_eq!(passive.access(LONG).unwrap(), Some(Access::Standby));
    let error = passive.connect(LONG).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotNow, "{error}");
    let connection = active.connect(LONG).unwrap();
    assert!(connection.access_varies());
    let queue = &mut *connection.open().unwrap();
    let bufs = Buf::copy_of(&[7; 4096]).into();
    let (offset, fua) = (8192, true);
    run(queue, Op::Write { offset, bufs, fua }).unwrap();
    assert_eq!(array.read(8192, 4096), [7; 4096]);
    assert_eq!(queue.access_sign(), None);
    array.set_access([disk::NON_OPTIMIZED, disk::OPTIMIZED]);
    run(queue, read(4096)).unwrap();
    assert_eq!(queue.access_sign(), Some(AccessHint::Changed));
    assert_eq!(queue.access_sign(), None, "said once");
    assert_eq!(active.access(LONG).unwrap(), Some(Access::NonOptimized));
    for (state, access) in [
        (disk::TRANSITIONING, Access::Transitioning),
        (disk::UNAVAILABLE, Access::Unavailable),
        (disk::STANDBY, Access::Standby),
    ] {
        array.set_access_quietly([state, disk::OPTIMIZED]);
        let error = run(queue, write()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotNow, "{error}");
        assert_eq!(queue.access_sign(), Some(AccessHint::Is(access)));
        assert_eq!(active.access(LONG).unwrap(), Some(access));
    }
    // A target without asymmetric access.
    let plain = start(Manner::default(), first(Vec::new()));
    let path = IscsiPath::parse(&plain.uri, Options::default()).unwrap();
    assert_eq!(path.access(LONG).unwrap(), None);
    assert!(!path.connect(LONG).unwrap().access_varies());
}

#[test]
fn a_transition_is_waited_for_when_no_other_path_exists() {
    let changing = || Reply::Status(2, 0, &[0x72, 2, 0x04, 0x0a]);
    let target = start(
        Manner::default(),
        first((0..3).map(|_| changing()).collect()),
    );
    run(&mut *alone(&target), read(4096)).unwrap();
    assert_eq!(target.seen.lock().unwrap().len(), 4);
}

#[test]
fn where_a_target_lacks_a_command_another_takes_its_place() {
    // No MODE SENSE and thus no FUA: a SYNCHRONIZE CACHE follows the write.
    let (target, mut queue) = scripted(|cdb| match cdb[0] {
        0x93 => Reply::Status(2, 0, &[0x72, 5, 0x20, 0]),
        _ => Reply::Good,
    });
    run(&mut *queue, write_with_fua()).unwrap();
    assert_eq!(
        std::mem::take(&mut *target.seen.lock().unwrap()),
        [0x8a, 0x35]
    );
    // No WRITE SAME: zeros are written, and WRITE SAME is not tried again.
    for expected in [&[0x93, 0x8a, 0x8a][..], &[0x8a, 0x8a]] {
        let zeroes = Op::WriteZeroes {
            offset: 0,
            len: 512 * 1024,
            fua: false,
            unmap: true,
        };
        run(&mut *queue, zeroes).unwrap();
        assert_eq!(std::mem::take(&mut *target.seen.lock().unwrap()), expected);
    }
    // Ten-byte commands only.
    let manner = Manner {
        narrow: true,
        ..Manner::default()
    };
    let target = start(manner, first(Vec::new()));
    let queue = &mut *queue_with(&target, Options::default());
    run(queue, write()).unwrap();
    run(queue, read(4096)).unwrap();
    run(queue, Op::Flush).unwrap();
    assert_eq!(*target.seen.lock().unwrap(), [0x2a, 0x28, 0x35]);
}

#[test]
fn a_byte_that_was_changed_on_its_way_costs_the_connection() {
    let manner = Manner {
        data_digest: true,
        ..Manner::default()
    };
    let target = start(manner, first(vec![Reply::Good, Reply::Corrupt]));
    let options = Options {
        data_digest: DigestPolicy::Require,
        ..Options::default()
    };
    let queue = &mut *queue_with(&target, options);
    run(queue, read(64 * 1024)).unwrap();
    let error = run(queue, read(64 * 1024)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PathLost);
    assert!(error.to_string().contains("digest"), "{error}");
}

#[test]
fn a_target_that_has_moved_is_followed() {
    let target = start(Manner::default(), first(Vec::new()));
    let path = IscsiPath::parse(&start_moved(&target.portal), Options::default()).unwrap();
    let identity = path.identify(LONG).unwrap();
    assert_eq!((identity.vendor.as_str(), identity.wwid), ("TEST", None));
    // Redirection to a port on which no target listens.
    let nowhere = IscsiPath::parse(&start_moved("127.0.0.1:1"), Options::default()).unwrap();
    let error = nowhere.identify(LONG).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PathLost, "{error}");
}

#[test]
fn a_silent_target_is_waited_for_no_longer_than_allowed() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("iscsi://{}/iqn.x/0", listener.local_addr().unwrap());
    let path = IscsiPath::parse(&uri, Options::default()).unwrap();
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| path.identify(LONG));
        let error = path.identify(Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(!patient.is_finished(), "as long as who may wait longer");
        // Ends the connection of the patient caller.
        drop(listener);
        assert!(patient.join().unwrap().is_err());
    });
}

/// Starts two ports of a unit whose registrations survive sessions. A write of three blocks ends
/// the connection.
fn reserving() -> (Arc<Reservations>, [Scripted; 2]) {
    let reservations = Arc::new(Reservations::default());
    let ports = [0, 1].map(|port| {
        let manner = Manner {
            reservations: Some((Arc::clone(&reservations), port)),
            ..Manner::default()
        };
        let script = |cdb: &[u8; 16]| match (cdb[0], cdb[13]) {
            (0x8a, 3) => Reply::Leave,
            _ => Reply::Good,
        };
        start(manner, Box::new(script))
    });
    (reservations, ports)
}

/// LIO takes writes only from the holder of the reservation, of the sessions of one initiator.
#[test]
fn connections_do_not_register_with_the_target_of_the_linux_kernel() {
    let reservations = Arc::new(Reservations::default());
    let manner = Manner {
        vendor: Some(b"LIO-ORG "),
        reservations: Some((Arc::clone(&reservations), 0)),
        ..Manner::default()
    };
    let target = start(manner, first(Vec::new()));
    let path = reserved(&target);
    let connections = [(); 2].map(|()| path.connect(LONG).unwrap());
    for connection in connections {
        assert_eq!(connection.fence_key(), None, "lost writes are waited for");
        run(&mut *connection.open().unwrap(), write()).unwrap();
    }
    assert_eq!(reservations.keys(), Vec::<u64>::new());
    path.close(LONG);
    assert!(reservations.is_free());
}

fn reserved(target: &Scripted) -> IscsiPath {
    let options = Options {
        persistent_reservations: true,
        ..Options::default()
    };
    IscsiPath::parse(&target.uri, options).unwrap()
}

/// Makes a queue lose its connection.
fn lose(queue: &mut dyn Queue) {
    let bufs = Buf::zeroed(3 * 512).into();
    let (offset, fua) = (0, false);
    let error = run(queue, Op::Write { offset, bufs, fua }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PathLost, "{error}");
}

#[test]
fn registrations_of_lost_connections_do_not_multiply_and_none_is_left_at_the_end() {
    let (reservations, ports) = reserving();
    let [a, b] = [0, 1].map(|port| reserved(&ports[port]));
    let mut good = b.connect(LONG).unwrap().open().unwrap();
    for round in 0..10 {
        let connection = a.connect(LONG).unwrap();
        let key = connection.fence_key().unwrap();
        let mut queue = connection.open().unwrap();
        run(&mut *queue, write()).unwrap();
        lose(&mut *queue);
        drop(queue);
        if round % 2 == 0 {
            b.fence(key, LONG).unwrap();
            assert!(!reservations.keys().contains(&key));
        }
        // One for each connection that is open or was lost, and one for fencing.
        assert!(reservations.keys().len() <= 3, "{:?}", reservations.keys());
        run(&mut *good, write()).unwrap();
    }
    assert!(!reservations.is_free());
    drop(good);
    for path in [&a, &b, &a, &b] {
        path.close(LONG);
    }
    assert_eq!(reservations.keys(), Vec::<u64>::new());
    assert!(reservations.is_free());
}

#[test]
fn what_a_lost_path_leaves_is_taken_back_through_another_unless_it_guards() {
    let (reservations, ports) = reserving();
    for fenced in [false, true] {
        let [a, b] = [0, 1].map(|port| reserved(&ports[port]));
        let connection = a.connect(LONG).unwrap();
        let key = connection.fence_key().unwrap();
        let mut queue = connection.open().unwrap();
        lose(&mut *queue);
        drop(queue);
        if fenced {
            b.fence(key, LONG).unwrap();
        }
        // Only the other path is closed, as if this one could not reach the target.
        b.close(LONG);
        b.close(LONG);
        assert!(!reservations.keys().contains(&key));
        assert_eq!(reservations.keys().len(), usize::from(fenced), "{fenced}");
        assert_eq!(reservations.is_free(), !fenced);
        // The lost session has ended at the target: no fence is needed any more.
        a.close(LONG);
        b.close(LONG);
        assert_eq!(reservations.keys(), Vec::<u64>::new());
        assert!(reservations.is_free());
    }
}

#[test]
fn what_a_process_that_died_has_left_is_taken_back_by_the_next() {
    let (reservations, ports) = reserving();
    let status = std::process::Command::new(test_support::example("die_registered"))
        .arg(&ports[0].uri)
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(!status.success(), "it aborts");
    let left = reservations.keys();
    assert_eq!(left.len(), 1);
    // A foreign registration stays.
    let mut data = [0; 24];
    data[8..16].copy_from_slice(&7u64.to_be_bytes());
    let mut register = [0; 16];
    register[1] = 6;
    reservations.change(([9; 6], 0), &register, &data);
    let path = reserved(&ports[1]);
    let connection = path.connect(LONG).unwrap();
    let own = connection.fence_key().unwrap();
    // Without a machine ID, no process recognizes what another one has left.
    let machine = std::fs::read_to_string("/etc/machine-id");
    if machine.is_ok_and(|id| !id.trim().is_empty()) {
        assert_eq!(reservations.keys(), [7, own]);
    } else {
        assert_eq!(reservations.keys(), [left[0], 7, own]);
    }
    drop(connection);
    assert!(reservations.is_free());
}
