//! A real iSCSI target: `tgtd`, with one LUN backed by a file.

use crate::network::{Link, Machine};
use crate::{dies_with_parent, installed};
use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// iSCSI qualified name of the target.
pub const IQN: &str = "iqn.2026-01.org.evfs.test:disk";
/// Time within which a daemon must have started, on a busy machine.
const STARTED_WITHIN: Duration = Duration::from_secs(30);

/// A running daemon, killed on drop.
pub struct Tgtd {
    child: Child,
    control: String,
    /// `HOST:PORT` of each portal.
    pub portals: Vec<String>,
    _dir: TempDir,
    /// File that backs the LUN.
    pub image: PathBuf,
}

impl Tgtd {
    /// Starts a daemon with two portals, which every initiator may use. Its LUN 1 has `bytes` bytes,
    /// and its file is in a new directory in `place`.
    ///
    /// # Panics
    /// `tgtd` is not installed, or does not start.
    pub fn start(place: &Path, bytes: u64) -> Tgtd {
        // With an occupied port, tgtd keeps running on its other ports. Then it is started again.
        let started = (0..10).find_map(|_| {
            let portals = ["127.0.0.1", "127.0.0.2"].map(free_portal);
            let mut command = Command::new(installed("tgtd"));
            dies_with_parent(&mut command);
            Tgtd::try_start(command, portals.into(), place, bytes)
        });
        started
            .expect("tgtd has the ports that it was told")
            .serve()
    }

    /// Starts a daemon like [`Tgtd::start`] on a machine, with one portal, on its link
    /// [`Link::Storage`].
    ///
    /// # Panics
    /// `tgtd` is not installed, or does not start.
    pub fn start_on(machine: &Machine, place: &Path, bytes: u64) -> Tgtd {
        let portal = format!("{}:3260", machine.address(Link::Storage));
        let command = machine.command(installed("tgtd"));
        let started = Tgtd::try_start(command, vec![portal], place, bytes);
        started.expect("the port of iSCSI is free").serve()
    }

    /// Makes the target and its LUN.
    fn serve(self) -> Tgtd {
        self.admin(&format!("--op new --mode target --tid 1 -T {IQN}"));
        let lun = format!(
            "--op new --mode logicalunit --tid 1 --lun 1 -b {}",
            self.image.display()
        );
        self.admin(&lun);
        self.admin("--op bind --mode target --tid 1 -I ALL");
        self
    }

    fn try_start(
        mut command: Command,
        portals: Vec<String>,
        place: &Path,
        bytes: u64,
    ) -> Option<Tgtd> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let control = (1000 + (std::process::id() * 32 + number) % 31_000).to_string();
        let dir = TempDir::new_in(place).expect("a directory");
        let image = dir.path().join("lun");
        let file = std::fs::File::create(&image).expect("an image");
        file.set_len(bytes).expect("its size");
        let named: Vec<String> = portals.iter().map(|at| format!("portal={at}")).collect();
        let child = command
            .args(["-f", "-C", &control, "--iscsi", &named.join(",")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let tgtd = Tgtd {
            child,
            control,
            portals,
            _dir: dir,
            image,
        };
        let started = Instant::now();
        while !tgtd.try_admin("--op show --mode target") {
            assert!(started.elapsed() < STARTED_WITHIN, "tgtd does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        let shown = tgtd.show("portal");
        let has = |portal: &String| shown.contains(&format!("{portal},"));
        tgtd.portals.iter().all(has).then_some(tgtd)
    }

    /// Runs `tgtadm`.
    ///
    /// # Panics
    /// It fails.
    pub fn admin(&self, arguments: &str) {
        assert!(self.try_admin(arguments), "tgtadm {arguments}");
    }

    fn try_admin(&self, arguments: &str) -> bool {
        Command::new(installed("tgtadm"))
            .args(["-C", &self.control, "--lld", "iscsi"])
            .args(arguments.split(' '))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("it starts")
            .success()
    }

    /// Returns the output of `tgtadm --op show` for a mode, e.g. `target`.
    pub fn show(&self, mode: &str) -> String {
        let output = Command::new(installed("tgtadm"))
            .args(["-C", &self.control, "--lld", "iscsi"])
            .args(["--op", "show", "--mode", mode])
            .output()
            .expect("it starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Sends a signal to the daemon.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the daemon runs");
    }

    /// Kills the daemon and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill().expect("the daemon runs");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Tgtd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the address of a port that is free at the moment.
fn free_portal(host: &str) -> String {
    let listener = TcpListener::bind((host, 0)).expect("a free port");
    listener.local_addr().expect("its address").to_string()
}
