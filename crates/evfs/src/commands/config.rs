//! `evfs config`: the settings in effect, with the origin of each.

use clap::Subcommand;
use cli::Context;
use cli::output;
use cli::table::Column::Left;
use serde_json::json;
use stack::{Result, exit};

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
        let mut cells = Vec::new();
        for r in &rows {
            let mut row = vec![r.key.to_owned(), r.value.clone()];
            row.extend(origin.then(|| format!(" [{}; {}]  # {}", r.origin, r.env, r.reason)));
            cells.push(row);
        }
        cli::table::text(&[Left(16), Left(0), Left(0)], &cells)
    });
    Ok(exit::OK)
}
