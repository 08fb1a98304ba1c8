//! Encrypted volumes on DEVICEs: access to the header, locks against concurrent writers, and the
//! selection of a key.
//!
//! Two locks exclude concurrent writers. The *header lock* is the one `cryptsetup` takes. It is
//! held during one header operation, so keys can be added to an attached volume. The *open lock* is
//! held while a volume is attached, or while a command replaces or destroys it.

use crate::access::{Access, Existing};
use crate::device::{self, Disk, Guard, Share, Sharing};
use crate::error::Left;
use crate::paths::own_dir;
use crate::trust::{TrustFile, TrustStore};
use crate::{Error, Result, Settings, in_use, signature};
use block::BlockDevice;
use crypt::{Identified, Role, Seal, Unlocked, Volume};
use keyring::{Keyring, Private};
use path_file::{FileDevice, NewFile};
use secret::SecretBytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Purpose for which a command opens a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Read the header.
    Inspect,
    /// Change keys in the header; the volume may be attached at the same time.
    ChangeHeader,
    /// Replace or destroy the volume; it must not be attached.
    Replace,
}

/// A volume whose header has been read, with the locks of the [`Intent`].
pub struct LockedVolume {
    pub volume: Volume,
    /// File, disk or LUN that holds the volume.
    pub disk: Disk,
    _guard: Guard,
}

impl LockedVolume {
    /// Unlocks the volume, if `source` opens it in a role that allows `what`, and it matches the
    /// trust store.
    ///
    /// # Errors
    /// A wrong or missing key, an untrusted volume, or a key whose role does not allow `what`.
    pub fn unlock(
        &self,
        opener: &Opener,
        source: &KeySource,
        what: crypt::Action,
    ) -> Result<Unlocked> {
        // The store is written under the header lock, which is held: it is not ahead of the header.
        let known = opener.trust.load()?;
        let unlocked = opener.unlock(&self.volume, &self.disk, &known, source, what);
        unlocked.map(|(unlocked, _)| unlocked)
    }

    /// Unlocks the volume, applies `change` to its header, and records the result in the trust
    /// store.
    ///
    /// # Errors
    /// Those of [`LockedVolume::unlock`] and of `change`.
    pub fn change<T>(
        &mut self,
        opener: &Opener,
        source: &KeySource,
        what: crypt::Action,
        change: impl FnOnce(&mut Volume, &Unlocked) -> Result<T>,
    ) -> Result<T> {
        let unlocked = self.unlock(opener, source, what)?;
        let result = change(&mut self.volume, &unlocked)?;
        opener.trust.record(&self.volume, &unlocked, &self.disk)?;
        Ok(result)
    }

    /// Seals the current header if an allowed key and `ask` accept it.
    ///
    /// # Errors
    /// Those of [`LockedVolume::change`] and of `ask`.
    pub fn reseal(
        &mut self,
        opener: &Opener,
        source: &KeySource,
        ask: impl FnOnce(&Volume) -> Result<()>,
    ) -> Result<()> {
        let known = opener.trust.load()?;
        let known = known.volumes.get(self.volume.uuid());
        let epoch = known
            .and_then(|e| e.seal.as_ref())
            .map_or(crypt::Epoch::ZERO, |s| s.epoch);
        self.change(opener, source, crypt::Action::Reseal, |volume, unlocked| {
            if let Some(entry) = known {
                entry.allow_reseal(volume.name(), unlocked)?;
            }
            ask(volume)?;
            Ok(volume.reseal(unlocked, epoch)?)
        })
    }
}

/// Opens the DEVICE `path` without reading its contents.
///
/// # Errors
/// Those of [`device::open`].
pub fn open_disk(path: &Path, intent: Intent, settings: &Settings) -> Result<Disk> {
    let (access, share) = match intent {
        Intent::Inspect => (Access::ReadOnly, Share::All),
        Intent::ChangeHeader => (Access::ReadWrite, Share::All),
        Intent::Replace => (Access::ReadWrite, Share::Replace),
    };
    device::open(path, settings, access, share)
}

