//! Starts a child that ends with its parent.
//!
//! The kernel enforces this, so it holds even if the parent is killed. The kernel tracks the parent
//! thread, so a thread that ends takes its children with it.

use rustix::process::{Signal, set_parent_process_death_signal};
use std::io::Result;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Starts a child that is killed when the calling thread ends.
pub(super) fn spawn(command: &mut Command) -> Result<Child> {
    // SAFETY: between fork and exec the closure makes one system call (prctl(2), PR_SET_PDEATHSIG);
    // it allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    command.spawn()
}
