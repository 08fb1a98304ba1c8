//! `mailmix`, modeled on PostMark 1.53: the small files of a mail server.
//!
//! ```text
//!   create directories │ create N files │ T transactions │ delete all │ remove directories
//!         untimed      ├───────────────── total time ─────────────────┤      untimed
//!                                       ├─ transaction ──┤
//!   transaction: (read all | append), then (create | delete)
//! ```
//!
//! [`Script`] determines the steps from the seed alone, exactly like the original: the same files
//! of the same sizes in the same order. [`run`] performs them. Rates are computed like the
//! original's: bytes, created and deleted files over the total time, the others over the
//! transaction time.
//!
//! Differences from the original, all in timing and none in the work: times are in nanoseconds, not
//! whole seconds; bytes are counted in integers; fewer than ten transactions do not cause a
//! division by zero; and an error ends the run instead of being ignored. Like the original, it
//! calls no fsync; `sync` adds one at the end of each timed section, within its time.

use super::mersenne::Mersenne;
use bench_core::files::{Files, Open};
use bench_core::{Error, Result};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Upper limits; a configuration beyond them is refused.
const FILES_MAX: u64 = 10_000_000;
const SIZE_MAX: u64 = 1 << 30;
const BLOCK_MAX: u64 = 64 << 20;
/// Probabilities are in tenths.
const BIAS_MAX: u64 = 10;

/// Parameters, as in the original's `set` commands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Number of initial files.
    pub number: u64,
    /// Number of transactions.
    pub transactions: u64,
    /// Minimum file size in bytes.
    pub size_low: u64,
    /// Exclusive maximum size of a new file in bytes, unless equal to `size_low`.
    pub size_high: u64,
    /// Number of directories for the files; 0: none.
    pub subdirectories: u64,
    /// Seed of the random numbers.
    pub seed: u32,
    /// Read size in bytes.
    pub read: u64,
    /// Write size in bytes.
    pub write: u64,
    /// Tenths of transactions that read instead of appending; `None`: neither.
    pub bias_read: Option<u64>,
    /// Tenths of transactions that create instead of deleting; `None`: neither.
    pub bias_create: Option<u64>,
    /// Whether to sync within each timed section, which the original never does.
    pub sync: bool,
}

impl Default for Config {
    /// Creates the original's defaults, without `sync`.
    fn default() -> Config {
        Config {
            number: 500,
            transactions: 500,
            size_low: 500,
            size_high: 10_000,
            subdirectories: 0,
            seed: 42,
            read: 512,
            write: 512,
            bias_read: Some(5),
            bias_create: Some(5),
            sync: false,
        }
    }
}

impl Config {
    /// Reads a configuration file of the original up to its `quit`. `buffering`, `report` and a
    /// single `location` are accepted and ignored: the target is specified elsewhere, and nothing
    /// is buffered here.
    ///
    /// # Errors
    /// [`Error::Spec`] with the line number.
    pub fn parse(text: &str) -> Result<Config> {
        let mut config = Config::default();
        let (mut ran, mut locations) = (false, 0);
        for (index, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let bad = |why: String| Error::Spec(format!("line {}: {why}", index + 1));
            match words[..] {
                ["quit", ..] => break,
                ["run" | "set", ..] if ran => {
                    let why =
                        "commands after `run` are another run, which must be in a file of its own";
                    return Err(bad(why.into()));
                }
                ["run", ..] => ran = true,
                ["set", "location", ..] => locations += 1,
                _ => {}
            }
            if locations > 1 {
                let why = "several locations are not supported; all files are in the target";
                return Err(bad(why.into()));
            }
            config.obey(&words).map_err(bad)?;
        }
        config.check()?;
        Ok(config)
    }

