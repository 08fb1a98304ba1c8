//! Reading of a DEVICE without a trace: no claim, no open lock, no entry in the registry, and no
//! file of a lock. Other processes may have the DEVICE open, and may change it at the same time.

use super::{CONNECT_WITHIN, OnePath, addresses, is_uri, lunpath};
use crate::place::{Places, place_of_lun};
use crate::registry::{Registry, unknown};
use crate::{Error, Result, Settings};
use block::Access;
use block::BlockDevice;
use path_file::{FileDevice, HeaderGuard, Lock, Sharing};
use std::path::Path;
use std::sync::Arc;

/// A DEVICE open for reading.
pub(crate) struct Peek {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) places: Places,
    /// Header lock of a regular file. The lock of a block device is a file of its own, which is not
    /// created here.
    _guard: Option<HeaderGuard>,
}

/// Opens a DEVICE for reading: a file, or a LUN over the first of its enabled paths that answers.
///
/// # Errors
/// The file or LUN does not exist, is not readable, or does not answer.
pub(crate) fn peek(device: &Path, settings: &Settings) -> Result<Peek> {
    let Some(addresses) = addresses(device) else {
        return file(device);
    };
    let registry = settings.lun_registry();
    let named = match addresses.as_slice() {
        [one] => Registry::load(&registry)?.find(one).cloned(),
        _ => None,
    };
    let (places, paths) = match named {
        Some(lun) => {
            let enabled = lun.paths.into_iter().filter(|path| path.enabled);
            let places = Places::of_lun(place_of_lun(&registry, &lun.name));
            (places, enabled.map(|path| path.address).collect())
        }
        None => (Places::default(), addresses),
    };
    let mut failed = None;
    for address in &paths {
        match one(address, settings) {
            Ok(device) => {
                return Ok(Peek {
                    device,
                    places,
                    _guard: None,
                });
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Err(failed.unwrap_or_else(|| unknown(&device.display().to_string())))
}

/// Checks whether a path of a LUN can be read.
///
/// # Errors
/// The reason why it cannot.
pub(crate) fn answers(address: &str, settings: &Settings) -> Result<()> {
    if is_uri(address) {
        lunpath(address, settings, Access::ReadOnly)?.identify(CONNECT_WITHIN)?;
    } else {
        file_device(Path::new(address))?;
    }
    Ok(())
}

fn one(address: &str, settings: &Settings) -> Result<Arc<dyn BlockDevice>> {
    if super::is_lun_name(address) {
        return Err(unknown(address));
    }
    if is_uri(address) {
        let path = lunpath(address, settings, Access::ReadOnly)?;
        return Ok(Arc::new(OnePath::open(path)?));
    }
    Ok(file_device(Path::new(address))?)
}

fn file(path: &Path) -> Result<Peek> {
    let file = file_device(path)?;
    let is_file = std::fs::metadata(path).is_ok_and(|meta| meta.is_file());
    // Without the lock, a change at the same time may look like damage; the caller reads again.
    let guard = is_file
        .then(|| file.header_lock(Sharing::Shared).ok())
        .flatten();
    Ok(Peek {
        places: Places::of_file(&file),
        device: file,
        _guard: guard,
    })
}

fn file_device(path: &Path) -> Result<Arc<FileDevice>> {
    let options = path_file::Options {
        read_only: true,
        lock: Lock::None,
        ..path_file::Options::default()
    };
    FileDevice::open(path, &options).map_err(Error::Block)
}
