//! Confinement: before it serves, a process drops capabilities, the ability to gain privileges, and
//! system calls that no server needs.
//!
//! This happens before the device is opened, so data crafted by an attacker meets parsers that are
//! already confined. It also happens while the process has a single thread, because capabilities
//! belong to a thread, and a new thread inherits those of its creator.
//!
//! **Invariant:** a denied system call never kills the process, which would lose acknowledged data
//! that is not yet written. It fails with `EPERM` instead, and the server continues.

use crate::service::{AttachSpec, ServiceSpec};
use crate::{Error, ProcessCache, Result, Settings};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;

/// Privileges that a process needs while it serves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// Memory for cached pages.
    cache: bool,
    /// FUSE: a mount, a volume as a file, or a loop device over that file.
    mounts: bool,
    /// A cell, whose sockets need large receive buffers.
    cell: bool,
    /// A port below 1024.
    low_port: bool,
}

impl Needs {
    /// Lists the needs of a service.
    pub fn of(spec: &ServiceSpec) -> Needs {
        match spec {
            ServiceSpec::Attach(spec) => Needs::attach(spec),
            ServiceSpec::Mount(_) => Needs::mount(),
            ServiceSpec::Serve(_) => Needs::serve(),
        }
    }

    fn attach(spec: &AttachSpec) -> Needs {
        Needs {
            cache: spec.cached,
            mounts: spec.fuse.is_some() || spec.loop_device,
            cell: false,
            low_port: spec
                .nbd
                .is_some_and(|at| (1..LOW_PORTS_END).contains(&at.port())),
        }
    }

    fn mount() -> Needs {
        Needs {
            cache: true,
            mounts: true,
            ..Needs::default()
        }
    }

    fn serve() -> Needs {
        Needs {
            cache: true,
            cell: true,
            ..Needs::default()
        }
    }

    /// Combines the needs of two services.
    #[must_use]
    pub fn and(self, other: Needs) -> Needs {
        Needs {
            cache: self.cache || other.cache,
            mounts: self.mounts || other.mounts,
            cell: self.cell || other.cell,
            low_port: self.low_port || other.low_port,
        }
    }

    /// Maps the needs to the capabilities to keep.
    fn capabilities(self) -> CapabilitySet {
        // DAC_OVERRIDE: devices and directories of other users. IPC_LOCK: locked keys and pages.
        // SYS_RESOURCE: the pressure file before Linux 6.4, and quotas, which must not make the
        // write-back of acknowledged data fail.
        let mut kept =
            CapabilitySet::DAC_OVERRIDE | CapabilitySet::IPC_LOCK | CapabilitySet::SYS_RESOURCE;
        // mount(2) and umount(2); groups of a requesting process, and users of a mount to be ended;
        // the source of a mount from a block device.
        let mounts =
            CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_PTRACE | CapabilitySet::SYS_CHROOT;
        kept.set(mounts, self.mounts);
        // Receive buffers above the system's limit.
        kept.set(CapabilitySet::NET_ADMIN, self.cell);
        kept.set(CapabilitySet::NET_BIND_SERVICE, self.low_port);
        kept
    }
}

/// First port that any user may bind.
const LOW_PORTS_END: u16 = 1024;

/// Privileges that the process still has.
#[derive(Debug, Clone, Copy)]
pub struct RetainedPrivileges(Option<Needs>);

impl RetainedPrivileges {
    /// Checks whether a service added later can run. A cache or a cell can do without privileges.
    ///
    /// # Errors
    /// A privilege that the service cannot do without was dropped.
    pub fn allows(&self, needs: Needs) -> Result<()> {
        let Some(kept) = self.0 else {
            return Ok(());
        };
        let lacks = match () {
            () if needs.mounts && !kept.mounts => "FUSE mounts and loop devices",
            () if needs.low_port && !kept.low_port => "ports below 1024",
            () => return Ok(()),
        };
        Err(Error::Failed(format!(
            "this process started without {lacks} and dropped the privileges for them; restart it \
             (`evfs down`, then `evfs up`), or run this service in a process of its own"
        )))
    }
}

