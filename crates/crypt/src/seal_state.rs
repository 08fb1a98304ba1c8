//! Result of checking a header's seal.

/// State of a header's seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seal {
    /// Both codes match.
    Intact,
    /// The volume was never sealed: it was created by another program.
    Never,
    /// Keyslots or roles were changed by another program.
    KeysChanged,
    /// The volume was sealed once, and the seal has been removed.
    Missing,
    /// Data that determines how the volume is read was changed.
    CoreChanged,
}

impl Seal {
    /// Reports whether the volume may be used and its keys changed.
    pub fn holds(self) -> bool {
        matches!(self, Seal::Intact | Seal::Never)
    }

    /// Describes the problem and its remedy.
    pub fn problem(self) -> &'static str {
        match self {
            Seal::Intact | Seal::Never => "the header seal is valid",
            Seal::KeysChanged => {
                "the keys in the header do not match the header seal: another program (such as \
                 `cryptsetup luksAddKey`), or an attacker who can write to the disk, changed \
                 keyslots or roles; compare `evfs volume key list` with the keys you expect, then \
                 accept them with `evfs volume repair --reseal` and the owner's key, or restore a \
                 backup with `evfs volume header restore`"
            }
            Seal::Missing => {
                "the header seal is missing: another program, or an attacker who can write to the \
                 disk, removed it, and may have changed keys, roles and settings; compare `evfs \
                 volume info` with the state you expect, then accept the header with `evfs volume \
                 repair --reseal` and the owner's key, or restore a backup with `evfs volume \
                 header restore`"
            }
            Seal::CoreChanged => {
                "the header seal is broken: another program, or an attacker who can write to the \
                 disk, changed the UUID, segments, digest, flags or seal, which determine how \
                 data is read; restore a backup with `evfs volume header restore`, or, if you \
                 made the change, accept it with `evfs volume repair --reseal`"
            }
        }
    }
}
