//! Values of the metadata: inodes, entries, attributes, extents.
//!
//! Encoded little-endian in the order of the fields below; `docs/format/fs.md` lists the offsets.
//! Decoding validates each record, so the rest of the crate only sees values that are valid in
//! themselves. **Invariant:** an encoded value decodes to the same value.

use crate::error::{Error, Result};
use crate::format::flags::InodeFlags;
use crate::format::key::{Ino, PLACE_MAX};

/// Longest name of an entry, an attribute or a fileset, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes: Linux's PATH_MAX without its NUL.
pub const TARGET_MAX: usize = 4095;
/// Longest value of an extended attribute in bytes, as the kernel's XATTR_SIZE_MAX.
pub const XATTR_VALUE_MAX: usize = 65_536;
/// Largest file in bytes.
pub const FILE_SIZE_MAX: u64 = 16 << 40;
/// Bytes of a block: the unit of allocation and of a page.
pub const BLOCK_BYTES: u64 = 4096;
/// Length of the record of an inode in bytes.
pub(crate) const INODE_BYTES: usize = 112;

/// Byte offset on the device, as opposed to a block number or an offset in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct DeviceOffset(u64);

impl DeviceOffset {
    /// Creates the offset of this number of bytes.
    pub fn of_bytes(bytes: u64) -> DeviceOffset {
        DeviceOffset(bytes)
    }

    /// Computes where a block of the device begins.
    pub fn of_block(block: u64) -> DeviceOffset {
        DeviceOffset(block * BLOCK_BYTES)
    }

    /// Computes the offset this number of bytes further on.
    #[must_use]
    pub fn plus(self, bytes: u64) -> DeviceOffset {
        DeviceOffset(self.0 + bytes)
    }

    /// Returns the offset in bytes, for a request of the device.
    pub fn bytes(self) -> u64 {
        self.0
    }
}
/// Largest number of links to one inode.
pub const LINKS_MAX: u32 = 1 << 30;
/// Largest number of blocks in one extent record.
pub const EXTENT_BLOCKS_MAX: u32 = 1 << 30;
/// Limit for block numbers of a device: 2^48 blocks are 1 EiB.
pub const DEVICE_BLOCKS_MAX: u64 = 1 << 48;

/// Computes the number of blocks that hold `bytes` bytes.
pub(crate) fn blocks_for(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES)
}

/// Run of blocks on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// First block.
    pub start: u64,
    /// Number of blocks.
    pub blocks: u64,
}

impl Run {
    /// Returns the block after the last.
    pub fn end(&self) -> u64 {
        self.start + self.blocks
    }
}

/// Point in time: seconds since 1970 and nanoseconds within the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Time {
    /// Seconds since 1970; negative before.
    pub seconds: i64,
    /// Nanoseconds within the second; below 10^9.
    pub nanos: u32,
}

impl Time {
    /// Reads the system's clock.
    pub fn now() -> Time {
        let now = std::time::SystemTime::now();
        let since = now
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        Time {
            seconds: since.as_secs() as i64,
            nanos: since.subsec_nanos(),
        }
    }
}

/// Type of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A regular file.
    File,
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    Socket,
    /// A character device.
    CharDevice,
    BlockDevice,
}

impl FileType {
    const ALL: [FileType; 7] = [
        FileType::File,
        FileType::Directory,
        FileType::Symlink,
        FileType::Fifo,
        FileType::Socket,
        FileType::CharDevice,
        FileType::BlockDevice,
    ];

    /// Returns the type bits of `st_mode`.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileType::File => libc::S_IFREG,
            FileType::Directory => libc::S_IFDIR,
            FileType::Symlink => libc::S_IFLNK,
            FileType::Fifo => libc::S_IFIFO,
            FileType::Socket => libc::S_IFSOCK,
            FileType::CharDevice => libc::S_IFCHR,
            FileType::BlockDevice => libc::S_IFBLK,
        }
    }

    /// Reports whether inodes of this type have flags. They share a field of the record with the
    /// device number, which other types have.
    pub fn has_flags(self) -> bool {
        matches!(self, FileType::File | FileType::Directory)
    }

    /// Converts mode bits to the type that they encode.
    pub fn of_mode(mode: u32) -> Option<FileType> {
        let bits = mode & libc::S_IFMT;
        FileType::ALL.into_iter().find(|t| t.mode_bits() == bits)
    }
}

