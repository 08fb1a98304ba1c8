//! Results as one HTML file without scripts, fonts, images or external addresses.
//!
//! Charts are self-contained SVG, so the same text serves for the page and for a separate file.
//! Every mark has a title, which browsers display and screen readers read aloud.

mod charts;
mod layers;
mod page;
mod svg;

pub use charts::figures;
pub use page::page;
