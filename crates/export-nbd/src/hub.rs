//! State that the acceptor, the workers and the owner of a server share.

use crate::admission::Admission;
use crate::config::{Export, Limits};
use crate::engine::REQUEST_BYTES_MAX;
use crate::kept::Kept;
use crate::session::Sessions;
use crate::wakers::Wakers;
use block::Waker;
use nbd_proto::{ExportInfo, constants as c};
use rustls::ServerConfig;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// State shared by workers, acceptor and owner.
pub(crate) struct Hub {
    pub(crate) exports: Vec<Export>,
    tls: Option<Arc<ServerConfig>>,
    stopping: AtomicBool,
    stop: Waker,
    pub(crate) wakers: Arc<Wakers>,
    admission: Arc<Admission>,
    pub(crate) limits: Limits,
    pub(crate) sessions: Arc<Sessions>,
    /// The table for a successor, if connections are to be continued after a crash.
    pub(crate) kept: Option<Arc<Kept>>,
}

impl Hub {
    pub(crate) fn new(
        exports: Vec<Export>,
        tls: Option<Arc<ServerConfig>>,
        door: Arc<Admission>,
        limits: Limits,
        kept: Option<Arc<Kept>>,
    ) -> Hub {
        let wakers = Arc::new(Wakers::default());
        Hub {
            exports,
            tls,
            stopping: AtomicBool::new(false),
            stop: Waker::new().expect("the system has a descriptor left"),
            sessions: Arc::new(Sessions::new(Arc::clone(&wakers))),
            wakers,
            admission: door,
            limits,
            kept,
        }
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.stop.wake();
        self.wakers.wake_all();
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

    /// Returns the current properties of the exports. A client keeps the size that it negotiates.
    pub(crate) fn infos(&self) -> Arc<[ExportInfo]> {
        self.exports.iter().map(export_info).collect()
    }

    pub(crate) fn door(&self) -> &Arc<Admission> {
        &self.admission
    }
}

impl Export {
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only || self.device.info().read_only
    }
}

fn export_info(export: &Export) -> ExportInfo {
    let info = export.device.info();
    let read_only = export.is_read_only();
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
