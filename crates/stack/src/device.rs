//! DEVICE arguments: a file, a block device, `nbd://...`, `nbd+unix://...`,
//! `iscsi://PORTAL/TARGET/LUN`, `rbd:POOL/IMAGE`, or the name of a LUN. Several of them joined by
//! `+` are paths of one LUN.

mod address;
mod locked;
mod peek;

use crate::claim::{self, Claim};
use crate::in_use::{self, InUse, InUseRecord, Others};
use crate::ownership::{self, OwnRecord, OwnedPath, Ownership};
use crate::paths::run_dir;
use crate::place::{Places, place_of_lun};
use crate::registry::{KnownLun, Registry, unknown};
use crate::text::uuid_text;
use crate::{Error, Result, Settings};
use address::addresses;
pub use address::{default_name, is_lun};
pub(crate) use address::{full_address, is_lun_name, is_uri};
use block::{Access, BlockDevice, Scratch};
use lunpath::{Identity, Lunpath};
use multipath::{Config, Lun, PathSpec, Proof};
use numa::Topology;
pub use path_file::Sharing;
use path_file::{FileDevice, FilePath, HeaderGuard};
use path_iscsi::IscsiPath;
use path_nbd::{NbdPath, NbdUri};
use path_rbd::{RbdAddress, RbdPath};
pub(crate) use peek::{Peek, answers, peek};
use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Limit for one connection attempt.
pub const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Concurrent access that an open of the device allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// None, on this machine or another.
    Exclusive,
    /// None, while the content is replaced: no in-use record is written.
    Replace,
    /// None under this name: its bytes are exported, and a client may open the content.
    Bytes,
    /// Readers only.
    Readers,
    /// Any.
    All,
}

impl Share {
    /// The access for which the content is claimed.
    fn claimed(self) -> Access {
        match self {
            Share::Readers => Access::ReadOnly,
            Share::Exclusive | Share::Replace | Share::Bytes | Share::All => Access::ReadWrite,
        }
    }
}

/// A device opened by name.
#[derive(Clone)]
pub enum Disk {
    File(Arc<OpenFile>),
    Lun(Arc<OpenLun>),
}

/// A file or block device opened by this process.
pub struct OpenFile {
    hold: OnceLock<Hold>,
    file: Arc<FileDevice>,
    places: Places,
    /// In a dry run: the device that keeps changes in memory.
    scratch: Option<Scratch>,
}

/// Exclusion of other users of a volume. Fields drop in order: the in-use record before the claim.
struct Hold {
    in_use: Option<InUse>,
    /// Whether the device has a record, even if this process does not maintain it.
    has_record: bool,
    _claim: Claim,
}

impl OpenFile {
    /// Returns the underlying file or block device.
    pub(crate) fn file(&self) -> &FileDevice {
        &self.file
    }
}

impl BlockDevice for OpenFile {
    fn info(&self) -> &block::DeviceInfo {
        let scratch = self.scratch.as_ref().map(Scratch::info);
        scratch.unwrap_or_else(|| self.file.info())
    }

    fn update_size(&self) -> block::Result<u64> {
        self.file.update_size()
    }

    fn queue(&self) -> block::Result<Box<dyn block::Queue>> {
        match &self.scratch {
            Some(scratch) => scratch.queue(),
            None => Ok(guarded(&self.hold, self.file.queue()?)),
        }
    }
}

fn guarded(hold: &OnceLock<Hold>, queue: Box<dyn block::Queue>) -> Box<dyn block::Queue> {
    match hold.get().and_then(|hold| hold.in_use.as_ref()) {
        Some(in_use) => in_use.queue(queue),
        None => queue,
    }
}

/// A LUN opened by this process.
pub struct OpenLun {
    hold: OnceLock<Hold>,
    lun: Arc<Lun>,
    /// Device that serves the data: the whole LUN, or its view by a legacy name.
    view: Arc<dyn BlockDevice>,
    /// The same for the in-use record, for which threads of other I/O wait.
    beside: Arc<dyn BlockDevice>,
    lock: PathBuf,
    places: Places,
    scratch: Option<Scratch>,
    /// Its enabled paths, and the own record that new connections look for.
    paths: Vec<Arc<dyn Lunpath>>,
    own_record: Arc<OnceLock<OwnRecord>>,
    _open: Option<File>,
}

impl OpenLun {
    /// Returns the multipath LUN.
    pub fn lun(&self) -> &Lun {
        &self.lun
    }
}

