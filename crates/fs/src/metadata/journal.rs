//! The journal: changes that have to survive a crash before the next commit of the tree.
//!
//! ```text
//!   half 0   record 0 │ record 1 │ ...            of epoch 2n
//!   half 1   record 0 │ record 1 │ ...            of epoch 2n + 1
//! ```
//!
//! A record holds the changes since the previous record, or since the last commit: it begins at a
//! block boundary, and is written and made durable as a whole before the next. The records of epoch
//! `e` lead from commit `e - 1` of the tree to commit `e`; while that commit is in progress, the
//! next epoch begins in the other half. After a crash, the records of the two epochs after the last
//! commit are replayed.
//!
//! **Invariant:** a record is replayed only if all records before it are intact. Deliberately
//! absent: when to write a record; see `commit.rs`.

use crate::device_io::{Barrier, DeviceIo};
use crate::error::{Error, Result};
use crate::format::key::{KEY_BYTES, Key};
use crate::format::record::{BLOCK_BYTES, DeviceOffset, In, Out, Run};
use crate::format::superblock::Superblock;
use crate::integrity::{IntegrityKey, NO_TAG, Tag, tampered};
use crate::metadata::database::{Epoch, SpaceChange};
use crate::metadata::overlay::{Change, Overlay, Prior};
use block::Buf;
use std::sync::Arc;

/// First eight bytes of a record.
const MAGIC: [u8; 8] = *b"EVFSjrnl";
/// Length of the header in bytes; the changes follow.
const HEADER_BYTES: usize = 64;
/// Offset of the checksum, which covers all bytes after it.
const CHECKSUM_AT: usize = 8;
/// Length that marks a deleted key.
const GONE: u32 = u32::MAX;
/// Bytes read at a time when searching for records after the end.
const LOOK_BYTES: usize = 1 << 20;

/// Location of the journal, and the UUID that its records carry.
#[derive(Clone)]
pub(crate) struct JournalLocation {
    start: u64,
    half_blocks: u64,
    uuid: [u8; 16],
    /// Keys of the tags of records, if checksums are keyed.
    key: Option<Arc<IntegrityKey>>,
}

impl JournalLocation {
    pub fn of(superblock: &Superblock, key: Option<&Arc<IntegrityKey>>) -> JournalLocation {
        JournalLocation {
            key: key.cloned(),
            start: superblock.journal_start,
            half_blocks: superblock.journal_blocks / 2,
            uuid: superblock.uuid,
        }
    }

    /// Reports whether the records carry keyed checksums.
    pub fn is_keyed(&self) -> bool {
        self.key.is_some()
    }

    /// Computes the place on the device of a block of the half that an epoch uses.
    fn offset(&self, epoch: Epoch, block: u64) -> DeviceOffset {
        let half = epoch.number() % 2;
        DeviceOffset::of_block(self.start + half * self.half_blocks + block)
    }
}

/// Number of a record within its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
struct RecordNo(u64);

impl RecordNo {
    const FIRST: RecordNo = RecordNo(0);

    fn next(self) -> RecordNo {
        RecordNo(self.0 + 1)
    }
}

/// Changes of one record.
#[derive(Default)]
pub(crate) struct Delta {
    /// Values by key; `None` for a deleted key.
    pub items: Vec<(Key, Option<Box<[u8]>>)>,
    pub space: Vec<SpaceChange>,
}

impl Delta {
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.space.is_empty()
    }

    /// Adds the changes to an overlay, without any assumption about the keys below it.
    pub fn apply(self, overlay: &mut Overlay, space: &mut Vec<SpaceChange>) {
        for (key, value) in self.items {
            let change = match value {
                Some(value) => Change::Put {
                    value,
                    prior: Prior::Possible,
                },
                None => Change::Delete,
            };
            overlay.set(key, Some(change));
        }
        space.extend(self.space);
    }
}

/// Write end of the journal.
pub(crate) struct Writer {
    place: JournalLocation,
    epoch: Epoch,
    /// The next record.
    record: RecordNo,
    /// Blocks of the half in use.
    blocks: u64,
    /// Tag of the last record, which the next one contains.
    last_tag: Tag,
}

impl Writer {
    /// Creates a writer at the start of an epoch.
    pub fn new(place: JournalLocation, epoch: Epoch) -> Writer {
        Writer {
            place,
            epoch,
            record: RecordNo::FIRST,
            blocks: 0,
            last_tag: NO_TAG,
        }
    }

    /// Returns the epoch of the next record.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Begins the next epoch in the other half.
    pub fn next_epoch(&mut self) {
        *self = Writer {
            last_tag: self.last_tag,
            ..Writer::new(self.place.clone(), self.epoch.next())
        };
    }

