//! Cells: a file system whose filesets are the volumes of an AFS cell, made and administered.
//!
//! **Invariant:** a question is answered by one function, whether the cell is served, and the process
//! that serves it is asked, or not, and it is opened for the question.
//!
//! A cell's name and addresses are kept with the file system, as an attribute of the root directory of
//! `root.cell`: lines of text, the first of which names the version.

use crate::cache::ProcessCache;
use crate::control::{self, valid_name};
use crate::filesystem::{FIRST_FILESET, Target, format_device, mounted_as, open_fs, options};
use crate::volume::{Open, OpenOptions};
use crate::{Error, Result, Settings, device, signature, volume};
use ::fs::{Fs, Kind as FsKind, ROOT, SetXattr};
use afs_proto::Rights;
use afs_proto::acl::{AccessList, Entry};
use afs_server::{AdminError, Administration, Kind, MountPoint, NewVolume, ROOTS, Volume};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

/// The attribute that makes a file system a cell.
const RECORD: &[u8] = b"trusted.afs.cell";
/// Its first line: what it is, and its version.
const RECORD_VERSION: &str = "evfs-cell 1";
/// Bytes of it that are read at most.
const RECORD_BYTES_MAX: usize = 4096;

/// Bytes of a cell's name at most, as clients have it (`MAXCELLCHARS` in OpenAFS `src/afs/afs.h`).
const NAME_BYTES_MAX: usize = 63;

/// What can be asked of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    /// What it is, and how its server does.
    Status {
        /// Each client, too.
        clients: bool,
    },
    /// The access list of a folder.
    AclGet {
        /// Volume.
        volume: String,
        /// Path from its root.
        path: String,
    },
    /// Changes an access list.
    AclSet {
        /// Volume.
        volume: String,
        /// Path from its root.
        path: String,
        /// Names and rights: letters, or read, write, all or none.
        changes: Vec<(String, String)>,
        /// Entries that take rights away.
        negative: bool,
        /// Begin with an empty list.
        clear: bool,
    },
    /// Its volumes.
    List,
    /// Makes a volume.
    Create {
        /// Its name.
        name: String,
        /// Bytes that it may hold.
        quota: Option<u64>,
        /// Where it is found, from the top of the cell.
        mount: Option<String>,
    },
    /// Makes a mount point of a volume that is there.
    Mount {
        /// The volume.
        name: String,
        /// Where it is found, from the top of the cell.
        path: String,
        /// Never its replica.
        read_write: bool,
    },
    /// Makes the replica of a volume, or makes it anew.
    Clone {
        /// The volume.
        name: String,
        /// Its backup instead.
        backup: bool,
    },
    /// Limits a volume.
    Quota {
        /// Its name.
        name: String,
        /// Bytes that it may hold; 0 is no limit.
        bytes: u64,
    },
    /// Removes a volume.
    Remove {
        /// Its name.
        name: String,
        /// Even if there is something in it.
        force: bool,
    },
}

impl Ask {
    fn changes(&self) -> bool {
        !matches!(self, Ask::Status { .. } | Ask::AclGet { .. } | Ask::List)
    }
}

/// What is kept of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Record {
    /// Its name.
    pub name: String,
    /// Addresses that it is served at where nothing else is said.
    pub listen: Vec<Ipv4Addr>,
}

impl Record {
    fn to_text(&self) -> String {
        let addresses = self.listen.iter().map(|a| format!("listen {a}\n"));
        let addresses: String = addresses.collect();
        format!("{RECORD_VERSION}\nname {}\n{addresses}", self.name)
    }

