//! The terminal side of commands, shared by the program and its optional commands: output as text
//! or JSON, secrets from the user, and the context of a command.
//!
//! Deliberately absent: commands, and decisions about their results.

mod context;
pub mod output;
pub mod secrets;
pub mod table;

pub use context::Context;
