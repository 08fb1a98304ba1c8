//! Simulated cells (NUMA nodes) on a machine without any: CPUs and paths are assigned to them, so
//! that the policies that depend on cells can be measured.
//!
//! Deliberately absent: remote memory. The cost of a policy is visible, the gain of locality is
//! not.

use block::DeviceInfo;
use lunpath::{Access, Connection, Identity, Lunpath, PathQueue, Transport};
use numa::Topology;
use path_nbd::NbdPath;
use stack::{Error, Result};
use std::path::Path;
use std::time::Duration;

/// Creates a topology with the CPUs assigned round-robin to this number of cells, all at distance
/// 20, which firmware uses for neighbors.
pub fn dealt(cells: u32) -> Result<Topology> {
    let failed = |e: std::io::Error| Error::Failed(format!("cannot simulate cells: {e}"));
    let folder = tempfile::tempdir().map_err(failed)?;
    lay_out(folder.path(), cells as usize).map_err(failed)?;
    Topology::read(folder.path()).map_err(failed)
}

/// Creates the sysfs files that describe the location of CPUs.
fn lay_out(root: &Path, cells: usize) -> std::io::Result<()> {
    let nodes = root.join("devices/system/node");
    let cpus = std::thread::available_parallelism()?.get().max(cells);
    std::fs::create_dir_all(&nodes)?;
    std::fs::write(nodes.join("online"), format!("0-{}\n", cells - 1))?;
    for cell in 0..cells {
        let numbers = |all: &mut dyn Iterator<Item = usize>, between: &str| {
            let texts: Vec<String> = all.map(|n| n.to_string()).collect();
            texts.join(between)
        };
        let folder = nodes.join(format!("node{cell}"));
        std::fs::create_dir_all(&folder)?;
        let own = numbers(&mut (cell..cpus).step_by(cells), ",");
        std::fs::write(folder.join("cpulist"), own)?;
        let distance = |other| if other == cell { 10 } else { 20 };
        let distances = numbers(&mut (0..cells).map(distance), " ");
        std::fs::write(folder.join("distance"), distances)?;
    }
    Ok(())
}

/// A path whose target reports a cell.
pub struct NumaPath {
    path: NbdPath,
    cell: u32,
}

impl NumaPath {
    pub fn new(path: NbdPath, cell: u32) -> NumaPath {
        NumaPath { path, cell }
    }
}

impl Lunpath for NumaPath {
    fn name(&self) -> &str {
        self.path.name()
    }

    fn transport(&self) -> Transport {
        self.path.transport()
    }

    fn target_port(&self) -> String {
        self.path.target_port()
    }

    fn identify(&self, within: Duration) -> block::Result<Identity> {
        self.path.identify(within)
    }

    fn connect(&self, within: Duration) -> block::Result<Box<dyn Connection>> {
        let inner = self.path.connect(within)?;
        let info = DeviceInfo {
            numa_node: Some(self.cell),
            ..inner.info().clone()
        };
        Ok(Box::new(Placed { inner, info }))
    }

    fn access(&self, within: Duration) -> block::Result<Option<Access>> {
        self.path.access(within)
    }

    fn fence(&self, key: u64, within: Duration) -> block::Result<()> {
        self.path.fence(key, within)
    }
}

/// A connection with another [`DeviceInfo`].
struct Placed {
    inner: Box<dyn Connection>,
    info: DeviceInfo,
}

impl Connection for Placed {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn identity(&self) -> &Identity {
        self.inner.identity()
    }

    fn fence_key(&self) -> Option<u64> {
        self.inner.fence_key()
    }

    fn open(self: Box<Self>) -> block::Result<Box<dyn PathQueue>> {
        self.inner.open()
    }
}
