//! `evfs cache`: the file cache of the processes that serve volumes.

use super::{handle, names};
use cli::Context;
use cli::document::Document;
use cli::output::{self, size};
use cli::table::Column::{Left, Right};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use stack::cache::{
    ADVICE, Dropped, Flushed, ShownCache, ShownFile, ShownSetting, TUNABLES, changed_sizes,
    parse_change,
};
use stack::control::CacheRequest;
use stack::{Error, Result, control, exit};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(clap::Subcommand)]
pub enum Command {
    /// Show the settings and statistics of the file cache
    #[command(after_help = "\
Examples:
  evfs cache show
  evfs cache show --files --watch          every second until interrupted")]
    Show {
        /// Also show each file
        #[arg(long)]
        files: bool,
        /// Print every second until interrupted
        #[arg(long)]
        watch: bool,
    },
    /// Change settings of the running caches: either all of them or none
    #[command(after_help = settings_help())]
    Set {
        /// Settings to change
        #[arg(required = true, value_name = "NAME=VALUE", value_parser = parse_change, add = names::cache_settings())]
        changes: Vec<(String, String)>,
    },
    /// Write dirty pages to stable storage
    Flush {
        /// Attached volume or mounted file system: its name, device or mount point [default: all]
        #[arg(add = names::services())]
        volume: Option<PathBuf>,
    },
    /// Flush the cache, then evict its pages
    Drop {
        /// Attached volume or mounted file system: its name, device or mount point [default: all]
        #[arg(add = names::services())]
        volume: Option<PathBuf>,
    },
    /// Set the caching attributes of a volume or a file
    #[command(after_help = advice_help())]
    Advise {
        /// Attached volume or mounted file system: its name, device or mount point
        #[arg(add = names::services())]
        volume: PathBuf,
        /// File in a mounted file system, relative to its root, or VOLUME/PATH in a served cell
        #[arg(long = "file", value_name = "PATH")]
        path: Option<String>,
        /// Attributes to set
        #[arg(required = true, value_name = "NAME=VALUE", value_parser = parse_change, add = names::cache_advice())]
        changes: Vec<(String, String)>,
    },
}

fn settings_help() -> String {
    let mut help = String::from(
        "Examples:\n  evfs cache set filecache_max=25%\n  evfs cache set filecache_min=64M filecache_max=2G\n\
         \nA process that serves volumes has one cache for all of them. The change applies to all\n\
         these processes. To make it permanent, set `cache.tunables` in the configuration file.\n\n\
         Settings:\n",
    );
    for row in TUNABLES {
        let _ = writeln!(
            help,
            "  {} (default {})\n      {}",
            row.text, row.default, row.help
        );
    }
    help
}

fn advice_help() -> String {
    let mut help = String::from(
        "Examples:\n  evfs cache advise disk read_ahead=no\n  evfs cache advise disk sync_interval=1000 no_cache=yes\n\nAttributes:\n",
    );
    for (name, values, what) in ADVICE {
        let _ = writeln!(help, "  {:<30}{what}", format!("{name}={values}"));
    }
    help
}

/// Caches of all processes of this user.
#[derive(Serialize, JsonSchema)]
pub struct Caches {
    /// The caches, one for each process.
    caches: Vec<NamedCache>,
}

/// The cache of a process.
#[derive(Serialize, JsonSchema)]
struct NamedCache {
    #[serde(flatten)]
    #[schemars(with = "ShownCache")]
    cache: Value,
    /// Open files, if they were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<Vec<NamedFile>>,
    /// Names of the services whose pages are in the cache.
    volumes: Vec<String>,
}

/// A file in the cache.
#[derive(Serialize, JsonSchema)]
struct NamedFile {
    #[serde(flatten)]
    #[schemars(with = "ShownFile")]
    file: Value,
    /// Name of the service.
    volume: String,
}

/// Settings of the caches of all processes of this user.
#[derive(Serialize, JsonSchema)]
pub struct CacheSettings {
    /// The caches, one for each process.
    caches: Vec<NamedSettings>,
}

