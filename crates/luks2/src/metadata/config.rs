//! The `config` section: sizes, flags set by users, and requirements that a reader must meet.

use super::Fields;
use crate::binary::{BINARY_LEN, is_header_size};
use crate::error::{Error, Result, quoted};

/// Largest keyslots area (`LUKS2_MAX_KEYSLOTS_SIZE`), in bytes.
pub(crate) const KEYSLOTS_SIZE_MAX: u64 = 128 * 1024 * 1024;

/// Configuration of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    json_size: u64,
    keyslots_size: u64,
    flags: Vec<String>,
}

impl Config {
    /// Reports the length of each JSON area in bytes.
    pub fn json_size(&self) -> u64 {
        self.json_size
    }

    /// Reports the length in bytes of the keyslots area, which follows the two copies.
    pub fn keyslots_size(&self) -> u64 {
        self.keyslots_size
    }

    /// Lists the persistent flags, known (`allow-discards`, `no-read-workqueue`,
    /// `no-write-workqueue`, `same-cpu-crypt`, `submit-from-crypt-cpus`, ...) and unknown.
    pub fn flags(&self) -> &[String] {
        &self.flags
    }

    pub(super) fn read(fields: &Fields<'_>, area_len: u64) -> Result<Config> {
        let json_size = size(fields, "json_size")?;
        if json_size != area_len || !is_header_size(json_size.saturating_add(BINARY_LEN as u64)) {
            return Err(Error::damaged(format!(
                "config: json_size {json_size} does not match the JSON area of {area_len} bytes"
            )));
        }
        let keyslots_size = size(fields, "keyslots_size")?;
        if !keyslots_size.is_multiple_of(4096) || keyslots_size > KEYSLOTS_SIZE_MAX {
            return Err(Error::damaged(format!(
                "config: keyslots_size {keyslots_size} is not a multiple of 4096 up to \
                 {KEYSLOTS_SIZE_MAX}"
            )));
        }
        let flags = fields
            .optional_strings("flags")?
            .into_iter()
            .map(str::to_owned)
            .collect();
        if fields.has("requirements") {
            check_requirements(&fields.object("requirements")?)?;
        }
        Ok(Config {
            json_size,
            keyslots_size,
            flags,
        })
    }
}

/// Reads a size. C's strtoull also accepts a sign and white space, so for `cryptsetup` these are
/// not damage.
fn size(fields: &Fields<'_>, key: &str) -> Result<u64> {
    fields.str(key)?;
    fields.u64(key).map_err(|e| Error::refused(e.to_string()))
}

/// Refuses mandatory requirements, of which EVFS meets none. A reader that does not know one must
/// not open the volume (LUKS2 specification, 3.5).
fn check_requirements(fields: &Fields<'_>) -> Result<()> {
    match fields.optional_strings("mandatory")?.first() {
        None => Ok(()),
        Some(name) if name.contains("reencrypt") => Err(Error::unsupported(format!(
            "the volume is being reencrypted (requirement {}); finish it first with `cryptsetup \
             reencrypt --resume-only`",
            quoted(name)
        ))),
        Some(name) => Err(Error::unsupported(format!(
            "the volume requires {}, which EVFS does not support; use the program that created it",
            quoted(name)
        ))),
    }
}
