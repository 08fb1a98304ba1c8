//! Owners and modes of directories and files that hold keys, backups, trust and state, and of the
//! secrets that the configuration names.

use super::{Finding, ids, quoted};
use crate::Settings;
use crate::config::ServiceTable;
use crate::peer::me;
use crate::service::ServiceSpec;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bits of a mode that let others write.
const WRITABLE: u32 = 0o022;

/// Bits of a mode that let others do anything.
const OPEN: u32 = 0o077;

/// Files examined in one directory.
const FILES_MAX: usize = 10_000;

/// Checks the directories of keys, backups, sockets and state, and the files in them.
pub(super) fn check(settings: &Settings) -> Vec<Finding> {
    let keys = settings.keys_dir();
    let backup = settings.backup_dir();
    let mut findings = vec![
        directory(&keys, "key pairs", "EVFS_KEYS_DIR"),
        directory(&backup, "header backups", "EVFS_BACKUP_DIR"),
        directory(&settings.run_dir(), "control sockets", "EVFS_RUN_DIR"),
    ];
    let state = [
        (
            settings.trust_store(),
            "the trust store",
            "EVFS_TRUST_STORE",
        ),
        (
            settings.lun_registry(),
            "the registry of LUNs",
            "EVFS_LUN_REGISTRY",
        ),
    ];
    let mut folders: Vec<PathBuf> = Vec::new();
    for (file, what, variable) in state {
        let folder = file.parent().unwrap_or(Path::new("/")).to_owned();
        if !folders.contains(&folder) {
            findings.push(directory(&folder, what, variable));
            folders.push(folder);
        }
        findings.extend(state_file(&file, what));
    }
    let private = |name: &str| name.ends_with(".key");
    findings.extend(files_in(&keys, "a private key", private));
    findings.extend(files_in(&backup, "a backup", |_| true));
    findings
}

/// Checks the files with secrets that the settings and the tables name.
pub(super) fn check_secrets(settings: &Settings, tables: &[ServiceTable]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(file) = settings.iscsi_chap_secret_file() {
        findings.push(secret(&file, "the CHAP secret"));
    }
    for table in tables {
        if let Some(file) = &table.key_file {
            findings.push(secret(file, &format!("the key file of {}", table.table())));
        }
        if let ServiceSpec::Attach(spec) = &table.spec
            && let Some(tls) = &spec.tls
        {
            let what = format!("the TLS key of {}", table.table());
            findings.push(secret(&tls.key, &what));
        }
    }
    findings
}

/// Judges a directory that only this user may write to.
fn directory(path: &Path, what: &str, variable: &str) -> Finding {
    let name = path.display().to_string();
    let meta = match std::fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let what = format!("the directory of {what} does not exist yet");
            return Finding::ok(ids::DIRECTORY, what).on(name);
        }
        Err(e) => {
            let why = crate::without_number(&e.to_string());
            let what = format!("the directory of {what}");
            return Finding::unchecked(ids::DIRECTORY, &what, why).on(name);
        }
    };
    let wrong = |why: String| {
        Finding::error(
            ids::DIRECTORY,
            format!("the directory of {what} is not safe"),
        )
        .on(name.clone())
        .why(why)
    };
    let mode = meta.mode() & 0o7777;
    if !meta.is_dir() {
        wrong("it is no directory".into()).remedy(format!(
            "move it away, or choose another path with {variable}"
        ))
    } else if meta.uid() != me() {
        wrong(format!("it belongs to user {}", meta.uid()))
            .remedy(format!(
                "change its owner, or choose another path with {variable}"
            ))
            .command(format!("chown {} {}", me(), quoted(&name)))
    } else if mode & WRITABLE != 0 {
        wrong(format!("other users can write to it (mode {mode:04o})"))
            .remedy("let only its owner write to it")
            .command(format!("chmod go-w {}", quoted(&name)))
    } else {
        let what = format!("the directory of {what} is safe (mode {mode:04o})");
        Finding::ok(ids::DIRECTORY, what).on(name)
    }
}

