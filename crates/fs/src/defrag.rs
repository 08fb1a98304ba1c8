//! Defragmentation: files of many extents are rewritten into few, and compressed or decompressed if
//! that is asked for (`defrag/recompress.rs`).
//!
//! ```text
//!   pieces that are adjacent in the file ──read──► one free run ──durable──► one record for all
//! ```
//!
//! **Invariant:** the blocks of a file are durable at their new location before any metadata refers
//! to it, and the old ones rest until that is durable too; so after a crash at any moment one of
//! the two is complete. Others may use the file system at the same time: a piece moves only if no
//! write of the file began or was in progress since its bytes were read; a file that changes stays
//! as it is. Deliberately absent: blocks shared with a snapshot or another file, holes and unwritten
//! blocks, all of which stay where they are.

mod recompress;

use crate::data::extents::{Mapped, end_of};
use crate::error::{Error, Kind, Result};
use crate::fileset::Fileset;
use crate::format::key::{Ino, TreeId};
use crate::format::record::{BLOCK_BYTES, DeviceOffset, Extent, FILE_SIZE_MAX, FileType, Run};
use crate::format::sums::{NO_SUM, Sum};
use crate::fs::Fs;
use crate::metadata::op::Op;
use crate::metadata::pace::Pace;
use crate::metadata::state::State;
use crate::names::directory::AFTER_DOTS;
use block::Buf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Blocks of an extent that is long enough to stay where it is: 64 MiB.
const LONG_BLOCKS: u32 = 16_384;
/// Blocks that one step moves at most: 256 MiB.
const STEP_BLOCKS: u64 = 65_536;
/// Size of the copy buffer in bytes.
const COPY_BYTES: u64 = 4 << 20;

/// Result of a defragmentation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Defragmented {
    /// Regular files examined.
    pub files: u64,
    /// Files that now have fewer extents.
    pub improved: u64,
    /// Extents of all files before, without compressed chunks.
    pub extents_before: u64,
    /// Extents of all files after.
    pub extents_after: u64,
    /// Blocks of 4096 bytes rewritten.
    pub moved_blocks: u64,
    /// Files of which content was compressed, compressed by another method, or decompressed.
    pub recompressed: u64,
    /// Blocks of the device that the content of these files had before.
    pub blocks_before: u64,
    /// Blocks of the device that the content of these files has after.
    pub blocks_after: u64,
}

/// Whether files are rewritten, or only counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Rewrite,
    Plan,
}

/// Whether content is also stored as the settings of its fileset and file ask for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recompress {
    /// Compressed content stays compressed, and plain content plain.
    No,
    /// Content is compressed, compressed by another method, or decompressed.
    Yes,
}

/// Manner of a defragmentation.
#[derive(Clone, Copy)]
struct Manner<'a> {
    mode: Mode,
    recompress: Recompress,
    pace: &'a Pace,
}

/// Progress, in inodes and their blocks.
struct DefragProgress<'a> {
    tell: &'a mut dyn FnMut(u64, u64),
    done: u64,
    total: u64,
}

impl DefragProgress<'_> {
    fn went(&mut self, by: u64) {
        self.done = (self.done + by).min(self.total);
        (self.tell)(self.done, self.total);
    }
}

