//! Figures 8 to 28 of the reports on encrypted volumes.

use super::{SIDES, row};
use crate::record::Better::{Higher, Lower};
use crate::suite::{
    Part,
    Published::{self, Changes, Words},
};

const EVEN: Published = Words("clear and encrypted consistent");

pub const PARTS: &[Part] = &[
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
