//! A small HTTP server: on a loopback address, or on a Unix socket in the directory of control
//! sockets. It serves the metrics and the web page.
//!
//! ```text
//!   Endpoint ── Connection ── Request ── Site ── Response
//! ```
//!
//! A [`Site`] answers the requests for its paths. Sites with the same address share a server.
//!
//! **Invariant:** every client is limited: in the size of its request, in time, and in number. Of
//! too many clients, the one that has kept the server waiting for the longest time is dropped, so
//! slow clients exclude no others. Bytes from a client never cause a panic.
//!
//! Deliberately absent: persistent connections, transfer codings, TLS, files, and any method that
//! changes something, except the login of the web page.

mod connection;
mod endpoint;
mod message;
mod reuse;
mod server;

use crate::Result;
use crate::listen::Listen;
pub(crate) use message::{Body, Method, Request, Response, Status};
pub(crate) use reuse::Reused;
pub(crate) use server::Server;

/// A part of a server, with paths of its own.
pub(crate) trait Site: Send + Sync {
    /// Name of its content, for messages.
    fn what(&self) -> &'static str;

    /// Name of its lock in the directory of control sockets. One process at a time serves it. The
    /// name begins with a period, as no service's does.
    fn lock(&self) -> &'static str;

    /// Prepares for requests, after the server began to listen.
    ///
    /// # Errors
    /// The site cannot be served.
    fn open(&self, _at: &Listen) -> Result<()> {
        Ok(())
    }

    /// Ends the preparation, before the server stops to listen.
    fn close(&self) {}

    /// Answers a request; returns `None` if the path belongs to another site.
    fn answer(&self, request: &Request) -> Option<Response>;
}
