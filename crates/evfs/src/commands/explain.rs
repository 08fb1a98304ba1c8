//! `evfs explain`: the page of an event of the log.

use crate::log::codes::{self, EVENTS};
use cli::document::Document;
use cli::table::Column::Left;
use cli::{Context, output};
use schemars::JsonSchema;
use serde::Serialize;
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

/// A code of the log, with its page.
#[derive(Serialize, JsonSchema)]
pub struct EventPage {
    /// The code, such as `EVFS-0101`.
    code: &'static str,
    /// Title of the page.
    title: &'static str,
    /// The page, as Markdown.
    text: &'static str,
}

/// All codes of the log.
#[derive(Serialize, JsonSchema)]
pub struct Events {
    /// The codes in ascending order.
    events: Vec<EventTitle>,
}

/// A code of the log.
#[derive(Serialize, JsonSchema)]
struct EventTitle {
    /// The code, such as `EVFS-0101`.
    code: &'static str,
    /// Title of its page.
    title: &'static str,
}

pub const EVENT: Document<EventPage> = Document::new("evfs/event/1");
pub const ALL: Document<Events> = Document::new("evfs/events/1");

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
    let content = EventPage {
        code: event.code,
        title: event.title(),
        text: event.page,
    };
    output::show(context.json, &EVENT, &content, || event.page.to_owned());
    Ok(())
}

fn list(context: &Context) {
    let row = |event: &codes::Known| EventTitle {
        code: event.code,
        title: event.title(),
    };
    let events = EVENTS.iter().map(row).collect();
    output::show(context.json, &ALL, &Events { events }, || {
        let cells: Vec<[String; 2]> = EVENTS
            .iter()
            .map(|event| [event.code.to_owned(), event.title().to_owned()])
            .collect();
        cli::table::text(&[Left(9), Left(0)], &cells)
    });
}
