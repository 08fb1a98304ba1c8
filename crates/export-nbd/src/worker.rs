//! A worker: one thread, its connections, its device queues, one epoll.

use crate::Export;
use crate::connection::{Connection, Next, Status};
use crate::session::{Session, Sessions};
use crate::socket::Raw;
use block::{Buf, BufPool, Bufs, Completion, Op, OpKind, Queue, Request, Wait};
use nbd_proto::{Command, Errno, ExportInfo, RequestHeader, constants as c};
use rustix::event::{EventfdFlags, epoll};
use rustls::ServerConfig;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes of a payload buffer: a 64 KiB or 128 KiB request fits one.
pub(crate) const BUF_BYTES: usize = 128 * 1024;
/// Payload buffers of a worker: one request of the largest size, and as much again.
const BUFS: usize = 512;
/// Longest request that is served, in bytes: what every server has to take from a client that was
/// told nothing ("Block size constraints").
pub(crate) const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// Requests of one connection in flight; more stay in its socket.
pub(crate) const REQUESTS_MAX: usize = 128;
/// How long a stopping server waits for clients to take their last replies.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Memory of one worker, in bytes: its payload buffers.
pub const WORKER_MEMORY_BYTES: usize = BUF_BYTES * BUFS;

const _: () = assert!(REQUEST_BYTES_MAX as usize <= WORKER_MEMORY_BYTES / 2);

/// How often a worker looks again at what ends by time alone.
const TICK: rustix::event::Timespec = rustix::event::Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

const WAKE: u64 = u64::MAX;
const DEVICE: u64 = 1 << 32;

/// What workers, acceptor and owner share.
pub(crate) struct Hub {
    exports: Vec<Export>,
    infos: Arc<[ExportInfo]>,
    tls: Option<Arc<ServerConfig>>,
    stopping: AtomicBool,
    stop: OwnedFd,
    wakes: Mutex<Vec<Arc<OwnedFd>>>,
    connections: AtomicUsize,
    max_connections: usize,
    pub(crate) sessions: Sessions,
}

fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .expect("the system gives an eventfd")
}

impl Hub {
    pub(crate) fn new(exports: Vec<Export>, tls: Option<Arc<ServerConfig>>, max: usize) -> Hub {
        let infos = exports.iter().map(export_info).collect();
        Hub {
            exports,
            infos,
            tls,
            stopping: AtomicBool::new(false),
            stop: eventfd(),
            wakes: Mutex::new(Vec::new()),
            connections: AtomicUsize::new(0),
            max_connections: max,
            sessions: Sessions::default(),
        }
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        self.wake_workers();
    }

