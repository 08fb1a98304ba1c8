//! Limits of users and groups within a fileset.
//!
//! `common/owners.rs` compares the use of each owner with a model, `powercut.rs` checks it after
//! power failures.

mod common;

use block::BlockDevice;
use block_testing::{Mem, Random};
use common::client::Client;
use common::streams::{COPY, id, prepared, receive_all, refusal, stream};
use common::{assert_clean, format, open};
use fs::{
    Allocate, BLOCK_BYTES, FIRST_FILESET, FileType, Fs, Ino, Kind, New, Owner, OwnerLimits,
    OwnerUsage, Quota, ROOT, Rename, SetAttr, SetXattr,
};
use std::sync::Arc;

const ALICE: u32 = 1000;
const BOB: u32 = 2000;
const KIB: u64 = 1024;

fn new(kind: FileType, id: u32) -> New {
    New {
        uid: id,
        gid: id,
        ..New::of_root(kind, 0o755)
    }
}

struct Disk {
    device: Arc<dyn BlockDevice>,
    fs: Fs,
    client: Client,
    /// Directory of each user.
    homes: [Ino; 2],
}

impl Disk {
    fn new() -> Disk {
        let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(32 << 20, 512));
        format(&device);
        let fs = open(&device);
        let client = Client::of_first(&fs);
        let home = |name: &[u8], id| {
            let made = client
                .fileset
                .create(ROOT, name, &new(FileType::Directory, id));
            made.expect("a directory").ino
        };
        let homes = [home(b"alice", ALICE), home(b"bob", BOB)];
        Disk {
            device,
            fs,
            client,
            homes,
        }
    }

    fn limit(&self, owner: Owner, bytes: u64, files: u64) {
        let limits = OwnerLimits { bytes, files };
        let id = self.client.fileset.id();
        self.fs.set_owner_limits(id, owner, limits).expect("set");
    }

    fn usage(&self, owner: Owner) -> OwnerUsage {
        let all = self.fs.owner_usage(self.client.fileset.id());
        let found = all.expect("usage").into_iter().find(|u| u.owner == owner);
        found.unwrap_or(OwnerUsage {
            owner,
            bytes: 0,
            files: 0,
            limits: OwnerLimits::default(),
        })
    }

    fn file(&self, dir: Ino, name: &[u8], id: u32) -> fs::Result<Ino> {
        let made = self
            .client
            .fileset
            .create(dir, name, &new(FileType::File, id));
        Ok(made?.ino)
    }

    fn chown(&self, ino: Ino, uid: Option<u32>, gid: Option<u32>) -> fs::Result<()> {
        let set = SetAttr {
            uid,
            gid,
            ..SetAttr::default()
        };
        self.client.fileset.set_attr(ino, &set).map(drop)
    }

    fn reopen(self) -> Disk {
        let Disk {
            device, fs, homes, ..
        } = self;
        fs.close().expect("closed");
        let fs = open(&device);
        Disk {
            client: Client::of_first(&fs),
            device,
            fs,
            homes,
        }
    }
}

fn is_quota<T: std::fmt::Debug>(result: fs::Result<T>, whose: &str) {
    let error = result.expect_err("there is no room");
    assert_eq!(error.kind(), Kind::Quota, "{error}");
    assert_eq!(error.to_string(), format!("quota of {whose} exceeded"));
}

