//! A link with the frames of an Ethernet between two threads of this process: a veth pair, each end in a network
//! namespace of its own, so that what is sent from one to the other really leaves by it.
//!
//! **Invariant:** namespaces and link exist as long as descriptors of this process lead to them. A process that is
//! killed leaves nothing, and the networks of the machine are not touched.
//!
//! Needs root and the program `ip`. The module's unsafe code is one system call.

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fs::File;
use std::io::{Error, Result};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};

/// Addresses of the ends, which nobody else sees.
pub(super) const NEAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// The other one.
pub(super) const FAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);

/// Bytes of an IP packet on an Ethernet.
const MTU: &str = "1500";

/// A network namespace of this process.
pub(super) struct Namespace(File);

/// The two ends.
pub(super) struct Pair {
    pub(super) near: Namespace,
    pub(super) far: Namespace,
}

impl Pair {
    /// Makes both namespaces and the link between them.
    ///
    /// # Errors
    /// This user may not; there is no `ip`, or it says why not.
    pub(super) fn new() -> Result<Pair> {
        let (near, far) = (Namespace::new()?, Namespace::new()?);
        let other = format!("/proc/{}/fd/{}", std::process::id(), far.0.as_raw_fd());
        near.within(|| {
            let pair = ["link", "add", "near", "mtu", MTU, "type", "veth"];
            let peer = ["peer", "name", "far", "mtu", MTU, "netns", &other];
            ip(&[&pair[..], &peer[..]].concat())?;
            up("near", NEAR)
        })??;
        far.within(|| up("far", FAR))??;
        Ok(Pair { near, far })
    }
}

impl Namespace {
    fn new() -> Result<Namespace> {
        on_a_thread(|| {
            // SAFETY: the calling thread alone gets another network; its table of descriptors stays the one of the
            // process (`CLONE_FILES` is not asked for).
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            Ok(Namespace(File::open("/proc/thread-self/ns/net")?))
        })
    }

    /// Does something on a thread whose network this is. Sockets that it makes stay there wherever they are used,
    /// and so do its threads.
    pub(super) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        on_a_thread(|| {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(work())
        })
    }
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

fn up(name: &str, address: Ipv4Addr) -> Result<()> {
    ip(&["addr", "add", &format!("{address}/24"), "dev", name])?;
    ip(&["link", "set", name, "up"])
}

fn ip(args: &[&str]) -> Result<()> {
    let run = Command::new("ip")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::new(e.kind(), format!("ip, of the package iproute2: {e}")))?;
    match run.status.success() {
        true => Ok(()),
        false => Err(Error::other(format!(
            "ip {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&run.stderr).trim()
        ))),
    }
}

/// What the IP layer of the calling thread's network has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sent {
    datagrams: u64,
    fragmented: u64,
    fragments: u64,
}

impl Sent {
    /// Its counters now (`Ip:` in proc_net_snmp, names of RFC 1213), those of the network of this thread.
    pub(super) fn now() -> Option<Sent> {
        Sent::parse(&std::fs::read_to_string("/proc/thread-self/net/snmp").ok()?)
    }

    fn parse(text: &str) -> Option<Sent> {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("Ip: "));
        let (names, values) = (lines.next()?, lines.next()?);
        let field = |name: &str| {
            let at = names.split(' ').position(|n| n == name)?;
            values.split(' ').nth(at)?.parse().ok()
        };
        Some(Sent {
            datagrams: field("OutRequests")?,
            fragmented: field("FragOKs")?,
            fragments: field("FragCreates")?,
        })
    }

    /// Packets that left since `before`: the fragments of what was cut, and the rest whole.
    pub(super) fn packets_since(self, before: Sent) -> u64 {
        let whole = (self.datagrams - before.datagrams) - (self.fragmented - before.fragmented);
        whole + (self.fragments - before.fragments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_names() {
        let text = "Ip: Forwarding OutRequests FragOKs FragCreates\nIp: 1 12 2 4\nIcmp: x\n";
        let sent = Sent::parse(text).unwrap();
        let none = Sent {
            datagrams: 0,
            fragmented: 0,
            fragments: 0,
        };
        assert_eq!(sent.packets_since(none), 14);
        assert!(Sent::parse("Ip: OutRequests\nIp: x\n").is_none());
        assert!(Sent::now().is_some());
    }
}
