//! Names: each call that changes a directory, and the resulting copies of clients.
//!
//! Goal: a client that updates its own copy of a directory after each of its calls, as OpenAFS and
//! Linux do, has the server's pages byte for byte, with versions that increase by one.

mod common;

use afs_proto::dir::{Directory, Entry, Image};
use afs_proto::fs::{AfsFetchStatus, FileType};
use afs_proto::{Abort, AfsFid, Fid};
use block_testing::Random;
use common::{Cell, Client, seed};
use std::collections::BTreeMap;

fn errno(code: Abort) -> i32 {
    code.errno().expect("a code of the error table")
}

/// Client's copy of a directory.
struct Copy {
    fid: AfsFid,
    image: Image,
    version: u64,
}

impl Copy {
    fn fetch(client: &Client, fid: AfsFid) -> Copy {
        let (bytes, status, _) = client.fetch(fid, 0, u64::MAX >> 1).expect("fetched");
        assert_eq!(bytes.len() as u64, status.length);
        Copy {
            fid,
            image: Image::from_pages(bytes).expect("sound"),
            version: status.data_version,
        }
    }

    /// Applies a change made by this client and compares the copy with the returned status.
    fn changed(&mut self, status: &AfsFetchStatus, change: impl FnOnce(&mut Image)) {
        change(&mut self.image);
        self.version += 1;
        assert_eq!(status.data_version, self.version);
        assert_eq!(status.length, self.image.bytes().len() as u64);
    }

    fn check(&self, client: &Client) {
        let (bytes, status, _) = client.fetch(self.fid, 0, u64::MAX >> 1).expect("fetched");
        assert!(bytes == self.image.bytes(), "the pages differ");
        assert_eq!(status.data_version, self.version);
    }
}

fn entry(name: &str, fid: AfsFid) -> Entry<'_> {
    Entry {
        name: name.as_bytes(),
        fid: Fid::from(&fid),
    }
}

#[test]
fn a_client_that_changes_its_own_copy_has_the_servers_pages() {
    let cell = Cell::new();
    let client = cell.client();
    let mut random = Random::new(seed(1));
    let (a, _) = client.make_dir(client.root, "a").expect("made");
    let (b, _) = client.make_dir(client.root, "b").expect("made");
    let mut copies = [Copy::fetch(&client, a), Copy::fetch(&client, b)];
    let mut names: [BTreeMap<String, AfsFid>; 2] = Default::default();
    for step in 0..1500 {
        let at = random.below(2) as usize;
        let other = random.below(2) as usize;
        let new = format!("{step}-{}", "x".repeat(random.below(60) as usize));
        let picked = match names[at].len() as u64 {
            0 => None,
            count => names[at].keys().nth(random.below(count) as usize).cloned(),
        };
        match (random.below(6), picked) {
            (0..=2, _) | (_, None) => {
                let (fid, status) = client.create(copies[at].fid, &new).expect("made");
                copies[at].changed(&status, |image| {
                    image.insert(entry(&new, fid)).expect("room")
                });
                names[at].insert(new, fid);
            }
            (3, Some(old)) => {
                let status = client.remove(copies[at].fid, &old).expect("removed");
                copies[at].changed(&status, |image| assert!(image.remove(old.as_bytes())));
                names[at].remove(&old);
            }
            (_, Some(old)) => {
                // To a new name, or to an existing one.
                let replaced = names[other]
                    .keys()
                    .next()
                    .filter(|_| step % 3 == 0)
                    .cloned();
                let to = replaced.clone().unwrap_or(new);
                let moved = names[at][&old];
                let dirs = (copies[at].fid, copies[other].fid);
                let (from, into) = client
                    .rename((dirs.0, &old), (dirs.1, &to))
                    .expect("renamed");
                if at == other && old == to {
                    assert_eq!(from.data_version, copies[at].version);
                    continue;
                }
                let take = |image: &mut Image| assert!(image.remove(old.as_bytes()));
                let put = |image: &mut Image| {
                    assert_eq!(image.remove(to.as_bytes()), replaced.is_some());
                    image.insert(entry(&to, moved)).expect("room");
                };
                if at == other {
                    copies[at].changed(&from, |image| {
                        take(image);
                        put(image);
                    });
                } else {
                    copies[at].changed(&from, take);
                    copies[other].changed(&into, put);
                }
                names[at].remove(&old);
                names[other].insert(to, moved);
            }
        }
    }
    copies.iter().for_each(|copy| copy.check(&client));
    for (copy, names) in copies.iter().zip(&names) {
        let read = Directory::verify(copy.image.bytes()).expect("sound");
        assert_eq!(read.entries().count(), names.len() + 2);
    }
}

