//! The log: each event is one line, or one entry of the journal.
//!
//! ```text
//!                     ┌── text, JSON ── standard error, or the system log
//!   event ── Entry ───┤
//!                     └── fields ────── the journal of systemd
//! ```
//!
//! A process in the background without a standard error that it could keep logs to the journal, or
//! without one to the system log. Sockets do not block: a log that is full or absent loses lines,
//! never time of a service.

pub mod codes;
mod entry;
mod journal;

use crate::descriptor::{is_journal, outlives_caller};
use entry::Entry;
use journal::Journal;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Function that changes the level; unset if the command line sets the level.
static CHANGE: OnceLock<Change> = OnceLock::new();

type Change = Box<dyn Fn(&str) + Send + Sync>;

/// The settings of the log.
static PLAN: OnceLock<Plan> = OnceLock::new();
/// Destination from the start of the process.
static FIRST: OnceLock<Sink> = OnceLock::new();
/// Destination since the process has given up its standard error.
static DETACHED: OnceLock<Sink> = OnceLock::new();

/// Sockets of the system log: the usual path, and that of systemd.
const SYSTEM_LOGS: [&str; 2] = ["/dev/log", "/run/systemd/journal/dev-log"];

/// Value of the setting `log.format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Auto,
    Text,
    Json,
    Journal,
}

impl Format {
    fn of(setting: &str) -> Format {
        match setting {
            "text" => Format::Text,
            "json" => Format::Json,
            "journal" => Format::Journal,
            _ => Format::Auto,
        }
    }
}

/// Form of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Text,
    Json,
}

/// Standard error of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stderr {
    /// A stream to the journal.
    Journal,
    /// Any other that the process keeps.
    Kept,
    /// One that the process gives up, because its reader waits for the end.
    Gone,
}

impl Stderr {
    /// Determines the standard error of this process once it serves.
    fn of(is_background: bool) -> Stderr {
        if is_journal(2) {
            Stderr::Journal
        } else if is_background && !outlives_caller(2) {
            Stderr::Gone
        } else {
            Stderr::Kept
        }
    }
}

/// The settings of the log.
struct Plan {
    format: Format,
    /// Socket of the journal.
    journal: PathBuf,
}

impl Plan {
    /// Chooses the destination.
    fn sink(&self, stderr: Stderr) -> Sink {
        let shape = match self.format {
            Format::Json => Shape::Json,
            _ => Shape::Text,
        };
        let wants_journal = match self.format {
            Format::Journal => true,
            Format::Auto => stderr != Stderr::Kept,
            Format::Text | Format::Json => false,
        };
        let journal = wants_journal.then(|| Journal::open(&self.journal));
        match (journal.flatten(), stderr) {
            (Some(journal), _) => Sink::Journal(journal),
            (None, Stderr::Gone) => {
                datagrams().map_or(Sink::Stderr(shape), |socket| Sink::System { socket, shape })
            }
            (None, _) => Sink::Stderr(shape),
        }
    }
}

/// Creates a socket for datagrams that does not block.
fn datagrams() -> Option<UnixDatagram> {
    let socket = UnixDatagram::unbound().ok()?;
    // A full log must not block the service.
    socket.set_nonblocking(true).ok()?;
    Some(socket)
}

/// Destination of the log.
enum Sink {
    Stderr(Shape),
    /// The system log, which receives a datagram for each line.
    System {
        socket: UnixDatagram,
        shape: Shape,
    },
    Journal(Journal),
}

impl Sink {
    fn write(&self, entry: &Entry) {
        match self {
            Sink::Stderr(shape) => to_stderr(entry, *shape),
            Sink::System { socket, shape } => to_system_log(socket, entry, *shape),
            Sink::Journal(journal) => {
                if journal.send(entry).is_err() {
                    to_stderr(entry, Shape::Text);
                }
            }
        }
    }

    /// Describes the destination, with the command that shows the log.
    fn place(&self) -> String {
        match self {
            Sink::Stderr(_) => match std::fs::read_link("/proc/self/fd/2") {
                Ok(file) if file.is_absolute() => file.display().to_string(),
                _ => "standard error".into(),
            },
            Sink::System { .. } if SYSTEM_LOGS.iter().any(|at| Path::new(at).exists()) => {
                format!("the system log, as evfs[{}]", std::process::id())
            }
            Sink::System { .. } => {
                "nowhere: this machine has neither a journal nor a system log; redirect standard \
                 error to a file"
                    .into()
            }
            Sink::Journal(_) => format!(
                "the journal; `journalctl -t evfs _PID={}` shows it",
                std::process::id()
            ),
        }
    }
}

