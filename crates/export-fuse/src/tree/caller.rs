//! What a caller may do beyond its user and its group, which are all that a request says of it.
//!
//! **Invariant:** who cannot be looked at, a process of another PID namespace for example, has no groups and no
//! capabilities. The caller waits for the answer meanwhile, so what is read is of its own thread.

use fuser::Request;

/// Capabilities of <linux/capability.h>.
pub(super) const CAP_FSETID: u32 = 4;
pub(super) const CAP_SYS_ADMIN: u32 = 21;

/// Whether the caller is in a group.
pub(super) fn is_in_group(req: &Request, gid: u32) -> bool {
    req.gid() == gid
        || status_of(req, "Groups:")
            .is_some_and(|groups| groups.split_whitespace().any(|g| g.parse() == Ok(gid)))
}

/// Whether the caller has a capability over this mount. A user who is root in a user namespace of its own has all of
/// them there, and another number here.
pub(super) fn has(req: &Request, capability: u32) -> bool {
    let effective = || u64::from_str_radix(status_of(req, "CapEff:")?.trim(), 16).ok();
    req.uid() == 0 && effective().is_some_and(|set| set >> capability & 1 == 1)
}

/// A line of what the kernel says of the thread that asks, without its title.
fn status_of(req: &Request, title: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", req.pid())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(title));
    line.map(str::to_owned)
}
