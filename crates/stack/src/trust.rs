//! The trust store: a record of the volumes that this machine has opened, which makes a volume that
//! was exchanged, stripped of its seal or rolled back detectable at the next open. It is a JSON
//! file of each user.
//!
//! The seal in the header of a volume proves that its writer had the volume key. It cannot prove
//! that the header is the newest one with that key, nor that the volume is the one that this user
//! has always had there. So the store keeps per UUID: a name of the volume key, the last seal, and
//! the places of the volume. The first use of a volume is trusted, and reported to the user.
//!
//! **Order.** The store is written after the header, so it may lag behind the header by the last
//! change, but is never ahead. It is read before the header, or under the header lock, so that a
//! concurrent change by another process is never mistaken for an old header.

use crate::device::Disk;
use crate::place::{Places, lun_at};
use crate::{Error, Result, Settings, state_file, unix_time};
use crypt::{Action, Epoch, Role, Seal, Unlocked, Volume};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Version of the file format.
const VERSION: u32 = 1;

/// A seal as last seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenSeal {
    /// Its number; a newer seal has a higher one.
    pub epoch: Epoch,
    /// SHA-256 of its authentication codes, in hexadecimal.
    pub digest: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// Name of the volume key ([`Volume::key_id`]).
    pub volume_key: String,
    /// Last seal; `None` for a volume that was never sealed.
    pub seal: Option<SeenSeal>,
    /// Role and name of each key, by keyslot, when that seal was seen.
    pub keys: BTreeMap<u32, String>,
    /// Seconds since 1970 when this machine first opened the volume.
    pub first_used: u64,
    /// Places of the volume that survive a reboot: paths of files as given and without symbolic
    /// links, LUNs by registry and name. At most one volume is known at a place.
    #[serde(default)]
    pub places: BTreeSet<String>,
}

/// Contents of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustFile {
    version: u32,
    /// Records by UUID.
    pub volumes: BTreeMap<String, VolumeRecord>,
}

impl Default for TrustFile {
    fn default() -> TrustFile {
        TrustFile {
            version: VERSION,
            volumes: BTreeMap::new(),
        }
    }
}

/// The store, by the path of its file.
#[derive(Debug, Clone)]
pub struct TrustStore {
    path: PathBuf,
    /// Changes are not written.
    is_dry_run: bool,
}

impl TrustStore {
    /// Refers to the store of this user, without reading it.
    pub fn of(settings: &Settings) -> TrustStore {
        TrustStore {
            path: settings.trust_store(),
            is_dry_run: settings.is_dry_run(),
        }
    }

    /// Reads the file; a missing file is an empty store.
    ///
    /// # Errors
    /// The file is unreadable, damaged, or of a later version.
    pub fn load(&self) -> Result<TrustFile> {
        load(&self.path)
    }

    /// Records a volume that was unlocked and verified, or just changed. Returns whether it was
    /// unknown. A newer header that another process has recorded stays.
    ///
    /// # Errors
    /// Errors of the file.
    pub(crate) fn record(&self, volume: &Volume, unlocked: &Unlocked, disk: &Disk) -> Result<bool> {
        let mut new = VolumeRecord::of(volume, unlocked, disk);
        let uuid = volume.uuid();
        if self
            .load()?
            .volumes
            .get(uuid)
            .is_some_and(|old| old.covers(&new))
        {
            return Ok(false);
        }
        self.update(|known| match known.volumes.get_mut(uuid) {
            None => {
                known.volumes.insert(uuid.to_owned(), new);
                Ok(true)
            }
            Some(old) if old.volume_key != new.volume_key => Err(Error::Untrusted(format!(
                "{}: another volume with the UUID {uuid} was opened at the same time; see `evfs \
                 volume trust`",
                volume.name()
            ))),
            Some(old) => {
                old.places.append(&mut new.places);
                if !old.covers(&new) {
                    (old.seal, old.keys) = (new.seal, new.keys);
                }
                Ok(false)
            }
        })
    }

    /// Removes the expectation of volumes at these places.
    ///
    /// # Errors
    /// Errors of the file.
    pub(crate) fn clear_places(&self, places: &Places) -> Result<()> {
        if self.load()?.at_any(places, |_| true).is_none() {
            return Ok(());
        }
        self.update(|known| {
            known.clear(places);
            Ok(())
        })
    }