/// Attributes of an inode: everything except its content and its names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Type of the inode.
    pub kind: FileType,
    /// The lower twelve bits of `st_mode`.
    pub permissions: u32,
    /// Number of names. For a directory: 2, plus one for each subdirectory.
    pub links: u32,
    /// Owner's user id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Flags of a file or a directory.
    pub flags: InodeFlags,
    /// Number of the writable open of the file system during which the inode was created.
    pub generation: u32,
    /// Size in bytes, as readers see it.
    pub size: u64,
    /// Size in bytes that the record on disk states; up to there, blocks are on the device or are
    /// holes. It differs from `size` while written data waits in the cache.
    pub disk_size: u64,
    /// Number of blocks allocated to the inode, including unwritten ones.
    pub blocks: u64,
    /// Version of the content; increases by one or more with each change.
    pub data_version: u64,
    /// Directory in which the inode was created, or to which it was last moved. For a directory,
    /// its parent; the root is its own parent. A file with several names may have lost the one in
    /// this directory.
    pub parent: Ino,
    /// For a directory: number of entries, without `.` and `..`.
    pub entries: u64,
    /// Time of the last read.
    pub accessed: Time,
    /// Time of the last change of the content.
    pub modified: Time,
    /// Time of the last change of content or attributes.
    pub changed: Time,
    /// Time of creation.
    pub created: Time,
}

impl Inode {
    /// Returns `st_mode`: type and permissions.
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | self.permissions
    }

    /// Reports whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// Records a change of the content: updates the times and the data version.
    pub(crate) fn touch(&mut self, now: Time) {
        self.modified = now;
        self.changed = now;
        self.data_version = self.data_version.wrapping_add(1);
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        // Exactly, so that the record need not be moved to become a value of the map.
        let mut out = Out::with(INODE_BYTES);
        self.encode_into(&mut out);
        out.0
    }

    /// Appends what [`Inode::encode`] returns.
    pub(crate) fn encode_into(&self, out: &mut Out) {
        for number in [
            self.mode(),
            self.links,
            self.uid,
            self.gid,
            if self.kind.has_flags() {
                self.flags.0
            } else {
                self.rdev
            },
            self.generation,
        ] {
            out.u32(number);
        }
        for number in [
            self.disk_size,
            self.blocks,
            self.data_version,
            self.parent,
            self.entries,
        ] {
            out.u64(number);
        }
        for time in [self.accessed, self.modified, self.changed, self.created] {
            out.time(time);
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Inode> {
        let mut fields = In::of(bytes, "inode record");
        let mode = fields.u32()?;
        let kind = FileType::of_mode(mode).filter(|kind| mode & !0o7777 == kind.mode_bits());
        let kind = kind.ok_or_else(|| fields.wrong())?;
        let [links, uid, gid, special] =
            [fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?];
        let (rdev, flags) = if kind.has_flags() {
            (0, special)
        } else {
            (special, 0)
        };
        let inode = Inode {
            kind,
            permissions: mode & 0o7777,
            links,
            uid,
            gid,
            rdev,
            flags: InodeFlags(flags),
            generation: fields.u32()?,
            size: 0,
            disk_size: fields.u64()?,
            blocks: fields.u64()?,
            data_version: fields.u64()?,
            parent: fields.u64()?,
            entries: fields.u64()?,
            accessed: fields.time()?,
            modified: fields.time()?,
            changed: fields.time()?,
            created: fields.time()?,
        };
        fields.end()?;
        let sound = inode.disk_size <= FILE_SIZE_MAX
            && inode.blocks <= FILE_SIZE_MAX / BLOCK_BYTES
            && inode.links <= LINKS_MAX
            && inode.parent <= PLACE_MAX;
        if !sound {
            return Err(fields.wrong());
        }
        Ok(Inode {
            size: inode.disk_size,
            ..inode
        })
    }
}

/// Entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Inode that the entry refers to.
    pub ino: Ino,
    /// Type of that inode.
    pub kind: FileType,
    /// Name: 1 to 255 bytes without `/` and NUL; neither `.` nor `..`.
    pub name: &'a [u8],
}

impl<'a> Entry<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Out::with(12 + self.name.len());
        out.u64(self.ino);
        out.u32(self.kind.mode_bits());
        out.0.extend_from_slice(self.name);
        out.0
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Entry<'a>> {
        let mut fields = In::of(bytes, "directory entry");
        let ino = fields.u64()?;
        let kind = FileType::of_mode(fields.u32()?);
        let name = fields.rest();
        match kind {
            Some(kind) if is_name(name) && ino <= PLACE_MAX => Ok(Entry { ino, kind, name }),
            _ => Err(fields.wrong()),
        }
    }
}

/// Checks whether the bytes are a valid entry name.
pub(crate) fn is_name(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len())
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Extended attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Xattr<'a> {
    /// Name with its prefix, for example `user.`.
    pub name: &'a [u8],
    pub value: &'a [u8],
}

