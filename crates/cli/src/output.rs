//! Output: data to standard output, messages to standard error, JSON on request.

use crate::document::{Document, ERROR, Failure, of_dry_run};
use serde::Serialize;
use serde_json::Value;
use stack::{Error, exit};
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Prints a result: `content` as JSON, or `text`. The result of a dry run is marked as such.
pub fn show<T: Serialize>(
    json: bool,
    document: &Document<T>,
    content: &T,
    text: impl FnOnce() -> String,
) {
    print(json, || document.of(content), text);
}

/// Prints a result that another process has sent: `answer` as JSON, or `text`.
pub fn relay<T>(json: bool, document: &Document<T>, answer: &Value, text: impl FnOnce() -> String) {
    print(json, || document.of_answer(answer), text);
}

fn print(json: bool, document: impl FnOnce() -> Value, text: impl FnOnce() -> String) {
    if json {
        let document = document();
        line(&pretty(&if is_dry_run() {
            of_dry_run(document)
        } else {
            document
        }));
    } else if is_dry_run() {
        line(&format!("{DRY_RUN}\n{}", text().trim_end()));
    } else {
        line(text().trim_end());
    }
}

/// First line of the result of a dry run.
const DRY_RUN: &str = "dry run, nothing was changed; otherwise the result would be:";

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
pub(crate) fn print_failure(message: &str, code: u8) {
    let content = Failure {
        error: message.to_owned(),
        code,
    };
    line(&ERROR.of(&content).to_string());
}

/// Records that the requested change is done, so that only its report can still fail.
pub fn changed() {
    CHANGED.store(!is_dry_run(), Ordering::Relaxed);
}

/// The command has changed something.
static CHANGED: AtomicBool = AtomicBool::new(false);

/// Records that the command is a dry run, for the form of its result.
pub fn begin_dry_run() {
    IS_DRY_RUN.store(true, Ordering::Relaxed);
}

/// Reports whether the command is a dry run.
pub fn is_dry_run() -> bool {
    IS_DRY_RUN.load(Ordering::Relaxed)
}

static IS_DRY_RUN: AtomicBool = AtomicBool::new(false);

/// Omits progress and notes from now on. Warnings, questions and errors remain.
pub fn be_quiet() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Reports whether progress is not shown unless it is requested.
pub(crate) fn hides_progress(json: bool) -> bool {
    json || IS_QUIET.load(Ordering::Relaxed)
}

/// Sets the name with which errors begin [default: evfs]: that of a helper of mount(8).
pub fn name_program(name: &'static str) {
    let _ = PROGRAM.set(name);
}

static PROGRAM: OnceLock<&str> = OnceLock::new();

/// Prints an error to standard error, after the name of the program.
pub fn complain(message: &str) {
    let program = PROGRAM.get().unwrap_or(&"evfs");
    let _ = writeln!(
        std::io::stderr().lock(),
        "{program}: {}",
        printable(message)
    );
}

/// First error of a write to standard output.
static GONE: OnceLock<std::io::Error> = OnceLock::new();

/// Returns the width of the terminal at standard output, in columns, if there is one.
pub fn width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

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
            complain(&format!("cannot write to standard output: {why}{done}"));
            ExitCode::from(exit::FAILURE)
        }
        _ => ExitCode::from(code),
    }
}

/// Prints a message for the user to standard error; nothing with `--json` or `--quiet`.
pub fn say(json: bool, text: &str) {
    if !IS_QUIET.load(Ordering::Relaxed) {
        warn(json, text);
    }
}

/// Prints a warning to standard error; nothing with `--json`, where it is part of the document.
pub fn warn(json: bool, text: &str) {
    if !json {
        let _ = writeln!(std::io::stderr().lock(), "{text}");
    }
}

/// Prints an error with its sources, and returns its exit code.
pub fn fail(json: bool, error: &Error) -> ExitCode {
    let message = error.message();
    let code = error.exit_code();
    if json {
        print_failure(&message, code);
    }
    complain(&message);
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
