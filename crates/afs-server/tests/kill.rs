//! The server is killed under load, again and again.
//!
//! Goal: after each time it serves again without repair; every store that was answered is there; what
//! is there and was not answered has a newer version; and clients go on where they were.
//!
//! The server is this test's own program, started with the name of the test that serves.

mod common;

use afs_proto::AfsFid;
use block::{BlockDevice, Random};
use common::{Cell, Client, PATIENCE, config, seed};
use path_file::FileDevice;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const FILE: &str = "EVFS_TEST_SERVE";
const WRITERS: usize = 4;
const ROUNDS: usize = 6;
/// Bytes of each store: several pages, and part of one.
const BYTES: usize = 50_001;

fn device(path: &Path) -> Arc<dyn BlockDevice> {
    FileDevice::open(path, &Default::default()).expect("a device")
}

/// Serves the file that the environment names, until it is killed.
#[test]
fn serves_when_it_is_told_to() {
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    let cell = Cell::on(&device(Path::new(&path)), config());
    println!(
        "\nserving {} {}",
        cell.server.file_service(),
        cell.root().volume
    );
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(0);
}

struct Process {
    child: Child,
    address: SocketAddr,
    volume: u32,
}

impl Process {
    fn start(path: &Path) -> Process {
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .args(["--exact", "serves_when_it_is_told_to", "--nocapture"])
            .env(FILE, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut lines = lines.map(|line| line.expect("a line"));
        let line = lines
            .find(|line| line.starts_with("serving "))
            .expect("it serves");
        let mut words = line.split(' ').skip(1);
        let address = words
            .next()
            .expect("an address")
            .parse()
            .expect("an address");
        let volume = words.next().expect("a volume").parse().expect("a volume");
        Process {
            child,
            address,
            volume,
        }
    }

    fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }
}

/// A file that one client writes, and what is known of it.
struct Writer {
    fid: AfsFid,
    /// Number of the last store that was answered, the version it gave, and of the last that was begun.
    answered: u64,
    version: u64,
    begun: u64,
}

impl Writer {
    fn content(number: u64) -> Vec<u8> {
        let mut all = number.to_be_bytes().repeat(BYTES / 8 + 1);
        all.truncate(BYTES);
        all
    }

    /// Stores until the server is gone.
    fn store_on(&mut self, client: &Client, gone: &AtomicBool) {
        while !gone.load(Ordering::Relaxed) {
            self.begun += 1;
            let data = Writer::content(self.begun);
            match client.try_store(self.fid, &data) {
                Ok(status) => {
                    self.answered = self.begun;
                    self.version = status.data_version;
                }
                Err(_) => return,
            }
        }
    }

    fn check(&self, client: &Client) {
        let (data, status, _) = client.fetch(self.fid, 0, 1 << 20).expect("served");
        assert!(self.answered == 0 || data.len() == BYTES);
        assert!(status.data_version >= self.version, "a version came back");
        for word in data.as_chunks().0 {
            let number = u64::from_be_bytes(*word);
            assert!(number <= self.begun, "what was never stored");
            assert!(number >= self.answered, "an answered store is lost");
            let is_old = number == self.answered;
            assert!(
                is_old || status.data_version > self.version,
                "a version with other bytes"
            );
        }
    }
}

fn temporary() -> PathBuf {
    let name = format!("evfs-afs-kill-{}", std::process::id());
    std::env::temp_dir().join(name)
}

#[test]
fn a_server_that_is_killed_has_everything_it_answered() {
    let path = temporary();
    std::fs::File::create(&path)
        .and_then(|file| file.set_len(256 << 20))
        .expect("a file");
    common::format(&device(&path));
    let mut random = Random::new(seed(1));
    let mut process = Process::start(&path);
    let volume = process.volume;
    let clients: Vec<Client> = (0..WRITERS)
        .map(|_| Client::of(process.address, volume))
        .collect();
    let mut writers: Vec<Writer> = clients
        .iter()
        .enumerate()
        .map(|(n, client)| Writer {
            fid: client
                .create(client.root, &format!("f{n}"))
                .expect("made")
                .0,
            answered: 0,
            version: 0,
            begun: 0,
        })
        .collect();
    for round in 0..ROUNDS {
        let clients: Vec<Client> = writers
            .iter()
            .map(|_| Client::of(process.address, volume))
            .collect();
        for (writer, client) in writers.iter().zip(&clients) {
            writer.check(client);
        }
        let gone = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (writer, client) in writers.iter_mut().zip(&clients) {
                scope.spawn(|| writer.store_on(client, &gone));
            }
            std::thread::sleep(Duration::from_millis(30 + random.below(200)));
            process.kill();
            gone.store(true, Ordering::Relaxed);
        });
        let begun = Instant::now();
        process = Process::start(&path);
        assert!(begun.elapsed() < PATIENCE, "round {round}");
    }
    let client = Client::of(process.address, volume);
    writers.iter().for_each(|writer| writer.check(&client));
    assert!(
        writers.iter().any(|writer| writer.answered > 0),
        "nothing was tried"
    );
    process.kill();
    let fs = fs::Fs::open(device(&path), Default::default()).expect("it opens");
    let report = fs.check().expect("it can be checked");
    assert!(report.is_clean(), "{:#?}", report.problems);
    drop(fs);
    std::fs::remove_file(&path).expect("removed");
}
