//! A mount, from the start of its session to its end.

use crate::attach::attach;
use crate::mountpoint::{self, At, WhenBusy, clear_dead, mounted_at, no_mounts, unmount};
use crate::notifier::Notifier;
use crate::serve::Serve;
use crate::session::Session;
use crate::settings::Settings;
use crate::{Error, users};
use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Kinds of users that keep a mount busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// Processes with open files or a working directory in it.
    Processes,
    /// Processes, and users within the kernel, such as loop devices.
    All,
}

/// Checks whether this user may mount at a directory: an ordinary user must be able to write to it.
fn may_mount_at(dir: &Path) -> std::io::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Ok(rustix::fs::access(dir, rustix::fs::Access::WRITE_OK)?)
}

/// A mounted directory. Dropping it unmounts it even if it is in use.
pub struct Mount {
    mountpoint: PathBuf,
    /// `None` once the mount has ended.
    session: Option<Session>,
}

impl Mount {
    /// Mounts a file system. First unmounts the mount of a killed process at the same place.
    ///
    /// # Errors
    /// [`Error::Busy`] if something else is mounted there; errors of the system, for example if the
    /// user may not open `/dev/fuse`.
    pub fn start(settings: &Settings, served: impl Serve) -> Result<Mount, Error> {
        let mountpoint = &settings.mountpoint;
        let shown = mountpoint.display().to_string();
        let failed = |e| Error::io(format!("cannot mount {shown}"), e);
        match mounted_at(mountpoint) {
            Some(At::Dead) => drop(clear_dead(mountpoint, |_| ())?),
            Some(At::Alive) => {
                let hint = "a file system is already mounted there".into();
                return Err(Error::Busy { what: shown, hint });
            }
            None => {}
        }
        let mountpoint = std::fs::canonicalize(mountpoint).map_err(failed)?;
        if let Err(e) = may_mount_at(&mountpoint) {
            let what = format!(
                "cannot mount {shown}, because this user may not write to that directory; mount at \
                 a directory of your own"
            );
            return Err(Error::io(what, e));
        }
        let device = attach(settings, &mountpoint).map_err(|e| match no_mounts() {
            Some(needs) => Error::io(format!("cannot mount {shown}, which needs {needs}"), e),
            None => failed(e),
        })?;
        let session = Session::start(device, served, settings.threads).map_err(|e| {
            let _ = unmount(&mountpoint, WhenBusy::Detach);
            failed(e)
        })?;
        Ok(Mount {
            mountpoint,
            session: Some(session),
        })
    }

    /// Returns the path of the directory.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Returns a handle for notifications to the kernel.
    pub fn notifier(&self) -> Option<Notifier> {
        let session = self.session.as_ref()?;
        Some(Notifier::new(session.device()))
    }

    /// Checks whether an unmount would succeed, as far as these users are concerned.
    ///
    /// # Errors
    /// [`Error::Busy`], with the processes that use the mount.
    pub fn in_use(&self, users: Users) -> Result<(), Error> {
        /// Serializes callers: two of them at the same time would unmount it.
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
        if users == Users::All {
            // Marks an unused mount as expired, which is reported as an error, and has no other
            // effect here: any use clears the mark. An ordinary user has no permission for it.
            match rustix::mount::unmount(&self.mountpoint, UnmountFlags::EXPIRE) {
                Err(rustix::io::Errno::AGAIN) => {
                    let flags = OFlags::PATH | OFlags::CLOEXEC;
                    let _ = rustix::fs::open(&self.mountpoint, flags, Mode::empty());
                    return Ok(());
                }
                Err(rustix::io::Errno::BUSY) => return Err(mountpoint::busy(&self.mountpoint)),
                _ => {}
            }
        }
        match users::of(&self.mountpoint) {
            Some(_) => Err(mountpoint::busy(&self.mountpoint)),
            None => Ok(()),
        }
    }

    /// Unmounts and waits for the session to end. Returns false if the mount is in use and was
    /// detached, and if `has_ended`, which is called after the unmount, returns false: if another
    /// mount namespace, such as a container's, has a copy of the mount, the last request may be a
    /// long time coming.
    ///
    /// # Errors
    /// Returned together with the unchanged mount.
    pub fn unmount(
        mut self,
        when_busy: WhenBusy,
        has_ended: impl FnOnce() -> bool,
    ) -> Result<bool, Box<(Mount, Error)>> {
        let unmounted = match unmount(&self.mountpoint, WhenBusy::Refuse) {
            Err(Error::Busy { .. }) if when_busy == WhenBusy::Detach => {
                unmount(&self.mountpoint, WhenBusy::Detach).map(|()| false)
            }
            unmounted => unmounted.map(|()| true),
        };
        let over = match unmounted {
            Ok(over) => over,
            // If another program has unmounted it, for example a manual `umount`, that is success.
            Err(_) if mounted_at(&self.mountpoint).is_none() => true,
            Err(e) => return Err(Box::new((self, e))),
        };
        let over = over && has_ended();
        match (self.session.take(), over) {
            (Some(session), true) => session.join(),
            // The kernel ends the session when the last user closes its files, which may be never.
            (Some(session), false) => drop(session),
            (None, _) => {}
        }
        Ok(over)
    }

    /// Waits until the mount is unmounted by another program.
    pub fn wait(mut self) {
        if let Some(session) = self.session.take() {
            session.join();
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.session.is_some() {
            let _ = unmount(&self.mountpoint, WhenBusy::Detach);
        }
    }
}
