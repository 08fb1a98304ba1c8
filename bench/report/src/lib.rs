//! Reports of studies: the answer in one sentence, tables, notes, charts, one HTML page, and suites
//! that show the values of published reports beside the measured ones.
//!
//! **Invariant:** everything in a report can be derived again from the journals.
#![deny(unsafe_code)]

mod accounts;
mod answer;
mod files;
mod html;
mod label;
mod layers;
mod notes;
mod paths;
mod results;
mod setup;
pub mod suite;
mod table;

pub use files::write;
pub use label::{readable, title};
pub use layers::{LayerRow, layer_rows};
pub use notes::{device_per_asked, differences, notes};
pub use paths::{PathRow, path_rows};
pub use results::{RESULT_SCHEMA, Results, StudyAnalysis};
pub use table::{csv, tables};
