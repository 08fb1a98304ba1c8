//! Execution of other programs, whose error output becomes part of the error if they fail.

use bench_core::{Error, Result};
use std::path::Path;
use std::process::{Command, Stdio};

/// Maximum length of a program's error output in an error, in characters.
const COMPLAINT_MAX: usize = 500;

/// Runs `script` by `sh` in `folder`, waits for it, and discards its output.
pub fn shell(folder: &Path, script: &str, variables: &[(&str, &str)]) -> Result<()> {
    let mut sh = Command::new("sh");
    sh.args(["-e", "-c", script]).current_dir(folder);
    sh.envs(variables.iter().copied());
    output(&mut sh, script).map(drop)
}

/// Runs a program to its end and returns its standard output.
pub fn output(command: &mut Command, what: &str) -> Result<Vec<u8>> {
    let failed = |detail: String| Error::Program {
        what: what.to_owned(),
        detail,
    };
    let done = command
        .stdin(Stdio::null())
        .env("LC_ALL", "C")
        .output()
        .map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => failed(format!(
                "{} is not installed",
                command.get_program().display()
            )),
            _ => failed(e.to_string()),
        })?;
    if done.status.success() {
        return Ok(done.stdout);
    }
    let complaint = String::from_utf8_lossy(&done.stderr);
    let complaint: String = complaint.trim().chars().take(COMPLAINT_MAX).collect();
    Err(failed(format!("{}: {complaint}", done.status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_complaint_of_a_program_is_in_the_error() {
        let here = Path::new(".");
        shell(here, "true", &[]).unwrap();
        let wrong = shell(here, "echo no such luck >&2; false", &[]).unwrap_err();
        assert!(wrong.to_string().contains("no such luck"), "{wrong}");
        let missing = output(&mut Command::new("/nowhere/evfs-no-program"), "x").unwrap_err();
        assert!(
            missing.to_string().contains("is not installed"),
            "{missing}"
        );
    }
}
