//! Scrub: reads all file data and compares it with its checksums, also while the file system is in
//! use.
//!
//! A caller makes steps of a limited size, in the order of the records of extents. **Invariant:** a
//! block that a step reads cannot be reused before the step ends, because the step is registered
//! like a request of a file; so a difference is damage, and never a change at the same time.
//! Deliberately absent: the metadata, whose pages `check` verifies, and a repair.

use crate::error::{Error, Kind, Result};
use crate::fileset::Fileset;
use crate::format::chunk::{CHUNK_BLOCKS, Chunk, held_by};
use crate::format::key::{Ino, Item, Key, PLACE_MAX, TreeId};
use crate::format::record::{BLOCK_BYTES, DeviceOffset, FILE_SIZE_MAX, Run};
use crate::format::sums::{NO_SUM, Sum};
use crate::fs::Fs;
use crate::metadata::shared::FsShared;
use crate::metadata::state::{State, Tree, decode_preserved};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Number of items that a step examines at most, so that it ends soon in a tree without data.
const ITEMS_MAX: u64 = 1 << 13;
/// Bytes of one read.
const READ_BYTES: u64 = 1 << 20;
/// Entries of a directory that a search for the name of a damaged file examines at most, while a
/// reader waits.
const ENTRIES_MAX: u64 = 4096;

/// Position of a scrub: the next record to examine, and the block of its file to start at. Printed
/// as `FILESET.INODE.ITEM.BLOCK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubPosition {
    key: Key,
    block: u64,
}

impl ScrubPosition {
    /// The start of the file system.
    pub const START: ScrubPosition = ScrubPosition {
        key: Key {
            layer: 1,
            object: 0,
            item: 0,
        },
        block: 0,
    };
}

impl fmt::Display for ScrubPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key {
            layer,
            object,
            item,
        } = self.key;
        write!(f, "{layer}.{object}.{item}.{}", self.block)
    }
}

impl FromStr for ScrubPosition {
    type Err = Error;

    fn from_str(text: &str) -> Result<ScrubPosition> {
        let parse = || {
            let mut parts = text.split('.');
            let key = Key {
                layer: parts.next()?.parse().ok().filter(|layer| *layer > 0)?,
                object: parts.next()?.parse().ok()?,
                item: parts.next()?.parse().ok()?,
            };
            let block = parts.next()?.parse().ok()?;
            parts
                .next()
                .is_none()
                .then_some(ScrubPosition { key, block })
        };
        parse().ok_or_else(|| {
            let text = format!("`{text}` is not a position of a scrub");
            Error::new(Kind::Invalid, text)
        })
    }
}

/// Cause of a damage.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum DamageKind {
    /// The data differs from its checksum.
    Checksum,
    /// The device reported an error.
    Device,
}

/// Adjacent blocks of a file that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Damage {
    /// Cause.
    pub kind: DamageKind,
    /// Name of the fileset, or of the snapshot that alone has the blocks.
    pub fileset: String,
    /// Inode number.
    pub inode: Ino,
    /// Path from the root of the fileset, if there is one.
    pub path: Option<String>,
    /// Offset of the first block in the file, in bytes.
    pub offset: u64,
    /// Length in bytes: a multiple of 4096, which may reach beyond the end of the file.
    pub bytes: u64,
}

/// Result of one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrubStep {
    /// Start of the next step; `None` at the end.
    pub next: Option<ScrubPosition>,
    /// Blocks read. A block that several records refer to counts several times.
    pub blocks: u64,
    /// Those of them without a checksum, which were not compared.
    pub unverified: u64,
    /// Damage found.
    pub damage: Vec<Damage>,
}

/// Treatment of an invalid record, whose data a scrub cannot find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Invalid {
    Refuse,
    /// Goes on behind it: a check has reported it.
    Skip,
}

/// Part of a file to read.
struct Stretch {
    tree: TreeId,
    ino: Ino,
    /// First block in the file.
    first: u64,
    run: Run,
    sums: Vec<Sum>,
    /// Of a compressed chunk: all blocks of the file that need it.
    needed_by: Option<Vec<u64>>,
}

