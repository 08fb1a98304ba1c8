//! Administration of a running cell: clients are notified of changes and see them.

mod common;

use afs_proto::acl::{AccessList, Entry};
use afs_proto::fs::FileType;
use afs_proto::{Abort, AfsFid, Rights};
use afs_server::{AdminError, Kind, MountPoint, NewVolume, Removal};
use block::BlockDevice;
use block_testing::Mem;
use common::{Cell, Client, VOLUME, config};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

fn new(name: &str) -> NewVolume {
    NewVolume {
        name: name.into(),
        quota_bytes: 0,
        owner: (0, 0),
    }
}

/// Returns the identifier that denotes a whole volume.
fn all_of(volume: u32) -> AfsFid {
    AfsFid {
        volume,
        vnode: 0,
        unique: 0,
    }
}

#[test]
fn a_client_hears_of_an_access_list_and_is_held_to_it() {
    let cell = Cell::new();
    let admin = cell.server.administration();
    let client = cell.client();
    client.status(client.root).expect("anybody may look");
    let list = |name: &str, rights| {
        let entry = Entry {
            name: name.into(),
            rights,
        };
        AccessList::new(vec![entry], Vec::new()).expect("a list")
    };
    let nobody = list("10.9.9.9", Rights::ALL);
    admin.set_access_list(VOLUME, "/", &nobody).expect("set");
    assert_eq!(client.ears.take(), [client.root]);
    let denied = client.status(client.root).expect_err("nobody may");
    assert_eq!(denied.errno(), Some(libc::EACCES), "{denied}");
    assert_eq!(admin.access_list(VOLUME, "/").expect("read"), nobody);
    let him = list("127.0.0.1", Rights::READ_LOOKUP);
    admin.set_access_list(VOLUME, "", &him).expect("set");
    client.status(client.root).expect("he may");
    // A failed request changes nothing.
    for (volume, path) in [("other", "/"), (VOLUME, "/no/such"), (VOLUME, "/no")] {
        let error = admin.set_access_list(volume, path, &nobody);
        assert!(matches!(error, Err(AdminError::NotFound(_))), "{error:?}");
    }
    assert_eq!(admin.access_list(VOLUME, "/").expect("read"), him);
}

#[test]
fn a_mount_point_is_made_where_paths_lead_and_clients_see_it() {
    let cell = Cell::new();
    let admin = cell.server.administration();
    let client = cell.client();
    admin.create(&new("one")).expect("made");
    let two = admin.create(&new("two")).expect("made");
    let mount = |path: &str, of: &str| {
        admin.mount(&MountPoint {
            volume: VOLUME,
            path,
            of,
            read_write: false,
        })
    };
    client.status(client.root).expect("there");
    mount("/one", "one").expect("made");
    assert_eq!(client.ears.take(), [client.root]);
    let fid = client.lookup(client.root, "one").expect("there");
    let status = client.status(fid).expect("there");
    // Clients recognize a mount point by these attributes.
    assert_eq!(status.file_type, FileType::SymbolicLink);
    assert_eq!(status.unix_mode_bits & 0o777, 0o644);
    // Paths cross mount points.
    mount("/one/two", "two").expect("made");
    admin
        .check_mount(VOLUME, "/one/two/three")
        .expect("a place");
    assert_eq!(two.files.attr(fs::ROOT).expect("there").inode.entries, 0);
    for (path, of) in [
        ("/one", "two"),
        ("/one/two", "one"),
        ("/none/two", "two"),
        ("/", "two"),
        ("/three", "none"),
        ("/..", "two"),
    ] {
        assert!(mount(path, of).is_err(), "{path} {of}");
    }
}

