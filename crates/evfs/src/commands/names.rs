//! Names that complete arguments: keys, services, LUNs, filesets and settings.
//!
//! Completion must neither wait nor ask, so the names come from directories, from the registry of
//! LUNs, and from services that answer; no device is opened. A name with characters that a shell
//! interprets is left out: names of filesets come from disks of any origin.

use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use keyring::Keyring;
use stack::cache::{ADVICE, TUNABLES};
use stack::control::{self, ControlRequest, FsRequest};
use stack::registry::Registry;
use stack::{Settings, lun};
use std::ffi::OsStr;

/// Completes with the key pairs of this user.
pub fn keys() -> ArgValueCandidates {
    known(|settings| {
        let listed = Keyring::open(settings.keys_dir()).list();
        let keys = listed.map_or_else(|_| Vec::new(), |listing| listing.keys);
        keys.into_iter().map(|key| key.name).collect()
    })
}

/// Completes with attached volumes, mounted file systems and served cells.
pub fn services() -> ArgValueCandidates {
    known(service_names)
}

/// Completes with known LUNs.
pub fn luns() -> ArgValueCandidates {
    known(lun_names)
}

/// Completes with the legacy names of all known paths.
pub fn paths() -> ArgValueCandidates {
    known(|settings| {
        let paths = registry(settings).luns.into_iter().flat_map(|l| l.paths);
        paths.map(|path| path.legacy).collect()
    })
}

/// Completes with the filesets of mounted file systems and served cells.
pub fn filesets() -> ArgValueCandidates {
    known(fileset_names)
}

/// Completes with the attributes of LUNs.
pub fn attributes() -> ArgValueCandidates {
    described("", || {
        let rows = lun::ATTRIBUTES.iter();
        rows.map(|row| (row.name, row.help)).collect()
    })
}

/// Completes with the attributes of LUNs, for an argument NAME=VALUE.
pub fn attribute_changes() -> ArgValueCandidates {
    described("=", || {
        let rows = lun::ATTRIBUTES.iter();
        rows.map(|row| (row.name, row.help)).collect()
    })
}

/// Completes with the settings of the file cache, for an argument NAME=VALUE.
pub fn cache_settings() -> ArgValueCandidates {
    described("=", || {
        let rows = TUNABLES.iter();
        rows.map(|row| (row.text, row.help)).collect()
    })
}

/// Completes with the caching attributes of files, for an argument NAME=VALUE.
pub fn cache_advice() -> ArgValueCandidates {
    described("=", || {
        let rows = ADVICE.iter();
        rows.map(|(name, _, help)| (*name, *help)).collect()
    })
}

/// Completes a DEVICE: files, known LUNs and the names of services.
pub fn devices() -> ArgValueCompleter {
    files_and(|settings| {
        let mut names = lun_names(settings);
        names.extend(service_names(settings));
        names.sort();
        names.dedup();
        names
    })
}

/// Lists names for a user with these settings.
type List = fn(&Settings) -> Vec<String>;

fn known(list: List) -> ArgValueCandidates {
    ArgValueCandidates::new(move || candidates(list))
}

fn files_and(list: List) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| {
        let begins = |candidate: &CompletionCandidate| {
            let value = candidate.get_value().as_encoded_bytes();
            value.starts_with(current.as_encoded_bytes())
        };
        let mut found = candidates(list);
        found.retain(begins);
        found.extend(PathCompleter::any().complete(current));
        found
    })
}

fn candidates(list: List) -> Vec<CompletionCandidate> {
    let names = Settings::load().map_or_else(|_| Vec::new(), |settings| list(&settings));
    let plain = names.into_iter().filter(|name| is_plain(name));
    plain.map(CompletionCandidate::new).collect()
}

/// Completes with the names of a table and their help; `end` follows each name.
fn described(
    end: &'static str,
    table: fn() -> Vec<(&'static str, &'static str)>,
) -> ArgValueCandidates {
    ArgValueCandidates::new(move || {
        let candidate = |(name, help): (&str, &'static str)| {
            CompletionCandidate::new(format!("{name}{end}")).help(Some(help.into()))
        };
        table().into_iter().map(candidate).collect()
    })
}

/// Reports whether no shell interprets a character of the name.
fn is_plain(name: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || "._-+:@%/".contains(c);
    !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain)
}

fn service_names(settings: &Settings) -> Vec<String> {
    control::names(&settings.run_dir())
}

fn registry(settings: &Settings) -> Registry {
    Registry::load(&settings.lun_registry()).unwrap_or_default()
}

fn lun_names(settings: &Settings) -> Vec<String> {
    let luns = registry(settings).luns.into_iter();
    luns.map(|lun| lun.name).collect()
}

fn fileset_names(settings: &Settings) -> Vec<String> {
    let run_dir = settings.run_dir();
    let mut names = Vec::new();
    for (service, status) in control::statuses(&run_dir).unwrap_or_default() {
        let has_filesets = |key: &str| status.as_ref().is_ok_and(|s| s[key].is_string());
        if !has_filesets("fileset") && !has_filesets("cell") {
            continue;
        }
        let list = ControlRequest::Files(FsRequest::List);
        let Ok(listed) = control::send_request(&run_dir, &service, &list) else {
            continue;
        };
        let rows = listed["filesets"].as_array().into_iter().flatten();
        names.extend(rows.filter_map(|row| Some(row["name"].as_str()?.to_owned())));
    }
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::is_plain;

    #[test]
    fn names_that_a_shell_interprets_are_left_out() {
        for name in ["main", "c0t0d1", "home-2", "a.b_c", "größe"] {
            assert!(is_plain(name), "{name}");
        }
        for name in ["", "-x", "a b", "a;b", "$(x)", "a\nb", "a'b", "*", "~x"] {
            assert!(!is_plain(name), "{name}");
        }
    }
}
