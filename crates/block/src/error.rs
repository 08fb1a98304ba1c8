//! Errors of block devices: a kind to match on, a context for messages, and a source.

use crate::op::{Op, OpKind};
use std::fmt;
use std::io;

/// Result of a block operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Category of an error, for callers that have to react to it. The list is short and stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request reaches beyond the end of the device.
    OutOfRange,
    /// Offset, length or a buffer is not a multiple of the logical block size.
    Misaligned,
    /// The request is longer than the largest transfer of the device.
    TooLarge,
    /// The path to the disk is lost; another path may still work.
    PathLost,
    /// No answer within the time allowed.
    TimedOut,
    /// The medium reports an error: the data is lost.
    Media,
    /// A write to a device that is read-only.
    ReadOnly,
    /// The lower device has no space left.
    NoSpace,
    /// The request was canceled before it was carried out.
    Cancelled,
    /// The device does not support this operation.
    Unsupported,
    /// The device is in use by another holder.
    Busy,
    /// The peer does not accept the request now, and no part of it is still on its way: another
    /// path may accept it, or this path later.
    NotNow,
    /// No such device or file.
    NotFound,
    /// The system denies access.
    Permission,
    /// The configuration is invalid; the detail names the value and the reason.
    Invalid,
    /// Any other error that the system reports; the source has the reason.
    Io,
}

impl ErrorKind {
    fn text(self) -> &'static str {
        match self {
            ErrorKind::OutOfRange => "beyond the end of the device",
            ErrorKind::Misaligned => "not aligned to the logical block size",
            ErrorKind::TooLarge => "longer than the largest transfer",
            ErrorKind::PathLost => "the path is lost",
            ErrorKind::TimedOut => "timed out",
            ErrorKind::Media => "medium error",
            ErrorKind::ReadOnly => "the device is read-only",
            ErrorKind::NoSpace => "no space left",
            ErrorKind::Cancelled => "canceled",
            ErrorKind::Unsupported => "not supported",
            ErrorKind::Busy => "busy",
            ErrorKind::NotNow => "temporarily unavailable",
            ErrorKind::NotFound => "not found",
            ErrorKind::Permission => "permission denied",
            ErrorKind::Invalid => "invalid",
            ErrorKind::Io => "input/output error",
        }
    }

    /// Maps an errno of the kernel to a kind.
    pub fn from_errno(errno: i32) -> ErrorKind {
        match errno {
            libc::EAGAIN | libc::EBUSY | libc::ETXTBSY => ErrorKind::Busy,
            libc::ENOENT => ErrorKind::NotFound,
            libc::EACCES | libc::EPERM => ErrorKind::Permission,
            libc::EROFS | libc::EBADF => ErrorKind::ReadOnly,
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => ErrorKind::NoSpace,
            libc::ECANCELED => ErrorKind::Cancelled,
            libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY => ErrorKind::Unsupported,
            libc::ETIMEDOUT => ErrorKind::TimedOut,
            libc::ENODATA | libc::EILSEQ | libc::EUCLEAN => ErrorKind::Media,
            libc::ENODEV | libc::ENXIO | libc::ENOLINK | libc::ECONNRESET | libc::EPIPE => {
                ErrorKind::PathLost
            }
            _ => ErrorKind::Io,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// Removes ` (os error N)` from a system message, which adds nothing for a reader.
pub fn without_number(text: &str) -> String {
    const MARK: &str = " (os error ";
    let mut parts = text.split(MARK);
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit() || c == '-');
        clean.push_str(rest.strip_prefix(')').unwrap_or(rest));
    }
    clean
}

/// An error of a device, with the operation that failed.
///
/// Printed as `DEVICE: OPERATION of LENGTH bytes at OFFSET: KIND: DETAIL`. The source is available
/// through [`std::error::Error::source`] and not printed.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    device: String,
    op: Option<OpKind>,
    range: Option<(u64, u64)>,
    detail: String,
    source: Option<io::Error>,
}

