//! The next step for errors whose own message names none.
//!
//! **Invariant:** each message of the program ends with a next step: its own, or that of its kind.

use crate::{Error, exit};
use std::io;

impl Error {
    /// Formats the message for a user: what failed, why, and what to do next.
    pub fn message(&self) -> String {
        let said = self.chain();
        if names_a_step(&said) {
            said
        } else {
            format!("{said}; {}", self.next_step())
        }
    }

    fn next_step(&self) -> &'static str {
        match self {
            Error::Within { source, .. } => source.next_step(),
            Error::Block(e) if e.errno() == libc::EEXIST => "choose another path",
            Error::Block(e) | Error::OnlyRead { source: e, .. } => of_device(e.kind()),
            Error::Volume(crypt::Error::Block(e)) => of_device(e.kind()),
            Error::Io { source, .. } => of_system(source),
            Error::Key(keyring::Error::Io { source, .. }) => of_system(source),
            Error::Key(keyring::Error::Malformed { .. }) => {
                "use an age identity, an OpenSSH ed25519 key or a public key"
            }
            Error::Key(keyring::Error::WrongPassphrase(_)) => {
                "type the passphrase of the key itself, not that of a volume"
            }
            Error::Cell(afs_server::AdminError::Files { source, .. }) => of_files(source.kind()),
            Error::Files { source, .. } => of_files(source.kind()),
            Error::Config { .. } => "correct it; `evfs config show --origin` shows the settings",
            other => of_code(other.exit_code()),
        }
    }
}

/// Reports whether a message has a clause after its reason, or names a command.
fn names_a_step(message: &str) -> bool {
    message.contains("; ") || message.contains("`evfs ")
}

fn of_device(kind: block::ErrorKind) -> &'static str {
    use block::ErrorKind as K;
    match kind {
        K::NotFound => "check the path; `evfs lun list` shows the names of LUNs",
        K::Permission => "run the command as a user who may access it, or as root",
        K::Busy | K::NotNow => "`evfs status` shows what this user has open",
        K::ReadOnly => "use --read-only, or make it writable",
        K::NoSpace => "free space on the storage that it is on, and try again",
        K::PathLost | K::TimedOut => {
            "check the connection; `evfs lun list` shows the state of LUNs"
        }
        K::Media | K::Io => "check the disk, and the log of the kernel",
        K::OutOfRange => "check whether the device or file was cut short",
        _ => "`evfs doctor` checks this machine and its volumes",
    }
}

fn of_system(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "check the path",
        io::ErrorKind::PermissionDenied => {
            "run the command as a user who may access it, or as root"
        }
        io::ErrorKind::AlreadyExists => "choose another path",
        io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => "check the path",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free space there, and try again"
        }
        _ => "`evfs doctor` checks this machine",
    }
}

fn of_files(kind: fs::Kind) -> &'static str {
    use fs::Kind as K;
    match kind {
        K::NotFound => "check the name; `evfs fileset list DEVICE` lists filesets and snapshots",
        K::Exists => "choose another name",
        K::Busy => "`evfs status` shows what has it in use",
        K::NoSpace | K::Quota => "remove files, or enlarge the device or the quota",
        K::Corrupt => "`evfs fsck DEVICE` reports details",
        K::Invalid | K::NameTooLong => "correct the name or value",
        _ => "`evfs fsck DEVICE` checks the file system",
    }
}

fn of_code(code: u8) -> &'static str {
    match code {
        exit::USAGE => "--help shows what the command accepts",
        exit::NOT_FOUND => "check the name; `evfs status` lists what is in service",
        exit::BUSY => "`evfs status` shows what is in use",
        exit::WRONG_KEY => "`evfs volume key list DEVICE` lists the keys that open a volume",
        exit::ROLE_REFUSES => "`evfs volume key list DEVICE` lists the keys and their roles",
        exit::UNTRUSTED => "`evfs volume trust DEVICE` shows what this machine remembers",
        exit::REPAIRABLE => "`evfs volume check DEVICE` or `evfs fsck DEVICE` reports details",
        exit::NOT_REPAIRABLE => "restore a backup",
        exit::DATA_LOST => "restore the lost data from a backup",
        _ => "`evfs doctor` checks this machine and its volumes",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn each_message_has_a_next_step_and_only_one() {
        let missing = || io::Error::from_raw_os_error(libc::ENOENT);
        for (error, said) in [
            (
                Error::Block(block::Error::from_io("disk.img", missing())),
                "disk.img: not found; check the path; `evfs lun list` shows the names of LUNs",
            ),
            (
                Error::io("cannot read", Path::new("x"), missing()),
                "cannot read x: No such file or directory; check the path",
            ),
            (
                Error::NotFound("nothing is here; look there".into()),
                "nothing is here; look there",
            ),
            (
                Error::Busy("it is busy".into()),
                "it is busy; `evfs status` shows what is in use",
            ),
            (
                Error::Key(keyring::Error::WrongPassphrase("me".into())),
                "wrong passphrase for the key `me`; type the passphrase of the key itself, not \
                 that of a volume",
            ),
            (
                Error::Within {
                    place: "[volume.x]".into(),
                    source: Box::new(Error::Usage("no".into())),
                },
                "[volume.x]: no; --help shows what the command accepts",
            ),
        ] {
            assert_eq!(error.message(), said);
            assert!(names_a_step(&error.message()));
        }
    }

    #[test]
    fn each_code_has_a_next_step() {
        for code in 0..=u8::MAX {
            assert!(!of_code(code).is_empty() && !of_code(code).ends_with('.'));
        }
    }
}
