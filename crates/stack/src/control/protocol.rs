//! The control protocol: requests to a service and their encoding, each as one line of JSON.
//!
//! The requests are data only: the modules that answer them depend on this one, not it on them.

use crate::{Error, Result, exit};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Time limit of a client for answers that need no I/O on the device.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a scrape of metrics, and of `evfs top`, for the answer of another process.
/// Prometheus waits ten seconds for the whole scrape.
const METRICS_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit of a client for other answers, except that to a detach.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Control requests to a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlRequest {
    /// Report the status: name, device, exports, start time.
    Status,
    /// Read the counters of the data path.
    Stats,
    /// Read the metrics of the service and of its process.
    Metrics,
    /// Read the counters that `evfs top` compares with those of a moment ago.
    Watch(WatchRequest),
    /// Make everything durable that was acknowledged before.
    Sync,
    /// Make everything durable, and let the program that has the place of this one now take over.
    Restart,
    /// Check whether a detach would fail because of users.
    MayDetach,
    /// Flush, close the exports and end.
    Detach {
        /// Close the exports even if they are in use.
        force: bool,
    },
    /// A request about the underlying LUN.
    Lun(LunRequest),
    /// A request about the cache.
    Cache(CacheRequest),
    /// A request about the file system.
    Files(FsRequest),
    /// A request about the cell.
    Cell(CellRequest),
    /// Grow the device, the volume and the file system.
    Grow(GrowRequest),
    /// A dry run of [`ControlRequest::Grow`].
    PlanGrow(GrowRequest),
    /// A dry run of a request about the file system.
    PlanFiles(FsRequest),
    /// A dry run of a request about the cell.
    PlanCell(CellRequest),
}

/// Manner in which a service executes a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Run {
    Real,
    /// Only checks are made, and the answer is that of a real run.
    Dry,
}

impl ControlRequest {
    /// Returns the time until which a client that asks now waits for the answer. For a detach or a
    /// sync it waits indefinitely, because the answer comes after everything is written out, for a
    /// change of a whole fileset, which takes time in proportion to its content, and for a grow, which
    /// must not be reported as failed.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let limit = match self {
            ControlRequest::Status | ControlRequest::Stats => STATUS_TIMEOUT,
            ControlRequest::Metrics | ControlRequest::Watch(_) => METRICS_TIMEOUT,
            // A part of a stream waits for the disk, and an estimate reads all metadata.
            ControlRequest::Detach { .. }
            | ControlRequest::Sync
            | ControlRequest::Restart
            | ControlRequest::Grow(_)
            | ControlRequest::Files(
                FsRequest::Clone { .. } | FsRequest::Rollback { .. } | FsRequest::Transfer(_),
            ) => return None,
            _ => ANSWER_TIMEOUT,
        };
        Some(Instant::now() + limit)
    }

    /// Encodes the request.
    pub(super) fn to_line(&self) -> String {
        let request = serde_json::to_string(self).expect("an enum becomes JSON");
        format!("{request}\n")
    }

    /// Decodes a request; returns `None` if it is not one of this version.
    pub(super) fn from_line(line: &str) -> Option<ControlRequest> {
        serde_json::from_str(line).ok()
    }
}

/// Size to grow to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrowRequest {
    /// New size of the image file, in bytes; `None`: the current size of the device.
    pub size: Option<u64>,
}

/// Extent of the answer to [`ControlRequest::Watch`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchRequest {
    /// Files to report for each respect in which they can lead, at most.
    pub files: usize,
    /// Clients of a cell to report, at most.
    pub clients: usize,
    /// Files whose paths the asker knows: the name of the tree, and the number of the file.
    #[serde(default)]
    pub known: Vec<(String, u64)>,
}

