//! Any order of calls keeps each frame in exactly one queue, and names no frame that is busy, or
//! twice.

use super::*;
use proptest::prelude::*;

const FRAMES: usize = 48;
const SEQ_LIMITS: SeqLimits = SeqLimits {
    system: 10,
    file: 5,
};

/// A policy whose lists can be checked.
trait Walked: Policy {
    fn verify(&self);
}

impl Walked for Lru {
    fn verify(&self) {
        self.lists.verify();
    }
}

impl Walked for Clock {
    fn verify(&self) {
        self.lists.verify();
    }
}

impl Walked for Ufc {
    fn verify(&self) {
        self.lists.verify();
    }
}

impl Walked for Stealback {
    fn verify(&self) {
        self.streams.verify();
        assert!(self.stream_pages() <= self.resident());
    }
}

fn all() -> Vec<Box<dyn Walked>> {
    let limit = FRAMES as u32;
    let stealback = |inner: Box<dyn Policy>, how| {
        Box::new(Stealback::new(inner, limit, FRAMES, SEQ_LIMITS, how))
    };
    vec![
        Box::new(Lru::new(limit)),
        Box::new(Clock::new(limit)),
        Box::new(Ufc::new(limit, FRAMES)),
        stealback(Box::new(Lru::new(limit)), Stealing::AsDocumented),
        stealback(Box::new(Ufc::new(limit, FRAMES)), Stealing::AsDocumented),
        stealback(Box::new(Ufc::new(limit, FRAMES)), Stealing::BehindCursor),
    ]
}

#[derive(Debug, Clone, Copy)]
enum Call {
    /// Inserts a page into the frame, if it is free.
    Insert(usize, u64, u64, Entry),
    Remove(usize),
    Move(usize, usize),
    Victims(usize),
    Kept(usize),
    Claim(usize),
    Hit(usize),
    Resize(usize),
    /// Sets the state that hits leave behind.
    Touch(usize, Touched),
}

