//! The log: text, escaped by the subscriber. It is written to standard error, or to the system log
//! when a process in the background has no standard error that it could keep.

use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Function that changes the level; unset if the command line sets the level.
static CHANGE: OnceLock<Change> = OnceLock::new();

type Change = Box<dyn Fn(&str) + Send + Sync>;

/// Sockets of the system log: the usual path, and that of systemd.
const SYSTEM_LOGS: [&str; 2] = ["/dev/log", "/run/systemd/journal/dev-log"];

/// Set once the log is written to the system log.
static SYSTEM_LOG: OnceLock<UnixDatagram> = OnceLock::new();

/// Switches the log to the system log.
pub fn to_system_log() {
    let made = UnixDatagram::unbound().and_then(|socket| {
        // A full system log must not block the service.
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    if let Ok(socket) = made {
        let _ = SYSTEM_LOG.set(socket);
    }
}

struct Log;

/// One line of the log.
enum Line {
    Stderr(std::io::Stderr),
    System(&'static UnixDatagram, &'static Level),
}

impl MakeWriter<'_> for Log {
    type Writer = Line;

    fn make_writer(&self) -> Line {
        self.line(&Level::INFO)
    }

    fn make_writer_for(&self, meta: &Metadata<'_>) -> Line {
        static LEVELS: [Level; 5] = [
            Level::ERROR,
            Level::WARN,
            Level::INFO,
            Level::DEBUG,
            Level::TRACE,
        ];
        let level = LEVELS.iter().find(|level| *level == meta.level());
        self.line(level.unwrap_or(&Level::INFO))
    }
}

impl Log {
    fn line(&self, level: &'static Level) -> Line {
        match SYSTEM_LOG.get() {
            Some(socket) => Line::System(socket, level),
            None => Line::Stderr(std::io::stderr()),
        }
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let (socket, level) = match self {
            Line::Stderr(stderr) => return stderr.write(bytes),
            Line::System(socket, level) => (socket, level),
        };
        let severity = match **level {
            Level::ERROR => libc::LOG_ERR,
            Level::WARN => libc::LOG_WARNING,
            Level::INFO => libc::LOG_INFO,
            _ => libc::LOG_DEBUG,
        };
        let mut line = format!(
            "<{}>evfs[{}]: ",
            libc::LOG_DAEMON | severity,
            std::process::id()
        );
        line.push_str(String::from_utf8_lossy(bytes).trim_end());
        // Connects by path each time, as the system log may restart. Without one the line is
        // dropped.
        let _ = SYSTEM_LOGS
            .iter()
            .any(|at| socket.send_to(line.as_bytes(), at).is_ok());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Starts the log at the level of the command line, or that of the settings.
pub fn start(given: Option<&str>, settings: &str) {
    let (targets, handle) =
        tracing_subscriber::reload::Layer::new(filter(given.unwrap_or(settings)));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(Log)
        // A closed terminal must not panic.
        .log_internal_errors(false)
        .with_ansi(false);
    tracing_subscriber::registry()
        .with(targets)
        .with(lines)
        .init();
    if given.is_none() {
        let change = move |level: &str| drop(handle.reload(filter(level)));
        let _ = CHANGE.set(Box::new(change));
    }
}

/// Applies the level of the settings.
pub fn reload(level: &str) {
    if let Some(change) = CHANGE.get() {
        change(level);
    }
}

fn filter(level: &str) -> Targets {
    // fuser warns when it retries an unmount that we have already done, and of calls that are left
    // to the kernel; and the kernel may have abandoned a request before its reply arrives, which is
    // not an error.
    Targets::new()
        .with_default(level.parse().unwrap_or(LevelFilter::WARN))
        .with_target("fuser", LevelFilter::ERROR)
        .with_target("fuser::reply", LevelFilter::OFF)
}
