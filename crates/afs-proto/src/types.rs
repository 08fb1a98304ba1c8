//! What the services have in common (`src/fsint/common.xg`), and a server's identity.

use crate::xdr::{Bytes, List, Reader, Text, Xdr};
use crate::{Abort, Result};

/// Bytes in a name at most (`AFSNAMEMAX`). A directory's format stops at 255, see
/// [`crate::dir::NAME_BYTES_MAX`].
pub type Name<'a> = Text<'a, 256>;
/// Bytes in what a symbolic link says at most (`AFSPATHMAX`).
pub type Path<'a> = Text<'a, 1024>;
/// Opaque bytes, which here is always an access list's text (`AFSOPAQUEMAX`).
pub type Opaque<'a> = Bytes<'a, 1024>;
/// A message for people (`AFSOPAQUEMAX`, as a string).
pub type Message<'a> = Text<'a, 1024>;

/// Files in one call at most (`AFSCBMAX`).
pub const FIDS_MAX: usize = 50;
/// The files of one call.
pub type AfsCbFids = List<AfsFid, FIDS_MAX>;
/// The callbacks of one call; `CB.CallBack` may have none beside its files.
pub type AfsCbs = List<AfsCallBack, FIDS_MAX>;

/// What a server, or a cache manager, is able to do: bits, 32 in a word (`AFSCAPABILITIESMAX`).
pub type Capabilities = List<u32, 196>;

/// The bits of the first word of [`Capabilities`].
pub mod capability {
    /// Errors are those of [`crate::uae`]. Servers and cache managers say this.
    pub const ERRORTRANS: u32 = 1;
    /// A file server has `FetchData64` and `StoreData64`.
    pub const FILES64: u32 = 2;
    /// A file server lets a holder of the right to write lock a file.
    pub const WRITELOCKACL: u32 = 4;
    /// Reserved; a file server does not say it.
    pub const SANEACLS: u32 = 8;
}

structure! {
    /// A file within a cell: its volume, its place in the volume, and what tells it from earlier files
    /// of that place. Directories have odd vnodes, all else even ones; a volume's root is 1.1.
    #[derive(Copy, Default, Hash, PartialOrd, Ord)]
    pub struct AfsFid {
        /// Volume.
        volume: u32,
        /// Vnode.
        vnode: u32,
        /// Uniquifier.
        unique: u32,
    }
}

enumeration! {
    /// What a callback is.
    #[derive(Default)]
    pub enum CallBackType: "callback type" {
        /// Not a promise: beside a file whose status could not be had.
        #[default]
        None = 0,
        /// Not used by servers.
        Exclusive = 1,
        /// A promise to tell when the file changes.
        Shared = 2,
        /// The promise is over.
        Dropped = 3,
    }
}

structure! {
    /// A promise that the server tells when a file changes, or the end of one.
    #[derive(Copy, Default)]
    pub struct AfsCallBack {
        /// 1 (`CALLBACK_VERSION`), or 0 beside a file whose status could not be had.
        version: u32,
        /// Seconds from now on that the promise holds. Relative: no clocks are compared.
        expires: u32,
        /// What it is.
        kind: CallBackType,
    }
}

impl AfsCallBack {
    /// A promise for `seconds`.
    pub fn promise(seconds: u32) -> AfsCallBack {
        AfsCallBack {
            version: 1,
            expires: seconds,
            kind: CallBackType::Shared,
        }
    }

    /// The end of a promise, for `CB.CallBack`.
    pub fn dropped() -> AfsCallBack {
        AfsCallBack {
            version: 1,
            expires: 0,
            kind: CallBackType::Dropped,
        }
    }
}

/// What a reply says of the volume as a whole. Six words, five of them spare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AfsVolSync {
    /// When the volume was made, in seconds of 1970. A client that sees it change throws away what it
    /// knows of the volume.
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

/// The identity of a server or a cache manager (`afsUUID`), in the byte order of RFC 4122.
///
/// On the wire it has eleven words: one for the first four bytes, one for each of the next two pairs,
/// one for each of the last eight bytes. Those eight are `char`s, and XDR widens a `char` with its
/// sign where the compiler does (on x86 it does). So they are written with their sign, and read by
/// their low eight bits.
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

/// An abort code within a structure: an error of one file among several.
impl<'a> Xdr<'a> for Abort {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        i32::read(from).map(Abort)
    }
    fn write(&self, to: &mut Vec<u8>) {
        self.0.write(to);
    }
}