impl Error {
    /// Creates an error of `device` outside of any operation, for example when it is opened.
    pub fn new(kind: ErrorKind, device: impl Into<String>, detail: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            kind,
            device: device.into(),
            op: None,
            range: None,
            detail: without_number(&detail.into()),
            source: None,
        }))
    }

    /// Creates an error from an I/O error of the kernel; the errno stays available in the source.
    pub fn from_io(device: impl Into<String>, source: io::Error) -> Error {
        let kind = source
            .raw_os_error()
            .map_or(ErrorKind::Io, ErrorKind::from_errno);
        let mut error = Error::new(kind, device, "");
        error.0.source = Some(source);
        error
    }

    /// Adds the operation, and its offset and length in bytes.
    pub fn in_op(mut self, op: &Op) -> Error {
        self.0.op = Some(op.kind());
        self.0.range = op.range();
        self
    }

    /// Sets the detail for the reader: the reason, and what to do next.
    pub fn detail(mut self, detail: impl Into<String>) -> Error {
        self.0.detail = without_number(&detail.into());
        self
    }

    /// Replaces the kind of the error.
    pub fn with_kind(mut self, kind: ErrorKind) -> Error {
        self.0.kind = kind;
        self
    }

    /// Returns the category of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the name of the device.
    pub fn device(&self) -> &str {
        &self.0.device
    }

    /// Returns offset and length in bytes, where the operation has them.
    pub fn range(&self) -> Option<(u64, u64)> {
        self.0.range
    }

    /// Returns the errno for a client whose protocol has errnos (NBD, FUSE).
    pub fn errno(&self) -> i32 {
        if let Some(errno) = self.0.source.as_ref().and_then(io::Error::raw_os_error) {
            return errno;
        }
        match self.0.kind {
            ErrorKind::OutOfRange | ErrorKind::Misaligned | ErrorKind::TooLarge => libc::EINVAL,
            ErrorKind::Invalid => libc::EINVAL,
            ErrorKind::ReadOnly => libc::EROFS,
            ErrorKind::Permission => libc::EPERM,
            ErrorKind::NoSpace => libc::ENOSPC,
            ErrorKind::Unsupported => libc::EOPNOTSUPP,
            ErrorKind::Busy | ErrorKind::NotNow => libc::EBUSY,
            ErrorKind::NotFound => libc::ENOENT,
            ErrorKind::TimedOut => libc::ETIMEDOUT,
            ErrorKind::Cancelled => libc::ECANCELED,
            ErrorKind::PathLost | ErrorKind::Media | ErrorKind::Io => libc::EIO,
        }
    }
}

impl Clone for Error {
    /// An [`io::Error`] cannot be cloned; its errno can, and the kernel reports nothing else.
    fn clone(&self) -> Error {
        let source = self.0.source.as_ref().map(|e| match e.raw_os_error() {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::new(e.kind(), e.to_string()),
        });
        Error(Box::new(Inner {
            kind: self.0.kind,
            device: self.0.device.clone(),
            op: self.0.op,
            range: self.0.range,
            detail: self.0.detail.clone(),
            source,
        }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.0.device)?;
        match (self.0.op, self.0.range) {
            (Some(op), Some((offset, len))) => write!(f, "{op} of {len} bytes at {offset}: ")?,
            (Some(op), None) => write!(f, "{op}: ")?,
            (None, _) => {}
        }
        write!(f, "{}", self.0.kind)?;
        if !self.0.detail.is_empty() {
            write!(f, ": {}", self.0.detail)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        match &self.0.source {
            Some(source) => write!(f, " ({source})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|e| e as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buf;
    use std::error::Error as _;

    fn write() -> Op {
        Op::Write {
            offset: 4096,
            bufs: Buf::zeroed(512).into(),
            fua: false,
        }
    }

    #[test]
    fn an_error_prints_device_operation_kind_and_detail_but_not_its_source() {
        let source = io::Error::from_raw_os_error(libc::ENOSPC);
        let error = Error::from_io("disk", source).in_op(&write());
        assert_eq!(
            error.to_string(),
            "disk: write of 512 bytes at 4096: no space left"
        );
        assert!(error.source().is_some());
        let error = error.detail("free some").with_kind(ErrorKind::Io);
        assert_eq!(
            error.to_string(),
            "disk: write of 512 bytes at 4096: input/output error: free some"
        );
        let flush = Error::new(ErrorKind::PathLost, "disk", "").in_op(&Op::Flush);
        assert_eq!(flush.to_string(), "disk: flush: the path is lost");
        let open = Error::new(ErrorKind::NotFound, "disk", "");
        assert_eq!(open.to_string(), "disk: not found");
        assert!(open.source().is_none());
    }

    #[test]
    fn a_detail_has_no_number_of_the_system() {
        let refused = io::Error::from_raw_os_error(libc::ECONNREFUSED);
        let error = Error::new(
            ErrorKind::PathLost,
            "disk",
            format!("cannot connect: {refused}"),
        );
        let expected = "disk: the path is lost: cannot connect: Connection refused";
        assert_eq!(error.to_string(), expected);
        let error = error.detail(format!("{refused}; retried"));
        let expected = "disk: the path is lost: Connection refused; retried";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn an_errno_is_kept_through_context_and_clone() {
        for errno in [libc::EIO, libc::ENOSPC, libc::ENXIO, libc::EILSEQ] {
            let error = Error::from_io("disk", io::Error::from_raw_os_error(errno));
            let copy = error.clone().in_op(&write()).detail("why");
            assert_eq!((error.errno(), copy.errno()), (errno, errno));
            assert_eq!(copy.kind(), ErrorKind::from_errno(errno));
            assert_eq!((copy.range(), copy.device()), (Some((4096, 512)), "disk"));
        }
    }

    #[test]
    fn an_error_without_an_errno_has_one_that_fits_its_kind() {
        let errno = |kind| Error::new(kind, "disk", "").errno();
        assert_eq!(errno(ErrorKind::OutOfRange), libc::EINVAL);
        assert_eq!(errno(ErrorKind::ReadOnly), libc::EROFS);
        assert_eq!(errno(ErrorKind::NoSpace), libc::ENOSPC);
        assert_eq!(errno(ErrorKind::Media), libc::EIO);
        let other = Error::from_io("disk", io::Error::other("strange"));
        assert_eq!((other.kind(), other.errno()), (ErrorKind::Io, libc::EIO));
        assert_eq!(other.clone().source().unwrap().to_string(), "strange");
    }
}