impl BlockDevice for OpenLun {
    fn info(&self) -> &block::DeviceInfo {
        let scratch = self.scratch.as_ref().map(Scratch::info);
        scratch.unwrap_or_else(|| self.lun.info())
    }

    fn update_size(&self) -> block::Result<u64> {
        self.lun.update_size()
    }

    fn queue(&self) -> block::Result<Box<dyn block::Queue>> {
        match &self.scratch {
            Some(scratch) => scratch.queue(),
            None => Ok(guarded(&self.hold, self.view.queue()?)),
        }
    }
}

/// A header lock: that of `cryptsetup` for a file, our own for a LUN, which has no file.
pub enum Guard {
    /// Lock on a file.
    File(HeaderGuard),
    /// Lock on a LUN.
    Lun(File),
}

impl From<Arc<FileDevice>> for Disk {
    fn from(file: Arc<FileDevice>) -> Disk {
        Disk::of_file(file, None)
    }
}

impl Disk {
    fn of_file(file: Arc<FileDevice>, scratch: Option<Scratch>) -> Disk {
        let hold = OnceLock::new();
        let places = Places::of_file(&file);
        Disk::File(Arc::new(OpenFile {
            hold,
            file,
            places,
            scratch,
        }))
    }

    /// Returns the device.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        match self {
            Disk::File(file) => Arc::clone(file) as _,
            Disk::Lun(lun) => Arc::clone(lun) as _,
        }
    }

    pub(crate) fn places(&self) -> &Places {
        match self {
            Disk::File(file) => &file.places,
            Disk::Lun(lun) => &lun.places,
        }
    }

    /// Returns the LUN, or `None` for a file or disk.
    pub fn lun(&self) -> Option<&Arc<OpenLun>> {
        match self {
            Disk::File(_) => None,
            Disk::Lun(lun) => Some(lun),
        }
    }

    /// Reports whether I/O bypasses the page cache. A LUN has none on this host.
    pub fn direct(&self) -> bool {
        match self {
            Disk::File(file) => file.file.direct(),
            Disk::Lun(_) => true,
        }
    }

    /// Takes the header lock.
    ///
    /// # Errors
    /// Another process holds the lock.
    pub fn header_lock(&self, sharing: Sharing) -> Result<Guard> {
        match self {
            Disk::File(file) => Ok(Guard::File(file.file.header_lock(sharing)?)),
            Disk::Lun(lun) => Ok(Guard::Lun(take(&lun.lock, "header", sharing)?)),
        }
    }

    /// Returns the state of the in-use record that excludes writers on other machines.
    pub(crate) fn in_use_record(&self) -> InUseRecord {
        let place = match self {
            Disk::File(file) => &file.hold,
            Disk::Lun(lun) => &lun.hold,
        };
        match place.get() {
            Some(Hold {
                in_use: Some(own), ..
            }) => own.record_state(),
            Some(hold) if hold.has_record => InUseRecord::Reader,
            _ => InUseRecord::Impossible,
        }
    }

    /// Excludes other users of the content while the device is open. Content without a UUID is
    /// protected only by the locks of its name.
    fn hold(&self, name: &Path, share: Share, settings: &Settings) -> Result<()> {
        let Some(content) = self.content() else {
            return Ok(());
        };
        let shown = name.display().to_string();
        let claim = Claim::take(&content.uuid, &shown, share.claimed())?;
        let (below, place) = match self {
            Disk::File(file) => (Arc::clone(&file.file) as Arc<dyn BlockDevice>, &file.hold),
            Disk::Lun(lun) => (Arc::clone(&lun.beside), &lun.hold),
        };
        let in_use = match content.record {
            Some(at)
                if share == Share::Exclusive
                    && !below.info().read_only
                    && !settings.is_dry_run() =>
            {
                let interval = settings.volume_heartbeat();
                let ownership = settings.ownership();
                let is_fenced = ownership.map_or(Ok(false), Ownership::must_fence)?;
                let is_exclusive = self.lun().is_some_and(|lun| lun.lun.is_exclusive());
                let others = if is_exclusive || is_fenced {
                    Others::AreRefused
                } else {
                    Others::CanWrite
                };
                let in_use = InUse::begin(below, at, &shown, interval, ownership, others)?;
                if let (Some(lun), true) = (self.lun(), ownership.is_some()) {
                    let _ = lun.own_record.set(in_use.own_record());
                    if is_fenced {
                        ownership::evict(&lun.paths, &shown, CONNECT_WITHIN)?;
                    }
                }
                ownership.map_or(Ok(()), Ownership::stored)?;
                Some(in_use)
            }
            Some(at) => {
                in_use::check(&*below, at, &shown)?;
                None
            }
            None if settings.ownership().is_some() => {
                return Err(Error::Failed(format!(
                    "{shown} has no room for the in-use record, which a unit of a cluster needs; \
                     create the volume with `evfs volume create`"
                )));
            }
            None => None,
        };
        let _ = place.set(Hold {
            in_use,
            has_record: content.record.is_some(),
            _claim: claim,
        });
        Ok(())
    }

    /// Identifies the volume or file system on the device, if it can be opened.
    fn content(&self) -> Option<Content> {
        // Plaintext content is readable even without permission to take the header lock.
        let _guard = self.header_lock(Sharing::Shared).ok();
        self.content_now()
    }

    /// Same as [`Disk::content`], without the lock: the header may change at the same time.
    fn content_now(&self) -> Option<Content> {
        let device = self.device();
        if let Ok(volume) = crypt::Volume::open(Arc::clone(&device)) {
            let record = volume.reserved_block();
            return Some(Content {
                uuid: volume.uuid().to_ascii_lowercase(),
                // Without the magic, the gap before the data may belong to another program.
                record: record.filter(|at| in_use::is_there(&*device, *at)),
            });
        }
        let superblock = fs::Superblock::on(&*device)?;
        Some(Content {
            uuid: uuid_text(&superblock.uuid),
            record: Some(fs::RESERVED_BYTE),
        })
    }
}

