//! A bounded history of evicted pages: fingerprints instead of keys, with the queue of each page.
//!
//! All queues share one table, so that the lookup for an entering page touches one cache line. A
//! bucket is such a line of 16 entries; an entry has 14 bits of fingerprint, 2 bits of queue, and
//! 16 bits of creation time, in ticks of 1/4096 of its queue's span. Each queue has its own time,
//! counted in pages evicted from it, so that one queue's history does not depend on evictions from
//! another. A page is forgotten when its queue has evicted a span of younger pages, or a little
//! earlier when its bucket is full. About one in a thousand lookups of unknown pages is a false
//! positive.

/// Number of queues that are distinguished.
pub(super) const SOURCES: usize = 3;
const WAYS: usize = 16;
const TICKS_PER_SPAN: u64 = 4096;
/// Largest share of slots in use when the history is full; buckets then rarely overflow.
const FILL_NUM: usize = 4;
const FILL_DEN: usize = 5;

/// Fingerprint (14 bits), source + 1 (2 bits), tick (16 bits); 0 is empty.
type Slot = u32;

pub(super) struct Ghost {
    buckets: Vec<[Slot; WAYS]>,
    clocks: [Clock; SOURCES],
}

#[derive(Clone, Copy)]
struct Clock {
    /// Length of the history in pages.
    span: u64,
    /// Elapsed part of the current tick, in units of 1/span.
    in_tick: u64,
    tick: u16,
}

impl Clock {
    fn advance(&mut self) {
        self.in_tick += TICKS_PER_SPAN;
        if self.in_tick >= self.span {
            self.tick = self.tick.wrapping_add((self.in_tick / self.span) as u16);
            self.in_tick %= self.span;
        }
    }
}

impl Ghost {
    /// Creates histories of the given lengths, in pages per source.
    pub(super) fn new(spans: [usize; SOURCES]) -> Ghost {
        Ghost {
            buckets: vec![[0; WAYS]; buckets_for(spans)],
            clocks: spans.map(|span| Clock {
                span: span.max(1) as u64,
                in_tick: 0,
                tick: 0,
            }),
        }
    }

    /// Records that a page was evicted.
    pub(super) fn remember(&mut self, source: usize, hash: u64) {
        self.clocks[source].advance();
        let clocks = self.clocks;
        let slot = fingerprint(hash) | (source as u32 + 1) << 16 | u32::from(clocks[source].tick);
        // A full bucket drops a page of the same queue, so that no queue displaces another's
        // history. The sort key is one number without branches: this runs for each evicted page.
        let order = |slot: Slot| {
            let age = age(slot, &clocks);
            let expired = u32::from(age >= TICKS_PER_SPAN as u32);
            let same = u32::from(source_bits(slot) == source as u32 + 1);
            expired << 18 | same << 17 | age
        };
        let bucket = self.bucket(hash);
        let loser = bucket.iter_mut().max_by_key(|slot| order(**slot));
        *loser.expect("a bucket has slots") = slot;
    }

    /// Looks up the queue that the page was evicted from, if within its span, and forgets the page.
    pub(super) fn recall(&mut self, hash: u64) -> Option<usize> {
        let clocks = self.clocks;
        let wanted = fingerprint(hash);
        let slot = self.bucket(hash).iter_mut().find(|slot| {
            // An empty slot is too old for any fingerprint.
            **slot & FINGERPRINT == wanted && age(**slot, &clocks) < TICKS_PER_SPAN as u32
        })?;
        Some(source_bits(std::mem::take(slot)) as usize - 1)
    }

    /// Changes the spans. Buckets are halved or doubled only when the sum has changed that much,
    /// and their contents are kept.
    pub(super) fn resize(&mut self, spans: [usize; SOURCES]) {
        for (clock, span) in self.clocks.iter_mut().zip(spans) {
            clock.span = span.max(1) as u64;
            clock.in_tick %= clock.span;
        }
        let wanted = buckets_for(spans);
        while self.buckets.len() < wanted {
            // The bucket number is the high bits of the hash; the next bit is in no slot, so both
            // halves get all entries.
            self.buckets = self.buckets.iter().flat_map(|b| [*b, *b]).collect();
        }
        while self.buckets.len() > wanted * 2 {
            let clocks = self.clocks;
            self.buckets = self.buckets.chunks(2).map(|b| merge(b, &clocks)).collect();
        }
        self.buckets.shrink_to_fit();
    }

