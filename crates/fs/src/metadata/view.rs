//! A frozen view of the metadata while others change it.
//!
//! A view reads one commit. `redb` does not reuse the pages of that commit, nor those that later
//! commits replace, until the view ends. **Invariant:** so a view needs space, but no commit fails for
//! the lack of it: the pages that it may keep from reuse do not count as usable, and once they are
//! more than a share of the room that the metadata has, the view has to end, and its reader gets an
//! error. The next commit waits for that.

use crate::error::{Error, Kind, Result};
use crate::format::record::{BLOCK_BYTES, Run};
use crate::format::superblock::Superblock;
use crate::metadata::database::Bitmap;
use crate::metadata::database_file::DatabaseFile;
use crate::metadata::item_map::ItemMap;
use crate::metadata::pace::Pace;
use crate::metadata::shared::FsShared;
use crate::space::reserve_blocks;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Blocks that a view may keep from reuse even if the metadata is smaller, if there is room: 64 MiB.
const KEPT_BLOCKS: u64 = 16_384;

/// The view of a file system, if there is one.
#[derive(Default)]
pub(crate) struct ViewSlot {
    held: Mutex<Option<Held>>,
    ended: Condvar,
}

/// The view that is held.
struct Held {
    pace: Arc<Pace>,
    /// Blocks of the metadata written before it.
    written: u64,
    /// Most blocks that may be written during it.
    most: u64,
}

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

impl ViewSlot {
    fn lock(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().expect("no panic under this lock")
    }

    fn end(&self) {
        *self.lock() = None;
        self.ended.notify_all();
    }

    /// Waits for the end of a view that has to end.
    pub fn wait_for_end(&self) {
        let has_to_end = |held: &mut Option<Held>| held.as_ref().is_some_and(|h| h.pace.is_ended());
        let waited = self.ended.wait_while(self.lock(), has_to_end);
        drop(waited.expect("no panic under this lock"));
    }
}

impl FsShared {
    /// Freezes a view of the current state, which is committed for that.
    ///
    /// # Errors
    /// [`Kind::Busy`]: there is another one. The device failed.
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
        {
            let mut held = self.view.lock();
            if held.is_some() {
                return Err(Error::new(Kind::Busy, "another check is in progress"));
            }
            *held = Some(Held {
                pace: Arc::clone(pace),
                written: self.superblock.written(),
                most: (room / 4).min(metadata.max(KEPT_BLOCKS)).max(reserve / 4),
            });
        }
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
        let held = self.view.lock();
        held.as_ref().map_or(0, |held| self.kept(held))
    }

    fn kept(&self, held: &Held) -> u64 {
        self.superblock.written().saturating_sub(held.written)
    }

    /// Ends the view if it keeps too many blocks from reuse, or if new objects find no room.
    pub fn limit_view(&self) {
        let held = self.view.lock();
        if let Some(held) = held.as_ref()
            && (self.kept(held) > held.most || !self.space.has_room())
        {
            let text = "the file system changes too fast for a check in use, which keeps its old \
                        metadata until it ends; raise --rate, or check it when less is written";
            held.pace.end(Error::new(Kind::Busy, text));
        }
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