/// Content of a disk.
struct Content {
    uuid: String,
    /// Offset of its in-use record, in bytes.
    record: Option<u64>,
}

/// Chooses the base name of the lock files of a LUN. They are beside the registry, so that all
/// processes that know the LUN by this name share them, whatever their run directory. If this user
/// cannot write there, they are in the run directory.
pub(crate) fn lock_of_lun(settings: &Settings, name: &str) -> Result<PathBuf> {
    let registry = settings.lun_registry();
    let me = rustix::process::geteuid().as_raw();
    let may_write = |folder: &Path| {
        std::fs::metadata(folder).is_ok_and(|meta| meta.uid() == me)
            && rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_ok()
    };
    if registry.parent().is_some_and(may_write) {
        let mut file = registry.file_name().unwrap_or_default().to_owned();
        file.push(format!(".{name}.lock"));
        return Ok(registry.with_file_name(file));
    }
    let folder = run_dir(&settings.run_dir())?;
    Ok(folder.join(format!("lun.{name}.lock")))
}

/// Takes a lock among the processes of this machine.
pub(crate) fn take(base: &Path, what: &str, sharing: Sharing) -> Result<File> {
    let path = base.with_extension(what);
    let failed = |e| Error::io("cannot lock", &path, e);
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    let until = std::time::Instant::now() + Duration::from_secs(1);
    loop {
        let taken = match sharing {
            Sharing::Exclusive => file.try_lock(),
            Sharing::Shared => file.try_lock_shared(),
        };
        match taken {
            Ok(()) => return Ok(file),
            // A killed process may take a moment to exit.
            Err(std::fs::TryLockError::WouldBlock) if std::time::Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(std::fs::TryLockError::WouldBlock) => {
                let name = base.file_stem().unwrap_or_default().to_string_lossy();
                let name = name.rsplit('.').next().unwrap_or_default();
                let who = locked_by(&file);
                return Err(Error::Busy(format!(
                    "{name} is in use by {}; `evfs status` lists what this user has attached",
                    who.unwrap_or_else(|| "another process on this machine".into())
                )));
            }
            Err(std::fs::TryLockError::Error(e)) => return Err(failed(e)),
        }
    }
}

/// Describes the process that holds a lock on a file, if the kernel reports it.
fn locked_by(file: &File) -> Option<String> {
    let meta = file.metadata().ok()?;
    let (major, minor) = (libc::major(meta.dev()), libc::minor(meta.dev()));
    let same = format!("{major:02x}:{minor:02x}:{}", meta.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let pid = locks.lines().find_map(|line| {
        // `1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF`; a waiter has a `->` before the kind.
        let mut words = line.split_whitespace().skip(1);
        let held = words.next()? == "FLOCK";
        let (pid, on) = (words.nth(2)?, words.next()?);
        (held && on == same).then(|| pid.parse().ok()).flatten()
    })?;
    // The number is 0 for a process of another PID namespace.
    (pid > 0).then(|| claim::program(pid))
}

/// Creates the path to the disk at an address, without connecting: one of several of its LUN.
///
/// # Errors
/// The address is invalid.
pub fn lunpath(address: &str, settings: &Settings, access: Access) -> Result<Arc<dyn Lunpath>> {
    lunpath_of(address, settings, access, Company::Others)
}

/// Whether a LUN has other paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Company {
    Alone,
    Others,
}