    /// Reads what is kept. It may have been written by anybody who had the device.
    fn parse(bytes: &[u8]) -> std::result::Result<Record, String> {
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(format!("it has more than {RECORD_BYTES_MAX} bytes"));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| "it is no text")?;
        let mut lines = text.lines();
        match lines.next() {
            Some(RECORD_VERSION) => {}
            _ => return Err("it is of a version that is not known here".into()),
        }
        let mut record = Record {
            name: String::new(),
            listen: Vec::new(),
        };
        for line in lines {
            match line.split_once(' ') {
                Some(("name", name)) if record.name.is_empty() => {
                    check_name(name).map_err(|e| e.to_string())?;
                    name.clone_into(&mut record.name);
                }
                Some(("listen", address)) if record.listen.len() < afs_server::ADDRESSES_MAX => {
                    let parsed = address.parse().map_err(|_| "an address makes no sense")?;
                    record.listen.push(parsed);
                }
                _ => return Err("a line of it makes no sense".into()),
            }
        }
        match record.name.is_empty() || record.listen.is_empty() {
            false => Ok(record),
            true => Err("a line of it is missing".into()),
        }
    }

    /// What is kept with a file system; nothing if it is no cell.
    fn read(fs: &Fs, device: &str) -> Result<Option<Record>> {
        let Ok(root_cell) = fs.fileset_named(ROOTS[1]) else {
            return Ok(None);
        };
        let bytes = match root_cell.xattr(ROOT, RECORD) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == FsKind::NoAttribute => return Ok(None),
            Err(error) => return Err(Error::files(format!("cannot read {device}"))(error)),
        };
        let record = Record::parse(&bytes).map_err(|why| {
            Error::Failed(format!(
                "what {device} says of its cell cannot be read: {why}; `evfs cell init` on a file \
                 system whose root.cell was renamed makes it anew"
            ))
        })?;
        Ok(Some(record))
    }

    /// The same, of a file system that has to be a cell.
    pub(crate) fn of(fs: &Fs, device: &str) -> Result<Record> {
        Record::read(fs, device)?.ok_or_else(|| {
            Error::NotFound(format!(
                "{device} is no cell; `evfs cell init NAME {device}` makes it one"
            ))
        })
    }

    fn write(&self, fs: &Fs, device: &str) -> Result<()> {
        let failed = || Error::files(format!("cannot write to {device}"));
        let root_cell = fs.fileset_named(ROOTS[1]).map_err(failed())?;
        let text = self.to_text();
        let set = root_cell.set_xattr(ROOT, RECORD, text.as_bytes(), SetXattr::Any);
        set.and_then(|()| fs.sync()).map_err(failed())
    }
}

