//! `evfs quickstart`: the main workflow with default settings, shown step by step with its
//! commands, on a file in a directory of its own.

mod mounted;
mod paths;
mod store;
mod tree;

use bench_core::Workload;
use bench_core::figures::change;
use bench_load::workload::devmix;
use bench_report::readable;
use bench_study::StudyPlan;
use bench_targets::{BenchDevice, StackCost, StackKind, costs};
use cli::Context;
use cli::document::Document;
use cli::output;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use stack::{Error, Existing, Result, Settings, StopSignals, exit};
use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use store::Store;

/// Name of the key pair, the volume and the attached device.
const NAME: &str = "quickstart";
/// Size of the volume divided by the maximum size of the copied tree.
const TREE_SHARE: u64 = 3;
/// Bytes of the file for the comparison.
const COMPARE_BYTES: u64 = 64 << 20;
/// Bytes of each request of the comparison.
const COMPARE_BLOCK: u32 = 64 << 10;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evfs quickstart
  evfs quickstart --dir /srv/try --size 2G          keep the created files")]
pub struct Args {
    /// Directory for all created files, which is kept [default: a temporary directory, removed at
    /// the end]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Size of the volume
    #[arg(long, default_value = "512M", value_parser = stack::parse_size)]
    size: u64,
}

/// Results of all steps.
#[derive(Serialize, JsonSchema)]
pub struct Report {
    /// Directory of all files.
    dir: PathBuf,
    /// Size of the volume in bytes.
    size: u64,
    /// How files were stored on the volume.
    store: &'static str,
    /// Number of files that were copied.
    files: u64,
    /// Bytes in these files.
    bytes: u64,
    /// Whether all files were read back byte for byte.
    verified: bool,
    /// Result with two paths.
    paths: TwoPaths,
    /// Cost of encryption.
    cost: Vec<StackCost>,
    /// Result with a mounted file system.
    mounted: MountedFiles,
}

/// Result of the step that attaches a volume over two paths.
#[derive(Serialize, JsonSchema)]
struct TwoPaths {
    /// Name of the LUN.
    lun: String,
    /// States of its paths, after one was removed.
    states: [String; 2],
}

/// Result of the step that mounts a file system.
#[derive(Serialize, JsonSchema)]
struct MountedFiles {
    /// Reason why the step was left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<String>,
    /// Number of files in the snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<u64>,
    /// Bytes in these files.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

pub const REPORT: Document<Report> = Document::new("evfs/quickstart/1");

pub fn run(context: &Context, args: Args) -> Result<u8> {
    if args.size < 64 << 20 {
        return Err(Error::Usage(
            "--size is too small for the demo; use at least 64M".into(),
        ));
    }
    let signals = StopSignals::install()?;
    let temporary = match &args.dir {
        Some(_) => None,
        None => Some(
            tempfile::Builder::new()
                .prefix("evfs-quickstart-")
                .tempdir()
                .map_err(|e| Error::io("cannot create a directory in", &std::env::temp_dir(), e))?,
        ),
    };
    let dir = match (&args.dir, &temporary) {
        (Some(dir), _) => dir.clone(),
        (None, Some(temporary)) => temporary.path().to_owned(),
        (None, None) => unreachable!("one of the two is set"),
    };
    let tour = Tour {
        json: context.json,
        dir: prepare(&dir)?,
        signals,
        settings: context.settings.clone(),
    };
    let report = tour.run(args.size);
    // Nothing stays attached, even after a failure.
    let _ = tour.evfs(&["detach", NAME]);
    let _ = tour.evfs(&["detach", mounted::NAME, "--force"]);
    let report = report?;
    output::show(context.json, &REPORT, &report, || {
        summary(&report, args.dir.as_deref())
    });
    Ok(exit::OK)
}

fn prepare(dir: &Path) -> Result<PathBuf> {
    for folder in [dir.to_owned(), dir.join("run")] {
        stack::own_dir(&folder, "--dir")?;
    }
    let dir = std::fs::canonicalize(dir).map_err(|e| Error::io("cannot resolve", dir, e))?;
    let image = dir.join(format!("{NAME}.img"));
    if image.exists() {
        return Err(Error::Usage(format!(
            "{} already exists; remove it or choose another --dir",
            image.display()
        )));
    }
    Ok(dir)
}

/// The steps, in a directory.
struct Tour {
    json: bool,
    dir: PathBuf,
    signals: StopSignals,
    settings: Settings,
}

impl Tour {
    fn run(&self, size: u64) -> Result<Report> {
        let image = self.dir.join(format!("{NAME}.img"));
        let image = image
            .to_str()
            .ok_or_else(|| Error::Usage("--dir must be valid UTF-8".into()))?;
        let size_text = stack::size_text(size).replace("iB", "");
        self.step("create a key pair for the owner");
        self.evfs(&["key", "generate", NAME, "--no-passphrase"])?;
        self.step("create an encrypted volume in a file");
        self.evfs(&[
            "volume", "create", image, "--size", &size_text, "--owner", NAME,
        ])?;

        let store = Store::choose();
        self.step(store.title());
        let tree = tree::choose(size / TREE_SHARE);
        let mut attached = self.attach(image, &store)?;
        let kept = store.fill(&self.dir, &attached, &tree, &|| self.stopped())?;
        let copied = kept.amount();
        self.say(&format!(
            "      {} files, {} from {}",
            copied.files,
            output::size(copied.bytes),
            tree.root.display()
        ));

        self.step("detach, and search the disk for plaintext");
        self.evfs(&["detach", NAME])?;
        let leaks = tree::clear_bytes_in(&self.dir.join(format!("{NAME}.img")), &kept)?;
        if leaks > 0 {
            return Err(Error::Failed(format!(
                "found {leaks} pieces of plaintext on the disk"
            )));
        }
        self.say("      no plaintext found");

        self.step("attach again and compare every byte");
        attached = self.attach(image, &store)?;
        let verified = store.verify(&self.dir, &attached, &kept, &|| self.stopped())?;
        self.evfs(&["detach", NAME])?;
        if verified != copied {
            return Err(Error::Failed(format!(
                "read back {} files of {} bytes, but {} of {} were written",
                verified.files, verified.bytes, copied.files, copied.bytes
            )));
        }
        self.say(&format!(
            "      {} files match, byte for byte",
            verified.files
        ));

        self.step("attach over two paths, and lose one of them");
        let paths = self.two_paths(&store, &kept)?;

        self.step("measure the cost of encryption, clear and encrypted in turn");
        self.say("      $ evfs bench compare clear encrypted");
        let cost = self.cost()?;

        self.step("mount an EVFS file system on a second volume, and take a snapshot");
        let mounted = mounted::show(self, &size_text, &tree)?;
        Ok(Report {
            dir: self.dir.clone(),
            size,
            store: store.name(),
            files: copied.files,
            bytes: copied.bytes,
            verified: true,
            paths,
            cost,
            mounted,
        })
    }