    /// Forgets a volume, so that its next use is a first one. Returns whether it was known.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn forget(&self, uuid: &str) -> Result<bool> {
        self.update(|known| Ok(known.volumes.remove(uuid).is_some()))
    }

    /// Reports whether a header backup is older than the known header, or may be. Such a backup is
    /// refused unless `wanted` is set.
    ///
    /// # Errors
    /// [`Error::Untrusted`] for an older header without `wanted`.
    pub fn check_restore(&self, device: &str, plan: &crypt::Restore, wanted: bool) -> Result<bool> {
        let known = self.load()?;
        let backup = seal_in(plan);
        let Some(entry) = known.volumes.get(&plan.uuid) else {
            return Ok(false);
        };
        let older = entry.is_newer_than(backup.as_ref());
        if older && !wanted {
            Err(Error::Untrusted(format!(
                "{device}: the backup is older than the header that this machine knows ({}; known: \
                 {}): keys that were removed since would open the volume again; to restore it \
                 anyway, add --older; `evfs volume trust {}` shows the known header",
                epoch_of(backup.as_ref()),
                epoch_of(entry.seal.as_ref()),
                plan.uuid,
            )))
        } else {
            Ok(older)
        }
    }

    /// Prepares the store for the restore of a header backup that an administrator has confirmed.
    /// An older header becomes the known one, with the same volume key, and its volume is expected
    /// at the places of `disk`.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn before_restore(&self, disk: &Disk, plan: &crypt::Restore) -> Result<()> {
        self.update(|known| {
            known.clear(disk.places());
            if let Some(entry) = known.volumes.get_mut(&plan.uuid) {
                let backup = seal_in(plan);
                if entry.is_newer_than(backup.as_ref()) {
                    entry.seal = backup;
                    entry.keys.clear();
                }
                entry.places.extend(disk.places().lasting());
            }
            Ok(())
        })
    }

    fn update<T>(&self, change: impl FnOnce(&mut TrustFile) -> Result<T>) -> Result<T> {
        if self.is_dry_run {
            return change(&mut self.load()?);
        }
        let words = ("cannot write the trust store", "EVFS_TRUST_STORE");
        state_file::update(&self.path, words, load, change)
    }
}

fn load(path: &Path) -> Result<TrustFile> {
    let text = match state_file::read_text(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(TrustFile::default()),
        Err(e) => return Err(Error::io("cannot read the trust store", path, e)),
    };
    // The version first: a later version may have other fields.
    let version = serde_json::from_str::<serde_json::Value>(&text)
        .ok()
        .and_then(|v| v["version"].as_u64());
    if version.is_some_and(|v| v > u64::from(VERSION)) {
        return Err(Error::config(
            path,
            format!(
                "the trust store has a later version than {VERSION}, which this program supports"
            ),
        ));
    }
    serde_json::from_str(&text).map_err(|e| {
        let detail = format!(
            "the trust store is damaged: {e}; restore it, or move it away to trust every volume \
             again at its next use"
        );
        Error::config(path, detail)
    })
}

fn seal_in(plan: &crypt::Restore) -> Option<SeenSeal> {
    plan.mark.as_ref().map(|m| SeenSeal {
        epoch: m.epoch,
        digest: m.digest.clone(),
    })
}

/// Describes a seal for users.
pub fn epoch_of(seal: Option<&SeenSeal>) -> String {
    match seal {
        Some(seal) => format!("seal {}", seal.epoch),
        None => "no seal".into(),
    }
}

impl VolumeRecord {
    fn of(volume: &Volume, unlocked: &Unlocked, disk: &Disk) -> VolumeRecord {
        VolumeRecord {
            volume_key: volume.key_id(unlocked),
            seal: seal_of(volume),
            keys: keys_of(volume),
            first_used: unix_time::now().as_secs(),
            places: disk.places().lasting(),
        }
    }

    /// Lists the DEVICEs where the volume is expected: files, and LUNs of this user's registry.
    pub(crate) fn devices(&self, settings: &Settings) -> Vec<String> {
        let registry = settings.lun_registry();
        let device = |place: &String| {
            if place.starts_with('/') {
                Some(place.clone())
            } else {
                lun_at(place, &registry).map(str::to_owned)
            }
        };
        self.places.iter().filter_map(device).collect()
    }

