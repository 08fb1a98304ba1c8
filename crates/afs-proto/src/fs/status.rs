//! What is known of a file, and what of it a client wants changed.

use crate::xdr::{Reader, Xdr};
use crate::{Abort, Result, Rights, WireError};

enumeration! {
    /// What a file is (`ViceDataType`).
    #[derive(Default)]
    pub enum FileType: "file type" {
        /// Nothing: beside an error.
        #[default]
        Invalid = 0,
        /// A file.
        File = 1,
        /// A directory.
        Directory = 2,
        /// A symbolic link, or a mount point.
        SymbolicLink = 3,
    }
}

/// The version that every status has (`AFS_FSTATUS_VERSION` of Linux).
const INTERFACE_VERSION: u32 = 1;

/// What is known of a file (`AFSFetchStatus`): 21 words. Times are seconds of 1970 and end in 2106.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AfsFetchStatus {
    /// What it is.
    pub file_type: FileType,
    /// Names that it has.
    pub link_count: u32,
    /// Bytes in it.
    pub length: u64,
    /// Rises with each change of the data; a directory's by exactly 1 for each change of a name, since
    /// clients then change their own copy.
    pub data_version: u64,
    /// Who wrote it last.
    pub author: u32,
    /// Who owns it.
    pub owner: u32,
    /// What the caller may do.
    pub caller_access: Rights,
    /// What anybody may do.
    pub anonymous_access: Rights,
    /// Mode, without the bits of the type.
    pub unix_mode_bits: u32,
    /// Vnode of the directory it is in.
    pub parent_vnode: u32,
    /// Uniquifier of the directory it is in.
    pub parent_unique: u32,
    /// Once the segment size, then the residencies of multi-resident AFS; servers send 0 or 1.
    pub residency_mask: u32,
    /// When it was changed, by the clock of who changed it: what `stat` shows.
    pub client_mod_time: u32,
    /// When it was changed, by the server's clock.
    pub server_mod_time: u32,
    /// Its group.
    pub group: u32,
    /// Not used.
    pub sync_counter: u32,
    /// How many hold it locked to read; -1 if one holds it locked to write.
    pub lock_count: i32,
    /// Why nothing is known of it, in an `InlineBulkStatus`; 0 otherwise.
    pub error_code: Abort,
}

impl AfsFetchStatus {
    /// A file of which nothing is known because of `error`.
    pub fn failed(error: Abort) -> AfsFetchStatus {
        AfsFetchStatus {
            error_code: error,
            ..AfsFetchStatus::default()
        }
    }
}

/// The order of the 21 words stands in `read` and in `write`, and nowhere else.
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
        // OpenAFS leaves the version out beside an error.
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

/// High and low word.
fn halves(whole: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = whole.to_be_bytes();
    (
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    )
}

/// What a client wants to have changed (`AFSStoreStatus`): six words, the first saying which of the
/// others count. Bits of it that have no meaning are not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AfsStoreStatus {
    /// Time of change, in seconds of 1970 (`AFS_SETMODTIME`).
    pub client_mod_time: Option<u32>,
    /// Owner (`AFS_SETOWNER`).
    pub owner: Option<u32>,
    /// Group (`AFS_SETGROUP`).
    pub group: Option<u32>,
    /// Mode (`AFS_SETMODE`). Some clients send the bits of the type as well; servers keep the low twelve.
    pub unix_mode_bits: Option<u32>,
    /// Not used (`AFS_SETSEGSIZE`).
    pub segment_size: Option<u32>,
    /// The data is to be on disk before the answer (`AFS_FSYNC`).
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
