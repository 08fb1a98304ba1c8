//! Filesets that begin as copies of snapshots.
//!
//! Goal: a clone has the content of the snapshot, each side changes alone, and a power cut while it
//! is created leaves all of it or nothing. Method: as for rollbacks.

mod common;

use block::BlockDevice;
use block_testing::{Mem, PowerCut, Random, Tear};
use common::client::Client;
use common::past::{changed, seen};
use common::{assert_clean, open};
use fs::{FIRST_FILESET, Kind, ROOT};
use std::sync::Arc;

#[test]
fn a_power_cut_leaves_all_of_a_clone_or_nothing() {
    let disk = Arc::new(Mem::new(16 << 20, 4096));
    let device: Arc<dyn BlockDevice> = Arc::clone(&disk) as _;
    let fs = changed(&device);
    let (main, then) = (seen(&fs, FIRST_FILESET), seen(&fs, "then"));
    fs.close().expect("closed");

    let cut = Arc::new(PowerCut::new(&disk));
    let device: Arc<dyn BlockDevice> = Arc::clone(&cut) as _;
    let fs = open(&device);
    let first = cut.events();
    let of = fs.fileset_named("then").expect("it exists").id();
    fs.clone_snapshot(of, "clone").expect("cloned");
    let last = cut.events();
    assert_eq!(seen(&fs, "clone"), then);
    assert_clean(&fs, "after");
    fs.close().expect("closed");

    let (mut nothing, mut all) = (0, 0);
    for point in first..=last {
        for tear in [Tear::Drop, Tear::Keep, Tear::Random(point as u64)] {
            let image: Arc<dyn BlockDevice> = Arc::new(cut.crash(point, tear));
            let fs = open(&image);
            if fs.fileset_named("clone").is_ok() {
                all += 1;
                assert_eq!(seen(&fs, "clone"), then, "{point} {tear:?}");
            } else {
                nothing += 1;
            }
            assert_eq!(seen(&fs, "then"), then, "{point} {tear:?}");
            assert_eq!(seen(&fs, FIRST_FILESET), main, "{point} {tear:?}");
            assert_clean(&fs, &format!("{point} {tear:?}"));
        }
    }
    assert!(nothing > 0 && all > 0, "{nothing}, {all}");
}

#[test]
fn a_clone_and_its_origin_change_alone_and_share_what_neither_has_changed() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(16 << 20, 4096));
    let fs = changed(&device);
    let id = |name| fs.fileset_named(name).expect("it exists").id();
    let blocks = || fs.check().expect("checked").data_blocks;
    let before = blocks();
    let (main, then) = (seen(&fs, FIRST_FILESET), seen(&fs, "then"));
    let clone = fs.clone_snapshot(id("then"), "clone").expect("cloned");
    assert_eq!(blocks(), before);
    // Its snapshots are not those of the origin.
    fs.snapshot(clone.id(), "clone-as-new").expect("a snapshot");
    let ino = clone.lookup(ROOT, b"removed").expect("it exists").ino;
    let mut client = Client::new(clone.clone());
    client.write(ino, 4096, &[9; 4096]).expect("written");
    client.sync(&mut Random::new(1)).expect("written out");
    drop(client);
    assert_eq!(blocks(), before + 1);
    clone.unlink(ROOT, b"cut").expect("removed");
    assert_eq!(seen(&fs, FIRST_FILESET), main);
    assert_eq!(seen(&fs, "then"), then);
    assert_eq!(seen(&fs, "clone-as-new"), then);
    // The clone needs neither the snapshot nor its fileset.
    let now = seen(&fs, "clone");
    for name in ["then", "between", FIRST_FILESET] {
        fs.remove_fileset(id(name)).expect("removed");
        assert_clean(&fs, name);
    }
    assert_eq!(seen(&fs, "clone"), now);
    assert_eq!(seen(&fs, "clone-as-new"), then);
    fs.remove_fileset(id("clone-as-new")).expect("removed");
    fs.remove_fileset(clone.id()).expect("removed");
    assert_eq!(blocks(), 0);
    assert_clean(&fs, "empty");
}

#[test]
fn only_a_snapshot_is_cloned_and_under_a_new_name() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(16 << 20, 4096));
    let fs = changed(&device);
    let id = |name| fs.fileset_named(name).expect("it exists").id();
    let refused = |of, name| fs.clone_snapshot(id(of), name).err().expect(name).kind();
    assert_eq!(refused(FIRST_FILESET, "clone"), Kind::Invalid);
    assert_eq!(refused("then", "between"), Kind::Exists);
    assert_eq!(refused("then", "a/b"), Kind::Invalid);
    assert_eq!(fs.filesets().len(), 3);
    assert_clean(&fs, "after");
}
