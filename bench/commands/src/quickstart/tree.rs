//! A real tree of files to copy: the content of `/usr/share`, as far as it fits.

use sha2::{Digest, Sha256};
use stack::{Error, Result};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Directories with real trees, in order of preference.
const ROOTS: &[&str] = &["/usr/share", "/usr/lib", "/etc"];
/// Maximum number of files of a tree: enough to be realistic, few enough to be quick.
const FILES_MAX: usize = 4000;
/// Size of the largest file that is copied, in bytes.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Bytes of a file that are searched for on the disk: long enough never to match by chance.
const NEEDLE_BYTES: usize = 64;
/// Number of files whose content is searched for on the disk.
const NEEDLES: usize = 64;

/// Check called regularly during long work; an error ends the work.
pub type Stopped<'a> = &'a dyn Fn() -> Result<()>;

/// Files under a directory. Other programs may change and remove them at any time.
pub struct Tree {
    /// The directory.
    pub root: PathBuf,
    /// Paths relative to it.
    pub files: Vec<PathBuf>,
}

/// Number of files and bytes that were copied or compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// Number of files.
    pub files: u64,
    /// Bytes in these files.
    pub bytes: u64,
}

/// Chooses readable regular files of the first root that has any, at most `bytes` in total.
pub fn choose(bytes: u64) -> Tree {
    for root in ROOTS {
        let root = PathBuf::from(root);
        let mut tree = Tree {
            root: root.clone(),
            files: Vec::new(),
        };
        let mut left = bytes;
        collect(&root, &root, &mut left, &mut tree.files);
        if !tree.files.is_empty() {
            return tree;
        }
    }
    Tree {
        root: "/".into(),
        files: Vec::new(),
    }
}

fn collect(root: &Path, dir: &Path, left: &mut u64, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(|e| e.file_name());
    for entry in entries {
        if files.len() >= FILES_MAX || *left == 0 {
            return;
        }
        let Ok(meta) = entry.metadata() else { continue };
        let path = entry.path();
        if meta.is_dir() {
            collect(root, &path, left, files);
        } else if meta.is_file()
            && meta.len() <= (*left).min(FILE_BYTES_MAX)
            && File::open(&path).is_ok()
        {
            // A small file still takes a block, and its name some space.
            *left = left.saturating_sub(meta.len().next_multiple_of(4096) + 1024);
            files.extend(path.strip_prefix(root).map(Path::to_owned));
        }
    }
}

impl Tree {
    /// Reads each file once and passes it to `write`; skips files that can no longer be read.
    /// Returns the files written.
    pub fn copy(
        &self,
        stopped: Stopped<'_>,
        mut write: impl FnMut(&Path, &[u8]) -> io::Result<()>,
    ) -> Result<Copied> {
        let mut copied = Copied::default();
        for file in &self.files {
            stopped()?;
            let Ok(bytes) = std::fs::read(self.root.join(file)) else {
                continue;
            };
            write(file, &bytes).map_err(|e| Error::io("cannot copy", file, e))?;
            copied.files.push(CopiedFile {
                path: file.clone(),
                bytes: bytes.len() as u64,
                digest: Sha256::digest(&bytes).into(),
                beginning: bytes.get(..NEEDLE_BYTES).map(<[u8]>::to_vec),
            });
        }
        Ok(copied)
    }
}

/// The copied files, as they were at that time.
#[derive(Default)]
pub struct Copied {
    /// The files in the order of writing.
    pub files: Vec<CopiedFile>,
}

/// A file that was copied.
pub struct CopiedFile {
    /// Path relative to the directory.
    pub path: PathBuf,
    bytes: u64,
    digest: [u8; 32],
    beginning: Option<Vec<u8>>,
}

impl Copied {
    /// Returns the number of files and bytes.
    pub fn amount(&self) -> Amount {
        Amount {
            files: self.files.len() as u64,
            bytes: self.files.iter().map(|file| file.bytes).sum(),
        }
    }
}

impl CopiedFile {
    /// Checks that these are the copied bytes.
    pub fn check(&self, bytes: &[u8]) -> Result<()> {
        if Sha256::digest(bytes)[..] == self.digest {
            Ok(())
        } else {
            Err(changed(&self.path))
        }
    }
}

impl Amount {
    /// Adds a file.
    pub fn add(&mut self, bytes: &[u8]) {
        self.files += 1;
        self.bytes += bytes.len() as u64;
    }
}

/// Creates the error for a file that differs from the copied one.
pub fn changed(path: &Path) -> Error {
    Error::Failed(format!(
        "{} differs from the file that was written",
        path.display()
    ))
}

/// Counts occurrences of plaintext in `image`: the first 64 bytes of some of the copied files.
pub fn clear_bytes_in(image: &Path, copied: &Copied) -> Result<usize> {
    let needles: Vec<&[u8]> = copied
        .files
        .iter()
        .filter_map(|file| file.beginning.as_deref())
        // A piece with few distinct bytes could occur in any random data.
        .filter(|needle| {
            needle
                .iter()
                .collect::<std::collections::BTreeSet<_>>()
                .len()
                > 16
        })
        .take(NEEDLES)
        .collect();
    let failed = |e| Error::io("cannot read", image, e);
    let mut file = File::open(image).map_err(failed)?;
    // A file system stores the start of a file on a block, and an archive on a multiple of 512
    // bytes, so only those positions are checked.
    let mut chunk = vec![0; 1 << 20];
    let mut found = 0;
    loop {
        let len = file.read(&mut chunk).map_err(failed)?;
        if len == 0 {
            return Ok(found);
        }
        for block in chunk[..len].chunks(512) {
            found += needles
                .iter()
                .filter(|needle| block.starts_with(needle))
                .count();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::{compare_with, copy_into};
    use super::*;
    use std::fs;

    /// Goal: other programs may change or remove the copied files without any effect on the
    /// comparison.
    #[test]
    fn a_tree_that_changes_during_the_copy_disturbs_nothing() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let names = ["changed", "gone", "gone before", "kept"];
        for name in names {
            fs::write(from.path().join(name), name.repeat(100)).unwrap();
        }
        let tree = Tree {
            root: from.path().to_owned(),
            files: names.map(PathBuf::from).to_vec(),
        };
        fs::remove_file(from.path().join("gone before")).unwrap();
        let copied = copy_into(to.path(), &tree, &|| Ok(())).unwrap();
        assert_eq!(copied.amount().files, 3);
        fs::remove_file(from.path().join("gone")).unwrap();
        fs::write(from.path().join("changed"), "something else").unwrap();
        let found = compare_with(to.path(), &copied, &|| Ok(())).unwrap();
        assert_eq!(found, copied.amount());
        // A copy that differs from the copied file is detected.
        fs::write(to.path().join("kept"), "something else").unwrap();
        assert!(compare_with(to.path(), &copied, &|| Ok(())).is_err());
    }
}