/// Requests to an open LUN.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LunRequest {
    /// Report the complete state.
    Show,
    /// Reset the counters.
    Clear,
    /// Read the attributes in force.
    Get,
    /// Change an attribute until the LUN is reopened.
    Set {
        /// Name of the attribute.
        name: String,
        /// New value.
        value: String,
    },
    /// List the waiting I/Os, each with the reason.
    Waiting,
    /// Evaluate the recorded I/O under every policy.
    Advise,
    /// Add a path.
    Add {
        /// Address of the path.
        address: String,
        /// Legacy name of the path.
        legacy: String,
    },
    /// Remove a path from the LUN.
    Remove {
        /// Address or legacy name.
        path: String,
        /// Remove even the last working path.
        force: bool,
    },
    /// Enable a path.
    Enable {
        /// Address or legacy name.
        path: String,
    },
    /// Disable a path.
    Disable {
        /// Address or legacy name.
        path: String,
        /// Disable even the last working path.
        force: bool,
    },
    /// Accept the identity that a refused path reports.
    ReplaceWwid {
        /// Address or legacy name.
        path: String,
    },
}

/// Control requests about the cache and the pages of one service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheRequest {
    /// Read settings and counters.
    Show {
        /// Include the counters of each file.
        files: bool,
    },
    /// Change settings, all of them or none.
    Set {
        /// Names and values of settings, see [`crate::cache::TUNABLES`].
        changes: Vec<(String, String)>,
    },
    /// Write out all dirty pages of the service and make them durable.
    Flush,
    /// Flush, then drop the pages of the service.
    Drop,
    /// Change attributes of the pages of a volume, or of a file in a mounted file system or cell.
    Advise {
        /// Path of the file from the root of the service; `None` for a volume.
        #[serde(default)]
        path: Option<String>,
        /// Names and values of attributes, see [`crate::cache::ADVICE`].
        changes: Vec<(String, String)>,
    },
}

/// Requests to a file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FsRequest {
    /// List the filesets and snapshots.
    List,
    /// Report the use of space.
    Usage,
    /// Read file data, and compare it with its checksums.
    Scrub {
        /// Position to start at; `None` for the start.
        from: Option<String>,
        /// Bytes to read, about.
        bytes: u64,
    },
    /// Create a fileset.
    Create {
        /// Name of the fileset.
        name: String,
        /// Initial limits.
        quota: Limits,
    },
    /// Rename a fileset or a snapshot.
    Rename {
        /// Current name.
        from: String,
        /// New name.
        to: String,
    },
    /// Change the limits of a fileset.
    Quota {
        /// Name of the fileset.
        name: String,
        /// New limits.
        quota: Limits,
    },
    /// Report what users and groups use in a fileset, and change the limits of one of them.
    Owners(OwnersRequest),
    /// Set the method by which new content of a fileset is compressed.
    Compression {
        /// Name of the fileset.
        name: String,
        /// The method; `None`: only files with a flag.
        method: Option<String>,
    },
    /// Create a snapshot of a fileset.
    Snapshot {
        /// Name of the fileset.
        of: String,
        /// Name of the snapshot.
        name: String,
    },
    /// Create a fileset with the content of a snapshot.
    Clone {
        /// Name of the snapshot.
        of: String,
        /// Name of the new fileset.
        name: String,
    },
    /// Make a fileset equal to one of its snapshots.
    Rollback {
        /// Name of the fileset.
        fileset: String,
        /// Name of the snapshot.
        to: String,
        /// Name of a snapshot of the state before, to be taken first.
        keep: Option<String>,
    },
    /// Protect a snapshot from removal, or end that.
    Hold {
        /// Name of the snapshot.
        name: String,
        /// Whether it is to be held.
        held: bool,
    },
    /// Compare two states of a fileset.
    Diff {
        /// Name of a snapshot or of the fileset.
        first: String,
        /// Name of another one.
        second: String,
        /// Path of the last difference that the caller has received already.
        after: Option<Vec<u8>>,
    },
    /// Remove a fileset or a snapshot.
    Remove {
        /// Name of the fileset or snapshot.
        name: String,
        /// Remove even a fileset that contains files.
        force: bool,
    },
    /// Send or receive a part of a snapshot.
    Transfer(TransferRequest),
    /// Work in the background of the service.
    Job(JobRequest),
}