/// Drops the privileges that are not needed. Must be called while the process has a single thread.
///
/// Mounts of an ordinary user are made and removed by `fusermount3`, which is set-user-ID. Such a
/// process keeps all privileges, because that program needs them.
///
/// # Errors
/// The system has no memory for a cache. A privilege that cannot be dropped is only logged.
pub fn confine(
    settings: &Settings,
    needs: Needs,
    cache: &ProcessCache,
) -> Result<RetainedPrivileges> {
    if needs.cache {
        // The memory of the cache is a mount of its own where that is allowed.
        cache.prepare()?;
    }
    let by_helper = needs.mounts && !rustix::process::geteuid().is_root();
    if !settings.sandbox() || by_helper {
        return Ok(RetainedPrivileges(None));
    }
    let failed = |what: &str, error: String| {
        tracing::warn!(
            name: "EVFS-0801",
            "{what}: {error}; set `sandbox` to false to skip this step"
        );
    };
    if let Err(e) = drop_capabilities(needs.capabilities()) {
        failed("cannot drop capabilities", e.to_string());
    }
    if let Err(e) = rustix::thread::set_no_new_privs(true) {
        failed(
            "cannot set no_new_privs, so programs that this process starts may gain privileges",
            e.to_string(),
        );
    }
    if let Err(e) = deny_system_calls(needs.mounts) {
        failed("cannot deny system calls", e.to_string());
    }
    Ok(RetainedPrivileges(Some(needs)))
}

fn drop_capabilities(kept: CapabilitySet) -> rustix::io::Result<()> {
    let now = rustix::thread::capabilities(None)?;
    // Without SETPCAP the bounding set stays; no program can use it without new privileges.
    if now.effective.contains(CapabilitySet::SETPCAP) {
        for number in 0..u64::BITS {
            let one = CapabilitySet::from_bits_retain(1 << number);
            match rustix::thread::remove_capability_from_bounding_set(one) {
                Ok(()) => {}
                // The previous one was the last capability of this kernel.
                Err(Errno::INVAL) => break,
                Err(e) => return Err(e),
            }
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    let sets = CapabilitySets {
        effective: now.effective & kept,
        permitted: now.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets)
}

/// System calls that access other processes, change the kernel or the machine, or expose more of
/// the kernel to attacks.
const DENIED: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// System calls that only mounts need.
const MOUNTS: &[libc::c_long] = &[
    libc::SYS_chroot,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_unshare,
];

/// Flags of unshare(2) that mounts need: a thread leaves the root directory and the descriptors of
/// the others. No other flags are allowed, because they create namespaces.
const APART: [libc::c_int; 2] = [libc::CLONE_FS, libc::CLONE_FS | libc::CLONE_FILES];

/// Flag in the system call numbers of the x32 ABI, and the range of numbers unique to it.
#[cfg(target_arch = "x86_64")]
const X32: (i64, std::ops::RangeInclusive<i64>) = (0x4000_0000, 512..=547);

/// Makes the [`DENIED`] system calls fail and, unless they are needed, those of [`MOUNTS`].
fn deny_system_calls(mounts: bool) -> std::result::Result<(), seccompiler::Error> {
    let besides = if mounts { &[] } else { MOUNTS };
    let denied = DENIED.iter().chain(besides);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        denied.map(|&number| (number, Vec::new())).collect();
    #[cfg(target_arch = "x86_64")]
    {
        let same: Vec<i64> = rules.keys().copied().collect();
        let all = same.into_iter().chain(X32.1);
        rules.extend(all.map(|number| (X32.0 | number, Vec::new())));
    }
    // In a new user namespace its creator has all capabilities.
    let flag = libc::CLONE_NEWUSER as u64;
    let (whole, masked) = (SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag));
    let new_user = SeccompCondition::new(0, whole, masked, flag)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![new_user])?]);
    if mounts {
        let is_other = |flags: libc::c_int| {
            let flags = flags as u64;
            SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, flags)
        };
        let others = vec![is_other(APART[0])?, is_other(APART[1])?];
        rules.insert(libc::SYS_unshare, vec![SeccompRule::new(others)?]);
    }
    install(rules, libc::EPERM)?;
    // A filter cannot read the flags of clone3(2); after ENOSYS the C library uses clone(2).
    install(
        BTreeMap::from([(libc::SYS_clone3, Vec::new())]),
        libc::ENOSYS,
    )
}

