//! Keyslots: opening, adding, replacing, removing.

use crate::Header;
use crate::area;
use crate::error::{Error, ErrorKind, Result};
use crate::header::{AreaWrite, fill_random, pick, section};
use crate::json::{Json, Object};
use crate::kdf::{Kdf, KdfLimits, SALT_LEN, WORK_SETTING};
use crate::metadata::{
    KEYSLOTS_MAX, Keyslot, NewKeyslot, Priority, Range, area_len, digest_json, keyslot_json,
    material_len,
};
use crate::{FormatOptions, Hash, af};
use secret::SecretBytes;

/// Hash of the anti-forensic split of new keyslots: the default of `cryptsetup`.
const AF_HASH: Hash = Hash::Sha256;

impl Header {
    /// Returns the keyslots to try for a passphrase without a keyslot number: the preferred ones
    /// first, then the normal ones, each in order. Omits keyslots set to be ignored, those that
    /// EVFS cannot open, and those of other keys.
    pub fn keyslots_to_try(&self) -> Vec<u32> {
        let of = |priority: Priority| {
            let slots = self.volume_keyslots();
            slots
                .filter(move |(_, k)| k.is_usable() && k.priority() == priority)
                .map(|(n, _)| n)
        };
        of(Priority::Prefer).chain(of(Priority::Normal)).collect()
    }

    /// Reports whether a keyslot holds the volume key, including those that EVFS cannot open.
    pub fn has_keyslots(&self) -> bool {
        self.volume_keyslots().next().is_some()
    }

    /// Reports whether keyslot `slot` holds the volume key.
    pub fn is_bound(&self, slot: u32) -> bool {
        self.volume_keyslots().any(|(n, _)| n == slot)
    }

    /// Returns the reasons why EVFS cannot open certain keyslots of the volume key.
    pub fn unusable_keyslots(&self) -> Vec<Error> {
        let why = |(n, slot): (u32, &Keyslot)| {
            let error = slot.protection().err()?;
            Some(error.within(format!("EVFS cannot open keyslot {n}")))
        };
        self.volume_keyslots().filter_map(why).collect()
    }

    /// Estimates the cost of trying keyslot `slot`, in the unit of [`Kdf::work_kib`]: the key
    /// derivation, and the digest of the resulting key.
    pub fn work_kib(&self, slot: u32) -> u64 {
        let keyslot = self.metadata.keyslots().get(&slot);
        let protection = keyslot.and_then(|slot| slot.protection().ok());
        let (_, digest) = self.metadata.volume_digest();
        let digest = digest.map_or(0, |digest| digest.work_kib());
        protection.map_or(0, |p| p.kdf.work_kib().saturating_add(digest))
    }

    /// Iterates over the keyslots that hold the volume key.
    fn volume_keyslots(&self) -> impl Iterator<Item = (u32, &Keyslot)> {
        let (_, digest) = self.metadata.volume_digest();
        let bound = digest.map(|d| d.keyslots()).unwrap_or_default();
        let all = self.metadata.keyslots().iter();
        all.filter(|(n, _)| bound.contains(n)).map(|(n, k)| (*n, k))
    }

    /// Looks up keyslot `slot`, which must hold the volume key.
    fn volume_keyslot(&self, slot: u32) -> Result<&Keyslot> {
        let all = self.metadata.keyslots();
        let keyslot = all.get(&slot).ok_or_else(|| not_found(slot))?;
        if !self.is_bound(slot) {
            return Err(Error::unsupported(format!(
                "keyslot {slot} is not bound to the data of this volume and cannot open it"
            )));
        }
        Ok(keyslot)
    }

    /// Computes the range of the device that [`Header::open_keyslot`] needs: whole 4,096-byte
    /// blocks, if the area is long enough for that.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Unsupported`] for a keyslot that EVFS cannot open.
    pub fn keyslot_area(&self, slot: u32) -> Result<Range> {
        let keyslot = self.volume_keyslot(slot)?;
        keyslot.protection()?;
        let area = keyslot.area();
        Ok(Range {
            offset: area.offset,
            len: area_len(keyslot.key_size()).min(area.len),
        })
    }

