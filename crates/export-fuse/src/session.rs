//! The way to the kernel: mounting, the first handshake, and the mounts that are there.

use crate::engine::TRANSFER_BYTES_MAX;
use crate::wire::{self, Limits, Request};
use crate::{Config, Error};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};
use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Type of the file system in the table of mounts.
pub(crate) const FS_TYPE: &str = "fuse.evfs";
/// Requests that the kernel lets wait in the background. A loop device alone sends up to 128.
const BACKGROUND: u16 = 256;
/// Shortest buffer that the kernel writes a request to (`FUSE_MIN_READ_BUFFER`).
const REQUEST_BYTES_MIN: usize = 8192;
/// How long the kernel may take for its first word.
const INIT_PATIENCE: Duration = Duration::from_secs(10);
/// How long an unmount waits for files that were closed a moment ago. The kernel closes the file of
/// a loop device, or of a process that ended, a little later.
const UNMOUNT_PATIENCE: Duration = Duration::from_millis(500);

/// Mounts, and gives the descriptor that requests come from, after the handshake.
pub(crate) fn connect(config: &Config, mountpoint: &Path) -> Result<OwnedFd, Error> {
    let failed = |e: io::Error| Error::io(format!("cannot mount {}", mountpoint.display()), e);
    let fd = match mount_by_call(config, mountpoint) {
        Err(e) if may_ask_helper(&e) => mount_by_helper(config, mountpoint)?,
        result => result.map_err(failed)?,
    };
    let nonblocking = rustix::fs::fcntl_getfl(&fd)
        .and_then(|flags| rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK));
    if let Err(e) = nonblocking
        .map_err(io::Error::from)
        .and_then(|()| handshake(&fd))
    {
        let _ = unmount(mountpoint, true);
        return Err(failed(e));
    }
    Ok(fd)
}

/// Only root may mount, and only root may open `/dev/fuse` where the system keeps it closed.
fn may_ask_helper(error: &io::Error) -> bool {
    !rustix::process::geteuid().is_root()
        && matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

fn mount_by_call(config: &Config, mountpoint: &Path) -> io::Result<OwnedFd> {
    if !rustix::process::geteuid().is_root() {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    let fd = open_dev_fuse()?;
    let mut options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        fd.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw()
    );
    if config.allow_other {
        options += ",allow_other";
    }
    let options = CString::new(options)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("evfs", mountpoint, FS_TYPE, flags, options.as_c_str())?;
    Ok(fd)
}

pub(crate) fn open_dev_fuse() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(rustix::fs::open("/dev/fuse", flags, Mode::empty())?)
}

/// Asks `fusermount3`, which is root, to mount: it sends the descriptor over a socket whose number
/// it finds in `_FUSE_COMMFD`.
fn mount_by_helper(config: &Config, mountpoint: &Path) -> Result<OwnedFd, Error> {
    let failed = |e: io::Error| Error::io("cannot mount through fusermount3", e);
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|e| failed(e.into()))?;
    let mut options =
        "fsname=evfs,subtype=evfs,default_permissions,nosuid,nodev,noexec".to_string();
    if config.allow_other {
        options += ",allow_other";
    }
    let number = theirs.as_raw_fd();
    let mut command = Command::new("fusermount3");
    command
        .args(["-o", &options, "--"])
        .arg(mountpoint)
        .env("_FUSE_COMMFD", number.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    crate::sys::inherit(&mut command, theirs);
    let child = command.spawn().map_err(|e| {
        let hint = "an ordinary user needs the program fusermount3 (package fuse3) to mount";
        Error::io(hint, e)
    })?;
    // The command holds our copy of the other end; without it, the helper's end is the last.
    drop(command);
    let received = receive_fd(&ours);
    let output = child.wait_with_output().map_err(failed)?;
    match received.map_err(failed)? {
        Some(fd) if output.status.success() => Ok(fd),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(failed(io::Error::other(said)))
        }
    }
}

fn receive_fd(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut iov = [IoSliceMut::new(&mut byte)];
    loop {
        match recvmsg(socket, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
            Ok(_) => break,
        }
    }
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    }))
}

