//! A loan: a page's content at one moment, independent of the fate of the page, its file and its
//! reader.

use crate::frames::{PAGE_BYTES, Pool};
use crate::policy::FrameNo;
use std::ops::Deref;
use std::sync::Arc;

/// A hold on a page: its bytes do not change and its frame is not reused until the last loan of it
/// is dropped. For bytes that may have to be sent again.
///
/// A loaned page counts as used and cannot be evicted. Code whose loans end at the discretion of
/// others, such as a peer that may or may not acknowledge, must limit them.
pub struct Loan {
    pool: Arc<Pool>,
    frame: FrameNo,
}

impl Loan {
    /// Creates a loan of a frame that the caller holds.
    pub(crate) fn of(pool: &Arc<Pool>, frame: FrameNo) -> Loan {
        pool.holds(frame).add(1);
        Loan {
            pool: Arc::clone(pool),
            frame,
        }
    }
}

impl Clone for Loan {
    fn clone(&self) -> Loan {
        Loan::of(&self.pool, self.frame)
    }
}

impl Deref for Loan {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: a frame that is held is not changed, and the pool is kept.
        unsafe { std::slice::from_raw_parts(self.pool.at(self.frame).as_ptr(), PAGE_BYTES) }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.pool.release(self.frame, 1);
    }
}
