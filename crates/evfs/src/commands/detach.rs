//! `evfs detach`: flush and close an attached volume.

use super::Context;
use crate::output;
use serde_json::json;
use stack::{Result, control, exit};

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  evfs detach disk\n\nExit code 11 means that somebody still uses it: unmount first."
)]
pub struct Args {
    /// Name of the attached volume, as `evfs status` shows it
    name: String,
}

pub fn run(context: &Context, args: Args) -> Result<u8> {
    control::ask(
        &context.settings.run_dir(),
        &args.name,
        &control::Ask::Detach,
    )?;
    output::show(context.json, &json!({ "detached": args.name }), || {
        format!("detached {}", args.name)
    });
    Ok(exit::OK)
}
