//! Atomic operations: all steps of an operation take effect, or none.
//!
//! An operation holds the write lock, changes the state step by step, and is then finished. If a
//! step fails, the operation is dropped unfinished and rolls its steps back. **Invariant:** the
//! next holder of the lock sees the state either before or after an operation, never in between.

use crate::error::{Error, Kind, Result};
use crate::format::key::{Ino, PLACE_MAX, TreeId};
use crate::format::record::{Inode, Run, Time};
use crate::metadata::inode_state::InodeState;
use crate::metadata::shared::FsShared;
use crate::metadata::state::{State, Step};
use crate::space::Space;
use std::ops::{Deref, DerefMut, Range};
use std::sync::RwLockWriteGuard;

/// Operation in progress. See the module.
pub(crate) struct Op<'a> {
    fs: &'a FsShared,
    state: RwLockWriteGuard<'a, State>,
    /// Fileset that the operation changes.
    pub tree: TreeId,
    /// Time of the operation.
    pub now: Time,
    pub(super) used_blocks: i64,
    pub(super) used_inodes: i64,
    /// Allocated blocks; released if the operation is rolled back.
    taken: Vec<Run>,
    finished: bool,
}

impl Deref for Op<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Op<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl<'a> Op<'a> {
    /// Begins an operation on a fileset.
    ///
    /// # Errors
    /// [`Kind::ReadOnly`]: a snapshot, or a file system that is read-only.
    pub fn begin(fs: &'a FsShared, tree: TreeId) -> Result<Op<'a>> {
        let op = Op::begin_any(fs, tree)?;
        if op.state.tree(tree)?.record.origin != 0 {
            return Err(Error::new(Kind::ReadOnly, "snapshots are read-only"));
        }
        Ok(op)
    }

    /// Begins an operation that need not belong to an existing tree.
    pub fn begin_any(fs: &'a FsShared, tree: TreeId) -> Result<Op<'a>> {
        fs.check_writable()?;
        fs.wait_for_room()?;
        Op::locked(fs, tree)
    }

    /// As [`Op::begin_any`], for a caller that prevents commits: never waits for one.
    pub fn locked(fs: &'a FsShared, tree: TreeId) -> Result<Op<'a>> {
        let state = fs.write();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        debug_assert!(state.steps.is_empty() && state.space.is_empty());
        Ok(Op {
            fs,
            state,
            tree,
            now: (fs.options.clock)(),
            used_blocks: 0,
            used_inodes: 0,
            taken: Vec::new(),
            finished: false,
        })
    }

    /// Makes all steps final.
    pub fn finish(mut self) {
        self.finished = true;
        let state = &mut *self.state;
        if let Some(tree) = state.trees.get_mut(&self.tree)
            && (self.used_blocks != 0 || self.used_inodes != 0)
        {
            tree.touch();
            let add = |to: &mut u64, by: i64| *to = to.saturating_add_signed(by);
            add(&mut tree.record.used_blocks, self.used_blocks);
            add(&mut tree.record.used_inodes, self.used_inodes);
        }
        let freed = state.space.iter().filter(|change| !change.used);
        let freed: Vec<Run> = freed.map(|change| change.run).collect();
        if !freed.is_empty() {
            self.fs.space.free(&freed);
        }
        let space = std::mem::take(&mut state.space);
        state.items.note_space(&space);
        state.commit_steps();
        state.changes += 1;
        state.note_tree(self.tree);
        self.fs.save(state, &space);
        self.fs.carried_out();
        self.fs.note_backlog(state);
        self.fs.changes.notify();
    }

    /// Returns the generation of new inodes.
    pub fn generation(&self) -> u32 {
        self.fs.generation
    }

    /// Returns the allocator.
    pub fn space(&self) -> &'a Space {
        &self.fs.space
    }

    /// Allocates up to `want` promised blocks.
    pub fn take(&mut self, goal: Option<u64>, want: u64) -> Result<Run> {
        let run = self.fs.space.allocate(goal, want);
        let run = run.ok_or_else(crate::space::full)?;
        self.taken.push(run);
        Ok(run)
    }

    /// Allocates exactly `want` promised blocks; `None` if there is no such run.
    pub fn take_whole(&mut self, goal: Option<u64>, want: u64) -> Option<Run> {
        let run = self.fs.space.allocate_whole(goal, want)?;
        self.taken.push(run);
        Some(run)
    }

    /// Returns the blocks that the operation has allocated.
    pub fn taken(&self) -> &[Run] {
        &self.taken
    }

    /// Releases the blocks that the operation has allocated; their promises are restored.
    pub fn return_taken(&mut self) {
        for run in self.taken.drain(..) {
            self.fs.space.return_run(run);
        }
    }

    /// Charges `by` blocks to the tree.
    pub fn use_blocks(&mut self, by: i64) {
        self.used_blocks += by;
    }

    /// Charges `by` inodes to the tree.
    pub fn use_inodes(&mut self, by: i64) {
        self.used_inodes += by;
    }

    /// Returns the state for reading.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Reads the current inode of this tree.
    pub fn read_inode(&self, ino: Ino) -> Result<Inode> {
        let tree = self.tree;
        self.inode(tree, ino)
    }

    /// Changes an inode of this tree.
    pub fn change(&mut self, ino: Ino, change: impl FnOnce(&mut Inode)) -> Result<()> {
        let tree = self.tree;
        self.update(tree, ino, change)
    }

    /// Changes an inode of this tree in memory; the next commit writes its record. Not for what counts
    /// against limits, which the record decides: the owners, the blocks, and the links of a file.
    pub fn change_later(&mut self, ino: Ino, change: impl FnOnce(&mut Inode)) -> Result<()> {
        let name = (self.tree, ino);
        let core = self.core(ino)?;
        let before = core.inode.clone();
        change(&mut core.inode);
        let was_dirty = std::mem::replace(&mut core.dirty, true);
        self.list_dirty(name);
        self.steps.push(Step::Core(name, before, was_dirty));
        Ok(())
    }

    /// Checks that the device has room for more metadata.
    pub fn check_room(&self) -> Result<()> {
        if self.fs.space.has_room() {
            Ok(())
        } else {
            Err(crate::space::full())
        }
    }

    /// Checks that the metadata may grow by a number of blocks.
    pub fn check_room_for(&self, blocks: u64) -> Result<()> {
        if self.fs.space.has_room_for(blocks) {
            Ok(())
        } else {
            Err(crate::space::full())
        }
    }

    /// Checks that the device has room to multiply the records of existing data.
    pub fn check_last_room(&self) -> Result<()> {
        if self.fs.space.has_last_room() {
            Ok(())
        } else {
            Err(crate::space::full())
        }
    }

    /// As [`Op::check_last_room`], for a change that a snapshot may turn into a second record.
    pub fn check_kept_room(&self) -> Result<()> {
        if self.state.tree(self.tree)?.snapshots.is_empty() {
            Ok(())
        } else {
            self.check_last_room()
        }
    }

    /// Allocates the number of a new inode.
    pub fn new_ino(&mut self, directory: bool) -> Result<Ino> {
        let id = self.tree;
        let tree = self.trees.get_mut(&id).ok_or(Kind::NotFound)?;
        let number = tree.record.next_ino;
        if number >= PLACE_MAX >> 1 {
            return Err(Error::new(Kind::NoSpace, "inode numbers are exhausted"));
        }
        tree.record.next_ino += 1;
        tree.touch();
        Ok(number << 1 | u64::from(directory))
    }

    /// Returns the in-memory state of an inode, creating it if needed.
    pub fn core(&mut self, ino: Ino) -> Result<&mut InodeState> {
        let tree = self.tree;
        if !self.cores.contains_key(&(tree, ino)) {
            let inode = self.inode(tree, ino)?;
            self.cores.insert((tree, ino), InodeState::new(inode));
        }
        Ok(self.cores.get_mut(&(tree, ino)).expect("inserted above"))
    }

    /// Drops the promises for blocks of a file, and the interest in writes to them.
    pub fn remove_wanted(&mut self, ino: Ino, blocks: Range<u64>) {
        let name = (self.tree, ino);
        if let Some(core) = self.cores.get_mut(&name) {
            let promised = core.remove_wanted(blocks.clone());
            self.release_reserved(ino, promised);
            self.end_replacing(ino, blocks);
            self.list_dirty(name);
        }
    }

    /// Ends the promises for blocks of a range that were to replace others, except for those whose
    /// pages are dirty.
    pub fn end_replacing(&mut self, ino: Ino, blocks: Range<u64>) {
        let id = self.tree;
        self.state.end_replacing(id, ino, blocks);
    }

    /// Releases promises that were made to a file.
    pub fn release_reserved(&mut self, ino: Ino, blocks: u64) {
        if blocks == 0 {
            return;
        }
        let id = self.tree;
        self.owe((id, ino), -(blocks as i64));
        if let Some(tree) = self.trees.get_mut(&id) {
            tree.promised = tree.promised.saturating_sub(blocks);
        }
        self.fs.space.release_reserved(blocks);
    }
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.state.roll_back();
            for run in self.taken.drain(..) {
                self.fs.space.release_run(run);
            }
        }
    }
}
