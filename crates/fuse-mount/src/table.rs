//! Table of the mounts that this process sees (proc_pid_mountinfo(5)).

use std::path::PathBuf;

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Number of the file system, as of a device: `MAJOR:MINOR`. It is unique among mounted ones.
    pub device: String,
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
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().filter_map(entry).collect()
}

fn entry(line: &str) -> Option<MountEntry> {
    // Between the two parts are optional fields.
    let (mount, file_system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(2).map(unescaped);
    let (device, _root, point) = (mount.next()?, mount.next()?, mount.next()?);
    let options = mount.next()?;
    let mut file_system = file_system.split(' ').map(unescaped);
    Some(MountEntry {
        kind: file_system.next()?,
        source: file_system.next()?,
        options: format!("{options},{}", file_system.next()?),
        device,
        point: PathBuf::from(point),
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
        let mount = "63 43 0:39 / /mnt/a\\040b\\134c ro,nosuid shared:1 - fuse.evfs /dev/\\043a rw,user_id=0";
        let mount = entry(mount).unwrap();
        assert_eq!(mount.device, "0:39");
        assert_eq!(mount.source, "/dev/#a");
        assert_eq!(mount.point, PathBuf::from("/mnt/a b\\c"));
        assert_eq!(
            (mount.kind.as_str(), mount.options.as_str()),
            ("fuse.evfs", "ro,nosuid,rw,user_id=0")
        );
        assert_eq!(entry(""), None);
        assert_eq!(entry("rubbish"), None);
    }

    #[test]
    fn proc_is_mounted() {
        assert!(mounts().iter().any(|mount| mount.kind == "proc"));
    }
}
