//! A real iSCSI target: `tgtd` on two portals, with one LUN backed by a file.

use path_iscsi::{IscsiPath, Options};
use pathsim::{Address, Pathsim};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// iSCSI qualified name of the target.
pub const IQN: &str = "iqn.2026-01.org.evfs.test:disk";
/// Timeout that no test reaches if it passes.
pub const LONG: Duration = Duration::from_secs(30);

/// Returns the path to LUN 1 at a portal.
pub fn path(at: &str, options: Options) -> IscsiPath {
    IscsiPath::parse(&format!("iscsi://{at}/{IQN}/1"), options).expect("an address")
}

/// A running daemon, killed on drop.
pub struct Tgtd {
    child: Child,
    control: String,
    /// `HOST:PORT` of both portals.
    pub portals: [String; 2],
    _dir: TempDir,
    /// File that backs the LUN.
    pub image: PathBuf,
}

impl Tgtd {
    /// Starts a daemon with LUN 1 of 16 MiB and a unique world-wide ID.
    pub fn start() -> Tgtd {
        let tgtd = Tgtd::start_generic();
        tgtd.set_id("5000c500a1b2c3d4", "S1");
        tgtd
    }

    /// Changes the world-wide ID and the serial number of the LUN.
    pub fn set_id(&self, id: &str, serial: &str) {
        let unit = "--op update --mode logicalunit --tid 1 --lun 1 --params";
        self.admin(&format!("{unit} scsi_id={id},scsi_sn={serial}"));
    }

    /// Starts a daemon with the default world-wide ID, which all `tgtd` instances share.
    pub fn start_generic() -> Tgtd {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let control = (1000 + (std::process::id() * 32 + number) % 31_000).to_string();
        let portals = [free_portal("127.0.0.1"), free_portal("127.0.0.2")];
        // In memory: tests of late writes must not depend on a disk that stalls.
        let dir = TempDir::new_in("/dev/shm").expect("a directory");
        let image = dir.path().join("lun");
        let file = std::fs::File::create(&image).expect("an image");
        file.set_len(super::SIZE).expect("its size");
        let child = Command::new(test_support::installed("tgtd"))
            .args(["-f", "-C", &control, "--iscsi"])
            .arg(format!("portal={},portal={}", portals[0], portals[1]))
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
            assert!(started.elapsed() < LONG, "tgtd does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        tgtd.admin(&format!("--op new --mode target --tid 1 -T {IQN}"));
        let lun = format!(
            "--op new --mode logicalunit --tid 1 --lun 1 -b {}",
            tgtd.image.display()
        );
        tgtd.admin(&lun);
        tgtd.admin("--op bind --mode target --tid 1 -I ALL");
        tgtd
    }

    /// Runs `tgtadm` and panics if it fails.
    pub fn admin(&self, arguments: &str) {
        assert!(self.try_admin(arguments), "tgtadm {arguments}");
    }

    fn try_admin(&self, arguments: &str) -> bool {
        Command::new(test_support::installed("tgtadm"))
            .args(["-C", &self.control, "--lld", "iscsi"])
            .args(arguments.split(' '))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("it starts")
            .success()
    }

    /// Returns a path through a portal.
    pub fn path(&self, portal: usize, options: Options) -> IscsiPath {
        path(&self.portals[portal], options)
    }

    /// Starts a proxy in front of a portal.
    pub fn proxy(&self, portal: usize) -> Pathsim {
        let upstream = Address::Tcp(self.portals[portal].clone());
        Pathsim::start(&Address::Tcp("127.0.0.1:0".into()), upstream).expect("a free port")
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