    fn obey(&mut self, words: &[&str]) -> std::result::Result<(), String> {
        let bias = |text: &str| match number(text) {
            _ if text == "-1" => Ok(None),
            Ok(tenths) if tenths <= BIAS_MAX => Ok(Some(tenths)),
            _ => Err(format!(
                "`{text}` is not a bias; expected -1 (never) or 0 to {BIAS_MAX}"
            )),
        };
        match words {
            [] | ["run" | "quit" | "show" | "help", ..] => {}
            ["set", "location", _, ..] => {}
            ["set", "buffering", "true" | "false"] => {}
            ["set", "report", "verbose" | "terse"] => {}
            ["set", "number", n] => self.number = number(n)?,
            ["set", "transactions", n] => self.transactions = number(n)?,
            ["set", "subdirectories", n] => self.subdirectories = number(n)?,
            ["set", "read", n] => self.read = number(n)?,
            ["set", "write", n] => self.write = number(n)?,
            ["set", "seed", n] => self.seed = n.parse().map_err(|_| no_number(n))?,
            ["set", "size", one] => {
                (self.size_low, self.size_high) = (number(one)?, number(one)?);
            }
            ["set", "size", low, high] => {
                (self.size_low, self.size_high) = (number(low)?, number(high)?);
            }
            ["set", "bias", "read", n] => self.bias_read = bias(n)?,
            ["set", "bias", "create", n] => self.bias_create = bias(n)?,
            [word, ..] => return Err(format!("unsupported command `{word} ...`")),
        }
        Ok(())
    }

    /// Checks whether the configuration is within its limits.
    ///
    /// # Errors
    /// [`Error::Spec`] with the value and its bounds.
    pub fn check(&self) -> Result<()> {
        let within = |what: &str, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(Error::Spec(format!(
                    "{what} is {value}, but must be {low} to {high}"
                )))
            }
        };
        within("number", self.number, 1, FILES_MAX)?;
        within("transactions", self.transactions, 0, FILES_MAX * 10)?;
        within("subdirectories", self.subdirectories, 0, FILES_MAX)?;
        within("the smallest size", self.size_low, 1, SIZE_MAX)?;
        within("the largest size", self.size_high, self.size_low, SIZE_MAX)?;
        within("read", self.read, 1, BLOCK_MAX)?;
        within("write", self.write, 1, BLOCK_MAX)
    }
}

fn no_number(text: &str) -> String {
    format!("`{text}` is not a whole number")
}

fn number(text: &str) -> std::result::Result<u64, String> {
    text.parse().map_err(|_| no_number(text))
}

/// One step of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Create a file of this many bytes.
    Create(String, u64),
    /// Read a whole file, which has this many bytes.
    Read(String, u64),
    /// Append this many bytes, at least one, to a file.
    Append(String, u64),
    /// Delete a file.
    Delete(String),
    /// Half of a transaction without an effect: a full file to append to, or no room for a new one.
    Nothing,
}

/// A file in the table.
struct Known {
    name: String,
    size: u64,
}

/// The steps of a run.
pub struct Script {
    config: Config,
    numbers: Mersenne,
    table: Vec<Option<Known>>,
    /// Slot after the last assigned one.
    next: usize,
    used: usize,
    made: u64,
}

impl Script {
    /// Creates the script of a checked configuration.
    pub fn new(config: &Config) -> Script {
        let mut numbers = Mersenne::new(config.seed);
        // The original first draws the text of its files, twice the size of the largest file.
        for _ in 0..2 * config.size_high {
            numbers.draw();
        }
        Script {
            config: config.clone(),
            numbers,
            table: (0..2 * config.number).map(|_| None).collect(),
            next: 0,
            used: 0,
            made: 0,
        }
    }

    /// Returns the directories to create first and to remove last.
    pub fn folders(&self) -> impl Iterator<Item = String> + use<> {
        (0..self.config.subdirectories).map(|n| format!("s{n}"))
    }

    /// Returns the step that creates another file, or [`Step::Nothing`] if the table is full.
    pub fn create(&mut self) -> Step {
        if self.used == self.table.len() {
            return Step::Nothing;
        }
        // Use the slot after the last assigned one if it is free, else the first free one. Reads
        // draw slots at random, so the slot of a file determines which files are read later.
        let free = match self.table.get(self.next) {
            Some(None) => self.next,
            _ => self.table.iter().position(Option::is_none).unwrap_or(0),
        };
        self.next = free + 1;
        self.made += 1;
        let name = match self.config.subdirectories {
            0 => self.made.to_string(),
            folders => {
                let folder = if folders > 1 {
                    self.numbers.below(folders)
                } else {
                    0
                };
                format!("s{folder}/{}", self.made)
            }
        };
        let (low, high) = (self.config.size_low, self.config.size_high);
        let size = low + self.numbers.below(high - low);
        let known = Known {
            name: name.clone(),
            size,
        };
        self.table[free] = Some(known);
        self.used += 1;
        Step::Create(name, size)
    }

