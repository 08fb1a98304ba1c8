//! Places: where a disk is, by names that mean the same tomorrow: the path of a file, the name of a LUN
//! in its registry. Names of disks in `/dev` change from boot to boot.
//!
//! A file has several: its path as it was named, every path that a symbolic link on the way leads to, and
//! the one of the file that is open. Who can exchange the file can put a link there instead, or in the
//! place of a directory above it: then the path as it was named is still the one that is known.

use path_file::FileDevice;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Links on the way to a file that are followed, as many as Linux follows.
const LINKS_MAX: usize = 40;

/// The places of a disk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places {
    all: BTreeSet<String>,
    last: bool,
}

impl Places {
    pub(crate) fn of_file(file: &FileDevice) -> Places {
        let resolved = file.resolved_path();
        let named = absolute(file.path());
        // What is named there means something else to each process, and after each boot.
        let passing = |path: &PathBuf| path.starts_with("/proc") || path.starts_with("/dev");
        let ways = named.map_or_else(Vec::new, |named| ways(&named));
        let ways = ways.into_iter().filter(|path| !passing(path));
        let last = resolved.is_some();
        let all = ways.chain(resolved).map(|path| path.display().to_string());
        Places {
            all: all.collect(),
            last,
        }
    }

    pub(crate) fn of_lun(place: String) -> Places {
        Places {
            all: [place].into(),
            last: true,
        }
    }

    /// Where something else than this disk may be known.
    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(String::as_str)
    }

    /// Those to remember: none of a block device, though it was named by the path of a file.
    pub(crate) fn lasting(&self) -> BTreeSet<String> {
        match self.last {
            true => self.all.clone(),
            false => BTreeSet::new(),
        }
    }
}

/// A path from the root, through the directory that the user takes for the current one.
fn absolute(path: &Path) -> Option<PathBuf> {
    let here = || {
        // As `pwd` does: the links on the way here count as well.
        let id = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
        let told = std::env::var_os("PWD").map(PathBuf::from);
        let told =
            told.filter(|p| p.is_absolute() && id(p).is_some_and(|i| Some(i) == id(".".as_ref())));
        told.or_else(|| std::env::current_dir().ok())
    };
    match path.is_absolute() {
        true => Some(path.to_owned()),
        false => Some(here()?.join(path)),
    }
}

/// The path without `.` and `..`, and those that the links on it lead to.
fn ways(named: &Path) -> Vec<PathBuf> {
    let mut all = vec![plain(named)];
    let mut path = named.to_owned();
    while let Some(next) = follow(&path)
        && all.len() <= LINKS_MAX
    {
        all.push(plain(&next));
        path = next;
    }
    all
}

/// Where the first link on a path leads to, if there is one.
fn follow(path: &Path) -> Option<PathBuf> {
    let mut so_far = PathBuf::new();
    let mut parts = path.components();
    while let Some(part) = parts.next() {
        match part {
            Component::ParentDir => drop(so_far.pop()),
            part => {
                so_far.push(part);
                if let Ok(target) = std::fs::read_link(&so_far) {
                    so_far.pop();
                    return Some(so_far.join(target).join(parts.as_path()));
                }
            }
        }
    }
    None
}

fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain
}

/// The place of the LUN `name`: each registry gives its own names, so the registry is part of it.
pub(crate) fn place_of_lun(registry: &Path, name: &str) -> String {
    // The same file by another way, also one that is still to be made.
    let folder = registry
        .parent()
        .and_then(|f| std::fs::canonicalize(f).ok());
    let folder = folder.zip(registry.file_name());
    let registry = folder.map_or(registry.to_owned(), |(folder, file)| folder.join(file));
    format!("lun:{}:{name}", registry.display())
}

/// The name of the LUN that a place is, if it is one of this registry.
pub(crate) fn lun_at<'a>(place: &'a str, registry: &Path) -> Option<&'a str> {
    let name = place.rsplit(':').next()?;
    (place == place_of_lun(registry, name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_on_the_way_to_a_file_is_a_place() {
        let dir = std::env::temp_dir().join(format!("evfs-place-{}", std::process::id()));
        let dir = std::fs::create_dir(&dir)
            .and_then(|()| dir.canonicalize())
            .expect("a directory");
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, dir.join(name));
        std::fs::create_dir(dir.join("real")).expect("a directory");
        link("real", "middle")
            .and_then(|()| link("middle", "outer"))
            .expect("links");
        link("../end", "real/file")
            .and_then(|()| link("loop", "loop"))
            .expect("links");
        let found = ways(&dir.join("./outer/../outer/file"));
        let expected = [
            "outer/file",
            "outer/file",
            "middle/file",
            "real/file",
            "end",
        ];
        // The first link is followed each time that the path goes through it.
        for path in expected {
            assert!(found.contains(&dir.join(path)), "{path}: {found:?}");
        }
        assert!(ways(&dir.join("loop")).len() <= LINKS_MAX + 1);
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
