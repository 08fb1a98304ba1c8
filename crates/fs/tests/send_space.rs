//! Increments of files whose allocated space changes.

mod common;

use common::open;
use common::streams::{COPY, assert_same, cache, device, make, receive_all, stream};
use fs::{Allocate, FIRST_FILESET, FileType, Files, ROOT, SetAttr};

#[test]
fn space_beyond_a_shorter_end_arrives() {
    let source = open(&device(64));
    let main = source.fileset_named(FIRST_FILESET).expect("it exists");
    let files = Files::new(&main, &cache()).expect("files");
    let mut lane = files.lane().expect("a lane");
    let ino = make(&files, ROOT, "file", FileType::File);
    let copy = open(&device(64));
    let mut since = None;
    for (name, size) in [("long", 100_000), ("shorter", 50_000), ("empty", 0)] {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        lane.set_attr(ino, &set).expect("cut");
        // At the same place each time, so that it differs only in that the cut has freed it.
        let file = files.open(ino).expect("open");
        lane.allocate(&file, 200_704..286_720, Allocate::KeepSize)
            .expect("space");
        files.sync().expect("synced");
        let taken = source.snapshot(main.id(), name).expect("a snapshot").id();
        let received = receive_all(&copy, COPY, &stream(&source, name, since, None), name);
        assert_same((&source, taken), (&copy, received), name);
        since = Some(name);
    }
}
