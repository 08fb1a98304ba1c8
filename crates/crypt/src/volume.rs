//! A volume: its header, read once, its keys, and the changes that each key permits.
//!
//! **Invariant:** every change is one `luks2` plan, carried out step by step on the device, so that
//! after every write the old or the new keys open the volume. A [`Volume`] whose change failed must
//! be dropped and read again.

mod passphrase;
mod unlock;

pub use passphrase::{NewKey, NewSecret};

use crate::epoch::Epoch;
use crate::role::{Action, Role};
use crate::seal::{self, SealVersion};
use crate::seal_state::Seal;
use crate::token::{KEY_TYPE, KeyToken, SEAL_TYPE};
use crate::{CryptDevice, DataSegment, Error, Options, Result};
use block::{BlockDevice, Blocking};
use keyring::Recipient;
use luks2::{Hash, Header, Kdf, KdfLimits, Opened, Plan, Priority, Step};
use secret::SecretBytes;
use std::sync::Arc;
use xts::{SectorSize, Tweak, Xts};

/// Bytes of the random secret in a key pair's keyslot.
const KEYSLOT_SECRET_BYTES: usize = 32;
/// The secrets of key pairs' keyslots and recovery keys are random, so their key derivation can be
/// cheap; this is the minimum that `cryptsetup` accepts.
const RANDOM_SECRET_KDF: Kdf = Kdf::Pbkdf2 {
    hash: Hash::Sha256,
    iterations: 1000,
};

/// Parameters of a new volume.
#[derive(Debug, Clone)]
pub struct Format {
    /// Length of each of the two AES keys: 128 or 256 bits.
    pub key_bits: u32,
    /// Bytes per sector: 512 or 4096.
    pub sector_size: u32,
    /// Label of the volume, at most 47 bytes.
    pub label: String,
}

/// Public half of a key pair, with a name.
#[derive(Debug, Clone)]
pub struct Identified {
    name: String,
    recipient: Recipient,
}

impl Identified {
    /// Creates an entry with public half `recipient` and the name to store in the header.
    pub fn of(name: &str, recipient: Recipient) -> Identified {
        Identified {
            name: name.to_owned(),
            recipient,
        }
    }
}

/// A key that opens a volume, as the header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyEntry {
    /// Number of the keyslot.
    pub keyslot: u32,
    /// Role of the key.
    pub role: Role,
    /// Name of the key pair.
    pub name: Option<String>,
    /// Public half of the key pair; `None` for a passphrase, key file or recovery key.
    pub recipient: Option<String>,
    /// Label of a keyslot without a key pair. Untrusted: escape it before it reaches a terminal.
    pub label: Option<String>,
    /// Name of the key derivation function, or why the keyslot is not usable here.
    pub kdf: String,
    /// Whether the keyslot holds the volume key. If not, it opens nothing and its role is void.
    pub bound: bool,
}

impl KeyEntry {
    /// Computes the fingerprint of the key pair's public half.
    pub fn fingerprint(&self) -> Option<String> {
        self.recipient.as_deref().map(keyring::fingerprint)
    }

    /// Reports whether this is a recovery key, which a user types.
    pub fn is_recovery_key(&self) -> bool {
        self.role == Role::Recovery && self.recipient.is_none()
    }
}

/// Proof that a key has opened a volume: the volume key, and the rights of the key.
pub struct Unlocked {
    volume_key: SecretBytes,
    /// The keyslot that was opened.
    pub keyslot: u32,
    /// The role of the key that opened it.
    pub role: Role,
    /// State of the header's seal.
    pub seal: Seal,
}

impl Unlocked {
    /// Returns what opens the volume again, without the user, for a process that continues this one.
    pub fn to_keep(&self, volume: &Volume) -> SecretBytes {
        let (keyslot, uuid) = (self.keyslot.to_le_bytes(), volume.uuid().as_bytes());
        let mut kept = SecretBytes::zeroed(keyslot.len() + uuid.len() + self.volume_key.len());
        let (head, rest) = kept.split_at_mut(keyslot.len());
        head.copy_from_slice(&keyslot);
        let (name, key) = rest.split_at_mut(uuid.len());
        name.copy_from_slice(uuid);
        key.copy_from_slice(&self.volume_key);
        kept
    }
}

