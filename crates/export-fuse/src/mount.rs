//! Mounting and unmounting.

use crate::files::{Files, Holes};
use crate::tree::{InvalidationQueue, Tree};
use crate::{Error, REQUESTS_PER_THREAD, users};
use block::BlockDevice;
use fs::Atime;
use fuser::{BackgroundSession, Filesystem, MountOption, Session, SessionACL};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest piece of a request, in bytes: the largest that the kernel sends at once.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// Time to wait for the end of a mount that is no longer in use.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// A device and the name of its file.
#[derive(Clone)]
pub struct Export {
    /// Name of the file.
    pub name: String,
    /// Content of the file.
    pub device: Arc<dyn BlockDevice>,
    /// Refuse writes even if the device accepts them.
    pub read_only: bool,
}

/// Configuration of a mount with volumes as files.
#[derive(Debug, Clone)]
pub struct Config {
    /// An existing directory.
    pub mountpoint: PathBuf,
    /// Number of threads; each stands for [`REQUESTS_PER_THREAD`] requests in flight.
    pub threads: usize,
}

impl Config {
    /// Creates a configuration with one thread.
    pub fn new(mountpoint: PathBuf) -> Config {
        Config {
            mountpoint,
            threads: 1,
        }
    }
}

/// Configuration of a mounted file system.
#[derive(Debug, Clone)]
pub struct TreeConfig {
    /// An existing directory.
    pub mountpoint: PathBuf,
    /// Number of requests in flight, each with a thread.
    pub threads: usize,
    /// Time for which the kernel may cache names and attributes. Long if only this mount changes
    /// the files.
    pub ttl: Duration,
    /// Refuse changes.
    pub read_only: bool,
    /// Admit users other than the one who mounts, subject to the permissions of the files. An
    /// ordinary user needs `user_allow_other` in `/etc/fuse.conf` for it.
    pub allow_other: bool,
    /// Only this mount uses the files, so the kernel may delay writes until the file is closed or
    /// synced, or for about 30 seconds. Many small writes to a large file are several times faster;
    /// small files take longer. A full device is then an error of fsync(2) or close(2) instead of
    /// write(2), a killed server loses data that the kernel had not yet sent, and holes of files
    /// are not distinguished from data.
    pub exclusive: bool,
    /// Honor set-user-ID, set-group-ID and capabilities of programs in the files. Only root may
    /// enable it; it lets the creator of the files become root.
    pub suid: bool,
    /// Let device nodes among the files open devices. Only root may enable it, for the same reason.
    pub dev: bool,
    /// Policy for updating the access time of files.
    pub atime: Atime,
}

impl TreeConfig {
    /// Creates a configuration with the defaults, for files that only this mount changes.
    pub fn new(mountpoint: PathBuf) -> TreeConfig {
        TreeConfig {
            mountpoint,
            threads: 2 * REQUESTS_PER_THREAD,
            ttl: Duration::from_secs(3600),
            read_only: false,
            allow_other: rustix::process::geteuid().is_root(),
            exclusive: false,
            suid: false,
            dev: false,
            atime: Atime::default(),
        }
    }
}

/// A mounted directory. Dropping it unmounts it even if it is in use.
pub struct Mount {
    mountpoint: PathBuf,
    session: Option<BackgroundSession>,
    /// Readable when the last request is done; only for a mounted file system.
    ended: Option<Arc<OwnedFd>>,
    /// Notifies the kernel of changes by other clients; only for a mounted file system.
    recall: Option<Arc<InvalidationQueue>>,
    /// Meaning of holes in the only file of a directory of volumes.
    holes: Option<Arc<Holes>>,
}

