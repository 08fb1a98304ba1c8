//! Findings of a check or a repair: kind, location and description.

use crate::format::key::Ino;
use crate::names::directory::ROOT;
use crate::scrub::{Damage, DamageKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Number of findings that are listed; further ones are only counted.
const LISTED_MAX: usize = 1000;

/// Limit for the length of a path; a longer one is a loop.
const DEPTH_MAX: usize = 4096;

/// Subject of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// Page of the metadata: its checksum, or its place in the tree.
    Pages,
    /// Record that is invalid or belongs to nothing.
    Record,
    /// Name: its inode, its place, or an inode without a name.
    Name,
    /// Size of an inode, or its number of links, entries or blocks.
    Count,
    /// Extent of a file.
    Extent,
    /// Usage of a fileset, as counted for its quota.
    Usage,
    /// Blocks in use, free blocks and shared blocks.
    Space,
    /// File data that differs from its checksum or cannot be read, and checksums that are missing.
    Data,
}

/// Problem found by a check, or action taken by a repair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Subject of the finding.
    pub kind: FindingKind,
    /// Name of the fileset or snapshot; `None` if the finding concerns the whole file system.
    pub fileset: Option<String>,
    /// Inode number.
    pub inode: Option<Ino>,
    /// Path of the inode from the root of the fileset, if there is one.
    pub path: Option<String>,
    /// Description.
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

impl Finding {
    pub(super) fn of_damage(damage: Damage) -> Finding {
        let text = format!(
            "{} bytes at byte {} {}",
            damage.bytes,
            damage.offset,
            match damage.kind {
                DamageKind::Checksum => "do not match their checksums",
                DamageKind::Device => "cannot be read from the device",
            }
        );
        Finding {
            path: damage.path.map(|path| format!("/{path}")),
            ..Finding::of_inode(FindingKind::Data, &damage.fileset, damage.inode, text)
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(fileset) = &self.fileset {
            write!(f, "`{fileset}`: ")?;
        }
        match (self.inode, &self.path) {
            (Some(ino), Some(path)) => write!(f, "inode {ino} ({path}): ")?,
            (Some(ino), None) => write!(f, "inode {ino}: ")?,
            (None, _) => {}
        }
        f.write_str(&self.text)
    }
}

/// List of findings with a bounded length.
pub(super) trait Findings {
    /// Appends a finding, unless the list is full.
    fn add(&mut self, finding: Finding);

    /// Sets the paths of the findings from index `from` on. `up` returns the directory of an inode,
    /// and its name there.
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
                "`main`: inode 4 (/dir/file): is odd",
                "`main`: inode 7: is odd",
                "`main`: inode 9: is odd",
                "`main`: inode 1 (/): is odd",
                "damaged",
            ]
        );
    }
}
