//! One path to a disk: a regular file (sparse or not) or a block device, by io_uring, bypassing the
//! page cache where the file system allows it.
//!
//! **Invariant:** the kernel accesses only memory that a queue owns until the operation has
//! completed; and two EVFS processes never write to one file (the open lock, see [`Lock`]).
//!
//! Deliberately absent: retries of media errors, caching, and any interpretation of the data.

mod device;
mod lock;
mod new_file;
mod open_file;
mod options;
mod path;
mod probe;
mod psync;
mod queue;
mod ring;
mod sys;
#[cfg(test)]
mod tests;

pub use device::FileDevice;
pub use lock::{HeaderGuard, Sharing};
pub use new_file::NewFile;
pub use options::{Direct, Engine, Holder, Lock, Options};
pub use path::FilePath;
pub use ring::io_uring_usable;
