//! The state that all calls to a server share, and receiving their requests.

use crate::admission::AdmissionControl;
use crate::callback::Promises;
use crate::callback_retry::CallbackRetries;
use crate::config::Config;
use crate::error::{CallResult, DENIED, Fault};
use crate::hosts::Hosts;
use crate::locks::Locks;
use crate::start_error::StartError;
use crate::stats::Counters;
use crate::survival::{Clients, Survival, Surviving};
use crate::volume::Volumes;
use afs_proto::gather::REQUEST_BYTES_MAX;
use afs_proto::{Abort, Uuid, WireError};
use cache::Cache;
use fs::Fs;
use rx::{Bytes, Call};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant, SystemTime};

/// Time in seconds since its last call within which a client counts as active.
pub(crate) const ACTIVE_SECONDS: u32 = 900;

/// State shared by all calls.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) identity: Uuid,
    pub(crate) volumes: Volumes,
    pub(crate) hosts: Hosts,
    pub(crate) promises: Promises,
    pub(crate) callback_retries: CallbackRetries,
    pub(crate) locks: Locks,
    pub(crate) counters: Counters,
    /// Bytes of cache pages in transmission to clients.
    pub(crate) lent: Arc<AtomicUsize>,
    pub(crate) started: SystemTime,
    /// What calls leave to another server; `None` if there will be none.
    pub(crate) surviving: Option<Surviving>,
}

impl Shared {
    pub(crate) fn new(config: Config, fs: Arc<Fs>, cache: Arc<Cache>) -> fs::Result<Arc<Shared>> {
        let identity = identity(&fs);
        let volumes = Volumes::open(fs, cache, &config)?;
        let hosts = Hosts::new(identity, &config);
        let locks = Locks::default();
        Ok(Shared::of(config, identity, volumes, (hosts, locks, None)))
    }

    /// Creates it for a server that another one can continue, or that continues another one.
    pub(crate) fn surviving(
        config: Config,
        fs: Arc<Fs>,
        cache: Arc<Cache>,
        survival: Survival,
    ) -> Result<Arc<Shared>, StartError> {
        let identity = identity(&fs);
        let volumes = Volumes::open(fs, cache, &config)?;
        (survival.adopt)(&volumes).map_err(StartError::Left)?;
        let (clients, holders) = Clients::open(&*survival.keep).map_err(StartError::Left)?;
        let hosts = Hosts::new(identity, &config).surviving(clients, holders);
        let surviving = Surviving::new(survival.requests, survival.done);
        let locks = Locks::open(&*survival.keep).map_err(StartError::Left)?;
        let noted = (hosts, locks, Some(surviving));
        Ok(Shared::of(config, identity, volumes, noted))
    }

    fn of(
        config: Config,
        identity: Uuid,
        volumes: Volumes,
        (hosts, locks, surviving): (Hosts, Locks, Option<Surviving>),
    ) -> Arc<Shared> {
        Arc::new(Shared {
            identity,
            hosts,
            promises: Promises::new(&config).surviving(surviving.is_some()),
            callback_retries: CallbackRetries::new(config.tell_again),
            volumes,
            surviving,
            locks,
            counters: Counters::default(),
            lent: Arc::default(),
            started: SystemTime::now(),
            config,
        })
    }

    /// Fails unless the caller's address is permitted.
    pub(crate) fn check_allowed(&self, call: &Call) -> CallResult<()> {
        if self.config.allows(call.peer().ip()) {
            Ok(())
        } else {
            Err(DENIED)
        }
    }

    /// Returns the time since the Unix epoch.
    pub(crate) fn clock(&self) -> Duration {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.unwrap_or_default()
    }
}

/// Derives the server's identity: the UUID of the file system, so that it is stable.
fn identity(fs: &Fs) -> Uuid {
    Uuid(fs.superblock().uuid)
}

/// Receives bytes that begin with a complete request, as decided by `parse`. File data may follow
/// in them and in the call.
pub(crate) fn receive(
    call: &mut Call,
    patience: &AdmissionControl,
    parse: impl Fn(&[u8]) -> afs_proto::Result<()>,
) -> CallResult<Bytes> {
    let is_whole = |bytes: &[u8]| match parse(bytes) {
        Ok(()) => Ok(true),
        Err(WireError::Incomplete) => Ok(false),
        Err(error) => Err(error),
    };
    let (begun, mut sender) = (Instant::now(), patience.sender());
    let first = sender
        .request(call, begun)?
        .ok_or(Fault::Code(Abort::RXGEN_DECODE))?;
    if is_whole(first.as_ref())? {
        return Ok(first);
    }
    let mut held = first.as_ref().to_vec();
    loop {
        let piece = sender.request(call, begun)?;
        let piece = piece.ok_or(WireError::Incomplete)?;
        held.extend_from_slice(piece.as_ref());
        if is_whole(&held)? {
            return Ok(held.into());
        }
        if held.len() > REQUEST_BYTES_MAX {
            let (what, length, max) = ("a message", held.len(), REQUEST_BYTES_MAX);
            return Err(WireError::TooLong { what, length, max }.into());
        }
    }
}
