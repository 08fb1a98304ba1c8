//! The Rock Ridge extensions: names, modes, times, links and devices of Unix, in the bytes of a
//! record that ISO 9660 leaves to systems, and in continuations elsewhere.

use super::record::{SECTOR, long_time, short_time};
use crate::bytes::{le8, le32, part};
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::tree::Time;

/// Most continuations of a record.
const CONTINUATIONS_MAX: usize = 64;
/// Longest target of a link.
const TARGET_BYTES_MAX: usize = 4096;

/// Values of Rock Ridge of a record.
#[derive(Debug, Clone, Default)]
pub(super) struct Rock {
    /// Mode, number of names, user and group.
    pub posix: Option<(u32, u32, u32, u32)>,
    pub name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    pub device: Option<(u32, u32)>,
    /// Block of the content of a directory that is stored elsewhere.
    pub child: Option<u32>,
    /// The record is that of such a directory where it is stored, and has no name there.
    pub is_relocated: bool,
    /// The content is compressed.
    pub is_compressed: bool,
    pub created: Option<Time>,
    pub modified: Option<Time>,
    pub accessed: Option<Time>,
    pub changed: Option<Time>,
}

/// Finds the entry of the root's record that announces extensions. Returns the number of bytes that
/// precede them in every record.
pub(super) fn skip(system_use: &[u8]) -> Option<usize> {
    // A CD-ROM XA has 14 bytes of its own before.
    [0, 14]
        .into_iter()
        .find_map(|at| match system_use.get(at..at + 7)? {
            [b'S', b'P', 7, 1, 0xbe, 0xef, skip] => Some(usize::from(*skip)),
            _ => None,
        })
}

impl Rock {
    /// Parses the entries.
    pub fn parse(disk: &mut Disk, bytes: &[u8]) -> Result<Rock> {
        let mut rock = Rock::default();
        let mut target = Target::default();
        let mut area = bytes.to_vec();
        for _ in 0..CONTINUATIONS_MAX {
            let mut next = None;
            let mut at = 0;
            while at + 4 <= area.len() {
                let len = usize::from(le8(&area, at + 2)?);
                if len < 4 {
                    break;
                }
                let Ok(entry) = part(&area, at, len) else {
                    break;
                };
                match &entry[..2] {
                    b"CE" if len >= 28 => {
                        let (block, offset) = (le32(entry, 4)?, le32(entry, 12)?);
                        let bytes = le32(entry, 20)?;
                        if bytes > SECTOR as u32 {
                            return Err(Error::corrupt("a continuation is too long"));
                        }
                        next = Some((u64::from(block) * SECTOR + u64::from(offset), bytes));
                    }
                    b"ST" => break,
                    _ => rock.add(entry, &mut target)?,
                }
                at += len;
            }
            match next {
                Some((at, len)) => area = disk.bytes(at, len as usize)?,
                None => {
                    rock.target = target.finish();
                    return Ok(rock);
                }
            }
        }
        Err(Error::corrupt("a record does not end"))
    }

    /// Returns the target of a link.
    pub fn target(&self) -> Result<Vec<u8>> {
        let target = self.target.clone();
        target.ok_or_else(|| Error::corrupt("a link has no target"))
    }

    fn add(&mut self, entry: &[u8], target: &mut Target) -> Result<()> {
        match &entry[..2] {
            b"PX" if entry.len() >= 36 => {
                let number = |at| le32(entry, at);
                self.posix = Some((number(4)?, number(12)?, number(20)?, number(28)?));
            }
            b"PN" if entry.len() >= 20 => {
                let (high, low) = (le32(entry, 4)?, le32(entry, 12)?);
                // As the kernel: a whole number in the lower part, or its halves.
                self.device = Some(match high {
                    0 => (low >> 8, low & 0xff),
                    high => (high, low),
                });
            }
            b"NM" if entry.len() >= 5 => match le8(entry, 4)? {
                0 | 1 => {
                    let name = self.name.get_or_insert_default();
                    name.extend_from_slice(entry.get(5..).unwrap_or_default());
                    if name.len() > 255 {
                        return Err(Error::corrupt("a name is too long"));
                    }
                }
                _ => {}
            },
            b"CL" if entry.len() >= 12 => self.child = Some(le32(entry, 4)?),
            b"RE" => self.is_relocated = true,
            b"ZF" => self.is_compressed = true,
            b"SL" if entry.len() >= 5 => target.add(entry.get(5..).unwrap_or_default())?,
            b"TF" if entry.len() >= 5 => {
                let flags = le8(entry, 4)?;
                let (bytes, decode): (usize, fn(&[u8]) -> Time) = match flags & 0x80 {
                    0 => (7, short_time),
                    _ => (17, long_time),
                };
                let places = [
                    &mut self.created,
                    &mut self.modified,
                    &mut self.accessed,
                    &mut self.changed,
                ];
                let mut at = 5;
                for (bit, place) in places.into_iter().enumerate() {
                    if flags >> bit & 1 == 1 {
                        *place = Some(decode(part(entry, at, bytes)?));
                        at += bytes;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Target of a link, whose components are in one or several entries.
#[derive(Default)]
struct Target {
    bytes: Vec<u8>,
    /// Whether there is any component.
    some: bool,
    /// Whether the last component continues in the next one.
    continues: bool,
}

impl Target {
    fn add(&mut self, mut components: &[u8]) -> Result<()> {
        while let [flags, len, rest @ ..] = components {
            let name = part(rest, 0, usize::from(*len))?;
            components = rest.get(usize::from(*len)..).unwrap_or_default();
            if self.some && !self.continues && self.bytes.last() != Some(&b'/') {
                self.bytes.push(b'/');
            }
            match flags & 0xe {
                0 => self.bytes.extend_from_slice(name),
                2 => self.bytes.push(b'.'),
                4 => self.bytes.extend_from_slice(b".."),
                8 => self.bytes = b"/".to_vec(),
                _ => return Err(Error::corrupt("a component of a link")),
            }
            self.some = true;
            self.continues = flags & 1 == 1;
            if self.bytes.len() > TARGET_BYTES_MAX || self.bytes.contains(&0) {
                return Err(Error::corrupt("the target of a link"));
            }
        }
        Ok(())
    }

    fn finish(self) -> Option<Vec<u8>> {
        self.some.then_some(self.bytes)
    }
}
