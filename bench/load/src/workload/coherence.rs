//! `coherence`, modeled on the mixed mode test of the unified file cache: writes a page by a system
//! call and immediately reads it through a mapping, and vice versa.
//!
//! If calls and mappings share pages, each step is a copy. If not, each step needs a sync between
//! the two accesses; `sync` adds it, to measure that side of the comparison. Every value is
//! checked, so an incoherent target is an error and not a fast one.

use bench_core::files::{Files, Mapped, Msync, Open, OpenFile};
use bench_core::{Direction, Error, Result};
use serde::{Deserialize, Serialize};
use std::time::Instant;

const NAME: &str = "coherence.file";

/// Size of the workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Number of pages in the file.
    pub pages: u64,
    /// Page size in bytes.
    pub page: usize,
    /// Number of passes over the file.
    pub passes: u64,
    /// Whether to sync between the two accesses.
    pub sync: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            pages: 1024,
            page: 4096,
            passes: 20,
            sync: false,
        }
    }
}

/// Result of one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CoherenceResult {
    /// `write, then load` or `store, then read`.
    pub what: String,
    /// Number of steps of two accesses each.
    pub steps: u64,
    /// Duration in seconds.
    pub secs: f64,
}

/// Measures both directions and removes the file.
///
/// # Errors
/// [`Error::Spec`] for invalid values; [`Error::Files`], also for a target without mappings;
/// [`Error::Verify`] if one access does not see the data of the other.
pub fn run(files: &dyn Files, config: &Config) -> Result<[CoherenceResult; 2]> {
    let fits = (64..=1 << 20).contains(&config.page) && (1..=1 << 20).contains(&config.pages);
    if !fits || config.passes == 0 {
        return Err(Error::Spec(
            "page must be 64 bytes to 1 MiB, pages 1 to 1048576, and passes at least 1".into(),
        ));
    }
    let pair = Pair::open(files, config)?;
    let done = pair
        .direction("write, then load", |at, data, out| {
            pair.file
                .write_at(at, data)
                .map_err(|e| pair.failed("write", e))?;
            if config.sync {
                pair.file.sync().map_err(|e| pair.failed("fsync", e))?;
            }
            pair.map.read(at, out);
            Ok(())
        })
        .and_then(|first| {
            let second = pair.direction("store, then read", |at, data, out| {
                pair.map.write(at, data);
                if config.sync {
                    let synced = pair.map.sync(at, data.len(), Msync::Sync);
                    synced.map_err(|e| pair.failed("msync", e))?;
                }
                let got = pair.file.read_at(at, out);
                got.map(drop).map_err(|e| pair.failed("read", e))
            })?;
            Ok([first, second])
        });
    files.unlink(NAME).map_err(|e| pair.failed("unlink", e))?;
    done
}

/// A file, open and mapped.
struct Pair<'a> {
    files: &'a dyn Files,
    config: &'a Config,
    file: Box<dyn OpenFile>,
    map: Box<dyn Mapped>,
}

impl<'a> Pair<'a> {
    fn open(files: &'a dyn Files, config: &'a Config) -> Result<Pair<'a>> {
        let failed = |call, source| Error::on_files(files.name(), call, NAME, source);
        let file = files
            .open(NAME, Open::CREATE)
            .map_err(|e| failed("creat", e))?;
        let len = config.pages * config.page as u64;
        let filled = (0..config.pages)
            .try_for_each(|n| file.write_at(n * config.page as u64, &vec![1; config.page]));
        filled.map_err(|e| failed("write", e))?;
        let map = file
            .map(len, Direction::Write)
            .map_err(|e| failed("mmap", e))?;
        Ok(Pair {
            files,
            config,
            file,
            map,
        })
    }

    fn direction(
        &self,
        what: &str,
        step: impl Fn(u64, &[u8], &mut [u8]) -> Result<()>,
    ) -> Result<CoherenceResult> {
        let (mut data, mut out) = (vec![0; self.config.page], vec![0; self.config.page]);
        let began = Instant::now();
        for pass in 0..self.config.passes {
            for page in 0..self.config.pages {
                let at = page * self.config.page as u64;
                data[..8].copy_from_slice(&(pass << 32 | page).to_le_bytes());
                step(at, &data, &mut out)?;
                if out != data {
                    return Err(Error::Verify {
                        arm: self.files.name(),
                        offset: at,
                    });
                }
            }
        }
        Ok(CoherenceResult {
            what: what.to_owned(),
            steps: self.config.passes * self.config.pages,
            secs: began.elapsed().as_secs_f64(),
        })
    }

    fn failed(&self, call: &'static str, source: std::io::Error) -> Error {
        Error::on_files(self.files.name(), call, NAME, source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench_core::files::HostDirectory;

    #[test]
    fn both_directions_are_done_with_and_without_sync() {
        let dir = tempfile::tempdir().unwrap();
        let folder = HostDirectory::open(dir.path()).unwrap();
        for sync in [false, true] {
            let config = Config {
                pages: 8,
                passes: 2,
                sync,
                ..Config::default()
            };
            let outcomes = run(&folder, &config).unwrap();
            assert!(outcomes.iter().all(|o| o.steps == 16 && o.secs > 0.0));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
