//! The terminal side of commands, shared by the program and its optional commands: output as text
//! or JSON with its schemas, secrets from the user, QR codes, the context of a command, and the
//! manual pages.
//!
//! Deliberately absent: commands, and decisions about their results.

mod agent;
mod context;
pub mod document;
pub mod man;
pub mod output;
pub mod progress;
pub mod qr;
pub mod secrets;
pub mod table;
mod terminal;
pub mod usage;

pub use context::Context;