/// Same as [`lunpath()`], for a LUN that may have no other path.
fn lunpath_of(
    address: &str,
    settings: &Settings,
    access: Access,
    company: Company,
) -> Result<Arc<dyn Lunpath>> {
    if NbdUri::is_one(address) {
        let options = path_nbd::Options {
            read_only: access.is_read_only(),
            ..path_nbd::Options::default()
        };
        return Ok(Arc::new(NbdPath::new(NbdUri::parse(address)?, options)));
    }
    if address.starts_with("iscsi://") {
        let options = iscsi_options(settings, access);
        return Ok(Arc::new(IscsiPath::parse(address, options)?));
    }
    if RbdAddress::is_one(address) {
        return Ok(Arc::new(RbdPath::parse(
            address,
            rbd_options(access, company),
        )?));
    }
    known_scheme(address)?;
    let options = path_file::Options {
        read_only: access.is_read_only(),
        lock: match access {
            Access::ReadOnly => path_file::Lock::Shared,
            Access::ReadWrite => path_file::Lock::Exclusive,
        },
        ..path_file::Options::default()
    };
    Ok(Arc::new(FilePath::new(address.into(), options)))
}

/// Refuses an unknown URI scheme.
fn known_scheme(address: &str) -> Result<()> {
    if address.contains("://") && !Path::new(address).exists() {
        Err(Error::Usage(format!(
            "{address}: unknown address scheme; use nbd://, nbds://, nbd+unix://, nbds+unix://, \
             iscsi:// or rbd:"
        )))
    } else {
        Ok(())
    }
}

/// Time after which a request on an RBD path is given up, so that another path can carry it out.
const RBD_GIVE_UP: Duration = Duration::from_secs(30);

/// Chooses the options of an RBD path. The only path of a LUN keeps the lock of its image, and its
/// requests wait for the cluster. Beside other paths it hands the lock to gateways that ask for it.
fn rbd_options(access: Access, company: Company) -> path_rbd::Options {
    let (lock, give_up) = match company {
        Company::Alone => (path_rbd::Lock::Exclusive, None),
        Company::Others => (path_rbd::Lock::Cooperative, Some(RBD_GIVE_UP)),
    };
    path_rbd::Options {
        read_only: access.is_read_only(),
        lock,
        give_up,
        ..path_rbd::Options::default()
    }
}

/// Builds the options of logins to iSCSI targets.
pub fn iscsi_options(settings: &Settings, access: Access) -> path_iscsi::Options {
    let digest = |on: bool| {
        if on {
            path_iscsi::DigestPolicy::Prefer
        } else {
            path_iscsi::DigestPolicy::Never
        }
    };
    path_iscsi::Options {
        initiator_name: settings.iscsi_initiator_name().to_owned(),
        chap_secret_file: settings.iscsi_chap_secret_file(),
        header_digest: digest(settings.iscsi_digests()),
        data_digest: digest(settings.iscsi_digests()),
        persistent_reservations: settings.iscsi_persistent_reservations()
            && access == Access::ReadWrite,
        read_only: access.is_read_only(),
        ..path_iscsi::Options::default()
    }
}

/// Opens a DEVICE.
///
/// # Errors
/// The file or LUN does not exist, it is in use, or no path leads to it.
pub fn open(device: &Path, settings: &Settings, access: Access, share: Share) -> Result<Disk> {
    let disk = open_unclaimed(device, settings, access, share)?;
    match share {
        Share::All | Share::Bytes => {}
        share => disk.hold(device, share, settings)?,
    }
    Ok(disk)
}

