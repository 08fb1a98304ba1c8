//! A machine of its own for an AFS cell, its servers and its clients, and what passes between them.
//!
//! `tests/guest/afs-cell.sh` makes the machine, of namespaces. Ours and OpenAFS's server run in it, and
//! OpenAFS's client for FUSE; guests with the kernel's client reach its loopback at the same
//! address.

pub mod wire;

use crate::{Killed, Ran, Sandbox, program, wait_until};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// The address of the servers, for clients on the machine and in guests.
pub const ADDRESS: &str = "10.0.2.2";

/// The name of the cell.
pub const CELL: &str = "test.local";

/// The folder of the scripts.
fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guest")
}

/// A machine for a cell. All that runs on it ends with it.
pub struct Machine<'s> {
    s: &'s Sandbox,
    // Ends before the sandbox is emptied.
    _init: Killed,
    pid: u32,
}

impl<'s> Machine<'s> {
    /// A machine on which nothing runs. It takes root.
    pub fn new(s: &'s Sandbox) -> Machine<'s> {
        let mut init = Command::new("unshare")
            .args(["-m", "-n", "-u", "-p", "-f", "--kill-child"])
            .args(["--propagation", "private"])
            .arg(scripts().join("afs-cell.sh"))
            .arg(s.path("cell"))
            .args([CELL, ADDRESS])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare is of util-linux");
        let said = first_line(init.stdout.as_mut().expect("piped"));
        assert_eq!(said, "ready");
        let unshare = init.id();
        let children = format!("/proc/{unshare}/task/{unshare}/children");
        let children = fs::read_to_string(children).expect("it lives");
        let pid = children.trim().parse().expect("one child");
        Machine {
            s,
            _init: Killed(init),
            pid,
        }
    }

    /// A program on the machine, which is killed when the test is.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["-t", &self.pid.to_string()])
            .args(["-m", "-n", "-u", "-p", "-r", "-w", "--"])
            .args(["setpriv", "--pdeathsig", "KILL", "--"])
            .arg(program);
        self.s.environment(&mut command);
        command.current_dir("/");
        command
    }

    /// Runs a script of the shell in a folder of the machine; it must succeed.
    #[track_caller]
    pub fn shell(&self, folder: &Path, script: &str) -> String {
        let mut command = self.command("env");
        command.arg("-C").arg(folder).args(["sh", "-ec", script]);
        Ran::of(&mut command).ok().stdout
    }

    /// A path of the machine, for who is not on it.
    pub fn inside(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.pid));
        root.join(path.strip_prefix("/").expect("a whole path"))
    }

    /// Starts OpenAFS's servers, with a cell that is empty.
    pub fn openafs(&self) {
        let mut command = self.command(scripts().join("openafs.sh"));
        // It leaves programs behind.
        Ran::of(command.arg(self.s.path("cell")).arg(CELL)).ok();
    }

    /// Starts our server on a file of the sandbox, which is made where it is not there.
    pub fn serve(&self) -> Served {
        let example = program().with_file_name("examples").join("serve");
        let mut command = self.command(example);
        let device = self.s.path("cell.img");
        command
            .arg(&device)
            .args(["0.0.0.0", "--announce", ADDRESS])
            .args(["--size", "8192", "--anonymous-write"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("nsenter is of util-linux");
        let mut printed = BufReader::new(child.stdout.take().expect("piped"));
        let said = first_line(&mut printed);
        assert!(said.starts_with("serving"), "{said:?}");
        Served {
            child: Killed(child),
            printed,
        }
    }

    /// Mounts the cell with OpenAFS's client for FUSE.
    #[track_caller]
    pub fn mount(&self, name: &str, options: &[&str]) -> Client<'_> {
        let client = self.mount_soon(name, options);
        client.wait();
        client
    }

    /// Starts to mount it, and does not wait.
    pub fn mount_soon(&self, name: &str, options: &[&str]) -> Client<'_> {
        let at = self.s.path("clients").join(name);
        let cache = at.with_extension("cache");
        fs::create_dir_all(&at).expect("a folder");
        fs::create_dir_all(&cache).expect("a folder");
        let log = File::create(at.with_extension("log")).expect("a log");
        let mut command = self.command("afsd.fuse");
        command
            .args(["-dynroot", "-fakestat", "-nosettime", "-memcache"])
            .args(["-confdir", "/etc/openafs"])
            .arg("-mountdir")
            .arg(&at)
            .arg("-cachedir")
            .arg(&cache)
            .args(options)
            .arg("-f")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log);
        Client {
            machine: self,
            child: Killed(command.spawn().expect("nsenter is of util-linux")),
            at,
        }
    }

    /// Boots a kernel with the AFS client of Linux, runs `tests/guest/SCRIPT` in it, and gives what it
    /// printed. `share` is its /share.
    #[track_caller]
    pub fn guest(&self, kernel: &str, script: &str, share: &Path, programs: &[&Path]) -> String {
        let built = program();
        let target = built.ancestors().nth(2).expect("target/PROFILE/evfs");
        let cache = target.join("guest");
        let boot = scripts().join("boot.sh");
        // The machine has no way to the archives.
        let mut fetch = Command::new(&boot);
        fetch.args(["--fetch", "--kernel", kernel, "--cache"]);
        Ran::of(fetch.arg(&cache)).ok();
        fs::copy(scripts().join("kafs.sh"), share.join("kafs.sh")).expect("a share");
        let mut command = self.command(boot);
        command.arg("--cache").arg(cache);
        command.args(["--kernel", kernel, "--modules", "pcbc fcrypt kafs"]);
        command.arg("--share").arg(share);
        command.arg(scripts().join(script)).args(programs);
        Ran::of(command.arg("/sbin/request-key")).ok().stdout
    }
}