    /// Reports whether `new` adds nothing to this record: it is of an older or the same header.
    fn covers(&self, new: &VolumeRecord) -> bool {
        let epoch = |e: &VolumeRecord| e.seal.as_ref().map(|s| s.epoch);
        self.volume_key == new.volume_key
            && self.places.is_superset(&new.places)
            && (epoch(self) > epoch(new) || (&self.seal, &self.keys) == (&new.seal, &new.keys))
    }

    /// Reports whether a header with the seal `other` is older than the recorded one, or a
    /// different one with the same number.
    pub(crate) fn is_newer_than(&self, other: Option<&SeenSeal>) -> bool {
        match (&self.seal, other) {
            (Some(known), Some(other)) => {
                other.epoch < known.epoch
                    || (other.epoch == known.epoch && other.digest != known.digest)
            }
            (known, None) => known.is_some(),
            (None, Some(_)) => false,
        }
    }

    /// Looks up the recorded role of the key in `keyslot`.
    fn role_of(&self, keyslot: u32) -> Option<Role> {
        let role = self.keys.get(&keyslot)?.split(' ').next()?;
        Role::from_name(role)
    }

    /// Checks whether the recorded role of the key that unlocked the volume allows to reseal the
    /// header. The role in a header without a valid seal may be forged.
    ///
    /// # Errors
    /// [`Error::Untrusted`] if it does not.
    pub(crate) fn allow_reseal(&self, volume: &str, unlocked: &Unlocked) -> Result<()> {
        match self.role_of(unlocked.keyslot) {
            Some(role) if role.allow(Action::Reseal).is_err() => Err(Error::Untrusted(format!(
                "{volume}: this machine knows the key in keyslot {} as a {role} key, but the \
                 header, which has no valid seal, claims the role {}; seal it with the owner's key \
                 or a recovery key, or restore the correct header with `evfs volume header \
                 restore`",
                unlocked.keyslot, unlocked.role
            ))),
            _ => Ok(()),
        }
    }

    /// Describes how the keys of `volume` differ from the recorded ones; empty if they do not.
    fn changes(&self, volume: &Volume) -> String {
        if self.keys.is_empty() {
            return String::new();
        }
        let now = keys_of(volume);
        let mut changes = Vec::new();
        for (keyslot, was) in &self.keys {
            match now.get(keyslot) {
                Some(is) if is == was => {}
                Some(is) => changes.push(format!("keyslot {keyslot} changed from {was} to {is}")),
                None => changes.push(format!("keyslot {keyslot} ({was}) was removed")),
            }
        }
        let new = now.iter().filter(|(n, _)| !self.keys.contains_key(n));
        changes.extend(new.map(|(keyslot, is)| format!("keyslot {keyslot} ({is}) was added")));
        changes.join("; ")
    }
}

/// Reads the seal in the header of `volume`.
pub fn seal_of(volume: &Volume) -> Option<SeenSeal> {
    volume.mark().map(|m| SeenSeal {
        epoch: m.epoch,
        digest: m.digest,
    })
}

fn keys_of(volume: &Volume) -> BTreeMap<u32, String> {
    let keys = volume.keys().into_iter();
    keys.map(|k| {
        let name = match (&k.name, &k.label) {
            (Some(name), _) => name.escape_debug().to_string(),
            (None, Some(label)) => format!("with the label `{}`", label.escape_debug()),
            (None, None) if k.is_recovery_key() => "key".into(),
            (None, None) => "with a passphrase or key file".into(),
        };
        (k.keyslot, format!("{} {name}", k.role))
    })
    .collect()
}

impl TrustFile {
    /// Finds the UUID of a volume known at one of the places and accepted by `one_of`.
    pub(crate) fn at_any(&self, places: &Places, one_of: impl Fn(&str) -> bool) -> Option<&String> {
        let known = |entry: &VolumeRecord| places.all().any(|place| entry.places.contains(place));
        let mut all = self.volumes.iter().filter(|(uuid, _)| one_of(uuid));
        all.find(|(_, entry)| known(entry)).map(|(uuid, _)| uuid)
    }

