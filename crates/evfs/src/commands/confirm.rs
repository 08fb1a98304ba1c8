//! Questions before what destroys something or shuts somebody out.
//!
//! At a terminal the question is asked, and what destroys wants the name of its object typed. Without a terminal
//! nobody can answer: `--yes` says it beforehand, and without it nothing is done. `--force`, where a command has it,
//! says that and more.

use crate::output;
use stack::{Error, Result};
use std::io::{IsTerminal, Write};

/// `--yes`, for commands that ask.
#[derive(clap::Args, Debug, Clone, Copy)]
pub struct Yes {
    /// Do not ask before it is done
    #[arg(long)]
    pub yes: bool,
}

/// What the answer has to be.
#[derive(Debug, Clone, Copy)]
pub enum Answer<'a> {
    /// The name of what is destroyed.
    Name(&'a str),
    /// `yes`.
    Yes,
}

/// Asks before `what`, a whole sentence, is done, unless `yes` says that it is wanted.
///
/// # Errors
/// The answer is another one; there is no terminal to ask at.
pub fn confirm(yes: bool, what: &str, answer: Answer<'_>) -> Result<()> {
    if yes {
        return Ok(());
    }
    if !at_terminal() {
        return Err(Error::Usage(format!(
            "{what}; there is no terminal to ask at, so nothing was done: --yes does it without a question"
        )));
    }
    let wanted = match answer {
        Answer::Name(name) => name,
        Answer::Yes => "yes",
    };
    let mut out = std::io::stderr().lock();
    let _ = write!(out, "{what}.\nType `{wanted}` to go on: ");
    let _ = out.flush();
    drop(out);
    let mut typed = String::new();
    let read = std::io::stdin().read_line(&mut typed);
    read.map_err(|e| Error::io("cannot read the answer from", "/dev/stdin".as_ref(), e))?;
    match typed.trim_end_matches(['\r', '\n']) == wanted {
        true => Ok(()),
        false => Err(Error::Failed(
            "that is another answer; nothing was done".into(),
        )),
    }
}

/// Does what may want `--force`. At a terminal the name of what would be destroyed may be typed instead.
///
/// # Errors
/// Those of `work`, and of [`confirm`].
pub fn or_force<T>(force: bool, name: &str, work: impl Fn(bool) -> Result<T>) -> Result<T> {
    match work(force) {
        Err(error) if !force && error.wants_force() && at_terminal() => {
            confirm(false, &output::chain(&error), Answer::Name(name))?;
            work(true)
        }
        done => done,
    }
}

fn at_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}
