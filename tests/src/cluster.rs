//! A cluster of three machines that may serve one volume, with real etcd and a real target.
//!
//! ```text
//!   machines 0 to 2   evfs up --cluster, named m0 to m2
//!   machines 3 to 5   a member of etcd each
//!   machine 6         tgtd, or another program that serves the disk
//!   the test          clients of 10.91.3.100, the address of the unit
//! ```
//!
//! EVFS serves no NBD without TLS to other machines, and the clients have none. So each machine has
//! a relay between its network and the socket of the export, which needs no key.

use crate::recorder::{Load, Recorder};
use crate::{Ran, Random, Sandbox, signal, wait_until};
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use test_support::etcd::Etcd;
use test_support::network::{Link, Machine, Network};
use test_support::tgtd::{IQN, Tgtd};

/// Name of the unit.
pub const UNIT: &str = "disk";
/// Its address.
pub const ADDRESS: &str = "10.91.3.100";
/// Machines that may serve the unit.
pub const MACHINES: usize = 3;
/// Bytes of its device.
const BYTES: u64 = 64 << 20;
/// Most operations of the recorder in a second and thread, to keep histories short.
const PAUSE: Duration = Duration::from_millis(4);

/// What the unit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A volume, exported over NBD.
    Volume,
    /// A cell whose clients may write.
    Cell,
}

/// The machines, etcd, the storage and the processes.
pub struct Cluster {
    nodes: Vec<Node>,
    /// Members of etcd.
    pub etcd: Etcd,
    /// The target, unless the device is another one.
    pub tgtd: Option<Tgtd>,
    /// The machines and their networks.
    pub network: Network,
    /// The address of the device.
    pub device: String,
    /// See [`Cluster::with_calendar`].
    calendar: Option<PathBuf>,
    /// See [`Cluster::without_timers`].
    timers: Option<PathBuf>,
}

/// One of the machines that may serve the unit.
struct Node {
    machine: Machine,
    sandbox: Sandbox,
    process: Option<Child>,
}

impl Cluster {
    /// Starts a cluster whose unit is on an iSCSI target, on all machines.
    pub fn start(kind: Kind) -> Cluster {
        let mut cluster = Cluster::prepared(kind);
        cluster.start_all();
        cluster
    }

    /// Prepares a cluster whose unit is on an iSCSI target. Starts no machine.
    pub fn prepared(kind: Kind) -> Cluster {
        let network = Network::new(7);
        let place = &std::env::temp_dir();
        let tgtd = Tgtd::start_on(&network.machines()[6], place, BYTES);
        let device = format!("iscsi://{}/{IQN}/1", tgtd.portals[0]);
        Cluster::on(network, device, Some(tgtd), kind)
    }

    /// Lets the machines that are started from now on see a time of day that a file changes, by
    /// `libfaketime`. Returns the file. Monotonic clocks stay as they are.
    pub fn with_calendar(&mut self) -> PathBuf {
        let file = self.nodes[0].sandbox.path("calendar");
        std::fs::write(&file, "+0h").unwrap();
        self.calendar = Some(file.clone());
        file
    }

    /// Starts all machines, and waits until one serves the unit.
    pub fn start_all(&mut self) -> usize {
        (0..MACHINES).for_each(|node| self.start_node(node));
        self.wait_until_served()
    }

    /// Prepares a cluster on a device that all machines reach. Starts no machine.
    pub fn on(network: Network, device: String, tgtd: Option<Tgtd>, kind: Kind) -> Cluster {
        let place = &std::env::temp_dir();
        let etcd = Etcd::start_on(place, &network.machines()[3..6]);
        let node = |machine: &Machine| Node {
            machine: machine.clone(),
            sandbox: Sandbox::new(),
            process: None,
        };
        let nodes = network.machines()[..MACHINES].iter().map(node).collect();
        let cluster = Cluster {
            nodes,
            etcd,
            tgtd,
            network,
            device,
            calendar: None,
            timers: None,
        };
        let create = ["volume", "create", &cluster.device, "--passphrase-fd", "0"];
        Ran::with_input(cluster.command(0).args(create), b"secret\n").ok();
        if kind == Kind::Cell {
            let init = ["cell", "init", "test.local", &cluster.device];
            let options = ["--passphrase-fd", "0", "--listen", ADDRESS];
            let init = [&init[..], &options].concat();
            Ran::with_input(cluster.command(0).args(init), b"secret\n").ok();
        }
        for node in &cluster.nodes {
            std::fs::write(node.sandbox.path("key"), "secret").unwrap();
            let table = match kind {
                Kind::Volume => {
                    let export = node.sandbox.path("export");
                    relay(&node.machine, export.clone());
                    format!("[volume.{UNIT}]\nnbd-unix = \"{}\"\n", export.display())
                }
                Kind::Cell => format!(
                    "[serve.{UNIT}]\nlisten = [\"{ADDRESS}\"]\nallow = [\"10.91.3.0/24\"]\n\
                     anonymous-write = true\n"
                ),
            };
            let text = format!(
                "{table}device = \"{}\"\nkey-file = \"{}\"\naddress = \"{ADDRESS}/24@clients\"\n",
                cluster.device,
                node.sandbox.path("key").display(),
            );
            std::fs::write(node.sandbox.path("units.toml"), text).unwrap();
        }
        cluster
            .evfs(0, &["cluster", "init", "--config", "units.toml"])
            .ok();
        cluster
    }

