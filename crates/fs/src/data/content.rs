//! The content of files: open and close, length, space, holes; everything except the bytes
//! themselves, which go through [`crate::FsPager`].
//!
//! ```text
//!   prepare_write ──► bytes into the cache ... write-behind ──► putpage ──► extents, disk size
//!   (promises space,
//!    sets size, times)
//! ```
//!
//! **Invariant:** the size on disk covers only bytes that are on disk, or holes; it reaches the
//! size that readers see when write-behind has caught up. A promise is made before a page becomes
//! dirty, and lasts until the page is written or truncated; so write-behind never finds the disk
//! full.

use crate::data::extents::{Mapped, decode, end_of};
use crate::error::{Error, Kind, Result};
use crate::fileset::{Attr, Fileset};
use crate::format::chunk::Chunk;
use crate::format::key::{Ino, Item, Key, PLACE_MAX, TreeId};
use crate::format::record::{BLOCK_BYTES, Extent, FILE_SIZE_MAX, FileType, Inode, blocks_for};
use crate::metadata::inode_state::{Blocks, InodeState};
use crate::metadata::op::Op;
use crate::metadata::state::State;
use std::ops::Range;

/// Extents and chunks that are freed together with the last name of a file; more are freed after it.
pub(crate) const EXTENTS_AT_ONCE: usize = 1024;

/// Effect of a write on the times and the data version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stamp {
    /// New change: sets the modification time and raises the data version.
    Change,
    /// Further part of a change that has raised the data version already: sets the times only.
    More,
    /// Pages that a client held back, and whose times it sets itself: raises the data version only.
    Late,
}

/// Treatment of pages of existing blocks for which a full device has no new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IfFull {
    Refuse,
    /// They will overwrite the blocks in place.
    Overwrite,
}

/// Operation of [`Fileset::allocate`] on a range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// Allocates blocks for holes; they read as zeros. The file grows to include the range.
    Grow,
    /// As [`Allocate::Grow`], but the file keeps its size.
    KeepSize,
    /// Punches a hole; the file keeps its size.
    Punch,
    /// Zeroes the range without a hole. The file grows to include the range.
    Zero,
    /// As [`Allocate::Zero`], but the file keeps its size.
    ZeroKeepSize,
}

impl Allocate {
    /// Reports whether the range loses its bytes.
    fn clears(self) -> bool {
        !matches!(self, Allocate::Grow | Allocate::KeepSize)
    }
}

/// Checks that the flags of a file permit a change of its allocation.
fn check_flags(inode: &Inode, how: Allocate) -> Result<()> {
    if how.clears() {
        inode.flags.check_unlocked()
    } else {
        inode.flags.check_mutable()
    }
}

/// Target of [`Fileset::seek`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    Data,
    /// Hole; the end of the file counts as one.
    Hole,
}

/// Items of an inode that are removed with it, besides its record.
#[derive(Default)]
pub(crate) struct Items {
    extents: Vec<Mapped>,
    chunks: Vec<(u64, Chunk)>,
    others: Vec<(Item, u64)>,
}

impl Items {
    fn add(&mut self, key: Key, bytes: &[u8]) -> Result<()> {
        match key.kind() {
            Some(Item::Extent) => self.extents.push(decode(key.place(), bytes)?),
            Some(Item::Chunk) => self.chunks.push((key.place(), Chunk::decode(bytes)?)),
            Some(item @ (Item::Target | Item::Xattr)) => self.others.push((item, key.place())),
            _ => {}
        }
        Ok(())
    }

    /// Reports whether one operation can remove them together with a name.
    pub fn are_few(&self) -> bool {
        self.extents.len() + self.chunks.len() <= EXTENTS_AT_ONCE
    }
}

