//! A header in memory, with the changes not yet written.
//!
//! Changes are made to the copy in memory and reach the disk by the plan of [`Header::update`].

use crate::binary::{self, BinaryHeader, Copy, check_label};
use crate::error::{Error, ErrorKind, Result};
use crate::hash::Hash;
use crate::json::{Json, Object};
use crate::metadata::{Metadata, Range, Segment, TOKENS_MAX, Token};

/// A LUKS2 header.
///
/// All its data (keyslots, data segment) comes from the bytes that were checked when it was read;
/// the device is not read again.
pub struct Header {
    pub(crate) binary: BinaryHeader,
    pub(crate) metadata: Metadata,
    pub(crate) on_disk: OnDisk,
    /// Key material that must be on the disk before the JSON that names it.
    pub(crate) area_writes: Vec<AreaWrite>,
}

/// Key material to be written to the disk.
#[derive(Debug)]
pub(crate) struct AreaWrite {
    pub(crate) slot: u32,
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
}

/// Last known state of the header on the disk.
#[derive(Debug)]
pub(crate) struct OnDisk {
    /// The disk has no part of this header yet: it is being formatted.
    pub(crate) fresh: bool,
    /// The current copy, byte for byte except for its salt and checksum.
    pub(crate) binary: BinaryHeader,
    /// JSON text of the current copy.
    pub(crate) json: String,
    /// The copy that must first be rewritten from the other.
    pub(crate) repair: Option<Copy>,
    /// Areas named by the header on the disk; not to be overwritten before it is replaced.
    pub(crate) areas: Vec<Range>,
}

impl OnDisk {
    pub(crate) fn new(
        binary: &BinaryHeader,
        metadata: &Metadata,
        json: String,
        repair: Option<Copy>,
    ) -> OnDisk {
        let areas = metadata.keyslots().values().map(|k| k.area()).collect();
        OnDisk {
            fresh: false,
            binary: binary.clone(),
            json,
            repair,
            areas,
        }
    }

    pub(crate) fn fresh(binary: &BinaryHeader) -> OnDisk {
        let (json, areas) = (String::new(), Vec::new());
        OnDisk {
            fresh: true,
            binary: binary.clone(),
            json,
            repair: None,
            areas,
        }
    }
}

impl std::fmt::Debug for Header {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Header")
            .field("uuid", &self.binary.uuid)
            .field("seqid", &self.binary.seqid)
            .field("json", &self.metadata.to_json())
            .finish_non_exhaustive()
    }
}

impl Header {
    pub(crate) fn from_parts(binary: BinaryHeader, metadata: Metadata, on_disk: OnDisk) -> Header {
        Header {
            binary,
            metadata,
            on_disk,
            area_writes: Vec::new(),
        }
    }

    /// Returns keyslots, tokens, segment, digests and configuration.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the data segment.
    pub fn segment(&self) -> &Segment {
        self.metadata.segment()
    }

    /// Returns the UUID as it stands in the header: printable ASCII, nearly always 36 characters.
    pub fn uuid(&self) -> &str {
        &self.binary.uuid
    }

    /// Returns the label, with invalid UTF-8 replaced (it is preserved on the disk). The label is
    /// untrusted and may contain any character: escape it before it reaches a terminal.
    pub fn label(&self) -> String {
        binary::lossy(&self.binary.label)
    }

    /// Returns the subsystem label; see [`Header::label`].
    pub fn subsystem(&self) -> String {
        binary::lossy(&self.binary.subsystem)
    }

    /// Reports the sequence id, which every update increments.
    pub fn seqid(&self) -> u64 {
        self.binary.seqid
    }

    /// Reports the length of each of the two copies in bytes.
    pub fn header_size(&self) -> u64 {
        self.binary.hdr_size
    }

    /// Reports the hash algorithm of the checksum of each copy.
    pub fn checksum_alg(&self) -> Hash {
        self.binary.checksum_alg
    }

    /// Computes the length in bytes of header and keyslots: the size of a backup.
    pub fn backup_len(&self) -> u64 {
        self.metadata.keyslots_range().end()
    }

    /// Reports the length in bytes of the volume key as the keyslots state it; `None` without one.
    pub fn volume_key_len(&self) -> Option<u32> {
        let (_, digest) = self.metadata.volume_digest();
        let slot = digest?.keyslots().first()?;
        self.metadata.keyslots().get(slot).map(|k| k.key_size())
    }

    /// Lists the persistent flags set by an administrator; see [`crate::Config::flags`].
    pub fn persistent_flags(&self) -> &[String] {
        self.metadata.config().flags()
    }

    /// Reports whether the flag `allow-discards` is set.
    pub fn allow_discards(&self) -> bool {
        self.persistent_flags()
            .iter()
            .any(|f| f == "allow-discards")
    }

