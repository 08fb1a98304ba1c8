//! A path: an address and options from which connections are made.

use crate::address::Address;
use crate::connect::{Access, field, log_in};
use crate::link::Link;
use crate::nexus::{self, LostSessions, random_isid};
use crate::options::Options;
use crate::queue::{IscsiQueue, Retries};
use crate::reserve;
use crate::unit::{self, UnitProperties};
use block::{DeviceInfo, Error, ErrorKind, Result};
use iscsi_proto::Kind;
use lunpath::{Connection, Identity, Lunpath, PathQueue, Transport};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Maximum time that dropping a path may take to clean up at the target.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// Vendor in the INQUIRY data of the Linux kernel's target.
const VENDOR_LIO: &str = "LIO-ORG";

/// A path to a logical unit of an iSCSI target.
pub struct IscsiPath {
    name: String,
    address: Address,
    pub(crate) options: Options,
    /// Session for fencing, opened on first use.
    control: Mutex<Option<Link>>,
    /// Session for access state queries, opened on first use.
    watch: Mutex<Option<Link>>,
    /// Sessions that did not log out.
    leavings: Arc<LostSessions>,
    /// Registrations of dead processes were searched for, once.
    swept: AtomicBool,
    /// Whether connections register, once the target has said what it is.
    reserves: OnceLock<bool>,
    closed: AtomicBool,
}

impl IscsiPath {
    /// Parses `iscsi://[USER@]HOST[:PORT]/TARGET/LUN`. Does not connect.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is not such an address, or if it holds a secret.
    pub fn parse(uri: &str, options: Options) -> Result<IscsiPath> {
        Ok(IscsiPath {
            address: Address::parse(uri)?,
            name: uri.into(),
            options,
            control: Mutex::new(None),
            watch: Mutex::new(None),
            leavings: Arc::default(),
            swept: AtomicBool::new(false),
            reserves: OnceLock::new(),
            closed: AtomicBool::new(false),
        })
    }

    /// Resets the logical unit: all its commands are aborted, including those of other initiators,
    /// whose next command ends in a unit attention. Blocks for at most `within`.
    ///
    /// # Errors
    /// Same as [`Lunpath::connect`], and a rejection by the target.
    pub fn reset(&self, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        self.link(deadline)?.reset_unit(deadline)
    }

    /// Logs in, replacing a lost session if one exists.
    fn link(&self, deadline: Instant) -> Result<Link> {
        let left = self.leavings.take();
        let isid = left.map_or_else(random_isid, |left| left.isid);
        match self.log_in(isid, deadline) {
            Ok(mut link) => {
                link.leavings = Arc::clone(&self.leavings);
                link.key = left.map(|left| left.key);
                // The target has ended the session that had this ISID.
                link.key.into_iter().for_each(nexus::ended);
                Ok(link)
            }
            Err(error) => {
                left.into_iter().for_each(|left| self.leavings.record(left));
                Err(error)
            }
        }
    }

    fn log_in(&self, isid: [u8; 6], deadline: Instant) -> Result<Link> {
        let user = self.address.user.clone();
        let user = user.or_else(|| self.options.chap_user.clone());
        let access = Access::of(&self.options, user)?;
        let kind = Kind::Normal {
            target: &self.address.target,
            lun: field(self.address.lun),
        };
        log_in(
            &self.name,
            &self.address.portal,
            &access,
            kind,
            isid,
            deadline,
        )
    }

    fn find(&self, link: &mut Link, deadline: Instant) -> Result<UnitProperties> {
        let fallback = format!("iscsi.{}.{}", self.address.target, self.address.lun);
        unit::query(link, &self.options, fallback, deadline)
    }

    pub(crate) fn make_connection(&self, within: Duration) -> Result<IscsiConnection> {
        let deadline = Instant::now() + within;
        let mut link = self.link(deadline)?;
        // Without a registration, some of the following queries would be refused.
        if self.reserves(&mut link, deadline)? {
            self.register(&mut link, deadline)?;
        }
        let found = self.find(&mut link, deadline)?;
        Ok(IscsiConnection {
            link,
            found,
            depth: self.options.queue_depth.max(1) as usize,
        })
    }

    /// Decides whether the connections of this path register keys.
    ///
    /// Not with the target of the Linux kernel (LIO): of several sessions of one initiator in one
    /// portal group it takes writes only from the session that holds the reservation, whatever is
    /// registered (`isid_mismatch` in `drivers/target/target_core_pr.c`). Our own connections would
    /// shut each other out, and take that for a fence.
    fn reserves(&self, link: &mut Link, deadline: Instant) -> Result<bool> {
        if !self.options.persistent_reservations || self.options.read_only {
            return Ok(false);
        }
        if let Some(known) = self.reserves.get() {
            return Ok(*known);
        }
        let reserves = unit::inquiry(link, deadline)?.vendor != VENDOR_LIO;
        if self.reserves.set(reserves).is_ok() && !reserves {
            tracing::warn!(
                name: "EVFS-0406",
                path = self.name,
                "iscsi.persistent-reservations has no effect: a Linux target (LIO) accepts writes \
                 from only one of the connections that an initiator has registered"
            );
        }
        Ok(reserves)
    }

    fn register(&self, link: &mut Link, deadline: Instant) -> Result<u64> {
        let initiator = &self.options.initiator_name;
        let key = reserve::register(link, initiator, deadline)?;
        if !self.swept.swap(true, Relaxed)
            && let Err(error) = reserve::sweep(link, key, initiator, deadline)
        {
            tracing::warn!(
                name: "EVFS-0407",
                %error, "stale registrations may remain at the target"
            );
        }
        Ok(key)
    }

    fn no_fence(&self, needs: &str) -> Error {
        let why = format!("fencing needs {needs}");
        Error::new(ErrorKind::Unsupported, &self.name, why)
    }

