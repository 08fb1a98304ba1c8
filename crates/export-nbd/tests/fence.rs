//! End-to-end tests of the fence: a request of a lost connection is carried out before the fence is
//! answered, or never.

mod common;

use block::{BlockDevice, Blocking, Buf, ErrorKind, Op, Queue, Request, Wait};
use block_testing::Random;
use common::{Forwarder, Gate};
use export_nbd::{Config, Export, Listen, Server};
use lunpath::Lunpath;
use nbd_proto::client::{ClientHandshake, ClientOptions, ClientStep, request};
use nbd_proto::constants as c;
use path_nbd::{NbdDevice, NbdPath, NbdUri, Options};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(20);
const BLOCK: usize = 512;
const SIZE: u64 = 1 << 20;
/// Maximum number of requests of one connection in the server.
const REQUESTS_MAX: usize = 128;
/// Threads of the server: an odd number, so that sessions and fences are served by the same worker
/// and by different ones.
const THREADS: usize = 3;

struct Bench {
    gate: Arc<Gate>,
    server: Server,
    address: SocketAddr,
    path: Arc<NbdPath>,
}

fn bench() -> Bench {
    let gate = Arc::new(Gate::new(SIZE));
    let export = |name: &str| Export {
        name: name.into(),
        description: String::new(),
        device: Arc::clone(&gate) as Arc<dyn BlockDevice>,
        read_only: false,
    };
    let config = Config {
        listen: vec![Listen::Tcp("127.0.0.1:0".parse().unwrap())],
        threads: THREADS,
        ..Config::default()
    };
    let server = Server::start(config, vec![export("e"), export("other")]).unwrap();
    let Listen::Tcp(address) = server.addresses()[0] else {
        panic!("it listens on TCP")
    };
    Bench {
        gate,
        path: Arc::new(path(address, "e")),
        address,
        server,
    }
}

fn path(address: SocketAddr, export: &str) -> NbdPath {
    let uri = NbdUri::parse(&format!("nbd://{address}/{export}")).unwrap();
    NbdPath::new(uri, Options::default())
}

/// Runs a fence on its own thread, and returns a channel for its result.
fn fence(path: &Arc<NbdPath>, key: u64) -> Receiver<block::Result<()>> {
    let (tell, told) = channel();
    let path = Arc::clone(path);
    std::thread::spawn(move || tell.send(path.fence(key, WITHIN)));
    told
}

/// Returns once every thread of the server has served a connection that was made after all earlier
/// events.
fn come_round(bench: &Bench) {
    for _ in 0..3 * THREADS {
        raw(bench.address, u64::MAX).unwrap();
    }
}

/// Checks that a fence has reached the server and is unanswered, although the server has served
/// later connections.
fn waits(bench: &Bench, key: u64, told: &Receiver<block::Result<()>>) {
    wait_until("the key is fenced", || raw(bench.address, key).is_err());
    come_round(bench);
    assert!(
        matches!(told.try_recv(), Err(TryRecvError::Empty)),
        "it waits"
    );
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + WITHIN;
    while !holds() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Opens a connection of the path, and returns its queue and its key.
fn session(path: &NbdPath) -> (Box<dyn Queue>, u64) {
    let connection = path.connect(WITHIN).unwrap();
    let key = connection.fence_key().expect("the server takes the key");
    (connection.open().unwrap(), key)
}

fn write(queue: &mut dyn Queue, block: u64, len: usize, byte: u8) {
    let op = Op::Write {
        offset: block * BLOCK as u64,
        bufs: Buf::copy_of(&vec![byte; len]).into(),
        fua: false,
    };
    queue.submit(Request { tag: block, op }).unwrap();
    queue.kick().unwrap();
}

/// Connects a client with a plain socket, and negotiates under a key.
fn raw(address: SocketAddr, key: u64) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(WITHIN))?;
    let name = format!("evfs:session:{key:016x}");
    let mut handshake = ClientHandshake::new(ClientOptions {
        export: "e".into(),
        contexts: vec![name.clone()],
        ..ClientOptions::default()
    });
    let mut input = Vec::new();
    loop {
        stream.write_all(&handshake.take_output())?;
        if let Some(ClientStep::Transmission(export)) = handshake.outcome() {
            assert_eq!(export.contexts, [name]);
            return Ok(stream);
        }
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        input.push(byte[0]);
        let used = handshake.handle_input(&input).unwrap();
        input.drain(..used);
    }
}