#[test]
fn a_write_is_refused_when_it_is_accepted_and_never_when_it_is_written_back() {
    let mut disk = Disk::new();
    let file = disk.file(disk.homes[0], b"file", ALICE).unwrap();
    let other = disk.file(disk.homes[1], b"file", BOB).unwrap();
    disk.limit(Owner::User(ALICE), 64 * KIB, 0);
    let before = disk.usage(Owner::User(ALICE)).bytes;
    let block = vec![7; BLOCK_BYTES as usize];
    let mut taken = 0;
    while disk.client.write(file, taken * BLOCK_BYTES, &block).is_ok() {
        taken += 1;
    }
    // The name of the file and the directory take less than a block.
    assert_eq!(taken, 15);
    let error = disk.client.write(file, taken * BLOCK_BYTES, &block);
    assert_eq!(error, Err(libc::EDQUOT));
    assert_eq!(
        disk.usage(Owner::User(ALICE)).bytes,
        before + taken * BLOCK_BYTES
    );
    assert_eq!(
        disk.usage(Owner::Group(ALICE)).bytes,
        before + taken * BLOCK_BYTES
    );
    // Blocks that exist, and other users, are not affected.
    disk.client.write(file, 0, &block).expect("overwritten");
    disk.client
        .write(other, 0, &vec![1; 1 << 20])
        .expect("written");
    disk.client.sync(&mut Random::new(1)).expect("written back");
    assert_eq!(
        disk.usage(Owner::User(ALICE)).bytes,
        before + taken * BLOCK_BYTES
    );
    // Written again, each block is replaced by a new one, and counts once.
    let id = disk.client.fileset.id();
    disk.fs.snapshot(id, "then").expect("a snapshot");
    disk.client.write(file, 0, &block).expect("overwritten");
    assert_eq!(
        disk.usage(Owner::User(ALICE)).bytes,
        before + taken * BLOCK_BYTES
    );
    disk.client.sync(&mut Random::new(2)).expect("written back");
    assert_clean(&disk.fs, "full");
    let mut disk = disk.reopen();
    assert_eq!(
        disk.usage(Owner::User(ALICE)).bytes,
        before + taken * BLOCK_BYTES
    );
    assert_eq!(disk.usage(Owner::User(ALICE)).limits.bytes, 64 * KIB);
    disk.client.truncate(file, 0).expect("cut");
    assert_eq!(disk.usage(Owner::User(ALICE)).bytes, before);
    disk.client
        .write(file, 0, &block)
        .expect("there is room again");
    disk.client.forget(file);
    assert_clean(&disk.fs, "room");
}

#[test]
fn every_way_to_use_more_ends_at_the_limit() {
    let disk = Disk::new();
    let [alice, bob] = disk.homes;
    let fileset = disk.client.fileset.clone();
    let file = disk.file(alice, b"file", ALICE).unwrap();
    let whose = format!("user {ALICE}");
    // The directory, the file, and one more.
    disk.limit(Owner::User(ALICE), 0, 3);
    fileset.link(file, alice, b"second").expect("a second name");
    is_quota(disk.file(alice, b"third", ALICE), &whose);
    is_quota(fileset.link(file, bob, b"third"), &whose);
    is_quota(
        fileset.symlink(alice, b"third", b"to", ALICE, ALICE),
        &whose,
    );
    is_quota(
        fileset.create_unnamed(alice, &new(FileType::File, ALICE)),
        &whose,
    );
    let bobs = disk.file(bob, b"file", BOB).unwrap();
    is_quota(disk.chown(bobs, Some(ALICE), None), &whose);
    assert_eq!(fileset.attr(bobs).unwrap().inode.uid, BOB);
    fileset.unlink(alice, b"second").expect("removed");
    disk.chown(bobs, Some(ALICE), None).expect("there is room");
    disk.chown(bobs, Some(BOB), None).expect("back");

    disk.limit(Owner::User(ALICE), 64 * KIB, 0);
    let room = 64 * KIB - disk.usage(Owner::User(ALICE)).bytes;
    // Attributes count with their length and 64 bytes each: 1 for the length of the name, the name.
    let value = vec![1; room as usize / 2 - 64 - 1 - 6];
    fileset
        .set_xattr(file, b"user.a", &value, SetXattr::Any)
        .expect("there is room");
    fileset
        .set_xattr(alice, b"user.a", &value, SetXattr::Any)
        .expect("there is room");
    let used = disk.usage(Owner::User(ALICE)).bytes;
    assert!(64 * KIB - used <= 1, "{used}");
    is_quota(
        fileset.set_xattr(file, b"user.b", b"", SetXattr::Any),
        &whose,
    );
    let longer = [&value[..], &[1; 2]].concat();
    is_quota(
        fileset.set_xattr(file, b"user.a", &longer, SetXattr::Any),
        &whose,
    );
    is_quota(
        fileset.rename((alice, b"file"), (alice, b"a long name"), Rename::Replace),
        &whose,
    );
    is_quota(fileset.allocate(file, 0..1, Allocate::KeepSize), &whose);
    is_quota(disk.file(alice, b"of bob", BOB), &whose);
    // A shorter name, and a name in the directory of another, take nothing.
    fileset
        .rename((alice, b"file"), (alice, b"f"), Rename::Replace)
        .expect("renamed");
    fileset
        .rename((alice, b"f"), (bob, b"a long name"), Rename::Replace)
        .expect("renamed");
    fileset.remove_xattr(alice, b"user.a").expect("removed");
    assert_clean(&disk.fs, "limits of a user");

    disk.limit(Owner::User(ALICE), 0, 0);
    disk.limit(Owner::Group(BOB), 8 * KIB, 0);
    let whose = format!("group {BOB}");
    is_quota(disk.chown(file, None, Some(BOB)), &whose);
    is_quota(fileset.allocate(bobs, 0..8 * KIB, Allocate::Grow), &whose);
    assert_eq!(disk.usage(Owner::Group(BOB)).files, 2);
    assert_clean(&disk.fs, "limits of a group");
}

