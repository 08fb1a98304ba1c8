//! The volumes to check: those that the user names, or all that are attached, configured or known
//! to the trust store.

use super::{Finding, Running, ids, quoted};
use crate::config::ServiceTable;
use crate::device;
use crate::handle::{Place, device_in};
use crate::trust::TrustFile;
use crate::{Error, Result, Settings};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A volume, file system or device to check.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    /// The DEVICE, as shown.
    pub(super) name: String,
    pub(super) device: PathBuf,
    /// Name and status of the service that has it open.
    pub(super) served: Option<(String, Value)>,
    /// Whether a service, a table or the trust store expects a volume there.
    pub(super) is_expected: bool,
}

/// Sources of volumes.
pub(super) struct Known<'a> {
    pub(super) running: &'a [Running],
    pub(super) tables: &'a [ServiceTable],
    pub(super) trust: &'a TrustFile,
}

/// Finds the volumes to check. The findings are about known volumes that do not exist.
///
/// # Errors
/// [`Error::NotFound`] for a name that matches nothing.
pub(super) fn of(
    names: &[PathBuf],
    known: &Known<'_>,
    settings: &Settings,
) -> Result<(Vec<Subject>, Vec<Finding>)> {
    let mut subjects = Vec::new();
    let mut findings = Vec::new();
    for name in names {
        for found in named(name, known, settings)? {
            add(&mut subjects, found);
        }
    }
    if !names.is_empty() {
        return Ok((subjects, findings));
    }
    for (name, status) in known.running {
        if let Ok(status) = status {
            add(&mut subjects, of_service(name, status));
        }
    }
    for table in known.tables {
        let path = table.spec.device();
        if exists(path) {
            add(&mut subjects, of_device(path, known, true));
        } else {
            findings.push(gone(&path.display().to_string(), &table.table()));
        }
    }
    for (uuid, record) in &known.trust.volumes {
        let places = record.devices(settings);
        let (there, absent): (Vec<_>, Vec<_>) =
            places.iter().map(Path::new).partition(|path| exists(path));
        if let (true, Some(first)) = (there.is_empty(), absent.first()) {
            findings.push(forgotten(uuid, first));
        }
        for path in there {
            add(&mut subjects, of_device(path, known, true));
        }
    }
    Ok((subjects, findings))
}

/// Resolves a name that the user has given.
fn named(name: &Path, known: &Known<'_>, settings: &Settings) -> Result<Vec<Subject>> {
    let text = name.to_str().unwrap_or_default();
    let served = known.running.iter().find(|(service, _)| service == text);
    match served {
        Some((service, Ok(status))) => return Ok(vec![of_service(service, status)]),
        // Its process is reported; its device is not known.
        Some((_, Err(_))) if !exists(name) => return Ok(Vec::new()),
        _ => {}
    }
    if name.is_dir() {
        let place = Place::of(name);
        let mut answering = known.running.iter();
        let found = answering.find_map(|(service, status)| {
            let status = status.as_ref().ok()?;
            place
                .is_export_of(status)
                .then(|| of_service(service, status))
        });
        return found.map(|subject| vec![subject]).ok_or_else(|| {
            Error::NotFound(format!(
                "{} is a directory at which this user has mounted nothing; `evfs status` lists \
                 mounts",
                name.display()
            ))
        });
    }
    if exists(name) {
        return Ok(vec![of_device(name, known, false)]);
    }
    if let Some(table) = known.tables.iter().find(|t| t.spec.name() == text) {
        return Ok(vec![of_device(table.spec.device(), known, true)]);
    }
    if let Some(record) = known.trust.volumes.get(text) {
        let places = record.devices(settings);
        let there = places.iter().map(Path::new).filter(|path| exists(path));
        let found: Vec<_> = there.map(|path| of_device(path, known, true)).collect();
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Err(Error::NotFound(format!(
        "{}: neither the name of a volume nor a device; `evfs status` lists what is attached, \
         --config FILE adds the tables of a configuration file",
        name.display()
    )))
}

/// Reports whether a DEVICE is a LUN or an existing file. A file that may not be examined counts.
fn exists(path: &Path) -> bool {
    let is_absent = |e: std::io::Error| e.kind() == std::io::ErrorKind::NotFound;
    device::is_lun(path) || !std::fs::metadata(path).is_err_and(is_absent)
}

fn of_service(name: &str, status: &Value) -> Subject {
    let device = device_in(status);
    let shown = status["device"].as_str().map(str::to_owned);
    Subject {
        name: shown.unwrap_or_else(|| device.display().to_string()),
        device,
        served: Some((name.to_owned(), status.clone())),
        is_expected: true,
    }
}

fn of_device(path: &Path, known: &Known<'_>, is_expected: bool) -> Subject {
    let place = Place::of(path);
    let served = known.running.iter().find_map(|(name, status)| {
        let status = status.as_ref().ok()?;
        let is_there = place.is_device_of(status);
        is_there.then(|| (name.clone(), status.clone()))
    });
    Subject {
        name: path.display().to_string(),
        device: path.to_owned(),
        is_expected: is_expected || served.is_some(),
        served,
    }
}

/// Adds a subject, unless its device is listed already.
fn add(subjects: &mut Vec<Subject>, new: Subject) {
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let device = real(&new.device);
    match subjects.iter_mut().find(|s| real(&s.device) == device) {
        Some(listed) => listed.is_expected |= new.is_expected,
        None => subjects.push(new),
    }
}

fn gone(device: &str, table: &str) -> Finding {
    Finding::error(ids::MISSING, "the device does not exist")
        .on(device)
        .why(format!("{table} of a configuration file names it"))
        .remedy("connect the device, or correct the table")
}

fn forgotten(uuid: &str, place: &Path) -> Finding {
    Finding::note(ids::MISSING, format!("the volume {uuid} is not there"))
        .on(place.display().to_string())
        .why("the trust store expects it there; its disk may only be disconnected")
        .remedy("if it no longer exists, forget it")
        .command(format!("evfs volume trust {} --reset", quoted(uuid)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_volume_is_listed_once_whatever_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a.img");
        std::fs::write(&image, "").unwrap();
        let image = std::fs::canonicalize(image).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&image, &link).unwrap();
        let status = json!({ "device": "a.img", "path": image.to_str() });
        let running = [("a".to_owned(), Ok(status))];
        let trust = TrustFile::default();
        let known = Known {
            running: &running,
            tables: &[],
            trust: &trust,
        };
        let settings = Settings::of_env(&|_| None);
        let find = |names: &[&Path]| {
            let names: Vec<_> = names.iter().map(|name| name.to_path_buf()).collect();
            of(&names, &known, &settings).map(|(subjects, _)| subjects)
        };
        let all = [link.as_path(), image.as_path(), Path::new("a")];
        for names in [&all[..0], &all[..]] {
            let found = find(names).unwrap();
            assert_eq!(found.len(), 1, "{names:?}");
            assert!(found[0].served.is_some() && found[0].is_expected);
        }
        let error = find(&[Path::new("nothing")]).unwrap_err();
        assert_eq!(error.exit_code(), crate::exit::NOT_FOUND);
    }
}