/// Opens the volume on the DEVICE `path`.
///
/// # Errors
/// The device holds no volume, its header is damaged beyond reading, or it is in use.
pub fn open_locked(path: &Path, intent: Intent, settings: &Settings) -> Result<LockedVolume> {
    let disk = open_disk(path, intent, settings)?;
    let guard = disk.header_lock(match intent {
        Intent::Inspect => Sharing::Shared,
        Intent::ChangeHeader | Intent::Replace => Sharing::Exclusive,
    })?;
    let volume = match intent {
        Intent::Inspect => Volume::inspect(disk.device())?,
        _ => Volume::open(disk.device())?,
    };
    let volume = volume.with_kdf_limits(settings.kdf_limits());
    Ok(LockedVolume {
        volume,
        disk,
        _guard: guard,
    })
}

/// Parameters of a new volume.
pub struct Create<'a> {
    /// File or disk; a missing file is created with `size` bytes.
    pub path: &'a Path,
    /// Size of a new file, in bytes.
    pub size: Option<u64>,
    /// Treatment of data on the device.
    pub existing: Existing,
    /// Key length, sector size, label.
    pub format: crypt::Format,
    /// Name of the owner's key pair.
    pub owner: &'a str,
    /// Names of recovery key pairs.
    pub recovery: &'a [String],
}

/// Creates a volume. Returns it with the path of the backup of overwritten data, if there was any.
/// A new file gets its name only when the volume is complete.
///
/// # Errors
/// [`Error::WouldDestroy`] if the device is not empty and its data is to be kept.
pub fn create(
    create: &Create<'_>,
    keyring: &Keyring,
    settings: &Settings,
) -> Result<(LockedVolume, Option<PathBuf>)> {
    // The keys come first: a misspelled name must fail before anything is changed.
    let owner = Identified::of(create.owner, keyring.recipient(create.owner)?);
    let recovery = create
        .recovery
        .iter()
        .map(|name| Ok(Identified::of(name, keyring.recipient(name)?)))
        .collect::<Result<Vec<_>>>()?;
    if let Some(size) = create.size {
        large_enough(create.path, size)?;
    }
    let (disk, made) = open_or_make(create.path, create.size, create.existing, settings)?;
    format_over(create, disk, made, &owner, &recovery, settings)
}

/// Opens the DEVICE `path` for formatting. A missing file is created with `size` bytes and gets its
/// name when it is finished.
pub(crate) fn open_or_make(
    path: &Path,
    size: Option<u64>,
    existing: Existing,
    settings: &Settings,
) -> Result<(Disk, Option<Made>)> {
    let there = path.exists() || device::is_lun(path);
    match (there, size) {
        (false, None) => Err(Error::NotFound(format!(
            "{} does not exist; --size SIZE creates a file of that size",
            path.display()
        ))),
        (false, Some(size)) => {
            let (file, new) = FileDevice::make(path, size, &path_file::Options::default())?;
            let disk = Disk::from(Arc::clone(&file));
            TrustStore::of(settings).clear_places(disk.places())?;
            Ok((disk, Some(Made { file, new })))
        }
        (true, Some(_)) if device::is_lun(path) => Err(Error::Usage(
            "--size applies only to new files; the target sets the size of a LUN".into(),
        )),
        (true, Some(_)) if path.is_file() && existing == Existing::Keep => {
            Err(Error::Usage(format!(
                "{} already exists, so --size does not apply; omit it to use the file as it is",
                path.display()
            )))
        }
        (true, _) => Ok((open_disk(path, Intent::Replace, settings)?, None)),
    }
}

/// A new file to be formatted. It has no name until it is finished, and is freed if it never is.
pub(crate) struct Made {
    file: Arc<FileDevice>,
    new: NewFile,
}

impl Made {
    /// Links the file to its name and returns it as a disk of that name.
    pub(crate) fn finish(self) -> Result<Disk> {
        self.new.finish()?;
        Ok(self.file.into())
    }
}