    fn attach(&self, image: &str, store: &Store) -> Result<Value> {
        let mut args = vec!["attach", image, "--background"];
        args.extend(store.flags());
        self.evfs(&args)
    }

    /// Serves the volume twice, attaches it over both paths, and removes one path while all files
    /// are compared again.
    fn two_paths(&self, store: &Store, kept: &tree::Copied) -> Result<TwoPaths> {
        let copied = kept.amount();
        let served = RefCell::new(paths::Served::start(&self.dir, NAME, &self.settings)?);
        let attached = self.attach(served.borrow().device(), store)?;
        let files = Cell::new(0);
        let verified = store.verify(&self.dir, &attached, kept, &|| {
            // Halfway through, between two files.
            files.set(files.get() + 1);
            if files.get() == copied.files / 2 + 1 {
                served.borrow_mut().lose_one();
            }
            self.stopped()
        })?;
        let lun = attached["lun"].as_str().unwrap_or_default().to_owned();
        let shown = self.evfs(&["lun", "show", &lun])?;
        self.evfs(&["detach", NAME])?;
        if verified != copied {
            return Err(Error::Failed(
                "data read over two paths differs from the data written".into(),
            ));
        }
        let state = |n: usize| {
            shown["paths"][n]["state"]
                .as_str()
                .unwrap_or("-")
                .to_owned()
        };
        self.say(&format!(
            "      one path is {}, the other {}; every byte matches",
            state(0),
            state(1)
        ));
        let states = [state(0), state(1)];
        Ok(TwoPaths { lun, states })
    }

