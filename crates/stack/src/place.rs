//! Places: locations of disks by names that survive a reboot, which are the path of a file or the
//! name of a LUN in its registry. Names of disks in `/dev` may change at each boot.
//!
//! A file has several places: the path as given, every path that a symbolic link on the way leads
//! to, and the resolved path of the open file. An attacker who can replace the file can put a link
//! in its place, or in that of a directory above it; the path as given is then still a known place.

use path_file::FileDevice;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Limit of links followed on the way to a file, the same as in Linux.
const LINKS_MAX: usize = 40;

/// Places of a disk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places {
    all: BTreeSet<String>,
    last: bool,
}

impl Places {
    pub(crate) fn of_file(file: &FileDevice) -> Places {
        let resolved = file.resolved_path();
        let named = absolute(file.path());
        // A name there means something else to each process and after each boot.
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

    /// Iterates over the places where another disk than this one may be known.
    pub(crate) fn all(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(String::as_str)
    }

    /// Lists the places to remember: none for a block device, even if opened by a link elsewhere.
    pub(crate) fn lasting(&self) -> BTreeSet<String> {
        if self.last {
            self.all.clone()
        } else {
            BTreeSet::new()
        }
    }
}

/// Converts a path to an absolute one, based on the current directory as the user names it.
fn absolute(path: &Path) -> Option<PathBuf> {
    let here = || {
        // Like `pwd`: links on the way to the current directory count, too.
        let id = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
        let told = std::env::var_os("PWD").map(PathBuf::from);
        let told =
            told.filter(|p| p.is_absolute() && id(p).is_some_and(|i| Some(i) == id(".".as_ref())));
        told.or_else(|| std::env::current_dir().ok())
    };
    if path.is_absolute() {
        Some(path.to_owned())
    } else {
        Some(here()?.join(path))
    }
}

/// Lists the path without `.` and `..`, and those that its links lead to.
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

/// Resolves the first link on a path; returns `None` if it has none.
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

/// Builds the place of the LUN `name`. It includes the registry: each one assigns its own names.
pub(crate) fn place_of_lun(registry: &Path, name: &str) -> String {
    // Resolves links of the directory; the file itself may not exist yet.
    let folder = registry
        .parent()
        .and_then(|f| std::fs::canonicalize(f).ok());
    let folder = folder.zip(registry.file_name());
    let registry = folder.map_or(registry.to_owned(), |(folder, file)| folder.join(file));
    format!("lun:{}:{name}", registry.display())
}

/// Extracts the name of the LUN from a place, if it belongs to this registry.
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
        // The first link is followed each time that the path contains it.
        for path in expected {
            assert!(found.contains(&dir.join(path)), "{path}: {found:?}");
        }
        assert!(ways(&dir.join("loop")).len() <= LINKS_MAX + 1);
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