/// Makes these system calls fail with `error`, in all threads and in programs that they start.
fn install(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    error: libc::c_int,
) -> std::result::Result<(), seccompiler::Error> {
    let arch = std::env::consts::ARCH.try_into()?;
    let denied = SeccompAction::Errno(error as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, denied, arch)?;
    let program: seccompiler::BpfProgram = filter.try_into()?;
    seccompiler::apply_filter_all_threads(&program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Variable that marks the confined child process.
    const CONFINED: &str = "EVFS_TEST_CONFINED";

    /// Reruns `test` in a child process that is to be confined; returns whether this is the child.
    fn is_confined_child(test: &str) -> bool {
        if std::env::var_os(CONFINED).is_some() {
            return true;
        }
        let test = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
        let child = Command::new(std::env::current_exe().unwrap())
            .args([&test, "--exact", "--nocapture"])
            .env(CONFINED, "1")
            .output();
        let child = child.unwrap();
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(
            child.status.success() && text.contains("1 passed"),
            "{child:?}"
        );
        false
    }

    fn call(number: libc::c_long, first: libc::c_long) -> Option<i32> {
        // SAFETY: the kernel cannot access memory at a pointer of all ones, and no system call
        // accepts such flags or lengths.
        let result = unsafe { libc::syscall(number, first, -1, -1, -1, -1) };
        let error = std::io::Error::last_os_error();
        (result < 0).then(|| error.raw_os_error()).flatten()
    }

    #[test]
    fn system_calls_that_no_server_needs_fail_in_all_threads() {
        if !is_confined_child("system_calls_that_no_server_needs_fail_in_all_threads") {
            return;
        }
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let earlier = std::thread::spawn(move || {
            wait.recv().unwrap();
            call(libc::SYS_keyctl, -1)
        });
        deny_system_calls(true).unwrap();
        go.send(()).unwrap();
        assert_eq!(earlier.join().unwrap(), Some(libc::EPERM));
        for &number in DENIED {
            assert_eq!(call(number, -1), Some(libc::EPERM), "{number}");
        }
        #[cfg(target_arch = "x86_64")]
        for number in [libc::SYS_bpf, 521] {
            assert_eq!(call(X32.0 | number, -1), Some(libc::EPERM), "x32 {number}");
        }
        let new_user = i64::from(libc::CLONE_NEWUSER);
        assert_eq!(call(libc::SYS_clone, new_user), Some(libc::EPERM));
        assert_eq!(call(libc::SYS_clone3, -1), Some(libc::ENOSYS));
        // Threads and programs still start, and programs inherit the filter.
        let status = std::thread::spawn(|| Command::new("unshare").args(["-U", "true"]).status());
        let status = status.join().unwrap();
        assert!(status.is_err() || !status.unwrap().success());
        assert!(Command::new("true").status().unwrap().success());
        // System calls for mounts are allowed, and reject these flags, until they are denied, too.
        assert_eq!(call(libc::SYS_umount2, -1), Some(libc::EINVAL));
        // So is a thread of its own, and no namespace.
        for flags in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS | libc::CLONE_FS, -1] {
            let result = call(libc::SYS_unshare, flags.into());
            assert_eq!(result, Some(libc::EPERM), "{flags:x}");
        }
        for flags in APART {
            let unshare = move || call(libc::SYS_unshare, flags.into());
            assert_eq!(
                std::thread::spawn(unshare).join().unwrap(),
                None,
                "{flags:x}"
            );
        }
        deny_system_calls(false).unwrap();
        for &number in MOUNTS {
            assert_eq!(call(number, APART[0].into()), Some(libc::EPERM), "{number}");
        }
    }

    #[test]
    fn capabilities_go_from_every_set() {
        if !is_confined_child("capabilities_go_from_every_set") {
            return;
        }
        let before = rustix::thread::capabilities(None).unwrap();
        let kept = Needs::serve().capabilities();
        drop_capabilities(kept).unwrap();
        let now = rustix::thread::capabilities(None).unwrap();
        assert_eq!(now.permitted, before.permitted & kept);
        assert_eq!(now.effective, before.effective & kept);
        assert!(now.inheritable.is_empty());
        if before.effective.contains(CapabilitySet::SETPCAP) {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            assert!(status.contains("CapBnd:\t0000000000000000"), "{status}");
            assert!(status.contains("CapAmb:\t0000000000000000"), "{status}");
        }
    }

    #[test]
    fn what_was_given_up_is_not_served_later() {
        let kept = RetainedPrivileges(Some(Needs::serve()));
        kept.allows(Needs::default()).unwrap();
        kept.allows(Needs::serve()).unwrap();
        let refused = kept.allows(Needs::mount()).unwrap_err().to_string();
        assert!(refused.contains("FUSE mounts"), "{refused}");
        RetainedPrivileges(Some(Needs::mount().and(Needs::serve())))
            .allows(Needs::mount())
            .unwrap();
        RetainedPrivileges(None).allows(Needs::mount()).unwrap();
    }
}
