//! The target of a command, found by [`stack::handle`]. If that is not what was typed, a note names
//! it.

use cli::{Context, output};
use stack::Result;
use stack::handle::{self, Mounted, Resolved, Service};
use std::path::{Path, PathBuf};

/// Finds the DEVICE that a word names. A server that continues another one has its DEVICE, and must
/// not ask itself.
pub fn device(context: &Context, word: &Path) -> Result<PathBuf> {
    if keeper::is_executed() {
        return Ok(word.to_owned());
    }
    handle::device(word, &context.settings).map(|found| noted(context, found))
}

/// Finds the service that a word names.
pub fn service(context: &Context, word: &Path) -> Result<Service> {
    handle::service(word, &context.settings).map(|found| noted(context, found))
}

/// Finds the mounted file system that a word names.
pub fn mount(context: &Context, word: &Path) -> Result<Mounted> {
    handle::mount(word, &context.settings).map(|found| noted(context, found))
}

/// Finds the LUN that a word names.
pub fn lun(context: &Context, word: &str) -> Result<String> {
    handle::lun(word, &context.settings).map(|found| noted(context, found))
}

fn noted<T>(context: &Context, found: Resolved<T>) -> T {
    if let Some(note) = &found.note {
        output::say(context.json, &format!("note: {note}"));
    }
    found.value
}
