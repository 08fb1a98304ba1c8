//! One path to a disk: a regular file (sparse or not) or a block device, by io_uring, past the page
//! cache where the file system allows it.
//!
//! **Invariant:** the kernel sees only memory that a queue owns, until it has said that it is done
//! with it; and two EVFS processes never write one file (the open lock, see [`Lock`]).
//!
//! Absent on purpose: retries of failed media, caching, and knowledge of what the bytes mean.

mod device;
mod lock;
mod lunpath;
mod new_file;
mod options;
mod probe;
mod psync;
mod queue;
mod ring;
#[cfg(test)]
mod tests;

pub use device::FileDevice;
pub use lock::HeaderGuard;
pub use lunpath::FilePath;
pub use new_file::NewFile;
pub use options::{Direct, Engine, Lock, Options};
