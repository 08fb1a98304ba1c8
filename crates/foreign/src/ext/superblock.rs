//! The superblock of ext2, ext3 and ext4, and the descriptors of block groups.

use super::checksum::crc;
use crate::bytes::{join, le8, le16, le32, le64, part};
use crate::disk::Disk;
use crate::error::{Error, Result};

/// Offset of the superblock on the device.
pub(super) const AT: u64 = 1024;
pub(super) const BYTES: usize = 1024;

pub(super) const MAGIC_AT: u64 = AT + 0x38;
pub(super) const MAGIC: u16 = 0xef53;

const HAS_JOURNAL: u32 = 0x4;
const SPARSE_SUPER2: u32 = 0x200;

const FILETYPE: u32 = 0x2;
const RECOVER: u32 = 0x4;
const JOURNAL_DEV: u32 = 0x8;
const META_BG: u32 = 0x10;
const EXTENTS: u32 = 0x40;
const IS_64BIT: u32 = 0x80;
const MMP: u32 = 0x100;
const FLEX_BG: u32 = 0x200;
const EA_INODE: u32 = 0x400;
const CSUM_SEED: u32 = 0x2000;
const LARGEDIR: u32 = 0x4000;
const INLINE_DATA: u32 = 0x8000;
const ENCRYPT: u32 = 0x1_0000;

/// Incompatible features that this reader knows.
const KNOWN: u32 = FILETYPE
    | META_BG
    | EXTENTS
    | IS_64BIT
    | MMP
    | FLEX_BG
    | EA_INODE
    | CSUM_SEED
    | LARGEDIR
    | INLINE_DATA
    | ENCRYPT;

/// Names of features, for messages.
const NAMES: &[(u32, &str)] = &[
    (0x1, "compression"),
    (JOURNAL_DEV, "journal_dev"),
    (0x1000, "dirdata"),
    (0x2_0000, "casefold"),
];

const SPARSE_SUPER: u32 = 0x1;
const HUGE_FILE: u32 = 0x8;
const METADATA_CSUM: u32 = 0x400;

/// Flag of `s_state`: unmounted in order.
const VALID: u16 = 1;

/// Sequence number of an idle block of the multiple mount protection.
const MMP_CLEAN: u32 = 0xff4d_4d50;
const MMP_MAGIC: u32 = 0x004d_4d50;

/// Values of the superblock, checked.
pub(super) struct Superblock {
    pub block_bytes: u64,
    pub blocks: u64,
    pub free_blocks: u64,
    pub reserved_blocks: u64,
    pub overhead: u64,
    pub inodes: u32,
    pub free_inodes: u32,
    pub inode_bytes: u64,
    pub first_data_block: u64,
    blocks_per_group: u64,
    inodes_per_group: u32,
    groups: u64,
    descriptor_bytes: u64,
    first_meta_group: u64,
    backups: [u32; 2],
    compat: u32,
    incompat: u32,
    ro_compat: u32,
    /// Seed of checksums; `None` if there are none.
    pub seed: Option<u32>,
    pub uuid: [u8; 16],
    pub label: String,
}