    /// Checks whether the header on the disk, given at least its first 512 bytes in `first`, is
    /// still the one this was read from. To be called under the lock, right before carrying out a
    /// plan.
    ///
    /// # Errors
    /// [`ErrorKind::Changed`] if it is not.
    pub fn check_unchanged(&self, first: &[u8]) -> Result<()> {
        // As in cryptsetup: a primary that does not belong to this volume (lost, or never written)
        // is no sign of a concurrent update.
        let ours = binary::version(first) == Some(2)
            && binary::uuid(first).as_deref() == Some(self.uuid());
        let repairing = self.on_disk.repair == Some(Copy::Primary);
        if !ours || repairing || binary::seqid(first) == Some(self.seqid()) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Changed,
            "another program changed the LUKS2 header after it was read; nothing was written, try \
             again",
        ))
    }

    /// Adds a token as `number` or, if that is `None`, as the first free one; returns its number.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`]; [`ErrorKind::NoSpace`] if all 32 are in use or the JSON area is full;
    /// [`ErrorKind::InvalidArgument`] if the token names a keyslot that does not exist.
    pub fn add_token(&mut self, number: Option<u32>, token: &Token) -> Result<u32> {
        let taken = |n: u32| self.metadata.tokens().contains_key(&n);
        let number = pick("token", number, TOKENS_MAX, taken)?;
        self.put_token(number, token)?;
        Ok(number)
    }

    /// Replaces token `number`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], and those of [`Header::add_token`].
    pub fn replace_token(&mut self, number: u32, token: &Token) -> Result<()> {
        self.expect_token(number)?;
        self.put_token(number, token)
    }

    /// Removes token `number`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it does not exist.
    pub fn remove_token(&mut self, number: u32) -> Result<()> {
        self.expect_token(number)?;
        self.edit(|document| {
            section(document, "tokens")?.remove(&number.to_string());
            Ok(())
        })
    }

    fn expect_token(&self, number: u32) -> Result<()> {
        if self.metadata.tokens().contains_key(&number) {
            Ok(())
        } else {
            Err(Error::new(
                ErrorKind::NotFound,
                format!("token {number} does not exist"),
            ))
        }
    }

    fn put_token(&mut self, number: u32, token: &Token) -> Result<()> {
        let slots = self.metadata.keyslots();
        if let Some(n) = token.keyslots().iter().find(|n| !slots.contains_key(n)) {
            return Err(Error::argument(format!(
                "the token refers to keyslot {n}, which does not exist"
            )));
        }
        let object = Json::Object(token.object().clone());
        self.edit(|document| {
            section(document, "tokens")?.set(&number.to_string(), object);
            Ok(())
        })
    }

    /// Sets or clears a persistent flag such as `allow-discards`.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if the JSON area is full.
    pub fn set_flag(&mut self, flag: &str, on: bool) -> Result<()> {
        let others = self
            .persistent_flags()
            .iter()
            .filter(|f| *f != flag)
            .cloned();
        let mut flags: Vec<Json> = others.map(Json::string).collect();
        if on {
            flags.push(Json::string(flag));
        }
        self.edit(|document| {
            let config = section(document, "config")?;
            // Without flags, omit the field, as cryptsetup does for a volume that never had one.
            if flags.is_empty() {
                drop(config.remove("flags"))
            } else {
                config.set("flags", Json::Array(flags))
            }
            Ok(())
        })
    }

    /// Sets the label.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it is longer than 47 bytes or has control characters.
    pub fn set_label(&mut self, label: &str) -> Result<()> {
        check_label("label", label)?;
        self.binary.label = label.into();
        Ok(())
    }

    /// Changes the document; leaves it unchanged if the reader would not accept the result.
    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut Object) -> Result<()>) -> Result<()> {
        let mut document = self.metadata.document().clone();
        change(&mut document)?;
        let area = self.binary.json_area_len();
        let metadata = Metadata::from_document(document, area)?;
        // At least one byte stays zero and terminates the text for readers that use C strings.
        let len = metadata.to_json().len() as u64;
        if len >= area {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "the metadata needs {len} bytes, but the header has room for {}; remove \
                     unused keys or tokens",
                    area - 1
                ),
            ));
        }
        self.metadata = metadata;
        Ok(())
    }
}

/// Looks up a section of the document; the reader has checked that it is an object.
pub(crate) fn section<'a>(document: &'a mut Object, name: &str) -> Result<&'a mut Object> {
    document
        .object_mut(name)
        .ok_or_else(|| Error::damaged(format!("section {name} is missing")))
}

/// Chooses the wanted number if it is free, or the first free one if none is wanted.
pub(crate) fn pick(
    what: &str,
    wanted: Option<u32>,
    max: u32,
    taken: impl Fn(u32) -> bool,
) -> Result<u32> {
    match wanted {
        Some(n) if n >= max => Err(Error::argument(format!(
            "{what} {n} is out of range (0 to {})",
            max - 1
        ))),
        Some(n) if taken(n) => Err(Error::new(
            ErrorKind::InUse,
            format!("{what} {n} is in use; remove it first"),
        )),
        Some(n) => Ok(n),
        None => (0..max).find(|n| !taken(*n)).ok_or_else(|| {
            Error::new(
                ErrorKind::NoSpace,
                format!("all {max} {what}s are in use; remove one first"),
            )
        }),
    }
}

/// Generates a salt for a copy of the header.
pub(crate) fn random_salt() -> Result<[u8; 64]> {
    let mut salt = [0; 64];
    fill_random(&mut salt)?;
    Ok(salt)
}

pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|e| {
        Error::new(
            ErrorKind::OutOfMemory,
            format!("cannot get random bytes from the kernel: {e}"),
        )
    })
}
