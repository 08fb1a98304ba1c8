//! What a path to a LUN offers beyond a device: who answers at its other end, connections that are
//! made off the data path, and a fence against what was sent and never answered.
//!
//! Everything here is *control plane*: it may wait (never longer than it is told), and it runs on no
//! thread that carries I/O. Only [`Connection::open`] runs there, and it does not wait.

use crate::{DeviceInfo, Queue, Result};
use std::time::Duration;

/// How a path reaches its LUN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// A file or a block device of this machine.
    File,
    /// An NBD export.
    Nbd,
    /// A logical unit of an iSCSI target.
    Iscsi,
}

impl Transport {
    /// The name in attribute scopes, listings and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Transport::File => "file",
            Transport::Nbd => "nbd",
            Transport::Iscsi => "iscsi",
        }
    }
}

/// Asymmetric logical unit access: the state of the target port group behind a path (SPC-4, section
/// 5.15.2.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Carries I/O at full speed; also what a target without ALUA gives.
    Optimized,
    /// Carries I/O, at a cost.
    NonOptimized,
    /// Carries no I/O until it is made active.
    Standby,
    /// Carries nothing.
    Unavailable,
    /// On its way from one state to another.
    Transitioning,
}

impl Access {
    /// Whether reads and writes are carried out at all.
    pub fn carries(self) -> bool {
        matches!(self, Access::Optimized | Access::NonOptimized)
    }

    /// The name in listings and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Access::Optimized => "optimized",
            Access::NonOptimized => "non_optimized",
            Access::Standby => "standby",
            Access::Unavailable => "unavailable",
            Access::Transitioning => "transitioning",
        }
    }
}

/// What a connection heard of access, beside or instead of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessSign {
    /// It has changed; into what has to be asked ([`Lunpath::access`]).
    Changed,
    /// It is this, for as long as nothing else is heard.
    Is(Access),
}

/// Who answers at the other end of a path. Strings are as the target gives them, without padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// World-wide ID: `naa.HEX`, `eui.HEX`, `t10.TEXT` or `uuid.HEX` (VPD page 0x83), or what an NBD
    /// export gives in its description (`wwid=...`). `None`: the target names none.
    pub wwid: Option<String>,
    /// Unit serial number (VPD page 0x80).
    pub serial: Option<String>,
    /// Vendor of the device, for attribute scopes: `IET`, `NBD`, `file`.
    pub vendor: String,
    /// Product of the device.
    pub product: String,
    /// Size in bytes.
    pub size: u64,
    /// Logical block size in bytes.
    pub logical_block_size: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// State of the target port group.
    pub access: Access,
}

/// One way to a LUN.
pub trait Lunpath: Send + Sync {
    /// The address, as the user writes it: a URI or a file name. Holds no secret.
    fn name(&self) -> &str;

    /// How the LUN is reached.
    fn transport(&self) -> Transport;

    /// The port of the target, for limits per port and `pref_tport`: `HOST:PORT`, a socket's path, or
    /// the name of a file's folder. Paths with the same text share a port.
    fn target_port(&self) -> String;

    /// Asks who answers. Waits no longer than `within`.
    ///
    /// # Errors
    /// The path is lost, refuses, or does not answer in time.
    fn identify(&self, within: Duration) -> Result<Identity>;

    /// Makes a connection for one queue. Waits no longer than `within`.
    ///
    /// # Errors
    /// As [`Lunpath::identify`]. [`crate::ErrorKind::NotNow`]: the target is there, and its port gives
    /// no access to the unit at present.
    fn connect(&self, within: Duration) -> Result<Box<dyn Connection>>;

    /// Asks for the access that the target's port gives, also when that is none. Waits no longer than
    /// `within`. `None`: the target makes no difference between its ports.
    ///
    /// # Errors
    /// As [`Lunpath::identify`].
    fn access(&self, within: Duration) -> Result<Option<Access>> {
        let _ = within;
        Ok(None)
    }

    /// Through this path, makes sure that nothing which was sent under `key` (of a connection of
    /// *another* path to the same LUN) and is still on its way is ever carried out. Waits no longer
    /// than `within`.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Unsupported`] where the transport or the target has no such thing.
    fn fence(&self, key: u64, within: Duration) -> Result<()>;

    /// Takes back what connections that were lost, and fences, have left at the other end. For when
    /// no connection of the LUN is in use any more; called for all its paths, and then once more,
    /// because what one path left may be needed until another has taken back its own. Waits no longer
    /// than `within`.
    fn close(&self, within: Duration) {
        let _ = within;
    }
}

/// A connection that is ready, on its way to the thread that will use it.
pub trait Connection: Send {
    /// The device as this connection found it.
    fn info(&self) -> &DeviceInfo;

    /// Who answered, as found while this very connection was made: what was proven of another
    /// connection says nothing about this one.
    fn identity(&self) -> &Identity;

    /// Whether the target makes a difference between its ports, so that [`Lunpath::access`] is worth
    /// asking now and then.
    fn access_varies(&self) -> bool {
        false
    }

    /// What [`Lunpath::fence`] names this connection by, if it can be fenced.
    fn fence_key(&self) -> Option<u64>;

    /// The queue, on the thread that calls. Does not wait. The queue does not connect again: when
    /// the connection is lost, everything in flight and everything submitted later completes with
    /// [`crate::ErrorKind::PathLost`]. Nor does it wait for a target that is busy or whose port gives
    /// no access: that is [`crate::ErrorKind::NotNow`], for whoever knows another way.
    ///
    /// # Errors
    /// The system refuses what the queue needs.
    fn open(self: Box<Self>) -> Result<Box<dyn Queue>>;
}
