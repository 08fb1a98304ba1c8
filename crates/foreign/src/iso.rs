//! ISO 9660 with the Rock Ridge extensions, or else with Joliet, read-only by its nature.
//!
//! The node of a file is the offset of its first record in a directory; that of a directory is the
//! offset of its content, whose first record describes it, plus 1, which no record has. The root has
//! the node 1. A file is one extent, or several that follow one another in its directory.
//! Deliberately absent: UDF, interleaved files, compressed files (zisofs).

mod record;
mod rock;

use crate::bytes::{le16, le32, part};
use crate::disk::Disk;
use crate::error::{Error, Kind, Result};
use crate::tree::{Attr, Entry, Node, Piece, Place, ROOT, Space, Tree, add, is_name};
use record::{Record, SECTOR};
use rock::Rock;
use std::ops::Range;

/// First descriptor.
const DESCRIPTORS_AT: u64 = 16 * SECTOR;
/// Most descriptors that are read.
const DESCRIPTORS_MAX: u64 = 64;

/// Longest directory, in bytes.
const DIRECTORY_BYTES_MAX: u64 = 256 << 20;
/// Most extents of a file: as many as a file of 2^48 bytes has.
const EXTENTS_MAX: usize = 1 << 16;

/// Flags of a record.
const DIRECTORY: u8 = 2;
const ASSOCIATED: u8 = 4;
const MULTI_EXTENT: u8 = 0x80;

/// How names are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    /// Upper case with a version, unless Rock Ridge has another name.
    Plain,
    /// UTF-16, big-endian.
    Joliet,
}

/// An open file system.
pub(crate) struct Iso {
    root: (u64, u64),
    names: Names,
    /// Bytes of other data before Rock Ridge's entries; `None` without Rock Ridge.
    rock: Option<usize>,
    blocks: u64,
    label: String,
}

/// Reports whether the device has a volume descriptor.
pub(crate) fn is_there(disk: &mut Disk) -> Result<bool> {
    if disk.size() < DESCRIPTORS_AT + SECTOR {
        return Ok(false);
    }
    Ok(disk.bytes(DESCRIPTORS_AT + 1, 5)? == b"CD001")
}

/// A file: its first record, and the extents of all of its records.
struct File {
    record: Record,
    rock: Rock,
    extents: Vec<(u64, u64)>,
    size: u64,
}

impl Iso {
    /// Opens a file system.
    ///
    /// # Errors
    /// It is damaged.
    pub(crate) fn open(disk: &mut Disk) -> Result<Iso> {
        let (mut primary, mut joliet) = (None, None);
        for number in 0..DESCRIPTORS_MAX {
            let bytes = disk.bytes(DESCRIPTORS_AT + number * SECTOR, SECTOR as usize)?;
            if part(&bytes, 1, 5)? != b"CD001" {
                return Err(Error::corrupt("a volume descriptor is damaged"));
            }
            match bytes.first() {
                Some(1) if primary.is_none() => primary = Some(bytes),
                // The escape sequences of UCS-2.
                Some(2) if matches!(part(&bytes, 88, 3)?, b"%/@" | b"%/C" | b"%/E") => {
                    joliet = Some(bytes);
                }
                Some(255) => break,
                _ => {}
            }
        }
        let primary = primary.ok_or_else(|| Error::corrupt("it has no primary descriptor"))?;
        if u64::from(le16(&primary, 128)?) != SECTOR {
            return Err(Error::unsupported(
                "its blocks do not have 2048 bytes; use mount(8)",
            ));
        }
        let root_of = |bytes: &[u8]| -> Result<(u64, u64)> {
            let record = Record::parse(part(bytes, 156, 34)?, 0)?;
            record.extent(disk.size())
        };
        let root = root_of(&primary)?;
        let mut iso = Iso {
            root,
            names: Names::Plain,
            rock: None,
            blocks: u64::from(le32(&primary, 80)?),
            label: String::from_utf8_lossy(part(&primary, 40, 32)?)
                .trim()
                .to_owned(),
        };
        let joliet_root = joliet.as_deref().map(root_of).transpose()?;
        let first = iso.record_at(disk, root.0)?;
        iso.rock = rock::skip(&first.system_use);
        if let (None, Some(root)) = (iso.rock, joliet_root) {
            (iso.root, iso.names) = (root, Names::Joliet);
        }
        iso.file(disk, ROOT)?;
        Ok(iso)
    }

