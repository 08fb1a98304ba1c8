//! Errors at the waist: a kind to match on, a context to read, a source to chain.

use crate::{Op, OpKind};
use std::fmt;
use std::io;

/// What a block operation gives.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, for a caller that has to decide. Few, and stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request reaches beyond the end of the device.
    OutOfRange,
    /// Offset, length or a buffer is not a multiple of the logical block size.
    Misaligned,
    /// The request is longer than the largest transfer of the device.
    TooLarge,
    /// This way to the disk is gone; another way may still work.
    PathLost,
    /// No answer within the time allowed.
    TimedOut,
    /// The medium reports an error: the data is not there any more.
    Media,
    /// A write to a device that is read-only.
    ReadOnly,
    /// No space is left below.
    NoSpace,
    /// The request was given up before it was carried out.
    Cancelled,
    /// The device cannot do this kind of request.
    Unsupported,
    /// Somebody else holds the device.
    Busy,
    /// The other side does not take the request now, and nothing of it is on its way any more: another
    /// way may take it, or this one later.
    NotNow,
    /// No such device or file.
    NotFound,
    /// The system refuses access.
    Permission,
    /// The configuration makes no sense: a value, and why, stand in the detail.
    Invalid,
    /// Anything else the system reports; the source says what.
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
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::Unsupported => "not supported",
            ErrorKind::Busy => "busy",
            ErrorKind::NotNow => "not now",
            ErrorKind::NotFound => "not found",
            ErrorKind::Permission => "permission denied",
            ErrorKind::Invalid => "invalid",
            ErrorKind::Io => "input/output error",
        }
    }

    /// The kind that an errno of the kernel stands for.
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

/// An error of a device, with the operation it happened in.
///
/// Printed as `DEVICE: OPERATION of LENGTH bytes at OFFSET: KIND: DETAIL`; the source is chained
/// and not repeated.
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
    /// An error of `device` without an operation, for example when it is opened.
    pub fn new(kind: ErrorKind, device: impl Into<String>, detail: impl Into<String>) -> Error {
        Error(Box::new(Inner {
            kind,
            device: device.into(),
            op: None,
            range: None,
            detail: detail.into(),
            source: None,
        }))
    }

    /// The error that an errno of the kernel stands for; the errno stays in the source.
    pub fn from_io(device: impl Into<String>, source: io::Error) -> Error {
        let kind = source
            .raw_os_error()
            .map_or(ErrorKind::Io, ErrorKind::from_errno);
        let mut error = Error::new(kind, device, "");
        error.0.source = Some(source);
        error
    }

    /// Adds the operation, its offset and its length in bytes.
    pub fn in_op(mut self, op: &Op) -> Error {
        self.0.op = Some(op.kind());
        self.0.range = op.range();
        self
    }

    /// Adds what the caller knows and a reader needs: why, and what to do next.
    pub fn detail(mut self, detail: impl Into<String>) -> Error {
        self.0.detail = detail.into();
        self
    }

    /// The same error under another kind.
    pub fn with_kind(mut self, kind: ErrorKind) -> Error {
        self.0.kind = kind;
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The device it happened on.
    pub fn device(&self) -> &str {
        &self.0.device
    }

    /// Offset and length in bytes, where the operation has them.
    pub fn range(&self) -> Option<(u64, u64)> {
        self.0.range
    }

    /// The errno to give to a client that speaks errno (NBD, FUSE).
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
    /// An [`io::Error`] cannot be cloned; its errno can, and it is all the kernel ever gives.
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
