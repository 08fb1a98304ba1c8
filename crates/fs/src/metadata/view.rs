//! A frozen view of the metadata while others change it.
//!
//! A view reads one commit. `redb` does not reuse the pages of that commit, nor those that later
//! commits replace, until the view ends. **Invariant:** so a view needs space, but no commit fails for
//! the lack of it: the pages that it may keep from reuse do not count as usable, and once they are
//! more than a share of the room that the metadata has, the view has to end, and its reader gets an
//! error. The next commit waits for that.

use crate::error::Result;
use crate::format::record::{BLOCK_BYTES, Run};
use crate::format::superblock::Superblock;
use crate::metadata::database::Bitmap;
use crate::metadata::database_file::DatabaseFile;
use crate::metadata::item_map::ItemMap;
use crate::metadata::pace::Pace;
use crate::metadata::shared::FsShared;
use crate::metadata::view_slot::ViewSlot;
use crate::space::reserve_blocks;
use std::sync::Arc;

/// Blocks that a view may keep from reuse even if the metadata is smaller, if there is room: 64 MiB.
const KEPT_BLOCKS: u64 = 16_384;

/// View of one commit. See the module.
pub(crate) struct View<'f> {
    fs: &'f FsShared,
    /// Items; `None` once they are taken.
    pub items: Option<ItemMap>,
    /// `None` once the view ends.
    bitmap: Option<Bitmap>,
    pub superblock: Superblock,
    /// Bytes of all items, keys included.
    pub item_bytes: u64,
    pub file: Arc<DatabaseFile>,
    pub file_bytes: u64,
    /// First page of the metadata.
    pub header: Vec<u8>,
    pub pace: Arc<Pace>,
}

impl View<'_> {
    /// Collects all runs of blocks in use; see [`Bitmap::used`].
    pub fn used(&self, device_blocks: u64) -> Result<Vec<Run>> {
        let bitmap = self.bitmap.as_ref().ok_or_else(crate::error::closed)?;
        bitmap.used(device_blocks)
    }
}

impl FsShared {
    /// Freezes a view of the current state, which is committed for that.
    ///
    /// # Errors
    /// [`crate::Kind::Busy`]: there is another one. The device failed.
    pub fn view(&self, pace: &Arc<Pace>) -> Result<View<'_>> {
        let is_writable = self.check_writable().is_ok();
        if is_writable && self.read().failed.is_none() {
            self.checkpoint()?;
        }
        let db = self.db.lock().expect("no panic under this lock");
        let db = db.as_ref().ok_or_else(crate::error::closed)?;
        let superblock = self.superblock.lock().clone();
        let metadata = superblock.segments.iter();
        let metadata: u64 = metadata.map(|s| u64::from(s.blocks)).sum();
        let reserve = reserve_blocks(superblock.device_blocks);
        let room = self.space.metadata_left(u64::MAX).saturating_sub(reserve);
        let most = (room / 4).min(metadata.max(KEPT_BLOCKS)).max(reserve / 4);
        self.view.hold(pace, self.superblock.written(), most)?;
        // From here on, an error ends the view.
        let end = EndView(&self.view);
        let file = db.file().ok_or_else(crate::error::closed)?;
        let mut header = vec![0; BLOCK_BYTES as usize];
        file.read_at(0, &mut header)?;
        let (base, state) = (db.base()?, self.read());
        // Without commits, the replayed journal is in memory only.
        let unsaved = (!is_writable).then_some(&state.items);
        let view = View {
            fs: self,
            items: Some(ItemMap::view(base, unsaved, Arc::clone(pace))),
            bitmap: Some(db.bitmap()?),
            superblock,
            // If it cannot be read, the check of the pages reports why.
            item_bytes: db.item_bytes().unwrap_or(0),
            file: Arc::clone(file),
            file_bytes: file.bytes(),
            header,
            pace: Arc::clone(pace),
        };
        std::mem::forget(end);
        Ok(view)
    }

    /// Returns the most blocks of the metadata that the view keeps from reuse.
    pub fn kept_for_view(&self) -> u64 {
        self.view.kept(self.superblock.written())
    }

    /// Ends the view if it keeps too many blocks from reuse, or if new objects find no room.
    pub fn limit_view(&self) {
        self.view
            .limit(self.superblock.written(), self.space.has_room());
    }
}

struct EndView<'f>(&'f ViewSlot);

impl Drop for EndView<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        // Before others learn of it, `redb` can use the pages again.
        self.items = None;
        self.bitmap = None;
        self.fs.view.end();
        let db = self.fs.db.lock().expect("no panic under this lock");
        if let Some(db) = db.as_ref() {
            // The next commit computes it again, and reports an error.
            let _ = self.fs.note_slack(db);
        }
    }
}
