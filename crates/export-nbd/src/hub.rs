//! What the owner of a server, its acceptor and its workers share.

use crate::memory::{LARGE_BUFS, piece_bytes};
use crate::socket::Raw;
use crate::{Config, Export, Stats};
use nbd_proto::{ExportInfo, TlsPolicy, constants as c};
use rustix::event::EventfdFlags;
use rustls::ServerConfig;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Shared by all threads of a server.
pub(crate) struct Hub {
    pub(crate) exports: Vec<Export>,
    pub(crate) infos: Arc<[ExportInfo]>,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) config: Config,
    pub(crate) workers: Vec<Arc<Post>>,
    pub(crate) accepted: AtomicU64,
    pub(crate) turned_away: AtomicU64,
    stopping: AtomicBool,
    stop_by: Mutex<Option<Instant>>,
    stop: OwnedFd,
}

/// Where the acceptor leaves connections for a worker, and where the worker counts.
pub(crate) struct Post {
    wake: OwnedFd,
    arrived: Mutex<Vec<(Raw, TlsPolicy)>>,
    /// Connections given to the worker and not closed.
    pub(crate) load: AtomicUsize,
    /// The worker serves.
    pub(crate) alive: AtomicBool,
    pub(crate) counters: Counters,
}

/// Written by one worker alone, so plain loads and stores do.
#[derive(Default)]
pub(crate) struct Counters {
    cut_off: AtomicU64,
    requests: AtomicU64,
    errors: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn cut_off(&self) {
        add(&self.cut_off, 1);
    }

    pub(crate) fn refused(&self, count: u64) {
        if count > 0 {
            add(&self.requests, count);
            add(&self.errors, count);
        }
    }

    pub(crate) fn answered(&self, failed: bool, read_bytes: u64, written_bytes: u64) {
        add(&self.requests, 1);
        add(&self.errors, u64::from(failed));
        add(&self.read_bytes, read_bytes);
        add(&self.written_bytes, written_bytes);
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed) + n, Relaxed);
}

impl Post {
    fn new() -> io::Result<Post> {
        Ok(Post {
            wake: eventfd()?,
            arrived: Mutex::default(),
            load: AtomicUsize::new(0),
            alive: AtomicBool::new(true),
            counters: Counters::default(),
        })
    }

    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn wake(&self) {
        // Full means that a wake-up is on its way already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn give(&self, raw: Raw, policy: TlsPolicy) {
        self.load.fetch_add(1, Ordering::SeqCst);
        self.arrived
            .lock()
            .expect("no panic under this lock")
            .push((raw, policy));
        self.wake();
    }

    /// What has arrived since the last time; clears the wake-up.
    pub(crate) fn collect(&self) -> Vec<(Raw, TlsPolicy)> {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        std::mem::take(&mut *self.arrived.lock().expect("no panic under this lock"))
    }

    pub(crate) fn gone(&self, connections: usize) {
        self.load.fetch_sub(connections, Ordering::SeqCst);
    }
}

impl Hub {
    pub(crate) fn new(
        config: Config,
        exports: Vec<Export>,
        tls: Option<Arc<ServerConfig>>,
    ) -> io::Result<Hub> {
        let workers = (0..config.threads.max(1)).map(|_| Post::new().map(Arc::new));
        Ok(Hub {
            infos: exports.iter().map(export_info).collect(),
            workers: workers.collect::<io::Result<_>>()?,
            exports,
            tls,
            config,
            accepted: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            stop_by: Mutex::new(None),
            stop: eventfd()?,
        })
    }

    /// Tells all threads to end, by then at the latest.
    pub(crate) fn stop(&self, patience: Duration) {
        *self.stop_by.lock().expect("no panic under this lock") = Some(Instant::now() + patience);
        self.stopping.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        self.workers.iter().for_each(|post| post.wake());
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// When patience with clients that do not take their replies ends.
    pub(crate) fn is_out_of_patience(&self) -> bool {
        let by = *self.stop_by.lock().expect("no panic under this lock");
        by.is_some_and(|by| Instant::now() >= by)
    }

    pub(crate) fn stop_fd(&self) -> BorrowedFd<'_> {
        self.stop.as_fd()
    }

    pub(crate) fn connections(&self) -> usize {
        let loads = self.workers.iter().map(|w| w.load.load(Ordering::SeqCst));
        loads.sum()
    }

    /// The worker with the fewest connections.
    pub(crate) fn least_loaded(&self) -> Option<&Arc<Post>> {
        let serving = self
            .workers
            .iter()
            .filter(|w| w.alive.load(Ordering::SeqCst));
        serving.min_by_key(|w| w.load.load(Ordering::SeqCst))
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats {
            connections: self.connections(),
            accepted: self.accepted.load(Relaxed),
            turned_away: self.turned_away.load(Relaxed),
            ..Stats::default()
        };
        for counters in self.workers.iter().map(|w| &w.counters) {
            stats.cut_off += counters.cut_off.load(Relaxed);
            stats.requests += counters.requests.load(Relaxed);
            stats.errors += counters.errors.load(Relaxed);
            stats.read_bytes += counters.read_bytes.load(Relaxed);
            stats.written_bytes += counters.written_bytes.load(Relaxed);
        }
        stats
    }
}

fn eventfd() -> io::Result<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    Ok(rustix::event::eventfd(0, flags)?)
}

fn export_info(export: &Export) -> ExportInfo {
    let info = export.device.info();
    let mut flags =
        c::FLAG_HAS_FLAGS | c::FLAG_SEND_FLUSH | c::FLAG_SEND_DF | c::FLAG_CAN_MULTI_CONN;
    if export.read_only || info.read_only {
        flags |= c::FLAG_READ_ONLY;
    } else {
        flags |= c::FLAG_SEND_FUA | c::FLAG_SEND_WRITE_ZEROES;
        if info.discard {
            flags |= c::FLAG_SEND_TRIM;
        }
    }
    let piece = piece_bytes(info) as u64;
    let most = (piece * LARGE_BUFS as u64).min(u64::from(c::DEFAULT_REQUEST_BYTES_MAX)) as u32;
    ExportInfo {
        name: export.name.clone(),
        description: export.description.clone(),
        size: info.size,
        flags,
        block_min: info.logical_block_size,
        // "Block size constraints": a power of two, at least the minimum and at most the maximum.
        block_preferred: info
            .optimal_io_size
            .max(info.logical_block_size)
            .max(4096)
            .next_power_of_two()
            .min(1 << most.max(1).ilog2()),
        block_max: most,
    }
}