    /// Has every worker look around.
    pub(crate) fn wake_workers(&self) {
        for wake in self.wakes.lock().expect("no panic under this lock").iter() {
            let _ = rustix::io::write(wake.as_ref(), &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub(crate) fn stop_fd(&self) -> BorrowedFd<'_> {
        self.stop.as_fd()
    }

    pub(crate) fn tls(&self) -> Option<&Arc<ServerConfig>> {
        self.tls.as_ref()
    }

    pub(crate) fn infos(&self) -> &Arc<[ExportInfo]> {
        &self.infos
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Counts a connection in; false when there are too many.
    pub(crate) fn admit(&self) -> bool {
        if self.connections.fetch_add(1, Ordering::SeqCst) < self.max_connections {
            return true;
        }
        self.connections.fetch_sub(1, Ordering::SeqCst);
        tracing::warn!(
            "a connection was closed: {} are open already",
            self.max_connections
        );
        false
    }
}

fn export_info(export: &Export) -> ExportInfo {
    let info = export.device.info();
    let read_only = export.read_only || info.read_only;
    let mut flags =
        c::FLAG_HAS_FLAGS | c::FLAG_SEND_FLUSH | c::FLAG_SEND_DF | c::FLAG_CAN_MULTI_CONN;
    if read_only {
        flags |= c::FLAG_READ_ONLY;
    } else {
        flags |= c::FLAG_SEND_FUA | c::FLAG_SEND_WRITE_ZEROES;
        if info.discard {
            flags |= c::FLAG_SEND_TRIM;
        }
    }
    ExportInfo {
        name: export.name.clone(),
        description: export.description.clone(),
        size: info.size,
        flags,
        block_min: info.logical_block_size,
        block_preferred: info.optimal_io_size.max(4096).next_power_of_two(),
        block_max: REQUEST_BYTES_MAX,
    }
}

/// Where the acceptor leaves connections for a worker.
#[derive(Clone)]
pub(crate) struct Inbox {
    wake: Arc<OwnedFd>,
    waiting: Arc<Mutex<Vec<(Raw, bool)>>>,
}

impl Inbox {
    pub(crate) fn give(&self, raw: Raw, forced_tls: bool) {
        self.waiting
            .lock()
            .expect("no panic under this lock")
            .push((raw, forced_tls));
        let _ = rustix::io::write(self.wake.as_ref(), &1u64.to_ne_bytes());
    }
}

/// A request of a client, while the device works on it.
struct Pending {
    connection: u64,
    header: RequestHeader,
    /// Operations below that have not come back.
    left: usize,
    error: Option<Errno>,
    /// The buffers of a read, by the offset of their operation.
    data: Vec<(u64, Bufs)>,
    /// A flush follows when the rest is done (FUA on something that has none).
    then_flush: bool,
    export: usize,
    /// Held for its end: a fence waits for this request.
    _session: Option<Arc<Session>>,
}

pub(crate) struct Worker {
    hub: Arc<Hub>,
    inbox: Inbox,
    epoll: OwnedFd,
}

impl Worker {
    pub(crate) fn new(hub: Arc<Hub>) -> std::io::Result<(Inbox, Worker)> {
        let inbox = Inbox {
            wake: Arc::new(eventfd()),
            waiting: Arc::default(),
        };
        hub.wakes
            .lock()
            .expect("no panic under this lock")
            .push(Arc::clone(&inbox.wake));
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, inbox.wake.as_ref(), data, epoll::EventFlags::IN)?;
        Ok((inbox.clone(), Worker { hub, inbox, epoll }))
    }

    /// Serves until the hub stops. Says first whether the queues could be opened.
    pub(crate) fn run(self, opened: &Sender<block::Result<()>>) {
        let pool = BufPool::new(BUF_BYTES, BUFS);
        let mut queues = Vec::new();
        for export in &self.hub.exports {
            match export.device.queue() {
                Ok(mut queue) => {
                    queue.register(&pool);
                    queues.push(queue);
                }
                Err(e) => {
                    let _ = opened.send(Err(e));
                    return;
                }
            }
        }
        for (index, queue) in queues.iter().enumerate() {
            if let Some(fd) = queue.wait_fd() {
                let data = epoll::EventData::new_u64(DEVICE + index as u64);
                if let Err(e) = epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN) {
                    let e = block::Error::from_io(&queue.info().name, e.into());
                    let _ = opened.send(Err(e));
                    return;
                }
            }
        }
        let _ = opened.send(Ok(()));
        let mut service = Service {
            hub: &self.hub,
            epoll: self.epoll.as_fd(),
            engine: Engine {
                pool,
                backlog: queues.iter().map(|_| VecDeque::new()).collect(),
                queues,
                pending: HashMap::new(),
                next_tag: 0,
                done: Vec::new(),
            },
            connections: HashMap::new(),
            fencing: Vec::new(),
            held: Vec::new(),
            lingering: Vec::new(),
            next_connection: 0,
        };
        service.serve(&self.inbox);
    }
}

/// The loop of a worker.
struct Service<'a> {
    hub: &'a Arc<Hub>,
    epoll: BorrowedFd<'a>,
    engine: Engine,
    connections: HashMap<u64, Connection>,
    /// Connections that wait for the end of another session.
    fencing: Vec<u64>,
    /// Connections that wait for buffers or for their own replies.
    held: Vec<u64>,
    /// Connections that wait for their client's goodbye.
    lingering: Vec<u64>,
    next_connection: u64,
}