#[test]
fn a_change_of_owner_moves_what_is_not_written_yet() {
    let mut disk = Disk::new();
    let file = disk.file(disk.homes[0], b"file", ALICE).unwrap();
    disk.limit(Owner::User(BOB), 256 * KIB, 0);
    let before = disk.usage(Owner::User(BOB)).bytes;
    disk.client.write(file, 0, &[1; 300 << 10]).expect("dirty");
    is_quota(disk.chown(file, Some(BOB), None), &format!("user {BOB}"));
    assert_eq!(disk.usage(Owner::User(BOB)).bytes, before);
    let alices = disk.usage(Owner::User(ALICE)).bytes;
    assert!(alices > 300 << 10, "{alices}");
    disk.client.truncate(file, 200 << 10).expect("cut");
    disk.chown(file, Some(BOB), None).expect("there is room");
    assert_eq!(disk.usage(Owner::User(BOB)).bytes, before + (200 << 10));
    let block = [1; BLOCK_BYTES as usize];
    let mut end = 200 << 10;
    while disk.client.write(file, end, &block).is_ok() {
        end += BLOCK_BYTES;
    }
    assert!(end <= 256 << 10, "{end}");
    disk.client.sync(&mut Random::new(1)).expect("written back");
    assert_eq!(disk.usage(Owner::User(BOB)).bytes, before + end);
    // Limits that begin while there are dirty pages know them, too.
    disk.limit(Owner::User(BOB), 0, 0);
    disk.client.write(file, end, &[1; 64 << 10]).expect("dirty");
    let unlimited = disk.usage(Owner::User(BOB)).bytes;
    disk.limit(Owner::User(ALICE), 1, 0);
    assert_eq!(disk.usage(Owner::User(BOB)).bytes, unlimited);
    disk.client.sync(&mut Random::new(2)).expect("written back");
    assert_eq!(disk.usage(Owner::User(BOB)).bytes, unlimited);
    assert_clean(&disk.fs, "moved");
}