#[test]
fn a_directory_that_moves_has_another_parent_and_another_version() {
    let cell = Cell::new();
    let client = cell.client();
    let (from, _) = client.make_dir(client.root, "from").expect("made");
    let (to, _) = client.make_dir(client.root, "to").expect("made");
    let (moved, _) = client.make_dir(from, "d").expect("made");
    let mut copy = Copy::fetch(&client, moved);
    let links = |fid| client.status(fid).expect("there").link_count;
    assert_eq!((links(from), links(to)), (3, 2));
    client.rename((from, "d"), (to, "e")).expect("renamed");
    assert_eq!((links(from), links(to)), (2, 3));
    let status = client.status(moved).expect("there");
    copy.changed(&status, |image| {
        assert!(image.replace(b"..", Fid::from(&to)));
    });
    copy.check(&client);
    assert_eq!(
        (status.parent_vnode, status.parent_unique),
        (to.vnode, to.unique)
    );
    assert_eq!(client.lookup(to, "e"), Ok(moved));
    // Neither into its own subtree nor over a directory that is not empty.
    let (below, _) = client.make_dir(moved, "below").expect("made");
    let refused = client.rename((to, "e"), (below, "x")).expect_err("a loop");
    assert_eq!(errno(refused), libc::EINVAL);
    client.make_dir(from, "d").expect("made");
    let refused = client
        .rename((from, "d"), (to, "e"))
        .expect_err("it has names");
    assert_eq!(errno(refused), libc::ENOTEMPTY);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let cell = Cell::new();
    let client = cell.client();
    let root = client.root;
    let (dir, _) = client.make_dir(root, "dir").expect("made");
    let (file, _) = client.create(dir, "file").expect("made");
    let before = Copy::fetch(&client, dir);
    let refused = [
        (client.create(dir, "file").map(drop), libc::EEXIST),
        (client.make_dir(dir, "file").map(drop), libc::EEXIST),
        (client.create(dir, "..").map(drop), libc::EINVAL),
        (client.create(dir, "a/b").map(drop), libc::EINVAL),
        (client.create(dir, "").map(drop), libc::EINVAL),
        (
            client.create(dir, &"n".repeat(256)).map(drop),
            libc::ENAMETOOLONG,
        ),
        (client.create(file, "x").map(drop), libc::ENOTDIR),
        (client.remove(dir, "none").map(drop), libc::ENOENT),
        (client.remove(root, "dir").map(drop), libc::EISDIR),
        (client.remove_dir(dir, "file").map(drop), libc::ENOTDIR),
        (client.remove_dir(root, "dir").map(drop), libc::ENOTEMPTY),
        (
            client.rename((dir, "none"), (dir, "x")).map(drop),
            libc::ENOENT,
        ),
        (
            client.rename((dir, "file"), (root, "dir")).map(drop),
            libc::EISDIR,
        ),
        (client.link(root, "elsewhere", file).map(drop), libc::EXDEV),
        (client.link(dir, "again", dir).map(drop), libc::EPERM),
        (client.lookup(dir, "none").map(drop), libc::ENOENT),
    ];
    for (at, (outcome, expected)) in refused.into_iter().enumerate() {
        assert_eq!(outcome.map_err(errno), Err(expected), "the {at}th");
    }
    before.check(&client);
    // Files that no longer exist, or never did.
    client.remove(dir, "file").expect("removed");
    let other = AfsFid {
        unique: file.unique + 1,
        ..file
    };
    let elsewhere = AfsFid { volume: 5, ..file };
    for (fid, expected) in [
        (file, Abort::VNOVNODE),
        (other, Abort::VNOVNODE),
        (AfsFid { vnode: 0, ..file }, Abort::VNOVNODE),
        (
            AfsFid {
                vnode: u32::MAX,
                unique: u32::MAX,
                ..file
            },
            Abort::VNOVNODE,
        ),
        (elsewhere, Abort::VNOVOL),
    ] {
        assert_eq!(client.status(fid), Err(expected));
        assert_eq!(client.fetch(fid, 0, 10).map(drop), Err(expected));
        assert_eq!(client.store(fid, 0, b"x", 1).map(drop), Err(expected));
        let (statuses, _) = client.bulk(&[root, fid]).expect("each for itself");
        assert_eq!(
            (statuses[0].error_code, statuses[1].error_code),
            (Abort(0), expected)
        );
    }
}

#[test]
fn links_count_and_symbolic_links_say_what_they_were_told() {
    let cell = Cell::new();
    let client = cell.client();
    let root = client.root;
    let (file, _) = client.create(root, "file").expect("made");
    client.link(root, "other", file).expect("linked");
    assert_eq!(client.status(file).expect("there").link_count, 2);
    // A file is subject to its directory's access list, so it must stay in one directory.
    let (dir, _) = client.make_dir(root, "dir").expect("made");
    let refused = client.rename((root, "other"), (dir, "other"));
    assert_eq!(refused.map_err(errno).map(drop), Err(libc::EXDEV));
    client.remove(root, "file").expect("removed");
    assert_eq!(client.status(file).expect("there").link_count, 1);
    client
        .rename((root, "other"), (dir, "other"))
        .expect("it has one name");
    assert_eq!(client.status(file).expect("there").parent_vnode, dir.vnode);

    let (link, _) = client
        .symlink(root, "link", "dir/other", 0o777)
        .expect("made");
    let status = client.status(link).expect("there");
    assert_eq!(
        (status.file_type, status.length),
        (FileType::SymbolicLink, 9)
    );
    assert_eq!(client.fetch(link, 0, 1000).expect("read").0, b"dir/other");
    // A mount point is a symbolic link without execute permission.
    let (point, _) = client
        .symlink(root, "point", "#root.cell.", 0o644)
        .expect("made");
    let status = client.status(point).expect("there");
    assert_eq!((status.unix_mode_bits, status.length), (0o644, 11));
    assert!(file.vnode % 2 == 0 && link.vnode % 2 == 0 && dir.vnode % 2 == 1);
}