/// Settings of the cache of a process.
#[derive(Serialize, JsonSchema)]
struct NamedSettings {
    /// ID of the process.
    pid: u64,
    /// All settings.
    #[schemars(with = "Vec<ShownSetting>")]
    settings: Value,
    /// Names of the services whose pages are in the cache.
    volumes: Vec<String>,
}

/// Services whose pages were written out.
#[derive(Serialize, JsonSchema)]
pub struct AllFlushed {
    /// The services.
    flushed: Vec<NamedFlush>,
}

/// A service whose pages were written out.
#[derive(Serialize, JsonSchema)]
struct NamedFlush {
    #[serde(flatten)]
    #[schemars(with = "Flushed")]
    answer: Value,
    /// Name of the service.
    volume: String,
}

/// Services whose pages were dropped.
#[derive(Serialize, JsonSchema)]
pub struct AllDropped {
    /// The services.
    dropped: Vec<NamedDrop>,
}

/// A service whose pages were dropped.
#[derive(Serialize, JsonSchema)]
struct NamedDrop {
    #[serde(flatten)]
    #[schemars(with = "Dropped")]
    answer: Value,
    /// Name of the service.
    volume: String,
}

/// Caching attributes by name.
#[derive(Serialize, JsonSchema)]
pub struct CacheAttributes {
    #[serde(flatten)]
    #[schemars(with = "BTreeMap<String, String>")]
    attributes: Value,
}

pub const CACHES: Document<Caches> = Document::new("evfs/caches/1");
pub const SETTINGS: Document<CacheSettings> = Document::new("evfs/cache-settings/1");
pub const FLUSHED: Document<AllFlushed> = Document::new("evfs/cache-flush/1");
pub const DROPPED: Document<AllDropped> = Document::new("evfs/cache-drop/1");
pub const ATTRIBUTES: Document<CacheAttributes> = Document::new("evfs/cache-attributes/1");

pub fn run(context: &Context, command: Command) -> Result<u8> {
    match command {
        Command::Show { files, watch } => return show(context, files, watch),
        Command::Set { changes } => set(context, changes)?,
        Command::Flush { volume } => {
            let answers = volumes(context, volume.as_deref(), &CacheRequest::Flush)?.into_iter();
            let flushed = answers.map(|(volume, answer)| NamedFlush { answer, volume });
            let flushed: Vec<_> = flushed.collect();
            let content = AllFlushed { flushed };
            output::done(context.json, &FLUSHED, &content, || {
                let all = content.flushed.iter();
                let lines = all.map(|f| format!("{}: all data is on stable storage", f.volume));
                lines.collect::<Vec<_>>().join("\n")
            });
        }
        Command::Drop { volume } => {
            let answers = volumes(context, volume.as_deref(), &CacheRequest::Drop)?.into_iter();
            let dropped = answers.map(|(volume, answer)| NamedDrop { answer, volume });
            let dropped: Vec<_> = dropped.collect();
            let content = AllDropped { dropped };
            output::done(context.json, &DROPPED, &content, || {
                let all = content.dropped.iter();
                let lines = all.map(|d| {
                    let bytes = d.answer["dropped_bytes"].as_u64().unwrap_or(0);
                    format!("{}: dropped {}", d.volume, size(bytes))
                });
                lines.collect::<Vec<_>>().join("\n")
            });
        }
        Command::Advise {
            volume,
            path,
            changes,
        } => {
            let dir = context.settings.run_dir();
            let name = handle::service(context, &volume)?.name;
            let ask = control::ControlRequest::Cache(CacheRequest::Advise { path, changes });
            let content = CacheAttributes {
                attributes: control::send_request(&dir, &name, &ask)?,
            };
            output::show(context.json, &ATTRIBUTES, &content, || {
                attributes(&content.attributes)
            });
        }
    }
    Ok(exit::OK)
}

