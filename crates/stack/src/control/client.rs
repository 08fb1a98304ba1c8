//! The client end of control sockets.

use super::protocol::{ControlRequest, answer_from_line, valid_name};
use super::socket::{Name, Until, connect, is_late, socket_path};
use crate::paths::is_trusted;
use crate::peer::{is_trusted_user, peer};
use crate::text::json_of;
use crate::{Error, Result};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

/// Sends a request to the service `name` and returns its answer.
///
/// # Errors
/// [`Error::NotFound`] if there is no such service, [`Error::Busy`] if it does not answer in time,
/// and errors that it answers.
pub fn send_request(run_dir: &Path, name: &str, request: &ControlRequest) -> Result<Value> {
    exchange(run_dir, name, request, Leftover::Remove, request.deadline())
}

/// Same as [`send_request`], but leaves the socket of a killed process where it is.
///
/// # Errors
/// Those of [`send_request`].
pub(crate) fn send_query(run_dir: &Path, name: &str, request: &ControlRequest) -> Result<Value> {
    exchange(run_dir, name, request, Leftover::Keep, request.deadline())
}

/// Same as [`send_query`], but waits for the answer until `end`.
///
/// # Errors
/// Those of [`send_request`].
pub(crate) fn send_query_until(
    run_dir: &Path,
    name: &str,
    request: &ControlRequest,
    end: Instant,
) -> Result<Value> {
    exchange(run_dir, name, request, Leftover::Keep, Some(end))
}

/// Calls a function for each object on a thread of its own, so that a service without an answer
/// delays no request to another one. An object whose thread panics is left out.
pub(crate) fn concurrently<N: Send, T: Send>(
    objects: Vec<N>,
    ask: impl Fn(&N) -> T + Sync,
) -> Vec<(N, T)> {
    let ask = &ask;
    std::thread::scope(|scope| {
        let start = |object: N| scope.spawn(move || (ask(&object), object));
        let started: Vec<_> = objects.into_iter().map(start).collect();
        let answers = started.into_iter().filter_map(|thread| thread.join().ok());
        answers.map(|(answer, object)| (object, answer)).collect()
    })
}

/// Status of a service that does not answer.
#[derive(Serialize, JsonSchema)]
pub struct SilentStatus {
    /// Name of the service.
    name: String,
    /// `not answering`.
    state: &'static str,
    /// Reason.
    error: String,
    /// Health of the service.
    health: SilentHealth,
}

/// Health of a service that does not answer.
#[derive(Serialize, JsonSchema)]
struct SilentHealth {
    /// `failing`.
    state: &'static str,
    /// Reasons for the state.
    reasons: Vec<String>,
}

/// Builds the status of a service that does not answer, with the error of the request to it.
pub fn silent_status(name: &str, error: &Error) -> Value {
    let why = error.chain();
    json_of(&SilentStatus {
        name: name.to_owned(),
        state: "not answering",
        error: why.clone(),
        health: SilentHealth {
            state: "failing",
            reasons: vec![why],
        },
    })
}

/// Treatment of a socket that a killed process has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leftover {
    Remove,
    Keep,
}

fn exchange(
    run_dir: &Path,
    name: &str,
    request: &ControlRequest,
    leftover: Leftover,
    end: Option<Instant>,
) -> Result<Value> {
    let not_attached = || Error::NotFound(format!("no volume named `{name}` is attached"));
    if !valid_name(name) || !is_trusted(run_dir)? {
        return Err(not_attached());
    }
    let path = socket_path(run_dir, name);
    let stream = match connect(&path, end) {
        Ok(stream) => stream,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(not_attached()),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            // Left by a killed process, unless another one is about to listen there.
            if leftover == Leftover::Remove
                && let Ok(Some(_name)) = Name::take(run_dir, name)
            {
                let _ = std::fs::remove_file(&path);
            }
            return Err(not_attached());
        }
        Err(e) if is_late(&e) => return Err(silent(name, None)),
        Err(e) => return Err(Error::io("cannot reach", &path, e)),
    };
    let failed = |e| Error::io("no answer from", &path, e);
    let peer = peer(&stream).map_err(failed)?;
    if !is_trusted_user(peer.uid) {
        return Err(Error::Unsafe {
            path,
            detail: format!("a process of user {} listens there", peer.uid),
        });
    }
    let failed = |e: io::Error| {
        if is_late(&e) {
            silent(name, (peer.pid != 0).then_some(peer.pid))
        } else {
            failed(e)
        }
    };
    let mut until = Until::new(&stream, end);
    let sent = until.write_all(request.to_line().as_bytes());
    sent.map_err(failed)?;
    let line = until.line().map_err(failed)?;
    answer_from_line(name, &line)
}

fn silent(name: &str, pid: Option<i32>) -> Error {
    let who = pid.map_or(String::new(), |pid| format!(" (process {pid})"));
    Error::Busy(format!(
        "`{name}`{who} is not answering: its process is stopped, or waits for a device; try again, \
         or abandon the wait with `evfs detach {name} --force`"
    ))
}

/// Lists the names of all services, sorted; none if the directory is not safe.
pub fn names(run_dir: &Path) -> Vec<String> {
    let trusted = is_trusted(run_dir).unwrap_or_else(|error| {
        tracing::warn!(name: "EVFS-0802", "{error}");
        false
    });
    let Some(entries) = trusted.then(|| std::fs::read_dir(run_dir).ok()).flatten() else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|e| Some(e.file_name().to_str()?.strip_suffix(".control")?.to_owned()))
        .collect();
    names.sort();
    names
}

/// Collects the status of every service. They are queried concurrently, so that one without an
/// answer delays no other.
///
/// # Errors
/// The directory is not safe.
pub fn statuses(run_dir: &Path) -> Result<Vec<(String, Result<Value>)>> {
    is_trusted(run_dir)?;
    Ok(statuses_of(run_dir, names(run_dir)))
}

/// Same as [`statuses`], but changes nothing: the socket of a killed process stays, and is listed
/// with [`Error::NotFound`].
///
/// # Errors
/// The directory is not safe.
pub(crate) fn statuses_unchanged(run_dir: &Path) -> Result<Vec<(String, Result<Value>)>> {
    is_trusted(run_dir)?;
    Ok(ask_all(run_dir, names(run_dir), Leftover::Keep))
}

fn statuses_of(run_dir: &Path, names: Vec<String>) -> Vec<(String, Result<Value>)> {
    let mut all = ask_all(run_dir, names, Leftover::Remove);
    all.retain(|(_, status)| !matches!(status, Err(Error::NotFound(_))));
    all
}

fn ask_all(run_dir: &Path, names: Vec<String>, leftover: Leftover) -> Vec<(String, Result<Value>)> {
    let request = ControlRequest::Status;
    let end = request.deadline();
    concurrently(names, |name| {
        exchange(run_dir, name, &request, leftover, end)
    })
}

/// Finds the first service whose status satisfies `wanted`.
pub fn find(run_dir: &Path, wanted: impl Fn(&Value) -> bool) -> Option<String> {
    find_other(run_dir, "", wanted)
}

/// Same as [`find`], except for the service `but`.
pub(crate) fn find_other(
    run_dir: &Path,
    but: &str,
    wanted: impl Fn(&Value) -> bool,
) -> Option<String> {
    let mut names = names(run_dir);
    names.retain(|name| name != but);
    let is_it = |(name, status): (String, Result<Value>)| wanted(&status.ok()?).then_some(name);
    statuses_of(run_dir, names).into_iter().find_map(is_it)
}
