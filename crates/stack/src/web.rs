//! The web page: the state of all services of a directory, for the browser of their user.
//!
//! ```text
//!   browser ── Page ── Access: login token, cookie
//!                └──── api: status and counters ── control sockets of all services
//! ```
//!
//! The page is embedded in the program and needs no network. Its data is that of `evfs --json
//! status`, `stats`, `lun show`, `cell status` and `cache show`, from the same control requests.
//!
//! **Invariant:** the page changes nothing. It is served only to root and the user of the process,
//! with a cookie that a login token buys once, under a name of this machine; no response contains
//! a secret other than that cookie.

mod access;
mod api;
mod assets;
mod page;

pub use access::{Invitation, invitation};
pub(crate) use page::Page;