impl Mount {
    /// Mounts the exports. First unmounts the mount of a killed process at the same place.
    ///
    /// # Errors
    /// [`Error::Busy`] if something else is mounted there; errors of the system, for example if the
    /// user may not open `/dev/fuse`.
    pub fn start(config: Config, exports: Vec<Export>) -> Result<Mount, Error> {
        let mut settings = fuser::Config::default();
        settings.mount_options = options();
        settings.mount_options.extend([
            MountOption::NoSuid,
            MountOption::NoDev,
            MountOption::NoExec,
        ]);
        settings.n_threads = Some(config.threads.max(1) * REQUESTS_PER_THREAD);
        let files = Files::new(exports);
        let holes = files.holes();
        let mut mount = Mount::begin(&config.mountpoint, settings, files)?;
        mount.holes = holes;
        Ok(mount)
    }

    /// Mounts a file system. The caller closes the files after the unmount.
    ///
    /// # Errors
    /// As [`Mount::start`].
    pub fn start_tree(config: TreeConfig, files: Arc<fs::Files>) -> Result<Mount, Error> {
        let mut settings = fuser::Config::default();
        settings.mount_options = options();
        if config.read_only {
            settings.mount_options.push(MountOption::RO);
        }
        settings.mount_options.extend([
            if config.suid {
                MountOption::Suid
            } else {
                MountOption::NoSuid
            },
            if config.dev {
                MountOption::Dev
            } else {
                MountOption::NoDev
            },
        ]);
        if config.allow_other {
            settings.acl = SessionACL::All;
        }
        settings.n_threads = Some(config.threads.max(1));
        let ended = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let ended = Arc::new(ended.map_err(|e| Error::io("cannot create an eventfd", e.into()))?);
        let recall = Arc::new(InvalidationQueue::default());
        let tree = Tree::new(&files, &config, Arc::clone(&recall), Arc::clone(&ended));
        let mut mount = Mount::begin(&config.mountpoint, settings, tree)?;
        if let Some(session) = &mount.session {
            let started = recall.start(session.notifier());
            started.map_err(|e| Error::io("cannot start a thread", e))?;
        }
        mount.recall = Some(recall);
        mount.ended = Some(ended);
        Ok(mount)
    }

    fn begin(
        mountpoint: &Path,
        mut settings: fuser::Config,
        filesystem: impl Filesystem,
    ) -> Result<Mount, Error> {
        let shown = mountpoint.display().to_string();
        let failed = |e| Error::io(format!("cannot mount {shown}"), e);
        match mounted_at(mountpoint) {
            Some(At::Dead) => drop(clear_dead(mountpoint)?),
            Some(At::Alive) => {
                let hint = "a file system is already mounted there".into();
                return Err(Error::Busy { what: shown, hint });
            }
            None => {}
        }
        let mountpoint = std::fs::canonicalize(mountpoint).map_err(failed)?;
        settings.clone_fd = true;
        let session = Session::new(filesystem, &mountpoint, &settings)
            .and_then(Session::spawn)
            .map_err(|e| match no_mounts() {
                Some(needs) => Error::io(format!("cannot mount {shown}, which needs {needs}"), e),
                None => failed(e),
            })?;
        Ok(Mount {
            mountpoint,
            session: Some(session),
            ended: None,
            recall: None,
            holes: None,
        })
    }

    /// Returns the meaning of holes in the file of the only export.
    pub fn holes(&self) -> Option<&Holes> {
        self.holes.as_deref()
    }

    /// Checks whether an unmount would succeed. Users within the kernel, such as loop devices, are
    /// considered only if `by_kernel` is set.
    ///
    /// # Errors
    /// [`Error::Busy`], with the processes that use the mount.
    pub fn in_use(&self, by_kernel: bool) -> Result<(), Error> {
        /// Serializes callers: two of them at the same time would unmount it.
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
        if by_kernel {
            // Marks an unused mount as expired, which is reported as an error, and has no other
            // effect here: any use clears the mark. An ordinary user has no permission for it.
            match rustix::mount::unmount(&self.mountpoint, UnmountFlags::EXPIRE) {
                Err(rustix::io::Errno::AGAIN) => {
                    let flags = OFlags::PATH | OFlags::CLOEXEC;
                    let _ = rustix::fs::open(&self.mountpoint, flags, Mode::empty());
                    return Ok(());
                }
                Err(rustix::io::Errno::BUSY) => return Err(busy(&self.mountpoint)),
                _ => {}
            }
        }
        match users::of(&self.mountpoint) {
            Some(_) => Err(busy(&self.mountpoint)),
            None => Ok(()),
        }
    }