fn open_unclaimed(
    device: &Path,
    settings: &Settings,
    access: Access,
    share: Share,
) -> Result<Disk> {
    if let Some(addresses) = addresses(device) {
        let open = open_lun(&addresses, settings, access, share)?;
        return Ok(Disk::Lun(Arc::new(open)));
    }
    if let Some(text) = device.to_str() {
        if device.exists() {
            no_lun_of_that_name(text, settings)?
        } else {
            known_scheme(text)?
        }
    }
    let options = path_file::Options {
        read_only: access.is_read_only(),
        lock: match share {
            Share::Exclusive | Share::Replace | Share::Bytes => path_file::Lock::Exclusive,
            Share::Readers => path_file::Lock::Shared,
            Share::All => path_file::Lock::None,
        },
        holder: match (share, settings.succession()) {
            (Share::Exclusive | Share::Readers, Some(succession)) => succession.lock_holder(),
            _ => path_file::Holder::Device,
        },
        ..path_file::Options::default()
    };
    if let (Access::ReadWrite, Some(ownership)) = (access, settings.ownership()) {
        let name = device.display().to_string();
        ownership::fence(ownership, &[], &name, CONNECT_WITHIN)?;
    }
    let file = locked::open(device, &options, share.claimed())?;
    let scratch = scratch_over(Arc::clone(&file) as _, settings);
    Ok(Disk::of_file(file, scratch))
}

/// In a dry run, creates the device that keeps the changes.
fn scratch_over(device: Arc<dyn BlockDevice>, settings: &Settings) -> Option<Scratch> {
    settings.is_dry_run().then(|| Scratch::new(device))
}

/// Refuses a file name that is also the name of a LUN: one could be overwritten for the other.
fn no_lun_of_that_name(name: &str, settings: &Settings) -> Result<()> {
    let is_lun = || Registry::load(&settings.lun_registry()).is_ok_and(|r| r.find(name).is_some());
    if is_lun_name(name) && is_lun() {
        Err(Error::Usage(format!(
            "{name} is ambiguous: it is a LUN, and a file in this directory; use ./{name} for the \
             file, or another directory for the LUN"
        )))
    } else {
        Ok(())
    }
}

fn open_lun(
    addresses: &[String],
    settings: &Settings,
    access: Access,
    share: Share,
) -> Result<OpenLun> {
    let file = settings.lun_registry();
    let mut registry = Registry::load(&file)?;
    let named = match addresses {
        [one] => registry.find(one).cloned(),
        _ => None,
    };
    let registered = registry.luns.len();
    let known = match (named, addresses) {
        (None, [one]) if is_lun_name(one) => return Err(unknown(one)),
        (Some(known), _) => known,
        (None, _) => enrol(addresses, &mut registry, settings, access)?,
    };
    // In a dry run. No other process can know its name.
    let is_only_planned = registry.luns.len() > registered;
    let lock = if is_only_planned {
        run_dir(&settings.run_dir())?.join("lun.new.lock")
    } else {
        lock_of_lun(settings, &known.name)?
    };
    let held = match share {
        _ if is_only_planned => None,
        Share::Exclusive | Share::Replace | Share::Bytes => {
            Some(take(&lock, "open", Sharing::Exclusive)?)
        }
        Share::Readers => Some(take(&lock, "open", Sharing::Shared)?),
        Share::All => None,
    };
    // The LUN may have been forgotten or changed while this process waited for the lock.
    if !settings.is_dry_run() {
        registry = Registry::load(&file)?;
    }
    let known = registry
        .find(&known.name)
        .ok_or_else(|| unknown(&known.name))?;
    // To open a LUN for writing can write to it.
    let access = Access::read_only_if(access.is_read_only() || settings.is_dry_run());
    let own_record = Arc::default();
    let (lun, paths) = start(known, &registry, settings, access, &own_record)?;
    let lun = Arc::new(lun);
    // The view by a legacy name or an address has all paths or only that one, as configured.
    let (view, beside): (Arc<dyn BlockDevice>, _) = match addresses {
        [one] if *one != known.name => {
            let view = lun.legacy(one)?;
            (Arc::new(view.clone()), view)
        }
        _ => (Arc::clone(&lun) as _, lun.whole()),
    };
    let scratch = scratch_over(Arc::clone(&view), settings);
    Ok(OpenLun {
        hold: OnceLock::new(),
        lun,
        view,
        beside: Arc::new(beside.without_limits()),
        scratch,
        lock,
        places: Places::of_lun(place_of_lun(&file, &known.name)),
        paths,
        own_record,
        _open: held,
    })
}

