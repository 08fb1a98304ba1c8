//! Runs `mailmix` once in a directory, for benchmarks driven by a shell script.
//!
//! Reads a PostMark configuration (`set number 500`, one command per line) and prints the total
//! seconds, those of the transactions, and the number of files created.
//!
//! ```text
//! echo 'set number 1000' | cargo run -q -p evfs-bench-load --example mailmix -- FOLDER
//! ```

use bench_core::files::HostDirectory;
use bench_load::workload::mailmix::{Config, run};
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    match work() {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(text) => {
            eprintln!("mailmix: {text}");
            ExitCode::FAILURE
        }
    }
}

fn work() -> Result<String, String> {
    let folder = std::env::args().nth(1).ok_or("missing argument FOLDER")?;
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    read.map_err(|e| format!("cannot read the configuration: {e}"))?;
    let config = Config::parse(&text).map_err(|e| e.to_string())?;
    let folder = HostDirectory::open(Path::new(&folder))
        .map_err(|e| format!("cannot open {folder}: {e}"))?;
    let report = run(&folder, &config).map_err(|e| e.to_string())?;
    Ok(format!(
        "{:.6} {:.6} {}",
        report.total_secs,
        report.transaction_secs,
        report.created_alone + report.created_mixed
    ))
}
