//! Figures 8 to 28 of the reports on encrypted volumes.
//!
//! Each of figures 8 to 27 shows a curve of throughput and bars of CPU by number of threads, clear
//! and encrypted together. The text has no values for them, but describes them in words. The
//! reports used 100 MB per thread with a disk and a cache of 3 to 32 GB. Here all files together
//! are a third as long as one of theirs. To make the timed I/O reach the device nevertheless,
//! caches are dropped before reads and writes include a sync.

use super::{between, exactly, row};
use crate::suite::Published::{Changes, Words};
use crate::suite::{Parameters, Part, Published, Row};
use bench_core::record::Better::{Higher, Lower};

const EVEN: Published = Words("clear and encrypted consistent");

/// The report's numbers of threads. All threads run to completion: a file of a megabyte is read
/// before the last of a hundred threads has started, so the work done until the first thread ends
/// says nothing. Runs are short because the disk of a shared machine changes within seconds, and
/// many short pairs are more reliable than few long ones.
const STANDARD: Parameters = &[
    ("threads", "1,10,25,50,100"),
    ("total", "32m"),
    ("stonewall", "false"),
];
/// Three times the cache.
const BEYOND_CACHE: Parameters = &[
    ("threads", "1,10,25,50,100"),
    ("total", "96m"),
    ("stonewall", "false"),
];
const QUICK: Parameters = &[
    ("threads", "1,10"),
    ("file", "8m"),
    ("total", "8m"),
    ("stonewall", "false"),
];

/// I/O through caches, but from and to the device.
const COLD: Parameters = &[
    ("phases", "write,random-write,read,random-read"),
    ("cold", "true"),
    ("with_sync", "true"),
];

const fn throughput(label: &'static str, phase: &'static str, published: Published) -> Row {
    row(label, (phase, "parent"), Higher, published)
}

const fn cpu(label: &'static str, phase: &'static str, published: Published) -> Row {
    row(label, (phase, "CPU"), Lower, published)
}

