//! Sends into real sockets: every byte, in order, each page of one moment, regardless of concurrent
//! writers and of the speed of the receiver.

#[path = "common/touch.rs"]
mod touch;

use block_testing::{Mem, Random};
use cache::send::{Datagrams, Parts, Push, RangeSend, SendError, UdpSender};
use cache::{
    Access, Cache, Config, DEVICE_FILE, DevicePager, FileId, OpenFile, PAGE_BYTES, Session, Vnode,
    Volume,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const PAGE: u64 = PAGE_BYTES as u64;
/// A deadline that only a hang reaches.
const LONG: Duration = Duration::from_secs(30);

struct Bench {
    cache: Arc<Cache>,
    volume: Arc<Volume>,
    vnode: Arc<Vnode>,
}

impl Bench {
    /// Creates a file of `size` bytes that are a function of their offset.
    fn new(size: u64) -> Bench {
        let bench = Bench::empty(size);
        let (mut session, mut open) = bench.open();
        session.write(&mut open, 0, &content(0..size)).unwrap();
        bench
    }

    fn empty(size: u64) -> Bench {
        let cache = Cache::new(Config {
            min_bytes: 0,
            ..Config::new(16 << 20)
        });
        let cache = cache.unwrap();
        let disk = Arc::new(Mem::new(64 << 20, 4096));
        let pager = Arc::new(DevicePager::new(disk).unwrap());
        let volume = cache.volume(pager).unwrap();
        let vnode = volume.vnode(DEVICE_FILE, size);
        Bench {
            cache,
            volume,
            vnode,
        }
    }

    fn open(&self) -> (Session, OpenFile) {
        (
            self.volume.session().unwrap(),
            self.volume.open(&self.vnode),
        )
    }
}

fn content(range: Range<u64>) -> Vec<u8> {
    let byte = |at: u64| (Random::new(at / 8).next_u64() >> (at % 8 * 8)) as u8;
    range.map(byte).collect()
}

/// Returns a connection whose sending side is full after a few pages.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (receiver, _) = listener.accept().unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&sender, 32 << 10).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&receiver, 32 << 10).unwrap();
    receiver.set_read_timeout(Some(LONG)).unwrap();
    (sender, receiver)
}

fn wait_writable(socket: impl AsFd) {
    let long = Timespec {
        tv_sec: LONG.as_secs() as i64,
        tv_nsec: 0,
    };
    let fds = &mut [PollFd::new(&socket, PollFlags::OUT)];
    assert_eq!(poll(fds, Some(&long)), Ok(1), "nothing is read");
}

/// Sends all of a range, waiting for the socket; returns how often it was full.
fn send_all(
    socket: &TcpStream,
    session: &mut Session,
    open: &mut OpenFile,
    range: Range<u64>,
) -> Result<u32, SendError> {
    let (mut send, mut full) = (RangeSend::new(range), 0);
    loop {
        match send.send(socket, session, open) {
            Ok(()) => return Ok(full),
            Err(error) if error.would_block() => wait_writable(socket),
            Err(error) => return Err(error),
        }
        full += 1;
    }
}

#[test]
fn a_range_arrives_whole_at_a_receiver_that_reads_slowly() {
    let bench = Bench::new((1 << 20) + 1000);
    let (sender, mut receiver) = connection();
    let range = 4095..(1 << 20) + 999;
    let (from, to) = (range.start, range.end);
    let (mut session, mut open) = bench.open();
    let reading = std::thread::spawn(move || {
        let mut got = vec![0; (to + 1 - from) as usize];
        for part in got.chunks_mut(3000) {
            receiver.read_exact(part).unwrap();
            std::thread::yield_now();
        }
        assert_eq!(receiver.read(&mut [0]).unwrap(), 0, "the file ends here");
        got
    });
    let full = send_all(&sender, &mut session, &mut open, from..to + 5000).unwrap();
    drop(sender);
    assert!(reading.join().unwrap() == content(from..to + 1));
    assert!(full > 0, "the socket was never full");
}

