//! Copies of ranges between files.
//!
//! ```text
//!   both offsets at the same place in a block    whole blocks are shared, the rest is copied
//!   different places                             all is copied
//! ```

use super::{Handle, Lane, Node, Unfinished, WritePosition, alone};
use crate::data::share::STEP_BLOCKS;
use crate::error::{Error, Kind, Result};
use crate::files::Change;
use crate::format::record::{BLOCK_BYTES, FILE_SIZE_MAX};
use layer_cpu::{Layer, within};
use std::sync::{Arc, MutexGuard};

/// Most operations of one call that share blocks: a call delays changes of both files.
const STEPS_MAX: u64 = 8;

/// Most bytes that one call copies.
const COPIED_MAX: u64 = 1 << 20;

/// Bytes that are copied at a time.
const PIECE: u64 = 128 << 10;

impl Lane {
    /// Copies bytes from one place to another, in the same file or between two, as
    /// copy_file_range(2): the whole blocks are shared if both places have the same offset in a
    /// block. Returns the number of bytes copied, which may be less than requested; 0 only at the
    /// end of the source.
    ///
    /// # Errors
    /// Nothing was copied. [`Kind::Invalid`]: the ranges overlap; [`Kind::CrossFileset`]: the
    /// source is not a file of this fileset; as [`Lane::read`] and [`Lane::write`].
    pub fn copy(
        &mut self,
        (from, from_offset): (&Handle, u64),
        (to, to_offset): (&Handle, u64),
        len: u64,
    ) -> Result<u64> {
        if !self.is_own(from) {
            return Err(Kind::CrossFileset.into());
        }
        let size = from.attr()?.inode.size;
        let len = len.min(size.saturating_sub(from_offset));
        let room = FILE_SIZE_MAX.saturating_sub(to_offset);
        if len > 0 && room == 0 {
            return Err(Kind::FileTooLarge.into());
        }
        let len = len.min(room);
        if from.ino() == to.ino() && from_offset.abs_diff(to_offset) < len {
            return Err(Error::new(Kind::Invalid, "the ranges overlap"));
        }
        let (mut done, mut copied) = (0, 0);
        while done < len && copied < COPIED_MAX {
            let (at, to_at, left) = (from_offset + done, to_offset + done, len - done);
            match self.copy_some((from, at), (to, to_at), left) {
                Ok((0, _)) => break,
                Ok((bytes, true)) => {
                    done += bytes;
                    if len - done >= BLOCK_BYTES {
                        break;
                    }
                }
                Ok((bytes, false)) => (done, copied) = (done + bytes, copied + bytes),
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Shares or copies a part from the start; returns its length, and whether it is shared.
    fn copy_some(
        &mut self,
        from: (&Handle, u64),
        to: (&Handle, u64),
        len: u64,
    ) -> Result<(u64, bool)> {
        let ahead = BLOCK_BYTES - from.1 % BLOCK_BYTES;
        let fits = from.1 % BLOCK_BYTES == to.1 % BLOCK_BYTES;
        if fits && ahead == BLOCK_BYTES {
            let shared = self.share(from, to, len)?;
            if shared > 0 {
                return Ok((shared, true));
            }
        }
        let most = if fits && ahead < BLOCK_BYTES {
            ahead
        } else {
            PIECE
        };
        let mut data = vec![0; len.min(most) as usize];
        let read = self.read(from.0, from.1, &mut data)?;
        self.write(to.0, WritePosition::Offset(to.1), &data[..read])?;
        Ok((read as u64, false))
    }

    /// Makes whole blocks of a file refer to those of another one, or of another range of the same
    /// file. The source may also be a file of a snapshot of the fileset. Returns the number of
    /// bytes shared, which may be less than requested; 0 if the first block cannot be shared, or if
    /// the offsets are not at the start of blocks.
    ///
    /// # Errors
    /// Nothing was shared. As [`crate::Fileset::share`].
    pub fn share(
        &mut self,
        (from, from_offset): (&Handle, u64),
        (to, to_offset): (&Handle, u64),
        len: u64,
    ) -> Result<u64> {
        let _here = within(Layer::Fs);
        let len = len / BLOCK_BYTES * BLOCK_BYTES;
        let are_starts =
            from_offset.is_multiple_of(BLOCK_BYTES) && to_offset.is_multiple_of(BLOCK_BYTES);
        if len == 0 || !are_starts {
            return Ok(0);
        }
        let is_live = self.is_own(from);
        let source = &from.files.shared.fileset;
        if !is_live && !source.is_snapshot()? {
            return Err(Kind::CrossFileset.into());
        }
        let locks = if is_live {
            both_alone(&from.node, &to.node)
        } else {
            (alone(&to.node), None)
        };
        if is_live {
            // All of it: the size on disk does not pass pages that wait.
            let open = self.recent.open(&self.files, &from.node);
            if self.session.write_out(open, 0..u64::MAX).is_err() {
                return Ok(0);
            }
        }
        let fileset = &self.files.shared.fileset;
        let open = self.recent.open(&self.files, &to.node);
        let mut done = 0;
        for _ in 0..STEPS_MAX {
            let step = (len - done).min(STEP_BLOCKS * BLOCK_BYTES);
            let (at, to_at) = (from_offset + done, to_offset + done);
            let change = || fileset.share(source, (from.ino(), at), (to.ino(), to_at), step);
            let shared = match self.session.replace(open, to_at..to_at + step, change) {
                Ok(Err(error)) if done == 0 => return Err(error),
                Ok(shared) => shared.unwrap_or(0),
                // Pages that cannot be dropped can still be written to.
                Err(_) => 0,
            };
            if shared == 0 {
                break;
            }
            done += shared;
            to.node.vnode.extend(to_offset + done);
            if done == len {
                break;
            }
        }
        drop(locks);
        if done > 0 {
            // As in `read`.
            let _ = from.files.note_read(from.ino());
            let bytes = to_offset..to_offset + done;
            self.files
                .notify_others(&[Change::Content(to.ino(), bytes)]);
        }
        Ok(done)
    }

    /// Reports whether a file is one of those that this lane accesses.
    fn is_own(&self, file: &Handle) -> bool {
        Arc::ptr_eq(&file.files.shared, &self.files.shared)
    }
}

type Alone<'a> = MutexGuard<'a, Option<Unfinished>>;

/// Locks the content of two files, which may be one.
fn both_alone<'a>(one: &'a Node, two: &'a Node) -> (Alone<'a>, Option<Alone<'a>>) {
    if one.ino == two.ino {
        return (alone(one), None);
    }
    let (first, second) = if one.ino < two.ino {
        (one, two)
    } else {
        (two, one)
    };
    (alone(first), Some(alone(second)))
}