pub const PARTS: &[Part] = &[
    Part {
        name: "figures-8-10",
        title: "Figures 8 to 10: 64 KiB against threads, default tuning (little read-ahead here)",
        workload: "seqrand",
        set: COLD,
        standard: STANDARD,
        quick: QUICK,
        columns: &[between(&[
            "fs-clear,cache=read_ahead_max=64K",
            "fs-encrypted-128,cache=read_ahead_max=64K",
        ])],
        rows: &[
            throughput(
                "random write",
                "random-write",
                Words("encrypted less, for the way through its driver"),
            ),
            cpu("CPU, random write", "random-write", Words("encrypted more")),
            throughput("sequential read", "read", Words("encrypted less")),
            cpu("CPU, sequential read", "read", Words("encrypted more")),
            throughput("random read", "random-read", Words("encrypted less")),
        ],
    },
    Part {
        name: "figures-11-14",
        title: "Figures 11 to 14: the same, tuned (read-ahead as it is by default)",
        workload: "seqrand",
        set: COLD,
        standard: STANDARD,
        quick: QUICK,
        columns: &[between(&["fs-clear", "fs-encrypted-128"])],
        rows: &[
            throughput(
                "random write",
                "random-write",
                Words("both gain much, encrypted less than clear"),
            ),
            cpu(
                "CPU, random write",
                "random-write",
                Words("less than before"),
            ),
            throughput("sequential read", "read", Words("encrypted less")),
            cpu("CPU, sequential read", "read", Words("encrypted more")),
            throughput("random read", "random-read", EVEN),
            cpu("CPU, random read", "random-read", Words("encrypted more")),
        ],
    },
    Part {
        name: "figure-12",
        title: "Figure 12: what tuning does to encrypted sequential reads",
        workload: "seqrand",
        set: &[("phases", "write,read"), ("cold", "true")],
        standard: STANDARD,
        quick: QUICK,
        columns: &[exactly(
            "encrypted, default | tuned",
            &[
                "fs-encrypted-128,cache=read_ahead_max=64K",
                "fs-encrypted-128",
            ],
        )],
        rows: &[
            throughput("sequential read", "read", Changes(&[("encrypted", 40.0)])),
            cpu("CPU, sequential read", "read", Words("less")),
        ],
    },
    Part {
        name: "figures-15-17",
        title: "Figures 15 to 17: direct I/O",
        workload: "seqrand",
        set: &[
            ("phases", "write,random-write,read,random-read"),
            ("direct", "true"),
        ],
        standard: STANDARD,
        quick: QUICK,
        columns: &[between(&["fs-clear", "fs-encrypted-128"])],
        rows: &[
            throughput("random write", "random-write", EVEN),
            cpu("CPU, random write", "random-write", Words("encrypted more")),
            throughput("sequential read", "read", EVEN),
            cpu("CPU, sequential read", "read", Words("encrypted more")),
            throughput("random read", "random-read", EVEN),
            cpu("CPU, random read", "random-read", Words("encrypted more")),
        ],
    },
    Part {
        name: "figures-18-21",
        title: "Figures 18 to 21: reads from the cache",
        workload: "seqrand",
        set: &[("phases", "write,read,reread,random-read")],
        standard: STANDARD,
        quick: QUICK,
        columns: &[between(&["fs-clear", "fs-encrypted-128"])],
        rows: &[
            throughput("cached sequential read", "reread", EVEN),
            cpu("CPU, cached sequential read", "reread", EVEN),
            throughput("cached random read", "random-read", EVEN),
            cpu("CPU, cached random read", "random-read", EVEN),
        ],
    },
    Part {
        name: "figures-22-25",
        title: "Figures 22 to 25: a cache of a third of the files (5 % of memory there; without a mount, whose pages the kernel keeps as well)",
        workload: "seqrand",
        set: &[
            ("phases", "write,random-write,read,random-read,reread"),
            ("with_sync", "true"),
        ],
        standard: BEYOND_CACHE,
        quick: &[
            ("threads", "1,10"),
            ("file", "48m"),
            ("total", "48m"),
            ("stonewall", "false"),
        ],
        columns: &[between(&[
            "files-clear,cache=filecache_min=16M filecache_max=32M",
            "files-encrypted-128,cache=filecache_min=16M filecache_max=32M",
        ])],
        rows: &[
            throughput(
                "random write",
                "random-write",
                Words("falls off after 25 threads"),
            ),
            cpu("CPU, random write", "random-write", Words("encrypted more")),
            throughput("sequential read", "read", Words("as with a large cache")),
            throughput("random read", "random-read", Words("as with a large cache")),
            cpu("CPU, random read", "random-read", Words("encrypted more")),
            throughput("sequential read, once more", "reread", EVEN),
        ],
    },
    Part {
        name: "figures-26-27",
        title: "Figures 26 and 27: keys of 128 and of 256 bits",
        workload: "seqrand",
        set: &[
            ("phases", "write,random-write,read"),
            ("cold", "true"),
            ("with_sync", "true"),
        ],
        standard: STANDARD,
        quick: QUICK,
        columns: &[exactly(
            "128 | 256 bits",
            &["fs-encrypted-128", "fs-encrypted-256"],
        )],
        rows: &[
            throughput("random write", "random-write", Words("the same")),
            cpu("CPU, random write", "random-write", Words("the same")),
            throughput("sequential read", "read", Words("the same")),
            cpu("CPU, sequential read", "read", Words("the same")),
        ],
    },
    Part {
        name: "figure-28",
        title: "Figure 28: PostMark",
        workload: "mailmix",
        set: &[],
        standard: &[("number", "300"), ("transactions", "300")],
        quick: &[],
        columns: &[between(&["fs-clear", "fs-encrypted-128"])],
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
    Part {
        name: "figure-28-tuned",
        title: "Figure 28: what tuning does to PostMark, encrypted (JFS 4.1 and 5.0 there)",
        workload: "mailmix",
        set: &[],
        standard: &[("number", "300"), ("transactions", "300")],
        quick: &[],
        columns: &[exactly(
            "encrypted, default | tuned",
            &[
                "fs-encrypted-128,cache=read_ahead_max=64K",
                "fs-encrypted-128",
            ],
        )],
        rows: &[
            row("read", ("mailmix", "read"), Higher, Changes(&[("", 28.0)])),
            row(
                "written",
                ("mailmix", "written"),
                Higher,
                Changes(&[("", 22.0)]),
            ),
            row("CPU", ("mailmix", "CPU"), Lower, Words("4 points more")),
        ],
    },
];