impl State {
    /// Reads an inode that is about to lose a name. If it has no other one and is not in use, reads
    /// its items as well, which are next to its record; of many items a part.
    pub fn read_with_items(&self, tree: TreeId, ino: Ino) -> Result<(Inode, Option<Items>)> {
        if let Some(core) = self.cores.get(&(tree, ino)) {
            return Ok((core.inode.clone(), None));
        }
        let (mut inode, mut items) = (None, Items::default());
        let (from, to) = (
            Key::item(tree, ino, Item::Inode, 0),
            Key::item(tree, ino, Item::Chunk, PLACE_MAX),
        );
        self.scan_keys(tree, from, to, |key, bytes| {
            if key.kind() != Some(Item::Inode) {
                items.add(key, bytes)?;
                return Ok(items.are_few());
            }
            let record = Inode::decode(bytes)?;
            let is_last = record.links == 1 && !record.is_dir();
            inode = Some(record);
            Ok(is_last)
        })?;
        let inode = inode.ok_or(Kind::Stale)?;
        let items = (inode.links == 1 && !inode.is_dir()).then_some(items);
        Ok((inode, items))
    }
}

impl Op<'_> {
    /// Removes all items of an inode: its extents, attributes, target and record. `items` are those
    /// besides the record, if the caller has read them.
    pub fn destroy(&mut self, ino: Ino, inode: &Inode, items: Option<Items>) -> Result<()> {
        let tree = self.tree;
        let mut read = Items::default();
        if items.is_none() {
            let (from, to) = (
                Key::item(tree, ino, Item::Target, 0),
                Key::item(tree, ino, Item::Chunk, PLACE_MAX),
            );
            self.scan_keys(tree, from, to, |key, bytes| {
                read.add(key, bytes)?;
                Ok(true)
            })?;
        }
        let Items {
            extents,
            chunks,
            others,
        } = items.unwrap_or(read);
        let gone = self.unmap_all(tree, ino, &extents)? + self.remove_chunks(tree, ino, &chunks)?;
        if gone != inode.blocks {
            let text = format!(
                "inode {ino}: block count is {}, but {gone} were found",
                inode.blocks
            );
            return Err(Error::corrupt(text));
        }
        for item in others {
            self.delete(tree, ino, item)?;
        }
        self.delete(tree, ino, (Item::Inode, 0))?;
        self.use_blocks(-(gone as i64));
        self.use_inodes(-1);
        // Nothing can fail from here on.
        self.remove_wanted(ino, 0..FILE_SIZE_MAX / BLOCK_BYTES);
        self.forgive((tree, ino));
        self.cores.remove(&(tree, ino));
        Ok(())
    }
}

impl Fileset {
    /// Protects an inode from removal when its last name is removed, until [`Fileset::release`].
    ///
    /// # Errors
    /// [`Kind::Stale`].
    pub fn open(&self, ino: Ino) -> Result<Attr> {
        let mut state = self.fs.write();
        let inode = state.inode(self.id, ino)?;
        let core = state.cores.entry((self.id, ino));
        core.or_insert_with(|| InodeState::new(inode.clone())).opens += 1;
        Ok(Attr { ino, inode })
    }

    /// Ends one [`Fileset::open`]. The last one removes an inode without a name. Returns whether it
    /// was removed.
    ///
    /// # Errors
    /// Errors of the removal; the next open of the file system completes it.
    pub fn release(&self, ino: Ino) -> Result<bool> {
        let mut state = self.fs.write();
        let Some(core) = state.cores.get_mut(&(self.id, ino)) else {
            return Ok(false);
        };
        core.opens = core.opens.saturating_sub(1);
        if core.opens > 0 {
            return Ok(false);
        }
        let is_orphan = core.inode.links == 0;
        if core.is_idle() {
            state.cores.remove(&(self.id, ino));
        }
        // Files of a snapshot that is being received get their names last.
        let is_orphan = is_orphan && !state.is_receiving(self.id);
        drop(state);
        if is_orphan && !self.fs.options.read_only {
            self.remove_orphan(ino)
        } else {
            Ok(false)
        }
    }

