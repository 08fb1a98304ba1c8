//! `evfs path`: the paths of a LUN.

use super::confirm::{Yes, confirm, or_force};
use super::{handle, names};
use cli::Context;
use cli::document::Document;
use cli::output;
use stack::lun::PathVerb;
use stack::{Result, exit, lun};

#[derive(clap::Args)]
pub struct Which {
    /// LUN: its name, or the name or mount point of a service on it
    #[arg(add = names::luns())]
    lun: String,
    /// Address of the path, or its legacy name (cXtYdZ)
    #[arg(add = names::paths())]
    path: String,
}

#[derive(clap::Subcommand)]
pub enum Command {
    /// Add a path to a LUN; it is used once its identity is verified
    Add {
        /// LUN: its name, or the name or mount point of a service on it
        #[arg(add = names::luns())]
        lun: String,
        /// Address of the path: a URI, a file or a block device
        path: String,
    },
    /// Remove a path from a LUN
    Remove {
        #[command(flatten)]
        which: Which,
        /// Remove the path even if it is the last working one
        #[arg(long)]
        force: bool,
    },
    /// Resume the use of a disabled path
    Enable(Which),
    /// Stop using a path
    Disable {
        #[command(flatten)]
        which: Which,
        /// Disable the path even if it is the last working one
        #[arg(long)]
        force: bool,
    },
    /// Accept the disk that answers on a refused path (AUTH_FAILED) as the LUN
    ReplaceWwid {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        yes: Yes,
    },
}

pub const PATH: Document<lun::Changed> = Document::new("evfs/path/1");

pub fn run(context: &Context, command: Command) -> Result<u8> {
    let (verb, lun, path, force) = match command {
        Command::Add { lun, path } => (PathVerb::Add, lun, path, false),
        Command::Remove { which, force } => (PathVerb::Remove, which.lun, which.path, force),
        Command::Enable(which) => (PathVerb::Enable, which.lun, which.path, false),
        Command::Disable { which, force } => (PathVerb::Disable, which.lun, which.path, force),
        Command::ReplaceWwid { which, yes } => {
            let lun = handle::lun(context, &which.lun)?;
            let what = format!(
                "This accepts the disk that answers at {} as {lun}: if it is another disk, the data of both is lost",
                which.path
            );
            confirm(yes.yes, &what, &lun)?;
            (PathVerb::ReplaceWwid, lun, which.path, false)
        }
    };
    let lun = handle::lun(context, &lun)?;
    let changed = or_force(force, &path, |force| {
        lun::path(&context.settings, &lun, verb, &path, force)
    })?;
    output::done(context.json, &PATH, &changed, || describe(&changed));
    Ok(exit::OK)
}

fn describe(changed: &lun::Changed) -> String {
    let number = changed.number.map_or(String::new(), |n| format!(" {n}"));
    let state = match changed.number {
        Some(_) => changed.state.to_uppercase(),
        None => changed.state.clone(),
    };
    let why = changed
        .why
        .as_ref()
        .map_or(String::new(), |why| format!(" {why}"));
    format!(
        "{}: path{number} {}: {state}{why}",
        changed.lun, changed.path
    )
}