    /// Builds the next record, unless it does not fit into the half, or one of its blocks begins
    /// with the magic of a record: a user could craft such a value, and it would be replayed after
    /// the preceding record.
    pub fn prepare(&self, delta: &Delta) -> Option<Prepared> {
        let room = (self.place.half_blocks - self.blocks) * BLOCK_BYTES;
        let mut bytes = encode(&self.place.uuid, self.epoch, self.record, delta);
        let tag = match &self.place.key {
            Some(key) => add_tag(&mut bytes, key, &self.last_tag),
            None => NO_TAG,
        };
        add_checksum(&mut bytes);
        let blocks = (bytes.len() as u64).div_ceil(BLOCK_BYTES);
        let mut inner = bytes.chunks(BLOCK_BYTES as usize).skip(1);
        if blocks * BLOCK_BYTES > room || inner.any(|block| block.starts_with(&MAGIC)) {
            return None;
        }
        let mut data = Buf::zeroed((blocks * BLOCK_BYTES) as usize);
        data[..bytes.len()].copy_from_slice(&bytes);
        Some(Prepared {
            offset: self.place.offset(self.epoch, self.blocks),
            blocks,
            data,
            tag,
        })
    }

    /// Writes a record; it is durable when this returns. With [`Barrier::Flush`], everything
    /// written before is made durable first.
    pub fn write(&mut self, io: &DeviceIo, record: Prepared, barrier: Barrier) -> Result<()> {
        let longest = io.info().max_transfer as usize;
        if record.data.len() <= longest {
            io.write_through(barrier, record.offset, record.data)?;
        } else {
            if barrier == Barrier::Flush {
                io.flush()?;
            }
            let parts = record.data.chunks(longest).enumerate();
            let ops = parts.map(|(i, part)| block::Op::Write {
                offset: record.offset.plus((i * longest) as u64).bytes(),
                bufs: Buf::copy_of(part).into(),
                fua: false,
            });
            io.write_and_flush(ops.collect())?;
        }
        self.record = self.record.next();
        self.blocks += record.blocks;
        self.last_tag = record.tag;
        Ok(())
    }
}

/// Encoded record, ready to be written.
pub(crate) struct Prepared {
    offset: DeviceOffset,
    blocks: u64,
    data: Buf,
    tag: Tag,
}

fn encode(uuid: &[u8; 16], epoch: Epoch, record: RecordNo, delta: &Delta) -> Vec<u8> {
    let mut out = Out::with(HEADER_BYTES + delta.items.len() * 96 + delta.space.len() * 20);
    out.0.extend_from_slice(&MAGIC);
    out.u32(0);
    out.u32(0);
    out.0.extend_from_slice(uuid);
    out.u64(epoch.number());
    out.u64(record.0);
    out.u64(delta.items.len() as u64);
    out.u64(delta.space.len() as u64);
    for (key, value) in &delta.items {
        put_item(&mut out, key, value.as_deref());
    }
    for change in &delta.space {
        put_space(&mut out, change);
    }
    out.0
}

/// Encodes a changed item; `None` for a deleted one.
pub(crate) fn put_item(out: &mut Out, key: &Key, value: Option<&[u8]>) {
    out.0.extend_from_slice(&key.encode());
    match value {
        Some(value) => {
            out.u32(value.len() as u32);
            out.0.extend_from_slice(value);
        }
        None => out.u32(GONE),
    }
}

/// Encodes a changed item whose value `encode` appends.
pub(crate) fn put_item_with(out: &mut Out, key: &Key, encode: impl FnOnce(&mut Out)) {
    put_item(out, key, Some(&[]));
    let start = out.0.len();
    encode(out);
    let len = (out.0.len() - start) as u32;
    out.0[start - 4..start].copy_from_slice(&len.to_le_bytes());
}

/// Encodes a change of the use of blocks.
pub(crate) fn put_space(out: &mut Out, change: &SpaceChange) {
    out.u64(change.run.start);
    out.u64(change.run.blocks);
    out.u32(u32::from(change.used));
}

/// Appends the tag of the record before, and the one of this record.
fn add_tag(bytes: &mut Vec<u8>, key: &IntegrityKey, last: &Tag) -> Tag {
    bytes.extend_from_slice(last);
    let tag = key.root_tag(&[bytes]);
    bytes.extend_from_slice(&tag);
    tag
}

/// Sets the length and the checksum.
fn add_checksum(bytes: &mut [u8]) {
    let len = bytes.len() as u32;
    bytes[CHECKSUM_AT + 4..CHECKSUM_AT + 8].copy_from_slice(&len.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[CHECKSUM_AT + 4..]);
    bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
}

