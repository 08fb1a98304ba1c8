//! `clientload`: clients read one file simultaneously after dropping their cached data of it;
//! measures how long the first and the last client take. Modeled on the test of the 1990 report.
//!
//! Each client is a thread. A server in this process provides separate clients for them. With a
//! directory per client, each a separate mount, a client has its own cache and connection; with one
//! directory for all, there is one cache, which every client drops once.

use bench_core::files::{Files, Open};
use bench_core::rng::Rng;
use bench_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::Instant;

const NAME: &str = "clientload.file";

/// Clients and their file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Number of clients.
    pub clients: usize,
    /// File size in bytes.
    pub file: u64,
    /// Read size in bytes.
    pub record: u64,
    /// Further mounts of the same file system, assigned to the clients in turn; the target is the
    /// first.
    pub folders: Vec<PathBuf>,
    /// Seed of the data.
    pub seed: u64,
}

impl Default for Config {
    /// Creates the report's configuration: 15 clients, 1 MiB.
    fn default() -> Config {
        Config {
            clients: 15,
            file: 1 << 20,
            record: 64 << 10,
            folders: Vec::new(),
            seed: 1,
        }
    }
}

/// Measurements of all clients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientLoadResult {
    /// Seconds of each client, from the release to its last byte.
    pub secs: Vec<f64>,
    /// Bytes read by all clients together.
    pub bytes: u64,
    /// Whether every client dropped its cached data; not every target can.
    pub flushed: bool,
}

impl ClientLoadResult {
    /// Returns the seconds until the last client finished.
    pub fn last(&self) -> f64 {
        self.secs.iter().copied().fold(0.0, f64::max)
    }

    /// Returns the seconds until the first client finished.
    pub fn first(&self) -> f64 {
        self.secs.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// The existing file; [`Prepared::remove`] removes it.
pub struct Prepared<'a> {
    clients: &'a [&'a dyn Files],
    config: &'a Config,
    content: Vec<u8>,
}

/// Creates the file, lets all clients read it, and removes it. `clients`, of which there must be at
/// least one, are assigned to the client threads in turn.
///
/// # Errors
/// [`Error::Spec`] for invalid values, [`Error::Files`] for errors of the target, [`Error::Verify`]
/// if a client reads other data than was written.
pub fn run(clients: &[&dyn Files], config: &Config) -> Result<ClientLoadResult> {
    let prepared = Prepared::new(clients, config)?;
    let outcome = prepared.read();
    prepared.remove()?;
    outcome
}

impl<'a> Prepared<'a> {
    /// Writes the file through the first client.
    pub fn new(clients: &'a [&'a dyn Files], config: &'a Config) -> Result<Prepared<'a>> {
        let fits = (1..=4096).contains(&config.clients) && (1..=1 << 30).contains(&config.file);
        let Some(first) = clients.first().filter(|_| fits && config.record > 0) else {
            return Err(Error::Spec(
                "clients must be 1 to 4096, in at least one folder; file must be 1 byte to 1 \
                 GiB, and record at least 1 byte"
                    .into(),
            ));
        };
        let mut content = vec![0; config.file as usize];
        Rng::new(config.seed).fill(&mut content);
        let make = || -> std::io::Result<()> {
            let file = first.open(NAME, Open::CREATE)?;
            file.write_at(0, &content)?;
            file.sync()
        };
        make().map_err(|e| failed(*first, "write", e))?;
        Ok(Prepared {
            clients,
            config,
            content,
        })
    }

    /// Lets all clients read the file.
    pub fn read(&self) -> Result<ClientLoadResult> {
        let config = self.config;
        let gate = Barrier::new(config.clients);
        let done: Vec<Result<(f64, bool)>> = std::thread::scope(|scope| {
            let client = |n: usize| {
                let files = self.clients[n % self.clients.len()];
                let (gate, content) = (&gate, &self.content);
                scope.spawn(move || client(files, config, content, gate))
            };
            let threads: Vec<_> = (0..config.clients).map(client).collect();
            let join = |t: std::thread::ScopedJoinHandle<'_, _>| {
                t.join().expect("a client's thread does not panic")
            };
            threads.into_iter().map(join).collect()
        });
        let done = done.into_iter().collect::<Result<Vec<_>>>()?;
        Ok(ClientLoadResult {
            secs: done.iter().map(|(secs, _)| *secs).collect(),
            bytes: config.file * config.clients as u64,
            flushed: done.iter().all(|(_, flushed)| *flushed),
        })
    }

    pub fn remove(self) -> Result<()> {
        let first = self.clients[0];
        first.unlink(NAME).map_err(|e| failed(first, "unlink", e))
    }
}

fn client(
    files: &dyn Files,
    config: &Config,
    content: &[u8],
    gate: &Barrier,
) -> Result<(f64, bool)> {
    let opened = files.open(NAME, Open::READ).and_then(|file| {
        let flushed = match file.drop_cache() {
            Ok(()) => true,
            Err(e) if e.kind() == ErrorKind::Unsupported => false,
            Err(e) => return Err(e),
        };
        Ok((file, flushed))
    });
    let mut buffer = vec![0; config.record as usize];
    // Every client must reach the barrier, even after an error: the others wait there.
    gate.wait();
    let began = Instant::now();
    let (file, flushed) = opened.map_err(|e| failed(files, "open", e))?;
    let mut at = 0;
    while at < content.len() {
        let got = file
            .read_at(at as u64, &mut buffer)
            .map_err(|e| failed(files, "read", e))?;
        if got == 0 || content.get(at..at + got) != Some(&buffer[..got]) {
            return Err(Error::Verify {
                arm: files.name(),
                offset: at as u64,
            });
        }
        at += got;
    }
    Ok((began.elapsed().as_secs_f64(), flushed))
}

fn failed(files: &dyn Files, call: &'static str, source: std::io::Error) -> Error {
    Error::on_files(files.name(), call, NAME, source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench_core::files::HostDirectory;

    #[test]
    fn every_client_reads_the_whole_file() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (
            HostDirectory::open(dir.path()).unwrap(),
            HostDirectory::open(dir.path()).unwrap(),
        );
        let config = Config {
            clients: 5,
            file: 100_001,
            ..Config::default()
        };
        let outcome = run(&[&one, &two], &config).unwrap();
        assert_eq!((outcome.secs.len(), outcome.bytes), (5, 500_005));
        assert!(outcome.flushed && outcome.first() > 0.0 && outcome.first() <= outcome.last());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(matches!(run(&[], &config), Err(Error::Spec(_))));
    }
}
