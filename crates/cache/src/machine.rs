//! Memory available to this process, and the files that report memory pressure.

use std::path::{Path, PathBuf};

/// Mount point of the cgroup file system.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Determines the bytes of memory available to this process: the machine's, or the limit of its
/// cgroups if that is less.
pub fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = info.totalram as u64 * u64::from(info.mem_unit.max(1));
    let limit = own_cgroups().and_then(|own| lowest_limit(&own, Path::new(CGROUPS)));
    limit.map_or(machine, |limit| limit.min(machine))
}

/// Finds the lowest memory limit, in bytes, of the cgroups in `own` (`/proc/self/cgroup`) and of
/// their ancestors up to `root`.
fn lowest_limit(own: &str, root: &Path) -> Option<u64> {
    let limits = own.lines().flat_map(|line| {
        // Version 2 has one hierarchy, `0::PATH`; version 1 has one for memory, `N:memory:PATH`.
        let mut fields = line.splitn(3, ':').skip(1);
        let (base, file) = match fields.next() {
            Some("") => (root.to_owned(), "memory.max"),
            Some("memory") => (root.join("memory"), "memory.limit_in_bytes"),
            _ => return Vec::new(),
        };
        let path = Path::new(fields.next().unwrap_or_default().trim_start_matches('/'));
        let read = |cgroup: &Path| {
            let text = std::fs::read_to_string(base.join(cgroup).join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        path.ancestors().filter_map(read).collect()
    });
    limits.min()
}

/// Finds the pressure files that apply to this process (`Documentation/accounting/psi.rst`), the
/// nearest first.
pub(crate) fn pressure_files() -> Vec<PathBuf> {
    let of_cgroup = own_cgroup().map(|cgroup| cgroup.join("memory.pressure"));
    let machine = PathBuf::from("/proc/pressure/memory");
    of_cgroup.into_iter().chain([machine]).collect()
}

/// Finds the directory of this process's cgroup (version 2).
fn own_cgroup() -> Option<PathBuf> {
    let own = own_cgroups()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(CGROUPS).join(path))
}

/// Reads the cgroups of this process, one line per hierarchy (cgroups(7)).
fn own_cgroups() -> Option<String> {
    std::fs::read_to_string("/proc/self/cgroup").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_counts() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        let limit = || lowest_limit("0::/a/b\n", root.path());
        assert_eq!(limit(), None);
        std::fs::write(inner.join("memory.max"), "max\n").unwrap();
        assert_eq!(limit(), None);
        std::fs::write(root.path().join("a/memory.max"), "1048576\n").unwrap();
        assert_eq!(limit(), Some(1 << 20));
        std::fs::write(inner.join("memory.max"), "2097152\n").unwrap();
        assert_eq!(limit(), Some(1 << 20));
    }

    #[test]
    fn a_limit_of_version_1_counts_as_well() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("memory/a");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(group.join("memory.limit_in_bytes"), "1048576\n").unwrap();
        let limit = |own| lowest_limit(own, root.path());
        assert_eq!(
            limit("5:memory:/a\n4:cpu,cpuacct:/b\n0::/\n"),
            Some(1 << 20)
        );
        assert_eq!(limit("4:cpu,cpuacct:/a\n"), None);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(memory_bytes() >= 64 << 20);
    }
}
