//! The superblock: the layout of the device and the location of the metadata on it.
//!
//! The first MiB of a device holds two copies, far apart. Each change writes one of them, in turn,
//! with a higher generation. **Invariant:** at every moment at least one copy is valid, and of two
//! valid copies the one with the higher generation counts. [`FIELDS`] is the layout, and the only
//! place in the code that states it; `docs/format/fs.md` explains the meaning of each field.

use crate::error::{Error, Kind, Result};
use crate::format::record::{BLOCK_BYTES, DEVICE_BLOCKS_MAX, In, Out, Run};
use crate::integrity::{IntegrityKey, NO_TAG, TAG_BYTES, tampered};
use block::{BlockDevice, Blocking};

/// Length of a copy in bytes.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// Offsets of the copies in bytes from the start of the device.
pub const COPIES: [u64; 2] = [0, (1 << 20) - SUPERBLOCK_BYTES as u64];
/// Blocks before the journal: the copies, and the space between them, which is left untouched.
pub const HEAD_BLOCKS: u64 = (1 << 20) / BLOCK_BYTES;
/// First byte of a block before the second copy that the file system does not use: the program that
/// opens the device keeps its in-use record there.
pub const RESERVED_BYTE: u64 = COPIES[1] - BLOCK_BYTES;
/// First eight bytes of a copy.
pub const MAGIC: [u8; 8] = *b"EVFS\xf5\r\n\x1a";
/// Format version that this code writes. Any other version is refused; smaller changes of the
/// format use the feature flags.
pub const VERSION: u16 = 1;
/// Largest number of segments that the metadata may occupy.
pub const SEGMENTS_MAX: usize = 236;
/// Size of the smallest device in bytes: the head, the smallest journal, and working space.
pub const DEVICE_BYTES_MIN: u64 = 8 << 20;
/// Length of a label in bytes, padded with zeros.
pub const LABEL_BYTES: usize = 64;

/// Logical block of a spare [`Segment`]: space for the metadata while the allocator is not loaded.
const SPARE: u32 = u32::MAX;
/// Files and directories may have flags. A program that does not know them keeps them, and does not
/// enforce them.
const INODE_FLAGS: u64 = 1;
/// Read-compatible flag: blocks of file data get a checksum when they are written, and are not
/// overwritten while in use, unless their checksum was durably dropped first (full device). A
/// program that does not know the flag would break both by writing.
pub const CHECKSUMS: u64 = 1;
/// Read-compatible flag: filesets may have accounts of users and groups, which each change keeps up
/// to date.
pub const ACCOUNTS: u64 = 1 << 1;
/// Incompatible feature: a record of a snapshot may state that it is held, or that its fileset is
/// being rolled back to it.
pub const TREE_FLAGS: u64 = 1 << 8;
/// Incompatible feature: a record of a fileset may state that it is receiving a snapshot, and one of
/// a snapshot that it was received.
pub const RECEIVED: u64 = 1 << 9;
/// Incompatible feature: checksums of data are keyed, and so are those of all metadata.
const INTEGRITY: u64 = 1 << 10;
/// Incompatible feature: a file may have compressed chunks, and a record of a fileset may state a
/// method of compression.
pub const COMPRESSION: u64 = 1 << 12;
/// Flags of each class that this code knows.
const KNOWN: Features = Features {
    compatible: INODE_FLAGS,
    read_compatible: CHECKSUMS | ACCOUNTS,
    incompatible: TREE_FLAGS | RECEIVED | INTEGRITY | COMPRESSION,
};

/// Offset, length in bytes, and name of each field.
pub const FIELDS: &[(usize, usize, &str)] = &[
    (0, 8, "magic"),
    (8, 2, "version"),
    (10, 2, "zero"),
    (12, 4, "block_bytes"),
    (16, 8, "features_compatible"),
    (24, 8, "features_read_compatible"),
    (32, 8, "features_incompatible"),
    (40, 16, "uuid"),
    (56, 64, "label"),
    (120, 8, "generation"),
    (128, 8, "device_blocks"),
    (136, 8, "journal_start"),
    (144, 8, "journal_blocks"),
    (152, 8, "metadata_bytes"),
    (160, 8, "created"),
    (168, 16, "hash_key"),
    (184, 4, "openings"),
    (188, 4, "segment_count"),
    (192, 3776, "segments"),
    (3968, 16, "tags_root"),
    (3984, 1, "tags_place"),
    (3985, 7, "zeros"),
    (3992, 16, "tag"),
    (4008, 84, "zeros"),
    (4092, 4, "checksum"),
];