/// Refuses a size without room for data behind the header.
fn large_enough(path: &Path, size: u64) -> Result<()> {
    let header = crypt::overwritten_by_format(u64::MAX);
    if size > header {
        Ok(())
    } else {
        Err(Error::Usage(format!(
            "{} is too small for a volume with {size} bytes: its header takes {} MiB, so at least {}M are needed",
            path.display(),
            header >> 20,
            (header >> 20) + 1
        )))
    }
}

fn format_over(
    create: &Create<'_>,
    disk: Disk,
    made: Option<Made>,
    owner: &Identified,
    recovery: &[Identified],
    settings: &Settings,
) -> Result<(LockedVolume, Option<PathBuf>)> {
    let guard = disk.header_lock(Sharing::Exclusive)?;
    let device = disk.device();
    let found = match made {
        Some(_) => None,
        None => signature::content_of(&disk)?,
    };
    if let Some(found) = found
        && create.existing == Existing::Keep
    {
        return Err(Error::WouldDestroy {
            device: create.path.display().to_string(),
            found: found.to_string(),
            kept: Left::All,
        });
    }
    large_enough(create.path, device.info().size)?;
    let overwritten = crypt::overwritten_by_format(device.info().size);
    let keep = || save_head(settings, create.path, &disk, overwritten);
    let backup = found.map(|_| keep()).transpose()?;
    let (volume, unlocked) = Volume::create(Arc::clone(&device), &create.format, owner, recovery)?;
    if let Some(at) = volume.reserved_block() {
        in_use::prepare(&*device, at)?;
    }
    // Uses the places of the final name. A crash before they are recorded leaves a volume unknown
    // to this machine.
    let disk = made.map_or(Ok(disk), Made::finish)?;
    let trust = TrustStore::of(settings);
    trust.clear_places(disk.places())?;
    trust.record(&volume, &unlocked, &disk)?;
    Ok((
        LockedVolume {
            volume,
            disk,
            _guard: guard,
        },
        backup,
    ))
}

/// Saves the first bytes of a disk, as stored on it, in the backup directory.
pub(crate) fn save_head(
    settings: &Settings,
    path: &Path,
    disk: &Disk,
    bytes: u64,
) -> Result<PathBuf> {
    let device = disk.device();
    let info = device.info();
    let block = u64::from(info.logical_block_size);
    let mut old = vec![0; (bytes.min(info.size) / block * block) as usize];
    block::Blocking::open(&*device)?.read_at(0, &mut old)?;
    save_backup(settings, path, "overwritten", &old)
}

/// Writes a backup into the backup directory, with mode 0600. It is on stable storage on return.
pub fn save_backup(settings: &Settings, path: &Path, what: &str, bytes: &[u8]) -> Result<PathBuf> {
    let dir = settings.backup_dir();
    own_dir(&dir, "EVFS_BACKUP_DIR")?;
    let stem = path
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos());
    let to = dir.join(format!("{stem}.{what}.{now}"));
    write_new(&to, bytes)?;
    Ok(to)
}

/// Writes a new file with mode 0600 and syncs it; it gets its name when it is complete.
///
/// # Errors
/// `path` exists: a backup never overwrites another one.
pub fn write_new(path: &Path, bytes: &[u8]) -> Result<()> {
    use std::io::Write;
    let new = NewFile::begin(path)?;
    let written = new.file().write_all(bytes);
    written.map_err(|e| Error::io("cannot write", path, e))?;
    Ok(new.finish()?)
}

