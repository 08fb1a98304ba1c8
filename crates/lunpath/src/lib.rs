//! One path to a LUN: the identity of the target at its other end, connections that are established
//! off the data path, a fence against requests that were sent and never answered, and the queue of
//! a path, from which requests can be withdrawn.
//!
//! ```text
//!   Lunpath ── connect ──► Connection ── open ──► PathQueue: Queue
//!      identify, access, fence                      withdraw, lost_reason
//! ```
//!
//! Calls to a [`Lunpath`] may block, never longer than the given limit, and run on no thread that
//! carries I/O. [`Connection::open`] runs on an I/O thread and does not block.

use block::{DeviceInfo, Queue, Request, Result};
use std::time::Duration;

/// Transport of a path to its LUN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// A file or a block device of this machine.
    File,
    /// An NBD export.
    Nbd,
    /// A logical unit of an iSCSI target.
    Iscsi,
    /// An RBD image of a Ceph cluster.
    Rbd,
}

impl Transport {
    /// Returns the name in attribute scopes, listings and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Transport::File => "file",
            Transport::Nbd => "nbd",
            Transport::Iscsi => "iscsi",
            Transport::Rbd => "rbd",
        }
    }
}

/// Asymmetric logical unit access: the state of the target port group behind a path (SPC-4, section
/// 5.15.2.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Carries I/O at full speed; also the state of a target without ALUA.
    Optimized,
    /// Carries I/O with reduced performance.
    NonOptimized,
    /// Carries no I/O until it is made active.
    Standby,
    /// Carries no I/O.
    Unavailable,
    /// In transition from one state to another.
    Transitioning,
}

impl Access {
    /// Reports whether reads and writes are carried out in this state.
    pub fn carries(self) -> bool {
        matches!(self, Access::Optimized | Access::NonOptimized)
    }

    /// Returns the name in listings and JSON.
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

/// Information about access that a connection received, with or instead of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessHint {
    /// The access state has changed; [`Lunpath::access`] returns the new one.
    Changed,
    /// The access state is this, until another report arrives.
    Is(Access),
}

/// Identity of the target at the other end of a path. Strings are as the target sends them, without
/// padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// World-wide ID: `naa.HEX`, `eui.HEX`, `t10.TEXT` or `uuid.HEX` (VPD page 0x83), the value in
    /// the description of an NBD export (`wwid=...`), or `rbd.FSID.POOL.IMAGE` with the IDs of a
    /// Ceph cluster, its pool and the image. `None`: the target reports none.
    pub wwid: Option<String>,
    /// Unit serial number (VPD page 0x80).
    pub serial: Option<String>,
    /// Vendor of the device, for attribute scopes: `IET`, `NBD`, `Ceph`, `file`.
    pub vendor: String,
    /// Product name of the device.
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

/// One path to a LUN.
pub trait Lunpath: Send + Sync {
    /// Returns the address as the user writes it: a URI or a file name. Contains no secret.
    fn name(&self) -> &str;

    /// Returns the transport of the path.
    fn transport(&self) -> Transport;

    /// Returns the port of the target, for limits per port and `pref_tport`: `HOST:PORT`, the path
    /// of a socket, the directory of a file, or the configuration of a Ceph cluster. Paths with the same text share a port.
    fn target_port(&self) -> String;

    /// Queries the identity of the target. Waits at most `within`.
    ///
    /// # Errors
    /// The path is lost, refuses the query, or does not answer in time.
    fn identify(&self, within: Duration) -> Result<Identity>;

    /// Establishes a connection for one queue. Waits at most `within`.
    ///
    /// # Errors
    /// As [`Lunpath::identify`]. [`block::ErrorKind::NotNow`]: the target is reachable, but its
    /// port provides no access to the unit at present.
    fn connect(&self, within: Duration) -> Result<Box<dyn Connection>>;

    /// Queries the access state of the target's port, including states without access. Waits at
    /// most `within`. `None`: the target does not distinguish its ports.
    ///
    /// # Errors
    /// As [`Lunpath::identify`].
    fn access(&self, within: Duration) -> Result<Option<Access>> {
        let _ = within;
        Ok(None)
    }

    /// Ensures through this path that no request which was sent under `key` (of a connection of
    /// *another* path to the same LUN) and is still on its way is ever carried out. Waits at most
    /// `within`.
    ///
    /// # Errors
    /// [`block::ErrorKind::Unsupported`] if the transport or the target has no fence.
    fn fence(&self, key: u64, within: Duration) -> Result<()>;

