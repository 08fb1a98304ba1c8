//! What a power cut leaves: the log of a [`super::PowerCut`] played up to a point, with any part of
//! the volatile writes.
//!
//! The durable state moves forward with the point and is never copied; an image is a fork of it, to
//! which the surviving sectors are written. So an image costs what is volatile, not the disk.

use super::{Change, Event};
use crate::devices::mem::Mem;
use crate::random::Random;
use std::collections::HashMap;
use std::fmt;

/// The unit that a disk writes whole.
const SECTOR_BYTES: u64 = 512;

/// What happens to the writes that are not durable at the moment of the cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tear {
    /// All are gone.
    Drop,
    /// All made it.
    Keep,
    /// Parts of them made it, chosen by this seed: whole writes in any order; those before one
    /// moment, and the last of them only in part; each write gone, whole, cut short, or in any
    /// of its sectors; or any sectors of all.
    Random(u64),
}

/// A write (or discard, or write-zeroes) that is not durable at the point looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Volatile {
    /// Its place in the log.
    pub event: usize,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// What one cut left.
pub struct Crash {
    /// Events before the cut.
    pub point: usize,
    /// What happened to the volatile writes.
    pub tear: Tear,
    /// The disk as it is found afterwards; a cheap copy of its own.
    pub image: Mem,
}

impl fmt::Display for Crash {
    /// What replays it: the arguments of [`super::PowerCut::crash`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crash({}, Tear::{:?})", self.point, self.tear)
    }
}

impl fmt::Debug for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The log of a [`super::PowerCut`], to be cut at any point. Asking in rising order is cheap; a step
/// back plays the log again from its start.
pub struct Replay {
    before: Mem,
    events: Vec<Event>,
    /// Events that have been played.
    at: usize,
    durable: Mem,
    /// Changes that have been played and are not durable, in rising order.
    volatile: Vec<usize>,
    /// The newest durable change of a sector, where an older one may still come to be durable: the
    /// cache of a disk never puts old data over newer.
    newest: HashMap<u64, usize>,
}

impl Replay {
    pub(super) fn new(before: &Mem, events: Vec<Event>) -> Replay {
        Replay {
            before: before.fork(),
            events,
            at: 0,
            durable: before.fork(),
            volatile: Vec::new(),
            newest: HashMap::new(),
        }
    }

    /// Events in the log: the last point.
    pub fn events(&self) -> usize {
        self.events.len()
    }

    /// The writes of which a cut after `point` events may leave any part, in the order of submit.
    pub fn volatile(&mut self, point: usize) -> Vec<Volatile> {
        self.seek(point);
        let describe = |event: &usize| {
            let Change { offset, len, .. } = *change(&self.events, *event);
            Volatile {
                event: *event,
                offset,
                len,
            }
        };
        self.volatile.iter().map(describe).collect()
    }

    /// The disk after a cut that came after `point` events (the last point if there are fewer).
    pub fn image(&mut self, point: usize, tear: Tear) -> Mem {
        match tear {
            Tear::Drop => self.image_where(point, |_, _| false),
            Tear::Keep => self.image_where(point, |_, _| true),
            Tear::Random(seed) => {
                let writes = self.volatile(point);
                let mut plan = Plan::new(seed, &writes);
                self.image_where(point, |write, sector| plan.keeps(write, sector))
            }
        }
    }

    /// The disk after a cut that left what `keeps` says: asked for each 512-byte sector, counted
    /// from 0 in its write, of each volatile write, in the order of submit.
    pub fn image_where(
        &mut self,
        point: usize,
        mut keeps: impl FnMut(&Volatile, u64) -> bool,
    ) -> Mem {
        let writes = self.volatile(point);
        let image = self.durable.fork();
        for write in &writes {
            let change = change(&self.events, write.event);
            apply(&image, change, |sector| {
                let kept = keeps(write, sector);
                kept && !self.is_outdated(change, sector, write.event)
            });
        }
        image
    }

    /// Plays the log forward to `point`, from its start if it has gone further.
    fn seek(&mut self, point: usize) {
        let point = point.min(self.events.len());
        if point < self.at {
            self.at = 0;
            self.durable = self.before.fork();
            self.volatile.clear();
            self.newest.clear();
        }
        while self.at < point {
            let at = self.at;
            self.at += 1;
            if matches!(self.events[at], Event::Change(_)) {
                self.volatile.push(at);
            } else {
                self.settle(at);
            }
        }
    }

    /// Puts what the event at this place makes durable into the durable state.
    fn settle(&mut self, at: usize) {
        let Event::Durable(list) = &self.events[at] else {
            return;
        };
        self.volatile.retain(|v| list.binary_search(v).is_err());
        for event in list {
            let change = change(&self.events, *event);
            apply(&self.durable, change, |sector| {
                !self.is_outdated(change, sector, *event)
            });
            // The rest of the list is newer and comes in order; only a write that stays volatile
            // can come late.
            if self.volatile.first().is_some_and(|oldest| oldest < event) {
                let first = change.offset / SECTOR_BYTES;
                for sector in first..first + change.len.div_ceil(SECTOR_BYTES) {
                    let newest = self.newest.entry(sector).or_insert(*event);
                    *newest = (*newest).max(*event);
                }
            }
        }
        if self.volatile.is_empty() {
            self.newest.clear();
        }
    }

