//! The portable error table shared by servers and clients of different systems: "unified AFS
//! errors" (`src/afs/unified_afs.et` of OpenAFS), mapped to Linux errno values.
//!
//! The table follows the Linux errno list from 1 on, except for two names that are aliases
//! (`EWOULDBLOCK`, `EDEADLOCK`) and some at the end. The Linux kernel client knows the table only
//! up to `UAEMEDIUMTYPE` and maps about a hundred of its codes to `EREMOTEIO`
//! (`docs/protocol/afs.md` lists those that it preserves).

use super::Abort;

/// First code (`error_table uae`: the letters, six bits each, and eight bits for the error).
pub const BASE: i32 = 0x02f6_df00;

/// `UAEIO`.
pub(crate) const IO: Abort = Abort(BASE + 4);

/// Name and Linux errno of each code, from [`BASE`] on. 0 if Linux has no such error.
#[rustfmt::skip]
const TABLE: [(&str, u8); 130] = [
    ("UAEPERM", 1), ("UAENOENT", 2), ("UAESRCH", 3), ("UAEINTR", 4), ("UAEIO", 5),
    ("UAENXIO", 6), ("UAE2BIG", 7), ("UAENOEXEC", 8), ("UAEBADF", 9), ("UAECHILD", 10),
    ("UAEAGAIN", 11), ("UAENOMEM", 12), ("UAEACCES", 13), ("UAEFAULT", 14), ("UAENOTBLK", 15),
    ("UAEBUSY", 16), ("UAEEXIST", 17), ("UAEXDEV", 18), ("UAENODEV", 19), ("UAENOTDIR", 20),
    ("UAEISDIR", 21), ("UAEINVAL", 22), ("UAENFILE", 23), ("UAEMFILE", 24), ("UAENOTTY", 25),
    ("UAETXTBSY", 26), ("UAEFBIG", 27), ("UAENOSPC", 28), ("UAESPIPE", 29), ("UAEROFS", 30),
    ("UAEMLINK", 31), ("UAEPIPE", 32), ("UAEDOM", 33), ("UAERANGE", 34), ("UAEDEADLK", 35),
    ("UAENAMETOOLONG", 36), ("UAENOLCK", 37), ("UAENOSYS", 38), ("UAENOTEMPTY", 39),
    ("UAELOOP", 40), ("UAEWOULDBLOCK", 11), ("UAENOMSG", 42), ("UAEIDRM", 43),
    ("UAECHRNG", 44), ("UAEL2NSYNC", 45), ("UAEL3HLT", 46), ("UAEL3RST", 47), ("UAELNRNG", 48),
    ("UAEUNATCH", 49), ("UAENOCSI", 50), ("UAEL2HLT", 51), ("UAEBADE", 52), ("UAEBADR", 53),
    ("UAEXFULL", 54), ("UAENOANO", 55), ("UAEBADRQC", 56), ("UAEBADSLT", 57), ("UAEBFONT", 59),
    ("UAENOSTR", 60), ("UAENODATA", 61), ("UAETIME", 62), ("UAENOSR", 63), ("UAENONET", 64),
    ("UAENOPKG", 65), ("UAEREMOTE", 66), ("UAENOLINK", 67), ("UAEADV", 68), ("UAESRMNT", 69),
    ("UAECOMM", 70), ("UAEPROTO", 71), ("UAEMULTIHOP", 72), ("UAEDOTDOT", 73),
    ("UAEBADMSG", 74), ("UAEOVERFLOW", 75), ("UAENOTUNIQ", 76), ("UAEBADFD", 77),
    ("UAEREMCHG", 78), ("UAELIBACC", 79), ("UAELIBBAD", 80), ("UAELIBSCN", 81),
    ("UAELIBMAX", 82), ("UAELIBEXEC", 83), ("UAEILSEQ", 84), ("UAERESTART", 85),
    ("UAESTRPIPE", 86), ("UAEUSERS", 87), ("UAENOTSOCK", 88), ("UAEDESTADDRREQ", 89),
    ("UAEMSGSIZE", 90), ("UAEPROTOTYPE", 91), ("UAENOPROTOOPT", 92), ("UAEPROTONOSUPPORT", 93),
    ("UAESOCKTNOSUPPORT", 94), ("UAEOPNOTSUPP", 95), ("UAEPFNOSUPPORT", 96),
    ("UAEAFNOSUPPORT", 97), ("UAEADDRINUSE", 98), ("UAEADDRNOTAVAIL", 99), ("UAENETDOWN", 100),
    ("UAENETUNREACH", 101), ("UAENETRESET", 102), ("UAECONNABORTED", 103),
    ("UAECONNRESET", 104), ("UAENOBUFS", 105), ("UAEISCONN", 106), ("UAENOTCONN", 107),
    ("UAESHUTDOWN", 108), ("UAETOOMANYREFS", 109), ("UAETIMEDOUT", 110),
    ("UAECONNREFUSED", 111), ("UAEHOSTDOWN", 112), ("UAEHOSTUNREACH", 113),
    ("UAEALREADY", 114), ("UAEINPROGRESS", 115), ("UAESTALE", 116), ("UAEUCLEAN", 117),
    ("UAENOTNAM", 118), ("UAENAVAIL", 119), ("UAEISNAM", 120), ("UAEREMOTEIO", 121),
    ("UAEDQUOT", 122), ("UAENOMEDIUM", 123), ("UAEMEDIUMTYPE", 124), ("UAECANCELED", 125),
    ("UAENOTRECOVERABLE", 131), ("UAENOTSUP", 95), ("UAEOTHER", 0), ("UAEOWNERDEAD", 130),
    ("UAEPROCLIM", 0), ("UAEDISCON", 0),
];

/// Converts a Linux errno to its code. Two values have two codes (`UAEWOULDBLOCK` duplicates
/// `EAGAIN`, `UAENOTSUP` duplicates `EOPNOTSUPP`); the first one is returned.
pub fn from_errno(errno: i32) -> Option<Abort> {
    let wanted = u8::try_from(errno).ok().filter(|errno| *errno != 0)?;
    let slot = TABLE.iter().position(|(_, errno)| *errno == wanted)?;
    Some(Abort(BASE + i32::try_from(slot).ok()?))
}

/// Converts a code in the table to its Linux errno.
pub fn to_errno(code: Abort) -> Option<i32> {
    let (_, errno) = entry(code)?;
    (errno != 0).then(|| i32::from(errno))
}

/// Looks up the name of a code in the table.
pub fn name(code: Abort) -> Option<&'static str> {
    entry(code).map(|(name, _)| name)
}

fn entry(code: Abort) -> Option<(&'static str, u8)> {
    let slot = usize::try_from(code.0.checked_sub(BASE)?).ok()?;
    TABLE.get(slot).copied()
}
