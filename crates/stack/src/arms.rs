//! The stacks that the laboratory compares, all over the same bytes of one file or disk.

mod own_cell;
mod own_fs;
mod own_mount;

pub use own_cell::OwnCell;
pub use own_fs::OwnFs;
pub use own_mount::OwnMount;

use crate::device::{self, OpenLun, Share};
use crate::error::Left;
use crate::signature::{self, View};
use crate::{Error, Result, Settings};
use block::{BlockDevice, Mem};
use crypt::{CryptDevice, DataSegment};
use path_file::{FileDevice, Lock};
use secret::SecretBytes;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xts::{SectorSize, Xts};

/// A stack to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArmKind {
    /// The file path alone.
    Clear,
    /// The cipher over the file path, with a key of this many bits and 4096-byte sectors.
    Encrypted(u32),
}

impl std::fmt::Display for ArmKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ArmKind::Clear => f.pad("clear"),
            ArmKind::Encrypted(bits) => f.pad(&format!("encrypted-{bits}")),
        }
    }
}

/// A stack that was built.
pub struct Built {
    /// `clear`, `encrypted-128`, `encrypted-256`.
    pub name: String,
    /// Its top.
    pub device: Arc<dyn BlockDevice>,
    /// Whether the page cache is passed by.
    pub direct: bool,
    /// Cipher, or `none`.
    pub cipher: String,
    /// Name of the cipher kernel.
    pub kernel: Option<String>,
}

/// The file or disk under all stacks. A file that is made for the purpose has no name from then on, and ends with it.
pub struct Bench {
    lower: Arc<dyn BlockDevice>,
    direct: bool,
    path: Option<PathBuf>,
    /// The file that was made, by which others reach it without a name.
    _made: Option<File>,
    /// The LUN that it is.
    lun: Option<Arc<OpenLun>>,
}

impl Bench {
    /// Opens a file, a disk or a LUN, or makes a file of `size` bytes: there when a path is given, else in the
    /// folder for temporary files; in a folder that is given, one that has a name of its own.
    ///
    /// # Errors
    /// [`Error::WouldDestroy`] for a device that is not empty, unless `force` is set;
    /// [`Error::Usage`] for one smaller than `size`; those of [`device::open`].
    pub fn open(
        device: Option<&Path>,
        size: u64,
        force: bool,
        settings: &Settings,
    ) -> Result<Bench> {
        if let Some(name) = device.filter(|name| device::is_a_lun(name)) {
            let disk = device::open(name, settings, false, Share::Replace)?;
            let bench = Bench {
                lower: disk.device(),
                direct: disk.direct(),
                path: None,
                _made: None,
                lun: disk.lun().cloned(),
            };
            return bench.overwritable(name, size, force);
        }
        let path = match device {
            Some(path) if !path.is_dir() => path.to_owned(),
            folder => {
                let mut name = [0; 8];
                getrandom::fill(&mut name).map_err(|e| Error::Failed(e.to_string()))?;
                let name = u64::from_le_bytes(name);
                let folder = folder.map_or_else(std::env::temp_dir, Path::to_owned);
                folder.join(format!("evfs-lab-{name:016x}"))
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
            // Without its name it is there as long as it is open, and nothing stays of a process that is killed.
            std::fs::remove_file(&path).map_err(|e| Error::io("cannot remove", &path, e))?;
            return Ok(Bench {
                direct: file.direct(),
                lower: file,
                path: Some(reached),
                _made: Some(made),
                lun: None,
            });
        }
        let file = FileDevice::open(&path, &options)?;
        let bench = Bench {
            direct: file.direct(),
            lower: file,
            path: Some(path.clone()),
            _made: None,
            lun: None,
        };
        bench.overwritable(&path, size, force)
    }

    /// The same, if it is large enough and holds nothing.
    fn overwritable(self, name: &Path, size: u64, force: bool) -> Result<Bench> {
        let has = self.lower.info().size;
        if has < size {
            return Err(Error::Usage(format!(
                "{} has {has} bytes, fewer than the {size} to be used; give a smaller --size",
                name.display()
            )));
        }
        match signature::content(&*self.lower, View::Stored)? {
            Some(found) if !force => Err(Error::WouldDestroy {
                device: name.display().to_string(),
                found: found.to_string(),
                kept: Left::Nothing,
            }),
            _ => Ok(self),
        }
    }

    /// A DEVICE that is only read: who uses it goes on, and nothing on it changes.
    ///
    /// # Errors
    /// As [`device::open`].
    pub fn only_read(path: &Path, settings: &Settings) -> Result<Bench> {
        let disk = device::open(path, settings, true, Share::All)?;
        Ok(Bench {
            lower: disk.device(),
            direct: disk.direct(),
            path: Some(path.to_owned()),
            _made: None,
            lun: disk.lun().cloned(),
        })
    }

    /// Memory of this process.
    pub fn in_memory(size: u64) -> Bench {
        Bench {
            lower: Arc::new(Mem::new(size, 512)),
            direct: true,
            path: None,
            _made: None,
            lun: None,
        }
    }

    /// What is under all stacks.
    pub fn lower(&self) -> &Arc<dyn BlockDevice> {
        &self.lower
    }

    /// The file or disk, where it is one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The LUN, where it is one.
    pub fn lun(&self) -> Option<&Arc<OpenLun>> {
        self.lun.as_ref()
    }

    /// Whether the page cache is passed by.
    pub fn direct(&self) -> bool {
        self.direct
    }

    /// What lies over this one, in place of it: what is built on it keeps nothing of this.
    pub fn above(&self, device: Arc<dyn BlockDevice>) -> Bench {
        Bench {
            lower: device,
            direct: self.direct,
            path: None,
            _made: None,
            lun: None,
        }
    }

    /// Builds a stack. A random key serves as well as a real one: AES takes the same time for all.
    pub fn build(&self, kind: ArmKind) -> Result<Built> {
        let direct = self.direct;
        match kind {
            ArmKind::Clear => Ok(Built {
                name: kind.to_string(),
                device: Arc::clone(&self.lower),
                direct,
                cipher: "none".into(),
                kernel: None,
            }),
            ArmKind::Encrypted(bits) => {
                let key = SecretBytes::random(bits as usize / 4);
                let xts =
                    Xts::new(&key, SectorSize::B4096).map_err(|e| Error::Failed(e.to_string()))?;
                let kernel = xts.kernel().to_string();
                let segment = DataSegment {
                    offset: 0,
                    size: None,
                    iv_tweak: 0,
                };
                let lower = Arc::clone(&self.lower);
                let device = CryptDevice::new(lower, xts, segment, crypt::Options::default())?;
                Ok(Built {
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
