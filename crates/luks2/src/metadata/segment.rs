//! The `segments` section: position and encryption of the data. EVFS opens volumes with one segment
//! of type `crypt` with `aes-xts-plain64`; everything else is refused by name.

use super::{Config, Fields};
use crate::binary::BINARY_LEN;
use crate::error::{Error, ErrorKind, Result, quoted};
use std::collections::BTreeMap;

/// The only permitted cipher, as spelled in headers.
pub(crate) const CIPHER: &str = "aes-xts-plain64";

/// Unit of the initialization vectors, in bytes: LUKS2 counts 512-byte sectors even if the
/// encryption sector is larger (it never sets `iv_large_sectors`).
const IV_UNIT: u64 = 512;

/// The data segment of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    offset: u64,
    size: Option<u64>,
    iv_tweak: u64,
    sector_size: u32,
}

impl Segment {
    /// Reports the offset of the data on the device, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Reports the length of the data in bytes; `None` is "dynamic": up to the end of the device.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// Reports the number to add to that of the 512-byte sector to form the initialization vector.
    /// Counted in 512-byte sectors for every [`Segment::sector_size`].
    pub fn iv_tweak(&self) -> u64 {
        self.iv_tweak
    }

    /// Reports the number of bytes encrypted as one unit: 512 or 4096.
    pub fn sector_size(&self) -> u32 {
        self.sector_size
    }

    /// Names the cipher, always `aes-xts-plain64`.
    pub fn encryption(&self) -> &'static str {
        CIPHER
    }

    /// Computes the length of the data on a device of `device_size` bytes: whole sectors, at least
    /// one.
    ///
    /// # Errors
    /// [`ErrorKind::DeviceTooSmall`] if the data does not fit.
    pub fn data_len(&self, device_size: u64) -> Result<u64> {
        let room = device_size.saturating_sub(self.offset);
        let sector = u64::from(self.sector_size);
        let len = self.size.unwrap_or(room - room % sector);
        if len == 0 || len > room {
            return Err(Error::new(
                ErrorKind::DeviceTooSmall,
                format!(
                    "the device has {device_size} bytes, but its data begins at {} and is {} bytes \
                     long; was the device or file cut short?",
                    self.offset,
                    self.size.unwrap_or(sector)
                ),
            ));
        }
        Ok(len)
    }

    pub(super) fn read(fields: &Fields<'_>) -> Result<AnySegment> {
        let path = fields.path();
        let kind = fields.str("type")?;
        let offset = fields.u64("offset")?;
        let size = match fields.str("size")? {
            "dynamic" => None,
            _ => Some(fields.u64("size")?),
        };
        if offset % 512 != 0 || size.is_some_and(|s| s == 0 || s % 512 != 0) {
            return Err(Error::damaged(format!(
                "{path}: offset or size is not a whole number of sectors"
            )));
        }
        let flags = fields.optional_strings("flags")?;
        let mut segment = Segment {
            offset,
            size,
            iv_tweak: 0,
            sector_size: 512,
        };
        let mut refusal = match kind {
            "crypt" => segment.read_crypt(fields)?,
            other => Some(Error::unsupported(format!(
                "{path}: segment type {} is not supported; EVFS supports type crypt",
                quoted(other)
            ))),
        };
        if let Some(flag) = flags.first() {
            // in-reencryption, backup-previous, backup-final, backup-moved-segment
            refusal.get_or_insert(Error::unsupported(format!(
                "{path} has the flag {}: the volume is being reencrypted; finish it first with \
                 `cryptsetup reencrypt --resume-only`",
                quoted(flag)
            )));
        }
        Ok(AnySegment {
            segment,
            crypt: kind == "crypt",
            refusal,
        })
    }

    /// Reads the additional fields of a crypt segment; returns the reason if EVFS cannot open it.
    fn read_crypt(&mut self, fields: &Fields<'_>) -> Result<Option<Error>> {
        let path = fields.path();
        self.iv_tweak = fields.u64("iv_tweak")?;
        let encryption = fields.str("encryption")?;
        let sector_size = fields.u32("sector_size")?;
        self.sector_size = sector_size;
        let whole = |size: u64| size.is_multiple_of(u64::from(sector_size));
        if sector_size == 0 || sector_size % 512 != 0 || !self.size.is_none_or(whole) {
            return Err(Error::damaged(format!(
                "{path}: sector size {sector_size} is invalid, or the size is not a multiple of it"
            )));
        }
        if fields.has("integrity") {
            return Ok(Some(Error::unsupported(format!(
                "{path} has integrity protection (dm-integrity), which EVFS does not support; \
                 open it with cryptsetup"
            ))));
        }
        if let Some(refusal) = refuse_cipher(path, encryption) {
            return Ok(Some(refusal));
        }
        if sector_size != 512 && sector_size != 4096 {
            return Ok(Some(Error::unsupported(format!(
                "{path}: sector size {sector_size} is not supported; EVFS supports 512 and 4096"
            ))));
        }
        let last = self.size.unwrap_or(u64::MAX) / IV_UNIT;
        if self.iv_tweak.checked_add(last).is_none() {
            return Ok(Some(Error::refused(format!(
                "{path}: iv_tweak {} makes initialization vectors wrap around",
                self.iv_tweak
            ))));
        }
        Ok(None)
    }
}

