//! Errors of this crate: an invalid specification, or a target that failed.

/// Result of a measurement.
pub type Result<T> = std::result::Result<T, Error>;

/// Reason why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The specification or the plan is invalid; the text names the value and the reason.
    #[error("{0}")]
    Spec(String),
    /// The device of an arm failed.
    #[error("{arm}: device error")]
    Device {
        /// Name of the arm.
        arm: String,
        /// Error of the device.
        source: block::Error,
    },
    /// An operation on a file target failed.
    #[error("{target}: {call} {path}")]
    Files {
        /// Name of the target.
        target: String,
        /// Operation that failed.
        call: &'static str,
        /// Path of the file within the target.
        path: String,
        /// Error of the file system.
        source: std::io::Error,
    },
    /// A read returned data other than that written through the same arm.
    #[error("{arm}: data read at offset {offset} does not match the data written there")]
    Verify {
        /// Name of the arm.
        arm: String,
        /// Offset of the first byte of the request.
        offset: u64,
    },
    /// A worker thread panicked or could not be started.
    #[error("{arm}: a worker thread failed: {detail}")]
    Worker {
        /// Name of the arm.
        arm: String,
        /// Cause, as far as it is known.
        detail: String,
    },
    /// A program or peer that a workload depends on failed.
    #[error("{what}: {detail}")]
    Program {
        /// Name of the program, the script or the peer.
        what: String,
        /// Cause, as far as it is known.
        detail: String,
    },
    /// The caller stopped the study before the first pair was complete.
    #[error("stopped before the first pair of runs was complete")]
    Stopped,
    /// The file of a result cannot be read or written.
    #[error("{path}")]
    Journal {
        /// Path of the file.
        path: String,
        /// Error of the system.
        source: std::io::Error,
    },
    /// A stored result does not parse, or has another schema.
    #[error("invalid benchmark result: {0}")]
    Format(String),
}

impl Error {
    /// Creates an [`Error::Files`]: `call` failed on the file `path` of `target`.
    pub fn on_files(
        target: String,
        call: &'static str,
        path: &str,
        source: std::io::Error,
    ) -> Error {
        let path = path.to_owned();
        Error::Files {
            target,
            call,
            path,
            source,
        }
    }

    /// Formats the message with its cause.
    pub fn in_words(&self) -> String {
        let cause = std::error::Error::source(self);
        let words = cause.map_or_else(|| self.to_string(), |cause| format!("{self}: {cause}"));
        match self {
            Error::Files { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
                format!(
                    "{words}; free space there, or reduce the sizes that `evfs bench list \
                     WORKLOAD` shows"
                )
            }
            _ => words,
        }
    }
}
