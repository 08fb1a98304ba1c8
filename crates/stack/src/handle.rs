//! One resolver for the words that name a thing: the NAME of a service, its DEVICE, and the
//! directory (DIR) or another place of an export.
//!
//! **Invariant:** a word leads to one thing, or to an error. If it has two meanings that lead to
//! different things, it is refused: a command never chooses between two disks.
//!
//! A word with a `/` is a path. Other words may be the name of a service as well. A path that the
//! command could not use, such as a directory without a mount, is no second meaning.

use crate::control::{self, ControlRequest, valid_name};
use crate::device::{self, is_lun_name};
use crate::registry::Registry;
use crate::text::did_you_mean;
use crate::{Error, Result, Settings};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Meaning of a word.
#[derive(Debug)]
pub struct Resolved<T> {
    pub value: T,
    /// Sentence for the user, if the command acts on something else than was typed.
    pub note: Option<String>,
}

impl<T> Resolved<T> {
    fn as_typed(value: T) -> Resolved<T> {
        Resolved { value, note: None }
    }
}

/// A running service.
#[derive(Debug)]
pub struct Service {
    pub name: String,
    /// Status, or the reason why the service does not answer.
    pub status: Result<Value>,
}

/// A mounted file system.
#[derive(Debug)]
pub struct Mounted {
    /// Name of the service.
    pub name: String,
    /// Directory of the mount.
    pub dir: PathBuf,
}

/// Finds the service that a word names, by its name, its device or the place of an export.
///
/// # Errors
/// [`Error::NotFound`] if there is none, [`Error::Usage`] if there are several.
pub fn service(word: &Path, settings: &Settings) -> Result<Resolved<Service>> {
    let run_dir = settings.run_dir();
    let named = match by_name(word, &run_dir)? {
        // This can only be a name, and other services need not be queried.
        Some(service) if !is_path(word) => return Ok(Resolved::as_typed(service)),
        named => named,
    };
    let place = Place::of(word);
    let mut placed: Vec<Service> = control::statuses(&run_dir)?
        .into_iter()
        .filter(|(_, status)| status.as_ref().is_ok_and(|status| place.is_of(status)))
        .map(|(name, status)| Service { name, status })
        .collect();
    if let Some(service) = named {
        let is_placed = placed.iter().any(|other| other.name == service.name);
        return match placed.first() {
            Some(other) if !is_placed => Err(Error::Usage(format!(
                "`{0}` is ambiguous: it is the name of a service, and the path of the service \
                 `{1}`; use ./{0} for the path, or {1} as the name",
                word.display(),
                other.name
            ))),
            _ => Ok(Resolved::as_typed(service)),
        };
    }
    match placed.len() {
        0 => Err(no_service(word, &run_dir)),
        1 => {
            let value = placed.remove(0);
            let note = Some(format!("{} is served as `{}`", word.display(), value.name));
            Ok(Resolved { value, note })
        }
        _ => {
            let names: Vec<String> = placed.iter().map(|s| format!("`{}`", s.name)).collect();
            Err(Error::Usage(format!(
                "{} is served as {}; use one of these names",
                word.display(),
                names.join(" and ")
            )))
        }
    }
}

/// Finds this user's mounted file system that a word names: by its directory, its name or its
/// device.
///
/// # Errors
/// Those of [`service()`]; the service is no mount.
pub fn mount(word: &Path, settings: &Settings) -> Result<Resolved<Mounted>> {
    let Service { name, status } = service(word, settings)?.value;
    let status = status?;
    let dir = exports(&status).find(|(kind, _)| *kind == "mount");
    let Some((_, dir)) = dir else {
        return Err(Error::Usage(format!(
            "`{name}` is no mounted file system; `evfs detach {name}` ends it"
        )));
    };
    let dir = PathBuf::from(dir);
    if std::fs::canonicalize(word).is_ok_and(|word| word == dir) {
        let dir = word.to_owned();
        return Ok(Resolved::as_typed(Mounted { name, dir }));
    }
    let note = format!("{} is mounted at {}", word.display(), dir.display());
    Ok(Resolved {
        value: Mounted { name, dir },
        note: Some(note),
    })
}

