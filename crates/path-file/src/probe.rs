//! Properties of a file: size, alignment, identity, NUMA node.

use block::{Error, ErrorKind, Result};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

/// Smallest logical block size in bytes.
const SMALLEST_BLOCK: u32 = 512;
/// Alignment of offset and length in bytes that O_DIRECT always accepts.
const SAFE_BLOCK: u32 = 4096;

/// Properties found.
pub(crate) struct Probe {
    pub(crate) block_device: bool,
    /// Whether the device refuses writes.
    pub(crate) read_only: bool,
    pub(crate) size: u64,
    pub(crate) logical_block_size: u32,
    /// Required alignment of memory for O_DIRECT; 1 with the page cache.
    pub(crate) memory_align: u32,
    pub(crate) optimal_io_size: u32,
    pub(crate) wwid: String,
    pub(crate) numa_node: Option<u32>,
}

/// Determines the properties of an open file.
pub(crate) fn probe(file: &File, name: &str, direct: bool) -> Result<Probe> {
    let io = |e| Error::from_io(name, e);
    let meta = file.metadata().map_err(io)?;
    let kind = meta.file_type();
    let mut found = if kind.is_block_device() {
        probe_disk(file, name, meta.rdev())?
    } else if kind.is_file() {
        Probe {
            block_device: false,
            read_only: false,
            size: meta.len(),
            logical_block_size: SMALLEST_BLOCK,
            memory_align: 1,
            optimal_io_size: u32::try_from(meta.blksize()).unwrap_or(SAFE_BLOCK),
            wwid: format!("file:{:x}:{}", meta.dev(), meta.ino()),
            numa_node: numa_node(meta.dev()),
        }
    } else {
        let why = "neither a regular file nor a block device";
        return Err(Error::new(ErrorKind::Invalid, name, why));
    };
    if direct {
        let (offset_align, memory_align) = direct_alignment(file);
        found.logical_block_size = found.logical_block_size.max(offset_align);
        found.memory_align = memory_align;
    }
    // A file may end anywhere; the bytes after its last whole block are not usable.
    found.size -= found.size % u64::from(found.logical_block_size);
    Ok(found)
}

/// Returns the current size in bytes of an open file or block device.
pub(crate) fn size(file: &File) -> std::io::Result<u64> {
    let meta = file.metadata()?;
    if meta.file_type().is_block_device() {
        disk_size(file)
    } else {
        Ok(meta.len())
    }
}

fn disk_size(disk: &File) -> std::io::Result<u64> {
    let mut bytes: u64 = 0;
    // BLKGETSIZE64 of <linux/fs.h>: _IOR(0x12, 114, size_t); it stores 64 bits.
    const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
    // SAFETY: the descriptor is a block device, and the request stores a value of this type.
    match unsafe { libc::ioctl(disk.as_raw_fd(), BLKGETSIZE64 as _, &mut bytes) } {
        0 => Ok(bytes),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn probe_disk(file: &File, name: &str, rdev: u64) -> Result<Probe> {
    let io = |e| Error::from_io(name, e);
    let bytes = disk_size(file).map_err(io)?;
    let mut block: libc::c_int = 0;
    // SAFETY: the descriptor is a block device, and the request stores a value of this type.
    let stored = unsafe { libc::ioctl(file.as_raw_fd(), libc::BLKSSZGET as _, &mut block) == 0 };
    if !stored {
        return Err(io(std::io::Error::last_os_error()));
    }
    let sys = sys_folder(rdev);
    let number = |file: &str| read_trimmed(&format!("{sys}/{file}"))?.parse::<u32>().ok();
    Ok(Probe {
        block_device: true,
        // Linux allows opening such a device for writing, and refuses the writes.
        read_only: read_trimmed(&format!("{sys}/ro")).is_some_and(|ro| ro == "1"),
        size: bytes,
        logical_block_size: u32::try_from(block)
            .unwrap_or(SAFE_BLOCK)
            .max(SMALLEST_BLOCK),
        memory_align: 1,
        optimal_io_size: number("queue/optimal_io_size")
            .filter(|n| *n > 0)
            .unwrap_or(SAFE_BLOCK),
        wwid: wwid_of_disk(&sys, rdev),
        numa_node: numa_node(rdev),
    })
}

fn sys_folder(dev: u64) -> String {
    format!("/sys/dev/block/{}:{}", libc::major(dev), libc::minor(dev))
}

/// Reads the identity that the disk itself reports, which two paths to it share; else its device
/// number on this machine.
fn wwid_of_disk(sys: &str, rdev: u64) -> String {
    ["wwid", "device/wwid", "dm/uuid", "loop/backing_file"]
        .iter()
        .find_map(|file| read_trimmed(&format!("{sys}/{file}")).filter(|id| !id.is_empty()))
        .unwrap_or_else(|| format!("dev:{}:{}", libc::major(rdev), libc::minor(rdev)))
}

/// Finds the NUMA node of the disk, or of the disk that holds the file's file system.
fn numa_node(dev: u64) -> Option<u32> {
    let sys = sys_folder(dev);
    ["device/numa_node", "../device/numa_node"]
        .iter()
        .find_map(|file| read_trimmed(&format!("{sys}/{file}"))?.parse().ok())
}

fn read_trimmed(path: &str) -> Option<String> {
    std::fs::read_to_string(Path::new(path))
        .ok()
        .map(|text| text.trim().to_owned())
}

/// Finds the alignment of offsets and of memory for O_DIRECT: from `statx` (Linux 6.1), or
/// determined by a read of 512 bytes.
fn direct_alignment(file: &File) -> (u32, u32) {
    // SAFETY: an all-zero statx is a valid value to be filled in.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, the path is empty as AT_EMPTY_PATH requires, and `stat` has
    // room for the result.
    let done = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            &mut stat,
        )
    };
    if done == 0 && stat.stx_mask & libc::STATX_DIOALIGN != 0 && stat.stx_dio_offset_align > 0 {
        return (
            stat.stx_dio_offset_align.max(SMALLEST_BLOCK),
            stat.stx_dio_mem_align.max(1),
        );
    }
    let mut buf = block::Buf::zeroed(SMALLEST_BLOCK as usize);
    match file.read_at(&mut buf, u64::from(SMALLEST_BLOCK)) {
        Ok(_) => (SMALLEST_BLOCK, SMALLEST_BLOCK),
        Err(_) => (SAFE_BLOCK, SAFE_BLOCK),
    }
}
