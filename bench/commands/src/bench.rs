//! `evfs bench`: the cost of encryption, of a setting or of another file system, measured with
//! confidence intervals.

use crate::arguments::{CompareArgs, MeasureArgs};
use crate::{guest, machine, units};
use crate::{measure, session};
use bench_load::{CATALOGUE, Extent, Job};
use bench_report::Results;
use bench_report::suite::SUITES;
use bench_study as study;
use bench_targets::{guard, program_error};
use clap::Subcommand;
use cli::Context;
use cli::document::Document;
use cli::output;
use cli::table::{self, Column::Left};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use stack::{Error, Result, exit};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

#[derive(Subcommand)]
pub enum Command {
    /// List the workloads, or the parameters of one workload
    List {
        /// Workload whose parameters to list
        workload: Option<String>,
    },
    /// Run workloads on one target
    #[command(after_help = "\
Runs each workload several times and prints the medians. Nothing is compared, so the figures include \
the noise of the machine; with several --env options, the others are compared with the first.

Examples:
  evfs bench run dhrystone packets --quick
  evfs bench run seqrand nfsbasic --target /mnt/data --out results
  evfs bench run mailmix --target /mnt/data --env idle --env loaded
  evfs bench run mounts --target fs-encrypted-256 --quick
  evfs bench run evfs-2006 multipath-2007 ufc-2007 ifs-1990 --out results
  evfs bench run devmix --target device:/dev/vg/scratch --set depths=1,32 --set blocks=4k")]
    Run(RunArgs),
    /// Compare two sides by running the same work on them alternately
    #[command(after_help = "\
A side is one of:
  clear, encrypted, encrypted-128    a stack built in this process over the same bytes of one device
  fs-clear, fs-encrypted-256, ...    the same stack with a mounted file system on it
  files-..., afs-...                 the same without a mount; the same behind the AFS server
  paths-2, paths-4-round-robin, ...  a device over 2, 4, ... limited paths; path: one, no path layer
  loop-ext4, loop-xfs, loop-btrfs    a kernel file system, for comparison (requires root)
  DIR, device:PATH, FILE.toml        a directory, a device that is OVERWRITTEN, a side with options
  SIDE,NAME=VALUE,...                a side with settings of its own

Runs alternate (A B B A), with the first side repeated as a control, until intervals are narrow; the result \
is the median of paired ratios with a 95 % interval. With --out, each run is saved when it ends, and the \
same command resumes an interrupted comparison.

Examples:
  evfs bench compare clear encrypted
  evfs bench compare clear encrypted-256 --workload rand-write --block 4k --threads 10
  evfs bench compare /mnt/plain /mnt/secret --workload seqrand --workload mailmix --out results
  evfs bench compare /mnt/data /mnt/data --workload seqrand --set-b direct=true
  evfs bench compare /mnt/clear /mnt/encrypted --suite evfs-2006 --out results
  evfs bench compare fs-clear fs-encrypted-256 --workload mailmix --layers
  evfs bench compare ours.toml theirs.toml --quick --json")]
    Compare(CompareArgs),
    /// Print a saved result, and write its tables, figures and HTML
    Report {
        /// Directory of a result, or its result.json
        result: PathBuf,
        /// Write the report to this directory [default: the directory of the result]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Open the page in the browser of this desktop (xdg-open)
        #[arg(long)]
        open: bool,
    },
    /// Compare an old result with a new one, and fail if a figure became worse
    #[command(after_help = "\
Fails with exit code 26 if the whole interval of a figure is beyond the threshold. Comparisons of the same \
sides are compared by their ratios, which cancel the state of the machine on that day; single runs are \
compared by their values. CPU and headline figures count; --all counts every figure.

Example:
  evfs bench diff results/old results/new --threshold 5%")]
    Diff(DiffArgs),
    /// Measure ciphers, key derivation and memory of this machine
    Machine(machine::Args),
    /// Echo UDP packets and answer Rx calls, as the peer of the packets workload on another machine
    Echo {
        /// Address and port to listen on; Rx uses the next port
        listen: std::net::SocketAddr,
    },
    /// Run as the first process of a guest, which `--env guest` starts
    #[command(hide = true)]
    Agent,
    /// Wait for the end of a benchmark and remove the mounts that it leaves behind
    #[command(hide = true)]
    Guard { pid: u32 },
}

#[derive(clap::Args)]
pub struct RunArgs {
    /// Workloads or suites to run; see `evfs bench list`
    #[arg(required = true)]
    workload: Vec<String>,
    /// Side to run on, as for `evfs bench compare` [default: a temporary directory]
    #[arg(long, value_name = "SIDE")]
    target: Option<String>,
    #[command(flatten)]
    how: MeasureArgs,
}

