//! `evfs stats`: the counters of an attached volume.

use super::{handle, names};
use cli::Context;
use cli::output;
use cli::table::Column::{Left, Right};
use serde_json::Value;
use stack::{Result, control, exit};
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evfs stats disk
  evfs stats /mnt
  evfs stats disk --watch          every second until interrupted")]
pub struct Args {
    /// Attached volume, mounted file system or served cell: its name, its device, or the place of an
    /// export
    #[arg(add = names::services())]
    name: PathBuf,
    /// Print every second until interrupted
    #[arg(long)]
    watch: bool,
}

pub fn run(context: &Context, args: Args) -> Result<u8> {
    let name = handle::service(context, &args.name)?.name;
    loop {
        let dir = context.settings.run_dir();
        let value = control::send_request(&dir, &name, &control::ControlRequest::Stats)?;
        output::show(context.json, &value, || table(&value));
        if !args.watch || output::is_gone() {
            return Ok(exit::OK);
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Formats one line per kind of request.
fn table(value: &Value) -> String {
    let columns = [
        Left(14),
        Right(11),
        Right(11),
        Right(8),
        Right(11),
        Right(11),
    ];
    let mut rows = vec![["", "requests", "bytes", "errors", "p50", "p99"].map(str::to_owned)];
    for (kind, c) in value
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, c)| c.is_object())
    {
        let number = |key: &str| c[key].as_u64().unwrap_or(0);
        let micros = |key: &str| format!("{:.1} us", number(key) as f64 / 1000.0);
        rows.push([
            kind.clone(),
            number("requests").to_string(),
            output::size(number("bytes")),
            number("errors").to_string(),
            micros("p50_ns"),
            micros("p99_ns"),
        ]);
    }
    cli::table::text(&columns, &rows)
}
