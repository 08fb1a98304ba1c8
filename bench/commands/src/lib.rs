//! Commands of the program that measure: `evfs bench`, `evfs plan` and `evfs quickstart`. A build
//! of the program may leave them out.

mod advice;
mod arguments;
pub mod bench;
mod guest;
pub mod machine;
mod measure;
pub mod plan;
pub mod quickstart;
mod session;
mod units;

pub use advice::lun_advice;
use cli::document::Published;

/// Documents of these commands.
pub const DOCUMENTS: &[Published] = &[
    Published::of(&quickstart::REPORT, &["quickstart"]),
    Published::of(&plan::ESTIMATE, &["plan"]),
    Published::of(&machine::RATES, &["bench machine", "benchmark"]),
    Published::of(&bench::CATALOG, &["bench list"]),
    Published::of(&bench::PARAMETERS, &["bench list"]),
    Published::of(&bench::DIFFERENCE, &["bench diff"]),
    Published::of(
        &session::RESULTS,
        &["bench run", "bench compare", "bench report"],
    ),
];
