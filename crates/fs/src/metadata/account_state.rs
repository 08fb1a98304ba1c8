//! Accounts of users and groups in memory; `metadata/accounts.rs` keeps them up to date.

use crate::format::account::{AccountRecord, Charge, Owner, OwnerLimits};
use crate::format::record::BLOCK_BYTES;
use std::collections::BTreeMap;

/// Accounts of a fileset.
pub(crate) type Accounts = BTreeMap<Owner, Account>;

/// Account of an owner in memory.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Account {
    pub record: AccountRecord,
    /// Blocks promised to dirty pages, beyond those that the files have.
    pub promised: u64,
    /// Whether the record differs from the one in the items.
    pub changed: bool,
}

impl Account {
    /// Creates an account that is not in the items yet.
    pub fn of(limits: OwnerLimits, charge: Charge) -> Account {
        Account {
            record: AccountRecord { limits, charge },
            promised: 0,
            changed: true,
        }
    }

    /// Returns the bytes that count against the limit.
    pub fn bytes(&self) -> u64 {
        let promised = self.promised.saturating_mul(BLOCK_BYTES);
        self.record.charge.bytes().saturating_add(promised)
    }

    pub fn is_over_bytes(&self, more: u64) -> bool {
        let limit = self.record.limits.bytes;
        limit != 0 && self.bytes().saturating_add(more) > limit
    }

    pub fn is_over_files(&self) -> bool {
        let limit = self.record.limits.files;
        limit != 0 && self.record.charge.files > limit
    }
}

/// Blocks promised to an inode beyond those that it has, and the accounts that were charged.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Owed {
    pub blocks: i64,
    pub charged: u64,
    /// User and group that were charged.
    pub to: (u32, u32),
}
