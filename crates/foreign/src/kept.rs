//! Recently decoded values, in memory of a fixed bound.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

/// Values by key, in two generations: one that is used moves to the young generation, and a full
/// young generation becomes the old one.
pub(crate) struct Kept<K, V> {
    /// Most values of a generation.
    most: usize,
    generations: Mutex<[HashMap<K, V>; 2]>,
}

impl<K: Hash + Eq + Copy, V: Clone> Kept<K, V> {
    /// Creates an empty store of at most `2 * most` values.
    pub(crate) fn new(most: usize) -> Kept<K, V> {
        Kept {
            most: most.max(1),
            generations: Mutex::new([HashMap::new(), HashMap::new()]),
        }
    }

    pub(crate) fn get(&self, key: K) -> Option<V> {
        self.with(|[young, old], most| {
            if let Some(value) = young.get(&key) {
                return Some(value.clone());
            }
            let value = old.remove(&key)?;
            insert([young, old], most, key, value.clone());
            Some(value)
        })
    }

    pub(crate) fn insert(&self, key: K, value: V) {
        self.with(|[young, old], most| insert([young, old], most, key, value));
    }

    /// Drops all values.
    pub(crate) fn clear(&self) {
        self.with(|[young, old], _| {
            young.clear();
            old.clear();
        });
    }

    fn with<T>(&self, work: impl FnOnce([&mut HashMap<K, V>; 2], usize) -> T) -> T {
        // Any state of the generations is a valid one.
        let mut generations = self
            .generations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        work(generations.each_mut(), self.most)
    }
}

fn insert<K: Hash + Eq, V>([young, old]: [&mut HashMap<K, V>; 2], most: usize, key: K, value: V) {
    if young.len() >= most {
        *old = std::mem::take(young);
    }
    young.insert(key, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_values_stay_and_the_number_is_bounded() {
        let kept = Kept::new(4);
        for n in 0..100 {
            kept.insert(n, n);
            assert_eq!(kept.get(0), Some(0));
        }
        let left = (0..100).filter(|n| kept.get(*n).is_some()).count();
        assert!((5..=8).contains(&left), "{left}");
    }
}
