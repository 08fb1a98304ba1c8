//! What a check finds, or a repair does: of which kind, about what, and where.

use crate::key::Ino;
use crate::namespace::ROOT;
use serde::Serialize;
use std::fmt;

/// Findings that are listed; more are only counted.
const LISTED_MAX: usize = 1000;

/// Directories of a path that are looked at; a longer way is a ring.
const DEPTH_MAX: usize = 4096;

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A page of the metadata: its checksum, or its place among the others.
    Pages,
    /// A single record that is none, or belongs to nothing.
    Record,
    /// A name: where it leads, where it is looked for, whether anything leads to it.
    Name,
    /// The links, entries or blocks that an inode counts, or its size.
    Count,
    /// An extent of a file.
    Extent,
    /// What a fileset has used of its quota.
    Usage,
    /// Blocks in use, free and shared.
    Space,
}

/// One thing that was found, or done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is about.
    pub kind: FindingKind,
    /// The name of the fileset or snapshot; none where it is about the whole file system.
    pub fileset: Option<String>,
    /// The inode.
    pub inode: Option<Ino>,
    /// A path of the inode from the root of the fileset, if names lead there.
    pub path: Option<String>,
    /// What it is, in words.
    pub text: String,
}

impl Finding {
    pub(super) fn new(kind: FindingKind, text: impl Into<String>) -> Finding {
        Finding {
            kind,
            fileset: None,
            inode: None,
            path: None,
            text: text.into(),
        }
    }

    pub(super) fn of_inode(
        kind: FindingKind,
        fileset: &str,
        ino: Ino,
        text: impl Into<String>,
    ) -> Finding {
        Finding {
            fileset: Some(fileset.to_owned()),
            inode: Some(ino),
            ..Finding::new(kind, text)
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(fileset) = &self.fileset {
            write!(f, "'{fileset}': ")?;
        }
        match (self.inode, &self.path) {
            (Some(ino), Some(path)) => write!(f, "inode {ino} ({path}): ")?,
            (Some(ino), None) => write!(f, "inode {ino}: ")?,
            (None, _) => {}
        }
        f.write_str(&self.text)
    }
}

/// A list of findings that does not grow without bound.
pub(super) trait Findings {
    /// Adds one, if there is room.
    fn add(&mut self, finding: Finding);

    /// Gives those from a place on their paths. `up` gives the directory of an inode, and its name
    /// there.
    fn add_paths(&mut self, from: usize, up: impl Fn(Ino) -> Option<(Ino, Vec<u8>)>);
}

impl Findings for Vec<Finding> {
    fn add(&mut self, finding: Finding) {
        if self.len() < LISTED_MAX {
            self.push(finding);
        }
    }

    fn add_paths(&mut self, from: usize, up: impl Fn(Ino) -> Option<(Ino, Vec<u8>)>) {
        for finding in self.iter_mut().skip(from) {
            finding.path = finding.inode.and_then(|ino| path(ino, &up));
        }
    }
}

fn path(ino: Ino, up: impl Fn(Ino) -> Option<(Ino, Vec<u8>)>) -> Option<String> {
    let (mut at, mut names) = (ino, Vec::new());
    while at != ROOT {
        let (dir, name) = up(at)?;
        names.push(String::from_utf8_lossy(&name).into_owned());
        at = dir;
        if names.len() > DEPTH_MAX {
            return None;
        }
    }
    names.reverse();
    Some(format!("/{}", names.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_says_where_it_is_as_far_as_names_lead_there() {
        let up = |ino| match ino {
            4 => Some((3, b"file".to_vec())),
            3 => Some((ROOT, b"dir".to_vec())),
            7 => Some((7, b"ring".to_vec())),
            _ => None,
        };
        let mut all: Vec<Finding> = Vec::new();
        for ino in [4, 7, 9, ROOT] {
            all.add(Finding::of_inode(FindingKind::Name, "main", ino, "is odd"));
        }
        all.add(Finding::new(FindingKind::Pages, "damaged"));
        all.add_paths(0, up);
        let shown: Vec<String> = all.iter().map(Finding::to_string).collect();
        assert_eq!(
            shown,
            [
                "'main': inode 4 (/dir/file): is odd",
                "'main': inode 7: is odd",
                "'main': inode 9: is odd",
                "'main': inode 1 (/): is odd",
                "damaged",
            ]
        );
    }
}
