//! Blocks of the metadata that are read ahead: a check reads all of it, mostly in the order in which
//! commits wrote it, and a request for each page would cost more than the comparison.
//!
//! The second miss in one window of blocks loads the window, so that lookups of single pages all
//! over the metadata load nothing else. The memory is at most [`WINDOWS`] windows, 16 MiB.

use crate::format::record::BLOCK_BYTES;
use std::collections::VecDeque;

/// Blocks of a window: 256 KiB.
pub(super) const WINDOW_BLOCKS: u64 = 64;
/// Number of windows in memory, and of those whose first miss is remembered.
const WINDOWS: usize = 64;

/// Windows that were read, and those with one miss, by number; the most recently used last.
#[derive(Default)]
pub(super) struct ReadAhead {
    windows: VecDeque<(u64, Vec<u8>)>,
    missed: VecDeque<u64>,
}

/// Result of a search.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The blocks have been copied.
    Copied,
    /// They are not in memory.
    Absent,
    /// Nor are they, but their window is to be loaded.
    Wanted(u64),
}

impl ReadAhead {
    /// Copies the blocks from `first` on, if a window has all of them.
    pub fn find(&mut self, first: u64, out: &mut [u8]) -> Found {
        let window = first / WINDOW_BLOCKS;
        let at = ((first % WINDOW_BLOCKS) * BLOCK_BYTES) as usize;
        if at + out.len() > (WINDOW_BLOCKS * BLOCK_BYTES) as usize {
            return Found::Absent;
        }
        if let Some(place) = self
            .windows
            .iter()
            .rposition(|(number, _)| *number == window)
        {
            let Some(found) = self.windows[place].1.get(at..at + out.len()) else {
                return Found::Absent;
            };
            out.copy_from_slice(found);
            if place + 1 < self.windows.len()
                && let Some(used) = self.windows.remove(place)
            {
                self.windows.push_back(used);
            }
            return Found::Copied;
        }
        if let Some(place) = self.missed.iter().position(|number| *number == window) {
            self.missed.remove(place);
            return Found::Wanted(window);
        }
        if self.missed.len() == WINDOWS {
            self.missed.pop_front();
        }
        self.missed.push_back(window);
        Found::Absent
    }

    /// Adds a window.
    pub fn insert(&mut self, window: u64, data: Vec<u8>) {
        self.windows.retain(|(number, _)| *number != window);
        if self.windows.len() == WINDOWS {
            self.windows.pop_front();
        }
        self.windows.push_back((window, data));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = BLOCK_BYTES as usize;

    #[test]
    fn the_second_miss_loads_a_window_and_the_least_recently_used_one_is_dropped() {
        let mut ahead = ReadAhead::default();
        let mut out = vec![0; BLOCK];
        assert_eq!(ahead.find(64, &mut out), Found::Absent);
        assert_eq!(ahead.find(0, &mut out), Found::Absent);
        assert_eq!(ahead.find(70, &mut out), Found::Wanted(1));
        ahead.insert(1, (0..64).flat_map(|i| [i; BLOCK]).collect());
        assert_eq!(ahead.find(127, &mut out), Found::Copied);
        assert_eq!(out, [63; BLOCK]);
        let mut two = vec![0; 2 * BLOCK];
        assert_eq!(ahead.find(127, &mut two), Found::Absent);
        assert_eq!(ahead.find(64, &mut two), Found::Copied);
        assert_eq!((two[0], two[BLOCK]), (0, 1));
        // The last window of a file may be shorter.
        ahead.insert(9, vec![7; BLOCK]);
        assert_eq!(ahead.find(9 * 64 + 1, &mut out), Found::Absent);
        for window in 10..10 + WINDOWS as u64 - 2 {
            ahead.insert(window, vec![0; BLOCK]);
        }
        assert_eq!(ahead.find(64, &mut out), Found::Copied);
        ahead.insert(1000, vec![0; BLOCK]);
        assert_eq!(ahead.windows.len(), WINDOWS);
        assert_eq!(ahead.find(64, &mut out), Found::Copied);
        assert_ne!(ahead.find(9 * 64, &mut out), Found::Copied);
    }
}