/// A volume on a device.
pub struct Volume {
    device: Arc<dyn BlockDevice>,
    header: Header,
    damaged_copy: Option<&'static str>,
    cut_short: bool,
    kdf_limits: KdfLimits,
}

impl Volume {
    /// Reads the header; it is not read again during the lifetime of the value.
    ///
    /// # Errors
    /// [`Error::Header`] if this is not a LUKS2 volume, is damaged, or uses a refused feature.
    pub fn open(device: Arc<dyn BlockDevice>) -> Result<Volume> {
        let opened = read_header(&*device)?;
        Ok(Volume::of(device, opened))
    }

    /// Opens a volume for inspection even if the data is missing: a header backup, or a device that
    /// was truncated.
    ///
    /// # Errors
    /// As [`Volume::open`], except for a device that is too small.
    pub fn inspect(device: Arc<dyn BlockDevice>) -> Result<Volume> {
        let (opened, cut_short) = read_header_alone(&*device)?;
        Ok(Volume {
            cut_short,
            ..Volume::of(device, opened)
        })
    }

    fn of(device: Arc<dyn BlockDevice>, opened: Opened) -> Volume {
        Volume {
            device,
            damaged_copy: match (opened.primary.is_valid(), opened.secondary.is_valid()) {
                (true, true) => None,
                (false, _) => Some("primary"),
                (true, false) => Some("secondary"),
            },
            header: opened.header,
            cut_short: false,
            kdf_limits: KdfLimits::default(),
        }
    }

    /// Sets the limits on the cost of trying a key.
    pub fn with_kdf_limits(self, kdf_limits: KdfLimits) -> Volume {
        Volume { kdf_limits, ..self }
    }

    /// Reports whether the device ends before the data that the header describes.
    pub fn is_cut_short(&self) -> bool {
        self.cut_short
    }

    /// Refuses a volume that no longer has keyslots.
    ///
    /// # Errors
    /// [`Error::Erased`] if it has none.
    pub fn refuse_erased(&self) -> Result<()> {
        if self.header.has_keyslots() {
            Ok(())
        } else {
            Err(Error::Erased(self.name().to_owned()))
        }
    }

    /// Creates a volume with the given owner and recovery keys, and returns it unlocked. Overwrites
    /// the first 16 MiB of the device.
    ///
    /// # Errors
    /// If the device is too small, a label is too long, a secret is empty, or a write fails.
    pub fn create(
        device: Arc<dyn BlockDevice>,
        format: &Format,
        owner: NewKey<'_>,
        recovery: &[NewKey<'_>],
    ) -> Result<(Volume, Unlocked)> {
        let name = device.info().name.clone();
        let header_error = |e| Error::header(&name, e);
        let options = luks2::FormatOptions {
            key_bits: format.key_bits,
            sector_size: format.sector_size,
            label: format.label.clone(),
            reserved: RESERVED_BYTES,
            ..luks2::FormatOptions::new(device.info().size)
        };
        let volume_key = luks2::generate_volume_key(format.key_bits).map_err(header_error)?;
        let header = Header::format(&options, &volume_key).map_err(header_error)?;
        let mut volume = Volume {
            device,
            header,
            damaged_copy: None,
            cut_short: false,
            kdf_limits: KdfLimits::default(),
        };
        let keyslot = volume.put_key(&volume_key, Role::Owner, owner)?;
        for key in recovery {
            volume.put_key(&volume_key, Role::Recovery, *key)?;
        }
        volume.commit(&volume_key, Epoch::ZERO)?;
        let unlocked = volume.unlocked(volume_key, keyslot)?;
        Ok((volume, unlocked))
    }

    /// Returns the name of the device.
    pub fn name(&self) -> &str {
        &self.device.info().name
    }

    /// Returns the UUID in the header.
    pub fn uuid(&self) -> &str {
        self.header.uuid()
    }

    /// Returns the label in the header.
    pub fn label(&self) -> String {
        self.header.label()
    }

    /// Reports the length of each of the two AES keys: 128 or 256 bits, or 0 if not stated.
    pub fn key_bits(&self) -> u32 {
        self.header.volume_key_len().map_or(0, |bytes| bytes * 4)
    }

    /// Reports the bytes per encrypted sector.
    pub fn sector_size(&self) -> u32 {
        self.header.segment().sector_size()
    }

    /// Returns the position of the data on the device.
    pub fn segment(&self) -> DataSegment {
        let segment = self.header.segment();
        DataSegment {
            offset: segment.offset(),
            size: segment.size(),
            iv_tweak: Tweak::new(segment.iv_tweak()),
        }
    }

    /// Reports the length of the data in bytes.
    pub fn data_size(&self) -> u64 {
        self.header
            .segment()
            .data_len(self.device.info().size)
            .unwrap_or(0)
    }

    /// Returns the offset of a 4096-byte block that neither keyslots nor data can occupy, even if
    /// another program changes the header. EVFS keeps the record of the host that has the volume
    /// open there. `None` if the keyslots area extends to the data.
    pub fn reserved_block(&self) -> Option<u64> {
        let start = self.header.segment().offset().checked_sub(RESERVED_BYTES)?;
        let free = self.header.backup_len() <= start && start.is_multiple_of(FREE_BLOCK_BYTES);
        free.then_some(start)
    }

    /// Reports whether one copy of the header is damaged.
    pub fn needs_repair(&self) -> bool {
        self.damaged_copy.is_some()
    }

    /// Returns the name of the damaged copy of the header, `primary` or `secondary`, if one is.
    pub fn damaged_copy(&self) -> Option<&'static str> {
        self.damaged_copy
    }

