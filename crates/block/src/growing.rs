//! Properties of a device whose size may increase while it is open.

use crate::{DeviceInfo, Error, ErrorKind, Result};
use std::ops::Deref;
use std::sync::OnceLock;

/// Properties of an open device. Each increase of the size adds a version; references to older
/// versions stay valid, so a reader needs no lock and no copy.
#[derive(Debug)]
pub struct GrowingInfo {
    info: DeviceInfo,
    next: OnceLock<Box<GrowingInfo>>,
}

impl GrowingInfo {
    /// Adopts the size that the storage has now. Returns it.
    ///
    /// # Errors
    /// [`ErrorKind::Media`]: the storage has become smaller.
    pub fn grow(&self, size: u64) -> Result<u64> {
        loop {
            let DeviceInfo {
                size: had, name, ..
            } = &**self;
            if size < *had {
                let why = format!(
                    "it has become smaller: it has {size} bytes, and had {had} when it was opened; \
                     restore its size"
                );
                return Err(Error::new(ErrorKind::Media, name, why));
            }
            if size == *had {
                return Ok(size);
            }
            let last = self.last();
            let info = DeviceInfo {
                size,
                ..last.info.clone()
            };
            // Fails if another thread has added a version, which is then compared.
            let _ = last.next.set(Box::new(info.into()));
        }
    }

    fn last(&self) -> &GrowingInfo {
        let mut last = self;
        while let Some(next) = last.next.get() {
            last = next;
        }
        last
    }
}

/// Refers to the current version.
impl Deref for GrowingInfo {
    type Target = DeviceInfo;

    fn deref(&self) -> &DeviceInfo {
        &self.last().info
    }
}

impl From<DeviceInfo> for GrowingInfo {
    fn from(info: DeviceInfo) -> GrowingInfo {
        GrowingInfo {
            info,
            next: OnceLock::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_increases_and_older_versions_stay() {
        let first = DeviceInfo {
            name: "disk".into(),
            wwid: "w".into(),
            size: 4096,
            logical_block_size: 512,
            optimal_io_size: 4096,
            max_transfer: 65536,
            volatile_write_cache: true,
            read_only: false,
            discard: false,
            numa_node: None,
        };
        let growing = GrowingInfo::from(first.clone());
        let before = &*growing;
        assert_eq!(growing.grow(8192).unwrap(), 8192);
        let refused = growing.grow(512).unwrap_err();
        assert!(refused.to_string().contains("become smaller"), "{refused}");
        std::thread::scope(|threads| {
            for size in [1 << 20, 1 << 21, 1 << 22] {
                // Fails if another thread has adopted a larger size.
                let growing = &growing;
                threads.spawn(move || growing.grow(size));
            }
        });
        assert_eq!(before, &first);
        let size = 1 << 22;
        assert_eq!(*growing, DeviceInfo { size, ..first });
    }
}
