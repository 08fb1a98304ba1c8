//! Sends a range of a file to a socket: from the cache's pages, through a buffer, and by the kernel
//! from its own cache. Also checks the received bytes of pages that are changed once the send queue
//! is empty.

use crate::Args;
use crate::peers::{self, Cached, PAGE};
use crate::rounds::{estimate, in_turns, thread_ns};
use crate::table::{Table, interval, number};
use block::{BlockDevice, Blocking, Buf};
use block_testing::Mem;
use cache::send::{Datagrams, RangeSend, UdpSender};
use serde_json::json;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

/// Bytes of the file, sent once in a run.
const SIZE: u64 = 128 << 20;
/// Bytes of a read where a buffer is used, and of a receive.
const BUFFER: usize = 64 << 10;
const GIB: f64 = (1 << 30) as f64;

pub fn run(args: &Args) -> Vec<Table> {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(SIZE, 4096));
    fill(&*device);
    let cached = Cached::over(device, 2 * SIZE);
    cached.fill();
    let kernel = peers::kernel_file(&args.dir, SIZE);
    vec![
        stream(&cached, &kernel, args.rounds),
        datagrams(&cached, args.rounds),
        used_again(),
    ]
}

fn fill(device: &dyn BlockDevice) {
    let mut blocking = Blocking::open(device).expect("a queue");
    for at in (0..SIZE).step_by(1 << 20) {
        let block = vec![1; 1 << 20];
        blocking.write_at(at, &block).expect("nothing fails here");
    }
}

/// Milliseconds per GiB: CPU time of the sender, CPU time of the receiver, wall-clock time.
type Cost = [f64; 3];

/// A method of sending: a name, and a function that sends the whole file.
type Way<'a> = (&'static str, Box<dyn FnMut(&mut TcpStream) + 'a>);

fn stream(cached: &Cached, kernel: &File, rounds: usize) -> Table {
    let mut ways: [Way<'_>; 5] = [
        (
            "this cache, read and write",
            Box::new(|s| read_write(cached, s)),
        ),
        (
            "this cache, read and write, polled",
            Box::new(|s| read_write_polled(cached, s)),
        ),
        (
            "this cache, from its pages",
            Box::new(|s| from_pages(cached, s)),
        ),
        (
            "kernel, pread and write",
            Box::new(|s| pread_write(kernel, s)),
        ),
        ("kernel, sendfile", Box::new(|s| sendfile(kernel, s))),
    ];
    let costs = in_turns(ways.len(), rounds, |at, _| over_tcp(&mut ways[at]));
    of_ways("TCP over loopback, ms/GiB", &ways, &costs, &[0, 1, 4])
}