/// Our server, as it runs.
pub struct Served {
    child: Killed,
    printed: BufReader<ChildStdout>,
}

impl Served {
    /// Ends it as its administrator would, and gives what it says of itself.
    pub fn end(mut self) -> String {
        drop(self.child.0.stdin.take());
        let mut said = String::new();
        self.printed.read_to_string(&mut said).expect("text");
        let status = self.child.0.wait().expect("it ends");
        assert!(status.success(), "{status}: {said}");
        said
    }

    /// Kills it.
    pub fn kill(self) {}
}

/// OpenAFS's client for FUSE. It is killed when this goes.
pub struct Client<'m> {
    machine: &'m Machine<'m>,
    child: Killed,
    at: PathBuf,
}

impl Client<'_> {
    /// The root of the cell, as the machine sees it.
    pub fn folder(&self) -> PathBuf {
        self.at.join(CELL)
    }

    /// The root of another volume.
    pub fn volume(&self, name: &str) -> PathBuf {
        self.at.join(format!(".:mount/{CELL}:{name}"))
    }

    /// The root of the cell, for who is not on the machine.
    pub fn inside(&self) -> PathBuf {
        self.machine.inside(&self.folder())
    }

    /// Waits until the cell is there.
    #[track_caller]
    pub fn wait(&self) {
        let inside = self.inside();
        wait_until("the cell is mounted", || {
            let ended = self.child_has_ended();
            assert!(!ended, "it ended instead of mounting: {}", self.said());
            fs::read_dir(&inside).is_ok()
        });
    }

    fn child_has_ended(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.0.id()));
        stat.is_ok_and(|stat| stat.contains(") Z"))
    }

    /// What it has said.
    pub fn said(&self) -> String {
        fs::read_to_string(self.at.with_extension("log")).unwrap_or_default()
    }

    /// Unmounts it, and waits until it has ended.
    #[track_caller]
    pub fn unmount(mut self) {
        Ran::of(self.machine.command("umount").arg(&self.at)).ok();
        let child: &mut Child = &mut self.child.0;
        wait_until("the client ends", || {
            child.try_wait().expect("it is a child").is_some()
        });
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        let _ = Ran::of(self.machine.command("umount").arg("-l").arg(&self.at));
    }
}

/// The first line that a program prints.
fn first_line(printed: &mut impl Read) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while printed.read(&mut byte).is_ok_and(|n| n == 1) && byte != *b"\n" {
        line.extend(byte);
    }
    String::from_utf8_lossy(&line).into_owned()
}