    /// See [`crate::Fs::end_adoption`].
    pub(crate) fn end_adoption(&self) -> Result<()> {
        let names: Vec<(TreeId, Ino)> = {
            let mut state = self.fs.write();
            if let Some(tree) = state.trees.get_mut(&self.id) {
                tree.adopting = false;
            }
            let own = state.cores.keys().filter(|(tree, _)| *tree == self.id);
            own.copied().collect()
        };
        for name in names {
            let mut op = Op::begin(&self.fs, self.id)?;
            let Some(core) = op.cores.get_mut(&name) else {
                continue;
            };
            core.unnamed &= core.opens > 0;
            if core.waiting().all(Blocks::is_empty) && core.inode.size > core.inode.disk_size {
                core.inode.size = core.inode.disk_size;
                core.dirty = true;
            }
            op.list_dirty(name);
            op.forget_idle(name);
            op.finish();
        }
        self.remove_orphans()
    }

    /// Lists the inodes without a name.
    ///
    /// # Errors
    /// The metadata could not be read.
    pub fn orphans(&self) -> Result<Vec<Ino>> {
        let mut orphans = Vec::new();
        let all = (Item::Orphan, 0, PLACE_MAX);
        self.fs.read().scan(self.id, 0, all, |ino, _| {
            orphans.push(ino);
            Ok(true)
        })?;
        Ok(orphans)
    }

    /// Removes the inodes without a name that are not open.
    ///
    /// # Errors
    /// The metadata could not be read or changed.
    pub fn remove_orphans(&self) -> Result<()> {
        let orphans = self.orphans()?.into_iter();
        let mut removed = orphans.map(|ino| self.remove_orphan(ino).map(drop));
        removed.try_for_each(|removed| removed)
    }

    /// Removes an inode without a name, a large one in several steps. Returns `false` if it has
    /// been linked or opened again, or was already removed.
    pub(crate) fn remove_orphan(&self, ino: Ino) -> Result<bool> {
        /// Extents of the file that one operation removes.
        const STEP_EXTENTS: usize = 4096;
        loop {
            let mut op = Op::begin(&self.fs, self.id)?;
            let found = op.get(self.id, 0, (Item::Orphan, ino), |_| Ok(()))?;
            let is_open = |op: &Op| op.cores.get(&(self.id, ino)).is_some_and(|c| c.opens > 0);
            if found.is_none() || is_open(&op) {
                return Ok(false);
            }
            let end = op.end_of_step(self.id, ino, STEP_EXTENTS)?;
            if let Some(end) = end {
                let gone = op.unmap(self.id, ino, 0..end)?;
                op.change(ino, |inode| inode.blocks -= gone.min(inode.blocks))?;
                op.use_blocks(-(gone as i64));
                op.finish();
                continue;
            }
            op.delete(self.id, 0, (Item::Orphan, ino))?;
            let inode = op.read_inode(ino)?;
            op.destroy(ino, &inode, None)?;
            op.finish();
            return Ok(true);
        }
    }

    /// Prepares a write of bytes through the cache: promises space to its pages, extends the file,
    /// and sets times and data version according to `stamp`. Must be called before the bytes can be
    /// read or written back. On an error, nothing has changed.
    ///
    /// # Errors
    /// [`Kind::NoSpace`], [`Kind::Quota`], [`Kind::FileTooLarge`], [`Kind::ReadOnly`],
    /// [`Kind::Stale`]; [`Kind::NotPermitted`]: the file is immutable, or append-only and the bytes
    /// do not begin at its end.
    pub fn prepare_write(&self, ino: Ino, bytes: Range<u64>, stamp: Stamp) -> Result<()> {
        self.with_room_or_in_place(|full| self.try_prepare_write(ino, bytes.clone(), stamp, full))
    }