impl Service<'_> {
    fn serve(&mut self, inbox: &Inbox) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let mut stop_at: Option<Instant> = None;
        loop {
            let waits = !self.fencing.is_empty() || !self.lingering.is_empty();
            let ticks = stop_at.is_some() || waits;
            events.clear();
            match epoll::wait(
                self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                ticks.then_some(&TICK),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => {
                    tracing::error!("an NBD worker cannot wait for its connections: {e}");
                    return;
                }
            }
            for event in &events {
                let data = event.data.u64();
                if data == WAKE {
                    let _ = rustix::io::read(inbox.wake.as_ref(), &mut [0u8; 8]);
                    let new = std::mem::take(
                        &mut *inbox.waiting.lock().expect("no panic under this lock"),
                    );
                    new.into_iter()
                        .for_each(|(raw, forced_tls)| self.welcome(raw, forced_tls));
                    self.close_fenced();
                } else if data < DEVICE {
                    let flags = event.flags;
                    self.socket_ready(data, flags);
                }
            }
            self.go_on_fencing();
            for id in std::mem::take(&mut self.lingering) {
                self.after(id);
            }
            if !self.settle() {
                return;
            }
            if self.hub.is_stopping() {
                let end = *stop_at.get_or_insert_with(|| Instant::now() + STOP_PATIENCE);
                let busy = !self.engine.pending.is_empty()
                    || self.connections.values().any(Connection::has_output);
                if !busy || Instant::now() >= end {
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, raw: Raw, forced_tls: bool) {
        let id = self.next_connection;
        self.next_connection = (self.next_connection + 1) % DEVICE;
        let connection = Connection::new(raw, forced_tls, Arc::clone(self.hub));
        let data = epoll::EventData::new_u64(id);
        if epoll::add(self.epoll, connection.fd(), data, epoll::EventFlags::IN).is_err() {
            self.hub.connections.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        self.connections.insert(id, connection);
        self.after(id);
    }

    fn socket_ready(&mut self, id: u64, flags: epoll::EventFlags) {
        let gone = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        if flags.intersects(gone | epoll::EventFlags::IN) {
            self.read_requests(id);
        }
        if flags.intersects(gone)
            && let Some(connection) = self.connections.get_mut(&id)
        {
            connection.hung_up();
        }
        self.after(id);
    }

    /// Takes requests from a connection as long as it has some and there are buffers; whether it
    /// had any.
    fn read_requests(&mut self, id: u64) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else {
            return false;
        };
        let mut had = false;
        while !self.hub.is_stopping() {
            let engine = &mut self.engine;
            match connection.next(&mut |len| engine.take(len)) {
                Next::Request {
                    export,
                    header,
                    payload,
                } => {
                    had = true;
                    let session = connection.session();
                    if let Some(error) = engine.begin(id, export, header, payload, session) {
                        connection.reply(&header, Some(error), Vec::new());
                    }
                }
                Next::Nothing => break,
            }
        }
        if connection.is_held() && !self.held.contains(&id) {
            self.held.push(id);
        }
        had
    }

    /// Closes the connections whose session is fenced.
    fn close_fenced(&mut self) {
        let fenced: Vec<u64> = self
            .connections
            .iter_mut()
            .filter_map(|(id, connection)| connection.obey_fence().then_some(*id))
            .collect();
        fenced.into_iter().for_each(|id| self.after(id));
    }

    /// Lets connections go on whose fence has come to its end.
    fn go_on_fencing(&mut self) {
        for id in std::mem::take(&mut self.fencing) {
            self.read_requests(id);
            self.after(id);
        }
    }

    /// Carries on with completions until there is nothing left to do without waiting; false when
    /// a queue is beyond use.
    fn settle(&mut self) -> bool {
        loop {
            let finished = match self.engine.turn() {
                Ok(finished) => finished,
                Err(e) => {
                    tracing::error!("a device queue failed, its connections are closed: {e}");
                    return false;
                }
            };
            let mut idle = finished.is_empty();
            let mut touched = Vec::new();
            for pending in finished {
                let id = pending.connection;
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.reply(&pending.header, pending.error, pending.data);
                    touched.push(id);
                }
            }
            touched.sort_unstable();
            touched.dedup();
            for id in touched {
                self.after(id);
            }
            // Replies have ended and buffers come free, here or as sockets took them since.
            for id in std::mem::take(&mut self.held) {
                if self.read_requests(id) || !self.held.contains(&id) {
                    idle = false;
                    self.after(id);
                }
            }
            if idle {
                return true;
            }
        }
    }

    /// Sends what there is, tells epoll what to wait for, and closes what is over.
    fn after(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.send();
        if connection.is_fencing() && !self.fencing.contains(&id) {
            self.fencing.push(id);
        }
        let status = connection.status();
        if connection.is_lingering() && !self.lingering.contains(&id) {
            self.lingering.push(id);
        }
        match status {
            Status::Closed => {
                let _ = epoll::delete(self.epoll, connection.fd());
                self.connections.remove(&id);
                self.hub.connections.fetch_sub(1, Ordering::SeqCst);
            }
            Status::Waiting {
                changed: Some((read, write)),
            } => {
                let mut flags = epoll::EventFlags::empty();
                flags.set(epoll::EventFlags::IN, read);
                flags.set(epoll::EventFlags::OUT, write);
                let data = epoll::EventData::new_u64(id);
                let _ = epoll::modify(self.epoll, connection.fd(), data, flags);
            }
            Status::Waiting { changed: None } => {}
        }
    }
}

