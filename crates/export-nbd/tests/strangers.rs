//! Limits on the resources that stalled or unauthenticated clients can take from other clients.

use block::{BlockDevice, Error, Queue};
use block_testing::{Mem, MemConfig};
use export_nbd::{Config, Export, Limits, Listen, Server};
use nbd_client::Client;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SIZE: u64 = 64 << 20;
const WITHIN: Duration = Duration::from_secs(30);
/// Commands and flags as encoded in the protocol.
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const ZEROES: u16 = 6;
const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const DF: u16 = 4;

struct Bench {
    _folder: tempfile::TempDir,
    socket: PathBuf,
    _server: Server,
}

fn serve(device: Arc<dyn BlockDevice>, threads: usize, limits: Limits) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let export = Export {
        name: "e".into(),
        description: String::new(),
        device,
        read_only: false,
    };
    let config = Config {
        listen: vec![Listen::Unix(socket.clone())],
        threads,
        limits,
        ..Config::default()
    };
    Bench {
        _folder: folder,
        _server: Server::start(config, vec![export]).unwrap(),
        socket,
    }
}

fn memory() -> Arc<dyn BlockDevice> {
    Arc::new(Mem::new(SIZE, 512))
}

fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    stream
}

/// Opens a connection with the export chosen by the old-style option.
fn chosen(socket: &Path) -> UnixStream {
    let mut stream = connect(socket);
    let mut negotiation = 3u32.to_be_bytes().to_vec();
    negotiation.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\x01e");
    stream.write_all(&negotiation).unwrap();
    // The greeting, then size and flags of the export.
    stream.read_exact(&mut [0; 18 + 10]).unwrap();
    stream
}

fn header(command: u16, flags: u16, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(7u64.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

/// Returns the error of the next reply.
fn answer(stream: &mut UnixStream) -> u32 {
    let mut reply = [0; 16];
    stream.read_exact(&mut reply).unwrap();
    u32::from_be_bytes(reply[4..8].try_into().unwrap())
}

fn is_served(socket: &Path) {
    let mut client = Client::connect(socket, "e").unwrap();
    client.write_at(4096, &[3; 4096]).unwrap();
    let mut back = [0; 4096];
    client.read_at(4096, &mut back).unwrap();
    assert_eq!(back, [3; 4096]);
}

/// Waits until the server has closed the connection.
fn is_closed(stream: &mut UnixStream) {
    let started = Instant::now();
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return,
            Err(e) => panic!("it is still open: {e}"),
        }
        assert!(started.elapsed() < WITHIN, "it is still open");
    }
}

#[test]
fn connections_that_choose_nothing_keep_no_client_out() {
    let bench = serve(memory(), 2, Limits::default());
    let idle: Vec<UnixStream> = (0..600).map(|_| connect(&bench.socket)).collect();
    is_served(&bench.socket);
    drop(idle);
}

#[test]
fn a_negotiation_has_a_time_limit_and_an_idle_session_has_none() {
    let limits = Limits {
        handshake: Duration::from_millis(200),
        stall: Duration::from_millis(200),
        ..Limits::default()
    };
    let bench = serve(memory(), 1, limits);
    let mut session = chosen(&bench.socket);
    let mut silent = connect(&bench.socket);
    let mut slow = connect(&bench.socket);
    slow.write_all(&3u32.to_be_bytes()[..3]).unwrap();
    is_closed(&mut silent);
    is_closed(&mut slow);
    session.write_all(&header(FLUSH, 0, 0, 0)).unwrap();
    assert_eq!(answer(&mut session), 0);
}

#[test]
fn headers_without_payload_and_unread_replies_starve_no_client() {
    let bench = serve(memory(), 1, Limits::default());
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut writer = chosen(&bench.socket);
        let mut bytes = header(WRITE, 0, 0, 32 << 20);
        bytes.extend([1; 100]);
        writer.write_all(&bytes).unwrap();
        let mut reader = chosen(&bench.socket);
        for _ in 0..4 {
            reader.write_all(&header(0, 0, 0, 32 << 20)).unwrap();
        }
        held.extend([writer, reader]);
    }
    for _ in 0..8 {
        is_served(&bench.socket);
    }
    drop(held);
}

#[test]
fn a_payload_that_stands_still_ends_its_connection() {
    let limits = Limits {
        stall: Duration::from_millis(200),
        ..Limits::default()
    };
    let bench = serve(memory(), 1, limits);
    let mut writer = chosen(&bench.socket);
    let mut bytes = header(WRITE, 0, 0, 1 << 20);
    bytes.extend([1; 100]);
    writer.write_all(&bytes).unwrap();
    is_closed(&mut writer);
    let mut reader = chosen(&bench.socket);
    reader.write_all(&header(0, 0, 0, 32 << 20)).unwrap();
    // The reply is read only after the server has given up; only the part sent before is available.
    let closed = |stream: &UnixStream| {
        let fd = rustix::event::PollFd::new(stream, rustix::event::PollFlags::HUP);
        let mut fds = [fd];
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        rustix::event::poll(&mut fds, Some(&now)).unwrap() > 0
    };
    let started = Instant::now();
    while !closed(&reader) {
        assert!(started.elapsed() < WITHIN, "the reader is still served");
        std::thread::sleep(Duration::from_millis(5));
    }
    is_served(&bench.socket);
}

