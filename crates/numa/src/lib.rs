//! NUMA nodes ("cells"), their CPUs and distances, read from sysfs.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Distance of a node to itself, in sysfs units.
pub const LOCAL: u32 = 10;
/// Exclusive upper bound for node and CPU numbers; larger ones are refused.
const NUMBER_MAX: u32 = 65_536;
/// Maximum length of a file that is read, in bytes; no relevant file is longer.
const FILE_MAX: u64 = 1 << 20;

/// The NUMA nodes of a machine at the time they were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    cells: BTreeMap<u32, Cell>,
    cell_of_cpu: BTreeMap<u32, u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Cell {
    cpus: Vec<u32>,
    /// Distance to each node, by node number.
    distances: BTreeMap<u32, u32>,
}

impl Topology {
    /// Reads `<root>/devices/system/node`; `root` is `/sys` outside of tests. A kernel without NUMA
    /// has no such directory; the result is then a topology without cells.
    ///
    /// # Errors
    /// A file cannot be read or is malformed; the message names it.
    pub fn read(root: &Path) -> Result<Topology> {
        let nodes = root.join("devices/system/node");
        let online = match text(&nodes.join("online")) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Topology::default()),
            other => list(&other?).ok_or_else(|| malformed(&nodes.join("online")))?,
        };
        let mut topology = Topology::default();
        for &node in &online {
            let folder = nodes.join(format!("node{node}"));
            let file = folder.join("cpulist");
            let cpus = list(&text(&file)?).ok_or_else(|| malformed(&file))?;
            let file = folder.join("distance");
            let distances = distances(&text(&file)?, &online).ok_or_else(|| malformed(&file))?;
            for &cpu in &cpus {
                if topology.cell_of_cpu.insert(cpu, node).is_some() {
                    return Err(malformed(&folder.join("cpulist")));
                }
            }
            topology.cells.insert(node, Cell { cpus, distances });
        }
        Ok(topology)
    }

    /// Iterates over the cells in ascending order.
    pub fn nodes(&self) -> impl Iterator<Item = u32> {
        self.cells.keys().copied()
    }

    /// Returns the CPUs of a cell in ascending order; empty if the cell does not exist.
    pub fn cpus(&self, cell: u32) -> &[u32] {
        self.cells.get(&cell).map_or(&[], |cell| &cell.cpus)
    }

    /// Returns the cell of a CPU.
    pub fn node_of_cpu(&self, cpu: u32) -> Option<u32> {
        self.cell_of_cpu.get(&cpu).copied()
    }

    /// Returns the distance from cell `a` to cell `b` in sysfs units, [`LOCAL`] if they are the
    /// same. `None`: one of them does not exist.
    pub fn distance(&self, a: u32, b: u32) -> Option<u32> {
        self.cells.get(&a)?.distances.get(&b).copied()
    }

    /// Returns the cell of the CPU on which this thread runs now.
    pub fn current_node(&self) -> Option<u32> {
        self.node_of_cpu(u32::try_from(rustix::thread::sched_getcpu()).ok()?)
    }
}

fn malformed(file: &Path) -> Error {
    let text = format!("{}: unexpected content", file.display());
    Error::new(ErrorKind::InvalidData, text)
}

fn text(file: &Path) -> Result<String> {
    let named = |e: Error| Error::new(e.kind(), format!("{}: {e}", file.display()));
    let mut text = String::new();
    std::fs::File::open(file)
        .map_err(named)?
        .take(FILE_MAX)
        .read_to_string(&mut text)
        .map_err(named)?;
    Ok(text)
}

/// Parses `0-3,8,10-11`, ascending without repetition. An empty text is an empty list.
fn list(text: &str) -> Option<Vec<u32>> {
    let mut numbers: Vec<u32> = Vec::new();
    for part in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        let ascending = numbers.last().is_none_or(|before| *before < first);
        if !ascending || first > last {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number: u32 = text.parse().ok().filter(|_| digits)?;
    (number < NUMBER_MAX).then_some(number)
}

/// Parses one distance for each online node, in the order of `online`.
fn distances(text: &str, online: &[u32]) -> Option<BTreeMap<u32, u32>> {
    let values: Vec<u32> = text.split_whitespace().map(number).collect::<Option<_>>()?;
    let plausible = values.len() == online.len() && values.iter().all(|d| *d >= LOCAL);
    plausible.then(|| online.iter().copied().zip(values).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn tree(online: &str, nodes: &[(u32, &str, &str)]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("devices/system/node");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("online"), online).unwrap();
        for (node, cpus, distances) in nodes {
            let folder = folder.join(format!("node{node}"));
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("cpulist"), cpus).unwrap();
            std::fs::write(folder.join("distance"), distances).unwrap();
        }
        root
    }

    #[test]
    fn two_nodes() {
        let root = tree(
            "0-1\n",
            &[(0, "0-1,4\n", "10 30\n"), (1, "2-3\n", "30 10\n")],
        );
        let topology = Topology::read(root.path()).unwrap();
        assert_eq!(topology.nodes().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(topology.cpus(0), [0, 1, 4]);
        assert_eq!(topology.node_of_cpu(4), Some(0));
        assert_eq!(topology.node_of_cpu(3), Some(1));
        assert_eq!(topology.node_of_cpu(5), None);
        assert_eq!(topology.distance(0, 1), Some(30));
        assert_eq!(topology.distance(1, 1), Some(LOCAL));
        assert_eq!(topology.distance(0, 2), None);
    }

    #[test]
    fn one_node_holes_and_memory_without_cpus() {
        let root = tree("0\n", &[(0, "0-7\n", "10\n")]);
        let topology = Topology::read(root.path()).unwrap();
        assert_eq!(topology.node_of_cpu(7), Some(0));

        let root = tree("0,2\n", &[(0, "0-1\n", "10 21\n"), (2, "\n", "21 10\n")]);
        let topology = Topology::read(root.path()).unwrap();
        assert_eq!(topology.nodes().collect::<Vec<_>>(), [0, 2]);
        assert_eq!(topology.cpus(2), [0; 0]);
        assert_eq!(topology.distance(0, 2), Some(21));
        assert_eq!(topology.distance(0, 1), None);
    }

    #[test]
    fn no_numa_is_no_cells() {
        let root = tempfile::tempdir().unwrap();
        let topology = Topology::read(root.path()).unwrap();
        assert_eq!(topology, Topology::default());
        assert_eq!(topology.current_node(), None);
    }

    #[test]
    fn garbage_is_refused_and_named() {
        let good = "10\n";
        let cases = [
            tree("x", &[]),
            tree("0-4000000000", &[]),
            tree("1-0", &[]),
            tree("0,0", &[(0, "0", good)]),
            tree("+0", &[(0, "0", good)]),
            tree("0", &[(0, "0-", good)]),
            tree("0", &[(0, "0", "")]),
            tree("0", &[(0, "0", "10 20")]),
            tree("0", &[(0, "0", "9")]),
            tree("0-1", &[(0, "0", "10 20"), (1, "0", "20 10")]),
        ];
        for root in &cases {
            let error = Topology::read(root.path()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
            assert!(error.to_string().contains("devices/system/node"));
        }
        let missing = tree("0", &[]);
        assert!(Topology::read(missing.path()).is_err());
    }

    #[test]
    fn this_machine() {
        let topology = Topology::read(Path::new("/sys")).unwrap();
        if let Some(cell) = topology.current_node() {
            assert_eq!(topology.distance(cell, cell), Some(LOCAL));
        }
    }
}
