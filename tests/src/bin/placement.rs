//! Reads a file's pages into the cache for each node of this machine in turn, and prints as JSON on
//! which node the kernel has placed them. Runs in a guest with two nodes.

use block::BlockDevice;
use block_testing::Mem;
use cache::{Attributes, Cache, Config, DEVICE_FILE, DevicePager};
use numa::Topology;
use serde_json::json;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

/// `linux/mempolicy.h`: return the node of an address.
const MPOL_F_NODE: u64 = 1;
const MPOL_F_ADDR: u64 = 2;
const PAGE: u64 = 4096;
/// Pages that are read for each node.
const PAGES: u64 = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let topology = Topology::read(Path::new("/sys"))?;
    let cells: Vec<u32> = topology.nodes().collect();
    let size = PAGES * PAGE * cells.len() as u64;
    let cache = Cache::new(Config {
        topology,
        ..Config::new(2 * size)
    })?;
    let device = Arc::new(Mem::new(size, 4096)) as Arc<dyn BlockDevice>;
    let volume = cache.volume(Arc::new(DevicePager::new(device)?))?;
    let vnode = volume.vnode(DEVICE_FILE, size);
    let mut session = volume.session()?;
    let mut open = volume.open(&vnode);
    let mut first = 0;
    for &cell in &cells {
        vnode.set_attributes(Attributes {
            numa_node: Some(cell),
            // Read-ahead would load pages while the file still requests the previous node.
            no_read_ahead: true,
            ..Attributes::default()
        });
        let mut lies: BTreeMap<u32, u64> = BTreeMap::new();
        for page in first..first + PAGES {
            let page = session.page(&mut open, page)?;
            *lies.entry(node_of(page.as_ptr())?).or_default() += 1;
        }
        first += PAGES;
        println!("{}", json!({ "asked": cell, "lies": lies }));
    }
    Ok(())
}

/// Returns the node of the page at an address: get_mempolicy(2), `MPOL_F_NODE | MPOL_F_ADDR`.
fn node_of(at: *const u8) -> std::io::Result<u32> {
    let mut node: i32 = -1;
    // SAFETY: the kernel writes one integer, and only inspects the page at the address.
    let got = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &mut node,
            std::ptr::null::<u64>(),
            0,
            at,
            MPOL_F_NODE | MPOL_F_ADDR,
        )
    };
    match u32::try_from(node) {
        Ok(node) if got == 0 => Ok(node),
        _ => Err(std::io::Error::last_os_error()),
    }
}