    /// Reports whether the header contains a seal; opening the volume tells if the seal is valid.
    pub fn is_sealed(&self) -> bool {
        self.header
            .metadata()
            .tokens()
            .values()
            .any(|t| t.token_type() == SEAL_TYPE)
    }

    /// Returns the seal stated in the header; valid only if [`Unlocked::seal`] is [`Seal::Intact`].
    pub fn mark(&self) -> Option<SealVersion> {
        seal::mark(&self.header)
    }

    /// Derives an identifier of the volume key: the same for the same key and UUID, and useless for
    /// finding the key.
    pub fn key_id(&self, unlocked: &Unlocked) -> String {
        seal::key_id(&unlocked.volume_key, self.uuid())
    }

    /// Reports whether the header enables discards (`cryptsetup --persistent --allow-discards`).
    pub fn persistent_discards(&self) -> bool {
        self.header.allow_discards()
    }

    /// Lists the keys, by keyslot.
    pub fn keys(&self) -> Vec<KeyEntry> {
        let has_owner = self
            .key_tokens()
            .any(|(_, token)| token.role() == Role::Owner);
        // A key without an EVFS token was added by a program without roles. It is a user if the
        // volume has an owner, else an owner, as all keys of such a volume are. Sealing adds a
        // token for every key, so a sealed header without any has been stripped of them.
        let stripped = self.key_tokens().next().is_none() && seal::is_marked(&self.header);
        let unknown = if has_owner || stripped {
            Role::User
        } else {
            Role::Owner
        };
        let entry = |(&keyslot, slot): (&u32, &luks2::Keyslot)| {
            let token = self.token_of(keyslot);
            KeyEntry {
                keyslot,
                role: token.as_ref().map_or(unknown, KeyToken::role),
                name: token.as_ref().and_then(|t| t.name.clone()),
                recipient: token.as_ref().and_then(|t| t.recipient.clone()),
                label: token.as_ref().and_then(|t| t.label.clone()),
                kdf: slot
                    .protection()
                    .map_or_else(|e| format!("not usable: {e}"), |p| p.kdf.name().to_owned()),
                bound: self.header.is_bound(keyslot),
            }
        };
        self.header
            .metadata()
            .keyslots()
            .iter()
            .map(entry)
            .collect()
    }

    /// Returns the key derivation of a keyslot with its costs, if EVFS supports the keyslot.
    pub fn kdf_of(&self, keyslot: u32) -> Option<Kdf> {
        let slot = self.header.metadata().keyslots().get(&keyslot)?;
        slot.protection().ok().map(|p| p.kdf)
    }