#[derive(clap::Args)]
pub struct DiffArgs {
    /// Directory of the old result, or its result.json
    old: PathBuf,
    /// Directory of the new result, or its result.json
    new: PathBuf,
    /// Largest change for the worse that is allowed
    #[arg(long, default_value = "5%", value_parser = units::part)]
    threshold: f64,
    /// Count every figure, not only headline and CPU figures
    #[arg(long)]
    all: bool,
}

/// Workloads and suites.
#[derive(Serialize, JsonSchema)]
pub struct Catalog {
    /// All workloads.
    workloads: Vec<ShownWorkload>,
    /// All suites.
    suites: Vec<ShownSuite>,
}

/// A workload, as `bench list` shows it.
#[derive(Serialize, JsonSchema)]
struct ShownWorkload {
    /// Name on the command line.
    name: &'static str,
    /// Benchmark that it follows.
    after: &'static str,
    /// Description.
    what: &'static str,
    /// Unit of the headline figure.
    unit: &'static str,
    /// Required target.
    needs: &'static str,
}

/// A suite, which reproduces a report.
#[derive(Serialize, JsonSchema)]
struct ShownSuite {
    /// Name on the command line.
    name: &'static str,
    /// Title of the report.
    after: &'static str,
    /// Titles of its tables and figures.
    parts: Vec<&'static str>,
}

/// Parameters of a workload.
#[derive(Serialize, JsonSchema)]
pub struct Parameters {
    /// Name of the workload.
    workload: String,
    /// All of them, in the order of the workload.
    parameters: Vec<ShownParameter>,
}

/// A parameter of a workload, with its values.
#[derive(Serialize, JsonSchema)]
struct ShownParameter {
    /// Name for `--set`.
    name: String,
    /// Default value.
    standard: Value,
    /// Value with --quick.
    quick: Value,
    /// Value with --faithful.
    faithful: Value,
}

/// Changes from an old result to a new one.
#[derive(Serialize, JsonSchema)]
pub struct Difference<'a> {
    /// All changes, or those that count.
    changes: &'a [study::Change],
    /// Changes for the worse beyond the threshold.
    worse: &'a [&'a study::Change],
}

pub const CATALOG: Document<Catalog> = Document::new("evfs/bench-workloads/1");
pub const PARAMETERS: Document<Parameters> = Document::new("evfs/bench-parameters/1");
pub const DIFFERENCE: Document<Difference<'static>> = Document::new("evfs/bench-diff/1");

pub fn run(context: &Context, command: Command) -> Result<u8> {
    match command {
        Command::List { workload: None } => Ok(list(context)),
        Command::List {
            workload: Some(name),
        } => parameters(context, &name),
        Command::Run(args) => {
            let target = args.target.as_deref();
            measure::run(context, &args.workload, target, &args.how)
        }
        Command::Compare(args) => measure::compare(context, &args),
        Command::Report { result, out, open } => report(context, &result, out, open),
        Command::Diff(args) => diff(context, &args),
        Command::Machine(args) => machine::run(context, args),
        Command::Echo { listen } => echo(context, listen),
        Command::Agent => guest::agent(context),
        Command::Guard { pid } => guard(pid),
    }
}

fn list(context: &Context) -> u8 {
    let workloads = CATALOGUE.iter().map(|e| ShownWorkload {
        name: e.name,
        after: e.after,
        what: e.what,
        unit: e.unit,
        needs: e.needs.name(),
    });
    let suites = SUITES.iter().map(|s| ShownSuite {
        name: s.name,
        after: s.after,
        parts: s.parts.iter().map(|p| p.title).collect(),
    });
    let content = Catalog {
        workloads: workloads.collect(),
        suites: suites.collect(),
    };
    output::show(context.json, &CATALOG, &content, || {
        let head = ["workload", "needs", "unit", "description; source"];
        let mut workloads = vec![head.map(str::to_owned)];
        for e in CATALOGUE {
            let what = format!("{}; after {}", e.what, e.after);
            workloads.push([e.name, e.needs.name(), e.unit, &what].map(str::to_owned));
        }
        let mut suites = vec![["suite", "report"].map(str::to_owned)];
        for s in SUITES {
            suites.push([s.name, s.after].map(str::to_owned));
        }
        let columns = [Left(11), Left(8), Left(13), Left(0)];
        let workloads = table::text(&columns, &workloads);
        format!(
            "{workloads}\n{}",
            table::text(&[Left(15), Left(0)], &suites)
        )
    });
    exit::OK
}

