//! Results as one file for a browser: no script, no font, no picture and no address outside of it.
//!
//! Figures are SVG that stands by itself, so the same text is in the page and in a file of its own; every mark
//! has a title, which browsers show and readers of screens read.

mod charts;
mod layers;
mod page;
mod svg;

pub use charts::figures;
pub use page::page;
