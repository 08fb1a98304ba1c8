//! Scrubs that a mount makes by the clock.
//!
//! One begins in each day, week or month in UTC, unless one is in progress. Its position is in a
//! file of this machine beside the trust store, so that the next mount continues it, and that a
//! file system mounted often is not read each time.

use super::recurring::Recurring;
use super::schedule::{CHECKED, Period};
use crate::filesystem::scrub_step_bytes;
use crate::{Error, Result, parse_size, state_file, unix_time};
use ::fs::{BLOCK_BYTES, Fs, ScrubPosition, ScrubStep};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes in a second of a scrub whose table does not say more.
const RATE: u64 = 50 << 20;

/// Time between two records of the position.
const SAVED: Duration = Duration::from_secs(60);

/// Version of the file with the positions.
const VERSION: u32 = 1;

/// Scrubs to make by the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduledScrub {
    /// Period in which one scrub begins.
    pub every: Every,
    /// Bytes to read in a second, at most.
    #[serde(default = "default_rate", deserialize_with = "rate")]
    pub rate: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Every {
    Day,
    Week,
    Month,
}

fn default_rate() -> u64 {
    RATE
}

fn rate<'de, D: serde::Deserializer<'de>>(from: D) -> std::result::Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    match parse_size(&text).map_err(serde::de::Error::custom)? {
        0 => Err(serde::de::Error::custom(
            "the rate must be at least one byte",
        )),
        rate => Ok(rate),
    }
}

impl Every {
    fn period(self) -> Period {
        match self {
            Every::Day => Period::Day,
            Every::Week => Period::Week,
            Every::Month => Period::Month,
        }
    }
}

/// Contents of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StateFile {
    version: u32,
    /// The last scrub of each file system, by its UUID.
    file_systems: BTreeMap<String, Progress>,
}

/// A scrub.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Progress {
    /// Start of the period in which it began, in seconds since 1970.
    period: i64,
    /// Position at which it continues; `None` once it is complete.
    next: Option<String>,
    read_bytes: u64,
    /// Number of damaged places.
    damaged: u64,
}

fn load(path: &Path) -> Result<StateFile> {
    let text = match state_file::read_text(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(e) => return Err(Error::io("cannot read the positions of scrubs", path, e)),
    };
    // Without the positions of a damaged file, the scrubs begin again.
    let file: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    match file["version"].as_u64() {
        Some(later) if later > u64::from(VERSION) => Err(Error::config(
            path,
            format!("it has version {later}; this program supports version {VERSION}"),
        )),
        _ => Ok(serde_json::from_value(file).unwrap_or(StateFile {
            version: VERSION,
            file_systems: BTreeMap::new(),
        })),
    }
}

/// Starts the thread that scrubs a file system. `file` has the positions.
///
/// # Errors
/// The system cannot start a thread.
pub(super) fn start(
    plan: ScheduledScrub,
    fs: Arc<Fs>,
    name: &str,
    uuid: &str,
    file: PathBuf,
) -> std::io::Result<Recurring> {
    let mut scrub = Scrub::new(plan, fs, name, uuid, file);
    Recurring::start("evfs-scrub", move || {
        scrub.step(unix_time::now().as_secs() as i64)
    })
}

struct Scrub {
    plan: ScheduledScrub,
    fs: Arc<Fs>,
    name: String,
    uuid: String,
    file: PathBuf,
    progress: Progress,
    /// When the file had the progress.
    saved: Instant,
    /// Last error, which is not reported again.
    failed: String,
}

impl Scrub {
    fn new(plan: ScheduledScrub, fs: Arc<Fs>, name: &str, uuid: &str, file: PathBuf) -> Scrub {
        let known = load(&file).map(|mut known| known.file_systems.remove(uuid));
        Scrub {
            plan,
            fs,
            name: name.into(),
            uuid: uuid.into(),
            file,
            progress: known.ok().flatten().unwrap_or_default(),
            saved: Instant::now(),
            failed: String::new(),
        }
    }