fn line(entry: &Entry, shape: Shape) -> String {
    match shape {
        Shape::Text => entry.text(),
        Shape::Json => entry.json(),
    }
}

fn to_stderr(entry: &Entry, shape: Shape) {
    let line = line(entry, shape) + "\n";
    // A closed terminal must not panic.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

fn to_system_log(socket: &UnixDatagram, entry: &Entry, shape: Shape) {
    let line = format!(
        "<{}>evfs[{}]: {}",
        libc::LOG_DAEMON | severity(entry.level()),
        std::process::id(),
        line(entry, shape)
    );
    // Connects by path each time, as the system log may restart. Without one the line is dropped.
    let _ = SYSTEM_LOGS
        .iter()
        .any(|at| socket.send_to(line.as_bytes(), at).is_ok());
}

/// Maps a level to the severity of syslog(3).
fn severity(level: Level) -> libc::c_int {
    match level {
        Level::ERROR => libc::LOG_ERR,
        Level::WARN => libc::LOG_WARNING,
        Level::INFO => libc::LOG_INFO,
        _ => libc::LOG_DEBUG,
    }
}

/// The layer that writes events.
struct Log;

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        if let Some(sink) = DETACHED.get().or_else(|| FIRST.get()) {
            sink.write(&Entry::of(event));
        }
    }
}

/// Starts the log at the level of the command line, or that of the settings.
pub fn start(given: Option<&str>, settings: &stack::Settings) {
    let plan = Plan {
        format: Format::of(settings.log_format()),
        journal: settings.log_journal_socket(),
    };
    let _ = FIRST.set(plan.sink(Stderr::of(false)));
    let _ = PLAN.set(plan);
    let level = given.unwrap_or(settings.log_level());
    let (targets, handle) = tracing_subscriber::reload::Layer::new(filter(level));
    tracing_subscriber::registry()
        .with(targets)
        .with(Log)
        .init();
    if given.is_none() {
        let change = move |level: &str| drop(handle.reload(filter(level)));
        let _ = CHANGE.set(Box::new(change));
    }
}

/// Describes the destination of the log of a process that serves.
pub fn place(is_background: bool) -> String {
    let sink = PLAN.get().map(|plan| plan.sink(Stderr::of(is_background)));
    sink.map_or_else(String::new, |sink| sink.place())
}

/// Changes the destination before the process gives up its standard error.
pub fn detach_from_stderr() {
    if let Some(plan) = PLAN.get() {
        let _ = DETACHED.set(plan.sink(Stderr::Gone));
    }
}

/// Applies the level of the settings.
pub fn reload(level: &str) {
    if let Some(change) = CHANGE.get() {
        change(level);
    }
}

fn filter(level: &str) -> Targets {
    Targets::new().with_default(level.parse().unwrap_or(LevelFilter::WARN))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(format: Format, journal: &Path) -> Plan {
        Plan {
            format,
            journal: journal.to_owned(),
        }
    }

    /// Names the kind of the destination.
    fn kind(sink: &Sink) -> &'static str {
        match sink {
            Sink::Stderr(Shape::Text) => "stderr",
            Sink::Stderr(Shape::Json) => "stderr, JSON",
            Sink::System {
                shape: Shape::Text, ..
            } => "system log",
            Sink::System {
                shape: Shape::Json, ..
            } => "system log, JSON",
            Sink::Journal(_) => "journal",
        }
    }

    #[test]
    fn the_journal_is_used_where_it_replaces_nothing() {
        let path = std::env::temp_dir().join(format!("evfs-journal-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let journal = UnixDatagram::bind(&path).unwrap();
        let absent = Path::new("/nonexistent/journal");
        let cases = [
            (Format::Auto, ["journal", "stderr", "journal"]),
            (Format::Text, ["stderr", "stderr", "system log"]),
            (
                Format::Json,
                ["stderr, JSON", "stderr, JSON", "system log, JSON"],
            ),
            (Format::Journal, ["journal"; 3]),
        ];
        let all = [Stderr::Journal, Stderr::Kept, Stderr::Gone];
        for (format, expected) in cases {
            let kinds = all.map(|stderr| kind(&plan(format, &path).sink(stderr)));
            assert_eq!(kinds, expected, "{format:?}");
            let without = all.map(|stderr| kind(&plan(format, absent).sink(stderr)));
            assert!(!without.contains(&"journal"), "{format:?}");
        }
        drop(journal);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_setting_selects_its_format() {
        for (setting, format) in [
            ("auto", Format::Auto),
            ("text", Format::Text),
            ("json", Format::Json),
            ("journal", Format::Journal),
        ] {
            assert_eq!(Format::of(setting), format);
        }
    }
}