/// Registers the LUN that answers at these addresses; in a dry run only in `registry`.
fn enrol(
    addresses: &[String],
    registry: &mut Registry,
    settings: &Settings,
    access: Access,
) -> Result<KnownLun> {
    let mut lunpaths = Vec::new();
    let mut paths = Vec::new();
    for address in addresses {
        if is_lun_name(address) {
            let why =
                format!("`{address}` is the name of a LUN; join addresses, or use the name alone");
            return Err(Error::Usage(why));
        }
        let path = lunpath(address, settings, access)?;
        paths.push((address.clone(), path.target_port()));
        lunpaths.push(path);
    }
    let mut failed = None;
    for answer in multipath::identify(&lunpaths, CONNECT_WITHIN) {
        match answer {
            Ok(of) if settings.is_dry_run() => return Ok(registry.enrol(&of, &paths)),
            Ok(of) => {
                let file = settings.lun_registry();
                return Registry::update(&file, |r| Ok(r.enrol(&of, &paths)));
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Err(failed.map_or_else(|| Error::Usage("no path is given".into()), Error::from))
}

/// Opens a known LUN over its enabled paths.
fn start(
    known: &KnownLun,
    registry: &Registry,
    settings: &Settings,
    access: Access,
    own_record: &Arc<OnceLock<OwnRecord>>,
) -> Result<(Lun, Vec<Arc<dyn Lunpath>>)> {
    let mut paths = Vec::new();
    let company = match known.paths.iter().filter(|path| path.enabled).count() {
        0 | 1 => Company::Alone,
        _ => Company::Others,
    };
    for path in &known.paths {
        let mut lunpath = lunpath_of(&path.address, settings, access, company)?;
        if settings.ownership().is_some() {
            lunpath = Arc::new(OwnedPath::new(lunpath, own_record));
        }
        paths.push(PathSpec {
            path: lunpath,
            legacy: path.legacy.clone(),
            enabled: path.enabled,
        });
    }
    let used = paths.iter().filter(|spec| spec.enabled);
    let used: Vec<_> = used.map(|spec| Arc::clone(&spec.path)).collect();
    if let (Access::ReadWrite, Some(ownership)) = (access, settings.ownership()) {
        ownership::fence(ownership, &used, &known.name, CONNECT_WITHIN)?;
    }
    let transport = paths.first().map_or("file", |p| p.path.transport().name());
    let (attributes, _) = registry.attributes(known, transport)?;
    // Also for a single path: others may be added while the LUN is in use.
    let proof = match access {
        Access::ReadOnly => Proof::Compare,
        Access::ReadWrite => proof(&paths),
    };
    let topology = Topology::read(&settings.sysfs_root()).ok();
    let lun = Lun::open(Config {
        name: known.name.clone(),
        attributes,
        paths,
        identity: Some(identity_of(known)),
        proof,
        connect_within: CONNECT_WITHIN,
        topology: topology.unwrap_or_default(),
    })?;
    Ok((lun, used))
}

pub(crate) fn identity_of(known: &KnownLun) -> Identity {
    Identity {
        wwid: known.wwid.clone(),
        serial: known.serial.clone(),
        vendor: known.vendor.clone(),
        product: known.product.clone(),
        size: known.size,
        logical_block_size: known.block_size,
        read_only: false,
        access: lunpath::Access::Optimized,
    }
}

/// A path as a device of its own: one connection per queue.
struct OnePath {
    path: Arc<dyn Lunpath>,
    info: block::DeviceInfo,
}

impl OnePath {
    fn open(path: Arc<dyn Lunpath>) -> Result<OnePath> {
        let info = path.connect(CONNECT_WITHIN)?.info().clone();
        Ok(OnePath { path, info })
    }
}

impl BlockDevice for OnePath {
    fn info(&self) -> &block::DeviceInfo {
        &self.info
    }

    fn queue(&self) -> block::Result<Box<dyn block::Queue>> {
        Ok(self.path.connect(CONNECT_WITHIN)?.open()?)
    }
}

/// Finds the place on the LUN where a nonce may be written: for a volume, a block of the keyslots
/// area that belongs to no keyslot. Without a volume there is none.
fn proof(paths: &[PathSpec]) -> Proof {
    let used = paths.iter().filter(|s| s.enabled);
    let used: Vec<_> = used.map(|s| Arc::clone(&s.path)).collect();
    // Queries all paths at once: a silent path does not delay the others.
    let answers = multipath::identify(&used, CONNECT_WITHIN);
    for (path, _) in used.iter().zip(answers).filter(|(_, a)| a.is_ok()) {
        let Ok(one) = OnePath::open(Arc::clone(path)) else {
            continue;
        };
        return match crypt::free_header_block(&one) {
            Some(offset) => Proof::Nonce { offset },
            None => Proof::Compare,
        };
    }
    Proof::Compare
}
