//! The FUSE protocol as the kernel speaks it on `/dev/fuse` (<linux/fuse.h>, version 7.31 and later):
//! bytes become requests, answers become bytes.
//!
//! **Invariant:** nothing here reads beyond the bytes it was given, and no byte is taken on trust.
//! Absent on purpose: files, descriptors and any state.

/// Protocol version that is spoken.
pub(crate) const MAJOR: u32 = 7;
/// Oldest minor version: Linux 5.2, which asks for up to 256 pages at once.
pub(crate) const MINOR_MIN: u32 = 31;
/// Newest minor version that was read before this was written.
const MINOR_MAX: u32 = 40;

/// `struct fuse_in_header`
pub(crate) const HEADER_BYTES: usize = 40;
/// Header and `struct fuse_write_in`; the payload of a write begins here.
pub(crate) const WRITE_HEADER_BYTES: usize = HEADER_BYTES + 40;
/// `struct fuse_out_header`
pub(crate) const OUT_HEADER_BYTES: usize = 16;

/// Number of the folder itself.
pub(crate) const ROOT: u64 = 1;

// Flags of FUSE_INIT.
const ASYNC_READ: u64 = 1 << 0;
const BIG_WRITES: u64 = 1 << 5;
const ASYNC_DIO: u64 = 1 << 15;
const PARALLEL_DIROPS: u64 = 1 << 18;
const ABORT_ERROR: u64 = 1 << 21;
const MAX_PAGES: u64 = 1 << 22;
const INIT_EXT: u64 = 1 << 30;
const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
/// All that is asked for; the kernel gives what it has, and nothing depends on it but MAX_PAGES.
const WANTED: u64 = ASYNC_READ
    | BIG_WRITES
    | ASYNC_DIO
    | PARALLEL_DIROPS
    | ABORT_ERROR
    | MAX_PAGES
    | INIT_EXT
    | DIRECT_IO_ALLOW_MMAP;

// Flags of the answer to FUSE_OPEN.
pub(crate) const FOPEN_DIRECT_IO: u32 = 1 << 0;
pub(crate) const FOPEN_NOFLUSH: u32 = 1 << 5;
pub(crate) const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

// What FUSE_SETATTR sets.
pub(crate) const FATTR_MODE: u32 = 1 << 0;
pub(crate) const FATTR_UID: u32 = 1 << 1;
pub(crate) const FATTR_GID: u32 = 1 << 2;
pub(crate) const FATTR_SIZE: u32 = 1 << 3;
pub(crate) const FATTR_FH: u32 = 1 << 6;

/// A message that is not what the protocol says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// What every request begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Names the request in its answer.
    pub(crate) unique: u64,
    /// The file it is about.
    pub(crate) node: u64,
}

/// A request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    Init {
        major: u32,
        minor: u32,
        flags: u64,
    },
    Lookup {
        name: &'a [u8],
    },
    Getattr,
    Setattr {
        valid: u32,
        size: u64,
    },
    Open {
        flags: i32,
    },
    Opendir,
    /// Close of a folder or of a file; nothing is kept for either.
    Release,
    Read {
        offset: u64,
        len: u32,
    },
    /// The payload of `len` bytes stands behind the first [`WRITE_HEADER_BYTES`].
    Write {
        offset: u64,
        len: u32,
        flags: i32,
    },
    /// A descriptor was closed.
    Flush,
    Fsync,
    Fsyncdir,
    Readdir {
        offset: u64,
        len: u32,
    },
    Statfs,
    Access {
        mask: u32,
    },
    Fallocate {
        offset: u64,
        len: u64,
        mode: i32,
    },
    /// An ioctl, which a regular file has none of.
    Ioctl,
    /// Anything that would change the folder.
    Change,
    /// The kernel expects no answer: forget, batch forget, interrupt, notify reply.
    Silent,
    Destroy,
    Unknown,
}

/// Integers of the machine's byte order, one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_ne_bytes)
    }

    fn i32(&mut self) -> Result<i32, Malformed> {
        self.take().map(i32::from_ne_bytes)
    }
}

