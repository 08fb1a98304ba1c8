//! Volumes in files and on disks: where the header is, who may touch it when, and which key opens.
//!
//! Two locks keep writers apart. The *header lock* is the one `cryptsetup` takes, held for the
//! length of one header operation; keys can be added to an attached volume under it. The *open
//! lock* is held for as long as a volume is attached, or while a command replaces or destroys it.

use crate::device::{self, Disk, Guard, Share};
use crate::error::Left;
use crate::trust::{Known, Store};
use crate::{Error, Result, Settings, in_use, signature};
use block::BlockDevice;
use crypt::{Identified, Role, Seal, Unlocked, Volume};
use keyring::{Keyring, Private};
use path_file::{FileDevice, NewFile};
use secret::SecretBytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What a command means to do with a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Look at the header.
    Look,
    /// Change keys in the header; the volume may be attached meanwhile.
    ChangeHeader,
    /// Replace or destroy; nobody may have it attached.
    Replace,
}

/// A volume whose header has been read, with the locks of the intent.
pub struct Held {
    /// The volume.
    pub volume: Volume,
    /// The file, disk or LUN that it is in.
    pub disk: Disk,
    _guard: Guard,
}

impl Held {
    /// The volume key, if `source` opens it in a role that may do `what`, and the volume is what
    /// this machine remembers.
    ///
    /// # Errors
    /// Wrong key, no key at all, a volume that is not to be trusted, a right key whose role refuses.
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

    /// Unlocks the volume for a change of its header, makes the change, and remembers the header as
    /// it is then.
    ///
    /// # Errors
    /// Those of [`Held::unlock`] and of `change`.
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

    /// Seals the header as it is, if one of the keys that may do so accepts it, and `ask` does.
    ///
    /// # Errors
    /// Those of [`Held::change`] and of `ask`.
    pub fn reseal(
        &mut self,
        opener: &Opener,
        source: &KeySource,
        ask: impl FnOnce(&Volume) -> Result<()>,
    ) -> Result<()> {
        let known = opener.trust.load()?;
        let known = known.volumes.get(self.volume.uuid());
        let epoch = known.and_then(|e| e.seal.as_ref()).map_or(0, |s| s.epoch);
        self.change(opener, source, crypt::Action::Reseal, |volume, unlocked| {
            if let Some(entry) = known {
                entry.allow_reseal(volume.name(), unlocked)?;
            }
            ask(volume)?;
            Ok(volume.reseal(unlocked, epoch)?)
        })
    }
}

/// Opens the DEVICE `path` alone, without looking at what it holds.
///
/// # Errors
/// Those of [`device::open`].
pub fn open_disk(path: &Path, intent: Intent, settings: &Settings) -> Result<Disk> {
    let share = match intent {
        Intent::Replace => Share::Replace,
        Intent::Look | Intent::ChangeHeader => Share::All,
    };
    device::open(path, settings, intent == Intent::Look, share)
}

/// Opens the volume on the DEVICE `path`.
///
/// # Errors
/// What is no volume, is damaged beyond reading, or is held by somebody else.
pub fn hold(path: &Path, intent: Intent, settings: &Settings) -> Result<Held> {
    let disk = open_disk(path, intent, settings)?;
    let guard = disk.header_lock(intent != Intent::Look)?;
    let volume = match intent {
        Intent::Look => Volume::look(disk.device())?,
        _ => Volume::open(disk.device())?,
    };
    let volume = volume.with_kdf_limits(settings.kdf_limits());
    Ok(Held {
        volume,
        disk,
        _guard: guard,
    })
}

/// What to make.
pub struct Create<'a> {
    /// File or disk; a file that is missing is made with `size` bytes.
    pub path: &'a Path,
    /// Size of a new file.
    pub size: Option<u64>,
    /// Overwrite what is there.
    pub force: bool,
    /// Key length, sector size, label.
    pub format: crypt::Format,
    /// Name of the owner's key pair.
    pub owner: &'a str,
    /// Names of recovery key pairs.
    pub recovery: &'a [String],
}