#[test]
fn pages_that_are_rebuilt_have_a_version_of_their_own() {
    let device: std::sync::Arc<dyn block::BlockDevice> =
        std::sync::Arc::new(block_testing::Mem::new(256 << 20, 4096));
    common::format(&device);
    let make = |names: std::ops::Range<u32>| {
        let cell = Cell::on(&device, common::config());
        let client = cell.client();
        let changes = !names.is_empty();
        for n in names {
            client
                .create(client.root, &format!("name {n}"))
                .expect("made");
        }
        if changes {
            client.remove(client.root, "name 3").expect("removed");
        }
        Copy::fetch(&client, client.root)
    };
    let first = make(0..50);
    let again = make(0..0);
    assert!(again.version > first.version, "the places of names differ");
    assert!(again.image.bytes() != first.image.bytes());
    // Nothing has changed since: the same names produce the same pages.
    let third = make(0..0);
    assert_eq!(third.version, again.version);
    assert!(third.image.bytes() == again.image.bytes());
}

/// Creates a directory with two names. Its cell is stopped, so the next one rebuilds the pages.
fn folder(device: &std::sync::Arc<dyn block::BlockDevice>) -> AfsFid {
    common::format(device);
    let cell = Cell::on(device, common::config());
    let client = cell.client();
    let (folder, _) = client.make_dir(client.root, "folder").expect("made");
    for name in ["b", "a", "gone"] {
        client.create(folder, name).expect("made");
    }
    client.remove(folder, "gone").expect("removed");
    folder
}

#[test]
fn a_name_can_be_removed_where_there_is_no_room_for_anything() {
    let device: std::sync::Arc<dyn block::BlockDevice> =
        std::sync::Arc::new(block_testing::Mem::new(64 << 20, 4096));
    let folder = folder(&device);
    let cell = Cell::on(&device, common::config());
    let client = cell.client();
    let before = Copy::fetch(&client, folder);
    let (big, _) = client.create(client.root, "big").expect("made");
    let mut at = 0;
    for piece in [1 << 20, 64 << 10, 4096] {
        let data = vec![7; piece];
        while client.store(big, at, &data, at + piece as u64).is_ok() {
            at += piece as u64;
        }
    }
    // Until there is no room for a name either.
    let full = (0..100_000).map(|n| client.make_dir(client.root, &format!("directory {n}")));
    let full = full.into_iter().find_map(Result::err);
    assert_eq!(full, Some(Abort::VDISKFULL));
    let status = client.remove(folder, "a").expect("removed");
    assert!(status.data_version > before.version);
    let after = Copy::fetch(&client, folder);
    assert_eq!(after.version, status.data_version);
    assert!(after.image.find(b"a").is_none() && after.image.find(b"b").is_some());
    // A client that knows only its own copy must not mistake it for this version.
    let mut own = before;
    own.image.remove(b"a");
    assert!(own.image.bytes() == after.image.bytes() || after.version != own.version + 1);
}

#[test]
fn pages_that_are_rebuilt_in_a_read_only_volume_have_a_version_of_their_own() {
    let device: std::sync::Arc<dyn block::BlockDevice> =
        std::sync::Arc::new(block_testing::Mem::new(64 << 20, 4096));
    common::format(&device);
    let before = {
        let cell = Cell::on(&device, common::config());
        let client = cell.client();
        for n in 0..50 {
            client
                .create(client.root, &format!("name {n}"))
                .expect("made");
        }
        client.remove(client.root, "name 3").expect("removed");
        Copy::fetch(&client, client.root)
    };
    let options = fs::Options {
        read_only: true,
        ..Default::default()
    };
    let fs = std::sync::Arc::new(fs::Fs::open(device, options).expect("open"));
    let cache = cache::Cache::new(cache::Config::new(common::CACHE_BYTES)).expect("a cache");
    let server = afs_server::Server::start(common::config(), std::sync::Arc::clone(&fs), cache);
    let cell = Cell {
        server: server.expect("a server"),
        fs,
    };
    let client = cell.client();
    let now = Copy::fetch(&client, client.root);
    assert!(now.image.bytes() != before.image.bytes());
    assert!(now.version > before.version);
    now.check(&client);
}