    /// Runs a short comparison; `evfs bench compare` is the long one.
    fn cost(&self) -> Result<Vec<StackCost>> {
        let file = self.dir.join("compare.img");
        let bench = BenchDevice::open(Some(&file), COMPARE_BYTES, Existing::Keep, &self.settings)?;
        let kinds = [
            StackKind::Clear,
            StackKind::Encrypted(128),
            StackKind::Encrypted(256),
        ];
        let config = devmix::Config {
            patterns: vec![Workload::SeqRead, Workload::RandWrite],
            blocks: vec![COMPARE_BLOCK],
            depths: vec![1],
            threads: vec![1],
            requests: COMPARE_BYTES / u64::from(COMPARE_BLOCK),
            span: COMPARE_BYTES,
            ..devmix::Config::default()
        };
        let plan = StudyPlan {
            pairs: 6,
            max_pairs: 6,
            min_wall: Duration::from_millis(200),
            control: false,
            ..StudyPlan::default()
        };
        let mut stop = Ok(());
        let rows = costs(bench, &kinds, config, &plan, &self.dir, &mut |_| {
            stop = self.stopped();
            match stop {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
        stop?;
        rows
    }

    /// Prints a command and runs it with this program, with the keys and sockets of this directory.
    fn evfs(&self, args: &[&str]) -> Result<Value> {
        if args[0] != "detach" {
            self.stopped()?;
        }
        let program = std::env::current_exe()
            .map_err(|e| Error::Failed(format!("cannot find this program: {e}")))?;
        let output = Command::new(program)
            .arg("--json")
            .args(args)
            .env("EVFS_KEYS_DIR", self.dir.join("keys"))
            .env("EVFS_RUN_DIR", self.dir.join("run"))
            .env("EVFS_BACKUP_DIR", self.dir.join("backup"))
            .env("EVFS_LUN_REGISTRY", self.dir.join("luns.json"))
            .env("EVFS_TRUST_STORE", self.dir.join("trust.json"))
            .stdin(Stdio::null())
            .output()
            .map_err(|e| Error::Failed(format!("cannot start this program: {e}")))?;
        let value: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        if output.status.success() {
            self.say(&format!("      $ evfs {}", args.join(" ")));
            return Ok(value);
        }
        let why = value["error"].as_str().map(str::to_owned);
        let why = why.unwrap_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned());
        Err(Error::Failed(format!(
            "evfs {}: {}",
            args.join(" "),
            why.trim()
        )))
    }

    fn stopped(&self) -> Result<()> {
        match self.signals.stop_asked() {
            Some(_) => Err(Error::Failed("interrupted; nothing stays attached".into())),
            None => Ok(()),
        }
    }

    fn step(&self, what: &str) {
        self.say(&format!("==> {what}"));
    }

    fn say(&self, text: &str) {
        output::say(self.json, text);
    }
}

fn summary(report: &Report, kept: Option<&Path>) -> String {
    let mut text = format!(
        "A key pair opened an encrypted volume of {}; {} files were written and read back byte for byte.\n",
        output::size(report.size),
        report.files,
    );
    for row in &report.cost {
        let judgement = Some(row.throughput_judgement);
        let throughput = (row.throughput_of_clear, row.throughput_interval, judgement);
        let cpu = (row.cpu_of_clear, row.cpu_interval, row.cpu_judgement);
        text += &format!(
            "{}, {} against clear: speed {}; CPU {}\n",
            readable(&row.work),
            row.stack,
            cost(throughput),
            cost(cpu),
        );
    }
    text += &match kept {
        Some(dir) => format!("All files are kept in {}.", dir.display()),
        None => "The temporary directory was removed; --dir DIR keeps its files.".to_owned(),
    };
    text + "\nnext: evfs key generate NAME, then evfs volume create disk.img --size 10G --owner NAME; \
        evfs bench compare measures longer"
}

/// Formats the change from the unencrypted device with its interval, and the judgement of it.
fn cost((median, interval, judgement): (Option<f64>, Option<[f64; 2]>, Option<&str>)) -> String {
    let judged = judgement.unwrap_or("-");
    let Some(median) = median else {
        return "not measured".into();
    };
    let interval = match interval {
        Some([low, high]) => format!("95 % interval {} to {}", change(low), change(high)),
        None => "no interval".into(),
    };
    format!("{} ({interval}), {judged}", change(median))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_states_intervals_and_the_next_step() {
        let cost = StackCost {
            work: "seq-read, 65536 bytes, 1 thread, depth 1".into(),
            stack: "encrypted-128".into(),
            throughput_of_clear: Some(0.77),
            throughput_interval: Some([0.7, 0.85]),
            throughput_judgement: "worse",
            cpu_of_clear: Some(1.47),
            cpu_interval: None,
            cpu_judgement: Some("no interval"),
        };
        let report = Report {
            dir: "d".into(),
            size: 512 << 20,
            store: "nbd",
            files: 3,
            bytes: 9,
            verified: true,
            paths: TwoPaths {
                lun: "disk1".into(),
                states: ["active".into(), "lost".into()],
            },
            cost: vec![cost],
            mounted: MountedFiles {
                left_out: None,
                files: None,
                bytes: None,
            },
        };
        let text = summary(&report, None);
        for part in [
            "of 512 MiB; 3 files",
            "seq-read, 64 KiB, 1 thread, depth 1, encrypted-128 against clear: ",
            "speed -23.0 % (95 % interval -30.0 % to -15.0 %), worse; ",
            "CPU +47.0 % (no interval), no interval\n",
            "\nnext: evfs key generate",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
