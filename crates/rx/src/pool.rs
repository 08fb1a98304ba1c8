//! Receive buffers: the kernel fills them with runs of datagrams, calls refer to parts of them.
//!
//! **Invariant:** at most a set number of buffers is referred to by data. A run that is long is lent
//! out as it is; a short one, or any when too many are lent, is copied, so that a stranger's small
//! packet never keeps a large buffer for long.

use crate::bytes::Bytes;
use crate::sys::Received;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of a buffer: as many as the kernel joins to one (`UDP_GRO`).
pub(crate) const BUFFER_BYTES: usize = 65_536;

/// Buffers that are offered to the kernel at once.
pub(crate) const BUFFERS: usize = 16;

/// Shortest run that is lent out rather than copied. Copying less costs about what finding another
/// buffer does.
const LEND_BYTES: usize = 16_384;

/// Lent buffers that are looked at for one that came back.
const LOOKS: usize = 8;

type Buffer = Arc<Box<[u8]>>;

/// The buffers of one socket.
pub(crate) struct Pool {
    /// Offered to the kernel; nothing refers to them.
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

    /// The buffers that the kernel may fill.
    pub(crate) fn offered(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.offered
            .iter_mut()
            .filter_map(|buffer| Arc::get_mut(buffer).map(|bytes| &mut **bytes))
    }

    /// Takes the datagrams out of the buffer at `index`, which the kernel filled.
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

    /// A buffer to offer in the place of one that is lent out: one that came back, or a new one.
    fn another(&mut self) -> Option<Buffer> {
        let room = self.lent.len() < self.lent_max;
        self.back().or_else(|| room.then(fresh))
    }

    /// A lent buffer that came back; those in front of it, which did not, are looked at later.
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