    /// Opens keyslot `slot` with `passphrase`: derives the key of the area, decrypts and merges
    /// `area` (the bytes of [`Header::keyslot_area`]) and checks the result against the digest.
    ///
    /// Takes seconds of CPU time, and the memory that the keyslot states, up to `limits`.
    ///
    /// # Errors
    /// [`ErrorKind::WrongKey`] if the passphrase is not that of the keyslot (or its area is
    /// damaged, which cannot be distinguished); [`ErrorKind::Refused`] if the costs exceed
    /// `limits`; [`ErrorKind::OutOfMemory`]; and those of [`Header::keyslot_area`].
    pub fn open_keyslot(
        &self,
        slot: u32,
        passphrase: &[u8],
        area: &[u8],
        limits: &KdfLimits,
    ) -> Result<SecretBytes> {
        let keyslot = self.volume_keyslot(slot)?;
        let protection = keyslot.protection()?;
        protection
            .kdf
            .check(limits)
            .map_err(|e| e.within(format!("keyslot {slot}")))?;
        let (work, max) = (self.work_kib(slot), limits.work_kib_max);
        if work > max {
            return Err(Error::refused(format!(
                "keyslot {slot} and the digest of its key require {work} KiB of work, above the \
                 limit of {max}; the header may be forged{WORK_SETTING}"
            )));
        }
        let key_len = to_usize(u64::from(keyslot.key_size()));
        let needed = to_usize(material_len(keyslot.key_size()));
        let area = area.get(..needed).ok_or_else(|| {
            Error::argument(format!("keyslot {slot} needs {needed} bytes of its area"))
        })?;
        let area_key_len = to_usize(u64::from(protection.area_key_size));
        let area_key = protection
            .kdf
            .derive(passphrase, &protection.salt, area_key_len)?;
        let mut material = SecretBytes::from_slice(area);
        area::decrypt(&area_key, &mut material)?;
        let key = af::merge(&material, key_len, af::STRIPES, protection.af_hash);
        drop((area_key, material));
        let right = self.is_volume_key(&key, limits);
        secret::burn_stack();
        if right? {
            return Ok(key);
        }
        Err(Error::new(
            ErrorKind::WrongKey,
            format!("the passphrase or key does not open keyslot {slot}"),
        ))
    }

    /// Checks in constant time whether `key` is the volume key: of the right length, and matching
    /// the digest.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if the digest requires more iterations than `limits` allow.
    pub fn is_volume_key(&self, key: &SecretBytes, limits: &KdfLimits) -> Result<bool> {
        // Check the length first: HMAC pads with zeros, so a key and the same key with zeros
        // appended have equal digests.
        let length_fits = match self.volume_key_len() {
            Some(len) => key.len() as u64 == u64::from(len),
            None => key.len() == 32 || key.len() == 64,
        };
        let (_, digest) = self.metadata.volume_digest();
        match digest {
            Some(digest) if length_fits => digest.matches(key, limits),
            _ => Ok(false),
        }
    }

    /// Recomputes the digest of the volume key, over `salt`.
    ///
    /// # Errors
    /// [`ErrorKind::WrongKey`] if `key` is not the volume key.
    pub fn set_digest_salt(&mut self, key: &SecretBytes, salt: &[u8; 32]) -> Result<()> {
        if !self.is_volume_key(key, &KdfLimits::default())? {
            return Err(Error::new(
                ErrorKind::WrongKey,
                "the key is not the volume key of the header",
            ));
        }
        let iterations = FormatOptions::new(0).digest_iterations;
        let new = digest_json(key, iterations, &[], salt);
        let (number, _) = self.metadata.volume_digest();
        self.edit(|document| {
            let digests = section(document, "digests")?;
            let old = digests.object_mut(&number.to_string());
            let old =
                old.ok_or_else(|| Error::damaged("the digest of the volume key is missing"))?;
            for (name, value) in new.iter() {
                if !matches!(name, "keyslots" | "segments") {
                    old.set(name, value.clone());
                }
            }
            Ok(())
        })
    }