    /// Draws the two steps of a transaction.
    pub fn transaction(&mut self) -> [Step; 2] {
        let first = match self.config.bias_read {
            Some(tenths) if self.used > 0 => {
                if self.numbers.below(10) < tenths {
                    self.read()
                } else {
                    self.append()
                }
            }
            _ => Step::Nothing,
        };
        let second = match self.config.bias_create {
            Some(tenths) => {
                if self.numbers.below(10) < tenths {
                    self.create()
                } else {
                    self.delete()
                }
            }
            None => Step::Nothing,
        };
        [first, second]
    }

    /// Returns steps that delete the remaining files in table order.
    pub fn rest(&mut self) -> impl Iterator<Item = Step> + use<'_> {
        self.used = 0;
        self.table
            .iter_mut()
            .filter_map(|slot| Some(Step::Delete(slot.take()?.name)))
    }

    fn pick(&mut self) -> usize {
        loop {
            let slot = self.numbers.below(self.table.len() as u64) as usize;
            if self.table[slot].is_some() {
                return slot;
            }
        }
    }

    fn read(&mut self) -> Step {
        let slot = self.pick();
        let known = self.table[slot]
            .as_ref()
            .expect("picked from the existing files");
        Step::Read(known.name.clone(), known.size)
    }

    fn append(&mut self) -> Step {
        let slot = self.pick();
        let known = self.table[slot]
            .as_mut()
            .expect("picked from the existing files");
        let room = self.config.size_high.saturating_sub(known.size);
        if room == 0 {
            return Step::Nothing;
        }
        let more = self.numbers.below(room) + 1;
        known.size += more;
        Step::Append(known.name.clone(), more)
    }

    fn delete(&mut self) -> Step {
        if self.used == 0 {
            return Step::Nothing;
        }
        let slot = self.pick();
        let known = self.table[slot]
            .take()
            .expect("picked from the existing files");
        self.used -= 1;
        Step::Delete(known.name)
    }
}

/// Counts and times of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Files created before the transactions.
    pub created_alone: u64,
    /// Files created by transactions.
    pub created_mixed: u64,
    /// Files read.
    pub read: u64,
    /// Files appended to.
    pub appended: u64,
    /// Files deleted after the transactions.
    pub deleted_alone: u64,
    /// Files deleted by transactions.
    pub deleted_mixed: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Number of transactions.
    pub transactions: u64,
    /// Seconds from the first creation to the last deletion.
    pub total_secs: f64,
    /// Seconds of the creations before the transactions.
    pub create_secs: f64,
    /// Seconds of the transactions.
    pub transaction_secs: f64,
    /// Seconds of the deletions after the transactions.
    pub delete_secs: f64,
}

impl Report {
    /// Returns transactions per second of transaction time.
    pub fn transactions_per_sec(&self) -> f64 {
        self.transactions as f64 / self.transaction_secs
    }

    /// Returns MiB read per second of total time.
    pub fn read_mib_per_sec(&self) -> f64 {
        self.bytes_read as f64 / f64::from(1 << 20) / self.total_secs
    }

    /// Returns MiB written per second of total time.
    pub fn written_mib_per_sec(&self) -> f64 {
        self.bytes_written as f64 / f64::from(1 << 20) / self.total_secs
    }
}

