//! Targets of the benchmarks: stacks of the product over the same bytes of one file or disk, with
//! and without files, and file systems of the kernel for comparison.
//!
//! ```text
//!   sides ── a text or a file becomes targets with a name and facts
//!     │
//!     ├─ device                 a stack of blocks     ├─ own_mount ── own_fs   mounted here
//!     ├─ paths ── simulated_numa  limited paths       ├─ in_process ─ own_fs   called, not mounted
//!     └─ kernel ── orphans      ext4, xfs, btrfs      └─ afs ── own_cell       behind an AFS server
//! ```
//!
//! **Invariant:** a target leaves nothing behind, even if its process is killed.

mod afs;
mod costs;
mod device;
mod error;
mod in_process;
mod kernel;
mod orphans;
mod own_cell;
mod own_fs;
mod own_mount;
mod paths;
mod sides;
mod simulated_numa;

pub use costs::{StackCost, by_turns, costs};
pub use device::{BenchDevice, BenchStack, StackKind};
pub use error::program_error;
pub use orphans::guard;
pub use sides::{Builder, Built, CALLED, FILES, Recipe, SERVED, assignment, bare, folder, machine};
