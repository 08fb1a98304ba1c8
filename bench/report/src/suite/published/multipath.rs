//! Figures of the report on mass storage.
//!
//! Its text has the values of figure 3 and descriptions of the others; figure 2 is only mentioned.
//! Paths here are connections with a rate limit each, so that they and not the underlying disk are
//! measured, like the ports of the report. Parts about CPU have no limit.

use super::{between, exactly, row};
use crate::suite::Published::{Changes, Values, Words};
use crate::suite::{Columns, Part};
use bench_core::record::Better::{Higher, Lower};

/// Many small requests at once. The runs of parts that write are short, because each side is filled
/// first.
const LOAD: &[(&str, &str)] = &[
    ("patterns", "rand-read,rand-write"),
    ("blocks", "4k"),
    ("depths", "32"),
    ("threads", "4"),
    ("requests", "2000"),
    ("span", "64m"),
];

pub const PARTS: &[Part] = &[
    Part {
        name: "figure-2",
        title: "Figure 2: one path a LUN, without and with the layer of paths",
        workload: "devmix",
        set: LOAD,
        standard: &[],
        quick: &[],
        columns: &[exactly("", &["path,path_rate=0", "paths-1,path_rate=0"])],
        rows: &[
            row(
                "reads",
                ("rand-read", "requests"),
                Higher,
                Words("not in the text"),
            ),
            row(
                "writes",
                ("rand-write", "requests"),
                Higher,
                Words("not in the text"),
            ),
        ],
    },
    Part {
        name: "figure-3",
        title: "Figure 3: two paths a LUN",
        workload: "devmix",
        set: LOAD,
        standard: &[],
        quick: &[],
        columns: &[between(&["paths-1", ROUND_ROBIN])],
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
    },
    Part {
        name: "policies-cpu",
        title: "Least-command-load against round-robin, paths without limit",
        workload: "devmix",
        set: &[
            ("patterns", "rand-read"),
            ("blocks", "4k,8k,64k"),
            ("depths", "32"),
            ("threads", "4"),
            ("requests", "4000"),
            ("span", "64m"),
        ],
        standard: &[("requests", "20000")],
        quick: &[],
        columns: &[
            exactly("2 paths", &[ROUND_ROBIN_FREE, LEAST_LOAD_FREE]),
            exactly("8 paths", &[ROUND_ROBIN_FREE_8, LEAST_LOAD_FREE_8]),
        ],
        rows: &[
            row(
                "CPU, 4 KiB",
                ("rand-read, 4096 bytes", "CPU"),
                Lower,
                Words("higher"),
            ),
            row(
                "CPU, 8 KiB",
                ("rand-read, 8192 bytes", "CPU"),
                Lower,
                Words("higher"),
            ),
            row(
                "CPU, 64 KiB",
                ("rand-read, 65536 bytes", "CPU"),
                Lower,
                Words("not significant"),
            ),
        ],
    },
    Part {
        name: "policies",
        title: "Least-command-load against round-robin, 4 KiB",
        workload: "devmix",
        set: &[
            ("patterns", "rand-read"),
            ("blocks", "4k"),
            ("depths", "32"),
            ("threads", "4"),
            ("requests", "2000"),
            ("span", "64m"),
        ],
        standard: &[],
        quick: &[],
        columns: POLICIES,
        rows: &[row(
            "reads",
            ("rand-read", "requests"),
            Higher,
            Words("least-command-load ahead where paths differ"),
        )],
    },
    Part {
        name: "policies-mixed",
        title: "The same, 4, 8 and 16 KiB in progress at once",
        workload: "devmix",
        set: &[
            ("patterns", "rand-read"),
            ("blocks", "4k,8k,16k"),
            ("mixed", "true"),
            ("depths", "32"),
            ("threads", "4"),
            ("requests", "1000"),
            ("span", "64m"),
        ],
        standard: &[],
        quick: &[],
        columns: POLICIES,
        rows: &[row(
            "reads",
            ("rand-read", "requests"),
            Higher,
            Words("might see more with least-command-load"),
        )],
    },
    Part {
        name: "cell-local",
        title: "Cell-local round-robin against round-robin, eight paths a LUN",
        workload: "devmix",
        set: &[
            ("patterns", "rand-read"),
            ("blocks", "4k"),
            ("depths", "32"),
            ("threads", "4"),
            ("requests", "4000"),
            ("span", "64m"),
        ],
        standard: &[("requests", "20000")],
        quick: &[],
        columns: &[exactly("", &[ROUND_ROBIN_CELLS, CELL_LOCAL])],
        rows: &[
            row(
                "reads",
                ("rand-read", "requests"),
                Higher,
                Changes(&[("4 cells, against 11i v2", 110.0)]),
            ),
            row("CPU", ("rand-read", "CPU"), Lower, Words("decreased")),
        ],
    },
];

const POLICIES: &[Columns] = &[
    exactly("equal paths", &[ROUND_ROBIN, LEAST_LOAD]),
    exactly("unequal paths", &[ROUND_ROBIN_UNEQUAL, LEAST_LOAD_UNEQUAL]),
];

const ROUND_ROBIN: &str = "paths-2-round-robin";
const LEAST_LOAD: &str = "paths-2-least-cmd-load";
/// The 2 and 4 Gb/s ports of the report's example.
const ROUND_ROBIN_UNEQUAL: &str = "paths-2-round-robin,path_rate=5M:10M";
const LEAST_LOAD_UNEQUAL: &str = "paths-2-least-cmd-load,path_rate=5M:10M";
const ROUND_ROBIN_FREE: &str = "paths-2-round-robin,path_rate=0";
const LEAST_LOAD_FREE: &str = "paths-2-least-cmd-load,path_rate=0";
const ROUND_ROBIN_FREE_8: &str = "paths-8-round-robin,path_rate=0";
const LEAST_LOAD_FREE_8: &str = "paths-8-least-cmd-load,path_rate=0";
/// Both policies with the same NUMA nodes, so that they differ only in the policy.
const ROUND_ROBIN_CELLS: &str = "paths-8-round-robin,path_rate=0,cells=2";
const CELL_LOCAL: &str = "paths-8-cl-round-robin,path_rate=0,cells=2";
