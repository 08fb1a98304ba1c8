//! Rights of a caller beyond its user and group, which are all that a request contains.
//!
//! **Invariant:** a caller that cannot be inspected, such as a process of another PID namespace,
//! has no supplementary groups and no capabilities. The caller is blocked until the reply, so the
//! data read here belongs to its own thread.

use fuser::Request;

/// Capabilities of <linux/capability.h>.
pub(super) const CAP_FSETID: u32 = 4;
pub(super) const CAP_SYS_ADMIN: u32 = 21;

/// Checks whether the caller is in a group.
pub(super) fn is_in_group(req: &Request, gid: u32) -> bool {
    req.gid() == gid
        || status_of(req, "Groups:")
            .is_some_and(|groups| groups.split_whitespace().any(|g| g.parse() == Ok(gid)))
}

/// Checks whether the caller has a capability over this mount. A user who is root in a user
/// namespace of its own has all capabilities there, but a different user id here.
pub(super) fn has(req: &Request, capability: u32) -> bool {
    let effective = || u64::from_str_radix(status_of(req, "CapEff:")?.trim(), 16).ok();
    req.uid() == 0 && effective().is_some_and(|set| set >> capability & 1 == 1)
}

/// Reads a line of the status of the calling thread, without its title.
fn status_of(req: &Request, title: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", req.pid())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(title));
    line.map(str::to_owned)
}
