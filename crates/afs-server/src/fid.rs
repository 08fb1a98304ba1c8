//! Files by their numbers in AFS, and inodes by theirs.
//!
//! A vnode has 32 bits, an inode's number 56, and both say by their parity whether it is a directory.
//! So the vnode is the number within a round of an even length, and the uniquifier says which round,
//! and which opening of the file system made the inode: a number that a crash took back and that is
//! given again belongs to a later opening.
//!
//! **Invariant:** two inodes that ever were have different numbers in AFS; a root is 1.1.

use afs_proto::AfsFid;
use fs::{Attr, Ino, ROOT};

/// Numbers in a round: even, so that parity stays, and few enough that a vnode is never 0.
const ROUND: u64 = u32::MAX as u64 - 1;

/// Bits of a uniquifier for the generation.
const GENERATION_BITS: u32 = 24;

/// Generations that are told apart: a value of 0 is none.
const GENERATIONS: u32 = (1 << GENERATION_BITS) - 1;

/// A file within its volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fid {
    /// Its place.
    pub vnode: u32,
    /// What tells it from others that had the place.
    pub unique: u32,
}

impl Fid {
    /// The top of a volume.
    pub const ROOT: Fid = Fid {
        vnode: 1,
        unique: 1,
    };

    /// The numbers of an inode; `None` for one beyond what AFS can name, the 2^40th of its fileset.
    pub fn new(ino: Ino, generation: u32) -> Option<Fid> {
        if ino == ROOT {
            return Some(Fid::ROOT);
        }
        let before = ino.checked_sub(1)?;
        let round = u8::try_from(before / ROUND).ok()?;
        let vnode = u32::try_from(before % ROUND).ok()? + 1;
        let generation = 1 + generation % GENERATIONS;
        let unique = u32::from(round) << GENERATION_BITS | generation;
        Some(Fid { vnode, unique })
    }

    /// The numbers of the inode that was looked up.
    pub fn of(attr: &Attr) -> Option<Fid> {
        Fid::new(attr.ino, attr.inode.generation)
    }

    /// The inode that has these numbers, if it is of the generation that they say.
    pub fn ino(self) -> Option<Ino> {
        if self == Fid::ROOT {
            return Some(ROOT);
        }
        let round = u64::from(self.unique >> GENERATION_BITS);
        let within = u64::from(self.vnode).checked_sub(1)?;
        (within < ROUND).then(|| round * ROUND + within + 1)
    }

    /// In a volume.
    pub fn within(self, volume: u32) -> AfsFid {
        AfsFid {
            volume,
            vnode: self.vnode,
            unique: self.unique,
        }
    }
}

impl From<&AfsFid> for Fid {
    fn from(fid: &AfsFid) -> Fid {
        Fid {
            vnode: fid.vnode,
            unique: fid.unique,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_keep_parity_and_differ() {
        let inos = [1, 2, 3, 4, 1000, ROUND - 1, ROUND, ROUND + 1, ROUND + 2];
        let far = [3 * ROUND + 7, 255 * ROUND + 5, 256 * ROUND];
        let mut seen = std::collections::HashSet::new();
        for ino in inos.into_iter().chain(far) {
            for generation in [0, 1, 2, 77, GENERATIONS - 1] {
                let fid = Fid::new(ino, generation).expect("within the range");
                assert_eq!(fid.ino(), Some(ino));
                assert_eq!(u64::from(fid.vnode) % 2, ino % 2);
                assert!(fid.vnode != 0 && fid.unique != 0);
                assert!(seen.insert(fid) || ino == ROOT, "{ino} {generation}");
            }
        }
        assert_eq!(Fid::new(ROOT, 9), Some(Fid::ROOT));
        assert_eq!(Fid::new(256 * ROUND + 1, 1), None);
        assert_eq!(Fid::new(0, 1), None);
        for vnode in [0, u32::MAX] {
            assert_eq!(Fid { vnode, unique: 1 }.ino(), None);
        }
    }
}
