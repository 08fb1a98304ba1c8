//! Tables of the report on the unified file cache.
//!
//! The report compares an older cache with a newer one, in percent. Here the kernel's cache, under
//! ext4 on a loop device, stands for the older one and the EVFS cache, under a mount, for the
//! newer. Nastran is commercial and not available; a solver of this crate that uses its scratch
//! file in the same way takes its place.

use super::{between, exactly, row};
use crate::suite::Published::Changes;
use crate::suite::{Columns, Parameters, Part, Row};
use bench_core::record::Better::Higher;

/// All threads run to completion, because their files are small.
const SCALE: Parameters = &[
    ("threads", "1,4,16"),
    ("total", "96m"),
    ("stonewall", "false"),
];
const SCALE_QUICK: Parameters = &[("threads", "1,4"), ("file", "4m"), ("stonewall", "false")];

/// The values are for both tests together.
const SCALE_ROWS: &[Row] = &[
    row(
        "children see, mean of phases",
        ("*", "children"),
        Higher,
        Changes(&[
            ("IA 4-way", 117.0),
            ("8", 84.0),
            ("64", 141.0),
            ("PA 4-way", 48.0),
            ("8", 100.0),
            ("64", 55.0),
        ]),
    ),
    row(
        "parent sees, mean of phases",
        ("*", "parent"),
        Higher,
        Changes(&[
            ("IA 4-way", 31.0),
            ("8", 18.0),
            ("64", 60.0),
            ("PA 4-way", -3.0),
            ("8", 44.0),
            ("64", 7.0),
        ]),
    ),
];

const CACHES: &[Columns] = &[between(&["loop-ext4", "fs-clear"])];

pub const PARTS: &[Part] = &[
    Part {
        name: "sdet",
        title: "SDET",
        workload: "scriptmix",
        set: &[],
        standard: &[("users", "1,4,8"), ("scripts", "1")],
        quick: &[("users", "8"), ("scripts", "1")],
        columns: CACHES,
        rows: &[row(
            "scripts an hour, 8 users",
            ("8 users", "scripts"),
            Higher,
            Changes(&[
                ("IA 4-way", 5.0),
                ("8", 23.0),
                ("64", 50.0),
                ("PA 4-way", -3.0),
                ("8", 2.0),
                ("64", 4.0),
            ]),
        )],
    },
    Part {
        name: "mount",
        title: "Mount and unmount",
        workload: "mounts",
        set: &[],
        standard: &[],
        quick: &[("times", "5")],
        columns: CACHES,
        rows: &[
            row(
                "mount",
                ("mount and unmount", "mount"),
                Higher,
                Changes(&[
                    ("IA 4-way", 44.0),
                    ("8", 27.0),
                    ("64", 65.0),
                    ("PA 4-way", 56.0),
                    ("8", 52.0),
                    ("64", 73.0),
                ]),
            ),
            row(
                "unmount",
                ("mount and unmount", "unmount"),
                Higher,
                Changes(&[
                    ("IA 4-way", 14.0),
                    ("8", 37.0),
                    ("64", 63.0),
                    ("PA 4-way", -18.0),
                    ("8", -5.0),
                    ("64", 47.0),
                ]),
            ),
        ],
    },
    Part {
        name: "iozone-scale",
        title: "iozone scale, a file each",
        workload: "seqrand",
        set: &[],
        standard: SCALE,
        quick: SCALE_QUICK,
        columns: CACHES,
        rows: SCALE_ROWS,
    },
    Part {
        name: "iozone-scale-shared",
        title: "iozone scale, one file for all",
        workload: "seqrand",
        set: &[("shared", "true")],
        standard: SCALE,
        quick: SCALE_QUICK,
        columns: CACHES,
        rows: SCALE_ROWS,
    },
    Part {
        name: "postmark",
        title: "PostMark",
        workload: "mailmix",
        set: &[],
        standard: &[("number", "300"), ("transactions", "300")],
        quick: &[],
        columns: CACHES,
        rows: &[row(
            "transactions",
            ("mailmix", "transactions"),
            Higher,
            Changes(&[
                ("IA 4-way", -15.3),
                ("8", -18.4),
                ("PA 4-way", -10.0),
                ("8", -17.8),
            ]),
        )],
    },
    Part {
        name: "iozone-az",
        title: "iozone az, average",
        workload: "sweep",
        set: &[],
        standard: &[],
        quick: &[],
        columns: CACHES,
        rows: &[row(
            "mean of all cells",
            ("*", "parent"),
            Higher,
            Changes(&[
                ("IA 4-way", 34.0),
                ("8", 43.0),
                ("PA 4-way", 28.0),
                ("8", 32.0),
            ]),
        )],
    },
    Part {
        name: "iozone-mmap",
        title: "iozone mmap, average",
        workload: "sweep",
        set: &[("access", "mapped"), ("buffered", "false")],
        standard: &[],
        quick: &[],
        columns: CACHES,
        rows: &[row(
            "mean of all cells",
            ("*", "parent"),
            Higher,
            Changes(&[
                ("IA 4-way", 166.0),
                ("8", 147.0),
                ("PA 4-way", 130.0),
                ("8", 106.0),
            ]),
        )],
    },
    Part {
        name: "nastran",
        title: "Nastran (a solver with a scratch file of its own here)",
        workload: "solver",
        set: &[],
        standard: &[],
        quick: &[],
        columns: CACHES,
        rows: &[row(
            "time",
            ("solver", "total"),
            Higher,
            Changes(&[("IA 4-way", 1.0)]),
        )],
    },
    Part {
        name: "mixed-mode",
        title: "Mixed mode application",
        workload: "coherence",
        set: &[],
        standard: &[("pages", "256"), ("passes", "2")],
        quick: &[("pages", "64"), ("passes", "1")],
        columns: &[exactly(
            "a sync between | none needed",
            &["fs-clear,set.sync=true", "fs-clear"],
        )],
        rows: &[row(
            "a page written and loaded",
            ("with sync between", "write, then load"),
            Higher,
            Changes(&[("", 3100.0)]),
        )],
    },
];
