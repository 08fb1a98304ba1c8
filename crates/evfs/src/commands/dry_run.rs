//! `--dry-run`, for commands that change a disk. A dry run executes the whole command, but on devices
//! whose changes stay in memory, so that all checks are those of the real command.

use cli::Context;

/// `--dry-run`, for commands that change a disk.
#[derive(clap::Args, Debug, Clone, Copy)]
pub struct DryRun {
    /// Make all checks and print the result, but change nothing
    #[arg(long)]
    dry_run: bool,
}

impl DryRun {
    /// Returns the context of a command that is a dry run if `dry_run` says so.
    pub fn context_of(dry_run: Option<DryRun>, context: &Context) -> Context {
        dry_run.map_or_else(|| context.clone(), |dry_run| dry_run.context(context))
    }

    /// Returns the context of the command.
    pub fn context(self, context: &Context) -> Context {
        if self.dry_run {
            context.for_dry_run()
        } else {
            context.clone()
        }
    }
}