    /// Ensures through this path that the storage refuses all requests of other clients to the LUN,
    /// also those that are still on their way, until one of them evicts this one: an earlier owner
    /// may not know that it is one. Connections of this process can be used as before. Waits at
    /// most `within`.
    ///
    /// # Errors
    /// [`block::ErrorKind::Unsupported`] if the transport or the target cannot do this; the path is
    /// lost.
    fn evict(&self, within: Duration) -> Result<()> {
        let _ = within;
        let why = "the storage cannot be told to refuse requests of other machines on this path";
        Err(block::Error::new(
            block::ErrorKind::Unsupported,
            self.name(),
            why,
        ))
    }

    /// Reports whether the storage executes requests of no other client as long as a connection of
    /// this path is up, and none of this path once another client has taken its place.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Explains why requests on connections that are up have had no answer for seconds, if the
    /// storage can be asked: for status displays. `None`: they are answered, or nothing is known.
    /// Waits at most `within`.
    fn stalled(&self, within: Duration) -> Option<String> {
        let _ = within;
        None
    }

    /// Removes state that lost connections and fences have left at the target. For use once no
    /// connection of the LUN remains; called for all its paths and then once more, because one path
    /// may need the state of another until that path has removed it. Waits at most `within`.
    fn close(&self, within: Duration) {
        let _ = within;
    }
}

/// An established connection that has not reached its I/O thread yet.
pub trait Connection: Send {
    /// Describes the device as this connection found them.
    fn info(&self) -> &DeviceInfo;

    /// Returns the identity that the target reported while this connection was established: the
    /// identity seen on another connection proves nothing about this one.
    fn identity(&self) -> &Identity;

    /// Reports whether the target distinguishes its ports, so that [`Lunpath::access`] is worth
    /// polling.
    fn access_varies(&self) -> bool {
        false
    }

    /// Returns the key that identifies this connection to [`Lunpath::fence`], if it can be fenced.
    fn fence_key(&self) -> Option<u64>;

    /// Opens the queue on the calling thread. Does not block. The queue does not reconnect: when
    /// the connection is lost, every request in flight and every later one completes with
    /// [`block::ErrorKind::PathLost`]. Nor does it wait for a target that is busy or whose port
    /// provides no access: such requests complete with [`block::ErrorKind::NotNow`], and the caller
    /// may use another path.
    ///
    /// # Errors
    /// The system denies a resource that the queue needs.
    fn open(self: Box<Self>) -> Result<Box<dyn PathQueue>>;
}

/// The queue of a connection. Its methods have no default: a wrapper that forgot one would lose
/// requests or reports of its path.
pub trait PathQueue: Queue {
    /// Withdraws a request in flight that the peer has not answered, so that the caller can submit
    /// it on another path. A late answer is discarded and touches no buffer. The peer may still
    /// carry the request out; [`PathQueue::drain_late`] reports when it has answered.
    ///
    /// `None`: no request in flight has this tag, or the device needs its memory until the request
    /// is done (a kernel ring), and then it completes as usual.
    fn withdraw(&mut self, tag: u64) -> Option<Request>;

    /// Appends to `tags` the tags of withdrawn requests that have been answered since. Considers
    /// only input that [`Queue::reap`] has already read.
    fn drain_late(&mut self, tags: &mut Vec<u64>);

    /// Returns the latest report of the peer about access to the unit, if it has sent one since the
    /// previous call. Considers only input that [`Queue::reap`] has already read.
    fn access_sign(&mut self) -> Option<AccessHint>;

    /// Returns the reason why the peer is lost for good, once it is; every later request fails with
    /// [`block::ErrorKind::PathLost`]. Considers only input that [`Queue::reap`] has already read.
    fn lost_reason(&self) -> Option<&str>;
}

/// Decodes the percent-encoding of a name in an address (RFC 3986, section 2.1). `None`: an escape is
/// incomplete, or the result is not UTF-8.
pub fn percent_decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || (bytes.next()? as char).to_digit(16);
        out.push(u8::try_from(digit()? * 16 + digit()?).ok()?);
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_or_the_name_is_refused() {
        assert_eq!(percent_decode("a%20b%40c"), Some("a b@c".into()));
        assert_eq!(percent_decode("%c3%A4"), Some("\u{e4}".into()));
        for wrong in ["%", "%4", "%4g", "%c3", "%ff%20"] {
            assert_eq!(percent_decode(wrong), None, "{wrong}");
        }
    }
}
