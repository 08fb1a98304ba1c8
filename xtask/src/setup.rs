//! The programs that the tests run against: real peers, never imitations.

use crate::{Outcome, run};
use std::path::Path;
use std::process::Command;

/// A program or file that the tests need, and the Debian package that brings it.
const NEEDED: &[(&str, &str)] = &[
    ("age", "age"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("cryptsetup", "cryptsetup-bin"),
    ("fio", "fio"),
    ("fusermount3", "fuse3"),
    ("gdb", "gdb"),
    ("losetup", "mount"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("nbd-client", "nbd-client"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdkit", "nbdkit"),
    ("openssl", "openssl"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("qemu-nbd", "qemu-utils"),
    ("qemu-storage-daemon", "qemu-system-common"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("ssh-keygen", "openssh-client"),
    ("tgtadm", "tgt"),
    ("tgtd", "tgt"),
    ("xz", "xz-utils"),
    ("cc", "build-essential"),
    ("clang", "clang"),
    ("pkg-config", "pkg-config"),
    ("postmark", "postmark"),
    ("/usr/include/openssl/evp.h", "libssl-dev"),
    ("/usr/lib/python3/dist-packages/nbd.py", "python3-libnbd"),
];

/// Installs the programs that are missing, for which it takes root, and fetches the kernel that the
/// tests boot.
pub fn require(root: &Path) -> Outcome {
    programs()?;
    kernel(root)
}

/// Installs what is missing; without root it says which command would.
fn programs() -> Outcome {
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    let hint = format!(
        "the tests run against real programs, and some are missing; as root: apt-get install {}",
        missing.join(" ")
    );
    if !is_root() {
        return Err(hint);
    }
    run(Command::new("apt-get").args(["update", "-qq"]))?;
    run(Command::new("apt-get")
        .args(["install", "-y", "-qq", "--no-install-recommends"])
        .args(&missing)
        .env("DEBIAN_FRONTEND", "noninteractive"))?;
    if self::missing().is_empty() {
        Ok(())
    } else {
        Err(hint)
    }
}

/// Puts the kernel where the tests look for it: in the folder that this program was built in too.
fn kernel(root: &Path) -> Outcome {
    let here = std::env::current_exe().map_err(|e| format!("where is xtask: {e}"))?;
    let target = here.ancestors().nth(2).expect("target/PROFILE/xtask");
    run(Command::new(root.join("tests/guest/boot.sh"))
        .args(["--fetch", "--cache"])
        .arg(target.join("guest")))
}

fn missing() -> Vec<&'static str> {
    let mut packages: Vec<_> = NEEDED
        .iter()
        .filter(|(what, _)| !present(what))
        .map(|(_, package)| *package)
        .collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

fn present(what: &str) -> bool {
    if what.starts_with('/') {
        // The multi-arch folder of a header differs by machine; the compiler knows it.
        return Path::new(what).exists() || what.ends_with(".h") && header(what);
    }
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin"])
        .any(|dir| Path::new(dir).join(what).exists())
}

fn header(path: &str) -> bool {
    let name = path.trim_start_matches("/usr/include/");
    Path::new("/usr/include/x86_64-linux-gnu")
        .join(name)
        .exists()
        || Path::new("/usr/include/aarch64-linux-gnu")
            .join(name)
            .exists()
}

fn is_root() -> bool {
    // The owner of a process's own folder is its effective user.
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}
