//! The number of references to blocks of the device: one per extent record, in whatever layer.
//!
//! Blocks with a single reference have no record. **Invariant:** the records of shared blocks do not
//! overlap, and none states a count below two.

use crate::error::{Error, Kind, Result};
use crate::format::key::{Key, Section};
use crate::format::record::{Run, SharedRun};
use crate::metadata::database::SpaceChange;
use crate::metadata::overlay::Prior;
use crate::metadata::state::State;

impl State {
    /// Adds a reference to blocks in use.
    pub fn share(&mut self, run: Run) -> Result<()> {
        self.change_count(run, 1)
    }

    /// Drops a reference. Blocks without a reference are free once the operation has finished.
    pub fn unshare(&mut self, run: Run) -> Result<()> {
        self.change_count(run, -1)
    }

    fn change_count(&mut self, run: Run, by: i64) -> Result<()> {
        for (part, count) in self.counts(run)? {
            let now = i64::from(count) + by;
            match now {
                0 => self.space.push(SpaceChange {
                    run: part,
                    used: false,
                }),
                1 => {}
                _ => {
                    let shared = SharedRun {
                        blocks: part.blocks as u32,
                        count: u32::try_from(now).map_err(|_| Kind::TooManyLinks)?,
                    };
                    self.put_key(
                        Key::global(Section::Shared, part.start),
                        shared.encode(),
                        Prior::Possible,
                    );
                    continue;
                }
            }
            if count > 1 {
                self.delete_key(Key::global(Section::Shared, part.start));
            }
        }
        Ok(())
    }

    /// Collects the parts of a run by their number of references, after splitting the records that
    /// extend beyond either end of it.
    fn counts(&mut self, run: Run) -> Result<Vec<(Run, u32)>> {
        if !self.may_share {
            return Ok(vec![(run, 1)]);
        }
        for cut in [run.start, run.end()] {
            let Some((first, shared)) = self.shared_at(cut)? else {
                continue;
            };
            if first < cut {
                let skip = (cut - first) as u32;
                let head = SharedRun {
                    blocks: skip,
                    ..shared
                };
                let rest = SharedRun {
                    blocks: shared.blocks - skip,
                    ..shared
                };
                self.put_key(
                    Key::global(Section::Shared, first),
                    head.encode(),
                    Prior::Possible,
                );
                self.put_key(
                    Key::global(Section::Shared, cut),
                    rest.encode(),
                    Prior::Possible,
                );
            }
        }
        self.counts_within(run)
    }

    /// Finds the record of the shared run that contains a block, with its first block.
    fn shared_at(&self, block: u64) -> Result<Option<(u64, SharedRun)>> {
        let (from, to) = (
            Key::global(Section::Shared, 0),
            Key::global(Section::Shared, block),
        );
        let read = |key: Key, bytes: &[u8]| Ok((key.item, SharedRun::decode(bytes)?));
        let last = self.items.last(from, to, read)?;
        Ok(last.filter(|(first, shared)| block < first + u64::from(shared.blocks)))
    }

    /// Moves the counts of a run to blocks that are in use from now on.
    pub fn move_counts(&mut self, run: Run, to: u64) -> Result<()> {
        for (part, count) in self.counts(run)? {
            if count > 1 {
                let shared = SharedRun {
                    blocks: part.blocks as u32,
                    count,
                };
                let at = to + (part.start - run.start);
                self.delete_key(Key::global(Section::Shared, part.start));
                self.put_key(
                    Key::global(Section::Shared, at),
                    shared.encode(),
                    Prior::Possible,
                );
            }
        }
        Ok(())
    }

    /// Collects the parts of a run by their number of references.
    pub fn counts_within(&self, run: Run) -> Result<Vec<(Run, u32)>> {
        let mut parts = Vec::new();
        let mut at = run.start;
        let mut add = |start: u64, end: u64, count: u32| {
            if start < end {
                let blocks = end - start;
                parts.push((Run { start, blocks }, count));
            }
        };
        let before = self
            .shared_at(run.start)?
            .filter(|(first, _)| *first < run.start);
        if let Some((first, shared)) = before {
            let end = (first + u64::from(shared.blocks)).min(run.end());
            add(at, end, shared.count);
            at = end;
        }
        let (from, to) = (
            Key::global(Section::Shared, at),
            Key::global(Section::Shared, run.end() - 1),
        );
        self.items.scan(from, to, |key, bytes| {
            let shared = SharedRun::decode(bytes)?;
            let end = (key.item + u64::from(shared.blocks)).min(run.end());
            if key.item < at {
                return Err(Error::corrupt("shared-block records overlap"));
            }
            add(at, key.item, 1);
            add(key.item, end, shared.count);
            at = end;
            Ok(true)
        })?;
        add(at, run.end(), 1);
        Ok(parts)
    }
}
