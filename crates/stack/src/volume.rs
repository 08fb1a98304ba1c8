//! Encrypted volumes on DEVICEs: access to the header, and locks against concurrent writers.
//!
//! Two locks exclude concurrent writers. The *header lock* is the one `cryptsetup` takes. It is
//! held during one header operation, so keys can be added to an attached volume. The *open lock* is
//! held while a volume is attached, or while a command replaces or destroys it.

use crate::backups::Reason;
use crate::device::{self, Disk, Guard, Share, Sharing};
use crate::error::Left;
use crate::existing::Existing;
use crate::opener::{KeySource, Opener};
use crate::paths::own_dir;
use crate::trust::TrustStore;
use crate::{Error, Result, Settings, in_use, signature, unix_time};
use block::Access;
use block::BlockDevice;
use crypt::recovery::RecoveryKey;
use crypt::{Identified, NewKey, NewSecret, Role, Unlocked, Volume};
use keyring::Keyring;
use path_file::{FileDevice, NewFile};
use secret::SecretBytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
        let known = opener.trust().load()?;
        let unlocked = opener.unlock(&self.volume, &self.disk, &known, source, what);
        unlocked.map(|(unlocked, _)| unlocked)
    }

    /// Unlocks the volume with a key of any role, if it matches the trust store, and changes
    /// nothing: neither the volume nor the trust store.
    ///
    /// # Errors
    /// A wrong or missing key, or an untrusted volume.
    pub fn test(&self, opener: &Opener, source: &KeySource) -> Result<Unlocked> {
        let known = opener.trust().load()?;
        opener.test(&self.volume, &self.disk, &known, source)
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
        opener.trust().record(&self.volume, &unlocked, &self.disk)?;
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
        let known = opener.trust().load()?;
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
    pub owner: Owner<'a>,
    /// Names or public keys of recovery key pairs.
    pub recovery: &'a [String],
    /// A recovery key to be printed.
    pub recovery_key: Option<&'a RecoveryKey>,
}

/// Owner of a new volume.
#[derive(Clone, Copy)]
pub enum Owner<'a> {
    /// The key pair with this name or public key.
    Pair(&'a str),
    /// A passphrase alone.
    Passphrase {
        secret: &'a SecretBytes,
        /// Label of its keyslot.
        label: Option<&'a str>,
    },
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
    let pair = |which: &str| {
        let (name, recipient) = keyring.named_or_public(which)?;
        Ok::<_, Error>(Identified::of(&name, recipient))
    };
    let owner = match create.owner {
        Owner::Pair(name) => Some(pair(name)?),
        Owner::Passphrase { .. } => None,
    };
    let recovery = create.recovery.iter().map(|name| pair(name));
    let recovery = recovery.collect::<Result<Vec<_>>>()?;
    if let Some(size) = create.size {
        large_enough(create.path, size)?;
    }
    let (disk, made) = open_or_make(create.path, create.size, create.existing, settings)?;
    format_over(create, disk, made, owner.as_ref(), &recovery, settings)
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
            let is_dry_run = settings.is_dry_run();
            let made = Made {
                file,
                new,
                is_dry_run,
            };
            Ok((disk, Some(made)))
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
    /// The file never gets its name.
    is_dry_run: bool,
}

impl Made {
    /// Links the file to its name and returns it as a disk of that name.
    pub(crate) fn finish(self) -> Result<Disk> {
        if !self.is_dry_run {
            self.new.finish()?;
        }
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
            "{} is too small for a volume with {size} bytes: its header takes {} MiB; use at least {}M",
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
    owner: Option<&Identified>,
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
    let owner = match (create.owner, owner) {
        (Owner::Passphrase { secret, label }, _) => {
            NewKey::Secret(NewSecret::new(secret, passphrase_kdf(settings)).labeled(label))
        }
        (Owner::Pair(_), pair) => NewKey::Pair(pair.expect("a pair was found by its name")),
    };
    let mut others: Vec<NewKey<'_>> = recovery.iter().map(NewKey::Pair).collect();
    let printed = create.recovery_key.map(NewSecret::recovery);
    others.extend(printed.map(NewKey::Secret));
    let (volume, unlocked) = Volume::create(Arc::clone(&device), &create.format, owner, &others)?;
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
    save_backup(settings, path, Reason::Overwritten, &old)
}

/// Writes a backup into the backup directory, with mode 0600. It is on stable storage on return. A
/// dry run only chooses its name.
pub fn save_backup(
    settings: &Settings,
    path: &Path,
    reason: Reason,
    bytes: &[u8],
) -> Result<PathBuf> {
    let dir = settings.backup_dir();
    let stem = path
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let now = unix_time::now().as_nanos();
    let to = dir.join(format!("{stem}.{}.{now}", reason.word()));
    if !settings.is_dry_run() {
        own_dir(&dir, "EVFS_BACKUP_DIR")?;
        write_new(&to, bytes)?;
    }
    Ok(to)
}

/// Writes a new file with mode 0600 and syncs it; it gets its name when it is complete.
///
/// # Errors
/// `path` exists: a backup never overwrites another one.
pub fn write_new(path: &Path, bytes: &[u8]) -> Result<()> {
    use std::io::Write;
    let new = NewFile::begin(path).map_err(|e| match e.errno() {
        libc::EEXIST => Error::io(
            "cannot create",
            path,
            std::io::Error::from_raw_os_error(libc::EEXIST),
        ),
        _ => e.into(),
    })?;
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
    /// The secret that opens the volume again, if it is to be kept.
    pub kept_key: Option<SecretBytes>,
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
    /// Size of the data, if the header fixes it, in bytes.
    pub fixed_bytes: Option<u64>,
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
    /// Return what opens the volume again.
    pub keep_key: bool,
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
    opener.trust().load()?.check_plaintext(&disk)?;
    Ok(OpenedDevice {
        device,
        cipher: None,
        direct: disk.direct(),
        disk,
        first_use: None,
        damaged_copy: None,
        kept_key: None,
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
    let known = opener.trust().load()?;
    let volume = {
        // The header is read once, under its lock; later steps use only this copy.
        let _guard = disk.header_lock(Sharing::Shared)?;
        Volume::open(disk.device())?.with_kdf_limits(opener.kdf_limits())
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
        fixed_bytes: volume.segment().size,
        kernel: device.kernel(),
        keyslot: unlocked.keyslot,
        role: unlocked.role,
    };
    let kept_key = options.keep_key.then(|| unlocked.to_keep(&volume));
    secret::burn_stack();
    Ok(OpenedDevice {
        device: Arc::new(device),
        cipher: Some(cipher),
        direct: disk.direct(),
        disk,
        first_use,
        damaged_copy: volume.damaged_copy(),
        kept_key,
    })
}
