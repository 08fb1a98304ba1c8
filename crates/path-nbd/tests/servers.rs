//! The path against real servers: `qemu-nbd` and `nbdkit`, over Unix sockets, TCP and TLS.

use block::{BlockDevice, Buf, ErrorKind, Op, Queue, Request, Wait};
use block_testing::conformance;
use lunpath::{Lunpath, PathQueue};
use path_nbd::{NbdDevice, NbdPath, NbdUri, Options};
use std::cell::RefCell;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_secs(20);

/// A server process, killed on drop.
struct Peer {
    child: Child,
    uri: String,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(program: &str, args: &[&str], uri: String) -> Peer {
    try_spawn(program, args, uri).unwrap_or_else(|ended| panic!("{program} {args:?}: {ended}"))
}

/// Starts `nbdkit` on a free local port. The port is an argument; if another process has taken it
/// in between, `nbdkit` exits, and another port is tried.
fn nbdkit_at(args: &[&str], uri: impl Fn(u16) -> String) -> (Peer, u16) {
    let tries = (0..10).find_map(|_| {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let number = port.to_string();
        let all = [&["-f", "-i", "127.0.0.1", "-p", &number], args].concat();
        Some((try_spawn("nbdkit", &all, uri(port)).ok()?, port))
    });
    tries.unwrap_or_else(|| panic!("nbdkit {args:?} does not start"))
}

/// Starts a server and waits until it answers. Returns its exit status if it ends before.
fn try_spawn(program: &str, args: &[&str], uri: String) -> Result<Peer, ExitStatus> {
    let child = Command::new(test_support::installed(program))
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut peer = Peer { child, uri };
    let until = Instant::now() + WITHIN;
    while path(&peer.uri).identify(Duration::from_secs(1)).is_err() {
        if let Some(ended) = peer.child.try_wait().unwrap() {
            return Err(ended);
        }
        assert!(Instant::now() < until, "{program} does not answer");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(peer)
}

fn path(uri: &str) -> NbdPath {
    NbdPath::new(NbdUri::parse(uri).unwrap(), Options::default())
}

fn device(uri: &str) -> Arc<dyn BlockDevice> {
    Arc::new(NbdDevice::open(path(uri), WITHIN).unwrap())
}

fn file(dir: &Path, name: &str, bytes: u64) -> String {
    let path = dir.join(name);
    std::fs::File::create(&path)
        .unwrap()
        .set_len(bytes)
        .unwrap();
    path.display().to_string()
}

fn qemu_nbd(dir: &Path, name: &str) -> Peer {
    let image = file(dir, name, 16 << 20);
    let socket = format!("{image}.sock");
    let uri = format!("nbd+unix:///e?socket={socket}");
    let wwid = format!("wwid=naa.{name}");
    let args = [
        "-f",
        "raw",
        "-x",
        "e",
        "-D",
        &wwid,
        "--shared=0",
        "-t",
        "-k",
        &socket,
        &image,
        "--discard=unmap",
    ];
    spawn("qemu-nbd", &args, uri)
}

fn nbdkit(dir: &Path, name: &str, filters: &[&str], after: &[&str]) -> Peer {
    let image = file(dir, name, 16 << 20);
    let args = [filters, &["file", &image], after].concat();
    nbdkit_at(&args, |port| format!("nbd://127.0.0.1:{port}/")).0
}

/// Runs the conformance suite. The suite needs a fresh device each time, so each gets a server.
fn conforms(make: impl Fn(usize) -> Peer) {
    let peers = RefCell::new(Vec::new());
    conformance::run(&|| {
        let count = peers.borrow().len();
        peers.borrow_mut().push(make(count));
        device(&peers.borrow()[count].uri)
    });
}

#[test]
fn qemu_nbd_conforms() {
    let dir = TempDir::new().unwrap();
    conforms(|n| qemu_nbd(dir.path(), &format!("d{n}")));
}

#[test]
fn nbdkit_conforms_with_and_without_what_it_offers() {
    let dir = TempDir::new().unwrap();
    conforms(|n| nbdkit(dir.path(), &format!("a{n}"), &[], &[]));
    // No FUA, trim, write zeroes or structured replies: the client emulates all of them.
    conforms(|n| {
        let filters = ["--no-sr", "--filter=nozero", "--filter=fua"];
        nbdkit(dir.path(), &format!("b{n}"), &filters, &["zeromode=none"])
    });
    conforms(|n| {
        let filters = ["--filter=blocksize-policy"];
        let after = [
            "blocksize-minimum=4096",
            "blocksize-maximum=65536",
            "blocksize-error-policy=error",
        ];
        nbdkit(dir.path(), &format!("c{n}"), &filters, &after)
    });
}

#[test]
fn tls_conforms_and_strangers_are_refused() {
    let dir = TempDir::new().unwrap();
    let certs = certificates(dir.path());
    let tls = format!("--tls-certificates={certs}");
    let image = file(dir.path(), "tls", 16 << 20);
    let args = ["--tls=require", &tls, "file", &image];
    let (peer, port) = nbdkit_at(&args, |port| {
        format!("nbds://127.0.0.1:{port}/?tls-certificates={certs}")
    });
    conformance::run(&|| device(&peer.uri));
    let clear = path(&format!("nbd://127.0.0.1:{port}/"));
    let error = clear.identify(WITHIN).unwrap_err().to_string();
    assert!(error.contains("nbds://"), "{error}");
    let stranger = TempDir::new().unwrap();
    let other = certificates(stranger.path());
    let untrusted = path(&format!(
        "nbds://127.0.0.1:{port}/?tls-certificates={other}"
    ));
    assert_eq!(
        untrusted.identify(WITHIN).unwrap_err().kind(),
        ErrorKind::PathLost
    );
}

/// Creates a CA and a server certificate under the file names that nbdkit expects.
fn certificates(dir: &Path) -> String {
    test_support::tls::create_authority(dir);
    test_support::tls::create_certificate(dir, "server", "IP:127.0.0.1");
    dir.display().to_string()
}

#[test]
fn identity_comes_from_the_description() {
    let dir = TempDir::new().unwrap();
    let qemu = qemu_nbd(dir.path(), "5000c500");
    let identity = path(&qemu.uri).identify(WITHIN).unwrap();
    assert_eq!(identity.wwid.as_deref(), Some("naa.5000c500"));
    assert_eq!((identity.size, identity.read_only), (16 << 20, false));
    let description = "exportdesc=fixed:wwid=naa.77,serial=S1 a disk";
    let kit = nbdkit(
        dir.path(),
        "kit",
        &["-r", "--filter=exportname"],
        &[description],
    );
    let identity = path(&kit.uri).identify(WITHIN).unwrap();
    assert_eq!(identity.wwid.as_deref(), Some("naa.77"));
    assert_eq!(identity.serial.as_deref(), Some("S1"));
    assert!(identity.read_only);
    let error = path(&qemu.uri.replace("/e?", "/f?"))
        .identify(WITHIN)
        .unwrap_err();
    assert!(error.to_string().contains("`f`"), "{error}");
}

fn queue(peer: &Peer) -> Box<dyn PathQueue> {
    path(&peer.uri).connect(WITHIN).unwrap().open().unwrap()
}

fn read(tag: u64, offset: u64, len: usize) -> Request {
    let bufs = Buf::zeroed(len).into();
    Request {
        tag,
        op: Op::Read { offset, bufs },
    }
}

fn write(tag: u64, offset: u64, byte: u8, len: usize) -> Request {
    let mut buf = Buf::zeroed(len);
    buf.fill(byte);
    let op = Op::Write {
        offset,
        bufs: buf.into(),
        fua: false,
    };
    Request { tag, op }
}

fn reap_all(queue: &mut dyn Queue) -> Vec<block::Completion> {
    let mut done = Vec::new();
    let until = Instant::now() + WITHIN;
    while queue.in_flight() > 0 {
        assert!(Instant::now() < until, "{} in flight", queue.in_flight());
        queue
            .reap(Wait::AtMost(Duration::from_millis(100)), &mut done)
            .unwrap();
    }
    done
}

#[test]
fn a_killed_server_ends_everything_in_flight_and_everything_later() {
    let dir = TempDir::new().unwrap();
    let mut peer = qemu_nbd(dir.path(), "killed");
    let mut queue = queue(&peer);
    signal(&peer, "STOP");
    for tag in 0..20 {
        queue.submit(write(tag, tag << 16, 7, 65536)).unwrap();
    }
    queue.kick().unwrap();
    peer.child.kill().unwrap();
    let done = reap_all(&mut *queue);
    assert_eq!(done.len(), 20);
    for completion in done {
        assert_eq!(completion.result.unwrap_err().kind(), ErrorKind::PathLost);
    }
    queue.submit(read(99, 0, 4096)).unwrap();
    let done = reap_all(&mut *queue);
    assert_eq!(
        done[0].result.as_ref().unwrap_err().kind(),
        ErrorKind::PathLost
    );
    let error = path(&peer.uri).connect(WITHIN).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PathLost);
}

fn signal(peer: &Peer, name: &str) {
    let pid = peer.child.id().to_string();
    let status = Command::new("kill")
        .args(["-s", name, &pid])
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn what_is_taken_back_is_ours_and_its_late_answer_touches_nothing() {
    let dir = TempDir::new().unwrap();
    let peer = qemu_nbd(dir.path(), "late");
    let mut queue = queue(&peer);
    queue.submit(write(1, 0, 0x11, 1 << 20)).unwrap();
    assert!(reap_all(&mut *queue)[0].result.is_ok());
    signal(&peer, "STOP");
    // More than the socket accepts: some are sent, one is sent in part, some stay queued.
    queue.submit(read(2, 0, 1 << 20)).unwrap();
    for tag in 10..30 {
        queue
            .submit(write(tag, (tag % 8) << 20, 0x22, 1 << 20))
            .unwrap();
    }
    queue.submit(read(3, 4096, 8192)).unwrap();
    queue.kick().unwrap();
    let mut back = Vec::new();
    for tag in (10..30).chain([2, 3]) {
        let request = queue.withdraw(tag).unwrap();
        assert_eq!(request.tag, tag);
        back.push(request);
    }
    assert_eq!(queue.in_flight(), 0);
    assert!(queue.withdraw(2).is_none());
    let mut late = Vec::new();
    queue.drain_late(&mut late);
    assert!(
        late.contains(&3) && !late.contains(&2),
        "never sent, sent: {late:?}"
    );
    signal(&peer, "CONT");
    queue.submit(read(4, 4096, 8192)).unwrap();
    let done = reap_all(&mut *queue);
    assert!(done[0].result.is_ok(), "the stream stays in step");
    let until = Instant::now() + WITHIN;
    while late.len() < 22 {
        assert!(Instant::now() < until, "late answers: {late:?}");
        queue.reap(Wait::Poll, &mut Vec::new()).unwrap();
        queue.drain_late(&mut late);
        std::thread::sleep(Duration::from_millis(5));
    }
    for request in back {
        if let Op::Read { bufs, .. } = request.op {
            assert!(bufs.iter().all(|b| b.iter().all(|&x| x == 0)));
        }
    }
}

#[test]
fn errors_of_the_server_come_with_its_words() {
    let dir = TempDir::new().unwrap();
    let filters = ["--filter=error"];
    for (errno, kind) in [
        ("EIO", ErrorKind::Io),
        ("ENOSPC", ErrorKind::NoSpace),
        ("ESHUTDOWN", ErrorKind::PathLost),
    ] {
        let after = [&*format!("error-pwrite={errno}"), "error-pwrite-rate=100%"];
        let peer = nbdkit(dir.path(), errno, &filters, &after);
        let mut queue = queue(&peer);
        queue.submit(write(1, 0, 1, 4096)).unwrap();
        queue.submit(read(2, 0, 4096)).unwrap();
        for completion in reap_all(&mut *queue) {
            match completion.tag {
                1 => assert_eq!(completion.result.unwrap_err().kind(), kind, "{errno}"),
                _ => assert!(completion.result.is_ok()),
            }
        }
    }
}