#[test]
fn large_writes_of_many_clients_all_end() {
    let bench = serve(memory(), 1, Limits::default());
    std::thread::scope(|scope| {
        for number in 0..6u8 {
            let socket = &bench.socket;
            scope.spawn(move || {
                let mut stream = chosen(socket);
                for _ in 0..3 {
                    stream.write_all(&header(WRITE, 0, 0, 32 << 20)).unwrap();
                    stream.write_all(&vec![number; 32 << 20]).unwrap();
                    assert_eq!(answer(&mut stream), 0);
                }
            });
        }
    });
}

#[test]
fn trim_and_zeroes_with_fua_are_answered_at_once_and_unknown_flags_are_refused() {
    let bench = serve(memory(), 1, Limits::default());
    let mut stream = chosen(&bench.socket);
    for (command, flags, error) in [
        (TRIM, FUA, 0),
        (ZEROES, FUA | NO_HOLE, 0),
        (TRIM, 1 << 9, 22),
        (TRIM, NO_HOLE, 22),
        (FLUSH, DF, 22),
        (FLUSH, 0, 0),
    ] {
        stream
            .write_all(&header(
                command,
                flags,
                0,
                4096 * u32::from(command != FLUSH),
            ))
            .unwrap();
        assert_eq!(answer(&mut stream), error, "{command} {flags:#x}");
    }
    // The payload of a refused write is skipped.
    let mut write = header(WRITE, 1 << 15, 0, 4096);
    write.extend([1; 4096]);
    write.extend(header(FLUSH, 0, 0, 0));
    stream.write_all(&write).unwrap();
    assert_eq!((answer(&mut stream), answer(&mut stream)), (22, 0));
}

#[test]
fn requests_are_split_to_what_the_device_takes() {
    for max_transfer in [512, 4096, 12_288, 64 << 10] {
        let device = Mem::with(MemConfig {
            max_transfer,
            ..MemConfig::new(SIZE, 512)
        });
        let bench = serve(Arc::new(device), 1, Limits::default());
        let mut client = Client::connect(&bench.socket, "e").unwrap();
        let data: Vec<u8> = (0..1u32 << 20).map(|n| (n / 512 % 251) as u8).collect();
        client.write_at(512, &data).unwrap();
        let mut back = vec![0; data.len()];
        client.read_at(512, &mut back).unwrap();
        assert!(back == data, "{max_transfer}");
    }
}

/// A device whose first queue fails after its first request.
struct OneBadQueue {
    mem: Mem,
    opened: AtomicUsize,
}

impl BlockDevice for OneBadQueue {
    fn info(&self) -> &block::DeviceInfo {
        self.mem.info()
    }

    fn queue(&self) -> block::Result<Box<dyn Queue>> {
        let queue = self.mem.queue()?;
        match self.opened.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(Box::new(BadQueue(queue))),
            _ => Ok(queue),
        }
    }
}

struct BadQueue(Box<dyn Queue>);

impl Queue for BadQueue {
    fn info(&self) -> &block::DeviceInfo {
        self.0.info()
    }

    fn capacity(&self) -> usize {
        self.0.capacity()
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn submit(&mut self, request: block::Request) -> Result<(), block::Request> {
        self.0.submit(request)
    }

    fn kick(&mut self) -> block::Result<()> {
        Ok(())
    }

    fn reap(
        &mut self,
        wait: block::Wait,
        done: &mut Vec<block::Completion>,
    ) -> block::Result<usize> {
        match self.0.in_flight() {
            0 => self.0.reap(wait, done),
            _ => Err(Error::new(block::ErrorKind::Io, "bad", "the ring is gone")),
        }
    }

    fn wait_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.0.wait_fd()
    }
}

#[test]
fn a_worker_that_lost_its_queue_gets_no_more_connections() {
    let device = OneBadQueue {
        mem: Mem::new(SIZE, 512),
        opened: AtomicUsize::new(0),
    };
    let bench = serve(Arc::new(device), 2, Limits::default());
    // One of the first two connections goes to the failed worker, and is closed.
    let mut served = 0;
    for _ in 0..2 {
        let mut stream = chosen(&bench.socket);
        stream.write_all(&header(FLUSH, 0, 0, 0)).unwrap();
        let mut reply = [0; 16];
        served += usize::from(stream.read_exact(&mut reply).is_ok());
    }
    assert_eq!(served, 1);
    for _ in 0..6 {
        is_served(&bench.socket);
    }
}