#[test]
fn a_replica_made_again_keeps_its_number_and_notifies_its_readers() {
    let cell = Cell::new();
    let admin = cell.server.administration();
    let writer = cell.client();
    let (kept, _) = writer.create(writer.root, "kept").expect("made");
    writer.store(kept, 0, b"old", 3).expect("stored");
    let (gone, _) = writer.create(writer.root, "gone").expect("made");
    let first = admin.clone_volume(VOLUME, Kind::ReadOnly).expect("made").id;
    let reader = Client::of(cell.server.file_service(), first);
    let there = |fid: AfsFid| AfsFid {
        volume: first,
        ..fid
    };
    reader.status(there(gone)).expect("in the replica");
    reader.status(there(kept)).expect("in the replica");
    writer.remove(writer.root, "gone").expect("removed");
    writer.store(kept, 0, b"newer", 5).expect("stored");
    assert_eq!(reader.status(there(kept)).expect("as it was").length, 3);
    let second = admin.clone_volume(VOLUME, Kind::ReadOnly).expect("made").id;
    assert_eq!(first, second);
    assert_eq!(reader.ears.take(), [all_of(first)]);
    assert_eq!(reader.status(there(kept)).expect("as it is").length, 5);
    assert_eq!(reader.status(there(gone)), Err(Abort::VNOVNODE));
    // The first replica was removed completely.
    let trees = cell.fs.filesets();
    let names: Vec<_> = trees.iter().map(|(_, r)| r.name.as_str()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(
        admin
            .clone_volume("root.cell.readonly", Kind::Backup)
            .is_err()
    );
}

#[test]
fn a_volume_is_removed_when_that_is_wanted_and_its_clients_are_told() {
    let cell = Cell::new();
    let admin = cell.server.administration();
    let made = admin.create(&new("doomed")).expect("made").id;
    let client = Client::of(cell.server.file_service(), made);
    let (file, _) = client.create(client.root, "file").expect("made");
    client
        .store(file, 0, &[7; 100_000], 100_000)
        .expect("stored");
    admin.clone_volume("doomed", Kind::Backup).expect("made");
    admin.set_quota("doomed", 1 << 20).expect("set");
    let refused = admin.remove("doomed", Removal::IfEmpty);
    assert!(
        matches!(refused, Err(AdminError::Refused(_))),
        "{refused:?}"
    );
    client.status(file).expect("there still");
    client.ears.take();
    admin.remove("doomed", Removal::WithFiles).expect("removed");
    assert_eq!(client.ears.take(), [all_of(made)]);
    assert_eq!(client.status(file), Err(Abort::VNOVOL));
    assert!(admin.volume("doomed").is_err() && admin.volume("doomed.backup").is_err());
    let needed = admin.remove(VOLUME, Removal::WithFiles);
    assert!(needed.is_err(), "a cell needs it");
    // Its number is never reused.
    assert_ne!(admin.create(&new("doomed")).expect("made").id, made);
}

#[test]
fn names_that_no_volume_can_have_are_refused() {
    let cell = Cell::new();
    let admin = cell.server.administration();
    let long = "a".repeat(56);
    for name in [
        "",
        "7",
        "a b",
        "a/b",
        "a:b",
        "a.",
        ".a",
        "-a",
        "#a",
        "a.readonly",
        "a.backup",
        "ü",
        &long,
        VOLUME,
    ] {
        assert!(admin.create(&new(name)).is_err(), "{name}");
    }
    admin.create(&new(&"a".repeat(55))).expect("made");
}

#[test]
fn several_addresses_share_what_was_promised() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(64 << 20, 4096));
    common::format(&device);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    // The second address must be known in advance, so its port is one that was free a moment ago.
    let started = (0..10).find_map(|_| {
        let free = UdpSocket::bind("127.0.0.2:0").expect("a port");
        let second = free.local_addr().expect("an address");
        drop(free);
        let config = afs_server::Config {
            file_service: vec![any, second],
            ..config()
        };
        Some((Cell::try_on(&device, config).ok()?, second))
    });
    let (cell, second) = started.expect("a server");
    let volume = cell.volume(Kind::ReadWrite);
    let (here, there) = (cell.client(), Client::of(second, volume));
    there.status(there.root).expect("there");
    here.status(here.root).expect("there");
    here.create(here.root, "file").expect("made");
    assert_eq!(there.ears.take(), [there.root]);
    there.create(there.root, "other").expect("made");
    assert_eq!(here.ears.take(), [here.root]);
    let stats = cell.server.stats();
    assert_eq!((stats.clients, stats.counts.breaks), (2, 2));
    let called = |name| stats.called.iter().find(|c| c.procedure == name);
    assert_eq!(
        called("CreateFile").map(|c| (c.calls, c.aborts)),
        Some((2, 0))
    );
    let clients = cell.server.clients();
    assert!(
        clients.iter().all(|c| c.promises > 0 && c.uuid.is_some()),
        "{clients:?}"
    );
}
