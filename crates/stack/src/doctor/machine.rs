//! The machine: kernel, devices of the kernel, limits, the cipher, random numbers, memory.

use super::{Finding, ids};
use crate::{Settings, short_size};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Access;
use rustix::process::{Resource, getrlimit};
use std::io;
use std::path::Path;
use xts::Kernel;

/// Oldest supported version of Linux.
const KERNEL_MIN: (u32, u32) = (5, 11);

/// Locked memory that the keys of a few volumes take, in bytes: some pages each.
const MEMLOCK_MIN: u64 = 1 << 20;

/// Descriptors that a service with some connections and threads takes.
const OPEN_FILES_MIN: u64 = 1024;

/// Percentage of the memory limit that the cache may take before other memory becomes scarce.
const CACHE_SHARE_MAX: u64 = 80;

pub(super) fn check(settings: &Settings) -> Vec<Finding> {
    let root = rustix::process::geteuid().is_root();
    let uname = rustix::system::uname();
    let secret = secret::SecretBytes::zeroed(1);
    let locked = secret::all_locked();
    drop(secret);
    let limit = |resource| getrlimit(resource).current;
    let mut findings = vec![
        kernel(&uname.release().to_string_lossy()),
        io_uring(path_file::io_uring_usable()),
        fuse_device(Path::new("/dev/fuse")),
        fuse_helper(
            fuse_mount::mount_helper(),
            fuse_mount::may_gain_privileges(),
            root,
        ),
        loop_devices(Path::new("/dev/loop-control"), root),
        memlock(locked, limit(Resource::Memlock)),
        open_files(limit(Resource::Nofile)),
        cipher(Kernel::best(), &Kernel::available()),
        entropy(entropy_is_ready()),
    ];
    findings.push(match std::fs::read_to_string("/proc/swaps") {
        Ok(text) => swap(&text, Path::new("/sys")),
        Err(e) => Finding::unchecked(ids::SWAP, "swap", e.to_string()),
    });
    findings.push(
        match std::fs::read_to_string("/proc/sys/kernel/core_pattern") {
            Ok(text) => core_dumps(&text),
            Err(e) => Finding::unchecked(ids::CORE, "core dumps", e.to_string()),
        },
    );
    findings.push(cache_memory(
        settings.cache_tunables(),
        cache::memory_bytes(),
    ));
    findings
}

fn kernel(release: &str) -> Finding {
    let (major, minor) = KERNEL_MIN;
    match version_of(release) {
        Some(version) if version >= KERNEL_MIN => {
            Finding::ok(ids::KERNEL, format!("Linux {release} is supported"))
        }
        Some(_) => Finding::error(ids::KERNEL, format!("Linux {release} is too old"))
            .why(format!(
                "EVFS is written for Linux {major}.{minor} or later"
            ))
            .remedy(format!("install a kernel from {major}.{minor} on")),
        None => Finding::unchecked(
            ids::KERNEL,
            "the version of the kernel",
            format!("`{release}` contains no version number"),
        ),
    }
}

fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn io_uring(usable: io::Result<()>) -> Finding {
    match usable {
        Ok(()) => Finding::ok(ids::IO_URING, "io_uring can be used"),
        Err(error) => {
            let why = crate::without_number(&error.to_string());
            let found = Finding::warning(ids::IO_URING, "io_uring cannot be used").why(format!(
                "{why}; files and disks are read and written by one system call at a time, which is \
                 slower"
            ));
            if error.raw_os_error() == Some(libc::EPERM) {
                found
                    .remedy(
                        "allow it in the sandbox of the container, or for all users of the machine",
                    )
                    .command("sysctl kernel.io_uring_disabled=0")
            } else {
                found.remedy("use a kernel with CONFIG_IO_URING")
            }
        }
    }
}

/// Reports whether this user may read and write `path`, without opening it: an open of a device can
/// load a module of the kernel.
fn may_use(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::access(
        path,
        Access::READ_OK | Access::WRITE_OK,
    )?)
}

fn fuse_device(path: &Path) -> Finding {
    let name = path.display().to_string();
    match may_use(path) {
        Ok(()) => Finding::ok(ids::FUSE_DEVICE, format!("{name} can be used")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Finding::warning(ids::FUSE_DEVICE, format!("{name} does not exist"))
                .why("file systems and loop devices need FUSE; NBD exports and cells do not")
                .remedy("load the module, or pass the device to the container")
                .command("modprobe fuse")
        }
        Err(e) => Finding::warning(ids::FUSE_DEVICE, format!("{name} cannot be used"))
            .why(crate::without_number(&e.to_string()))
            .remedy("let this user read and write the device")
            .command(format!("chmod 666 {name}")),
    }
}

