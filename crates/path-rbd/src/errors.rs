//! Conversion of the negative error numbers of Ceph's libraries to [`block::Error`].

use block::{Error, ErrorKind};
use std::io;

/// Number with which a cluster refuses a client on its blocklist (`EBLOCKLISTED`).
pub(crate) const BLOCKLISTED: i32 = libc::ESHUTDOWN;

/// A failed call to one of Ceph's libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Name of the function.
    pub(crate) call: &'static str,
    /// Positive error number.
    pub(crate) errno: i32,
}

impl Failure {
    /// Describes the failure, without a remedy.
    pub(crate) fn text(self) -> String {
        let why = io::Error::from_raw_os_error(self.errno);
        block::without_number(&format!("{}: {why}", self.call))
    }
}

/// Finds the kind of the error of a request.
pub(crate) fn kind(errno: i32) -> ErrorKind {
    match errno {
        BLOCKLISTED | libc::ENOTCONN => ErrorKind::PathLost,
        libc::EROFS => ErrorKind::Busy,
        libc::EINVAL => ErrorKind::Invalid,
        other => ErrorKind::from_errno(other),
    }
}

/// Converts the failure of a request. `name`: the address of the image.
pub(crate) fn of_request(name: &str, errno: i32) -> Error {
    let why = match errno {
        BLOCKLISTED => "this client is on the blocklist of the cluster".to_owned(),
        libc::EROFS => "another client has the exclusive lock of the image".to_owned(),
        libc::ENOSPC | libc::EDQUOT => {
            "the pool is full; add storage, or raise its quota".to_owned()
        }
        libc::ENOENT => "the image was removed".to_owned(),
        libc::EPERM | libc::EACCES => {
            "the user may not do this; its capabilities need `profile rbd`".to_owned()
        }
        libc::ETIMEDOUT => "the cluster did not carry it out in time".to_owned(),
        other => io::Error::from_raw_os_error(other).to_string(),
    };
    Error::new(kind(errno), name, why)
}

/// Converts a failure while the image was being opened.
pub(crate) fn of_open(name: &str, failure: Failure) -> Error {
    let text = failure.text();
    let (kind, what) = match (failure.call, failure.errno) {
        ("rados_conf_read_file", _) => (
            ErrorKind::NotFound,
            "the configuration of the cluster cannot be read; name it with ?conf=FILE",
        ),
        ("rados_connect", libc::ENOENT) => (
            ErrorKind::NotFound,
            "no monitor or no keyring is found; check `mon host` and `keyring` in the \
             configuration of the cluster",
        ),
        ("rados_connect", libc::EACCES | libc::EPERM) => (
            ErrorKind::Permission,
            "the cluster refuses the user or its key; check ?id=USER and its keyring",
        ),
        ("rados_connect", _) => (
            ErrorKind::PathLost,
            "no monitor of the cluster answers; check `ceph status`",
        ),
        ("rados_ioctx_create", libc::ENOENT) => (
            ErrorKind::NotFound,
            "the cluster has no such pool; `ceph osd pool ls` lists them",
        ),
        ("rbd_open", libc::ENOENT) => (
            ErrorKind::NotFound,
            "the pool has no such image; `rbd ls` lists them",
        ),
        ("rbd_open", libc::EPERM | libc::EACCES) => (
            ErrorKind::Permission,
            "the user may not open the image; its capabilities need `profile rbd`",
        ),
        ("rados_blocklist_add", libc::EPERM | libc::EACCES) => (
            ErrorKind::Permission,
            "the user may not fence other clients; its capability for monitors needs `profile rbd`",
        ),
        (_, errno) => (kind(errno), "Ceph reports an error"),
    };
    Error::new(kind, name, format!("{what} ({text})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_kind_and_says_what_to_do() {
        let full = of_request("rbd:p/i", libc::ENOSPC);
        assert_eq!(full.kind(), ErrorKind::NoSpace);
        assert!(full.to_string().contains("quota"), "{full}");
        assert_eq!(of_request("x", BLOCKLISTED).kind(), ErrorKind::PathLost);
        let call = "rbd_open";
        let errno = libc::ENOENT;
        let none = of_open("rbd:p/i", Failure { call, errno });
        assert_eq!(none.kind(), ErrorKind::NotFound);
        assert!(none.to_string().contains("rbd ls"), "{none}");
        for errno in [libc::EPERM, libc::EACCES] {
            let call = "rados_blocklist_add";
            let refused = of_open("rbd:p/i", Failure { call, errno });
            assert_eq!(refused.kind(), ErrorKind::Permission);
            assert!(refused.to_string().contains("profile rbd"), "{refused}");
        }
    }
}
