//! A bounded memory of pages that left: fingerprints, not keys.
//!
//! A bucket is one cache line of 16 entries; an entry is 16 bits of fingerprint and 16 bits of the time it
//! was made, in ticks of 1/4096 of the memory's span. Time is counted in remembered pages and belongs to
//! this memory alone, so that what fills one memory never shortens another. A page is forgotten when as
//! many younger ones were remembered as the span says, or a little earlier when its bucket is full. About 16 in 65,536
//! questions about strangers are answered wrongly with yes.

const WAYS: usize = 16;
const TICKS_PER_SPAN: u64 = 4096;
/// Share of slots in use when the memory is full, at most; buckets then overflow seldom.
const FILL_NUM: usize = 4;
const FILL_DEN: usize = 5;

/// `fingerprint << 16 | tick`; a fingerprint is never 0, so 0 is empty.
type Slot = u32;

pub(super) struct Ghost {
    buckets: Vec<[Slot; WAYS]>,
    /// Pages remembered at a time.
    span: u64,
    /// Part of the current tick that has passed, in 1/span.
    in_tick: u64,
    tick: u16,
}

impl Ghost {
    pub(super) fn new(span: usize) -> Ghost {
        Ghost {
            buckets: vec![[0; WAYS]; buckets_for(span)],
            span: span.max(1) as u64,
            in_tick: 0,
            tick: 0,
        }
    }

    /// Remembers a page.
    pub(super) fn remember(&mut self, hash: u64) {
        self.advance();
        let slot = fingerprint(hash) | u32::from(self.tick);
        let tick = self.tick;
        let bucket = self.bucket(hash);
        let oldest = bucket
            .iter_mut()
            .max_by_key(|slot| match **slot {
                0 => u32::MAX,
                slot => u32::from(age(slot, tick)),
            })
            .expect("a bucket has slots");
        *oldest = slot;
    }

    /// Whether the page left within the span; it is forgotten by being asked for.
    pub(super) fn recall(&mut self, hash: u64) -> bool {
        let tick = self.tick;
        let wanted = fingerprint(hash);
        let found = self.bucket(hash).iter_mut().find(|slot| {
            **slot & 0xffff_0000 == wanted && u64::from(age(**slot, tick)) < TICKS_PER_SPAN
        });
        match found {
            Some(slot) => {
                *slot = 0;
                true
            }
            None => false,
        }
    }

    /// Changes the span. Buckets are halved or doubled only when the span has changed that much, and
    /// what they remember stays.
    pub(super) fn resize(&mut self, span: usize) {
        self.span = span.max(1) as u64;
        let wanted = buckets_for(span);
        while self.buckets.len() < wanted {
            // A bucket's number is the high bits of the hash; the bit that is missing is in no slot, so
            // both halves get all.
            self.buckets = self.buckets.iter().flat_map(|b| [*b, *b]).collect();
        }
        while self.buckets.len() > wanted * 2 {
            let tick = self.tick;
            self.buckets = self.buckets.chunks(2).map(|b| merge(b, tick)).collect();
        }
        self.buckets.shrink_to_fit();
    }

    fn advance(&mut self) {
        self.in_tick += TICKS_PER_SPAN;
        if self.in_tick >= self.span {
            self.tick = self.tick.wrapping_add((self.in_tick / self.span) as u16);
            self.in_tick %= self.span;
        }
    }

    fn bucket(&mut self, hash: u64) -> &mut [Slot; WAYS] {
        let bits = self.buckets.len().trailing_zeros();
        let index = hash.checked_shr(64 - bits).unwrap_or(0);
        &mut self.buckets[index as usize]
    }
}

fn buckets_for(span: usize) -> usize {
    (span * FILL_DEN / FILL_NUM)
        .div_ceil(WAYS)
        .next_power_of_two()
}

fn fingerprint(hash: u64) -> Slot {
    ((hash as u32) << 16).max(1 << 16)
}

fn age(slot: Slot, tick: u16) -> u16 {
    tick.wrapping_sub(slot as u16)
}

/// The youngest of two buckets.
fn merge(pair: &[[Slot; WAYS]], tick: u16) -> [Slot; WAYS] {
    let mut all: Vec<Slot> = pair.iter().flatten().copied().filter(|s| *s != 0).collect();
    all.sort_unstable_by_key(|slot| age(*slot, tick));
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

    fn hash(page: u64) -> u64 {
        PageKey { vnode: 7, page }.hash()
    }

    fn remembered(ghost: &mut Ghost, pages: std::ops::Range<u64>) -> usize {
        pages.filter(|page| ghost.recall(hash(*page))).count()
    }

    fn filled(span: usize, pages: u64) -> Ghost {
        let mut ghost = Ghost::new(span);
        (0..pages).for_each(|page| ghost.remember(hash(page)));
        ghost
    }

    #[test]
    fn remembers_its_span_and_nothing_older() {
        let mut ghost = filled(10_000, 100_000);
        assert!(remembered(&mut ghost, 90_000..100_000) > 9_500);
        assert!(remembered(&mut ghost, 0..89_000) < 89_000 / 1000);
    }

    #[test]
    fn a_page_is_recalled_once() {
        let mut ghost = filled(100, 50);
        assert!(ghost.recall(hash(49)));
        assert!(!ghost.recall(hash(49)));
    }

    #[test]
    fn growing_and_shrinking_keep_what_fits() {
        let mut ghost = filled(4_000, 4_000);
        ghost.resize(16_000);
        assert!(remembered(&mut ghost, 0..1_000) > 950);
        ghost.resize(1_000);
        assert!(ghost.buckets.len() * WAYS <= 4 * 1_250);
        (10_000..10_900).for_each(|page| ghost.remember(hash(page)));
        assert!(remembered(&mut ghost, 10_000..10_900) > 850);
        assert!(remembered(&mut ghost, 1_000..2_500) < 200);
    }

    #[test]
    fn a_span_of_nothing_remembers_next_to_nothing() {
        let mut ghost = filled(0, 100);
        assert!(remembered(&mut ghost, 0..100) <= 1);
        ghost.resize(0);
    }
}
