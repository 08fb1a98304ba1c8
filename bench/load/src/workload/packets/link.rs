//! A link with Ethernet frames between two threads of this process: a veth pair with each end in
//! its own network namespace, so packets between the ends really cross the link.
//!
//! **Invariant:** namespaces and link exist only as long as descriptors of this process refer to
//! them. A killed process leaves nothing behind, and the machine's own networks are not changed.
//!
//! Requires root and the program `ip`. The unsafe code of this module is one system call.

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fs::File;
use std::io::{Error, Result};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};

/// Address of the near end, visible only within the link.
pub(super) const NEAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// Address of the far end.
pub(super) const FAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);

/// Bytes of an IP packet on an Ethernet.
const MTU: &str = "1500";

/// A network namespace of this process.
pub(super) struct Namespace(File);

/// Both ends of a link.
pub(super) struct Pair {
    pub(super) near: Namespace,
    pub(super) far: Namespace,
}

impl Pair {
    /// Creates both namespaces and the link between them.
    ///
    /// # Errors
    /// The user lacks the privilege, or `ip` is missing or fails.
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
            // SAFETY: only the calling thread's network namespace changes; the thread keeps sharing
            // the process's file descriptor table (`CLONE_FILES` is not requested).
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            Ok(Namespace(File::open("/proc/thread-self/ns/net")?))
        })
    }

    /// Runs `work` on a thread in this namespace. Sockets and threads that it creates stay in the
    /// namespace wherever they are used.
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
        .map_err(|e| Error::new(e.kind(), format!("cannot run ip (package iproute2): {e}")))?;
    if run.status.success() {
        Ok(())
    } else {
        Err(Error::other(format!(
            "ip {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&run.stderr).trim()
        )))
    }
}

/// Counters of the IP layer in the calling thread's network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sent {
    datagrams: u64,
    fragmented: u64,
    fragments: u64,
}

impl Sent {
    /// Reads the counters of the calling thread's namespace (`Ip:` in proc_net_snmp, names of RFC
    /// 1213).
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

    /// Counts the packets sent since `before`: unfragmented datagrams and fragments.
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
