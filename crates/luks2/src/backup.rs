//! Header backups: the bytes from the start of the device to the end of the keyslots area, in the
//! format of `cryptsetup luksHeaderBackup`.

use crate::Header;
use crate::error::{Error, ErrorKind, Result};
use crate::open::CopyState;
use crate::plan::Plan;

/// A validated header backup.
#[derive(Debug)]
pub struct Backup<'a> {
    header: Header,
    keyslots: &'a [u8],
}

impl<'a> Backup<'a> {
    /// Checks the backup in `bytes` for a device of `device_size` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] if the backup is truncated or one of its copies is damaged, and those
    /// of [`Header::open`].
    pub fn open(bytes: &'a [u8], device_size: u64) -> Result<Backup<'a>> {
        let damaged = |what: &str| {
            Error::damaged(format!(
                "the header backup is damaged: {what}; use another backup"
            ))
        };
        let opened = Header::open(bytes, device_size).map_err(|e| match e.kind() {
            // The backup is all there is: missing bytes mean damage, not a short read.
            ErrorKind::NeedMore => damaged("it is too short"),
            _ => e.within("the header backup"),
        })?;
        for state in [&opened.primary, &opened.secondary] {
            if let CopyState::Damaged(e) = state {
                return Err(damaged(&e.to_string()));
            }
        }
        let header = opened.header;
        let range = header.metadata().keyslots_range();
        let part = usize::try_from(range.offset)
            .ok()
            .zip(usize::try_from(range.end()).ok());
        let keyslots = part.and_then(|(from, to)| bytes.get(from..to));
        Ok(Backup {
            header,
            keyslots: keyslots.ok_or_else(|| damaged("it is too short"))?,
        })
    }

    /// Returns the header in the backup.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Creates the plan that restores the backup. `current` is the header on the device, if one is
    /// readable: its data must lie where the backup says, or restoring would lose the data.
    ///
    /// The keyslots area is overwritten first, so a crash during the restore may leave a header
    /// whose keyslots do not open; the restore must then be repeated. The new copies get a sequence
    /// id above the current one, so that they take precedence over any copy that a crash left.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if backup and device do not belong together.
    pub fn restore(self, current: Option<&Header>) -> Result<Plan> {
        let Backup {
            mut header,
            keyslots,
        } = self;
        if let Some(current) = current {
            let place = |h: &Header| (h.segment().offset(), h.backup_len());
            if place(current) != place(&header) {
                return Err(Error::refused(
                    "the backup states a different data offset than the header on the device; \
                     restoring it would lose the data",
                ));
            }
            header.binary.seqid = header.binary.seqid.max(current.seqid());
        }
        header.restore_plan(keyslots)
    }
}
