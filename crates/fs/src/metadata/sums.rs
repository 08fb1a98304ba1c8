//! Checksums of the blocks of the device that hold file data.
//!
//! They are items of the file system as a whole, by block of the device: extents, snapshots and
//! shared blocks need to know nothing of them. **Invariant:** the operation that makes a record of a
//! file refer to a written block sets its checksum, too.

use crate::error::Result;
use crate::format::key::{Key, Section};
use crate::format::record::Run;
use crate::format::sums::{NO_SUM, SUMS_BLOCKS, Sum, Sums};
use crate::metadata::overlay::Prior;
use crate::metadata::state::State;

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
        let mut all = vec![NO_SUM; run.blocks as usize];
        for (number, at, from, len) in parts(run) {
            self.items
                .get(&Key::global(Section::Sums, number), |bytes| {
                    let sums = Sums::decode(bytes)?;
                    all[from..from + len].copy_from_slice(&sums.0[at..at + len]);
                    Ok(())
                })?;
        }
        Ok(all)
    }

    /// Sets the checksums of blocks that were written, in order.
    pub fn set_sums(&mut self, run: Run, sums: &[Sum]) -> Result<()> {
        for (number, at, from, len) in parts(run) {
            let key = Key::global(Section::Sums, number);
            let mut record = if len as u64 == SUMS_BLOCKS {
                Sums::none()
            } else {
                let found = self.items.get(&key, Sums::decode)?;
                found.unwrap_or_else(Sums::none)
            };
            record.0[at..at + len].copy_from_slice(&sums[from..from + len]);
            self.put_key(key, record.encode(), Prior::Possible);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_split_at_the_borders_of_records() {
        let all = |start, blocks| parts(Run { start, blocks }).collect::<Vec<_>>();
        assert_eq!(all(0, 64), [(0, 0, 0, 64)]);
        assert_eq!(all(63, 2), [(0, 63, 0, 1), (1, 0, 1, 1)]);
        assert_eq!(all(70, 3), [(1, 6, 0, 3)]);
        assert_eq!(all(60, 70), [(0, 60, 0, 4), (1, 0, 4, 64), (2, 0, 68, 2)]);
    }
}
