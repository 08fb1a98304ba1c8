//! Memory limit of this process.

use std::path::Path;

/// Determines the memory of the machine, or the limit of this process's control groups if that is
/// smaller, in KiB. 2 GiB is assumed for a machine whose memory is unknown.
pub fn machine_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|l| l.strip_prefix("MemTotal:"));
    let kib = total.and_then(|t| t.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group_bytes(&groups, Path::new("/sys/fs/cgroup"));
    kib.unwrap_or(2 << 20)
        .min(group.map_or(u64::MAX, |bytes| bytes / 1024))
}

/// Finds the smallest limit of the control group in `groups` (`/proc/self/cgroup`) and its
/// ancestors, in bytes.
fn group_bytes(groups: &str, root: &Path) -> Option<u64> {
    let limits = groups.lines().flat_map(|line| {
        // Version 2 has one hierarchy, `0::PATH`; version 1 has one for memory, `N:memory:PATH`.
        let mut fields = line.splitn(3, ':').skip(1);
        let (base, file) = match fields.next() {
            Some("") => (root.to_owned(), "memory.max"),
            Some("memory") => (root.join("memory"), "memory.limit_in_bytes"),
            _ => return Vec::new(),
        };
        let path = Path::new(fields.next().unwrap_or_default().trim_start_matches('/'));
        let read = |folder: &Path| {
            let text = std::fs::read_to_string(base.join(folder).join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        path.ancestors().filter_map(read).collect()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_smallest_limit_of_a_control_group_and_its_parents_counts() {
        let root = tempfile::tempdir().unwrap();
        let leaf = root.path().join("system/one.service");
        fs::create_dir_all(&leaf).unwrap();
        fs::write(leaf.join("memory.max"), "max\n").unwrap();
        let limit = || group_bytes("0::/system/one.service\n", root.path());
        assert_eq!(limit(), None);
        fs::write(root.path().join("system/memory.max"), "1048576\n").unwrap();
        assert_eq!(limit(), Some(1 << 20));
        fs::write(leaf.join("memory.max"), "4096\n").unwrap();
        assert_eq!(limit(), Some(4096));
        assert!(machine_kib() > 1024);
    }
}
