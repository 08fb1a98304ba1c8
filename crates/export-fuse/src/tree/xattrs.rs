//! Extended attributes with the same rules as in the kernel's own file systems: which names are
//! valid, and which users see which names.
//!
//! For FUSE file systems the kernel itself only restricts `trusted.*` to root; this module does the
//! rest.

use super::privileges::CAPABILITY;
use super::{Tree, caller, errno};
use fs::{Error, Fileset, Ino, Kind, SetXattr};
use fuse_mount::Errno;
use fuse_mount::fuse_proto::Header;

/// The attribute with the access list of a file.
const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with the default access list of a directory, for new files in it.
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Prefixes of valid names; the rest of the name is free but must not be empty.
const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// The attribute with a label of SELinux. Where SELinux runs, the kernel answers for it itself.
/// Elsewhere `ls -l` asks for it for each file, until it is told that there are no labels.
const LABEL: &[u8] = b"security.selinux";

/// Prefix of attributes that only administrators see.
const TRUSTED: &[u8] = b"trusted.";

/// Refuses invalid names with the same errors as other file systems.
fn check(name: &[u8]) -> Result<(), Errno> {
    let rest = PREFIXES
        .iter()
        .find_map(|prefix| name.strip_prefix(*prefix));
    match rest {
        Some([]) => Err(Errno::INVAL),
        Some(_) => Ok(()),
        None if name == ACCESS || name == DEFAULT => Ok(()),
        None => Err(Errno::OPNOTSUPP),
    }
}

/// Chooses the error for an attribute that could not be read or removed. An attribute with a name
/// now invalid may exist from before names were checked, so the name is looked up first.
pub(super) fn missing(name: &[u8], error: Error) -> Errno {
    match (error.kind(), check(name)) {
        (Kind::NoAttribute, Err(wrong)) => wrong,
        _ => errno(error),
    }
}

/// Chooses the error for an attribute that could not be read.
pub(super) fn unread(name: &[u8], error: Error) -> Errno {
    match error.kind() {
        Kind::NoAttribute if name == LABEL => Errno::OPNOTSUPP,
        _ => missing(name, error),
    }
}

impl Tree {
    pub(super) fn set_xattr(
        &self,
        header: &Header,
        name: &[u8],
        (value, how): (&[u8], SetXattr),
    ) -> Result<(), Errno> {
        let ino = header.node;
        check(name)?;
        if name == CAPABILITY {
            self.capabilities.given(ino);
        }
        self.files.set_xattr(ino, name, value, how).map_err(errno)?;
        if name != ACCESS {
            return Ok(());
        }
        // As chmod(2) does. The kernel requests it by a flag since 7.33 only.
        // The kernel fetches the attributes again after this request.
        let inode = self.files.attr(ino).map_err(errno)?.inode;
        let keeps = inode.permissions & libc::S_ISGID == 0
            || caller::is_in_group(header, inode.gid)
            || caller::has(header, caller::CAP_FSETID);
        if !keeps {
            self.set_permissions(ino, inode.permissions & !libc::S_ISGID)?;
        }
        Ok(())
    }
}

/// Lists the names of the attributes of an inode that a caller sees, each followed by a zero byte.
pub(super) fn list(fileset: &Fileset, ino: Ino, header: &Header) -> Result<Vec<u8>, Errno> {
    let (mut names, mut trusted) = (Vec::new(), Vec::new());
    let listed = fileset.xattrs(ino, |name| {
        let list = if name.starts_with(TRUSTED) {
            &mut trusted
        } else {
            &mut names
        };
        list.extend_from_slice(name);
        list.push(0);
    });
    listed.map_err(errno)?;
    if !trusted.is_empty() && caller::has(header, caller::CAP_SYS_ADMIN) {
        names.append(&mut trusted);
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_other_file_systems() {
        for good in [
            "user.a",
            "trusted.b",
            "security.capability",
            "system.posix_acl_access",
        ] {
            check(good.as_bytes()).unwrap_or_else(|e| panic!("{good}: {e:?}"));
        }
        for (bad, wrong) in [
            ("user.", libc::EINVAL),
            ("trusted.", libc::EINVAL),
            ("system.foo", libc::EOPNOTSUPP),
            ("bogus.x", libc::EOPNOTSUPP),
            ("user", libc::EOPNOTSUPP),
            ("", libc::EOPNOTSUPP),
        ] {
            assert_eq!(
                check(bad.as_bytes()).unwrap_err().raw_os_error(),
                wrong,
                "{bad}"
            );
        }
    }
}