    fn try_prepare_write(
        &self,
        ino: Ino,
        bytes: Range<u64>,
        stamp: Stamp,
        full: IfFull,
    ) -> Result<()> {
        let mut op = Op::begin(&self.fs, self.id)?;
        let (now, inode) = (op.now, op.read_inode(ino)?);
        if bytes.start < inode.size {
            inode.flags.check_unlocked()?;
        } else {
            inode.flags.check_mutable()?;
        }
        op.check_kept_room()?;
        self.promise_pages(&mut op, ino, bytes.clone(), full)?;
        if bytes.start > inode.size {
            self.cover_tail(&mut op, ino, inode.disk_size, inode.size)?;
        }
        let core = op.core(ino)?;
        match stamp {
            Stamp::Change => core.inode.touch(now),
            Stamp::More => (core.inode.modified, core.inode.changed) = (now, now),
            Stamp::Late => core.inode.data_version = inode.data_version.wrapping_add(1),
        }
        core.inode.size = inode.size.max(bytes.end);
        core.dirty = true;
        op.list_written((self.id, ino));
        op.finish();
        Ok(())
    }

    /// Promises space to pages that are about to become dirty. See [`crate::Pager::will_write`].
    pub(crate) fn will_write(&self, ino: Ino, bytes: Range<u64>) -> Result<()> {
        let blocks = bytes.start / BLOCK_BYTES..blocks_for(bytes.end);
        let known = |core: &InodeState| core.is_prepared(blocks.clone());
        if self.fs.read().cores.get(&(self.id, ino)).is_some_and(known) {
            return Ok(());
        }
        self.with_room_or_in_place(|full| {
            let mut op = Op::begin(&self.fs, self.id)?;
            self.promise_pages(&mut op, ino, bytes.clone(), full)?;
            op.finish();
            Ok(())
        })
    }

    /// Runs `promise`, which promises space to pages. Existing blocks are overwritten only if there
    /// is no room even when the blocks freed so far can be reused.
    fn with_room_or_in_place(&self, promise: impl Fn(IfFull) -> Result<()>) -> Result<()> {
        match self.fs.with_room(|| promise(IfFull::Refuse)) {
            Err(error) if error.kind() == Kind::NoSpace => promise(IfFull::Overwrite),
            promised => promised,
        }
    }

    fn promise_pages(&self, op: &mut Op, ino: Ino, bytes: Range<u64>, full: IfFull) -> Result<()> {
        if bytes.end > FILE_SIZE_MAX {
            return Err(Kind::FileTooLarge.into());
        }
        if op.read_inode(ino)?.kind != FileType::File {
            return Err(Kind::Invalid.into());
        }
        let blocks = bytes.start / BLOCK_BYTES..blocks_for(bytes.end);
        let core = op.core(ino)?;
        if core.is_prepared(blocks.clone()) {
            return Ok(());
        }
        let missing: Vec<_> = core.promised.missing(blocks.clone()).collect();
        let mut claims = op.claims(ino, &missing, &Blocks::default())?;
        if claims.splits {
            // An unwritten extent needs no new block, but may become three records.
            op.check_last_room()?;
        }
        match op.reserve_for(ino, claims.new.count(), claims.replaced.count()) {
            Err(error) if error.kind() == Kind::NoSpace && full == IfFull::Overwrite => {
                // Existing blocks can be overwritten on a full device, too.
                claims = op.claims(ino, &missing, &Blocks::of(blocks))?;
                op.reserve_for(ino, claims.new.count(), claims.replaced.count())?;
            }
            reserved => reserved?,
        }
        let core = op.core(ino)?;
        core.promised.extend(&claims.new);
        core.in_place.extend(&claims.own);
        let replaced = claims.replaced.iter();
        let replacing: u64 = replaced.map(|run| core.replacing.insert(run)).sum();
        if let Some(tree) = op.trees.get_mut(&self.id) {
            tree.replacing += replacing;
        }
        let growth = claims.new.count() as i64 - replacing as i64;
        op.owe((self.id, ino), growth);
        Ok(())
    }

