//! The figures of the report on mass storage.

use super::{SIDES, row};
use crate::record::Better::Higher;
use crate::suite::{Part, Published::Values};

pub const PARTS: &[Part] = &[Part {
    name: "figure-3",
    title: "Figure 3: two paths a LUN",
    workload: "devmix",
    set: &[
        ("patterns", "rand-read,rand-write"),
        ("blocks", "4k"),
        ("depths", "32"),
        ("threads", "4"),
    ],
    columns: SIDES,
    rows: &[
        row(
            "reads",
            ("rand-read", "requests"),
            Higher,
            Values(&[[153_000.0, 309_000.0]], "IOPS"),
        ),
        row(
            "writes",
            ("rand-write", "requests"),
            Higher,
            Values(&[[147_000.0, 305_000.0]], "IOPS"),
        ),
    ],
}];