impl Fs {
    /// Reads file data from `from` on, about `bytes_max` bytes, and compares it with its checksums.
    /// Other threads may use the file system at the same time.
    ///
    /// # Errors
    /// The metadata cannot be read, or the device does not answer. Damaged data is in the result.
    pub fn scrub(&self, from: ScrubPosition, bytes_max: u64) -> Result<ScrubStep> {
        self.scrub_with(from, bytes_max, Invalid::Refuse)
    }

    pub(crate) fn scrub_with(
        &self,
        from: ScrubPosition,
        bytes_max: u64,
        invalid: Invalid,
    ) -> Result<ScrubStep> {
        let fs = self.inner();
        // Before the lookup, and until the data has been read: see the module.
        let entered = fs.space.enter();
        let step = fs.scrub(from, (bytes_max / BLOCK_BYTES).max(1), invalid);
        fs.space.leave(entered);
        let (mut step, damaged) = step?;
        for blocks in damaged.chunk_by(|one, two| (one.0, one.1) == (two.0, two.1)) {
            let (id, ino, ..) = blocks[0];
            let fs = std::sync::Arc::clone(fs);
            let fileset = Fileset { fs, id };
            let name = fileset.record().map(|record| record.name);
            let name = name.unwrap_or_default();
            let path = fileset.path_of(ino, u64::MAX);
            let differ = blocks.iter().filter(|b| b.3 == DamageKind::Checksum);
            let differ: Vec<u64> = differ.map(|block| block.2 * BLOCK_BYTES).collect();
            fileset.note_mismatches(ino, &differ, || path.clone());
            for run in blocks.chunk_by(|one, two| (one.2 + 1, one.3) == (two.2, two.3)) {
                step.damage.push(Damage {
                    kind: run[0].3,
                    fileset: name.clone(),
                    inode: ino,
                    path: path.clone(),
                    offset: run[0].2 * BLOCK_BYTES,
                    bytes: run.len() as u64 * BLOCK_BYTES,
                });
            }
        }
        Ok(step)
    }

    /// Returns the number of reads, since the file system was opened, of blocks that differed from
    /// their checksums.
    pub fn checksum_mismatches(&self) -> u64 {
        self.inner().mismatches.count()
    }

    /// Describes the first blocks of [`Fs::checksum_mismatches`]: fileset, file and offset.
    pub fn mismatched(&self) -> Vec<String> {
        self.inner().mismatches.shown()
    }
}

impl Fileset {
    /// Reports that blocks of a file differ from their checksums: those not reported before, in one
    /// message.
    pub(crate) fn note_mismatches(
        &self,
        ino: Ino,
        offsets: &[u64],
        path: impl FnOnce() -> Option<String>,
    ) {
        let is_new = |offset: &&u64| self.fs.mismatches.add(self.id, ino, **offset);
        let new: Vec<u64> = offsets.iter().filter(is_new).copied().collect();
        let Some(first) = new.first() else {
            return;
        };
        let fileset = self.record().map(|record| record.name);
        let fileset = fileset.unwrap_or_else(|_| self.id.to_string());
        let path = path().map_or(String::new(), |path| format!(" (/{path})"));
        let more = match new.len() {
            1 => String::new(),
            blocks => format!(" (first of {blocks})"),
        };
        let place = format!("`{fileset}`: inode {ino}{path}: the block at byte {first}{more}");
        tracing::error!(
            name: "EVFS-0208",
            "{}: {place} does not match its checksum; restore the file from a backup",
            self.fs.name,
        );
        self.fs.mismatches.show(place);
    }

    /// Finds the path of a damaged file, if that is quick: a reader waits.
    pub(crate) fn damaged_path(&self, ino: Ino) -> Option<String> {
        self.path_of(ino, ENTRIES_MAX)
    }
}

impl FsShared {
    /// Reports whether a block that differed from its checksum is damaged: it is not if the block
    /// was overwritten during the read, which drops the checksum first.
    pub(crate) fn is_mismatch(&self, block: u64, sum: Sum) -> Result<bool> {
        let run = Run {
            start: block,
            blocks: 1,
        };
        Ok(self.read().sums(run)? == [sum])
    }
}

/// Damaged block: fileset or snapshot, inode, block in the file, cause.
type Damaged = (TreeId, Ino, u64, DamageKind);

