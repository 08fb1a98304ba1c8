//! Trace of the most recent I/Os of a LUN: in-memory rings that are cheap to write.

use crate::policy::{Io, Nanos, PathView, Policy};

/// A completed I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Time of submission.
    pub at: Nanos,
    /// Offset on the LUN in bytes.
    pub offset: u64,
    /// Time from submission to completion.
    pub latency: Nanos,
    /// Direction and length.
    pub io: Io,
    /// Index of the path.
    pub path: u16,
    /// The I/O succeeded.
    pub ok: bool,
}

/// A ring of the most recent I/Os of one queue. Recording does not allocate.
#[derive(Debug)]
pub struct Recorder {
    ring: Vec<Record>,
    entries: usize,
    recorded: u64,
}

impl Recorder {
    /// Creates a ring of `entries` I/Os; 0 counts as 1.
    pub fn new(entries: usize) -> Recorder {
        let entries = entries.max(1);
        Recorder {
            ring: Vec::with_capacity(entries),
            entries,
            recorded: 0,
        }
    }

    /// Adds `record`, replacing the oldest one if the ring is full.
    pub fn record(&mut self, record: Record) {
        if self.ring.len() < self.entries {
            self.ring.push(record);
        } else {
            let oldest = (self.recorded % self.entries as u64) as usize;
            self.ring[oldest] = record;
        }
        self.recorded += 1;
    }
}

/// Recorded I/O of a LUN, and the facts from which other policies would have chosen.
#[derive(Debug, Clone)]
pub struct Recording {
    /// The most recent I/Os.
    pub trace: Trace,
    /// Attributes of the paths.
    pub views: Vec<PathView>,
    /// Policy in force.
    pub policy: Policy,
    /// NUMA node of the caller.
    pub node: Option<u32>,
}

/// I/Os of a LUN in order of submission.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    paths: u16,
    records: Vec<Record>,
    lost: u64,
}

impl Trace {
    /// Collects the rings of all queues of a LUN with `paths` paths. Records of other paths are
    /// omitted.
    pub fn collect<'a>(paths: u16, rings: impl IntoIterator<Item = &'a Recorder>) -> Trace {
        let mut trace = Trace {
            paths,
            ..Trace::default()
        };
        for ring in rings {
            let of_lun = ring.ring.iter().filter(|r| r.path < paths);
            trace.records.extend(of_lun);
            trace.lost += ring.recorded - ring.ring.len() as u64;
        }
        trace.records.sort_by_key(|record| record.at);
        trace
    }

    /// Returns the number of paths of the LUN.
    pub fn paths(&self) -> usize {
        usize::from(self.paths)
    }

    /// Returns the I/Os in order of submission.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Returns the number of I/Os that had been overwritten in the rings.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(at: Nanos) -> Record {
        Record {
            at,
            offset: at * 4096,
            latency: 200 + at,
            io: Io {
                write: at % 2 == 1,
                bytes: 4096,
            },
            path: (at % 3) as u16,
            ok: !at.is_multiple_of(5),
        }
    }

    #[test]
    fn a_ring_keeps_the_last_and_counts_the_lost() {
        let mut rings = [Recorder::new(4), Recorder::new(100)];
        for at in 0..20 {
            rings[(at % 2) as usize].record(record(at));
        }
        let trace = Trace::collect(3, &rings);
        let at: Vec<Nanos> = trace.records().iter().map(|r| r.at).collect();
        assert_eq!(at, [1, 3, 5, 7, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19]);
        assert_eq!(trace.lost(), 6);
    }
}
