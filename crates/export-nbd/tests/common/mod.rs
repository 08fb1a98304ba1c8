//! Fixtures of the fence tests: a device whose writes wait at a gate, and a forwarder that delays
//! bytes.

use block::{BlockDevice, Completion, DeviceInfo, Op, Queue, Request, Wait, Waker};
use block_testing::Mem;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Memory whose writes are carried out only while the gate is open.
pub struct Gate {
    pub mem: Mem,
    open: Arc<AtomicBool>,
    /// Number of waiting writes.
    waiting: Arc<AtomicUsize>,
    wakers: Mutex<Vec<Arc<Waker>>>,
}

impl Gate {
    pub fn new(size: u64) -> Gate {
        Gate {
            mem: Mem::new(size, 512),
            open: Arc::new(AtomicBool::new(true)),
            waiting: Arc::default(),
            wakers: Mutex::default(),
        }
    }

    pub fn close(&self) {
        self.open.store(false, Ordering::SeqCst);
    }

    pub fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
        for waker in self.wakers.lock().unwrap().iter() {
            waker.wake();
        }
    }

    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }
}

impl BlockDevice for Gate {
    fn info(&self) -> &DeviceInfo {
        self.mem.info()
    }

    fn queue(&self) -> block::Result<Box<dyn Queue>> {
        let waker = Arc::new(Waker::new().unwrap());
        self.wakers.lock().unwrap().push(Arc::clone(&waker));
        Ok(Box::new(GateQueue {
            lower: self.mem.queue()?,
            open: Arc::clone(&self.open),
            waiting: Arc::clone(&self.waiting),
            held: VecDeque::new(),
            waker,
        }))
    }
}

struct GateQueue {
    lower: Box<dyn Queue>,
    open: Arc<AtomicBool>,
    waiting: Arc<AtomicUsize>,
    held: VecDeque<Request>,
    waker: Arc<Waker>,
}

impl Queue for GateQueue {
    fn info(&self) -> &DeviceInfo {
        self.lower.info()
    }

    fn capacity(&self) -> usize {
        self.lower.capacity()
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.lower.in_flight()
    }

    fn submit(&mut self, request: Request) -> Result<(), Request> {
        if self.in_flight() >= self.capacity() {
            return Err(request);
        }
        if !matches!(request.op, Op::Write { .. }) {
            return self.lower.submit(request);
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.held.push_back(request);
        Ok(())
    }

    fn kick(&mut self) -> block::Result<()> {
        self.lower.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> block::Result<usize> {
        assert_eq!(wait, Wait::Poll, "the server never waits here");
        self.waker.take();
        while self.open.load(Ordering::SeqCst)
            && let Some(request) = self.held.pop_front()
        {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            assert!(self.lower.submit(request).is_ok(), "there is room");
        }
        self.lower.reap(wait, done)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.waker.as_fd())
    }
}

/// Forwards one connection to a server, and can hold back data of the client after a number of
/// bytes.
pub struct Forwarder {
    pub address: SocketAddr,
    hold_after: Arc<AtomicUsize>,
    up: JoinHandle<()>,
    down: JoinHandle<()>,
}

impl Forwarder {
    /// Creates a forwarder that holds nothing back.
    pub fn new(server: SocketAddr) -> Forwarder {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let hold_after = Arc::new(AtomicUsize::new(usize::MAX));
        let (give, take) = std::sync::mpsc::channel::<(TcpStream, TcpStream)>();
        let allowed = Arc::clone(&hold_after);
        let closed = Arc::new(AtomicBool::new(false));
        let closes = Arc::clone(&closed);
        let up = std::thread::spawn(move || {
            let client = listener.accept().unwrap().0;
            let server = TcpStream::connect(server).unwrap();
            give.send((server.try_clone().unwrap(), client.try_clone().unwrap()))
                .unwrap();
            upward(client, server, &allowed, &closed);
        });
        let down = std::thread::spawn(move || {
            if let Ok((mut server, mut client)) = take.recv() {
                let _ = std::io::copy(&mut server, &mut client);
                let _ = client.shutdown(Shutdown::Write);
                closes.store(true, Ordering::SeqCst);
            }
        });
        Forwarder {
            address,
            hold_after,
            up,
            down,
        }
    }

    /// Forwards `bytes` more bytes, then nothing until [`Forwarder::release`].
    pub fn hold_after(&self, bytes: usize) {
        self.hold_after.store(bytes, Ordering::SeqCst);
    }

    /// Forwards all data, and waits until the server has received it or has closed.
    pub fn release(self) {
        self.hold_after.store(usize::MAX, Ordering::SeqCst);
        self.up.join().unwrap();
        self.down.join().unwrap();
    }
}

/// Forwards client to server, at most the allowed number of bytes. Ends when the server has closed,
/// or when the client has closed and all data is sent.
fn upward(
    mut client: TcpStream,
    mut server: TcpStream,
    allowed: &AtomicUsize,
    closed: &AtomicBool,
) {
    client
        .set_read_timeout(Some(std::time::Duration::from_millis(1)))
        .unwrap();
    let (mut held, mut ended) = (Vec::new(), false);
    let mut bytes = [0; 64 * 1024];
    loop {
        match client.read(&mut bytes) {
            Ok(0) => ended = true,
            Ok(n) => held.extend_from_slice(&bytes[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => ended = true,
        }
        let may = allowed.load(Ordering::SeqCst);
        let now = held.len().min(may);
        if now > 0 && server.write_all(&held[..now]).is_err() {
            return;
        }
        held.drain(..now);
        if may != usize::MAX {
            allowed.fetch_sub(now, Ordering::SeqCst);
        } else if held.is_empty() && (ended || closed.load(Ordering::SeqCst)) {
            let _ = server.shutdown(Shutdown::Write);
            return;
        }
    }
}
