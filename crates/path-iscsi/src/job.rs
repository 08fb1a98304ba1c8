//! A request between submit and reap, executed as a sequence of commands, one at a time.
//!
//! Most requests take one command. A discard or write-zeroes request may take several because
//! targets limit their length. Without WRITE SAME, zeros are written as data; without FUA, a
//! SYNCHRONIZE CACHE follows.

use crate::unit::{Discard, Unit};
use block::Op;
use iscsi_proto::Transfer;
use iscsi_proto::scsi::cdb::{self, BlockRange, Cdb};

/// Zeros to write if WRITE SAME is not supported.
static ZEROS: [u8; 256 * 1024] = [0; 256 * 1024];

/// A request in progress.
pub(crate) struct Job {
    pub(crate) tag: u64,
    pub(crate) op: Op,
    stage: Stage,
    /// Number of immediate resends.
    pub(crate) again: u32,
    /// Number of delayed resends.
    pub(crate) later: u32,
    /// Direction and length of the current command's data.
    pub(crate) transfer: Transfer,
    /// Parameter list of UNMAP.
    list: [u8; 24],
}

/// Current command of a job. `at` is its byte offset on the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The single command of a read, write or flush.
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

/// Next step after a command has succeeded.
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

    /// Computes the length in bytes of the command at offset `at`.
    fn piece(&self, at: u64, unit: &Unit) -> u64 {
        let (offset, len) = self.op.range().unwrap_or((0, 0));
        let left = (offset + len).saturating_sub(at);
        left.min(match self.stage {
            Stage::Unmap { .. } => unit.unmap_max,
            Stage::Same { .. } => unit.same_max,
            _ => ZEROS.len() as u64,
        })
    }

    /// Builds the command to send and sets `transfer` for it.
    pub(crate) fn command(&mut self, unit: &Unit) -> Cdb {
        let (cdb, transfer) = self.make(unit);
        self.transfer = transfer;
        cdb
    }

    fn make(&mut self, unit: &Unit) -> (Cdb, Transfer) {
        match (self.stage, &self.op) {
            (Stage::Main, Op::Read { offset, bufs }) => {
                let len = bufs.total_len();
                let range = unit.blocks(*offset, len as u64);
                let cdb = if unit.wide {
                    cdb::read16(range)
                } else {
                    cdb::read10(range)
                };
                (cdb, Transfer::In(len as u32))
            }
            (Stage::Main, Op::Write { offset, bufs, fua }) => {
                let len = bufs.total_len();
                let range = unit.blocks(*offset, len as u64);
                let fua = *fua && unit.fua;
                (write(unit, range, fua), Transfer::Out(len as u32))
            }
            (Stage::Unmap { at }, _) => {
                let len = self.piece(at, unit);
                self.list = cdb::unmap_list(unit.blocks(at, len));
                let bytes = self.list.len();
                (cdb::unmap(bytes as u16), Transfer::Out(bytes as u32))
            }
            (Stage::Same { at, unmap }, _) => {
                let len = self.piece(at, unit);
                let cdb = cdb::write_same16(unit.blocks(at, len), unmap);
                (cdb, Transfer::Out(unit.block))
            }
            (Stage::Zeros { at }, _) => {
                let len = self.piece(at, unit);
                // A request with FUA ends with a SYNCHRONIZE CACHE.
                let fua = false;
                let cdb = write(unit, unit.blocks(at, len), fua);
                (cdb, Transfer::Out(len as u32))
            }
            (Stage::Sync | Stage::Main, _) => {
                let cdb = cdb::synchronize_cache10(BlockRange::ALL);
                (cdb, Transfer::None)
            }
        }
    }

    /// Checks whether the current command is a SYNCHRONIZE CACHE.
    pub(crate) fn syncs(&self) -> bool {
        self.stage == Stage::Sync || matches!(self.op, Op::Flush)
    }

    /// Advances to the next command after a success.
    pub(crate) fn advance(&mut self, unit: &Unit) -> Next {
        let end = self.op.range().map_or(0, |(offset, len)| offset + len);
        let stage = self.stage;
        let needs_sync = match stage {
            Stage::Unmap { at } | Stage::Same { at, .. } | Stage::Zeros { at } => {
                let at = at + self.piece(at, unit);
                if at < end {
                    self.stage = match stage {
                        Stage::Unmap { .. } => Stage::Unmap { at },
                        Stage::Same { unmap, .. } => Stage::Same { at, unmap },
                        _ => Stage::Zeros { at },
                    };
                    return Next::Another;
                }
                matches!(self.op, Op::WriteZeroes { fua: true, .. })
            }
            Stage::Main => matches!(self.op, Op::Write { fua: true, .. }) && !unit.fua,
            Stage::Sync => false,
        };
        if needs_sync {
            self.stage = Stage::Sync;
            return Next::Another;
        }
        Next::Done
    }

    /// Selects a substitute for a command that the target does not support. Returns `false` if none
    /// exists.
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

    /// Calls `each` with the parts of the command's outgoing data.
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

    /// Finds the buffer space for incoming data at `offset`, up to the end of one buffer.
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

fn write(unit: &Unit, range: BlockRange, fua: bool) -> Cdb {
    if unit.wide {
        cdb::write16(range, fua)
    } else {
        cdb::write10(range, fua)
    }
}
