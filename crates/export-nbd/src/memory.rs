//! Payload buffers of a worker, shared among its connections so that none can keep the others from
//! going on.
//!
//! ```text
//!   ┌──────── shares: 32 MiB ────────┬──────── one large request: 32 MiB ────────┐
//! ```
//!
//! A connection may hold as much of the shares as it leaves free, so with `n` greedy connections
//! each gets `1/(n + 1)` and the next one still finds as much ("dynamic thresholds", Choudhury and
//! Hahne 1998). What does not fit its share waits, or takes the place for one large request.
//!
//! **Invariant:** the grants add up to no more than the pool, so a granted buffer is always there.

use block::{Buf, BufPool, Bufs, DeviceInfo};

/// Bytes of a payload buffer: requests of 64 KiB and 128 KiB fit one.
const BUF_BYTES: usize = 128 * 1024;
/// Buffers for the shares of connections.
const SHARE_BUFS: usize = 256;
/// Buffers for one large request: one of the longest that every server has to take.
pub(crate) const LARGE_BUFS: usize = 256;

/// Memory of one worker, in bytes: its payload buffers, mapped when it starts and taken from the
/// system as they are used. A connection adds at most 96 KiB for messages on their way.
pub const WORKER_MEMORY_BYTES: usize = BUF_BYTES * (SHARE_BUFS + LARGE_BUFS);

const _: () =
    assert!(BUF_BYTES * LARGE_BUFS >= nbd_proto::constants::DEFAULT_REQUEST_BYTES_MAX as usize);

/// Bytes of each buffer of a request to this device: what fits a buffer and one transfer, so that a
/// long request can be split between buffers.
pub(crate) fn piece_bytes(info: &DeviceInfo) -> usize {
    // Both are multiples of the logical block size, which no disk has larger than a buffer.
    BUF_BYTES.min(info.max_transfer as usize)
}

/// The right to some buffers, until it is given back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a grant that is lost is lost to all"]
pub(crate) enum Grant {
    Nothing,
    Share(usize),
    Large,
}

/// The buffers and who may have how many.
pub(crate) struct Memory {
    pool: BufPool,
    free: usize,
    large_free: bool,
    /// Something came back since the last look.
    released: bool,
}

impl Memory {
    pub(crate) fn new() -> Memory {
        Memory {
            pool: BufPool::new(BUF_BYTES, SHARE_BUFS + LARGE_BUFS),
            free: SHARE_BUFS,
            large_free: true,
            released: false,
        }
    }

    pub(crate) fn pool(&self) -> &BufPool {
        &self.pool
    }

    /// Buffers of `piece` bytes for `len` bytes, for a connection that holds `held` buffers of its
    /// share; all, or nothing for now.
    pub(crate) fn take(
        &mut self,
        held: &mut usize,
        len: usize,
        piece: usize,
    ) -> Option<(Bufs, Grant)> {
        let count = len.div_ceil(piece);
        let grant = if count == 0 {
            Grant::Nothing
        } else if *held + 2 * count <= self.free {
            // Afterwards it holds no more than is left.
            Grant::Share(count)
        } else if *held == 0 && self.large_free && count <= LARGE_BUFS {
            Grant::Large
        } else {
            return None;
        };
        let bufs = if count == 1 {
            self.pool.take(len)?.into()
        } else {
            let mut bufs: Vec<Buf> = Vec::with_capacity(count);
            for at in (0..len).step_by(piece) {
                bufs.push(self.pool.take(piece.min(len - at))?);
            }
            bufs.into()
        };
        match grant {
            Grant::Nothing => {}
            Grant::Share(count) => {
                *held += count;
                self.free -= count;
            }
            Grant::Large => self.large_free = false,
        }
        Some((bufs, grant))
    }

    /// The buffers of `grant` are back in the pool; `held` is the count of the connection, if it is
    /// still there.
    pub(crate) fn give_back(&mut self, held: Option<&mut usize>, grant: Grant) {
        match grant {
            Grant::Nothing => return,
            Grant::Share(count) => {
                self.free += count;
                if let Some(held) = held {
                    *held -= count;
                }
            }
            Grant::Large => self.large_free = true,
        }
        self.released = true;
    }

    /// Whether something came back since this was asked last.
    pub(crate) fn was_released(&mut self) -> bool {
        std::mem::take(&mut self.released)
    }

    /// Whether the place for a large request is taken.
    pub(crate) fn large_taken(&self) -> bool {
        !self.large_free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn greedy_connections_leave_room_for_one_more() {
        let mut memory = Memory::new();
        let mut grants = Vec::new();
        for greedy in 1..=20 {
            let mut held = 0;
            while let Some((bufs, grant)) = memory.take(&mut held, 4096, BUF_BYTES) {
                if grant == Grant::Large {
                    drop(bufs);
                    memory.give_back(Some(&mut held), grant);
                    break;
                }
                grants.push((bufs, grant));
            }
            assert!(
                held > 0 && memory.free >= held,
                "connection {greedy}: {held}"
            );
        }
    }

    #[test]
    fn the_largest_request_fits_once_and_comes_back() {
        let mut memory = Memory::new();
        let (mut a, mut b) = (0, 0);
        let (bufs, grant) = memory.take(&mut a, 32 * MIB, BUF_BYTES).unwrap();
        assert_eq!((bufs.total_len(), &grant), (32 * MIB, &Grant::Large));
        assert!(memory.take(&mut b, 32 * MIB, BUF_BYTES).is_none());
        let (small, share) = memory.take(&mut b, 64 << 10, BUF_BYTES).unwrap();
        assert_eq!(share, Grant::Share(1));
        drop((bufs, small));
        memory.give_back(None, grant);
        memory.give_back(Some(&mut b), share);
        assert!(memory.was_released() && !memory.was_released() && b == 0);
        assert_eq!(memory.free, SHARE_BUFS);
        let again = memory.take(&mut b, 32 * MIB, BUF_BYTES);
        assert!(matches!(again, Some((_, Grant::Large))));
    }

    #[test]
    fn nothing_takes_nothing() {
        let mut memory = Memory::new();
        let (bufs, grant) = memory.take(&mut 0, 0, BUF_BYTES).unwrap();
        assert_eq!((bufs.total_len(), grant), (0, Grant::Nothing));
    }
}