impl FsShared {
    fn scrub(
        &self,
        from: ScrubPosition,
        blocks_max: u64,
        invalid: Invalid,
    ) -> Result<(ScrubStep, Vec<Damaged>)> {
        let (next, stretches) = stretches(&self.read(), from, blocks_max, invalid)?;
        let mut damaged = Vec::new();
        let mut step = ScrubStep {
            next,
            blocks: 0,
            unverified: 0,
            damage: Vec::new(),
        };
        for stretch in stretches {
            step.blocks += stretch.run.blocks;
            let without = stretch.sums.iter().filter(|sum| **sum == NO_SUM);
            step.unverified += without.count() as u64;
            self.scrub_stretch(&stretch, &mut damaged)?;
        }
        // Several blocks of a chunk concern the same blocks of the file.
        damaged.sort_unstable();
        damaged.dedup_by_key(|block| (block.0, block.1, block.2));
        Ok((step, damaged))
    }

    fn scrub_stretch(&self, stretch: &Stretch, damaged: &mut Vec<Damaged>) -> Result<()> {
        let mut data = vec![0; (stretch.run.blocks * BLOCK_BYTES).min(READ_BYTES) as usize];
        let per_read = (READ_BYTES / BLOCK_BYTES) as usize;
        for (i, sums) in stretch.sums.chunks(per_read).enumerate() {
            let skip = (i * per_read) as u64;
            let data = &mut data[..sums.len() * BLOCK_BYTES as usize];
            let at = DeviceOffset::of_block(stretch.run.start + skip);
            let read = self.io.read(at, data);
            // After an error, each block alone, because the device names no block.
            let alone = read.is_err();
            if let Err(error) = read
                && !is_of_medium(&error)
            {
                return Err(error.into());
            }
            let found = if alone {
                Vec::new()
            } else {
                self.summer.sums_of(data)
            };
            let blocks = data.chunks_mut(BLOCK_BYTES as usize);
            for (j, (block, sum)) in blocks.zip(sums).enumerate() {
                let place = stretch.first + skip + j as u64;
                let places = stretch
                    .needed_by
                    .as_deref()
                    .unwrap_or(std::slice::from_ref(&place));
                let mut add = |kind| {
                    let all = places.iter();
                    damaged.extend(all.map(|place| (stretch.tree, stretch.ino, *place, kind)));
                };
                if alone {
                    match self.io.read(at.plus(j as u64 * BLOCK_BYTES), block) {
                        Ok(()) => {}
                        Err(error) if is_of_medium(&error) => {
                            add(DamageKind::Device);
                            continue;
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
                let device = stretch.run.start + skip + j as u64;
                let sum_of_block = || self.summer.sum_of(block);
                if *sum != NO_SUM
                    && found.get(j).copied().unwrap_or_else(sum_of_block) != *sum
                    && self.is_mismatch(device, *sum)?
                {
                    add(DamageKind::Checksum);
                }
            }
        }
        Ok(())
    }
}

/// Reports whether an error concerns the blocks that were read, and not the whole device.
pub(crate) fn is_of_medium(error: &block::Error) -> bool {
    matches!(error.kind(), block::ErrorKind::Media | block::ErrorKind::Io)
}

/// Collects the written blocks from a position on, up to `blocks_max`, and the position after them.
fn stretches(
    state: &State,
    from: ScrubPosition,
    blocks_max: u64,
    invalid: Invalid,
) -> Result<(Option<ScrubPosition>, Vec<Stretch>)> {
    let mut found: Vec<Stretch> = Vec::new();
    let mut left = blocks_max;
    let mut next = None;
    // Adds the blocks of a record from block `from` of the file on. Returns whether all fitted.
    let mut add = |key: Key, bytes: &[u8], from: u64| -> Result<bool> {
        let Some(tree) = state.trees.get(&key.layer) else {
            return Ok(true);
        };
        let value = match tree.record.origin {
            0 => Some(bytes),
            _ => decode_preserved(bytes)?,
        };
        let held = value.map(|value| held_by(key.kind(), value)).transpose()?;
        let Some(held) = held.flatten() else {
            return Ok(true);
        };
        let (first, run) = (key.place(), held.run);
        let chunk = match (key.kind(), value) {
            (Some(Item::Chunk), Some(value)) => Some(Chunk::decode(value)?),
            _ => None,
        };
        let from = match chunk {
            Some(_) => first,
            None => from.max(first),
        };
        if held.unwritten || from >= first + run.blocks {
            return Ok(true);
        }
        let inside = state.bounds.start <= run.start && run.end() <= state.bounds.end;
        if !inside || first + run.blocks > FILE_SIZE_MAX / BLOCK_BYTES {
            let text = format!("{key}: extent lies outside the device or the file");
            return Err(Error::corrupt(text));
        }
        // A chunk is examined as a whole.
        let most = if chunk.is_some() { run.blocks } else { left };
        let blocks = (first + run.blocks - from).min(most);
        let run = Run {
            start: run.start + (from - first),
            blocks,
        };
        let sums = if state.checksums {
            state.sums(run)?
        } else {
            vec![NO_SUM; blocks as usize]
        };
        found.push(Stretch {
            tree: key.layer,
            ino: key.object,
            first: from,
            run,
            sums,
            needed_by: chunk.map(|chunk| {
                let all = chunk.valid_within(first, &(first..first + CHUNK_BLOCKS));
                all.into_iter().flatten().collect()
            }),
        });
        left = left.saturating_sub(blocks);
        if left == 0 {
            next = Some(match (chunk, key.next()) {
                (Some(_), Some(key)) => ScrubPosition { key, block: 0 },
                _ => ScrubPosition {
                    key,
                    block: from + blocks,
                },
            });
        }
        Ok(left > 0)
    };
    let mut add = |key: Key, bytes: &[u8], from: u64| match add(key, bytes, from) {
        Err(error) if invalid == Invalid::Skip && error.kind() == Kind::Corrupt => Ok(true),
        added => added,
    };
    let mut open = true;
    let mut start = from.key;
    let kind = match start.kind() {
        Some(Item::Chunk) => Item::Chunk,
        _ => Item::Extent,
    };
    if from.block > 0 {
        let is_fileset = |tree: &Tree| tree.record.origin == 0;
        let record = if state.trees.get(&start.layer).is_some_and(is_fileset) {
            // The record may have been joined with the one before it.
            start = Key::item(start.layer, start.object, kind, from.block.min(PLACE_MAX));
            let (first, _) = Key::inode(start.layer, start.object);
            let last = start.previous().unwrap_or(first);
            let read = |key: Key, bytes: &[u8]| Ok((key, bytes.to_vec()));
            let last = state.items.last(first, last, read)?;
            last.filter(|(key, _)| key.kind() == Some(kind))
        } else {
            // Between the blocks of an old record there may be keys of newer ones.
            let read = |bytes: &[u8]| Ok((start, bytes.to_vec()));
            let record = state.items.get(&start, read)?;
            start = start.next().unwrap_or(start);
            record
        };
        if let Some((key, bytes)) = record {
            open = add(key, &bytes, from.block)?;
        }
    }
    let mut items = 0;
    let mut stopped = None;
    if open {
        let last = Key::layer(TreeId::MAX).1;
        state.items.scan(start, last, |key, bytes| {
            items += 1;
            if items > ITEMS_MAX {
                stopped = Some(ScrubPosition { key, block: 0 });
                return Ok(false);
            }
            if !matches!(key.kind(), Some(Item::Extent | Item::Chunk))
                || !(1..=PLACE_MAX).contains(&key.object)
            {
                return Ok(true);
            }
            add(key, bytes, 0)
        })?;
    }
    Ok((next.or(stopped), found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_was_printed() {
        let key = Key::item(7, 12, Item::Extent, 99);
        let position = ScrubPosition { key, block: 7 };
        let text = position.to_string();
        assert_eq!(text.parse::<ScrubPosition>().unwrap(), position);
        for wrong in [
            "",
            "1",
            "1.2.3",
            "0.1.2.3",
            "1.2.3.4.5",
            "1.2.x.4",
            "1.-2.3.4",
        ] {
            assert!(wrong.parse::<ScrubPosition>().is_err(), "{wrong}");
        }
    }
}
