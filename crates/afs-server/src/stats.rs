//! Event counters of a server.

use afs_proto::fs::PROCEDURES;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Live counters.
        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
            procedures: Procedures,
        }

        /// Event counts since the start of the server.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// Reads all counters.
            pub(crate) fn read(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Calls of the file service.
    calls,
    /// Calls that ended with an abort.
    aborts,
    /// Calls that fetch data, a status or an access list.
    fetches,
    /// Calls that fetch data.
    fetched_data,
    fetched_bytes,
    /// Calls that store data, a status or an access list.
    stores,
    /// Calls that store data.
    stored_data,
    stored_bytes,
    /// Calls that notified a client of changed files.
    breaks,
}

/// Counters of each procedure, in table order.
struct Procedures([Procedure; PROCEDURES.len()]);

impl Default for Procedures {
    fn default() -> Procedures {
        Procedures(std::array::from_fn(|_| Procedure::default()))
    }
}

/// Counters of one procedure of the file service.
#[derive(Default)]
pub(crate) struct Procedure {
    pub(crate) calls: AtomicU64,
    /// Calls that ended with an abort.
    pub(crate) aborts: AtomicU64,
}

/// Call counts of one procedure of the file service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Called {
    /// Name in the protocol's definition.
    pub procedure: &'static str,
    /// Number of calls.
    pub calls: u64,
    /// Calls that ended with an abort.
    pub aborts: u64,
}

impl Counters {
    /// Looks up the counters of the procedure with this opcode.
    pub(crate) fn procedure(&self, opcode: u32) -> Option<&Procedure> {
        let at = PROCEDURES.iter().position(|(number, _)| *number == opcode);
        self.procedures.0.get(at?)
    }

    /// Lists the counts of all procedures that were called.
    pub(crate) fn called(&self) -> Vec<Called> {
        let all = PROCEDURES.iter().zip(&self.procedures.0);
        let called = all.map(|((_, procedure), counts)| Called {
            procedure,
            calls: counts.calls.load(Relaxed),
            aborts: counts.aborts.load(Relaxed),
        });
        called.filter(|called| called.calls > 0).collect()
    }
}

/// Adds `count` to a counter.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Relaxed);
}