fn fuse_helper(helper: Option<&str>, gains: bool, root: bool) -> Finding {
    match (helper, root) {
        (Some(helper), false) if !gains => Finding::warning(
            ids::FUSE_HELPER,
            format!("{helper} gains no privileges here"),
        )
        .why(
            "only root can mount: no_new_privs is set, or CAP_SYS_ADMIN is not in the \
                     bounding set",
        )
        .remedy("start evfs in a session or a container without these restrictions"),
        (Some(helper), _) => Finding::ok(ids::FUSE_HELPER, format!("{helper} is installed")),
        (None, true) => Finding::note(ids::FUSE_HELPER, "fusermount3 is not installed")
            .why("root mounts without it; other users cannot mount or unmount")
            .command("apt install fuse3"),
        (None, false) => Finding::warning(ids::FUSE_HELPER, "fusermount3 is not installed")
            .why("without it, only root can mount and unmount")
            .remedy("install the package fuse3")
            .command("apt install fuse3"),
    }
}

fn loop_devices(path: &Path, root: bool) -> Finding {
    let name = path.display().to_string();
    match may_use(path) {
        Ok(()) => Finding::ok(ids::LOOP, format!("{name} can be used")),
        Err(_) if !root => Finding::unchecked(
            ids::LOOP,
            "loop devices",
            "only root can make them (`evfs attach --loop`)",
        ),
        Err(e) => Finding::warning(ids::LOOP, format!("{name} cannot be used"))
            .why(format!(
                "{}; `evfs attach --loop` fails",
                crate::without_number(&e.to_string())
            ))
            .remedy("load the module, or pass the device to the container")
            .command("modprobe loop"),
    }
}

/// Judges the limit of locked memory, in bytes; `None` for no limit.
fn memlock(locked: bool, limit: Option<u64>) -> Finding {
    let said = limit.map_or("no limit".to_owned(), |limit| short_size(limit as f64));
    let raise = "raise the limit: LimitMEMLOCK= in a systemd unit, `ulimit -l` in a shell";
    match limit {
        _ if !locked => Finding::warning(ids::MEMLOCK, "the memory of keys cannot be locked")
            .why(format!(
                "RLIMIT_MEMLOCK is {said}; keys may be written to swap"
            ))
            .remedy(raise)
            .command("ulimit -l unlimited"),
        Some(bytes) if bytes < MEMLOCK_MIN => Finding::note(
            ids::MEMLOCK,
            format!("keys are locked in memory, but RLIMIT_MEMLOCK is only {said}"),
        )
        .why("a process with several volumes may reach it")
        .remedy(raise),
        _ => Finding::ok(
            ids::MEMLOCK,
            format!("keys are locked in memory (RLIMIT_MEMLOCK: {said})"),
        ),
    }
}

fn open_files(limit: Option<u64>) -> Finding {
    match limit {
        Some(limit) if limit < OPEN_FILES_MIN => Finding::warning(
            ids::OPEN_FILES,
            format!("RLIMIT_NOFILE allows only {limit} open files"),
        )
        .why("each connection and each thread of an export takes some")
        .remedy("raise the limit: LimitNOFILE= in a systemd unit, `ulimit -n` in a shell")
        .command(format!("ulimit -n {OPEN_FILES_MIN}")),
        Some(limit) => Finding::ok(ids::OPEN_FILES, format!("{limit} files can be open")),
        None => Finding::ok(ids::OPEN_FILES, "the number of open files has no limit"),
    }
}

/// Judges the kernel in use by those that the CPU supports, slowest first.
fn cipher(best: Kernel, available: &[Kernel]) -> Finding {
    let fastest = available.last().copied().unwrap_or(Kernel::Portable);
    let names: Vec<&str> = available.iter().map(|kernel| kernel.name()).collect();
    if fastest != best {
        Finding::error(
            ids::CIPHER,
            format!("the cipher kernel {fastest} fails its known-answer test, so {best} is used"),
        )
        .why("the CPU, or the hypervisor that emulates it, computes AES incorrectly")
        .remedy("do not trust other results of this machine before the cause is known")
    } else if best == Kernel::Portable {
        Finding::note(ids::CIPHER, "the portable cipher kernel is used")
            .why(
                "EVFS finds no AES-NI with PCLMULQDQ, so encryption takes several times the CPU \
                 time",
            )
            .remedy("pass the features aes and pclmulqdq of the CPU to a virtual machine")
    } else {
        Finding::ok(
            ids::CIPHER,
            format!("cipher kernel {best} (supported: {})", names.join(", ")),
        )
    }
}

