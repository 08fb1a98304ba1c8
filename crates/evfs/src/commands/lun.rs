//! `evfs lun`: LUNs, their names, attributes and state.

use super::confirm::{Yes, confirm};
use super::{handle, names};
use cli::Context;
use cli::document::Document;
use cli::output;
use cli::progress::Bar;
use cli::table::{self, Column::Left, Column::Right};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use stack::lun::{Advice, AttributeRow, ScanResult, ShownLun, ShownPath, WaitingIo};
use stack::registry::Values;
use stack::{Result, exit, lun};
use std::fmt::Write as _;
use std::time::Duration;

#[derive(clap::Subcommand)]
pub enum Command {
    /// Discover LUNs and assign names to them
    #[command(after_help = "Examples:
  evfs lun scan 192.0.2.1:3260                          scan all units of all targets of a portal
  evfs lun scan nbd://192.0.2.1/disk nbd://192.0.2.2/disk

Paths with the same unique world-wide ID become one LUN. An ID that several disks may share (tgtd's
default) proves no identity: join such paths explicitly, A+B, and a nonce verifies them.")]
    Scan {
        /// Addresses or iSCSI portals (HOST:PORT) to scan
        #[arg(required = true)]
        places: Vec<String>,
    },
    /// List the known LUNs
    List {
        /// Show the legacy name and address of each path, with its LUN
        #[arg(long)]
        map: bool,
    },
    /// Show the identity, paths, state and failover log of a LUN
    Show {
        /// LUN: its name, the address of a path, or the name or mount point of a service on it
        #[arg(add = names::luns())]
        lun: String,
    },
    /// Show the counters of the paths of a LUN
    Stats {
        /// LUN: its name, the address of a path, or the name or mount point of a service on it
        #[arg(add = names::luns())]
        lun: String,
        /// Print every second until interrupted
        #[arg(long, conflicts_with = "clear")]
        watch: bool,
        /// Reset the counters to zero
        #[arg(long)]
        clear: bool,
    },
    /// Show the current, saved and default values of attributes
    Get {
        /// LUN: its name, the address of a path, or the name or mount point of a service on it
        #[arg(add = names::luns())]
        lun: String,
        /// Attribute to show [default: all]
        #[arg(add = names::attributes())]
        attribute: Option<String>,
    },
    /// Change an attribute of an open LUN until the LUN is opened again
    Set {
        /// LUN: its name, the address of a path, or the name or mount point of a service on it
        #[arg(add = names::luns())]
        lun: String,
        /// Attribute and its new value; `evfs lun get` lists the attributes
        #[arg(value_name = "ATTRIBUTE=VALUE", value_parser = pair, add = names::attribute_changes())]
        value: (String, String),
    },
    /// Persist an attribute across restarts; an empty value unsets it
    Save {
        /// LUN: its name, the address of a path, or the name or mount point of a service on it
        #[arg(add = names::luns())]
        lun: String,
        /// Attribute and its new value; `evfs lun get` lists the attributes
        #[arg(value_name = "ATTRIBUTE=VALUE", value_parser = pair, add = names::attribute_changes())]
        value: (String, String),
        /// Scope to save for: global, transport:file|nbd|iscsi|rbd or device:VENDOR/PRODUCT
        /// [default: this LUN]
        #[arg(long)]
        scope: Option<String>,
    },
    /// Forget the name, paths and saved attributes of a LUN that is not open
    #[command(
        after_help = "The disk is not changed; `evfs lun scan` discovers it again under another name.

Examples:
  evfs lun forget disk1 --yes"
    )]
    Forget {
        /// LUN: its name, the address of a path, or the name or mount point of a service on it
        #[arg(add = names::luns())]
        lun: String,
        #[command(flatten)]
        yes: Yes,
    },
    /// Replay the recorded I/O through every policy and estimate the gain of each
    Advise {
        /// LUN: its name, the address of a path, or the name or mount point of a service on it
        #[arg(add = names::luns())]
        lun: String,
    },
    /// List the waiting I/O and the reason for each wait
    Waiting {
        /// LUN: its name, the address of a path, or the name or mount point of a service on it
        #[arg(add = names::luns())]
        lun: String,
    },
}

