//! Attachment of a file system to a directory: by mount(2), or for an ordinary user by the
//! set-user-ID program `fusermount3`.
//!
//! The program opens `/dev/fuse`, mounts, and sends the descriptor over a socket whose number it
//! finds in its environment. Its messages reach the user.

use crate::device::Device;
use crate::mountpoint::mount_helper;
use crate::settings::Settings;
use crate::{PIECE_BYTES, block_mount};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Variable by which the helper program finds its socket.
const SOCKET: &str = "_FUSE_COMMFD";

/// Mounts at a directory and returns the descriptor of the mount.
pub(crate) fn attach(settings: &Settings, at: &Path) -> io::Result<Device> {
    let device = Device::open(OFlags::empty())?;
    if settings.on_block_device {
        let (flags, options) = (flags(settings), options(settings, &device, at)?);
        block_mount::mount(settings.source(), at, flags, &options)?;
        return Ok(device);
    }
    match by_system_call(settings, &device, at) {
        Ok(()) => Ok(device),
        Err(Errno::PERM) => {
            drop(device);
            let helper = mount_helper().ok_or(io::ErrorKind::NotFound)?;
            by_helper(Path::new(helper), settings, at)
        }
        Err(e) => Err(e.into()),
    }
}

/// Lists the options that the kernel and the helper program share.
fn shared_options(settings: &Settings) -> String {
    let mut options = format!("subtype=evfs,default_permissions,max_read={PIECE_BYTES}");
    if settings.allow_other {
        options.push_str(",allow_other");
    }
    options
}

fn by_system_call(settings: &Settings, device: &Device, at: &Path) -> rustix::io::Result<()> {
    let options = options(settings, device, at).map_err(|e| errno(&e))?;
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(settings.source(), at, "fuse", flags(settings), &*options)
}

/// Lists the options for mount(2).
fn options(settings: &Settings, device: &Device, at: &Path) -> io::Result<String> {
    let mode = std::fs::metadata(at)?.mode();
    Ok(format!(
        "fd={},rootmode={mode:o},user_id={},group_id={},{}",
        device.as_fd().as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        shared_options(settings),
    ))
}

fn flags(settings: &Settings) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, settings.read_only);
    flags.set(MountFlags::NOSUID, !settings.suid);
    flags.set(MountFlags::NODEV, !settings.dev);
    flags.set(MountFlags::NOEXEC, !settings.exec);
    flags
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Lets the helper program mount, and receives the descriptor from it.
fn by_helper(helper: &Path, settings: &Settings, at: &Path) -> io::Result<Device> {
    let yes_or_no = |yes: bool, option: &'static str, otherwise: &'static str| {
        if yes { option } else { otherwise }
    };
    let options = [
        yes_or_no(settings.read_only, "ro", "rw"),
        yes_or_no(settings.suid, "suid", "nosuid"),
        yes_or_no(settings.dev, "dev", "nodev"),
        yes_or_no(settings.exec, "exec", "noexec"),
        &shared_options(settings),
        &format!("fsname={}", settings.source()),
    ]
    .join(",");
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // The socket becomes the standard input, the only descriptor that every program inherits.
    let mut child = Command::new(helper)
        .args(["-o", &options, "--"])
        .arg(at)
        .env(SOCKET, "0")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let received = receive_descriptor(&ours);
    drop(ours);
    // Reads the messages until the program ends.
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = io::Read::read_to_string(&mut stderr, &mut said);
    }
    let status = child.wait()?;
    let said = said.trim();
    match received {
        Ok(Some(fd)) if status.success() => {
            if !said.is_empty() {
                tracing::debug!("{}: {said}", helper.display());
            }
            Ok(Device::from(fd))
        }
        Err(error) if said.is_empty() => Err(error),
        _ if said.is_empty() => Err(io::Error::other(format!(
            "{} ended with {status}, and without a message",
            helper.display()
        ))),
        _ => Err(io::Error::other(said.replace('\n', "; "))),
    }
}

/// Receives a descriptor, or `None` if the other side closes the socket without sending one.
fn receive_descriptor(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        let mut into = [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(socket, &mut into, &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
            Ok(_) => break,
        }
    }
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn settings(mountpoint: &Path) -> Settings {
        Settings {
            mountpoint: mountpoint.to_owned(),
            source: "evfs".into(),
            threads: 1,
            read_only: true,
            allow_other: false,
            suid: false,
            dev: false,
            exec: false,
            on_block_device: false,
        }
    }

    /// Runs a shell script as the helper program.
    fn by_script(script: &str) -> io::Result<Device> {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("helper");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        by_helper(&program, &settings(dir.path()), dir.path())
    }

    fn error_of(script: &str) -> String {
        by_script(script).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn the_message_of_the_helper_reaches_the_user() {
        let said = error_of("echo 'helper: option allow_other only allowed if ...' >&2; exit 1");
        assert_eq!(said, "helper: option allow_other only allowed if ...");
        let said = error_of("exit 3");
        assert!(said.contains("helper ended with exit status: 3"), "{said}");
        // It claims success, but sends nothing.
        let said = error_of("echo odd >&2");
        assert_eq!(said, "odd");
    }

    mod needs_peer {
        use super::*;

        #[test]
        fn the_helper_mounts_and_sends_a_descriptor_that_programs_do_not_inherit() {
            let helper = mount_helper().expect("needs fusermount3 of the package `fuse3`");
            let dir = tempfile::tempdir().unwrap();
            let at = dir.path().canonicalize().unwrap();
            let device = by_helper(Path::new(helper), &settings(&at), &at).unwrap();
            let mounts = crate::mounts();
            let mount = mounts.iter().find(|mount| mount.point == at).unwrap();
            assert_eq!((&*mount.kind, &*mount.source), ("fuse.evfs", "evfs"));
            for option in ["ro", "nosuid", "nodev", "noexec", "default_permissions"] {
                let has = mount.options.split(',').any(|has| has == option);
                assert!(has, "{option}: {}", mount.options);
            }
            let flags = rustix::io::fcntl_getfd(&device).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
            // The kernel's first request arrives.
            let mut buf = [0; 16384];
            let received = device.receive(&mut buf).unwrap();
            assert!(matches!(received, crate::device::Received::Request(_)));
            crate::mountpoint::unmount(&at, &mount.device, crate::WhenBusy::Detach).unwrap();
        }
    }

    #[test]
    fn the_helper_gets_the_options_and_the_socket() {
        let said = error_of("test -S /dev/fd/0 && echo $_FUSE_COMMFD $* >&2; exit 1");
        let expected = "0 -o ro,nosuid,nodev,noexec,subtype=evfs,default_permissions,\
                        max_read=1048576,fsname=evfs -- /";
        assert!(said.starts_with(expected), "{said}");
    }
}
