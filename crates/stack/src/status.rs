//! What `evfs status` shows of something that is served.

use crate::device::Disk;
use crate::in_use::InUseRecord;
use crate::volume::{Cipher, Open};
use block::DeviceInfo;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// One way by which an attached volume is given out.
#[derive(Debug, Clone, Serialize)]
pub struct ExportAt {
    /// `nbd`, `fuse`, `loop`, `mount` or `afs`.
    pub kind: &'static str,
    /// URI, path or address.
    pub at: String,
}

/// Shows a path in JSON, whose strings cannot have all the bytes that a path may have: those that are not
/// UTF-8 are replaced.
pub(crate) fn as_text<S: serde::Serializer>(
    path: &Option<PathBuf>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let text = path.as_ref().map(|path| path.display().to_string());
    text.serialize(serializer)
}

/// What `evfs status` shows.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Name of the attached volume or mounted file system.
    pub name: String,
    /// File, disk or LUN, as it was named.
    pub device: String,
    /// Its path without links, if it is a file or a disk.
    #[serde(serialize_with = "as_text")]
    pub path: Option<PathBuf>,
    /// Name of the LUN, if it is one.
    pub lun: Option<String>,
    /// UUID in the header of the volume, or of the file system.
    pub uuid: String,
    /// Label, likewise.
    pub label: String,
    /// Bytes of data.
    pub size: u64,
    /// How it lies enciphered; nothing if it lies in the clear.
    #[serde(flatten)]
    pub cipher: Option<CipherStatus>,
    /// Fileset that is mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fileset: Option<String>,
    /// Cell that is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<String>,
    /// Whether the record on the device is kept by which other machines see that it is in use.
    pub in_use_record: InUseRecord,
    /// Writes are refused.
    pub read_only: bool,
    /// Discards are passed on.
    pub discards: bool,
    /// Each request goes to the disk: nothing is kept in memory.
    pub direct: bool,
    /// The page cache of the kernel below is passed by.
    pub o_direct: bool,
    /// Pages are kept in the cache of the process.
    pub cached: bool,
    /// Threads of each export.
    pub threads: usize,
    /// Process that serves it.
    pub pid: u32,
    /// Seconds since 1970 when it was attached.
    pub since: u64,
    /// Where it is given out.
    pub exports: Vec<ExportAt>,
    /// Configuration file it came from.
    #[serde(serialize_with = "as_text")]
    pub config: Option<PathBuf>,
    /// How far what was acknowledged is written out, if pages are kept in the cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_back: Option<WriteBack>,
    /// What its user should know.
    pub warning: Option<String>,
    /// That this machine opened the volume for the first time, and whose it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_use: Option<String>,
}

/// How far what was acknowledged is written out.
#[derive(Debug, Clone, Serialize)]
pub struct WriteBack {
    /// `ok`, or `failing` while pages are kept that could not be written out.
    pub state: &'static str,
    /// Bytes that are in memory only.
    pub dirty_bytes: u64,
    /// Why pages could not be written out.
    pub error: Option<String>,
}

/// The part of [`Status`] that an encrypted volume has.
#[derive(Debug, Clone, Serialize)]
pub struct CipherStatus {
    /// Bytes enciphered together.
    pub sector_size: u32,
    /// 128 or 256.
    pub key_bits: u32,
    /// Cipher kernel at work.
    pub kernel: String,
    /// Keyslot that opened it.
    pub keyslot: u32,
    /// Role of the key that opened it.
    pub role: String,
    /// Whether the memory that holds keys is never swapped out.
    pub keys_locked: bool,
}

impl Status {
    /// Of a DEVICE that has just been opened, before it is given out.
    pub(crate) fn of(
        name: &str,
        device: &Path,
        threads: usize,
        open: &Open,
        info: &DeviceInfo,
    ) -> Status {
        let cipher = open.cipher.as_ref();
        let text = |get: fn(&Cipher) -> &String| cipher.map(get).cloned().unwrap_or_default();
        let mut status = Status {
            name: name.to_owned(),
            device: device.display().to_string(),
            path: path_of(&open.disk, device),
            lun: open.disk.lun().map(|lun| lun.lun().name().to_owned()),
            uuid: text(|c| &c.uuid),
            label: text(|c| &c.label),
            size: info.size,
            cipher: cipher.map(|c| CipherStatus {
                sector_size: c.sector_size,
                key_bits: c.key_bits,
                kernel: c.kernel.to_string(),
                keyslot: c.keyslot,
                role: c.role.to_string(),
                keys_locked: secret::all_locked(),
            }),
            fileset: None,
            cell: None,
            in_use_record: open.disk.kept(),
            read_only: info.read_only,
            discards: info.discard,
            direct: false,
            o_direct: open.direct,
            cached: true,
            threads,
            pid: std::process::id(),
            since: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| d.as_secs()),
            exports: Vec::new(),
            config: None,
            write_back: None,
            warning: cipher.and_then(|_| memory_warning()),
            first_use: open.first_use.clone(),
        };
        if let Some(copy) = open.damaged_copy {
            status.warn(format!(
                "the {copy} copy of its header was damaged when it was opened, and the other one was used; \
                 `evfs volume repair {}` mends it",
                device.display()
            ));
        }
        status
    }

    /// Adds a warning to those there are.
    pub(crate) fn warn(&mut self, warning: impl Into<String>) {
        let warning = warning.into();
        self.warning = Some(match self.warning.take() {
            Some(others) => format!("{others}; {warning}"),
            None => warning,
        });
    }

    /// Adds how far these volumes of the cache are written out, and warns of what waits.
    pub(crate) fn note_write_back(&mut self, volumes: &[&cache::Volume]) {
        let dirty_bytes = crate::cache::dirty_bytes(volumes);
        let error = volumes.iter().find_map(|volume| volume.held_back());
        if let Some(error) = &error {
            let room = match error.kind() {
                block::ErrorKind::NoSpace => format!(": make room where {} lies", self.device),
                _ => String::new(),
            };
            self.warn(format!(
                "{dirty_bytes} bytes that were acknowledged are in memory only, because they cannot be written out \
                 ({error}); they are kept and tried again{room}"
            ));
        }
        self.write_back = Some(WriteBack {
            state: if error.is_some() { "failing" } else { "ok" },
            dirty_bytes,
            error: error.map(|error| error.to_string()),
        });
    }

    /// As an answer.
    pub fn to_value(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("names and numbers become JSON")
    }
}

/// What the user of a volume should know of the memory that its keys are in.
fn memory_warning() -> Option<String> {
    (!secret::all_locked()).then(|| {
        "its keys may be swapped out, because RLIMIT_MEMLOCK does not allow to lock their memory: raise it \
         (`ulimit -l`, LimitMEMLOCK=) or use encrypted swap"
            .to_owned()
    })
}

fn path_of(disk: &Disk, device: &Path) -> Option<PathBuf> {
    match disk {
        Disk::File(_) => std::fs::canonicalize(device).ok(),
        Disk::Lun(_) => None,
    }
}
