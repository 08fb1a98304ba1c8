//! The place of the view that a check of the file system in use holds; see `metadata/view.rs`.

use crate::error::{Error, Kind, Result};
use crate::metadata::pace::Pace;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// The view of a file system, if there is one.
#[derive(Default)]
pub(crate) struct ViewSlot {
    held: Mutex<Option<Held>>,
    ended: Condvar,
}

struct Held {
    pace: Arc<Pace>,
    /// Blocks of the metadata written before it.
    written: u64,
    /// Most blocks that may be written during it.
    most: u64,
}

impl ViewSlot {
    fn lock(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().expect("no panic under this lock")
    }

    /// Begins a view, after `written` blocks of the metadata were written, during which `most` may be.
    ///
    /// # Errors
    /// [`Kind::Busy`]: there is one.
    pub fn hold(&self, pace: &Arc<Pace>, written: u64, most: u64) -> Result<()> {
        let mut held = self.lock();
        if held.is_some() {
            return Err(Error::new(Kind::Busy, "another check is in progress"));
        }
        *held = Some(Held {
            pace: Arc::clone(pace),
            written,
            most,
        });
        Ok(())
    }

    /// Ends the view.
    pub fn end(&self) {
        *self.lock() = None;
        self.ended.notify_all();
    }

    /// Waits for the end of a view that has to end.
    pub fn wait_for_end(&self) {
        let has_to_end = |held: &mut Option<Held>| {
            let held = held.as_ref();
            held.is_some_and(|held| held.pace.is_ended())
        };
        let waited = self.ended.wait_while(self.lock(), has_to_end);
        drop(waited.expect("no panic under this lock"));
    }

    /// Returns the most blocks that the view keeps from reuse, once `written` were written.
    pub fn kept(&self, written: u64) -> u64 {
        let held = self.lock();
        held.as_ref()
            .map_or(0, |held| written.saturating_sub(held.written))
    }

    /// Makes the reader of the view end it if it keeps too many blocks from reuse, or if there is no
    /// room for new objects.
    pub fn limit(&self, written: u64, has_room: bool) {
        if let Some(held) = self.lock().as_ref()
            && (written.saturating_sub(held.written) > held.most || !has_room)
        {
            let text = "the file system changes too fast for a check in use, which keeps its old \
                        metadata until it ends; raise --rate, or check it when less is written";
            held.pace.end(Error::new(Kind::Busy, text));
        }
    }
}
