//! `evfs config`: the settings in effect, with the origin of each.

use clap::Subcommand;
use cli::Context;
use cli::document::Document;
use cli::output;
use cli::table::Column::Left;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use stack::{Result, exit};
use std::collections::BTreeMap;

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

/// All settings by name, in the order of the configuration file.
#[derive(Serialize, JsonSchema)]
pub struct ShownSettings {
    #[serde(flatten)]
    #[schemars(with = "BTreeMap<String, ShownSetting>")]
    settings: Map<String, Value>,
}

/// A setting with its source.
#[derive(Serialize, JsonSchema)]
struct ShownSetting {
    /// Value in force.
    value: String,
    /// Unit of the value.
    unit: &'static str,
    /// Origin of the value: `default`, a file or an environment variable.
    origin: String,
    /// Environment variable that sets it.
    env: &'static str,
    /// Purpose of the setting and reason for its default.
    reason: &'static str,
}

pub const SETTINGS: Document<ShownSettings> = Document::new("evfs/settings/1");

pub fn run(context: &Context, command: Command) -> Result<u8> {
    let Command::Show { origin } = command;
    let rows = context.settings.shown();
    let settings = rows.iter().map(|r| {
        let row = ShownSetting {
            value: r.value.clone(),
            unit: r.unit,
            origin: r.origin.to_string(),
            env: r.env,
            reason: r.reason,
        };
        let row = serde_json::to_value(row).expect("text becomes JSON");
        (r.key.to_owned(), row)
    });
    let settings = settings.collect();
    output::show(context.json, &SETTINGS, &ShownSettings { settings }, || {
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