impl<'a> Xattr<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1 + self.name.len() + self.value.len());
        out.push(u8::try_from(self.name.len()).expect("a name has at most 255 bytes"));
        out.extend_from_slice(self.name);
        out.extend_from_slice(self.value);
        out
    }

    pub fn decode(bytes: &'a [u8]) -> Result<Xattr<'a>> {
        let wrong = || Error::corrupt("invalid attribute record");
        let (&len, rest) = bytes.split_first().ok_or_else(wrong)?;
        let (name, value) = rest.split_at_checked(len.into()).ok_or_else(wrong)?;
        if name.is_empty() || name.contains(&0) || value.len() > XATTR_VALUE_MAX {
            return Err(wrong());
        }
        Ok(Xattr { name, value })
    }
}

/// Run of blocks of a file on the device. Its first block in the file is the place of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First block on the device.
    pub start: u64,
    /// Number of blocks; at least one.
    pub blocks: u32,
    /// Whether the blocks are allocated but were never written: they read as zeros.
    pub unwritten: bool,
    /// If non-zero, the number of valid bytes in the last block; the rest of it reads as zeros. Set
    /// when a file is truncated within a block, and cleared when that block is written again.
    pub tail: u16,
}

const FLAG_UNWRITTEN: u16 = 1;

impl Extent {
    /// Returns the blocks on the device.
    pub(crate) fn run(&self) -> Run {
        Run {
            start: self.start,
            blocks: self.blocks.into(),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Out::with(16);
        out.u64(self.start);
        out.u32(self.blocks);
        out.u16(self.tail);
        out.u16(if self.unwritten { FLAG_UNWRITTEN } else { 0 });
        out.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Extent> {
        let mut fields = In::of(bytes, "extent record");
        let (start, blocks) = (fields.u64()?, fields.u32()?);
        let (tail, flags) = (fields.u16()?, fields.u16()?);
        fields.end()?;
        let sound = start < DEVICE_BLOCKS_MAX
            && (1..=EXTENT_BLOCKS_MAX).contains(&blocks)
            && u64::from(tail) < BLOCK_BYTES
            && flags & !FLAG_UNWRITTEN == 0;
        if !sound {
            return Err(fields.wrong());
        }
        Ok(Extent {
            start,
            blocks,
            unwritten: flags & FLAG_UNWRITTEN != 0,
            tail,
        })
    }

    /// Computes the sub-extent of `blocks` blocks that begins `skip` blocks into this one.
    pub(crate) fn part(&self, skip: u64, blocks: u64) -> Extent {
        debug_assert!(skip + blocks <= u64::from(self.blocks) && blocks > 0);
        let ends = skip + blocks == u64::from(self.blocks);
        Extent {
            start: self.start + skip,
            blocks: blocks as u32,
            tail: if ends { self.tail } else { 0 },
            unwritten: self.unwritten,
        }
    }

    /// Checks whether `next`, which follows in the file, can be merged: it also follows on the
    /// device and is of the same kind.
    pub(crate) fn continues(&self, next: &Extent) -> bool {
        self.tail == 0
            && self.unwritten == next.unwritten
            && self.start + u64::from(self.blocks) == next.start
            && self.blocks + next.blocks <= EXTENT_BLOCKS_MAX
    }
}

/// Run of blocks with `count` references, two or more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedRun {
    pub blocks: u32,
    pub count: u32,
}

impl SharedRun {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out::with(8);
        out.u32(self.blocks);
        out.u32(self.count);
        out.0
    }

    pub fn decode(bytes: &[u8]) -> Result<SharedRun> {
        let mut fields = In::of(bytes, "shared-block record");
        let shared = SharedRun {
            blocks: fields.u32()?,
            count: fields.u32()?,
        };
        fields.end()?;
        if shared.blocks == 0 || shared.blocks > EXTENT_BLOCKS_MAX || shared.count < 2 {
            return Err(fields.wrong());
        }
        Ok(shared)
    }
}

/// Encoder that appends fields.
pub(crate) struct Out(pub Vec<u8>);

impl Out {
    pub fn with(capacity: usize) -> Out {
        Out(Vec::with_capacity(capacity))
    }

    pub fn u16(&mut self, number: u16) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub fn u64(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub fn time(&mut self, time: Time) {
        self.u64(time.seconds as u64);
        self.u32(time.nanos);
    }
}

/// Decoder that reads fields in order.
pub(crate) struct In<'a> {
    bytes: &'a [u8],
    what: &'static str,
}