/// Finds the DEVICE that a word names: itself, or that of the service with this name, or of the
/// file system that is mounted at this directory. A word without any meaning stays as it is.
///
/// # Errors
/// [`Error::Usage`] if the word has two meanings, [`Error::NotFound`] for a directory without a
/// mount.
pub fn device(word: &Path, settings: &Settings) -> Result<Resolved<PathBuf>> {
    let run_dir = settings.run_dir();
    let meta = std::fs::metadata(word);
    let is_dir = meta.as_ref().is_ok_and(std::fs::Metadata::is_dir);
    let is_device = !is_dir && (meta.is_ok() || is_lun(word, settings));
    let named = match by_name(word, &run_dir) {
        Ok(None) => None,
        Ok(Some(Service { name, status })) => match status {
            Ok(status) => Some((name, status)),
            // A device can be used whatever the state of a service.
            Err(_) if is_device => None,
            Err(silent) => return Err(silent),
        },
        Err(_) if is_device => None,
        Err(error) => return Err(error),
    };
    let mounted = if is_dir {
        let place = Place::of(word);
        found(&run_dir, |status| place.is_export_of(status))
    } else {
        None
    };
    let typed = || Ok(Resolved::as_typed(word.to_owned()));
    match (named, mounted) {
        (Some(named), Some(mounted)) if named.0 != mounted.0 => Err(two_devices(word, &named.1)),
        (Some((_, status)), _) if is_device => {
            if Place::of(word).is_device_of(&status) {
                typed()
            } else {
                Err(two_devices(word, &status))
            }
        }
        (Some((_, status)), _) | (None, Some((_, status))) => {
            let value = device_in(&status);
            let note = Some(format!("{} is {}", word.display(), value.display()));
            Ok(Resolved { value, note })
        }
        (None, None) if is_dir => Err(Error::NotFound(format!(
            "{} is a directory at which this user has mounted nothing; `evfs status` lists mounts",
            word.display()
        ))),
        (None, None) => typed(),
    }
}

/// Finds the LUN that a word names: by its own name, a path, or a service that has it open. A word
/// without any meaning stays as it is.
///
/// # Errors
/// The registry is unreadable; the word names a service that is on no LUN.
pub fn lun(word: &str, settings: &Settings) -> Result<Resolved<String>> {
    let registry = Registry::load(&settings.lun_registry())?;
    if registry.find(word).is_some() {
        return Ok(Resolved::as_typed(word.to_owned()));
    }
    let status = match service(Path::new(word), settings) {
        Ok(found) => found.value.status?,
        Err(Error::NotFound(_)) => return Ok(Resolved::as_typed(word.to_owned())),
        Err(error) => return Err(error),
    };
    let value = match status["lun"].as_str() {
        Some(lun) => lun.to_owned(),
        None => {
            return Err(Error::NotFound(format!(
                "{word} is not on a LUN; `evfs lun list` shows the known LUNs"
            )));
        }
    };
    let note = Some(format!("{word} is the LUN {value}"));
    Ok(Resolved { value, note })
}

/// Finds the service by which this user has the file system of a DEVICE mounted or served.
pub fn mounted_as(device: &Path, settings: &Settings) -> Option<String> {
    let place = Place::of(device);
    control::find(&settings.run_dir(), |status| {
        let has_files = ["fileset", "format", "cell"]
            .iter()
            .any(|key| status[*key].is_string());
        has_files && place.is_device_of(status)
    })
}

/// Finds the service by which this user has a DEVICE mounted, served or attached.
pub(crate) fn served_as(device: &Path, settings: &Settings) -> Option<String> {
    let place = Place::of(device);
    control::find(&settings.run_dir(), |status| place.is_device_of(status))
}