    /// Builds the path of the file of an export.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.mountpoint.join(name)
    }

    /// Returns a descriptor that becomes readable when the last request is done, for whatever
    /// reason. `None` for a directory of volumes.
    pub fn ended(&self) -> Option<BorrowedFd<'_>> {
        self.ended.as_ref().map(|fd| fd.as_fd())
    }

    /// Reports whether [`Mount::ended`] is readable.
    pub fn has_ended(&self) -> bool {
        self.ended.is_some() && self.ends_within(Duration::ZERO)
    }

    /// Waits up to `time` for the last request. A mount without notification counts as ended.
    fn ends_within(&self, time: Duration) -> bool {
        let Some(ended) = &self.ended else {
            return true;
        };
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).unwrap_or_default();
            match poll(&mut [PollFd::new(ended, PollFlags::IN)], Some(&left)) {
                Err(rustix::io::Errno::INTR) => {}
                ready => return ready.is_ok_and(|ready| ready > 0),
            }
        }
    }

    /// Unmounts and waits until the last request is done. With `force`, unmounts even if the mount
    /// is in use and returns false; its users continue until they close their files. Also returns
    /// false if another mount namespace, such as a container's, has a copy of the mount.
    ///
    /// # Errors
    /// Returned together with the unchanged mount.
    pub fn unmount(mut self, force: bool) -> Result<bool, Box<(Mount, Error)>> {
        let unmounted = match unmount(&self.mountpoint, false) {
            Err(Error::Busy { .. }) if force => unmount(&self.mountpoint, true).map(|()| false),
            unmounted => unmounted.map(|()| true),
        };
        let over = match unmounted {
            Ok(over) => over,
            // If another program has unmounted it, for example a manual `umount`, that is success.
            Err(_) if mounted_at(&self.mountpoint).is_none() => true,
            Err(e) => return Err(Box::new((self, e))),
        };
        let over = over && self.ends_within(ENDS_WITHIN);
        match (self.session.take(), over) {
            (Some(session), true) => drop(session.join()),
            // The kernel ends the session when the last user closes its files, which may be never;
            // until then those users must still see changes of other clients.
            (Some(session), false) => {
                self.recall = None;
                std::mem::forget(session);
            }
            (None, _) => {}
        }
        Ok(over)
    }

    /// Waits until the mount is unmounted by another program.
    pub fn wait(mut self) {
        if let Some(session) = self.session.take() {
            // The mount has ended; the result of its last thread does not matter.
            let _ = session.join();
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.session.is_some() {
            let _ = unmount(&self.mountpoint, true);
        }
        if let Some(recall) = &self.recall {
            recall.close();
        }
    }
}

/// Ends a mount immediately: pending requests fail, and data not yet written is lost. Sends no
/// request to the server, so it also helps if the server is a killed process that cannot exit
/// because some of its threads wait for replies from others.
///
/// # Errors
/// Errors of the system.
pub fn abort(mountpoint: &Path) -> Result<(), Error> {
    match rustix::mount::unmount(mountpoint, UnmountFlags::FORCE | UnmountFlags::DETACH) {
        Ok(()) => Ok(()),
        Err(_) => unmount(mountpoint, true),
    }
}

/// Names the requirement for mounting that this user does not meet, if any.
pub fn no_mounts() -> Option<&'static str> {
    let mut device = std::fs::OpenOptions::new();
    if device.read(true).write(true).open("/dev/fuse").is_err() {
        Some("/dev/fuse, readable and writable by this user")
    } else if !rustix::process::geteuid().is_root() && helper().is_none() {
        Some("the program fusermount3 or fusermount, unless the user is root")
    } else {
        None
    }
}