    /// Finds the keyslot with this number, or that of the key pair with this name or public key, or
    /// the keyslot with this label.
    ///
    /// # Errors
    /// [`Error::NoSuchKey`], also if a name has more than one keyslot; [`Error::Ambiguous`].
    pub fn find_key(&self, which: &str) -> Result<u32> {
        let keys = self.keys();
        let is_which = |text: &Option<String>| text.as_deref() == Some(which);
        let named = keys
            .iter()
            .filter(|k| is_which(&k.name) || is_which(&k.label) || is_which(&k.recipient));
        let named: Vec<u32> = named.map(|k| k.keyslot).collect();
        let unknown = || {
            Error::NoSuchKey(format!(
                "{}: no keyslot `{which}`; `evfs volume key list` lists the keyslots",
                self.name()
            ))
        };
        let number = which.parse::<u32>().ok();
        let numbered = number.filter(|n| keys.iter().any(|k| k.keyslot == *n));
        match (number, named.as_slice()) {
            (Some(_), []) => numbered.ok_or_else(unknown),
            (Some(number), [one]) if *one == number => Ok(number),
            // The user may mean either keyslot; do not guess which one to destroy.
            (Some(number), named) => {
                let number = match numbered {
                    Some(_) => format!("the number of keyslot {number}"),
                    None => "a number that no keyslot has".into(),
                };
                let others = named.iter().filter(|n| Some(**n) != numbered);
                let meant = numbered.iter().chain(others);
                let meant: Vec<String> = meant.map(|n| format!("--key-slot {n}")).collect();
                let named = named.iter().map(u32::to_string).collect::<Vec<_>>();
                Err(Error::Ambiguous(format!(
                    "{}: `{which}` is {number}, and the name of the key in keyslot {}; select one \
                     with {}",
                    self.name(),
                    named.join(" and "),
                    meant.join(" or ")
                )))
            }
            (None, [one]) => Ok(*one),
            (None, []) => Err(unknown()),
            (None, many) => Err(Error::NoSuchKey(format!(
                "{}: `{which}` has the keyslots {many:?}; select one by its number",
                self.name()
            ))),
        }
    }

    /// Iterates over the keyslot tokens and their token numbers.
    fn key_tokens(&self) -> impl Iterator<Item = (u32, KeyToken)> {
        let tokens = self.header.metadata().tokens().iter();
        tokens.filter_map(|(number, token)| Some((*number, KeyToken::read(token)?)))
    }

    fn token_of(&self, keyslot: u32) -> Option<KeyToken> {
        let tokens = self.header.metadata().tokens().values();
        tokens
            .filter(|t| t.keyslots().contains(&keyslot))
            .find_map(KeyToken::read)
    }

    /// Creates the decrypted block device.
    ///
    /// # Errors
    /// [`Error::SealBroken`], and errors of [`Xts::new`] and [`CryptDevice::new`].
    pub fn device(&self, unlocked: &Unlocked, options: Options) -> Result<CryptDevice> {
        self.require_seal(unlocked)?;
        let sector = SectorSize::try_from(self.sector_size())?;
        let xts = Xts::new(&unlocked.volume_key, sector)?;
        let (lower, segment) = (Arc::clone(&self.device), self.segment());
        let device = CryptDevice::new(lower, xts, segment, options)?;
        Ok(device.with_derivation(seal::derivation_key(&unlocked.volume_key)))
    }

    /// Adds a keyslot for another key pair; needs only its public half.
    ///
    /// # Errors
    /// [`Error::RoleRefuses`], [`Error::NeedsRepair`], [`Error::SealBroken`];
    /// if the key pair already has a keyslot; if the header is full.
    pub fn add_pair(&mut self, unlocked: &Unlocked, role: Role, who: &Identified) -> Result<u32> {
        self.change(unlocked, Action::ChangeKeys)?;
        let recipient = who.recipient.to_string();
        if let Some(old) = self
            .keys()
            .iter()
            .find(|k| k.recipient.as_deref() == Some(&recipient))
        {
            return Err(Error::Exists(format!(
                "{}: the key pair {} already opens this volume as {} (keyslot {}); `evfs volume \
                 key list` lists the keys",
                self.name(),
                who.name,
                old.role,
                old.keyslot
            )));
        }
        let keyslot = self.put_pair(&unlocked.volume_key, role, who)?;
        self.commit(&unlocked.volume_key, Epoch::ZERO)?;
        Ok(keyslot)
    }

