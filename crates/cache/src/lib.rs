//! The unified file cache: mappings of file pages for programs.

mod copy;
pub mod window;
