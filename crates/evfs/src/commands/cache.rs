//! `evfs cache`: the file cache of the processes that serve volumes.

use super::{handle, names};
use cli::Context;
use cli::output::{self, size};
use cli::table::Column::{Left, Right};
use serde_json::{Value, json};
use stack::cache::{ADVICE, TUNABLES, changed_sizes, parse_change};
use stack::control::CacheRequest;
use stack::{Error, Result, control, exit};
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

pub fn run(context: &Context, command: Command) -> Result<u8> {
    match command {
        Command::Show { files, watch } => return show(context, files, watch),
        Command::Set { changes } => {
            if let Some(notice) = changed_sizes(&changes) {
                output::say(context.json, &format!("note: {notice}"));
            }
            let answers = each_process(context, &CacheRequest::Set { changes })?;
            let value = json!({ "caches": answers });
            output::done(context.json, &value, || {
                answers.iter().map(settings).collect::<Vec<_>>().join("\n")
            });
        }
        Command::Flush { volume } => {
            let answers = volumes(context, volume.as_deref(), &CacheRequest::Flush)?;
            let value = json!({ "flushed": answers });
            output::done(context.json, &value, || {
                words(&answers, |_| "all data is on stable storage".into())
            });
        }
        Command::Drop { volume } => {
            let answers = volumes(context, volume.as_deref(), &CacheRequest::Drop)?;
            let value = json!({ "dropped": answers });
            output::done(context.json, &value, || {
                words(&answers, |a| {
                    format!("dropped {}", size(a["dropped_bytes"].as_u64().unwrap_or(0)))
                })
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
            let value = control::send_request(&dir, &name, &ask)?;
            output::show(context.json, &value, || attributes(&value));
        }
    }
    Ok(exit::OK)
}

fn show(context: &Context, files: bool, watch: bool) -> Result<u8> {
    loop {
        let caches = each_process(context, &CacheRequest::Show { files })?;
        output::show(context.json, &json!({ "caches": caches }), || {
            caches.iter().map(describe).collect::<Vec<_>>().join("\n")
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

/// Queries each process once, through one of its volumes; files are queried through all of them.
fn each_process(context: &Context, ask: &CacheRequest) -> Result<Vec<Value>> {
    let dir = context.settings.run_dir();
    let processes = processes(context)?;
    if processes.is_empty() {
        return Err(none());
    }
    let mut answers = Vec::new();
    for (pid, names) in processes {
        let put = |name: &str| {
            control::send_request(&dir, name, &control::ControlRequest::Cache(ask.clone()))
        };
        let mut answer = put(&names[0])?;
        if matches!(ask, CacheRequest::Set { .. }) {
            answer = json!({ "pid": pid, "settings": answer });
        }
        if matches!(ask, CacheRequest::Show { files: true }) {
            let mut files = Vec::new();
            for name in &names {
                let mut own = put(name)?["files"].take();
                for file in own.as_array_mut().into_iter().flatten() {
                    file["volume"] = json!(name);
                    files.push(file.take());
                }
            }
            answer["files"] = json!(files);
        }
        answer["volumes"] = json!(names);
        answers.push(answer);
    }
    Ok(answers)
}

/// Queries one volume, or all cached volumes.
fn volumes(context: &Context, volume: Option<&Path>, ask: &CacheRequest) -> Result<Vec<Value>> {
    let dir = context.settings.run_dir();
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
    let mut answers = Vec::new();
    for name in names {
        let mut answer =
            control::send_request(&dir, &name, &control::ControlRequest::Cache(ask.clone()))?;
        answer["volume"] = json!(name);
        answers.push(answer);
    }
    Ok(answers)
}

fn words(answers: &[Value], word: impl Fn(&Value) -> String) -> String {
    let line = |a: &Value| format!("{}: {}", a["volume"].as_str().unwrap_or("-"), word(a));
    answers.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn attributes(value: &Value) -> String {
    let pairs = value.as_object().into_iter().flatten();
    pairs
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or("-")))
        .collect::<Vec<_>>()
        .join(" ")
}

fn settings(cache: &Value) -> String {
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
    let all = cache["settings"].as_array().into_iter().flatten();
    let rows: Vec<_> = all.map(row).collect();
    cli::table::text(&[Left(32), Right(11), Left(0)], &rows)
}

/// Formats one cache as text.
fn describe(cache: &Value) -> String {
    let stats = &cache["stats"];
    let number = |key: &str| stats[key].as_u64().unwrap_or(0);
    let bytes = |key: &str| size(number(key));
    let names: Vec<_> = cache["volumes"].as_array().into_iter().flatten().collect();
    let names: Vec<_> = names.iter().filter_map(|n| n.as_str()).collect();
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
    let mut text = format!("cache of process {}: {}\n", cache["pid"], names.join(", "));
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
    text += &settings(cache);
    for file in cache["files"].as_array().into_iter().flatten() {
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

fn describe_file(file: &Value) -> String {
    let number = |key: &str| file[key].as_u64().unwrap_or(0);
    format!(
        "  {}  file {}  {} of {}  dirty {}  hits {}  misses {}  joins {}\n    {}\n",
        file["volume"].as_str().unwrap_or("-"),
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