/// Makes a volume. Gives the backup of what was overwritten, if anything was.
///
/// # Errors
/// [`Error::WouldDestroy`] when the device is not empty and `force` is not set.
/// A file made here has its name only when the volume is complete.
pub fn create(
    create: &Create<'_>,
    keyring: &Keyring,
    settings: &Settings,
) -> Result<(Held, Option<PathBuf>)> {
    // The keys come first: with a misspelt name nothing must have been touched.
    let owner = Identified::of(create.owner, keyring.recipient(create.owner)?);
    let recovery = create
        .recovery
        .iter()
        .map(|name| Ok(Identified::of(name, keyring.recipient(name)?)))
        .collect::<Result<Vec<_>>>()?;
    if let Some(size) = create.size {
        large_enough(create.path, size)?;
    }
    let (disk, made) = open_or_make(create.path, create.size, create.force, settings)?;
    format_over(create, disk, made, &owner, &recovery, settings)
}

/// Opens the DEVICE `path` alone, to be formatted; a file that is missing is made with `size` bytes, and has its
/// name when it is finished.
pub(crate) fn open_or_make(
    path: &Path,
    size: Option<u64>,
    force: bool,
    settings: &Settings,
) -> Result<(Disk, Option<Made>)> {
    let there = path.exists() || device::is_lun(path);
    match (there, size) {
        (false, None) => Err(Error::NotFound(format!(
            "{} does not exist; --size SIZE makes a file of that size",
            path.display()
        ))),
        (false, Some(size)) => {
            let (file, new) = FileDevice::make(path, size, &path_file::Options::default())?;
            let disk = Disk::from(Arc::clone(&file));
            settings.trust_store().clear_places(disk.places())?;
            Ok((disk, Some(Made { file, new })))
        }
        (true, Some(_)) if device::is_lun(path) => Err(Error::Usage(
            "--size makes files; the size of a LUN is its target's to give".into(),
        )),
        (true, Some(_)) if path.is_file() && !force => Err(Error::Usage(format!(
            "{} exists already, so --size does not apply; leave it out to use the file as it is",
            path.display()
        ))),
        (true, _) => Ok((open_disk(path, Intent::Replace, settings)?, None)),
    }
}

/// A file that has been made to be formatted. It has no name before it is finished, and goes when it never is.
pub(crate) struct Made {
    file: Arc<FileDevice>,
    new: NewFile,
}

impl Made {
    /// Gives it its name, and gives the disk by that name.
    pub(crate) fn finish(self) -> Result<Disk> {
        self.new.finish()?;
        Ok(self.file.into())
    }
}

/// Refuses what has no room for data behind the header.
fn large_enough(path: &Path, size: u64) -> Result<()> {
    let header = crypt::overwritten_by_format(u64::MAX);
    match size > header {
        true => Ok(()),
        false => Err(Error::Usage(format!(
            "{} is too small for a volume with {size} bytes: its header takes {} MiB, so at least {}M are needed",
            path.display(),
            header >> 20,
            (header >> 20) + 1
        ))),
    }
}

fn format_over(
    create: &Create<'_>,
    disk: Disk,
    made: Option<Made>,
    owner: &Identified,
    recovery: &[Identified],
    settings: &Settings,
) -> Result<(Held, Option<PathBuf>)> {
    let guard = disk.header_lock(true)?;
    let device = disk.device();
    let found = match made {
        Some(_) => None,
        None => signature::content_of(&disk)?,
    };
    if let Some(found) = found
        && !create.force
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
    // Its places are those of its name. Killed before they are noted, it is one that this machine does not know.
    let disk = made.map_or(Ok(disk), Made::finish)?;
    let trust = settings.trust_store();
    trust.clear_places(disk.places())?;
    trust.record(&volume, &unlocked, &disk)?;
    Ok((
        Held {
            volume,
            disk,
            _guard: guard,
        },
        backup,
    ))
}

/// Keeps the first bytes of a disk, as they lie there, in the backup folder.
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

