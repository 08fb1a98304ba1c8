//! `evfs config`: the settings in effect, with the origin of each.

use clap::Subcommand;
use cli::Context;
use cli::output;
use serde_json::json;
use stack::{Result, exit};
use std::fmt::Write as _;

#[derive(Subcommand)]
pub enum Command {
    /// Print all settings
    #[command(
        after_help = "Examples:\n  evfs config show\n  EVFS_THREADS=4 evfs config show --origin"
    )]
    Show {
        /// Show the source, environment variable and rationale of each value
        #[arg(long)]
        origin: bool,
    },
}

pub fn run(context: &Context, command: Command) -> Result<u8> {
    let Command::Show { origin } = command;
    let rows = context.settings.shown();
    let value = rows
        .iter()
        .map(|r| {
            let row = json!({
                "value": r.value, "unit": r.unit, "origin": r.origin.to_string(),
                "env": r.env, "reason": r.reason,
            });
            (r.key.to_owned(), row)
        })
        .collect::<serde_json::Map<_, _>>();
    output::show(context.json, &value.into(), || {
        let mut text = String::new();
        for r in &rows {
            let _ = write!(text, "{:<16} {}", r.key, r.value);
            if origin {
                let _ = write!(text, "  [{}; {}]  # {}", r.origin, r.env, r.reason);
            }
            text.push('\n');
        }
        text
    });
    Ok(exit::OK)
}
