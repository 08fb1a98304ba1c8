//! Status of a file, and changes that a client requests to it.

use crate::xdr::{Reader, Xdr};
use crate::{Abort, Result, Rights, WireError};

enumeration! {
    /// Type of a file (`ViceDataType`).
    #[derive(Default)]
    pub enum FileType: "file type" {
        /// No type: the status reports an error.
        #[default]
        Invalid = 0,
        /// Regular file.
        File = 1,
        Directory = 2,
        /// Symbolic link or mount point.
        SymbolicLink = 3,
    }
}

/// Interface version of every status (`AFS_FSTATUS_VERSION` of Linux).
const INTERFACE_VERSION: u32 = 1;

/// Status of a file (`AFSFetchStatus`): 21 words. Times are 32-bit Unix timestamps in seconds and
/// overflow in 2106.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AfsFetchStatus {
    pub file_type: FileType,
    /// Number of names.
    pub link_count: u32,
    /// Length in bytes.
    pub length: u64,
    /// Version of the data, increased by each change. A directory's increases by exactly 1 for each
    /// change of a name, since clients apply the change to their own copy.
    pub data_version: u64,
    /// User that wrote it last.
    pub author: u32,
    /// User that owns it.
    pub owner: u32,
    /// Rights of the caller.
    pub caller_access: Rights,
    /// Rights of an unauthenticated caller.
    pub anonymous_access: Rights,
    /// Permission bits, without the file type bits.
    pub unix_mode_bits: u32,
    /// Vnode of the parent directory.
    pub parent_vnode: u32,
    /// Uniquifier of the parent directory.
    pub parent_unique: u32,
    /// Formerly the segment size, later the residencies of multi-resident AFS; servers send 0 or 1.
    pub residency_mask: u32,
    /// Modification time by the clock of the modifying client; shown by `stat`.
    pub client_mod_time: u32,
    /// Modification time by the server's clock.
    pub server_mod_time: u32,
    /// Group that owns it.
    pub group: u32,
    /// Unused.
    pub sync_counter: u32,
    /// Number of read locks; -1 for a write lock.
    pub lock_count: i32,
    /// Reason why `InlineBulkStatus` could not read the status; 0 otherwise.
    pub error_code: Abort,
}

impl AfsFetchStatus {
    /// Creates the status of a file that could not be read because of `error`.
    pub fn failed(error: Abort) -> AfsFetchStatus {
        AfsFetchStatus {
            error_code: error,
            ..AfsFetchStatus::default()
        }
    }
}

/// The order of the 21 words is defined by `read` and `write` alone.
impl<'a> Xdr<'a> for AfsFetchStatus {
    #[rustfmt::skip]
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        let [
            interface_version, file_type, link_count, length_low, data_version_low,
            author, owner, caller_access, anonymous_access, unix_mode_bits,
            parent_vnode, parent_unique, residency_mask, client_mod_time, server_mod_time,
            group, sync_counter, data_version_high, lock_count, length_high,
            error_code,
        ] = <[u32; 21]>::read(from)?;
        // OpenAFS omits the version if it reports an error.
        if interface_version != INTERFACE_VERSION && error_code == 0 {
            let what = "interface version";
            return Err(WireError::Undefined { what, value: interface_version });
        }
        Ok(AfsFetchStatus {
            file_type: FileType::try_from(file_type)?,
            link_count,
            length: whole(length_high, length_low),
            data_version: whole(data_version_high, data_version_low),
            author,
            owner,
            caller_access: Rights(caller_access),
            anonymous_access: Rights(anonymous_access),
            unix_mode_bits,
            parent_vnode,
            parent_unique,
            residency_mask,
            client_mod_time,
            server_mod_time,
            group,
            sync_counter,
            lock_count: lock_count.cast_signed(),
            error_code: Abort(error_code.cast_signed()),
        })
    }

    #[rustfmt::skip]
    fn write(&self, to: &mut Vec<u8>) {
        let (length_high, length_low) = halves(self.length);
        let (data_version_high, data_version_low) = halves(self.data_version);
        [
            INTERFACE_VERSION, self.file_type as u32, self.link_count, length_low, data_version_low,
            self.author, self.owner, self.caller_access.0, self.anonymous_access.0, self.unix_mode_bits,
            self.parent_vnode, self.parent_unique, self.residency_mask, self.client_mod_time, self.server_mod_time,
            self.group, self.sync_counter, data_version_high, self.lock_count.cast_unsigned(), length_high,
            self.error_code.0.cast_unsigned(),
        ]
        .write(to);
    }
}

fn whole(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// Splits a number into its high and low word.
fn halves(whole: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = whole.to_be_bytes();
    (
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    )
}

/// Status changes that a client requests (`AFSStoreStatus`): six words, the first of which is the
/// mask of valid fields. Undefined bits of the mask are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AfsStoreStatus {
    /// Modification time as a Unix timestamp in seconds (`AFS_SETMODTIME`).
    pub client_mod_time: Option<u32>,
    /// Owner (`AFS_SETOWNER`).
    pub owner: Option<u32>,
    /// Group (`AFS_SETGROUP`).
    pub group: Option<u32>,
    /// Mode (`AFS_SETMODE`). Some clients include the file type bits; servers keep the low twelve.
    pub unix_mode_bits: Option<u32>,
    /// Unused (`AFS_SETSEGSIZE`).
    pub segment_size: Option<u32>,
    /// The data must be on stable storage before the reply (`AFS_FSYNC`).
    pub sync: bool,
}

const SETMODTIME: u32 = 1;
const SETOWNER: u32 = 2;
const SETGROUP: u32 = 4;
const SETMODE: u32 = 8;
const SETSEGSIZE: u32 = 16;
const FSYNC: u32 = 1024;

impl<'a> Xdr<'a> for AfsStoreStatus {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        let [mask, time, owner, group, mode, size] = <[u32; 6]>::read(from)?;
        let if_set = |bit, value| (mask & bit != 0).then_some(value);
        Ok(AfsStoreStatus {
            client_mod_time: if_set(SETMODTIME, time),
            owner: if_set(SETOWNER, owner),
            group: if_set(SETGROUP, group),
            unix_mode_bits: if_set(SETMODE, mode),
            segment_size: if_set(SETSEGSIZE, size),
            sync: mask & FSYNC != 0,
        })
    }

    fn write(&self, to: &mut Vec<u8>) {
        let fields = [
            (SETMODTIME, self.client_mod_time),
            (SETOWNER, self.owner),
            (SETGROUP, self.group),
            (SETMODE, self.unix_mode_bits),
            (SETSEGSIZE, self.segment_size),
        ];
        let set = fields.iter().filter(|(_, value)| value.is_some());
        let mask = set.fold(0, |mask, (bit, _)| mask | bit);
        (mask | if self.sync { FSYNC } else { 0 }).write(to);
        fields.map(|(_, value)| value.unwrap_or(0)).write(to);
    }
}