#[test]
fn copies_snapshots_clones_and_rollbacks_have_defined_charges() {
    let mut disk = Disk::new();
    let home = disk.homes[0];
    let file = disk.file(home, b"file", ALICE).unwrap();
    let mut random = Random::new(1);
    disk.client.write(file, 0, &[1; 64 << 10]).expect("written");
    disk.client.sync(&mut random).expect("written back");
    disk.limit(Owner::User(ALICE), 160 * KIB, 0);
    let one = disk.usage(Owner::User(ALICE)).bytes;
    // A copy that shares the blocks counts in full.
    let copy = disk.file(home, b"copy", ALICE).unwrap();
    let fileset = disk.client.fileset.clone();
    let len = fileset.share(&fileset, (file, 0), (copy, 0), 64 << 10);
    assert_eq!(len.expect("shared"), 64 << 10);
    let two = disk.usage(Owner::User(ALICE)).bytes;
    assert!(two > one + (64 << 10));
    let third = disk.file(home, b"third", ALICE).unwrap();
    let shared = fileset.share(&fileset, (file, 0), (third, 0), 64 << 10);
    is_quota(shared, &format!("user {ALICE}"));
    fileset.unlink(home, b"third").expect("removed");
    // What only a snapshot keeps is charged to no user.
    let id = fileset.id();
    let then = disk.fs.snapshot(id, "then").expect("a snapshot").id();
    fileset.unlink(home, b"copy").expect("removed");
    assert_eq!(disk.usage(Owner::User(ALICE)).bytes, one);
    let past = disk.fs.owner_usage(then).expect("of a snapshot");
    let past = past.iter().find(|u| u.owner == Owner::User(ALICE));
    assert_eq!(past.expect("alice").bytes, two);
    // A clone has no limits until it gets some.
    let clone = disk.fs.clone_snapshot(then, "clone").expect("a clone");
    let clones = disk.fs.owner_usage(clone.id()).expect("of a clone");
    let alice = clones.iter().find(|u| u.owner == Owner::User(ALICE));
    assert_eq!(
        alice.map(|u| (u.bytes, u.limits)),
        Some((two, OwnerLimits::default()))
    );
    // A rollback counts what it restores, also beyond the limit.
    disk.limit(Owner::User(ALICE), one + 1, 0);
    disk.fs.rollback(then, None).expect("rolled back");
    assert_eq!(disk.usage(Owner::User(ALICE)).bytes, two);
    assert_eq!(disk.client.write(file, 64 << 10, &[1]), Err(libc::EDQUOT));
    assert_clean(&disk.fs, "copies");
    let error = disk
        .fs
        .set_owner_limits(then, Owner::User(1), OwnerLimits::default());
    assert_eq!(error.unwrap_err().kind(), Kind::Invalid);
    let disk = disk.reopen();
    assert_eq!(disk.usage(Owner::User(ALICE)).bytes, two);
    disk.limit(Owner::User(ALICE), 0, 0);
    assert_clean(&disk.fs, "without limits");
    assert_eq!(disk.usage(Owner::User(ALICE)).bytes, two);
}

#[test]
fn the_limit_of_the_fileset_is_one_of_its_own() {
    let mut disk = Disk::new();
    let file = disk.file(disk.homes[0], b"file", ALICE).unwrap();
    let id = disk.client.fileset.id();
    let quota = Quota {
        blocks: 4,
        inodes: 0,
    };
    disk.fs.set_quota(id, quota).expect("set");
    disk.limit(Owner::User(ALICE), 1 << 20, 0);
    let written = disk.client.write(file, 0, &[1; 5 * BLOCK_BYTES as usize]);
    assert_eq!(written, Err(libc::EDQUOT));
    // Another fileset does not know the limits.
    let other = disk.fs.create_fileset("other").expect("created");
    disk.limit(Owner::User(ALICE), 1, 0);
    let dir = other.create(ROOT, b"dir", &new(FileType::Directory, ALICE));
    dir.expect("there is no limit");
    assert_clean(&disk.fs, "two filesets");
    disk.fs.remove_fileset(other.id()).expect("removed");
    assert_eq!(disk.fs.superblock().features.read_compatible & 2, 2);
    let fileset = disk.fs.fileset_named(FIRST_FILESET).expect("there");
    assert_eq!(fileset.statfs().expect("space").blocks, 4);
}

#[test]
fn a_received_increment_is_charged_and_stops_at_a_limit() {
    let (source, disk) = prepared();
    let copy = open(&(disk as Arc<dyn BlockDevice>));
    let (of, part) = (id(&copy, COPY), stream(&source, "two", Some("one"), None));
    let root = Owner::User(0);
    let of_root = |id| {
        let all = copy.owner_usage(id).expect("usage");
        let root = all.into_iter().find(|usage| usage.owner == root);
        root.map(|usage| (usage.bytes, usage.files)).expect("root")
    };
    let (_, files) = of_root(of);
    let limit = |files| {
        let limits = OwnerLimits { bytes: 0, files };
        copy.set_owner_limits(of, root, limits).expect("set");
    };
    limit(files);
    let why = refusal(&copy, COPY, &part);
    assert!(why.contains("quota of user 0"), "{why}");
    assert_clean(&copy, &why);
    limit(2 * files);
    let two = receive_all(&copy, COPY, &part, "two");
    assert!(of_root(of).1 > files);
    assert_eq!(of_root(of), of_root(two));
    assert_clean(&copy, "received");
}

