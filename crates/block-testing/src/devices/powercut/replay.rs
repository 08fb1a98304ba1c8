//! State after a power cut: the log of a [`super::PowerCut`] replayed up to a point, with any part
//! of the volatile writes.
//!
//! The durable state advances with the point and is never copied; an image is a fork of it with the
//! surviving sectors written to it. The cost of an image thus depends on the volatile writes, not
//! on the size of the disk.

use super::{Change, Event};
use crate::devices::mem::Mem;
use crate::random::Random;
use std::collections::HashMap;
use std::fmt;

/// Unit that a disk writes atomically.
const SECTOR_BYTES: u64 = 512;

/// Fate of the writes that are not durable at the moment of the cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tear {
    /// All are lost.
    Drop,
    /// All survive.
    Keep,
    /// Parts of them survive, chosen by this seed: whole writes in any order; those before one
    /// moment, and the last of them only in part; each write lost, whole, truncated, or any subset
    /// of its sectors; or any subset of all sectors.
    Random(u64),
}

/// A write (or discard, or write-zeroes) that is not durable at the requested point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Volatile {
    /// Index in the log.
    pub event: usize,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Result of one power cut.
pub struct Crash {
    /// Number of events before the cut.
    pub point: usize,
    /// Fate of the volatile writes.
    pub tear: Tear,
    /// The disk after the cut; a cheap copy of its own.
    pub image: Mem,
}

impl fmt::Display for Crash {
    /// Prints the arguments of [`super::PowerCut::crash`] that reproduce it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crash({}, Tear::{:?})", self.point, self.tear)
    }
}

impl fmt::Debug for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The log of a [`super::PowerCut`], which can be cut at any point. Queries in ascending order are
/// cheap; a step back replays the log from its start.
pub struct Replay {
    before: Mem,
    events: Vec<Event>,
    /// Number of events replayed.
    at: usize,
    durable: Mem,
    /// Changes that are replayed and not durable, in ascending order.
    volatile: Vec<usize>,
    /// The newest durable change of each sector for which an older change may still become durable:
    /// a disk cache never replaces data by an older version.
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

    /// Counts the events in the log, which is the last point.
    pub fn events(&self) -> usize {
        self.events.len()
    }

    /// Lists the writes of which a cut after `point` events may leave any part, in the order of
    /// submit.
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

    /// Builds the disk after a cut at `point` events (at the last point if there are fewer).
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

    /// Builds the disk after a cut that left the sectors for which `keeps` returns true. It is
    /// called for each 512-byte sector, counted from 0 in its write, of each volatile write, in the
    /// order of submit.
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

    /// Replays the log up to `point`, from its start if it is already past it.
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
                self.apply_durable(at);
            }
        }
    }

    /// Applies the changes that the event at this index makes durable.
    fn apply_durable(&mut self, at: usize) {
        let Event::Durable(list) = &self.events[at] else {
            return;
        };
        self.volatile.retain(|v| list.binary_search(v).is_err());
        for event in list {
            let change = change(&self.events, *event);
            apply(&self.durable, change, |sector| {
                !self.is_outdated(change, sector, *event)
            });
            // The rest of the list is newer and follows in order; only a write that stays volatile
            // can become durable later.
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

    /// Reports whether this sector of the change has a newer durable content.
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

/// Writes the wanted sectors of a change, contiguous ones together.
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
        // `sector` itself is unwanted, or the change has ended; in both cases it is done.
        sector += 1;
    }
}

/// Choice of the sectors that a [`Tear::Random`] keeps.
struct Plan {
    random: Random,
    style: Style,
    /// The write of the latest queries, and its fate.
    current: Option<(usize, WriteFate)>,
}

/// Relation of the writes to one another.
enum Style {
    /// Each write has an independent fate.
    Mixed,
    /// Each write is whole or lost, in any order.
    Reordered,
    /// Writes before this index of the log are whole, this one is truncated, the rest is lost.
    InOrder(usize),
    /// Any subset of all sectors.
    Sectors,
}

/// Fate of one write.
#[derive(Clone, Copy)]
enum WriteFate {
    Gone,
    Whole,
    /// This number of sectors from its start.
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
            WriteFate::Gone => false,
            WriteFate::Whole => true,
            WriteFate::Prefix(sectors) => sector < sectors,
            WriteFate::AnySectors => self.random.below(2) == 1,
        }
    }

    fn choose(&mut self, write: &Volatile) -> WriteFate {
        let sectors = write.len.div_ceil(SECTOR_BYTES);
        match self.style {
            Style::Sectors => WriteFate::AnySectors,
            Style::InOrder(last) if write.event < last => WriteFate::Whole,
            Style::InOrder(last) if write.event > last => WriteFate::Gone,
            Style::InOrder(_) => WriteFate::Prefix(self.random.below(sectors + 1)),
            Style::Reordered if self.random.below(2) == 0 => WriteFate::Gone,
            Style::Reordered => WriteFate::Whole,
            Style::Mixed => match self.random.below(4) {
                0 => WriteFate::Gone,
                1 => WriteFate::Whole,
                2 => WriteFate::Prefix(self.random.below(sectors + 1)),
                _ => WriteFate::AnySectors,
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
