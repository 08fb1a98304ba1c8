//! The content of files: its extents on the device, and I/O on them.

pub(crate) mod chunks;
pub(crate) mod codec;
pub mod content;
pub(crate) mod extents;
pub mod pager;
pub(crate) mod plan;
pub(crate) mod share;
