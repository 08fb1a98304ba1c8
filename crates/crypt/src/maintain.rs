//! Maintenance of a header without its keys: check, repair, restore.

use crate::seal::{self, SealVersion};
use crate::volume::{execute, read_header, read_header_alone, read_range};
use crate::{Error, Result};
use block::BlockDevice;
use luks2::{Backup, CopyState, Header, Opened, Plan};
use std::sync::Arc;

/// Returns the number of bytes at the start of a device that formatting it overwrites.
pub fn overwritten_by_format(device_size: u64) -> u64 {
    luks2::FormatOptions::new(device_size)
        .data_offset
        .min(device_size)
}

/// State of one copy of the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyReport {
    /// Intact and current.
    Valid {
        /// Sequence number of the copy.
        seqid: u64,
    },
    /// Damaged or outdated.
    Damaged {
        /// Reason, for the user.
        why: String,
    },
}

/// Result of [`check`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    /// The copy at the start of the device.
    pub primary: CopyReport,
    /// The copy after the primary.
    pub secondary: CopyReport,
    /// Problems found, one message each; empty if there are none.
    pub findings: Vec<String>,
    /// The device ends before its data does: it is a header backup, or was truncated.
    pub cut_short: bool,
}

impl CheckReport {
    /// Reports whether [`repair`] has a copy to rewrite.
    pub fn can_be_repaired(&self) -> bool {
        let damaged = |copy: &CopyReport| matches!(copy, CopyReport::Damaged { .. });
        !self.cut_short && (damaged(&self.primary) || damaged(&self.secondary))
    }
}

/// Checks both copies of the header, its tokens and its key material. Changes nothing.
///
/// # Errors
/// If neither copy is usable, or a read fails.
pub fn check(device: Arc<dyn BlockDevice>) -> Result<CheckReport> {
    let (opened, cut_short) = read_header_alone(&*device)?;
    let Opened {
        header,
        primary,
        secondary,
    } = opened;
    let mut findings = Vec::new();
    if cut_short {
        findings.push(format!(
            "the device ends after {} bytes, before the data: it is a header backup, or was \
             truncated",
            device.info().size
        ));
    }
    let mut report = |which: &str, state: &CopyState| match state {
        CopyState::Valid { seqid } => CopyReport::Valid { seqid: *seqid },
        other => {
            findings.push(format!("the {which} copy of the header is {other}"));
            CopyReport::Damaged {
                why: match other {
                    CopyState::Damaged(reason) => reason.to_string(),
                    other => other.to_string(),
                },
            }
        }
    };
    let (primary, secondary) = (report("primary", &primary), report("secondary", &secondary));
    for (number, token) in header.metadata().tokens() {
        for keyslot in token.keyslots() {
            if !header.metadata().keyslots().contains_key(keyslot) {
                findings.push(format!(
                    "token {number} refers to keyslot {keyslot}, which does not exist"
                ));
            }
        }
    }
    if header.keyslots_to_try().is_empty() {
        findings.push(
            "no keyslot can open this volume: it was erased, or EVFS does not support its keyslots"
                .into(),
        );
    }
    for keyslot in header.metadata().keyslots().keys() {
        let range = header.keyslot_area(*keyslot);
        let read = range.map(|range| read_range(&*device, range.offset, range.len));
        if let Ok(Err(e)) = read {
            findings.push(format!(
                "cannot read the key material of keyslot {keyslot}: {e}"
            ));
        }
    }
    Ok(CheckReport {
        primary,
        secondary,
        findings,
        cut_short,
    })
}

/// Rewrites a damaged copy of the header from the good one; returns a message for each repair.
///
/// # Errors
/// If neither copy is usable, or a write fails.
pub fn repair(device: Arc<dyn BlockDevice>) -> Result<Vec<String>> {
    let mut opened = read_header(&*device)?;
    let mut done = Vec::new();
    for (which, state) in [
        ("primary", &opened.primary),
        ("secondary", &opened.secondary),
    ] {
        if !state.is_valid() {
            done.push(format!("rewrote the {which} copy of the header ({state})"));
        }
    }
    let name = device.info().name.clone();
    let plan = opened
        .header
        .repair()
        .map_err(|e| Error::header(&name, e))?;
    execute(&*device, plan)?;
    Ok(done)
}

/// A restore that has been planned but not yet carried out.
pub struct Restore {
    device: Arc<dyn BlockDevice>,
    plan: Plan,
    /// UUID of the volume in the backup.
    pub uuid: String,
    /// Seal stated in the backup.
    pub mark: Option<SealVersion>,
    /// Description of other data that would be overwritten, if the device seems to hold any.
    pub objection: Option<String>,
    /// The bytes that the restore overwrites.
    pub overwritten: Vec<u8>,
}

/// Reads a header backup and the data that it would replace.
///
/// # Errors
/// If the bytes are not a header backup, or the backup does not fit the device.
pub fn plan_restore(device: Arc<dyn BlockDevice>, backup: &[u8]) -> Result<Restore> {
    let (name, size) = (device.info().name.clone(), device.info().size);
    let header_error = |e| Error::header(&name, e);
    let backup = Backup::open(backup, size).map_err(header_error)?;
    let len = backup.header().backup_len();
    let current = match read_header(&*device) {
        Ok(opened) => Some(opened.header),
        Err(Error::Header { .. }) => None,
        Err(e) => return Err(e),
    };
    let objection = objection(current.as_ref(), backup.header(), &*device)?;
    // A header of another volume does not describe where the data of this backup lies.
    let same = current
        .as_ref()
        .filter(|c| c.uuid() == backup.header().uuid());
    let (uuid, mark) = (
        backup.header().uuid().to_owned(),
        seal::mark(backup.header()),
    );
    let plan = backup.restore(same).map_err(header_error)?;
    let overwritten = read_range(&*device, 0, len)?;
    Ok(Restore {
        device,
        plan,
        uuid,
        mark,
        objection,
        overwritten,
    })
}

fn objection(
    current: Option<&Header>,
    backup: &Header,
    device: &dyn BlockDevice,
) -> Result<Option<String>> {
    Ok(match current {
        Some(current) if current.uuid() != backup.uuid() => Some(format!(
            "another LUKS volume (UUID {}; the backup has UUID {})",
            current.uuid(),
            backup.uuid()
        )),
        Some(_) => None,
        None => {
            // Backups exist to replace a damaged LUKS header; anything else may be a user's data.
            let first = read_range(device, 0, device.info().size.min(4096))?;
            let luks = first.starts_with(b"LUKS\xba\xbe") || first.iter().all(|b| *b == 0);
            (!luks).then(|| "data that is not a LUKS volume".to_owned())
        }
    })
}

impl Restore {
    /// Writes the backup to the device.
    ///
    /// # Errors
    /// If a write fails; the restore must then be repeated.
    pub fn apply(self) -> Result<()> {
        execute(&*self.device, self.plan)
    }
}
