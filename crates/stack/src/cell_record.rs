//! The record of a cell: its name and addresses, stored in its file system as an extended attribute
//! of the root directory of `root.cell`.
//!
//! It consists of lines of text, the first of which has the version. The content is untrusted:
//! anyone with access to the device may have written it.

use crate::{Error, Result};
use ::fs::{Fs, Kind as FsKind, ROOT, SetXattr};
use afs_server::ROOTS;
use schemars::JsonSchema;
use serde::Serialize;
use std::net::Ipv4Addr;

/// Name of the attribute, which makes a file system a cell.
const RECORD: &[u8] = b"trusted.afs.cell";
/// First line of the record: its type and version.
const RECORD_VERSION: &str = "evfs-cell 1";
/// Longest accepted record, in bytes.
const RECORD_BYTES_MAX: usize = 4096;

/// Longest name of a cell that clients support, in bytes (`MAXCELLCHARS` in OpenAFS
/// `src/afs/afs.h`).
const NAME_BYTES_MAX: usize = 63;

/// Record of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Record {
    /// Name of the cell.
    pub name: String,
    /// Addresses to serve at by default.
    pub listen: Vec<Ipv4Addr>,
}

impl Record {
    fn to_text(&self) -> String {
        let addresses = self.listen.iter().map(|a| format!("listen {a}\n"));
        let addresses: String = addresses.collect();
        format!("{RECORD_VERSION}\nname {}\n{addresses}", self.name)
    }

    /// Parses a record, whose content is untrusted.
    fn parse(bytes: &[u8]) -> std::result::Result<Record, String> {
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(format!("it has more than {RECORD_BYTES_MAX} bytes"));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8 text")?;
        let mut lines = text.lines();
        match lines.next() {
            Some(RECORD_VERSION) => {}
            _ => return Err("its version is unknown".into()),
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
                    let parsed = address.parse().map_err(|_| "an address is invalid")?;
                    record.listen.push(parsed);
                }
                _ => return Err("a line is invalid".into()),
            }
        }
        if record.name.is_empty() || record.listen.is_empty() {
            Err("its name or address is missing".into())
        } else {
            Ok(record)
        }
    }

    /// Reads the record of a file system; returns `None` if it is no cell.
    pub(crate) fn read(fs: &Fs, device: &str) -> Result<Option<Record>> {
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
                "cannot read the cell record of {device}: {why}; a later version of evfs may have \
                 written it"
            ))
        })?;
        Ok(Some(record))
    }

    /// Same as [`Record::read`], but a file system that is no cell is an error.
    pub(crate) fn of(fs: &Fs, device: &str) -> Result<Record> {
        Record::read(fs, device)?.ok_or_else(|| {
            Error::NotFound(format!(
                "{device} is not a cell; `evfs cell init NAME {device}` creates one on it"
            ))
        })
    }

    pub(crate) fn write(&self, fs: &Fs, device: &str) -> Result<()> {
        let failed = || Error::files(format!("cannot write to {device}"));
        let root_cell = fs.fileset_named(ROOTS[1]).map_err(failed())?;
        let text = self.to_text();
        let set = root_cell.set_xattr(ROOT, RECORD, text.as_bytes(), SetXattr::Any);
        set.and_then(|()| fs.sync()).map_err(failed())
    }
}

/// Refuses an invalid name of a cell: it must be a domain name in lower case, as Linux expects.
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
    if name.len() <= NAME_BYTES_MAX && name.split('.').all(label) && !is_address {
        Ok(())
    } else {
        Err(Error::Usage(format!(
            "invalid cell name `{name}`; use a domain name such as example.org, with lowercase \
             letters, digits and `-`, at most {NAME_BYTES_MAX} characters"
        )))
    }
}

/// Refuses addresses that cannot be used together, or too many.
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
            return usage(format!("{address} is listed twice"));
        }
    }
    if listen.len() > 1 && listen.contains(&Ipv4Addr::UNSPECIFIED) {
        return usage("0.0.0.0 means every address of this machine; pass it alone".into());
    }
    if listen.contains(&Ipv4Addr::UNSPECIFIED) && announce.is_empty() {
        return usage(
            "0.0.0.0 means every address of this machine and cannot be announced to clients; pass \
             the addresses that clients use with --announce"
                .into(),
        );
    }
    Ok(())
}

/// Formats the lines for a client's file `CellServDB` (`CellServDB(5)` of OpenAFS).
pub fn cell_serv_db(name: &str, addresses: &[Ipv4Addr]) -> String {
    let servers = addresses.iter().map(|a| format!("{a:<23} #{a}\n"));
    let first = format!(">{name}");
    format!("{first:<23} #{name}\n{}", servers.collect::<String>())
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
}
