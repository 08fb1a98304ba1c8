//! The NUMA node that memory is requested from. A guest with two nodes tests the actual placement.

use block::BlockDevice;
use block_testing::Mem;
use cache::{Attributes, Cache, Config, DEVICE_FILE, DevicePager, Vnode, Volume};
use numa::Topology;
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 8 * MIB;

/// Returns a topology of two nodes with a CPU each, whatever this machine has.
fn two_nodes() -> Topology {
    let root = tempfile::tempdir().unwrap();
    let nodes = root.path().join("devices/system/node");
    let write = |path: &Path, text: &str| std::fs::write(path, text).unwrap();
    for node in 0..2 {
        let folder = nodes.join(format!("node{node}"));
        std::fs::create_dir_all(&folder).unwrap();
        write(&folder.join("cpulist"), &format!("{node}\n"));
        write(&folder.join("distance"), ["10 20\n", "20 10\n"][node]);
    }
    write(&nodes.join("online"), "0-1\n");
    Topology::read(root.path()).unwrap()
}

fn cache(max: u64, topology: Topology) -> (Arc<Cache>, Arc<Volume>, Arc<Vnode>) {
    let cache = Cache::new(Config {
        topology,
        ..Config::new(max)
    })
    .unwrap();
    let device = Arc::new(Mem::new(SIZE, 4096)) as Arc<dyn BlockDevice>;
    let volume = cache
        .volume(Arc::new(DevicePager::new(device).unwrap()))
        .unwrap();
    let vnode = volume.vnode(DEVICE_FILE, SIZE);
    (cache, volume, vnode)
}

fn read(volume: &Volume, vnode: &Arc<Vnode>, range: std::ops::Range<u64>) {
    let mut out = vec![1; (range.end - range.start) as usize];
    let mut session = volume.session().unwrap();
    let mut open = volume.open(vnode);
    session.read(&mut open, range.start, &mut out).unwrap();
    assert!(out.iter().all(|b| *b == 0));
}

/// Returns the bytes requested from each node.
fn asked(cache: &Cache) -> [u64; 2] {
    let nodes = cache.nodes();
    assert_eq!([nodes[0].0, nodes[1].0], [0, 1]);
    [nodes[0].1, nodes[1].1]
}

fn on_node(node: u32) -> Attributes {
    Attributes {
        numa_node: Some(node),
        ..Attributes::default()
    }
}

#[test]
fn a_file_lies_on_the_node_it_asks_for() {
    let (cache, volume, vnode) = cache(16 * MIB, two_nodes());
    assert_eq!(asked(&cache), [0, 0]);
    vnode.set_attributes(on_node(1));
    read(&volume, &vnode, 0..3 * MIB);
    let [near, far] = asked(&cache);
    assert!(near == 0 && far >= 3 * MIB, "{near} {far}");
    vnode.set_attributes(on_node(0));
    read(&volume, &vnode, 4 * MIB..7 * MIB);
    let [near, still] = asked(&cache);
    assert!(near >= 3 * MIB && still == far, "{near} {still}");
}

#[test]
fn a_node_without_room_is_helped_by_the_other() {
    let (cache, volume, vnode) = cache(4 * MIB, two_nodes());
    vnode.set_attributes(on_node(0));
    read(&volume, &vnode, 0..4 * MIB);
    assert_eq!(asked(&cache), [4 * MIB, 0]);
    vnode.set_attributes(on_node(1));
    read(&volume, &vnode, 4 * MIB..8 * MIB);
    assert_eq!(
        asked(&cache),
        [4 * MIB, 0],
        "the limit is that of all nodes"
    );
}

#[test]
fn a_machine_with_one_kind_of_memory_has_no_nodes() {
    let (cache, volume, vnode) = cache(16 * MIB, Topology::default());
    vnode.set_attributes(on_node(1));
    read(&volume, &vnode, 0..SIZE);
    assert!(cache.nodes().is_empty());
}