/// Chooses the key derivation for a new passphrase: Argon2id that takes the configured time on this
/// machine, in at most half of its memory. The calibration takes a few seconds.
pub fn passphrase_kdf(settings: &Settings) -> luks2::Kdf {
    let start = std::time::Instant::now();
    let half = u32::try_from(::cache::memory_bytes() / 1024 / 2).unwrap_or(u32::MAX);
    let memory = settings.kdf_memory_kib().min(half);
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let chosen = luks2::Kdf::calibrate(&|| start.elapsed(), settings.kdf_time(), memory, cpus);
    // Without memory for the calibration, use the lowest acceptable cost: 32 MiB.
    chosen.unwrap_or(luks2::Kdf::Argon2id(luks2::Argon2Cost {
        time: 4,
        memory_kib: 32 * 1024,
        cpus: 1,
    }))
}

/// Describes a key derivation for users.
pub fn describe_kdf(kdf: &luks2::Kdf) -> String {
    match kdf {
        luks2::Kdf::Argon2id(cost) | luks2::Kdf::Argon2i(cost) => format!(
            "{}, {} passes over {} KiB, {} lanes",
            kdf.name(),
            cost.time,
            cost.memory_kib,
            cost.cpus
        ),
        luks2::Kdf::Pbkdf2 { hash, iterations } => {
            format!("{}-{}, {iterations} iterations", kdf.name(), hash.name())
        }
    }
}

/// Key that opens a volume.
pub enum KeySource {
    /// Any key of this user: key pairs that the volume knows, then a passphrase.
    Any,
    /// A certain key pair.
    Pair {
        /// Name of the key pair.
        name: String,
        /// Passphrase that protects its file; `None` to ask for it if needed.
        passphrase: Option<SecretBytes>,
    },
    /// A passphrase, or the content of a key file.
    Secret(SecretBytes),
}

/// Callback that asks the user for a passphrase with the given prompt.
pub type Prompt = fn(&str) -> Result<SecretBytes>;

/// Callback that shows a message of one line to the user.
pub type Notify = Box<dyn Fn(&str) + Send + Sync>;

/// Opener of volumes by the keys of a user; it checks volumes against the trust store.
pub struct Opener {
    keyring: Keyring,
    prompt: Prompt,
    notify: Notify,
    trust: TrustStore,
    kdf_limits: luks2::KdfLimits,
}

impl Opener {
    /// Creates an opener with a keyring, callbacks to the user, a trust store and cost limits for
    /// keys.
    pub fn new(
        keyring: Keyring,
        prompt: Prompt,
        tell: Notify,
        trust: TrustStore,
        kdf_limits: luks2::KdfLimits,
    ) -> Opener {
        Opener {
            keyring,
            prompt,
            notify: tell,
            trust,
            kdf_limits,
        }
    }

    /// Unlocks the volume, if `source` opens it in a role that allows `what`, and it matches
    /// `known`. A volume opened for the first time is recorded; the notice shown to the user is
    /// returned, too.
    ///
    /// `known` must be read before the header, or under the header lock.
    ///
    /// # Errors
    /// A wrong or missing key, an untrusted volume, or a key whose role does not allow `what`.
    fn unlock(
        &self,
        volume: &Volume,
        disk: &Disk,
        known: &TrustFile,
        source: &KeySource,
        what: crypt::Action,
    ) -> Result<(Unlocked, Option<String>)> {
        volume.refuse_erased()?;
        let unlocked = match source {
            KeySource::Secret(secret) => volume.unlock_secret(secret)?,
            KeySource::Pair { name, passphrase } => {
                self.with_pair(volume, name, passphrase.as_ref())?
            }
            KeySource::Any => self.with_any(volume, what)?,
        };
        known.check_volume(volume, &unlocked, disk, what)?;
        unlocked.role.allow(what)?;
        let is_first = unlocked.seal.holds() && self.trust.record(volume, &unlocked, disk)?;
        let notice = is_first.then(|| first_use(volume, &unlocked));
        if let Some(notice) = &notice {
            (self.notify)(notice);
        }
        Ok((unlocked, notice))
    }

    fn with_pair(
        &self,
        volume: &Volume,
        name: &str,
        passphrase: Option<&SecretBytes>,
    ) -> Result<Unlocked> {
        let identity = self.keyring.identity(name, &mut |p| match passphrase {
            Some(given) => Ok(SecretBytes::from_slice(given)),
            None => ask_key(self.prompt, p),
        })?;
        Ok(volume.unlock_identity(&identity)?)
    }

