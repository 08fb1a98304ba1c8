//! Ioctls of files and directories: flags, project, generation, label, trim.
//!
//! The kernel passes an ioctl with as much input and output as its number encodes. It translates
//! `FS_IOC_FS[GS]ETXATTR` and `FS_IOC_[GS]ETFLAGS` since Linux 5.13, and checks who may set flags;
//! earlier kernels do not, so this module checks it, too.

use super::{Tree, caller, errno};
use fs::{Files, Fileset, InodeFlags};
use fuse_mount::fuse_proto::{Header, Ioctl};
use fuse_mount::{Errno, Reply};
use std::sync::Arc;

const READ: u32 = 2;
const WRITE: u32 = 1;

/// Computes the number of an ioctl.
const fn ioctl(direction: u32, kind: u8, number: u8, bytes: u32) -> u32 {
    direction << 30 | bytes << 16 | (kind as u32) << 8 | number as u32
}

const GET_FLAGS: u32 = ioctl(READ, b'f', 1, 8);
const SET_FLAGS: u32 = ioctl(WRITE, b'f', 2, 8);
const GET_VERSION: u32 = ioctl(READ, b'v', 1, 8);
const GET_FSXATTR: u32 = ioctl(READ, b'X', 31, FSXATTR_BYTES as u32);
const SET_FSXATTR: u32 = ioctl(WRITE, b'X', 32, FSXATTR_BYTES as u32);
const TRIM: u32 = ioctl(READ | WRITE, b'X', 121, 24);
const GET_LABEL: u32 = ioctl(READ, 0x94, 49, LABEL_BYTES as u32);
const SET_LABEL: u32 = ioctl(WRITE, 0x94, 50, LABEL_BYTES as u32);

/// Size of `struct fsxattr`: flags, extent size, number of extents, project, extent size for copies,
/// and padding.
const FSXATTR_BYTES: usize = 28;
/// Size of a label with its final zeros (`FSLABEL_MAX`).
const LABEL_BYTES: usize = 256;

/// Flags as `struct fsxattr` has them, with those of inodes.
const XFLAGS: [(u32, InodeFlags); 4] = [
    (0x08, InodeFlags::IMMUTABLE),
    (0x10, InodeFlags::APPEND_ONLY),
    (0x40, InodeFlags::NO_ACCESS_TIME),
    (0x80, InodeFlags::NO_DUMP),
];

/// Reads the number at `index` of an array of numbers.
fn word(input: &[u8], index: usize) -> Result<u32, Errno> {
    let bytes = input.get(index * 4..).and_then(<[u8]>::first_chunk);
    bytes.map(|b| u32::from_ne_bytes(*b)).ok_or(Errno::INVAL)
}

/// Reads the 64-bit number at `index` of an array of such numbers.
fn long(input: &[u8], index: usize) -> Result<u64, Errno> {
    let bytes = input.get(index * 8..).and_then(<[u8]>::first_chunk);
    bytes.map(|b| u64::from_ne_bytes(*b)).ok_or(Errno::INVAL)
}

impl Tree {
    pub(super) fn ioctl(&self, header: &Header, ioctl: &Ioctl<'_>, reply: Reply<'_>) {
        let done = match ioctl.command {
            GET_LABEL => Ok(self.label()),
            SET_LABEL => self.set_label(header, ioctl.input),
            TRIM => self.trim(header, ioctl.input),
            SET_FLAGS => {
                let flags = word(ioctl.input, 0).map(InodeFlags);
                return self.set_flags(header, flags, reply);
            }
            SET_FSXATTR => {
                let flags = self.flags_of_fsxattr(header.node, ioctl.input);
                return self.set_flags(header, flags, reply);
            }
            _ => return read(self.files.fileset(), header.node, ioctl, reply),
        };
        answer(done, ioctl, reply);
    }

    /// Reads flags from a `struct fsxattr`, in which nothing else may differ. Those of compression
    /// have no bit there, and stay as they are.
    fn flags_of_fsxattr(&self, ino: u64, input: &[u8]) -> Result<InodeFlags, Errno> {
        let (xflags, project) = (word(input, 0)?, word(input, 3)?);
        let known: u32 = XFLAGS.iter().map(|(bit, _)| bit).sum();
        let hints = (word(input, 1)?, word(input, 4)?);
        if xflags & !known != 0 || hints != (0, 0) || project != self.files.fileset().id() {
            return Err(Errno::OPNOTSUPP);
        }
        let set = XFLAGS.iter().filter(|(bit, _)| xflags & bit != 0);
        let kept = self.files.attr(ino).map_err(errno)?.inode.flags;
        let kept = kept.only(InodeFlags::INHERITED);
        Ok(set.fold(kept, |all, (_, flag)| all.with(*flag)))
    }

