//! Conversion between AFS file identifiers and inodes.
//!
//! A vnode has 32 bits, an inode number 56, and both encode in their parity whether the file is a
//! directory. The vnode is therefore the inode number within a round of an even length. The
//! uniquifier holds the round and the generation, that is, the opening of the file system that
//! created the inode: a number reverted by a crash and assigned again belongs to a later opening.
//!
//! **Invariant:** two inodes that ever existed have different AFS identifiers; a root is 1.1.

use afs_proto::Fid;
use fs::{Attr, Ino, ROOT};

/// Inode numbers in a round: even to preserve parity, and small enough that no vnode is 0.
const ROUND: u64 = u32::MAX as u64 - 1;

/// Bits of a uniquifier that hold the generation.
const GENERATION_BITS: u32 = 24;

/// Number of distinguishable generations; the value 0 is reserved.
const GENERATIONS: u32 = (1 << GENERATION_BITS) - 1;

/// Creates the identifier of an inode; `None` from the 2^40th inode of a fileset on, which AFS
/// cannot address.
fn new(ino: Ino, generation: u32) -> Option<Fid> {
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

/// Creates the identifier of the inode with these attributes, like `new`.
pub(crate) fn of(attr: &Attr) -> Option<Fid> {
    new(attr.ino, attr.inode.generation)
}

/// Returns the number of the inode; the caller must compare the inode's generation.
pub fn ino_of(fid: Fid) -> Option<Ino> {
    if fid == Fid::ROOT {
        return Some(ROOT);
    }
    let round = u64::from(fid.unique >> GENERATION_BITS);
    let within = u64::from(fid.vnode).checked_sub(1)?;
    (within < ROUND).then(|| round * ROUND + within + 1)
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
                let fid = new(ino, generation).expect("within the range");
                assert_eq!(ino_of(fid), Some(ino));
                assert_eq!(u64::from(fid.vnode) % 2, ino % 2);
                assert!(fid.vnode != 0 && fid.unique != 0);
                assert!(seen.insert(fid) || ino == ROOT, "{ino} {generation}");
            }
        }
        assert_eq!(new(ROOT, 9), Some(Fid::ROOT));
        assert_eq!(new(256 * ROUND + 1, 1), None);
        assert_eq!(new(0, 1), None);
        for vnode in [0, u32::MAX] {
            assert_eq!(ino_of(Fid { vnode, unique: 1 }), None);
        }
    }
}
