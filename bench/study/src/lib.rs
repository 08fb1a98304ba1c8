//! Studies: jobs on several sides in turn, and the analysis of their runs.
//!
//! ```text
//!   Side (target, job) ──► session ──► Record ──► journal ──► Study ──► analysis, difference, price
//! ```
//!
//! **Invariant:** two sides are compared only by runs that did the same work and ran next to each
//! other in time. Every raw run is part of the result.
//!
//! Deliberately absent: reports.
#![deny(unsafe_code)]

mod analysis;
mod difference;
pub mod journal;
pub mod price;
mod session;
mod study;

pub use analysis::{Aggregate, Finding, Judgement, Kind, findings};
pub use difference::{Change, change_table, changes, gate};
pub use journal::{Journal, STUDY_SCHEMA, journal_path, load};
pub use session::{Side, Step, study};
pub use study::{Caches, SideFacts, Study, StudyPlan, key};

#[cfg(test)]
mod tests;