    /// Removes a key.
    ///
    /// # Errors
    /// [`Error::RoleRefuses`], [`Error::NeedsRepair`], [`Error::SealBroken`];
    /// for the last key, and for the last owner.
    pub fn remove_key(&mut self, unlocked: &Unlocked, keyslot: u32) -> Result<()> {
        self.change(unlocked, Action::ChangeKeys)?;
        let keys = self.keys();
        let owners = keys
            .iter()
            .filter(|k| k.role == Role::Owner && k.bound)
            .map(|k| k.keyslot);
        if owners.collect::<Vec<_>>() == [keyslot] {
            return Err(Error::Refused(format!(
                "{}: keyslot {keyslot} is the only owner; set another one first with `evfs volume \
                 owner set`",
                self.name()
            )));
        }
        self.drop_keyslot(keyslot)?;
        self.commit(&unlocked.volume_key, Epoch::ZERO)
    }

    /// Makes `who` the owner and removes the previous owners, in one change: at every moment the
    /// old or the new owner can open the volume. Previous keyslots of `who` are removed as well.
    ///
    /// # Errors
    /// [`Error::RoleRefuses`], [`Error::NeedsRepair`], [`Error::SealBroken`];
    /// if the header is full.
    pub fn set_owner(&mut self, unlocked: &Unlocked, who: &Identified) -> Result<()> {
        self.change(unlocked, Action::SetOwner)?;
        let replaced = self.replaced_by_owner(who);
        self.put_pair(&unlocked.volume_key, Role::Owner, who)?;
        for key in replaced {
            self.drop_keyslot(key.keyslot)?;
        }
        self.commit(&unlocked.volume_key, Epoch::ZERO)
    }

    /// Lists the keys that [`Volume::set_owner`] removes: the key pairs that were owners, and old keys
    /// of `who`.
    pub fn replaced_by_owner(&self, who: &Identified) -> Vec<KeyEntry> {
        let recipient = who.recipient.to_string();
        let replaced = |k: &KeyEntry| {
            let old_owner = k.role == Role::Owner && k.recipient.is_some();
            old_owner || k.recipient.as_deref() == Some(&recipient)
        };
        self.keys().into_iter().filter(replaced).collect()
    }

    /// Seals the current header, with an epoch above `known`, to accept a change by another
    /// program.
    ///
    /// # Errors
    /// [`Error::RoleRefuses`], [`Error::NeedsRepair`].
    pub fn reseal(&mut self, unlocked: &Unlocked, known: Epoch) -> Result<()> {
        unlocked.role.allow(Action::Reseal)?;
        self.refuse_damaged()?;
        self.name_keys()?;
        self.commit(&unlocked.volume_key, known)
    }

    /// Destroys all keyslots.
    ///
    /// # Errors
    /// If a write fails; some keyslots may have been destroyed by then.
    pub fn erase(&mut self) -> Result<()> {
        let ours = |t: &luks2::Token| matches!(t.token_type(), KEY_TYPE | SEAL_TYPE);
        let tokens = self.header.metadata().tokens().iter();
        let numbers: Vec<u32> = tokens.filter(|(_, t)| ours(t)).map(|(n, _)| *n).collect();
        let name = self.name().to_owned();
        let header_error = |e| Error::header(&name, e);
        for number in numbers {
            self.header.remove_token(number).map_err(header_error)?;
        }
        let plan = self.header.erase_all().map_err(header_error)?;
        execute(&*self.device, plan)
    }

    /// Reads header and keyslots; the result has the format of `cryptsetup luksHeaderBackup`.
    ///
    /// # Errors
    /// If a read fails.
    pub fn backup(&self) -> Result<Vec<u8>> {
        read_range(&*self.device, 0, self.header.backup_len())
    }

