//! A file or block device as one path to a LUN.

use crate::queue::FileQueue;
use crate::{FileDevice, Options};
use block::{BlockDevice, DeviceInfo, Error, ErrorKind, Request, Result};
use lunpath::{Access, AccessHint, Connection, Identity, Lunpath, PathQueue, Transport};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// File or block device of this machine, as a path. The first connection opens it, and it stays
/// open, under its lock, for the lifetime of the path.
pub struct FilePath {
    path: PathBuf,
    name: String,
    options: Options,
    device: Mutex<Option<Arc<FileDevice>>>,
}

impl FilePath {
    /// Creates a path without opening anything.
    pub fn new(path: PathBuf, options: Options) -> FilePath {
        FilePath {
            name: path.display().to_string(),
            path,
            options,
            device: Mutex::new(None),
        }
    }

    /// Returns the open file, opening it if needed.
    ///
    /// # Errors
    /// Those of [`FileDevice::open`].
    pub fn device(&self) -> Result<Arc<FileDevice>> {
        let mut device = self.device.lock().unwrap_or_else(|e| e.into_inner());
        match &*device {
            Some(device) => Ok(Arc::clone(device)),
            None => {
                let opened = FileDevice::open(&self.path, &self.options)?;
                *device = Some(Arc::clone(&opened));
                Ok(opened)
            }
        }
    }
}

fn identity(info: &DeviceInfo) -> Identity {
    Identity {
        wwid: Some(info.wwid.clone()),
        serial: None,
        vendor: "file".into(),
        product: "file".into(),
        size: info.size,
        logical_block_size: info.logical_block_size,
        read_only: info.read_only,
        access: Access::Optimized,
    }
}

impl Lunpath for FilePath {
    fn name(&self) -> &str {
        &self.name
    }

    fn transport(&self) -> Transport {
        Transport::File
    }

    fn target_port(&self) -> String {
        let folder = self.path.parent().unwrap_or(&self.path);
        folder.display().to_string()
    }

    fn identify(&self, _within: Duration) -> Result<Identity> {
        let device = self.device()?;
        device.update_size()?;
        Ok(identity(device.info()))
    }

    fn connect(&self, _within: Duration) -> Result<Box<dyn Connection>> {
        let device = self.device()?;
        let identity = identity(device.info());
        Ok(Box::new(FileConnection { device, identity }))
    }

    fn fence(&self, _key: u64, _within: Duration) -> Result<()> {
        // The kernel executes everything it has accepted; there is no target that could fence.
        let why = "a file cannot be fenced";
        Err(Error::new(ErrorKind::Unsupported, &self.name, why))
    }
}

struct FileConnection {
    device: Arc<FileDevice>,
    identity: Identity,
}

impl Connection for FileConnection {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn fence_key(&self) -> Option<u64> {
        None
    }

    fn open(self: Box<Self>) -> Result<Box<dyn PathQueue>> {
        Ok(Box::new(FileQueue::open(Arc::clone(&self.device.shared))?))
    }
}

/// The kernel keeps the memory of a request until it is done, and executes everything that it has
/// accepted: no request can be withdrawn, and no path to a file is lost for good.
impl PathQueue for FileQueue {
    fn withdraw(&mut self, _tag: u64) -> Option<Request> {
        None
    }

    fn drain_late(&mut self, _tags: &mut Vec<u64>) {}

    fn access_sign(&mut self) -> Option<AccessHint> {
        None
    }

    fn lost_reason(&self) -> Option<&str> {
        None
    }
}
