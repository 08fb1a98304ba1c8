//! What a server has done, counted.

use afs_proto::fs::PROCEDURES;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)*) => {
        /// The counters.
        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
            procedures: Procedures,
        }

        /// What a server has done since it was started.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Counts { $($(#[$doc])+ pub $name: u64,)* }

        impl Counters {
            /// All of them.
            pub(crate) fn read(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Calls of the file service.
    calls,
    /// Of them, those that ended with an abort.
    aborts,
    /// Calls that fetch data, a status or an access list.
    fetches,
    /// Of them, those that fetch data.
    fetched_data,
    /// Bytes that they fetched.
    fetched_bytes,
    /// Calls that store data, a status or an access list.
    stores,
    /// Of them, those that store data.
    stored_data,
    /// Bytes that they stored.
    stored_bytes,
    /// Times that a client was told that files have changed.
    breaks,
}

/// The counters of each procedure, in the order of their table.
struct Procedures([Procedure; PROCEDURES.len()]);

impl Default for Procedures {
    fn default() -> Procedures {
        Procedures(std::array::from_fn(|_| Procedure::default()))
    }
}

/// How often a procedure of the file service was called.
#[derive(Default)]
pub(crate) struct Procedure {
    pub(crate) calls: AtomicU64,
    /// Of them, those that ended with an abort.
    pub(crate) aborts: AtomicU64,
}

/// How often a procedure of the file service was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Called {
    /// Its name in the definition of the protocol.
    pub procedure: &'static str,
    /// How often.
    pub calls: u64,
    /// Of them, those that ended with an abort.
    pub aborts: u64,
}

impl Counters {
    /// The counters of the procedure with this number.
    pub(crate) fn procedure(&self, opcode: u32) -> Option<&Procedure> {
        let at = PROCEDURES.iter().position(|(number, _)| *number == opcode);
        self.procedures.0.get(at?)
    }

    /// The procedures that were called.
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

/// Counts.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Relaxed);
}