#[test]
fn limits_that_begin_and_end_while_hundreds_of_owners_change_files_leave_right_counts() {
    let disk = Disk::new();
    let (fs, homes) = (&disk.fs, disk.homes);
    let fileset = &disk.client.fileset;
    let id = fileset.id();
    let owner_of = |random: &mut Random| match random.below(300) as u32 {
        0 => u32::MAX,
        id => id,
    };
    let worker = |seed: u64| {
        let mut random = Random::new(seed);
        for n in 0..600 {
            let (one, other) = (owner_of(&mut random), owner_of(&mut random));
            let dir = homes[random.below(2) as usize];
            let name = format!("{seed} {}", random.below(30));
            let found = fileset.lookup(dir, name.as_bytes()).map(|attr| attr.ino);
            // A limit may refuse any of them, and must then have no effect.
            let done = match (found, random.below(5)) {
                (Err(_), _) => fileset
                    .create(dir, name.as_bytes(), &new(FileType::File, one))
                    .map(drop),
                (Ok(ino), 0) => {
                    let set = SetAttr {
                        uid: Some(one),
                        gid: Some(other),
                        ..SetAttr::default()
                    };
                    fileset.set_attr(ino, &set).map(drop)
                }
                (Ok(ino), 1) => fileset
                    .link(ino, dir, format!("{name}, {n}").as_bytes())
                    .map(drop),
                (Ok(ino), 2) => {
                    let to = homes[random.below(2) as usize];
                    let replaced = format!("{seed} {}", random.below(30));
                    let to = (to, replaced.as_bytes());
                    fileset
                        .rename((dir, name.as_bytes()), to, Rename::Replace)
                        .map(drop)?;
                    fileset
                        .allocate(ino, 0..random.below(9) * BLOCK_BYTES + 1, Allocate::Grow)
                        .map(drop)
                }
                (Ok(ino), 3) => fileset
                    .set_xattr(
                        ino,
                        b"user.a",
                        &vec![1; random.below(900) as usize],
                        SetXattr::Any,
                    )
                    .map(drop),
                (Ok(_), _) => fileset.unlink(dir, name.as_bytes()).map(drop),
            };
            match done {
                Err(error) if error.kind() != Kind::Quota => return Err(error),
                _ => {}
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|seed| {
                scope.spawn({
                    let worker = &worker;
                    move || worker(seed)
                })
            })
            .collect();
        let mut random = Random::new(9);
        while workers.iter().any(|worker| !worker.is_finished()) {
            let limit = |owner, bytes, files| {
                let limits = OwnerLimits { bytes, files };
                fs.set_owner_limits(id, owner, limits).expect("set");
            };
            let owner = Owner::User(owner_of(&mut random));
            limit(owner, random.below(30_000), random.below(6));
            limit(Owner::Group(u32::MAX), u64::MAX, u64::MAX);
            limit(Owner::Group(u32::MAX), 0, 0);
            limit(owner, 0, 0);
        }
        for worker in workers {
            worker
                .join()
                .expect("no panic")
                .expect("only quotas refuse");
        }
    });
    disk.limit(Owner::Group(7), u64::MAX, u64::MAX);
    assert_clean(&disk.fs, "hundreds of owners");
    let counted = disk.fs.owner_usage(id).expect("usage");
    let disk = disk.reopen();
    assert_eq!(disk.fs.owner_usage(id).expect("usage"), counted);
    assert!(counted.len() > 100, "{}", counted.len());
    assert_clean(&disk.fs, "opened again");
}
