//! The metadata as one map: the active changes, those being committed, and the last commit.
//!
//! **Invariant:** a reader sees the newest of the three for each key. Changes go to the active ones
//! only, through `Op`, which can undo them. A search of the last commit is expensive, and inodes
//! younger than it have nothing there; so the map knows the last object of each layer, and does not
//! search beyond it.

use crate::error::Result;
use crate::format::key::{Direction, KEY_BYTES, Key, TreeId};
use crate::metadata::database::{Base, BaseRange, SpaceChange};
use crate::metadata::journal::Delta;
use crate::metadata::overlay::{Change, Overlay};
use crate::metadata::pace::Pace;
use foldhash::HashMap;
use std::cmp::Ordering;
use std::iter::Peekable;
use std::sync::Arc;

/// Layered map of the metadata. See the module.
pub(crate) struct ItemMap {
    pub active: Overlay,
    frozen: Option<Arc<Overlay>>,
    base: Arc<Base>,
    /// For some layers, a number that no object of the layer in the last commit exceeds.
    last_objects: HashMap<TreeId, u64>,
    /// Keys changed since the last record of the journal; may contain duplicates.
    unlogged: Vec<Key>,
    /// Blocks allocated or freed since the last record, and since the last freeze.
    unlogged_space: Vec<SpaceChange>,
    space: Vec<SpaceChange>,
    /// Limits the speed of walks through a view.
    pace: Option<Arc<Pace>>,
}

/// Content of a commit.
pub(crate) struct Frozen {
    pub items: Arc<Overlay>,
    pub space: Vec<SpaceChange>,
}

impl ItemMap {
    pub fn new(base: Base) -> ItemMap {
        ItemMap {
            active: Overlay::default(),
            frozen: None,
            base: Arc::new(base),
            last_objects: HashMap::default(),
            unlogged: Vec::new(),
            unlogged_space: Vec::new(),
            space: Vec::new(),
            pace: None,
        }
    }

    /// Creates a map of a commit, with the changes that `of` has in memory, whose walks keep to a
    /// pace.
    pub fn view(base: Base, of: Option<&ItemMap>, pace: Arc<Pace>) -> ItemMap {
        let mut map = ItemMap::new(base);
        if let Some(of) = of {
            for overlay in of.frozen.as_deref().into_iter().chain([&of.active]) {
                for (key, change) in overlay.iter() {
                    map.active.set(*key, Some(change.clone()));
                }
            }
            map.space.clone_from(&of.space);
        }
        map.pace = Some(pace);
        map
    }

    /// Finds the last object of a layer in the last commit, so that later ones are not searched
    /// for there.
    pub fn find_last_object(&mut self, layer: TreeId) -> Result<()> {
        let (from, to) = Key::layer(layer);
        let last = self.base.range(from, to)?.next(Direction::Backward)?;
        let object = last.map_or(0, |(key, _)| key.object);
        self.last_objects.insert(layer, object);
        Ok(())
    }

    /// Reports whether the last commit may have items of an object.
    fn is_in_base(&self, layer: TreeId, object: u64) -> bool {
        let last = self.last_objects.get(&layer);
        last.is_none_or(|last| object <= *last)
    }

    /// Applies a record of the journal.
    pub fn replay(&mut self, delta: Delta) {
        delta.apply(&mut self.active, &mut self.space);
    }

    /// Looks up the value of a key, converted by `read`.
    pub fn get<T>(&self, key: &Key, read: impl FnOnce(&[u8]) -> Result<T>) -> Result<Option<T>> {
        let frozen = || self.frozen.as_ref().and_then(|f| f.get(key));
        if let Some(change) = self.active.get(key).or_else(frozen) {
            return change.value().map(read).transpose();
        }
        if !self.is_in_base(key.layer, key.object) {
            return Ok(None);
        }
        match self.base.get(key)? {
            Some(value) => read(value.value()).map(Some),
            None => Ok(None),
        }
    }

    /// Passes the items from one key to another, both included, to `take` until that returns
    /// `false`.
    pub fn scan(
        &self,
        from: Key,
        to: Key,
        mut take: impl FnMut(Key, &[u8]) -> Result<bool>,
    ) -> Result<()> {
        self.walk(from, to, Direction::Forward, &mut take)
    }

    /// Finds the last item between two keys, both included, converted by `read`.
    pub fn last<T>(
        &self,
        from: Key,
        to: Key,
        read: impl Fn(Key, &[u8]) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut found = None;
        self.walk(from, to, Direction::Backward, &mut |key, value| {
            found = Some(read(key, value)?);
            Ok(false)
        })?;
        Ok(found)
    }