/// All known LUNs.
#[derive(Serialize, JsonSchema)]
pub struct Luns {
    /// The LUNs, in the order of discovery.
    #[schemars(with = "Vec<ShownLun>")]
    luns: Vec<Value>,
}

/// Counters of a LUN.
#[derive(Serialize, JsonSchema)]
pub struct Counters {
    /// Name of the LUN.
    lun: String,
    /// Its paths, with their counters if the LUN is open.
    #[schemars(with = "Vec<ShownPath>")]
    paths: Value,
}

/// A LUN whose counters were reset.
#[derive(Serialize, JsonSchema)]
pub struct Cleared {
    /// Name of the LUN.
    cleared: String,
}

/// Attributes of a LUN with their values.
#[derive(Serialize, JsonSchema)]
pub struct LunAttributes {
    /// Name of the LUN.
    lun: String,
    /// One entry for each attribute.
    attributes: Vec<AttributeRow>,
}

/// An attribute that was changed.
#[derive(Serialize, JsonSchema)]
pub struct AttributeSet {
    /// Name of the attribute.
    set: String,
}

/// An attribute that was saved.
#[derive(Serialize, JsonSchema)]
pub struct AttributeSaved {
    /// Name of the attribute.
    saved: String,
}

/// A LUN that was forgotten.
#[derive(Serialize, JsonSchema)]
pub struct Forgotten {
    /// Name of the LUN.
    forgotten: String,
    /// Addresses of its paths.
    paths: Vec<String>,
    /// Values of its saved attributes, by name.
    attributes: Values,
}

/// I/O that waits.
#[derive(Serialize, JsonSchema)]
pub struct Waiting {
    /// The requests.
    #[schemars(with = "Vec<WaitingIo>")]
    waiting: Value,
}

/// Result of a scan.
#[derive(Serialize, JsonSchema)]
pub struct Found {
    /// Result at each address.
    found: Vec<ScanResult>,
}

pub const LUNS: Document<Luns> = Document::new("evfs/luns/1");
pub const LUN: Document<ShownLun> = Document::new("evfs/lun/1");
pub const COUNTERS: Document<Counters> = Document::new("evfs/lun-stat/1");
pub const CLEARED: Document<Cleared> = Document::new("evfs/lun-clear/1");
pub const ATTRIBUTES: Document<LunAttributes> = Document::new("evfs/lun-attributes/1");
pub const SET: Document<AttributeSet> = Document::new("evfs/lun-set/1");
pub const SAVED: Document<AttributeSaved> = Document::new("evfs/lun-save/1");
pub const FORGOTTEN: Document<Forgotten> = Document::new("evfs/lun-forget/1");
pub const ADVICE: Document<Advice> = Document::new("evfs/lun-advice/1");
pub const WAITING: Document<Waiting> = Document::new("evfs/lun-waiting/1");
pub const SCAN: Document<Found> = Document::new("evfs/lun-scan/1");

fn pair(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| "not of the form ATTRIBUTE=VALUE".to_owned())?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Command {
    /// The LUN as it was typed, if the command is about one.
    fn lun_mut(&mut self) -> Option<&mut String> {
        match self {
            Command::Scan { .. } | Command::List { .. } => None,
            Command::Show { lun }
            | Command::Stats { lun, .. }
            | Command::Get { lun, .. }
            | Command::Set { lun, .. }
            | Command::Save { lun, .. }
            | Command::Forget { lun, .. }
            | Command::Advise { lun }
            | Command::Waiting { lun } => Some(lun),
        }
    }
}