/// Requests about the work that a service does in the background, of which there is one at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobRequest {
    /// Begin. If the same work is in progress, the answer is about that.
    Start(JobKind),
    /// Report the progress, or the result.
    Follow {
        /// Number of the job.
        id: u64,
    },
}

/// Work that takes long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobKind {
    /// Check the metadata.
    Check {
        /// Bytes to read in a second, at most.
        rate: Option<u64>,
        /// Return space in use to which nothing refers.
        repair: bool,
    },
    /// Defragment files.
    Defrag(DefragRequest),
}

/// Files to be rewritten, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefragRequest {
    /// Fileset; `None` for the first one with a path, otherwise all.
    pub fileset: Option<String>,
    /// Path from the root of the fileset.
    pub path: Option<String>,
    /// Compress and decompress content as the settings of filesets and files ask for.
    pub recompress: bool,
    /// Bytes to move in a second, at most.
    pub rate: Option<u64>,
}

/// Request about the users and groups of a fileset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnersRequest {
    /// Name of the fileset.
    pub fileset: String,
    /// User or group; `None` for all of them.
    pub owner: Option<OwnerId>,
    /// New limits of the user or the group.
    pub quota: Limits,
}

/// A user or a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OwnerId {
    /// Number of a user.
    User(u32),
    /// Number of a group.
    Group(u32),
}

/// Requests to send or receive a snapshot. Each one has all that the server needs to know, so that
/// the server keeps no state, and either side can be interrupted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransferRequest {
    /// Make the header of a stream.
    Header(Transfer),
    /// Count the records and the bytes of a stream, from a token on.
    Estimate(Transfer),
    /// Make the next segment, after a token.
    Segment(Transfer),
    /// Begin to receive a stream, or continue it.
    Begin {
        /// Name of the fileset.
        fileset: String,
        /// Start of the stream, encoded.
        header: Blob,
        /// Name of the snapshot to make.
        name: String,
    },
    /// Apply the next segment.
    Apply {
        /// Name of the fileset.
        fileset: String,
        /// Next part of the stream, encoded.
        segment: Blob,
        /// Name of the snapshot, once it is complete.
        name: String,
    },
    /// Report whether a fileset is receiving a snapshot.
    Status {
        /// Name of the fileset.
        fileset: String,
    },
    /// Abandon the reception of a snapshot.
    Abort {
        /// Name of the fileset.
        fileset: String,
    },
}

/// Stream to be sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// Name of the snapshot.
    pub snapshot: String,
    /// Name of the snapshot that the stream is relative to.
    pub since: Option<String>,
    /// Whether the segments get authentication codes.
    pub codes: bool,
    /// Token of the point from which it continues.
    pub token: Option<String>,
}

/// Bytes in a request or an answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Blob(pub Vec<u8>);

impl Serialize for Blob {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Blob, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        let bytes = BASE64.decode(text.as_bytes());
        bytes.map(Blob).map_err(serde::de::Error::custom)
    }
}

/// Limits of a fileset, or of a user or a group in one. `None` leaves a limit unchanged, 0 removes it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of file data, rounded up to whole blocks.
    pub bytes: Option<u64>,
    /// Number of inodes: files, directories and all other objects.
    pub inodes: Option<u64>,
}

impl FsRequest {
    /// Reports whether the request changes the file system.
    pub(crate) fn changes(&self) -> bool {
        if let FsRequest::Owners(ask) = self {
            return ask.quota != Limits::default();
        }
        !matches!(
            self,
            FsRequest::List
                | FsRequest::Usage
                | FsRequest::Diff { .. }
                | FsRequest::Scrub { .. }
                | FsRequest::Job(_)
                | FsRequest::Transfer(
                    TransferRequest::Header(_)
                        | TransferRequest::Estimate(_)
                        | TransferRequest::Segment(_)
                        | TransferRequest::Status { .. }
                )
        )
    }
}