    /// Sets the length of a file. The cache has already dropped the pages beyond it and zeroed the
    /// rest of the last page, and writes back no page of the file until this returns.
    ///
    /// # Errors
    /// [`Kind::FileTooLarge`]; [`Kind::IsDirectory`], [`Kind::Invalid`]: not a regular file.
    /// [`Kind::NotPermitted`]: the flags of the file.
    pub fn truncate(&self, ino: Ino, size: u64) -> Result<Attr> {
        self.fs.with_room(|| {
            let mut op = Op::begin(&self.fs, self.id)?;
            self.cut_or_grow(&mut op, ino, size)?;
            let inode = op.read_inode(ino)?;
            op.finish();
            Ok(Attr { ino, inode })
        })
    }

    /// Sets the length. Comes last in its operation: it ends the promises of the truncated part.
    pub(crate) fn cut_or_grow(&self, op: &mut Op, ino: Ino, size: u64) -> Result<()> {
        let inode = op.read_inode(ino)?;
        inode.flags.check_unlocked()?;
        match inode.kind {
            FileType::File => {}
            FileType::Directory => return Err(Kind::IsDirectory.into()),
            _ => return Err(Kind::Invalid.into()),
        }
        if size > FILE_SIZE_MAX {
            return Err(Kind::FileTooLarge.into());
        }
        let cut = blocks_for(size)..FILE_SIZE_MAX / BLOCK_BYTES;
        let now = op.now;
        if size > inode.size {
            op.check_kept_room()?;
            self.cover_tail(op, ino, inode.disk_size, inode.size)?;
            return op.change(ino, |inode| {
                (inode.size, inode.disk_size) = (size, size);
                inode.touch(now);
            });
        }
        let gone = op.unmap(self.id, ino, cut.clone())?;
        self.cover_tail(op, ino, inode.disk_size.min(size), size)?;
        op.change(ino, |inode| {
            inode.disk_size = inode.disk_size.min(size);
            inode.size = size;
            inode.blocks -= gone.min(inode.blocks);
            inode.touch(now);
        })?;
        op.use_blocks(-(gone as i64));
        op.remove_wanted(ino, cut);
        Ok(())
    }

    /// Invalidates the bytes after an end within its block: after `on_disk` on the device, and
    /// after `size` in writes in flight.
    pub(crate) fn cover_tail(&self, op: &mut Op, ino: Ino, on_disk: u64, size: u64) -> Result<()> {
        let (block, bytes) = split(on_disk);
        if bytes != 0 {
            op.set_tail(self.id, ino, block, bytes)?;
        }
        let (block, bytes) = split(size);
        if bytes != 0
            && let Some(core) = op.cores.get_mut(&(self.id, ino))
        {
            let writes = core.writes.values_mut();
            writes.for_each(|write| write.cover_tail(block, bytes));
        }
        Ok(())
    }

    /// Allocates, punches or zeroes. The cache has already dropped the pages that lie entirely in
    /// the range, and zeroed the bytes of the range in the pages at its ends; this handles the
    /// whole blocks between.
    ///
    /// # Errors
    /// [`Kind::NoSpace`], [`Kind::Quota`], [`Kind::FileTooLarge`], [`Kind::Invalid`];
    /// [`Kind::NotPermitted`]: the flags of the file.
    pub fn allocate(&self, ino: Ino, bytes: Range<u64>, how: Allocate) -> Result<Attr> {
        if bytes.is_empty() {
            return Err(Kind::Invalid.into());
        }
        if bytes.end > FILE_SIZE_MAX {
            return Err(Kind::FileTooLarge.into());
        }
        self.fs
            .with_room(|| self.try_allocate(ino, bytes.clone(), how))
    }

