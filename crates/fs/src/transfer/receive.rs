//! Receiving: the life of a fileset that receives a snapshot.
//!
//! ```text
//!   begin ──► marked, position 0 ──► segment ... segment ──► the last segment ──► snapshot, no mark
//!                  │                                                     ▲
//!                  └──── abandon ──► the state before                    └── begin again continues
//! ```

use super::apply::Stage;
use super::changes::Pair;
use super::invalid;
use super::settle::settle;
use crate::error::{Error, Kind, Result};
use crate::files::Files;
use crate::fileset::Fileset;
use crate::format::key::{Item, Key, PLACE_MAX, TreeId};
use crate::format::record::Inode;
use crate::format::superblock::RECEIVED;
use crate::format::tree_record::{Receiving, TreeRecord};
use crate::fs::Fs;
use crate::fs::filesets::check_name;
use crate::metadata::op::Op;
use crate::metadata::shared::FsShared;
use cache::Cache;
use send_proto::{Digest, Header, Id, Position, Resume, Segment, Token};
use std::sync::Arc;

/// Number of items that are compared before others may change the metadata.
const STEP_ITEMS: usize = 1000;

/// State of a reception.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reception {
    /// Fileset that receives.
    pub fileset: TreeId,
    /// Identity of the snapshot at the sender.
    pub snapshot: Id,
    /// Snapshot of this fileset that the stream is relative to.
    pub base: Option<TreeId>,
    /// The stream, and the point from which it continues.
    pub token: Token,
}

/// Result of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// More segments follow.
    Part(Reception),
    /// The snapshot is complete, and durable.
    Complete(TreeId),
}

impl Reception {
    fn of(fileset: TreeId, receiving: &Receiving) -> Reception {
        let (phase, object, step) = receiving.position;
        let position = Position {
            phase,
            object,
            step,
        };
        Reception {
            fileset,
            snapshot: Id(receiving.snapshot),
            base: (receiving.base != 0).then_some(receiving.base),
            token: Token {
                stream: Digest(receiving.stream),
                resume: Resume {
                    segments: receiving.segments,
                    position,
                    digest: Digest(receiving.digest),
                },
            },
        }
    }
}

