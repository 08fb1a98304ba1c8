//! Requests to a queue, and their completions.

use crate::error::Error;
use crate::op::Op;

/// An operation and the tag that its submitter chose.
#[derive(Debug)]
pub struct Request {
    /// Chosen by the submitter and returned with the completion. The queue does not require it to
    /// be unique; a submitter that must tell its requests apart does.
    pub tag: u64,
    /// The operation to carry out.
    pub op: Op,
}

/// A request that has ended. It returns the operation whole, with its buffers, so that the caller
/// can submit it again elsewhere.
#[derive(Debug)]
#[must_use = "a completion carries the result and the buffers of a request"]
pub struct Completion {
    /// The tag of the request.
    pub tag: u64,
    /// The operation of the request; after a successful read its buffers hold the data.
    pub op: Op,
    /// Result of the operation.
    pub result: Result<(), Error>,
}
