//! The kernel's caches.

use crate::{Error, Result};

/// Writes back all dirty data and drops the kernel's caches (proc_sys_vm(5), drop_caches).
///
/// # Errors
/// [`Error::Spec`] without permission.
pub fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").map_err(|e| {
        Error::Spec(format!(
            "cannot drop caches: {e}; run as root, omit --drop-caches, or use direct I/O"
        ))
    })
}