    /// Reads the record at an offset of the device.
    fn record_at(&self, disk: &mut Disk, at: u64) -> Result<Record> {
        let left = (SECTOR - at % SECTOR) as usize;
        let bytes = disk.bytes(at, left.min(255))?;
        Record::parse(&bytes, at)
    }

    fn rock_of(&self, disk: &mut Disk, record: &Record) -> Result<Rock> {
        match self.rock {
            Some(skip) => Rock::parse(disk, record.system_use.get(skip..).unwrap_or_default()),
            None => Ok(Rock::default()),
        }
    }

    fn file(&self, disk: &mut Disk, node: Node) -> Result<File> {
        let at = match node {
            ROOT => self.root.0,
            // A directory: its content begins with a record of itself.
            node => node & !1,
        };
        let mut record = self.record_at(disk, at)?;
        let is_dir_node = node == ROOT || node & 1 == 1;
        if is_dir_node && (record.flags & DIRECTORY == 0 || record.name != [0]) {
            return Err(Error::corrupt("a directory does not begin with itself"));
        }
        let rock = self.rock_of(disk, &record)?;
        let mut extents = vec![record.extent(disk.size())?];
        let first = record.clone();
        let mut next = at;
        while record.flags & MULTI_EXTENT != 0 {
            next += u64::from(record.len);
            // The next sector if this one has no more records.
            let in_sector = next % SECTOR;
            let ends = in_sector == 0 || disk.bytes(next, 1)? == [0];
            if ends && in_sector != 0 {
                next += SECTOR - in_sector;
            }
            record = self.record_at(disk, next)?;
            extents.push(record.extent(disk.size())?);
            if extents.len() > EXTENTS_MAX || record.name != first.name {
                return Err(Error::corrupt("the extents of a file do not end"));
            }
        }
        let size = extents
            .iter()
            .fold(0u64, |sum, (_, len)| sum.saturating_add(*len));
        Ok(File {
            record: first,
            rock,
            extents,
            size,
        })
    }

    fn dir(&self, disk: &mut Disk, node: Node) -> Result<(u64, u64)> {
        let file = self.file(disk, node)?;
        match file.record.flags & DIRECTORY {
            0 => Err(Kind::NotDirectory.into()),
            _ if file.size > DIRECTORY_BYTES_MAX => Err(Error::corrupt("a directory is too long")),
            _ => Ok((file.extents[0].0, file.size)),
        }
    }

    /// Returns the name of a record, as the kernel shows it.
    fn name(&self, record: &Record, rock: &Rock) -> Vec<u8> {
        if let Some(name) = &rock.name {
            return name.clone();
        }
        match self.names {
            Names::Joliet => {
                let units = record
                    .name
                    .as_chunks::<2>()
                    .0
                    .iter()
                    .map(|b| u16::from_be_bytes(*b));
                let text: String = char::decode_utf16(units)
                    .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
                    .collect();
                without_version(text.into_bytes())
            }
            Names::Plain => {
                let lower = record.name.iter().map(u8::to_ascii_lowercase).collect();
                let mut name = without_version(lower);
                if name.last() == Some(&b'.') {
                    name.pop();
                }
                name
            }
        }
    }
}

/// Removes the number of the version, `;1`.
fn without_version(mut name: Vec<u8>) -> Vec<u8> {
    if name.ends_with(b";1") {
        name.truncate(name.len() - 2);
    }
    name
}

