//! Detection of existing data on a device, by known signatures and by content, so that no command
//! overwrites data unless told to.

use crate::device::Disk;
use block::{BlockDevice, Blocking};
use std::fmt;

const VOLUME: &str = "LUKS";
const VOLUME_SECOND: &str = "LUKS (second header)";
const FILES: &str = "EVFS file system";
const FILES_SECOND: &str = "EVFS file system (second superblock)";

/// Names, offsets and magic numbers of known formats, as defined by their headers: the common
/// subset of those that `blkid` knows.
const SIGNATURES: &[(&str, usize, &[u8])] = &[
    (VOLUME, 0, b"LUKS\xba\xbe"),
    (FILES, 0, b"EVFS\xf5\r\n\x1a"),
    (FILES_SECOND, 255 * 4096, b"EVFS\xf5\r\n\x1a"),
    (VOLUME_SECOND, 0x4000, b"SKUL\xba\xbe"),
    ("ext2/ext3/ext4", 0x438, b"\x53\xef"),
    ("XFS", 0, b"XFSB"),
    ("btrfs", 0x10040, b"_BHRfS_M"),
    ("swap", 4086, b"SWAPSPACE2"),
    ("LVM2 physical volume", 0x218, b"LVM2 001"),
    ("Linux RAID 1.2", 0x1000, b"\xfc\x4e\x2b\xa9"),
    ("NTFS", 3, b"NTFS    "),
    ("exFAT", 3, b"EXFAT   "),
    ("FAT", 0x36, b"FAT1"),
    ("FAT32", 0x52, b"FAT32   "),
    ("GPT partition table", 512, b"EFI PART"),
    ("GPT partition table", 4096, b"EFI PART"),
    ("DOS partition table", 0x1fe, b"\x55\xaa"),
    ("SquashFS", 0, b"hsqs"),
    ("ISO 9660", 0x8001, b"CD001"),
    ("QCOW2 image", 0, b"QFI\xfb"),
    ("F2FS", 0x400, b"\x10\x20\xf5\xf2"),
    ("bcache", 0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    ("BitLocker", 3, b"-FVE-FS-"),
    ("VMFS", 0x200000, b"\x0d\xd0\x01\xc0"),
    ("ZFS", 0x20000 + 0x1c, b"\x0c\xb1\xba\x00\x00\x00\x00\x00"),
    ("VMDK image", 0, b"KDMV"),
    ("VHDX image", 0, b"vhdxfile"),
    ("VDI image", 0x40, b"\x7f\x10\xda\xbe"),
    ("SQLite database", 0, b"SQLite format 3\0"),
    ("ZIP archive", 0, b"PK\x03\x04"),
    ("7-Zip archive", 0, b"7z\xbc\xaf\x27\x1c"),
    ("RAR archive", 0, b"Rar!\x1a\x07"),
    ("tar archive", 257, b"ustar"),
    ("xz file", 0, b"\xfd7zXZ\0"),
    ("Zstandard file", 0, b"\x28\xb5\x2f\xfd"),
    ("MP4 or QuickTime video", 4, b"ftyp"),
    ("Matroska or WebM video", 0, b"\x1a\x45\xdf\xa3"),
    ("PDF document", 0, b"%PDF-"),
    ("PNG image", 0, b"\x89PNG\r\n\x1a\n"),
    ("ELF program", 0, b"\x7fELF"),
    ("age file", 0, b"age-encryption.org/v1"),
];

/// Bytes at the start that are scanned for data of any kind: those that formatting overwrites.
pub const HEAD_BYTES: u64 = 16 * 1024 * 1024;
/// Bytes at the end that are scanned: archives, RAIDs and partition tables keep metadata there.
const TAIL_BYTES: u64 = 1024 * 1024;
/// Largest device that is scanned as a whole.
const WHOLE_BYTES: u64 = 64 * 1024 * 1024;
/// Number of samples between the start and the end of a larger device.
const SAMPLES: u64 = 64;
/// Size of a sample, in bytes.
const SAMPLE_BYTES: u64 = 64 * 1024;
/// Size of a block that is classified, in bytes.
const BLOCK_BYTES: usize = 4096;

/// Kind of the bytes that a device returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// As stored: unwritten blocks are zero.
    Stored,
    /// Decrypted: unwritten blocks look random.
    Decrypted,
}

/// Data found on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Something with a known signature.
    Known(&'static str),
    /// Other data; the offset of the first block found.
    Unknown(u64),
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Known(name) => f.write_str(name),
            Content::Unknown(at) => write!(f, "data of an unknown kind (at byte {at})"),
        }
    }
}

/// Detects data on a device: a known signature first, otherwise the first data in its start, its
/// end or the samples between them.
///
/// # Errors
/// A read fails.
pub fn content(device: &dyn BlockDevice, view: View) -> block::Result<Option<Content>> {
    scan(device, view, &Some)
}

/// Same as [`content`], for the stored bytes of a disk, including the part of a file behind its
/// last whole block. Holes of a sparse file are skipped.
///
/// # Errors
/// Those of [`content`].
pub fn content_of(disk: &Disk) -> block::Result<Option<Content>> {
    let device = disk.device();
    let Disk::File(file) = disk else {
        return content(&*device, View::Stored);
    };
    let found = scan(&*device, View::Stored, &|from| file.file().next_data(from))?;
    let behind = is_data(&file.file().behind_the_end()?, View::Stored);
    Ok(found.or_else(|| behind.then_some(Content::Unknown(device.info().size))))
}

