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
use crate::format::sums::{NO_SUM, Sum, Sums};
use crate::metadata::overlay::Prior;
use crate::metadata::pending_sums::{bits, parts};
use crate::metadata::state::State;

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
                        self.summer.decode_part(bytes, at..at + len, all)
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
        self.note_sums(run);
    }

    /// Takes the checksums from blocks that will be overwritten.
    pub fn drop_sums(&mut self, run: Run) {
        self.pending_sums.set(run, |_| NO_SUM);
        self.note_sums(run);
    }

    fn note_sums(&mut self, run: Run) {
        if let Some(unsaved) = &mut self.unsaved {
            unsaved.sums.push(run);
        }
    }

    /// Makes items of the checksums that were set. These steps are final, even if what follows fails:
    /// the data is in use already.
    pub fn materialize_sums(&mut self) -> Result<()> {
        while let Some((&number, pending)) = self.pending_sums.0.first_key_value() {
            let key = Key::global(Section::Sums, number);
            let mut sums = match pending.set {
                u64::MAX => Sums::none(),
                // A record that is damaged has no checksum that could be kept.
                _ => self
                    .items
                    .get(&key, |bytes| Ok(self.summer.decode(bytes).ok()))?
                    .flatten()
                    .unwrap_or_else(Sums::none),
            };
            pending.apply(0, &mut sums.0);
            self.put_key(key, self.summer.encode(&sums), Prior::Possible);
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
    use crate::format::sums::SUMS_BLOCKS;
    use crate::metadata::op::Op;
    use crate::metadata::shared::Options;
    use block::BlockDevice;
    use block_testing::Mem;
    use std::sync::Arc;

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

    #[test]
    fn a_damaged_record_of_checksums_is_replaced_and_hinders_no_sync() {
        let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(16 << 20, 512));
        Fs::format(Arc::clone(&device), "").unwrap();
        let fs = Fs::open(device, Options::default()).unwrap();
        let number = 2000 / SUMS_BLOCKS;
        let mut op = Op::begin_any(fs.inner(), 0).unwrap();
        let key = Key::global(Section::Sums, number);
        op.put_key(key, vec![1; 255], Prior::Possible);
        op.finish();
        fs.commit().unwrap();
        let run = |blocks| Run {
            start: number * SUMS_BLOCKS,
            blocks,
        };
        assert!(fs.inner().read().sums(run(2)).is_err());
        let mut op = Op::begin_any(fs.inner(), 0).unwrap();
        op.set_sums(run(1), &[7]);
        op.finish();
        fs.sync().unwrap();
        fs.commit().unwrap();
        let state = fs.inner().read();
        assert_eq!(state.pending_sums.len(), 0);
        assert_eq!(state.sums(run(2)).unwrap(), [7, NO_SUM]);
    }
}
