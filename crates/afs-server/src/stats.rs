//! What a server has done, counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)*) => {
        /// The counters.
        #[derive(Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64,)* }

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

/// Counts.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Relaxed);
}