impl Fs {
    /// Rewrites the files of a fileset from `top` on, which is a file, or a directory with
    /// everything below it, so that each has few extents. Others may use the fileset: files that
    /// change at the same time stay as they are. `pace` limits the bytes moved in a second, and can
    /// end it. `progress` is called with the amount done and the total. Durable when this returns.
    ///
    /// # Errors
    /// [`Kind::Busy`]: `pace` was stopped, or the fileset is receiving a snapshot.
    /// [`Kind::ReadOnly`], [`Kind::NotFound`], [`Kind::Stale`]. [`Kind::Quota`]: decompressed
    /// content would exceed a limit. The device failed; the current file is unchanged.
    pub fn defrag(
        &self,
        (id, top): (TreeId, Ino),
        recompress: Recompress,
        pace: &Pace,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Defragmented> {
        let manner = Manner {
            mode: Mode::Rewrite,
            recompress,
            pace,
        };
        let done = self.defrag_in(manner, id, top, progress)?;
        self.sync()?;
        Ok(done)
    }

    /// Computes the result of [`Fs::defrag`] for a file system with enough free space in one piece,
    /// and changes nothing.
    ///
    /// # Errors
    /// Those of [`Fs::defrag`].
    pub fn plan_defrag(
        &self,
        (id, top): (TreeId, Ino),
        recompress: Recompress,
        pace: &Pace,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Defragmented> {
        let manner = Manner {
            mode: Mode::Plan,
            recompress,
            pace,
        };
        self.defrag_in(manner, id, top, progress)
    }

    fn defrag_in(
        &self,
        manner: Manner<'_>,
        id: TreeId,
        top: Ino,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Defragmented> {
        let fileset = self.fileset(id)?;
        Op::begin(&fileset.fs, id)?.refuse_receiving(id)?;
        let inode = fileset.attr(top)?.inode;
        let record = fileset.record()?;
        let (inodes, blocks) = if inode.is_dir() {
            (record.used_inodes, record.used_blocks)
        } else {
            (1, inode.blocks)
        };
        // To recompress reads all blocks once more.
        let passes = 1 + u64::from(manner.recompress == Recompress::Yes);
        let mut way = DefragProgress {
            tell: progress,
            done: 0,
            total: inodes + passes * blocks,
        };
        let mut done = Defragmented::default();
        let mut seen: HashSet<Ino> = HashSet::new();
        let mut todo = vec![top];
        while let Some(ino) = todo.pop() {
            manner.pace.pass(0)?;
            let mut examine = || -> Result<()> {
                let inode = fileset.attr(ino)?.inode;
                if inode.is_dir() {
                    fileset.read_dir(ino, AFTER_DOTS, |entry| {
                        todo.push(entry.ino);
                        Ok(true)
                    })?;
                }
                // A file with several names is found under each of them.
                let new = inode.links < 2 || inode.is_dir() || seen.insert(ino);
                if new && inode.kind == FileType::File {
                    fileset.defrag_file(manner, ino, &mut done, &mut way)?;
                }
                way.went(u64::from(new));
                Ok(())
            };
            match examine() {
                // Others have removed it.
                Err(error) if ino != top && is_gone(&error) => {}
                examined => examined?,
            }
        }
        way.went(way.total);
        Ok(done)
    }
}

fn is_gone(error: &Error) -> bool {
    matches!(error.kind(), Kind::NotFound | Kind::Stale)
}

impl Fileset {
    fn defrag_file(
        &self,
        manner: Manner<'_>,
        ino: Ino,
        done: &mut Defragmented,
        way: &mut DefragProgress,
    ) -> Result<()> {
        if manner.recompress == Recompress::Yes {
            self.recompress_file(manner, ino, done, way)?;
        }
        let (before, blocks, stretches) = {
            let state = self.fs.read();
            let extents = state.extents(self.id, ino, 0..FILE_SIZE_MAX / BLOCK_BYTES)?;
            let blocks: u64 = extents.iter().map(|(_, e)| u64::from(e.blocks)).sum();
            (
                extents.len(),
                blocks,
                stretches(&state, self.id, ino, &extents)?,
            )
        };
        let mut moved = 0;
        let mut merged = 0;
        'file: for stretch in stretches {
            let mut rest = &stretch[..];
            while rest.len() > 1 {
                let taken = match manner.mode {
                    Mode::Rewrite => match self.move_some(manner, ino, rest)? {
                        Some(taken) => taken,
                        None => break 'file,
                    },
                    Mode::Plan => rest.len(),
                };
                let blocks = rest[..taken].iter().map(|(_, e)| u64::from(e.blocks)).sum();
                if taken > 1 {
                    moved += blocks;
                    merged += taken - 1;
                }
                way.went(blocks);
                rest = &rest[taken..];
            }
        }
        let after = match (manner.mode, moved) {
            (_, 0) => before,
            (Mode::Plan, _) => before.saturating_sub(merged),
            (Mode::Rewrite, _) => {
                let all = 0..FILE_SIZE_MAX / BLOCK_BYTES;
                self.fs.read().extents(self.id, ino, all)?.len()
            }
        };
        way.went(blocks.saturating_sub(moved));
        done.files += 1;
        done.improved += u64::from(after < before);
        done.extents_before += before as u64;
        done.extents_after += after as u64;
        done.moved_blocks += moved;
        Ok(())
    }

    /// Moves as many of the first pieces as fit into a free run. Returns their number; 1 if there
    /// is no run for two, in which case the piece has not moved, and `None` if the file has changed.
    fn move_some(&self, manner: Manner<'_>, ino: Ino, pieces: &[Mapped]) -> Result<Option<usize>> {
        let mut found = self.find_run(pieces);
        if found.is_none() && self.fs.space.has_quarantined() {
            // Blocks freed by earlier moves become usable once those are durable.
            self.fs.sync()?;
            found = self.find_run(pieces);
        }
        let Some((taken, run)) = found else {
            return Ok(Some(1));
        };
        // From here on, its state stays in memory, and counts its writes.
        if let Err(error) = self.open(ino) {
            self.fs.space.release_run(run);
            return Err(error);
        }
        // Before the lookup: none of the blocks that are read is used again.
        let entered = self.fs.space.enter();
        let pieces = &pieces[..taken];
        let move_all = || {
            let Some(begun) = self.quiet(&self.fs.read(), ino, pieces)? else {
                return Ok(false);
            };
            let sums = self.copy(manner.pace, ino, pieces, run)?;
            self.put_there(ino, pieces, run, &sums, begun)
        };
        let moved = move_all();
        self.fs.space.leave(entered);
        let released = self.release(ino);
        if !matches!(moved, Ok(true)) {
            self.fs.space.release_run(run);
        }
        let moved = moved?;
        released?;
        Ok(moved.then_some(taken))
    }

    /// Checks that a file still has these pieces for itself, and that none of its blocks is being
    /// written. Returns the number of writes that have begun, or `None` if the file has changed.
    fn quiet(&self, state: &State, ino: Ino, pieces: &[Mapped]) -> Result<Option<u64>> {
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else {
            return Ok(None);
        };
        let range = first.0..end_of(last);
        let core = state.cores.get(&(self.id, ino));
        let Some(core) = core.filter(|core| core.writes.is_empty()) else {
            return Ok(None);
        };
        if state.extents(self.id, ino, range)? != pieces {
            return Ok(None);
        }
        for piece in pieces {
            if !is_own(state, self.id, ino, piece)? {
                return Ok(None);
            }
        }
        Ok(Some(core.begun))
    }

    /// Allocates a free run for two or more of the first pieces. Returns how many fit.
    fn find_run(&self, pieces: &[Mapped]) -> Option<(usize, Run)> {
        let space = &self.fs.space;
        let usage = space.usage();
        let room = usage.largest_run.min(usage.available).min(STEP_BLOCKS);
        let (mut taken, mut blocks) = (0, 0);
        for (_, piece) in pieces {
            if blocks + u64::from(piece.blocks) > room {
                break;
            }
            (taken, blocks) = (taken + 1, blocks + u64::from(piece.blocks));
        }
        if taken < 2 || !space.reserve(blocks) {
            return None;
        }
        match space.allocate(None, blocks) {
            Some(run) if run.blocks == blocks => Some((taken, run)),
            part => {
                if let Some(run) = part {
                    space.return_run(run);
                }
                space.release_reserved(blocks);
                None
            }
        }
    }

    /// Replaces the pieces by one record, once their bytes are durable at the new location. Returns
    /// `false` if the file has changed since `begun` of its writes had begun.
    fn put_there(
        &self,
        ino: Ino,
        pieces: &[Mapped],
        run: Run,
        sums: &[Sum],
        begun: u64,
    ) -> Result<bool> {
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else {
            return Ok(false);
        };
        let range = first.0..end_of(last);
        let mut op = Op::begin(&self.fs, self.id)?;
        if self.quiet(op.state(), ino, pieces)? != Some(begun) {
            return Ok(false);
        }
        op.unmap(self.id, ino, range.clone())?;
        let whole = Extent {
            start: run.start,
            blocks: run.blocks as u32,
            unwritten: false,
            tail: 0,
        };
        op.map(self.id, ino, (range.start, whole))?;
        op.mark_used(run);
        if op.checksums {
            op.set_sums(run, sums);
        }
        op.finish();
        Ok(true)
    }

    /// Copies the bytes of pieces to a run, and makes them durable there. Returns the checksums of
    /// the copy.
    fn copy(&self, pace: &Pace, ino: Ino, pieces: &[Mapped], run: Run) -> Result<Vec<Sum>> {
        let fs = &self.fs;
        let len = COPY_BYTES.min(fs.io.info().max_transfer.into()) / BLOCK_BYTES * BLOCK_BYTES;
        let mut to = DeviceOffset::of_block(run.start);
        let mut copied = Vec::with_capacity(run.blocks as usize);
        for (first, piece) in pieces {
            let from = DeviceOffset::of_block(piece.start);
            let bytes = u64::from(piece.blocks) * BLOCK_BYTES;
            // Bytes beyond the tail of an extent were never valid, but would become so in the new one.
            let counts = match piece.tail {
                0 => bytes,
                tail => bytes - BLOCK_BYTES + u64::from(tail),
            };
            let mut at = 0;
            while at < bytes {
                let mut data = vec![0; len.min(bytes - at) as usize];
                pace.pass(data.len() as u64)?;
                fs.io.read(from.plus(at), &mut data)?;
                self.verify(ino, (*first, *piece), at / BLOCK_BYTES, &data)?;
                let keep = counts.saturating_sub(at).min(data.len() as u64);
                data[keep as usize..].fill(0);
                copied.extend(fs.summer.sums_of(&data));
                let write = block::Op::Write {
                    offset: to.plus(at).bytes(),
                    bufs: Buf::copy_of(&data).into(),
                    fua: false,
                };
                at += data.len() as u64;
                fs.io.write(vec![write])?;
            }
            to = to.plus(bytes);
        }
        fs.io.flush()?;
        Ok(copied)
    }

    /// Compares blocks of a piece, from its block `skip` on, with their checksums: a copy of damaged
    /// data would get a valid one.
    fn verify(&self, ino: Ino, piece: Mapped, skip: u64, data: &[u8]) -> Result<()> {
        let run = Run {
            start: piece.1.start + skip,
            blocks: data.len() as u64 / BLOCK_BYTES,
        };
        let sums = {
            let state = self.fs.read();
            if !state.checksums {
                return Ok(());
            }
            state.sums(run)?
        };
        let found = self.fs.summer.sums_of(data);
        for ((found, sum), at) in found.into_iter().zip(sums).zip(piece.0 + skip..) {
            if sum != NO_SUM && found != sum {
                self.note_mismatches(ino, &[at * BLOCK_BYTES], || self.damaged_path(ino));
                let text = format!(
                    "inode {ino}: the block at byte {} does not match its checksum; `evfs scrub` \
                     lists all damaged files",
                    at * BLOCK_BYTES
                );
                return Err(Error::new(Kind::Io, text));
            }
        }
        Ok(())
    }
}

/// Finds the sequences of pieces that could each be merged into one: adjacent in the file,
/// written, short, and not shared.
fn stretches(
    state: &State,
    tree: TreeId,
    ino: Ino,
    extents: &[Mapped],
) -> Result<Vec<Vec<Mapped>>> {
    let mut all: Vec<Vec<Mapped>> = Vec::new();
    let mut current: Vec<Mapped> = Vec::new();
    for mapped in extents {
        let (first, extent) = *mapped;
        let movable = !extent.unwritten && extent.blocks < LONG_BLOCKS;
        let follows = current.last().is_some_and(|last| end_of(last) == first);
        let own = movable && is_own(state, tree, ino, mapped)?;
        if !follows || !own {
            all.push(std::mem::take(&mut current));
        }
        if own {
            current.push(*mapped);
        }
    }
    all.push(current);
    all.retain(|stretch| stretch.len() > 1);
    Ok(all)
}

/// Reports whether a file alone has the blocks of one of its pieces.
fn is_own(state: &State, tree: TreeId, ino: Ino, piece: &Mapped) -> Result<bool> {
    let own = state.own_parts(tree, ino, piece.0..end_of(piece))?;
    let blocks: u32 = own.iter().map(|(_, part)| part.blocks).sum();
    Ok(blocks == piece.1.blocks)
}
