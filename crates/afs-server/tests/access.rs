//! Access control: by address, by access list, and by the limits of the server's configuration.

mod common;

use afs_client::ANY;
use afs_proto::fs::{AfsStoreStatus, LockType, Reply, Request};
use afs_proto::{Abort, Fid, Name, Rights};
use afs_server::{Config, Kind, Prefix, ino_of};
use common::{Cell, Client, PATIENCE, VOLUME, config};
use fs::{ROOT, SetXattr};
use std::net::UdpSocket;

fn denied<T: std::fmt::Debug>(outcome: Result<T, Abort>) {
    let code = outcome.expect_err("it is denied");
    assert_eq!(code.errno(), Some(libc::EACCES), "{code}");
}

/// Sets the access list of the root, bypassing the protocol.
fn set_root_list(cell: &Cell, text: &str) {
    let volume = cell
        .server
        .volumes()
        .find(VOLUME.as_bytes())
        .expect("there");
    let set = volume.files.set_xattr(
        ROOT,
        afs_server::ACL_ATTRIBUTE,
        text.as_bytes(),
        SetXattr::Any,
    );
    set.expect("set");
}

#[test]
fn a_server_that_was_not_told_otherwise_is_only_read() {
    let cell = Cell::with(Config {
        anonymous_write: false,
        ..config()
    });
    // An access list cannot override the server's limit.
    set_root_list(&cell, "1\n0\nsystem:anyuser 127\n");
    let client = cell.client();
    let status = client.status(client.root).expect("it may be looked at");
    let most = Rights::READ_LOOKUP.or(Rights::LOCK);
    assert_eq!(
        (status.caller_access, status.anonymous_access),
        (most, most)
    );
    denied(client.create(client.root, "file"));
    denied(client.make_dir(client.root, "dir"));
    denied(client.symlink(client.root, "link", "x", 0o777));
    denied(client.remove(client.root, "file"));
    denied(client.rename((client.root, "a"), (client.root, "b")));
    denied(client.set(client.root, afs_client::ANY));
    denied(client.set_list(client.root, "1\n0\nsystem:anyuser 127\n"));
}

#[test]
fn a_list_gives_and_takes_by_address_and_goes_to_directories_below() {
    let cell = Cell::new();
    set_root_list(
        &cell,
        "3\n1\nsystem:anyuser 9\n127.0.1.0/24 127\nalice 127\n127.0.1.9 4\n",
    );
    let local = |last| Client::at(&cell, [127, 0, 1, last].into());
    let (owner, limited, other) = (local(1), local(9), cell.client());
    let (dir, _) = owner.make_dir(owner.root, "dir").expect("made");
    let (file, _) = owner.create(dir, "file").expect("made");
    owner.store(file, 0, b"text", 4).expect("stored");
    denied(other.create(dir, "more"));
    denied(other.store(file, 0, b"x", 1));
    denied(other.lock(file, LockType::Write));
    assert_eq!(other.fetch(file, 0, 10).expect("read").0, b"text");
    // All rights except the revoked ones remain.
    denied(limited.create(dir, "more"));
    limited.store(file, 0, b"TEXT", 4).expect("stored");
    assert_eq!(
        other.status(file).expect("there").caller_access,
        Rights::READ_LOOKUP
    );

    assert!(
        owner
            .list(dir)
            .expect("a list")
            .contains("127.0.1.0/24\t127\n")
    );
    let text = "1\n0\n127.0.1.0/24 127\n";
    owner.set_list(dir, text).expect("set");
    denied(other.set_list(dir, text));
    denied(other.status(file));
    denied(other.status(dir));
    denied(other.fetch(file, 0, 10));
    denied(other.fetch(dir, 0, 10));
    denied(other.lookup(dir, "file"));
    let (statuses, _) = other.bulk(&[other.root, file]).expect("each for itself");
    assert_eq!(statuses[0].error_code, Abort(0));
    assert_eq!(statuses[1].error_code.errno(), Some(libc::EACCES));
    let (below, _) = owner.make_dir(dir, "below").expect("made");
    denied(other.status(below));
    for bad in ["", "1\n", "x\n0\n", "1\n0\nname\n", "30\n0\n"] {
        let refused = owner.set_list(dir, bad).expect_err("no list");
        assert_eq!(refused.errno(), Some(libc::EINVAL), "{bad:?}");
    }
}

