//! Errors of file systems of other programs.

use std::borrow::Cow;
use std::fmt;

/// Kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// No such name.
    NotFound,
    /// The file is not a directory.
    NotDirectory,
    /// The operation does not apply to this type of file.
    Invalid,
    /// No such extended attribute.
    NoAttribute,
    /// The structures on the device contradict one another.
    Corrupt,
    /// EVFS cannot read this safely, or at all.
    Unsupported,
    /// The names or the content are encrypted by the file system itself.
    Encrypted,
    /// The device reports an error.
    Io,
    /// The name exists.
    Exists,
    /// The directory has entries.
    NotEmpty,
    /// The file is a directory.
    IsDirectory,
    /// No space is free.
    NoSpace,
    /// The format has no files of this length.
    TooLarge,
    /// The format stores no name of this length.
    NameTooLong,
    /// Nothing can be changed.
    ReadOnly,
}

/// Result of an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a file system, with the reason.
#[derive(Debug, Clone)]
pub struct Error {
    kind: Kind,
    why: Cow<'static, str>,
    source: Option<block::Error>,
}

impl Error {
    /// Creates an error.
    pub fn new(kind: Kind, why: impl Into<Cow<'static, str>>) -> Error {
        Error {
            kind,
            why: why.into(),
            source: None,
        }
    }

    /// Creates the error for damaged structures.
    pub fn corrupt(why: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Kind::Corrupt, why)
    }

    /// Creates the error for a file system that EVFS cannot mount; `why` includes the remedy.
    pub fn unsupported(why: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Kind::Unsupported, why)
    }

    /// Returns the kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the error number for a caller of the kernel.
    pub fn errno(&self) -> i32 {
        match self.kind {
            Kind::NotFound => libc::ENOENT,
            Kind::NotDirectory => libc::ENOTDIR,
            Kind::Invalid => libc::EINVAL,
            Kind::NoAttribute => libc::ENODATA,
            Kind::Corrupt => libc::EIO,
            Kind::Unsupported => libc::EOPNOTSUPP,
            Kind::Encrypted => libc::ENOKEY,
            Kind::Exists => libc::EEXIST,
            Kind::NotEmpty => libc::ENOTEMPTY,
            Kind::IsDirectory => libc::EISDIR,
            Kind::NoSpace => libc::ENOSPC,
            Kind::TooLarge => libc::EFBIG,
            Kind::NameTooLong => libc::ENAMETOOLONG,
            Kind::ReadOnly => libc::EROFS,
            Kind::Io => self.source.as_ref().map_or(libc::EIO, block::Error::errno),
        }
    }
}

impl From<Kind> for Error {
    fn from(kind: Kind) -> Error {
        Error::new(
            kind,
            match kind {
                Kind::NotFound => "no such file or directory",
                Kind::NotDirectory => "not a directory",
                Kind::Invalid => "invalid for this type of file",
                Kind::NoAttribute => "no such attribute",
                Kind::Corrupt => "the file system is damaged",
                Kind::Unsupported => "not supported",
                Kind::Encrypted => "encrypted by the file system; EVFS has no key for it",
                Kind::Io => "input/output error",
                Kind::Exists => "file exists",
                Kind::NotEmpty => "directory not empty",
                Kind::IsDirectory => "is a directory",
                Kind::NoSpace => "no space left on device",
                Kind::TooLarge => "file too large",
                Kind::NameTooLong => "file name too long",
                Kind::ReadOnly => "read-only file system",
            },
        )
    }
}

impl From<block::Error> for Error {
    fn from(source: block::Error) -> Error {
        Error {
            kind: Kind::Io,
            why: "cannot access the device".into(),
            source: Some(source),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}
