//! A request between submit and reap, as a series of commands, one at a time.
//!
//! Most requests are one command. A discard or a write of zeros may be several, because targets limit
//! their length; where a target has no WRITE SAME, zeros are written; where it has no FUA, a
//! SYNCHRONIZE CACHE follows.

use crate::unit::{Discard, Unit};
use block::Op;
use iscsi_proto::Transfer;
use iscsi_proto::scsi::cdb::{self, Cdb};

/// Zeros that are written where WRITE SAME does not work.
static ZEROS: [u8; 256 * 1024] = [0; 256 * 1024];

/// A request in progress.
pub(crate) struct Job {
    pub(crate) tag: u64,
    pub(crate) op: Op,
    stage: Stage,
    /// Times that a command was sent again at once.
    pub(crate) again: u32,
    /// Times that a command was sent again later.
    pub(crate) later: u32,
    /// What the command moves.
    pub(crate) transfer: Transfer,
    /// The parameters of UNMAP.
    list: [u8; 24],
}

/// The command that is sent, or about to be. Offsets and lengths are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Of the request itself.
    Main,
    Unmap {
        at: u64,
    },
    Same {
        at: u64,
        unmap: bool,
    },
    Zeros {
        at: u64,
    },
    Sync,
}

/// What follows the good end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Done,
    Another,
}

impl Job {
    pub(crate) fn new(tag: u64, op: Op, unit: &Unit) -> Job {
        let stage = match &op {
            Op::Discard { offset, .. } if unit.discard == Discard::Unmap => {
                Stage::Unmap { at: *offset }
            }
            Op::Discard { offset, .. } => Stage::Same {
                at: *offset,
                unmap: true,
            },
            Op::WriteZeroes { offset, unmap, .. } if unit.write_same => Stage::Same {
                at: *offset,
                unmap: *unmap && unit.same_unmap_zeros,
            },
            Op::WriteZeroes { offset, .. } => Stage::Zeros { at: *offset },
            Op::Read { .. } | Op::Write { .. } | Op::Flush => Stage::Main,
        };
        Job {
            tag,
            op,
            stage,
            again: 0,
            later: 0,
            transfer: Transfer::None,
            list: [0; 24],
        }
    }

    /// Length of the command that is at `at`.
    fn piece(&self, at: u64, unit: &Unit) -> u64 {
        let (offset, len) = self.op.range().unwrap_or((0, 0));
        let left = (offset + len).saturating_sub(at);
        left.min(match self.stage {
            Stage::Unmap { .. } => unit.unmap_max,
            Stage::Same { .. } => unit.same_max,
            _ => ZEROS.len() as u64,
        })
    }

    /// The command to send; what it moves is in `transfer` then.
    pub(crate) fn command(&mut self, unit: &Unit) -> Cdb {
        let (cdb, transfer) = self.make(unit);
        self.transfer = transfer;
        cdb
    }

    fn make(&mut self, unit: &Unit) -> (Cdb, Transfer) {
        let blocks = |bytes: u64| bytes / u64::from(unit.block);
        match (self.stage, &self.op) {
            (Stage::Main, Op::Read { offset, bufs }) => {
                let len = bufs.total_len();
                let (block, count) = (blocks(*offset), blocks(len as u64) as u32);
                let cdb = if unit.wide {
                    cdb::read16(block, count)
                } else {
                    cdb::read10(block as u32, count as u16)
                };
                (cdb, Transfer::In(len as u32))
            }
            (Stage::Main, Op::Write { offset, bufs, fua }) => {
                let len = bufs.total_len();
                (
                    write(unit, *offset, len as u64, *fua && unit.fua),
                    Transfer::Out(len as u32),
                )
            }
            (Stage::Unmap { at }, _) => {
                let len = self.piece(at, unit);
                self.list = cdb::unmap_list(blocks(at), blocks(len) as u32);
                let bytes = self.list.len();
                (cdb::unmap(bytes as u16), Transfer::Out(bytes as u32))
            }
            (Stage::Same { at, unmap }, _) => {
                let len = self.piece(at, unit);
                let cdb = cdb::write_same16(blocks(at), blocks(len) as u32, unmap);
                (cdb, Transfer::Out(unit.block))
            }
            (Stage::Zeros { at }, _) => {
                let len = self.piece(at, unit);
                (write(unit, at, len, false), Transfer::Out(len as u32))
            }
            (Stage::Sync | Stage::Main, _) => (cdb::synchronize_cache10(0, 0), Transfer::None),
        }
    }

