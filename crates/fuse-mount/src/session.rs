//! A session with the kernel: its start, its threads, and its end.
//!
//! ```text
//!   thread: follow ──► leader: receive ──► serve in line ──► receive …
//!             ▲                               │ about to sleep, or slow: another thread leads
//!             └──── nothing left ◄── help ◄───┘
//! ```
//!
//! Each thread has two descriptors of its own, because a shared one would be contended. A leader
//! receives by one whose reads do not wait, for a short time ([`crate::waiting`]), and then sleeps
//! in a read of the other one. A thread that has lost leadership serves requests that wait
//! already, and then follows ([`crate::leadership`]). [`crate::demand`] decides on the number of
//! leaders; several do not poll.
//!
//! **Invariant:** every request that the kernel waits for is answered once, even if its handler
//! panics or forgets it; a request costs one read, one write, and no memory.

use crate::demand::{Advice, Demand, Enough, Served};
use crate::device::{Buffer, Device, Received};
use crate::leadership::{Awaited, Leadership};
use crate::serve::{Reply, Serve};
use crate::settings::Settings;
use crate::turn;
use crate::waiting::Waiting;
use fuse_proto::{Malformed, Operation, Refusal, Request, abi, negotiate, notify, parse, reply};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Room for the headers of a request, in bytes.
const HEADER_BYTES: usize = 4096;

/// Length of the data of a request from which on another thread receives while it is served.
const LONG_BYTES: usize = 64 << 10;

/// Number of requests of which a leader that does not poll asks for one before it sleeps, to notice
/// those that wait already, and measures how long it sleeps.
const PROBE: u32 = 8;

/// Threads that serve a mount.
pub(crate) struct Session {
    threads: Vec<JoinHandle<()>>,
    /// Whether a request to sync everything has arrived.
    received_sync: Arc<AtomicBool>,
}

struct Shared<S: Serve> {
    served: S,
    session: fuse_proto::Session,
    leadership: Arc<Leadership>,
    waiting: Waiting,
    running: AtomicUsize,
    /// Whether close(2) waits for the answer to RELEASE.
    awaits_release: bool,
    received_sync: Arc<AtomicBool>,
}

