//! Mount points: their state, unmounting, and what a user needs to mount.

use crate::table::{MountEntry, mounts};
use crate::{Error, users};
use rustix::mount::UnmountFlags;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Ends a mount immediately: pending requests fail, and data not yet written is lost. Sends no
/// request to the server, so it also helps if the server is a killed process that cannot exit
/// because some of its threads wait for replies from others.
///
/// # Errors
/// Errors of the system.
pub fn abort(mountpoint: &Path) -> Result<(), Error> {
    match rustix::mount::unmount(mountpoint, UnmountFlags::FORCE | UnmountFlags::DETACH) {
        Ok(()) => Ok(()),
        Err(_) => unmount(mountpoint, WhenBusy::Detach),
    }
}

/// Names the requirement for mounting that this user does not meet, if any.
pub fn no_mounts() -> Option<&'static str> {
    let mut device = std::fs::OpenOptions::new();
    if device.read(true).write(true).open("/dev/fuse").is_err() {
        Some("/dev/fuse, readable and writable by this user")
    } else if !rustix::process::geteuid().is_root() && mount_helper().is_none() {
        Some("the program fusermount3 of the package `fuse3`, unless the user is root")
    } else {
        None
    }
}

/// Finds the program that mounts and unmounts for an ordinary user, of FUSE version 3 or 2.
pub fn mount_helper() -> Option<&'static str> {
    let is_there = |program: &&str| {
        let mut asked = Command::new(program);
        asked.arg("-V").stdout(Stdio::null()).stderr(Stdio::null());
        asked.status().is_ok()
    };
    ["fusermount3", "fusermount"].into_iter().find(is_there)
}

/// Unmounts the mount that a killed process of this user has left. Before that, `release` gets its
/// path, to end the kernel's own uses of the files in it. Returns whether there was one.
///
/// # Errors
/// [`Error::Busy`] if it belongs to another program or another user; errors of the system.
pub fn clear_dead(mountpoint: &Path, release: impl FnOnce(&Path)) -> Result<bool, Error> {
    let Some(At::Dead) = mounted_at(mountpoint) else {
        return Ok(false);
    };
    let Some(path) = ours(mountpoint) else {
        return Err(Error::Busy {
            what: mountpoint.display().to_string(),
            hint:
                "a mount of another user or program is there, and its server has died; its owner \
                   can unmount it with `fusermount3 -u -z`, and root with `umount -l`"
                    .into(),
        });
    };
    release(&path);
    unmount(mountpoint, WhenBusy::Detach)?;
    tracing::warn!(name: "EVFS-0602", "unmounted {}, which a killed process left", path.display());
    Ok(true)
}

/// Finds the full path of a mount point if this program has mounted it for this user.
fn ours(mountpoint: &Path) -> Option<PathBuf> {
    // A dead mount point cannot be resolved, only its parent directory.
    let mut path = std::path::absolute(mountpoint).ok()?;
    if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
        path = std::fs::canonicalize(parent).ok()?.join(name);
    }
    let me = format!("user_id={}", rustix::process::geteuid().as_raw());
    let mount = topmost(mounts(), &path)?;
    let is_ours = mount.kind == "fuse.evfs" && mount.options.split(',').any(|option| option == me);
    is_ours.then_some(path)
}

/// Checks for an error by which a mount with a dead server replies: ENOTCONN, or ECONNABORTED for
/// requests in flight when it died.
pub fn server_died(error: &std::io::Error) -> bool {
    let gone = [libc::ENOTCONN, libc::ECONNABORTED];
    error
        .raw_os_error()
        .is_some_and(|code| gone.contains(&code))
}

/// A mount at a path.
pub(crate) enum At {
    Alive,
    /// Its server has died.
    Dead,
}

