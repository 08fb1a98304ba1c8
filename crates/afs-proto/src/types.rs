//! Types common to the services (`src/fsint/common.xg`), and the identity of a server.

use crate::xdr::{Bytes, List, Reader, Text, Xdr};
use crate::{Abort, Result};

/// File name of at most 256 bytes (`AFSNAMEMAX`). The directory format is limited to 255, see
/// [`crate::dir::NAME_BYTES_MAX`].
pub type Name<'a> = Text<'a, 256>;
/// Target of a symbolic link, at most 1,024 bytes (`AFSPATHMAX`).
pub type Path<'a> = Text<'a, 1024>;
/// Opaque bytes, used only for the text of access lists (`AFSOPAQUEMAX`).
pub type Opaque<'a> = Bytes<'a, 1024>;
/// Human-readable message (`AFSOPAQUEMAX`, as a string).
pub type Message<'a> = Text<'a, 1024>;

/// Maximum number of files in one call (`AFSCBMAX`).
pub const FIDS_MAX: usize = 50;
/// Files of one call.
pub type AfsCbFids = List<AfsFid, FIDS_MAX>;
/// Callbacks of one call; `CB.CallBack` may omit them.
pub type AfsCbs = List<AfsCallBack, FIDS_MAX>;

/// Capability bits of a server or cache manager, 32 in a word (`AFSCAPABILITIESMAX`).
pub type Capabilities = List<u32, 196>;

/// Bits of the first word of [`Capabilities`].
pub mod capability {
    /// Errors are those of [`crate::uae`]. Set by servers and cache managers.
    pub const ERRORTRANS: u32 = 1;
    /// The file server implements `FetchData64` and `StoreData64`.
    pub const FILES64: u32 = 2;
    /// The file server permits locking with the write right.
    pub const WRITELOCKACL: u32 = 4;
    /// Reserved; not set by file servers.
    pub const SANEACLS: u32 = 8;
}

structure! {
    /// File within a cell: volume, vnode in the volume, and a uniquifier that distinguishes it from
    /// earlier files with the same vnode. Directories have odd vnodes, other files even ones; a
    /// volume's root is 1.1.
    #[derive(Copy, Default, Hash, PartialOrd, Ord)]
    pub struct AfsFid {
        /// Volume number.
        volume: u32,
        /// Vnode number.
        vnode: u32,
        /// Uniquifier of the vnode.
        unique: u32,
    }
}

/// File within its volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fid {
    /// Vnode number.
    pub vnode: u32,
    /// Uniquifier, which distinguishes files that have had the same vnode.
    pub unique: u32,
}

impl Fid {
    /// Root directory of a volume.
    pub const ROOT: Fid = Fid {
        vnode: 1,
        unique: 1,
    };

    /// Qualifies the identifier with a volume.
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

enumeration! {
    /// Kind of a callback.
    #[derive(Default)]
    pub enum CallBackType: "callback type" {
        /// No promise: the status of the file could not be read.
        #[default]
        None = 0,
        /// Not used by servers.
        Exclusive = 1,
        /// Promise to notify the client when the file changes.
        Shared = 2,
        /// The promise has ended.
        Dropped = 3,
    }
}

structure! {
    /// Promise of the server to notify the client when a file changes, or the end of such a
    /// promise.
    #[derive(Copy, Default)]
    pub struct AfsCallBack {
        /// 1 (`CALLBACK_VERSION`), or 0 if the status of the file could not be read.
        version: u32,
        /// Remaining lifetime in seconds. Relative, so that clocks need not agree.
        expires: u32,
        /// Kind of the callback.
        kind: CallBackType,
    }
}

impl AfsCallBack {
    /// Creates a promise that lasts `seconds`.
    pub fn promise(seconds: u32) -> AfsCallBack {
        AfsCallBack {
            version: 1,
            expires: seconds,
            kind: CallBackType::Shared,
        }
    }

    /// Creates the end of a promise, for `CB.CallBack`.
    pub fn dropped() -> AfsCallBack {
        AfsCallBack {
            version: 1,
            expires: 0,
            kind: CallBackType::Dropped,
        }
    }
}

/// Volume-wide information in a reply. Six words, five of them reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AfsVolSync {
    /// Creation time of the volume, a Unix timestamp in seconds. A client that sees it change
    /// discards all cached data of the volume.
    pub creation: u32,
}

impl<'a> Xdr<'a> for AfsVolSync {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        let [creation, ..] = <[u32; 6]>::read(from)?;
        Ok(AfsVolSync { creation })
    }
    fn write(&self, to: &mut Vec<u8>) {
        [self.creation, 0, 0, 0, 0, 0].write(to);
    }
}

/// Identity of a server or cache manager (`afsUUID`), in the byte order of RFC 4122.
///
/// On the wire it has eleven words: one for the first four bytes, one for each of the next two
/// pairs, one for each of the last eight bytes. Those eight are `char`s, and XDR sign-extends a
/// `char` if the compiler does (it does on x86). They are therefore written sign-extended and read
/// by their low eight bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

impl<'a> Xdr<'a> for Uuid {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        let [a, b, c, d] = u32::read(from)?.to_be_bytes();
        let [_, _, e, f] = u32::read(from)?.to_be_bytes();
        let [_, _, g, h] = u32::read(from)?.to_be_bytes();
        let mut all = [a, b, c, d, e, f, g, h, 0, 0, 0, 0, 0, 0, 0, 0];
        for single in all.iter_mut().skip(8) {
            [_, _, _, *single] = u32::read(from)?.to_be_bytes();
        }
        Ok(Uuid(all))
    }

    fn write(&self, to: &mut Vec<u8>) {
        let [a, b, c, d, e, f, g, h, singles @ ..] = self.0;
        to.extend_from_slice(&[a, b, c, d, 0, 0, e, f, 0, 0, g, h]);
        for single in singles {
            i32::from(single.cast_signed()).write(to);
        }
    }
}

/// Encodes an abort code within a structure: the error of one file among several.
impl<'a> Xdr<'a> for Abort {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        i32::read(from).map(Abort)
    }
    fn write(&self, to: &mut Vec<u8>) {
        self.0.write(to);
    }
}
