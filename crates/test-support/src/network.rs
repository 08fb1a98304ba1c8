//! Machines of a cluster on one computer: network namespaces with three networks between them,
//! which can be cut.
//!
//! ```text
//!   the test ── link ──┐
//!   Machine 0 ─ link ──┼── bridge of the link, in a namespace without addresses
//!   Machine 1 ─ link ──┘
//! ```
//!
//! No namespace has a name: open files hold them, so they vanish with the process of the test.
//!
//! **Invariant:** what a cut machine sends reaches no address. This is why the bridges are in a
//! namespace of their own: the kernel answers for its addresses on every interface.

use crate::{dies_with_parent, installed};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::ffi::OsStr;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// A network that connects all machines and the test. Its interface has the same name on each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// `etcd`, 10.91.1.0/24.
    Etcd,
    /// `storage`, 10.91.2.0/24.
    Storage,
    /// `clients`, 10.91.3.0/24.
    Clients,
}

impl Link {
    /// All links.
    pub const ALL: [Link; 3] = [Link::Etcd, Link::Storage, Link::Clients];

    /// Returns the name of the interface.
    pub fn name(self) -> &'static str {
        match self {
            Link::Etcd => "etcd",
            Link::Storage => "storage",
            Link::Clients => "clients",
        }
    }

    /// Returns an address of the network.
    fn address(self, host: u8) -> Ipv4Addr {
        let network = match self {
            Link::Etcd => 1,
            Link::Storage => 2,
            Link::Clients => 3,
        };
        Ipv4Addr::new(10, 91, network, host)
    }
}

/// Last byte of the addresses of the test.
const TEST: u8 = 254;

/// A network namespace.
#[derive(Debug)]
struct Namespace(OwnedFd);

impl Namespace {
    /// Opens that of the calling thread.
    fn own() -> Namespace {
        let file = std::fs::File::open("/proc/thread-self/ns/net");
        Namespace(file.expect("a namespace").into())
    }

    fn new() -> Namespace {
        let make = || {
            // SAFETY: the flag concerns the network of this thread alone, not its open files.
            let made = unsafe { unshare_unsafe(UnshareFlags::NEWNET) };
            made.expect("needs root: a network namespace");
            Namespace::own()
        };
        std::thread::spawn(make).join().expect("a namespace")
    }

    /// Returns a name by which other processes open it.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Moves the calling thread into it.
    fn enter(&self) -> std::io::Result<()> {
        let kind = Some(LinkNameSpaceType::Network);
        Ok(move_into_link_name_space(self.0.as_fd(), kind)?)
    }

    fn command(self: &Arc<Self>, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let namespace = self.clone();
        // SAFETY: between fork and exec the closure makes one system call (setns(2)); it allocates
        // nothing and takes no lock.
        unsafe {
            command.pre_exec(move || namespace.enter());
        }
        dies_with_parent(&mut command);
        command
    }

    /// Runs commands of `ip`, one on each line.
    fn ip(self: &Arc<Self>, commands: &str) {
        let mut ip = self
            .command(installed("ip"))
            .args(["-batch", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut input = ip.stdin.take().expect("it was asked for");
        input.write_all(commands.as_bytes()).expect("ip reads");
        drop(input);
        assert!(ip.wait().expect("it ends").success(), "ip: {commands}");
    }
}

/// A machine: a network namespace with loopback and the three links.
#[derive(Debug, Clone)]
pub struct Machine {
    number: usize,
    namespace: Arc<Namespace>,
}

impl Machine {
    /// Returns its number, from 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Returns its address on a link.
    pub fn address(&self, link: Link) -> Ipv4Addr {
        link.address(self.number as u8 + 1)
    }

    /// Returns a command that runs on this machine, and is killed when the thread that starts it
    /// ends.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.namespace.command(program)
    }

    /// Calls a function on a thread of this machine. Sockets that it opens stay there, on whatever
    /// thread they are used. So do threads that it starts.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let entered = || {
            self.namespace.enter().expect("needs root: setns");
            work()
        };
        std::thread::scope(|scope| {
            let thread = scope.spawn(entered);
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// The three networks, and the machines on them.
#[derive(Debug)]
pub struct Network {
    bridges: Arc<Namespace>,
    machines: Vec<Machine>,
}

impl Network {
    /// Connects this number of machines and the test itself.
    ///
    /// # Panics
    /// The test is not root, or it has no network namespace of its own (`xtask/isolated`).
    pub fn new(machines: usize) -> Network {
        // Two lines of headings, then one for each interface.
        let interfaces = std::fs::read_to_string("/proc/thread-self/net/dev");
        let interfaces = interfaces.expect("the interfaces of this namespace");
        assert!(
            interfaces
                .lines()
                .skip(2)
                .all(|line| line.trim_start().starts_with("lo:")),
            "needs root and a network namespace of its own: `cargo xtask check --full`"
        );
        assert!(machines < usize::from(TEST), "{machines} machines");
        let bridges = Arc::new(Namespace::new());
        let add = |link: Link| format!("link add {0} type bridge\nlink set {0} up\n", link.name());
        bridges.ip(&Link::ALL.map(add).concat());
        let plug = |namespace: Namespace, plug: &str, host: u8| {
            let namespace = Arc::new(namespace);
            connect(&bridges, &namespace, plug, host);
            namespace
        };
        plug(Namespace::own(), "test", TEST);
        let machine = |number: usize| Machine {
            number,
            namespace: plug(Namespace::new(), &number.to_string(), number as u8 + 1),
        };
        let machines = (0..machines).map(machine).collect();
        Network { bridges, machines }
    }

    /// Returns all machines.
    pub fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// Returns the address of the test on a link.
    pub fn address(&self, link: Link) -> Ipv4Addr {
        link.address(TEST)
    }

    /// Cuts a machine off from a link: packets vanish in both directions, and no side is told.
    pub fn cut(&self, machine: usize, link: Link) {
        let port = port(link, &self.machines[machine].number.to_string());
        self.bridges.ip(&format!("link set {port} nomaster\n"));
    }

    /// Ends a cut.
    pub fn heal(&self, machine: usize, link: Link) {
        let port = port(link, &self.machines[machine].number.to_string());
        let bridge = link.name();
        self.bridges
            .ip(&format!("link set {port} master {bridge}\n"));
    }
}

/// Returns the name of a port of a bridge, at most 15 bytes.
fn port(link: Link, plug: &str) -> String {
    format!("{}-{plug}", link.name())
}

/// Connects a namespace to all bridges.
fn connect(bridges: &Arc<Namespace>, to: &Arc<Namespace>, plug: &str, host: u8) {
    let (mut there, mut here) = (String::new(), String::from("link set lo up\n"));
    for link in Link::ALL {
        let (name, port, to) = (link.name(), port(link, plug), to.path());
        there += &format!("link add {port} type veth peer name {name} netns {to}\n");
        there += &format!("link set {port} master {name} up\n");
        let address = link.address(host);
        here += &format!("address add {address}/24 dev {name}\nlink set {name} up\n");
    }
    bridges.ip(&there);
    to.ip(&here);
}
