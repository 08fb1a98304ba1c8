//! The log: text for a person on standard error, escaped by the subscriber.

use std::sync::OnceLock;
use tracing_subscriber::EnvFilter;

/// Changes the level; nothing where the command line has set it.
static CHANGE: OnceLock<Change> = OnceLock::new();

type Change = Box<dyn Fn(&str) + Send + Sync>;

/// Begins with the level of the command line, or that of the settings.
pub fn start(given: Option<&str>, settings: &str) {
    let builder = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        // A terminal that has gone is no reason to panic.
        .log_internal_errors(false)
        .with_ansi(false)
        .with_env_filter(filter(given.unwrap_or(settings)))
        .with_filter_reloading();
    let handle = builder.reload_handle();
    builder.init();
    if given.is_none() {
        let change = move |level: &str| drop(handle.reload(filter(level)));
        let _ = CHANGE.set(Box::new(change));
    }
}

/// Goes on with the level of the settings.
pub fn reload(level: &str) {
    if let Some(change) = CHANGE.get() {
        change(level);
    }
}

fn filter(level: &str) -> EnvFilter {
    // Once we have unmounted, the library tries it again, and warns that it cannot; it warns of calls that are left to the
    // kernel; and the kernel may have given a request up before its answer comes, which is nobody's error.
    EnvFilter::new(format!("{level},fuser=error,fuser::reply=off"))
}
