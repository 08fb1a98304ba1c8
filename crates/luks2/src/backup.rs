//! Header backups: the bytes from the start of the device to the end of the keyslots area, as
//! `cryptsetup luksHeaderBackup` writes them.

use crate::Header;
use crate::error::{Error, ErrorKind, Result};
use crate::open::CopyState;
use crate::plan::Plan;

/// A header backup that was checked.
#[derive(Debug)]
pub struct Backup<'a> {
    header: Header,
    keyslots: &'a [u8],
}

impl<'a> Backup<'a> {
    /// Checks the backup in `bytes` for a device of `device_size` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] when it is cut short or not both copies in it are whole, and those
    /// of [`Header::open`].
    pub fn open(bytes: &'a [u8], device_size: u64) -> Result<Backup<'a>> {
        let damaged = |what: &str| Error::damaged(format!("the header backup is damaged: {what}"));
        let opened = Header::open(bytes, device_size).map_err(|e| match e.kind() {
            // What is missing here is not what the caller did not read, but what is not there.
            ErrorKind::NeedMore => damaged("it is cut short"),
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
            keyslots: keyslots.ok_or_else(|| damaged("it is cut short"))?,
        })
    }

    /// The header in the backup.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The plan that restores the backup. `current` is the header on the device, if there is one
    /// that can be read: its data must lie where the backup says, or restoring would lose it.
    ///
    /// The keyslots area is overwritten first, so a crash in the middle may leave a header whose
    /// keyslots do not open; restore again. The copies get a sequence id above the current one, so
    /// that what was restored counts at once, whichever copy a crash left.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] when backup and device do not belong together.
    pub fn restore(self, current: Option<&Header>) -> Result<Plan> {
        let Backup {
            mut header,
            keyslots,
        } = self;
        if let Some(current) = current {
            let place = |h: &Header| (h.segment().offset(), h.backup_len());
            if place(current) != place(&header) {
                return Err(Error::refused(
                    "the backup puts the data at another place than the header on the device; \
                     restoring it would lose the data",
                ));
            }
            header.binary.seqid = header.binary.seqid.max(current.seqid());
        }
        header.restore_plan(keyslots)
    }
}
