//! Checksums that were set and are not items yet, by number of the record.

use crate::format::record::Run;
use crate::format::sums::{SUMS_BLOCKS, Sum, Sums};
use std::collections::BTreeMap;

/// Checksums that are newer than their items, by number of the record.
#[derive(Default)]
pub(crate) struct PendingSums(pub(super) BTreeMap<u64, Box<Pending>>);

/// Changed record.
pub(crate) struct Pending {
    pub sums: Sums,
    /// Bit for each block whose checksum was set.
    pub set: u64,
}

/// The bits of places of a record.
pub(super) fn bits(at: usize, len: usize) -> u64 {
    (u64::MAX >> (SUMS_BLOCKS as usize - len)) << at
}

impl PendingSums {
    pub fn set(&mut self, run: Run, sum: impl Fn(usize) -> Sum) {
        for (number, at, from, len) in parts(run) {
            let pending = self.record(number);
            pending.set |= bits(at, len);
            for i in 0..len {
                pending.sums.0[at + i] = sum(from + i);
            }
        }
    }

    /// Returns a record, to be changed.
    pub(super) fn record(&mut self, number: u64) -> &mut Pending {
        let none = || {
            Box::new(Pending {
                sums: Sums::none(),
                set: 0,
            })
        };
        self.0.entry(number).or_insert_with(none)
    }

    /// Returns the number of changed records.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Iterates over the blocks of the device whose checksum was set.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Sum)> {
        self.0.iter().flat_map(|(number, pending)| {
            let blocks = (number * SUMS_BLOCKS..).zip(pending.sums.0);
            let is_set = (0..SUMS_BLOCKS).map(|i| (pending.set >> i) & 1 != 0);
            blocks
                .zip(is_set)
                .filter_map(|(sum, is_set)| is_set.then_some(sum))
        })
    }
}

impl Pending {
    /// Replaces the checksums at places of a record by those that were set.
    pub fn apply(&self, at: usize, sums: &mut [Sum]) {
        for (i, sum) in sums.iter_mut().enumerate() {
            if (self.set >> (at + i)) & 1 != 0 {
                *sum = self.sums.0[at + i];
            }
        }
    }
}

/// Part of a run within one record: number of the record, first place in it, first place in the
/// run, number of blocks.
pub(super) fn parts(run: Run) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut block = run.start;
    std::iter::from_fn(move || {
        let number = block / SUMS_BLOCKS;
        let end = run.end().min((number + 1) * SUMS_BLOCKS);
        let (at, from) = (block % SUMS_BLOCKS, block - run.start);
        let len = end - block;
        block = end;
        (len > 0).then_some((number, at as usize, from as usize, len as usize))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::sums::NO_SUM;

    #[test]
    fn a_run_is_split_at_the_borders_of_records() {
        let all = |start, blocks| parts(Run { start, blocks }).collect::<Vec<_>>();
        assert_eq!(all(0, 64), [(0, 0, 0, 64)]);
        assert_eq!(all(63, 2), [(0, 63, 0, 1), (1, 0, 1, 1)]);
        assert_eq!(all(70, 3), [(1, 6, 0, 3)]);
        assert_eq!(all(60, 70), [(0, 60, 0, 4), (1, 0, 4, 64), (2, 0, 68, 2)]);
    }

    #[test]
    fn pending_checksums_know_which_blocks_they_are_of() {
        assert_eq!(
            (bits(0, 64), bits(63, 1), bits(2, 3)),
            (u64::MAX, 1 << 63, 0b11100)
        );
        let mut pending = PendingSums::default();
        let run = |start, blocks| Run { start, blocks };
        pending.set(run(62, 4), |i| 10 + i as Sum);
        pending.set(run(63, 1), |_| NO_SUM);
        assert_eq!(pending.len(), 2);
        let all: Vec<_> = pending.iter().collect();
        assert_eq!(all, [(62, 10), (63, NO_SUM), (64, 12), (65, 13)]);
        let mut sums = [7; 3];
        pending.0[&0].apply(61, &mut sums);
        assert_eq!(sums, [7, 10, NO_SUM]);
    }
}
