//! A virtual machine for an AFS cell, its servers and its clients, and a recording of their
//! traffic.
//!
//! `tests/guest/afs-cell.sh` creates the machine from namespaces. Our server, OpenAFS's server and
//! OpenAFS's client for FUSE run in it; guests with the kernel's client reach its loopback at the
//! same address.

pub mod wire;

use crate::guest::{self, scripts};
use crate::mounts::On;
use crate::{Killed, Ran, Sandbox, installed, program, wait_until};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Address of the servers, for clients on the machine and in guests.
pub const ADDRESS: &str = "10.0.2.2";

/// Name of the cell.
pub const CELL: &str = "test.local";

/// Options of `afsd.fuse` without which FUSE caches the server's attributes and entries for a
/// second.
pub const ASK_ALWAYS: &[&str] = &["-oattr_timeout=0,entry_timeout=0"];

/// Names of guests, and their kernels.
pub const KERNELS: [(&str, &str); 2] =
    [("a", "linux-image-amd64"), ("b", "linux-image-6.12-amd64")];

/// A machine for a cell. All its processes end with it.
pub struct Machine<'s> {
    s: &'s Sandbox,
    init: Killed,
    pid: u32,
}

impl<'s> Machine<'s> {
    /// Creates a machine without servers and clients. Requires root.
    pub fn new(s: &'s Sandbox) -> Machine<'s> {
        let mut init = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "unshare"])
            .args(["-m", "-n", "-u", "-p", "-f", "--kill-child"])
            .args(["--propagation", "private"])
            .arg(scripts().join("afs-cell.sh"))
            .arg(s.path("machine"))
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
            init: Killed(init),
            pid,
        }
    }

    /// Returns a command that runs a program on the machine, and that is killed with the test.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["-t", &self.pid.to_string()])
            .args(["-m", "-n", "-u", "-p", "-r", "-w", "--"])
            .args(["setpriv", "--pdeathsig", "KILL", "--"])
            .arg(program);
        self.s.environment(&mut command);
        command
    }

    /// Runs a shell script in a directory of the machine; it must succeed.
    #[track_caller]
    pub fn shell(&self, folder: &Path, script: &str) -> String {
        let mut command = self.command("env");
        command.arg("-C").arg(folder).args(["sh", "-ec", script]);
        Ran::of(&mut command).ok().stdout
    }

    /// Converts a path of the machine to one for processes outside of it.
    pub fn inside(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.pid));
        root.join(path.strip_prefix("/").expect("a whole path"))
    }

    /// Starts OpenAFS's servers with an empty cell.
    pub fn openafs(&self) {
        let mut command = self.command(scripts().join("openafs.sh"));
        // The script leaves daemons running.
        Ran::of(command.arg(self.s.path("machine")).arg(CELL)).ok();
    }

    /// Makes a DEVICE of the sandbox a cell, with two empty volumes besides its root: `small` with
    /// a quota of 64 KiB, and `locked`, which is read-only.
    pub fn cell(&self, on: On, size: &str) -> &'static str {
        let device = match on {
            On::Clear => "cell.img",
            On::Encrypted => "secret.img",
        };
        let s = self.s;
        match on {
            On::Clear => s.run(&["cell", "init", CELL, device, "--size", size]).ok(),
            On::Encrypted => {
                s.volume(device, size, &[]);
                s.run(&["cell", "init", CELL, device]).ok()
            }
        };
        let create = ["cell", "volume", "create", device];
        s.run(&[&create[..], &["small", "--quota", "64K"]].concat())
            .ok();
        s.run(&[&create[..], &["locked"]].concat()).ok();
        let list = ["cell", "acl", "set", device, "locked", "/"];
        s.run(&[&list[..], &["system:anyuser", "read"]].concat())
            .ok();
        device
    }

    /// Starts our server on a cell, with write access for clients. Its name is that of the device
    /// without the extension.
    #[track_caller]
    pub fn serve(&self, device: &str) -> Served<'s> {
        self.serve_with(device, &[])
    }

    /// Starts our server as [`Machine::serve`], with further options.
    #[track_caller]
    pub fn serve_with(&self, device: &str, options: &[&str]) -> Served<'s> {
        let log = self.s.path("serve.log");
        let mut said = File::options();
        let said = said.create(true).append(true).open(&log).expect("a log");
        let mut command = self.command(program());
        command
            .arg("serve")
            .arg(self.s.path(device))
            .args(["--listen", "0.0.0.0", "--announce", ADDRESS])
            .arg("--anonymous-write")
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(said);
        let mut child = command.spawn().expect("nsenter is of util-linux");
        let first = first_line(child.stdout.as_mut().expect("piped"));
        let served = Served {
            s: self.s,
            child: Killed(child),
            name: device.trim_end_matches(".img").to_owned(),
        };
        let said = fs::read_to_string(log).unwrap_or_default();
        assert!(!first.is_empty(), "it does not serve: {said}");
        served
    }

    /// Mounts the cell with OpenAFS's client for FUSE.
    #[track_caller]
    pub fn mount(&self, name: &str, options: &[&str]) -> Client<'_> {
        let client = self.mount_soon(name, options);
        client.wait();
        client
    }

    /// Starts mounting the cell, and does not wait.
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

    /// Boots a kernel with the AFS client of Linux, runs `tests/guest/SCRIPT` in it, and returns
    /// the result. `share` is its /share.
    #[track_caller]
    pub fn guest(
        &self,
        kernel: &str,
        script: &str,
        share: &Path,
        programs: &[PathBuf],
        patience: Duration,
    ) -> Ran {
        // The machine has no network route to the package archives.
        let mut boot = guest::boot();
        Ran::of(boot.args(["--fetch", "--kernel", kernel])).ok();
        fs::copy(scripts().join("kafs.sh"), share.join("kafs.sh")).expect("a share");
        let mut command = self.command(scripts().join("boot.sh"));
        command.arg("--cache").arg(guest::cache());
        command.args(["--kernel", kernel, "--modules", "pcbc fcrypt kafs"]);
        command.args(["--seconds", &patience.as_secs().to_string()]);
        command.arg("--share").arg(share);
        command.arg(scripts().join(script)).args(programs);
        command.arg(installed("request-key"));
        Ran::patiently(&mut command, patience)
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        // After this, files in the sandbox belong to no live process.
        let _ = self.init.0.kill();
        let _ = self.init.0.wait();
        let pid = format!("/proc/{}", self.pid);
        wait_until("the machine is off", || !Path::new(&pid).exists());
    }
}

