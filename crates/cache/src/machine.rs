//! What the machine gives this process: memory, and who says when it runs short.

use std::path::{Path, PathBuf};

/// Where cgroups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Bytes of memory that this process can have: the machine's, or what its cgroups allow (`memory.max`
/// of cgroup v2) when that is less.
pub fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = info.totalram as u64 * u64::from(info.mem_unit.max(1));
    let own = own_cgroup().unwrap_or_else(|| PathBuf::from(CGROUPS));
    limit_along(&own, Path::new(CGROUPS)).map_or(machine, |limit| limit.min(machine))
}

/// The least `memory.max` from `cgroup` up to `root`.
fn limit_along(cgroup: &Path, root: &Path) -> Option<u64> {
    let along = cgroup.ancestors().take_while(|at| at.starts_with(root));
    along
        .filter_map(|at| std::fs::read_to_string(at.join("memory.max")).ok())
        .filter_map(|text| text.trim().parse().ok())
        .min()
}

/// The pressure files that concern this process (`Documentation/accounting/psi.rst`), the nearest
/// first.
pub(crate) fn pressure_files() -> Vec<PathBuf> {
    let of_cgroup = own_cgroup().map(|cgroup| cgroup.join("memory.pressure"));
    let machine = PathBuf::from("/proc/pressure/memory");
    of_cgroup.into_iter().chain([machine]).collect()
}

/// The folder of this process's cgroup, of version 2.
fn own_cgroup() -> Option<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(CGROUPS).join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_counts() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        assert_eq!(limit_along(&inner, root.path()), None);
        std::fs::write(inner.join("memory.max"), "max\n").unwrap();
        assert_eq!(limit_along(&inner, root.path()), None);
        std::fs::write(root.path().join("a/memory.max"), "1048576\n").unwrap();
        assert_eq!(limit_along(&inner, root.path()), Some(1 << 20));
        std::fs::write(inner.join("memory.max"), "2097152\n").unwrap();
        assert_eq!(limit_along(&inner, root.path()), Some(1 << 20));
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(memory_bytes() >= 64 << 20);
    }
}
