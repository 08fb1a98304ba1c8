//! Mount points: their state, unmounting, and what a user needs to mount.

use crate::table::{MountEntry, mounts};
use crate::{Error, apart, users};
use rustix::mount::UnmountFlags;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Types of the mounts of this program: as usual, and from a block device.
pub(crate) const KINDS: [&str; 2] = ["fuse.evfs", "fuseblk.evfs"];

/// Ends a mount immediately: pending requests fail, and data not yet written is lost. Sends no
/// request to the server, so it also helps if the server is a killed process that cannot exit
/// because some of its threads wait for replies from others. The caller knows that the mount is its
/// own. Does nothing if nothing is mounted there.
///
/// # Errors
/// Errors of the system.
pub fn abort(mountpoint: &Path) -> Result<(), Error> {
    let Some(mount) = topmost(mounts(), mountpoint) else {
        return Ok(());
    };
    match rustix::mount::unmount(mountpoint, UnmountFlags::FORCE | UnmountFlags::DETACH) {
        Ok(()) => Ok(()),
        Err(_) => unmount(mountpoint, &mount.device, WhenBusy::Detach).map(drop),
    }
}

/// Names the requirement for mounting that this user does not meet, if any.
pub fn no_mounts() -> Option<&'static str> {
    let mut device = std::fs::OpenOptions::new();
    if device.read(true).write(true).open("/dev/fuse").is_err() {
        Some("/dev/fuse, readable and writable by this user")
    } else if rustix::process::geteuid().is_root() {
        None
    } else if mount_helper().is_none() {
        Some("the program fusermount3 of the package `fuse3`, unless the user is root")
    } else if !may_gain_privileges() {
        Some(
            "a set-user-ID program, from which this process gains nothing: no_new_privs is set, or \
             CAP_SYS_ADMIN is not in its bounding set",
        )
    } else {
        None
    }
}

/// Reports whether the program that mounts for an ordinary user gains the right to do so.
pub fn may_gain_privileges() -> bool {
    let nothing_new = rustix::thread::no_new_privs().unwrap_or(false);
    let admin = rustix::thread::CapabilitySet::SYS_ADMIN;
    !nothing_new && rustix::thread::capability_is_in_bounding_set(admin).unwrap_or(true)
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
    let Some(mount) = ours(mountpoint) else {
        return Err(Error::Busy {
            what: mountpoint.display().to_string(),
            hint:
                "a mount of another user or program is there, and its server has died; its owner \
                   can unmount it with `fusermount3 -u -z`, and root with `umount -l`"
                    .into(),
        });
    };
    let path = &mount.point;
    release(path);
    unmount(path, &mount.device, WhenBusy::Detach)?;
    tracing::warn!(name: "EVFS-0602", "unmounted {}, which a killed process left", path.display());
    Ok(true)
}

/// Finds the mount at this path if this program has mounted it for this user.
fn ours(mountpoint: &Path) -> Option<MountEntry> {
    let me = format!("user_id={}", rustix::process::geteuid().as_raw());
    let mount = topmost(mounts(), &full_path(mountpoint)?)?;
    let is_ours =
        KINDS.contains(&&*mount.kind) && mount.options.split(',').any(|option| option == me);
    is_ours.then_some(mount)
}

/// Resolves the path of a mount point, also of a dead one: of that only the parent directory can be
/// resolved.
fn full_path(mountpoint: &Path) -> Option<PathBuf> {
    if let Ok(path) = std::fs::canonicalize(mountpoint) {
        return Some(path);
    }
    let path = std::path::absolute(mountpoint).ok()?;
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Some(std::fs::canonicalize(parent).ok()?.join(name)),
        _ => Some(path),
    }
}

/// Reports whether the topmost mount at this path is one of this program, of any user, dead or
/// alive.
pub fn is_mounted(mountpoint: &Path) -> bool {
    let mount = full_path(mountpoint).and_then(|path| topmost(mounts(), &path));
    mount.is_some_and(|mount| KINDS.contains(&&*mount.kind))
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
pub(crate) fn topmost(mounts: Vec<MountEntry>, path: &Path) -> Option<MountEntry> {
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

/// Reports whether the file system with this number is the topmost at a path.
pub(crate) fn is_at(path: &Path, device: &str) -> bool {
    topmost(mounts(), path).is_some_and(|mount| mount.device == device)
}

/// Unmounts the file system with this number, if it is mounted at this path. No other is unmounted:
/// neither one over it, which is an error, nor one beneath it, such as the trigger of an automount.
/// Only between this check and the system call, which knows only paths, could another program mount.
/// Returns whether it was there.
pub(crate) fn unmount(path: &Path, device: &str, when_busy: WhenBusy) -> Result<bool, Error> {
    let flags = match when_busy {
        WhenBusy::Refuse => UnmountFlags::empty(),
        WhenBusy::Detach => UnmountFlags::DETACH,
    };
    let mut here = mounts();
    here.retain(|mount| mount.point == path);
    match here.iter().rposition(|mount| mount.device == device) {
        None => return Ok(false),
        Some(at) if at + 1 < here.len() => {
            return Err(Error::Busy {
                what: path.display().to_string(),
                hint: format!(
                    "{} is mounted over it; unmount that first",
                    here[at + 1].source
                ),
            });
        }
        Some(_) => {}
    }
    match apart::unmount(path, flags) {
        Ok(()) => Ok(true),
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
                true => Ok(true),
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
    fn a_thread_that_gave_up_new_privileges_gains_none() {
        let gains = || {
            rustix::thread::set_no_new_privs(true).unwrap();
            may_gain_privileges()
        };
        // The attribute is that of a thread.
        assert!(!std::thread::spawn(gains).join().unwrap());
    }

    #[test]
    fn the_trigger_of_an_automount_is_no_file_system_until_one_is_mounted_on_it() {
        let mount = |kind: &str| MountEntry {
            device: "0:39".into(),
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