#[test]
fn pages_that_are_not_there_are_brought() {
    let bench = Bench::new(1 << 20);
    let (mut session, mut open) = bench.open();
    session.flush(&mut open).unwrap();
    session.invalidate(&mut open, 4096..900 << 10).unwrap();
    let (sender, mut receiver) = connection();
    let reading = std::thread::spawn(move || {
        let mut got = vec![0; 1 << 20];
        receiver.read_exact(&mut got).unwrap();
        got
    });
    send_all(&sender, &mut session, &mut open, 0..1 << 20).unwrap();
    assert!(reading.join().unwrap() == content(0..1 << 20));
    let counts = bench.cache.stats().counts;
    assert!(counts.misses + counts.read_ahead > 200, "{counts:?}");
}

/// Returns a page filled with one number.
fn page_of(number: u64) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    page.chunks_mut(8)
        .for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
    page
}

/// Returns the number that a page is filled with.
fn number_of(page: &[u8]) -> u64 {
    let first = &page[..8];
    assert!(page.chunks(8).all(|word| word == first), "a torn page");
    u64::from_le_bytes(first.try_into().unwrap())
}

/// Writes whole pages with rising numbers until stopped; records each number before and after.
fn write_numbers(bench: &Bench, begun: &[AtomicU64], ended: &[AtomicU64], stop: &AtomicBool) {
    let (mut session, mut open) = bench.open();
    for number in 1.. {
        if stop.load(SeqCst) {
            return;
        }
        let page = number * 7 % begun.len() as u64;
        begun[page as usize].store(number, SeqCst);
        session
            .write(&mut open, page * PAGE, &page_of(number))
            .unwrap();
        ended[page as usize].store(number, SeqCst);
    }
}

/// Stops the other threads even when an assertion fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn each_page_is_as_it_was_at_one_moment_of_its_send() {
    const PAGES: u64 = 48;
    const ROUNDS: usize = 100;
    let bench = Bench::empty(PAGES * PAGE);
    let (mut session, mut open) = bench.open();
    for page in 0..PAGES {
        session.write(&mut open, page * PAGE, &page_of(0)).unwrap();
    }
    let numbers = || Vec::from_iter((0..PAGES).map(|_| AtomicU64::new(0)));
    let (begun, ended, stop) = (numbers(), numbers(), AtomicBool::new(false));
    let (sender, mut receiver) = connection();
    let (bounds, got) = std::thread::scope(|scope| {
        scope.spawn(|| write_numbers(&bench, &begun, &ended, &stop));
        let stop = Stop(&stop);
        let reading = scope.spawn(move || {
            let mut page = [0; PAGE_BYTES];
            let mut read = |_| {
                receiver.read_exact(&mut page).unwrap();
                number_of(&page)
            };
            Vec::from_iter((0..ROUNDS * PAGES as usize).map(&mut read))
        });
        let mut bounds = Vec::new();
        let now = |numbers: &[AtomicU64], page: u64| numbers[page as usize].load(SeqCst);
        for round in 0..ROUNDS {
            if round % 2 == 0 {
                for page in 0..PAGES {
                    let least = now(&ended, page);
                    let range = page * PAGE..(page + 1) * PAGE;
                    send_all(&sender, &mut session, &mut open, range).unwrap();
                    bounds.push((least, now(&begun, page)));
                }
                continue;
            }
            // All pages are held from before the first byte is sent until after the last.
            let least = Vec::from_iter((0..PAGES).map(|page| now(&ended, page)));
            let held = session.pages(&mut open, 0..PAGES * PAGE).unwrap();
            bounds.extend(
                (0..)
                    .zip(least)
                    .map(|(page, least)| (least, now(&begun, page))),
            );
            let mut parts = Parts::new();
            parts.pages(&held, 0..(PAGES * PAGE) as usize);
            while let Err(error) = parts.send(&sender, Push::Now) {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                wait_writable(&sender);
            }
        }
        drop(stop);
        (bounds, reading.join().unwrap())
    });
    for ((least, most), number) in bounds.iter().zip(&got) {
        assert!(
            (least..=most).contains(&number),
            "{number}: {least} to {most}"
        );
    }
    assert_eq!(bounds.len(), got.len());
    assert!(got.iter().any(|n| *n > 0), "nothing was written meanwhile");
    assert!(bench.cache.stats().counts.copies_on_write > 0);
}