    fn control(&self) -> MutexGuard<'_, Option<Link>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the session for fencing and cleanup, with its key. Reuses `earlier` if it still
    /// answers.
    fn controller(&self, earlier: Option<Link>, deadline: Instant) -> Result<(Link, u64)> {
        let third = deadline.saturating_duration_since(Instant::now()) / 3;
        if let Some(mut link) = earlier
            && let Some(key) = link.key
            && link.ping(Instant::now() + third).is_ok()
        {
            return Ok((link, key));
        }
        let mut link = self.link(deadline)?;
        let key = self.register(&mut link, deadline)?;
        Ok((link, key))
    }

    /// Removes registrations of lost sessions: those of this path by replacing the sessions, others
    /// by their keys. If a session was fenced and could not be ended, the registration that keeps
    /// it fenced stays, with the reservation.
    fn clean_up(&self, deadline: Instant) -> Result<()> {
        let again = std::iter::from_fn(|| self.leavings.any().then(|| self.link(deadline)));
        drop(again.collect::<Result<Vec<Link>>>()?);
        let mut control = self.control();
        let guards = self.leavings.guards();
        if guards || nexus::any_lost() {
            let (mut link, own) = self.controller(control.take(), deadline)?;
            reserve::acquire(&mut link, own, deadline)?;
            reserve::sweep(&mut link, own, &self.options.initiator_name, deadline)?;
            *control = Some(link);
        }
        if !guards {
            *control = None;
        }
        Ok(())
    }
}

impl Drop for IscsiPath {
    fn drop(&mut self) {
        if !self.closed.load(Relaxed) {
            self.close(LEAVE_WITHIN);
        }
    }
}

impl Lunpath for IscsiPath {
    fn name(&self) -> &str {
        &self.name
    }

    fn transport(&self) -> Transport {
        Transport::Iscsi
    }

    fn target_port(&self) -> String {
        self.address.portal.to_string()
    }

    fn identify(&self, within: Duration) -> Result<Identity> {
        let deadline = Instant::now() + within;
        let mut link = self.link(deadline)?;
        Ok(self.find(&mut link, deadline)?.identity)
    }

    fn connect(&self, within: Duration) -> Result<Box<dyn Connection>> {
        Ok(Box::new(self.make_connection(within)?))
    }

    /// Uses a session that stays open: with many LUNs, repeated logins would dominate the cost.
    fn access(&self, within: Duration) -> Result<Option<lunpath::Access>> {
        let deadline = Instant::now() + within;
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = watch.as_mut() {
            let asked = unit::ask_access(link, Instant::now() + within / 3);
            if !link.dead {
                return asked;
            }
            *watch = None;
        }
        let mut link = self.link(deadline)?;
        let access = unit::ask_access(&mut link, deadline)?;
        *watch = access.is_some().then_some(link);
        Ok(access)
    }

    /// Preempts the key. The preempting session stays registered until [`Lunpath::close`].
    fn fence(&self, key: u64, within: Duration) -> Result<()> {
        if !self.options.persistent_reservations || self.reserves.get() == Some(&false) {
            return Err(self.no_fence("persistent reservations, which are disabled for this path"));
        }
        let deadline = Instant::now() + within;
        let mut control = self.control();
        let (mut link, own) = self.controller(control.take(), deadline)?;
        reserve::preempt(&mut link, own, key, deadline)?;
        self.leavings.fenced(key);
        *control = Some(link);
        Ok(())
    }

    /// Preempts the keys of all other processes. A registration and the reservation stay also after
    /// this path is closed: a session of a machine that was suspended may send writes at any time.
    fn evict(&self, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        let mut control = self.control();
        if !self.options.persistent_reservations {
            return Err(self.no_fence("persistent reservations, which are disabled for this path"));
        }
        let mut link = self.link(deadline)?;
        if !self.reserves(&mut link, deadline)? {
            return Err(self.no_fence("a target that takes writes from several connections"));
        }
        drop(link);
        let (mut link, own) = self.controller(control.take(), deadline)?;
        reserve::evict(&mut link, own, deadline)?;
        self.leavings.hold();
        *control = Some(link);
        Ok(())
    }

    fn close(&self, within: Duration) {
        let again = self.closed.swap(true, Relaxed);
        *self.watch.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let unused = self.options.read_only || self.reserves.get() == Some(&false);
        if !self.options.persistent_reservations || unused {
            return;
        }
        if let Err(error) = self.clean_up(Instant::now() + within) {
            tracing::info!(%error, "registrations may remain at the target");
        }
        if again && self.leavings.guards() && !self.leavings.is_held() {
            tracing::warn!(
                name: "EVFS-0408",
                path = self.name,
                "a registration and the reservation remain at the target: another path was lost \
                 with writes in flight, and the target may still execute them; the next attach on \
                 this machine takes them over"
            );
        }
    }
}

/// A logged-in session and the properties of its unit.
pub(crate) struct IscsiConnection {
    link: Link,
    found: UnitProperties,
    depth: usize,
}

impl IscsiConnection {
    pub(crate) fn into_queue(self, retries: Retries) -> Result<IscsiQueue> {
        IscsiQueue::new(self.link, self.found, self.depth, retries)
    }
}

impl Connection for IscsiConnection {
    fn info(&self) -> &DeviceInfo {
        &self.found.info
    }

    fn identity(&self) -> &Identity {
        &self.found.identity
    }

    fn access_varies(&self) -> bool {
        self.found.alua
    }

    fn fence_key(&self) -> Option<u64> {
        self.link.key
    }

    fn open(self: Box<Self>) -> Result<Box<dyn PathQueue>> {
        Ok(Box::new(self.into_queue(Retries::Above)?))
    }
}
