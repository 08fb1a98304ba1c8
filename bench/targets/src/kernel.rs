//! File systems of the kernel for comparison: on a file of their own through a loop device, mounted
//! by this process.
//!
//! **Invariant:** a mount of ours and its competitor use the same kind of file, bypass the page
//! cache on the way to it, and are mounted and unmounted by the same calls of the benchmark.
//!
//! Deliberately absent: options of the file systems. Users who need some mount the file system
//! themselves and pass the directory.

use crate::orphans;
use bench_core::Remount;
use stack::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Prefix of the name of the file system.
pub const LOOP: &str = "loop-";

/// Supported file systems, with their options for quiet operation and for overwriting.
const KINDS: [(&str, &[&str]); 3] = [
    ("ext4", &["-q", "-F"]),
    ("xfs", &["-q", "-f"]),
    ("btrfs", &["-q", "-f"]),
];

/// Prefix of the mount points of our processes, and of the files under these mounts; the process ID
/// follows it.
const PREFIX: &str = "evfs-bench-loop-";

/// A mount, removed on drop.
pub struct Mounted {
    image: PathBuf,
    folder: PathBuf,
}

/// Returns the file system that a side names, with its mkfs options.
pub fn kind(text: &str) -> Option<(&'static str, &'static [&'static str])> {
    let name = text.strip_prefix(LOOP)?;
    KINDS.into_iter().find(|(kind, _)| *kind == name)
}

impl Mounted {
    /// Creates a file system of this kind in a sparse file of `size` bytes in `dir`, and mounts it.
    pub fn new((name, quiet): (&str, &[&str]), dir: Option<&Path>, size: u64) -> Result<Mounted> {
        let failed = |what: &str, e: std::io::Error| Error::Failed(format!("cannot {what}: {e}"));
        let temporary = std::env::temp_dir();
        let dir = dir.unwrap_or(&temporary);
        clear_the_dead(&[&temporary, dir]);
        let prefix = orphans::own(PREFIX);
        let image = tempfile::Builder::new()
            .prefix(&prefix)
            .tempfile_in(dir)
            .map_err(|e| failed("create a file for a file system", e))?;
        image
            .as_file()
            .set_len(size)
            .map_err(|e| failed("allocate space for a file system", e))?;
        let program = format!("mkfs.{name}");
        command(&program, quiet.iter().map(Path::new).chain([image.path()]))?;
        let folder = tempfile::Builder::new()
            .prefix(&prefix)
            .tempdir()
            .map_err(|e| failed("create a temporary directory", e))?;
        let (_, image) = image
            .keep()
            .map_err(|e| failed("keep the file of a file system", e.error))?;
        let own = Mounted {
            image,
            // Removed with the mount; its content is never deleted by name.
            folder: folder.keep(),
        };
        own.attach()?;
        Ok(own)
    }

    /// Returns the mount point.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn attach(&self) -> Result<()> {
        if is_mounted(&self.folder) {
            return Ok(());
        }
        let options = [Path::new("-o"), Path::new("loop")];
        command(
            "mount",
            options.into_iter().chain([&*self.image, &*self.folder]),
        )?;
        // Otherwise the kernel keeps each page twice: of the file system, and of the file under it.
        let device = output("findmnt", &["-n", "-o", "SOURCE"], &self.folder)?;
        let direct = [Path::new("--direct-io=on"), Path::new(device.trim())];
        // If the file under it does not support direct I/O, the mount works without.
        let _ = command("losetup", direct.into_iter());
        Ok(())
    }
}

impl Remount for Mounted {
    fn mount(&self) -> std::result::Result<(), String> {
        self.attach().map_err(|e| e.chain())
    }

    fn unmount(&self) -> std::result::Result<(), String> {
        if is_mounted(&self.folder) {
            command("umount", [&*self.folder].into_iter()).map_err(|e| e.chain())
        } else {
            Ok(())
        }
    }

    fn sync(&self) -> std::result::Result<(), String> {
        let root = std::fs::File::open(&self.folder).map_err(|e| e.to_string())?;
        rustix::fs::syncfs(root).map_err(|e| e.to_string())
    }

    fn drop_caches(&self) -> std::result::Result<(), String> {
        // The kernel holds all cached data, file by file.
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        take_away(&self.folder);
        let _ = std::fs::remove_file(&self.image);
    }
}

/// Unmounts and removes a mount point. Its content is discarded, and the loop device ends with the
/// mount.
fn take_away(folder: &Path) {
    if is_mounted(folder) {
        let _ = command("umount", [Path::new("-l"), folder].into_iter());
    }
    let _ = std::fs::remove_dir(folder);
}

/// Removes mounts that killed processes have left, and the files under them.
fn clear_the_dead(folders: &[&Path]) {
    for path in orphans::find_stale(PREFIX, folders) {
        take_away(&path);
        let _ = std::fs::remove_file(&path);
    }
}

/// Reports whether the directory is on another device than its parent.
fn is_mounted(folder: &Path) -> bool {
    let device = |path: &Path| rustix::fs::stat(path).map(|s| s.st_dev).ok();
    folder
        .parent()
        .is_some_and(|above| device(above) != device(folder))
}

fn command<'a>(program: &str, args: impl Iterator<Item = &'a Path>) -> Result<()> {
    let mut command = Command::new(program);
    command.args(args.map(Path::as_os_str));
    said(program, &mut command).map(drop)
}

fn output(program: &str, args: &[&str], path: &Path) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args).arg(path);
    said(program, &mut command)
}

/// Runs a program and returns its output.
fn said(program: &str, command: &mut Command) -> Result<String> {
    let done = command.output().map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::Failed(format!(
            "{program} is not installed; install its package (e2fsprogs, xfsprogs, btrfs-progs, util-linux)"
        )),
        _ => Error::Failed(format!("cannot run {program}: {e}")),
    })?;
    if done.status.success() {
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    } else {
        Err(Error::Failed(format!(
            "{program}: {}; a side with a kernel file system requires root and a loop device; otherwise mount one and name its directory",
            String::from_utf8_lossy(&done.stderr).trim()
        )))
    }
}
