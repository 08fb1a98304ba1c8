//! Abort codes, which end a call in place of a reply.

pub mod uae;

use std::fmt;

/// Code of an abort. One number space holds errors of Rx (negative), of the marshalling (around
/// -450), of a file server (errno below 100, `V...` above), of the volume location server
/// (`VL_...`), and Linux errno values in the portable encoding of [`uae`].
///
/// A client without the capability [`ERRORTRANS`](crate::capability::ERRORTRANS) interprets a small
/// number as an errno of its own system.
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
    /// The packet is not a call for this service.
    RX_INVALID_OPERATION = -2,
    /// The call timed out.
    RX_CALL_TIMEOUT = -3,
    /// The data ended early.
    RX_EOF = -4,
    /// The peer violated the Rx protocol.
    RX_PROTOCOL_ERROR = -5,
    /// The user canceled the call.
    RX_USER_ABORT = -6,
    /// The port is in use.
    RX_ADDRINUSE = -7,
    /// A packet exceeds the maximum size.
    RX_MSGSIZE = -8,
    /// The server is restarting; retry (`VRESTARTING`, `src/util/errors.h`).
    VRESTARTING = -100,

    /// The client failed to marshal its arguments (`rxgen/rxgen_consts.h`).
    RXGEN_CC_MARSHAL = -450,
    /// The client failed to unmarshal the results.
    RXGEN_CC_UNMARSHAL = -451,
    /// The server failed to marshal its results.
    RXGEN_SS_MARSHAL = -452,
    /// The server failed to unmarshal the arguments.
    RXGEN_SS_UNMARSHAL = -453,
    /// The server failed to decode the opcode.
    RXGEN_DECODE = -454,
    /// The server does not implement the procedure.
    RXGEN_OPCODE = -455,
    /// The server failed to release memory.
    RXGEN_SS_XDRFREE = -456,
    /// The client failed to release memory.
    RXGEN_CC_XDRFREE = -457,

    /// The volume needs salvaging (`src/util/errors.h`, as the following codes).
    VSALVAGE = 101,
    /// The vnode does not exist, or another file reuses it.
    VNOVNODE = 102,
    /// The volume is not on this server, or not online.
    VNOVOL = 103,
    /// The volume already exists.
    VVOLEXISTS = 104,
    /// The volume is not in service.
    VNOSERVICE = 105,
    /// The volume is offline; its offline message states the reason.
    VOFFLINE = 106,
    /// The volume is already online.
    VONLINE = 107,
    /// The partition is full.
    VDISKFULL = 108,
    /// The volume's quota is exceeded.
    VOVERQUOTA = 109,
    /// The volume is temporarily busy; clients wait and retry.
    VBUSY = 110,
    /// The volume moved to another server; clients ask the volume location server.
    VMOVED = 111,
    /// The vnode is temporarily unreadable.
    VIO = 112,
    /// The volume is not permitted to use this residency.
    VRESTRICTED = 120,

    /// The volume number is in use (`src/vlserver/vl_errors.et`, as the following codes).
    VL_IDEXIST = 363520,
    /// Reading or writing the database failed.
    VL_IO = 363521,
    /// The volume name is in use.
    VL_NAMEEXIST = 363522,
    /// An entry could not be created.
    VL_CREATEFAIL = 363523,
    /// The volume does not exist.
    VL_NOENT = 363524,
    /// The database contains no volume.
    VL_EMPTY = 363525,
    /// The entry was deleted.
    VL_ENTDELETED = 363526,
    /// The volume name is invalid.
    VL_BADNAME = 363527,
    /// The index is out of range.
    VL_BADINDEX = 363528,
    /// The volume type is invalid.
    VL_BADVOLTYPE = 363529,
    /// The server does not exist.
    VL_BADSERVER = 363530,
    /// The partition does not exist.
    VL_BADPARTITION = 363531,
    /// No room for another replication site.
    VL_REPSFULL = 363532,
    /// The replication site does not exist.
    VL_NOREPSERVER = 363533,
    /// The replication site already exists.
    VL_DUPREPSERVER = 363534,
    /// The read-write volume does not exist.
    VL_RWNOTFOUND = 363535,
    /// A reference count is invalid.
    VL_BADREFCOUNT = 363536,
    /// The reply would be too large.
    VL_SIZEEXCEEDED = 363537,
    /// The entry is invalid.
    VL_BADENTRY = 363538,
    /// Too many volume numbers requested at once.
    VL_BADVOLIDBUMP = 363539,
    /// The number of the replica or backup is in use.
    VL_IDALREADYHASHED = 363540,
    /// The entry is locked by another operation.
    VL_ENTRYLOCKED = 363541,
    /// The volume operation is invalid.
    VL_BADVOLOPER = 363542,
    /// The kind of lock release is invalid.
    VL_BADRELLOCKTYPE = 363543,
    /// The last release did not complete.
    VL_RERELEASE = 363544,
    /// A server flag is invalid.
    VL_BADSERVERFLAG = 363545,
    /// Permission denied.
    VL_PERM = 363546,
    /// Out of memory.
    VL_NOMEM = 363547,
    /// The database version does not match.
    VL_BADVERSION = 363548,
    /// An index is out of range.
    VL_INDEXERANGE = 363549,
    /// Two servers share an address.
    VL_MULTIPADDR = 363550,
    /// Undefined bits are set.
    VL_BADMASK = 363551,
}

impl Abort {
    /// Converts a Linux errno, for a client with the capability
    /// [`ERRORTRANS`](crate::capability::ERRORTRANS). An errno without a code maps to `EIO`.
    pub fn from_errno(errno: i32) -> Abort {
        uae::from_errno(errno).unwrap_or(uae::IO)
    }

    /// Returns the Linux errno that the code stands for, if it is one of [`uae`].
    pub fn errno(self) -> Option<i32> {
        uae::to_errno(self)
    }

    /// Returns the constant's name in the OpenAFS sources.
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
