//! Progress of long commands on standard error: a bar at a terminal, or lines for another program.

use crate::document::Document;
use crate::output;
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;
use std::io::Write as _;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Values of `--progress`.
pub const WHEN: [&str; 3] = ["auto", "always", "never"];

/// The value of `--progress`: one of [`WHEN`].
static CHOSEN: OnceLock<String> = OnceLock::new();

/// Minimum time between two lines.
const BETWEEN_LINES: Duration = Duration::from_secs(1);

/// Sets when progress is shown, before a [`Bar`] is created [default: auto].
pub fn choose(when: &str) {
    let _ = CHOSEN.set(when.to_owned());
}

/// Progress of a command, printed to standard error with --json and --progress=always.
#[derive(Serialize, JsonSchema)]
pub struct Progress {
    /// Completed work, such as `checked`, or the name of a workload.
    what: &'static str,
    /// Amount done. The unit depends on the command.
    done: u64,
    /// Expected total.
    of: u64,
    /// Current step, if the command names its steps.
    step: Option<String>,
}

pub const PROGRESS: Document<Progress> = Document::new("evfs/progress/1");

impl Progress {
    fn text(&self) -> String {
        let percent = u128::from(self.done) * 100 / u128::from(self.of.max(1));
        let step = self.step.as_ref().map(|step| format!("; {step}"));
        format!(
            "{}: {percent} % ({} of {}){}",
            self.what,
            self.done,
            self.of,
            step.unwrap_or_default()
        )
    }
}

/// The progress of a command. With `auto`, it is a bar, which is hidden with `--json` and `--quiet`,
/// and without a terminal. With `always`, it is at most one line a second.
pub struct Bar {
    what: &'static str,
    /// Keeps the progress, also if it is hidden.
    bar: ProgressBar,
    json: bool,
    /// Time of the last line, if lines are printed.
    lines: Option<Mutex<Option<Instant>>>,
}

impl Bar {
    /// Creates a bar that shows `what` and the percentage.
    pub fn new(json: bool, what: &'static str) -> Bar {
        Bar::with(json, what, 1, "{prefix:<12} [{bar:30}] {percent} %")
    }

    /// Creates a bar that counts `steps`, and shows the current one.
    pub fn of_steps(json: bool, what: &'static str, steps: u64) -> Bar {
        let template = "{prefix:<12} [{bar:30}] {pos}/{len} {eta} {msg}";
        Bar::with(json, what, steps, template)
    }

    fn with(json: bool, what: &'static str, length: u64, template: &str) -> Bar {
        let when = CHOSEN.get().map_or("auto", String::as_str);
        let bar = if when == "auto" && !output::hides_progress(json) {
            ProgressBar::new(length)
        } else {
            let hidden = ProgressBar::hidden();
            hidden.set_length(length);
            hidden
        };
        let style = ProgressStyle::with_template(template).expect("the template is valid");
        Bar {
            what,
            bar: bar.with_style(style).with_prefix(what),
            json,
            lines: (when == "always").then(Mutex::default),
        }
    }

    /// Sets the progress to `done` of `of`.
    pub fn at(&self, done: u64, of: u64) {
        self.bar.set_length(of);
        self.bar.set_position(done);
        self.changed();
    }

    /// Names the current step.
    pub fn note(&self, step: String) {
        self.bar.set_message(step);
        self.changed();
    }

    /// Counts a step, and names it if there is something to say. There may be more than expected.
    pub fn step(&self, step: Option<String>) {
        self.bar.inc(1);
        if self.bar.position() > self.bar.length().unwrap_or(0) {
            self.bar.set_length(self.bar.position());
        }
        if let Some(step) = step {
            self.bar.set_message(step);
        }
        self.changed();
    }

    /// Removes the bar from the terminal.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }

    fn changed(&self) {
        let Some(lines) = &self.lines else { return };
        let mut last = lines.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if !is_due(*last, now) {
            return;
        }
        *last = Some(now);
        let progress = Progress {
            what: self.what,
            done: self.bar.position(),
            of: self.bar.length().unwrap_or(0),
            step: Some(self.bar.message()).filter(|step| !step.is_empty()),
        };
        let line = if self.json {
            PROGRESS.of(&progress).to_string()
        } else {
            progress.text()
        };
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }
}

/// Reports whether a line may be printed at `now`.
fn is_due(last: Option<Instant>, now: Instant) -> bool {
    last.is_none_or(|last| now.saturating_duration_since(last) >= BETWEEN_LINES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_at_least_a_second_apart() {
        let first = Instant::now();
        assert!(is_due(None, first));
        assert!(!is_due(Some(first), first));
        assert!(!is_due(Some(first), first + Duration::from_millis(999)));
        assert!(is_due(Some(first), first + BETWEEN_LINES));
    }

    #[test]
    fn a_line_has_the_percentage_the_amounts_and_the_step() {
        let progress = |done, of, step: Option<&str>| Progress {
            what: "checked",
            done,
            of,
            step: step.map(str::to_owned),
        };
        for (progress, text) in [
            (progress(1, 3, None), "checked: 33 % (1 of 3)"),
            (progress(3, 3, Some("b")), "checked: 100 % (3 of 3); b"),
            (progress(0, 0, None), "checked: 0 % (0 of 0)"),
        ] {
            assert_eq!(progress.text(), text);
        }
        let huge = progress(u64::MAX, u64::MAX, None).text();
        assert!(huge.starts_with("checked: 100 %"), "{huge}");
    }

    #[test]
    fn more_steps_than_expected_are_counted() {
        let bar = Bar::of_steps(true, "runs", 1);
        bar.step(None);
        bar.step(Some("second".into()));
        assert_eq!((bar.bar.position(), bar.bar.length()), (2, Some(2)));
        assert_eq!(bar.bar.message(), "second");
    }
}
