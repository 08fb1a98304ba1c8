//! Results as one HTML file without scripts, fonts, images or external addresses.
//!
//! Charts are self-contained SVG, so the same text serves for the page and for a separate file.
//! Every mark has a title, which browsers display, and every chart has a table with its values.
//!
//! **Invariant:** the page follows the color scheme of its reader, and its text and its charts fit
//! into a window of any width.

mod charts;
mod forest;
mod heat;
mod layers;
mod lines;
mod order;
mod page;
mod plot;
mod svg;
mod tables;

pub use charts::figures;
pub use page::page;
