//! Benchmarks of the cache against memory, the kernel's page cache and other caches.
//!
//! ```text
//! cargo run --release [--rounds N] [--json FILE] [--dir DIR] [hits misses scan sizes cipher send]
//! ```
//!
//! All variants run interleaved in one process: a round runs each variant once, rounds alternate
//! the order, and a ratio is computed within a round. Tables show the median of the rounds' ratios
//! and its 95 % bootstrap interval. Costs are CPU time of the threads that do the work, which other
//! programs on the machine affect least; rows in wall-clock time are marked.

mod cipher;
mod hits;
mod misses;
mod peers;
mod rounds;
mod scan;
mod send;
mod sizes;
mod table;

use clap::Parser;
use std::path::PathBuf;
use table::Table;

/// Benchmark the cache against memory, the kernel's page cache and other caches.
#[derive(Parser)]
pub struct Args {
    /// Groups to measure [default: all]
    groups: Vec<String>,
    /// Number of measured rounds, after one warm-up round
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Write the tables to this file as JSON, with the values of every round
    #[arg(long)]
    json: Option<PathBuf>,
    /// Directory for the files; must be on the disk to measure
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
}

type Group = (&'static str, fn(&Args) -> Vec<Table>);

const GROUPS: [Group; 6] = [
    ("hits", hits::run),
    ("misses", misses::run),
    ("scan", scan::run),
    ("sizes", sizes::run),
    ("cipher", cipher::run),
    ("send", send::run),
];

fn main() {
    let args = Args::parse();
    for name in &args.groups {
        if !GROUPS.iter().any(|(known, _)| known == name) {
            let known = GROUPS.map(|(known, _)| known).join(", ");
            eprintln!("no group `{name}`; there are {known}");
            std::process::exit(2);
        }
    }
    let wanted = |name: &str| args.groups.is_empty() || args.groups.iter().any(|g| g == name);
    let mut tables = Vec::new();
    for (name, run) in GROUPS {
        if wanted(name) {
            for table in run(&args) {
                println!("{table}");
                tables.push(table);
            }
        }
    }
    if let Some(path) = &args.json {
        let all: Vec<_> = tables.iter().map(Table::json).collect();
        let text = serde_json::to_string_pretty(&all).expect("numbers and names");
        std::fs::write(path, text + "\n").expect("the file can be written");
    }
}