    /// Lists the DEVICEs where volumes are expected: files, and LUNs of this user's registry.
    pub fn devices(&self, settings: &Settings) -> Vec<String> {
        let entries = self.volumes.values();
        entries.flat_map(|entry| entry.devices(settings)).collect()
    }

    /// Removes these places from all records.
    fn clear(&mut self, places: &Places) {
        for entry in self.volumes.values_mut() {
            for place in places.all() {
                entry.places.remove(place);
            }
        }
    }

    /// Matches `name` with the UUIDs of known volumes.
    pub fn named(&self, name: &Path) -> Option<String> {
        let uuid = name.to_str()?;
        self.volumes.contains_key(uuid).then(|| uuid.to_owned())
    }

    /// Checks whether `disk` may be used as a plaintext device.
    ///
    /// # Errors
    /// [`Error::Untrusted`] if an encrypted volume is known at its places.
    pub(crate) fn check_plaintext(&self, disk: &Disk) -> Result<()> {
        let known = self.at_any(disk.places(), |_| true);
        known.map_or(Ok(()), |uuid| {
            Err(Error::Untrusted(format!(
                "{}: it is not encrypted, but this machine knows the encrypted volume {uuid} \
                 there: it was replaced, and an attacker could read data written to it; if you \
                 replaced it, accept it with `evfs volume trust {uuid} --reset`",
                disk.device().info().name
            )))
        })
    }

    /// Checks whether `volume`, opened by `unlocked`, matches its record and allows `what`.
    ///
    /// # Errors
    /// [`Error::Untrusted`] with the difference, or about a broken seal.
    pub(crate) fn check_volume(
        &self,
        volume: &Volume,
        unlocked: &Unlocked,
        disk: &Disk,
        what: Action,
    ) -> Result<()> {
        let (name, uuid) = (volume.name(), volume.uuid());
        let untrusted = |why: String| Err(Error::Untrusted(format!("{name}: {why}")));
        let entry = self.volumes.get(uuid);
        let changes = entry.map_or(String::new(), |e| e.changes(volume));
        let changes = if changes.is_empty() {
            String::new()
        } else {
            format!(" (changes: {changes})")
        };
        if let Some(entry) = entry
            && entry.volume_key != volume.key_id(unlocked)
        {
            return untrusted(format!(
                "it has the UUID {uuid} of a volume that this machine knows, but another volume \
                 key: it is an imitation created by an attacker, or the result of a reencryption, \
                 and its creator can read data written to it{changes}; if you created it, accept it \
                 with `evfs volume trust {name} --reset`"
            ));
        }
        if let Some(other) = self.at_any(disk.places(), |other| other != uuid) {
            return untrusted(format!(
                "it is volume {uuid}, but this machine knows volume {other} there: it was \
                 replaced, and an attacker may be able to read data written to it; if you replaced \
                 it, accept it with `evfs volume trust {other} --reset`"
            ));
        }
        let (known, now) = (entry.and_then(|e| e.seal.as_ref()), seal_of(volume));
        let reset = format!(
            "restore the current header, or, if you restored this one yourself, accept it with \
             `evfs volume trust {name} --reset`"
        );
        match (unlocked.seal, known, now) {
            (Seal::Never, Some(known), _) => untrusted(format!(
                "the header has no seal, but this machine knows it with {}: the seal was stripped, \
                 or the header is older than the seal, so the roles of its keys cannot be \
                 verified{changes}; {reset}",
                epoch_of(Some(known))
            )),
            (Seal::Intact, Some(known), Some(now)) if now.epoch < known.epoch => {
                untrusted(format!(
                    "the header is older than the one that this machine knows (seal {}; known: \
                     seal {}): keys that were removed since open it again{changes}; {reset}",
                    now.epoch, known.epoch
                ))
            }
            (Seal::Intact, Some(known), Some(now))
                if now.epoch == known.epoch && now.digest != known.digest =>
            {
                untrusted(format!(
                    "the header differs from the one that this machine knows with the same number \
                     (seal {}): two copies of one volume were changed independently{changes}; \
                     {reset}",
                    known.epoch
                ))
            }
            (seal, ..) if !seal.holds() && what != Action::Reseal => {
                untrusted(format!("{}.{changes}", seal.problem()))
            }
            _ => Ok(()),
        }
    }
}