/// Finds this user's file system mounted at `dir`, and returns its name.
pub fn mounted_at(dir: &Path, run_dir: &Path) -> Option<String> {
    // A mount whose server has died cannot be resolved, and has no name.
    let dir = std::fs::canonicalize(dir).ok()?;
    control::find(run_dir, |status| {
        exports(status).any(|(kind, at)| kind == "mount" && Path::new(at) == dir)
    })
}

/// Returns the DEVICE of a service.
pub(crate) fn device_in(status: &Value) -> PathBuf {
    let text = |key: &str| status[key].as_str();
    let is_lun = |device: &&str| device::is_lun(Path::new(device));
    let device = text("path")
        .or_else(|| text("device").filter(is_lun))
        .or_else(|| text("lun"))
        .or_else(|| text("device"));
    PathBuf::from(device.unwrap_or_default())
}

/// A path as typed, and without symbolic links if it exists.
pub(crate) struct Place<'a> {
    typed: &'a Path,
    full: Option<PathBuf>,
}

impl Place<'_> {
    pub(crate) fn of(typed: &Path) -> Place<'_> {
        let full = std::fs::canonicalize(typed).ok();
        Place { typed, full }
    }

    /// Reports whether a service is on the DEVICE at this place.
    pub(crate) fn is_device_of(&self, status: &Value) -> bool {
        let is_typed = |key: &str| {
            let text = status[key].as_str();
            text.is_some_and(|text| Path::new(text) == self.typed)
        };
        match &self.full {
            Some(full) => {
                let path = status["path"].as_str();
                path.is_some_and(|path| Path::new(path) == full)
            }
            None => device::is_lun(self.typed) && (is_typed("device") || is_typed("lun")),
        }
    }

    /// Reports whether a service has an export at this place.
    pub(crate) fn is_export_of(&self, status: &Value) -> bool {
        let full = self.full.as_deref();
        exports(status).any(|(kind, at)| {
            let at = Path::new(at);
            let in_dir = kind == "fuse" && at.parent() == full && full.is_some();
            at == self.typed || Some(at) == full || in_dir
        })
    }

    /// Reports whether a service is on this DEVICE, as a path or as its status shows it, or has an
    /// export here.
    pub(crate) fn is_of(&self, status: &Value) -> bool {
        let is_shown = |key: &str| {
            let text = status[key].as_str();
            self.full.is_none() && text.is_some_and(|text| Path::new(text) == self.typed)
        };
        let is_shown_device = is_shown("device") || is_shown("lun");
        is_shown_device || self.is_device_of(status) || self.is_export_of(status)
    }
}

/// Iterates over the kinds and places of the exports of a service.
fn exports(status: &Value) -> impl Iterator<Item = (&str, &str)> {
    let all = status["exports"].as_array().into_iter().flatten();
    all.filter_map(|export| Some((export["kind"].as_str()?, export["at"].as_str()?)))
}

/// Finds the service with this name, whether it answers or not.
fn by_name(word: &Path, run_dir: &Path) -> Result<Option<Service>> {
    let Some(name) = word.to_str().filter(|name| valid_name(name)) else {
        return Ok(None);
    };
    let status = match control::send_request(run_dir, name, &ControlRequest::Status) {
        Err(Error::NotFound(_)) => return Ok(None),
        Err(error) if !matches!(error, Error::Busy(_)) => return Err(error),
        status => status,
    };
    let name = name.to_owned();
    Ok(Some(Service { name, status }))
}

/// Finds the first service whose status satisfies `wanted`.
fn found(run_dir: &Path, wanted: impl Fn(&Value) -> bool) -> Option<(String, Value)> {
    let all = control::statuses(run_dir).ok()?.into_iter();
    let mut all = all.filter_map(|(name, status)| Some((name, status.ok()?)));
    all.find(|(_, status)| wanted(status))
}

fn is_path(word: &Path) -> bool {
    std::fs::symlink_metadata(word).is_ok()
}

/// Reports whether a word is an address, or the name of a LUN that is known.
fn is_lun(word: &Path, settings: &Settings) -> bool {
    let text = word.to_str().unwrap_or_default();
    let is_known = || {
        let registry = Registry::load(&settings.lun_registry());
        registry.is_ok_and(|registry| registry.find(text).is_some())
    };
    device::is_lun(word) && (!is_lun_name(text) || is_known())
}

