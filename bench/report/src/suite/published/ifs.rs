//! Tables 1 to 6 of the 1990 report on an AFS file server on a mainframe.
#![expect(
    clippy::approx_constant,
    reason = "6.28 ms is a time that was published"
)]

use super::{BETWEEN_MODES, MODES, cost, row};
use crate::suite::Part;
use crate::suite::Published::Values;
use bench_core::record::Better::Higher;

pub const PARTS: &[Part] = &[
    Part {
        name: "table-1",
        title: "Table 1: packet pumping",
        workload: "packets",
        set: &[],
        standard: &[],
        quick: &[],
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
                "1000 1500-byte RX packets",
                ("Rx 1500 bytes", "all"),
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
        standard: &[],
        quick: &[],
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
        standard: &[("millis", "100")],
        quick: &[],
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
        standard: &[("files", "60")],
        quick: &[],
        columns: MODES,
        rows: &[
            // Sums of the report's 533.9 and 41.9, 542.1 and 53.4, 533.1 and 51.9, 533.1 and 67.7.
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
        standard: &[],
        quick: &[],
        columns: MODES,
        rows: &[
            cost(
                "client barnone",
                ("15 clients", "client 1"),
                &[[109.0, 102.0], [87.0, 155.0]],
                "s",
            ),
            cost(
                "client boston",
                ("15 clients", "client 2"),
                &[[107.0, 104.0], [100.0, 136.0]],
                "s",
            ),
            cost(
                "client doom",
                ("15 clients", "client 3"),
                &[[101.0, 103.0], [101.0, 142.0]],
                "s",
            ),
            cost(
                "client ebbtide",
                ("15 clients", "client 4"),
                &[[111.0, 116.0], [108.0, 152.0]],
                "s",
            ),
            cost(
                "client eh",
                ("15 clients", "client 5"),
                &[[76.0, 98.0], [75.0, 125.0]],
                "s",
            ),
            cost(
                "client emptys",
                ("15 clients", "client 6"),
                &[[113.0, 104.0], [95.0, 149.0]],
                "s",
            ),
            cost(
                "client flam",
                ("15 clients", "client 7"),
                &[[103.0, 103.0], [92.0, 133.0]],
                "s",
            ),
            cost(
                "client jackpot",
                ("15 clients", "client 8"),
                &[[100.0, 100.0], [96.0, 138.0]],
                "s",
            ),
            cost(
                "client nunn",
                ("15 clients", "client 9"),
                &[[99.0, 99.0], [91.0, 151.0]],
                "s",
            ),
            cost(
                "client pinhead",
                ("15 clients", "client 10"),
                &[[93.0, 103.0], [100.0, 129.0]],
                "s",
            ),
            cost(
                "client rasta",
                ("15 clients", "client 11"),
                &[[105.0, 106.0], [89.0, 151.0]],
                "s",
            ),
            cost(
                "client rioja",
                ("15 clients", "client 12"),
                &[[108.0, 109.0], [106.0, 155.0]],
                "s",
            ),
            cost(
                "client virgo",
                ("15 clients", "client 13"),
                &[[109.0, 104.0], [105.0, 147.0]],
                "s",
            ),
            cost(
                "client xtc",
                ("15 clients", "client 14"),
                &[[108.0, 107.0], [102.0, 147.0]],
                "s",
            ),
            cost(
                "client yale",
                ("15 clients", "client 15"),
                &[[101.0, 106.0], [103.0, 146.0]],
                "s",
            ),
            cost(
                "averages",
                ("15 clients", "mean of clients"),
                &[[103.0, 104.0], [97.0, 144.0]],
                "s",
            ),
            cost(
                "maximum CPU of the file server",
                ("15 clients", "server CPU, most"),
                &[[45.0, 55.0], [71.0, 95.0]],
                "%",
            ),
            cost(
                "average CPU of the file server",
                ("15 clients", "server CPU"),
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
        standard: &[("scale", "1")],
        quick: &[],
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
                "maximum CPU of the file server",
                ("nfsbasic", "server CPU, most"),
                &[[9.0, 10.0], [13.0, 18.0]],
                "%",
            ),
            cost(
                "average CPU of the file server",
                ("nfsbasic", "server CPU"),
                &[[4.0, 4.0], [5.0, 6.0]],
                "%",
            ),
        ],
    },
];
