//! What the reports published.
#![expect(
    clippy::approx_constant,
    reason = "6.28 ms is a time that was published"
)]

use super::Published::{self, Changes, Values, Words};
use super::{Axis, Columns, Part, Row, Suite};
use crate::record::Better::{self, Higher, Lower};

const SIDES: &[Columns] = &[Columns {
    name: "",
    environments: &[],
}];
/// VM basic mode and LPAR mode of the 1990 report: processors by weight, and processors apart.
const MODES: &[Columns] = &[
    Columns {
        name: "shared",
        environments: &["shared-idle", "shared-loaded-build"],
    },
    Columns {
        name: "partitioned",
        environments: &["partitioned-idle", "partitioned-loaded-build"],
    },
];
const BETWEEN_MODES: &[Columns] = &[Columns {
    name: "idle",
    environments: &["shared-idle", "partitioned-idle"],
}];

const fn row(
    label: &'static str,
    (phase, cell): (&'static str, &'static str),
    better: Better,
    published: Published,
) -> Row {
    Row {
        label,
        phase,
        cell,
        better,
        published,
    }
}

/// A cost in both modes: idle and loaded, then idle and loaded.
const fn cost(
    label: &'static str,
    place: (&'static str, &'static str),
    values: &'static [[f64; 2]],
    unit: &'static str,
) -> Row {
    row(label, place, Lower, Values(values, unit))
}

/// All suites.
pub const SUITES: &[Suite] = &[
    Suite {
        name: "ifs-1990",
        after: "Measuring IFS AIX/370 File Server Performance in LPAR Mode, 1990",
        axis: Axis::Environments,
        parts: IFS,
    },
    Suite {
        name: "evfs-2006",
        after: "HP-UX Encrypted Volume and File System Performance and Tuning; clear against encrypted",
        axis: Axis::Sides,
        parts: EVFS,
    },
    Suite {
        name: "ufc-2007",
        after: "Unified File Cache, HP-UX 11i v3; the older cache against the newer",
        axis: Axis::Sides,
        parts: UFC,
    },
    Suite {
        name: "multipath-2007",
        after: "HP-UX 11i v3 Mass Storage I/O Performance Improvements; one path against two",
        axis: Axis::Sides,
        parts: MULTIPATH,
    },
];

const IFS: &[Part] = &[
    Part {
        name: "table-1",
        title: "Table 1: packet pumping",
        workload: "packets",
        set: &[],
        columns: BETWEEN_MODES,
        rows: &[
            cost(
                "10000 4-byte UDP packets",
                ("4 bytes", "all"),
                &[[8.8, 9.1]],
                "s",
            ),
            cost(
                "10000 1526-byte UDP packets",
                ("1526 bytes", "all"),
                &[[45.9, 45.9]],
                "s",
            ),
            cost(
                "1000 1500-byte RX packets (UDP here)",
                ("1500 bytes", "all"),
                &[[6.25, 7.3]],
                "s",
            ),
        ],
    },
    Part {
        name: "table-2",
        title: "Table 2: Dhrystone",
        workload: "dhrystone",
        set: &[],
        columns: MODES,
        rows: &[row(
            "Dhrystone",
            ("dhrystone", "rate"),
            Higher,
            Values(&[[49.8, 50.3], [50.0, 50.9]], "K Dhrystones/s"),
        )],
    },
    Part {
        name: "table-3",
        title: "Table 3: Ousterhout",
        workload: "micro",
        set: &[],
        columns: MODES,
        rows: &[
            cost(
                "system call, user and system",
                ("micro", "system call, CPU"),
                &[[16.06, 16.21], [17.93, 18.36]],
                "µs",
            ),
            cost(
                "system call, wall",
                ("micro", "system call"),
                &[[16.75, 32.93], [20.56, 47.16]],
                "µs",
            ),
            cost(
                "context switch, user and system",
                ("micro", "round trip, one processor, CPU"),
                &[[0.24, 0.48], [0.29, 0.63]],
                "ms",
            ),
            cost(
                "context switch, wall",
                ("micro", "round trip, one processor"),
                &[[0.25, 0.56], [0.34, 0.68]],
                "ms",
            ),
            cost(
                "open/close, user and system",
                ("micro", "open-close, 1 component, CPU"),
                &[[0.30, 0.31], [0.32, 0.32]],
                "ms",
            ),
            cost(
                "open/close, wall",
                ("micro", "open-close, 1 component"),
                &[[0.35, 0.63], [0.37, 0.83]],
                "ms",
            ),
            cost(
                "create/delete 1 KB, user and system",
                ("micro", "create-delete 1 KiB, CPU"),
                &[[2.28, 2.04], [1.87, 2.46]],
                "ms",
            ),
            cost(
                "create/delete 1 KB, wall",
                ("micro", "create-delete 1 KiB"),
                &[[7.23, 4.44], [3.74, 6.28]],
                "ms",
            ),
            cost(
                "create/delete 10 MB, user and system",
                ("micro", "create-delete 10 MiB, CPU"),
                &[[648.27, 636.26], [728.12, 756.68]],
                "ms",
            ),
            cost(
                "create/delete 10 MB, wall",
                ("micro", "create-delete 10 MiB"),
                &[[690.5, 1309.86], [768.29, 1892.76]],
                "ms",
            ),
        ],
    },
    Part {
        name: "table-4",
        title: "Table 4: kernel build",
        workload: "build",
        set: &[],
        columns: MODES,
        rows: &[
            // The report has 533.9 and 41.9, 542.1 and 53.4, 533.1 and 51.9, 533.1 and 67.7.
            cost(
                "user and system",
                ("build", "CPU"),
                &[[575.8, 595.5], [585.0, 600.8]],
                "s",
            ),
            cost(
                "wall",
                ("build", "time"),
                &[[673.4, 1327.3], [771.8, 1732.0]],
                "s",
            ),
        ],
    },
    Part {
        name: "table-5",
        title: "Table 5: clientload",
        workload: "clientload",
        set: &[],
        columns: MODES,
        rows: &[
            cost(
                "averages",
                ("15 clients", "mean of clients"),
                &[[103.0, 104.0], [97.0, 144.0]],
                "s",
            ),
            cost(
                "average CPU of the file server",
                ("15 clients", "CPU"),
                &[[11.0, 16.0], [21.0, 40.0]],
                "%",
            ),
        ],
    },
    Part {
        name: "table-6",
        title: "Table 6: Connectathon basic tests",
        workload: "nfsbasic",
        set: &[],
        columns: MODES,
        rows: &[
            cost(
                "test 1",
                ("nfsbasic", "1"),
                &[[75.49, 80.39], [75.84, 81.9]],
                "s",
            ),
            cost(
                "test 2",
                ("nfsbasic", "2"),
                &[[43.77, 46.55], [48.5, 52.98]],
                "s",
            ),
            cost(
                "test 3",
                ("nfsbasic", "3"),
                &[[43.1, 52.6], [45.72, 51.69]],
                "s",
            ),
            cost(
                "test 4",
                ("nfsbasic", "4"),
                &[[132.20, 134.62], [150.2, 141.6]],
                "s",
            ),
            cost(
                "test 5a",
                ("nfsbasic", "5a"),
                &[[137.58, 129.31], [122.36, 125.2]],
                "s",
            ),
            cost(
                "test 5b",
                ("nfsbasic", "5b"),
                &[[43.84, 42.32], [39.32, 39.27]],
                "s",
            ),
            cost(
                "test 6",
                ("nfsbasic", "6"),
                &[[66.16, 68.19], [64.68, 77.71]],
                "s",
            ),
            cost(
                "test 7",
                ("nfsbasic", "7"),
                &[[61.85, 53.49], [63.44, 69.79]],
                "s",
            ),
            cost(
                "test 8",
                ("nfsbasic", "8"),
                &[[93.51, 78.76], [93.72, 96.29]],
                "s",
            ),
            cost(
                "test 9",
                ("nfsbasic", "9"),
                &[[1.33, 1.63], [1.52, 1.59]],
                "s",
            ),
            cost(
                "average CPU of the file server",
                ("nfsbasic", "CPU"),
                &[[4.0, 4.0], [5.0, 6.0]],
                "%",
            ),
        ],
    },
];

