//! Directories and attributes: the items of an inode that are found by name.

pub(crate) mod acl;
pub mod attributes;
pub mod directory;
pub mod path;
pub mod rename;
pub(crate) mod slots;
