//! A real Ceph cluster on the loopback interface: monitors, a manager, and three OSDs that keep
//! their data in files. A node of it is a monitor and an OSD that are killed together.

use crate::{free_ports, installed, wait_until};
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Pool of the images.
pub const POOL: &str = "rbd";
/// Number of OSDs, and copies of each object.
const OSDS: usize = 3;
/// Limit for changes of the cluster, on a busy machine.
const SETTLES_WITHIN: Duration = Duration::from_secs(240);
/// Size of the file of an OSD in bytes. The file is sparse.
const OSD_BYTES: u64 = 4 << 30;

/// A program of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Daemon {
    /// A monitor, by its number.
    Monitor(usize),
    /// The manager, which counts and reports.
    Manager,
    /// An OSD, by its number.
    Osd(usize),
}

impl Daemon {
    fn program(self) -> &'static str {
        match self {
            Daemon::Monitor(_) => "ceph-mon",
            Daemon::Manager => "ceph-mgr",
            Daemon::Osd(_) => "ceph-osd",
        }
    }

    fn id(self) -> String {
        match self {
            Daemon::Monitor(number) => monitor_name(number),
            Daemon::Manager => "x".into(),
            Daemon::Osd(number) => number.to_string(),
        }
    }
}

fn monitor_name(number: usize) -> String {
    char::from(b'a' + number as u8).to_string()
}

/// A running cluster, whose programs are killed on drop.
pub struct Ceph {
    dir: TempDir,
    /// Address of all daemons.
    at: Ipv4Addr,
    running: Vec<(Daemon, Child)>,
}

impl Ceph {
    /// Starts a cluster with this number of monitors, in a new directory in `place`. It has a
    /// replicated pool [`POOL`], which serves I/O while one OSD is down.
    ///
    /// # Panics
    /// A program is not installed, or the cluster does not become usable.
    pub fn start(place: &Path, monitors: usize) -> Ceph {
        Ceph::start_at(Ipv4Addr::LOCALHOST, place, monitors)
    }