const EVEN: Published = Words("clear and encrypted consistent");

const EVFS: &[Part] = &[
    Part {
        name: "figures-8-14",
        title: "Figures 8 to 14: 64 KiB against threads",
        workload: "seqrand",
        set: &[],
        columns: SIDES,
        rows: &[
            row(
                "random write",
                ("random-write", "parent"),
                Higher,
                Words("encrypted less"),
            ),
            row(
                "sequential read",
                ("read", "parent"),
                Higher,
                Words("encrypted less"),
            ),
            row(
                "CPU, random write",
                ("random-write", "CPU"),
                Lower,
                Words("encrypted more"),
            ),
            row(
                "CPU, sequential read",
                ("read", "CPU"),
                Lower,
                Words("encrypted more"),
            ),
        ],
    },
    Part {
        name: "figures-15-17",
        title: "Figures 15 to 17: the same, direct I/O",
        workload: "seqrand",
        set: &[("direct", "true")],
        columns: SIDES,
        rows: &[
            row("random write", ("random-write", "parent"), Higher, EVEN),
            row("sequential read", ("read", "parent"), Higher, EVEN),
            row("random read", ("random-read", "parent"), Higher, EVEN),
        ],
    },
    Part {
        name: "figures-18-25",
        title: "Figures 18 to 25: from the cache",
        workload: "seqrand",
        set: &[("phases", "write,read,reread")],
        columns: SIDES,
        rows: &[
            row("cached sequential read", ("reread", "parent"), Higher, EVEN),
            row(
                "CPU, cached sequential read",
                ("reread", "CPU"),
                Lower,
                EVEN,
            ),
        ],
    },
    Part {
        name: "figure-28",
        title: "Figure 28: PostMark",
        workload: "mailmix",
        set: &[],
        columns: SIDES,
        rows: &[
            row(
                "read",
                ("mailmix", "read"),
                Higher,
                Changes(&[("of clear", -19.0)]),
            ),
            row(
                "written",
                ("mailmix", "written"),
                Higher,
                Changes(&[("of clear", -13.0)]),
            ),
            row(
                "CPU",
                ("mailmix", "CPU"),
                Lower,
                Words("a little more than double"),
            ),
        ],
    },
];

const UFC: &[Part] = &[
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

const MULTIPATH: &[Part] = &[Part {
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
