//! Output: data to standard output, messages to standard error, JSON on request.

use crate::document::{Document, ERROR, Failure};
use clap::error::ErrorKind;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::Value;
use stack::{Error, exit};
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Prints a result: `content` as JSON, or `text`.
pub fn show<T: Serialize>(
    json: bool,
    document: &Document<T>,
    content: &T,
    text: impl FnOnce() -> String,
) {
    if json {
        line(&pretty(&document.of(content)));
    } else {
        line(text().trim_end());
    }
}

/// Prints a result that another process has sent: `answer` as JSON, or `text`.
pub fn relay<T>(json: bool, document: &Document<T>, answer: &Value, text: impl FnOnce() -> String) {
    if json {
        line(&pretty(&document.of_answer(answer)));
    } else {
        line(text().trim_end());
    }
}

/// Prints the result of a command that has changed something.
pub fn done<T: Serialize>(
    json: bool,
    document: &Document<T>,
    content: &T,
    text: impl FnOnce() -> String,
) {
    changed();
    show(json, document, content, text);
}

/// Formats a document for people to read, too.
pub fn pretty(document: &Value) -> String {
    serde_json::to_string_pretty(document).expect("a JSON value serializes")
}

/// Prints the document of an error, on one line.
fn print_failure(message: &str, code: u8) {
    let content = Failure {
        error: message.to_owned(),
        code,
    };
    line(&ERROR.of(&content).to_string());
}

/// Records that the requested change is done, so that only its report can still fail.
pub fn changed() {
    CHANGED.store(true, Ordering::Relaxed);
}

/// The command has changed something.
static CHANGED: AtomicBool = AtomicBool::new(false);

/// A progress bar on standard error; hidden with `--json` or without a terminal.
pub struct Bar(ProgressBar);

impl Bar {
    /// Creates a bar at zero with the label `what`.
    pub fn new(json: bool, what: &'static str) -> Bar {
        if json {
            return Bar(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template("{msg:<12} [{bar:30}] {percent} %");
        let bar = ProgressBar::new(1).with_message(what);
        Bar(bar.with_style(style.expect("the template is valid")))
    }

    /// Sets the progress to `done` of `of`.
    pub fn at(&self, done: u64, of: u64) {
        self.0.set_length(of);
        self.0.set_position(done);
    }

    /// Removes the bar from the terminal.
    pub fn end(&self) {
        self.0.finish_and_clear();
    }
}

/// First error of a write to standard output.
static GONE: OnceLock<std::io::Error> = OnceLock::new();

/// Prints one line of data. A closed pipe (`| head`) does not panic.
pub fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    written(writeln!(out, "{text}").and_then(|()| out.flush()));
}

/// Records the result of a write to standard output.
pub fn written(result: std::io::Result<()>) {
    if let Err(error) = result {
        let _ = GONE.set(error);
    }
}

/// Reports whether a write to standard output has failed; a command that prints repeatedly ends
/// then.
pub fn is_gone() -> bool {
    GONE.get().is_some()
}

/// Returns the exit code of a command, or a failure if its output could not be written. A closed
/// pipe is not a failure.
pub fn end(code: u8) -> ExitCode {
    written(std::io::stdout().flush());
    match GONE.get() {
        Some(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            let why = stack::without_number(&e.to_string());
            let done = if CHANGED.load(Ordering::Relaxed) {
                "; the command itself succeeded"
            } else {
                ""
            };
            let _ = writeln!(
                std::io::stderr().lock(),
                "evfs: cannot write to standard output: {why}{done}"
            );
            ExitCode::from(exit::FAILURE)
        }
        _ => ExitCode::from(code),
    }
}

/// Prints the result of the command-line parser: help, or a usage error in the format of other
/// errors, as JSON if requested.
pub fn usage<C: clap::Parser>(error: clap::Error) -> ExitCode {
    // The parser prints arguments verbatim, so it parses them again with control characters
    // escaped.
    let shown = std::env::args_os().map(|arg| printable(&arg.to_string_lossy()));
    let again = C::try_parse_from(shown).err();
    let error = again.filter(|e| e.kind() == error.kind()).unwrap_or(error);
    let mut args = std::env::args_os().take_while(|arg| arg != "--");
    let code = u8::try_from(error.exit_code()).unwrap_or(exit::USAGE);
    let text = error.render().to_string();
    let wrong = text.strip_prefix("error: ");
    if error.use_stderr() && args.any(|arg| arg == "--json") {
        let said = wrong.unwrap_or_default().lines();
        let said = said.take_while(|l| !l.starts_with("Usage:"));
        let said: Vec<&str> = said.map(str::trim).filter(|l| !l.is_empty()).collect();
        let message: String = match error.kind() {
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                "missing command; --help lists the commands".into()
            }
            _ => said.join("; "),
        };
        print_failure(&message, code);
    }
    match wrong {
        Some(wrong) => drop(write!(std::io::stderr().lock(), "evfs: {wrong}")),
        None => written(error.print()),
    }
    end(code)
}

/// Prints a message for the user to standard error; nothing with `--json`.
pub fn say(json: bool, text: &str) {
    if !json {
        let _ = writeln!(std::io::stderr().lock(), "{text}");
    }
}

/// Prints an error with its sources, and returns its exit code.
pub fn fail(json: bool, error: &Error) -> ExitCode {
    let message = error.chain();
    let code = error.exit_code();
    if json {
        print_failure(&message, code);
    }
    let _ = writeln!(std::io::stderr().lock(), "evfs: {}", printable(&message));
    ExitCode::from(code)
}

/// Escapes control characters, so that names cannot send them to the terminal; line breaks stay.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\n' {
            shown.extend(c.escape_default())
        } else {
            shown.push(c)
        }
    }
    shown
}

/// Formats a size in bytes with a unit, exactly if it is a whole number of that unit.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value.fract() == 0.0 {
        format!("{value} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_is_said_once_and_in_words() {
        let of = |errno| std::io::Error::from_raw_os_error(errno);
        let said = |error: block::Error| Error::Block(error).chain();
        let block = |errno| block::Error::from_io("disk", of(errno));
        assert_eq!(said(block(libc::ENOENT)), "disk: not found");
        let made = said(block(libc::EACCES).detail("cannot be made"));
        assert_eq!(made, "disk: permission denied: cannot be made");
        let inside = of(libc::ENOSPC).to_string();
        let failed = Error::Failed(format!("{inside}, and {inside}")).chain();
        let words = "No space left on device";
        assert_eq!(failed, format!("{words}, and {words}"));
        let io = Error::io("cannot write", "x".as_ref(), of(libc::EIO));
        assert_eq!(io.chain(), "cannot write x: Input/output error");
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size(10 << 30), "10 GiB");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(100), "100 B");
    }
}
