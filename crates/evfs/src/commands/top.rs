//! `evfs top`: rates, latencies and hit ratios of all services, on a full screen or as text.

mod details;
mod format;
mod grid;
mod keys;
mod model;
mod render;
mod screen;
mod text;
mod views;

use cli::document::Document;
use cli::{Context, output};
use format::Symbols;
use model::{Look, Model};
use stack::watch::{Sample, Watcher};
use stack::{Result, exit};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Longest wait for the answers of services before text is printed without them. It is the time
/// limit of the control protocol.
const GRACE_MAX: Duration = Duration::from_secs(2);

/// Limits of the time between samples, in seconds.
const INTERVAL_MIN: f64 = 0.1;
const INTERVAL_MAX: f64 = 3600.0;

pub const SAMPLE: Document<Sample> = Document::new("evfs/top/1");

#[derive(clap::Args)]
#[command(after_help = "\
READ/s, WRITE/s, OPS/s and the percentiles P50 and P99 are those of the last interval. For a mount
or a cell they count the requests to its device, under the cache; for an attached volume, the
requests of clients. Caches and files are counted in pages of 4 KiB.

Without a terminal, samples are printed as text. COLUMNS limits the width of the text.

Keys: Tab next view, j/k row, s sort, r reverse, p pause, ? help, q quit.

Examples:
  evfs top
  evfs top --interval 5
  evfs top --once
  evfs --json top --interval 10 --count 6 > minute.jsonl")]
pub struct Args {
    /// Time between samples, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
    /// End after this number of samples
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print the sample of one interval as text, and end
    #[arg(long, conflicts_with = "count")]
    once: bool,
}

fn parse_interval(text: &str) -> std::result::Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| format!("`{text}` is not a number of seconds such as 2 or 0.5"))?;
    if (INTERVAL_MIN..=INTERVAL_MAX).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!(
            "use a number of seconds from {INTERVAL_MIN} to {INTERVAL_MAX}"
        ))
    }
}

pub fn run(context: &Context, args: &Args) -> Result<u8> {
    let watcher = Watcher::new(&context.settings.run_dir());
    if context.json || args.once || !has_screen() {
        return print(context.json, args, watcher);
    }
    let model = Model::new(args.interval, look());
    screen::run(watcher, model, args.count)
}

/// Reports whether there is a terminal that can show a full screen.
fn has_screen() -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && !is_dumb
}

fn look() -> Look {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
    let locale = locale.unwrap_or_default();
    Look {
        colors: set("NO_COLOR").is_none(),
        symbols: Symbols::of_locale(&locale.to_string_lossy()),
    }
}

/// Prints a sample for each interval: as text, or as a JSON document on one line.
fn print(json: bool, args: &Args, mut watcher: Watcher) -> Result<u8> {
    let grace = args.interval.min(GRACE_MAX);
    let count = if args.once { Some(1) } else { args.count };
    let mut next = Instant::now();
    watcher.sample(grace)?;
    let mut printed = 0;
    while count.is_none_or(|count| printed < count) && !output::is_gone() {
        next = (next + args.interval).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let sample = watcher.sample(grace)?;
        let text = if json {
            SAMPLE.of(&sample).to_string()
        } else {
            text::of(&sample, width())
        };
        output::line(text.trim_end());
        if !json && count != Some(1) {
            output::line("");
        }
        printed += 1;
    }
    Ok(exit::OK)
}

/// The width of text: that of the terminal, or of the variable `COLUMNS`.
fn width() -> Option<usize> {
    let set = std::env::var("COLUMNS").ok();
    let set = set.and_then(|columns| columns.parse().ok());
    set.or_else(output::width).filter(|width| *width > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_number_of_seconds() {
        assert_eq!(parse_interval("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_interval("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["", "x", "0", "-1", "0.05", "1e9", "NaN", "inf", "1s"] {
            assert!(parse_interval(wrong).is_err(), "{wrong}");
        }
    }
}
