//! Messages between the benchmark and its agent in a guest: one line of JSON each, a request and its
//! answer.

use bench_core::{Error, Facts, Record, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{BufRead, Read, Write};

/// Maximum bytes per line; a record of thousands of phases is far smaller.
const LINE_MAX: u64 = 64 << 20;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum AgentRequest {
    /// Creates the target of all further jobs from a value that only the builder of targets
    /// interprets.
    Open(Value),
    /// Prepares the target for a job, in its JSON form.
    Prepare(Value),
    /// Runs a job the given number of times.
    Run(Value, u32),
    /// Writes back all dirty data and drops the kernel's caches.
    DropCaches,
    /// Enables CPU accounting by layer.
    CountLayers,
}

/// An answer to a request.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum AgentReply {
    /// The agent is ready, on a kernel of this release. Sent unprompted at the start.
    Here(String),
    /// Facts about the target.
    Opened(Facts),
    /// The request succeeded.
    Done,
    /// Record of a run.
    Record(Box<Record>),
    /// The request is invalid; an [`Error::Spec`].
    Refused(String),
    /// The request failed.
    Failed(String),
}

impl AgentReply {
    /// Creates the answer that reports `error`.
    pub(super) fn of(error: &Error) -> AgentReply {
        match error {
            Error::Spec(text) => AgentReply::Refused(text.clone()),
            other => AgentReply::Failed(other.in_words()),
        }
    }
}

pub(super) fn send(to: &mut impl Write, message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message).expect("plain data has a JSON form");
    line.push(b'\n');
    let sent = to.write_all(&line).and_then(|()| to.flush());
    sent.map_err(|e| lost(&e.to_string()))
}

/// Receives the next message; `None` if the peer has disconnected.
pub(super) fn receive<T: DeserializeOwned>(from: &mut impl BufRead) -> Result<Option<T>> {
    let mut line = Vec::new();
    let read = from.take(LINE_MAX).read_until(b'\n', &mut line);
    read.map_err(|e| lost(&e.to_string()))?;
    if line.last() != Some(&b'\n') {
        return Ok(None);
    }
    let message = serde_json::from_slice(&line);
    message.map(Some).map_err(|e| lost(&e.to_string()))
}

pub(super) fn lost(detail: &str) -> Error {
    Error::Program {
        what: "the guest".into(),
        detail: detail.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_cut_off_is_the_end_and_rubbish_an_error() {
        let mut sent = Vec::new();
        send(&mut sent, &AgentRequest::DropCaches).unwrap();
        let whole = receive::<AgentRequest>(&mut sent.as_slice()).unwrap();
        assert!(matches!(whole, Some(AgentRequest::DropCaches)));
        sent.pop();
        assert!(
            receive::<AgentRequest>(&mut sent.as_slice())
                .unwrap()
                .is_none()
        );
        assert!(receive::<AgentRequest>(&mut &b"{}\n"[..]).is_err());
    }
}
