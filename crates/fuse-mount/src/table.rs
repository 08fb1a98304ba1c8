//! Table of the mounts that this process sees (proc_pid_mounts(5)).

use std::path::PathBuf;

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Device, or name that the server chose.
    pub source: String,
    /// Directory on which it is mounted.
    pub point: PathBuf,
    /// Type of the file system.
    pub kind: String,
    /// Options, separated by commas.
    pub options: String,
}

/// Reads all mounts, the topmost of a directory last; none if the table cannot be read. Accesses no
/// mount, so one whose server has died does not block it.
pub fn mounts() -> Vec<MountEntry> {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    table.lines().filter_map(entry).collect()
}

fn entry(line: &str) -> Option<MountEntry> {
    let mut fields = line.split(' ').map(unescaped);
    Some(MountEntry {
        source: fields.next()?,
        point: PathBuf::from(fields.next()?),
        kind: fields.next()?,
        options: fields.next()?,
    })
}

/// Resolves the octal escapes of separators.
fn unescaped(field: &str) -> String {
    let octal = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\043", "#"),
        ("\\134", "\\"),
    ];
    let replace = |field: String, (from, to): (&str, &str)| field.replace(from, to);
    octal.into_iter().fold(field.to_owned(), replace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_mount_and_names_may_hold_separators() {
        let mount = entry("/dev/\\043a /mnt/a\\040b\\134c fuse.evfs rw,user_id=0 0 0").unwrap();
        assert_eq!(mount.source, "/dev/#a");
        assert_eq!(mount.point, PathBuf::from("/mnt/a b\\c"));
        assert_eq!(
            (mount.kind.as_str(), mount.options.as_str()),
            ("fuse.evfs", "rw,user_id=0")
        );
        assert_eq!(entry(""), None);
        assert_eq!(entry("rubbish"), None);
    }

    #[test]
    fn proc_is_mounted() {
        assert!(mounts().iter().any(|mount| mount.kind == "proc"));
    }
}
