//! A worker: one thread, its descriptor of the mount, its device queues, one epoll.
//!
//! A request is read with its first 80 bytes apart, so that the payload of a write lands at the start
//! of a page and goes to the device from there; an answer is sent from the buffers that the device
//! filled. Nothing is copied here.

use crate::engine::{BUF_BYTES, Content, Engine, Finished, LANDING, Outcome};
use crate::folder::{Answer, Folder, Task};
use crate::gate::Gate;
use crate::stats::Counters;
use crate::wire::{self, Body, Request, WRITE_HEADER_BYTES};
use block::{BlockDevice, Buf};
use rustix::event::{EventfdFlags, epoll};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Requests that are read before they are handed to the device. Few, so that the device starts
/// early and other threads get their share.
const BATCH: usize = 8;

const KERNEL: u64 = 0;
const WAKE: u64 = 1;
const DEVICE: u64 = 2;

/// What the workers of a mount and its owner share.
pub(crate) struct Hub {
    folder: Folder,
    gates: Vec<Arc<Gate>>,
    inboxes: Vec<Inbox>,
    counters: Vec<Arc<Counters>>,
    stopping: AtomicBool,
    alive: Mutex<usize>,
    ended: Condvar,
}

/// Where others leave word for a worker.
struct Inbox {
    wake: OwnedFd,
    /// Slots of changes that may go in.
    granted: Mutex<Vec<usize>>,
}

impl Hub {
    pub(crate) fn new(folder: Folder, threads: usize) -> std::io::Result<Hub> {
        let gates = folder.files().iter().map(|_| Arc::default()).collect();
        let mut inboxes = Vec::with_capacity(threads);
        for _ in 0..threads {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            inboxes.push(Inbox {
                wake: rustix::event::eventfd(0, flags)?,
                granted: Mutex::default(),
            });
        }
        Ok(Hub {
            folder,
            gates,
            inboxes,
            counters: (0..threads).map(|_| Arc::default()).collect(),
            stopping: AtomicBool::new(false),
            alive: Mutex::new(0),
            ended: Condvar::new(),
        })
    }

    pub(crate) fn counters(&self) -> &[Arc<Counters>] {
        &self.counters
    }

    /// Lets all workers finish what they have begun, and end.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.inboxes.iter().for_each(Inbox::wake);
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Workers that serve.
    pub(crate) fn alive(&self) -> usize {
        *self.alive.lock().expect("no panic under this lock")
    }

    /// Waits until no worker serves any more, or for so long; says whether that is so.
    pub(crate) fn wait(&self, patience: Option<Duration>) -> bool {
        let mut alive = self.alive.lock().expect("no panic under this lock");
        let end = patience.map(|patience| Instant::now() + patience);
        while *alive > 0 {
            alive = match end.map(|end| end.saturating_duration_since(Instant::now())) {
                Some(left) if left.is_zero() => return false,
                Some(left) => {
                    let woken = self.ended.wait_timeout(alive, left);
                    woken.expect("no panic under this lock").0
                }
                None => self.ended.wait(alive).expect("no panic under this lock"),
            };
        }
        true
    }
}

impl Inbox {
    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn take(&self) -> Vec<usize> {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        std::mem::take(&mut *self.granted.lock().expect("no panic under this lock"))
    }
}

/// Counts a worker as serving for as long as it lives.
struct Serving(Arc<Hub>);

impl Serving {
    fn of(hub: &Arc<Hub>) -> Serving {
        *hub.alive.lock().expect("no panic under this lock") += 1;
        Serving(Arc::clone(hub))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        *self.0.alive.lock().expect("no panic under this lock") -= 1;
        self.0.ended.notify_all();
    }
}

/// The life of a worker's thread. Opens the queues and says so, then serves the descriptor that it
/// is given; without one it ends.
pub(crate) fn run(
    hub: &Arc<Hub>,
    index: usize,
    opened: &Sender<block::Result<()>>,
    session: &Receiver<OwnedFd>,
) {
    // This thread writes dirty pages back: memory that it needs for that must not wait for dirty
    // pages to be written back. Only root may ask for it, and only root needs it, because only root
    // makes loop devices.
    let _ = rustix::process::configure_io_flusher_behavior(true);
    let devices: Vec<(Arc<dyn BlockDevice>, Arc<Gate>)> = hub
        .folder
        .files()
        .iter()
        .zip(&hub.gates)
        .map(|(file, gate)| (Arc::clone(&file.device), Arc::clone(gate)))
        .collect();
    let engine = match Engine::open(index, &devices, Arc::clone(&hub.counters[index])) {
        Ok(engine) => engine,
        Err(e) => return drop(opened.send(Err(e))),
    };
    let serving = Serving::of(hub);
    if opened.send(Ok(())).is_err() {
        return;
    }
    let Ok(fd) = session.recv() else {
        return;
    };
    let worker = Worker {
        hub,
        inbox: &hub.inboxes[index],
        fd,
        engine,
        listening: false,
        closing: false,
        finished: Vec::new(),
    };
    if let Err(e) = worker.serve() {
        tracing::error!("a FUSE thread ends: {e}");
    }
    drop(serving);
}

