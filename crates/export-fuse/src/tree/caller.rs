//! Rights of a caller beyond its user and group, which are all that a request contains.
//!
//! **Invariant:** a caller that cannot be inspected, such as a process of another PID namespace,
//! has no supplementary groups and no capabilities. The caller is blocked until the reply, so the
//! data read here belongs to its own thread.

use fuse_mount::fuse_proto::Header;

/// Capabilities of <linux/capability.h>.
pub(super) const CAP_FOWNER: u32 = 3;
pub(super) const CAP_FSETID: u32 = 4;
pub(super) const CAP_LINUX_IMMUTABLE: u32 = 9;
pub(crate) const CAP_SYS_ADMIN: u32 = 21;

/// Checks whether the caller is in a group.
pub(super) fn is_in_group(header: &Header, gid: u32) -> bool {
    header.gid == gid
        || status_of(header, "Groups:")
            .is_some_and(|groups| groups.split_whitespace().any(|g| g.parse() == Ok(gid)))
}

/// Checks whether the caller has a capability over this mount. A user who is root in a user
/// namespace of its own has all capabilities there, but a different user id here.
pub(crate) fn has(header: &Header, capability: u32) -> bool {
    let effective = || u64::from_str_radix(status_of(header, "CapEff:")?.trim(), 16).ok();
    header.uid == 0 && effective().is_some_and(|set| set >> capability & 1 == 1)
}

/// Reads a line of the status of the calling thread, without its title.
fn status_of(header: &Header, title: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", header.pid)).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(title));
    line.map(str::to_owned)
}
