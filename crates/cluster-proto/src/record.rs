//! The record of a unit in the store.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Name of a machine or a unit.
pub type Name = Arc<str>;

/// Longest record in bytes that is read.
pub const RECORD_BYTES_MAX: usize = 64 << 10;

/// Version of the format of a record.
const VERSION: u32 = 1;

/// Most claims in a record whose fences are not proven. No further machine claims the unit then.
pub(crate) const UNFENCED_MAX: usize = 32;

/// Why bytes are not a record.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// They are too long.
    #[error("the record has {0} bytes, more than {RECORD_BYTES_MAX}")]
    TooLong(usize),
    /// They are not JSON of this structure.
    #[error("the record cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// A newer program wrote them.
    #[error("the record has version {0}; this program reads version {VERSION}: upgrade it")]
    Version(u32),
    /// Epochs in it contradict each other.
    #[error("the record is damaged: {0}")]
    Damaged(&'static str),
}

/// One attempt of a machine to own a unit. The storage knows it by its epoch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    pub machine: Name,
    /// The lease of the machine at that time.
    pub lease: u64,
    pub epoch: u64,
}

/// The owner of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    pub claim: Claim,
    /// Whether all earlier claims are fenced and the unit is served.
    pub serving: bool,
}

/// A unit as the store knows it. Default: it has no owner.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    version: u32,
    /// Machines that may own the unit, the preferred one first. Empty: all machines.
    #[serde(default)]
    pub machines: Vec<Name>,
    /// Epoch of the last claim.
    pub epoch: u64,
    #[serde(default)]
    pub holder: Option<Holder>,
    /// Earlier claims that the storage may still obey.
    #[serde(default)]
    pub unfenced: Vec<Claim>,
    /// Leases of machines of which an administrator says that they are dead. Their claims need no
    /// fence.
    #[serde(default)]
    pub dead: BTreeSet<u64>,
    /// Machine to which an administrator moves the unit.
    #[serde(default)]
    pub wish: Option<Name>,
}

impl Record {
    /// Describes a unit without an owner.
    pub fn new(machines: Vec<Name>) -> Record {
        Record {
            version: VERSION,
            machines,
            ..Record::default()
        }
    }

    /// Parses a value of the store.
    ///
    /// # Errors
    /// It is no record of this version.
    pub fn decode(bytes: &[u8]) -> Result<Record, Error> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(Error::TooLong(bytes.len()));
        }
        let Version { version } = serde_json::from_slice(bytes)?;
        if version != VERSION {
            return Err(Error::Version(version));
        }
        let record: Record = serde_json::from_slice(bytes)?;
        let held = record.holder.as_ref().map(|holder| &holder.claim);
        if held.is_some_and(|claim| claim.epoch != record.epoch) {
            return Err(Error::Damaged("the owner's epoch is not the last one"));
        }
        let last = record.epoch.saturating_sub(u64::from(held.is_some()));
        if record.unfenced.iter().any(|claim| claim.epoch > last) {
            return Err(Error::Damaged("an earlier claim has a later epoch"));
        }
        Ok(record)
    }

    /// Returns the value for the store.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Returns the claims that have to be fenced before the unit may be opened.
    pub fn to_fence(&self) -> Vec<Claim> {
        let is_needed = |claim: &&Claim| !self.dead.contains(&claim.lease);
        self.unfenced.iter().filter(is_needed).cloned().collect()
    }

    /// Replaces the owner by a machine with this lease. The old one becomes a claim to be fenced.
    pub(crate) fn claimed(&self, machine: &Name, lease: u64) -> Option<Record> {
        let epoch = self.epoch.checked_add(1)?;
        let mut next = self.vacated();
        next.unfenced
            .retain(|claim| !self.dead.contains(&claim.lease));
        next.dead.clear();
        let claim = Claim {
            machine: Arc::clone(machine),
            lease,
            epoch,
        };
        next.epoch = epoch;
        next.holder = Some(Holder {
            claim,
            serving: false,
        });
        // The machine that was wished for was asked first.
        next.wish = None;
        (next.unfenced.len() <= UNFENCED_MAX).then_some(next)
    }

    /// Removes the claims before that of the owner, which are fenced.
    pub(crate) fn fenced(&self) -> Record {
        let mut next = self.clone();
        next.unfenced.clear();
        next.dead.clear();
        next
    }

    /// Removes the owner, which becomes a claim to be fenced.
    fn vacated(&self) -> Record {
        let mut next = self.clone();
        next.unfenced
            .extend(next.holder.take().map(|holder| holder.claim));
        next
    }

    /// Removes the owner, which sent nothing to the storage or closed all of it.
    pub(crate) fn released(&self, stored: Option<u64>) -> Record {
        let mut next = self.clone();
        next.holder = None;
        next.epoch = next.epoch.max(stored.unwrap_or(0));
        next
    }

    /// Removes the owner, which may have sent something to the storage.
    pub(crate) fn abandoned(&self, stored: Option<u64>) -> Record {
        let mut next = self.vacated();
        next.epoch = next.epoch.max(stored.unwrap_or(0));
        next
    }

    /// Marks the owner as serving, after all earlier claims were fenced.
    pub(crate) fn served(&self) -> Record {
        let mut next = self.fenced();
        if let Some(holder) = &mut next.holder {
            holder.serving = true;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        let mut record = Record::new(vec!["a".into(), "b".into()]);
        record.wish = Some("b".into());
        record = record.claimed(&"a".into(), 7).unwrap();
        record = record.claimed(&"b".into(), 8).unwrap();
        record.dead.insert(7);
        assert_eq!(Record::decode(&record.encode()).unwrap(), record);
        assert_eq!(record.unfenced.len(), 1);
        assert_eq!(record.wish, None);
        assert!(record.to_fence().is_empty());
        assert!(record.served().dead.is_empty());
    }

    #[test]
    fn bytes_that_are_no_record_are_refused_with_the_reason() {
        let refused = |bytes: &[u8]| Record::decode(bytes).unwrap_err().to_string();
        assert!(refused(b"{}").contains("version"));
        assert!(refused(br#"{"version": 2, "new": 1}"#).contains("upgrade"));
        assert!(refused(&vec![b' '; RECORD_BYTES_MAX + 1]).contains("65537"));
        let wrong = br#"{"version":1,"epoch":3,"holder":{"claim":{"machine":"a","lease":1,"epoch":2},"serving":true}}"#;
        assert!(refused(wrong).contains("damaged"));
        let wrong = br#"{"version":1,"epoch":3,"unfenced":[{"machine":"a","lease":1,"epoch":4}]}"#;
        assert!(refused(wrong).contains("damaged"));
        assert!(refused(br#"{"version":1,"epoch":3,"more":1}"#).contains("more"));
    }

    #[test]
    fn a_record_never_outgrows_what_is_read() {
        let name: Name = "m".repeat(255).into();
        let mut record = Record::new(vec![Arc::clone(&name); 64]);
        while let Some(next) = record.claimed(&name, u64::MAX) {
            record = next;
        }
        assert!(record.encode().len() < RECORD_BYTES_MAX);
        Record::decode(&record.encode()).unwrap();
        assert!(record.unfenced.len() >= UNFENCED_MAX);
    }
}
