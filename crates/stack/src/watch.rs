//! Samples of running services for `evfs top`: rates, latency percentiles and hit ratios of an
//! interval, and their history.
//!
//! ```text
//!   services ── Reading ── Watcher: differences ── Sample ── History
//! ```
//!
//! A service reports totals since its start, with one request for each interval. All arithmetic is
//! here, on the side of the observer, so a service keeps no state for it.
//!
//! **Invariant:** a rate compares two readings of the same run of a service. After a restart, or
//! if a counter has decreased, there is no rate for that interval: it is absent, never zero or
//! negative.
//!
//! Deliberately absent: rates of each file in bytes, and rates of each client. The data path has no
//! counters for them, and none are added for this purpose.

mod collect;
mod difference;
mod history;
mod reading;
mod sample;

pub use collect::Watcher;
pub use history::{History, Series};
pub(crate) use reading::{
    CacheCounters, CellCounters, ClientCounters, FileCounters, IoCounters, PathCounters, Reading,
};
pub use sample::{
    CacheSample, CellSample, ClientSample, FileSample, IoRates, PathSample, Sample, ServiceSample,
    TransferRates,
};
