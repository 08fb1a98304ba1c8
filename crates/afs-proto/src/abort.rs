//! Abort codes: how a call ends when it has no reply.

use crate::uae;
use std::fmt;

/// The code of an abort: one number for errors of Rx (negative), of the marshalling (around -450), of
/// a file server (errno below 100, `V...` above), of the volume location server (`VL_...`), or of any
/// server by Linux's errno ([`crate::uae`]).
///
/// A client that did not say [`ERRORTRANS`](crate::capability::ERRORTRANS) takes a small number for an
/// errno of its own system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Abort(pub i32);

macro_rules! codes {
    ($($(#[$doc:meta])+ $name:ident = $code:literal,)*) => {
        impl Abort {
            $($(#[$doc])+ pub const $name: Abort = Abort($code);)*
        }

        const NAMES: &[(Abort, &str)] = &[$((Abort($code), stringify!($name)),)*];
    };
}

codes! {
    /// The connection is dead (`rx/rx.h`).
    RX_CALL_DEAD = -1,
    /// Not a call for this service.
    RX_INVALID_OPERATION = -2,
    /// The call took too long.
    RX_CALL_TIMEOUT = -3,
    /// The data ended early.
    RX_EOF = -4,
    /// The peer does not speak Rx as it should.
    RX_PROTOCOL_ERROR = -5,
    /// The user gave up.
    RX_USER_ABORT = -6,
    /// The port is taken.
    RX_ADDRINUSE = -7,
    /// A packet is too large.
    RX_MSGSIZE = -8,
    /// The server is being restarted; try again (`VRESTARTING`, `src/util/errors.h`).
    VRESTARTING = -100,

    /// A client could not write its arguments (`rxgen/rxgen_consts.h`).
    RXGEN_CC_MARSHAL = -450,
    /// A client could not read the results.
    RXGEN_CC_UNMARSHAL = -451,
    /// A server could not write its results.
    RXGEN_SS_MARSHAL = -452,
    /// A server could not read the arguments.
    RXGEN_SS_UNMARSHAL = -453,
    /// A server could not read the opcode.
    RXGEN_DECODE = -454,
    /// A server does not have that procedure.
    RXGEN_OPCODE = -455,
    /// A server could not release memory.
    RXGEN_SS_XDRFREE = -456,
    /// A client could not release memory.
    RXGEN_CC_XDRFREE = -457,

    /// The volume needs to be repaired (`src/util/errors.h`, as those that follow).
    VSALVAGE = 101,
    /// There is no such vnode, or another file has its place.
    VNOVNODE = 102,
    /// The volume is not here, or not online.
    VNOVOL = 103,
    /// The volume exists already.
    VVOLEXISTS = 104,
    /// The volume is not in service.
    VNOSERVICE = 105,
    /// The volume is offline; its message says why.
    VOFFLINE = 106,
    /// The volume is online already.
    VONLINE = 107,
    /// The partition is full.
    VDISKFULL = 108,
    /// The volume's quota is used up.
    VOVERQUOTA = 109,
    /// The volume is busy for a moment; clients wait and try again.
    VBUSY = 110,
    /// The volume is elsewhere now; clients ask the volume location server.
    VMOVED = 111,
    /// The vnode cannot be read at present.
    VIO = 112,
    /// The volume may not use this residency.
    VRESTRICTED = 120,

    /// That number is taken (`src/vlserver/vl_errors.et`, as those that follow).
    VL_IDEXIST = 363520,
    /// The database could not be read or written.
    VL_IO = 363521,
    /// That name is taken.
    VL_NAMEEXIST = 363522,
    /// An entry could not be made.
    VL_CREATEFAIL = 363523,
    /// There is no such volume.
    VL_NOENT = 363524,
    /// There is no volume at all.
    VL_EMPTY = 363525,
    /// The entry was deleted.
    VL_ENTDELETED = 363526,
    /// No volume can have that name.
    VL_BADNAME = 363527,
    /// There is no entry at that place.
    VL_BADINDEX = 363528,
    /// There is no such type of volume.
    VL_BADVOLTYPE = 363529,
    /// There is no such server.
    VL_BADSERVER = 363530,
    /// There is no such partition.
    VL_BADPARTITION = 363531,
    /// No place for a further replica.
    VL_REPSFULL = 363532,
    /// There is no replica there.
    VL_NOREPSERVER = 363533,
    /// There is a replica there already.
    VL_DUPREPSERVER = 363534,
    /// There is no volume that is written.
    VL_RWNOTFOUND = 363535,
    /// A count of references makes no sense.
    VL_BADREFCOUNT = 363536,
    /// Too much to answer.
    VL_SIZEEXCEEDED = 363537,
    /// The entry makes no sense.
    VL_BADENTRY = 363538,
    /// Too many numbers wanted at once.
    VL_BADVOLIDBUMP = 363539,
    /// The number of the replica or the backup is taken.
    VL_IDALREADYHASHED = 363540,
    /// Another operation has the entry locked.
    VL_ENTRYLOCKED = 363541,
    /// There is no such operation.
    VL_BADVOLOPER = 363542,
    /// There is no such way of unlocking.
    VL_BADRELLOCKTYPE = 363543,
    /// The last release did not end well.
    VL_RERELEASE = 363544,
    /// A flag of a server makes no sense.
    VL_BADSERVERFLAG = 363545,
    /// The caller may not.
    VL_PERM = 363546,
    /// Out of memory.
    VL_NOMEM = 363547,
    /// The database has another version.
    VL_BADVERSION = 363548,
    /// A number is outside the database.
    VL_INDEXERANGE = 363549,
    /// Two servers have one address.
    VL_MULTIPADDR = 363550,
    /// Bits without a meaning.
    VL_BADMASK = 363551,
}

impl Abort {
    /// The code for one of Linux's errors, for a client that said
    /// [`ERRORTRANS`](crate::capability::ERRORTRANS). One that the table does not have becomes `EIO`.
    pub fn from_errno(errno: i32) -> Abort {
        uae::from_errno(errno).unwrap_or(uae::IO)
    }

    /// Linux's error that the code stands for, if it is one of [`crate::uae`].
    pub fn errno(self) -> Option<i32> {
        uae::to_errno(self)
    }

    /// The name in the sources.
    pub fn name(self) -> Option<&'static str> {
        let found = NAMES.iter().find(|(code, _)| *code == self);
        found.map(|(_, name)| *name).or_else(|| uae::name(self))
    }
}

impl fmt::Display for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "{}", self.0),
        }
    }
}
