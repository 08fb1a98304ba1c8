//! The pages of the metadata that a view reads, each compared with its checksum, while the database
//! is in use.
//!
//! `redb` verifies pages only if nothing else uses the database. So this module knows enough of its
//! file format, version 3, to find all pages of the tables, with their checksums: the header, the
//! table of tables, and the pages of a tree. While the view is held, none of them is overwritten.
//! Deliberately absent: `redb`'s own tables, which a view does not protect.

use super::Report;
use super::finding::FindingKind;
use super::meter::Meter;
use crate::error::{Error, Result};
use crate::metadata::page_layout::{BRANCH, LEAF, PageLayout, array, children, u16_at, u32_at};
use crate::metadata::view::View;
use twox_hash::XxHash3_128;

const MAGIC: &[u8] = b"redb\x1a\x0a\xa9\x0d\x0a";
const FILE_FORMAT: u8 = 3;
/// Offset of the first of the two slots of the header, and the length of each.
const SLOTS: usize = 64;
const SLOT_BYTES: usize = 128;
/// Offset of the checksum of a slot.
const SLOT_SUM: usize = 112;
/// Limit for the depth of a tree, which is far below that of a valid one.
const DEPTH_MAX: usize = 64;

/// Bytes of keys or values, if all are of one length.
type Width = Option<usize>;

/// Reference to a page.
#[derive(Debug, Clone, Copy)]
struct PageRef {
    number: u64,
    sum: u128,
}

/// Shape of a table, and its first page.
#[derive(Debug, Clone, Copy)]
struct Table {
    root: Option<PageRef>,
    key: Width,
    value: Width,
}

struct Pages<'a, 't> {
    view: &'a View<'a>,
    layout: PageLayout,
    /// Bytes read.
    read: u64,
    report: &'a mut Report,
    meter: &'a mut Meter<'t>,
}

/// Reads all pages of a view. Those that differ from their checksums are in the report.
///
/// # Errors
/// [`crate::Kind::Corrupt`]: the header is damaged. The device failed.
pub(super) fn verify(view: &View<'_>, report: &mut Report, meter: &mut Meter<'_>) -> Result<()> {
    let damaged = || Error::corrupt("the header of the metadata is damaged");
    let header = &view.header[..];
    if !header.starts_with(MAGIC) {
        return Err(damaged());
    }
    let layout = PageLayout::of_header(header).ok_or_else(damaged)?;
    let primary = usize::from(header[MAGIC.len()] & 1);
    let slot = &header[SLOTS + primary * SLOT_BYTES..][..SLOT_BYTES];
    let sum = XxHash3_128::oneshot(&slot[..SLOT_SUM]).to_le_bytes();
    if slot[0] != FILE_FORMAT || slot[SLOT_SUM..] != sum {
        return Err(damaged());
    }
    let mut pages = Pages {
        view,
        layout,
        read: 0,
        report,
        meter,
    };
    let tables = Table {
        root: (slot[1] != 0).then(|| page_ref(&slot[8..])).flatten(),
        key: None,
        value: None,
    };
    let mut found = Vec::new();
    pages.verify(tables, &mut |leaf| {
        found.extend(leaf.values().map(|value| value.and_then(table)));
    })?;
    for table in found {
        let table = table.ok_or_else(|| Error::corrupt("the table of tables is damaged"))?;
        pages.verify(table, &mut |_| {})?;
    }
    Ok(())
}

