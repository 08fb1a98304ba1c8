//! The stacks that the laboratory compares, all over the same bytes of one file or disk.

use crate::{Error, Result, signature};
use block::BlockDevice;
use crypt::{CryptDevice, DataSegment};
use path_file::{FileDevice, Lock};
use secret::SecretBytes;
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

/// The file or disk under all stacks. A file that was made for the purpose is removed at the end.
pub struct Bench {
    file: Arc<FileDevice>,
    made: Option<PathBuf>,
}

impl Bench {
    /// Opens `device`, or makes a file of `size` bytes: there when a path is given, else in the
    /// folder for temporary files.
    ///
    /// # Errors
    /// [`Error::WouldDestroy`] for a device with a known signature, unless `force` is set;
    /// [`Error::Usage`] for one smaller than `size`.
    pub fn open(device: Option<&Path>, size: u64, force: bool) -> Result<Bench> {
        let path = match device {
            Some(path) => path.to_owned(),
            None => {
                let mut name = [0; 8];
                getrandom::fill(&mut name).map_err(|e| Error::Failed(e.to_string()))?;
                let name = u64::from_le_bytes(name);
                std::env::temp_dir().join(format!("evfs-lab-{name:016x}"))
            }
        };
        let options = path_file::Options {
            lock: Lock::Exclusive,
            ..path_file::Options::default()
        };
        if !path.exists() {
            let file = FileDevice::create(&path, size, &options)?;
            return Ok(Bench {
                file,
                made: Some(path),
            });
        }
        let file = FileDevice::open(&path, &options)?;
        if file.info().size < size {
            return Err(Error::Usage(format!(
                "{} has {} bytes, fewer than the {size} to be used; give a smaller --size",
                path.display(),
                file.info().size
            )));
        }
        match signature::find(&file)? {
            Some(found) if !force => {
                let device = path.display().to_string();
                Err(Error::WouldDestroy {
                    device,
                    found: found.into(),
                })
            }
            _ => Ok(Bench { file, made: None }),
        }
    }

    /// Builds a stack. A random key serves as well as a real one: AES takes the same time for all.
    pub fn build(&self, kind: ArmKind) -> Result<Built> {
        let direct = self.file.direct();
        match kind {
            ArmKind::Clear => Ok(Built {
                name: "clear".into(),
                device: self.file.clone(),
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
                let lower: Arc<dyn BlockDevice> = self.file.clone();
                let device = CryptDevice::new(lower, xts, segment, crypt::Options::default())?;
                Ok(Built {
                    name: format!("encrypted-{bits}"),
                    device: Arc::new(device),
                    direct,
                    cipher: format!("aes-{bits}-xts, 4096-byte sectors"),
                    kernel: Some(kernel),
                })
            }
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(path) = &self.made {
            let _ = std::fs::remove_file(path);
        }
    }
}