fn no_service(word: &Path, run_dir: &Path) -> Error {
    let word_shown = word.display();
    Error::NotFound(if is_path(word) {
        format!(
            "{word_shown} is not attached, mounted or served by this user; `evfs status` lists \
             what is"
        )
    } else {
        let names = control::names(run_dir);
        let hint = did_you_mean(&word_shown.to_string(), names.iter().map(String::as_str));
        format!(
            "no volume, mount or cell is named `{word_shown}`, and there is no such path{hint}; \
             `evfs status` lists all names"
        )
    })
}

/// Creates the error of a word that is the name of a service, and also another device.
fn two_devices(word: &Path, service: &Value) -> Error {
    let (kind, other) = match std::fs::metadata(word) {
        Ok(_) => ("a path", format!("./{} for the path", word.display())),
        Err(_) => ("a LUN", "an address for the LUN".to_owned()),
    };
    Error::Usage(format!(
        "`{}` is ambiguous: it is the name of a service, and {kind}; use {other}, or {} for the \
         device of the service",
        word.display(),
        device_in(service).display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_service_is_found_at_its_device_and_its_exports() {
        let dir = tempfile::tempdir().unwrap();
        let dir = std::fs::canonicalize(dir.path()).unwrap();
        let at = |name: &str| dir.join(name);
        for name in ["a.img", "b.img", "loop"] {
            std::fs::write(at(name), "").unwrap();
        }
        for name in ["mnt", "fuse", "none"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::os::unix::fs::symlink(at("mnt"), at("link")).unwrap();
        let status = json!({
            "name": "a", "device": "shown.img", "path": at("a.img"), "lun": null,
            "exports": [
                { "kind": "mount", "at": at("mnt") },
                { "kind": "fuse", "at": at("fuse").join("a") },
                { "kind": "loop", "at": at("loop") },
                { "kind": "nbd", "at": "nbd+unix:///a?socket=x" },
            ],
        });
        let is_of = |path: PathBuf| Place::of(&path).is_of(&status);
        for name in ["a.img", "mnt", "link", "fuse", "loop"] {
            assert!(is_of(at(name)), "{name}");
        }
        for name in ["b.img", "none", "missing", "mnt/x"] {
            assert!(!is_of(at(name)), "{name}");
        }
        assert!(is_of("nbd+unix:///a?socket=x".into()));
        assert!(is_of("shown.img".into()));
        assert!(!Place::of(Path::new("shown.img")).is_device_of(&status));
        assert!(Place::of(&at("a.img")).is_device_of(&status));
        assert!(!Place::of(&at("a.img")).is_export_of(&status));
        assert_eq!(device_in(&status), at("a.img"));
    }

    #[test]
    fn the_device_of_a_service_can_be_opened_from_everywhere() {
        let uri = "nbd://h/x";
        let of = |status: &Value| device_in(status).display().to_string();
        assert_eq!(of(&json!({ "device": uri, "lun": "disk1" })), uri);
        assert_eq!(of(&json!({ "device": "a+b", "lun": "disk1" })), "disk1");
        assert_eq!(of(&json!({ "device": "a", "lun": null })), "a");
    }

    #[test]
    fn a_word_without_a_service_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().display().to_string();
        let settings = Settings::of_env(&|name| (name == "EVFS_RUN_DIR").then(|| run.clone()));
        let missing = Path::new("not-there.img");
        let found = device(missing, &settings).unwrap();
        assert_eq!((found.value.as_path(), found.note), (missing, None));
        for error in [
            device(dir.path(), &settings).unwrap_err(),
            service(missing, &settings).unwrap_err(),
            service(dir.path(), &settings).unwrap_err(),
            mount(missing, &settings).unwrap_err(),
        ] {
            assert_eq!(error.exit_code(), crate::exit::NOT_FOUND, "{error}");
        }
    }
}
