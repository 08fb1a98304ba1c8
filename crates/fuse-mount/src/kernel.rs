//! The kernel's side of a session: mounting, and the descriptor over which requests arrive.
//!
//! `fuser` can mount as well. But at the end of a session it unmounts the path once more, even if its
//! mount has ended, and thereby a mount of another program at the same directory: the one beneath,
//! such as the trigger of an automount, or one that was mounted since.

use crate::Settings;
use crate::mountpoint::mount_helper;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::{Error, ErrorKind, IoSliceMut, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// Mounts at a directory, and returns the descriptor of the session. An ordinary user mounts by
/// `fusermount3`.
pub(crate) fn mount(settings: &Settings, mountpoint: &Path) -> Result<OwnedFd> {
    match mount_directly(settings, mountpoint) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => match mount_helper() {
            Some(helper) => mount_by(helper, settings, mountpoint),
            None => Err(error),
        },
        mounted => mounted,
    }
}

/// Reports whether the kernel has ended a session: its file system is mounted nowhere, in no mount
/// namespace, or was aborted.
pub(crate) fn has_ended(session: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&session, PollFlags::empty())];
    let ready = poll(&mut polled, Some(&Timespec::default()));
    ready.is_ok() && polled[0].revents().contains(PollFlags::ERR)
}

/// Options that the kernel and `fusermount3` read alike.
fn common_options(settings: &Settings) -> String {
    let others = if settings.allow_other {
        ",allow_other"
    } else {
        ""
    };
    format!("subtype=evfs,default_permissions{others}")
}

fn mount_directly(settings: &Settings, mountpoint: &Path) -> Result<OwnedFd> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")?;
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, settings.read_only);
    flags.set(MountFlags::NOSUID, !settings.suid);
    flags.set(MountFlags::NODEV, !settings.dev);
    flags.set(MountFlags::NOEXEC, !settings.exec);
    let options = format!(
        "fd={},rootmode={:o},user_id={},group_id={},{}",
        device.as_raw_fd(),
        std::fs::metadata(mountpoint)?.mode(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        common_options(settings)
    );
    let options = CString::new(options)?;
    rustix::mount::mount(
        settings.source(),
        mountpoint,
        "fuse",
        flags,
        options.as_c_str(),
    )?;
    Ok(device.into())
}

/// Mounts by a helper program, which has the privilege. It sends the descriptor over a socket.
fn mount_by(helper: &str, settings: &Settings, mountpoint: &Path) -> Result<OwnedFd> {
    let flags = [
        ("ro", settings.read_only),
        ("suid", settings.suid),
        ("nosuid", !settings.suid),
        ("dev", settings.dev),
        ("nodev", !settings.dev),
        ("noexec", !settings.exec),
    ];
    let mut options = format!("fsname={},{}", settings.source(), common_options(settings));
    for (flag, _) in flags.iter().filter(|(_, is_set)| *is_set) {
        options += &format!(",{flag}");
    }
    let (socket, of_helper) = UnixStream::pair()?;
    let mut command = Command::new(helper);
    command.args(["-o", &options, "--"]).arg(mountpoint);
    // Its standard input is the socket, so that no other program inherits it.
    command
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(of_helper))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let child = command.spawn()?;
    // The helper has the only copy of its end: if it ends without a descriptor, so does the wait.
    drop(command);
    let device = receive(&socket);
    let output = child.wait_with_output()?;
    match device {
        Ok(device) if output.status.success() => Ok(device),
        // The message names the helper.
        _ => Err(Error::other(String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Receives a descriptor.
fn receive(socket: &UnixStream) -> Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8];
    rustix::io::retry_on_intr(|| {
        let mut data = [IoSliceMut::new(&mut byte)];
        recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let device = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    device.ok_or_else(|| ErrorKind::UnexpectedEof.into())
}
