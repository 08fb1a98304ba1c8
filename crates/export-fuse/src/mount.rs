//! A mounted file system, from start to end.

use crate::config::MountConfig;
use crate::foreign::ForeignTree;
use crate::survival::{Predecessor, Survival};
use crate::tree::{InvalidationQueue, Tree};
use block::Waker;
use fuse_mount::{Error, Held, Hold, Record, Serve, Settings, Users, WhenBusy};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time to wait for the end of a mount that is no longer in use.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Time to wait for the answer to the first sync, of which there is usually nothing to do.
const TESTED_WITHIN: Duration = Duration::from_secs(5);

/// A mounted file system. Dropping it unmounts it even if it is in use.
pub struct Mount {
    // Fields drop in this order.
    mount: fuse_mount::Mount,
    state: MountState,
}

struct MountState {
    recall: Recall,
    /// Readable when the last request is done.
    ended: Arc<Waker>,
    on_block_device: bool,
}

/// Notifies the kernel of changes by other clients until it is dropped.
struct Recall(Arc<InvalidationQueue>);

impl Drop for Recall {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Mount {
    /// Mounts a file system. The caller closes the files after the unmount.
    ///
    /// # Errors
    /// As [`fuse_mount::Mount::start`].
    pub fn start(config: MountConfig, files: Arc<fs::Files>) -> Result<Mount, Error> {
        if config.sync_timeout.is_some() && !config.read_only {
            match Mount::of_kind(&config, &files, true) {
                Ok(mount) if mount.receives_sync() => return Ok(mount),
                Ok(mount) => match mount.withdraw() {
                    Ok(()) => tracing::debug!("this kernel forwards no sync(2) to any mount"),
                    Err(noticed) => return Ok(*noticed),
                },
                Err(error) => {
                    let why = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::debug!(
                        "cannot receive sync(2): {error}: {}",
                        why.unwrap_or_default()
                    );
                }
            }
        }
        Mount::of_kind(&config, &files, false)
    }

    fn of_kind(
        config: &MountConfig,
        files: &Arc<fs::Files>,
        on_block_device: bool,
    ) -> Result<Mount, Error> {
        let (recall, ended) = (Recall(Arc::default()), eventfd()?);
        let tree = Tree::new(files, config, Arc::clone(&recall.0), Arc::clone(&ended));
        let tree = match &config.survival {
            Some(survival) => tree.surviving(survival, HashSet::new(), None)?,
            None => tree,
        };
        Mount::serve(config, tree, (recall, ended), on_block_device)
    }

    /// Continues the mount of a server that has died; `config` names what it was started with, and the
    /// tables that it left. Nothing here accesses the directory, which would wait for this server.
    ///
    /// # Errors
    /// The memory of the predecessor is damaged; as [`fuse_mount::Mount::resume`].
    pub fn resume(
        config: MountConfig,
        files: &Arc<fs::Files>,
        survival: &Arc<Survival>,
        predecessor: Predecessor,
    ) -> Result<Mount, Error> {
        let (recall, ended) = (Recall(Arc::default()), eventfd()?);
        let tree = Tree::new(files, &config, Arc::clone(&recall.0), Arc::clone(&ended));
        let tree = tree.surviving(survival, predecessor.done, Some(&predecessor.fs))?;
        let Record {
            mountpoint,
            on_block_device,
            offer,
        } = predecessor.session;
        let config = MountConfig {
            mountpoint,
            ..config
        };
        let session = (predecessor.device, offer);
        Mount::begin(
            &config,
            (recall, ended),
            on_block_device,
            |settings, hold| fuse_mount::Mount::resume(settings, tree, session, hold),
        )
    }

    /// Mounts a file system of another program; read-only unless it was opened to write. The caller
    /// closes the files after the unmount.
    ///
    /// # Errors
    /// As [`fuse_mount::Mount::start`].
    pub fn start_foreign(config: MountConfig, files: Arc<foreign::Files>) -> Result<Mount, Error> {
        let (recall, ended) = (Recall(Arc::default()), eventfd()?);
        let config = MountConfig {
            read_only: config.read_only || !files.is_writable(),
            ..config
        };
        let tree = ForeignTree::new(files, &config, Arc::clone(&recall.0), Arc::clone(&ended));
        Mount::serve(&config, tree, (recall, ended), false)
    }

