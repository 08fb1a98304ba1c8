//! Passphrases from the user through systemd: systemd-ask-password(1) asks at the console, in the
//! boot splash or wherever else an agent runs. For services, which have no terminal.

use crate::secrets;
use secret::SecretBytes;
use stack::{Error, Result};
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};

/// The program that asks the agents.
const PROGRAM: &str = "systemd-ask-password";

/// Prompts for a passphrase at the terminal. Without a terminal, asks the agents of systemd, and
/// waits for their answer without a limit; the unit of the service sets one.
pub fn ask(prompt: &str) -> Result<SecretBytes> {
    let answer = if secrets::has_terminal() {
        None
    } else {
        from_agents(prompt)?
    };
    // Without the program, this names what is missing.
    answer.map_or_else(|| secrets::ask(prompt), Ok)
}

/// Returns the answer of the agents; `None` if the program is not installed.
fn from_agents(prompt: &str) -> Result<Option<SecretBytes>> {
    let program = Path::new(PROGRAM);
    let child = Command::new(program)
        .args(["--no-tty", "--timeout=0", "--icon=drive-harddisk"])
        .arg(format!("--id=evfs:{}", std::process::id()))
        .arg(format!("{prompt}:"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io("cannot run", program, e)),
    };
    let answer = child.stdout.take().expect("the output is piped");
    let answer = secrets::read_all(answer, program);
    let status = child
        .wait()
        .map_err(|e| Error::io("cannot wait for", program, e))?;
    if !status.success() {
        return Err(Error::Failed(format!(
            "no {}: {PROGRAM} returned none ({status}); answer the prompt, or pass the passphrase \
             as a credential of the service",
            secrets::clause(prompt)
        )));
    }
    answer.map(secrets::strip_newline).map(Some)
}