fn scan(
    device: &dyn BlockDevice,
    view: View,
    next_data: &dyn Fn(u64) -> Option<u64>,
) -> block::Result<Option<Content>> {
    if let Some(known) = find(device)? {
        return Ok(Some(Content::Known(known)));
    }
    let size = device.info().size;
    let mut below = Blocking::open(device)?;
    let mut bytes = vec![0; HEAD_BYTES.min(size) as usize];
    for (from, to) in places(size) {
        let mut at = from;
        while let Some(data) = next_data(at).filter(|data| *data < to) {
            at = at.max(data - data % SAMPLE_BYTES);
            let len = bytes.len().min((to - at) as usize);
            below.read_at(at, &mut bytes[..len])?;
            let mut blocks = bytes[..len].chunks(BLOCK_BYTES);
            if let Some(n) = blocks.position(|block| is_data(block, view)) {
                return Ok(Some(Content::Unknown(at + (n * BLOCK_BYTES) as u64)));
            }
            at += len as u64;
        }
    }
    Ok(None)
}

/// Lists the ranges to scan, each as first byte and end.
fn places(size: u64) -> Vec<(u64, u64)> {
    if size <= WHOLE_BYTES {
        return vec![(0, size)];
    }
    let tail = (size - TAIL_BYTES) / SAMPLE_BYTES * SAMPLE_BYTES;
    let mut places = vec![(0, HEAD_BYTES), (tail, size)];
    for n in 0..SAMPLES {
        let at = HEAD_BYTES + (tail - HEAD_BYTES) / SAMPLES * n / SAMPLE_BYTES * SAMPLE_BYTES;
        places.push((at, at + SAMPLE_BYTES));
    }
    places
}

fn is_data(block: &[u8], view: View) -> bool {
    block.iter().any(|byte| *byte != 0) && (view == View::Stored || !looks_random(block))
}

/// Reports whether bytes are as evenly distributed as random ones, by a chi-squared test with 255
/// degrees of freedom. Fewer than one in 10^18 random blocks of 4096 bytes fail it; text, tables
/// and headers always do.
fn looks_random(block: &[u8]) -> bool {
    const LIMIT: f64 = 512.0;
    let mut counts = [0u32; 256];
    for byte in block {
        counts[usize::from(*byte)] += 1;
    }
    let even = block.len() as f64 / 256.0;
    let squares = counts.iter().map(|n| (f64::from(*n) - even).powi(2));
    squares.sum::<f64>() / even < LIMIT
}

/// Bytes at the start of a device that are searched for signatures.
const LOOK_BYTES: u64 = 4 * 1024 * 1024;

/// Returns the number of bytes at the start of `device` that [`find`] searches.
pub fn scanned_bytes(device: &dyn BlockDevice) -> u64 {
    let info = device.info();
    let len = LOOK_BYTES.min(info.size);
    len - len % u64::from(info.logical_block_size)
}

/// Reports whether a signature is that of an encrypted volume.
pub fn is_volume(found: &str) -> bool {
    found == VOLUME || found == VOLUME_SECOND
}

/// Reports whether a signature is that of an EVFS file system.
pub fn is_ours(found: &str) -> bool {
    found == FILES || found == FILES_SECOND
}

/// Searches `device` for known signatures, and returns the name of the first.
pub fn find(device: &dyn BlockDevice) -> block::Result<Option<&'static str>> {
    let mut head = vec![0; scanned_bytes(device) as usize];
    Blocking::open(device)?.read_at(0, &mut head)?;
    Ok(find_in(&head))
}

fn find_in(head: &[u8]) -> Option<&'static str> {
    let there = |at: usize, magic: &[u8]| head.get(at..at + magic.len()) == Some(magic);
    SIGNATURES
        .iter()
        .find(|(_, at, magic)| there(*at, magic))
        .map(|(name, ..)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_each_signature_at_its_place_and_none_in_zeros() {
        assert_eq!(find_in(&vec![0; LOOK_BYTES as usize]), None);
        for (name, at, magic) in SIGNATURES {
            let mut head = vec![0; LOOK_BYTES as usize];
            head[*at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(find_in(&head), Some(*name));
            assert_eq!(
                find_in(&head[..at + magic.len() - 1]),
                None,
                "{name} cut short"
            );
        }
    }

    #[test]
    fn data_of_any_kind_is_seen_and_unwritten_space_is_not() {
        const SIZE: usize = 80 << 20;
        let disk = |at: usize, data: &[u8]| {
            let mut bytes = vec![0; SIZE];
            bytes[at..at + data.len()].copy_from_slice(data);
            let mem = block_testing::Mem::new(SIZE as u64, 512);
            Blocking::open(&mem).unwrap().write_at(0, &bytes).unwrap();
            mem
        };
        let mut random = vec![0; 1 << 20];
        getrandom::fill(&mut random).unwrap();
        let text = b"some words ".repeat(400);
        let look = |at, data: &[u8], view| content(&disk(at, data), view).unwrap();
        assert_eq!(look(0, &[], View::Stored), None);
        for at in [4096, (16 << 20) - 4096, SIZE - 8192] {
            let block = (at - at % BLOCK_BYTES) as u64;
            assert_eq!(look(at, &[1], View::Stored), Some(Content::Unknown(block)));
            let seen = look(at, &text[..4096], View::Decrypted);
            assert_eq!(seen, Some(Content::Unknown(block)));
        }
        // Between start and end, data as long as the distance of the samples is always found.
        assert!(look(40 << 20, &random, View::Stored).is_some());
        assert_eq!(look(4096, &random, View::Decrypted), None);
        assert_eq!(
            look(0, b"PK\x03\x04", View::Decrypted),
            Some(Content::Known("ZIP archive"))
        );
    }
}