    fn serve(
        config: &MountConfig,
        tree: impl Serve,
        state: (Recall, Arc<Waker>),
        on_block_device: bool,
    ) -> Result<Mount, Error> {
        Mount::begin(config, state, on_block_device, |settings, hold| {
            fuse_mount::Mount::start_held(settings, tree, hold)
        })
    }

    /// Starts or continues a mount by `begin`.
    fn begin(
        config: &MountConfig,
        (recall, ended): (Recall, Arc<Waker>),
        on_block_device: bool,
        begin: impl FnOnce(&Settings, Hold<'_>) -> Result<fuse_mount::Mount, Error>,
    ) -> Result<Mount, Error> {
        let settings = Settings {
            mountpoint: config.mountpoint.clone(),
            source: config.source.clone(),
            threads: config.threads,
            read_only: config.read_only,
            allow_other: config.allow_other,
            suid: config.suid,
            dev: config.dev,
            exec: config.exec,
            on_block_device,
        };
        let mut hold = config
            .survival
            .as_ref()
            .map(|survival| move |session: &Held<'_>| (survival.hold)(session));
        let hold: Hold<'_> = match &mut hold {
            Some(hold) => Some(hold),
            None => None,
        };
        let mount = begin(&settings, hold)?;
        if let Some(notifier) = mount.notifier() {
            let started = recall.0.start(notifier);
            started.map_err(|e| Error::io("cannot start a thread", e))?;
        }
        let state = MountState {
            recall,
            ended,
            on_block_device,
        };
        Ok(Mount { mount, state })
    }

    /// Reports whether the kernel forwards sync(2) and syncfs(2); see
    /// [`fuse_mount::Mount::receives_sync`].
    pub fn receives_sync(&self) -> bool {
        self.state.on_block_device && self.mount.receives_sync(TESTED_WITHIN)
    }

    /// Checks whether an unmount would succeed; see [`fuse_mount::Mount::in_use`].
    ///
    /// # Errors
    /// [`Error::Busy`], with the processes that use the mount.
    pub fn in_use(&self, users: Users) -> Result<(), Error> {
        self.mount.in_use(users)
    }

    /// Returns a descriptor that becomes readable when the last request is done, for whatever
    /// reason.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.state.ended.as_fd()
    }

    /// Reports whether [`Mount::ended`] is readable.
    pub fn has_ended(&self) -> bool {
        is_readable_within(&self.state.ended, Duration::ZERO)
    }

    /// Unmounts and waits until the last request is done. Returns false if the mount is in use and
    /// was detached, and if another mount namespace, such as a container's, has a copy of the
    /// mount.
    ///
    /// # Errors
    /// Returned together with the unchanged mount.
    pub fn unmount(self, when_busy: WhenBusy) -> Result<bool, Box<(Mount, Error)>> {
        let Mount { mount, state } = self;
        match mount.unmount(when_busy, || state.ends_soon()) {
            Ok(true) => Ok(true),
            Ok(false) => {
                // The remaining users must still see changes of other clients.
                std::mem::forget(state.recall);
                Ok(false)
            }
            Err(failed) => {
                let (mount, error) = *failed;
                Err(Box::new((Mount { mount, state }, error)))
            }
        }
    }

    /// Unmounts unless another program has noticed the mount; see [`fuse_mount::Mount::withdraw`].
    fn withdraw(self) -> Result<(), Box<Mount>> {
        let Mount { mount, state } = self;
        let withdrawn = mount.withdraw(|| state.ends_soon());
        withdrawn.map_err(|noticed| {
            let mount = *noticed;
            Box::new(Mount { mount, state })
        })
    }

    /// Waits until the mount is unmounted by another program.
    pub fn wait(self) {
        self.mount.wait();
    }
}

impl MountState {
    /// Waits for the last request to be done, which may take forever.
    fn ends_soon(&self) -> bool {
        is_readable_within(&self.ended, ENDS_WITHIN)
    }
}

fn eventfd() -> Result<Arc<Waker>, Error> {
    let made = Waker::new().map_err(|e| Error::io("cannot create an eventfd", e))?;
    Ok(Arc::new(made))
}

/// Waits up to `time` for a descriptor to become readable.
fn is_readable_within(fd: &impl AsFd, time: Duration) -> bool {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return ready.is_ok_and(|ready| ready > 0),
        }
    }
}