    /// Unlocks the volume with a key pair of this user that it knows, preferring one that allows
    /// `what` and needs no passphrase; without such a pair, with a passphrase of the volume itself.
    fn with_any(&self, volume: &Volume, what: crypt::Action) -> Result<Unlocked> {
        let keys = volume.keys();
        let mut own: Vec<_> = self
            .keyring
            .list()?
            .keys
            .into_iter()
            .filter(|info| info.private != Private::Absent)
            .filter_map(|info| {
                let recipient = info.recipient.to_string();
                let known = keys
                    .iter()
                    .find(|k| k.recipient.as_deref() == Some(&recipient))?;
                let allowed = known.role.allow(what).is_ok();
                Some((!allowed, info.private == Private::Passphrase, info.name))
            })
            .collect();
        own.sort();
        if let Some((.., name)) = own.first() {
            return self.with_pair(volume, name, None);
        }
        if keys.iter().all(|k| k.recipient.is_some()) {
            return Err(crypt::Error::wrong_key(
                "none of the key pairs of this user opens the volume; pass one with --key, or ask \
                 the owner to add one",
            )
            .into());
        }
        let secret = (self.prompt)(&format!("Passphrase for {}", volume.name()))?;
        Ok(volume.unlock_secret(&secret)?)
    }
}

/// Words the notice about a volume that this machine opens for the first time.
fn first_use(volume: &Volume, unlocked: &Unlocked) -> String {
    let keys = volume.keys().into_iter();
    let owners = keys.filter(|k| k.role == Role::Owner);
    let names: Vec<String> = owners
        .map(|k| match k.name {
            Some(name) => name.escape_debug().to_string(),
            None => format!("the passphrase of keyslot {}", k.keyslot),
        })
        .collect();
    let sealed = match unlocked.seal {
        Seal::Never => "its header has no seal, so changes to the header are not detected",
        _ => "from now on, an imitation of it is refused",
    };
    format!(
        "{}: this machine opens volume {} (owner {}) for the first time; {sealed}",
        volume.name(),
        volume.uuid(),
        names.join(", ")
    )
}

fn ask_key(
    prompt: Prompt,
    p: &keyring::Prompt,
) -> std::result::Result<SecretBytes, keyring::Error> {
    prompt(&p.to_string()).map_err(|e| keyring::Error::NoPassphrase(e.to_string()))
}

/// A DEVICE opened for its data, with the values for its status.
pub struct OpenedDevice {
    /// Device with plaintext data.
    pub device: Arc<dyn BlockDevice>,
    /// Encryption of the volume; `None` for a plaintext device.
    pub cipher: Option<Cipher>,
    /// Whether I/O bypasses the kernel's page cache.
    pub direct: bool,
    /// Underlying file, disk or LUN.
    pub disk: Disk,
    /// Notice about a volume that this machine opens for the first time.
    pub first_use: Option<String>,
    /// Name of the damaged copy of the header, if one is.
    pub damaged_copy: Option<&'static str>,
}

/// Status values of an open encrypted volume.
#[derive(Debug, Clone)]
pub struct Cipher {
    /// UUID in the header.
    pub uuid: String,
    /// Label in the header.
    pub label: String,
    /// Size of an encryption sector, in bytes.
    pub sector_size: u32,
    /// Length of the AES key in bits: 128 or 256.
    pub key_bits: u32,
    /// Offset of the data on the disk, in bytes.
    pub data_offset: u64,
    /// Cipher kernel in use.
    pub kernel: xts::Kernel,
    /// Keyslot of the key that opened the volume.
    pub keyslot: u32,
    /// Role of the key that opened the volume.
    pub role: Role,
}

/// Options for opening a volume for its data.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// Pass discards to the device.
    pub allow_discards: bool,
}