/// Finds the program that mounts and unmounts for an ordinary user, of FUSE version 3 or 2.
fn helper() -> Option<&'static str> {
    let is_there = |program: &&str| {
        let mut asked = Command::new(program);
        asked.arg("-V").stdout(Stdio::null()).stderr(Stdio::null());
        asked.status().is_ok()
    };
    ["fusermount3", "fusermount"].into_iter().find(is_there)
}

/// Unmounts the mount that a killed process of this user has left, and removes loop devices over
/// files in it. Returns whether there was one.
///
/// # Errors
/// [`Error::Busy`] if it belongs to another program or another user; errors of the system.
pub fn clear_dead(mountpoint: &Path) -> Result<bool, Error> {
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
    crate::loopdev::remove_all_of(&path);
    unmount(mountpoint, true)?;
    tracing::warn!("unmounted {}, which a killed process left", path.display());
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
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let wanted = escaped(&path)?;
    // The last entry is the topmost mount.
    let line = mounts
        .lines()
        .rfind(|line| line.split(' ').nth(1) == Some(&wanted))?;
    let fields: Vec<&str> = line.split(' ').collect();
    let [source, _, kind, options, ..] = fields[..] else {
        return None;
    };
    let is_ours = source == "evfs" && kind == "fuse.evfs" && options.split(',').any(|o| o == me);
    is_ours.then_some(path)
}

/// Escapes a path as in `/proc/self/mounts`.
fn escaped(path: &Path) -> Option<String> {
    let path = path.to_str()?.replace('\\', "\\134");
    Some(path.replace(' ', "\\040").replace('\t', "\\011"))
}

/// Builds the options common to all mounts.
fn options() -> Vec<MountOption> {
    vec![
        MountOption::FSName("evfs".into()),
        // The library's own option for this does not reach the kernel.
        MountOption::CUSTOM("subtype=evfs".into()),
        MountOption::DefaultPermissions,
    ]
}

/// Checks for an error by which a mount with a dead server replies: ENOTCONN, or ECONNABORTED for
/// requests in flight when it died.
pub fn server_died(error: &std::io::Error) -> bool {
    let gone = [libc::ENOTCONN, libc::ECONNABORTED];
    error
        .raw_os_error()
        .is_some_and(|code| gone.contains(&code))
}

enum At {
    Alive,
    Dead,
}

/// Checks whether a file system, of this program or another, is mounted at exactly this path.
fn mounted_at(path: &Path) -> Option<At> {
    // Attributes may be cached by the kernel; statfs always reaches the server.
    if let Err(error) = rustix::fs::statfs(path) {
        return server_died(&error.into()).then_some(At::Dead);
    }
    let path = std::fs::canonicalize(path).ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let wanted = escaped(&path)?;
    mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(&wanted))
        .then_some(At::Alive)
}

fn unmount(path: &Path, force: bool) -> Result<(), Error> {
    let flags = if force {
        UnmountFlags::DETACH
    } else {
        UnmountFlags::empty()
    };
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Err(busy(path)),
        // An ordinary user unmounts by the helper program that mounted.
        Err(rustix::io::Errno::PERM) => {
            let helper = helper().ok_or_else(|| {
                let source = std::io::Error::from(std::io::ErrorKind::NotFound);
                Error::io(
                    "cannot unmount without the program fusermount3 or fusermount",
                    source,
                )
            })?;
            let mut command = Command::new(helper);
            command
                .arg("-u")
                .args(force.then_some("-z"))
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

fn busy(path: &Path) -> Error {
    Error::Busy {
        what: path.display().to_string(),
        hint: match users::of(path) {
            Some(users) => format!("used by {users}"),
            None => "another process has a file in it open".into(),
        },
    }
}