pub fn run(context: &Context, mut command: Command) -> Result<u8> {
    let settings = &context.settings;
    if let Some(lun) = command.lun_mut() {
        *lun = handle::lun(context, lun)?;
    }
    match command {
        Command::Scan { places } => return scan(context, &places),
        Command::List { map } => {
            let content = Luns {
                luns: lun::list(settings)?,
            };
            output::show(context.json, &LUNS, &content, || list(&content.luns, map));
        }
        Command::Show { lun } => {
            let value = lun::show(settings, &lun)?;
            output::relay(context.json, &LUN, &value, || show(&value));
        }
        Command::Stats {
            lun, clear: true, ..
        } => {
            lun::clear(settings, &lun)?;
            let cleared = lun.clone();
            output::done(context.json, &CLEARED, &Cleared { cleared }, || {
                format!("{lun}: counters reset")
            });
        }
        Command::Stats { lun, watch, .. } => loop {
            let value = lun::show(settings, &lun)?;
            let content = Counters {
                lun: lun.clone(),
                paths: value["paths"].clone(),
            };
            output::show(context.json, &COUNTERS, &content, || stat(&value));
            if !watch || output::is_gone() {
                break;
            }
            std::thread::sleep(Duration::from_secs(1));
        },
        Command::Get { lun, attribute } => {
            let rows = lun::get(settings, &lun, attribute.as_deref())?;
            let content = LunAttributes {
                lun,
                attributes: rows,
            };
            output::show(context.json, &ATTRIBUTES, &content, || {
                attributes(&content.attributes)
            });
        }
        Command::Set { lun, value } => {
            lun::set(settings, &lun, &value.0, &value.1)?;
            let set = value.0.clone();
            output::done(context.json, &SET, &AttributeSet { set }, || {
                format!("{lun}: {}={} until the next open", value.0, value.1)
            });
        }
        Command::Save { lun, value, scope } => {
            lun::save(settings, &lun, scope.as_deref(), &value.0, &value.1)?;
            let saved = value.0.clone();
            output::done(context.json, &SAVED, &AttributeSaved { saved }, || {
                let of = scope.as_deref().unwrap_or(&lun);
                if value.1.is_empty() {
                    format!("{of}: {} is no longer saved", value.0)
                } else {
                    format!(
                        "{of}: {}={} is saved and takes effect at the next open",
                        value.0, value.1
                    )
                }
            });
        }
        Command::Forget { lun, yes } => forget(context, &lun, yes.yes)?,
        Command::Advise { lun } => {
            let value = lun::advise(settings, &lun)?;
            let text = value["text"].as_str().unwrap_or_default().to_owned();
            output::relay(context.json, &ADVICE, &value, || text);
        }
        Command::Waiting { lun } => {
            let content = Waiting {
                waiting: lun::waiting(settings, &lun)?,
            };
            output::show(context.json, &WAITING, &content, || {
                waiting(&content.waiting)
            });
        }
    }
    Ok(exit::OK)
}

fn forget(context: &Context, name: &str, yes: bool) -> Result<()> {
    let known = lun::forgettable(&context.settings, name)?;
    let (paths, values) = (known.paths.len(), known.attributes.len());
    let what =
        format!("This forgets {name}, its paths ({paths}) and its saved attributes ({values})");
    confirm(yes, &what, name)?;
    let known = lun::forget(&context.settings, name)?;
    let content = Forgotten {
        forgotten: name.to_owned(),
        paths: known.paths.into_iter().map(|p| p.address).collect(),
        attributes: known.attributes,
    };
    output::done(context.json, &FORGOTTEN, &content, || {
        let mut text = format!("forgot {name}, including\n");
        for address in &content.paths {
            let _ = writeln!(text, "  path {address}");
        }
        for (name, value) in &content.attributes {
            let _ = writeln!(text, "  saved {name}={value}");
        }
        text
    });
    Ok(())
}