struct Worker<'a> {
    hub: &'a Hub,
    inbox: &'a Inbox,
    // Declared before the descriptor: what is in flight comes back before the kernel hears that
    // nobody will answer.
    engine: Engine,
    fd: OwnedFd,
    /// Whether the epoll waits for requests.
    listening: bool,
    /// No more requests come or are wanted.
    closing: bool,
    finished: Vec<Finished>,
}

impl Worker<'_> {
    fn serve(mut self) -> block::Result<()> {
        let system = |e: Errno| block::Error::from_io("/dev/fuse", e.into());
        let epoll = self.epoll().map_err(system)?;
        let mut events: Vec<epoll::Event> = Vec::with_capacity(16);
        let mut readable = true;
        loop {
            let starved = readable && !self.closing && !self.read_requests(&mut readable);
            let again = self.engine.turn()?;
            self.answer_finished();
            self.pass_on();
            if self.hub.is_stopping() {
                self.closing = true;
            }
            if self.closing && !self.engine.is_busy() {
                return Ok(());
            }
            if again || (readable && !starved && !self.closing) {
                continue;
            }
            self.listen(&epoll, !starved && !self.closing)
                .map_err(system)?;
            events.clear();
            let space = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&epoll, space, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(system(e)),
            }
            for event in &events {
                match event.data.u64() {
                    KERNEL => readable = true,
                    WAKE => {
                        for slot in self.inbox.take() {
                            self.engine.enter(slot);
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    fn epoll(&self) -> Result<OwnedFd, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, &self.inbox.wake, wake, epoll::EventFlags::IN)?;
        for fd in self.engine.queues().filter_map(|queue| queue.wait_fd()) {
            let data = epoll::EventData::new_u64(DEVICE);
            epoll::add(&epoll, fd, data, epoll::EventFlags::IN)?;
        }
        Ok(epoll)
    }

    /// Waits for requests or not. One request wakes one thread.
    fn listen(&mut self, epoll: &OwnedFd, wanted: bool) -> Result<(), Errno> {
        if wanted == self.listening {
            return Ok(());
        }
        if wanted {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
            epoll::add(epoll, &self.fd, epoll::EventData::new_u64(KERNEL), flags)?;
        } else {
            epoll::delete(epoll, &self.fd)?;
        }
        self.listening = wanted;
        Ok(())
    }

    /// Reads a few requests and begins them; false when there is no room for more. Clears `readable`
    /// when the kernel has no more.
    fn read_requests(&mut self, readable: &mut bool) -> bool {
        for _ in 0..BATCH {
            if !self.engine.has_room() {
                return false;
            }
            let Some(landing) = self.engine.landing() else {
                return false;
            };
            let mut header = [0; WRITE_HEADER_BYTES];
            match read_one(&self.fd, &mut header, landing) {
                Ok(len) => self.begin(&header, len),
                Err(Errno::AGAIN) => {
                    *readable = false;
                    return true;
                }
                // ENOENT: the request was given up before it was read.
                Err(Errno::INTR | Errno::NOENT) => {}
                // ENODEV: unmounted. ECONNABORTED: ended through fusectl.
                Err(e) => {
                    if e != Errno::NODEV && e != Errno::CONNABORTED {
                        tracing::error!("requests cannot be read from /dev/fuse: {e}");
                    }
                    *readable = false;
                    self.closing = true;
                    return true;
                }
            }
        }
        true
    }

    /// Begins the request of `len` bytes that has just been read.
    fn begin(&mut self, header: &[u8; WRITE_HEADER_BYTES], len: usize) {
        let mut parsed = wire::parse(&header[..len.min(header.len())], len);
        let whole;
        if len > WRITE_HEADER_BYTES && !matches!(parsed, Ok((_, Request::Write { .. }))) {
            // Something with a name; never more than a few hundred bytes.
            let rest = (len - WRITE_HEADER_BYTES).min(BUF_BYTES);
            let landed = self.engine.landed(rest);
            whole = [&header[..], landed.first().map_or(&[], |buf| &buf[..])].concat();
            parsed = wire::parse(&whole, len);
        }
        let Ok((wire::Header { unique, node }, request)) = parsed else {
            tracing::warn!("a malformed request of {len} bytes from the kernel was refused");
            let unique = header
                .get(8..16)
                .and_then(|b| b.try_into().ok())
                .map_or(0, u64::from_ne_bytes);
            return self.send(unique, libc::EIO, &[]);
        };
        match self.hub.folder.answer(node, &request) {
            Answer::Body(Body(body)) => self.send(unique, 0, &[IoSlice::new(&body)]),
            Answer::Empty => self.send(unique, 0, &[]),
            Answer::Error(errno) => self.send(unique, errno, &[]),
            Answer::None => {}
            Answer::Device { file, task } => self.begin_task(unique, file, task),
        }
    }

    fn begin_task(&mut self, unique: u64, file: usize, task: Task) {
        match task {
            Task::Read { offset, len } => self.engine.read(unique, file, offset, len),
            Task::Flush => self.engine.flush(unique, file),
            Task::Write {
                offset,
                len,
                durable,
            } => {
                let bytes = Content::Bytes(self.engine.landed(len as usize));
                let range = (offset, u64::from(len));
                self.engine.change(unique, file, range, bytes, durable);
            }
            Task::Zero { offset, len, unmap } => {
                let zeros = Content::Zeros { unmap };
                self.engine
                    .change(unique, file, (offset, len), zeros, false);
            }
        }
    }

    fn answer_finished(&mut self) {
        let mut finished = std::mem::take(&mut self.finished);
        self.engine.take_finished(&mut finished);
        for Finished { unique, outcome } in finished.drain(..) {
            match outcome {
                Outcome::Done => self.send(unique, 0, &[]),
                Outcome::Failed(errno) => self.send(unique, errno, &[]),
                Outcome::Written(len) => {
                    self.send(unique, 0, &[IoSlice::new(&Body::write_out(len))]);
                }
                Outcome::Data { parts, skip, len } => {
                    let bufs = parts.iter().flat_map(|(_, bufs)| bufs.iter());
                    self.send(unique, 0, &cut(bufs.map(|buf| &buf[..]), skip, len));
                }
            }
        }
        self.finished = finished;
    }

    /// Sends an answer. The kernel takes it whole or not at all; not, when whoever asked is gone.
    fn send(&self, unique: u64, errno: i32, body: &[IoSlice<'_>]) {
        let body_bytes = body.iter().map(|part| part.len()).sum();
        let header = wire::out_header(unique, body_bytes, errno);
        let sent = match body {
            [] => rustix::io::write(&self.fd, &header),
            [one] => rustix::io::writev(&self.fd, &[IoSlice::new(&header), *one]),
            many => {
                let mut all = Vec::with_capacity(many.len() + 1);
                all.push(IoSlice::new(&header));
                all.extend_from_slice(many);
                rustix::io::writev(&self.fd, &all)
            }
        };
        match sent {
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::PERM | Errno::CONNABORTED) => {}
            Err(e) => tracing::error!("the kernel refuses an answer: {e}"),
        }
    }

    /// Tells other threads that changes of theirs may go in.
    fn pass_on(&mut self) {
        for ticket in self.engine.take_granted() {
            let inbox = &self.hub.inboxes[ticket.worker];
            let mut slots = inbox.granted.lock().expect("no panic under this lock");
            slots.push(ticket.slot);
            drop(slots);
            inbox.wake();
        }
    }
}

impl Drop for Worker<'_> {
    /// After a failure: other threads must not wait for changes that nobody carries on with.
    fn drop(&mut self) {
        self.engine.abandon();
        self.pass_on();
    }
}

/// Reads a request: 80 bytes to `header`, the rest to `landing`.
fn read_one(fd: &OwnedFd, header: &mut [u8], landing: &mut [Buf; LANDING]) -> Result<usize, Errno> {
    let mut places = landing.iter_mut().map(|buf| IoSliceMut::new(buf));
    let mut first = Some(IoSliceMut::new(header));
    let mut iov: [IoSliceMut<'_>; LANDING + 1] = std::array::from_fn(|_| {
        let place = first.take().or_else(|| places.next());
        place.unwrap_or_else(|| IoSliceMut::new(&mut []))
    });
    rustix::io::readv(fd.as_fd(), &mut iov)
}

/// Bytes `skip..skip + len` of what stands in these parts.
fn cut<'a>(
    parts: impl Iterator<Item = &'a [u8]>,
    mut skip: usize,
    mut len: usize,
) -> Vec<IoSlice<'a>> {
    let mut out = Vec::with_capacity(LANDING);
    for part in parts {
        let from = skip.min(part.len());
        let part = &part[from..];
        let part = &part[..len.min(part.len())];
        skip -= from;
        len -= part.len();
        if !part.is_empty() {
            out.push(IoSlice::new(part));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_the_same_bytes_without_copying() {
        let parts: [&[u8]; 3] = [b"abc", b"", b"defgh"];
        for skip in 0..8 {
            for len in 0..=8 - skip {
                let cut = cut(parts.into_iter(), skip, len);
                let bytes: Vec<u8> = cut.iter().flat_map(|part| part.to_vec()).collect();
                assert_eq!(bytes, b"abcdefgh"[skip..skip + len]);
            }
        }
    }
}