    fn bucket(&mut self, hash: u64) -> &mut [Slot; WAYS] {
        let bits = self.buckets.len().trailing_zeros();
        let index = hash.checked_shr(64 - bits).unwrap_or(0);
        &mut self.buckets[index as usize]
    }
}

const FINGERPRINT: u32 = 0xfffc_0000;

fn buckets_for(spans: [usize; SOURCES]) -> usize {
    let pages: usize = spans.iter().sum();
    (pages * FILL_DEN / FILL_NUM)
        .div_ceil(WAYS)
        .next_power_of_two()
}

fn fingerprint(hash: u64) -> Slot {
    (hash as u32) << 18
}

/// Extracts the source plus 1; 0 for an empty slot.
fn source_bits(slot: Slot) -> u32 {
    slot >> 16 & 3
}

/// Computes the age in ticks of the queue's clock; an empty slot is older than any.
fn age(slot: Slot, clocks: &[Clock; SOURCES]) -> u32 {
    let ticks = [0, clocks[0].tick, clocks[1].tick, clocks[2].tick];
    let source = source_bits(slot);
    let empty = u32::from(source == 0) << 16;
    empty | u32::from(ticks[source as usize].wrapping_sub(slot as u16))
}

/// Merges two buckets, keeping the youngest entries.
fn merge(pair: &[[Slot; WAYS]], clocks: &[Clock; SOURCES]) -> [Slot; WAYS] {
    let mut all: Vec<Slot> = pair.iter().flatten().copied().collect();
    all.sort_unstable_by_key(|slot| age(*slot, clocks));
    let mut bucket = [0; WAYS];
    for (to, from) in bucket.iter_mut().zip(all) {
        *to = from;
    }
    bucket
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PageKey;
    use std::ops::Range;

    fn hash(page: u64) -> u64 {
        PageKey { vnode: 7, page }.hash()
    }

    fn remembered(ghost: &mut Ghost, source: usize, pages: Range<u64>) -> usize {
        pages
            .filter(|page| ghost.recall(hash(*page)) == Some(source))
            .count()
    }

    fn remember(ghost: &mut Ghost, source: usize, pages: Range<u64>) {
        pages.for_each(|page| ghost.remember(source, hash(page)));
    }

    #[test]
    fn remembers_its_span_and_nothing_older() {
        let mut ghost = Ghost::new([10_000, 0, 0]);
        remember(&mut ghost, 0, 0..100_000);
        assert!(remembered(&mut ghost, 0, 90_000..100_000) > 9_500);
        assert!(remembered(&mut ghost, 0, 0..89_000) < 200);
    }

    #[test]
    fn what_leaves_one_queue_does_not_make_another_forgotten() {
        let mut ghost = Ghost::new([10_000, 5_000, 10_000]);
        remember(&mut ghost, 0, 0..10_000);
        remember(&mut ghost, 1, 20_000..25_000);
        remember(&mut ghost, 2, 100_000..400_000);
        assert!(remembered(&mut ghost, 0, 0..10_000) > 9_000);
        assert!(remembered(&mut ghost, 1, 20_000..25_000) > 4_500);
        assert!(remembered(&mut ghost, 2, 390_000..400_000) > 9_000);
        assert!(remembered(&mut ghost, 2, 100_000..380_000) < 600);
    }

    #[test]
    fn a_page_is_recalled_once() {
        let mut ghost = Ghost::new([100; 3]);
        remember(&mut ghost, 1, 0..50);
        assert_eq!(ghost.recall(hash(49)), Some(1));
        assert_eq!(ghost.recall(hash(49)), None);
    }

    #[test]
    fn growing_and_shrinking_keep_what_fits() {
        let mut ghost = Ghost::new([4_000, 0, 0]);
        remember(&mut ghost, 0, 0..4_000);
        ghost.resize([16_000, 0, 0]);
        assert!(remembered(&mut ghost, 0, 0..1_000) > 950);
        ghost.resize([1_000, 0, 0]);
        assert!(ghost.buckets.len() * WAYS <= 4 * 1_250);
        remember(&mut ghost, 0, 10_000..10_900);
        assert!(remembered(&mut ghost, 0, 10_000..10_900) > 850);
        assert!(remembered(&mut ghost, 0, 1_000..2_500) < 200);
    }

    #[test]
    fn a_span_of_nothing_remembers_next_to_nothing() {
        let mut ghost = Ghost::new([0; 3]);
        remember(&mut ghost, 2, 0..100);
        assert!(remembered(&mut ghost, 2, 0..100) <= 1);
        ghost.resize([0; 3]);
    }
}
