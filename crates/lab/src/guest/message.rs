//! What the laboratory and its agent in a guest say to one another: a line of JSON each, a question and its answer.

use crate::{Error, Facts, Job, Record, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{BufRead, Read, Write};

/// Bytes of a line at most: a record of thousands of phases is far below.
const LINE_MAX: u64 = 64 << 20;

/// A question.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Ask {
    /// Makes what all jobs will run on; the words are those of whoever builds targets.
    Open(Value),
    /// [`Job::prepare`].
    Prepare(Job),
    /// [`Job::run`], so many times.
    Run(Job, u32),
    /// Writes everything back and drops the kernel's caches.
    DropCaches,
    /// CPU is counted by layer from now on.
    CountLayers,
}

/// An answer.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    /// The agent is there, on a kernel of this release. Nobody asked.
    Here(String),
    /// What is known of the target.
    Opened(Facts),
    /// It is done.
    Done,
    /// What a run gave.
    Record(Box<Record>),
    /// It cannot be done; an [`Error::Spec`].
    Refused(String),
    /// It failed.
    Failed(String),
}

impl Answer {
    /// What a failure there is here.
    pub(super) fn of(error: &Error) -> Answer {
        match error {
            Error::Spec(text) => Answer::Refused(text.clone()),
            other => Answer::Failed(other.in_words()),
        }
    }
}

pub(super) fn send(to: &mut impl Write, message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message).expect("plain data has a JSON form");
    line.push(b'\n');
    let sent = to.write_all(&line).and_then(|()| to.flush());
    sent.map_err(|e| lost(&e.to_string()))
}

/// The next message; `None` where the other is gone.
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
        send(&mut sent, &Ask::DropCaches).unwrap();
        let whole = receive::<Ask>(&mut sent.as_slice()).unwrap();
        assert!(matches!(whole, Some(Ask::DropCaches)));
        sent.pop();
        assert!(receive::<Ask>(&mut sent.as_slice()).unwrap().is_none());
        assert!(receive::<Ask>(&mut &b"{}\n"[..]).is_err());
    }
}
