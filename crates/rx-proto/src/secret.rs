//! Unpredictable numbers from the seed, and hash tables that peers cannot unbalance.
//!
//! Both use SipHash keyed with the seed: numbers by hashing a counter, tables by hashing their
//! keys. The values that a peer sees (epochs, connection ids, serial numbers) do not reveal the
//! others.

use std::hash::{BuildHasher, DefaultHasher, Hasher};

/// Hash state keyed with the seed.
#[derive(Debug, Clone)]
pub(crate) struct Secret {
    keyed: DefaultHasher,
    counter: u64,
}

impl Secret {
    pub(crate) fn new(seed: &[u8; 32]) -> Secret {
        let mut keyed = DefaultHasher::new();
        keyed.write(seed);
        Secret { keyed, counter: 0 }
    }

    pub(crate) fn next(&mut self) -> u32 {
        let mut hasher = self.keyed.clone();
        hasher.write_u64(self.counter);
        self.counter += 1;
        (hasher.finish() >> 32) as u32
    }

    /// Creates a hasher for a table, distinct from the one that generates numbers.
    pub(crate) fn table(&mut self) -> Keyed {
        let mut hasher = self.keyed.clone();
        hasher.write_u64(u64::MAX - self.counter);
        self.counter += 1;
        Keyed(hasher)
    }
}

/// Builder of the hashers of a table.
#[derive(Debug, Clone)]
pub(crate) struct Keyed(DefaultHasher);

impl BuildHasher for Keyed {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_depend_on_the_seed_and_do_not_repeat() {
        let draw = |seed: u8| {
            let mut secret = Secret::new(&[seed; 32]);
            [secret.next(), secret.next(), secret.next()]
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        let [a, b, c] = draw(3);
        assert!(a != b && b != c && a != c);
    }
}
