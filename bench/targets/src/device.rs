//! The stacks that benchmarks (`evfs bench`) compare, all over the same bytes of one file or disk.

use block::BlockDevice;
use block_testing::Mem;
use crypt::{CryptDevice, DataSegment};
use path_file::{FileDevice, Lock};
use secret::SecretBytes;
use stack::device::{self, OpenLun, Share};
use stack::signature::{self, View};
use stack::{Access, Error, Existing, Left, Result, Settings};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xts::{SectorSize, Tweak, Xts};

/// A stack to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StackKind {
    /// The file or disk, without encryption.
    Clear,
    /// Encryption with a key of this many bits and sectors of 4096 bytes.
    Encrypted(u32),
}

impl std::fmt::Display for StackKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StackKind::Clear => f.pad("clear"),
            StackKind::Encrypted(bits) => f.pad(&format!("encrypted-{bits}")),
        }
    }
}

/// A stack ready for measurement.
pub struct BenchStack {
    /// `clear`, `encrypted-128`, `encrypted-256`.
    pub name: String,
    /// Device at the top of the stack.
    pub device: Arc<dyn BlockDevice>,
    /// Whether I/O bypasses the page cache.
    pub direct: bool,
    /// Cipher, or `none`.
    pub cipher: String,
    /// Name of the cipher kernel, with encryption.
    pub kernel: Option<String>,
}

/// The file or disk under all stacks. A file created for it is unlinked at once, and freed on drop.
pub struct BenchDevice {
    lower: Arc<dyn BlockDevice>,
    direct: bool,
    path: Option<PathBuf>,
    /// The created file; its descriptor keeps it reachable without a name.
    _made: Option<File>,
    lun: Option<Arc<OpenLun>>,
}

impl BenchDevice {
    /// Opens a file, a disk or a LUN, or creates a file of `size` bytes. A new file is at `device`
    /// if that path does not exist; it gets a unique name in the directory `device`, or in the
    /// directory for temporary files if `device` is `None`.
    ///
    /// # Errors
    /// [`Error::WouldDestroy`] for a device that is not empty, if its data is to be kept;
    /// [`Error::Usage`] for one smaller than `size`; those of [`device::open`].
    pub fn open(
        device: Option<&Path>,
        size: u64,
        existing: Existing,
        settings: &Settings,
    ) -> Result<BenchDevice> {
        if let Some(name) = device.filter(|name| device::is_lun(name)) {
            let disk = device::open(name, settings, Access::ReadWrite, Share::Replace)?;
            let bench = BenchDevice {
                lower: disk.device(),
                direct: disk.direct(),
                path: None,
                _made: None,
                lun: disk.lun().cloned(),
            };
            return bench.overwritable(name, size, existing);
        }
        let path = match device {
            Some(path) if !path.is_dir() => path.to_owned(),
            folder => {
                let mut name = [0; 8];
                getrandom::fill(&mut name).map_err(|e| Error::Failed(e.to_string()))?;
                let name = u64::from_le_bytes(name);
                let folder = folder.map_or_else(std::env::temp_dir, Path::to_owned);
                folder.join(format!("evfs-bench-{name:016x}"))
            }
        };
        let options = path_file::Options {
            lock: Lock::Exclusive,
            ..path_file::Options::default()
        };
        if !path.exists() {
            let file = FileDevice::create(&path, size, &options)?;
            let made = File::options()
                .read(true)
                .write(true)
                .open(&path)
                .map_err(|e| Error::io("cannot open", &path, e))?;
            let reached = format!("/proc/{}/fd/{}", std::process::id(), made.as_raw_fd()).into();
            // An unlinked file exists while it is open, so a killed process leaves nothing behind.
            std::fs::remove_file(&path).map_err(|e| Error::io("cannot remove", &path, e))?;
            return Ok(BenchDevice {
                direct: file.direct(),
                lower: file,
                path: Some(reached),
                _made: Some(made),
                lun: None,
            });
        }
        let file = FileDevice::open(&path, &options)?;
        let bench = BenchDevice {
            direct: file.direct(),
            lower: file,
            path: Some(path.clone()),
            _made: None,
            lun: None,
        };
        bench.overwritable(&path, size, existing)
    }

    /// Refuses a device that is too small, or that has data to keep.
    fn overwritable(self, name: &Path, size: u64, existing: Existing) -> Result<BenchDevice> {
        let has = self.lower.info().size;
        if has < size {
            return Err(Error::Usage(format!(
                "{} is too small: it has {has} bytes, and the benchmark uses {size}; pass a \
                 smaller --size",
                name.display()
            )));
        }
        match signature::content(&*self.lower, View::Stored)? {
            Some(found) if existing == Existing::Keep => Err(Error::WouldDestroy {
                device: name.display().to_string(),
                found: found.to_string(),
                kept: Left::Nothing,
            }),
            _ => Ok(self),
        }
    }

    /// Opens a DEVICE for reading only. Other users of it are not disturbed, and it is not changed.
    ///
    /// # Errors
    /// Those of [`device::open`].
    pub fn only_read(path: &Path, settings: &Settings) -> Result<BenchDevice> {
        let disk = device::open(path, settings, Access::ReadOnly, Share::All)?;
        Ok(BenchDevice {
            lower: disk.device(),
            direct: disk.direct(),
            path: Some(path.to_owned()),
            _made: None,
            lun: disk.lun().cloned(),
        })
    }

    /// Creates a device in memory.
    pub fn in_memory(size: u64) -> BenchDevice {
        BenchDevice {
            lower: Arc::new(Mem::new(size, 512)),
            direct: true,
            path: None,
            _made: None,
            lun: None,
        }
    }

    /// Returns the device under all stacks.
    pub fn lower(&self) -> &Arc<dyn BlockDevice> {
        &self.lower
    }

    /// Returns the path of the file or disk, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Returns the LUN, if there is one.
    pub fn lun(&self) -> Option<&Arc<OpenLun>> {
        self.lun.as_ref()
    }

    /// Reports whether I/O bypasses the page cache.
    pub fn direct(&self) -> bool {
        self.direct
    }

    /// Creates a bench with `device`, a layer over this one, under all stacks; it has no path or
    /// LUN.
    pub fn above(&self, device: Arc<dyn BlockDevice>) -> BenchDevice {
        BenchDevice {
            lower: device,
            direct: self.direct,
            path: None,
            _made: None,
            lun: None,
        }
    }

    /// Builds a stack. It uses a random key, because the speed of AES does not depend on the key.
    pub fn build(&self, kind: StackKind) -> Result<BenchStack> {
        let direct = self.direct;
        match kind {
            StackKind::Clear => Ok(BenchStack {
                name: kind.to_string(),
                device: Arc::clone(&self.lower),
                direct,
                cipher: "none".into(),
                kernel: None,
            }),
            StackKind::Encrypted(bits) => {
                let key = SecretBytes::random(bits as usize / 4);
                let xts =
                    Xts::new(&key, SectorSize::B4096).map_err(|e| Error::Failed(e.to_string()))?;
                let kernel = xts.kernel().to_string();
                let segment = DataSegment {
                    offset: 0,
                    size: None,
                    iv_tweak: Tweak::ZERO,
                };
                let lower = Arc::clone(&self.lower);
                let device = CryptDevice::new(lower, xts, segment, crypt::Options::default())?;
                Ok(BenchStack {
                    name: kind.to_string(),
                    device: Arc::new(device),
                    direct,
                    cipher: format!("aes-{bits}-xts, 4096-byte sectors"),
                    kernel: Some(kernel),
                })
            }
        }
    }
}
