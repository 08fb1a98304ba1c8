//! Sending: the segments of a stream, each made from the position after the one before.
//!
//! A snapshot never changes, so a position says everything that a sender has to know to continue.

use super::changes::{Change, Content, Pair};
use crate::error::{Error, Kind, Result};
use crate::files::{Atime, Files, Handle, Lane};
use crate::format::key::{Ino, Item, Key, PLACE_MAX, TreeId};
use crate::format::record::{BLOCK_BYTES, Entry, FileType, Inode, Xattr, blocks_for};
use crate::fs::Fs;
use cache::Cache;
use send_proto::{Attributes, Header, Id, Position, Record, Resume, SegmentBuilder};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of records after which a segment is complete: few enough that little is sent again after an
/// interruption, enough that a receiver does not wait for its disk all the time.
const SEGMENT_BYTES: usize = 1 << 20;
/// Bytes of content in one record.
const DATA_BYTES: u64 = send_proto::DATA_BYTES_MAX as u64;
/// Entries of directories that are compared at a time.
const ENTRY_STEP: usize = 512;

/// Phase of the stream: content and attributes of inodes.
const INODES: u8 = 1;
/// Phase: names that only the first state has.
const LOST: u8 = 2;
/// Phase: names that only the second state has.
const GAINED: u8 = 3;

/// Steps of an inode from here on are its blocks; those before are places of its attributes.
const BLOCKS: u64 = 1 << 62;

/// Amount of data that was sent, or would be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sent {
    /// Number of changes in the stream.
    pub records: u64,
    /// Bytes of file data.
    pub data_bytes: u64,
}

/// Receiver of the records of a segment.
trait Sink {
    fn is_full(&self) -> bool;
    fn record(&mut self, record: &Record<'_>) -> Result<()>;
    /// Content of a file; `read` fetches it.
    fn data(
        &mut self,
        ino: Ino,
        bytes: Range<u64>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> Result<usize>,
    ) -> Result<()>;
}

/// Sender of one snapshot.
pub struct Sender {
    pair: Pair,
    header: Header,
    files: Arc<Files>,
    lane: Lane,
    open: Option<(Ino, Handle)>,
    segment_bytes: usize,
}

impl Fs {
    /// Creates the header of the stream of a snapshot, in full or relative to an older snapshot of
    /// the same fileset.
    ///
    /// # Errors
    /// [`Kind::Invalid`]: they are no such snapshots.
    pub fn send_header(&self, snapshot: TreeId, since: Option<TreeId>) -> Result<Header> {
        let record = self.fileset(snapshot)?.record()?;
        if record.origin == 0 {
            let text = "only a snapshot can be sent; take one with `evfs fileset snapshot`";
            return Err(Error::new(Kind::Invalid, text));
        }
        let base = match since {
            None => Id::default(),
            Some(since) => {
                let base = self.fileset(since)?.record()?;
                // Numbers increase with time.
                if base.origin != record.origin || since >= snapshot {
                    let text = format!(
                        "`{}` is not an older snapshot of the same fileset",
                        base.name
                    );
                    return Err(Error::new(Kind::Invalid, text));
                }
                self.identity(since)?
            }
        };
        Ok(Header {
            features: 0,
            optional: 0,
            fileset: self.identity(record.origin)?,
            snapshot: self.identity(snapshot)?,
            base,
            created: record.created.into(),
            next_ino: record.next_ino,
            data_bytes: record.used_blocks * BLOCK_BYTES,
            inodes: record.used_inodes,
            resume: None,
            fileset_name: self.fileset(record.origin)?.record()?.name,
            snapshot_name: record.name,
        })
    }

    /// Prepares sending a snapshot through a cache.
    ///
    /// # Errors
    /// As [`Fs::send_header`]; those of [`Files::new`].
    pub fn sender(&self, snapshot: TreeId, since: Option<TreeId>, cache: &Cache) -> Result<Sender> {
        let header = self.send_header(snapshot, since)?;
        let files = Files::new(&self.fileset(snapshot)?, cache)?.client_with(Atime::None);
        let lane = files.lane()?;
        Ok(Sender {
            pair: Pair {
                base: since,
                target: snapshot,
            },
            header,
            files,
            lane,
            open: None,
            segment_bytes: SEGMENT_BYTES,
        })
    }
}

impl Sender {
    /// Returns the header of the stream from its start.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Sets the number of bytes of records after which a segment is complete, at most 1 MiB.
    pub fn set_segment_bytes(&mut self, bytes: usize) {
        self.segment_bytes = bytes.clamp(1, SEGMENT_BYTES);
    }

    /// Returns the point before the first segment.
    pub fn start(header: &Header) -> Resume {
        Resume {
            segments: 0,
            position: Position::START,
            digest: header.stream_id(),
        }
    }