    /// Same as [`Ceph::start`], for clients that reach the daemons at another address.
    ///
    /// # Panics
    /// See [`Ceph::start`].
    pub fn start_at(at: Ipv4Addr, place: &Path, monitors: usize) -> Ceph {
        std::fs::create_dir_all(place).expect("a directory");
        let dir = TempDir::new_in(place).expect("a directory");
        let mut cluster = Ceph {
            dir,
            at,
            running: Vec::new(),
        };
        cluster.make_monitors(monitors);
        for number in 0..monitors {
            cluster.start_daemon(Daemon::Monitor(number));
        }
        cluster.ceph(&["-s"]);
        let manager = "auth get-or-create mgr.x mon|allow profile mgr|osd|allow *|mds|allow *";
        let key = cluster.ceph(&words(manager));
        cluster.append_key(&key);
        cluster.start_daemon(Daemon::Manager);
        cluster.make_osds();
        for number in 0..OSDS {
            cluster.start_daemon(Daemon::Osd(number));
        }
        cluster.ceph(&words("osd pool create rbd 8 8 replicated --size 3"));
        cluster.ceph(&words("osd pool application enable rbd rbd"));
        cluster.wait_until_clean();
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the configuration file of the cluster.
    pub fn conf(&self) -> PathBuf {
        self.path("ceph.conf")
    }

    /// Returns the address of an image of the pool.
    pub fn address(&self, image: &str) -> String {
        format!("rbd:{POOL}/{image}?conf={}", self.conf().display())
    }

    /// Returns the process number of a running program.
    pub fn pid(&self, daemon: Daemon) -> Option<u32> {
        let of = |(running, _): &&(Daemon, Child)| *running == daemon;
        self.running.iter().find(of).map(|(_, child)| child.id())
    }

    fn make_monitors(&self, count: usize) {
        let fsid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").expect("a UUID");
        let fsid = fsid.trim();
        let dir = self.dir.path().display();
        let ports: Vec<u16> = free_ports(count);
        let at = self.at;
        let hosts: Vec<String> = ports.iter().map(|p| format!("v2:{at}:{p}")).collect();
        let conf = format!(
            "[global]
fsid = {fsid}
mon host = {hosts}
public addr = {at}
cluster addr = {at}
ms bind ipv6 = false
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
auth allow insecure global id reclaim = false
keyring = {dir}/keyring
run dir = {dir}
pid file = {dir}/$type.$id.pid
admin socket = /tmp/$name.$pid.asok
log file = {dir}/$name.log
mon cluster log file = {dir}/cluster.log
mon cluster log to stderr = false
osd pool default size = {OSDS}
osd pool default min size = 2
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool delete = true
mon data avail warn = 2
mon data avail crit = 1
mon osd down out interval = 3600
mon data = {dir}/mon.$id
mgr data = {dir}/mgr
mgr initial modules =
osd data = {dir}/osd.$id
osd objectstore = bluestore
bluestore block size = {OSD_BYTES}
bluestore block create = true
bluestore cache autotune = false
bluestore cache size = 67108864
bluestore fsck on mount = false
osd memory target = 939524096
osd op num shards = 2
osd op num threads per shard = 1
osd heartbeat grace = 6
osd heartbeat interval = 2
osd class load list = *
osd class default list = *
",
            hosts = hosts.join(",")
        );
        std::fs::write(self.conf(), conf).expect("a configuration");
        std::fs::create_dir(self.path("mgr")).expect("a directory");
        let keyring = self.path("keyring");
        let keyring = keyring.to_str().expect("UTF-8");
        let tool = |args: &[&str]| run(Command::new(installed("ceph-authtool")).args(args));
        tool(&[
            "--create-keyring",
            keyring,
            "--gen-key",
            "-n",
            "mon.",
            "--cap",
            "mon",
            "allow *",
        ]);
        tool(&[
            keyring,
            "--gen-key",
            "-n",
            "client.admin",
            "--cap",
            "mon",
            "allow *",
            "--cap",
            "osd",
            "allow *",
            "--cap",
            "mds",
            "allow *",
            "--cap",
            "mgr",
            "allow *",
        ]);
        let map = self.path("monmap");
        let map = map.to_str().expect("UTF-8");
        let mut make = Command::new(installed("monmaptool"));
        make.args(["--create", "--clobber", "--fsid", fsid]);
        for (number, host) in hosts.iter().enumerate() {
            make.args(["--addv", &monitor_name(number), &format!("[{host}]")]);
        }
        run(make.arg(map));
        for number in 0..count {
            let name = monitor_name(number);
            let make = ["--mkfs", "-i", &name, "--monmap", map, "--keyring", keyring];
            run(self.command("ceph-mon").args(make));
        }
    }

    fn make_osds(&self) {
        let made: Vec<Child> = (0..OSDS)
            .map(|number| {
                let id = number.to_string();
                let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").expect("a UUID");
                self.ceph(&["osd", "new", uuid.trim(), &id]);
                let data = self.path(&format!("osd.{number}"));
                std::fs::create_dir(&data).expect("a directory");
                let name = format!("osd.{number}");
                let caps = "mon|allow profile osd|mgr|allow profile osd|osd|allow *";
                let key = self.ceph(&words(&format!("auth get-or-create {name} {caps}")));
                let keyring = data.join("keyring");
                std::fs::write(&keyring, key).expect("a keyring");
                self.command("ceph-osd")
                    .args(["-i", &id, "--mkfs", "--osd-uuid", uuid.trim(), "--keyring"])
                    .arg(keyring)
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()
                    .expect("ceph-osd starts")
            })
            .collect();
        for mut child in made {
            assert!(child.wait().expect("a status").success(), "ceph-osd --mkfs");
        }
    }

    fn append_key(&self, key: &str) {
        let keyring = self.path("keyring");
        let mut text = std::fs::read_to_string(&keyring).expect("a keyring");
        let _ = writeln!(text, "{key}");
        std::fs::write(keyring, text).expect("a keyring");
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(installed(program));
        command.arg("-c").arg(self.conf());
        command
    }

    /// Starts a program of the cluster that does not run.
    pub fn start_daemon(&mut self, daemon: Daemon) {
        assert!(self.pid(daemon).is_none(), "{daemon:?} runs");
        let mut command = self.command(daemon.program());
        command.args(["-f", "-i", &daemon.id()]);
        if let Daemon::Osd(number) = daemon {
            command.arg("--keyring");
            command.arg(self.path(&format!("osd.{number}")).join("keyring"));
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        self.running.push((daemon, child));
    }

    /// Kills a program of the cluster with SIGKILL.
    pub fn kill(&mut self, daemon: Daemon) {
        let of = |(running, _): &(Daemon, Child)| *running == daemon;
        let at = self.running.iter().position(of).expect("it runs");
        let (_, mut child) = self.running.swap_remove(at);
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Runs the administration program `ceph`, and returns its output.
    ///
    /// # Panics
    /// The command fails.
    pub fn ceph(&self, args: &[&str]) -> String {
        run(self
            .command("ceph")
            .args(["--connect-timeout", "60"])
            .args(args))
    }

    /// Runs the administration program `rbd`, and returns its output.
    ///
    /// # Panics
    /// The command fails.
    pub fn rbd(&self, args: &[&str]) -> String {
        run(self.command("rbd").args(args))
    }

    /// Creates an image with the exclusive-lock feature.
    pub fn create_image(&self, name: &str, bytes: u64) {
        let size = format!("{bytes}B");
        let features = ["--image-feature", "exclusive-lock"];
        self.rbd(
            &[
                &["create", "--pool", POOL, "--size", &size, name][..],
                &features,
            ]
            .concat(),
        );
    }

    /// Waits until every object has all its copies.
    pub fn wait_until_clean(&self) {
        settles("every object has all its copies", || {
            let state = self.ceph(&["pg", "stat"]);
            // `9 pgs: 9 active+clean; ...`
            let words: Vec<&str> = state.split([' ', ';']).collect();
            matches!(words[..], [all, "pgs:", clean, "active+clean", ..] if all == clean && all != "0")
        });
    }

    /// Waits until the monitors count this number of OSDs as up.
    pub fn wait_until_up(&self, osds: usize) {
        let wanted = format!(" {osds} up ");
        settles("the monitors count the OSDs", || {
            self.ceph(&["osd", "stat"]).contains(&wanted)
        });
    }

    /// Waits until this number of monitors has a quorum.
    pub fn wait_for_quorum(&self, monitors: usize) {
        settles("the monitors have a quorum", || {
            let state = self.ceph(&["quorum_status", "--format", "json"]);
            let names = state.split("\"quorum_names\":[").nth(1).unwrap_or_default();
            let names = names.split(']').next().unwrap_or_default();
            names.split(',').count() == monitors
        });
    }
}

/// Waits for a change of the cluster.
///
/// # Panics
/// It takes longer than a few minutes.
pub fn settles(what: &str, done: impl FnMut() -> bool) {
    wait_until(what, SETTLES_WITHIN, done);
}

impl Drop for Ceph {
    fn drop(&mut self) {
        for (_, child) in &mut self.running {
            let _ = child.kill();
        }
        for (_, child) in &mut self.running {
            let _ = child.wait();
        }
    }
}

/// Splits a command line at spaces, and arguments with spaces at `|`.
fn words(line: &str) -> Vec<&str> {
    match line.split_once('|') {
        None => line.split(' ').collect(),
        Some((plain, rest)) => plain.split(' ').chain(rest.split('|')).collect(),
    }
}

fn run(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.stdin(Stdio::null()).output().expect("it starts");
    let (stdout, stderr) = (
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr),
    );
    assert!(status.success(), "{command:?}: {stdout}{stderr}");
    stdout.into_owned()
}
