//! INIT: agreement between the kernel and the server.

use crate::abi::{self, FUSE_KERNEL_MINOR_VERSION, FUSE_KERNEL_VERSION};

/// Oldest minor version that is supported.
const MINOR_MIN: u32 = 31;

/// Most pages that a request can have unless `FUSE_MAX_PAGES` is agreed on.
const DEFAULT_PAGES: u32 = 32;

/// The kernel's proposal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InitRequest {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// Most bytes that the kernel reads ahead.
    pub max_readahead: u32,
    /// Flags that the kernel supports, `flags2` in the upper half.
    pub flags: u64,
}

/// The server's wishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Flags, each of which applies if the kernel supports it. To test a fallback, leave one out.
    pub flags: u64,
    /// Most bytes of one write or read.
    pub max_write: u32,
    /// Most bytes that the kernel reads ahead.
    pub max_readahead: u32,
    /// Most requests in the background that the kernel sends at the same time; 0: its default.
    pub max_background: u16,
    /// Number of requests in the background from which the file system counts as congested; 0:
    /// the kernel's default.
    pub congestion_threshold: u16,
    /// Granularity of times, in nanoseconds: a power of ten up to one billion.
    pub time_gran: u32,
    /// File systems between a backing file and its disk, at least 1 for `FUSE_PASSTHROUGH`.
    pub max_stack_depth: u32,
    /// Seconds after which the kernel ends the connection if a request has no reply, for
    /// `FUSE_REQUEST_TIMEOUT`; 0: never.
    pub request_timeout: u16,
    /// Size of a page of this machine, in bytes.
    pub page_bytes: u32,
}

impl Default for Wanted {
    fn default() -> Wanted {
        Wanted {
            flags: 0,
            max_write: 128 << 10,
            max_readahead: 128 << 10,
            max_background: 0,
            congestion_threshold: 0,
            time_gran: 1,
            max_stack_depth: 0,
            request_timeout: 0,
            page_bytes: 4096,
        }
    }
}

/// The server's answer to INIT; [`reply::init`](crate::reply::init) writes it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InitReply {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// Most bytes that the kernel reads ahead.
    pub max_readahead: u32,
    /// Flags that apply, `flags2` in the upper half.
    pub flags: u64,
    /// See [`Wanted::max_background`].
    pub max_background: u16,
    /// See [`Wanted::congestion_threshold`].
    pub congestion_threshold: u16,
    /// Most bytes of one write.
    pub max_write: u32,
    /// Granularity of times, in nanoseconds.
    pub time_gran: u32,
    /// Most pages of one request, with `FUSE_MAX_PAGES`.
    pub max_pages: u16,
    /// See [`Wanted::max_stack_depth`].
    pub max_stack_depth: u32,
    /// See [`Wanted::request_timeout`].
    pub request_timeout: u16,
}

/// Agreement of INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    minor: u32,
    flags: u64,
    offered: u64,
    max_write: u32,
    max_pages: u16,
}

impl Default for Session {
    fn default() -> Session {
        Session::new()
    }
}

impl Session {
    /// State before INIT: nothing is agreed on.
    pub const fn new() -> Session {
        Session {
            minor: MINOR_MIN,
            flags: 0,
            offered: 0,
            max_write: 0,
            max_pages: 0,
        }
    }

    /// Minor version that both sides use.
    pub fn minor(&self) -> u32 {
        self.minor
    }

    /// Flags that both sides use.
    pub fn flags(&self) -> u64 {
        self.flags
    }

    /// Returns whether both sides use all of the given flags.
    pub fn has(&self, flags: u64) -> bool {
        self.flags & flags == flags
    }

    /// Flags that the kernel supports, whether wanted or not.
    pub fn offered(&self) -> u64 {
        self.offered
    }

    /// Most bytes of one write. A buffer for requests needs this and 4 KiB for the header, and at
    /// least [`abi::FUSE_MIN_READ_BUFFER`].
    pub fn max_write(&self) -> u32 {
        self.max_write
    }

    /// Most pages of one request.
    pub fn max_pages(&self) -> u16 {
        self.max_pages
    }
}