fn message(block: usize, byte: u8) -> Vec<u8> {
    let offset = (block * BLOCK) as u64;
    let mut message = request(c::CMD_WRITE, 0, block as u64, offset, BLOCK as u32).to_vec();
    message.extend([byte; BLOCK]);
    message
}

/// Counts the blocks that are filled with a byte.
fn holding(gate: &Gate, byte: u8) -> usize {
    let all = gate.mem.to_vec();
    all.chunks(BLOCK)
        .filter(|b| b.iter().all(|x| *x == byte))
        .count()
}

#[test]
fn a_fence_waits_for_the_write_that_is_being_carried_out() {
    let bench = bench();
    for other_way in [
        Arc::clone(&bench.path),
        Arc::new(path(bench.address, "other")),
    ] {
        bench.gate.mem.poke_zeroes(0, SIZE);
        let (mut queue, key) = session(&bench.path);
        bench.gate.close();
        write(queue.as_mut(), 3, BLOCK, 0xaa);
        wait_until("the write is with the device", || bench.gate.waiting() == 1);
        let told = fence(&other_way, key);
        waits(&bench, key, &told);
        assert_eq!(holding(&bench.gate, 0xaa), 0);
        bench.gate.open();
        told.recv_timeout(WITHIN).unwrap().unwrap();
        assert_eq!(holding(&bench.gate, 0xaa), 1, "answered after the write");
        let mut done = Vec::new();
        queue.reap(Wait::AtMost(WITHIN), &mut done).unwrap();
        let error = done[0].result.as_ref().unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::PathLost,
            "its connection is closed"
        );
    }
}

#[test]
fn a_fence_waits_for_the_write_of_a_client_that_has_left() {
    let bench = bench();
    let mut stream = raw(bench.address, 5).unwrap();
    bench.gate.close();
    stream.write_all(&message(1, 0xaa)).unwrap();
    wait_until("the write is with the device", || bench.gate.waiting() == 1);
    // Protocol error: the server closes at once, while the write is still in progress.
    stream.write_all(&[0; 28]).unwrap();
    wait_until("closed", || bench.server.connections() == 0);
    let told = fence(&bench.path, 5);
    waits(&bench, 5, &told);
    bench.gate.open();
    told.recv_timeout(WITHIN).unwrap().unwrap();
    assert_eq!(holding(&bench.gate, 0xaa), 1);
}

#[test]
fn a_fence_fails_when_the_device_does_not_answer_and_may_be_tried_again() {
    let bench = bench();
    let (mut queue, key) = session(&bench.path);
    bench.gate.close();
    write(queue.as_mut(), 0, BLOCK, 0xaa);
    wait_until("the write is with the device", || bench.gate.waiting() == 1);
    let error = bench.path.fence(key, WITHIN).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let told = fence(&bench.path, key);
    bench.gate.open();
    told.recv_timeout(WITHIN).unwrap().unwrap();
}

#[test]
fn what_the_server_has_not_read_is_never_carried_out() {
    const SENT: usize = 400;
    let bench = bench();
    bench.gate.close();
    let mut stream = raw(bench.address, 5).unwrap();
    for block in 0..SENT {
        stream.write_all(&message(block, 0xaa)).unwrap();
    }
    let last = message(SENT, 0xaa);
    stream.write_all(&last[..100]).unwrap();
    wait_until("no more is taken", || bench.gate.waiting() == REQUESTS_MAX);
    let told = fence(&bench.path, 5);
    waits(&bench, 5, &told);
    bench.gate.open();
    told.recv_timeout(WITHIN).unwrap().unwrap();
    assert_eq!(holding(&bench.gate, 0xaa), REQUESTS_MAX);
    bench.gate.mem.poke(0, &vec![0xbb; SIZE as usize]);
    let _ = stream.write_all(&last[100..]);
    // Reads until the end, after which the server accepts nothing.
    let _ = stream.read_to_end(&mut Vec::new());
    assert_eq!(holding(&bench.gate, 0xbb), SIZE as usize / BLOCK);
}