/// Reports whether the kernel's generator of random numbers is seeded: its device is readable from
/// then on (random(4), Linux 5.6 and later).
fn entropy_is_ready() -> io::Result<bool> {
    let device = std::fs::File::open("/dev/random")?;
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut asked = [PollFd::new(&device, PollFlags::IN)];
    poll(&mut asked, Some(&now))?;
    Ok(asked[0].revents().contains(PollFlags::IN))
}

fn entropy(ready: io::Result<bool>) -> Finding {
    match ready {
        Ok(true) => Finding::ok(ids::ENTROPY, "the source of random numbers is seeded"),
        Ok(false) => Finding::warning(
            ids::ENTROPY,
            "the kernel has not yet collected enough entropy for random numbers",
        )
        .why("commands that generate keys wait for it")
        .remedy("wait, or give a virtual machine a virtio-rng device"),
        Err(e) => {
            let why = crate::without_number(&e.to_string());
            Finding::unchecked(ids::ENTROPY, "the source of random numbers", why)
        }
    }
}

/// Judges the areas listed in `/proc/swaps`. `sys` is the mount point of sysfs.
fn swap(swaps: &str, sys: &Path) -> Finding {
    let areas = swaps.lines().skip(1);
    let areas: Vec<&str> = areas
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let clear: Vec<&str> = areas
        .iter()
        .copied()
        .filter(|area| !is_protected(Path::new(area), sys))
        .collect();
    if areas.is_empty() {
        Finding::ok(ids::SWAP, "no swap")
    } else if clear.is_empty() {
        let what = format!("swap is encrypted or in memory ({})", areas.join(", "));
        Finding::ok(ids::SWAP, what)
    } else {
        let what = format!("swap is not known to be encrypted ({})", clear.join(", "));
        Finding::note(ids::SWAP, what)
            .why(
                "keys are locked in memory and never swapped, but decrypted data of files may be, \
                 in EVFS and in other programs",
            )
            .remedy("use encrypted swap (crypttab(5): option swap) or zram")
    }
}

/// Reports whether a swap area is encrypted by device-mapper, or in compressed memory.
fn is_protected(area: &Path, sys: &Path) -> bool {
    let area = std::fs::canonicalize(area).unwrap_or_else(|_| area.to_owned());
    let Some(name) = area.file_name().and_then(|name| name.to_str()) else {
        return false;
    };
    let uuid = std::fs::read_to_string(sys.join("class/block").join(name).join("dm/uuid"));
    let is_crypt = uuid.is_ok_and(|uuid| uuid.starts_with("CRYPT-"));
    is_crypt || (area.starts_with("/dev") && name.starts_with("zram"))
}

fn core_dumps(pattern: &str) -> Finding {
    let pattern = pattern.trim();
    if pattern.is_empty() || pattern == "|/bin/false" {
        return Finding::ok(ids::CORE, "the machine writes no core dumps");
    }
    Finding::note(ids::CORE, format!("core dumps go to `{pattern}`"))
        .why(
            "EVFS itself is never dumped, but other programs that hold decrypted data or \
             passphrases may be",
        )
        .remedy("keep core dumps on encrypted storage, or disable them")
        .command("sysctl kernel.core_pattern='|/bin/false'")
}

/// Judges the size of the cache: its settings, and the bytes of memory that they refer to.
fn cache_memory(tunables: &str, memory: u64) -> Finding {
    let resolved = crate::tunables::parse(tunables, memory).map(|parsed| parsed.resolve(memory));
    let max = match resolved {
        Ok(Ok(settings)) => settings.filecache_max,
        Ok(Err(e)) => return no_cache(e.to_string()),
        Err(e) => return no_cache(e.chain()),
    };
    let what = format!(
        "the cache takes at most {} of {} of memory",
        short_size(max as f64),
        short_size(memory as f64)
    );
    if max > memory / 100 * CACHE_SHARE_MAX {
        let fitting = memory / 2 / 4096 * 4096;
        Finding::warning(ids::CACHE, what)
            .why("little is left for keys, requests and other programs on this machine, or under the limit of its control group")
            .remedy("lower filecache_max in `cache.tunables`, or raise the limit")
            .command(format!(
                "export EVFS_CACHE_TUNABLES=filecache_max={}",
                crate::size_text(fitting)
            ))
    } else {
        Finding::ok(ids::CACHE, what)
    }
}

