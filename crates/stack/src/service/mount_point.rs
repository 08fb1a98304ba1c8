//! A file system of this process at a mount point, from the mount to its end, whatever it contains.

use super::Closing;
use super::status::Status;
use crate::Result;
use export_fuse::{Mount, MountConfig, Users, WhenBusy};
use std::os::fd::BorrowedFd;

/// The mount of a service. Dropping it unmounts it even if it is in use.
pub(super) struct MountPoint {
    /// Configuration of the mount; `None` once it must not be mounted again.
    pub config: Option<MountConfig>,
    pub mount: Option<Mount>,
    /// Whether all users had closed their files when it was unmounted.
    pub unused: bool,
}

impl MountPoint {
    pub fn new(config: MountConfig) -> MountPoint {
        MountPoint {
            config: Some(config),
            mount: None,
            unused: true,
        }
    }

    /// See [`super::Graph::in_use`].
    pub fn in_use(&self) -> Result<()> {
        match &self.mount {
            Some(mount) if !mount.has_ended() => Ok(mount.in_use(Users::All)?),
            _ => Ok(()),
        }
    }

    /// See [`super::Graph::close_exports`].
    pub fn close(&mut self, status: &mut Status, closing: Closing) -> Result<()> {
        let Some(mount) = self.mount.take() else {
            return Ok(());
        };
        if mount.has_ended() {
            // An administrator has unmounted it.
            self.config = None;
            mount.wait();
            self.unused = true;
        } else {
            match mount.unmount(WhenBusy::detach_if(closing == Closing::ByForce)) {
                Ok(unused) => self.unused = unused,
                Err(kept) => {
                    let (mount, error) = *kept;
                    self.mount = Some(mount);
                    return Err(error.into());
                }
            }
        }
        status.exports.clear();
        if !self.unused {
            // Its last users still have it.
            self.config = None;
        }
        Ok(())
    }

    /// See [`super::Graph::ended`].
    pub fn ended(&self) -> Option<BorrowedFd<'_>> {
        self.mount.as_ref().map(Mount::ended)
    }

    /// See [`super::Graph::has_ended`].
    pub fn has_ended(&self) -> bool {
        self.mount.as_ref().is_none_or(Mount::has_ended)
    }
}