    /// Returns the path of a file of a machine.
    pub fn path(&self, node: usize, name: &str) -> PathBuf {
        self.nodes[node].sandbox.path(name)
    }

    /// Returns a command of the program on a machine.
    pub fn command(&self, node: usize) -> std::process::Command {
        self.command_on(&self.nodes[node].machine, node)
    }

    /// Same as [`Cluster::command`], with the settings of a node on another machine.
    fn command_on(&self, machine: &Machine, node: usize) -> std::process::Command {
        let sandbox = &self.nodes[node].sandbox;
        let mut command = machine.command(crate::program());
        sandbox.environment(&mut command);
        command
            .env("EVFS_CLUSTER_NAME", format!("m{node}"))
            .env("EVFS_CLUSTER_ETCD", self.etcd.endpoints().join(" "))
            .env(
                "EVFS_ISCSI_INITIATOR_NAME",
                format!("iqn.2026-01.org.evfs.test:m{node}"),
            );
        command
    }

    /// Runs the program on a machine.
    pub fn evfs(&self, node: usize, args: &[&str]) -> Ran {
        Ran::of(self.command(node).args(args))
    }

    /// Returns the state of the cluster, as a machine sees it that is never cut off.
    pub fn status(&self) -> Value {
        let mut command = self.command_on(&self.network.machines()[6], 0);
        let ran = Ran::of(command.args(["--json", "cluster", "status"])).ok();
        serde_json::from_str(&ran.stdout).expect("a document")
    }

    /// Returns the state and the epoch of the unit, and the number of the machine that serves it.
    pub fn unit(&self) -> (String, u64, Option<usize>) {
        let status = self.status();
        let unit = &status["units"][0];
        let state = unit["state"].as_str().expect("a state").to_owned();
        let owner = unit["owner"].as_str().filter(|_| state == "served");
        let owner = owner.and_then(|name| name.strip_prefix('m')?.parse().ok());
        (state, unit["epoch"].as_u64().expect("a number"), owner)
    }