    /// Adds a keyslot that protects `volume_key` with `passphrase`, as `slot` or, if that is
    /// `None`, as the first free one; returns its number. The next [`Header::update`] writes its
    /// key material.
    ///
    /// # Errors
    /// [`ErrorKind::WrongKey`] if `volume_key` is not that of this volume; [`ErrorKind::InUse`];
    /// [`ErrorKind::NoSpace`] if all 32 are in use or the keyslots area or JSON area is full;
    /// [`ErrorKind::Refused`] if the costs of `kdf` are not acceptable; [`ErrorKind::OutOfMemory`].
    pub fn add_keyslot(
        &mut self,
        volume_key: &SecretBytes,
        passphrase: &[u8],
        kdf: &Kdf,
        slot: Option<u32>,
        priority: Priority,
    ) -> Result<u32> {
        let taken = |n: u32| self.metadata.keyslots().contains_key(&n);
        let slot = pick("keyslot", slot, KEYSLOTS_MAX, taken)?;
        self.put_keyslot(slot, volume_key, passphrase, kdf, priority)?;
        Ok(slot)
    }

    /// Replaces the passphrase of keyslot `slot`, which keeps its number, priority and tokens. The
    /// new key material is written to another area; the same plan wipes the old one after both
    /// copies of the header name the new one. So at every moment the old or the new passphrase
    /// opens the keyslot.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], and those of [`Header::add_keyslot`].
    pub fn replace_keyslot(
        &mut self,
        slot: u32,
        volume_key: &SecretBytes,
        passphrase: &[u8],
        kdf: &Kdf,
    ) -> Result<()> {
        let priority = self.volume_keyslot(slot)?.priority();
        self.put_keyslot(slot, volume_key, passphrase, kdf, priority)
    }

    fn put_keyslot(
        &mut self,
        slot: u32,
        volume_key: &SecretBytes,
        passphrase: &[u8],
        kdf: &Kdf,
        priority: Priority,
    ) -> Result<()> {
        kdf.check(&KdfLimits::default())?;
        if !self.is_volume_key(volume_key, &KdfLimits::default())? {
            return Err(Error::new(
                ErrorKind::WrongKey,
                "the key is not the volume key of this volume",
            ));
        }
        let key_size = u32::try_from(volume_key.len()).unwrap_or(u32::MAX);
        let area = self.free_area(area_len(key_size))?;
        let mut salt = [0; SALT_LEN];
        fill_random(&mut salt)?;
        let new = NewKeyslot {
            key_size,
            area,
            kdf,
            salt: &salt,
            af_hash: AF_HASH,
            priority,
        };
        // Update the document first: that can fail, and deriving the key takes seconds.
        let before = self.metadata.clone();
        self.name_keyslot(slot, keyslot_json(&new))?;
        match seal(&new, volume_key, passphrase) {
            Ok(bytes) => {
                self.area_writes.retain(|write| write.slot != slot);
                self.area_writes.push(AreaWrite {
                    slot,
                    offset: area.offset,
                    bytes,
                });
                Ok(())
            }
            Err(e) => {
                self.metadata = before;
                Err(e)
            }
        }
    }

    /// Adds a keyslot to the document and to the digest of the volume key.
    fn name_keyslot(&mut self, slot: u32, keyslot: Object) -> Result<()> {
        let (digest, _) = self.metadata.volume_digest();
        self.edit(|document| {
            section(document, "keyslots")?.set(&slot.to_string(), Json::Object(keyslot));
            let digests = section(document, "digests")?;
            if let Some(Json::Array(slots)) = digests
                .object_mut(&digest.to_string())
                .and_then(|d| d.get_mut("keyslots"))
                && !slots.contains(&Json::string(slot.to_string()))
            {
                slots.push(Json::string(slot.to_string()));
            }
            Ok(())
        })
    }

