//! A real iSCSI target: `tgtd` on two portals, with one LUN in a file.

use path_iscsi::{IscsiPath, Options};
use pathsim::{Address, Pathsim};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The target's name.
pub const IQN: &str = "iqn.2026-01.org.evfs.test:disk";
/// Longer than anything takes here.
pub const LONG: Duration = Duration::from_secs(30);

/// The path to LUN 1 at an address.
pub fn path(at: &str, options: Options) -> IscsiPath {
    IscsiPath::parse(&format!("iscsi://{at}/{IQN}/1"), options).expect("an address")
}

/// A running daemon; ends with this value.
pub struct Tgtd {
    child: Child,
    control: String,
    /// `HOST:PORT` of both portals.
    pub portals: [String; 2],
    _dir: TempDir,
    /// What the LUN's data is in.
    pub image: PathBuf,
}

impl Tgtd {
    /// Starts one with LUN 1 of 16 MiB, which has an ID of its own.
    pub fn start() -> Tgtd {
        let tgtd = Tgtd::start_generic();
        tgtd.set_id("5000c500a1b2c3d4", "S1");
        tgtd
    }

    /// Gives the LUN another ID and serial number.
    pub fn set_id(&self, id: &str, serial: &str) {
        let unit = "--op update --mode logicalunit --tid 1 --lun 1 --params";
        self.admin(&format!("{unit} scsi_id={id},scsi_sn={serial}"));
    }

    /// Starts one with the ID that all of them have.
    pub fn start_generic() -> Tgtd {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let control = (1000 + (std::process::id() * 32 + number) % 31_000).to_string();
        let portals = [free_portal("127.0.0.1"), free_portal("127.0.0.2")];
        let dir = TempDir::new().expect("a folder");
        let image = dir.path().join("lun");
        let file = std::fs::File::create(&image).expect("an image");
        file.set_len(super::SIZE).expect("its size");
        let child = Command::new("tgtd")
            .args(["-f", "-C", &control, "--iscsi"])
            .arg(format!("portal={},portal={}", portals[0], portals[1]))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("tgtd starts; it is in the package `tgt`");
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

    /// Runs `tgtadm`, which has to succeed.
    pub fn admin(&self, arguments: &str) {
        assert!(self.try_admin(arguments), "tgtadm {arguments}");
    }

    fn try_admin(&self, arguments: &str) -> bool {
        Command::new("tgtadm")
            .args(["-C", &self.control, "--lld", "iscsi"])
            .args(arguments.split(' '))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("tgtadm is in the package `tgt`")
            .success()
    }

    /// A path through a portal.
    pub fn path(&self, portal: usize, options: Options) -> IscsiPath {
        path(&self.portals[portal], options)
    }

    /// A proxy before a portal.
    pub fn proxy(&self, portal: usize) -> Pathsim {
        let upstream = Address::Tcp(self.portals[portal].clone());
        Pathsim::start(&Address::Tcp("127.0.0.1:0".into()), upstream).expect("a free port")
    }

    /// Ends the daemon at once.
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

/// A port that nobody uses now.
fn free_portal(host: &str) -> String {
    let listener = TcpListener::bind((host, 0)).expect("a free port");
    listener.local_addr().expect("its address").to_string()
}