fn set(context: &Context, changes: Vec<(String, String)>) -> Result<()> {
    if let Some(notice) = changed_sizes(&changes) {
        output::say(context.json, &format!("note: {notice}"));
    }
    let answers = each_process(context, &CacheRequest::Set { changes })?;
    let caches = answers.into_iter().map(|of| NamedSettings {
        pid: of.pid,
        settings: of.answer,
        volumes: of.volumes,
    });
    let content = CacheSettings {
        caches: caches.collect(),
    };
    output::done(context.json, &SETTINGS, &content, || {
        let tables = content.caches.iter().map(|cache| settings(&cache.settings));
        tables.collect::<Vec<_>>().join("\n")
    });
    Ok(())
}

fn show(context: &Context, files: bool, watch: bool) -> Result<u8> {
    loop {
        let mut caches = Vec::new();
        for of in each_process(context, &CacheRequest::Show { files: false })? {
            caches.push(NamedCache {
                cache: of.answer,
                files: if files {
                    Some(files_of(context, &of.volumes)?)
                } else {
                    None
                },
                volumes: of.volumes,
            });
        }
        let content = Caches { caches };
        output::show(context.json, &CACHES, &content, || {
            let texts = content.caches.iter().map(describe);
            texts.collect::<Vec<_>>().join("\n")
        });
        if !watch || output::is_gone() {
            return Ok(exit::OK);
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Lists the cached volumes of each serving process, as its process ID and their names.
fn processes(context: &Context) -> Result<Vec<(u64, Vec<String>)>> {
    let dir = context.settings.run_dir();
    let mut found: Vec<(u64, Vec<String>)> = Vec::new();
    for (name, status) in control::statuses(&dir)? {
        let Ok(status) = status else {
            output::warn(context.json, &format!("{name}: not answering"));
            continue;
        };
        if status["cached"] != true {
            continue;
        }
        let pid = status["pid"].as_u64().unwrap_or(0);
        match found.iter_mut().find(|(p, _)| *p == pid) {
            Some((_, names)) => names.push(name),
            None => found.push((pid, vec![name])),
        }
    }
    Ok(found)
}

fn none() -> Error {
    Error::NotFound("no cached volume is attached; attach one with `evfs attach`".into())
}

/// Answer of a process, with the names of its cached volumes.
struct Answer {
    pid: u64,
    volumes: Vec<String>,
    answer: Value,
}

/// Queries each process once, through one of its volumes.
fn each_process(context: &Context, ask: &CacheRequest) -> Result<Vec<Answer>> {
    let processes = processes(context)?;
    if processes.is_empty() {
        return Err(none());
    }
    let answer = |(pid, volumes): (u64, Vec<String>)| -> Result<Answer> {
        let answer = put(context, &volumes[0], ask)?;
        Ok(Answer {
            pid,
            volumes,
            answer,
        })
    };
    processes.into_iter().map(answer).collect()
}

/// Lists the open files of cached volumes.
fn files_of(context: &Context, volumes: &[String]) -> Result<Vec<NamedFile>> {
    let mut files = Vec::new();
    for volume in volumes {
        let mut answer = put(context, volume, &CacheRequest::Show { files: true })?;
        for file in answer["files"].as_array_mut().into_iter().flatten() {
            files.push(NamedFile {
                file: file.take(),
                volume: volume.clone(),
            });
        }
    }
    Ok(files)
}

fn put(context: &Context, name: &str, ask: &CacheRequest) -> Result<Value> {
    let dir = context.settings.run_dir();
    control::send_request(&dir, name, &control::ControlRequest::Cache(ask.clone()))
}

/// Queries one volume, or all cached volumes; returns each answer with the name of the volume.
fn volumes(
    context: &Context,
    volume: Option<&Path>,
    ask: &CacheRequest,
) -> Result<Vec<(String, Value)>> {
    let names = match volume {
        Some(word) => vec![handle::service(context, word)?.name],
        None => processes(context)?
            .into_iter()
            .flat_map(|(_, n)| n)
            .collect(),
    };
    if names.is_empty() {
        return Err(none());
    }
    let answer = |name: String| -> Result<(String, Value)> {
        let answer = put(context, &name, ask)?;
        Ok((name, answer))
    };
    names.into_iter().map(answer).collect()
}

fn attributes(value: &Value) -> String {
    let pairs = value.as_object().into_iter().flatten();
    pairs
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or("-")))
        .collect::<Vec<_>>()
        .join(" ")
}

fn settings(settings: &Value) -> String {
    let row = |row: &Value| {
        let word = |key: &str| row[key].as_str().unwrap_or("-");
        let mark = if word("value") == word("default") {
            ""
        } else {
            " *"
        };
        let name = format!("  {}", word("name"));
        [name, word("value").to_owned(), mark.to_owned()]
    };
    let all = settings.as_array().into_iter().flatten();
    let rows: Vec<_> = all.map(row).collect();
    cli::table::text(&[Left(32), Right(11), Left(0)], &rows)
}

/// Formats one cache as text.
fn describe(named: &NamedCache) -> String {
    let cache = &named.cache;
    let stats = &cache["stats"];
    let number = |key: &str| stats[key].as_u64().unwrap_or(0);
    let bytes = |key: &str| size(number(key));
    let reads = number("hits") + number("misses") + number("joins");
    let ratio = match reads {
        0 => "no reads yet".into(),
        _ => format!(
            "{:.1} % of {reads} pages",
            100.0 * number("hits") as f64 / reads as f64
        ),
    };
    let oldest = match stats["oldest_dirty_ms"].as_u64() {
        Some(ms) => format!(", the oldest {:.1} s", ms as f64 / 1000.0),
        None => String::new(),
    };
    let word = |key: &str| cache[key].as_str().unwrap_or("-");
    let names = named.volumes.join(", ");
    let mut text = format!("cache of process {}: {names}\n", cache["pid"]);
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<12}{value}");
    };
    line(
        "pages",
        format!("{} of at most {}", bytes("used_bytes"), bytes("max_bytes")),
    );
    line("mapped", bytes("mapped_bytes"));
    line("dirty", format!("{}{oldest}", bytes("dirty_bytes")));
    line("hits", ratio);
    line(
        "joins",
        format!(
            "{} waited for a page that was already loading",
            number("joins")
        ),
    );
    line(
        "read-ahead",
        format!(
            "{} pages, {} used, {} wasted",
            number("read_ahead"),
            number("read_ahead_used"),
            number("read_ahead_wasted")
        ),
    );
    line("evicted", evictions(&stats["left"]));
    line(
        "memory",
        format!("{}, index {}", word("frames"), bytes("index_bytes")),
    );
    line("nodes", word("nodes").to_owned());
    line("swap", word("swap").to_owned());
    line("shortage", word("shortage").to_owned());
    text += &settings(&cache["settings"]);
    for file in named.files.iter().flatten() {
        text += &describe_file(file);
    }
    text
}

/// Formats the evicted pages by reason.
fn evictions(evicted: &Value) -> String {
    let pairs = evicted.as_object().into_iter().flatten();
    let pairs: Vec<_> = pairs
        .filter(|(_, n)| n.as_u64() != Some(0))
        .map(|(reason, n)| format!("{n} {}", reason.replace('_', " ")))
        .collect();
    if pairs.is_empty() {
        "none".into()
    } else {
        pairs.join(", ")
    }
}

fn describe_file(named: &NamedFile) -> String {
    let file = &named.file;
    let number = |key: &str| file[key].as_u64().unwrap_or(0);
    format!(
        "  {}  file {}  {} of {}  dirty {}  hits {}  misses {}  joins {}\n    {}\n",
        named.volume,
        number("file"),
        size(number("resident_bytes")),
        size(number("size")),
        size(number("dirty_bytes")),
        number("hits"),
        number("misses"),
        number("joins"),
        attributes(&file["attributes"]),
    )
}