/// A segment of any kind, with the reason if EVFS cannot open it.
pub(super) struct AnySegment {
    segment: Segment,
    crypt: bool,
    refusal: Option<Error>,
}

/// Explains why `encryption` is refused, if it is. Null ciphers have their own message:
/// forged headers use them to make a victim write plaintext (CVE-2025-59054).
pub(crate) fn refuse_cipher(path: &str, encryption: &str) -> Option<Error> {
    if encryption == CIPHER {
        return None;
    }
    if encryption.contains("null") {
        return Some(Error::refused(format!(
            "{path}: the header requests a null cipher (no encryption); it may be forged"
        )));
    }
    Some(Error::unsupported(format!(
        "{path}: cipher {} is not supported; EVFS supports only {CIPHER}",
        quoted(encryption)
    )))
}

/// Checks that no data lies within the header, as `cryptsetup` does. Unlike `cryptsetup`, refuses
/// data at offset 0 (a detached header).
pub(super) fn check_offsets(segments: &BTreeMap<u32, AnySegment>, config: &Config) -> Result<()> {
    if segments.is_empty() {
        return Err(Error::damaged("the header has no segment"));
    }
    let copies = 2 * (config.json_size() + BINARY_LEN as u64);
    let end = copies + config.keyslots_size();
    let first = segments
        .values()
        .filter(|s| s.crypt)
        .map(|s| s.segment.offset)
        .min();
    match first {
        Some(0) => Err(Error::unsupported(
            "the header is detached (its data lies on another device), which EVFS does not support",
        )),
        Some(offset) if offset < end => Err(Error::damaged(format!(
            "the data begins at {offset}, inside the header, which ends at {end}"
        ))),
        _ => Ok(()),
    }
}

/// Selects the only segment, or fails if EVFS cannot open the volume's segments.
pub(super) fn the_one(segments: BTreeMap<u32, AnySegment>) -> Result<(u32, Segment)> {
    let count = segments.len();
    let mut only = None;
    for (id, any) in segments {
        if let Some(refusal) = any.refusal {
            return Err(refusal);
        }
        only = Some((id, any.segment));
    }
    match only {
        // As in cryptsetup: segments are numbered from 0 without gaps.
        Some((id, _)) if count == 1 && id != 0 => Err(Error::damaged(format!(
            "segment {id} exists, but segment 0 is missing"
        ))),
        Some(one) if count == 1 => Ok(one),
        _ => Err(Error::unsupported(format!(
            "the volume has {count} segments; EVFS supports only one"
        ))),
    }
}