impl Superblock {
    /// Reads the superblock.
    ///
    /// # Errors
    /// It is damaged, or the file system has features, or a state, with which reading is not safe.
    pub fn read(disk: &mut Disk) -> Result<Superblock> {
        let bytes = disk.bytes(AT, BYTES)?;
        let b = &bytes[..];
        if le16(b, 0x38)? != MAGIC {
            return Err(Error::corrupt("the superblock has no magic number"));
        }
        let (compat, incompat, ro_compat) = (le32(b, 0x5c)?, le32(b, 0x60)?, le32(b, 0x64)?);
        let revision = le32(b, 0x4c)?;
        let (compat, incompat, ro_compat) = match revision {
            0 => (0, 0, 0),
            _ => (compat, incompat, ro_compat),
        };
        let uuid: [u8; 16] = part(b, 0x68, 16)?.try_into().unwrap_or_default();
        let seed = match ro_compat & METADATA_CSUM {
            0 => None,
            _ if incompat & CSUM_SEED != 0 => Some(le32(b, 0x270)?),
            _ => Some(crc(!0, &uuid)),
        };
        // First, so that damage is not reported as an unknown feature.
        if seed.is_some() {
            if le8(b, 0x175)? != 1 {
                return Err(Error::unsupported("its checksums are of an unknown type"));
            }
            if crc(!0, part(b, 0, 0x3fc)?) != le32(b, 0x3fc)? {
                return Err(Error::corrupt("the checksum of the superblock is wrong"));
            }
        }
        check_features(incompat)?;
        let state = le16(b, 0x3a)?;
        if state & VALID == 0 && compat & HAS_JOURNAL == 0 {
            return Err(Error::unsupported(
                "it was not unmounted, or is in use; unmount it, or run `e2fsck` on it",
            ));
        }
        let log = le32(b, 0x18)?;
        if log > 6 {
            return Err(Error::corrupt("the size of its blocks is not valid"));
        }
        let block_bytes = 1024u64 << log;
        let wide = incompat & IS_64BIT != 0;
        let high = |at| if wide { le32(b, at) } else { Ok(0) };
        let inode_bytes = match revision {
            0 => 128,
            _ => u64::from(le16(b, 0x58)?),
        };
        let descriptor_bytes = if wide { u64::from(le16(b, 0xfe)?) } else { 32 };
        let mut superblock = Superblock {
            block_bytes,
            blocks: join(high(0x150)?, le32(b, 0x4)?),
            free_blocks: join(high(0x158)?, le32(b, 0xc)?),
            reserved_blocks: join(high(0x154)?, le32(b, 0x8)?),
            overhead: u64::from(le32(b, 0x248)?),
            inodes: le32(b, 0)?,
            free_inodes: le32(b, 0x10)?,
            inode_bytes,
            first_data_block: u64::from(le32(b, 0x14)?),
            blocks_per_group: u64::from(le32(b, 0x20)?),
            inodes_per_group: le32(b, 0x28)?,
            groups: 0,
            descriptor_bytes,
            first_meta_group: u64::from(le32(b, 0x104)?),
            backups: [le32(b, 0x24c)?, le32(b, 0x250)?],
            compat,
            incompat,
            ro_compat,
            seed,
            uuid,
            label: label(part(b, 0x78, 16)?),
        };
        superblock.check(disk.size())?;
        if incompat & MMP != 0 {
            superblock.check_unused(disk, le64(b, 0x168)?)?;
        }
        Ok(superblock)
    }

    /// Checks the values against one another.
    fn check(&mut self, device_bytes: u64) -> Result<()> {
        let good = self.inode_bytes >= 128
            && self.inode_bytes <= self.block_bytes
            && self.inode_bytes.is_power_of_two()
            && (32..=1024).contains(&self.descriptor_bytes)
            && self.descriptor_bytes.is_power_of_two()
            && self.blocks_per_group > 0
            && self.blocks_per_group <= 8 * self.block_bytes * 32_768
            && self.inodes_per_group > 0
            && u64::from(self.inodes_per_group) <= 8 * self.block_bytes
            && self.first_data_block < self.blocks;
        if !good {
            return Err(Error::corrupt("the superblock contradicts itself"));
        }
        let end = self.blocks.checked_mul(self.block_bytes);
        if end.is_none_or(|end| end > device_bytes) {
            return Err(Error::corrupt(format!(
                "it has {} blocks of {} bytes, which the device is too short for",
                self.blocks, self.block_bytes
            )));
        }
        self.groups = (self.blocks - self.first_data_block).div_ceil(self.blocks_per_group);
        if u64::from(self.inodes) > self.groups * u64::from(self.inodes_per_group) {
            return Err(Error::corrupt(
                "the superblock has more inodes than its groups",
            ));
        }
        Ok(())
    }

    /// Checks that no machine has the file system mounted, by its multiple mount protection.
    fn check_unused(&self, disk: &mut Disk, block: u64) -> Result<()> {
        let at = self.offset(block)?;
        let bytes = disk.bytes(at, 8)?;
        if le32(&bytes, 0)? != MMP_MAGIC {
            return Err(Error::corrupt("its multiple mount protection is damaged"));
        }
        if le32(&bytes, 4)? != MMP_CLEAN {
            return Err(Error::unsupported(
                "another machine has it mounted, or had when it failed; unmount it there, or run \
                 `e2fsck` on it",
            ));
        }
        Ok(())
    }

    /// Returns the offset of a block on the device.
    pub fn offset(&self, block: u64) -> Result<u64> {
        if block < self.first_data_block || block == 0 || block >= self.blocks {
            return Err(Error::corrupt(format!("block {block} does not exist")));
        }
        Ok(block * self.block_bytes)
    }

    /// Checks that a run of blocks exists.
    pub fn check_run(&self, block: u64, count: u64) -> Result<()> {
        self.offset(block)?;
        match block.checked_add(count) {
            Some(end) if end <= self.blocks => Ok(()),
            _ => Err(Error::corrupt(format!(
                "block {block} and the {count} after it do not exist"
            ))),
        }
    }

