//! Memory available to this process, and the files that report memory pressure.

use std::path::{Path, PathBuf};

/// Mount point of the cgroup file system.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Determines the bytes of memory available to this process: the machine's, or the limit of its
/// cgroups (`memory.max` of cgroup v2) if that is less.
pub fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = info.totalram as u64 * u64::from(info.mem_unit.max(1));
    let own = own_cgroup().unwrap_or_else(|| PathBuf::from(CGROUPS));
    limit_along(&own, Path::new(CGROUPS)).map_or(machine, |limit| limit.min(machine))
}

/// Finds the lowest `memory.max` from `cgroup` up to `root`.
fn limit_along(cgroup: &Path, root: &Path) -> Option<u64> {
    let along = cgroup.ancestors().take_while(|at| at.starts_with(root));
    along
        .filter_map(|at| std::fs::read_to_string(at.join("memory.max")).ok())
        .filter_map(|text| text.trim().parse().ok())
        .min()
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
