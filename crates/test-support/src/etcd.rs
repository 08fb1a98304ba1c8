//! A real cluster of etcd, on the loopback interface or with each member on a machine of its own.

use crate::network::{Link, Machine};
use crate::{dies_with_parent, free_ports, installed, tls, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Time between the heartbeats of a leader, in milliseconds.
const HEARTBEAT_MS: &str = "50";
/// Time without a heartbeat after which a member wants to lead, in milliseconds.
const ELECTION_MS: &str = "500";
/// Limit for changes of the cluster, on a busy machine.
const SETTLES_WITHIN: Duration = Duration::from_secs(60);

/// A program of the cluster, and where it listens.
struct Member {
    machine: Option<Machine>,
    clients: SocketAddr,
    peers: SocketAddr,
    child: Option<Child>,
    is_stopped: bool,
}

/// A running cluster, whose members are killed on drop, and when the thread that started them ends.
///
/// Members do not wait for their disks: the cluster survives kills, not the loss of the computer.
pub struct Etcd {
    dir: TempDir,
    members: Vec<Member>,
    is_tls: bool,
}

impl Etcd {
    /// Starts a cluster with this number of members on the loopback interface, with its data in a
    /// new directory in `place`, and waits until all are healthy.
    ///
    /// # Panics
    /// `etcd` is not installed, or the cluster does not become healthy.
    pub fn start(place: &Path, members: usize) -> Etcd {
        Etcd::start_here(place, members, false)
    }

    /// Starts a cluster as [`Etcd::start`] does, which serves clients over TLS, and only those with
    /// a certificate of its authority.
    ///
    /// # Panics
    /// See [`Etcd::start`]; or `openssl` is not installed.
    pub fn start_with_tls(place: &Path, members: usize) -> Etcd {
        Etcd::start_here(place, members, true)
    }

    fn start_here(place: &Path, members: usize, is_tls: bool) -> Etcd {
        let ports = free_ports(2 * members);
        let at = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let member = |ports: &[u16]| Member::new(None, at(ports[0]), at(ports[1]));
        Etcd::start_all(place, ports.chunks(2).map(member).collect(), is_tls)
    }

    /// Starts a cluster with a member on each of these machines, which serves its link
    /// [`Link::Etcd`].
    ///
    /// # Panics
    /// See [`Etcd::start`].
    pub fn start_on(place: &Path, machines: &[Machine]) -> Etcd {
        let member = |machine: &Machine| {
            let at = |port: u16| SocketAddr::from((machine.address(Link::Etcd), port));
            Member::new(Some(machine.clone()), at(2379), at(2380))
        };
        Etcd::start_all(place, machines.iter().map(member).collect(), false)
    }

    fn start_all(place: &Path, members: Vec<Member>, is_tls: bool) -> Etcd {
        std::fs::create_dir_all(place).expect("a directory");
        let dir = TempDir::new_in(place).expect("a directory");
        if is_tls {
            tls::create_authority(dir.path());
            tls::create_certificate(dir.path(), "member", "IP:127.0.0.1");
            tls::create_certificate(dir.path(), "client", "DNS:client");
        }
        let mut etcd = Etcd {
            dir,
            members,
            is_tls,
        };
        for member in 0..etcd.members.len() {
            etcd.start_member(member);
        }
        etcd.wait_until_healthy();
        etcd
    }

    /// Returns the addresses for clients, as `http://IP:PORT` or `https://IP:PORT`, in the order of
    /// the members.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|m| self.endpoint(m)).collect()
    }

    fn endpoint(&self, member: &Member) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        format!("{scheme}://{}", member.clients)
    }

    /// Returns the certificates of a cluster with TLS: that of the authority, and a client's with
    /// its private key.
    pub fn certificates(&self) -> [PathBuf; 3] {
        ["ca-cert.pem", "client-cert.pem", "client-key.pem"].map(|name| self.dir.path().join(name))
    }

    /// Returns the process numbers of the members that run.
    pub fn processes(&self) -> Vec<u32> {
        let children = self.members.iter().filter_map(|m| m.child.as_ref());
        children.map(Child::id).collect()
    }

    /// Starts a member that does not run, on the data that it had.
    pub fn start_member(&mut self, member: usize) {
        let peer =
            |(number, member): (usize, &Member)| format!("m{number}=http://{}", member.peers);
        let cluster: Vec<String> = self.members.iter().enumerate().map(peer).collect();
        let name = format!("m{member}");
        let data = self.dir.path().join(&name);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join(format!("{name}.log")))
            .expect("a log");
        let clients = self.endpoint(&self.members[member]);
        let mut certificates = Vec::new();
        if self.is_tls {
            let files = ["member-cert.pem", "member-key.pem", "ca-cert.pem"];
            let options = ["--cert-file", "--key-file", "--trusted-ca-file"];
            for (option, file) in options.iter().zip(files) {
                certificates.push(format!("{option}={}", self.dir.path().join(file).display()));
            }
            certificates.push("--client-cert-auth".into());
        }
        let member = &mut self.members[member];
        assert!(member.child.is_none(), "{name} runs");
        let peers = format!("http://{}", member.peers);
        let child = member
            .command("etcd")
            .arg("--unsafe-no-fsync")
            .args(["--name", &name, "--logger", "zap", "--data-dir"])
            .arg(data)
            .args(["--listen-client-urls", &clients])
            .args(["--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers])
            .args(["--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &cluster.join(",")])
            .args(["--heartbeat-interval", HEARTBEAT_MS])
            .args(["--election-timeout", ELECTION_MS])
            .args(certificates)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it starts");
        member.child = Some(child);
    }

    /// Kills a member with SIGKILL.
    pub fn kill(&mut self, member: usize) {
        let member = &mut self.members[member];
        let mut child = member.child.take().expect("it runs");
        member.is_stopped = false;
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }

    /// Stops a member, as a pause of its machine does.
    pub fn stop(&mut self, member: usize) {
        self.members[member].signal(Signal::STOP);
        self.members[member].is_stopped = true;
    }

    /// Lets a stopped member continue.
    pub fn cont(&mut self, member: usize) {
        self.members[member].signal(Signal::CONT);
        self.members[member].is_stopped = false;
    }

    /// Runs `etcdctl` in the test, with all members as endpoints, and returns its output.
    ///
    /// # Panics
    /// It fails.
    #[track_caller]
    pub fn ctl(&self, args: &[&str]) -> String {
        let ran = self.try_ctl(None, args);
        ran.unwrap_or_else(|why| panic!("etcdctl {args:?}: {why}"))
    }

    /// Runs `etcdctl` on a machine, or in the test.
    ///
    /// # Errors
    /// It fails; then this is all that it printed. A request that is not answered fails after some
    /// seconds.
    pub fn try_ctl(&self, from: Option<&Machine>, args: &[&str]) -> Result<String, String> {
        self.run(from, &self.endpoints().join(","), args)
    }

    fn run(&self, from: Option<&Machine>, at: &str, args: &[&str]) -> Result<String, String> {
        let mut command = command(from, "etcdctl");
        if self.is_tls {
            for (option, file) in ["--cacert", "--cert", "--key"]
                .iter()
                .zip(self.certificates())
            {
                command.arg(option).arg(file);
            }
        }
        let output = command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", at, "--dial-timeout", "1s"])
            .args(["--command-timeout", "3s"])
            .args(args)
            .stdin(Stdio::null())
            .output()
            .expect("it starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stdout) + &text(&output.stderr))
        }
    }

    /// Waits until a member leads, and returns its number. Stopped members are not asked.
    ///
    /// # Panics
    /// No member leads for a minute.
    pub fn leader(&self) -> usize {
        let mut leader = None;
        wait_until("a member of etcd leads", SETTLES_WITHIN, || {
            // A leader that was cut off may still believe that it is one, in an earlier term.
            let terms =
                (0..self.members.len()).filter_map(|member| Some((self.term(member)?, member)));
            leader = terms.max().map(|(_, member)| member);
            leader.is_some()
        });
        leader.expect("it was found")
    }

    /// Returns the term in which a member leads, if it does.
    fn term(&self, member: usize) -> Option<u64> {
        if !self.members[member].is_running() {
            return None;
        }
        let at = &self.endpoints()[member];
        // `http://IP:PORT, ID, VERSION, SIZE, LEADS, LEARNS, TERM, ...`
        let status = self.run(None, at, &["endpoint", "status"]).ok()?;
        let columns: Vec<&str> = status.trim().split(", ").collect();
        match columns[..] {
            [_, _, _, _, "true", _, term, ..] => term.parse().ok(),
            _ => None,
        }
    }

    /// Waits until each member that runs answers a linearizable read.
    ///
    /// # Panics
    /// It takes longer than a minute.
    pub fn wait_until_healthy(&self) {
        let running = self.members.iter().filter(|member| member.is_running());
        let endpoints: Vec<String> = running.map(|member| self.endpoint(member)).collect();
        wait_until("the members of etcd are healthy", SETTLES_WITHIN, || {
            let health = self.run(None, &endpoints.join(","), &["endpoint", "health"]);
            health.is_ok()
        });
    }
}

impl Member {
    fn new(machine: Option<Machine>, clients: SocketAddr, peers: SocketAddr) -> Member {
        Member {
            machine,
            clients,
            peers,
            child: None,
            is_stopped: false,
        }
    }

    fn command(&self, program: &str) -> Command {
        command(self.machine.as_ref(), program)
    }

    fn is_running(&self) -> bool {
        self.child.is_some() && !self.is_stopped
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("it runs");
        kill_process(Pid::from_child(child), signal).expect("it runs");
    }
}

/// Returns a command that runs on a machine, or where the test runs.
fn command(on: Option<&Machine>, program: &str) -> Command {
    let program = installed(program);
    if let Some(machine) = on {
        return machine.command(program);
    }
    let mut command = Command::new(program);
    dies_with_parent(&mut command);
    command
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let mut children: Vec<&mut Child> = self
            .members
            .iter_mut()
            .filter_map(|m| m.child.as_mut())
            .collect();
        for child in &mut children {
            let _ = child.kill();
        }
        for child in children {
            let _ = child.wait();
        }
    }
}