    /// Starts `evfs up --cluster` on a machine.
    pub fn start_node(&mut self, node: usize) {
        let log = self.nodes[node].sandbox.path("log");
        let log = File::options().create(true).append(true).open(log).unwrap();
        let mut command = self.command(node);
        command
            .args(["up", "units.toml", "--cluster"])
            .env("EVFS_LOG", "info")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        if let Some(file) = &self.calendar {
            let libraries = ["x86_64-linux-gnu", "aarch64-linux-gnu"];
            let mut library =
                libraries.map(|of| format!("/usr/lib/{of}/faketime/libfaketimeMT.so.1"));
            library.sort_by_key(|path| !Path::new(path).exists());
            assert!(
                Path::new(&library[0]).exists(),
                "needs libfaketime: apt install faketime"
            );
            command
                .env("LD_PRELOAD", &library[0])
                .env("FAKETIME_TIMESTAMP_FILE", file)
                .env("FAKETIME_NO_CACHE", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        if let Some(library) = &self.timers {
            command
                .env("LD_PRELOAD", library)
                .env("EVFS_VOLUME_HEARTBEAT_MS", "60000");
        }
        self.nodes[node].process = Some(command.spawn().expect("the program"));
    }

    /// Lets the machines that are started from now on stand still together with their clocks, as
    /// virtual machines do: no timer ends their processes, and no heartbeat is overdue.
    pub fn without_timers(&mut self) {
        let place = self.nodes[0].sandbox.path("timers.so");
        let source = "#include <time.h>\n\
            int timer_settime(timer_t t, int f, const struct itimerspec *n, struct itimerspec *o)\n\
            { (void)t; (void)f; (void)n; (void)o; return 0; }\n";
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-x", "c", "-", "-o"]);
        Ran::with_input(compiler.arg(&place), source.as_bytes()).ok();
        // What clients have sent is written when the process continues, not by the age of pages.
        for node in &self.nodes {
            let units = node.sandbox.path("units.toml");
            let table = std::fs::read_to_string(&units).unwrap();
            std::fs::write(units, table + "direct = true\n").unwrap();
        }
        self.timers = Some(place);
    }

    /// Returns the log of a machine.
    pub fn log(&self, node: usize) -> String {
        let mut text = String::new();
        let log = File::open(self.nodes[node].sandbox.path("log"));
        log.unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// Returns the processes of a machine: that of the protocol, then those of units.
    pub fn processes(&self, node: usize) -> Vec<i32> {
        let process = self.nodes[node].process.as_ref().expect("it was started");
        let pid = process.id() as i32;
        let children = std::fs::read_dir(format!("/proc/{pid}/task"));
        let children = children.into_iter().flatten().flatten();
        let children = children
            .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
            .flat_map(|text| {
                let pids = text.split_whitespace().map(str::parse);
                pids.filter_map(Result::ok).collect::<Vec<i32>>()
            });
        std::iter::once(pid).chain(children).filter(runs).collect()
    }

    /// Reports whether a machine has the address of the unit.
    pub fn has_address(&self, node: usize) -> bool {
        let mut ip = self.nodes[node].machine.command("ip");
        let shown = Ran::of(ip.args(["-4", "address", "show", "clients"])).ok();
        shown.stdout.contains(&format!("{ADDRESS}/"))
    }

    /// Sends a signal to all processes of a machine.
    pub fn signal_all(&self, node: usize, number: i32) {
        for pid in self.processes(node) {
            signal(pid, number);
        }
    }

    /// Kills all processes of a machine.
    pub fn kill(&mut self, node: usize) {
        self.signal_all(node, libc::SIGKILL);
        let process = self.nodes[node].process.take();
        process.expect("it was started").wait().unwrap();
    }

    /// Stops `evfs up --cluster` of a machine in order, and returns its exit code.
    pub fn stop(&mut self, node: usize) -> Option<i32> {
        let mut process = self.nodes[node].process.take().expect("it was started");
        signal(process.id() as i32, libc::SIGTERM);
        process.wait().unwrap().code()
    }

    /// Waits until a machine serves the unit, and returns its number.
    #[track_caller]
    pub fn wait_until_served(&self) -> usize {
        self.wait_for_owner(0, |_| true)
    }

    /// Waits until a machine for which `is` holds serves the unit with a later epoch.
    #[track_caller]
    pub fn wait_for_owner(&self, after: u64, is: impl Fn(usize) -> bool) -> usize {
        let mut owner = None;
        wait_until("a machine serves the unit", || {
            let (_, epoch, now) = self.unit();
            owner = now.filter(|now| epoch > after && is(*now));
            owner.is_some()
        });
        owner.expect("it was found")
    }

    /// Starts clients that record what they see.
    pub fn record(&self, random: &mut Random) -> Recorder {
        let load = Load {
            servers: vec![format!("{ADDRESS}:10809").parse().unwrap()],
            export: UNIT.into(),
            threads: 4,
            blocks: 64,
            within: Duration::from_secs(1),
            pause: PAUSE,
        };
        Recorder::start(load, random)
    }

    /// Ends the owner by `fault`, waits until clients are served again, and returns how long they
    /// were not. `survives`: the same machine may be the next owner.
    pub fn take_over(
        &mut self,
        recorder: &mut Recorder,
        survives: bool,
        fault: impl FnOnce(&mut Cluster, usize),
    ) -> Duration {
        recorder.wait_for(200);
        let (_, epoch, owner) = self.unit();
        let owner = owner.expect("the unit is served");
        recorder.crash(|recorder| {
            let began = Instant::now();
            fault(self, owner);
            let next = self.wait_for_owner(epoch, |next| survives || next != owner);
            println!("m{owner} -> m{next}: {:?}", began.elapsed());
            recorder.wait_for(1);
            began.elapsed()
        })
    }

    /// Fails the test unless the record of a machine says this.
    #[track_caller]
    pub fn expect_log(&self, node: usize, text: &str) {
        let log = self.log(node);
        assert!(log.contains(text), "m{node} does not say {text}:\n{log}");
    }

    /// Cuts a machine off, or ends that.
    pub fn cut(&self, node: usize, links: &[Link], is_cut: bool) {
        for link in links {
            if is_cut {
                self.network.cut(node, *link);
            } else {
                self.network.heal(node, *link);
            }
        }
    }
}

/// Reports whether a process has not ended, although its parent may not know that yet.
fn runs(pid: &i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|text| !text.contains("State:\tZ"))
}

/// Passes connections to port 10809 of a machine on to a socket.
fn relay(machine: &Machine, to: PathBuf) {
    let listener = machine.inside(|| TcpListener::bind("0.0.0.0:10809").expect("a free port"));
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            // Without an owner on this machine the connection ends at once.
            if let Ok(server) = UnixStream::connect(&to) {
                let _ = client.set_nodelay(true);
                let (other, answers) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut &client, &mut &server);
                    let _ = server.shutdown(Shutdown::Both);
                });
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut &answers, &mut &other);
                    let _ = other.shutdown(Shutdown::Both);
                });
            }
        }
    });
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (from, args) in [
                (None, &["endpoint", "status"][..]),
                (None, &["get", "--prefix", "/evfs"]),
                (None, &["lease", "list"]),
            ] {
                println!("--- etcdctl {args:?}: {:?}", self.etcd.try_ctl(from, args));
            }
            for node in 0..MACHINES {
                if self.nodes[node].sandbox.path("log").exists() {
                    println!("--- log of m{node}\n{}", self.log(node));
                }
            }
        }
        for node in 0..MACHINES {
            if self.nodes[node].process.is_some() {
                self.kill(node);
            }
        }
    }
}