impl Session {
    /// Agrees with the kernel on the session, or continues the one that `offer`, the kernel's first
    /// message, began. Hands the descriptors to `hold`, and then starts the threads.
    pub fn start(
        device: &Arc<Device>,
        mut served: impl Serve,
        settings: &Settings,
        offer: Option<Vec<u8>>,
        hold: Hold<'_>,
    ) -> io::Result<Session> {
        let is_continued = offer.is_some();
        let (session, offer) = match offer {
            Some(offer) => (agreed_before(&offer, &served)?, offer),
            None => shake_hands(device, &served)?,
        };
        served.agreed(&session);
        if hold.is_some() && session.offered() & abi::FUSE_HAS_RESEND == 0 {
            let why = "the kernel cannot repeat requests, which needs Linux 6.9";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let threads = settings.threads.max(1);
        let leadership = Arc::new(Leadership::new(threads));
        // Until it turns out that one is enough.
        leadership.add_seat();
        let shared = Arc::new(Shared {
            served,
            session,
            leadership,
            waiting: Waiting::new(),
            running: AtomicUsize::new(0),
            awaits_release: settings.on_block_device,
            received_sync: Arc::default(),
        });
        let received_sync = Arc::clone(&shared.received_sync);
        let mut workers = Vec::new();
        for number in 0..threads {
            workers.push(Worker::new(&shared, device, number, hold.is_some())?);
        }
        if let Some(hold) = hold {
            let own = workers
                .iter()
                .flat_map(|worker| [&worker.polled, &worker.slept_on]);
            hold(&Held {
                mountpoint: &settings.mountpoint,
                on_block_device: settings.on_block_device,
                device: device.as_fd(),
                clones: own.map(|device| device.as_fd()).collect(),
                offer: &offer,
            })?;
        }
        if is_continued {
            device.send(&[IoSlice::new(notify::resend().as_ref())])?;
        }
        let mut threads = Vec::new();
        for (i, worker) in workers.into_iter().enumerate() {
            let thread = std::thread::Builder::new().name(format!("fuse-{i}"));
            threads.push(thread.spawn(move || worker.run())?);
        }
        Ok(Session {
            threads,
            received_sync,
        })
    }

    /// Reports whether a request to sync everything has arrived.
    pub fn has_received_sync(&self) -> bool {
        self.received_sync.load(SeqCst)
    }

    /// Waits until all threads have ended.
    pub fn join(self) {
        for thread in self.threads {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Descriptors of a session and what the kernel offered for it: enough for another process to continue
/// it.
pub struct Held<'a> {
    /// Full path of the directory.
    pub mountpoint: &'a Path,
    /// Whether it is mounted from a block device.
    pub on_block_device: bool,
    /// The descriptor of the mount.
    pub device: BorrowedFd<'a>,
    /// Descriptors by which the threads receive. If one of them is closed everywhere, requests that were read
    /// from it and not answered fail.
    pub clones: Vec<BorrowedFd<'a>>,
    /// The kernel's first message.
    pub offer: &'a [u8],
}

/// Receiver of the descriptors of a session before its first request is served; `None` for none.
pub type Hold<'a> = Option<&'a mut dyn FnMut(&Held<'_>) -> io::Result<()>>;

/// Computes what a predecessor has agreed on with the kernel.
fn agreed_before(offer: &[u8], served: &impl Serve) -> io::Result<fuse_proto::Session> {
    let request = parse(offer, &fuse_proto::Session::new());
    let request = request.map_err(|e| io::Error::other(e.to_string()))?;
    let Operation::Init(offer) = request.operation else {
        return Err(io::Error::other(
            "the kernel's offer is not an INIT request",
        ));
    };
    let mut wanted = served.wanted();
    wanted.page_bytes = rustix::param::page_size() as u32;
    let agreed = negotiate(&offer, &wanted);
    agreed
        .map(|(session, _)| session)
        .map_err(|refusal| io::Error::new(io::ErrorKind::Unsupported, refusal))
}

/// Answers the kernel's first request. Returns it, too.
fn shake_hands(device: &Device, served: &impl Serve) -> io::Result<(fuse_proto::Session, Vec<u8>)> {
    let mut buffer = Buffer::new(2 * fuse_proto::abi::FUSE_MIN_READ_BUFFER)?;
    loop {
        let len = match device.receive(buffer.bytes())? {
            Received::Request(len) => len,
            Received::Nothing => continue,
            Received::Ended => return Err(io::ErrorKind::NotConnected.into()),
        };
        let request = parse(&buffer.bytes()[..len], &fuse_proto::Session::new());
        let request = request.map_err(|e| io::Error::other(e.to_string()))?;
        let unique = request.header.unique;
        let send = |bytes: &[u8]| device.send(&[IoSlice::new(bytes)]);
        let Operation::Init(offer) = request.operation else {
            send(reply::error(unique, libc::EIO).as_ref())?;
            return Err(io::Error::other("the kernel did not begin with INIT"));
        };
        let mut wanted = served.wanted();
        wanted.page_bytes = rustix::param::page_size() as u32;
        match negotiate(&offer, &wanted) {
            Ok((session, answer)) => {
                send(reply::init(unique, &answer).as_ref())?;
                return Ok((session, buffer.bytes()[..len].to_vec()));
            }
            Err(Refusal::NewerMajor { reply: answer, .. }) => {
                send(reply::init(unique, &answer).as_ref())?;
            }
            Err(refusal) => {
                send(reply::error(unique, libc::EPROTO).as_ref())?;
                return Err(io::Error::new(io::ErrorKind::Unsupported, refusal));
            }
        }
    }
}

/// A request that was read into the buffer.
struct Arrival {
    from: Descriptor,
    len: usize,
    /// Whether it was there when the thread asked first; `None` if it did not ask.
    was_there: Option<bool>,
    /// Whether one leader is enough.
    enough: Enough,
}

/// Descriptor from which a request was read.
enum Descriptor {
    Polled,
    SleptOn,
}

/// One thread of a session.
struct Worker<S: Serve> {
    number: usize,
    /// Number of times that it has waited for a request.
    received: u32,
    demand: Demand,
    shared: Arc<Shared<S>>,
    /// Descriptor whose reads do not wait, and one whose reads do.
    polled: Arc<Device>,
    slept_on: Arc<Device>,
    buffer: Buffer,
}

impl<S: Serve> Worker<S> {
    fn new(
        shared: &Arc<Shared<S>>,
        device: &Device,
        number: usize,
        is_held: bool,
    ) -> io::Result<Worker<S>> {
        let polled = Arc::new(device.another(OFlags::NONBLOCK)?);
        let slept_on = Arc::new(device.another(OFlags::empty())?);
        let len = shared.session.max_write() as usize + HEADER_BYTES;
        let buffer = if is_held {
            Buffer::present(len)?
        } else {
            Buffer::new(len)?
        };
        shared.running.fetch_add(1, SeqCst);
        Ok(Worker {
            number,
            received: 0,
            demand: Demand::default(),
            shared: Arc::clone(shared),
            polled,
            slept_on,
            buffer,
        })
    }

    fn run(mut self) {
        let leadership = Arc::clone(&self.shared.leadership);
        turn::join(&leadership);
        while leadership.follow() {
            if let Err(error) = self.lead().and_then(|()| self.help()) {
                tracing::error!(
                    name: "EVFS-0605",
                    "cannot receive requests of a mount: {error}; unmount it and mount it again"
                );
                leadership.end();
            }
        }
    }

    /// Receives and serves requests as a leader, until this thread is that no longer.
    fn lead(&mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let leadership = &*shared.leadership;
        loop {
            let Some(Arrival {
                from,
                len,
                was_there,
                enough,
            }) = self.receive()?
            else {
                leadership.end();
                return Ok(());
            };
            let from = match from {
                Descriptor::Polled => &self.polled,
                Descriptor::SleptOn => &self.slept_on,
            };
            let request = match parse(&self.buffer.bytes()[..len], &shared.session) {
                Ok(request) => request,
                Err(malformed) => {
                    refuse(from, &malformed);
                    continue;
                }
            };
            let awaited = awaited(&request, shared.awaits_release);
            let (turn, with_others) = leadership.begin(self.number, awaited);
            turn::begin(turn);
            if is_long(&request) && shared.waiting.has_idle_cpu(Instant::now()) {
                turn::about_to_sleep();
            }
            let client = request.header.pid;
            shared.serve(from, &request);
            let (turn, blocked) = turn::end();
            let served = Served {
                awaited: awaited == Awaited::Yes && !is_release(&request),
                was_there,
                client,
                blocked,
                with_others,
                enough,
            };
            let advice = self.demand.note(served, leadership.seats());
            if advice == Advice::OneMore {
                leadership.add_seat();
            }
            if !turn.is_some_and(|turn| leadership.finish(turn)) {
                return Ok(());
            }
            if advice == Advice::OneLess && leadership.leave_seat() {
                return Ok(());
            }
        }
    }

    /// Serves the requests that wait already.
    fn help(&mut self) -> io::Result<()> {
        while !self.shared.leadership.has_ended() {
            match self.polled.receive(self.buffer.bytes())? {
                Received::Request(len) => {
                    match parse(&self.buffer.bytes()[..len], &self.shared.session) {
                        Ok(request) => self.shared.serve(&self.polled, &request),
                        Err(malformed) => refuse(&self.polled, &malformed),
                    }
                }
                Received::Nothing => break,
                Received::Ended => self.shared.leadership.end(),
            }
        }
        Ok(())
    }

    /// Waits for a request. `None`: the mount has ended.
    fn receive(&mut self) -> io::Result<Option<Arrival>> {
        let shared = &self.shared;
        let buffer = self.buffer.bytes();
        self.received = self.received.wrapping_add(1);
        // Reading the clock takes a part of the time of a small request.
        let measured = shared.waiting.may_poll() || self.received.is_multiple_of(PROBE);
        let start = measured.then(Instant::now);
        let mut window = start.map_or(Duration::ZERO, |start| shared.waiting.window(start));
        let enough = match () {
            () if shared.waiting.is_for_one() => Enough::OneCpu,
            () if !window.is_zero() => Enough::Polls,
            () => Enough::No,
        };
        if shared.leadership.seats() > 1 {
            window = Duration::ZERO;
        }
        // Without polling, a read in vain before the one that waits would be a waste.
        let asks = !window.is_zero() || self.received.is_multiple_of(PROBE);
        let arrival = |from, len, was_there| {
            Ok(Some(Arrival {
                from,
                len,
                was_there,
                enough,
            }))
        };
        if asks {
            match self.polled.receive(buffer)? {
                Received::Request(len) => return arrival(Descriptor::Polled, len, Some(true)),
                Received::Nothing => {}
                Received::Ended => return Ok(None),
            }
        }
        while start.is_some_and(|start| start.elapsed() < window) {
            rustix::thread::sched_yield();
            match self.polled.receive(buffer)? {
                Received::Request(len) => return arrival(Descriptor::Polled, len, Some(false)),
                Received::Nothing => {}
                Received::Ended => return Ok(None),
            }
        }
        loop {
            match self.slept_on.receive(buffer)? {
                Received::Request(len) => {
                    if measured {
                        shared.waiting.slept(Instant::now());
                    }
                    return arrival(Descriptor::SleptOn, len, asks.then_some(false));
                }
                Received::Nothing => {}
                Received::Ended => return Ok(None),
            }
        }
    }
}

impl<S: Serve> Drop for Worker<S> {
    fn drop(&mut self) {
        if self.shared.running.fetch_sub(1, SeqCst) == 1 {
            self.shared.leadership.end();
            self.shared.served.ended();
        }
    }
}

impl<S: Serve> Shared<S> {
    fn serve(&self, from: &Arc<Device>, request: &Request<'_>) {
        let unique = request
            .operation
            .is_answered()
            .then_some(request.header.unique);
        let reply = Reply::new(from, unique);
        match request.operation {
            Operation::Destroy => {
                reply.empty();
                self.leadership.end();
            }
            Operation::Init(_) => reply.error(Errno::IO),
            // The kernel sends no further one after this answer.
            Operation::Interrupt { .. } | Operation::Unknown => reply.error(Errno::NOSYS),
            _ => {
                if matches!(request.operation, Operation::SyncFs) {
                    self.received_sync.store(true, SeqCst);
                }
                let served = || self.served.serve(request, reply);
                // The message of a panic has been printed by its hook.
                let _ = catch_unwind(AssertUnwindSafe(served));
            }
        }
    }
}

/// Finds out whether a client waits for the answer, as far as that is known.
fn awaited(request: &Request<'_>, awaits_release: bool) -> Awaited {
    match request.operation {
        _ if is_release(request) && !awaits_release => Awaited::No,
        Operation::Interrupt { .. } => Awaited::No,
        ref operation if !operation.is_answered() => Awaited::No,
        // Read-ahead and write-back of the kernel name no thread.
        Operation::Read(_) | Operation::Write(_) if request.header.pid == 0 => Awaited::No,
        _ => Awaited::Yes,
    }
}

/// Reports whether a request closes a file. The kernel does not name its client, which would look
/// like another one than that of the requests around it.
fn is_release(request: &Request<'_>) -> bool {
    let operation = &request.operation;
    matches!(
        operation,
        Operation::Release { .. } | Operation::ReleaseDir { .. }
    )
}

/// Reports whether a request takes much longer than to wake another thread.
fn is_long(request: &Request<'_>) -> bool {
    match &request.operation {
        Operation::Read(read) => read.size as usize >= LONG_BYTES,
        Operation::Write(write) => write.data.len() >= LONG_BYTES,
        _ => false,
    }
}

/// Answers a message that is no valid request.
fn refuse(from: &Arc<Device>, malformed: &Malformed) {
    use fuse_proto::abi::{FUSE_BATCH_FORGET, FUSE_FORGET};
    tracing::error!(name: "EVFS-0605", "{malformed}; the request fails");
    let is_answered = !matches!(malformed.opcode, Some(FUSE_FORGET | FUSE_BATCH_FORGET));
    drop(Reply::new(from, malformed.unique.filter(|_| is_answered)));
}