impl Tree for Iso {
    fn format(&self) -> &'static str {
        "ISO 9660"
    }

    fn label(&self) -> String {
        self.label.chars().filter(|c| !c.is_control()).collect()
    }

    fn space(&self) -> Space {
        Space {
            block_bytes: SECTOR as u32,
            blocks: self.blocks,
            ..Space::default()
        }
    }

    fn attr(&self, disk: &mut Disk, node: Node) -> Result<Attr> {
        let file = self.file(disk, node)?;
        let is_dir = file.record.flags & DIRECTORY != 0;
        let default = if is_dir {
            libc::S_IFDIR | 0o555
        } else {
            libc::S_IFREG | file.record.permissions()
        };
        let rock = &file.rock;
        let (mode, links, uid, gid) = rock.posix.unwrap_or((default, 1, 0, 0));
        if (mode & libc::S_IFMT == libc::S_IFDIR) != is_dir {
            return Err(Error::corrupt("the type of a file is not clear"));
        }
        let time = file.record.time;
        let size = match mode & libc::S_IFMT {
            libc::S_IFREG | libc::S_IFDIR => file.size,
            libc::S_IFLNK => rock.target()?.len() as u64,
            _ => 0,
        };
        Ok(Attr {
            ino: node,
            mode,
            links,
            uid,
            gid,
            device: rock.device.unwrap_or_default(),
            size,
            blocks: size.div_ceil(512),
            accessed: rock.accessed.unwrap_or(time),
            modified: rock.modified.unwrap_or(time),
            changed: rock.changed.or(rock.created).unwrap_or(time),
            created: rock.created,
        })
    }

    /// A position is an offset in the content of the directory.
    fn read_dir(&self, disk: &mut Disk, dir: Node, from: u64, count: usize) -> Result<Vec<Entry>> {
        let (start, size) = self.dir(disk, dir)?;
        let mut entries = Vec::new();
        let mut at = from;
        // Whether the next record is about the same file as the last one.
        let mut continues = false;
        while at < size && entries.len() < count {
            if disk.bytes(start + at, 1)? == [0] {
                // No record crosses the end of a sector.
                at = (at / SECTOR + 1) * SECTOR;
                continue;
            }
            let record = self.record_at(disk, start + at)?;
            let next = at + u64::from(record.len);
            let is_rest = continues;
            continues = record.flags & MULTI_EXTENT != 0;
            if is_rest {
                // The last entry ends here.
                if let Some(last) = entries.last_mut() {
                    let last: &mut Entry = last;
                    last.next = next;
                }
                at = next;
                continue;
            }
            let dots = match &record.name[..] {
                [0] => Some(&b"."[..]),
                [1] => Some(&b".."[..]),
                _ => None,
            };
            let is_dir = record.flags & DIRECTORY != 0;
            if let Some(name) = dots {
                entries.push(Entry {
                    name: name.to_vec(),
                    node: 0,
                    ino: self.dir_node(&record, disk.size())?,
                    kind: libc::S_IFDIR,
                    next,
                });
            } else if record.flags & ASSOCIATED == 0 {
                let rock = self.rock_of(disk, &record)?;
                if rock.is_relocated {
                    at = next;
                    continue;
                }
                let is_dir = is_dir || rock.child.is_some();
                let name = self.name(&record, &rock);
                if !is_name(&name) || name == b"." || name == b".." {
                    return Err(Error::corrupt("a name is not valid"));
                }
                let node = match (is_dir, rock.child) {
                    (_, Some(block)) => (u64::from(block) * SECTOR) | 1,
                    (true, None) => self.dir_node(&record, disk.size())?,
                    (false, None) => start + at,
                };
                let kind = match (is_dir, rock.posix) {
                    (true, _) => libc::S_IFDIR,
                    (false, Some((mode, ..))) => mode & libc::S_IFMT,
                    (false, None) => libc::S_IFREG,
                };
                entries.push(Entry {
                    name,
                    node,
                    ino: node,
                    kind,
                    next,
                });
            }
            at = next;
        }
        // The rest of a file whose first record is the last entry.
        while continues && at < size {
            if disk.bytes(start + at, 1)? == [0] {
                at = (at / SECTOR + 1) * SECTOR;
                continue;
            }
            let record = self.record_at(disk, start + at)?;
            continues = record.flags & MULTI_EXTENT != 0;
            at += u64::from(record.len);
            if let Some(last) = entries.last_mut() {
                last.next = at;
            }
        }
        Ok(entries)
    }

    fn read_link(&self, disk: &mut Disk, node: Node) -> Result<Vec<u8>> {
        let file = self.file(disk, node)?;
        match file.rock.posix {
            Some((mode, ..)) if mode & libc::S_IFMT == libc::S_IFLNK => file.rock.target(),
            _ => Err(Kind::Invalid.into()),
        }
    }

    fn map(&self, disk: &mut Disk, node: Node, range: Range<u64>) -> Result<Vec<Piece>> {
        let file = self.file(disk, node)?;
        if file.rock.is_compressed {
            return Err(Error::unsupported(
                "the content of a file is compressed (zisofs)",
            ));
        }
        let mut pieces = Vec::new();
        let mut first = 0u64;
        for (at, len) in file.extents {
            let end = first.saturating_add(len);
            let (from, to) = (range.start.max(first), range.end.min(end));
            if from < to {
                let place = Place::Device(at + (from - first));
                let len = to - from;
                add(&mut pieces, Piece { len, place });
            }
            first = end;
        }
        Ok(pieces)
    }
}

impl Iso {
    fn dir_node(&self, record: &Record, device_bytes: u64) -> Result<Node> {
        let (at, _) = record.extent(device_bytes)?;
        Ok(if at == self.root.0 { ROOT } else { at | 1 })
    }
}