    /// Reads a part if a scrub is due. Returns the time until the next call.
    fn step(&mut self, now: i64) -> Duration {
        if self.progress.next.is_none() {
            let period = self.plan.every.period().start(now);
            // Also another one if the clock was wrong.
            if self.progress.period == period {
                return CHECKED;
            }
            self.progress = Progress {
                period,
                next: Some(ScrubPosition::START.to_string()),
                ..Progress::default()
            };
            self.save();
        }
        let from = self.progress.next.as_ref().map(|next| next.parse());
        let from = from.and_then(std::result::Result::ok);
        let begun = Instant::now();
        let bytes = scrub_step_bytes(Some(self.plan.rate));
        match self.fs.scrub(from.unwrap_or(ScrubPosition::START), bytes) {
            Ok(step) => {
                let read = step.blocks * BLOCK_BYTES;
                self.failed.clear();
                self.add(&step);
                let due = Duration::from_secs_f64(read as f64 / self.plan.rate as f64);
                due.saturating_sub(begun.elapsed())
            }
            Err(error) => {
                self.warn(&format!("it stopped, and continues in a minute: {error}"));
                CHECKED
            }
        }
    }

    fn add(&mut self, step: &ScrubStep) {
        let progress = &mut self.progress;
        progress.read_bytes += step.blocks * BLOCK_BYTES;
        progress.damaged += step.damage.len() as u64;
        progress.next = step.next.map(|next| next.to_string());
        if progress.next.is_some() {
            if self.saved.elapsed() >= SAVED {
                self.save();
            }
            return;
        }
        tracing::info!(
            volume = self.name,
            bytes = progress.read_bytes,
            damaged = progress.damaged,
            "the scheduled scrub is complete"
        );
        if progress.damaged > 0 {
            let damaged = progress.damaged;
            self.warn(&format!(
                "it found damaged places: {damaged}; `evfs scrub` lists them"
            ));
        }
        self.save();
    }

    /// Records the progress, so that a later mount continues there.
    fn save(&mut self) {
        let (uuid, progress) = (self.uuid.clone(), self.progress.clone());
        let words = ("cannot write the positions of scrubs", "EVFS_TRUST_STORE");
        let saved = state_file::update(&self.file, words, load, |file: &mut StateFile| {
            file.file_systems.insert(uuid, progress);
            Ok(())
        });
        self.saved = Instant::now();
        if let Err(error) = saved {
            self.warn(&error.to_string());
        }
    }

    fn warn(&mut self, text: &str) {
        if self.failed != text {
            self.failed = text.to_owned();
            tracing::warn!(name: "EVFS-0814", "scheduled scrub of {}: {text}", self.name);
        }
    }
}

