//! Writing: in which order bytes have to reach the disk.
//!
//! The order of an update, and why:
//!
//! 1. If one copy is damaged, stale or different, it is rewritten from the good one, and flushed.
//!    From here on both copies say the same, so that no area is free that either still names.
//! 2. Key material of new keyslots, into areas that no copy on the disk names; flush.
//! 3. The primary copy with the next sequence id; flush. Torn, its checksum fails and the
//!    secondary (the old state) counts. Whole, it counts, being newer.
//! 4. The secondary copy; flush. Torn, the primary counts.
//! 5. Areas that the new header no longer names are overwritten with random bytes; flush.
//!
//! So removal is: first the header, then the wipe. The other order would, in an update that
//! replaces a key, leave at one boundary a header that names a wiped area: neither the old key nor
//! the new one. The price is that a crash between 4 and 5 leaves key material that nothing names;
//! [`Header::wipe_unused`] gets rid of it. Erasing all keys is the exception, see
//! [`Header::erase_all`].

use crate::Header;
use crate::binary::{Copy, secondary_offsets};
use crate::error::{Error, Result};
use crate::header::{OnDisk, fill_random, random_salt};
use crate::metadata::Range;

/// Longest single write of a wipe, in bytes.
const WIPE_CHUNK: u64 = 1024 * 1024;

/// One step.
#[derive(Clone, PartialEq, Eq)]
pub enum Step {
    /// Write `bytes` at `offset`. Offsets and lengths are multiples of 4,096. May reach the disk
    /// in any order among the writes between two flushes, whole or torn.
    Write {
        /// Place on the device.
        offset: u64,
        /// What to write.
        bytes: Vec<u8>,
    },
    /// Wait until everything before is durable.
    Flush,
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Step::Write { offset, bytes } => write!(f, "Write({} bytes at {offset})", bytes.len()),
            Step::Flush => f.write_str("Flush"),
        }
    }
}

/// Steps to be carried out in order. If one fails, stop: what is on the disk is good, and has to
/// be read again before anything else is tried.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use = "nothing is written until the steps are carried out"]
pub struct Plan {
    steps: Vec<Step>,
}

impl Plan {
    /// The steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Carries the plan out on an image in memory.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidArgument`] when the image is too short; nothing is written then.
    pub fn apply(&self, image: &mut [u8]) -> Result<()> {
        let end = self.steps.iter().map(|step| match step {
            Step::Write { offset, bytes } => offset.saturating_add(bytes.len() as u64),
            Step::Flush => 0,
        });
        if end.max().unwrap_or(0) > image.len() as u64 {
            return Err(Error::argument("the image is too short for the plan"));
        }
        for step in &self.steps {
            if let Step::Write { offset, bytes } = step
                && let Some(place) = usize::try_from(*offset)
                    .ok()
                    .and_then(|o| image.get_mut(o..))
            {
                place
                    .iter_mut()
                    .zip(bytes)
                    .for_each(|(to, from)| *to = *from);
            }
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: Vec<u8>) {
        self.steps.push(Step::Write { offset, bytes });
    }

    /// A flush, unless nothing was written since the last one.
    fn flush(&mut self) {
        if matches!(self.steps.last(), Some(Step::Write { .. })) {
            self.steps.push(Step::Flush);
        }
    }

    /// Overwrites `range` with random bytes.
    fn wipe(&mut self, range: Range) -> Result<()> {
        let mut offset = range.offset;
        while offset < range.end() {
            let len = (range.end() - offset).min(WIPE_CHUNK);
            let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
            fill_random(&mut bytes)?;
            self.write(offset, bytes);
            offset += len;
        }
        Ok(())
    }
}

impl IntoIterator for Plan {
    type Item = Step;
    type IntoIter = std::vec::IntoIter<Step>;

    fn into_iter(self) -> Self::IntoIter {
        self.steps.into_iter()
    }
}

/// Key material on its way to the disk.
#[derive(Debug)]
pub(crate) struct AreaWrite {
    pub(crate) slot: u32,
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Header {
    /// The plan that brings all changes since the header was read (or since the last plan) to the
    /// disk. Afterwards this header counts as written; if carrying out the plan fails, drop the
    /// header and read it again.
    ///
    /// For a header from [`Header::format`] the plan first destroys what may be left of older LUKS
    /// headers and fills the keyslots area with random bytes; that is not crash-safe for what was
    /// there before, and cannot be.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Refused`] when the sequence id is at its end.
    pub fn update(&mut self) -> Result<Plan> {
        let mut plan = Plan::default();
        if self.on_disk.fresh {
            self.prepare_fresh(&mut plan)?;
        }
        self.repair_into(&mut plan)?;
        for area in std::mem::take(&mut self.area_writes) {
            plan.write(area.offset, area.bytes);
        }
        plan.flush();
        let unnamed = self.write_copies(&mut plan)?;
        for area in unnamed {
            plan.wipe(area)?;
        }
        plan.flush();
        Ok(plan)
    }

    /// The plan that rewrites the copy that is damaged, stale or different from the good one, with
    /// a fresh salt and the sequence id of the good one, as `cryptsetup` does. Empty if both are
    /// good. Changes made since the header was read are left out; [`Header::update`] writes them,
    /// and repairs first on its own.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn repair(&mut self) -> Result<Plan> {
        let mut plan = Plan::default();
        self.repair_into(&mut plan)?;
        Ok(plan)
    }