/// Judges a file of state that only this user may write to; nothing if it does not exist.
fn state_file(path: &Path, what: &str) -> Option<Finding> {
    let name = path.display().to_string();
    let meta = std::fs::metadata(path).ok()?;
    let mode = meta.mode() & 0o7777;
    let found = if meta.uid() != me() {
        Finding::error(
            ids::STATE_FILE,
            format!("{what} belongs to user {}", meta.uid()),
        )
        .why("its owner can change it")
        .command(format!("chown {} {}", me(), quoted(&name)))
    } else if mode & WRITABLE != 0 {
        let what = format!("other users can write to {what} (mode {mode:04o})");
        Finding::error(ids::STATE_FILE, what)
            .why("its records could be forged")
            .command(format!("chmod 600 {}", quoted(&name)))
    } else {
        let what = format!("only this user can change {what}");
        Finding::ok(ids::STATE_FILE, what)
    };
    Some(found.on(name))
}

/// Reports the files of a directory that are `what`, and that others can read.
fn files_in(dir: &Path, what: &str, is_one: impl Fn(&str) -> bool) -> Vec<Finding> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let paths = entries.flatten().take(FILES_MAX).map(|entry| entry.path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(&is_one) && path.is_file()
        })
        .collect();
    paths.sort();
    let judged: Vec<Finding> = paths.iter().map(|path| secret(path, what)).collect();
    let (safe, mut findings): (Vec<_>, Vec<_>) = judged
        .into_iter()
        .partition(|finding| finding.severity == super::Severity::Ok);
    if !safe.is_empty() {
        let what = format!("{} files are readable by this user only", safe.len());
        let dir = dir.display().to_string();
        findings.push(Finding::ok(ids::SECRET, what).on(dir));
    }
    findings
}

/// Judges a file that only its owner may read.
pub(super) fn secret(path: &Path, what: &str) -> Finding {
    let name = path.display().to_string();
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Finding::error(ids::SECRET, format!("{what} does not exist"))
                .on(name)
                .remedy("correct the path, or restore the file");
        }
        Err(e) => {
            let why = crate::without_number(&e.to_string());
            return Finding::unchecked(ids::SECRET, what, why).on(name);
        }
    };
    let mode = meta.mode() & 0o7777;
    if mode & OPEN != 0 {
        let said = format!("other users can access {what} (mode {mode:04o})");
        Finding::error(ids::SECRET, said)
            .on(name.clone())
            .why("whichever user reads it can open what it protects")
            .remedy("let only its owner access it; replace the secret if others may have read it")
            .command(format!("chmod 600 {}", quoted(&name)))
    } else if meta.uid() != me() && meta.uid() != 0 {
        let said = format!("{what} belongs to user {}", meta.uid());
        Finding::error(ids::SECRET, said)
            .on(name.clone())
            .why("its owner can read and replace it")
            .command(format!("chown {} {}", me(), quoted(&name)))
    } else {
        Finding::ok(ids::SECRET, format!("{what} is readable by its owner only")).on(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity::{Error, Ok as Fine};
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let judged = |path: &Path| directory(path, "key pairs", "EVFS_KEYS_DIR");
        for (mode, severity) in [(0o700, Fine), (0o755, Fine), (0o775, Error), (0o702, Error)] {
            set_mode(dir.path(), mode);
            assert_eq!(judged(dir.path()).severity, severity, "{mode:o}");
        }
        assert_eq!(judged(&dir.path().join("none")).severity, Fine);
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(judged(&file).severity, Error);
    }

    #[test]
    fn a_secret_that_others_can_read_is_an_error_with_a_command() {
        let dir = tempfile::tempdir().unwrap();
        for (name, mode) in [("a.key", 0o600), ("b.key", 0o640), ("b.pub", 0o644)] {
            let file = dir.path().join(name);
            std::fs::write(&file, "").unwrap();
            set_mode(&file, mode);
        }
        let found = files_in(dir.path(), "a private key", |name| name.ends_with(".key"));
        let severities: Vec<_> = found.iter().map(|f| f.severity).collect();
        assert_eq!(severities, [Error, Fine]);
        let command = found[0].command.as_deref().unwrap_or_default();
        assert!(command.starts_with("chmod 600 ") && command.ends_with("b.key"));
        assert_eq!(secret(&dir.path().join("none"), "a key").severity, Error);
    }

    #[test]
    fn state_that_others_can_change_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("trust.json");
        assert_eq!(state_file(&file, "the trust store"), None);
        std::fs::write(&file, "{}").unwrap();
        for (mode, severity) in [(0o600, Fine), (0o644, Fine), (0o666, Error)] {
            set_mode(&file, mode);
            let found = state_file(&file, "the trust store").unwrap();
            assert_eq!(found.severity, severity, "{mode:o}");
        }
    }
}
