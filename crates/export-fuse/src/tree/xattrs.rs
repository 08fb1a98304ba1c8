//! Extended attributes as the kernel's own file systems have them: which names there may be, and who sees which.
//!
//! The kernel asks no more of a FUSE file system's names than that root alone touches `trusted.*`; the rest is here.

use super::privileges::CAPABILITY;
use super::{Tree, caller, errno};
use fs::{Error, Ino, Kind, SetXattr};
use fuser::{Errno, Request};

/// The attribute with the access list of a file.
const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with what a directory gives to new files in it.
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Names that begin so are for whoever may use them; what follows is the user's, and is not empty.
const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// What is seen by administrators only.
const TRUSTED: &[u8] = b"trusted.";

/// Refuses names that stand for nothing, with what other file systems say to them.
fn check(name: &[u8]) -> Result<(), Errno> {
    let rest = PREFIXES
        .iter()
        .find_map(|prefix| name.strip_prefix(*prefix));
    match rest {
        Some([]) => Err(Errno::EINVAL),
        Some(_) => Ok(()),
        None if name == ACCESS || name == DEFAULT => Ok(()),
        None => Err(Errno::EOPNOTSUPP),
    }
}

/// What is said of an attribute that could not be had. A name that there cannot be may be there still, from before
/// names were checked; so it is looked for first.
pub(super) fn missing(name: &[u8], error: Error) -> Errno {
    match (error.kind(), check(name)) {
        (Kind::NoAttribute, Err(wrong)) => wrong,
        _ => errno(error),
    }
}

impl Tree {
    pub(super) fn set_xattr(
        &self,
        req: &Request,
        ino: Ino,
        name: &[u8],
        (value, how): (&[u8], SetXattr),
    ) -> Result<(), Errno> {
        check(name)?;
        if name == CAPABILITY {
            self.capabilities.given(ino);
        }
        self.files.set_xattr(ino, name, value, how).map_err(errno)?;
        if name != ACCESS {
            return Ok(());
        }
        // As chmod(2), and as the library has no room for the word by which the kernel says it. The kernel asks for
        // the attributes again after this.
        let inode = self.files.attr(ino).map_err(errno)?.inode;
        let keeps = inode.permissions & libc::S_ISGID == 0
            || caller::is_in_group(req, inode.gid)
            || caller::has(req, caller::CAP_FSETID);
        if !keeps {
            self.set_permissions(ino, inode.permissions & !libc::S_ISGID)?;
        }
        Ok(())
    }

    /// The names, each with a zero behind it.
    pub(super) fn list_xattrs(&self, req: &Request, ino: Ino) -> Result<Vec<u8>, Errno> {
        let (mut names, mut trusted) = (Vec::new(), Vec::new());
        let listed = self.files.xattrs(ino, |name| {
            let list = match name.starts_with(TRUSTED) {
                true => &mut trusted,
                false => &mut names,
            };
            list.extend_from_slice(name);
            list.push(0);
        });
        listed.map_err(errno)?;
        if !trusted.is_empty() && caller::has(req, caller::CAP_SYS_ADMIN) {
            names.append(&mut trusted);
        }
        Ok(names)
    }
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
            assert_eq!(check(bad.as_bytes()).unwrap_err().code(), wrong, "{bad}");
        }
    }
}
