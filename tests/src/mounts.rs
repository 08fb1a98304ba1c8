//! EVFS file systems: formatted, mounted by a separate process, killed, checked.
//!
//! | variable | effect |
//! |---|---|
//! | `EVFS_TEST_KILL_MS=500` | each mount has `--survive`, and its servers are killed about as often |

use crate::kept::Killer;
use crate::{Ran, Sandbox, wait_until};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Storage of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// An unencrypted file.
    Clear,
    /// An encrypted volume in a file.
    Encrypted,
}

/// A DEVICE with a file system on it.
pub struct Disk<'a> {
    s: &'a Sandbox,
    device: String,
    environment: Vec<(&'static str, String)>,
    options: &'static [&'static str],
    kill_every: Option<Duration>,
}

impl<'a> Disk<'a> {
    /// Formats a new file of `size`, like `1G`, named after its kind.
    pub fn new(s: &'a Sandbox, on: On, size: &str) -> Disk<'a> {
        let device = match on {
            On::Clear => "clear.img",
            On::Encrypted => "encrypted.img",
        };
        match on {
            On::Clear => s.run(&["format", device, "--size", size]).ok(),
            On::Encrypted => {
                s.volume(device, size, &[]);
                s.run(&["format", device]).ok()
            }
        };
        Disk::existing(s, device)
    }

    /// Returns the disk of an existing file system: a file of the sandbox, or a LUN.
    pub fn existing(s: &'a Sandbox, device: &str) -> Disk<'a> {
        Disk {
            s,
            device: device.to_owned(),
            environment: Vec::new(),
            options: &[],
            kill_every: std::env::var("EVFS_TEST_KILL_MS")
                .ok()
                .map(|text| Duration::from_millis(text.parse().expect("milliseconds"))),
        }
    }

    /// Lets the servers of every mount be killed, about as often. `None`: as the environment says.
    pub fn killed_every(mut self, every: Option<Duration>) -> Disk<'a> {
        self.kill_every = every.or(self.kill_every);
        self
    }

    /// Adds these options to every mount.
    pub fn with(mut self, options: &'static [&'static str]) -> Disk<'a> {
        self.options = options;
        self
    }

    /// Sets this variable in the environment of later mounts.
    pub fn set(&mut self, variable: &'static str, value: &str) {
        self.environment.retain(|(name, _)| *name != variable);
        self.environment.push((variable, value.to_owned()));
    }

    /// Returns the DEVICE argument.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Mounts it at `mnt` of the sandbox, and waits until it is mounted.
    pub fn mount(&self, options: &[&str]) -> Mounted {
        let mut mounted = self.mount_soon(options);
        mounted.wait_for(options);
        let pid = mounted.pid();
        mounted.killer = self.kill_every.map(|every| Killer::start(pid, every));
        mounted
    }

    /// Starts mounting it, and does not wait.
    pub fn mount_soon(&self, options: &[&str]) -> Mounted {
        let dir = self.s.path("mnt");
        // It may exist, and cannot be accessed if its server was killed.
        let _ = std::fs::create_dir(&dir);
        let log = self.s.path("mount.log");
        let said = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a log");
        let mut command = self.s.evfs();
        command.args(["mount", &self.device]).arg(&dir);
        let child = command
            .args(self.options)
            .args(self.kill_every.map(|_| "--survive"))
            .args(options)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(self.s.path("mount.out")).expect("a file"))
            .stderr(said)
            .spawn()
            .expect("the program runs");
        let printed = self.s.path("mount.out");
        Mounted {
            killer: None,
            child,
            dir,
            log,
            printed,
        }
    }

    /// Fails the test unless `fsck` finds no error.
    #[track_caller]
    pub fn check(&self) {
        let mut ran = self.s.run(&["fsck", "--data", &self.device]);
        // The kernel releases the rings of a killed process, and with them its lock, after the
        // process has ended; on a busy machine this takes longer than the program waits.
        wait_until("who was killed has let go of the device", || {
            let busy = ran.status.code() == Some(11);
            if busy {
                ran = self.s.run(&["fsck", "--data", &self.device]);
            }
            !busy
        });
        assert!(
            ran.status.code() == Some(0) && ran.stdout.trim_end().ends_with("clean"),
            "{ran:?}"
        );
    }

    /// Fails the test unless `fsck` finds no error and a file has this content.
    #[track_caller]
    pub fn check_file(&self, name: &str, content: &[u8]) {
        self.check();
        let mounted = self.mount(&[]);
        let found = std::fs::read(mounted.path(name)).expect("the file");
        assert!(found == content, "{name} has {} other bytes", found.len());
        mounted.unmount(self.s);
    }
}

