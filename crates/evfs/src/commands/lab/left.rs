//! What laboratories that were killed have left behind.

use std::path::{Path, PathBuf};

/// What has a name that begins with `prefix`: in these folders, and mount points wherever they are, since the next
/// laboratory may have another folder for temporary files.
pub fn named(prefix: &str, folders: &[&Path]) -> Vec<PathBuf> {
    let entries = folders
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path()));
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let ours = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
    };
    mount_points(&mounts).chain(entries).filter(ours).collect()
}

/// The second column of proc_pid_mounts(5), in which blanks and backslashes are octal.
fn mount_points(mounts: &str) -> impl Iterator<Item = PathBuf> {
    mounts.lines().filter_map(|line| {
        let point = line.split(' ').nth(1)?;
        let plain = point
            .replace("\\040", " ")
            .replace("\\011", "\t")
            .replace("\\012", "\n")
            .replace("\\134", "\\");
        Some(PathBuf::from(plain))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_told_from_what_is_mounted() {
        let mounts = "evfs /tmp/evfs-lab-1 fuse.evfs rw 0 0\nevfs-lab-2 /mnt/a\\040b\\134c ext4 rw 0 0\n\nrubbish";
        let points: Vec<_> = mount_points(mounts).collect();
        assert_eq!(
            points,
            [Path::new("/tmp/evfs-lab-1"), Path::new("/mnt/a b\\c")]
        );
    }

    #[test]
    fn only_names_with_the_prefix_are_found() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["ours-1", "theirs-ours-1"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(
            named("ours-", &[folder.path()]),
            [folder.path().join("ours-1")]
        );
    }
}
