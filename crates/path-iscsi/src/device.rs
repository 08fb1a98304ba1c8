//! A path as a device of its own, without the multi-path layer over it.

use crate::path::IscsiPath;
use crate::queue::Retries;
use block::{BlockDevice, DeviceInfo, Error, ErrorKind, Queue, Result};
use std::time::Duration;

/// A logical unit over one path. Each queue has a session of its own.
pub struct IscsiDevice {
    path: IscsiPath,
    info: DeviceInfo,
}

impl IscsiDevice {
    pub(crate) fn open(path: IscsiPath, within: Duration) -> Result<IscsiDevice> {
        let connection = path.make_connection(within)?;
        let info = block::Connection::info(&connection).clone();
        Ok(IscsiDevice { path, info })
    }

    /// The path below.
    pub fn path(&self) -> &IscsiPath {
        &self.path
    }
}

impl BlockDevice for IscsiDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Connects, which may take [`crate::Options::connect_timeout`].
    fn queue(&self) -> Result<Box<dyn Queue>> {
        let connection = self
            .path
            .make_connection(self.path.options.connect_timeout)?;
        let found = block::Connection::info(&connection);
        if *found != self.info {
            let why =
                "the unit is another, or has changed, since the device was opened; open it again";
            return Err(Error::new(ErrorKind::Invalid, &self.info.name, why));
        }
        Ok(Box::new(connection.into_queue(Retries::Here)?))
    }
}