    fn try_allocate(&self, ino: Ino, bytes: Range<u64>, how: Allocate) -> Result<Attr> {
        let mut op = Op::begin(&self.fs, self.id)?;
        op.check_kept_room()?;
        let inode = op.read_inode(ino)?;
        if inode.kind != FileType::File {
            return Err(Kind::Invalid.into());
        }
        check_flags(&inode, how)?;
        let outer = bytes.start / BLOCK_BYTES..blocks_for(bytes.end);
        let inner = blocks_for(bytes.start)..bytes.end / BLOCK_BYTES;
        let clears = how.clears();
        let mut changed = 0;
        if clears && !inner.is_empty() {
            changed -= op.unmap(self.id, ino, inner.clone())? as i64;
        }
        if how != Allocate::Punch {
            changed += op.fill_holes(ino, outer)? as i64;
        }
        let grows = matches!(how, Allocate::Grow | Allocate::Zero) && bytes.end > inode.size;
        if grows {
            self.cover_tail(&mut op, ino, inode.disk_size, inode.size)?;
        }
        let now = op.now;
        op.change(ino, |inode| {
            inode.blocks = inode.blocks.saturating_add_signed(changed);
            if grows {
                (inode.size, inode.disk_size) = (bytes.end, bytes.end);
            }
            inode.touch(now);
        })?;
        op.use_blocks(changed);
        op.check_accounts()?;
        if clears && !inner.is_empty() {
            op.remove_wanted(ino, inner);
        }
        let inode = op.read_inode(ino)?;
        op.finish();
        Ok(Attr { ino, inode })
    }

    /// Checks that the flags of a file permit [`Fileset::allocate`], before the cache drops pages.
    ///
    /// # Errors
    /// [`Kind::NotPermitted`], [`Kind::Stale`].
    pub(crate) fn check_allocate(&self, ino: Ino, how: Allocate) -> Result<()> {
        check_flags(&self.fs.read().inode(self.id, ino)?, how)
    }

    /// Finds the first byte from `offset` on that is data, or a hole. Dirty pages count as data.
    ///
    /// # Errors
    /// [`Kind::NoMore`]: `offset` is beyond the end, or no data follows.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        let state = self.fs.read();
        let inode = state.inode(self.id, ino)?;
        if offset >= inode.size {
            return Err(Kind::NoMore.into());
        }
        let mut at = offset;
        while at < inode.size {
            let block = at / BLOCK_BYTES;
            let (is_data, end) = self.stretch(&state, ino, block)?;
            if is_data == (what == Seek::Data) {
                return Ok(at);
            }
            at = end.saturating_mul(BLOCK_BYTES);
        }
        match what {
            Seek::Hole => Ok(inode.size),
            Seek::Data => Err(Kind::NoMore.into()),
        }
    }

    /// Checks whether a block holds data, and finds a later block up to which all blocks are alike.
    fn stretch(&self, state: &State, ino: Ino, block: u64) -> Result<(bool, u64)> {
        let mut end = u64::MAX;
        if let Some(core) = state.cores.get(&(self.id, ino)) {
            for blocks in core.waiting() {
                match blocks.within(block..u64::MAX).next() {
                    Some(run) if run.start == block => return Ok((true, run.end)),
                    Some(run) => end = end.min(run.start),
                    None => {}
                }
            }
        }
        if let Some((first, extent)) = state.extents(self.id, ino, block..block + 1)?.pop() {
            let until = end_of(&(first, extent));
            return if extent.unwritten {
                Ok((false, end.min(until)))
            } else {
                Ok((true, until))
            };
        }
        let next = state.extent_after(self.id, ino, block)?;
        let end = end.min(next.map_or(u64::MAX, |next| next.0));
        match state.chunk_blocks_after(self.id, ino, block)? {
            Some(run) if run.start == block => Ok((true, run.end)),
            next => Ok((false, end.min(next.map_or(u64::MAX, |next| next.start)))),
        }
    }
}

/// Computes the block that contains an end, and the number of its bytes before the end.
pub(crate) fn split(end: u64) -> (u64, u16) {
    (end / BLOCK_BYTES, (end % BLOCK_BYTES) as u16)
}

