//! export-fuse