/// Runs the workload on an empty target and leaves it empty.
///
/// # Errors
/// [`Error::Spec`] for an invalid configuration, [`Error::Files`] for errors of the target,
/// [`Error::Verify`] for a file that is shorter than written.
pub fn run(files: &dyn Files, config: &Config) -> Result<Report> {
    config.check()?;
    let mut script = Script::new(config);
    let mut doing = Doing::new(files, config);
    for folder in script.folders() {
        files
            .mkdir(&folder)
            .map_err(|e| doing.failed("mkdir", &folder, e))?;
    }
    let began = Instant::now();
    for _ in 0..config.number {
        let step = script.create();
        doing.step(&step)?;
    }
    doing.sync()?;
    doing.report.create_secs = began.elapsed().as_secs_f64();
    doing.report.created_alone = std::mem::take(&mut doing.report.created_mixed);
    let mixed = Instant::now();
    for _ in 0..config.transactions {
        for step in script.transaction() {
            doing.step(&step)?;
        }
    }
    doing.sync()?;
    doing.report.transactions = config.transactions;
    doing.report.transaction_secs = mixed.elapsed().as_secs_f64();
    let deleted_mixed = std::mem::take(&mut doing.report.deleted_mixed);
    let rest = Instant::now();
    for step in script.rest() {
        doing.step(&step)?;
    }
    doing.sync()?;
    doing.report.delete_secs = rest.elapsed().as_secs_f64();
    doing.report.total_secs = began.elapsed().as_secs_f64();
    doing.report.deleted_alone = std::mem::replace(&mut doing.report.deleted_mixed, deleted_mixed);
    for folder in script.folders() {
        files
            .rmdir(&folder)
            .map_err(|e| doing.failed("rmdir", &folder, e))?;
    }
    Ok(doing.report)
}

/// Performs steps on the target.
struct Doing<'a> {
    files: &'a dyn Files,
    config: &'a Config,
    /// Data to write: incompressible, twice the size of the largest file, as in the original.
    text: Vec<u8>,
    buffer: Vec<u8>,
    report: Report,
}

impl<'a> Doing<'a> {
    fn new(files: &'a dyn Files, config: &'a Config) -> Doing<'a> {
        let mut text = vec![0; 2 * config.size_high as usize];
        bench_core::rng::Rng::new(u64::from(config.seed)).fill(&mut text);
        Doing {
            files,
            config,
            text,
            buffer: vec![0; config.read as usize],
            report: Report::default(),
        }
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Create(name, size) => {
                self.write(
                    name,
                    Open {
                        truncate: false,
                        ..Open::CREATE
                    },
                    *size,
                )?;
                self.report.created_mixed += 1;
            }
            Step::Append(name, more) => {
                self.write(name, Open::APPEND, *more)?;
                self.report.appended += 1;
            }
            Step::Read(name, size) => {
                self.read(name, *size)?;
                self.report.read += 1;
            }
            Step::Delete(name) => {
                self.files
                    .unlink(name)
                    .map_err(|e| self.failed("unlink", name, e))?;
                self.report.deleted_mixed += 1;
            }
            Step::Nothing => {}
        }
        Ok(())
    }

    fn write(&mut self, name: &str, how: Open, size: u64) -> Result<()> {
        let file = self
            .files
            .open(name, how)
            .map_err(|e| self.failed("open", name, e))?;
        // Each file starts at another place in the text, so that no two files are alike.
        let start = self.report.bytes_written % self.config.size_high;
        let text = &self.text[start as usize..][..size as usize];
        let mut at = 0;
        for block in text.chunks(self.config.write as usize) {
            file.write_at(at, block)
                .map_err(|e| self.failed("write", name, e))?;
            at += block.len() as u64;
        }
        self.report.bytes_written += size;
        Ok(())
    }

    fn read(&mut self, name: &str, size: u64) -> Result<()> {
        let file = self
            .files
            .open(name, Open::READ)
            .map_err(|e| self.failed("open", name, e))?;
        let mut at = 0;
        while at < size {
            let got = file.read_at(at, &mut self.buffer);
            match got.map_err(|e| self.failed("read", name, e))? {
                0 => {
                    return Err(Error::Verify {
                        arm: self.files.name(),
                        offset: at,
                    });
                }
                n => at += n as u64,
            }
        }
        self.report.bytes_read += at;
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        if self.config.sync {
            self.files.sync().map_err(|e| self.failed("sync", "", e))
        } else {
            Ok(())
        }
    }

    fn failed(&self, call: &'static str, path: &str, source: std::io::Error) -> Error {
        Error::on_files(self.files.name(), call, path, source)
    }
}
