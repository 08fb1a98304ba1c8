//! Objects addressed by a key that never refers to an earlier object.
//!
//! A slot is reused, its generation is not (for 2^32 uses): a key that outlives its object finds
//! nothing.

/// Slot of an object and its generation in that slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Slots and the list of free ones.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Slab<T> {
        Slab {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                value: None,
            });
            // The limits of an endpoint keep the number of objects far below 2^32.
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let mut generation = 0;
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.generation = slot.generation.wrapping_add(1);
            slot.value = Some(value);
            generation = slot.generation;
        }
        Key { index, generation }
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        slot.value
            .as_ref()
            .filter(|_| slot.generation == key.generation)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation {
            slot.value.as_mut()
        } else {
            None
        }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        self.free.push(key.index);
        Some(value)
    }

    /// Iterates over all objects, in the order of their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.slots.iter().enumerate().filter_map(Slab::entry)
    }

    /// Iterates over the objects in `count` slots from `start` on, wrapping at the end.
    pub(crate) fn some(&self, start: usize, count: usize) -> impl Iterator<Item = (Key, &T)> {
        let start = start % self.slots.len().max(1);
        let all = || self.slots.iter().enumerate();
        let around = all().skip(start).chain(all().take(start));
        around.take(count).filter_map(Slab::entry)
    }

    fn entry((index, slot): (usize, &Slot<T>)) -> Option<(Key, &T)> {
        let index = u32::try_from(index).ok()?;
        let generation = slot.generation;
        Some((Key { index, generation }, slot.value.as_ref()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_outlives_its_object_and_finds_nothing() {
        let mut slab = Slab::new();
        let first = slab.insert('a');
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.insert('b');
        assert_eq!(second.index, first.index);
        assert_eq!(slab.get(first), None);
        assert!(slab.get_mut(first).is_none() && slab.remove(first).is_none());
        assert_eq!((slab.get(second), slab.len()), (Some(&'b'), 1));
        assert_eq!(slab.iter().collect::<Vec<_>>(), [(second, &'b')]);
    }

    #[test]
    fn some_slots_are_looked_at_around_the_end() {
        let mut slab = Slab::new();
        let keys: Vec<_> = "abcd".chars().map(|c| slab.insert(c)).collect();
        slab.remove(keys[3]);
        let some: String = slab.some(2, 3).map(|(_, c)| *c).collect();
        assert_eq!(some, "ca");
        assert_eq!(Slab::<char>::new().some(9, 3).count(), 0);
    }
}