    /// Begins a change with this key: checks role, seal and header copies.
    ///
    /// # Errors
    /// [`Error::RoleRefuses`], [`Error::NeedsRepair`], [`Error::SealBroken`].
    fn change(&mut self, unlocked: &Unlocked, action: Action) -> Result<()> {
        unlocked.role.allow(action)?;
        self.require_seal(unlocked)?;
        self.refuse_damaged()?;
        self.name_keys()
    }

    fn require_seal(&self, unlocked: &Unlocked) -> Result<()> {
        if unlocked.seal.holds() {
            Ok(())
        } else {
            Err(Error::SealBroken {
                name: self.name().to_owned(),
                seal: unlocked.seal,
            })
        }
    }

    /// Adds tokens with the current roles for keys without an EVFS token, before the header gets
    /// its first seal whose removal can be detected.
    fn name_keys(&mut self) -> Result<()> {
        if seal::is_marked(&self.header) {
            return Ok(());
        }
        for KeyEntry { keyslot, role, .. } in self.keys() {
            if self.token_of(keyslot).is_none() {
                let token = KeyToken::secret(keyslot, role).to_token();
                token
                    .and_then(|token| self.header.add_token(None, &token))
                    .map_err(|e| Error::header(self.name(), e))?;
            }
        }
        Ok(())
    }

    /// Refuses changes while a copy of the header is damaged: during a change, one copy may be the
    /// only valid one.
    fn refuse_damaged(&self) -> Result<()> {
        if self.needs_repair() {
            Err(Error::NeedsRepair(self.name().to_owned()))
        } else {
            Ok(())
        }
    }

    fn put_pair(&mut self, volume_key: &SecretBytes, role: Role, who: &Identified) -> Result<u32> {
        let secret = SecretBytes::random(KEYSLOT_SECRET_BYTES);
        let envelope = who.recipient.wrap(&secret)?;
        let keyslot = self.put_keyslot(volume_key, &secret, &RANDOM_SECRET_KDF)?;
        let recipient = who.recipient.to_string();
        let token = KeyToken::pair(keyslot, role, &who.name, &recipient, &envelope).to_token();
        token
            .and_then(|token| self.header.add_token(None, &token))
            .map_err(|e| Error::header(self.name(), e))?;
        Ok(keyslot)
    }

    fn put_keyslot(
        &mut self,
        volume_key: &SecretBytes,
        secret: &SecretBytes,
        kdf: &Kdf,
    ) -> Result<u32> {
        let added = self
            .header
            .add_keyslot(volume_key, secret, kdf, None, Priority::Normal);
        added.map_err(|e| Error::header(self.name(), e))
    }

    /// Removes a keyslot and its EVFS token.
    fn drop_keyslot(&mut self, keyslot: u32) -> Result<()> {
        let tokens = self.header.metadata().tokens().iter();
        let beside =
            tokens.filter(|(_, t)| t.token_type() == KEY_TYPE && t.keyslots() == [keyslot]);
        let numbers: Vec<u32> = beside.map(|(number, _)| *number).collect();
        let removed = self.header.remove_keyslot(keyslot);
        removed.map_err(|e| Error::header(self.name(), e))?;
        for number in numbers {
            self.header
                .remove_token(number)
                .map_err(|e| Error::header(self.name(), e))?;
        }
        Ok(())
    }

    /// Seals the header, with an epoch above `known`, and writes it to the disk.
    fn commit(&mut self, volume_key: &SecretBytes, known: Epoch) -> Result<()> {
        let plan = self.sealed(volume_key, known)?;
        execute(&*self.device, plan)
    }

    /// Seals the header, with an epoch above `known`, and returns the plan that writes it.
    fn sealed(&mut self, volume_key: &SecretBytes, known: Epoch) -> Result<Plan> {
        let name = self.name().to_owned();
        let plan =
            seal::put(&mut self.header, volume_key, known).and_then(|()| self.header.update());
        plan.map_err(|e| Error::header(&name, e))
    }
}