    /// Finds the first gap of `len` bytes between the areas named in memory or on the disk.
    fn free_area(&self, len: u64) -> Result<Range> {
        let whole = self.metadata.keyslots_range();
        let mut areas = self.named_areas();
        areas.sort();
        let mut at = whole.offset;
        for area in areas {
            if at + len <= area.offset {
                break;
            }
            at = at.max(area.end().next_multiple_of(4096));
        }
        let range = Range { offset: at, len };
        if range.end() > whole.end() {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "the keyslots area of {} bytes has no room for {len} bytes; remove a keyslot \
                     first",
                    whole.len
                ),
            ));
        }
        Ok(range)
    }

    /// Removes keyslot `slot` from the header, its digest and the tokens. The next
    /// [`Header::update`] wipes its area after both copies of the header are written.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::LastKeyslot`] if no keyslot that EVFS can open would
    /// remain for the volume key.
    pub fn remove_keyslot(&mut self, slot: u32) -> Result<()> {
        let others = self
            .volume_keyslots()
            .filter(|(n, k)| *n != slot && k.is_usable())
            .count();
        let counts = self
            .volume_keyslots()
            .any(|(n, k)| n == slot && k.is_usable());
        if others == 0 && counts {
            return Err(Error::new(
                ErrorKind::LastKeyslot,
                format!(
                    "keyslot {slot} is the last one that opens this volume: without it the data \
                     is lost; add another key first"
                ),
            ));
        }
        self.force_remove_keyslot(slot)
    }

    /// Removes keyslot `slot` like [`Header::remove_keyslot`], even the last one.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it does not exist.
    pub fn force_remove_keyslot(&mut self, slot: u32) -> Result<()> {
        if !self.metadata.keyslots().contains_key(&slot) {
            return Err(not_found(slot));
        }
        let name = slot.to_string();
        self.edit(|document| {
            section(document, "keyslots")?.remove(&name);
            unlist(section(document, "tokens")?, &name);
            let digests = section(document, "digests")?;
            unlist(digests, &name);
            drop_unused_digests(digests);
            Ok(())
        })?;
        self.area_writes.retain(|write| write.slot != slot);
        Ok(())
    }

    /// Sets the priority of keyslot `slot`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it does not exist.
    pub fn set_priority(&mut self, slot: u32, priority: Priority) -> Result<()> {
        if !self.metadata.keyslots().contains_key(&slot) {
            return Err(not_found(slot));
        }
        self.edit(|document| {
            let keyslots = section(document, "keyslots")?;
            if let Some(keyslot) = keyslots.object_mut(&slot.to_string()) {
                match priority {
                    Priority::Normal => drop(keyslot.remove("priority")),
                    Priority::Ignore => keyslot.set("priority", Json::u32(0)),
                    Priority::Prefer => keyslot.set("priority", Json::u32(2)),
                }
            }
            Ok(())
        })
    }
}

fn not_found(slot: u32) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("keyslot {slot} does not exist"),
    )
}

/// Builds the area of a new keyslot: encrypted split key material, then random bytes to the end.
fn seal(new: &NewKeyslot<'_>, volume_key: &SecretBytes, passphrase: &[u8]) -> Result<Vec<u8>> {
    let area_key = new.kdf.derive(passphrase, new.salt, volume_key.len())?;
    let mut area = SecretBytes::zeroed(to_usize(new.area.len));
    fill_random(&mut area)?;
    let split = af::split(volume_key, af::STRIPES, new.af_hash)?;
    area.iter_mut()
        .zip(split.iter())
        .for_each(|(to, from)| *to = *from);
    area::encrypt(&area_key, &mut area)?;
    secret::burn_stack();
    Ok(area.to_vec())
}

/// Removes `name` from the `keyslots` of every object of a section.
fn unlist(section: &mut Object, name: &str) {
    for entry in section.values_mut() {
        if let Json::Object(entry) = entry
            && let Some(Json::Array(slots)) = entry.get_mut("keyslots")
        {
            slots.retain(|slot| *slot != Json::string(name));
        }
    }
}

/// Removes digests without keyslot and segment, as `cryptsetup` does before every write.
fn drop_unused_digests(digests: &mut Object) {
    let empty = |entry: &Json, key: &str| match entry {
        Json::Object(entry) => matches!(entry.get(key), Some(Json::Array(a)) if a.is_empty()),
        _ => false,
    };
    let unused: Vec<String> = digests
        .iter()
        .filter(|(_, d)| empty(d, "keyslots") && empty(d, "segments"))
        .map(|(name, _)| name.to_owned())
        .collect();
    for name in unused {
        digests.remove(&name);
    }
}

/// Converts a length; lengths here come from checked fields and are below 128 MiB.
fn to_usize(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
