//! File systems of ours: made, mounted by a process of their own, killed, checked.

use crate::{Ran, Sandbox, wait_until};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// What a file system lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// A file in the clear.
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
}

impl<'a> Disk<'a> {
    /// Formats a new file of `size`, like `1G`, named after what it is.
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

    /// What carries a file system already: a file of the sandbox, or a LUN.
    pub fn existing(s: &'a Sandbox, device: &str) -> Disk<'a> {
        Disk {
            s,
            device: device.to_owned(),
            environment: Vec::new(),
            options: &[],
        }
    }

    /// What mounts it is given these options, always.
    pub fn with(mut self, options: &'static [&'static str]) -> Disk<'a> {
        self.options = options;
        self
    }

    /// What mounts it has this variable in its environment from now on.
    pub fn set(&mut self, variable: &'static str, value: &str) {
        self.environment.retain(|(name, _)| *name != variable);
        self.environment.push((variable, value.to_owned()));
    }

    /// The DEVICE, as the program is told.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Mounts it at `mnt` of the sandbox and waits until it is there.
    pub fn mount(&self, options: &[&str]) -> Mounted {
        let mounted = self.mount_soon(options);
        mounted.wait_for(options);
        mounted
    }

    /// Starts to mount it, and does not wait.
    pub fn mount_soon(&self, options: &[&str]) -> Mounted {
        let dir = self.s.path("mnt");
        // It may be there, and, if what served it was killed, cannot be looked at.
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
            .args(options)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said)
            .spawn()
            .expect("the program runs");
        Mounted { child, dir, log }
    }

    /// Fails the test unless the file system is without a fault.
    #[track_caller]
    pub fn check(&self) {
        let mut ran = self.s.run(&["fsck", &self.device]);
        // The kernel takes the rings of a killed process down after it has gone, and with them its
        // lock; on a machine with much to do later than the program waits for.
        wait_until("who was killed has let go of the device", || {
            let busy = ran.status.code() == Some(11);
            if busy {
                ran = self.s.run(&["fsck", &self.device]);
            }
            !busy
        });
        assert!(
            ran.status.code() == Some(0) && ran.stdout.trim_end().ends_with("clean"),
            "{ran:?}"
        );
    }
}

/// A mounted file system, and the process that serves it. It is killed when this goes, and the dead
/// mount is taken away.
pub struct Mounted {
    child: Child,
    dir: PathBuf,
    log: PathBuf,
}

impl Mounted {
    /// Waits until it is there.
    #[track_caller]
    pub fn wait_for(&self, options: &[&str]) {
        let pid = self.child.id();
        wait_until(&format!("it is mounted {options:?}"), || {
            let ended = has_ended(pid);
            assert!(!ended, "it ended instead of mounting: {}", self.said());
            answers(&self.dir)
        });
    }

    /// A path inside.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The folder that it is mounted at.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the process that serves it, and those before it, have said.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Number of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets every user of the system go through the folders of the sandbox to this one.
    pub fn let_everybody_in(&self, s: &Sandbox) {
        let through = || std::fs::Permissions::from_mode(0o711);
        std::fs::set_permissions(s.path(""), through()).expect("own folder");
        std::fs::set_permissions(&self.dir, through()).expect("own folder");
    }

    /// Unmounts it as a user would; the process must end well.
    #[track_caller]
    pub fn unmount(mut self, s: &Sandbox) {
        s.run(&[Path::new("unmount"), &self.dir]).ok();
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}: {}", self.said());
        assert!(!is_mounted(&self.dir), "it is mounted still");
    }

    /// Kills the process without a word. The dead mount stays, for the next one to find.
    pub fn kill(mut self) {
        self.end();
        std::mem::forget(self);
    }

    /// Waits until the process has ended by itself; says how.
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
        self.end();
        take_away(&self.dir);
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        // What was killed last.
        take_away(&self.s.path("mnt"));
    }
}

/// Takes away what is mounted at a folder, whoever uses it.
pub fn take_away(dir: &Path) {
    let path = CString::new(dir.as_os_str().as_bytes()).expect("a path has no zeros");
    // SAFETY: the path is a string that ends with a zero.
    let root = unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) } == 0;
    if !root && is_mounted(dir) {
        let mut command = Command::new("fusermount3");
        let _ = Ran::of(command.arg("-uz").arg(dir));
    }
}

/// Whether something is mounted at exactly this folder, dead or alive.
pub fn is_mounted(dir: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("the list of mounts");
    let dir = dir.to_str().expect("a path of text");
    mounts.lines().any(|l| l.split(' ').nth(1) == Some(dir))
}

/// Whether a folder is a mount whose process is there. The kernel, which remembers attributes also of
/// a dead mount, never remembers how full a file system is.
fn answers(dir: &Path) -> bool {
    /// `FUSE_SUPER_MAGIC` of <linux/magic.h>.
    const FUSE: i64 = 0x6573_5546;
    let path = CString::new(dir.as_os_str().as_bytes()).expect("a path has no zeros");
    // SAFETY: plain numbers, for which zeros will do.
    let mut room: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a string that ends with a zero, and the numbers live long enough.
    unsafe { libc::statfs(path.as_ptr(), &raw mut room) == 0 && room.f_type == FUSE }
}

/// Whether a child has ended, waited for or not.
fn has_ended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state is behind the name, which may hold anything.
    stat.rsplit(") ")
        .next()
        .is_none_or(|rest| rest.is_empty() || rest.starts_with('Z'))
}
