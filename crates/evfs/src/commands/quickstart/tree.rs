//! A real tree of files to copy: what is installed under `/usr/share`, as much as fits.

use stack::{Error, Result};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Where real trees are found, the usual one first.
const ROOTS: &[&str] = &["/usr/share", "/usr/lib", "/etc"];
/// Most files of a tree: enough to be real, few enough to be quick.
const FILES_MAX: usize = 4000;
/// Largest file that is taken, in bytes.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Bytes of a file that are looked for on the disk: long enough never to be there by chance.
const NEEDLE_BYTES: usize = 64;
/// Files whose content is looked for on the disk.
const NEEDLES: usize = 64;

/// Files below a folder.
pub struct Tree {
    /// The folder.
    pub root: PathBuf,
    /// Paths relative to it.
    pub files: Vec<PathBuf>,
}

/// How much was copied or compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// Files.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
}

/// Readable regular files of the first root that has some, at most `bytes` of them together.
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
            // A small file still takes a block, and its name some room.
            *left = left.saturating_sub(meta.len().next_multiple_of(4096) + 1024);
            files.extend(path.strip_prefix(root).map(Path::to_owned));
        }
    }
}

/// How many of some pieces of the tree lie in `image` as they are. Each is 64 bytes of a file.
pub fn clear_bytes_in(image: &Path, tree: &Tree) -> Result<usize> {
    let needles: Vec<Vec<u8>> = tree
        .files
        .iter()
        .filter_map(|file| std::fs::read(tree.root.join(file)).ok())
        .filter_map(|data| Some(data.get(..NEEDLE_BYTES)?.to_vec()))
        // A piece of few different bytes could be in any random data.
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
    // Pieces begin where a file begins, and a file system puts that on a block; an archive puts it
    // on 512 bytes. So only those places are looked at.
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