#[test]
fn headers_stand_where_the_caller_put_them() {
    let bench = Bench::new(64 << 10);
    let (mut session, mut open) = bench.open();
    let held = session.pages(&mut open, 0..64 << 10).unwrap();
    let (one, two) = ([1; 10], [2; 3]);
    let mut parts = Parts::new();
    parts.bytes(&one).pages(&held, 100..40_000);
    parts.bytes(&two).bytes(&[]).pages(&held, 4096..4097);
    // More entries than one call takes.
    for at in 0..3000 {
        parts.pages(&held, at..at + 1);
    }
    let mut expected = one.to_vec();
    expected.extend(content(100..40_000));
    expected.extend(two);
    expected.extend(content(4096..4097));
    expected.extend(content(0..3000));
    assert_eq!(parts.len(), expected.len());
    let (sender, mut receiver) = connection();
    let mut got = vec![0; expected.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| receiver.read_exact(&mut got).unwrap());
        while let Err(error) = parts.send(&sender, Push::Now) {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            wait_writable(&sender);
        }
    });
    assert!(parts.is_empty() && got == expected);
}

#[test]
fn a_peer_that_is_gone_is_an_error_and_holds_nothing() {
    let bench = Bench::new(1 << 20);
    let (mut session, mut open) = bench.open();
    let (sender, receiver) = connection();
    drop(receiver);
    let error = loop {
        match send_all(&sender, &mut session, &mut open, 0..1 << 20) {
            Ok(_) => continue,
            Err(SendError::Socket(error)) => break error,
            Err(error) => panic!("{error}"),
        }
    };
    let gone = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
    assert!(gone.contains(&error.kind()), "{error}");
    session.write(&mut open, 0, &[0; 1 << 20]).unwrap();
    assert_eq!(bench.cache.stats().counts.copies_on_write, 0);
}

#[test]
fn a_receiver_that_reads_nothing_keeps_one_page_at_most() {
    let bench = Bench::new(1 << 20);
    let (mut session, mut open) = bench.open();
    session.flush(&mut open).unwrap();
    let (sender, _receiver) = connection();
    let mut send = RangeSend::new(0..1 << 20);
    let error = send.send(&sender, &mut session, &mut open).unwrap_err();
    assert!(error.would_block() && send.left().start > 0, "{error}");
    bench.cache.shrink(0);
    assert!(bench.cache.stats().used_bytes <= PAGE);
    drop(send);
    bench.cache.shrink(0);
    assert_eq!(bench.cache.stats().used_bytes, 0);
}

#[test]
fn what_was_lent_is_as_it_was_until_the_last_loan_is_given_back() {
    let bench = Bench::new(8 * PAGE);
    let (mut session, mut open) = bench.open();
    let loans = Vec::from_iter(
        session
            .pages(&mut open, 0..8 * PAGE)
            .unwrap()
            .iter()
            .map(|page| page.lend()),
    );
    let again = loans.clone();
    session.write(&mut open, 0, &[7; 4 * PAGE_BYTES]).unwrap();
    assert_eq!(bench.cache.stats().counts.copies_on_write, 4);
    session.flush(&mut open).unwrap();
    drop((session, open));
    bench.volume.forget(DEVICE_FILE);
    drop(loans);
    assert_eq!(bench.cache.stats().used_bytes, 8 * PAGE);
    // Frames filled by others in the meantime are not the loaned ones.
    let other = bench.volume.vnode(FileId(1), 8 << 20);
    let mut session = bench.volume.session().unwrap();
    let mut open = bench.volume.open(&other);
    session.write(&mut open, 0, &vec![9; 8 << 20]).unwrap();
    let mut parts = Parts::new();
    parts.pages(&again, 0..8 * PAGE_BYTES);
    let (sender, mut receiver) = connection();
    let mut got = vec![0; 8 * PAGE_BYTES];
    std::thread::scope(|scope| {
        scope.spawn(|| receiver.read_exact(&mut got).unwrap());
        while parts.send(&sender, Push::Now).is_err() {
            wait_writable(&sender);
        }
    });
    assert!(got == content(0..8 * PAGE));
    let used = bench.cache.stats().used_bytes;
    drop(parts);
    drop(again);
    assert_eq!(bench.cache.stats().used_bytes, used - 8 * PAGE);
}

