//! Late writes of a fenced client never appear.

use block::{Blocking, Buf, Op, Request, Wait};
use lunpath::Lunpath;
use path_rbd::{Options, RbdPath};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use test_support::ceph::Ceph;

/// Limit for calls on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// Number and size in bytes of the blocks that both clients write.
const BLOCKS: u64 = 64;
const BLOCK: usize = 4096;
/// Bytes that the fenced client and the new one write.
const OLD: u8 = 0xaa;
const NEW: u8 = 0x55;

/// Number of rounds; `EVFS_FENCE_ROUNDS` overrides it.
fn rounds() -> u32 {
    let text = std::env::var("EVFS_FENCE_ROUNDS");
    text.map_or(10, |text| text.parse().expect("a number of rounds"))
}

/// The client that will be fenced, in a process of its own.
struct Writer {
    child: Child,
    output: BufReader<ChildStdout>,
    /// Number of the client in the cluster.
    key: u64,
}

impl Writer {
    /// Starts the client, and waits until it has overwritten all blocks.
    fn start(address: &str) -> Writer {
        let mut child = Command::new(test_support::example("rbd_writer"))
            .args([address, &BLOCKS.to_string(), &OLD.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the writer starts");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        let key = line.trim().parse();
        let key = key.unwrap_or_else(|_| panic!("the writer failed: {line}"));
        Writer { child, output, key }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the writer runs");
    }

    /// Waits until a write of the client has failed, and returns the error.
    fn error(mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        self.child.wait().expect("it ends");
        line
    }
}

/// Overwrites all blocks, many at once.
fn overwrite(path: &RbdPath) {
    let mut queue = path.connect(LONG).unwrap().open().unwrap();
    for tag in 0..BLOCKS {
        let mut buf = Buf::zeroed(BLOCK);
        buf.fill(NEW);
        let op = Op::Write {
            offset: tag * BLOCK as u64,
            bufs: buf.into(),
            fua: true,
        };
        queue.submit(Request { tag, op }).unwrap();
    }
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.reap(Wait::Block, &mut done).unwrap();
    }
    for completion in done {
        completion.result.unwrap();
    }
}

/// Counts the blocks that do not have the new content.
fn stale(device: &dyn block::BlockDevice) -> usize {
    let mut all = vec![0; BLOCKS as usize * BLOCK];
    let mut queue = Blocking::open(device).unwrap();
    queue.read_at(0, &mut all).unwrap();
    let blocks = all.chunks(BLOCK);
    blocks
        .filter(|block| block.iter().any(|byte| *byte != NEW))
        .count()
}

mod needs_peer {
    use super::*;

    #[test]
    fn late_writes_of_a_fenced_client_never_appear() {
        let ceph = Ceph::start(Path::new(env!("CARGO_TARGET_TMPDIR")), 1);
        ceph.create_image("disk", 16 << 20);
        let address = ceph.address("disk");
        let rounds = rounds();
        for round in 1..=rounds {
            let writer = Writer::start(&address);
            writer.signal(Signal::STOP);
            let new = RbdPath::parse(&address, Options::default()).unwrap();
            new.fence(writer.key, LONG).unwrap();
            overwrite(&new);
            let device = new.open(LONG).unwrap();
            assert_eq!(
                stale(&device),
                0,
                "round {round}: before the old client continues"
            );
            writer.signal(Signal::CONT);
            let error = writer.error();
            assert!(error.contains("blocklist"), "round {round}: {error}");
            assert_eq!(stale(&device), 0, "round {round}: after its last write");
            if round % 20 == 0 {
                println!("{round} rounds");
            }
        }
        println!("{rounds} of {rounds} rounds without a late write");
    }

    #[test]
    fn a_fenced_client_does_not_come_back() {
        let ceph = Ceph::start(Path::new(env!("CARGO_TARGET_TMPDIR")), 1);
        ceph.create_image("disk", 16 << 20);
        let address = ceph.address("disk");
        let path = RbdPath::parse(&address, Options::default()).unwrap();
        let connection = path.connect(LONG).unwrap();
        let key = connection.fence_key().unwrap();
        let mut queue = connection.open().unwrap();
        let mut write = |tag| {
            let op = Op::Write {
                offset: 0,
                bufs: Buf::zeroed(BLOCK).into(),
                fua: true,
            };
            queue.submit(Request { tag, op }).unwrap();
            let mut done = Vec::new();
            while done.is_empty() {
                queue.reap(Wait::Block, &mut done).unwrap();
            }
            done.remove(0).result
        };
        write(1).unwrap();
        // As an administrator, or another machine, does it.
        let watchers = ceph.rbd(&["status", "--pool", "rbd", "disk", "--format", "json"]);
        let at = watchers.find("\"address\":\"").expect("a watcher") + 11;
        let client = watchers[at..].split('"').next().unwrap();
        ceph.ceph(&["osd", "blocklist", "add", client]);
        let refused = loop {
            match write(2) {
                Ok(()) => continue,
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), block::ErrorKind::PathLost, "{refused}");
        assert!(queue.lost_reason().unwrap().contains("fenced"));
        let back = path.connect(LONG).err().expect("it was fenced");
        assert_eq!(back.kind(), block::ErrorKind::Permission, "{back}");
        assert!(back.to_string().contains("attach it again"), "{back}");
        // A new path is a new decision of the administrator.
        let again = RbdPath::parse(&address, Options::default()).unwrap();
        assert_ne!(again.connect(LONG).unwrap().fence_key(), Some(key));
    }

    #[test]
    fn a_client_that_this_process_fences_is_replaced() {
        let ceph = Ceph::start(Path::new(env!("CARGO_TARGET_TMPDIR")), 1);
        ceph.create_image("disk", 16 << 20);
        let address = ceph.address("disk");
        let path = RbdPath::parse(&address, Options::default()).unwrap();
        let connection = path.connect(LONG).unwrap();
        let key = connection.fence_key().unwrap();
        let mut queue = connection.open().unwrap();
        path.fence(key, LONG).unwrap();
        // An OSD may learn of the fence a moment later: at the latest with the first request of the
        // client that takes the lock next.
        while queue.lost_reason().is_none() {
            let op = Op::Write {
                offset: 0,
                bufs: Buf::zeroed(BLOCK).into(),
                fua: true,
            };
            queue.submit(Request { tag: 1, op }).unwrap();
            let mut done = Vec::new();
            while done.is_empty() {
                queue.reap(Wait::Block, &mut done).unwrap();
            }
        }
        drop(queue);
        let next = path.connect(LONG).unwrap();
        assert_ne!(next.fence_key(), Some(key));
        // A client that was closed has nothing on its way, and one that never was is an error.
        path.fence(key, LONG).unwrap();
        let unknown = path.fence(1 << 60, LONG).unwrap_err();
        assert_eq!(unknown.kind(), block::ErrorKind::NotFound);
    }
}