/// Reads both copies of the header and checks them.
pub(crate) fn read_header(device: &dyn BlockDevice) -> Result<Opened> {
    let (name, size) = (device.info().name.clone(), device.info().size);
    let first = read_range(device, 0, size.min(4096))?;
    let wanted = Header::bytes_wanted(&first, size);
    let prefix = read_range(device, 0, wanted)?;
    let opened = match Header::open(&prefix, size) {
        Err(e) if e.kind() == luks2::ErrorKind::NeedMore => {
            let all = read_range(device, 0, size.min(luks2::PREFIX_BYTES_MAX))?;
            Header::open(&all, size)
        }
        opened => opened,
    };
    opened.map_err(|e| Error::header(&name, e))
}

/// Reads the header like [`read_header`], but accepts a device that ends before the data; the flag
/// reports whether it does.
pub(crate) fn read_header_alone(device: &dyn BlockDevice) -> Result<(Opened, bool)> {
    let error = match read_header(device) {
        Err(Error::Header { name, source }) => (name, source),
        opened => return opened.map(|opened| (opened, false)),
    };
    let (name, source) = error;
    if source.kind() == luks2::ErrorKind::DeviceTooSmall {
        let len = device.info().size.min(luks2::PREFIX_BYTES_MAX);
        let prefix = read_range(device, 0, len)?;
        // Check the header alone, as if the device had the largest possible size.
        if let Ok(opened) = Header::open(&prefix, i64::MAX as u64) {
            return Ok((opened, true));
        }
    }
    Err(Error::Header { name, source })
}

/// Length of [`free_header_block`] in bytes.
const FREE_BLOCK_BYTES: u64 = 4096;
/// Bytes before the data that are kept out of the keyslots area: the blocks of
/// [`Volume::reserved_block`] and [`free_header_block`], so that both stay free.
const RESERVED_BYTES: u64 = 2 * FREE_BLOCK_BYTES;

/// Finds the offset of a 4096-byte block before the data segment of the volume on `device` that
/// neither a keyslot nor a copy of the header occupies; `None` if there is no volume or no such
/// block. The block is unused until `cryptsetup` or EVFS allocates a new keyslot in it.
pub fn free_header_block(device: &dyn BlockDevice) -> Option<u64> {
    let header = read_header(device).ok()?.header;
    let start = header.segment().offset().checked_sub(FREE_BLOCK_BYTES)?;
    let free = |from: u64, len: u64| from + len <= start || start + FREE_BLOCK_BYTES <= from;
    let slots = header.metadata().keyslots().values();
    let free = free(0, 2 * header.header_size())
        && slots
            .map(|k| k.area())
            .all(|area| free(area.offset, area.len));
    (free && start.is_multiple_of(FREE_BLOCK_BYTES)).then_some(start)
}

/// Reads a range that need not be aligned to the blocks of the device.
pub(crate) fn read_range(device: &dyn BlockDevice, offset: u64, len: u64) -> Result<Vec<u8>> {
    let block = u64::from(device.info().logical_block_size);
    let from = offset - offset % block;
    let to = (offset + len)
        .next_multiple_of(block)
        .min(device.info().size);
    let mut bytes = vec![0; to.saturating_sub(from) as usize];
    Blocking::open(device)?.read_at(from, &mut bytes)?;
    bytes.drain(..(offset - from) as usize);
    bytes.truncate(len as usize);
    Ok(bytes)
}

/// Carries out the steps of a plan in order, and stops at the first that fails.
pub(crate) fn execute(device: &dyn BlockDevice, plan: Plan) -> Result<()> {
    execute_tested(device, plan, || Ok(()))
}

/// Same as [`execute`]; calls `test` after the first flush. At that point the key material of new
/// keyslots is on stable storage, and no header on the disk names it. If `test` fails, no further
/// step is carried out.
fn execute_tested(
    device: &dyn BlockDevice,
    plan: Plan,
    test: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let mut device = Blocking::open(device)?;
    let mut test = Some(test);
    for step in plan {
        match step {
            Step::Write { offset, bytes } => device.write_at(offset, &bytes)?,
            Step::Flush => {
                device.flush()?;
                test.take().map_or(Ok(()), |test| test())?;
            }
        }
    }
    device.flush()?;
    Ok(())
}