/// Reads a request of `len` bytes in all, of which `bytes` are the first: everything but the payload
/// of a write may be needed.
pub(crate) fn parse(bytes: &[u8], len: usize) -> Result<(Header, Request<'_>), Malformed> {
    let mut fields = Fields(bytes);
    let said = fields.u32()?;
    let opcode = fields.u32()?;
    let (unique, node) = (fields.u64()?, fields.u64()?);
    let _uid_gid_pid_extensions = fields.take::<16>()?;
    if said as usize != len || len < HEADER_BYTES {
        return Err(Malformed);
    }
    let request = parse_body(opcode, fields.0)?;
    if let Request::Write { len: payload, .. } = request
        && len.checked_sub(WRITE_HEADER_BYTES) != Some(payload as usize)
    {
        return Err(Malformed);
    }
    Ok((Header { unique, node }, request))
}

fn parse_body(opcode: u32, body: &[u8]) -> Result<Request<'_>, Malformed> {
    let mut fields = Fields(body);
    Ok(match opcode {
        1 => Request::Lookup { name: name(body)? },
        2 | 36 | 41 | 42 => Request::Silent,
        3 => Request::Getattr,
        4 => {
            let (valid, _padding, _fh) = (fields.u32()?, fields.u32()?, fields.u64()?);
            let size = fields.u64()?;
            Request::Setattr { valid, size }
        }
        14 => Request::Open {
            flags: fields.i32()?,
        },
        15 => {
            let _fh = fields.u64()?;
            let (offset, len) = (fields.u64()?, fields.u32()?);
            Request::Read { offset, len }
        }
        16 => {
            let _fh = fields.u64()?;
            let (offset, len) = (fields.u64()?, fields.u32()?);
            let (_write_flags, _lock_owner) = (fields.u32()?, fields.u64()?);
            let (flags, _padding) = (fields.i32()?, fields.u32()?);
            Request::Write { offset, len, flags }
        }
        17 => Request::Statfs,
        18 | 29 => Request::Release,
        20 => Request::Fsync,
        25 => Request::Flush,
        26 => {
            let (major, minor) = (fields.u32()?, fields.u32()?);
            let _max_readahead = fields.u32()?;
            let low = fields.u32()?;
            // Kernels before 7.36 end here.
            let high = fields.u32().unwrap_or(0);
            let flags = match u64::from(low) & INIT_EXT {
                0 => u64::from(low),
                _ => u64::from(low) | u64::from(high) << 32,
            };
            Request::Init {
                major,
                minor,
                flags,
            }
        }
        27 => Request::Opendir,
        28 => {
            let _fh = fields.u64()?;
            let (offset, len) = (fields.u64()?, fields.u32()?);
            Request::Readdir { offset, len }
        }
        30 => Request::Fsyncdir,
        34 => Request::Access {
            mask: fields.u32()?,
        },
        38 => Request::Destroy,
        39 => Request::Ioctl,
        43 => {
            let _fh = fields.u64()?;
            let (offset, len) = (fields.u64()?, fields.u64()?);
            let mode = fields.i32()?;
            Request::Fallocate { offset, len, mode }
        }
        // symlink, mknod, mkdir, unlink, rmdir, rename, link, setxattr, removexattr, create,
        // rename2, tmpfile
        6 | 8..=13 | 21 | 24 | 35 | 45 | 51 => Request::Change,
        _ => Request::Unknown,
    })
}

fn name(body: &[u8]) -> Result<&[u8], Malformed> {
    body.split(|&b| b == 0)
        .next()
        .filter(|name| name.len() < body.len())
        .ok_or(Malformed)
}

/// `struct fuse_out_header` of an answer with `body` bytes, or of an error (a positive errno).
pub(crate) fn out_header(unique: u64, body: usize, errno: i32) -> [u8; OUT_HEADER_BYTES] {
    let mut out = [0; OUT_HEADER_BYTES];
    out[0..4].copy_from_slice(&((OUT_HEADER_BYTES + body) as u32).to_ne_bytes());
    // The kernel refuses an answer whose errno is out of its range.
    let errno = match errno {
        0..512 => errno,
        _ => libc::EIO,
    };
    out[4..8].copy_from_slice(&(-errno).to_ne_bytes());
    out[8..16].copy_from_slice(&unique.to_ne_bytes());
    out
}

