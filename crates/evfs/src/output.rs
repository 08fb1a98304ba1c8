//! What is printed: data to standard output, words to standard error, JSON when asked for.

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use stack::Error;
use std::error::Error as _;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

/// Prints a result: `value` as JSON, or `text` for people.
pub fn show(json: bool, value: &Value, text: impl FnOnce() -> String) {
    let text = if json {
        serde_json::to_string_pretty(value).expect("a value becomes text")
    } else {
        text().trim_end().to_owned()
    };
    line(&text);
}

/// A bar on standard error for work that takes a while; not shown with `--json`, nor where there is no
/// terminal.
pub struct Bar(ProgressBar);

impl Bar {
    /// Begins with nothing done; `what` says what is done.
    pub fn new(json: bool, what: &'static str) -> Bar {
        if json {
            return Bar(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template("{msg:<12} [{bar:30}] {percent} %");
        let bar = ProgressBar::new(1).with_message(what);
        Bar(bar.with_style(style.expect("a template that is known")))
    }

    /// So much of so much is done.
    pub fn at(&self, done: u64, of: u64) {
        self.0.set_length(of);
        self.0.set_position(done);
    }

    /// Takes it away.
    pub fn end(&self) {
        self.0.finish_and_clear();
    }
}

/// Prints one line of data. A reader that went away (`| head`) is no reason to panic.
pub fn line(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// Words for the person that waits; nothing with `--json`.
pub fn say(json: bool, text: &str) {
    if !json {
        let _ = writeln!(std::io::stderr().lock(), "{text}");
    }
}

/// Prints an error with its sources and turns it into the exit code.
pub fn fail(json: bool, error: &Error) -> ExitCode {
    let message = chain(error);
    let code = error.exit_code();
    if json {
        line(&serde_json::json!({ "error": message, "code": code }).to_string());
    }
    let _ = writeln!(std::io::stderr().lock(), "evfs: {message}");
    ExitCode::from(code)
}

/// The error and its sources, each once.
pub fn chain(error: &Error) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(e) = source {
        let text = e.to_string();
        if !message.contains(&text) {
            let _ = write!(message, ": {text}");
        }
        source = e.source();
    }
    message
}

/// A size in bytes for people, exact when it is a whole number of a unit.
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

/// Parses a size: a number with an optional binary unit (`K`, `M`, `G`, `T`, also `KiB`, ...).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("`{text}` is not a size, like 10G"))?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => {
            return Err(format!(
                "`{unit}` is not a unit; K, M, G and T are (powers of 1024)"
            ));
        }
    };
    number
        .checked_mul(1 << shift)
        .filter(|&n| n <= i64::MAX as u64)
        .ok_or_else(|| format!("`{text}` is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("64k", 65536),
            ("10G", 10 << 30),
            ("3MiB", 3 << 20),
        ] {
            assert_eq!(parse_size(text), Ok(bytes));
        }
        for bad in ["", "G", "1.5G", "-1", "1P", "99999999999T"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert_eq!(size(10 << 30), "10 GiB");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(100), "100 B");
    }
}
