//! Server in a separate process, which can be killed: the example `test_server`.

use afs_proto::AfsFid;
use block::BlockDevice;
use path_file::FileDevice;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

pub fn device(path: &Path) -> Arc<dyn BlockDevice> {
    FileDevice::open(path, &Default::default()).expect("a device")
}

/// Process of a server, which is terminated on drop.
pub struct Process {
    child: Child,
    /// The process ends when this is closed.
    _stdin: ChildStdin,
    pub address: SocketAddr,
    pub volume: u32,
}

impl Process {
    /// Serves a file at `port`; 0 for any port.
    pub fn start(path: &Path, port: u16) -> Process {
        let mut child = Command::new(test_support::example("test_server"))
            .arg(path)
            .arg(port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        stdout.read_line(&mut line).expect("a line");
        let mut words = line.split_whitespace();
        let mut word = || words.next().expect("a word");
        Process {
            address: word().parse().expect("an address"),
            volume: word().parse().expect("a volume"),
            _stdin: child.stdin.take().expect("piped"),
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