impl Drop for Service<'_> {
    fn drop(&mut self) {
        self.hub
            .connections
            .fetch_sub(self.connections.len(), Ordering::SeqCst);
    }
}

/// Requests on their way through the device queues.
struct Engine {
    pool: BufPool,
    queues: Vec<Box<dyn Queue>>,
    /// Requests that a queue had no room for.
    backlog: Vec<VecDeque<Request>>,
    pending: HashMap<u64, Pending>,
    next_tag: u64,
    done: Vec<Completion>,
}

impl Engine {
    /// Buffers for `len` bytes: all or none.
    fn take(&self, len: usize) -> Option<Vec<Buf>> {
        let mut bufs = Vec::with_capacity(len.div_ceil(BUF_BYTES));
        let mut left = len;
        while left > 0 {
            let part = left.min(BUF_BYTES);
            bufs.push(self.pool.take(part)?);
            left -= part;
        }
        Some(bufs)
    }

    /// Hands a request to its device; gives the error that it ends with at once.
    fn begin(
        &mut self,
        connection: u64,
        export: usize,
        header: RequestHeader,
        bufs: Vec<Buf>,
        session: Option<Arc<Session>>,
    ) -> Option<Errno> {
        let info = self.queues[export].info();
        let (offset, len) = (header.offset, u64::from(header.len));
        let block = u64::from(info.logical_block_size);
        let flush = matches!(header.command, Command::Flush);
        if !flush {
            if !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
                return Some(Errno::Invalid);
            }
            if offset.checked_add(len).is_none_or(|end| end > info.size) {
                let writes = !matches!(header.command, Command::Read);
                // "NBD_CMD_WRITE": ENOSPC beyond the end; for reads EINVAL.
                return Some(if writes {
                    Errno::NoSpace
                } else {
                    Errno::Invalid
                });
            }
        }
        let unmap = !header.no_hole;
        let ops: Vec<Op> = match header.command {
            Command::Read => split(bufs, offset, info.max_transfer, |offset, bufs| Op::Read {
                offset,
                bufs,
            }),
            Command::Write => {
                let fua = header.fua;
                split(bufs, offset, info.max_transfer, |offset, bufs| Op::Write {
                    offset,
                    bufs,
                    fua,
                })
            }
            Command::Flush => vec![Op::Flush],
            Command::Trim => vec![Op::Discard { offset, len }],
            Command::WriteZeroes => vec![Op::WriteZeroes {
                offset,
                len,
                fua: header.fua,
                unmap,
            }],
            Command::Disconnect | Command::Unknown(_) => return Some(Errno::Invalid),
        };
        let tag = self.next_tag;
        self.next_tag += 1;
        let then_flush = header.fua && matches!(header.command, Command::Trim);
        let left = ops.len();
        let data = Vec::new();
        let pending = Pending {
            connection,
            header,
            left,
            error: None,
            data,
            then_flush,
            export,
            _session: session,
        };
        self.pending.insert(tag, pending);
        if left == 0 {
            // Nothing to transfer: let the device say yes to it in its own time.
            self.submit(
                export,
                Request {
                    tag,
                    op: Op::Read {
                        offset,
                        bufs: Vec::new().into(),
                    },
                },
            );
            self.pending.entry(tag).and_modify(|p| p.left = 1);
        }
        for op in ops {
            self.submit(export, Request { tag, op });
        }
        None
    }

    fn submit(&mut self, export: usize, request: Request) {
        let backlog = &mut self.backlog[export];
        if !backlog.is_empty() {
            backlog.push_back(request);
        } else if let Err(request) = self.queues[export].submit(request) {
            backlog.push_back(request);
        }
    }

    /// Kicks and reaps all queues once; gives the requests that are complete.
    fn turn(&mut self) -> block::Result<Vec<Pending>> {
        let mut finished = Vec::new();
        for export in 0..self.queues.len() {
            while let Some(request) = self.backlog[export].pop_front() {
                if let Err(request) = self.queues[export].submit(request) {
                    self.backlog[export].push_front(request);
                    break;
                }
            }
            let mut done = std::mem::take(&mut self.done);
            self.queues[export].reap(Wait::Poll, &mut done)?;
            for completion in done.drain(..) {
                finished.extend(self.settle(completion));
            }
            self.done = done;
        }
        Ok(finished)
    }

    fn settle(&mut self, completion: Completion) -> Option<Pending> {
        let Completion { tag, op, result } = completion;
        let pending = self.pending.get_mut(&tag)?;
        pending.left -= 1;
        if let Err(e) = &result {
            tracing::warn!("{e}");
            pending.error = pending.error.or(Some(errno(e)));
        }
        let kind = op.kind();
        if let (Op::Read { offset, bufs }, Ok(())) = (op, &result) {
            pending.data.push((offset, bufs));
        }
        if pending.left > 0 {
            return None;
        }
        if pending.then_flush && kind != OpKind::Flush && pending.error.is_none() {
            pending.left = 1;
            let export = pending.export;
            self.submit(export, Request { tag, op: Op::Flush });
            return None;
        }
        let mut pending = self.pending.remove(&tag)?;
        pending.data.sort_by_key(|(offset, _)| *offset);
        Some(pending)
    }
}

