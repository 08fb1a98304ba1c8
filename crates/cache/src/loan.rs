//! A loan: a page as it was when it was lent, whatever becomes of the page, its file and its reader.

use crate::frames::{PAGE_BYTES, Pool};
use crate::policy::FrameNo;
use std::ops::Deref;
use std::sync::Arc;

/// A page that was lent: its bytes do not change and its frame is not used again before the last
/// loan of it is given back, which is when it is dropped. For bytes that may have to be sent again.
///
/// What is lent counts as used, and cannot be made to leave. Whoever lends to what others decide the
/// end of, a peer that acknowledges or not, sets a limit.
pub struct Loan {
    pool: Arc<Pool>,
    frame: FrameNo,
}

impl Loan {
    /// Of a frame that the caller holds.
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