    /// Returns the offset of an inode on the device.
    pub fn inode_offset(&self, disk: &mut Disk, ino: u32) -> Result<u64> {
        if ino == 0 || ino > self.inodes {
            return Err(Error::corrupt(format!("inode {ino} does not exist")));
        }
        let group = u64::from((ino - 1) / self.inodes_per_group);
        let index = u64::from((ino - 1) % self.inodes_per_group);
        let at = self.descriptor_offset(group)?;
        let bytes = disk.bytes(at, self.descriptor_bytes as usize)?;
        if let Some(seed) = self.seed {
            let mut zeroed = bytes.clone();
            if let Some(field) = zeroed.get_mut(0x1e..0x20) {
                field.fill(0);
            }
            let found = crc(crc(seed, &(group as u32).to_le_bytes()), &zeroed);
            if found & 0xffff != u32::from(le16(&bytes, 0x1e)?) {
                let why = format!("the checksum of block group {group} is wrong");
                return Err(Error::corrupt(why));
            }
        }
        let high = if self.descriptor_bytes >= 64 {
            le32(&bytes, 0x28)?
        } else {
            0
        };
        let table = join(high, le32(&bytes, 0x8)?);
        let within = index * self.inode_bytes;
        self.check_run(table, within / self.block_bytes + 1)?;
        Ok(table * self.block_bytes + within)
    }

    /// Returns the offset of the descriptor of a block group.
    fn descriptor_offset(&self, group: u64) -> Result<u64> {
        if group >= self.groups {
            return Err(Error::corrupt(format!(
                "block group {group} does not exist"
            )));
        }
        let in_block = self.block_bytes / self.descriptor_bytes;
        let (number, index) = (group / in_block, group % in_block);
        let block = if self.incompat & META_BG == 0 || number < self.first_meta_group {
            // With blocks of 1024 bytes, the superblock is in block 1.
            let superblock = u64::from(self.block_bytes == 1024);
            superblock + number + 1
        } else {
            let first = number * in_block;
            let mut block = self.first_data_block + first * self.blocks_per_group;
            block += u64::from(self.has_superblock(first));
            if self.block_bytes == 1024 && number == 0 && self.first_data_block == 0 {
                block += 1;
            }
            block
        };
        Ok(self.offset(block)? + index * self.descriptor_bytes)
    }

    /// Reports whether a block group has a copy of the superblock.
    fn has_superblock(&self, group: u64) -> bool {
        if group == 0 {
            return true;
        }
        if self.compat & SPARSE_SUPER2 != 0 {
            return self
                .backups
                .iter()
                .any(|backup| u64::from(*backup) == group);
        }
        if group == 1 || self.ro_compat & SPARSE_SUPER == 0 {
            return true;
        }
        [3, 5, 7].iter().any(|base: &u64| {
            let mut power = *base;
            while power < group {
                power = power.saturating_mul(*base);
            }
            power == group
        })
    }

    pub fn has_large_directories(&self) -> bool {
        self.incompat & LARGEDIR != 0
    }

    pub fn has_types_in_names(&self) -> bool {
        self.incompat & FILETYPE != 0
    }

    pub fn has_huge_files(&self) -> bool {
        self.ro_compat & HUGE_FILE != 0
    }

    /// Returns the name of the format that has these features.
    pub fn format(&self) -> &'static str {
        const OF_EXT4: u32 = EXTENTS | IS_64BIT | FLEX_BG | INLINE_DATA | EA_INODE | MMP | ENCRYPT;
        if self.incompat & OF_EXT4 != 0 || self.seed.is_some() {
            "ext4"
        } else if self.compat & HAS_JOURNAL != 0 {
            "ext3"
        } else {
            "ext2"
        }
    }
}

fn check_features(incompat: u32) -> Result<()> {
    if incompat & RECOVER != 0 {
        return Err(Error::unsupported(
            "its journal holds changes that are not in place yet: it was not unmounted, or is in \
             use; unmount it, or run `e2fsck` on it",
        ));
    }
    let unknown = incompat & !KNOWN;
    if unknown == 0 {
        return Ok(());
    }
    let named = NAMES.iter().filter(|(bit, _)| unknown & bit != 0);
    let mut names: Vec<String> = named.map(|(_, name)| (*name).to_owned()).collect();
    let rest = NAMES.iter().fold(unknown, |rest, (bit, _)| rest & !bit);
    if rest != 0 {
        names.push(format!("{rest:#x}"));
    }
    Err(Error::unsupported(format!(
        "it has features that EVFS does not know ({}); use mount(8)",
        names.join(", ")
    )))
}

/// Decodes a text that ends at the first zero byte.
fn label(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..end]);
    text.chars().filter(|c| !c.is_control()).collect()
}
