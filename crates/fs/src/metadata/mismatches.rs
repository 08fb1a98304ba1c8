//! Blocks of file data that differ from their checksums: counted, and each reported once.

use crate::format::key::{Ino, TreeId};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of blocks that are reported; further ones are only counted.
const REPORTED_MAX: usize = 1024;

/// Number of places that are kept to be shown.
const SHOWN_MAX: usize = 3;

/// Blocks found since the file system was opened.
#[derive(Default)]
pub(crate) struct Mismatches {
    count: AtomicU64,
    reported: Mutex<HashSet<(TreeId, Ino, u64)>>,
    shown: Mutex<Vec<String>>,
}

impl Mismatches {
    /// Counts a block of a file. Returns whether it is to be reported.
    pub fn add(&self, tree: TreeId, ino: Ino, offset: u64) -> bool {
        self.count.fetch_add(1, Relaxed);
        let mut reported = self.reported.lock().expect("no panic under this lock");
        reported.len() < REPORTED_MAX && reported.insert((tree, ino, offset))
    }

    /// Keeps the description of a block, if it is one of the first.
    pub fn show(&self, place: String) {
        let mut shown = self.shown.lock().expect("no panic under this lock");
        if shown.len() < SHOWN_MAX {
            shown.push(place);
        }
    }

    /// Returns the descriptions of the first blocks.
    pub fn shown(&self) -> Vec<String> {
        self.shown.lock().expect("no panic under this lock").clone()
    }

    /// Returns the number of reads of such blocks.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_reported_once_up_to_a_limit_and_each_read_counts() {
        let found = Mismatches::default();
        assert!(found.add(1, 2, 0) && !found.add(1, 2, 0) && found.add(1, 2, 4096));
        let reported = (0..5000).filter(|block| found.add(2, 2, block * 4096));
        assert_eq!(reported.count(), REPORTED_MAX - 2);
        assert_eq!(found.count(), 5003);
        (0..9).for_each(|place| found.show(place.to_string()));
        assert_eq!(found.shown(), ["0", "1", "2"]);
    }
}
