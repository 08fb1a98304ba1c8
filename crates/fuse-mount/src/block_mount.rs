//! Mounts of the type `fuseblk`, for which Linux 6.18 forwards sync(2) and syncfs(2) to the server.
//!
//! Such a mount needs a block device, which is not read or written. Each has one of its own: a loop
//! device over one empty page in memory, sealed, which the kernel removes at the unmount. A second
//! mount of the same device would be the first one again, with its server.
//!
//! The kernel shows the path of the device as the source of the mount. Programs know a mount by its
//! source, so the device gets a second name, in a directory in which the source of the mount leads
//! to it; the thread that mounts has this directory as its root directory or working directory.

use crate::apart::unshare;
use crate::loop_device::{LO_FLAGS_AUTOCLEAR, attach_loop, loop_control};
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::thread::UnshareFlags;
use std::ffi::CString;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

/// Size of the device and of its only block: the block size that files of a mount of the type
/// `fuse` have.
const BLOCK_BYTES: u32 = 4096;

/// Mounts at `at` from a device of its own, with these options.
///
/// # Errors
/// Errors of the system, of which `PermissionDenied` is usual for users other than root, and in
/// containers.
pub(crate) fn mount(source: &str, at: &Path, flags: MountFlags, options: &str) -> io::Result<()> {
    let (path, _held) = private_device()?;
    let names = Names::create(&path, Path::new(source))?;
    let options = CString::new(format!("{options},blksize={BLOCK_BYTES}"))?;
    let mount = |from: &Path, to: &Path| -> rustix::io::Result<()> {
        rustix::mount::mount(from, to, "fuseblk", flags, options.as_c_str())
    };
    let place = rustix::fs::open(
        at,
        OFlags::PATH | OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    let enter_and_mount = || -> rustix::io::Result<()> {
        unshare(UnshareFlags::FS)?;
        if names.source.is_absolute() {
            rustix::process::chroot(&names.dir)?;
            rustix::process::fchdir(&place)?;
            mount(&names.source, Path::new("."))
        } else {
            rustix::process::chdir(&names.dir)?;
            mount(&names.source, at)
        }
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("fuse-mount".into());
        let thread = thread.spawn_scoped(scope, enter_and_mount)?;
        // The message of a panic has been printed by its hook.
        Ok(thread.join().unwrap_or(Err(Errno::IO))?)
    })
}

/// Creates a loop device that nothing else uses. It exists until it is unmounted and closed.
fn private_device() -> io::Result<(PathBuf, File)> {
    let memory = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = File::from(rustix::fs::memfd_create("evfs", memory)?);
    memory.set_len(BLOCK_BYTES.into())?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&memory, seals)?;
    let control = loop_control()?;
    attach_loop(&control, &memory, b"evfs", BLOCK_BYTES, LO_FLAGS_AUTOCLEAR)
}

/// A directory in which the source of a mount is a name of a device. Removed on drop.
struct Names {
    dir: PathBuf,
    source: PathBuf,
}

impl Names {
    fn create(device: &Path, source: &Path) -> io::Result<Names> {
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        let relative = source.strip_prefix("/").unwrap_or(source);
        if !relative.components().all(is_plain) || relative.file_name().is_none() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{} cannot be a name of a block device", source.display()),
            ));
        }
        // The device has no other user, and so its directory has none.
        let number = device.file_name().unwrap_or_default().display();
        let dir = device.with_file_name(format!(".evfs-{number}"));
        // A process that was killed may have left it.
        let _ = std::fs::remove_dir_all(&dir);
        DirBuilder::new().mode(0o700).create(&dir)?;
        let names = Names {
            source: source.to_owned(),
            dir,
        };
        let name = names.dir.join(relative);
        std::fs::create_dir_all(name.parent().unwrap_or(&names.dir))?;
        std::fs::hard_link(device, name)?;
        Ok(names)
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