impl Pages<'_, '_> {
    /// Reads all pages of a table, and passes those with entries to `take`.
    fn verify(&mut self, table: Table, take: &mut dyn FnMut(&Leaf<'_>)) -> Result<()> {
        match table.root {
            Some(root) => self.page(table, root, 0, take),
            None => Ok(()),
        }
    }

    fn page(
        &mut self,
        table: Table,
        at: PageRef,
        depth: usize,
        take: &mut dyn FnMut(&Leaf<'_>),
    ) -> Result<()> {
        let place = self.layout.place(at.number, self.view.file_bytes);
        let Some((offset, len)) = place.filter(|_| depth < DEPTH_MAX) else {
            self.damaged(at, "lies outside the metadata, or is too deep");
            return Ok(());
        };
        self.read += len;
        // Damage with valid checksums, which only an attacker can make.
        if self.read > self.view.file_bytes {
            return Err(Error::corrupt("the pages of the metadata form a loop"));
        }
        let mut data = vec![0; len as usize];
        self.view.file.read_at(offset, &mut data)?;
        self.view.pace.pass(len)?;
        self.meter.at(self.read);
        let leaf = Leaf {
            data: &data,
            table,
            count: usize::from(u16_at(&data, 2)),
        };
        let end = match data[0] {
            LEAF => leaf.end(),
            BRANCH => branch_end(&data, table.key),
            _ => None,
        };
        let sum = end
            .and_then(|end| data.get(..end))
            .map(XxHash3_128::oneshot);
        if sum != Some(at.sum) {
            self.damaged(at, "does not match its checksum");
            return Ok(());
        }
        if data[0] == LEAF {
            take(&leaf);
            return Ok(());
        }
        for (number, sum) in children(&data) {
            self.page(table, PageRef { number, sum }, depth + 1, take)?;
        }
        Ok(())
    }

    fn damaged(&mut self, at: PageRef, text: &str) {
        let text = format!("page {:#x} of the metadata {text}", at.number);
        self.report.problem(FindingKind::Pages, text);
    }
}

/// A page with the entries of a table.
struct Leaf<'a> {
    data: &'a [u8],
    table: Table,
    count: usize,
}

impl Leaf<'_> {
    /// Start of the keys.
    fn keys(&self) -> usize {
        let lists = usize::from(self.table.key.is_none()) + usize::from(self.table.value.is_none());
        4 + 4 * self.count * lists
    }

    fn keys_end(&self) -> Option<usize> {
        let last = self.count.checked_sub(1)?;
        match self.table.key {
            Some(bytes) => Some(self.keys() + bytes * self.count),
            None => u32_at(self.data, 4 + 4 * last).map(|end| end as usize),
        }
    }

    fn value_end(&self, i: usize) -> Option<usize> {
        match self.table.value {
            Some(bytes) => Some(self.keys_end()? + bytes * (i + 1)),
            None => {
                let list = 4 + 4 * self.count * usize::from(self.table.key.is_none());
                u32_at(self.data, list + 4 * i).map(|end| end as usize)
            }
        }
    }

    fn end(&self) -> Option<usize> {
        self.value_end(self.count.checked_sub(1)?)
    }

    fn values(&self) -> impl Iterator<Item = Option<&[u8]>> {
        (0..self.count).map(|i| {
            let start = match i.checked_sub(1) {
                None => self.keys_end()?,
                Some(before) => self.value_end(before)?,
            };
            self.data.get(start..self.value_end(i)?)
        })
    }
}

/// End of the part of a branch that its checksum covers.
fn branch_end(data: &[u8], key: Width) -> Option<usize> {
    let keys = usize::from(u16_at(data, 2));
    let last = keys.checked_sub(1)?;
    let lists = 8 + 24 * (keys + 1);
    match key {
        Some(bytes) => Some(lists + bytes * keys),
        None => u32_at(data, lists + 4 * last).map(|end| end as usize),
    }
}

/// Decodes the definition of a table.
fn table(value: &[u8]) -> Option<Table> {
    const ROOT: usize = 9;
    const KEY: usize = ROOT + 33;
    const VALUE: usize = KEY + 5;
    let width = |at: usize| {
        let bytes = u32_at(value, at + 1)? as usize;
        Some((*value.get(at)? != 0).then_some(bytes))
    };
    let root = match *value.get(ROOT)? {
        0 => None,
        _ => Some(page_ref(value.get(ROOT + 1..)?)?),
    };
    Some(Table {
        root,
        key: width(KEY)?,
        value: width(VALUE)?,
    })
}

fn page_ref(bytes: &[u8]) -> Option<PageRef> {
    Some(PageRef {
        number: u64::from_le_bytes(array(bytes, 0)?),
        sum: u128::from_le_bytes(array(bytes, 8)?),
    })
}
