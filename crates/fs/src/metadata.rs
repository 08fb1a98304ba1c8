//! The metadata: one ordered map of keys and values, changed by atomic operations, and durable
//! through a journal and a database.
//!
//! ```text
//!   op          one atomic change of the state, finished or rolled back
//!   state       the items of filesets and snapshots, and inodes in memory, under one lock
//!   item_map    one map: active changes over those being committed over the last commit
//!   commit      journal for fsync, database every few seconds
//! ```

pub(crate) mod absent;
pub(crate) mod account_state;
pub(crate) mod accounts;
pub(crate) mod attached;
pub(crate) mod change_signal;
pub(crate) mod commit;
pub(crate) mod coordination;
pub(crate) mod database;
pub(crate) mod database_file;
pub(crate) mod inode_state;
pub(crate) mod item_map;
pub(crate) mod item_usage;
pub(crate) mod journal;
pub(crate) mod mismatches;
pub(crate) mod op;
pub(crate) mod overlay;
pub(crate) mod pace;
pub(crate) mod page_layout;
pub(crate) mod pending_sums;
pub(crate) mod quota;
mod read_ahead;
pub(crate) mod references;
pub(crate) mod saved;
pub(crate) mod shared;
pub(crate) mod state;
pub(crate) mod succession;
mod sums;
pub(crate) mod superblock_file;
pub(crate) mod survivor;
mod tags;
pub(crate) mod tree_signal;
pub(crate) mod unsaved;
pub(crate) mod view;
pub(crate) mod view_slot;