/// What the kernel is told at the start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Longest read or write in bytes.
    pub(crate) max_write: u32,
    /// Requests that may wait in the background: asynchronous direct I/O, loop devices.
    pub(crate) background: u16,
}

/// `struct fuse_init_out`
pub(crate) fn init_out(minor: u32, offered: u64, limits: Limits) -> [u8; 64] {
    let flags = WANTED & offered;
    let page = rustix::param::page_size() as u32;
    let mut out = Body::default();
    out.u32(MAJOR).u32(minor.min(MINOR_MAX));
    out.u32(limits.max_write).u32(flags as u32);
    out.u16(limits.background).u16(limits.background / 4 * 3);
    out.u32(limits.max_write).u32(1);
    out.u16((limits.max_write / page) as u16).u16(0);
    out.u32((flags >> 32) as u32);
    let mut bytes = [0; 64];
    bytes[..out.0.len()].copy_from_slice(&out.0);
    bytes
}

/// Whether the kernel offers transfers of more than 32 pages.
pub(crate) fn has_max_pages(offered: u64) -> bool {
    offered & MAX_PAGES != 0
}

/// The attributes of a file or folder. Times are all the same.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attr {
    pub(crate) node: u64,
    pub(crate) size: u64,
    /// Type and permissions.
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) block_size: u32,
    /// Seconds and nanoseconds since 1970.
    pub(crate) time: (u64, u32),
}

/// Bytes of an answer under construction.
#[derive(Debug, Default)]
pub(crate) struct Body(pub(crate) Vec<u8>);