/// Refuses what cannot be the name of a cell: it is a domain name, in small letters, because Linux
/// looks for no others.
///
/// # Errors
/// [`Error::Usage`].
pub fn check_name(name: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let label = |l: &str| {
        (1..=63).contains(&l.len())
            && l.chars().all(good)
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    let is_address = name.parse::<Ipv4Addr>().is_ok();
    match name.len() <= NAME_BYTES_MAX && name.split('.').all(label) && !is_address {
        true => Ok(()),
        false => Err(Error::Usage(format!(
            "`{name}` cannot be the name of a cell: it is written as a domain name, in small letters, \
             digits and `-`, at most {NAME_BYTES_MAX}, like example.org"
        ))),
    }
}

/// Refuses addresses that cannot be listened at together, or too many.
///
/// # Errors
/// [`Error::Usage`].
pub(crate) fn check_addresses(listen: &[Ipv4Addr], announce: &[Ipv4Addr]) -> Result<()> {
    let usage = |why: String| Err(Error::Usage(why));
    if listen.len().max(announce.len()) > afs_server::ADDRESSES_MAX {
        return usage(format!(
            "a server has at most {} addresses",
            afs_server::ADDRESSES_MAX
        ));
    }
    for (index, address) in listen.iter().enumerate() {
        if listen[..index].contains(address) {
            return usage(format!("{address} is named twice"));
        }
    }
    if listen.len() > 1 && listen.contains(&Ipv4Addr::UNSPECIFIED) {
        return usage("0.0.0.0 is every address of this machine: name it alone".into());
    }
    if listen.contains(&Ipv4Addr::UNSPECIFIED) && announce.is_empty() {
        return usage(
            "0.0.0.0 is every address of this machine, and no client can be told of it: name with \
             --announce those that clients are to use"
                .into(),
        );
    }
    Ok(())
}

/// What `cell init` has made.
#[derive(Debug, Serialize)]
pub struct Made {
    /// Name and addresses.
    #[serde(flatten)]
    pub cell: Record,
    /// The device was formatted for it.
    pub formatted: bool,
    /// It lies enciphered.
    pub encrypted: bool,
    /// Its volumes.
    pub volumes: Value,
    /// What clients have to be told.
    pub cellservdb: String,
}

/// Makes a DEVICE a cell: with a file system, if it has none; with the volumes and mount points that
/// clients look for. What is there stays. A file that is missing is made with `size` bytes.
///
/// # Errors
/// A name that cannot be one; a device that holds something else; a cell of another name.
pub fn init(
    target: &Target<'_>,
    record: &Record,
    size: Option<u64>,
    cache: &ProcessCache,
) -> Result<Made> {
    check_name(&record.name)?;
    check_addresses(&record.listen, &record.listen)?;
    if let Some(name) = mounted_as(target.path, target.settings) {
        return Err(Error::Busy(format!(
            "{} is mounted or served as `{name}`; `evfs detach {name}` first",
            target.name()
        )));
    }
    let (disk, made) = volume::open_or_make(target.path, size, false, target.settings)?;
    let result = target
        .of_disk(disk)
        .and_then(|open| init_on(target, &open, record, cache));
    if result.is_err() && made {
        let _ = std::fs::remove_file(target.path);
    }
    result
}

fn init_on(
    target: &Target<'_>,
    open: &Open,
    record: &Record,
    cache: &ProcessCache,
) -> Result<Made> {
    let formatted = match signature::find(&*open.device)? {
        None => {
            format_device(target, open, &record.name, false)?;
            true
        }
        Some(found) if signature::is_ours(found) => false,
        Some(found) => {
            return Err(Error::Failed(format!(
                "{0} carries a signature: {found}; `evfs format --force {0}` overwrites it for good",
                target.name()
            )));
        }
    };
    let device = target.name();
    let fs = open_fs(&open.device, &device, options(target.settings, false))?;
    if formatted {
        let failed = || Error::files(format!("cannot format {device}"));
        let first = fs.fileset_named(FIRST_FILESET).map_err(failed())?.id();
        fs.rename_fileset(first, ROOTS[1]).map_err(failed())?;
    }
    if let Some(there) = Record::read(&fs, &device)?
        && there.name != record.name
    {
        return Err(Error::Usage(format!(
            "{device} is the cell `{}` already; a cell keeps its name, because clients know it by that",
            there.name
        )));
    }
    let fs = Arc::new(fs);
    let admin = opened(&fs, cache, &device)?;
    for name in ROOTS {
        match admin.volume(name) {
            Ok(_) => {}
            Err(AdminError::NotFound(_)) => drop(admin.create(&new_volume(name))?),
            Err(error) => return Err(error.into()),
        }
    }
    for (path, read_write) in [
        (record.name.clone(), false),
        (format!(".{}", record.name), true),
    ] {
        // What has the name already is the administrator's.
        if admin.check_mount(ROOTS[0], &path).is_ok() {
            admin.mount(&MountPoint {
                volume: ROOTS[0],
                path: &path,
                of: ROOTS[1],
                read_write,
            })?;
        }
    }
    record.write(&fs, &device)?;
    let volumes = volumes(&admin);
    close(admin, fs, &device)?;
    Ok(Made {
        cell: record.clone(),
        formatted,
        encrypted: open.cipher.is_some(),
        volumes,
        cellservdb: cell_serv_db(&record.name, &record.listen),
    })
}

/// The lines for a client's file `CellServDB` (`CellServDB(5)` of OpenAFS).
pub fn cell_serv_db(name: &str, addresses: &[Ipv4Addr]) -> String {
    let servers = addresses.iter().map(|a| format!("{a:<23} #{a}\n"));
    let first = format!(">{name}");
    format!("{first:<23} #{name}\n{}", servers.collect::<String>())
}

fn new_volume(name: &str) -> NewVolume {
    NewVolume {
        name: name.to_owned(),
        quota_bytes: 0,
        owner: (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        ),
    }
}

fn opened(fs: &Arc<Fs>, cache: &ProcessCache, device: &str) -> Result<Administration> {
    let opened = Administration::open(Arc::clone(fs), cache.cache()?);
    opened.map_err(Error::files(format!("cannot open the volumes of {device}")))
}

/// Makes everything durable and lets the file system go.
fn close(admin: Administration, fs: Arc<Fs>, device: &str) -> Result<()> {
    let failed = || Error::files(format!("cannot close {device}"));
    let all = admin.volumes().all();
    drop(admin);
    for volume in all {
        volume.files.close().map_err(failed())?;
    }
    match Arc::into_inner(fs) {
        Some(fs) => fs.close().map_err(failed()),
        None => Ok(()),
    }
}

/// Asks a cell: by the name of its server, or by its DEVICE, through the process that serves it or
/// without.
///
/// # Errors
/// What was asked for cannot be done.
pub fn ask(target: &Target<'_>, ask: &Ask) -> Result<Value> {
    let run_dir = target.settings.run_dir();
    if let Some(name) = served_as(target.path, target.settings) {
        return control::ask(&run_dir, &name, &control::Ask::Cell(ask.clone()));
    }
    if !target.path.exists() && !device::is_lun(target.path) {
        return Err(Error::NotFound(format!(
            "no cell is served as `{0}`, and there is no DEVICE {0}; `evfs status` lists what is served",
            target.name()
        )));
    }
    let read_only = !ask.changes();
    let open = target.open(OpenOptions {
        read_only,
        ..OpenOptions::default()
    })?;
    let device = target.name();
    let fs = Arc::new(open_fs(
        &open.device,
        &device,
        options(target.settings, read_only),
    )?);
    let record = Record::of(&fs, &device)?;
    let cache = ProcessCache::new(target.settings)?;
    let admin = opened(&fs, &cache, &device)?;
    let answer = carry_out(&record, &admin, ask)?;
    close(admin, fs, &device)?;
    Ok(answer)
}

/// The name of the server of a cell, by that name or by its DEVICE.
pub fn served_as(named: &Path, settings: &Settings) -> Option<String> {
    let run_dir = settings.run_dir();
    let by_name = || {
        let name = named.to_str().filter(|name| valid_name(name))?;
        let status = control::ask(&run_dir, name, &control::Ask::Status).ok()?;
        status["cell"].is_string().then(|| name.to_owned())
    };
    match named.exists() {
        true => mounted_as(named, settings),
        false => by_name().or_else(|| mounted_as(named, settings)),
    }
}

/// What is served under a name is no cell.
pub(crate) fn not_served(name: &str) -> Error {
    Error::NotFound(format!(
        "{name} is not served as a cell; `evfs serve` does that"
    ))
}

/// Does what is asked of a cell that is open.
pub(crate) fn carry_out(record: &Record, admin: &Administration, ask: &Ask) -> Result<Value> {
    match ask {
        Ask::Status { .. } => Ok(json!({
            "cell": record.name,
            "served": false,
            "listen": record.listen,
            "cellservdb": cell_serv_db(&record.name, &record.listen),
            "volumes": volumes(admin),
        })),
        Ask::List => Ok(json!({ "cell": record.name, "volumes": volumes(admin) })),
        Ask::AclGet { volume, path } => {
            let list = admin.access_list(volume, path)?;
            Ok(shown_list(volume, path, &list))
        }
        Ask::AclSet {
            volume,
            path,
            changes,
            negative,
            clear,
        } => {
            let before = match clear {
                true => AccessList::default(),
                false => admin.access_list(volume, path)?,
            };
            let list = changed(&before, changes, *negative)?;
            admin.set_access_list(volume, path, &list)?;
            Ok(shown_list(volume, path, &list))
        }
        Ask::Create { name, quota, mount } => {
            if let Some(path) = mount {
                admin.check_mount(ROOTS[1], path)?;
            }
            let made = admin.create(&NewVolume {
                quota_bytes: quota.unwrap_or(0),
                ..new_volume(name)
            })?;
            if let Some(path) = mount {
                admin.mount(&mount_point(name, path, false))?;
            }
            Ok(shown(&made))
        }
        Ask::Mount {
            name,
            path,
            read_write,
        } => {
            admin.check_mount(ROOTS[1], path)?;
            admin.mount(&mount_point(name, path, *read_write))?;
            Ok(json!({ "mounted": name, "path": path }))
        }
        Ask::Clone { name, backup } => {
            let kind = if *backup {
                Kind::Backup
            } else {
                Kind::ReadOnly
            };
            Ok(shown(&*admin.clone_volume(name, kind)?))
        }
        Ask::Quota { name, bytes } => {
            admin.set_quota(name, *bytes)?;
            Ok(shown(&*admin.volume(name)?))
        }
        Ask::Remove { name, force } => {
            admin.remove(name, *force)?;
            Ok(json!({ "removed": name }))
        }
    }
}

fn mount_point<'a>(of: &'a str, path: &'a str, read_write: bool) -> MountPoint<'a> {
    MountPoint {
        volume: ROOTS[1],
        path,
        of,
        read_write,
    }
}

/// The volumes, by name.
pub(crate) fn volumes(admin: &Administration) -> Value {
    let mut all = admin.volumes().all();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all.iter().map(|volume| shown(volume)).collect()
}

fn shown(volume: &Volume) -> Value {
    let record = volume.files.fileset().record().ok();
    let bytes = |blocks: u64| blocks * crate::filesystem::BLOCK_BYTES;
    let quota = record.as_ref().map_or(0, |r| r.quota_blocks);
    json!({
        "name": volume.name,
        "id": volume.id,
        "kind": match volume.kind {
            Kind::ReadWrite => "read-write",
            Kind::ReadOnly => "read-only",
            Kind::Backup => "backup",
        },
        "of": volume.parent,
        "created": record.as_ref().map(|r| r.created.seconds),
        "used_bytes": record.as_ref().map(|r| bytes(r.used_blocks)),
        "used_inodes": record.as_ref().map(|r| r.used_inodes),
        "quota_bytes": (quota > 0).then(|| bytes(quota)),
    })
}

/// An access list with entries changed, as `fs setacl` changes them: no rights, no entry.
fn changed(
    before: &AccessList,
    changes: &[(String, String)],
    negative: bool,
) -> Result<AccessList> {
    let (mut positive, mut negatives) = (before.positive().to_vec(), before.negative().to_vec());
    let entries = if negative {
        &mut negatives
    } else {
        &mut positive
    };
    for (name, words) in changes {
        if !afs_server::is_known(name) && words != "none" {
            return Err(Error::Usage(format!(
                "`{name}` means nobody here: it is system:anyuser, an address, or a prefix such as \
                 10.1.0.0/16"
            )));
        }
        let rights = rights(words)?;
        entries.retain(|entry| entry.name != *name);
        if rights != Rights::NONE {
            let name = name.clone();
            entries.push(Entry { name, rights });
        }
    }
    AccessList::new(positive, negatives).map_err(|error| Error::Usage(error.to_string()))
}

/// Rights by their letters, or by the words of `fs setacl`.
fn rights(words: &str) -> Result<Rights> {
    match words {
        "none" => Ok(Rights::NONE),
        "read" => Ok(Rights::READ_LOOKUP),
        "write" => Ok(Rights::ALL.without(Rights::ADMINISTER)),
        "all" => Ok(Rights::ALL),
        letters => letters.parse().map_err(|error| {
            Error::Usage(format!(
                "`{letters}` are no rights: {error}; or read, write, all or none"
            ))
        }),
    }
}

fn shown_list(volume: &str, path: &str, list: &AccessList) -> Value {
    let entries = |entries: &[Entry]| -> Value {
        let row = |e: &Entry| json!({ "name": e.name, "rights": e.rights.to_string() });
        entries.iter().map(row).collect()
    };
    json!({
        "volume": volume,
        "path": path,
        "positive": entries(list.positive()),
        "negative": entries(list.negative()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_and_nothing_else_is() {
        let record = Record {
            name: "test.local".into(),
            listen: vec![[10, 0, 0, 1].into(), [10, 0, 0, 2].into()],
        };
        assert_eq!(Record::parse(record.to_text().as_bytes()), Ok(record));
        let ten = "listen 10.0.0.1\n".repeat(16);
        for bad in [
            "",
            "evfs-cell 2\nname a\nlisten 10.0.0.1\n",
            "evfs-cell 1\n",
            "evfs-cell 1\nname a\n",
            "evfs-cell 1\nlisten 10.0.0.1\n",
            "evfs-cell 1\nname a\nname b\nlisten 10.0.0.1\n",
            "evfs-cell 1\nname ../a\nlisten 10.0.0.1\n",
            "evfs-cell 1\nname a\nlisten ::1\n",
            "evfs-cell 1\nname a\nlisten 10.0.0.1\nmore\n",
            &format!("evfs-cell 1\nname a\n{ten}"),
            &format!("evfs-cell 1\nname {}\nlisten 10.0.0.1\n", "a".repeat(5000)),
        ] {
            assert!(Record::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(Record::parse(b"evfs-cell 1\nname \xff\n").is_err());
    }

    #[test]
    fn names_of_cells_are_domain_names() {
        for good in ["a", "test.local", "x-1.example.org", "7.z"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        let long = "a.".repeat(40);
        for bad in [
            "", ".", "a.", ".a", "A", "a b", "a/b", "-a", "a-", "a..b", "ü", "10.0.0.1", "a\n",
            &long,
        ] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn entries_change_as_fs_setacl_changes_them() {
        let set = |list: &AccessList, name: &str, words: &str, negative| {
            changed(list, &[(name.into(), words.into())], negative)
        };
        let empty = AccessList::default();
        let list = set(&empty, "system:anyuser", "read", false).unwrap();
        let list = set(&list, "10.1.0.0/16", "write", false).unwrap();
        let list = set(&list, "10.1.2.3", "all", true).unwrap();
        let texts: Vec<_> = list
            .positive()
            .iter()
            .map(|e| e.rights.to_string())
            .collect();
        assert_eq!(texts, ["rl", "rlidwk"]);
        assert_eq!(list.negative()[0].rights, Rights::ALL);
        let list = set(&list, "system:anyuser", "none", false).unwrap();
        assert_eq!(list.positive().len(), 1);
        for (name, words) in [("alice", "read"), ("10.1.2.3", "x"), ("10.0.0.0/33", "rl")] {
            assert!(set(&list, name, words, false).is_err(), "{name} {words}");
        }
        // What nobody is can always be taken away.
        assert!(set(&list, "alice", "none", false).is_ok());
    }
}
