//! The unified file cache.
mod copy;
mod device_pager;
mod frames;
mod index;
mod leaf;
mod memory;
mod pager;
pub mod policy;
mod wait;
#[doc(hidden)]
pub mod word;

pub use device_pager::{DEVICE_FILE, DevicePager};
pub use pager::{FileId, Pager, PagerInfo, PagerQueue};