impl Drop for Scrub {
    fn drop(&mut self) {
        if self.progress.next.is_some() {
            self.save();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::fs::{FIRST_FILESET, FileType, Files, New, Options, ROOT, WritePosition};
    use block_testing::Mem;
    use cache::{Cache, Config};

    const DAY: i64 = 24 * 3600;
    /// Sunday, 1 March 2026, 12:00.
    const START: i64 = 1_772_366_400;

    /// Returns a file system with a file of a number of blocks, and its device.
    fn with_file(blocks: usize) -> (Arc<Mem>, Arc<Fs>) {
        let device = Arc::new(Mem::new(64 << 20, 4096));
        Fs::format(device.clone(), "").unwrap();
        let fs = Fs::open(device.clone(), Options::default()).unwrap();
        let main = fs.fileset_named(FIRST_FILESET).unwrap();
        let cache = Cache::new(Config::new(4 << 20)).unwrap();
        let files = Files::new(&main, &cache).unwrap();
        let new = New::of_root(FileType::File, 0o644);
        let (_, file) = files.create_open(ROOT, b"file", &new).unwrap();
        let data = vec![7; blocks * BLOCK_BYTES as usize];
        let mut lane = files.lane().unwrap();
        lane.write(&file, WritePosition::Offset(0), &data).unwrap();
        drop((lane, file));
        files.close().unwrap();
        (device, Arc::new(fs))
    }

    fn plan(every: Every, rate: u64) -> ScheduledScrub {
        ScheduledScrub { every, rate }
    }

    /// Makes steps until none is due; returns the bytes that a new scrub read.
    fn run(scrub: &mut Scrub, now: i64) -> u64 {
        let before = scrub.progress.period;
        while scrub.step(now) < CHECKED {}
        if scrub.progress.period == before {
            0
        } else {
            scrub.progress.read_bytes
        }
    }

    #[test]
    fn one_scrub_begins_in_each_period_whatever_the_mounts() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("scrubs.json");
        let (_, fs) = with_file(100);
        for (every, times) in [
            (Every::Day, [(0, true), (11, false), (12, true), (37, true)]),
            (
                Every::Week,
                [(0, true), (11, false), (12, true), (37, false)],
            ),
            (
                Every::Month,
                [(0, true), (12, false), (24 * 29, false), (24 * 31, true)],
            ),
        ] {
            let uuid = format!("{every:?}");
            for (hours, due) in times {
                let mount = || {
                    let plan = plan(every, 1 << 40);
                    Scrub::new(plan, Arc::clone(&fs), "data", &uuid, file.clone())
                };
                let now = START + hours * 3600;
                let read = if due { 100 * BLOCK_BYTES } else { 0 };
                assert_eq!(run(&mut mount(), now), read, "{every:?} {hours}");
                assert_eq!(run(&mut mount(), now), 0, "{every:?} {hours}");
            }
        }
        // After the clock was ahead.
        let plan = plan(Every::Month, 1 << 40);
        let mut scrub = Scrub::new(plan, fs, "data", "Month", file);
        assert!(run(&mut scrub, START + 400 * DAY) > 0);
        assert!(run(&mut scrub, START) > 0);
    }

    #[test]
    fn an_interrupted_scrub_continues_and_counts_all_damage() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("below/scrubs.json");
        let (device, fs) = with_file(100);
        // The data that comes first on the device is that of the file.
        let mut block = vec![0; BLOCK_BYTES as usize];
        let blocks = (256..64 << 20 >> 12).map(|block| block * BLOCK_BYTES);
        let data: Vec<u64> = blocks
            .filter(|at| {
                device.peek(*at, &mut block);
                block.iter().all(|byte| *byte == 7)
            })
            .collect();
        assert_eq!(data.len(), 100);
        for at in [data[0], data[99]] {
            device.poke(at, &[1; 10]);
        }
        let mount = || {
            // A few blocks in each step.
            let plan = plan(Every::Week, 64 << 10);
            Scrub::new(plan, Arc::clone(&fs), "data", "uuid", file.clone())
        };
        let mut steps = 0;
        loop {
            let mut scrub = mount();
            scrub.step(START + steps * DAY);
            steps += 1;
            if scrub.progress.next.is_none() {
                assert_eq!(scrub.progress.read_bytes, 100 * BLOCK_BYTES);
                assert_eq!(scrub.progress.damaged, 2);
                assert_eq!(scrub.progress.period, START - 6 * DAY - DAY / 2);
                break;
            }
        }
        assert!(steps > 10, "{steps}");
    }

    #[test]
    fn a_file_of_a_later_version_is_kept_and_a_damaged_one_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("scrubs.json");
        let (_, fs) = with_file(1);
        let run_once = || {
            let plan = plan(Every::Day, 1 << 40);
            let mut scrub = Scrub::new(plan, Arc::clone(&fs), "data", "uuid", file.clone());
            run(&mut scrub, START)
        };
        let later = r#"{"version": 2, "file_systems": {}}"#;
        std::fs::write(&file, later).unwrap();
        assert_eq!(run_once(), BLOCK_BYTES);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), later);
        std::fs::write(&file, "damaged").unwrap();
        assert_eq!(run_once(), BLOCK_BYTES);
        assert_eq!(run_once(), 0);
    }

    #[test]
    fn a_table_has_a_period_and_a_rate() {
        let of = |text: &str| toml::from_str::<ScheduledScrub>(text).map_err(|e| e.to_string());
        assert_eq!(of("every = 'month'"), Ok(plan(Every::Month, RATE)));
        assert_eq!(
            of("every = 'day'\nrate = '2M'"),
            Ok(plan(Every::Day, 2 << 20))
        );
        for wrong in [
            "",
            "every = 'hour'",
            "every = 'day'\nrate = '0'",
            "every = 'day'\nrate = 'fast'",
            "every = 'day'\nat = 3",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
