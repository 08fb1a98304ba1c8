//! Mounting and unmounting.

use crate::files::{Files, Holes};
use crate::tree::{Recall, Tree};
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

/// How long the end of a mount may take that nobody uses any more.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// A device under a name.
#[derive(Clone)]
pub struct Export {
    /// Name of the file.
    pub name: String,
    /// What is in it.
    pub device: Arc<dyn BlockDevice>,
    /// Refuse writes whatever the device says.
    pub read_only: bool,
}

/// Where to mount, and how.
#[derive(Debug, Clone)]
pub struct Config {
    /// An existing folder.
    pub mountpoint: PathBuf,
    /// Threads; each stands for [`REQUESTS_PER_THREAD`] requests in flight.
    pub threads: usize,
}

impl Config {
    /// With one thread.
    pub fn new(mountpoint: PathBuf) -> Config {
        Config {
            mountpoint,
            threads: 1,
        }
    }
}

/// How a file system is mounted.
#[derive(Debug, Clone)]
pub struct TreeConfig {
    /// An existing folder.
    pub mountpoint: PathBuf,
    /// Requests in flight, each with a thread.
    pub threads: usize,
    /// How long the kernel may remember names and attributes without asking. Long where nothing but
    /// this mount changes the files.
    pub ttl: Duration,
    /// Refuse changes.
    pub read_only: bool,
    /// Let other users than the one who mounts in; the permissions of the files count for them. An
    /// ordinary user needs `user_allow_other` in `/etc/fuse.conf` for it.
    pub allow_other: bool,
    /// Nothing but this mount uses the files, so the kernel may keep what is written to itself, until
    /// the file is closed or synced, or for about 30 seconds. Many small writes to a large file are
    /// several times faster; small files take longer. A full device is an error of fsync(2) or
    /// close(2) then, not of write(2), a killed server loses what the kernel had not handed over, and
    /// holes of files are not told from data.
    pub exclusive: bool,
    /// Honor set-user-ID, set-group-ID and capabilities of programs in the files. Only root may ask for
    /// it, and whoever made the files becomes root with it.
    pub suid: bool,
    /// Let device nodes among the files open devices. Only root may ask for it, as above.
    pub dev: bool,
    /// When reading a file changes the time of its last reading.
    pub atime: Atime,
}

impl TreeConfig {
    /// For nobody but this mount.
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

/// A mounted folder. Dropping it takes it away from whoever uses it.
pub struct Mount {
    mountpoint: PathBuf,
    session: Option<BackgroundSession>,
    /// Readable when the last request is done, where anybody wants to know.
    ended: Option<Arc<OwnedFd>>,
    /// Tells the kernel what others change, for a mounted file system.
    recall: Option<Arc<Recall>>,
    /// What holes mean in the only file of a folder of volumes.
    holes: Option<Arc<Holes>>,
}

impl Mount {
    /// Mounts. What a killed process left mounted there is taken away first.
    ///
    /// # Errors
    /// [`Error::Busy`] when something else is mounted there; what the system says, for example for
    /// a user who may not open `/dev/fuse`.
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