fn parameters(context: &Context, name: &str) -> Result<u8> {
    let of = |extent| Job::named(name, extent).map(|job| job.parameters());
    let standard = of(Extent::Standard).map_err(program_error)?;
    let quick = of(Extent::Quick).map_err(program_error)?;
    let faithful = of(Extent::Faithful).map_err(program_error)?;
    let rows: Vec<_> = standard.iter().zip(&quick).zip(&faithful).collect();
    let parameters = rows.iter().map(|((s, q), f)| ShownParameter {
        name: s.0.clone(),
        standard: s.1.clone(),
        quick: q.1.clone(),
        faithful: f.1.clone(),
    });
    let content = Parameters {
        workload: name.to_owned(),
        parameters: parameters.collect(),
    };
    output::show(context.json, &PARAMETERS, &content, || {
        let mut cells = Vec::new();
        for ((s, q), f) in &rows {
            let mut values = s.1.to_string();
            for (extent, other) in [("quick", &q.1), ("faithful", &f.1)] {
                if *other != s.1 {
                    let _ = write!(values, "   {extent} {other}");
                }
            }
            cells.push([s.0.clone(), values]);
        }
        let head = "--set NAME=VALUE: the defaults, and the values of --quick and --faithful that \
                    differ\n";
        head.to_owned() + &table::text(&[Left(17), Left(0)], &cells)
    });
    Ok(exit::OK)
}

/// Reads a saved result.
fn read(path: &std::path::Path) -> Result<Results> {
    if path.exists() {
        Results::read(path).map_err(program_error)
    } else {
        Err(Error::NotFound(format!(
            "{}: no such result; `evfs bench run --out DIR` saves one",
            path.display()
        )))
    }
}

fn report(
    context: &Context,
    result: &std::path::Path,
    out: Option<PathBuf>,
    open: bool,
) -> Result<u8> {
    let results = read(result)?;
    let own = || match (result.is_dir(), result.parent()) {
        (true, _) => result.to_owned(),
        (false, Some(parent)) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let folder = out.unwrap_or_else(own);
    std::fs::create_dir_all(&folder).map_err(|e| Error::io("cannot create", &folder, e))?;
    bench_report::write(&results, &folder).map_err(program_error)?;
    session::show(context, &results);
    let page = folder.join("report.html");
    output::say(context.json, &format!("see {}", page.display()));
    if open {
        let shown = std::process::Command::new("xdg-open").arg(&page).status();
        let why = match shown {
            Ok(status) if status.success() => return Ok(exit::OK),
            Ok(status) => status.to_string(),
            Err(e) => e.to_string(),
        };
        return Err(Error::Failed(format!(
            "cannot show the page with xdg-open: {why}; open {} manually",
            page.display()
        )));
    }
    Ok(exit::OK)
}

fn diff(context: &Context, args: &DiffArgs) -> Result<u8> {
    let (old, new) = (read(&args.old)?, read(&args.new)?);
    let mut changes = Vec::new();
    for after in &new.studies {
        let before = old.studies.iter().find(|s| s.key() == after.key());
        if let Some(before) = before {
            changes.extend(study::changes(before, after, args.threshold).map_err(program_error)?);
        }
    }
    if changes.is_empty() {
        return Err(Error::Usage(
            "the two results have no workload in common".into(),
        ));
    }
    if !args.all {
        changes.retain(|c| c.counts);
    }
    let closed = study::gate(&changes, args.threshold);
    let content = Difference {
        changes: &changes,
        worse: &closed,
    };
    output::show(context.json, &DIFFERENCE, &content, || {
        let mut text = study::change_table(&changes);
        let _ = writeln!(
            text,
            "\n{} figures, {} worse by more than {:.1} %; the two results are not paired: values of single runs include \
             changes of the machine",
            changes.len(),
            closed.len(),
            args.threshold * 100.0
        );
        for c in &closed {
            let _ = writeln!(
                text,
                "WORSE {} {} {} {}",
                c.workload, c.side, c.phase, c.cell
            );
        }
        text
    });
    Ok(if closed.is_empty() {
        exit::OK
    } else {
        exit::CHECK_FOUND_ERRORS
    })
}

fn echo(context: &Context, listen: std::net::SocketAddr) -> Result<u8> {
    let failed = |e: std::io::Error| Error::Failed(format!("cannot echo at {listen}: {e}"));
    let socket = std::net::UdpSocket::bind(listen).map_err(failed)?;
    let listen = socket.local_addr().map_err(failed)?;
    let after = listen.port().checked_add(1);
    let after = after
        .ok_or_else(|| Error::Usage("Rx uses the next port; choose a port before 65535".into()))?;
    let calls_at = std::net::SocketAddr::new(listen.ip(), after);
    let _server = bench_load::workload::packets::serve(calls_at)
        .map_err(|e| Error::Failed(format!("cannot serve Rx at {calls_at}: {e}")))?;
    output::say(
        context.json,
        &format!("echoing at {listen}, Rx at {calls_at}; stop with Ctrl-C"),
    );
    // Never set: a signal ends the process, which holds no state.
    let never = AtomicBool::new(false);
    bench_load::workload::packets::echo(&socket, &never).map_err(failed)?;
    Ok(exit::OK)
}