#[test]
fn who_is_not_on_the_list_of_addresses_is_told_nothing() {
    let allowed: Prefix = "127.0.2.0/24".parse().expect("a prefix");
    let cell = Cell::with(Config {
        allowed: vec![allowed],
        ..config()
    });
    let inside = Client::at(&cell, [127, 0, 2, 5].into());
    inside.status(inside.root).expect("there");
    let outside = cell.client();
    let code = outside.status(outside.root).expect_err("refused");
    assert_eq!(code, Abort(libc::EACCES));
    assert_eq!(outside.ears.told.lock().expect("told").asked, 0);
    let time = outside.ask(&Request::GetTime {}).map(drop);
    assert_eq!(time, Err(Abort(libc::EACCES)));
}

/// Goal: `rxdebug` is answered for permitted addresses; others cannot even detect the server.
#[test]
fn who_is_not_on_the_list_of_addresses_gets_no_answer_of_rxdebug() {
    let allowed: Prefix = "127.0.2.0/24".parse().expect("a prefix");
    let cell = Cell::with(Config {
        allowed: vec![allowed],
        // Serialized by a single socket: once the second question is answered, the first has been
        // answered or never will be.
        sockets: 1,
        ..config()
    });
    let at = |address: &str| {
        let socket = UdpSocket::bind((address, 0)).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("set");
        socket
    };
    let (inside, outside) = (at("127.0.2.5"), at("127.0.3.5"));
    let ask = |socket: &UdpSocket, kind: u8, body: &[u8]| {
        let mut packet = vec![0; 28];
        packet[11] = 7;
        (packet[20], packet[21]) = (kind, 1);
        packet.extend(body);
        let to = cell.server.file_service();
        socket.send_to(&packet, to).expect("sent");
    };
    for (kind, body) in [(13, &[0][..]), (8, &[0, 0, 0, 5, 0, 0, 0, 0])] {
        ask(&outside, kind, body);
        ask(&inside, kind, body);
        let mut answer = [0; 1000];
        let bytes = inside.recv(&mut answer).expect("an answer");
        assert!(bytes > 28 && answer[20] == kind, "{bytes}");
    }
    outside.set_nonblocking(true).expect("set");
    let nothing = outside.recv(&mut [0; 1000]).expect_err("told nothing");
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_replica_is_only_read_and_shows_what_was() {
    let cell = Cell::new();
    let client = cell.client();
    let (file, _) = client.create(client.root, "file").expect("made");
    client.store(file, 0, b"before", 6).expect("stored");
    let tree = cell.fs.fileset_named(VOLUME).expect("there").id();
    let volumes = cell.server.volumes();
    assert_eq!(volumes.refresh().expect("read"), Vec::<u32>::new());
    cell.fs
        .snapshot(tree, &format!("{VOLUME}.readonly"))
        .expect("made");
    cell.fs
        .snapshot(tree, &format!("{VOLUME}.backup"))
        .expect("made");
    volumes.refresh().expect("read");
    client.store(file, 0, b"after", 5).expect("stored");
    for kind in [Kind::ReadOnly, Kind::Backup] {
        let volume = cell.volume(kind);
        assert_eq!(volume, cell.volume(Kind::ReadWrite) + kind as u32);
        let there = afs_proto::AfsFid { volume, ..file };
        assert_eq!(client.fetch(there, 0, 10).expect("read").0, b"before");
        let root = afs_proto::AfsFid {
            volume,
            ..client.root
        };
        assert_eq!(client.lookup(root, "file"), Ok(there));
        for refused in [
            client.store(there, 0, b"x", 1).map(drop),
            client.create(root, "more").map(drop),
            client.remove(root, "file").map(drop),
            client.set(there, afs_client::ANY).map(drop),
        ] {
            assert_eq!(refused.map_err(|code| code.errno()), Err(Some(libc::EROFS)));
        }
    }
    let answer = client.ask(&Request::GetVolumeStatus {
        volume: cell.volume(Kind::ReadOnly),
    });
    match answer.expect("there").reply() {
        Reply::GetVolumeStatus { status, name, .. } => {
            assert_eq!(status.parent, cell.volume(Kind::ReadWrite));
            assert_eq!(name.as_bytes(), format!("{VOLUME}.readonly").as_bytes());
            assert!(status.online && status.partition_max_blocks > 0);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_quota_is_told_and_kept() {
    let cell = Cell::new();
    let client = cell.client();
    let tree = cell.fs.fileset_named(VOLUME).expect("there").id();
    let quota = fs::Quota {
        blocks: 256,
        inodes: 0,
    };
    cell.fs.set_quota(tree, quota).expect("set");
    let (file, _) = client.create(client.root, "file").expect("made");
    let refused = client.store(file, 0, &vec![1; 4 << 20], 0).map(drop);
    assert_eq!(refused, Err(Abort::VOVERQUOTA));
    client
        .store(file, 0, &vec![1; 512 << 10], 0)
        .expect("it fits");
    let volume = cell.volume(Kind::ReadWrite);
    let answer = client
        .ask(&Request::GetVolumeStatus { volume })
        .expect("there");
    match answer.reply() {
        Reply::GetVolumeStatus { status, .. } => assert_eq!(status.max_quota, 1024),
        other => panic!("{other:?}"),
    }
}

/// Goal: a client with write access can neither create nor modify set-ID files.
#[test]
fn a_stranger_makes_nothing_that_runs_with_the_rights_of_others() {
    let cell = Cell::new();
    let client = cell.client();
    let volume = cell
        .server
        .volumes()
        .find(VOLUME.as_bytes())
        .expect("there");
    let new = fs::New {
        kind: fs::FileType::File,
        permissions: 0o4755,
        umask: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
    };
    volume.files.create(ROOT, b"program", &new).expect("made");
    let fid = client.lookup(client.root, "program").expect("there");
    let mode = |bits| AfsStoreStatus {
        unix_mode_bits: Some(bits),
        ..ANY
    };
    for bits in [0o4777, 0o2755, 0o104_755] {
        let code = client.set(fid, mode(bits)).expect_err("refused");
        assert_eq!(code.errno(), Some(libc::EPERM), "{bits:o}");
    }
    assert_eq!(client.status(fid).expect("there").unix_mode_bits, 0o4755);
    let status = client.store(fid, 0, b"mine", 4).expect("stored");
    assert_eq!(status.unix_mode_bits, 0o755);
    let made = client.ask(&Request::CreateFile {
        directory: client.root,
        name: Name::new(b"own").expect("a name"),
        wanted: mode(0o6755),
    });
    match made.expect("made").reply() {
        Reply::CreateFile { status, .. } => assert_eq!(status.unix_mode_bits, 0o755),
        other => panic!("{other:?}"),
    }
}

/// Goal: a file moved out of its directory through hard links by a local mount does not become
/// accessible to all clients when the directory is removed.
#[test]
fn a_file_whose_directory_was_removed_has_no_owner() {
    let cell = Cell::new();
    let client = cell.client();
    let (a, _) = client.make_dir(client.root, "a").expect("made");
    let (private, _) = client.make_dir(client.root, "private").expect("made");
    let (fid, _) = client.create(a, "x").expect("made");
    let files = &cell
        .server
        .volumes()
        .find(VOLUME.as_bytes())
        .expect("there")
        .files;
    let ino = |fid| ino_of(Fid::from(&fid)).expect("a number");
    files.link(ino(fid), ino(private), b"y").expect("linked");
    files.unlink(ino(a), b"x").expect("removed");
    files.rmdir(ROOT, b"a").expect("removed");
    denied(client.status(fid));
    denied(client.fetch(fid, 0, 9));
    denied(client.store(fid, 0, b"x", 1));
}