    /// Mounts a file system. The files are to be closed when it is unmounted.
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
            match config.suid {
                true => MountOption::Suid,
                false => MountOption::NoSuid,
            },
            match config.dev {
                true => MountOption::Dev,
                false => MountOption::NoDev,
            },
        ]);
        if config.allow_other {
            settings.acl = SessionACL::All;
        }
        settings.n_threads = Some(config.threads.max(1));
        let ended = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let ended = Arc::new(ended.map_err(|e| Error::io("cannot make an eventfd", e.into()))?);
        let recall = Arc::new(Recall::default());
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
                let hint = "something is mounted there already".into();
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

    /// What holes mean in the file of the only export.
    pub fn holes(&self) -> Option<&Holes> {
        self.holes.as_deref()
    }

    /// Whether an unmount would find nobody in the way. The kernel's own users, such as loop devices, count
    /// only if asked for.
    ///
    /// # Errors
    /// [`Error::Busy`], with who is.
    pub fn in_use(&self, by_kernel: bool) -> Result<(), Error> {
        /// Two at the same time would unmount it.
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
        if by_kernel {
            // Marks a mount that nobody uses, which is an error, and is all that we want; any use takes the
            // mark away. An ordinary user may not ask.
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

    /// The file of an export.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.mountpoint.join(name)
    }

    /// Readable when the last request is done, however it came about. Only a file system knows.
    pub fn ended(&self) -> Option<BorrowedFd<'_>> {
        self.ended.as_ref().map(|fd| fd.as_fd())
    }

    /// Whether [`Mount::ended`] is readable.
    pub fn has_ended(&self) -> bool {
        self.ended.is_some() && self.ends_within(Duration::ZERO)
    }

    /// Waits for the last request, no longer than `time`. What nobody is told of counts as ended.
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

    /// Unmounts and waits until the last request is done. With `force` also when somebody uses it:
    /// then it gives false, and they go on until they close what they have open. So it does where
    /// another mount namespace, a container's for example, has a copy of the mount.
    ///
    /// # Errors
    /// The mount comes back with the error; nothing has changed then.
    pub fn unmount(mut self, force: bool) -> Result<bool, Box<(Mount, Error)>> {
        let unmounted = match unmount(&self.mountpoint, false) {
            Err(Error::Busy { .. }) if force => unmount(&self.mountpoint, true).map(|()| false),
            unmounted => unmounted.map(|()| true),
        };
        let over = match unmounted {
            Ok(over) => over,
            // Unmounted by somebody else, by hand for example, is unmounted.
            Err(_) if mounted_at(&self.mountpoint).is_none() => true,
            Err(e) => return Err(Box::new((self, e))),
        };
        let over = over && self.ends_within(ENDS_WITHIN);
        match (self.session.take(), over) {
            (Some(session), true) => drop(session.join()),
            // The kernel ends it when the last user goes, which may be never; until then they are
            // to see what others change.
            (Some(session), false) => {
                self.recall = None;
                std::mem::forget(session);
            }
            (None, _) => {}
        }
        Ok(over)
    }

    /// Waits until somebody unmounts it.
    pub fn wait(mut self) {
        if let Some(session) = self.session.take() {
            // How the last thread ended says nothing that the mount could still do.
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

/// Ends a mount at once: whoever waits for an answer gets an error, and what was not written is lost. Asks its server
/// nothing, so it helps also where the server is a process that was killed and cannot end, since some of its own
/// threads wait for the others' answers.
///
/// # Errors
/// What the system says.
pub fn abort(mountpoint: &Path) -> Result<(), Error> {
    match rustix::mount::unmount(mountpoint, UnmountFlags::FORCE | UnmountFlags::DETACH) {
        Ok(()) => Ok(()),
        Err(_) => unmount(mountpoint, true),
    }
}

/// What this user lacks for mounting anything, if so.
pub fn no_mounts() -> Option<&'static str> {
    let mut device = std::fs::OpenOptions::new();
    if device.read(true).write(true).open("/dev/fuse").is_err() {
        Some("/dev/fuse to be there, and this user to be allowed to read and write it")
    } else if !rustix::process::geteuid().is_root() && helper().is_none() {
        Some("the program fusermount3, or fusermount, where the user is not root")
    } else {
        None
    }
}

/// The program that mounts and unmounts for an ordinary user: of version 3 of FUSE, or of version 2.
fn helper() -> Option<&'static str> {
    let is_there = |program: &&str| {
        let mut asked = Command::new(program);
        asked.arg("-V").stdout(Stdio::null()).stderr(Stdio::null());
        asked.status().is_ok()
    };
    ["fusermount3", "fusermount"].into_iter().find(is_there)
}

/// Takes away what a killed process of this user has left mounted, and loop devices of files in it. Says whether
/// there was such a thing.
///
/// # Errors
/// [`Error::Busy`] where another program, or another user, has left it; what the system says.
pub fn clear_dead(mountpoint: &Path) -> Result<bool, Error> {
    let Some(At::Dead) = mounted_at(mountpoint) else {
        return Ok(false);
    };
    let Some(path) = ours(mountpoint) else {
        return Err(Error::Busy {
            what: mountpoint.display().to_string(),
            hint: "a mount is there whose server has died, and which is not this user's; its owner can \
                   take it away with `fusermount3 -u -z`, and root with `umount -l`"
                .into(),
        });
    };
    crate::loopdev::remove_all_of(&path);
    unmount(mountpoint, true)?;
    tracing::warn!("unmounted {}, which a killed process left", path.display());
    Ok(true)
}

/// The full path of a mount point if this program has mounted something there for this user.
fn ours(mountpoint: &Path) -> Option<PathBuf> {
    // A dead mount cannot be looked at, only the folder that it is in.
    let mut path = std::path::absolute(mountpoint).ok()?;
    if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
        path = std::fs::canonicalize(parent).ok()?.join(name);
    }
    let me = format!("user_id={}", rustix::process::geteuid().as_raw());
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let wanted = escaped(&path)?;
    // The last one is on top.
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

/// A path as `/proc/self/mounts` spells it.
fn escaped(path: &Path) -> Option<String> {
    let path = path.to_str()?.replace('\\', "\\134");
    Some(path.replace(' ', "\\040").replace('\t', "\\011"))
}

/// What every mount has.
fn options() -> Vec<MountOption> {
    vec![
        MountOption::FSName("evfs".into()),
        // The library has an option for this that does not reach the kernel.
        MountOption::CUSTOM("subtype=evfs".into()),
        MountOption::DefaultPermissions,
    ]
}

/// Whether this is what a mount answers whose server died: ENOTCONN, or ECONNABORTED to what was under
/// way then.
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

/// Whether a file system of ours, or another one, is mounted at exactly this path.
fn mounted_at(path: &Path) -> Option<At> {
    // Attributes may be remembered; how full a file system is the kernel has to ask the server.
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
        // An ordinary user unmounts through the helper that mounted.
        Err(rustix::io::Errno::PERM) => {
            let helper = helper().ok_or_else(|| {
                let source = std::io::Error::from(std::io::ErrorKind::NotFound);
                Error::io(
                    "cannot unmount without the program fusermount3, or fusermount",
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
            None => "somebody has a file in it open".into(),
        },
    }
}
