//! Errors of the file system: a kind that is an errno, a context to read, a source to chain.

use std::borrow::Cow;
use std::fmt;

/// What an operation of the file system gives.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. Each kind is one errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No such file, directory or fileset.
    NotFound,
    /// The name is taken.
    Exists,
    /// A directory was needed.
    NotDirectory,
    /// A directory was given where none may be.
    IsDirectory,
    /// The directory has entries.
    NotEmpty,
    /// A name of more than 255 bytes, or a symlink target of more than 4095.
    NameTooLong,
    /// The device is full.
    NoSpace,
    /// The fileset has reached its quota.
    Quota,
    /// The file system, or the snapshot, is not to be changed.
    ReadOnly,
    /// An argument makes no sense.
    Invalid,
    /// Beyond the largest file.
    FileTooLarge,
    /// The largest number of links to a file is reached.
    TooManyLinks,
    /// The object is in use.
    Busy,
    /// No such extended attribute.
    NoAttribute,
    /// The value does not fit the caller's buffer, or the list of attributes is full.
    Range,
    /// The value of an attribute is longer than any may be.
    TooBig,
    /// Nothing of that kind follows (seek to data or to a hole).
    NoMore,
    /// The inode is gone; its number is never used again.
    Stale,
    /// The file system was closed while somebody still used it.
    Closed,
    /// Not permitted for this kind of object.
    NotPermitted,
    /// Another fileset.
    CrossFileset,
    /// The operation is not there for this kind of object.
    Unsupported,
    /// What is on the device contradicts itself.
    Corrupt,
    /// The device failed.
    Io,
}

impl Kind {
    /// The errno of the kind.
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

/// An error of the file system.
///
/// Printed as `CONTEXT: SOURCE`, or as the text of its errno where there is no context.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: Kind,
    context: Cow<'static, str>,
    source: Option<block::Error>,
}

impl Error {
    /// An error with what the caller knows about it; the context may be empty.
    pub fn new(kind: Kind, context: impl Into<Cow<'static, str>>) -> Error {
        Error(Box::new(Inner {
            kind,
            context: context.into(),
            source: None,
        }))
    }

    /// What is on the device contradicts itself, in this way.
    pub(crate) fn corrupt(context: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Kind::Corrupt, context)
    }

    /// What went wrong.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The errno for a client that speaks errno. That of a failed device is kept.
    pub fn errno(&self) -> i32 {
        match &self.0.source {
            Some(source) => source.errno(),
            None => self.0.kind.errno(),
        }
    }
}

/// The error of a file system that was closed.
pub(crate) fn closed() -> Error {
    Error::new(Kind::Closed, "the file system is closed")
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Error {
        Error::new(kind, "")
    }
}

impl From<block::Error> for Error {
    fn from(source: block::Error) -> Error {
        let kind = match source.kind() {
            block::ErrorKind::NoSpace => Kind::NoSpace,
            block::ErrorKind::ReadOnly => Kind::ReadOnly,
            _ => Kind::Io,
        };
        Error(Box::new(Inner {
            kind,
            context: "".into(),
            source: Some(source),
        }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0.source, self.0.context.is_empty()) {
            (Some(source), true) => write!(f, "{source}"),
            (_, false) => f.write_str(&self.0.context),
            (None, true) => {
                let text = std::io::Error::from_raw_os_error(self.errno());
                write!(f, "{text}")
            }
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
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
