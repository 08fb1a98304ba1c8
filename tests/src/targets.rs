//! Real storage servers: `qemu-nbd`, `nbdkit` and `tgtd`, each on an image, killed with their
//! owner.

use crate::{Killed, Sandbox, wait_until};
use pathsim::{Address, Pathsim};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// World-wide ID that the servers report.
pub const WWID: &str = "naa.5000c500a1b2c3d4";
/// Name of the iSCSI target.
pub const IQN: &str = "iqn.2026-01.org.evfs.test:disk";

/// Creates a sparse file.
pub fn image(s: &Sandbox, name: &str, bytes: u64) -> std::path::PathBuf {
    let path = s.path(name);
    let file = std::fs::File::create(&path).expect("an image");
    file.set_len(bytes).expect("its size");
    path
}

/// Returns a port that is not in use.
pub fn free_port() -> u16 {
    // Below the kernel's range of client ports: a client that polls for a server could otherwise
    // get the very port it connects to, and connect to itself. Never returns a port twice.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id() * 61 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = (10_000 + number % 22_000) as u16;
        if is_free(port) {
            return port;
        }
    }
}

/// Reports whether no socket is bound to a port. The check does not listen: a process that another
/// thread starts at that moment inherits the socket until its exec, and would be mistaken for the
/// awaited server.
fn is_free(port: u16) -> bool {
    let socket = net::socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("a socket");
    // Same option as the servers, so that a port in such a state is still usable.
    net::sockopt::set_socket_reuseaddr(&socket, true).expect("an option");
    net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).is_ok()
}

fn spawn(command: &mut Command) -> Killed {
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Killed(child.unwrap_or_else(|e| {
        let program = command.get_program().display();
        panic!("needs {program}: {e}; `cargo xtask setup` installs what is missing")
    }))
}

/// Waits for the server itself: if it ended, its port was taken, and another server would answer
/// there.
fn answers(server: &mut Killed, port: u16) {
    wait_until("the server answers", || {
        let ended = server.0.try_wait().expect("a child");
        assert!(ended.is_none(), "port {port} may be taken: {ended:?}");
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
}

/// Starts `qemu-nbd` on a port, with an export `e`.
pub fn qemu_nbd(image: &Path, port: u16) -> Killed {
    let mut child = spawn(
        Command::new("qemu-nbd")
            .args([
                "-x",
                "e",
                "--shared=0",
                "-t",
                "--discard=unmap",
                "-b",
                "127.0.0.1",
            ])
            .args(["-p", &port.to_string(), "-D", &format!("wwid={WWID}")])
            .arg("--image-opts")
            .arg(format!(
                "driver=raw,file.driver=file,file.locking=off,file.filename={}",
                image.display()
            )),
    );
    answers(&mut child, port);
    child
}

/// Starts `nbdkit` on a port, with an export `e`.
pub fn nbdkit(image: &Path, port: u16) -> Killed {
    let mut child = spawn(
        Command::new("nbdkit")
            .args(["-f", "-i", "127.0.0.1", "-p", &port.to_string(), "-e", "e"])
            .args(["--filter=exportname", "file"])
            .arg(image)
            .arg(format!("exportdesc=fixed:wwid={WWID}")),
    );
    answers(&mut child, port);
    child
}

/// Starts `nbdkit` on a port, with an export `e`, that fails every write with EIO while the file
/// `broken` exists.
pub fn nbdkit_that_fails(image: &Path, port: u16, broken: &Path) -> Killed {
    let mut command = Command::new("nbdkit");
    command
        .args(["-f", "-i", "127.0.0.1", "-p", &port.to_string(), "-e", "e"])
        .args(["--filter=exportname", "--filter=error", "file"])
        .arg(image)
        .arg(format!("exportdesc=fixed:wwid={WWID}"));
    for what in ["pwrite", "zero", "trim"] {
        command
            .arg(format!("error-{what}=EIO"))
            .arg(format!("error-{what}-rate=100%"))
            .arg(format!("error-{what}-file={}", broken.display()));
    }
    let mut child = spawn(&mut command);
    answers(&mut child, port);
    child
}

/// `tgtd` with two portals and one unit, number 1.
pub struct Tgtd {
    _child: Killed,
    /// Ports of the two portals.
    pub ports: [u16; 2],
}

impl Tgtd {
    /// Starts a target; `parameters` are those of the unit (`scsi_id=...`), if any.
    pub fn start(image: &Path, parameters: Option<&str>) -> Tgtd {
        // If a port is taken, tgtd continues at another one.
        let tries = (0..10).find_map(|_| Tgtd::try_start(image, parameters));
        tries.expect("tgtd has the ports that it was told")
    }

    fn try_start(image: &Path, parameters: Option<&str>) -> Option<Tgtd> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let control = (1000 + (std::process::id() * 16 + number) % 31_000).to_string();
        let ports = [free_port(), free_port()];
        let portals = ports.map(|p| format!("portal=127.0.0.1:{p}")).join(",");
        let child = spawn(Command::new("tgtd").args(["-f", "-C", &control, "--iscsi", &portals]));
        let admin = |arguments: &[&str]| {
            Command::new("tgtadm")
                .args(["-C", &control, "--lld", "iscsi"])
                .args(arguments)
                .output()
                .ok()
                .filter(|o| o.status.success())
        };
        let show = |what| admin(&["--op", "show", "--mode", what]);
        wait_until("tgtd answers", || show("target").is_some());
        let portals = show("portal").expect("portals").stdout;
        let portals = String::from_utf8_lossy(&portals);
        let has = |port: &u16| portals.contains(&format!("127.0.0.1:{port},"));
        if !ports.iter().all(has) {
            return None;
        }
        let admin = |arguments: &[&str]| admin(arguments).is_some();
        let image = image.display().to_string();
        let unit = ["--mode", "logicalunit", "--tid", "1", "--lun", "1"];
        assert!(admin(&[
            "--op", "new", "--mode", "target", "--tid", "1", "-T", IQN
        ]));
        assert!(admin(
            &[&["--op", "new"], &unit[..], &["-b", &image]].concat()
        ));
        if let Some(parameters) = parameters {
            assert!(admin(
                &[&["--op", "update"], &unit[..], &["--params", parameters]].concat()
            ));
        }
        assert!(admin(&[
            "--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"
        ]));
        Some(Tgtd {
            _child: child,
            ports,
        })
    }
}

/// Starts a proxy in front of a local port.
pub fn proxy(port: u16) -> (Pathsim, u16) {
    let listen = Address::Tcp("127.0.0.1:0".into());
    let sim = Pathsim::start(&listen, Address::Tcp(format!("127.0.0.1:{port}")));
    let sim = sim.expect("a proxy");
    let port = match sim.address() {
        Address::Tcp(at) => at.rsplit(':').next().and_then(|p| p.parse().ok()),
        Address::Unix(_) => None,
    };
    (sim, port.expect("a TCP port"))
}
