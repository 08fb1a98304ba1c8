//! Reports of studies: tables, notes, charts, one HTML page, and suites that show the values of
//! published reports beside the measured ones.
//!
//! **Invariant:** everything in a report can be derived again from the journals.
#![deny(unsafe_code)]

mod accounts;
mod files;
mod html;
mod layers;
mod paths;
mod results;
pub mod suite;
mod table;

pub use files::write;
pub use layers::{LayerRow, layer_rows};
pub use paths::{PathRow, path_rows};
pub use results::{RESULT_SCHEMA, Results, StudyAnalysis};
pub use table::{csv, device_per_asked, differences, notes, tables, title, verdicts};
