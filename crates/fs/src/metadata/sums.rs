//! Checksums of the blocks of the device that hold file data.
//!
//! They are items of the file system as a whole, by block of the device: extents, snapshots and
//! shared blocks need to know nothing of them. **Invariant:** the operation that makes a record of a
//! file refer to a written block sets its checksum, too.
//!
//! Checksums that were set wait beside the items, and each changed record becomes an item once per
//! record of the journal. An operation that fails need not undo them, because then the blocks that
//! it wrote are not in use.

use crate::error::Result;
use crate::format::key::{Key, Section};
use crate::format::record::Run;
use crate::format::sums::{NO_SUM, SUMS_BLOCKS, Sum, Sums};
use crate::metadata::overlay::Prior;
use crate::metadata::state::State;
use std::collections::BTreeMap;

/// Checksums that are newer than their items, by number of the record.
#[derive(Default)]
pub(crate) struct PendingSums(BTreeMap<u64, Box<Pending>>);

struct Pending {
    sums: Sums,
    /// Bit for each block whose checksum was set.
    set: u64,
}

/// The bits of places of a record.
fn bits(at: usize, len: usize) -> u64 {
    (u64::MAX >> (SUMS_BLOCKS as usize - len)) << at
}

impl PendingSums {
    fn set(&mut self, run: Run, sum: impl Fn(usize) -> Sum) {
        for (number, at, from, len) in parts(run) {
            let none = || {
                Box::new(Pending {
                    sums: Sums::none(),
                    set: 0,
                })
            };
            let pending = self.0.entry(number).or_insert_with(none);
            pending.set |= bits(at, len);
            for i in 0..len {
                pending.sums.0[at + i] = sum(from + i);
            }
        }
    }

    /// Returns the number of changed records.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Iterates over the blocks of the device whose checksum was set.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Sum)> {
        self.0.iter().flat_map(|(number, pending)| {
            let blocks = (number * SUMS_BLOCKS..).zip(pending.sums.0);
            let is_set = (0..SUMS_BLOCKS).map(|i| pending.set >> i & 1 != 0);
            blocks
                .zip(is_set)
                .filter_map(|(sum, is_set)| is_set.then_some(sum))
        })
    }
}

impl Pending {
    /// Replaces the checksums at places of a record by those that were set.
    fn apply(&self, at: usize, sums: &mut [Sum]) {
        for (i, sum) in sums.iter_mut().enumerate() {
            if self.set >> (at + i) & 1 != 0 {
                *sum = self.sums.0[at + i];
            }
        }
    }
}

/// Part of a run within one record: number of the record, first place in it, first place in the
/// run, number of blocks.
fn parts(run: Run) -> impl Iterator<Item = (u64, usize, usize, usize)> {
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

impl State {
    /// Reads the checksums of blocks in use: [`NO_SUM`] for a block that has none.
    pub fn sums(&self, run: Run) -> Result<Vec<Sum>> {
        let mut all = Vec::with_capacity(run.blocks as usize);
        self.add_sums(run, &mut all)?;
        Ok(all)
    }

    /// As [`State::sums`], added to a list.
    pub fn add_sums(&self, run: Run, all: &mut Vec<Sum>) -> Result<()> {
        for (number, at, _, len) in parts(run) {
            let begin = all.len();
            let pending = self.pending_sums.0.get(&number);
            let needs_item = pending.is_none_or(|pending| bits(at, len) & !pending.set != 0);
            if needs_item {
                self.items
                    .get(&Key::global(Section::Sums, number), |bytes| {
                        Sums::decode_part(bytes, at..at + len, all)
                    })?;
            }
            all.resize(begin + len, NO_SUM);
            if let Some(pending) = pending {
                pending.apply(at, &mut all[begin..]);
            }
        }
        Ok(())
    }

    /// Sets the checksums of blocks that were written, in order.
    pub fn set_sums(&mut self, run: Run, sums: &[Sum]) {
        self.pending_sums.set(run, |i| sums[i]);
    }

    /// Takes the checksums from blocks that will be overwritten.
    pub fn drop_sums(&mut self, run: Run) {
        self.pending_sums.set(run, |_| NO_SUM);
    }

    /// Makes items of the checksums that were set. These steps are final, even if what follows fails:
    /// the data is in use already.
    pub fn materialize_sums(&mut self) -> Result<()> {
        while let Some((&number, pending)) = self.pending_sums.0.first_key_value() {
            let key = Key::global(Section::Sums, number);
            let mut sums = match pending.set {
                u64::MAX => Sums::none(),
                _ => self
                    .items
                    .get(&key, Sums::decode)?
                    .unwrap_or_else(Sums::none),
            };
            pending.apply(0, &mut sums.0);
            self.put_key(key, sums.encode(), Prior::Possible);
            self.pending_sums.0.pop_first();
            self.commit_steps();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fs;
    use crate::metadata::op::Op;
    use crate::metadata::shared::Options;
    use block::BlockDevice;
    use block_testing::Mem;
    use std::sync::Arc;

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

    #[test]
    fn checksums_outlive_an_operation_that_is_rolled_back_after_they_became_items() {
        let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(16 << 20, 512));
        Fs::format(Arc::clone(&device), "").unwrap();
        let fs = Fs::open(device, Options::default()).unwrap();
        let run = Run {
            start: 2000,
            blocks: 70,
        };
        let sums: Vec<Sum> = (1..=70).collect();
        let mut op = Op::begin_any(fs.inner(), 0).unwrap();
        op.set_sums(run, &sums);
        op.finish();
        let mut op = Op::begin_any(fs.inner(), 0).unwrap();
        op.materialize().unwrap();
        drop(op);
        let state = fs.inner().read();
        assert_eq!(state.pending_sums.len(), 0);
        assert_eq!(state.sums(run).unwrap(), sums);
    }
}
