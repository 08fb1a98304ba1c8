//! Published values of the reports.

mod evfs;
mod ifs;
mod multipath;
mod ufc;

use super::Published::{self, Values};
use super::{Axis, Columns, Row, Suite};
use bench_core::record::Better;
use bench_core::record::Better::Lower;

/// VM basic mode and LPAR mode of the 1990 report: CPUs shared by weight, and CPUs partitioned.
const MODES: &[Columns] = &[
    beside("shared", &["shared-idle", "shared-loaded-build"]),
    beside(
        "partitioned",
        &["partitioned-idle", "partitioned-loaded-build"],
    ),
];
const BETWEEN_MODES: &[Columns] = &[beside("idle", &["shared-idle", "partitioned-idle"])];

/// Creates a pair of columns for one target in two environments.
const fn beside(name: &'static str, environments: &'static [&'static str]) -> Columns {
    Columns {
        name,
        environments,
        sides: &[],
        choice: false,
    }
}

/// Creates a pair of columns for two sides, which the user may replace.
const fn between(sides: &'static [&'static str]) -> Columns {
    Columns {
        name: "",
        environments: &[],
        sides,
        choice: true,
    }
}

/// Creates a pair of columns for exactly these two sides.
const fn exactly(name: &'static str, sides: &'static [&'static str]) -> Columns {
    Columns {
        name,
        environments: &[],
        sides,
        choice: false,
    }
}

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

/// Creates a cost in both modes: idle and loaded, then idle and loaded.
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
        on: Some("afs-clear"),
        parts: ifs::PARTS,
    },
    Suite {
        name: "evfs-2006",
        after: "HP-UX Encrypted Volume and File System Performance and Tuning; clear against encrypted",
        axis: Axis::Sides,
        on: None,
        parts: evfs::PARTS,
    },
    Suite {
        name: "ufc-2007",
        after: "Unified File Cache, HP-UX 11i v3; an older cache against a newer, here the kernel's against ours",
        axis: Axis::Sides,
        on: None,
        parts: ufc::PARTS,
    },
    Suite {
        name: "multipath-2007",
        after: "HP-UX 11i v3 Mass Storage I/O Performance Improvements; one path against two",
        axis: Axis::Sides,
        on: None,
        parts: multipath::PARTS,
    },
];
