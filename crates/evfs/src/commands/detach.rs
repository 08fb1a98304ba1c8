//! `evfs detach`: flush and close an attached volume or a mounted file system.

use super::confirm::{Yes, at_terminal, confirm};
use super::{handle, names};
use cli::Context;
use cli::document::Document;
use cli::output;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use stack::control::{self, ControlRequest};
use stack::{Result, exit};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  evfs detach disk
  evfs detach disk.img
  evfs detach /mnt                 like `evfs unmount /mnt`

All data is written to stable storage before the exports are closed. If that fails, for example because \
the disk is full, the volume stays attached.

Exit code 11 means that the volume is still in use: unmount it first. With --force, exit code 30 means that \
the volume was detached and that acknowledged data could not be written and is lost. At a terminal, --force \
asks if data would be lost or a user disturbed; without one, it does not ask, but scripts should add --yes, \
which a later release will require.")]
pub struct Args {
    /// Attached volume, mounted file system or served cell: its name, its device, or the place of an
    /// export
    #[arg(add = names::services())]
    name: PathBuf,
    /// Detach even if the volume is in use or some data cannot be written
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    yes: Yes,
}

/// A service that was detached.
#[derive(Serialize, JsonSchema)]
pub struct Detached {
    /// Name of the service.
    detached: String,
}

pub const DETACHED: Document<Detached> = Document::new("evfs/detach/1");

pub fn run(context: &Context, args: Args) -> Result<u8> {
    let name = handle::service(context, &args.name)?.name;
    detach(context, &name, args.force, args.yes)?;
    let content = Detached { detached: name };
    output::done(context.json, &DETACHED, &content, || {
        format!("detached {}", content.detached)
    });
    Ok(exit::OK)
}

/// Detaches a volume or file system that answers. Takes as long as data remains to be written.
/// With `force`, it first asks as [`confirm_force`] does, if [`asks_before_force`].
pub fn detach(context: &Context, name: &str, force: bool, yes: Yes) -> Result<()> {
    let run_dir = context.settings.run_dir();
    let status = control::send_request(&run_dir, name, &ControlRequest::Status)?;
    if force && asks_before_force(context, yes) {
        confirm_force(context, name, &status)?;
    }
    control::send_request(&run_dir, name, &ControlRequest::Detach { force }).map(drop)
}

/// Reports whether to ask before a detach by force. Without a terminal it succeeds with a note:
/// scripts written before `--yes` existed continue to work.
pub fn asks_before_force(context: &Context, yes: Yes) -> bool {
    let can_ask = at_terminal();
    if !can_ask && !yes.yes {
        let note = "note: without a terminal, a later release will require --yes with --force";
        output::say(context.json, note);
    }
    can_ask && !yes.yes
}

/// Asks before a service is detached by force, if that would lose data or disturb a user.
///
/// # Errors
/// The answer is not the name of the service.
pub fn confirm_force(context: &Context, name: &str, status: &Value) -> Result<()> {
    let health = &status["health"];
    let mut risks = Vec::new();
    if !matches!(health["state"].as_str(), Some("ok" | "degraded")) {
        let reasons = health["reasons"].as_array().into_iter().flatten();
        risks.extend(reasons.filter_map(Value::as_str).map(str::to_owned));
    }
    let run_dir = context.settings.run_dir();
    if let Err(error) = control::send_request(&run_dir, name, &ControlRequest::MayDetach) {
        risks.push(error.chain());
    }
    if risks.is_empty() {
        return Ok(());
    }
    let what = format!(
        "Detaching {name} by force interrupts its users, and loses data that cannot be written: {}",
        risks.join("; ")
    );
    confirm(false, &what, name)
}
