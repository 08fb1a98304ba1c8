//! `evfs detach`: flush and close an attached volume or a mounted file system.

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
    /// Also when somebody uses it: it is taken away from them
    #[arg(long)]
    force: bool,
}

pub fn run(context: &Context, args: Args) -> Result<u8> {
    control::ask(
        &context.settings.run_dir(),
        &args.name,
        &control::Ask::Detach { force: args.force },
    )?;
    output::show(context.json, &json!({ "detached": args.name }), || {
        format!("detached {}", args.name)
    });
    Ok(exit::OK)
}