fn no_cache(why: String) -> Finding {
    Finding::error(
        ids::CACHE,
        "the settings of the cache do not fit this machine",
    )
    .why(why)
    .remedy("correct `cache.tunables`; services with a cache do not start")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity::{Error, Note, Ok as Fine, Warning};

    #[test]
    fn kernels_are_compared_by_number() {
        for (release, severity) in [
            ("6.18.44-fc", Fine),
            ("5.11.0", Fine),
            ("5.4.0-150-generic", Error),
            ("4.19", Error),
            ("10.0-rc1", Fine),
        ] {
            assert_eq!(kernel(release).severity, severity, "{release}");
        }
        assert!(!kernel("unknown").checked);
    }

    #[test]
    fn what_is_missing_is_a_warning_with_a_command() {
        let denied = io_uring(Err(io::Error::from_raw_os_error(libc::EPERM)));
        assert_eq!(denied.severity, Warning);
        assert!(
            denied
                .command
                .is_some_and(|c| c.contains("io_uring_disabled"))
        );
        let none = Path::new("/nonexistent/device");
        assert_eq!(fuse_device(none).severity, Warning);
        assert_eq!(fuse_device(Path::new("/dev/null")).severity, Fine);
        assert_eq!(fuse_helper(None, true, false).severity, Warning);
        assert_eq!(fuse_helper(None, true, true).severity, Note);
        assert_eq!(fuse_helper(Some("f"), true, false).severity, Fine);
        assert_eq!(fuse_helper(Some("f"), false, false).severity, Warning);
        assert_eq!(fuse_helper(Some("f"), false, true).severity, Fine);
        assert_eq!(loop_devices(none, true).severity, Warning);
        let unknown = loop_devices(none, false);
        assert_eq!((unknown.severity, unknown.checked), (Note, false));
    }

    #[test]
    fn limits_are_judged() {
        assert_eq!(memlock(false, Some(0)).severity, Warning);
        assert_eq!(memlock(true, Some(65536)).severity, Note);
        assert_eq!(memlock(true, Some(8 << 20)).severity, Fine);
        assert_eq!(memlock(true, None).severity, Fine);
        assert_eq!(open_files(Some(256)).severity, Warning);
        assert_eq!(open_files(Some(1024)).severity, Fine);
        assert_eq!(entropy(Ok(false)).severity, Warning);
    }

    #[test]
    fn a_kernel_that_fails_its_test_is_an_error() {
        let all = [Kernel::Portable, Kernel::AesNi, Kernel::Vaes512];
        assert_eq!(cipher(Kernel::Vaes512, &all).severity, Fine);
        assert_eq!(cipher(Kernel::AesNi, &all).severity, Error);
        assert_eq!(cipher(Kernel::Portable, &all[..1]).severity, Note);
    }

    #[test]
    fn swap_is_protected_by_dm_crypt_or_zram() {
        let sys = tempfile::tempdir().unwrap();
        for (name, uuid) in [("dm-90", "CRYPT-PLAIN-swap\n"), ("dm-91", "LVM-abc\n")] {
            let dm = sys.path().join("class/block").join(name).join("dm");
            std::fs::create_dir_all(&dm).unwrap();
            std::fs::write(dm.join("uuid"), uuid).unwrap();
        }
        let head = "Filename\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        let judged = |areas: &[&str]| {
            let rows = areas.iter().map(|a| format!("{a} partition\t100\t0\t-2\n"));
            swap(&format!("{head}{}", rows.collect::<String>()), sys.path())
        };
        assert_eq!(judged(&[]).severity, Fine);
        assert_eq!(judged(&["/dev/dm-90", "/dev/zram0"]).severity, Fine);
        let mixed = judged(&["/dev/dm-90", "/dev/dm-91", "/swapfile"]);
        assert_eq!(mixed.severity, Note);
        assert!(
            mixed.what.contains("/dev/dm-91, /swapfile"),
            "{}",
            mixed.what
        );
    }

    #[test]
    fn core_dumps_are_noted() {
        assert_eq!(core_dumps("\n").severity, Fine);
        assert_eq!(
            core_dumps("|/usr/lib/systemd/systemd-coredump %P\n").severity,
            Note
        );
    }

    #[test]
    fn the_cache_is_compared_with_the_limit() {
        let gib = 1 << 30;
        assert_eq!(cache_memory("", gib).severity, Fine);
        assert_eq!(cache_memory("filecache_max=90%", gib).severity, Warning);
        let impossible = format!("filecache_max={}", 4u64 * gib);
        assert_eq!(cache_memory(&impossible, gib).severity, Error);
    }
}