/// Groups buffers into operations of at most `max` bytes.
fn split(bufs: Vec<Buf>, offset: u64, max: u32, make: impl Fn(u64, Bufs) -> Op) -> Vec<Op> {
    let total: usize = bufs.iter().map(|b| b.len()).sum();
    let mut bufs = bufs;
    match bufs.len() {
        0 => return Vec::new(),
        1 if total <= max as usize => {
            return bufs
                .pop()
                .map(|b| make(offset, b.into()))
                .into_iter()
                .collect();
        }
        _ => {}
    }
    let mut ops = Vec::new();
    let (mut group, mut len, mut at) = (Vec::new(), 0, offset);
    for buf in bufs {
        // A buffer longer than the device takes would need to be cut; no device here is that small.
        if len + buf.len() > max as usize && !group.is_empty() {
            ops.push(make(at, std::mem::take(&mut group).into()));
            at += len as u64;
            len = 0;
        }
        len += buf.len();
        group.push(buf);
    }
    if !group.is_empty() {
        ops.push(make(at, group.into()));
    }
    ops
}

/// The protocol has few errors; what has none of its own is an I/O error.
fn errno(error: &block::Error) -> Errno {
    use block::ErrorKind as K;
    match error.kind() {
        K::ReadOnly | K::Permission => Errno::Permission,
        K::NoSpace => Errno::NoSpace,
        K::OutOfRange | K::Misaligned | K::TooLarge | K::Invalid => Errno::Invalid,
        K::Unsupported => Errno::NotSupported,
        K::Cancelled => Errno::Shutdown,
        _ => Errno::Io,
    }
}
