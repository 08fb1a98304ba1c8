//! Errors of the file system: a kind that maps to an errno, a context, and a source.

use std::borrow::Cow;
use std::fmt;

/// Result of a file system operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Category of an error. Each kind maps to one errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No such file, directory or fileset.
    NotFound,
    /// The name is taken.
    Exists,
    NotDirectory,
    /// A directory, where none is allowed.
    IsDirectory,
    /// The directory has entries.
    NotEmpty,
    /// A name of more than 255 bytes, or a symlink target of more than 4095.
    NameTooLong,
    /// The device is full.
    NoSpace,
    /// The fileset has reached its quota.
    Quota,
    /// The file system or the snapshot is read-only.
    ReadOnly,
    /// An argument is invalid.
    Invalid,
    /// Beyond the maximum file size.
    FileTooLarge,
    /// The file already has the maximum number of links.
    TooManyLinks,
    /// The object is in use.
    Busy,
    /// No such extended attribute.
    NoAttribute,
    /// The value does not fit the caller's buffer, or the list of attributes is full.
    Range,
    /// The value of an attribute exceeds the maximum length.
    TooBig,
    /// No data or no hole follows (seek to data or to a hole).
    NoMore,
    /// The inode no longer exists; its number is never reused.
    Stale,
    /// The file system was closed while it was still in use.
    Closed,
    /// Not permitted for this kind of object.
    NotPermitted,
    /// The operation would span two filesets.
    CrossFileset,
    /// The operation is not supported for this kind of object.
    Unsupported,
    /// The data on the device is inconsistent.
    Corrupt,
    /// The device failed.
    Io,
}

impl Kind {
    /// Returns the errno of the kind.
    pub fn errno(self) -> i32 {
        match self {
            Kind::NotFound => libc::ENOENT,
            Kind::Exists => libc::EEXIST,
            Kind::NotDirectory => libc::ENOTDIR,
            Kind::IsDirectory => libc::EISDIR,
            Kind::NotEmpty => libc::ENOTEMPTY,
            Kind::NameTooLong => libc::ENAMETOOLONG,
            Kind::NoSpace => libc::ENOSPC,
            Kind::Quota => libc::EDQUOT,
            Kind::ReadOnly => libc::EROFS,
            Kind::Invalid => libc::EINVAL,
            Kind::FileTooLarge => libc::EFBIG,
            Kind::TooManyLinks => libc::EMLINK,
            Kind::Busy => libc::EBUSY,
            Kind::NoAttribute => libc::ENODATA,
            Kind::Range => libc::ERANGE,
            Kind::TooBig => libc::E2BIG,
            Kind::NoMore => libc::ENXIO,
            Kind::Stale => libc::ESTALE,
            Kind::Closed => libc::ENOTCONN,
            Kind::NotPermitted => libc::EPERM,
            Kind::CrossFileset => libc::EXDEV,
            Kind::Unsupported => libc::EOPNOTSUPP,
            Kind::Corrupt => libc::EUCLEAN,
            Kind::Io => libc::EIO,
        }
    }
}

/// Error of the file system.
///
/// Displays its context if it has one, otherwise its source, otherwise the text of its errno.
#[derive(Clone)]
pub struct Error {
    kind: Kind,
    /// `None` for errors of normal operation, such as a name that does not exist, which are frequent.
    more: Option<Box<More>>,
}

#[derive(Clone)]
struct More {
    context: Cow<'static, str>,
    source: Option<block::Error>,
}

impl Error {
    /// Creates an error with a context, which may be empty.
    pub fn new(kind: Kind, context: impl Into<Cow<'static, str>>) -> Error {
        let (context, source) = (context.into(), None);
        let more = Some(Box::new(More { context, source }));
        Error { kind, more }
    }

    /// Creates an error for inconsistent data on the device.
    pub(crate) fn corrupt(context: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Kind::Corrupt, context)
    }

    /// Returns the category of the error.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    fn context(&self) -> &str {
        self.more.as_ref().map_or("", |more| &more.context)
    }

    fn cause(&self) -> Option<&block::Error> {
        self.more.as_ref()?.source.as_ref()
    }

    /// Returns the errno; if a device failed, the errno of the device.
    pub fn errno(&self) -> i32 {
        match self.cause() {
            Some(source) => source.errno(),
            None => self.kind.errno(),
        }
    }
}

/// Creates the error of a file system that was closed.
pub(crate) fn closed() -> Error {
    Error::new(Kind::Closed, "the file system is closed")
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Error {
        Error { kind, more: None }
    }
}

impl From<block::Error> for Error {
    fn from(source: block::Error) -> Error {
        let kind = match source.kind() {
            block::ErrorKind::NoSpace => Kind::NoSpace,
            block::ErrorKind::ReadOnly => Kind::ReadOnly,
            _ => Kind::Io,
        };
        let (context, source) = ("".into(), Some(source));
        let more = Some(Box::new(More { context, source }));
        Error { kind, more }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.cause(), self.context()) {
            (Some(source), "") => write!(f, "{source}"),
            (None, "") => {
                let text = std::io::Error::from_raw_os_error(self.errno());
                write!(f, "{text}")
            }
            (_, context) => f.write_str(context),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause().map(|e| e as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_prints_its_context_or_its_errno_and_keeps_the_devices_errno() {
        assert_eq!(Error::from(Kind::NotFound).errno(), libc::ENOENT);
        assert!(Error::from(Kind::Quota).to_string().contains("quota"));
        let named = Error::new(Kind::Corrupt, "inode 5: no such type");
        assert_eq!(named.to_string(), "inode 5: no such type");
        assert_eq!(named.errno(), libc::EUCLEAN);
        let below = block::Error::from_io("disk", std::io::Error::from_raw_os_error(libc::ENXIO));
        let error = Error::from(below);
        assert_eq!((error.kind(), error.errno()), (Kind::Io, libc::ENXIO));
        assert!(error.to_string().starts_with("disk: "));
    }
}
