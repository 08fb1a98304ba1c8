//! Errors of the laboratory: a question that makes no sense, or a device that failed.

/// What a measurement gives.
pub type Result<T> = std::result::Result<T, Error>;

/// Why there is no measurement.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The specification or the plan cannot be carried out; the text says which value and why.
    #[error("{0}")]
    Spec(String),
    /// An arm's device failed.
    #[error("arm {arm}")]
    Device {
        /// The arm.
        arm: String,
        /// What the device said.
        source: block::Error,
    },
    /// A target of files failed.
    #[error("{target}: {call} {path}")]
    Files {
        /// The target.
        target: String,
        /// The operation.
        call: &'static str,
        /// The file.
        path: String,
        /// What the file system said.
        source: std::io::Error,
    },
    /// A read gave something else than what had been written through the same arm.
    #[error("arm {arm}: the data read at {offset} is not what was written there")]
    Verify {
        /// The arm.
        arm: String,
        /// First byte of the request.
        offset: u64,
    },
    /// A worker thread panicked or could not be started.
    #[error("arm {arm}: a worker thread failed: {detail}")]
    Worker {
        /// The arm.
        arm: String,
        /// What is known about it.
        detail: String,
    },
    /// Another program, or a peer, that a workload needs did not do its part.
    #[error("{what}: {detail}")]
    Program {
        /// The program, the script or the peer.
        what: String,
        /// What is known about it.
        detail: String,
    },
    /// Stopped by the caller before the first pair was complete.
    #[error("stopped before the first pair was complete")]
    Stopped,
    /// The file of a result cannot be read or written.
    #[error("{path}")]
    Journal {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A stored result does not parse, or is of another schema.
    #[error("not a result of this laboratory: {0}")]
    Format(String),
}

impl Error {
    /// A target of files failed: `call` on the file `path` of it.
    pub(crate) fn on_files(
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

    /// What went wrong, with what caused it.
    pub fn in_words(&self) -> String {
        let cause = std::error::Error::source(self);
        let words = cause.map_or_else(|| self.to_string(), |cause| format!("{self}: {cause}"));
        match self {
            Error::Files { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
                format!(
                    "{words}; make room there, or let the workload write less: `evfs lab list WORKLOAD` shows its sizes"
                )
            }
            _ => words,
        }
    }
}