impl Fs {
    /// Returns the reception of a fileset, if it is receiving a snapshot.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn reception(&self, fileset: TreeId) -> Result<Option<Reception>> {
        let receiving = self.inner().read().tree(fileset)?.record.receiving;
        Ok(receiving.map(|receiving| Reception::of(fileset, &receiving)))
    }

    /// Finds the snapshot of a fileset that has an identity, and returns its name.
    ///
    /// # Errors
    /// Those of [`Fs::identity`].
    pub fn received_as(&self, fileset: &str, identity: Id) -> Result<Option<String>> {
        let found = self.filesets().into_iter().find(|(_, r)| r.name == fileset);
        let Some((of, _)) = found.filter(|(_, record)| record.origin == 0) else {
            return Ok(None);
        };
        for (id, record) in self.snapshots_of(of) {
            if self.identity(id)? == identity {
                return Ok(Some(record.name));
            }
        }
        Ok(None)
    }

    /// Checks whether a stream could be received, and begins or continues its reception. A full
    /// stream creates the fileset. Durable when this returns.
    ///
    /// # Errors
    /// [`Kind::NotFound`]: there is no such fileset, or it does not have the snapshot that the
    /// stream is relative to. [`Kind::Exists`]: it has the snapshot already, or the stream is a full
    /// one. [`Kind::Busy`]: the fileset is in use, has changed since the snapshot, or is receiving
    /// another stream. [`Kind::Invalid`]: the stream continues another one.
    pub fn begin_reception(&self, name: &str, header: &Header) -> Result<Reception> {
        let fs = self.inner();
        fs.check_writable()?;
        let planned = self.plan_reception(name, header)?;
        if let Planned::Continue(reception) = planned {
            return Ok(reception);
        }
        fs.superblock.need_features(RECEIVED)?;
        let of = match planned {
            Planned::Change { of, base } => {
                self.mark(of, base, header)?;
                of
            }
            _ => {
                let receiving = receiving(header, 0, 1);
                let made = self.add_fileset(name, Some((receiving, header.next_ino)))?;
                made.id
            }
        };
        self.sync()?;
        let reception = self.reception(of)?;
        reception.ok_or_else(|| Error::new(Kind::Busy, "another process has ended the reception"))
    }

    /// Checks whether the reception of a stream could begin or continue, and whether its snapshot
    /// could have a name; see [`Fs::begin_reception`].
    ///
    /// # Errors
    /// Those of [`Fs::begin_reception`]. [`Kind::Exists`], [`Kind::Invalid`]: the name is in use,
    /// or cannot be one.
    pub fn check_reception(&self, name: &str, header: &Header, snapshot: &str) -> Result<()> {
        self.inner().check_writable()?;
        self.plan_reception(name, header)?;
        check_name(&self.inner().read(), snapshot)
    }

    fn plan_reception(&self, name: &str, header: &Header) -> Result<Planned> {
        if !(1..PLACE_MAX >> 1).contains(&header.next_ino) {
            return Err(invalid("too many inodes"));
        }
        let found = self.filesets().into_iter().find(|(_, r)| r.name == name);
        let Some((of, record)) = found else {
            if !header.base.is_none() {
                let text = format!(
                    "there is no fileset `{name}` to apply an incremental stream to; receive a \
                     full one first"
                );
                return Err(Error::new(Kind::NotFound, text));
            }
            if header.resume.is_some() {
                return Err(resumed_elsewhere(name));
            }
            return Ok(Planned::Create);
        };
        if record.origin != 0 {
            let text = format!("`{name}` is a snapshot; name a fileset");
            return Err(Error::new(Kind::Invalid, text));
        }
        if let Some(receiving) = &record.receiving {
            return self.plan_continuation(name, of, receiving, header);
        }
        if header.resume.is_some() {
            return Err(resumed_elsewhere(name));
        }
        let mut base = None;
        for (id, _) in self.snapshots_of(of) {
            let identity = self.identity(id)?;
            if identity == header.snapshot {
                let text = format!(
                    "`{name}` has this snapshot already, as `{}`; receive a later one",
                    self.name_of(id)?
                );
                return Err(Error::new(Kind::Exists, text));
            }
            if identity == header.base {
                base = Some(id);
            }
        }
        if header.base.is_none() {
            let text = format!(
                "`{name}` exists, and a full stream creates a fileset; choose another name, or \
                 send with --since"
            );
            return Err(Error::new(Kind::Exists, text));
        }
        let base = base.ok_or_else(|| {
            let text = format!(
                "`{name}` does not have the snapshot that the stream is relative to (identity {}); \
                 send relative to a snapshot that both sides have, or in full",
                header.base
            );
            Error::new(Kind::NotFound, text)
        })?;
        if self.has_changed(of, base)? {
            let text = format!(
                "`{name}` has changed since `{}`; `evfs fileset rollback` discards the changes",
                self.name_of(base)?
            );
            return Err(Error::new(Kind::Busy, text));
        }
        self.check_detached(of)?;
        Ok(Planned::Change { of, base })
    }

    fn plan_continuation(
        &self,
        name: &str,
        of: TreeId,
        receiving: &Receiving,
        header: &Header,
    ) -> Result<Planned> {
        let reception = Reception::of(of, receiving);
        if reception.token.stream != header.stream_id() {
            let text = format!(
                "`{name}` is receiving another stream; complete it, or abandon it with --abort"
            );
            return Err(Error::new(Kind::Busy, text));
        }
        let own = reception.token.resume;
        match header.resume {
            Some(resume) if resume.segments > own.segments => {
                let text = format!(
                    "the stream continues after segment {}, but `{name}` has {} segments; send \
                     with the token of `evfs fileset receive --status`",
                    resume.segments, own.segments
                );
                Err(Error::new(Kind::Invalid, text))
            }
            Some(resume) if resume.segments == own.segments && resume != own => {
                Err(send_proto::Error::Damaged("it continues another one").into())
            }
            _ => Ok(Planned::Continue(reception)),
        }
    }

    /// Marks a fileset as receiving changes since a snapshot.
    fn mark(&self, of: TreeId, base: TreeId, header: &Header) -> Result<()> {
        let fs = self.inner();
        if self.has_changed_at_all(of, base)? {
            // Only access times.
            self.rollback(base, None)?;
        }
        let mut op = Op::begin_any(fs, of)?;
        op.refuse_receiving(of)?;
        op.check_room()?;
        op.materialize()?;
        self.check_detached(of)?;
        let tree = op.trees.get_mut(&of).ok_or(Kind::NotFound)?;
        tree.record.receiving = Some(receiving(header, base, tree.record.next_ino));
        tree.record.next_ino = tree.record.next_ino.max(header.next_ino);
        tree.touch();
        op.finish();
        Ok(())
    }

    fn snapshots_of(&self, of: TreeId) -> impl Iterator<Item = (TreeId, TreeRecord)> {
        let all = self.filesets().into_iter();
        all.filter(move |(_, record)| record.origin == of)
    }

    fn name_of(&self, id: TreeId) -> Result<String> {
        Ok(self.fileset(id)?.record()?.name)
    }

    /// Reports whether a fileset differs from a snapshot in anything except access times.
    fn has_changed(&self, of: TreeId, base: TreeId) -> Result<bool> {
        self.differs(of, base, |old, new| {
            let (accessed, data_version) = (old.accessed, old.data_version);
            *old != Inode {
                accessed,
                data_version,
                ..new.clone()
            }
        })
    }

    fn has_changed_at_all(&self, of: TreeId, base: TreeId) -> Result<bool> {
        self.differs(of, base, |old, new| old != new)
    }

    fn differs(
        &self,
        of: TreeId,
        base: TreeId,
        differ: impl Fn(&Inode, &Inode) -> bool,
    ) -> Result<bool> {
        let fs = self.inner();
        if !fs.options.read_only {
            // The records of files that were written last are newer in memory.
            let mut op = Op::begin_any(fs, of)?;
            op.materialize()?;
            op.finish();
        }
        let pair = Pair {
            base: Some(base),
            target: of,
        };
        let mut from = Some(Key::inode(0, 1).0);
        while let Some(at) = from {
            let state = fs.read();
            let all = pair.changes(&state, at, Key::layer(0).1, STEP_ITEMS)?;
            for change in &all {
                let ino = change.key.object;
                if change.new.is_none() && pair.inode(&state, base, ino)?.is_none() {
                    // A file that was open without a name when the snapshot was taken.
                    continue;
                }
                let differs = match (change.key.kind(), &change.old, &change.new) {
                    (Some(Item::Inode), Some(old), Some(new)) => {
                        differ(&Inode::decode(old)?, &Inode::decode(new)?)
                    }
                    (_, old, new) => old != new,
                };
                if differs {
                    return Ok(true);
                }
            }
            let full = all.len() == STEP_ITEMS;
            from = all.last().filter(|_| full).and_then(|last| last.key.next());
        }
        Ok(false)
    }

    /// Abandons a reception: removes a fileset that a full stream has created, or makes the fileset
    /// equal to the snapshot that it had before.
    ///
    /// # Errors
    /// [`Kind::NotFound`]: the fileset is not receiving. [`Kind::Busy`]: a segment is being applied.
    pub fn abandon_reception(&self, of: TreeId) -> Result<()> {
        match self.check_abandonment(of)?.base {
            Some(base) => self.undo_reception(of, base),
            None => self.remove_fileset(of),
        }
    }

    /// Checks whether a reception could be abandoned, and returns it.
    ///
    /// # Errors
    /// Those of [`Fs::abandon_reception`].
    pub fn check_abandonment(&self, of: TreeId) -> Result<Reception> {
        self.inner().check_writable()?;
        let Some(reception) = self.reception(of)? else {
            let text = "the fileset is not receiving a snapshot";
            return Err(Error::new(Kind::NotFound, text));
        };
        self.check_detached(of)?;
        Ok(reception)
    }

    /// Opens a fileset that is receiving, to apply segments through a cache.
    ///
    /// # Errors
    /// [`Kind::NotFound`]: it is not receiving. [`Kind::Busy`]: another process applies segments.
    pub fn receiver(&self, of: TreeId, cache: &Cache) -> Result<Receiver> {
        if self.reception(of)?.is_none() {
            return Err(Kind::NotFound.into());
        }
        let fileset = self.fileset(of)?;
        let files = Files::incomplete(&fileset, cache)?;
        let stage = Stage::new(fileset, Arc::clone(&files));
        Ok(Receiver {
            stage: stage.inspect_err(|_| drop(files.close()))?,
        })
    }
}