impl<'a> In<'a> {
    pub fn of(bytes: &'a [u8], what: &'static str) -> In<'a> {
        In { bytes, what }
    }

    /// Creates the error for an invalid record.
    pub fn wrong(&self) -> Error {
        Error::corrupt(format!("invalid {}", self.what))
    }

    pub fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (first, rest) = self
            .bytes
            .split_first_chunk::<N>()
            .ok_or_else(|| self.wrong())?;
        self.bytes = rest;
        Ok(*first)
    }

    pub fn u16(&mut self) -> Result<u16> {
        self.take().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.take().map(u64::from_le_bytes)
    }

    pub fn time(&mut self) -> Result<Time> {
        let (seconds, nanos) = (self.u64()? as i64, self.u32()?);
        if nanos >= 1_000_000_000 {
            return Err(self.wrong());
        }
        Ok(Time { seconds, nanos })
    }

    /// Reads the next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (first, rest) = self
            .bytes
            .split_at_checked(len)
            .ok_or_else(|| self.wrong())?;
        self.bytes = rest;
        Ok(first)
    }

    /// Reads all remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    /// Checks that no bytes remain.
    pub fn end(&self) -> Result<()> {
        if self.bytes.is_empty() {
            Ok(())
        } else {
            Err(self.wrong())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block_testing::Random;

    fn inode() -> Inode {
        let time = Time {
            seconds: -5,
            nanos: 999_999_999,
        };
        Inode {
            kind: FileType::Symlink,
            permissions: 0o7777,
            links: 3,
            uid: 1000,
            gid: u32::MAX,
            rdev: 0x1234,
            flags: InodeFlags::default(),
            generation: 9,
            size: 77,
            disk_size: 77,
            blocks: 4,
            data_version: 8,
            parent: 1,
            entries: 2,
            accessed: time,
            modified: Time {
                seconds: 1 << 40,
                nanos: 0,
            },
            changed: time,
            created: Time::default(),
        }
    }

    #[test]
    fn what_is_encoded_reads_back_and_no_part_of_it_is_a_record() {
        let (inode, bytes) = (inode(), inode().encode());
        assert_eq!(Inode::decode(&bytes).unwrap(), inode);
        for len in 0..bytes.len() {
            assert!(Inode::decode(&bytes[..len]).is_err());
        }
        let file = Inode {
            kind: FileType::File,
            rdev: 0,
            flags: InodeFlags(0x8000_00f0),
            ..inode
        };
        let same = Inode::decode(&file.encode()).unwrap();
        assert_eq!(same, file, "unknown flags are kept");
        let extent = Extent {
            start: 5,
            blocks: 7,
            unwritten: true,
            tail: 100,
        };
        assert_eq!(Extent::decode(&extent.encode()).unwrap(), extent);
        let entry = Entry {
            ino: 4,
            kind: FileType::Fifo,
            name: &[0xff; 255],
        };
        assert_eq!(Entry::decode(&entry.encode()).unwrap(), entry);
        let xattr = Xattr {
            name: b"user.a",
            value: &[0; 70],
        };
        assert_eq!(Xattr::decode(&xattr.encode()).unwrap(), xattr);
        let shared = SharedRun {
            blocks: 1,
            count: 2,
        };
        assert_eq!(SharedRun::decode(&shared.encode()).unwrap(), shared);
    }

    #[test]
    fn random_bytes_are_refused_or_read_and_never_a_panic() {
        let mut random = Random::new(3);
        for _ in 0..20_000 {
            let mut bytes = inode().encode();
            bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
            for _ in 0..random.below(20) {
                if !bytes.is_empty() {
                    let at = random.below(bytes.len() as u64) as usize;
                    bytes[at] = random.next_u64() as u8;
                }
            }
            if let Ok(inode) = Inode::decode(&bytes) {
                assert_eq!(inode.encode(), bytes);
            }
            let _ = Extent::decode(&bytes);
            let _ = Entry::decode(&bytes);
            let _ = Xattr::decode(&bytes);
            let _ = SharedRun::decode(&bytes);
        }
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'a'; 256]] {
            assert!(!is_name(name));
        }
        assert!(is_name(b"...") && is_name(&[b'a'; 255]));
    }

    #[test]
    fn parts_of_an_extent_keep_its_tail_at_its_end_only() {
        let whole = Extent {
            start: 10,
            blocks: 4,
            unwritten: false,
            tail: 9,
        };
        let (first, last) = (whole.part(0, 2), whole.part(2, 2));
        assert_eq!((first.start, first.blocks, first.tail), (10, 2, 0));
        assert_eq!((last.start, last.blocks, last.tail), (12, 2, 9));
        assert!(first.continues(&last) && !last.continues(&first));
    }
}