fn call() -> impl Strategy<Value = Call> {
    use Call::*;
    let frame = 0..FRAMES;
    let entry = prop_oneof![
        Just(Entry::Read),
        Just(Entry::Stream),
        Just(Entry::Prefetched),
        Just(Entry::Written),
        Just(Entry::WrittenStream)
    ];
    let touched =
        (0u8..4, any::<[bool; 3]>()).prop_map(|(frequency, [dirty, busy, ahead])| Touched {
            frequency,
            dirty,
            busy,
            ahead,
        });
    prop_oneof![
        8 => (frame.clone(), 0u64..4, 0u64..100, entry).prop_map(|(f, v, p, e)| Insert(f, v, p, e)),
        3 => frame.clone().prop_map(Remove),
        2 => (frame.clone(), frame.clone()).prop_map(|(a, b)| Move(a, b)),
        2 => (0usize..10).prop_map(Victims),
        2 => frame.clone().prop_map(Kept),
        1 => frame.clone().prop_map(Claim),
        2 => frame.clone().prop_map(Hit),
        1 => (0usize..FRAMES * 3).prop_map(Resize),
        4 => (frame, touched).prop_map(|(f, t)| Touch(f, t)),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    Free,
    Resident,
    Named,
}

struct Model {
    frames: Vec<Frame>,
    touched: Vec<Touched>,
}

impl Model {
    fn count(&self, state: Frame) -> usize {
        self.frames.iter().filter(|f| **f == state).count()
    }

    fn apply(&mut self, policy: &mut dyn Walked, call: Call) {
        match call {
            Call::Insert(f, vnode, page, entry) if self.frames[f] == Frame::Free => {
                policy.inserted(FrameNo(f as u32), PageKey { vnode, page }, entry);
                self.frames[f] = Frame::Resident;
            }
            Call::Remove(f) if self.frames[f] != Frame::Free => {
                policy.removed(FrameNo(f as u32));
                self.frames[f] = Frame::Free;
                self.touched[f] = Touched::default();
            }
            Call::Move(from, to)
                if self.frames[from] != Frame::Free && self.frames[to] == Frame::Free =>
            {
                policy.moved(FrameNo(from as u32), FrameNo(to as u32));
                self.frames.swap(from, to);
                self.touched.swap(from, to);
            }
            Call::Kept(f) if self.frames[f] == Frame::Named => {
                policy.kept(FrameNo(f as u32));
                self.frames[f] = Frame::Resident;
            }
            Call::Claim(f) if self.frames[f] == Frame::Resident => {
                policy.claim(FrameNo(f as u32));
                self.frames[f] = Frame::Named;
            }
            Call::Hit(f) if self.frames[f] != Frame::Free => policy.hit(FrameNo(f as u32)),
            Call::Touch(f, touched) => self.touched[f] = touched,
            Call::Resize(frames) => policy.resize(frames),
            Call::Victims(want) => self.victims(policy, want),
            _ => {}
        }
        policy.verify();
        assert_eq!(policy.resident(), FRAMES - self.count(Frame::Free));
    }

    fn victims(&mut self, policy: &mut dyn Walked, want: usize) {
        let mut out = vec![FrameNo(u32::MAX)];
        let (frames, touched) = (&self.frames, &mut self.touched);
        let mut ask = |f: FrameNo| {
            let f = f.0 as usize;
            assert_eq!(frames[f], Frame::Resident, "asked about frame {f}");
            let state = touched[f];
            touched[f].frequency = 0;
            state
        };
        policy.victims(want, &mut ask, &mut out);
        assert_eq!(out.remove(0), FrameNo(u32::MAX), "out is appended to");
        let dirty: Vec<bool> = out.iter().map(|f| touched[f.0 as usize].dirty).collect();
        let clean = dirty.iter().filter(|d| !**d).count();
        assert!(clean <= want && dirty.len() - clean <= 2 * want);
        assert!(dirty.is_sorted(), "clean ones come first");
        let idle = |f: usize| frames[f] == Frame::Resident && !touched[f].busy;
        let some = (0..FRAMES).any(idle) && want > 0;
        assert_eq!(!out.is_empty(), some, "somebody is named if anybody can be");
        for f in out {
            let f = f.0 as usize;
            assert!(!self.touched[f].busy, "frame {f} is busy");
            assert_eq!(self.frames[f], Frame::Resident, "frame {f} is named twice");
            self.frames[f] = Frame::Named;
        }
    }

    /// Evicts every frame.
    fn drain(&mut self, policy: &mut dyn Walked) {
        self.touched.fill(Touched::default());
        while self.count(Frame::Resident) > 0 {
            self.victims(policy, 7);
        }
        for f in 0..FRAMES {
            self.apply(policy, Call::Remove(f));
        }
        assert_eq!(policy.resident(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_calls_keeps_each_frame_in_one_queue(
        calls in prop::collection::vec(call(), 1..400),
    ) {
        for mut policy in all() {
            let mut model = Model {
                frames: vec![Frame::Free; FRAMES],
                touched: vec![Touched::default(); FRAMES],
            };
            for call in &calls {
                model.apply(policy.as_mut(), *call);
            }
            model.drain(policy.as_mut());
        }
    }
}

/// Inserts pages of a file into the frames of the same numbers.
fn fill(policy: &mut dyn Policy, vnode: u64, frames: std::ops::Range<u32>, entry: Entry) {
    for f in frames {
        let page = f.into();
        policy.inserted(FrameNo(f), PageKey { vnode, page }, entry);
    }
}

fn name(policy: &mut dyn Policy, want: usize, mut touched: impl FnMut(u32) -> Touched) -> Vec<u32> {
    let mut out = Vec::new();
    policy.victims(want, &mut |f| touched(f.0), &mut out);
    out.iter().map(|f| f.0).collect()
}

fn evict(policy: &mut dyn Policy, want: usize) -> Vec<u32> {
    let out = name(policy, want, |_| Touched::default());
    out.iter().for_each(|f| policy.removed(FrameNo(*f)));
    out
}

#[test]
fn lru_takes_what_was_hit_longest_ago() {
    let mut lru = Lru::new(4);
    fill(&mut lru, 1, 0..4, Entry::Read);
    lru.hit(FrameNo(0));
    lru.hit(FrameNo(2));
    assert_eq!(evict(&mut lru, 4), [1, 3, 0, 2]);
}

#[test]
fn clock_clears_the_mark_before_it_takes() {
    let mut clock = Clock::new(3);
    fill(&mut clock, 1, 0..3, Entry::Read);
    clock.hit(FrameNo(0));
    assert_eq!(evict(&mut clock, 3), [1, 2, 0]);
}

#[test]
fn a_named_frame_that_is_kept_is_young_again() {
    let mut ufc = Ufc::new(3, 3);
    fill(&mut ufc, 1, 0..3, Entry::Read);
    assert_eq!(name(&mut ufc, 1, |_| Touched::default()), [0]);
    ufc.kept(FrameNo(0));
    assert_eq!(evict(&mut ufc, 3), [1, 2, 0]);
}

#[test]
fn dirty_frames_are_named_behind_clean_ones() {
    let mut lru = Lru::new(4);
    fill(&mut lru, 1, 0..4, Entry::Written);
    let odd_is_clean = |f| Touched {
        dirty: f % 2 == 0,
        ..Touched::default()
    };
    assert_eq!(name(&mut lru, 2, odd_is_clean), [1, 3, 2, 0]);
}

/// Returns a policy with ten randomly read pages of file 9, and then ten stream pages of file 1.
fn streamed(limits: SeqLimits, how: Stealing) -> Stealback {
    let mut policy = Stealback::new(Box::new(Lru::new(20)), 20, 20, limits, how);
    fill(&mut policy, 9, 0..10, Entry::Read);
    fill(&mut policy, 1, 10..20, Entry::Stream);
    policy
}

#[test]
fn both_limits_must_be_exceeded_before_a_page_is_stolen() {
    for (system, file, first) in [(40, 40, 10), (60, 40, 0), (40, 60, 0), (100, 100, 0)] {
        let mut policy = streamed(SeqLimits { system, file }, Stealing::AsDocumented);
        assert_eq!(evict(&mut policy, 1), [first], "{system} {file}");
    }
}

#[test]
fn a_file_keeps_what_its_limit_allows() {
    let limits = SeqLimits {
        system: 0,
        file: 40,
    };
    let mut policy = streamed(limits, Stealing::AsDocumented);
    // Two of ten are beyond 40 % of 20; the rest is named by LRU.
    assert_eq!(evict(&mut policy, 4), [10, 11, 0, 1]);
    assert_eq!(policy.stream_pages(), 8);
}

#[test]
fn other_limits_count_at_once() {
    let mut policy = streamed(SeqLimits::OFF, Stealing::AsDocumented);
    assert_eq!(evict(&mut policy, 1), [0]);
    policy.set_limits(SeqLimits { system: 0, file: 0 });
    assert_eq!(evict(&mut policy, 1), [10]);
}

#[test]
fn behind_the_cursor_only_clean_unshared_pages_are_stolen() {
    let limits = SeqLimits { system: 0, file: 0 };
    let mut policy = streamed(limits, Stealing::BehindCursor);
    let touched = |f| Touched {
        frequency: u8::from(f == 10),
        dirty: f == 11,
        busy: f == 12,
        ahead: f == 13,
    };
    // 10 is used by others, 11 is dirty, 12 busy, 13 ahead of the reader; only four are examined.
    assert_eq!(name(&mut policy, 1, touched), [0]);
    assert_eq!(name(&mut policy, 1, touched), [14]);
}
