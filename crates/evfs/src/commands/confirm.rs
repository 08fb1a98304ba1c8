//! Confirmation before operations that destroy data or lock a user out.
//!
//! At a terminal the command requires the name of its object. Without a terminal no question can be
//! answered: `--yes` confirms in advance, and without it nothing is done. `--force` implies `--yes`,
//! except where a service is detached. A dry run asks nothing.

use cli::output::{is_dry_run, printable};
use stack::{Error, Result};
use std::io::{IsTerminal, Write};

/// `--yes`, for commands that ask.
#[derive(clap::Args, Debug, Clone, Copy)]
pub struct Yes {
    /// Do not ask for confirmation
    #[arg(long)]
    pub yes: bool,
}

/// Asks for confirmation of `what`, a whole sentence, unless `yes` is set. The answer is `name`, the
/// name of the object that is destroyed or changed.
///
/// # Errors
/// The answer does not match, or there is no terminal.
pub fn confirm(yes: bool, what: &str, name: &str) -> Result<()> {
    if yes || is_dry_run() {
        Ok(())
    } else {
        ask(what, name)
    }
}

fn ask(what: &str, name: &str) -> Result<()> {
    if !at_terminal() {
        return Err(Error::Usage(format!(
            "nothing was done: there is no terminal to ask at, and {}; use --yes to confirm",
            what.replacen("This ", "this ", 1)
        )));
    }
    let name = printable(name);
    let mut out = std::io::stderr().lock();
    let _ = write!(out, "{}.\nType `{name}` to continue: ", printable(what));
    let _ = out.flush();
    drop(out);
    let mut typed = String::new();
    let read = std::io::stdin().read_line(&mut typed);
    read.map_err(|e| Error::io("cannot read the answer from", "/dev/stdin".as_ref(), e))?;
    if typed.trim_end_matches(['\r', '\n']) == name {
        Ok(())
    } else {
        Err(Error::Failed("not confirmed; nothing was done".into()))
    }
}

/// Runs `work`, which may require `--force`. At a terminal the user may type the name of the object
/// that would be destroyed instead.
///
/// # Errors
/// Those of `work`, and of [`confirm`].
pub fn or_force<T>(force: bool, name: &str, work: impl Fn(bool) -> Result<T>) -> Result<T> {
    match work(force) {
        Err(error) if !force && error.wants_force() && at_terminal() && !is_dry_run() => {
            ask(&error.chain(), name)?;
            work(true)
        }
        done => done,
    }
}

/// Reports whether a question can be asked.
pub fn at_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}