impl Body {
    fn u16(&mut self, value: u16) -> &mut Body {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u32(&mut self, value: u32) -> &mut Body {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Body {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// `struct fuse_attr`
    fn attr(&mut self, attr: &Attr) -> &mut Body {
        let (seconds, nanos) = attr.time;
        self.u64(attr.node).u64(attr.size);
        self.u64(attr.size.div_ceil(512));
        self.u64(seconds).u64(seconds).u64(seconds);
        self.u32(nanos).u32(nanos).u32(nanos);
        self.u32(attr.mode).u32(attr.links);
        self.u32(attr.uid).u32(attr.gid);
        self.u32(0).u32(attr.block_size).u32(0)
    }

    /// `struct fuse_entry_out`; name and attributes hold for `seconds`.
    pub(crate) fn entry_out(attr: &Attr, seconds: u64) -> Body {
        let mut out = Body::default();
        out.u64(attr.node).u64(0);
        out.u64(seconds).u64(seconds).u32(0).u32(0);
        out.attr(attr);
        out
    }

    /// `struct fuse_attr_out`; the attributes hold for `seconds`.
    pub(crate) fn attr_out(attr: &Attr, seconds: u64) -> Body {
        let mut out = Body::default();
        out.u64(seconds).u32(0).u32(0).attr(attr);
        out
    }

    /// `struct fuse_open_out`
    pub(crate) fn open_out(flags: u32) -> Body {
        let mut out = Body::default();
        out.u64(0).u32(flags).u32(0);
        out
    }

    /// `struct fuse_write_out`
    pub(crate) fn write_out(len: u32) -> [u8; 8] {
        let mut out = [0; 8];
        out[..4].copy_from_slice(&len.to_ne_bytes());
        out
    }

    /// `struct fuse_statfs_out`: `blocks` of `block_size` bytes, none of them free.
    pub(crate) fn statfs_out(blocks: u64, block_size: u32, files: u64) -> Body {
        const NAME_MAX: u32 = 255;
        let mut out = Body::default();
        out.u64(blocks).u64(0).u64(0).u64(files).u64(0);
        out.u32(block_size).u32(NAME_MAX).u32(block_size).u32(0);
        out.0.resize(80, 0);
        out
    }

    /// Adds a `struct fuse_dirent`; false when it does not fit `limit` bytes.
    pub(crate) fn dirent(
        &mut self,
        node: u64,
        next: u64,
        mode: u32,
        name: &[u8],
        limit: usize,
    ) -> bool {
        let end = (self.0.len() + 24 + name.len()).next_multiple_of(8);
        if end > limit {
            return false;
        }
        self.u64(node).u64(next);
        // A type is the upper bits of a mode (`DT_REG` and so on).
        self.u32(name.len() as u32).u32(mode >> 12);
        self.0.extend_from_slice(name);
        self.0.resize(end, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(opcode: u32, body: &[u8]) -> Vec<u8> {
        let mut out = Body::default();
        out.u32((HEADER_BYTES + body.len()) as u32).u32(opcode);
        out.u64(77).u64(2).u64(0).u64(0);
        out.0.extend_from_slice(body);
        out.0
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_ne_bytes()).collect()
    }

    #[test]
    fn a_read_and_a_write_are_understood() {
        let read = message(15, &words(&[0, 4096, 512, 0, 0]));
        let (header, request) = parse(&read, read.len()).unwrap();
        assert_eq!(
            header,
            Header {
                unique: 77,
                node: 2
            }
        );
        assert_eq!(
            request,
            Request::Read {
                offset: 4096,
                len: 512
            }
        );
        let mut write = message(16, &words(&[0, 8192, 3, 0, 0o10000, 0, 0]));
        write.truncate(WRITE_HEADER_BYTES + 3);
        let len = write.len() as u32;
        write[..4].copy_from_slice(&len.to_ne_bytes());
        let (_, request) = parse(&write[..WRITE_HEADER_BYTES], write.len()).unwrap();
        let expected = Request::Write {
            offset: 8192,
            len: 3,
            flags: 0o10000,
        };
        assert_eq!(request, expected);
    }

    #[test]
    fn every_truncated_request_is_refused_or_harmless() {
        for opcode in 0..60 {
            let whole = message(opcode, &[0; 104]);
            for len in 0..whole.len() {
                // A length that does not agree with what arrived is never accepted.
                assert!(parse(&whole[..len], len).is_err(), "{opcode} cut at {len}");
                let mut cut = whole[..len].to_vec();
                if let Some(said) = cut.first_chunk_mut::<4>() {
                    *said = (len as u32).to_ne_bytes();
                }
                let _ = parse(&cut, len);
            }
        }
    }

    #[test]
    fn a_name_without_an_end_is_refused() {
        let whole = message(1, b"volume");
        assert_eq!(parse(&whole, whole.len()), Err(Malformed));
        let whole = message(1, b"volume\0");
        let (_, request) = parse(&whole, whole.len()).unwrap();
        assert_eq!(request, Request::Lookup { name: b"volume" });
    }

    #[test]
    fn a_write_that_lies_about_its_length_is_refused() {
        let write = message(16, &words(&[0, 0, 4096, 0, 0, 0]));
        assert_eq!(parse(&write, write.len()), Err(Malformed));
    }

    #[test]
    fn structures_have_the_kernels_sizes() {
        let attr = Attr {
            node: 2,
            size: 1 << 20,
            mode: libc::S_IFREG | 0o600,
            links: 1,
            uid: 0,
            gid: 0,
            block_size: 4096,
            time: (0, 0),
        };
        assert_eq!(Body::entry_out(&attr, 1).0.len(), 128);
        assert_eq!(Body::attr_out(&attr, 1).0.len(), 104);
        assert_eq!(Body::open_out(0).0.len(), 16);
        assert_eq!(Body::statfs_out(1, 4096, 1).0.len(), 80);
        let mut dirents = Body::default();
        assert!(dirents.dirent(2, 1, libc::S_IFREG, b"volume", 32));
        assert_eq!(dirents.0.len(), 32);
        assert!(!dirents.dirent(2, 1, libc::S_IFREG, b"volume", 63));
    }
}