    fn set_flags(&self, header: &Header, flags: Result<InodeFlags, Errno>, reply: Reply<'_>) {
        let ino = header.node;
        let checked = flags.and_then(|flags| {
            self.check_set_flags(header, flags)?;
            Ok(flags)
        });
        let flags = match checked {
            Ok(flags) => flags,
            Err(error) => return reply.error(error),
        };
        let set = move |files: &Files, reply: Reply<'_>| match files.set_flags(ino, flags) {
            Ok(_) => reply.ioctl(&[]),
            Err(error) => reply.error(errno(error)),
        };
        let locks = flags.has(InodeFlags::IMMUTABLE.with(InodeFlags::APPEND_ONLY));
        if locks && self.handles.has_writers(ino) {
            // Changes that the kernel holds back would be refused afterwards.
            let (files, reply) = (Arc::clone(&self.files), reply.detach());
            self.recall.run(move |write_back| {
                write_back(ino, 0..u64::MAX);
                set(&files, reply);
            });
        } else {
            set(&self.files, reply);
        }
    }

    /// Checks that the caller may give a file these flags.
    fn check_set_flags(&self, header: &Header, flags: InodeFlags) -> Result<(), Errno> {
        let inode = self.files.attr(header.node).map_err(errno)?.inode;
        let owns = header.uid == inode.uid || caller::has(header, caller::CAP_FOWNER);
        let locks = InodeFlags::IMMUTABLE.with(InodeFlags::APPEND_ONLY);
        let changes = InodeFlags(flags.0 ^ inode.flags.0).has(locks);
        if !owns || changes && !caller::has(header, caller::CAP_LINUX_IMMUTABLE) {
            return Err(Errno::PERM);
        }
        Ok(())
    }

    fn label(&self) -> Vec<u8> {
        let mut label = self.files.fileset().label().into_bytes();
        label.resize(LABEL_BYTES, 0);
        label
    }

    fn set_label(&self, header: &Header, input: &[u8]) -> Result<Vec<u8>, Errno> {
        if !caller::has(header, caller::CAP_SYS_ADMIN) {
            return Err(Errno::PERM);
        }
        let end = input
            .iter()
            .position(|byte| *byte == 0)
            .ok_or(Errno::INVAL)?;
        let label = std::str::from_utf8(&input[..end]).map_err(|_| Errno::INVAL)?;
        let set = self.files.fileset().set_label(label);
        set.map(|()| Vec::new()).map_err(errno)
    }

    /// Passes free space to the disk. The range is one of the device, which the free space of all
    /// filesets shares.
    fn trim(&self, header: &Header, input: &[u8]) -> Result<Vec<u8>, Errno> {
        if !caller::has(header, caller::CAP_SYS_ADMIN) {
            return Err(Errno::PERM);
        }
        let (start, length, min) = (long(input, 0)?, long(input, 1)?, long(input, 2)?);
        let end = start.saturating_add(length);
        let trimmed = self.files.trim(start..end, min).map_err(errno)?;
        Ok([start, trimmed, min].map(u64::to_ne_bytes).concat())
    }
}

/// Answers an ioctl that reads the state of a file, which may be one of a snapshot.
pub(super) fn read(fileset: &Fileset, ino: u64, ioctl: &Ioctl<'_>, reply: Reply<'_>) {
    let done = match ioctl.command {
        GET_FLAGS => flags(fileset, ino).map(|flags| flags.0.to_ne_bytes().to_vec()),
        GET_FSXATTR => fsxattr(fileset, ino),
        GET_VERSION => generation(fileset, ino),
        SET_FLAGS | SET_FSXATTR => Err(Errno::ROFS),
        _ => Err(Errno::NOTTY),
    };
    answer(done, ioctl, reply);
}

fn answer(done: Result<Vec<u8>, Errno>, ioctl: &Ioctl<'_>, reply: Reply<'_>) {
    match done {
        Ok(mut output) => {
            output.truncate(ioctl.out_size as usize);
            reply.ioctl(&output);
        }
        Err(error) => reply.error(error),
    }
}

fn flags(fileset: &Fileset, ino: u64) -> Result<InodeFlags, Errno> {
    let inode = fileset.attr(ino).map_err(errno)?.inode;
    if inode.kind.has_flags() {
        Ok(inode.flags)
    } else {
        Err(Errno::NOTTY)
    }
}

fn fsxattr(fileset: &Fileset, ino: u64) -> Result<Vec<u8>, Errno> {
    let flags = flags(fileset, ino)?;
    let set = XFLAGS.iter().filter(|(_, flag)| flags.has(*flag));
    let mut output = vec![0; FSXATTR_BYTES];
    let xflags: u32 = set.map(|(bit, _)| bit).sum();
    output[..4].copy_from_slice(&xflags.to_ne_bytes());
    output[12..16].copy_from_slice(&fileset.id().to_ne_bytes());
    Ok(output)
}

fn generation(fileset: &Fileset, ino: u64) -> Result<Vec<u8>, Errno> {
    let inode = fileset.attr(ino).map_err(errno)?.inode;
    Ok(inode.generation.to_ne_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_kernel() {
        assert_eq!(GET_FLAGS, 0x8008_6601);
        assert_eq!(SET_FLAGS, 0x4008_6602);
        assert_eq!(GET_VERSION, 0x8008_7601);
        assert_eq!(GET_FSXATTR, 0x801c_581f);
        assert_eq!(SET_FSXATTR, 0x401c_5820);
        assert_eq!(TRIM, 0xc018_5879);
        assert_eq!(GET_LABEL, 0x8100_9431);
        assert_eq!(SET_LABEL, 0x4100_9432);
    }
}