/// Largest metadata with keyed checksums: what three levels of 254 children cover.
pub(crate) const TAGGED_BYTES_MAX: u64 = 254u64.pow(3) * BLOCK_BYTES;
/// Offset of the tag of the top node of the tree of tags.
const TAGS_AT: usize = 3968;
/// Offset of the tag of a superblock, which covers all bytes before it.
const TAG_AT: usize = 3992;
/// Offset of the CRC-32C.
const CHECKSUM_AT: usize = SUPERBLOCK_BYTES - 4;

/// Feature flags: capabilities that a program needs to use the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// Flags that a program may ignore if it does not know them.
    pub compatible: u64,
    /// Flags that limit a program that does not know them to reading.
    pub read_compatible: u64,
    /// Flags that a program must know to use the file system at all.
    pub incompatible: u64,
}

/// Run of blocks on the device that holds a run of metadata blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// First block within the metadata; `u32::MAX` for a spare.
    pub logical: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// First block on the device.
    pub start: u64,
}

impl Segment {
    pub(crate) fn spare(start: u64, blocks: u32) -> Segment {
        Segment {
            logical: SPARE,
            blocks,
            start,
        }
    }

    pub(crate) fn is_spare(&self) -> bool {
        self.logical == SPARE
    }

    pub(crate) fn run(&self) -> Run {
        Run {
            start: self.start,
            blocks: self.blocks.into(),
        }
    }
}

/// Content of a superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Capabilities needed to use the file system.
    pub features: Features,
    /// Random identifier, set when the file system is created.
    pub uuid: [u8; 16],
    /// Label chosen by the owner; at most 64 bytes.
    pub label: String,
    /// Number that increases with each write of the superblock.
    pub generation: u64,
    /// Number of blocks of the device in use by the file system.
    pub device_blocks: u64,
    /// First block of the journal.
    pub journal_start: u64,
    /// Number of blocks of the journal; even.
    pub journal_blocks: u64,
    /// Logical length of the metadata in bytes; parts of it may not be allocated yet.
    pub metadata_bytes: u64,
    /// Time of creation in seconds since 1970.
    pub created: i64,
    /// Random key that makes the cookies of names unpredictable.
    pub hash_key: [u8; 16],
    /// Number of times the file system was opened for writing.
    pub openings: u32,
    /// Location of the metadata, in logical order, followed by the spares.
    pub segments: Vec<Segment>,
    /// With keyed checksums: the top of the tree of tags over the metadata.
    pub tags: TagsRoot,
}

/// Tag of the top node of the tree of tags, and which of its two places holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TagsRoot {
    /// Tag; zeros for an empty tree.
    pub tag: [u8; 16],
    /// 0 or 1.
    pub place: u8,
}

/// Checks that a label can be stored.
///
/// # Errors
/// [`Kind::Invalid`].
pub(crate) fn check_label(label: &str) -> Result<()> {
    if label.len() > LABEL_BYTES || label.chars().any(char::is_control) {
        return Err(Error::new(
            Kind::Invalid,
            "invalid label: it must have at most 64 bytes and no control characters",
        ));
    }
    Ok(())
}

impl Superblock {
    /// Creates the superblock of a new file system on a device of `device_bytes` bytes.
    ///
    /// # Errors
    /// [`Kind::Invalid`]: the device is too small or too large, or the label too long.
    pub fn new(
        device_bytes: u64,
        label: &str,
        random: [u8; 32],
        created: i64,
    ) -> Result<Superblock> {
        if device_bytes < DEVICE_BYTES_MIN || device_bytes / BLOCK_BYTES >= DEVICE_BLOCKS_MAX {
            let text = format!(
                "device size is {device_bytes} bytes; the minimum is {DEVICE_BYTES_MIN}, and the \
                 maximum {}",
                DEVICE_BLOCKS_MAX * BLOCK_BYTES - 1
            );
            return Err(Error::new(Kind::Invalid, text));
        }
        check_label(label)?;
        let (uuid, hash_key) = random.split_at(16);
        Ok(Superblock {
            // The others are set when one of them is first used, so that older programs can open it
            // until then.
            features: Features {
                read_compatible: CHECKSUMS,
                ..Features::default()
            },
            uuid: uuid.try_into().expect("half of 32 bytes"),
            label: label.to_owned(),
            generation: 0,
            device_blocks: device_bytes / BLOCK_BYTES,
            journal_start: HEAD_BLOCKS,
            journal_blocks: journal_blocks(device_bytes / BLOCK_BYTES),
            metadata_bytes: 0,
            created,
            hash_key: hash_key.try_into().expect("half of 32 bytes"),
            openings: 0,
            segments: Vec::new(),
            tags: TagsRoot::default(),
        })
    }