/// Our running server.
pub struct Served<'s> {
    s: &'s Sandbox,
    child: Killed,
    name: String,
}

impl Served<'_> {
    /// Returns its status: `cell status`.
    pub fn status(&self) -> Value {
        let all = self.s.json(&["cell", "status", &self.name, "--clients"]);
        all["cells"][0].clone()
    }

    /// Returns its process, as the machine numbers it: with `--survive`, that which serves.
    #[track_caller]
    pub fn server(&self) -> u32 {
        self.answering_server().expect("a server that answers")
    }

    /// Returns its process if it answers.
    pub fn answering_server(&self) -> Option<u32> {
        let ran = self.s.run(&["--json", "cell", "status", &self.name]);
        let answer: Value = serde_json::from_str(&ran.stdout).ok()?;
        answer["cells"][0]["pid"].as_u64()?.try_into().ok()
    }

    /// Returns the statistics of its disk and its cache: `stats`.
    pub fn stats(&self) -> Value {
        self.s.json(&["stats", &self.name])
    }

    /// Detaches it as its administrator would.
    #[track_caller]
    pub fn end(mut self) {
        self.s.detach(&self.name);
        let status = self.child.0.wait().expect("it ends");
        assert!(status.success(), "{status}");
    }

    /// Kills it, and waits until it no longer answers.
    pub fn kill(self) {
        let Served { s, child, name } = self;
        drop(child);
        wait_until("it is gone", || {
            s.run(&["cell", "status", &name]).status.code() != Some(0)
        });
    }
}

/// OpenAFS's client for FUSE, killed on drop.
pub struct Client<'m> {
    machine: &'m Machine<'m>,
    child: Killed,
    at: PathBuf,
}

impl Client<'_> {
    /// Returns the root of the cell, as a path on the machine.
    pub fn folder(&self) -> PathBuf {
        self.at.join(CELL)
    }

    /// Returns the root of another volume.
    pub fn volume(&self, name: &str) -> PathBuf {
        self.at.join(format!(".:mount/{CELL}:{name}"))
    }

    /// Returns the root of the cell, as a path outside of the machine.
    pub fn inside(&self) -> PathBuf {
        self.machine.inside(&self.folder())
    }

    /// Waits until the cell is mounted.
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

    /// Returns its log.
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

/// Reads the first line of a program's output.
fn first_line(printed: &mut impl Read) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while printed.read(&mut byte).is_ok_and(|n| n == 1) && byte != *b"\n" {
        line.extend(byte);
    }
    String::from_utf8_lossy(&line).into_owned()
}