/// Checks the tag of an intact record, and that it follows the last one, if there is one. Removes
/// both tags.
fn check_tag(
    bytes: &mut Vec<u8>,
    key: &IntegrityKey,
    last: &mut Option<Tag>,
    what: impl std::fmt::Display,
) -> Result<()> {
    let (content, tag) = bytes.split_last_chunk().ok_or_else(|| tampered(&what))?;
    let mut signed = content.to_vec();
    // The length and the checksum are set after the tag.
    signed[CHECKSUM_AT..CHECKSUM_AT + 8].fill(0);
    let (rest, before) = content.split_last_chunk().ok_or_else(|| tampered(&what))?;
    if !key.is_root_tag(&[&signed], tag) || last.is_some_and(|last| last != *before) {
        return Err(tampered(what));
    }
    let len = rest.len();
    *last = Some(*tag);
    bytes.truncate(len);
    Ok(())
}

/// Reads the records of one epoch in order, up to the first that is not intact; later ones were
/// never acknowledged, or the device has lost them. `last` is the tag of the last record read before.
///
/// # Errors
/// [`crate::Kind::Corrupt`]: an intact record has invalid content, or a record is damaged while a
/// later one is intact, or a keyed checksum does not match, which a crash cannot cause.
pub(crate) fn read(
    io: &DeviceIo,
    place: &JournalLocation,
    epoch: Epoch,
    last: &mut Option<Tag>,
) -> Result<Vec<Delta>> {
    let mut deltas = Vec::new();
    let (mut block, mut record) = (0, RecordNo::FIRST);
    while block < place.half_blocks {
        let Some(mut bytes) = whole_record(io, place, epoch, block, record)? else {
            refuse_gap(io, place, epoch, block + 1, record)?;
            break;
        };
        block += (bytes.len() as u64).div_ceil(BLOCK_BYTES);
        if let Some(key) = &place.key {
            let what = format_args!("record {} of epoch {epoch} of the journal", record.0);
            check_tag(&mut bytes, key, last, what)?;
        }
        record = record.next();
        deltas.push(decode(&bytes)?);
    }
    Ok(deltas)
}

/// Reads the record that begins at a block, if it is intact and has this epoch and this number.
fn whole_record(
    io: &DeviceIo,
    place: &JournalLocation,
    epoch: Epoch,
    block: u64,
    record: RecordNo,
) -> Result<Option<Vec<u8>>> {
    let mut first = vec![0; BLOCK_BYTES as usize];
    io.read(place.offset(epoch, block), &mut first)?;
    let mut fields = In::of(&first, "journal record");
    let magic: [u8; 8] = fields.take()?;
    let (checksum, len) = (fields.u32()?, fields.u32()? as usize);
    let uuid: [u8; 16] = fields.take()?;
    let its_epoch = Epoch::of_number(fields.u64()?);
    let its_record = RecordNo(fields.u64()?);
    let room = (place.half_blocks - block) * BLOCK_BYTES;
    let ours = magic == MAGIC
        && uuid == place.uuid
        && its_epoch == epoch
        && its_record == record
        && len >= HEADER_BYTES
        && len as u64 <= room;
    if !ours {
        return Ok(None);
    }
    let mut bytes = vec![0; len.next_multiple_of(BLOCK_BYTES as usize)];
    io.read(place.offset(epoch, block), &mut bytes)?;
    bytes.truncate(len);
    let whole = crc32c::crc32c(&bytes[CHECKSUM_AT + 4..]) == checksum;
    Ok(whole.then_some(bytes))
}

/// Checks that no intact record of the epoch follows the end, where `missing` would be; one would
/// mean that the end is damage.
fn refuse_gap(
    io: &DeviceIo,
    place: &JournalLocation,
    epoch: Epoch,
    from: u64,
    missing: RecordNo,
) -> Result<()> {
    let mut bytes = vec![0; LOOK_BYTES];
    for start in (from..place.half_blocks).step_by(LOOK_BYTES / BLOCK_BYTES as usize) {
        let len = LOOK_BYTES.min(((place.half_blocks - start) * BLOCK_BYTES) as usize);
        io.read(place.offset(epoch, start), &mut bytes[..len])?;
        let blocks = (start..).zip(bytes[..len].chunks(BLOCK_BYTES as usize));
        for (block, _) in blocks.filter(|(_, first)| first.starts_with(&MAGIC)) {
            let found = whole_record(io, place, epoch, block, missing.next())?;
            if found.is_some() {
                let record = missing.0;
                let text = format!("journal damaged at record {record} of epoch {epoch}");
                return Err(Error::corrupt(text));
            }
        }
    }
    Ok(())
}

fn decode(bytes: &[u8]) -> Result<Delta> {
    let mut fields = In::of(&bytes[HEADER_BYTES - 16..], "journal record");
    let (items, runs) = (fields.u64()?, fields.u64()?);
    let delta = take_changes(&mut fields, items, runs)?;
    fields.end()?;
    Ok(delta)
}