    /// The plan that removes all keyslots, after which nobody opens the volume any more. Tokens
    /// stay; the caller decides about them before.
    ///
    /// Here the key material goes first: what is wanted is that it is gone, and a crash must not
    /// leave a header without keyslots over an area that still holds them. A crash after the first
    /// flush leaves keyslots that no passphrase opens; erase again.
    ///
    /// # Errors
    /// As [`Header::update`].
    pub fn erase_all(&mut self) -> Result<Plan> {
        let mut plan = Plan::default();
        self.repair_into(&mut plan)?;
        plan.wipe(self.metadata.keyslots_range())?;
        plan.flush();
        let slots: Vec<u32> = self.metadata.keyslots().keys().copied().collect();
        for slot in slots {
            self.remove_keyslot(slot, true)?;
        }
        self.area_writes.clear();
        let _wiped = self.write_copies(&mut plan)?;
        Ok(plan)
    }

    /// The plan that overwrites every part of the keyslots area that no keyslot names, for example
    /// after a crash between the two halves of a removal. For a header without unwritten changes.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn wipe_unused(&self) -> Result<Plan> {
        let mut plan = Plan::default();
        let whole = self.metadata.keyslots_range();
        let mut areas = self.named_areas();
        areas.sort();
        areas.push(Range {
            offset: whole.end(),
            len: 0,
        });
        let mut free = whole.offset;
        for area in areas {
            plan.wipe(Range {
                offset: free,
                len: area.offset.saturating_sub(free),
            })?;
            free = free.max(area.end());
        }
        plan.flush();
        Ok(plan)
    }

    /// Areas that the header in memory or the one on the disk names.
    pub(crate) fn named_areas(&self) -> Vec<Range> {
        let ours = self.metadata.keyslots().values().map(|k| k.area());
        ours.chain(self.on_disk.areas.iter().copied()).collect()
    }

    /// The plan of [`crate::Backup::restore`]: the keyslots area as it is, then the copies.
    pub(crate) fn restore_plan(&mut self, keyslots: &[u8]) -> Result<Plan> {
        let mut plan = Plan::default();
        let mut offset = self.metadata.keyslots_range().offset;
        for chunk in keyslots.chunks(usize::try_from(WIPE_CHUNK).unwrap_or(usize::MAX)) {
            plan.write(offset, chunk.to_vec());
            offset += chunk.len() as u64;
        }
        plan.flush();
        self.write_copies(&mut plan)?;
        Ok(plan)
    }

    fn repair_into(&mut self, plan: &mut Plan) -> Result<()> {
        let Some(copy) = self.on_disk.repair.take() else {
            return Ok(());
        };
        // What was read, not what it was changed to since: this is the old state made whole.
        let salt = random_salt()?;
        *self.binary.salt.get_mut(copy) = salt;
        *self.on_disk.binary.salt.get_mut(copy) = salt;
        let OnDisk { binary, json, .. } = &self.on_disk;
        plan.write(binary.offset(copy), binary.write(copy, json));
        plan.flush();
        Ok(())
    }

    /// Both copies with the next sequence id, each made durable before the next is touched. Gives
    /// the areas that the header on the disk named until now and no longer does.
    fn write_copies(&mut self, plan: &mut Plan) -> Result<Vec<Range>> {
        self.binary.seqid = self.binary.seqid.checked_add(1).ok_or_else(|| {
            Error::refused("the sequence id of the header is at its end; it may be forged")
        })?;
        let json = self.metadata.to_json();
        for copy in [Copy::Primary, Copy::Secondary] {
            plan.write(self.binary.offset(copy), self.binary.write(copy, &json));
            plan.flush();
        }
        let now = OnDisk::new(&self.binary, &self.metadata, json, None);
        let before = std::mem::replace(&mut self.on_disk, now);
        let named = |area: &Range| self.on_disk.areas.iter().any(|a| a.overlaps(area));
        Ok(before
            .areas
            .into_iter()
            .filter(|area| !named(area))
            .collect())
    }

    /// Destroys every place where an older header could be found, and gives the keyslots area the
    /// look of one in full use.
    fn prepare_fresh(&mut self, plan: &mut Plan) -> Result<()> {
        let end = self.segment().offset();
        for offset in std::iter::once(0)
            .chain(secondary_offsets())
            .filter(|o| *o < end)
        {
            plan.write(offset, vec![0; 4096]);
        }
        plan.flush();
        plan.wipe(self.metadata.keyslots_range())?;
        plan.flush();
        Ok(())
    }
}