fn resumed_elsewhere(name: &str) -> Error {
    let text = format!(
        "the stream is the rest of one, of which `{name}` has received nothing; send it without \
         --resume"
    );
    Error::new(Kind::Invalid, text)
}

/// First step of a reception.
#[derive(Debug, Clone, Copy)]
enum Planned {
    Create,
    Change { of: TreeId, base: TreeId },
    Continue(Reception),
}

/// Returns the state at the start of a stream; `next_ino` is that of the fileset before.
fn receiving(header: &Header, base: TreeId, next_ino: u64) -> Receiving {
    let stream = header.stream_id();
    let start = Position::START;
    Receiving {
        stream: stream.0,
        snapshot: header.snapshot.0,
        base,
        next_ino,
        segments: 0,
        digest: stream.0,
        position: (start.phase, start.object, start.step),
    }
}

/// A fileset that is receiving, open for segments.
pub struct Receiver {
    stage: Stage,
}

impl Receiver {
    fn shared(&self) -> &Arc<FsShared> {
        &self.stage.fileset.fs
    }

    fn receiving(&self) -> Result<Receiving> {
        let receiving = self.stage.fileset.record()?.receiving;
        receiving.ok_or_else(|| Kind::NotFound.into())
    }

    /// Applies the bytes of the next segment. When this returns, they are durable. After the last
    /// one, the snapshot exists, with the given name.
    ///
    /// # Errors
    /// [`Kind::Invalid`]: the segment is damaged, not the next one, or its records do not fit; the
    /// fileset is still receiving, and a segment without the defect can follow. [`Kind::Exists`]:
    /// the name is in use. [`Kind::NoSpace`], [`Kind::Quota`]; errors of the device.
    pub fn segment(&mut self, fs: &Fs, bytes: &[u8], name: &str) -> Result<Received> {
        let before = self.receiving()?;
        let segment = Segment::parse(bytes)?;
        let digest = segment.verify(before.segments, Digest(before.digest))?;
        let position = segment.position()?;
        for record in segment.records() {
            self.stage.apply(&record?)?;
        }
        self.stage.write_out()?;
        let of = self.stage.fileset.id;
        if position.is_end() {
            settle(
                &self.stage.fileset,
                (before.base != 0).then_some(before.base),
            )?;
            let made: Fileset = fs.add_received(of, name, before.snapshot)?;
            return Ok(Received::Complete(made.id));
        }
        let now = Receiving {
            segments: before.segments + 1,
            digest: digest.0,
            position: (position.phase, position.object, position.step),
            ..before
        };
        let mut op = Op::begin_any(self.shared(), of)?;
        let tree = op.trees.get_mut(&of).ok_or(Kind::NotFound)?;
        tree.record.receiving = Some(now);
        tree.touch();
        op.finish();
        self.shared().sync()?;
        Ok(Received::Part(Reception::of(of, &now)))
    }

    /// Ends the access. The reception can be continued later.
    ///
    /// # Errors
    /// Content could not be written.
    pub fn close(self) -> Result<()> {
        let files = Arc::clone(&self.stage.files);
        drop(self.stage);
        files.close()
    }
}