/// A mounted file system, and the process that serves it. On drop the process is killed and the
/// dead mount is removed.
pub struct Mounted {
    killer: Option<Killer>,
    child: Child,
    dir: PathBuf,
    log: PathBuf,
    /// What the process prints once it is ready.
    printed: PathBuf,
}

impl Mounted {
    /// Waits until it is mounted.
    #[track_caller]
    pub fn wait_for(&self, options: &[&str]) {
        let pid = self.child.id();
        wait_until(&format!("it is mounted {options:?}"), || {
            let ended = has_ended(pid);
            assert!(!ended, "it ended instead of mounting: {}", self.said());
            // Before it says so, it uses the mount itself, to find out what the kernel forwards.
            let is_ready = std::fs::metadata(&self.printed).is_ok_and(|out| out.len() > 0);
            is_ready && answers(&self.dir)
        });
    }

    /// Returns a path in the file system.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns the mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the log of the process that serves it, and of those before it.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns the file with the log.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns the ID of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets every user of the system traverse the directories of the sandbox to this one.
    pub fn allow_every_client(&self, s: &Sandbox) {
        let through = || std::fs::Permissions::from_mode(0o711);
        std::fs::set_permissions(s.path(""), through()).expect("own folder");
        std::fs::set_permissions(&self.dir, through()).expect("own folder");
    }

    /// Unmounts it as a user would; the process must succeed.
    #[track_caller]
    pub fn unmount(mut self, s: &Sandbox) {
        if let Some(killer) = self.killer.take() {
            eprintln!("{} kills", killer.stop());
            assert!(!self.said().contains("EVFS-0817"), "{}", self.said());
        }
        s.run(&[Path::new("unmount"), &self.dir]).ok();
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}: {}", self.said());
        assert!(!is_mounted(&self.dir), "it is mounted still");
    }

    /// Kills the process. The dead mount stays for the next one.
    pub fn kill(mut self) {
        self.end();
        std::mem::forget(self);
    }

    /// Waits until the process has ended by itself, and returns its status.
    pub fn ended(mut self) -> ExitStatus {
        let pid = self.child.id();
        wait_until("the process ends", || has_ended(pid));
        self.child.wait().expect("it has ended")
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.killer = None;
        crate::kept::end(&mut self.child);
        if std::thread::panicking() {
            eprintln!("{}", self.said());
        }
        take_away(&self.dir);
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        // The mount of the last process that was killed.
        take_away(&self.s.path("mnt"));
    }
}

/// Reports whether the kernel forwards sync(2) to mounts of root.
pub fn forwards_sync() -> bool {
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|n| n.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(18))
}

/// Unmounts a directory, even if it is in use.
pub fn take_away(dir: &Path) {
    let path = CString::new(dir.as_os_str().as_bytes()).expect("a path has no zeros");
    // SAFETY: the path is a string that ends with a zero.
    let root = unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) } == 0;
    if !root && is_mounted(dir) {
        let mut command = Command::new("fusermount3");
        let _ = Ran::of(command.arg("-uz").arg(dir));
    }
}

/// Reports whether exactly this directory is a mount point, dead or alive.
pub fn is_mounted(dir: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("the list of mounts");
    let dir = dir.to_str().expect("a path of text");
    mounts.lines().any(|l| l.split(' ').nth(1) == Some(dir))
}

/// Reports whether a directory is a mount whose process is alive. The kernel caches attributes even
/// of a dead mount, but never the result of statfs(2).
fn answers(dir: &Path) -> bool {
    /// `FUSE_SUPER_MAGIC` of <linux/magic.h>.
    const FUSE: i64 = 0x6573_5546;
    let path = CString::new(dir.as_os_str().as_bytes()).expect("a path has no zeros");
    // SAFETY: a struct of plain integers, for which zeros are valid.
    let mut room: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a string that ends with a zero, and `room` lives until the call returns.
    unsafe { libc::statfs(path.as_ptr(), &raw mut room) == 0 && room.f_type == FUSE }
}

/// Reports whether a child has ended, waited for or not.
fn has_ended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which may contain any characters.
    stat.rsplit(") ")
        .next()
        .is_none_or(|rest| rest.is_empty() || rest.starts_with('Z'))
}