    /// Sets the compatible features that this program may use from now on.
    pub(crate) fn note_features(&mut self) {
        self.features.compatible |= KNOWN.compatible;
    }

    /// Reports whether files may be compressed.
    pub fn has_compression(&self) -> bool {
        self.features.incompatible & COMPRESSION != 0
    }

    /// Returns the first block that may hold data or metadata.
    pub fn first_block(&self) -> u64 {
        self.journal_start + self.journal_blocks
    }

    /// Encodes the on-disk form of a copy, without a tag.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_with(None)
    }

    /// Encodes the on-disk form of a copy.
    pub(crate) fn encode_with(&self, key: Option<&IntegrityKey>) -> Vec<u8> {
        let mut out = Out::with(SUPERBLOCK_BYTES);
        out.0.extend_from_slice(&MAGIC);
        out.u16(VERSION);
        out.u16(0);
        out.u32(BLOCK_BYTES as u32);
        out.u64(self.features.compatible);
        out.u64(self.features.read_compatible);
        out.u64(self.features.incompatible);
        out.0.extend_from_slice(&self.uuid);
        let mut label = [0; LABEL_BYTES];
        label[..self.label.len()].copy_from_slice(self.label.as_bytes());
        out.0.extend_from_slice(&label);
        out.u64(self.generation);
        out.u64(self.device_blocks);
        out.u64(self.journal_start);
        out.u64(self.journal_blocks);
        out.u64(self.metadata_bytes);
        out.u64(self.created as u64);
        out.0.extend_from_slice(&self.hash_key);
        out.u32(self.openings);
        out.u32(self.segments.len() as u32);
        for segment in &self.segments {
            out.u32(segment.logical);
            out.u32(segment.blocks);
            out.u64(segment.start);
        }
        out.0.resize(TAGS_AT, 0);
        out.0.extend_from_slice(&self.tags.tag);
        out.0.push(self.tags.place);
        out.0.resize(TAG_AT, 0);
        if let Some(key) = key {
            let tag = key.root_tag(&[&out.0]);
            out.0.extend_from_slice(&tag);
        }
        out.0.resize(CHECKSUM_AT, 0);
        out.u32(crc32c::crc32c(&out.0));
        out.0
    }

    /// Checks the tag of an encoded copy.
    ///
    /// # Errors
    /// [`Kind::Corrupt`].
    pub(crate) fn check_tag(bytes: &[u8], key: &IntegrityKey) -> Result<()> {
        let (content, rest) = bytes.split_at(TAG_AT);
        match rest.first_chunk() {
            Some(stated) if key.is_root_tag(&[content], stated) => Ok(()),
            _ => Err(tampered("superblock")),
        }
    }

    /// Decodes one copy, without regard to its tag. `device_blocks` is the current size of the device.
    ///
    /// # Errors
    /// [`Kind::Corrupt`]: damaged or inconsistent. [`Kind::Unsupported`]: a version or features
    /// that this code does not know. [`Kind::Invalid`]: not a superblock.
    pub fn decode(bytes: &[u8], device_blocks: u64) -> Result<Superblock> {
        if bytes.len() != SUPERBLOCK_BYTES || bytes[..8] != MAGIC {
            return Err(Error::new(Kind::Invalid, "not an EVFS file system"));
        }
        let (content, checksum) = bytes.split_at(SUPERBLOCK_BYTES - 4);
        if crc32c::crc32c(content).to_le_bytes() != checksum {
            return Err(Error::corrupt("superblock: checksum mismatch"));
        }
        let mut fields = In::of(&content[8..], "superblock");
        let version = fields.u16()?;
        if version != VERSION {
            let text = format!(
                "superblock: version {version} is not supported by this program, which supports \
                 version {VERSION}; use a newer version of EVFS"
            );
            return Err(Error::new(Kind::Unsupported, text));
        }
        let (zero, block_bytes) = (fields.u16()?, fields.u32()?);
        let mut superblock = Superblock {
            features: Features {
                compatible: fields.u64()?,
                read_compatible: fields.u64()?,
                incompatible: fields.u64()?,
            },
            uuid: fields.take()?,
            label: label(&fields.take::<LABEL_BYTES>()?)?,
            generation: fields.u64()?,
            device_blocks: fields.u64()?,
            journal_start: fields.u64()?,
            journal_blocks: fields.u64()?,
            metadata_bytes: fields.u64()?,
            created: fields.u64()? as i64,
            hash_key: fields.take()?,
            openings: fields.u32()?,
            segments: segments(&mut fields)?,
            tags: TagsRoot::default(),
        };
        let wrong = fields.wrong();
        let unused = fields.rest();
        // The rest of the segments, and the fields behind them.
        let (unused, rest) = unused.split_at(unused.len() - (CHECKSUM_AT - TAGS_AT));
        let mut fields = In::of(rest, "superblock");
        superblock.tags = TagsRoot {
            tag: fields.take()?,
            place: fields.take::<1>()?[0],
        };
        let (zeros, tag): ([u8; 7], [u8; TAG_BYTES]) = (fields.take()?, fields.take()?);
        let keyed = superblock.tags != TagsRoot::default() || tag != NO_TAG;
        let mut zeros = unused.iter().chain(&zeros).chain(fields.rest());
        let padding = zeros.all(|byte| *byte == 0)
            && superblock.tags.place <= 1
            && (!keyed || superblock.has_integrity());
        if zero != 0 || u64::from(block_bytes) != BLOCK_BYTES || !padding {
            return Err(wrong);
        }
        superblock.check(device_blocks)?;
        Ok(superblock)
    }

    /// Decodes both copies and returns the newer valid one.
    ///
    /// # Errors
    /// As [`Superblock::decode`], for the copy with the more specific error.
    pub fn choose(copies: [&[u8]; 2], device_blocks: u64) -> Result<Superblock> {
        Superblock::newer(copies.map(|bytes| Superblock::decode(bytes, device_blocks)))
    }

    /// Returns the newer of two copies, or the more specific error.
    pub(crate) fn newer([first, second]: [Result<Superblock>; 2]) -> Result<Superblock> {
        match (first, second) {
            (Ok(one), Ok(two)) if two.generation > one.generation => Ok(two),
            (Ok(one), _) | (Err(_), Ok(one)) => Ok(one),
            (Err(one), Err(two)) if one.kind() == Kind::Invalid => Err(two),
            (Err(one), Err(_)) => Err(one),
        }
    }

    /// Reads the superblock of a device. Returns `None` if there is no usable one.
    pub fn on(device: &dyn BlockDevice) -> Option<Superblock> {
        let mut below = Blocking::open(device).ok()?;
        let mut copies = [vec![0; SUPERBLOCK_BYTES], vec![0; SUPERBLOCK_BYTES]];
        for (offset, out) in COPIES.into_iter().zip(&mut copies) {
            // If one copy cannot be read, the other one serves.
            let _ = below.read_at(offset, out);
        }
        let device_blocks = device.info().size / BLOCK_BYTES;
        Superblock::choose([&copies[0], &copies[1]], device_blocks).ok()
    }

    /// Reports whether file data has checksums.
    pub fn has_checksums(&self) -> bool {
        self.features.read_compatible & CHECKSUMS != 0
    }

    /// Reports whether the checksums of data and metadata are keyed.
    pub fn has_integrity(&self) -> bool {
        self.features.incompatible & INTEGRITY != 0
    }

    /// Makes a new file system one with keyed checksums.
    pub(crate) fn add_integrity(&mut self) {
        self.features.incompatible |= INTEGRITY;
    }

    /// Makes a new file system one without checksums of file data.
    pub(crate) fn leave_out_checksums(&mut self) {
        self.features.read_compatible &= !CHECKSUMS;
    }

    /// Reports whether an unknown feature forbids writing.
    pub fn is_read_only(&self) -> bool {
        self.unknown_for_changes() != 0
    }

    /// Returns the unknown flags that forbid writing.
    pub fn unknown_for_changes(&self) -> u64 {
        self.features.read_compatible & !KNOWN.read_compatible
    }

    /// Checks the consistency: all parts lie within the device, and none overlap.
    fn check(&self, device_blocks: u64) -> Result<()> {
        let unknown = self.features.incompatible & !KNOWN.incompatible;
        if unknown != 0 {
            let text = format!(
                "superblock: features {unknown:#x} are not supported by this program; use a newer \
                 version of EVFS"
            );
            return Err(Error::new(Kind::Unsupported, text));
        }
        let wrong = |why: &str| Err(Error::corrupt(format!("superblock: {why}")));
        if self.device_blocks > device_blocks {
            let text = format!(
                "the device has {device_blocks} blocks, but the file system has {}",
                self.device_blocks
            );
            return Err(Error::corrupt(text));
        }
        if self.device_blocks < DEVICE_BYTES_MIN / BLOCK_BYTES
            || self.device_blocks >= DEVICE_BLOCKS_MAX
        {
            return wrong("invalid file system size");
        }
        let blocks = self.journal_blocks;
        let journal_fits = self.journal_start == HEAD_BLOCKS
            && (JOURNAL_BLOCKS_MIN..=JOURNAL_BLOCKS_MAX).contains(&blocks)
            && blocks.is_multiple_of(2)
            && self.first_block() < self.device_blocks;
        if !journal_fits {
            return wrong("invalid journal location or size");
        }
        if self.metadata_bytes > u64::from(SPARE) * BLOCK_BYTES {
            return wrong("too much metadata");
        }
        if self.has_integrity() && self.metadata_bytes > TAGGED_BYTES_MAX {
            return wrong("more metadata than the tree of tags covers");
        }
        if self.has_integrity() && !self.has_checksums() {
            return wrong("keyed checksums of metadata only");
        }
        self.check_segments()
            .map_or_else(|| wrong("invalid metadata segments"), Ok)
    }

    fn check_segments(&self) -> Option<()> {
        let mut places: Vec<(u64, u64)> = Vec::new();
        let mut reached = 0;
        for segment in &self.segments {
            let end = segment.start.checked_add(segment.blocks.into())?;
            let fits = segment.blocks > 0
                && segment.start >= self.first_block()
                && end <= self.device_blocks;
            if !fits {
                return None;
            }
            if !segment.is_spare() {
                let logical = u64::from(segment.logical);
                if logical < reached {
                    return None;
                }
                reached = logical + u64::from(segment.blocks);
            }
            places.push((segment.start, end));
        }
        places.sort_unstable();
        places.windows(2).all(|w| w[0].1 <= w[1].0).then_some(())
    }
}