/// Requests to a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CellRequest {
    /// Report the configuration of the cell and the state of its server.
    Status {
        /// Include all clients.
        clients: bool,
    },
    /// Read the access list of a directory.
    AclGet {
        /// Name of the volume.
        volume: String,
        /// Path from the root of the volume.
        path: String,
    },
    /// Change an access list.
    AclSet {
        /// Name of the volume.
        volume: String,
        /// Path from the root of the volume.
        path: String,
        /// Names and rights: letters, or `read`, `write`, `all` or `none`.
        changes: Vec<(String, String)>,
        /// Change the negative entries, which deny rights.
        negative: bool,
        /// Start with an empty list.
        clear: bool,
    },
    /// List the volumes.
    List,
    /// Create a volume.
    Create {
        /// Name of the volume.
        name: String,
        /// Quota, in bytes.
        quota: Option<u64>,
        /// Path of its mount point from the top of the cell.
        mount: Option<String>,
    },
    /// Create a mount point of an existing volume.
    Mount {
        /// Name of the volume.
        name: String,
        /// Path of the mount point from the top of the cell.
        path: String,
        /// Lead to the read-write volume, never to its replica.
        read_write: bool,
    },
    /// Create or replace the read-only replica of a volume.
    Clone {
        /// Name of the volume.
        name: String,
        /// Create the backup volume instead.
        backup: bool,
    },
    /// Set the quota of a volume.
    Quota {
        /// Name of the volume.
        name: String,
        /// Quota, in bytes; 0 for none.
        bytes: u64,
    },
    /// Remove a volume.
    Remove {
        /// Name of the volume.
        name: String,
        /// Remove it even if it contains files.
        force: bool,
    },
}

impl CellRequest {
    /// Reports whether the request changes the cell.
    pub(crate) fn changes(&self) -> bool {
        !matches!(
            self,
            CellRequest::Status { .. } | CellRequest::AclGet { .. } | CellRequest::List
        )
    }
}

/// Encodes an answer.
pub(super) fn answer_to_line(answer: std::result::Result<&Value, &Error>) -> String {
    let answer = match answer {
        Ok(value) => json!({ "ok": value }),
        Err(why) => json!({ "error": why.message(), "code": why.exit_code() }),
    };
    format!("{answer}\n")
}

/// Decodes the answer of the service `name`.
///
/// # Errors
/// The error that was answered; [`Error::Busy`] for an incomplete answer.
pub(super) fn answer_from_line(name: &str, line: &str) -> Result<Value> {
    let mut answer: Value = serde_json::from_str(line).map_err(|_| {
        Error::Busy(format!(
            "the process that serves `{name}` ended without an answer"
        ))
    })?;
    let Some(why) = answer.get("error").and_then(|e| e.as_str()) else {
        return Ok(answer["ok"].take());
    };
    let why = why.to_owned();
    Err(match answer["code"].as_u64().map(|code| code as u8) {
        Some(exit::NOT_FOUND) => Error::NotFound(why),
        Some(exit::BUSY) => Error::Busy(why),
        Some(exit::USAGE) => Error::Usage(why),
        Some(exit::DATA_LOST) => Error::DataLost(why),
        _ => Error::Failed(why),
    })
}

/// Reports whether `name` is valid for a service, and therefore as part of a file name.
pub fn valid_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=64).contains(&name.len())
        && name.chars().all(good)
        && !name.starts_with('.')
        && !name.starts_with('-')
}

/// Refuses an invalid name for `what`.
pub(crate) fn check_name(name: &str, what: &str) -> Result<()> {
    if valid_name(name) {
        Ok(())
    } else {
        Err(Error::Usage(format!(
            "`{name}` is not a valid name for {what}: use at most 64 letters, digits, `.`, `_` and \
             `-`, and do not begin with `.` or `-`; set a name with --name"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_a_service_answers_keeps_its_next_step() {
        let source = fs::Error::new(fs::Kind::Exists, "`home` already exists");
        let error = Error::files("cannot create the fileset `home`")(source);
        let line = answer_to_line(Err(&error));
        let answered = answer_from_line("disk", &line).unwrap_err();
        assert_eq!(answered.message(), error.message());
        assert_eq!(answered.exit_code(), error.exit_code());
        assert!(answered.message().ends_with("; choose another name"));
    }
}
