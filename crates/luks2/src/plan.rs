//! Writing a header: the order in which bytes must reach the disk.
//!
//! The order of an update, with its reasons:
//!
//! 1. If one copy is damaged, stale or different, rewrite it from the good one; flush. After that
//!    both copies are equal, so an area that either one names is not mistaken for a free one.
//! 2. Write key material of new keyslots to areas that no copy on the disk names; flush.
//! 3. Write the primary copy with the next sequence id; flush. If it is torn, its checksum fails
//!    and the secondary (the old state) is used. If it is intact, it is used, being newer.
//! 4. Write the secondary copy; flush. If it is torn, the primary is used.
//! 5. Overwrite areas that the new header no longer names with random bytes; flush.
//!
//! So a removal writes the header before it wipes the area. In an update that replaces a key, the
//! opposite order would at one boundary leave a header that names a wiped area, with neither the
//! old nor the new key. The price is that a crash between 4 and 5 leaves key material that no
//! header names; [`Header::wipe_unused`] removes it. Erasing all keys is the exception, see
//! [`Header::erase_all`].

use crate::binary::{Copy, secondary_offsets};
use crate::error::{Error, Result};
use crate::header::{Header, OnDisk, fill_random, random_salt};
use crate::metadata::Range;

/// Longest single write of a wipe, in bytes.
const WIPE_CHUNK: u64 = 1024 * 1024;

/// One step of a [`Plan`].
#[derive(Clone, PartialEq, Eq)]
pub enum Step {
    /// Write `bytes` at `offset`. Offsets and lengths are multiples of 4,096. Writes between two
    /// flushes may reach the disk in any order, in full or torn.
    Write {
        /// Offset on the device, in bytes.
        offset: u64,
        /// Data to write.
        bytes: Vec<u8>,
    },
    /// Wait until all earlier writes are durable.
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

/// Steps to be carried out in order. If one fails, stop: the header on the disk is usable, and must
/// be read again before anything else is tried.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use = "nothing is written until the steps are carried out"]
pub struct Plan {
    steps: Vec<Step>,
}

impl Plan {
    /// Returns the steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Reports whether the plan has no steps.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Carries out the plan on an image in memory.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidArgument`] if the image is too short; nothing is written then.
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

    /// Adds a flush, unless nothing was written since the last one.
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

impl Header {
    /// Creates the plan that writes all changes since the header was read (or since the last plan)
    /// to the disk. Afterwards this header counts as written; if carrying out the plan fails, drop
    /// the header and read it again.
    ///
    /// For a header from [`Header::format`] the plan first destroys remains of older LUKS headers
    /// and fills the keyslots area with random bytes. That cannot be crash-safe for the previous
    /// content of the device.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Refused`] if the sequence id has reached its maximum.
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

    /// Creates the plan that rewrites a damaged, stale or different copy from the good one, with a
    /// new salt and the sequence id of the good one, as `cryptsetup` does. Empty if both are good.
    /// Does not include changes made since the header was read; [`Header::update`] writes them, and
    /// repairs first by itself.
    ///
    /// # Errors
    /// If the kernel returns no random bytes.
    pub fn repair(&mut self) -> Result<Plan> {
        let mut plan = Plan::default();
        self.repair_into(&mut plan)?;
        Ok(plan)
    }

    /// Creates the plan that removes all keyslots, after which no key opens the volume. Tokens are
    /// kept; removing them is up to the caller.
    ///
    /// Here the key material is wiped first: the purpose is to destroy it, and a crash must not
    /// leave a header without keyslots over an area that still contains them. A crash after the
    /// first flush leaves keyslots that no passphrase opens; the erase must then be repeated.
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
            self.force_remove_keyslot(slot)?;
        }
        self.area_writes.clear();
        let _wiped = self.write_copies(&mut plan)?;
        Ok(plan)
    }

    /// Creates the plan that overwrites every part of the keyslots area that no keyslot names, for
    /// example after a crash between the two parts of a removal. Requires a header without
    /// unwritten changes.
    ///
    /// # Errors
    /// If the kernel returns no random bytes.
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

    /// Lists the areas named by the header in memory or by the one on the disk.
    pub(crate) fn named_areas(&self) -> Vec<Range> {
        let ours = self.metadata.keyslots().values().map(|k| k.area());
        ours.chain(self.on_disk.areas.iter().copied()).collect()
    }

    /// Creates the plan of [`crate::Backup::restore`]: the given keyslots area, then the copies.
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
        // Restores the old state: use the header as it was read, without later changes.
        let salt = random_salt()?;
        *self.binary.salt.get_mut(copy) = salt;
        *self.on_disk.binary.salt.get_mut(copy) = salt;
        let OnDisk { binary, json, .. } = &self.on_disk;
        plan.write(binary.offset(copy), binary.write(copy, json));
        plan.flush();
        Ok(())
    }

    /// Writes both copies with the next sequence id, each flushed before the next write. Returns
    /// the areas that the previous header on the disk named and the new one does not.
    fn write_copies(&mut self, plan: &mut Plan) -> Result<Vec<Range>> {
        self.binary.seqid = self.binary.seqid.checked_add(1).ok_or_else(|| {
            Error::refused(
                "the sequence id of the header is at its maximum; the header may be forged",
            )
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

    /// Destroys every place where an older header could be found, and fills the keyslots area with
    /// random bytes, so that it looks fully used.
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
