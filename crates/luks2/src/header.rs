//! A header in memory: what it says, and what of it is to be changed.
//!
//! Changes are made to the copy in memory and reach the disk by the plan of [`Header::update`].

use crate::binary::{self, BinaryHeader, Copy, check_label};
use crate::error::{Error, ErrorKind, Result};
use crate::hash::Hash;
use crate::json::{Json, Object};
use crate::metadata::{Metadata, Range, Segment, TOKENS_MAX, Token};
use crate::plan::AreaWrite;

/// A LUKS2 header.
///
/// Everything it gave out (keyslots, data segment) comes from the bytes that were checked when it
/// was read; the device is not looked at again.
pub struct Header {
    pub(crate) binary: BinaryHeader,
    pub(crate) metadata: Metadata,
    pub(crate) on_disk: OnDisk,
    /// Key material that has to be on the disk before the JSON that names it.
    pub(crate) area_writes: Vec<AreaWrite>,
}

/// What lies on the disk as far as we know.
#[derive(Debug)]
pub(crate) struct OnDisk {
    /// Nothing of this header is there yet: it is being formatted.
    pub(crate) fresh: bool,
    /// The copy that counts, byte for byte but for its salt and checksum.
    pub(crate) binary: BinaryHeader,
    /// Its JSON text.
    pub(crate) json: String,
    /// The copy that has to be rewritten from the other first.
    pub(crate) repair: Option<Copy>,
    /// Areas that the header on the disk names: not to be overwritten before it is replaced.
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

    /// Keyslots, tokens, segment, digests and configuration.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The data segment.
    pub fn segment(&self) -> &Segment {
        self.metadata.segment()
    }

    /// The UUID as it stands in the header: printable ASCII, nearly always 36 characters.
    pub fn uuid(&self) -> &str {
        &self.binary.uuid
    }

    /// The label. Bytes that are no UTF-8 are replaced here and kept on the disk. It comes from
    /// the header and may hold anything: escape it before it reaches a terminal.
    pub fn label(&self) -> String {
        binary::lossy(&self.binary.label)
    }

    /// The subsystem label; as [`Header::label`].
    pub fn subsystem(&self) -> String {
        binary::lossy(&self.binary.subsystem)
    }

    /// The sequence id: one higher after every update.
    pub fn seqid(&self) -> u64 {
        self.binary.seqid
    }

    /// Bytes of each of the two copies.
    pub fn header_size(&self) -> u64 {
        self.binary.hdr_size
    }

    /// Hash of the checksum of each copy.
    pub fn checksum_alg(&self) -> Hash {
        self.binary.checksum_alg
    }

    /// Bytes from the start of the device that belong to header and keyslots: what a backup holds.
    pub fn backup_len(&self) -> u64 {
        self.metadata.keyslots_range().end()
    }

    /// Bytes of the volume key, as the keyslots state it; `None` if there is no keyslot.
    pub fn volume_key_len(&self) -> Option<u32> {
        let (_, digest) = self.metadata.volume_digest();
        let slot = digest?.keyslots().first()?;
        self.metadata.keyslots().get(slot).map(|k| k.key_size())
    }

    /// Persistent flags set by whoever administers the volume; see [`crate::Config::flags`].
    pub fn persistent_flags(&self) -> &[String] {
        self.metadata.config().flags()
    }

    /// Whether the flag `allow-discards` is set.
    pub fn allow_discards(&self) -> bool {
        self.persistent_flags()
            .iter()
            .any(|f| f == "allow-discards")
    }

    /// Whether the header on the disk, of which `first` are the first 512 bytes or more, is still
    /// the one this was read from. To be asked under the lock, right before a plan is carried out.
    ///
    /// # Errors
    /// [`ErrorKind::Changed`] when it is not.
    pub fn check_unchanged(&self, first: &[u8]) -> Result<()> {
        // As cryptsetup: a primary that is not ours at all (lost, or never written) is no sign of
        // a concurrent update.
        let ours = binary::version(first) == Some(2)
            && binary::uuid(first).as_deref() == Some(self.uuid());
        let repairing = self.on_disk.repair == Some(Copy::Primary);
        if !ours || repairing || binary::seqid(first) == Some(self.seqid()) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Changed,
            "another program changed the LUKS2 header meanwhile; nothing was written, try again",
        ))
    }

    /// Adds a token, in place `number` or in the first free one; gives its number.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`], [`ErrorKind::NoSpace`] when all 32 are taken or the JSON area is full,
    /// [`ErrorKind::InvalidArgument`] when it names a keyslot that does not exist.
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
    /// [`ErrorKind::NotFound`].
    pub fn remove_token(&mut self, number: u32) -> Result<()> {
        self.expect_token(number)?;
        self.edit(|document| {
            section(document, "tokens")?.remove(&number.to_string());
            Ok(())
        })
    }

    fn expect_token(&self, number: u32) -> Result<()> {
        match self.metadata.tokens().contains_key(&number) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::NotFound,
                format!("there is no token {number}"),
            )),
        }
    }

    fn put_token(&mut self, number: u32, token: &Token) -> Result<()> {
        let slots = self.metadata.keyslots();
        if let Some(n) = token.keyslots().iter().find(|n| !slots.contains_key(n)) {
            return Err(Error::argument(format!(
                "the token names keyslot {n}, which is not there"
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
    /// [`ErrorKind::NoSpace`] when the JSON area is full.
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
            // No flags, no field: that is how cryptsetup leaves a volume that never had one.
            match flags.is_empty() {
                true => drop(config.remove("flags")),
                false => config.set("flags", Json::Array(flags)),
            }
            Ok(())
        })
    }

    /// Sets the label: up to 47 bytes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`].
    pub fn set_label(&mut self, label: &str) -> Result<()> {
        check_label("label", label)?;
        self.binary.label = label.into();
        Ok(())
    }

    /// Changes the document; nothing is changed when the result is not a header we would read.
    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut Object) -> Result<()>) -> Result<()> {
        let mut document = self.metadata.document().clone();
        change(&mut document)?;
        let area = self.binary.json_area_len();
        let metadata = Metadata::from_document(document, area)?;
        // One byte at least stays zero and ends the text for readers that want a C string.
        let len = metadata.to_json().len() as u64;
        if len >= area {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "the metadata would take {len} bytes, and the header has room for {}; remove \
                     keys or tokens that are no longer needed",
                    area - 1
                ),
            ));
        }
        self.metadata = metadata;
        Ok(())
    }
}

/// A section of the document; the reader has seen that it is an object.
pub(crate) fn section<'a>(document: &'a mut Object, name: &str) -> Result<&'a mut Object> {
    document
        .object_mut(name)
        .ok_or_else(|| Error::damaged(format!("there is no section {name}")))
}

/// The wanted number, or the first that is free.
pub(crate) fn pick(
    what: &str,
    wanted: Option<u32>,
    max: u32,
    taken: impl Fn(u32) -> bool,
) -> Result<u32> {
    match wanted {
        Some(n) if n >= max => Err(Error::argument(format!(
            "{what} {n} is not one of 0 to {}",
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

/// A fresh salt for a copy of the header.
pub(crate) fn random_salt() -> Result<[u8; 64]> {
    let mut salt = [0; 64];
    fill_random(&mut salt)?;
    Ok(salt)
}

pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|e| {
        Error::new(
            ErrorKind::OutOfMemory,
            format!("the kernel gives no random bytes: {e}"),
        )
    })
}
