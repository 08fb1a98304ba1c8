//! `sendfile`: sends a file to a socket, by read and send, by mapping and send, and by `sendfile`,
//! which copies nothing in this process. Modeled on the test of the unified file cache.
//!
//! The receiver is a thread on the loopback that counts and discards the bytes; its CPU time is
//! part of all rows alike. The time ends when it has received all bytes.

use bench_core::files::{Files, HostDirectory, Open};
use bench_core::{Direction, Error, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Instant;

const NAME: &str = "sendfile.file";

/// Amount of data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// File size in bytes.
    pub file: u64,
    /// Bytes per send.
    pub record: usize,
    /// Number of times that the file is sent.
    pub passes: u64,
    /// Whether to drop the cached data of the file before each pass.
    pub cold: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            file: 64 << 20,
            record: 64 << 10,
            passes: 4,
            cold: false,
        }
    }
}

/// Method of sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendMethod {
    /// `read`, then `send`.
    Read,
    /// Copy from a mapping, then `send`.
    Mapped,
    Sendfile,
}

impl SendMethod {
    /// All methods in order.
    pub const ALL: [SendMethod; 3] = [SendMethod::Read, SendMethod::Mapped, SendMethod::Sendfile];

    /// Returns the name for tables.
    pub fn name(self) -> &'static str {
        match self {
            SendMethod::Read => "read and send",
            SendMethod::Mapped => "mmap and send",
            SendMethod::Sendfile => "sendfile",
        }
    }
}

/// The existing file; removed on drop.
pub struct Prepared<'a> {
    folder: &'a Path,
    files: HostDirectory,
    config: &'a Config,
}

impl<'a> Prepared<'a> {
    /// Creates the file in `folder`.
    ///
    /// # Errors
    /// [`Error::Spec`] for invalid sizes, [`Error::Files`] for errors of the file system.
    pub fn new(folder: &'a Path, config: &'a Config) -> Result<Prepared<'a>> {
        let fits =
            (1..=1 << 40).contains(&config.file) && (512..=16 << 20).contains(&config.record);
        if !fits || config.passes == 0 {
            return Err(Error::Spec(
                "file must be 1 byte to 1 TiB, record 512 bytes to 16 MiB, and passes at least 1"
                    .into(),
            ));
        }
        let files = HostDirectory::open(folder).map_err(|e| failed(folder, "open", e))?;
        let prepared = Prepared {
            folder,
            files,
            config,
        };
        prepared.make().map_err(|e| failed(folder, "write", e))?;
        Ok(prepared)
    }

    fn make(&self) -> io::Result<()> {
        let file = self.files.open(NAME, Open::CREATE)?;
        let mut record = vec![0; self.config.record];
        let mut at = 0;
        while at < self.config.file {
            bench_core::rng::Rng::stream(1, at).fill(&mut record);
            let n = (self.config.file - at).min(record.len() as u64) as usize;
            file.write_at(at, &record[..n])?;
            at += n as u64;
        }
        file.sync()
    }

    /// Sends the file by one method and returns the seconds.
    ///
    /// # Errors
    /// [`Error::Files`] for an I/O error, [`Error::Program`] if bytes did not arrive.
    pub fn send(&self, way: SendMethod) -> Result<f64> {
        let wrong = |e: io::Error| failed(self.folder, "send", e);
        let listener = TcpListener::bind("127.0.0.1:0").map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        let total = self.config.file * self.config.passes;
        std::thread::scope(|scope| {
            let receiver = scope.spawn(move || -> io::Result<(u64, Instant)> {
                let (mut stream, _) = listener.accept()?;
                let mut buffer = vec![0; 256 << 10];
                let mut got = 0;
                loop {
                    match stream.read(&mut buffer)? {
                        0 => return Ok((got, Instant::now())),
                        n => got += n as u64,
                    }
                }
            });
            let sent = TcpStream::connect(address).and_then(|stream| {
                let began = Instant::now();
                for _ in 0..self.config.passes {
                    self.pass(way, &stream)?;
                }
                Ok(began)
            });
            let received = receiver.join().expect("the receiver does not panic");
            let began = sent.map_err(wrong)?;
            let (got, ended) = received.map_err(wrong)?;
            if got == total {
                Ok(ended.duration_since(began).as_secs_f64())
            } else {
                Err(Error::Program {
                    what: "sendfile".into(),
                    detail: format!("{got} of {total} bytes arrived"),
                })
            }
        })
    }

    fn pass(&self, way: SendMethod, mut stream: &TcpStream) -> io::Result<()> {
        let size = self.config.file;
        if self.config.cold {
            self.files.open(NAME, Open::READ)?.drop_cache()?;
        }
        let mut buffer = vec![0; self.config.record];
        match way {
            SendMethod::Read => {
                let mut file = File::open(self.folder.join(NAME))?;
                loop {
                    match file.read(&mut buffer)? {
                        0 => return Ok(()),
                        n => stream.write_all(&buffer[..n])?,
                    }
                }
            }
            SendMethod::Mapped => {
                let file = self.files.open(NAME, Open::READ)?;
                let map = file.map(size, Direction::Read)?;
                let mut at = 0;
                while at < size {
                    let n = (size - at).min(buffer.len() as u64) as usize;
                    map.read(at, &mut buffer[..n]);
                    stream.write_all(&buffer[..n])?;
                    at += n as u64;
                }
                Ok(())
            }
            SendMethod::Sendfile => {
                let file = File::open(self.folder.join(NAME))?;
                let mut at = 0;
                while at < size {
                    let count = (size - at).min(self.config.record as u64) as usize;
                    let sent = rustix::fs::sendfile(stream, &file, Some(&mut at), count)?;
                    if sent == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Ok(())
            }
        }
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        // Best effort: an earlier error is more useful.
        let _ = self.files.unlink(NAME);
    }
}

fn failed(folder: &Path, call: &'static str, source: io::Error) -> Error {
    Error::on_files(folder.display().to_string(), call, NAME, source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_sends_every_byte() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            file: 1_000_003,
            passes: 2,
            cold: true,
            ..Config::default()
        };
        let prepared = Prepared::new(dir.path(), &config).unwrap();
        for way in SendMethod::ALL {
            assert!(prepared.send(way).unwrap() > 0.0, "{way:?}");
        }
        drop(prepared);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
