//! A path as a standalone device, without the multipath layer.

use crate::path::IscsiPath;
use crate::queue::Retries;
use block::{BlockDevice, DeviceInfo, Error, ErrorKind, Queue, Result};
use std::time::Duration;

/// A logical unit over a single path. Each queue has its own session.
pub struct IscsiDevice {
    path: IscsiPath,
    info: DeviceInfo,
}

impl IscsiPath {
    /// Opens the path as a standalone device; each of its queues opens a connection. Blocks for at
    /// most `within`.
    ///
    /// # Errors
    /// Same as [`lunpath::Lunpath::connect`].
    pub fn open(self, within: Duration) -> Result<IscsiDevice> {
        let connection = self.make_connection(within)?;
        let info = lunpath::Connection::info(&connection).clone();
        Ok(IscsiDevice { path: self, info })
    }
}

impl IscsiDevice {
    /// Returns the underlying path.
    pub fn path(&self) -> &IscsiPath {
        &self.path
    }
}

impl BlockDevice for IscsiDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Opens a connection, which may block for [`crate::Options::connect_timeout`].
    fn queue(&self) -> Result<Box<dyn Queue>> {
        let connection = self
            .path
            .make_connection(self.path.options.connect_timeout)?;
        let found = lunpath::Connection::info(&connection);
        if *found != self.info {
            let why = "the unit was replaced or changed after the device was opened; reopen it";
            return Err(Error::new(ErrorKind::Invalid, &self.info.name, why));
        }
        Ok(Box::new(connection.into_queue(Retries::Here)?))
    }
}