/// Needs of blocks that are about to become dirty.
#[derive(Default)]
struct Claims {
    /// Blocks that need a new block of the device.
    new: Blocks,
    /// Those of them that replace a block of the file.
    replaced: Blocks,
    /// Blocks that will be written in place.
    own: Blocks,
    /// Whether a record of an extent may have to be split.
    splits: bool,
}

impl Op<'_> {
    /// Determines the needs of blocks of a file; see [`State::targets`].
    fn claims(&self, ino: Ino, missing: &[Range<u64>], overwritten: &Blocks) -> Result<Claims> {
        let mut claims = Claims::default();
        for range in missing {
            claims.new.insert(range.clone());
            let targets = self.targets(self.tree, ino, range.clone(), overwritten)?;
            for part in targets.in_place {
                claims.splits |= part.1.unwritten;
                claims.new.remove(part.0..end_of(&part));
                claims.own.insert(part.0..end_of(&part));
            }
            claims.replaced.extend(&targets.replaced);
        }
        Ok(claims)
    }

    /// Promises blocks to the fileset, some of which replace blocks that it has.
    pub(crate) fn reserve(&mut self, blocks: u64, replaced: u64) -> Result<()> {
        if blocks == 0 {
            return Ok(());
        }
        if blocks > replaced {
            self.check_quota(blocks - replaced)?;
        }
        if !self.space().reserve(blocks) {
            return Err(crate::space::full());
        }
        let id = self.tree;
        if let Some(tree) = self.trees.get_mut(&id) {
            tree.promised += blocks;
        }
        Ok(())
    }

    /// As [`Op::reserve`], for a file whose owners are charged when the promise is recorded.
    fn reserve_for(&mut self, ino: Ino, blocks: u64, replaced: u64) -> Result<()> {
        if blocks > replaced {
            self.check_owners(ino, blocks - replaced)?;
        }
        self.reserve(blocks, replaced)
    }

    /// Allocates unwritten blocks for the holes of a range. Returns their number.
    fn fill_holes(&mut self, ino: Ino, blocks: Range<u64>) -> Result<u64> {
        let tree = self.tree;
        let mut holes = Blocks::of(blocks.clone());
        let compressed = self.valid_in_chunks(tree, ino, &blocks)?;
        for mapped in self.extents(tree, ino, blocks)? {
            holes.remove(mapped.0..end_of(&mapped));
        }
        for run in compressed.iter() {
            holes.remove(run);
        }
        let wanted = holes.count();
        self.reserve(wanted, 0)?;
        let filled = holes.iter().try_for_each(|hole| self.fill(ino, hole));
        // Allocated blocks no longer need the device's promise; the promise of the fileset ends
        // here.
        let id = self.tree;
        if let Some(tree) = self.trees.get_mut(&id) {
            tree.promised = tree.promised.saturating_sub(wanted);
        }
        if let Err(error) = filled {
            let taken: u64 = self.taken().iter().map(|run| run.blocks).sum();
            self.space().release_reserved(wanted - taken);
            return Err(error);
        }
        Ok(wanted)
    }

    fn fill(&mut self, ino: Ino, hole: Range<u64>) -> Result<()> {
        let tree = self.tree;
        let mut at = hole.start;
        while at < hole.end {
            let goal = self.goal(ino, at)?;
            let run = self.take(goal, hole.end - at)?;
            self.mark_used(run);
            let extent = Extent {
                start: run.start,
                blocks: run.blocks as u32,
                unwritten: true,
                tail: 0,
            };
            self.map(tree, ino, (at, extent))?;
            at += run.blocks;
        }
        Ok(())
    }

    /// Finds the preferred location of a block of a file: after the preceding block.
    pub(crate) fn goal(&self, ino: Ino, block: u64) -> Result<Option<u64>> {
        let Some(before) = block.checked_sub(1) else {
            return Ok(None);
        };
        let before = self.extent_before(self.tree, ino, before)?;
        let follows = before.filter(|mapped| end_of(mapped) == block);
        Ok(follows.map(|(_, extent)| extent.run().end()))
    }
}
