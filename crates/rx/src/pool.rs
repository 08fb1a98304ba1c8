//! Receive buffers: the kernel fills them with runs of datagrams, calls refer to parts of them.
//!
//! **Invariant:** the number of buffers referenced by data is bounded. A long run is passed on in
//! its buffer; a short one, or any run while too many buffers are referenced, is copied, so that a
//! small packet never keeps a large buffer allocated for long.

use crate::bytes::Bytes;
use crate::sys::Received;
use std::collections::VecDeque;
use std::sync::Arc;

/// Length of a buffer in bytes: the most that the kernel coalesces (`UDP_GRO`).
pub(crate) const BUFFER_BYTES: usize = 65_536;

/// Number of buffers offered to the kernel at once.
pub(crate) const BUFFERS: usize = 16;

/// Shortest run in bytes that is passed on and not copied. Copying less costs about as much as
/// finding another buffer.
const LEND_BYTES: usize = 16_384;

/// Number of referenced buffers examined for one that was released.
const LOOKS: usize = 8;

type Buffer = Arc<Box<[u8]>>;

/// Receive buffers of one socket.
pub(crate) struct Pool {
    /// Buffers offered to the kernel, without references.
    offered: Vec<Buffer>,
    lent: VecDeque<Buffer>,
    lent_max: usize,
}

impl Pool {
    pub(crate) fn new(lent_max: usize) -> Pool {
        Pool {
            offered: (0..BUFFERS).map(|_| fresh()).collect(),
            lent: VecDeque::new(),
            lent_max,
        }
    }

    /// Iterates over the buffers that the kernel may fill.
    pub(crate) fn offered(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.offered
            .iter_mut()
            .filter_map(|buffer| Arc::get_mut(buffer).map(|bytes| &mut **bytes))
    }

    /// Passes on the datagrams of the buffer at `index`, which the kernel filled.
    pub(crate) fn take(&mut self, index: usize, received: &Received, mut give: impl FnMut(Bytes)) {
        let segments = (0..received.bytes)
            .step_by(received.segment.max(1))
            .map(|start| start..received.bytes.min(start + received.segment));
        let next = (received.bytes >= LEND_BYTES)
            .then(|| self.another())
            .flatten();
        let buffer = &mut self.offered[index];
        match next {
            None => segments.for_each(|range| give(Bytes::from(&buffer[range]))),
            Some(next) => {
                segments.for_each(|range| give(Bytes::from_buffer(buffer, range)));
                let lent = std::mem::replace(buffer, next);
                self.lent.push_back(lent);
            }
        }
    }

    /// Returns a replacement for a buffer that is passed on: a released or a new one.
    fn another(&mut self) -> Option<Buffer> {
        let room = self.lent.len() < self.lent_max;
        self.back().or_else(|| room.then(fresh))
    }

    /// Takes a released buffer; those in front of it that are still referenced move to the back.
    fn back(&mut self) -> Option<Buffer> {
        for _ in 0..LOOKS.min(self.lent.len()) {
            let buffer = self.lent.pop_front()?;
            if Arc::strong_count(&buffer) == 1 {
                return Some(buffer);
            }
            self.lent.push_back(buffer);
        }
        None
    }
}

fn fresh() -> Buffer {
    Arc::new(vec![0; BUFFER_BYTES].into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(bytes: usize) -> Received {
        Received {
            peer: ([127, 0, 0, 1], 7000).into(),
            local: None,
            bytes,
            segment: 1000,
            dropped: None,
        }
    }

    fn take(pool: &mut Pool, bytes: usize) -> Vec<Bytes> {
        let mut all = Vec::new();
        pool.take(0, &run(bytes), |datagram| all.push(datagram));
        all
    }

    #[test]
    fn long_runs_are_lent_and_no_more_than_the_limit() {
        let mut pool = Pool::new(3);
        let mut held = Vec::new();
        for round in 0..10_u8 {
            pool.offered().for_each(|buffer| buffer.fill(round));
            let datagrams = take(&mut pool, 20_500);
            let lengths: Vec<usize> = datagrams.iter().map(Bytes::len).collect();
            assert_eq!((lengths.len(), lengths[20]), (21, 500));
            held.push((round, datagrams));
            assert!(pool.lent.len() <= 3);
        }
        for (round, datagrams) in &held {
            let same = |d: &Bytes| d.as_ref().iter().all(|byte| byte == round);
            assert!(datagrams.iter().all(same));
        }
        held.clear();
        let lent: Vec<_> = pool.lent.iter().map(|b| b.as_ptr()).collect();
        let datagrams = take(&mut pool, 20_500);
        assert!(lent.contains(&pool.offered[0].as_ptr()));
        assert!(datagrams.len() == 21 && pool.lent.len() == 3);
    }

    #[test]
    fn short_runs_are_copied() {
        let mut pool = Pool::new(3);
        let before = pool.offered[0].as_ptr();
        let datagrams = take(&mut pool, 1500);
        assert_eq!((datagrams.len(), datagrams[1].len()), (2, 500));
        assert!(pool.lent.is_empty() && pool.offered[0].as_ptr() == before);
        assert_eq!(pool.offered().count(), BUFFERS);
    }
}