    fn walk(
        &self,
        from: Key,
        to: Key,
        direction: Direction,
        take: &mut dyn FnMut(Key, &[u8]) -> Result<bool>,
    ) -> Result<()> {
        if from > to {
            return Ok(());
        }
        let mut paced;
        let take: &mut dyn FnMut(Key, &[u8]) -> Result<bool> = match &self.pace {
            None => take,
            Some(pace) => {
                paced = |key: Key, value: &[u8]| {
                    pace.pass((KEY_BYTES + value.len()) as u64)?;
                    take(key, value)
                };
                &mut paced
            }
        };
        let frozen = self.frozen.as_deref();
        let base = if from.layer == to.layer && !self.is_in_base(from.layer, from.object) {
            BaseRange::empty()
        } else {
            self.base.range(from, to)?
        };
        let active = self.active.range(from, to);
        let frozen = frozen.into_iter().flat_map(|f| f.range(from, to));
        match direction {
            Direction::Forward => {
                merge(active.peekable(), frozen.peekable(), base, direction, take)
            }
            Direction::Backward => merge(
                active.rev().peekable(),
                frozen.rev().peekable(),
                base,
                direction,
                take,
            ),
        }
    }

    /// Records that a key was changed.
    pub fn note(&mut self, key: Key) {
        self.unlogged.push(key);
    }

    /// Records that blocks were allocated or freed.
    pub fn note_space(&mut self, changes: &[SpaceChange]) {
        self.space.extend(changes);
        self.unlogged_space.extend(changes);
    }

    /// Returns the blocks allocated or freed since the last freeze, in order.
    pub fn space_changes(&self) -> &[SpaceChange] {
        &self.space
    }

    /// Checks whether there is anything to commit.
    pub fn is_changed(&self) -> bool {
        !self.active.is_empty() || !self.space.is_empty()
    }

    /// Takes the changes to be logged. [`ItemMap::restore_delta`] puts them back if that fails.
    pub fn take_delta(&mut self) -> (Delta, Vec<Key>) {
        let mut keys = std::mem::take(&mut self.unlogged);
        keys.sort_unstable();
        keys.dedup();
        let value = |key: &Key| {
            let change = self.active.get(key)?;
            change.value().map(Box::from)
        };
        let items = keys.iter().map(|key| (*key, value(key))).collect();
        let space = std::mem::take(&mut self.unlogged_space);
        (Delta { items, space }, keys)
    }

    /// Puts back changes that the journal has not taken.
    pub fn restore_delta(&mut self, mut space: Vec<SpaceChange>, keys: Vec<Key>) {
        self.unlogged.extend(keys);
        space.append(&mut self.unlogged_space);
        self.unlogged_space = space;
    }

    /// Freezes the active changes for a commit, and returns them.
    pub fn freeze(&mut self) -> Frozen {
        debug_assert!(self.frozen.is_none(), "one commit at a time");
        let items = Arc::new(std::mem::take(&mut self.active));
        self.frozen = Some(Arc::clone(&items));
        self.unlogged.clear();
        self.unlogged_space.clear();
        Frozen {
            items,
            space: std::mem::take(&mut self.space),
        }
    }

    /// Switches to a tree that was built from scratch.
    pub fn rebuilt(&mut self, base: Base) {
        *self = ItemMap::new(base);
    }

    /// Switches to a durable commit. Returns what is no longer needed, to be dropped without a
    /// lock.
    pub fn committed(&mut self, base: Base) -> impl Sized + use<> {
        let frozen = self.frozen.take();
        for (layer, last) in &mut self.last_objects {
            let (from, to) = Key::layer(*layer);
            let newest = frozen.as_ref().and_then(|f| f.range(from, to).next_back());
            *last = newest.map_or(*last, |(key, _)| key.object.max(*last));
        }
        (frozen, std::mem::replace(&mut self.base, Arc::new(base)))
    }
}

/// Walks three ordered sources as one; of equal keys, the entry of the first source counts.
fn merge<'a>(
    mut active: Peekable<impl Iterator<Item = (&'a Key, &'a Change)>>,
    mut frozen: Peekable<impl Iterator<Item = (&'a Key, &'a Change)>>,
    mut base: BaseRange,
    direction: Direction,
    take: &mut dyn FnMut(Key, &[u8]) -> Result<bool>,
) -> Result<()> {
    let order = |one: &Key, two: &Key| match direction {
        Direction::Forward => one.cmp(two),
        Direction::Backward => two.cmp(one),
    };
    let mut below = base.next(direction)?;
    loop {
        let keys = [
            active.peek().map(|(key, _)| **key),
            frozen.peek().map(|(key, _)| **key),
            below.as_ref().map(|(key, _)| *key),
        ];
        let Some(key) = keys.into_iter().flatten().min_by(order) else {
            return Ok(());
        };
        let is_next = |at: Option<Key>| at.is_some_and(|at| order(&at, &key) == Ordering::Equal);
        let over = is_next(keys[0]).then(|| active.next()).flatten();
        let under = is_next(keys[1]).then(|| frozen.next()).flatten();
        let under = over.or(under).map(|(_, change)| change);
        let more = match (under, is_next(keys[2])) {
            (Some(change), _) => change.value().map_or(Ok(true), |value| take(key, value))?,
            (None, _) => match &below {
                Some((_, value)) => take(key, value.value())?,
                None => true,
            },
        };
        if !more {
            return Ok(());
        }
        if is_next(keys[2]) {
            below = base.next(direction)?;
        }
    }
}