fn scan(context: &Context, places: &[String]) -> Result<u8> {
    let bar = Bar::new(context.json, "scanned");
    let scanned = lun::scan(&context.settings, places, &|done, all| {
        bar.at(done as u64, all as u64);
    });
    bar.end();
    let content = Found { found: scanned? };
    let found = &content.found;
    output::done(context.json, &SCAN, &content, || {
        let mut rows = vec![["LUN", "SIZE", "ADDRESS"].map(str::to_owned)];
        for f in found {
            let name = f.lun.as_deref().unwrap_or("-").to_owned();
            rows.push([name, output::size(f.size), f.address.clone()]);
        }
        let lines = table::lines(&[Left(8), Left(10), Left(0)], &rows);
        let mut text = format!("{}\n", lines[0]);
        for (line, f) in lines[1..].iter().zip(found) {
            let _ = writeln!(text, "{line}");
            if let Some(why) = &f.error {
                let _ = writeln!(text, "{:<8} {why}", "");
            }
        }
        if found.iter().any(|f| f.generic) {
            text.push_str(
                "An ID that is not unique makes each path a LUN of its own; join paths to one disk with A+B.\n",
            );
        }
        text
    });
    Ok(if found.iter().any(|f| f.lun.is_some()) {
        exit::OK
    } else {
        exit::NOT_FOUND
    })
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("-")
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or(0)
}

fn paths(lun: &Value) -> &[Value] {
    lun["paths"].as_array().map_or(&[], Vec::as_slice)
}

fn list(luns: &[Value], map: bool) -> String {
    if map {
        let mut rows = Vec::new();
        for lun in luns {
            let name = text(lun, "name");
            let paths = paths(lun).iter();
            rows.extend(paths.map(|path| [name, text(path, "legacy"), text(path, "name")]));
        }
        let rows: Vec<_> = rows.iter().map(|row| row.map(str::to_owned)).collect();
        return table::text(&[Left(8), Left(10), Left(0)], &rows);
    }
    let mut rows = vec![["LUN", "HEALTH", "SIZE", "PATHS", "WWID"].map(str::to_owned)];
    for lun in luns {
        rows.push([
            text(lun, "name").to_owned(),
            text(lun, "health").to_owned(),
            output::size(number(lun, "size")),
            paths(lun).len().to_string(),
            text(lun, "wwid").to_owned(),
        ]);
    }
    table::text(&[Left(8), Left(9), Left(10), Left(6), Left(0)], &rows)
}

/// Formats a LUN for 80 columns, except for long addresses.
fn show(lun: &Value) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<10} {value}");
    };
    line(
        "LUN",
        format!("{}  {}", text(lun, "name"), text(lun, "health")),
    );
    line("WWID", text(lun, "wwid").to_owned());
    let device = format!("{} {}", text(lun, "vendor"), text(lun, "product"));
    line(
        "device",
        format!("{device}, serial {}", text(lun, "serial")),
    );
    let size = output::size(number(lun, "size"));
    line(
        "size",
        format!("{size}, blocks of {} bytes", number(lun, "block_size")),
    );
    if lun["open"] == true {
        line("policy", text(lun, "policy").to_owned());
        let waits = format!(
            "{} for a path, {} for a lost write",
            number(lun, "waiting"),
            number(lun, "held")
        );
        line("waiting", waits);
    }
    let columns = [
        Left(10),
        Left(12),
        Right(6),
        Right(9),
        Right(9),
        Right(7),
        Right(8),
        Right(9),
    ];
    let head = [
        "PATH", "STATE", "QUEUED", "READS", "WRITES", "RETRIED", "LOST", "P99",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    for path in paths(lun) {
        rows.push([
            text(path, "legacy").to_owned(),
            text(path, "state").to_owned(),
            number(path, "in_flight").to_string(),
            number(path, "reads").to_string(),
            number(path, "writes").to_string(),
            number(path, "retried").to_string(),
            number(path, "offline_events").to_string(),
            format!("{} us", number(path, "p99_us")),
        ]);
    }
    let lines = table::lines(&columns, &rows);
    let _ = writeln!(out, "\n{}", lines[0]);
    for (line, path) in lines[1..].iter().zip(paths(lun)) {
        let _ = writeln!(out, "{line}\n  {}", text(path, "name"));
        if let Some(why) = path["why"].as_str() {
            let _ = writeln!(out, "  {why}");
        }
    }
    let log = lun["log"].as_array().map_or(&[][..], Vec::as_slice);
    if !log.is_empty() {
        let _ = writeln!(out, "\nFAILOVER LOG (newest last)");
    }
    for event in log.iter().rev().take(10).rev() {
        let stall = match number(event, "stall_us") {
            0 => String::new(),
            us => format!(", longest stall {:.1} ms", us as f64 / 1000.0),
        };
        let moved = match number(event, "moved") {
            0 => String::new(),
            n => format!(" ({n} I/Os moved{stall})"),
        };
        let time = clock(number(event, "at_ms"));
        let _ = writeln!(out, "{time} {}", text(event, "path"));
        let _ = writeln!(out, "  {}{moved}", text(event, "what"));
    }
    out
}