    /// Whether the command is a SYNCHRONIZE CACHE.
    pub(crate) fn syncs(&self) -> bool {
        self.stage == Stage::Sync || matches!(self.op, Op::Flush)
    }

    /// Moves on after a good end.
    pub(crate) fn advance(&mut self, unit: &Unit) -> Next {
        let end = self.op.range().map_or(0, |(offset, len)| offset + len);
        let stage = self.stage;
        let (Stage::Unmap { at } | Stage::Same { at, .. } | Stage::Zeros { at }) = stage else {
            let sync = matches!(self.op, Op::Write { fua: true, .. }) && !unit.fua;
            return self.finish(sync && stage == Stage::Main);
        };
        let at = at + self.piece(at, unit);
        if at >= end {
            return self.finish(matches!(self.op, Op::WriteZeroes { fua: true, .. }));
        }
        self.stage = match stage {
            Stage::Unmap { .. } => Stage::Unmap { at },
            Stage::Same { unmap, .. } => Stage::Same { at, unmap },
            _ => Stage::Zeros { at },
        };
        Next::Another
    }

    fn finish(&mut self, sync: bool) -> Next {
        if sync {
            self.stage = Stage::Sync;
            return Next::Another;
        }
        Next::Done
    }

    /// After the target said that it does not know the command: another way, if there is one.
    pub(crate) fn fall_back(&mut self, unit: &mut Unit) -> bool {
        match (self.stage, &self.op) {
            (Stage::Same { at, unmap }, Op::WriteZeroes { .. }) => {
                if unmap {
                    unit.same_unmap_zeros = false;
                    self.stage = Stage::Same { at, unmap: false };
                } else {
                    unit.write_same = false;
                    self.stage = Stage::Zeros { at };
                }
                true
            }
            _ => false,
        }
    }

    /// The parts of what the command writes.
    pub(crate) fn gather<'a>(&'a self, offset: u32, len: u32, mut each: impl FnMut(&'a [u8])) {
        let (mut skip, mut left) = (offset as usize, len as usize);
        let mut part = |part: &'a [u8]| {
            let from = skip.min(part.len());
            let to = part.len().min(from + left);
            skip -= from;
            left -= to - from;
            if to > from {
                each(&part[from..to]);
            }
        };
        match (self.stage, &self.op) {
            (Stage::Main, Op::Write { bufs, .. }) => bufs.iter().for_each(|buf| part(buf)),
            (Stage::Unmap { .. }, _) => part(&self.list),
            _ => part(&ZEROS),
        }
    }

    /// The place for what the command reads.
    pub(crate) fn room(&mut self, offset: u32) -> &mut [u8] {
        let mut skip = offset as usize;
        if let Op::Read { bufs, .. } = &mut self.op {
            for buf in bufs.iter_mut() {
                if skip < buf.len() {
                    return &mut buf[skip..];
                }
                skip -= buf.len();
            }
        }
        &mut []
    }
}

fn write(unit: &Unit, offset: u64, len: u64, fua: bool) -> Cdb {
    let block = u64::from(unit.block);
    let (block, count) = (offset / block, (len / block) as u32);
    if unit.wide {
        cdb::write16(block, count, fua)
    } else {
        cdb::write10(block as u32, count as u16, fua)
    }
}
