//! Metrics for Prometheus: their families, the samples of a scrape, their text, and their path
//! on the HTTP server.
//!
//! ```text
//!   counters ── Samples ── merged with those of other processes ── text ── HTTP ── Prometheus
//! ```
//!
//! **Invariant:** the data path does not know of metrics. A scrape reads counters that exist
//! anyway, and takes no lock that a request takes; it runs on a thread of its own.
//!
//! The text is written here instead of with the crate `prometheus-client`: that crate owns the
//! values of its metrics, while all values here belong to other parts, and samples of several
//! processes are merged. The format is three kinds of lines.

mod exposition;
mod families;
mod samples;
mod site;

pub(crate) use exposition::text;
pub(crate) use families::*;
pub(crate) use samples::Samples;
pub(crate) use site::Site;
