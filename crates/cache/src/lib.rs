//! The unified file cache.

pub mod policy;
pub mod stream;
pub mod tunables;