    /// Makes the next segment: its bytes, and the point after it.
    ///
    /// # Errors
    /// [`Kind::Invalid`]: the position is none of this stream. [`Kind::NotFound`]: the snapshot was
    /// removed. Errors of the device.
    pub fn segment(&mut self, at: &Resume) -> Result<(Vec<u8>, Resume)> {
        let mut sink = Segment {
            builder: SegmentBuilder::new(at.segments, at.digest),
            full_bytes: self.segment_bytes,
            buffer: Vec::new(),
        };
        let position = self.produce(at.position, &mut sink)?;
        let (bytes, digest) = sink.builder.finish(position);
        let after = Resume {
            segments: at.segments + 1,
            position,
            digest,
        };
        Ok((bytes, after))
    }

    /// Counts the rest of the stream without reading content.
    ///
    /// # Errors
    /// As [`Sender::segment`].
    pub fn estimate(&mut self, from: Position) -> Result<Sent> {
        let mut sink = Count::default();
        let end = self.produce(from, &mut sink)?;
        debug_assert!(end.is_end());
        Ok(sink.sent)
    }

    /// Passes records to a sink until that is full. Returns the position after them.
    fn produce(&mut self, from: Position, sink: &mut dyn Sink) -> Result<Position> {
        let mut at = match from {
            Position::START => position(INODES, 0, 0),
            other => other,
        };
        while !sink.is_full() {
            let next = match at.phase {
                INODES => self.inode(at, sink)?,
                LOST | GAINED => self.names(at, sink)?,
                _ => {
                    let text = "the token does not belong to this snapshot";
                    return Err(Error::new(Kind::Invalid, text));
                }
            };
            if next.is_end() {
                return Ok(next);
            }
            at = next;
        }
        Ok(at)
    }

    /// Sends the next inode, or a part of it.
    fn inode(&mut self, at: Position, sink: &mut dyn Sink) -> Result<Position> {
        let Position { object, step, .. } = at;
        let fs = Arc::clone(&self.files.fileset().fs);
        let pair = self.pair;
        let state = fs.read();
        let Some(ino) = pair.next_inode(&state, object.max(1))? else {
            return Ok(match pair.base {
                Some(_) => position(LOST, 0, 0),
                None => position(GAINED, 0, 0),
            });
        };
        let step = if ino == object { step } else { 0 };
        let next = position(INODES, ino + 1, 0);
        let Some(new) = pair.inode(&state, pair.target, ino)? else {
            return Ok(next);
        };
        let old = match pair.base {
            Some(base) => pair.inode(&state, base, ino)?,
            None => None,
        };
        if step == 0 {
            let target = match new.kind {
                FileType::Symlink => {
                    let found = state.get(pair.target, ino, (Item::Target, 0), |bytes| {
                        Ok(bytes.to_vec())
                    })?;
                    found.unwrap_or_default()
                }
                _ => Vec::new(),
            };
            let is_file = new.kind == FileType::File;
            sink.record(&Record::Inode {
                ino,
                kind: new.kind.mode_bits(),
                rdev: new.rdev,
                size: if is_file { new.size } else { 0 },
                target: &target,
            })?;
        }
        let mut place = match step {
            0 if old.is_none() || pair.differs(&state, ino, Item::Xattr)? => {
                sink.record(&Record::ClearXattrs { ino })?;
                Some(0)
            }
            0 => None,
            step => Some(step).filter(|step| *step < BLOCKS),
        };
        while let Some(from) = place {
            if sink.is_full() {
                return Ok(position(INODES, ino, from.max(1)));
            }
            let mut found = None;
            let places = (Item::Xattr, from.min(PLACE_MAX), PLACE_MAX);
            state.scan(pair.target, ino, places, |place, bytes| {
                found = Some((place, bytes.to_vec()));
                Ok(false)
            })?;
            place = match &found {
                Some((place, bytes)) => {
                    let Xattr { name, value } = Xattr::decode(bytes)?;
                    sink.record(&Record::Xattr { ino, name, value })?;
                    Some(place + 1).filter(|next| *next <= PLACE_MAX)
                }
                None => None,
            };
        }
        drop(state);
        if new.kind == FileType::File {
            let kept = match &old {
                None => 0,
                // The new size cuts off everything after it.
                Some(old) if new.size < old.size => blocks_for(new.size),
                Some(_) => u64::MAX,
            };
            let mut block = step.saturating_sub(BLOCKS);
            while let Some((range, content)) = {
                let state = fs.read();
                pair.next_content(&state, ino, block, kept)?
            } {
                if sink.is_full() {
                    return Ok(position(INODES, ino, BLOCKS + range.start));
                }
                block = self.content(ino, &new, range, content, sink)?;
            }
        }
        self.open = None;
        sink.record(&Record::Attributes {
            ino,
            set: attributes(&new),
        })?;
        Ok(next)
    }