/// Opens the volume at `path` for its data. The open lock is held for the lifetime of the device.
///
/// # Errors
/// Those of [`open_locked`] and [`LockedVolume::unlock`]; a broken seal of the header.
pub fn open(
    path: &Path,
    opener: &Opener,
    source: &KeySource,
    options: OpenOptions,
    settings: &Settings,
) -> Result<OpenedDevice> {
    let disk = open_for_data(path, options, settings)?;
    decipher(disk, opener, source, options)
}

/// Opens the DEVICE `path` for its data, be it an encrypted volume or a plaintext device. Calls
/// `source` only if a key is needed.
///
/// # Errors
/// Those of [`open`].
pub fn open_any(
    path: &Path,
    opener: &Opener,
    source: &dyn Fn() -> Result<KeySource>,
    options: OpenOptions,
    settings: &Settings,
) -> Result<OpenedDevice> {
    let disk = open_for_data(path, options, settings)?;
    of_disk(disk, opener, source, options)
}

/// Same as [`open_any`], for a DEVICE that is already open.
pub(crate) fn of_disk(
    disk: Disk,
    opener: &Opener,
    source: &dyn Fn() -> Result<KeySource>,
    options: OpenOptions,
) -> Result<OpenedDevice> {
    let device = disk.device();
    if signature::find(&*device)?.is_some_and(signature::is_volume) {
        return decipher(disk, opener, &source()?, options);
    }
    opener.trust.load()?.check_plaintext(&disk)?;
    Ok(OpenedDevice {
        device,
        cipher: None,
        direct: disk.direct(),
        disk,
        first_use: None,
        damaged_copy: None,
    })
}

/// Converts the error of opening a DEVICE for writing: if the device can be read, the error names
/// the option for that, in the syntax of the command line or of a configuration file.
pub fn or_read_only(error: Error, device: &Path, configured: bool) -> Error {
    use block::ErrorKind::{Permission, ReadOnly};
    let how = if configured {
        "`read-only = true`"
    } else {
        "--read-only"
    };
    match error {
        Error::Block(source)
            if matches!(source.kind(), Permission | ReadOnly)
                && std::fs::File::open(device).is_ok() =>
        {
            Error::OnlyRead { source, how }
        }
        other => other,
    }
}

fn open_for_data(path: &Path, options: OpenOptions, settings: &Settings) -> Result<Disk> {
    let access = Access::read_only_if(options.read_only);
    let share = match access {
        Access::ReadOnly => Share::Readers,
        Access::ReadWrite => Share::Exclusive,
    };
    device::open(path, settings, access, share)
}

fn decipher(
    disk: Disk,
    opener: &Opener,
    source: &KeySource,
    options: OpenOptions,
) -> Result<OpenedDevice> {
    let known = opener.trust.load()?;
    let volume = {
        // The header is read once, under its lock; later steps use only this copy.
        let _guard = disk.header_lock(Sharing::Shared)?;
        Volume::open(disk.device())?.with_kdf_limits(opener.kdf_limits)
    };
    let action = crypt::Action::Attach;
    let (unlocked, first_use) = opener.unlock(&volume, &disk, &known, source, action)?;
    let crypt_options = crypt::Options {
        read_only: options.read_only,
        allow_discards: options.allow_discards || volume.persistent_discards(),
    };
    let device = volume.device(&unlocked, crypt_options)?;
    let cipher = Cipher {
        uuid: volume.uuid().to_owned(),
        label: volume.label().to_owned(),
        sector_size: volume.sector_size(),
        key_bits: volume.key_bits(),
        data_offset: volume.segment().offset,
        kernel: device.kernel(),
        keyslot: unlocked.keyslot,
        role: unlocked.role,
    };
    secret::burn_stack();
    Ok(OpenedDevice {
        device: Arc::new(device),
        cipher: Some(cipher),
        direct: disk.direct(),
        disk,
        first_use,
        damaged_copy: volume.damaged_copy(),
    })
}