/// Writes a backup into the backup folder: 0600, durable before anything is destroyed.
pub fn save_backup(settings: &Settings, path: &Path, what: &str, bytes: &[u8]) -> Result<PathBuf> {
    let dir = settings.backup_dir();
    crate::control::own_dir(&dir, "EVFS_BACKUP_DIR")?;
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

/// Writes a new file, 0600, and makes it durable; it has its name when it is complete.
///
/// # Errors
/// When `path` exists: a backup never overwrites another.
pub fn write_new(path: &Path, bytes: &[u8]) -> Result<()> {
    use std::io::Write;
    let new = NewFile::begin(path)?;
    let written = new.file().write_all(bytes);
    written.map_err(|e| Error::io("cannot write", path, e))?;
    Ok(new.finish()?)
}

/// The key derivation for a new passphrase: Argon2id that takes as long as the settings say on this
/// machine, in at most half of its memory. Measures for a few seconds.
pub fn passphrase_kdf(settings: &Settings) -> luks2::Kdf {
    let start = std::time::Instant::now();
    let half = u32::try_from(crate::memory::machine_kib() / 2).unwrap_or(u32::MAX);
    let memory = settings.kdf_memory_kib().min(half);
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let chosen = luks2::Kdf::calibrate(&|| start.elapsed(), settings.kdf_time(), memory, cpus);
    // Without the memory to measure with, the least that is worth having: 32 MiB.
    chosen.unwrap_or(luks2::Kdf::Argon2id(luks2::Argon2Cost {
        time: 4,
        memory_kib: 32 * 1024,
        cpus: 1,
    }))
}

/// How a key derivation is shown.
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

/// With what a volume is to be opened.
pub enum KeySource {
    /// Whatever this user has: key pairs that the volume knows, then a passphrase.
    Any,
    /// This key pair.
    Pair {
        /// Its name.
        name: String,
        /// The passphrase that protects its file; asked for when it is needed and not given.
        passphrase: Option<SecretBytes>,
    },
    /// A passphrase or the content of a key file.
    Secret(SecretBytes),
}

/// Asks a person for a passphrase, in the words it is given.
pub type Prompt = fn(&str) -> Result<SecretBytes>;

/// Tells a person something, in a line.
pub type Tell = Box<dyn Fn(&str) + Send + Sync>;

/// Opens volumes with the keys of a user, if they are what this machine remembers.
pub struct Opener {
    keyring: Keyring,
    prompt: Prompt,
    tell: Tell,
    trust: Store,
    kdf_limits: luks2::KdfLimits,
}

impl Opener {
    /// With these key pairs and this memory, asking and telling in these ways; trying a key may
    /// cost so much.
    pub fn new(
        keyring: Keyring,
        prompt: Prompt,
        tell: Tell,
        trust: Store,
        kdf_limits: luks2::KdfLimits,
    ) -> Opener {
        Opener {
            keyring,
            prompt,
            tell,
            trust,
            kdf_limits,
        }
    }

    /// The volume key, if `source` opens it in a role that may do `what`, and the volume is what
    /// `known` says. A volume that is opened for the first time is remembered; gives what was told
    /// of it then.
    ///
    /// `known` has to be read before the header, or under the header lock.
    ///
    /// # Errors
    /// Wrong key, no key at all, a volume that is not to be trusted, or a right key whose role
    /// refuses.
    fn unlock(
        &self,
        volume: &Volume,
        disk: &Disk,
        known: &Known,
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
        known.judge(volume, &unlocked, disk, what)?;
        unlocked.role.allow(what)?;
        let is_first = unlocked.seal.holds() && self.trust.record(volume, &unlocked, disk)?;
        let notice = is_first.then(|| first_use(volume, &unlocked));
        if let Some(notice) = &notice {
            (self.tell)(notice);
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

    /// The key pairs of this user that the volume knows, those that may do `what` and need no
    /// passphrase first; then a passphrase for the volume itself.
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
                "none of the key pairs of this user opens the volume; name one with --key, or ask its owner to add one",
            )
            .into());
        }
        let secret = (self.prompt)(&format!("Passphrase for {}", volume.name()))?;
        Ok(volume.unlock_secret(&secret)?)
    }
}