/// Checks whether a file system, of this program or another, is mounted at exactly this path. The
/// trigger of an automount does not count: the file system is mounted on it.
pub(crate) fn mounted_at(path: &Path) -> Option<At> {
    // Attributes may be cached by the kernel; statfs always reaches the server.
    if let Err(error) = rustix::fs::statfs(path) {
        return server_died(&error.into()).then_some(At::Dead);
    }
    let path = std::fs::canonicalize(path).ok()?;
    let mount = topmost(mounts(), &path)?;
    (!is_automount(&mount)).then_some(At::Alive)
}

/// Finds the mount that hides all others at exactly this path.
fn topmost(mounts: Vec<MountEntry>, path: &Path) -> Option<MountEntry> {
    mounts.into_iter().rfind(|mount| mount.point == path)
}

/// Checks for the trigger of an automount, such as that of `x-systemd.automount`.
fn is_automount(mount: &MountEntry) -> bool {
    mount.kind == "autofs"
}

/// Treatment of a mount that is in use when it is to be unmounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenBusy {
    /// It stays mounted, which is an error.
    Refuse,
    /// It is unmounted; its users continue until they close their files.
    Detach,
}

impl WhenBusy {
    /// Chooses [`WhenBusy::Detach`] if the unmount is forced.
    pub fn detach_if(forced: bool) -> WhenBusy {
        if forced {
            WhenBusy::Detach
        } else {
            WhenBusy::Refuse
        }
    }
}

/// Unmounts. Leaves the trigger of an automount, which belongs to another program: the file system
/// is unmounted already then.
pub(crate) fn unmount(path: &Path, when_busy: WhenBusy) -> Result<(), Error> {
    let flags = match when_busy {
        WhenBusy::Refuse => UnmountFlags::empty(),
        WhenBusy::Detach => UnmountFlags::DETACH,
    };
    if topmost(mounts(), path).is_some_and(|mount| is_automount(&mount)) {
        let source = std::io::Error::from(rustix::io::Errno::INVAL);
        return Err(Error::io(
            format!("cannot unmount {}", path.display()),
            source,
        ));
    }
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Err(busy(path)),
        // An ordinary user unmounts by the helper program that mounted.
        Err(rustix::io::Errno::PERM) => {
            let helper = mount_helper().ok_or_else(|| {
                let source = std::io::Error::from(std::io::ErrorKind::NotFound);
                Error::io(
                    "cannot unmount without the program fusermount3 or fusermount",
                    source,
                )
            })?;
            let mut command = Command::new(helper);
            command
                .arg("-u")
                .args((when_busy == WhenBusy::Detach).then_some("-z"))
                .arg("--")
                .arg(path);
            let output = command
                .stdin(Stdio::null())
                .output()
                .map_err(|e| Error::io(format!("cannot run {helper}"), e))?;
            match output.status.success() {
                true => Ok(()),
                false if String::from_utf8_lossy(&output.stderr).contains("busy") => {
                    Err(busy(path))
                }
                false => {
                    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                    Err(Error::io(
                        format!("cannot unmount {}", path.display()),
                        std::io::Error::other(said),
                    ))
                }
            }
        }
        Err(e) => Err(Error::io(
            format!("cannot unmount {}", path.display()),
            e.into(),
        )),
    }
}

/// Describes the users of a mount.
pub(crate) fn busy(path: &Path) -> Error {
    Error::Busy {
        what: path.display().to_string(),
        hint: match users::of(path) {
            Some(users) => format!("used by {users}"),
            None => "another process has a file in it open".into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trigger_of_an_automount_is_no_file_system_until_one_is_mounted_on_it() {
        let mount = |kind: &str| MountEntry {
            source: "/dev/a".into(),
            point: "/data".into(),
            kind: kind.into(),
            options: "rw".into(),
        };
        let top = |kinds: &[&str]| {
            let mounts = kinds.iter().map(|kind| mount(kind)).collect();
            topmost(mounts, Path::new("/data")).map(|top| is_automount(&top))
        };
        assert_eq!(top(&[]), None);
        assert_eq!(top(&["autofs"]), Some(true));
        assert_eq!(top(&["autofs", "fuse.evfs"]), Some(false));
        assert_eq!(topmost(vec![mount("autofs")], Path::new("/data/a")), None);
    }
}
