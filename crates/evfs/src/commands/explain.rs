//! `evfs explain`: the page of an event of the log.

use crate::log::codes::{self, EVENTS};
use cli::table::Column::Left;
use cli::{Context, output};
use serde_json::json;
use stack::{Error, Result, exit};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evfs explain EVFS-0101          what happened, why, and what to do
  evfs explain                    list all codes")]
pub struct Args {
    /// Code of a warning or an error in the log, such as EVFS-0101 [default: list all]
    code: Option<String>,
}

pub fn run(context: &Context, args: &Args) -> Result<u8> {
    match &args.code {
        Some(code) => show(context, code)?,
        None => list(context),
    }
    Ok(exit::OK)
}

fn show(context: &Context, code: &str) -> Result<()> {
    let event = codes::find(code).ok_or_else(|| {
        Error::NotFound(format!(
            "there is no event `{code}`; `evfs explain` lists all codes"
        ))
    })?;
    let value = json!({ "code": event.code, "title": event.title(), "text": event.page });
    output::show(context.json, &value, || event.page.to_owned());
    Ok(())
}

fn list(context: &Context) {
    let row = |event: &codes::Known| json!({ "code": event.code, "title": event.title() });
    let value = json!({ "events": EVENTS.iter().map(row).collect::<Vec<_>>() });
    output::show(context.json, &value, || {
        let cells: Vec<[String; 2]> = EVENTS
            .iter()
            .map(|event| [event.code.to_owned(), event.title().to_owned()])
            .collect();
        cli::table::text(&[Left(9), Left(0)], &cells)
    });
}
