//! A path: an address and options, from which connections are made.

use crate::address::Address;
use crate::connect::{Access, field, log_in};
use crate::device::IscsiDevice;
use crate::link::Link;
use crate::options::Options;
use crate::queue::{IscsiQueue, Retries};
use crate::reserve;
use crate::unit::{self, Found};
use block::{
    Connection, DeviceInfo, Error, ErrorKind, Identity, Lunpath, Queue, Result, Transport,
};
use iscsi_proto::Kind;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One way to a logical unit of an iSCSI target.
pub struct IscsiPath {
    name: String,
    address: Address,
    pub(crate) options: Options,
    /// The session that fences go through, once there was one, and its key.
    control: Mutex<Option<(Link, u64)>>,
    /// The session that access is asked on, once there was one.
    watch: Mutex<Option<Link>>,
}

impl IscsiPath {
    /// Reads `iscsi://[USER@]HOST[:PORT]/TARGET/LUN`. Does not connect.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]: it is no such address, or holds a secret.
    pub fn parse(uri: &str, options: Options) -> Result<IscsiPath> {
        Ok(IscsiPath {
            address: Address::parse(uri)?,
            name: uri.into(),
            options,
            control: Mutex::new(None),
            watch: Mutex::new(None),
        })
    }

    /// The path as a device of its own: each of its queues makes a connection. Waits no longer than
    /// `within`.
    ///
    /// # Errors
    /// As [`Lunpath::connect`].
    pub fn open(self, within: Duration) -> Result<IscsiDevice> {
        IscsiDevice::open(self, within)
    }

    /// Resets the logical unit: what is in flight on it is dropped, of other initiators too, and
    /// their next command ends in a unit attention. Waits no longer than `within`.
    ///
    /// # Errors
    /// As [`Lunpath::connect`], and the target's refusal.
    pub fn reset(&self, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        self.link(deadline)?.reset_unit(deadline)
    }

    fn link(&self, deadline: Instant) -> Result<Link> {
        let user = self.address.user.clone();
        let user = user.or_else(|| self.options.chap_user.clone());
        let access = Access::of(&self.options, user)?;
        let kind = Kind::Normal {
            target: &self.address.target,
            lun: field(self.address.lun),
        };
        log_in(&self.name, &self.address.portal, &access, kind, deadline)
    }

    fn find(&self, link: &mut Link, deadline: Instant) -> Result<Found> {
        let fallback = format!("iscsi.{}.{}", self.address.target, self.address.lun);
        unit::ask(link, &self.options, fallback, deadline)
    }

    pub(crate) fn make_connection(&self, within: Duration) -> Result<IscsiConnection> {
        let deadline = Instant::now() + within;
        let mut link = self.link(deadline)?;
        // Who has not registered may not even ask for everything.
        if self.options.persistent_reservations && !self.options.read_only {
            reserve::register(&mut link, deadline)?;
        }
        let found = self.find(&mut link, deadline)?;
        Ok(IscsiConnection {
            link,
            found,
            depth: self.options.queue_depth.max(1) as usize,
        })
    }

    fn fence_through(
        &self,
        control: &mut Option<(Link, u64)>,
        key: u64,
        deadline: Instant,
    ) -> Result<()> {
        let third = deadline.saturating_duration_since(Instant::now()) / 3;
        let earlier = control.take().and_then(|(mut link, own)| {
            let answers = link.ping(Instant::now() + third).is_ok();
            answers.then_some((link, own))
        });
        let (mut link, own) = match earlier {
            Some(control) => control,
            None => {
                let mut link = self.link(deadline)?;
                let own = reserve::register(&mut link, deadline)?;
                (link, own)
            }
        };
        // The reservation may be this session's from now on, and has to outlive it: something of
        // the lost connection may be on its way for longer than this process lives.
        link.key = None;
        reserve::preempt(&mut link, own, key, deadline)?;
        *control = Some((link, own));
        Ok(())
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

    /// On a session that stays open: with many LUNs, a login each time would be most of the work.
    fn access(&self, within: Duration) -> Result<Option<block::Access>> {
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

    /// Preempts the key. The registration that does it stays at the target, with the reservation,
    /// until somebody clears them: what was sent under the key may arrive at any later time.
    fn fence(&self, key: u64, within: Duration) -> Result<()> {
        if !self.options.persistent_reservations {
            let why = "fencing needs persistent reservations, which are switched off for this path";
            return Err(Error::new(ErrorKind::Unsupported, &self.name, why));
        }
        let deadline = Instant::now() + within;
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        self.fence_through(&mut control, key, deadline)
    }
}

/// A session that is logged in, and what it found.
pub(crate) struct IscsiConnection {
    link: Link,
    found: Found,
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

    fn open(self: Box<Self>) -> Result<Box<dyn Queue>> {
        Ok(Box::new(self.into_queue(Retries::Above)?))
    }
}