/// Formats the time of day in UTC.
fn clock(ms: u64) -> String {
    let secs = ms / 1000 % 86_400;
    format!(
        "{:02}:{:02}:{:02}.{:03}Z",
        secs / 3600,
        secs / 60 % 60,
        secs % 60,
        ms % 1000
    )
}

/// Formats the counters that `scsimgr get_stat` has, with a column for each path.
fn stat(lun: &Value) -> String {
    const ROWS: &[(&str, &str)] = &[
        ("reads", "reads"),
        ("writes", "writes"),
        ("bytes read", "bytes_read"),
        ("bytes written", "bytes_written"),
        ("in flight", "in_flight"),
        ("failures", "failures"),
        ("retried", "retried"),
        ("timeouts", "timeouts"),
        ("busy", "busy"),
        ("connections lost", "offline_events"),
        ("connections opened", "online_events"),
        ("suspected", "suspect_events"),
        ("late answers", "late_answers"),
        ("p50, us", "p50_us"),
        ("p99, us", "p99_us"),
    ];
    let paths = paths(lun);
    let row = |title: &str, cell: &dyn Fn(&Value) -> String| -> Vec<String> {
        let cells = paths.iter().map(cell);
        std::iter::once(title.to_owned()).chain(cells).collect()
    };
    let mut rows = vec![row("", &|path| text(path, "legacy").to_owned())];
    for (name, key) in ROWS {
        rows.push(row(name, &|path| number(path, key).to_string()));
    }
    let mut columns = vec![Left(18)];
    columns.resize(paths.len() + 1, Right(13));
    table::text(&columns, &rows)
}

fn attributes(rows: &[AttributeRow]) -> String {
    let head = ["ATTRIBUTE", "CURRENT", "SAVED", "DEFAULT", "FROM"];
    let mut cells = vec![head.map(str::to_owned)];
    for row in rows {
        let dash = |text: &str| {
            if text.is_empty() {
                "-".to_owned()
            } else {
                text.to_owned()
            }
        };
        cells.push([
            row.name.to_owned(),
            dash(row.current.as_deref().unwrap_or_default()),
            dash(&row.saved),
            dash(&row.default),
            row.origin.clone(),
        ]);
    }
    let columns = [Left(24), Left(16), Left(16), Left(16), Left(0)];
    let mut out = table::text(&columns, &cells);
    if let [row] = rows {
        let _ = writeln!(out, "{}", row.help);
    }
    out
}

fn waiting(value: &Value) -> String {
    let all = value.as_array().map_or(&[][..], Vec::as_slice);
    if all.is_empty() {
        return "no I/O is waiting".into();
    }
    let row = |io: &Value| {
        [
            text(io, "op").to_owned(),
            format!("{} bytes at", number(io, "len")),
            number(io, "offset").to_string(),
            format!("{} ms ", number(io, "age_ms")),
            text(io, "why").to_owned(),
        ]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    let columns = [Left(12), Right(18), Left(14), Right(11), Left(0)];
    table::text(&columns, &rows)
}