#[test]
fn a_page_that_programs_have_mapped_is_sent_as_well() {
    let bench = Bench::new(8 * PAGE);
    let (mut session, mut open) = bench.open();
    let mapping = open.map(0..8 * PAGE, Access::Store).unwrap();
    touch::load(&mapping, 3);
    assert!(bench.cache.stats().mapped_bytes >= PAGE);
    let (sender, mut receiver) = connection();
    let mut got = vec![0; 7 * PAGE_BYTES];
    std::thread::scope(|scope| {
        scope.spawn(|| receiver.read_exact(&mut got).unwrap());
        send_all(&sender, &mut session, &mut open, 100..100 + 7 * PAGE).unwrap();
    });
    assert!(got == content(100..100 + 7 * PAGE));
}

/// Returns two UDP sockets; the first is connected to the second.
fn datagram_sockets() -> (UdpSocket, UdpSocket) {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    receiver.set_read_timeout(Some(LONG)).unwrap();
    (sender, receiver)
}

/// Sends datagrams with payloads of these sizes, each preceded by its number, and checks the
/// received ones. A sender that is not connected names the receiver.
fn exchange(sender: &UdpSocket, receiver: &UdpSocket, sizes: &[usize]) {
    let bench = Bench::new(1 << 20);
    let (mut session, mut open) = bench.open();
    let held = session.pages(&mut open, 0..1 << 20).unwrap();
    let headers = Vec::from_iter((0..sizes.len() as u32).map(u32::to_be_bytes));
    let mut datagrams = Datagrams::new();
    let mut at = 77;
    for (header, size) in headers.iter().zip(sizes) {
        datagrams.push(header, &held, at..at + size);
        at += size;
    }
    let is_connected = sender.peer_addr().is_ok();
    let to = (!is_connected).then(|| receiver.local_addr().unwrap());
    assert_eq!(datagrams.len(), sizes.len());
    UdpSender::new().send(sender, to, &mut datagrams).unwrap();
    assert!(datagrams.is_empty());
    let mut got = vec![0; 1 << 16];
    let mut at = 77;
    for (header, size) in headers.iter().zip(sizes) {
        let len = receiver.recv(&mut got).unwrap();
        assert_eq!((len, &got[..4]), (4 + size, &header[..]));
        let at_next = at + *size as u64;
        assert!(got[4..len] == content(at..at_next));
        at = at_next;
    }
}

#[test]
fn datagrams_leave_in_batches_and_arrive_one_by_one() {
    let (sender, receiver) = datagram_sockets();
    exchange(&sender, &receiver, &[1400; 40]);
    exchange(&sender, &receiver, &[1400, 1400, 1400, 9]);
    // Of any size, in any order, including empty ones; more than one call takes.
    exchange(&sender, &receiver, &[9, 1400, 1400, 0, 0, 5000, 1]);
    exchange(&sender, &receiver, &[10; 70]);
    exchange(&sender, &receiver, &[40_000, 40_000]);
    let anybody = UdpSocket::bind("127.0.0.1:0").unwrap();
    exchange(&anybody, &receiver, &[1000; 30]);
}

#[test]
fn where_batches_are_not_taken_datagrams_go_one_by_one() {
    let (sender, receiver) = datagram_sockets();
    // The kernel refuses to segment datagrams that are sent without a checksum.
    let on: libc::c_int = 1;
    // SAFETY: the option is an int, which outlives the call.
    let set = unsafe {
        libc::setsockopt(
            sender.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NO_CHECK,
            (&raw const on).cast(),
            size_of_val(&on) as u32,
        )
    };
    assert_eq!(set, 0);
    exchange(&sender, &receiver, &[1400; 20]);
}

#[test]
fn a_peer_that_refuses_datagrams_is_an_error_and_they_are_kept() {
    let (sender, receiver) = datagram_sockets();
    drop(receiver);
    let bench = Bench::new(PAGE);
    let (mut session, mut open) = bench.open();
    let held = session.pages(&mut open, 0..PAGE).unwrap();
    let deadline = std::time::Instant::now() + LONG;
    loop {
        let mut datagrams = Datagrams::new();
        (0..3).for_each(|_| datagrams.push(&[], &held, 0..100));
        match UdpSender::new().send(&sender, None, &mut datagrams) {
            Ok(()) => assert!(std::time::Instant::now() < deadline, "nobody refuses"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
                assert_eq!(datagrams.len(), 3);
                return;
            }
        }
    }
}