#[test]
fn half_a_request_never_becomes_a_whole_one() {
    let bench = bench();
    let whole = message(7, 0xaa);
    for (key, cut) in [0, 1, 27, 28, 29, 300, whole.len() - 1]
        .into_iter()
        .enumerate()
    {
        let mut stream = raw(bench.address, key as u64).unwrap();
        stream.write_all(&whole[..cut]).unwrap();
        // The server has received this part.
        come_round(&bench);
        bench.path.fence(key as u64, WITHIN).unwrap();
        let _ = stream.write_all(&whole[cut..]);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, Vec::<u8>::new(), "cut after {cut}");
        assert_eq!(
            holding(&bench.gate, 0),
            SIZE as usize / BLOCK,
            "cut after {cut}"
        );
    }
}

#[test]
fn of_unknown_keys_nothing_is_promised_and_fenced_keys_never_connect() {
    let bench = bench();
    // It may be the key of a session with another server.
    for _ in 0..2 {
        let error = bench.path.fence(5, WITHIN).unwrap_err();
        assert_eq!(error.kind(), block::ErrorKind::Unsupported);
    }
    for _ in 0..4 {
        assert!(raw(bench.address, 5).is_err());
    }
    let (mut queue, key) = session(&bench.path);
    bench.path.fence(key, WITHIN).unwrap();
    assert!(raw(bench.address, key).is_err());
    let mut done = Vec::new();
    write(queue.as_mut(), 0, BLOCK, 0xaa);
    queue.reap(Wait::AtMost(WITHIN), &mut done).unwrap();
    assert!(done[0].result.is_err());
    assert_eq!(holding(&bench.gate, 0xaa), 0);
    // Other keys are unaffected.
    raw(bench.address, 6).unwrap();
}

#[test]
fn sessions_of_one_key_end_together_and_others_go_on() {
    let bench = bench();
    let mut ended: Vec<TcpStream> = (0..5).map(|_| raw(bench.address, 5).unwrap()).collect();
    let mut other = raw(bench.address, 6).unwrap();
    bench.path.fence(5, WITHIN).unwrap();
    for stream in &mut ended {
        assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)));
    }
    other.write_all(&message(0, 0xaa)).unwrap();
    other.read_exact(&mut [0; 20]).unwrap();
    assert_eq!(holding(&bench.gate, 0xaa), 1);
}

#[test]
fn a_connection_may_fence_its_own_key_and_is_then_refused() {
    let bench = bench();
    let mut stream = TcpStream::connect(bench.address).unwrap();
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    let mut handshake = ClientHandshake::new(ClientOptions {
        contexts: vec![
            "evfs:session:0000000000000005".into(),
            "evfs:fence:0000000000000005".into(),
        ],
        ..ClientOptions::default()
    });
    let mut bytes = [0; 4096];
    loop {
        stream.write_all(&handshake.take_output()).unwrap();
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(n) => assert_eq!(handshake.handle_input(&bytes[..n]), Ok(n)),
        }
    }
    assert_eq!(handshake.outcome(), None);
}

#[test]
fn late_bytes_never_overwrite_what_came_after_the_fence() {
    const ROUNDS: u64 = 100;
    const LEN: usize = 4096;
    let bench = bench();
    let device = NbdDevice::open(path(bench.address, "other"), WITHIN).unwrap();
    let mut good = Blocking::open(&device).unwrap();
    let mut random = Random::new(1);
    for round in 0..ROUNDS {
        let forwarder = Forwarder::new(bench.address);
        let (mut lost, key) = session(&path(forwarder.address, "e"));
        let (old, new) = (round as u8 | 0x80, round as u8 & 0x7f);
        let writes = 1 + random.below(60);
        let bytes = writes * (28 + LEN as u64);
        forwarder.hold_after(random.below(bytes + 1) as usize);
        bench.gate.close();
        for write_number in 0..writes {
            write(lost.as_mut(), write_number * (LEN / BLOCK) as u64, LEN, old);
        }
        std::thread::sleep(Duration::from_millis(random.below(8)));
        let told = fence(&bench.path, key);
        std::thread::sleep(Duration::from_millis(random.below(8)));
        bench.gate.open();
        told.recv_timeout(WITHIN).unwrap().unwrap();
        let data = vec![new; writes as usize * LEN];
        good.write_at(0, &data).unwrap();
        forwarder.release();
        let mut now = vec![0; data.len()];
        bench.gate.mem.peek(0, &mut now);
        assert!(now == data, "round {round}: an old write came late");
        drop(lost);
    }
    // Requests that might still have been in transit had the time of all later rounds to arrive.
    wait_until("all are gone", || bench.server.connections() == 1);
}