/// Smallest journal: 256 KiB hold a few hundred changes.
const JOURNAL_BLOCKS_MIN: u64 = 64;
/// Largest journal: 64 MiB hold the changes of a busy second.
const JOURNAL_BLOCKS_MAX: u64 = 16_384;

/// Computes the size of the journal of a new file system: 1/64 of the device, within the limits.
fn journal_blocks(device_blocks: u64) -> u64 {
    let blocks = (device_blocks / 64).clamp(JOURNAL_BLOCKS_MIN, JOURNAL_BLOCKS_MAX);
    blocks & !1
}

fn label(bytes: &[u8; LABEL_BYTES]) -> Result<String> {
    let len = bytes.iter().position(|b| *b == 0).unwrap_or(LABEL_BYTES);
    let (text, padding) = bytes.split_at(len);
    match std::str::from_utf8(text) {
        Ok(text) if padding.iter().all(|b| *b == 0) && !text.chars().any(char::is_control) => {
            Ok(text.to_owned())
        }
        _ => Err(Error::corrupt("superblock: invalid label")),
    }
}

fn segments(fields: &mut In) -> Result<Vec<Segment>> {
    let count = fields.u32()? as usize;
    if count > SEGMENTS_MAX {
        return Err(fields.wrong());
    }
    (0..count)
        .map(|_| {
            Ok(Segment {
                logical: fields.u32()?,
                blocks: fields.u32()?,
                start: fields.u64()?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use block_testing::Random;

    const BLOCKS: u64 = 1 << 14;

    fn sample() -> Superblock {
        let mut sample = Superblock::new(BLOCKS * BLOCK_BYTES, "label é", [7; 32], 5).unwrap();
        sample.segments = vec![
            Segment {
                logical: 0,
                blocks: 64,
                start: sample.first_block(),
            },
            Segment::spare(sample.first_block() + 64, 10),
        ];
        sample
    }

    fn fix(bytes: &mut [u8]) {
        let sum = crc32c::crc32c(&bytes[..4092]);
        bytes[4092..].copy_from_slice(&sum.to_le_bytes());
    }

    #[test]
    fn the_table_of_fields_has_no_gap_and_matches_the_encoding() {
        let mut end = 0;
        for (offset, bytes, name) in FIELDS {
            assert_eq!(*offset, end, "{name}");
            end += bytes;
        }
        assert_eq!(end, SUPERBLOCK_BYTES);
        let sample = sample();
        let bytes = sample.encode();
        let field = |name: &str| {
            let (offset, len, _) = FIELDS.iter().find(|f| f.2 == name).unwrap();
            &bytes[*offset..offset + len]
        };
        assert_eq!(field("magic"), MAGIC);
        assert_eq!(field("block_bytes"), 4096u32.to_le_bytes());
        assert_eq!(field("device_blocks"), BLOCKS.to_le_bytes());
        assert_eq!(field("hash_key"), [7; 16]);
        assert_eq!(field("segment_count"), 2u32.to_le_bytes());
        assert_eq!(field("segments")[4..8], 64u32.to_le_bytes());
        assert_eq!(SEGMENTS_MAX * 16, field("segments").len());
    }

    #[test]
    fn the_page_of_the_format_shows_the_same_table() {
        let page = include_str!("../../../../docs/format/fs.md");
        for (offset, bytes, name) in FIELDS {
            let row = format!("| {offset} | {bytes} | `{name}` |");
            assert!(page.contains(&row), "no row {row}");
        }
    }

    #[test]
    fn of_two_copies_the_newer_whole_one_counts() {
        let old = sample();
        let new = Superblock {
            generation: 1,
            ..sample()
        };
        let (a, b) = (old.encode(), new.encode());
        assert_eq!(Superblock::choose([&a, &b], BLOCKS).unwrap(), new);
        assert_eq!(Superblock::choose([&b, &a], BLOCKS).unwrap(), new);
        let mut torn = b.clone();
        torn[512..].copy_from_slice(&a[512..]);
        assert_eq!(Superblock::choose([&torn, &a], BLOCKS).unwrap(), old);
        let zeros = [0; SUPERBLOCK_BYTES];
        assert_eq!(Superblock::choose([&zeros, &a], BLOCKS).unwrap(), old);
        let error = Superblock::choose([&zeros, &torn], BLOCKS).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        let error = Superblock::choose([&zeros, &zeros], BLOCKS).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let check = |change: &dyn Fn(&mut Superblock), says: &str| {
            let mut sample = sample();
            change(&mut sample);
            let error = Superblock::decode(&sample.encode(), BLOCKS).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        };
        check(&|s| s.features.incompatible = 4, "features 0x4");
        check(&|s| s.device_blocks = BLOCKS + 1, "the device has");
        check(&|s| s.device_blocks = 5, "invalid file system size");
        check(
            &|s| s.journal_blocks += 1,
            "invalid journal location or size",
        );
        check(
            &|s| s.journal_start = u64::MAX,
            "invalid journal location or size",
        );
        check(&|s| s.metadata_bytes = u64::MAX, "too much metadata");
        check(&|s| s.segments[1].start -= 1, "invalid metadata segments");
        check(
            &|s| s.segments[0].start = u64::MAX,
            "invalid metadata segments",
        );
        check(&|s| s.segments[0].blocks = 0, "invalid metadata segments");
        check(&|s| s.segments[1].logical = 63, "invalid metadata segments");
        let mut bytes = sample().encode();
        bytes[8] = 2;
        fix(&mut bytes);
        let error = Superblock::decode(&bytes, BLOCKS).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
    }

    #[test]
    fn changed_bytes_are_refused_or_read_back_the_same() {
        let mut random = Random::new(2);
        let whole = sample().encode();
        for round in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(300) as usize;
                bytes[at] = random.next_u64() as u8;
            }
            if round % 2 == 0 {
                fix(&mut bytes);
            } else if bytes != whole {
                assert!(Superblock::decode(&bytes, BLOCKS).is_err());
            }
            if let Ok(read) = Superblock::decode(&bytes, BLOCKS) {
                assert!(read.encode() == bytes);
            }
        }
    }
}