    /// Sends a range of blocks of a file, or the start of it. Returns the block after.
    fn content(
        &mut self,
        ino: Ino,
        new: &Inode,
        range: Range<u64>,
        content: Content,
        sink: &mut dyn Sink,
    ) -> Result<u64> {
        let (offset, length) = (
            range.start * BLOCK_BYTES,
            (range.end - range.start).saturating_mul(BLOCK_BYTES),
        );
        match content {
            Content::Hole => {
                sink.record(&Record::Hole {
                    ino,
                    offset,
                    length,
                })?;
                Ok(range.end)
            }
            Content::Unwritten => {
                sink.record(&Record::Unwritten {
                    ino,
                    offset,
                    length,
                })?;
                Ok(range.end)
            }
            Content::Data => {
                let end = new.size.min(range.end * BLOCK_BYTES);
                let bytes = offset..end.min(offset + DATA_BYTES);
                if bytes.is_empty() {
                    return Ok(range.end);
                }
                let (lane, open, files) = (&mut self.lane, &mut self.open, &self.files);
                sink.data(ino, bytes.clone(), &mut |offset, out| {
                    if open.as_ref().is_none_or(|(of, _)| *of != ino) {
                        *open = Some((ino, files.open(ino)?));
                    }
                    match open {
                        Some((_, handle)) => lane.read_direct(handle, offset, out),
                        None => Err(Kind::Stale.into()),
                    }
                })?;
                Ok(blocks_for(bytes.end).min(range.end))
            }
        }
    }

    /// Sends the next names.
    fn names(&mut self, at: Position, sink: &mut dyn Sink) -> Result<Position> {
        let lost = at.phase == LOST;
        let done = if lost {
            position(GAINED, 0, 0)
        } else {
            Position::END
        };
        let place = at.step.min(PLACE_MAX);
        let from = Key::item(0, at.object.max(1), Item::Entry, place);
        let fs = Arc::clone(&self.files.fileset().fs);
        let state = fs.read();
        let all = self
            .pair
            .changes(&state, from, Key::layer(0).1, ENTRY_STEP)?;
        drop(state);
        for Change { key, old, new } in &all {
            let dir = key.object;
            if key.kind() != Some(Item::Entry) {
                continue;
            }
            if sink.is_full() {
                return Ok(position(at.phase, dir, key.place()));
            }
            let own = if lost { old } else { new };
            if let Some(bytes) = own.as_ref().filter(|_| old != new) {
                let Entry { ino, name, .. } = Entry::decode(bytes)?;
                sink.record(&if lost {
                    Record::Unlink { dir, name }
                } else {
                    Record::Link { dir, ino, name }
                })?;
            }
        }
        let next = all.last().filter(|_| all.len() == ENTRY_STEP);
        Ok(match next.and_then(|last| last.key.next()) {
            Some(key) if key <= Key::item(0, key.object, Item::Entry, 0) => {
                position(at.phase, key.object, 0)
            }
            Some(key) if key.kind() == Some(Item::Entry) => {
                position(at.phase, key.object, key.place())
            }
            // The rest are runs of the content of a file.
            Some(key) => position(at.phase, key.object + 1, 0),
            None => done,
        })
    }
}

fn position(phase: u8, object: u64, step: u64) -> Position {
    Position {
        phase,
        object,
        step,
    }
}

fn attributes(inode: &Inode) -> Attributes {
    Attributes {
        permissions: inode.permissions,
        uid: inode.uid,
        gid: inode.gid,
        flags: inode.flags.0,
        accessed: inode.accessed.into(),
        modified: inode.modified.into(),
        changed: inode.changed.into(),
        created: inode.created.into(),
    }
}

/// A segment being filled.
struct Segment {
    builder: SegmentBuilder,
    full_bytes: usize,
    buffer: Vec<u8>,
}

impl Sink for Segment {
    fn is_full(&self) -> bool {
        self.builder.payload_bytes() >= self.full_bytes
    }

    fn record(&mut self, record: &Record<'_>) -> Result<()> {
        if self.builder.push(record) {
            return Ok(());
        }
        // A segment is full long before.
        Err(Error::new(
            Kind::TooBig,
            "a record is longer than a segment",
        ))
    }

    fn data(
        &mut self,
        ino: Ino,
        bytes: Range<u64>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> Result<usize>,
    ) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize((bytes.end - bytes.start) as usize, 0);
        let mut done = 0;
        while done < buffer.len() {
            match read(bytes.start + done as u64, &mut buffer[done..])? {
                0 => {
                    return Err(Error::corrupt(format!(
                        "inode {ino}: shorter than its size"
                    )));
                }
                len => done += len,
            }
        }
        let offset = bytes.start;
        let sent = self.record(&Record::Data {
            ino,
            offset,
            bytes: &buffer,
        });
        self.buffer = buffer;
        sent
    }
}

/// Counter of records.
#[derive(Default)]
struct Count {
    sent: Sent,
}

impl Sink for Count {
    fn is_full(&self) -> bool {
        false
    }

    fn record(&mut self, _record: &Record<'_>) -> Result<()> {
        self.sent.records += 1;
        Ok(())
    }

    fn data(
        &mut self,
        _ino: Ino,
        bytes: Range<u64>,
        _read: &mut dyn FnMut(u64, &mut [u8]) -> Result<usize>,
    ) -> Result<()> {
        self.sent.records += 1;
        self.sent.data_bytes += bytes.end - bytes.start;
        Ok(())
    }
}
