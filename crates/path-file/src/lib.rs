//! path-file