/// What is said of a volume that this machine has not opened before.
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
        Seal::Never => "it carries no seal, so that a changed header would not show",
        _ => "from now on a volume that only looks like it is refused",
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

/// A DEVICE that is open for its data: what reads clear, and what to say about it.
pub struct Open {
    /// Reads clear.
    pub device: Arc<dyn BlockDevice>,
    /// How it lies enciphered, if it does.
    pub cipher: Option<Cipher>,
    /// Whether the file is read past the page cache.
    pub direct: bool,
    /// What it lies on.
    pub disk: Disk,
    /// What was told of a volume that this machine opens for the first time.
    pub first_use: Option<String>,
    /// The copy of the header that is damaged.
    pub damaged_copy: Option<&'static str>,
}

/// What there is to say about an encrypted volume that is open.
#[derive(Debug, Clone)]
pub struct Cipher {
    /// UUID in the header.
    pub uuid: String,
    /// Label in the header.
    pub label: String,
    /// Bytes of an encryption sector.
    pub sector_size: u32,
    /// 128 or 256.
    pub key_bits: u32,
    /// Where the data begins on the disk.
    pub data_offset: u64,
    /// The cipher kernel at work.
    pub kernel: xts::Kernel,
    /// The keyslot that opened it.
    pub keyslot: u32,
    /// The role of the key that opened it.
    pub role: Role,
}

/// How to open a volume for its data.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// Pass discards on.
    pub allow_discards: bool,
}

/// Opens the volume at `path` for its data and holds its open lock as long as the device lives.
///
/// # Errors
/// Those of [`hold`] and [`Held::unlock`]; a header whose seal does not hold is refused.
pub fn open(
    path: &Path,
    opener: &Opener,
    source: &KeySource,
    options: OpenOptions,
    settings: &Settings,
) -> Result<Open> {
    let disk = open_for_data(path, options, settings)?;
    decipher(disk, opener, source, options)
}

/// Opens the DEVICE `path` for its data, whether it is an encrypted volume or holds its data in the
/// clear. `source` is asked for a key only if it takes one.
///
/// # Errors
/// As [`open`].
pub fn open_any(
    path: &Path,
    opener: &Opener,
    source: &dyn Fn() -> Result<KeySource>,
    options: OpenOptions,
    settings: &Settings,
) -> Result<Open> {
    let disk = open_for_data(path, options, settings)?;
    of_disk(disk, opener, source, options)
}

/// The same for a DEVICE that has been opened already.
pub(crate) fn of_disk(
    disk: Disk,
    opener: &Opener,
    source: &dyn Fn() -> Result<KeySource>,
    options: OpenOptions,
) -> Result<Open> {
    let device = disk.device();
    if signature::find(&*device)?.is_some_and(signature::is_volume) {
        return decipher(disk, opener, &source()?, options);
    }
    opener.trust.load()?.judge_clear(&disk)?;
    Ok(Open {
        device,
        cipher: None,
        direct: disk.direct(),
        disk,
        first_use: None,
        damaged_copy: None,
    })
}

/// The error of a DEVICE that was to be written to: one that can only be read names the option that opens it so,
/// in a command line or in a configuration file.
pub fn or_read_only(error: Error, device: &Path, configured: bool) -> Error {
    use block::ErrorKind::{Permission, ReadOnly};
    let how = match configured {
        true => "`read-only = true`",
        false => "--read-only",
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
    let share = match options.read_only {
        true => Share::Readers,
        false => Share::Exclusive,
    };
    device::open(path, settings, options.read_only, share)
}

fn decipher(disk: Disk, opener: &Opener, source: &KeySource, options: OpenOptions) -> Result<Open> {
    let known = opener.trust.load()?;
    let volume = {
        // The header is read once, under its lock; from here on only this copy is used.
        let _guard = disk.header_lock(false)?;
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
    Ok(Open {
        device: Arc::new(device),
        cipher: Some(cipher),
        direct: disk.direct(),
        disk,
        first_use,
        damaged_copy: volume.damaged_copy(),
    })
}