/// INIT that leads to no session yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The kernel's major version is newer. It sends another INIT after this answer.
    #[error("the kernel speaks FUSE {major}.{minor}: this server waits for its offer of version 7")]
    NewerMajor {
        /// Major version of the kernel.
        major: u32,
        /// Minor version of the kernel.
        minor: u32,
        /// Answer that states only the version of the server.
        reply: InitReply,
    },
    /// The kernel's version is too old. The answer is the error `EPROTO`.
    #[error(
        "the kernel speaks FUSE {major}.{minor}, and 7.31 is the oldest supported version: use Linux 5.4 or newer"
    )]
    TooOld {
        /// Major version of the kernel.
        major: u32,
        /// Minor version of the kernel.
        minor: u32,
    },
}

/// Answers the kernel's INIT: the lower version, the flags that both want, and the limits.
///
/// # Errors
/// No session begins: the kernel's version is too old, or its major version is newer.
pub fn negotiate(request: &InitRequest, wanted: &Wanted) -> Result<(Session, InitReply), Refusal> {
    let InitRequest { major, minor, .. } = *request;
    if major > FUSE_KERNEL_VERSION {
        let reply = InitReply {
            major: FUSE_KERNEL_VERSION,
            minor: FUSE_KERNEL_MINOR_VERSION,
            ..InitReply::default()
        };
        return Err(Refusal::NewerMajor {
            major,
            minor,
            reply,
        });
    }
    if major < FUSE_KERNEL_VERSION || minor < MINOR_MIN {
        return Err(Refusal::TooOld { major, minor });
    }
    let flags = agreed(request.flags, wanted);
    let page = wanted.page_bytes.max(1);
    let most_pages = match flags & abi::FUSE_MAX_PAGES {
        0 => DEFAULT_PAGES,
        _ => u32::from(u16::MAX),
    };
    // The kernel refuses less than a page, and rounds up to it.
    let pages = wanted.max_write.div_ceil(page).clamp(1, most_pages);
    let max_pages = u16::try_from(pages).unwrap_or(u16::MAX);
    let max_write = wanted.max_write.clamp(page, pages.saturating_mul(page));
    let minor = minor.min(FUSE_KERNEL_MINOR_VERSION);
    let session = Session {
        minor,
        flags,
        offered: request.flags,
        max_write,
        max_pages,
    };
    let has = |flag| session.has(flag);
    let reply = InitReply {
        major,
        minor,
        max_readahead: request.max_readahead.min(wanted.max_readahead),
        flags,
        max_background: wanted.max_background,
        congestion_threshold: wanted.congestion_threshold,
        max_write,
        time_gran: wanted.time_gran,
        max_pages: if has(abi::FUSE_MAX_PAGES) {
            max_pages
        } else {
            0
        },
        max_stack_depth: if has(abi::FUSE_PASSTHROUGH) {
            wanted.max_stack_depth
        } else {
            0
        },
        request_timeout: if has(abi::FUSE_REQUEST_TIMEOUT) {
            wanted.request_timeout
        } else {
            0
        },
    };
    Ok((session, reply))
}

/// Returns the flags that will be in effect. Combinations that the kernel would ignore are not.
fn agreed(offered: u64, wanted: &Wanted) -> u64 {
    let mut flags = offered & wanted.flags;
    // The kernel reads the upper half of the answer only with this flag.
    match offered & abi::FUSE_INIT_EXT {
        0 => flags &= u64::from(u32::MAX),
        _ => flags |= abi::FUSE_INIT_EXT,
    }
    if flags & abi::FUSE_DO_READDIRPLUS == 0 {
        flags &= !abi::FUSE_READDIRPLUS_AUTO;
    }
    if flags & abi::FUSE_WRITEBACK_CACHE != 0 || wanted.max_stack_depth == 0 {
        flags &= !abi::FUSE_PASSTHROUGH;
    }
    if wanted.request_timeout == 0 {
        flags &= !abi::FUSE_REQUEST_TIMEOUT;
    }
    flags
}
