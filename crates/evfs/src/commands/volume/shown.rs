//! Documents of `evfs volume`.

use crate::commands::volume_key::{self, ShownVolumeKey};
use cli::document::Document;
use schemars::JsonSchema;
use serde::Serialize;

/// The header of an encrypted volume.
#[derive(Serialize, JsonSchema)]
pub struct ShownVolume {
    /// UUID of the volume.
    uuid: String,
    /// Label of the volume.
    label: String,
    /// Version of LUKS. EVFS opens no other than 2.
    luks_version: u32,
    /// Cipher, in the notation of LUKS.
    cipher: &'static str,
    /// Length of the AES key in bits: 128 or 256.
    key_bits: u32,
    /// Size of an encryption sector in bytes.
    sector_size: u32,
    /// Place of the data on the device, in bytes.
    data_offset: u64,
    /// Size of the data in bytes.
    size: u64,
    /// Whether the device is smaller than the header and the data: a header backup, or truncated.
    cut_short: bool,
    /// Whether a copy of the header is damaged.
    needs_repair: bool,
    /// Whether the header has a seal of EVFS.
    sealed: bool,
    /// Keys that open the volume.
    keys: Vec<ShownVolumeKey>,
}

/// A volume that was created.
#[derive(Serialize, JsonSchema)]
pub struct VolumeMade {
    #[serde(flatten)]
    pub volume: ShownVolume,
    /// Path of the saved data that was overwritten.
    pub undo: Option<String>,
    /// The recovery key, if one was requested. It is secret, and not shown again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery_key: Option<String>,
}

/// A volume with a new owner.
#[derive(Serialize, JsonSchema)]
pub struct VolumeOwner {
    #[serde(flatten)]
    pub volume: ShownVolume,
    /// Keys that were removed.
    pub removed: Vec<ShownVolumeKey>,
}

/// Result of a check of the header.
#[derive(Serialize, JsonSchema)]
pub struct VolumeCheck {
    /// State of the first copy.
    pub primary: String,
    /// State of the second copy.
    pub secondary: String,
    /// Errors that were found.
    pub findings: Vec<String>,
    /// Whether no errors were found.
    pub ok: bool,
}

/// Result of a repair of the header.
#[derive(Serialize, JsonSchema)]
pub struct VolumeRepair {
    /// Actions that were taken.
    pub repaired: Vec<String>,
}

/// A backup of a header.
#[derive(Serialize, JsonSchema)]
pub struct VolumeBackup {
    /// Path of the backup.
    pub backup: String,
    /// Size of the backup in bytes.
    pub bytes: usize,
}

/// A volume whose header was restored.
#[derive(Serialize, JsonSchema)]
pub struct VolumeRestored {
    /// The device.
    pub restored: String,
    /// Path of the saved header that was replaced.
    pub undo: String,
}

/// A volume whose keys were destroyed.
#[derive(Serialize, JsonSchema)]
pub struct VolumeErased {
    /// The device.
    pub erased: String,
    /// Path of the saved header; restoring it undoes the erasure.
    pub undo: String,
}

pub const VOLUME: Document<ShownVolume> = Document::new("evfs/volume/1");
pub const MADE: Document<VolumeMade> = Document::new("evfs/volume-create/1");
pub const OWNER: Document<VolumeOwner> = Document::new("evfs/volume-owner/1");
pub const CHECK: Document<VolumeCheck> = Document::new("evfs/volume-check/1");
pub const REPAIR: Document<VolumeRepair> = Document::new("evfs/volume-repair/1");
pub const BACKUP: Document<VolumeBackup> = Document::new("evfs/header-backup/1");
pub const RESTORED: Document<VolumeRestored> = Document::new("evfs/header-restore/1");
pub const ERASED: Document<VolumeErased> = Document::new("evfs/volume-erase/1");

impl ShownVolume {
    pub fn of(volume: &crypt::Volume) -> ShownVolume {
        ShownVolume {
            uuid: volume.uuid().to_owned(),
            label: volume.label(),
            luks_version: 2,
            cipher: "aes-xts-plain64",
            key_bits: volume.key_bits(),
            sector_size: volume.sector_size(),
            data_offset: volume.segment().offset,
            size: volume.data_size(),
            cut_short: volume.is_cut_short(),
            needs_repair: volume.needs_repair(),
            sealed: volume.is_sealed(),
            keys: volume.keys().iter().map(volume_key::shown).collect(),
        }
    }
}
