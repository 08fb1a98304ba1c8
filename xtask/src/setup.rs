//! Installs the programs that the tests run against: real peers, never imitations.

mod systems;

use crate::{Outcome, run};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Programs and files that the tests need, and the Debian packages that contain them.
const NEEDED: &[(&str, &str)] = &[
    ("afsd.fuse", "openafs-fuse"),
    ("age", "age"),
    ("asetkey", "openafs-krb5"),
    ("bash", "bash"),
    ("ceph", "ceph-common"),
    ("ceph-mgr", "ceph-mgr"),
    ("ceph-mon", "ceph-mon"),
    ("ceph-osd", "ceph-osd"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("cryptsetup", "cryptsetup-bin"),
    ("curl", "curl"),
    ("dbench", "dbench"),
    ("debootstrap", "debootstrap"),
    ("dpkg-deb", "dpkg"),
    ("etcd", "etcd-server"),
    ("etcdctl", "etcd-client"),
    ("faketime", "faketime"),
    ("fio", "fio"),
    ("fish", "fish"),
    ("fusermount3", "fuse3"),
    ("getcap", "libcap2-bin"),
    ("ganesha.nfsd", "nfs-ganesha"),
    ("gdb", "gdb"),
    ("git", "git"),
    ("gocryptfs", "gocryptfs"),
    ("groff", "groff-base"),
    ("ip", "iproute2"),
    ("jq", "jq"),
    ("lintian", "lintian"),
    ("losetup", "mount"),
    ("man", "man-db"),
    ("mcopy", "mtools"),
    ("mke2fs", "e2fsprogs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.vfat", "dosfstools"),
    ("mkfs.xfs", "xfsprogs"),
    ("mksquashfs", "squashfs-tools"),
    ("nbd-client", "nbd-client"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdkit", "nbdkit"),
    ("nfs-cat", "libnfs-utils"),
    ("objcopy", "binutils"),
    ("ocf-tester", "resource-agents"),
    ("openssl", "openssl"),
    ("/usr/lib/openafs/dafileserver", "openafs-fileserver"),
    ("/usr/lib/openafs/vlserver", "openafs-dbserver"),
    (
        "/usr/lib/x86_64-linux-gnu/ganesha/libfsalvfs.so",
        "nfs-ganesha-vfs",
    ),
    ("pg_ctlcluster", "postgresql"),
    ("perl", "perl"),
    ("promtool", "prometheus"),
    ("python3", "python3-minimal"),
    ("qemu-img", "qemu-utils"),
    (
        "/usr/lib/x86_64-linux-gnu/qemu/block-rbd.so",
        "qemu-block-extra",
    ),
    ("qemu-io", "qemu-utils"),
    ("qemu-nbd", "qemu-utils"),
    ("qemu-storage-daemon", "qemu-system-common"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("request-key", "keyutils"),
    ("restic", "restic"),
    ("rpm", "rpm"),
    ("rpmbuild", "rpm"),
    ("rxdebug", "openafs-client"),
    ("rsync", "rsync"),
    ("setfacl", "acl"),
    ("setfattr", "attr"),
    ("sqlite3", "sqlite3"),
    ("ssh-keygen", "openssh-client"),
    ("strace", "strace"),
    ("stress-ng", "stress-ng"),
    ("systemd-analyze", "systemd"),
    ("systemd-ask-password", "systemd"),
    ("tcc", "tcc"),
    ("tcpdump", "tcpdump"),
    ("tgtadm", "tgt"),
    ("tgtd", "tgt"),
    ("xmllint", "libxml2-utils"),
    ("xorriso", "xorriso"),
    ("xz", "xz-utils"),
    ("zbarimg", "zbar-tools"),
    ("zsh", "zsh"),
    ("cc", "build-essential"),
    ("chromium-headless-shell", "chromium-headless-shell"),
    ("make", "build-essential"),
    ("clang", "clang"),
    ("pkg-config", "pkg-config"),
    ("postmark", "postmark"),
    ("/usr/include/openssl/evp.h", "libssl-dev"),
    ("/usr/include/rados/librados.h", "librados-dev"),
    ("/usr/include/rbd/librbd.h", "librbd-dev"),
    ("/usr/include/rx/rx.h", "libopenafs-dev"),
    (
        "/usr/lib/python3/dist-packages/jsonschema",
        "python3-jsonschema",
    ),
    ("/usr/lib/python3/dist-packages/nbd.py", "python3-libnbd"),
];

/// Answers to questions during installation: no AFS client is started, and its cell is unused.
const ANSWERS: &str = "\
openafs-client openafs-client/run-client boolean false
openafs-client openafs-client/thiscell string test.local
openafs-client openafs-client/cell-info string 127.0.0.1
openafs-fileserver openafs-fileserver/thiscell string test.local
";

/// Kernels that guests boot: Linux 6.1 and 6.12.
const KERNELS: &[&str] = &["linux-image-amd64", "linux-image-6.12-amd64"];

/// Test suites that are programs on crates.io, and their versions.
const SUITES: &[(&str, &str)] = &[("fsx", "0.3.2"), ("pjdfstest", "0.2.2")];

/// Version of mdBook, which builds the site.
const MDBOOK: &str = "0.5.4";

/// The accessibility checker for the web page: its version on npm, and the SHA-256 of its archive.
const AXE: (&str, &str) = (
    "4.14.1",
    "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745",
);

/// Subcommands of cargo that the check runs, and the versions that are installed if they are
/// missing.
const SUBCOMMANDS: &[(&str, &str)] = &[("nextest", "0.9.111"), ("deny", "0.20.2")];

/// Installs missing programs, which requires root, builds the suites, downloads the checker of the
/// web page and the kernels that the tests boot, and prepares the systems in which they install
/// packages and which they boot.
pub fn require(root: &Path) -> Outcome {
    programs()?;
    fuse()?;
    subcommands()?;
    suites()?;
    mdbook()?;
    axe()?;
    kernels(root)?;
    systems::require()
}

/// Fails for an ordinary user at once, with an explanation, instead of after the build.
pub fn needs_root() -> Outcome {
    if is_root() {
        Ok(())
    } else {
        Err(
            "the full check mounts file systems, makes loop devices and changes owners: run it as \
             root, in a virtual machine if in doubt; `cargo xtask check` needs no root"
                .into(),
        )
    }
}

/// Installs missing packages; without root the error contains the command.
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
    answer_questions()?;
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

/// Passes [`ANSWERS`] to debconf.
fn answer_questions() -> Outcome {
    let failed = |e: std::io::Error| format!("debconf-set-selections: {e}");
    let mut debconf = Command::new("debconf-set-selections")
        .stdin(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut questions = debconf.stdin.take().expect("it was asked for");
    questions.write_all(ANSWERS.as_bytes()).map_err(failed)?;
    drop(questions);
    let status = debconf.wait().map_err(failed)?;
    if status.success() {
        Ok(())
    } else {
        Err(String::from("debconf-set-selections failed"))
    }
}

/// Lets ordinary users open `/dev/fuse`, as udev does; a machine without udev lacks this.
fn fuse() -> Outcome {
    use std::os::unix::fs::PermissionsExt;
    let device = Path::new("/dev/fuse");
    let failed = |e: std::io::Error| format!("{}: {e}", device.display());
    let mode = std::fs::metadata(device)
        .map_err(failed)?
        .permissions()
        .mode();
    if mode & 0o666 == 0o666 || !is_root() {
        return Ok(());
    }
    std::fs::set_permissions(device, PermissionsExt::from_mode(0o666)).map_err(failed)
}

/// Installs missing subcommands of cargo, without optimization, debug information or optional
/// features: that takes a third of the time, and the tests take nearly all of theirs. It leaves the
/// CPUs to builds beside it, which do not always use all of them.
pub fn subcommands() -> Outcome {
    for (name, version) in SUBCOMMANDS {
        let there = Command::new(env!("CARGO"))
            .args([name, "--version"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if there {
            continue;
        }
        run(Command::new("nice")
            .args(["-n", "10", env!("CARGO")])
            .args(["install", "--locked", "--debug", "--quiet"])
            .arg("--no-default-features")
            .args(["--version", version])
            .arg(format!("cargo-{name}"))
            .env("CARGO_PROFILE_DEV_DEBUG", "0"))?;
    }
    Ok(())
}

/// Builds missing suites into the directory in which the tests expect them.
fn suites() -> Outcome {
    let tools = target()?.join("tools");
    for (name, version) in SUITES {
        let mut installed = Command::new(tools.join("bin").join(name));
        let says = installed.arg("--version").output();
        let wanted = format!("{name} {version}");
        if says.is_ok_and(|says| String::from_utf8_lossy(&says.stdout).trim() == wanted) {
            continue;
        }
        run(Command::new(env!("CARGO"))
            .args(["install", "--locked", "--quiet", name, "--version", version])
            .arg("--root")
            .arg(&tools)
            .env("CARGO_TARGET_DIR", tools.join("build")))?;
    }
    remove_build(&tools)
}

/// Installs mdBook if it is missing, and returns its path. Without optimization, it builds the site
/// in seconds.
pub fn mdbook() -> Result<PathBuf, String> {
    let tools = target()?.join("tools");
    let program = tools.join("bin/mdbook");
    let says = Command::new(&program).arg("--version").output();
    let wanted = format!("mdbook v{MDBOOK}");
    if says.is_ok_and(|says| String::from_utf8_lossy(&says.stdout).trim() == wanted) {
        return Ok(program);
    }
    run(Command::new(env!("CARGO"))
        .args(["install", "--locked", "--debug", "--quiet"])
        .args(["--no-default-features", "--features", "search"])
        .args(["mdbook", "--version", MDBOOK, "--root"])
        .arg(&tools)
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("CARGO_TARGET_DIR", tools.join("build")))?;
    remove_build(&tools)?;
    Ok(program)
}

/// Removes the intermediate build output of tools, which is not needed any more.
fn remove_build(tools: &Path) -> Outcome {
    match std::fs::remove_dir_all(tools.join("build")) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(format!("{tools:?}: {e}")),
        _ => Ok(()),
    }
}

/// Downloads the accessibility checker into the directory in which the tests expect it.
fn axe() -> Outcome {
    let (version, digest) = AXE;
    let tools = target()?.join("tools");
    let checker = tools.join("axe.min.js");
    let says = format!("axe v{version}");
    let head = std::fs::read_to_string(&checker).unwrap_or_default();
    if head.lines().next().is_some_and(|line| line.contains(&says)) {
        return Ok(());
    }
    let failed = |e: std::io::Error| format!("{}: {e}", checker.display());
    std::fs::create_dir_all(&tools).map_err(failed)?;
    let archive = tools.join("axe.tgz");
    run(Command::new("curl")
        .args(["-fsSL", "--proto", "=https", "-o"])
        .arg(&archive)
        .arg(format!(
            "https://registry.npmjs.org/axe-core/-/axe-core-{version}.tgz"
        )))?;
    let sum = Command::new("sha256sum").arg(&archive).output();
    let sum = String::from_utf8_lossy(&sum.map_err(failed)?.stdout).into_owned();
    if sum.split(' ').next() != Some(digest) {
        return Err(format!(
            "axe-core {version} has an unexpected digest: {sum}"
        ));
    }
    run(Command::new("tar")
        .args(["--strip-components=1", "-xzf"])
        .arg(&archive)
        .arg("-C")
        .arg(&tools)
        .arg("package/axe.min.js"))?;
    std::fs::remove_file(&archive).map_err(failed)
}

/// Stores the kernels in the directory in which the tests expect them.
fn kernels(root: &Path) -> Outcome {
    for package in KERNELS {
        run(Command::new(root.join("tests/guest/boot.sh"))
            .args(["--fetch", "--kernel", package, "--cache"])
            .arg(target()?.join("guest")))?;
    }
    Ok(())
}

/// Finds the target directory of this program, which is also that of the tests.
fn target() -> Result<PathBuf, String> {
    let here = std::env::current_exe().map_err(|e| format!("where is xtask: {e}"))?;
    let target = here.ancestors().nth(2).expect("target/PROFILE/xtask");
    Ok(target.to_owned())
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
        // The multi-arch directory of a header differs by machine; the compiler knows it.
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
    // A process's directory in /proc is owned by its effective user.
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}
