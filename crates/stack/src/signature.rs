//! Signatures of what may already lie on a device, so that nothing is overwritten unasked.

use block::{BlockDevice, Blocking};

const VOLUME: &str = "LUKS";
const VOLUME_SECOND: &str = "LUKS (second header)";
const FILES: &str = "EVFS file system";
const FILES_SECOND: &str = "EVFS file system (second superblock)";

/// A magic number and where it stands. Offsets as in the formats' own headers (the list is the
/// common subset of what `blkid` knows).
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
];

/// Bytes from the start of the device that are looked at.
const LOOK_BYTES: u64 = 4 * 1024 * 1024;

/// Bytes that [`find`] looks at, from the start.
pub fn looked_at(device: &dyn BlockDevice) -> u64 {
    let info = device.info();
    let len = LOOK_BYTES.min(info.size);
    len - len % u64::from(info.logical_block_size)
}

/// Whether what was found is an encrypted volume.
pub fn is_volume(found: &str) -> bool {
    found == VOLUME || found == VOLUME_SECOND
}

/// Whether what was found is a file system of ours.
pub fn is_ours(found: &str) -> bool {
    found == FILES || found == FILES_SECOND
}

/// The name of the first known signature on `device`, if there is one.
pub fn find(device: &dyn BlockDevice) -> block::Result<Option<&'static str>> {
    let mut head = vec![0; looked_at(device) as usize];
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
}
