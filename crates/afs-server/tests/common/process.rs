//! Server in a separate process, which can be killed: the test program itself, restarted with the
//! name of the test that serves.

use super::{Cell, config};
use afs_proto::AfsFid;
use block::BlockDevice;
use path_file::FileDevice;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const FILE: &str = "EVFS_TEST_SERVE";
const PORT: &str = "EVFS_TEST_SERVE_PORT";

/// Name of the test that calls [`serve_if_told`].
pub const SERVES: &str = "serves_when_it_is_told_to";

pub fn device(path: &Path) -> Arc<dyn BlockDevice> {
    FileDevice::open(path, &Default::default()).expect("a device")
}

/// Serves the file named by the environment until standard input ends.
pub fn serve_if_told() {
    let test = std::thread::current();
    assert!(
        test.name().is_none_or(|name| name == SERVES),
        "a process is told to run another test"
    );
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    let port = std::env::var(PORT).ok().and_then(|port| port.parse().ok());
    let config = afs_server::Config {
        file_service: vec![(Ipv4Addr::LOCALHOST, port.unwrap_or(0)).into()],
        workers: 64,
        // For a loaded machine.
        answer_time: Duration::from_secs(20),
        ..config()
    };
    let cell = Cell::on(&device(Path::new(&path)), config);
    let (address, volume) = (cell.server.file_service(), cell.root().volume);
    println!("\nserving {address} {volume}");
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(0);
}

/// Process of a server, which is terminated on drop.
pub struct Process {
    child: Child,
    /// The process ends when this is closed.
    _stdin: ChildStdin,
    /// Kept open: the test harness exits if it cannot print that a test takes long.
    _stdout: BufReader<ChildStdout>,
    pub address: SocketAddr,
    pub volume: u32,
}

impl Process {
    /// Serves a file at `port`; 0 for any port.
    pub fn start(path: &Path, port: u16) -> Process {
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .args(["--exact", SERVES, "--nocapture"])
            .env(FILE, path)
            .env(PORT, port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let lines = stdout.by_ref().lines().map(|line| line.expect("a line"));
        let line = lines.into_iter().find(|line| line.starts_with("serving "));
        let line = line.expect("it serves");
        let mut words = line.split(' ').skip(1);
        let mut word = || words.next().expect("a word");
        Process {
            address: word().parse().expect("an address"),
            volume: word().parse().expect("a volume"),
            _stdin: child.stdin.take().expect("piped"),
            _stdout: stdout,
            child,
        }
    }

    pub fn root(&self) -> AfsFid {
        AfsFid {
            volume: self.volume,
            vnode: 1,
            unique: 1,
        }
    }

    /// Returns the peak memory of the process in bytes.
    pub fn memory(&self) -> usize {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kib.expect("a line")
            .trim()
            .parse::<usize>()
            .expect("a number")
            * 1024
    }

    /// Returns the number of its threads.
    pub fn threads(&self) -> usize {
        let path = format!("/proc/{}/task", self.child.id());
        std::fs::read_dir(path).expect("it runs").count()
    }

    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Backing file of a device, removed on drop.
pub struct Disk(pub PathBuf);

impl Disk {
    /// Creates a file with a file system that contains the volume.
    pub fn new(name: &str, bytes: u64) -> Disk {
        let name = format!("evfs-afs-{name}-{}", std::process::id());
        let disk = Disk(std::env::temp_dir().join(name));
        let made = std::fs::File::create(&disk.0);
        made.and_then(|file| file.set_len(bytes)).expect("a file");
        super::format(&device(&disk.0));
        disk
    }

    /// Checks the file system, which must not be in use.
    pub fn check(&self) {
        let fs = fs::Fs::open(device(&self.0), Default::default()).expect("it opens");
        let report = fs.check().expect("it can be checked");
        assert!(report.is_clean(), "{:#?}", report.problems);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns a free port outside the range from which the kernel assigns ports.
pub fn free_port() -> u16 {
    let own = 20_000 + (std::process::id() % 10_000) as u16;
    let is_free = |port: &u16| UdpSocket::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    (own..own + 1000).find(is_free).expect("a port")
}