/// Answers FUSE_INIT, which comes before everything else.
fn handshake(fd: &OwnedFd) -> io::Result<()> {
    let limits = Limits {
        max_write: TRANSFER_BYTES_MAX as u32,
        background: BACKGROUND,
    };
    let mut buf = vec![0; REQUEST_BYTES_MIN];
    let end = Instant::now() + INIT_PATIENCE;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        let len = match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout))
            .and_then(|_| rustix::io::read(fd, &mut buf[..]))
        {
            Ok(len) => len,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => continue,
            Err(e) => return Err(e.into()),
        };
        let strange = || io::Error::other("the kernel does not speak FUSE as expected");
        let (header, request) = wire::parse(&buf[..len], len).map_err(|_| strange())?;
        let Request::Init {
            major,
            minor,
            flags,
        } = request
        else {
            return Err(strange());
        };
        // "If the kernel has a newer major version, it tries again with the one it is told."
        let old = major < wire::MAJOR || (major == wire::MAJOR && minor < wire::MINOR_MIN);
        if old || !wire::has_max_pages(flags) && major == wire::MAJOR {
            let _ = rustix::io::write(fd, &wire::out_header(header.unique, 0, libc::EPROTO));
            let why = format!("FUSE {major}.{minor} is too old; Linux 5.2 or later is needed");
            return Err(io::Error::other(why));
        }
        let out = wire::init_out(minor, flags, limits);
        let mut answer = wire::out_header(header.unique, out.len(), 0).to_vec();
        answer.extend_from_slice(&out);
        rustix::io::write(fd, &answer)?;
        if major == wire::MAJOR {
            return Ok(());
        }
    }
}

/// Whether the server behind a mount answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    /// Something is mounted.
    Alive,
    /// One of ours, whose server is gone.
    Dead,
}

/// What is mounted at exactly this path.
pub(crate) fn mounted_at(path: &Path) -> Option<At> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let fs_type = fs_type_in(&table, &real_path(path).ok()?)?;
    // A mount whose server died answers everything, also this, with ENOTCONN.
    let dead = fs_type == FS_TYPE
        && std::fs::metadata(path).is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN));
    Some(if dead { At::Dead } else { At::Alive })
}

/// The path without links, also of a mount whose server is gone.
pub(crate) fn real_path(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => {
            let name = path.file_name().ok_or(e)?;
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
            Ok(parent.unwrap_or(Path::new(".")).canonicalize()?.join(name))
        }
        result => result,
    }
}

/// Type of the topmost mount at a path, in the format of proc_pid_mountinfo(5).
fn fs_type_in(table: &str, path: &Path) -> Option<String> {
    table.lines().rev().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let point = unescape(mount.split(' ').nth(4)?);
        (point == path.as_os_str().as_encoded_bytes())
            .then(|| source.split(' ').next().unwrap_or_default().to_owned())
    })
}

/// Blanks, tabs, line ends and backslashes stand as three octal digits in this table.
fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let code = match byte {
            b'\\' => tail
                .get(..3)
                .and_then(|digits| std::str::from_utf8(digits).ok())
                .and_then(|digits| u8::from_str_radix(digits, 8).ok()),
            _ => None,
        };
        out.push(code.unwrap_or(byte));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    out
}

/// Unmounts; with `force` the folder is gone at once, and its users lose it when the server ends.
pub(crate) fn unmount(path: &Path, force: bool) -> Result<(), Error> {
    let end = Instant::now() + UNMOUNT_PATIENCE;
    loop {
        match unmount_once(path, force) {
            Err(e) if e.is_busy() && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

fn unmount_once(path: &Path, force: bool) -> Result<(), Error> {
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, force);
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Err(busy(path)),
        // An ordinary user unmounts through the helper that mounted.
        Err(rustix::io::Errno::PERM) => unmount_by_helper(path, force),
        Err(e) => {
            let what = format!("cannot unmount {}", path.display());
            Err(Error::io(what, e.into()))
        }
    }
}

fn unmount_by_helper(path: &Path, force: bool) -> Result<(), Error> {
    let mut command = Command::new("fusermount3");
    command
        .arg(if force { "-uz" } else { "-u" })
        .arg("--")
        .arg(path)
        .env("LC_ALL", "C")
        .stdin(Stdio::null());
    let output = command
        .output()
        .map_err(|e| Error::io("cannot run fusermount3", e))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.success() {
        true => Ok(()),
        false if said.contains("busy") => Err(busy(path)),
        false => {
            let what = format!("cannot unmount {}", path.display());
            Err(Error::io(what, io::Error::other(said)))
        }
    }
}

fn busy(path: &Path) -> Error {
    Error::Busy {
        what: path.display().to_string(),
        hint: "somebody has a file in it open, or works in it".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_mount_at_a_path_counts_and_blanks_are_understood() {
        let table = "\
            30 1 0:26 / /mnt/a\\040b rw - ext4 /dev/sda rw\n\
            31 1 0:27 / /mnt/a\\040b rw,nosuid shared:1 - fuse.evfs evfs rw\n\
            32 1 0:28 / /mnt/a\\040b/c rw - tmpfs none rw\n";
        let fs = |path: &str| fs_type_in(table, Path::new(path));
        assert_eq!(fs("/mnt/a b").as_deref(), Some("fuse.evfs"));
        assert_eq!(fs("/mnt/a b/c").as_deref(), Some("tmpfs"));
        assert_eq!(fs("/mnt/a"), None);
        assert_eq!(unescape("a\\134b\\"), b"a\\b\\");
    }
}