fn of_ways<F>(
    title: &str,
    ways: &[(&'static str, F)],
    costs: &[Vec<Cost>],
    against: &[usize],
) -> Table {
    let mut columns = vec!["".to_string()];
    columns.extend(["sender CPU", "receiver CPU", "clock"].map(String::from));
    for base in against {
        let base = ways[*base].0;
        columns.push(format!("sender CPU / that of {base}"));
        columns.push(format!("both CPUs / those of {base}"));
    }
    let mut table = Table::new(
        title,
        &columns.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    for ((name, _), cost) in ways.iter().zip(costs) {
        let of = |i: usize| estimate(&cost.iter().map(|c| c[i]).collect::<Vec<_>>()).median;
        let mut cells = vec![
            name.to_string(),
            number(of(0)),
            number(of(1)),
            number(of(2)),
        ];
        for base in against {
            let ratio = |of: fn(&Cost) -> f64| {
                let pairs = cost.iter().zip(&costs[*base]);
                interval(
                    estimate(&pairs.map(|(a, b)| of(a) / of(b)).collect::<Vec<_>>()),
                    2,
                )
            };
            cells.push(ratio(|c| c[0]));
            cells.push(ratio(|c| c[0] + c[1]));
        }
        table.push(cells, json!({ "name": name, "rounds": cost }));
    }
    table
}

fn over_tcp((_, send): &mut Way<'_>) -> Cost {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut sender =
        TcpStream::connect(listener.local_addr().expect("it has one")).expect("it listens");
    let (mut receiver, _) = listener.accept().expect("somebody comes");
    let clock = Instant::now();
    std::thread::scope(|scope| {
        let receiving = scope.spawn(move || {
            let started = thread_ns();
            let (mut buffer, mut got) = (vec![0; BUFFER], 0);
            loop {
                match receiver.read(&mut buffer).expect("the connection lives") {
                    0 => break,
                    some => got += some as u64,
                }
            }
            assert_eq!(got, SIZE);
            thread_ns() - started
        });
        let started = thread_ns();
        send(&mut sender);
        let sent = thread_ns() - started;
        drop(sender);
        let received = receiving.join().expect("no panic");
        let clock = clock.elapsed().as_nanos() as u64;
        [sent, received, clock].map(|ns| per_gib(ns, SIZE))
    })
}

fn per_gib(ns: u64, bytes: u64) -> f64 {
    ns as f64 / 1e6 / (bytes as f64 / GIB)
}

fn read_write(cached: &Cached, socket: &mut TcpStream) {
    let (mut session, mut open) = cached.open();
    let mut buffer = Buf::zeroed(BUFFER);
    for at in (0..SIZE).step_by(BUFFER) {
        session
            .read(&mut open, at, &mut buffer)
            .expect("nothing fails here");
        socket.write_all(&buffer).expect("it is read");
    }
}

/// Sends like a server with other sockets: it never blocks in the send.
fn read_write_polled(cached: &Cached, socket: &mut TcpStream) {
    socket.set_nonblocking(true).expect("it is a socket");
    let (mut session, mut open) = cached.open();
    let mut buffer = Buf::zeroed(BUFFER);
    for at in (0..SIZE).step_by(BUFFER) {
        session
            .read(&mut open, at, &mut buffer)
            .expect("nothing fails here");
        let mut left = &buffer[..];
        while !left.is_empty() {
            match socket.write(left) {
                Ok(sent) => left = &left[sent..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => wait_writable(socket),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn from_pages(cached: &Cached, socket: &mut TcpStream) {
    let (mut session, mut open) = cached.open();
    let mut send = RangeSend::new(0..SIZE);
    while let Err(error) = send.send(&*socket, &mut session, &mut open) {
        assert!(error.would_block(), "{error}");
        wait_writable(socket);
    }
}

/// Waits until the socket is writable, as a blocking socket does.
fn wait_writable(socket: &TcpStream) {
    let mut fd = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one entry, which outlives the call.
    let ready = unsafe { libc::poll(&mut fd, 1, -1) };
    assert_eq!(ready, 1);
}

fn pread_write(kernel: &File, socket: &mut TcpStream) {
    let mut buffer = Buf::zeroed(BUFFER);
    for at in (0..SIZE).step_by(BUFFER) {
        kernel.read_exact_at(&mut buffer, at).expect("it is there");
        socket.write_all(&buffer).expect("it is read");
    }
}

fn sendfile(kernel: &File, socket: &mut TcpStream) {
    let mut at = 0;
    while at < SIZE {
        let left = (SIZE - at) as usize;
        let sent = rustix::fs::sendfile(&*socket, kernel, Some(&mut at), left);
        assert!(sent.expect("it is read") > 0);
    }
}

/// Bytes of a header, and of a datagram that includes it: the most that fits into an Ethernet
/// frame.
const HEADER: usize = 28;
const DATAGRAM: usize = 1400;
/// Datagrams of a batch: the window of a protocol over UDP.
const BATCH: usize = 44;

type DatagramWay<'a> = (&'static str, Box<dyn Fn(&UdpSocket) + 'a>);

fn datagrams(cached: &Cached, rounds: usize) -> Table {
    let mut ways: [DatagramWay<'_>; 2] = [
        (
            "read, a call for each datagram",
            Box::new(|s| one_by_one(cached, s)),
        ),
        (
            "from pages, in batches",
            Box::new(|s| in_batches(cached, s)),
        ),
    ];
    let costs = in_turns(ways.len(), rounds, |at, _| over_udp(&mut ways[at].1));
    of_ways(
        "UDP over loopback, 28 + 1372 bytes, ms/GiB",
        &ways,
        &costs,
        &[0],
    )
}

/// Bytes of the file in a batch.
const BATCH_BYTES: u64 = (BATCH * (DATAGRAM - HEADER)) as u64;
/// Batches of a run.
const BATCHES: u64 = (32 << 20) / BATCH_BYTES;

fn over_udp(send: &dyn Fn(&UdpSocket)) -> Cost {
    let receiver = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let sender = UdpSocket::bind("127.0.0.1:0").expect("a port");
    sender
        .connect(receiver.local_addr().expect("it has one"))
        .expect("it has a port");
    receiver
        .set_read_timeout(Some(std::time::Duration::from_millis(50)))
        .expect("it is a socket");
    let done = AtomicBool::new(false);
    let clock = Instant::now();
    std::thread::scope(|scope| {
        // Datagrams that the receiver does not read in time are lost: its cost is relative to those
        // received.
        let receiving = scope.spawn(|| {
            let (started, mut got) = (thread_ns(), 0);
            let mut buffer = vec![0; BUFFER];
            loop {
                match receiver.recv(&mut buffer) {
                    Ok(len) => got += (len - HEADER) as u64,
                    Err(_) if done.load(SeqCst) => break,
                    Err(_) => {}
                }
            }
            per_gib(thread_ns() - started, got)
        });
        let started = thread_ns();
        send(&sender);
        let (sent, clock) = (thread_ns() - started, clock.elapsed());
        done.store(true, SeqCst);
        let received = receiving.join().expect("no panic");
        let bytes = BATCHES * BATCH_BYTES;
        [
            per_gib(sent, bytes),
            received,
            per_gib(clock.as_nanos() as u64, bytes),
        ]
    })
}

fn one_by_one(cached: &Cached, socket: &UdpSocket) {
    let (mut session, mut open) = cached.open();
    let mut datagram = [0; DATAGRAM];
    for datagram_no in 0..BATCHES * BATCH as u64 {
        let at = datagram_no * (DATAGRAM - HEADER) as u64;
        session
            .read(&mut open, at, &mut datagram[HEADER..])
            .expect("nothing fails here");
        socket.send(&datagram).expect("loopback takes it");
    }
}

fn in_batches(cached: &Cached, socket: &UdpSocket) {
    let (mut session, mut open) = cached.open();
    let headers = [[7; HEADER]; BATCH];
    let mut sender = UdpSender::new();
    for batch in 0..BATCHES {
        let range = batch * BATCH_BYTES..(batch + 1) * BATCH_BYTES;
        let mut at = range.start as usize % PAGE;
        let pages = session.pages(&mut open, range).expect("nothing fails here");
        let mut datagrams = Datagrams::new();
        for header in &headers {
            datagrams.push(header, &pages, at..at + DATAGRAM - HEADER);
            at += DATAGRAM - HEADER;
        }
        sender
            .send(socket, None, &mut datagrams)
            .expect("loopback takes it");
    }
}

/// Counts the bytes that a local receiver sees of pages that were sent by `sendfile` and changed
/// once the sender's queue was empty, which means that everything was acknowledged.
fn used_again() -> Table {
    let title = "bytes that a receiver gets of pages changed when all was acknowledged";
    let mut table = Table::new(title, &["", "as sent", "as changed"]);
    for (name, lend) in [("sendfile", true), ("sendmsg", false)] {
        let memory = rustix::fs::memfd_create("pages", rustix::fs::MemfdFlags::CLOEXEC);
        let memory = File::from(memory.expect("a file in memory"));
        let sent = [1; 8 * PAGE];
        memory.write_all_at(&sent, 0).expect("room");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut sender =
            TcpStream::connect(listener.local_addr().expect("it has one")).expect("it listens");
        let (mut receiver, _) = listener.accept().expect("somebody comes");
        let count = match lend {
            true => rustix::fs::sendfile(&sender, &memory, Some(&mut 0), sent.len()).expect("room"),
            false => sender.write(&sent).expect("room"),
        };
        while unacknowledged(&sender) > 0 {
            std::thread::yield_now();
        }
        memory.write_all_at(&[2; 8 * PAGE], 0).expect("room");
        let mut got = vec![0; count];
        receiver.read_exact(&mut got).expect("it was sent");
        let old = got.iter().filter(|byte| **byte == 1).count();
        let cells = [name.to_string(), old.to_string(), (count - old).to_string()];
        table.push(
            cells.to_vec(),
            json!({ "name": name, "as_sent": old, "changed": count - old }),
        );
    }
    table
}

/// Returns the bytes in the send queue of a socket (tcp(7), `SIOCOUTQ`).
fn unacknowledged(socket: &TcpStream) -> libc::c_int {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the socket is open, and the call writes an int.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    assert_eq!(done, 0);
    bytes
}
