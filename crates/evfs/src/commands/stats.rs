//! `evfs stats`: the counters of an attached volume.

use super::names;
use cli::Context;
use cli::output;
use serde_json::Value;
use stack::{Result, control, exit};
use std::fmt::Write as _;
use std::time::Duration;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evfs stats disk
  evfs stats disk --watch          every second until interrupted")]
pub struct Args {
    /// Name of the attached volume, mounted file system or served cell, as shown by `evfs status`
    #[arg(add = names::services())]
    name: String,
    /// Print every second until interrupted
    #[arg(long)]
    watch: bool,
}

pub fn run(context: &Context, args: Args) -> Result<u8> {
    loop {
        let dir = context.settings.run_dir();
        let value = control::send_request(&dir, &args.name, &control::ControlRequest::Stats)?;
        output::show(context.json, &value, || table(&value));
        if !args.watch || output::is_gone() {
            return Ok(exit::OK);
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Formats one line per kind of request.
fn table(value: &Value) -> String {
    let mut text = format!(
        "{:<14}{:>12}{:>12}{:>9}{:>12}{:>12}\n",
        "", "requests", "bytes", "errors", "p50", "p99"
    );
    for (kind, c) in value
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, c)| c.is_object())
    {
        let number = |key: &str| c[key].as_u64().unwrap_or(0);
        let micros = |key: &str| format!("{:.1} us", number(key) as f64 / 1000.0);
        let _ = writeln!(
            text,
            "{kind:<14}{:>12}{:>12}{:>9}{:>12}{:>12}",
            number("requests"),
            output::size(number("bytes")),
            number("errors"),
            micros("p50_ns"),
            micros("p99_ns"),
        );
    }
    text
}
