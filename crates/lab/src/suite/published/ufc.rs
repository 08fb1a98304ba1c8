//! The tables of the report on the unified file cache.

use super::{SIDES, row};
use crate::record::Better::Higher;
use crate::suite::{
    Part,
    Published::{Changes, Words},
};

pub const PARTS: &[Part] = &[
    Part {
        name: "sdet",
        title: "SDET",
        workload: "scriptmix",
        set: &[("users", "1,4,8")],
        columns: SIDES,
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
        columns: SIDES,
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
        title: "iozone scale",
        workload: "seqrand",
        set: &[],
        columns: SIDES,
        rows: &[
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
        ],
    },
    Part {
        name: "postmark",
        title: "PostMark",
        workload: "mailmix",
        set: &[],
        columns: SIDES,
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
        columns: SIDES,
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
        columns: SIDES,
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
        name: "mixed-mode",
        title: "Mixed mode application",
        workload: "coherence",
        set: &[],
        columns: SIDES,
        rows: &[row(
            "a page written and loaded",
            ("without sync", "write, then load"),
            Higher,
            Words("32 times as fast"),
        )],
    },
];
