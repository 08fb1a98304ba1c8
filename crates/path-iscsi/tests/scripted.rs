//! The path against a target that misbehaves on demand.

#[path = "scripted/mod.rs"]
mod target;

use block::{Buf, ErrorKind, Lunpath, Op, Queue, Request, Result, Wait};
use path_iscsi::{DigestPolicy, IscsiPath, Options};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::{Duration, Instant};
use target::{Manner, Reply, Script, Scripted, start, start_moved};

const LONG: Duration = Duration::from_secs(20);

fn queue_with(target: &Scripted, options: Options) -> Box<dyn Queue> {
    let path = IscsiPath::parse(&target.uri, options).unwrap();
    path.connect(LONG).unwrap().open().unwrap()
}

fn scripted(script: impl FnMut(&[u8; 16]) -> Reply + Send + 'static) -> (Scripted, Box<dyn Queue>) {
    let target = start(Manner::default(), Box::new(script));
    let queue = queue_with(&target, Options::default());
    (target, queue)
}

/// A script of replies to the first commands; what follows is good.
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

fn write(fua: bool) -> Op {
    Op::Write {
        offset: 0,
        bufs: Buf::zeroed(4096).into(),
        fua,
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
        (&[0x72, 2, 0x04, 0x0b], ErrorKind::PathLost),
        (&[0x72, 4, 0x44, 0], ErrorKind::Io),
    ] {
        let got = kind_after(write(false), Reply::Status(2, 0, sense));
        assert_eq!(got, Some(kind), "{sense:?}");
    }
    let conflict = kind_after(write(false), Reply::Status(0x18, 0, &[]));
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
    assert_eq!(kind_after(write(false), recovered), None);
}

#[test]
fn a_busy_target_is_asked_again_after_the_delay_it_names() {
    let (target, mut queue) = scripted(first(vec![Reply::Status(8, 2, &[])]));
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
    // As an export does it: asleep on the descriptor, which has to tell of the end of the delay.
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
    assert!(started.elapsed() >= Duration::from_millis(200));
    assert_eq!(*target.seen.lock().unwrap(), [0x88, 0x88]);
}

#[test]
fn a_full_queue_delays_and_fails_nothing() {
    let full = || Reply::Status(0x28, 0, &[]);
    let (target, mut queue) = scripted(first((0..20).map(|_| full()).collect()));
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
fn where_a_target_lacks_a_command_another_takes_its_place() {
    // No MODE SENSE, so no FUA: a SYNCHRONIZE CACHE follows the write.
    let (target, mut queue) = scripted(|cdb| match cdb[0] {
        0x93 => Reply::Status(2, 0, &[0x72, 5, 0x20, 0]),
        _ => Reply::Good,
    });
    run(&mut *queue, write(true)).unwrap();
    assert_eq!(
        std::mem::take(&mut *target.seen.lock().unwrap()),
        [0x8a, 0x35]
    );
    // No WRITE SAME: zeros are written, and it is not tried twice.
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
    // Ten bytes only.
    let manner = Manner {
        narrow: true,
        ..Manner::default()
    };
    let target = start(manner, first(Vec::new()));
    let queue = &mut *queue_with(&target, Options::default());
    run(queue, write(false)).unwrap();
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
    // One that has moved to where nobody is.
    let nowhere = IscsiPath::parse(&start_moved("127.0.0.1:1"), Options::default()).unwrap();
    let error = nowhere.identify(LONG).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PathLost, "{error}");
}

#[test]
fn a_silent_target_is_waited_for_no_longer_than_allowed() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("iscsi://{}/iqn.x/0", listener.local_addr().unwrap());
    let path = IscsiPath::parse(&uri, Options::default()).unwrap();
    let started = Instant::now();
    let error = path.identify(Duration::from_millis(100)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(started.elapsed() < Duration::from_secs(5));
}