    /// Whether something newer than this change is durable in this sector of it.
    fn is_outdated(&self, change: &Change, sector: u64, event: usize) -> bool {
        let newest = self.newest.get(&(change.offset / SECTOR_BYTES + sector));
        newest.is_some_and(|newest| *newest > event)
    }
}

fn change(events: &[Event], event: usize) -> &Change {
    match &events[event] {
        Event::Change(change) => change,
        Event::Durable(_) => unreachable!("only changes are listed as volatile or durable"),
    }
}

/// Writes the sectors of a change that are wanted, neighbours together.
fn apply(disk: &Mem, change: &Change, mut wanted: impl FnMut(u64) -> bool) {
    let sectors = change.len.div_ceil(SECTOR_BYTES);
    let mut sector = 0;
    while sector < sectors {
        if !wanted(sector) {
            sector += 1;
            continue;
        }
        let first = sector;
        sector += 1;
        while sector < sectors && wanted(sector) {
            sector += 1;
        }
        let (from, to) = (
            first * SECTOR_BYTES,
            (sector * SECTOR_BYTES).min(change.len),
        );
        match &change.data {
            Some(data) => disk.poke(change.offset + from, &data[from as usize..to as usize]),
            None => disk.poke_zeroes(change.offset + from, to - from),
        }
        // `sector` itself was refused, or the change has ended; either way it has had its answer.
        sector += 1;
    }
}

/// Which sectors a [`Tear::Random`] keeps.
struct Plan {
    random: Random,
    style: Style,
    /// The write that the answers are about at the moment, and its way.
    current: Option<(usize, Way)>,
}

/// How the writes go together.
enum Style {
    /// Each goes its own way.
    Mixed,
    /// Whole or gone, in any order.
    Reordered,
    /// Those before this place in the log are whole, this one is cut short, the rest is gone.
    InOrder(usize),
    /// Any sectors of all.
    Sectors,
}

/// What is left of one write.
#[derive(Clone, Copy)]
enum Way {
    Gone,
    Whole,
    /// So many sectors from its start.
    Prefix(u64),
    AnySectors,
}

impl Plan {
    fn new(seed: u64, writes: &[Volatile]) -> Plan {
        let mut random = Random::new(seed);
        let style = match random.below(4) {
            0 => Style::Reordered,
            1 => Style::Sectors,
            2 if !writes.is_empty() => {
                Style::InOrder(writes[random.below(writes.len() as u64) as usize].event)
            }
            _ => Style::Mixed,
        };
        Plan {
            random,
            style,
            current: None,
        }
    }

    fn keeps(&mut self, write: &Volatile, sector: u64) -> bool {
        let way = match self.current {
            Some((event, way)) if event == write.event => way,
            _ => self.choose(write),
        };
        self.current = Some((write.event, way));
        match way {
            Way::Gone => false,
            Way::Whole => true,
            Way::Prefix(sectors) => sector < sectors,
            Way::AnySectors => self.random.below(2) == 1,
        }
    }

    fn choose(&mut self, write: &Volatile) -> Way {
        let sectors = write.len.div_ceil(SECTOR_BYTES);
        match self.style {
            Style::Sectors => Way::AnySectors,
            Style::InOrder(last) if write.event < last => Way::Whole,
            Style::InOrder(last) if write.event > last => Way::Gone,
            Style::InOrder(_) => Way::Prefix(self.random.below(sectors + 1)),
            Style::Reordered if self.random.below(2) == 0 => Way::Gone,
            Style::Reordered => Way::Whole,
            Style::Mixed => match self.random.below(4) {
                0 => Way::Gone,
                1 => Way::Whole,
                2 => Way::Prefix(self.random.below(sectors + 1)),
                _ => Way::AnySectors,
            },
        }
    }
}

/// See [`super::PowerCut::boundaries`].
pub(super) fn boundaries(
    mut replay: Replay,
    seed: u64,
    torn: usize,
) -> impl Iterator<Item = Crash> {
    let mut random = Random::new(seed);
    let (mut point, mut step) = (0, 0);
    std::iter::from_fn(move || {
        if point > replay.events() {
            return None;
        }
        let tear = match step {
            0 => Tear::Drop,
            1 => Tear::Keep,
            _ => Tear::Random(random.next_u64()),
        };
        let crash = Crash {
            point,
            tear,
            image: replay.image(point, tear),
        };
        step += 1;
        if step == 2 + torn || replay.volatile.is_empty() {
            (point, step) = (point + 1, 0);
        }
        Some(crash)
    })
}

/// See [`super::PowerCut::images`].
pub(super) fn images(mut replay: Replay, seed: u64, count: usize) -> impl Iterator<Item = Crash> {
    let mut random = Random::new(seed);
    let points = replay.events() as u64 + 1;
    let mut cuts: Vec<usize> = (0..count).map(|_| random.below(points) as usize).collect();
    cuts.sort_unstable();
    cuts.into_iter().map(move |point| {
        let tear = Tear::Random(random.next_u64());
        Crash {
            point,
            tear,
            image: replay.image(point, tear),
        }
    })
}
