//! Rights of an access list, in the notation of `fs listacl`.

use crate::{Reader, Result, Xdr};
use std::fmt;
use std::str::FromStr;

/// Set of rights on a directory and the files in it (`src/libacl/prs_fs.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Rights(pub u32);

/// Bit and letter of each right, in output order. Capital letters are defined by each site.
const LETTERS: [(Rights, char); 15] = [
    (Rights::READ, 'r'),
    (Rights::LOOKUP, 'l'),
    (Rights::INSERT, 'i'),
    (Rights::DELETE, 'd'),
    (Rights::WRITE, 'w'),
    (Rights::LOCK, 'k'),
    (Rights::ADMINISTER, 'a'),
    (Rights(0x0100_0000), 'A'),
    (Rights(0x0200_0000), 'B'),
    (Rights(0x0400_0000), 'C'),
    (Rights(0x0800_0000), 'D'),
    (Rights(0x1000_0000), 'E'),
    (Rights(0x2000_0000), 'F'),
    (Rights(0x4000_0000), 'G'),
    (Rights(0x8000_0000), 'H'),
];

impl Rights {
    /// No rights.
    pub const NONE: Rights = Rights(0);
    /// Read the files.
    pub const READ: Rights = Rights(1);
    /// Write the files, and change their mode.
    pub const WRITE: Rights = Rights(2);
    /// Add files and directories.
    pub const INSERT: Rights = Rights(4);
    /// List the directory, read its access list, and access its contents.
    pub const LOOKUP: Rights = Rights(8);
    /// Remove files and directories.
    pub const DELETE: Rights = Rights(16);
    /// Lock files.
    pub const LOCK: Rights = Rights(32);
    /// Change the access list.
    pub const ADMINISTER: Rights = Rights(64);
    /// All seven rights that AFS defines: `rlidwka`.
    pub const ALL: Rights = Rights(127);
    /// Read only: `rl`.
    pub const READ_LOOKUP: Rights = Rights(9);

    /// Checks whether the set contains all of `wanted`.
    pub fn has(self, wanted: Rights) -> bool {
        self.0 & wanted.0 == wanted.0
    }

    /// Returns the union of both sets.
    pub const fn or(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }

    /// Returns the rights that are not in `other`; applies negative rights.
    pub const fn without(self, other: Rights) -> Rights {
        Rights(self.0 & !other.0)
    }
}

/// Writes the letters; bits without a letter are omitted.
impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let there = LETTERS.iter().filter(|(right, _)| self.has(*right));
        there.map(|(_, letter)| *letter).collect::<String>().fmt(f)
    }
}

/// Letter that denotes no right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown right `{0}`; the letters are rlidwka and A to H")]
pub struct UnknownRight(pub char);

impl FromStr for Rights {
    type Err = UnknownRight;

    fn from_str(letters: &str) -> std::result::Result<Rights, UnknownRight> {
        letters.chars().try_fold(Rights::NONE, |all, wanted| {
            let found = LETTERS.iter().find(|(_, letter)| *letter == wanted);
            let (right, _) = found.ok_or(UnknownRight(wanted))?;
            Ok(all.or(*right))
        })
    }
}

impl<'a> Xdr<'a> for Rights {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        u32::read(from).map(Rights)
    }
    fn write(&self, to: &mut Vec<u8>) {
        self.0.write(to);
    }
}
