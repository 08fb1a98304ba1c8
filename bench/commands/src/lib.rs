//! Commands of the program that measure: `evfs bench`, `evfs plan` and `evfs quickstart`. A build
//! of the program may leave them out.

mod advice;
mod arguments;
pub mod bench;
mod guest;
pub mod machine;
mod measure;
pub mod plan;
pub mod quickstart;
mod session;
mod units;

pub use advice::lun_advice;