/// Decodes changed items, and then changes of the use of blocks.
///
/// # Errors
/// [`crate::Kind::Corrupt`].
pub(crate) fn take_changes(fields: &mut In, items: u64, runs: u64) -> Result<Delta> {
    let mut delta = Delta::default();
    for _ in 0..items {
        let key = Key::decode(&fields.take::<KEY_BYTES>()?);
        let value = match fields.u32()? {
            GONE => None,
            len => Some(fields.bytes(len as usize)?.into()),
        };
        delta.items.push((key, value));
    }
    for _ in 0..runs {
        let run = Run {
            start: fields.u64()?,
            blocks: fields.u64()?,
        };
        let used = fields.u32()?;
        if used > 1 || run.start.checked_add(run.blocks).is_none() {
            return Err(fields.wrong());
        }
        delta.space.push(SpaceChange {
            run,
            used: used == 1,
        });
    }
    Ok(delta)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::key::Item;
    use block_testing::{Mem, Random};
    use std::sync::Arc;

    fn place() -> JournalLocation {
        JournalLocation {
            start: 2,
            key: None,
            half_blocks: 8,
            uuid: [9; 16],
        }
    }

    fn delta(number: u64) -> Delta {
        let key = Key::item(1, number, Item::Inode, 0);
        let run = Run {
            start: number,
            blocks: 3,
        };
        Delta {
            items: vec![(key, Some(vec![7; 5000].into())), (key, None)],
            space: vec![SpaceChange { run, used: true }],
        }
    }

    fn epoch(number: u64) -> Epoch {
        Epoch::of_number(number)
    }

    fn io(mem: &Mem) -> DeviceIo {
        DeviceIo::start(Arc::new(mem.fork())).unwrap()
    }

    /// Creates a disk with two records of two blocks each in epoch 5.
    fn written() -> Mem {
        let mem = Mem::new(1 << 20, 512);
        let io = DeviceIo::start(Arc::new(mem.fork())).unwrap();
        let mut writer = Writer::new(place(), epoch(5));
        let mut image = vec![0; 18 * 4096];
        for number in 0..2 {
            let record = writer.prepare(&delta(number)).unwrap();
            writer.write(&io, record, Barrier::Flush).unwrap();
        }
        io.read(DeviceOffset::of_block(0), &mut image).unwrap();
        mem.poke(0, &image);
        mem
    }

    #[test]
    fn records_read_back_in_order_and_only_those_of_the_epoch() {
        let mem = written();
        let read_back = read(&io(&mem), &place(), epoch(5), &mut None).unwrap();
        assert_eq!(read_back.len(), 2);
        assert_eq!(read_back[1].items, delta(1).items);
        assert_eq!(read_back[1].space, delta(1).space);
        assert!(
            read(&io(&mem), &place(), epoch(7), &mut None)
                .unwrap()
                .is_empty()
        );
        assert!(
            read(&io(&mem), &place(), epoch(4), &mut None)
                .unwrap()
                .is_empty()
        );
        let other = JournalLocation {
            uuid: [1; 16],
            ..place()
        };
        assert!(
            read(&io(&mem), &other, epoch(5), &mut None)
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn a_half_that_is_full_takes_no_more() {
        let io = io(&Mem::new(1 << 20, 512));
        let mut writer = Writer::new(place(), epoch(5));
        for number in 0..4 {
            let record = writer.prepare(&delta(number)).unwrap();
            writer.write(&io, record, Barrier::None).unwrap();
        }
        assert!(writer.prepare(&Delta::default()).is_none());
        writer.next_epoch();
        assert!(writer.prepare(&delta(0)).is_some());
        assert_eq!(read(&io, &place(), epoch(5), &mut None).unwrap().len(), 4);
    }

    #[test]
    fn a_torn_last_record_is_left_out_and_damage_in_the_middle_is_an_error() {
        let first = 2 + 8;
        let torn = written();
        torn.poke((first + 3) * 4096, &[1]);
        assert_eq!(
            read(&io(&torn), &place(), epoch(5), &mut None)
                .unwrap()
                .len(),
            1
        );
        let damaged = written();
        damaged.poke((first + 1) * 4096, &[1]);
        let error = read(&io(&damaged), &place(), epoch(5), &mut None)
            .err()
            .unwrap();
        assert!(error.to_string().contains("record 0"), "{error}");
    }

    #[test]
    fn random_bodies_behind_a_right_checksum_are_refused_or_read() {
        let mut random = Random::new(4);
        for _ in 0..5000 {
            let mut bytes = encode(&[0; 16], Epoch::FIRST, RecordNo::FIRST, &delta(3));
            bytes.truncate(HEADER_BYTES + random.below(200) as usize);
            for _ in 0..random.below(8) {
                let at = 48 + random.below(bytes.len() as u64 - 48) as usize;
                bytes[at] = random.next_u64() as u8;
            }
            let _ = decode(&bytes);
        }
    }
}
