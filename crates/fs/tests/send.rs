//! Sending snapshots and receiving them.
//!
//! Goal: the received snapshot equals the one that was sent, in names, attributes, times, content,
//! holes and links, whatever interrupted the stream; until it is complete, the fileset is as before;
//! and bytes that are no stream of a sender change nothing else. Method: random operations on a
//! fileset, snapshots of it now and then, each sent as an increment that is interrupted at random
//! bytes, with a crash of the receiver or without one.
//!
//! `EVFS_HISTORIES` is the number of histories.

mod common;

use block::BlockDevice;
use block_testing::{Mem, PowerCut, Random, Tear};
use common::pair::Pair;
use common::streams::{
    COPY, Outcome, assert_same, cache, device, forged, header_len, id, linked, make, prepared,
    receive, receive_all, refusal, stream, stream_of, whole, write,
};
use common::{amount, assert_clean, format, open, seed};
use fs::{
    FIRST_FILESET, FileType, Files, Kind, New, Quota, ROOT, SetAttr, SetTime, SetXattr, Time,
};
use send_proto::{Decoder, Event, Header, Position, Record, Token};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Changes what a [`Pair`] does not: flags, owners, times, device nodes and access lists.
fn decorate(pair: &mut Pair) {
    let inos: Vec<u64> = pair.inodes.values().copied().collect();
    let fileset = pair.fileset().clone();
    for _ in 0..3 {
        let ino = inos[pair.random.below(inos.len() as u64) as usize];
        let time = Time {
            seconds: pair.random.next_u64() as i64 >> 20,
            nanos: pair.random.below(1_000_000_000) as u32,
        };
        let set = SetAttr {
            gid: Some(pair.random.below(5) as u32),
            accessed: Some(SetTime::To(time)),
            modified: Some(SetTime::To(time)),
            ..SetAttr::default()
        };
        fileset.set_attr(ino, &set).expect("set");
    }
}

/// A history: random changes, each snapshot sent and interrupted.
fn history(seed: u64) {
    let mut random = Random::new(seed);
    let source = device(32);
    let mut pair = Pair::new(open(&source), seed);
    let target = Arc::new(Mem::new(64 << 20, 4096));
    let mut target: Arc<dyn BlockDevice> = target;
    format(&target);
    let mut copy = open(&target);
    let mut sent: Vec<(String, BTreeMap<String, String>)> = Vec::new();
    for round in 0..4 {
        for _ in 0..100 + random.below(200) {
            pair.step();
        }
        decorate(&mut pair);
        pair.client
            .write_all_out(&mut pair.random)
            .expect("written");
        let name = format!("s{round}");
        let main = pair.fileset().id();
        let taken = pair.fs.snapshot(main, &name).expect("a snapshot").id();
        let since = sent.last().map(|(name, _)| name.clone());
        let context = format!("EVFS_SEED={seed}, round {round}");
        let mut token: Option<Token> = None;
        let segment_bytes = 1 << (10 + random.below(11));
        for attempt in 0.. {
            let part = (&name[..], since.as_deref());
            let bytes = stream_of(&pair.fs, part, token.as_ref(), segment_bytes);
            let is_last = attempt > 0 && random.below(3) == 0;
            let end = if is_last {
                bytes.len()
            } else {
                random.below(bytes.len() as u64) as usize
            };
            match receive(&copy, COPY, &bytes[..end], &name) {
                Outcome::Complete(received) => {
                    assert_same((&pair.fs, taken), (&copy, received), &context);
                    break;
                }
                Outcome::Unfinished => assert!(!is_last, "{context}"),
                Outcome::Refused(why) => panic!("{context}: {why}"),
            }
            for (name, before) in &sent {
                assert_eq!(whole(&copy, id(&copy, name)), *before, "{context}");
            }
            if random.below(2) == 0 {
                copy.sync().expect("synced");
                assert_clean(&copy, &context);
            }
            match random.below(3) {
                0 => {}
                1 => {
                    copy.close().expect("closed");
                    copy = open(&target);
                }
                _ => {
                    // As after a kill: the disk as it is, and nothing else.
                    let image = Arc::new(Mem::new(64 << 20, 4096));
                    copy_device(&target, &(Arc::clone(&image) as Arc<dyn BlockDevice>));
                    drop(copy);
                    target = image;
                    copy = open(&target);
                }
            }
            let known = copy.filesets().into_iter().any(|(_, r)| r.name == COPY);
            let reception = known.then(|| copy.reception(id(&copy, COPY)).expect("known"));
            let reception = reception.flatten();
            let is_begun = reception.filter(|one| one.token.resume.segments > 0);
            // A stream from its start is as good as the rest.
            token = is_begun
                .map(|one| one.token)
                .filter(|_| random.below(2) == 0);
        }
        copy.sync().expect("synced");
        assert_clean(&copy, &context);
        let head = whole(&copy, id(&copy, COPY));
        assert_eq!(head, whole(&pair.fs, taken), "{context}");
        sent.push((name, head));
        if sent.len() > 2 && random.below(2) == 0 {
            let (old, _) = sent.remove(0);
            copy.remove_fileset(id(&copy, &old)).expect("removed");
            pair.fs.remove_fileset(id(&pair.fs, &old)).expect("removed");
        }
    }
    pair.release_all();
}

fn copy_device(from: &Arc<dyn BlockDevice>, to: &Arc<dyn BlockDevice>) {
    let mut source = block::Blocking::open(&**from).expect("open");
    let mut target = block::Blocking::open(&**to).expect("open");
    let mut buffer = vec![0; 1 << 20];
    for at in (0..from.info().size).step_by(buffer.len()) {
        source.read_at(at, &mut buffer).expect("read");
        target.write_at(at, &buffer).expect("written");
    }
}

#[test]
fn increments_that_are_interrupted_at_random_bytes_arrive_whole() {
    let histories = amount("EVFS_HISTORIES", 5);
    for seed in (seed(1)..).take(histories) {
        history(seed);
    }
}

#[test]
fn an_increment_has_the_changes_only_and_leads_to_the_same_tree() {
    let (source, disk) = prepared();
    let copy = open(&(disk as Arc<dyn BlockDevice>));
    let full = stream(&source, "two", None, None);
    let part = stream(&source, "two", Some("one"), None);
    assert!(
        full.len() > 3 << 20 && part.len() < 40_000,
        "{} {}",
        full.len(),
        part.len()
    );
    let (two, since) = (id(&source, "two"), Some(id(&source, "one")));
    let mut sender = source.sender(two, since, &cache()).expect("a sender");
    let estimate = sender.estimate(Position::START).expect("an estimate");
    assert!(
        (10_000..20_000).contains(&estimate.data_bytes),
        "{estimate:?}"
    );
    let received = receive_all(&copy, COPY, &part, "two");
    assert_same((&source, two), (&copy, received), "two");
    assert_same(
        (&source, two),
        (&copy, id(&copy, COPY)),
        "the fileset itself",
    );
    // In full, to another fileset.
    let received = receive_all(&copy, "second", &full, "two-full");
    assert_same((&source, two), (&copy, received), "two in full");
    assert_clean(&copy, "after");
    // It has the identity of the sender's snapshot, so it can be sent on, and back.
    let identity = source.identity(two).expect("an identity");
    assert_eq!(
        copy.identity(id(&copy, "two")).expect("an identity"),
        identity
    );
}

#[test]
fn names_among_many_files_arrive_wherever_a_batch_of_them_ends() {
    const FILES: usize = 1500;
    let source = open(&device(64));
    let main = source.fileset_named(FIRST_FILESET).expect("it exists");
    let files = Files::new(&main, &cache()).expect("files");
    let mut dirs = vec![ROOT];
    // The batches of names end at each kind of item: inodes, targets, attributes, names, extents.
    for number in 0..FILES {
        let dir = dirs[number % dirs.len()];
        let name = format!("{number}");
        match number % 5 {
            0 => dirs.push(make(&files, dir, &name, FileType::Directory)),
            1 => {
                let file = make(&files, dir, &name, FileType::File);
                for block in 0..(number as u64 % 7) {
                    write(&files, file, block << 13, b"data");
                }
            }
            2 => {
                let name = name.as_bytes();
                files.symlink(dir, name, b"target", 0, 0).expect("linked");
            }
            _ => {
                let file = make(&files, dir, &name, FileType::File);
                for xattr in 0..number % 4 {
                    let name = format!("user.{xattr}");
                    files
                        .set_xattr(file, name.as_bytes(), b"value", SetXattr::Any)
                        .expect("set");
                }
            }
        }
    }
    files.sync().expect("synced");
    source.snapshot(main.id(), "many").expect("a snapshot");
    for (number, dir) in dirs.iter().enumerate() {
        make(&files, *dir, &format!("more {number}"), FileType::File);
    }
    files.sync().expect("synced");
    source.snapshot(main.id(), "more").expect("a snapshot");
    files.close().expect("closed");

    let copy = open(&device(64));
    for (name, since, names) in [("many", None, FILES), ("more", Some("many"), dirs.len())] {
        // Some segments end between two names.
        let bytes = stream_of(&source, (name, since), None, 3000);
        assert_eq!(linked(&bytes), names, "{name}");
        let received = receive_all(&copy, COPY, &bytes, name);
        assert_same((&source, id(&source, name)), (&copy, received), name);
    }
    assert_clean(&copy, "many names");
}

#[test]
fn a_restored_snapshot_is_the_base_of_increments_to_and_from_its_origin() {
    let (source, disk) = prepared();
    let copy = open(&(disk as Arc<dyn BlockDevice>));
    receive_all(
        &copy,
        COPY,
        &stream(&source, "two", Some("one"), None),
        "two",
    );
    let third = open(&device(64));
    receive_all(&third, "main2", &stream(&copy, "two", None, None), "two");
    let fileset = third.fileset_named("main2").expect("it exists");
    let files = Files::new(&fileset, &cache()).expect("files");
    make(&files, ROOT, "later", FileType::File);
    files.close().expect("closed");
    third.snapshot(fileset.id(), "three").expect("a snapshot");
    let back = stream(&third, "three", Some("two"), None);
    let received = receive_all(&source, FIRST_FILESET, &back, "three");
    assert_same((&third, id(&third, "three")), (&source, received), "three");
}

#[test]
fn a_stream_that_does_not_fit_the_fileset_is_refused_with_the_reason() {
    let (source, disk) = prepared();
    let copy = open(&(disk as Arc<dyn BlockDevice>));
    let (full, part) = (
        stream(&source, "one", None, None),
        stream(&source, "two", Some("one"), None),
    );
    assert!(refusal(&copy, "other", &part).contains("receive a full one first"));
    assert!(refusal(&copy, COPY, &full).contains("already"));
    assert!(refusal(&copy, FIRST_FILESET, &full).contains("creates a fileset"));
    assert!(refusal(&copy, FIRST_FILESET, &part).contains("does not have the snapshot"));
    assert!(refusal(&copy, "one", &part).contains("is a snapshot"));
    // A name is no identity.
    let other = open(&device(16));
    other.create_fileset(COPY).expect("created");
    other.snapshot(id(&other, COPY), "one").expect("a snapshot");
    assert!(refusal(&other, COPY, &part).contains("does not have the snapshot"));
    // Changes since the snapshot; an access time is none.
    let fileset = copy.fileset_named(COPY).expect("it exists");
    let files = Files::new(&fileset, &cache()).expect("files");
    let kept = files.lookup(ROOT, b"kept").expect("it exists").ino;
    files.note_read(kept).expect("noted");
    assert!(refusal(&copy, COPY, &part).contains("in use"));
    files.close().expect("closed");
    drop(files);
    let header = Header::decode(&part[..header_len(&part)]).expect("a header");
    copy.check_reception(COPY, &header, "new name")
        .expect("it fits");
    let set = SetAttr {
        permissions: Some(0o600),
        ..SetAttr::default()
    };
    fileset.set_attr(kept, &set).expect("changed");
    assert!(refusal(&copy, COPY, &part).contains("has changed since `one`"));
    copy.rollback(id(&copy, "one"), None).expect("rolled back");
    receive_all(&copy, COPY, &part, "two");
}

#[test]
fn an_incomplete_fileset_is_not_used_and_can_be_abandoned() {
    let (source, disk) = prepared();
    let device: Arc<dyn BlockDevice> = disk;
    let copy = open(&device);
    let before = whole(&copy, id(&copy, COPY));
    let part = stream_of(&source, ("two", Some("one")), None, 1);
    let full = stream_of(&source, ("two", None), None, 1);
    for (fileset, bytes) in [(COPY, &part), ("second", &full)] {
        let outcome = receive(&copy, fileset, &bytes[..bytes.len() - 10], "two");
        assert!(matches!(outcome, Outcome::Unfinished), "{outcome:?}");
        let of = copy.fileset_named(fileset).expect("it exists");
        let busy = |error: fs::Error| assert_eq!(error.kind(), Kind::Busy, "{error}");
        busy(Files::new(&of, &cache()).map(drop).unwrap_err());
        busy(copy.snapshot(of.id(), "no").map(drop).unwrap_err());
        let reception = copy
            .reception(of.id())
            .expect("known")
            .expect("it receives");
        if let Some(base) = reception.base {
            busy(copy.rollback(base, None).unwrap_err());
            busy(copy.remove_fileset(base).unwrap_err());
        }
        assert!(refusal(&copy, fileset, &stream(&source, "one", None, None)).contains("another"));
        assert_clean(&copy, "incomplete");
    }
    copy.close().expect("closed");
    let copy = open(&device);
    for fileset in [COPY, "second"] {
        copy.abandon_reception(id(&copy, fileset))
            .expect("abandoned");
    }
    assert!(copy.fileset_named("second").is_err());
    assert_eq!(whole(&copy, id(&copy, COPY)), before);
    assert_clean(&copy, "abandoned");
    let received = receive_all(&copy, COPY, &part, "two");
    assert_same((&source, id(&source, "two")), (&copy, received), "again");
    assert_clean(&copy, "again");
}

#[test]
fn an_abandoned_stream_uses_up_no_inode_numbers() {
    let (source, disk) = prepared();
    let part = stream(&source, "two", Some("one"), None);
    // All but the last number.
    let header = Header {
        next_ino: (1 << 55) - 2,
        ..Header::decode(&part[..header_len(&part)]).expect("a header")
    };
    let hostile = forged(&header, &[Record::ClearXattrs { ino: 1 << 20 }]);
    let cut = Arc::new(PowerCut::new(&disk));
    let device: Arc<dyn BlockDevice> = Arc::clone(&cut) as _;
    let copy = open(&device);
    let of = copy.fileset_named(COPY).expect("it exists");
    let before = of.record().expect("a record").next_ino;
    assert!(refusal(&copy, COPY, &hostile).contains("does not exist"));
    assert_eq!(of.record().expect("a record").next_ino, header.next_ino);
    let first = cut.events();
    copy.abandon_reception(of.id()).expect("abandoned");
    let last = cut.events();
    copy.close().expect("closed");
    for point in first..=last {
        let image: Arc<dyn BlockDevice> = Arc::new(cut.crash(point, Tear::Drop));
        let copy = open(&image);
        let of = copy.fileset_named(COPY).expect("it exists");
        if copy.reception(of.id()).expect("known").is_some() {
            copy.abandon_reception(of.id()).expect("abandoned");
        }
        let record = of.record().expect("a record");
        assert_eq!(
            (record.next_ino, record.receiving),
            (before, None),
            "{point}"
        );
        for name in ["first", "second"] {
            let new = New::of_root(FileType::File, 0o644);
            of.create(ROOT, name.as_bytes(), &new).expect("created");
        }
        assert_clean(&copy, &format!("{point}"));
    }
}

#[test]
fn after_a_power_cut_the_fileset_is_as_before_or_complete() {
    let (source, disk) = prepared();
    let parts = stream_of(&source, ("two", Some("one")), None, 3000);
    let cut = Arc::new(PowerCut::new(&disk));
    let device: Arc<dyn BlockDevice> = Arc::clone(&cut) as _;
    let copy = open(&device);
    let before = whole(&copy, id(&copy, COPY));
    let first = cut.events();
    let two = receive_all(&copy, COPY, &parts, "two");
    let after = whole(&copy, two);
    let last = cut.events();
    copy.close().expect("closed");
    let (mut as_before, mut continued, mut as_after) = (0, 0, 0);
    for point in first..=last {
        let tear = [Tear::Drop, Tear::Keep, Tear::Random(point as u64)][point % 3];
        let image: Arc<dyn BlockDevice> = Arc::new(cut.crash(point, tear));
        let copy = open(&image);
        let context = format!("{point} {tear:?}");
        assert_clean(&copy, &context);
        assert_eq!(whole(&copy, id(&copy, "one")), before, "{context}");
        let of = id(&copy, COPY);
        match copy.reception(of).expect("known") {
            None if copy.fileset_named("two").is_ok() => {
                as_after += 1;
                assert_eq!(whole(&copy, of), after, "{context}");
                continue;
            }
            None => {
                as_before += 1;
                assert_eq!(whole(&copy, of), before, "{context}");
            }
            Some(_) => continued += 1,
        }
        let two = receive_all(&copy, COPY, &parts, "two");
        assert_eq!(whole(&copy, two), after, "{context}");
        assert_clean(&copy, &context);
    }
    assert!(
        as_before > 0 && continued > 0 && as_after > 0,
        "{as_before}, {continued}, {as_after}"
    );
}

#[test]
fn damaged_streams_never_become_visible() {
    let (source, disk) = prepared();
    let good = stream_of(&source, ("two", Some("one")), None, 5000);
    let mut random = Random::new(seed(9));
    for round in 0..amount("EVFS_DAMAGES", 40) {
        let image: Arc<dyn BlockDevice> = Arc::new(disk.fork());
        let copy = open(&image);
        let before = whole(&copy, id(&copy, COPY));
        let mut bytes = good.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(3) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes.truncate(at.max(1)),
                _ => {
                    let to = (at + random.below(3000) as usize).min(bytes.len());
                    drop(bytes.drain(at..to));
                    bytes.push(0);
                }
            }
        }
        let outcome = receive(&copy, COPY, &bytes, "two");
        let context = format!("round {round}: {outcome:?}");
        if let Outcome::Complete(two) = outcome {
            // Codes, which are those of a key, and names were hit.
            assert_same((&source, id(&source, "two")), (&copy, two), &context);
            continue;
        }
        assert!(copy.fileset_named("two").is_err(), "{context}");
        assert_eq!(whole(&copy, id(&copy, "one")), before, "{context}");
        let of = id(&copy, COPY);
        if copy.reception(of).expect("known").is_some() {
            copy.abandon_reception(of).expect("abandoned");
        }
        assert_eq!(whole(&copy, of), before, "{context}");
        assert_clean(&copy, &context);
    }
}

#[test]
fn a_stream_is_bounded_by_the_quota_of_the_fileset() {
    let (source, disk) = prepared();
    let copy = open(&(disk as Arc<dyn BlockDevice>));
    let (of, part) = (id(&copy, COPY), stream(&source, "two", Some("one"), None));
    let (blocks, inodes) = (
        Quota {
            blocks: 1,
            inodes: 0,
        },
        Quota {
            blocks: 0,
            inodes: 1,
        },
    );
    for quota in [blocks, inodes] {
        copy.set_quota(of, quota).expect("a quota");
        let why = refusal(&copy, COPY, &part);
        assert!(why.contains("quota"), "{quota:?}: {why}");
        assert!(copy.fileset_named("x").is_err());
        assert_clean(&copy, &why);
    }
    copy.set_quota(of, Quota::default()).expect("no quota");
    let two = receive_all(&copy, COPY, &part, "two");
    assert_same((&source, id(&source, "two")), (&copy, two), "two");
}

#[test]
fn one_receiver_at_a_time_applies_segments_and_the_base_stays() {
    let (source, disk) = prepared();
    let copy = open(&(disk as Arc<dyn BlockDevice>));
    let (of, base) = (id(&copy, COPY), id(&copy, "one"));
    let part = stream_of(&source, ("two", Some("one")), None, 3000);
    let mut decoder = Decoder::default();
    decoder.feed(&part);
    let Ok(Some(Event::Header(header))) = decoder.next_event() else {
        panic!("no header");
    };
    let Ok(Some(Event::Segment { bytes, .. })) = decoder.next_event() else {
        panic!("no segment");
    };
    copy.begin_reception(COPY, &header).expect("begun");
    // A second client begins, too, as after an interruption.
    copy.begin_reception(COPY, &header).expect("continued");
    let cache = cache();
    let refused = |error: fs::Error, kind, why| {
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    };
    let mut first = copy.receiver(of, &cache).expect("a receiver");
    let second = copy.receiver(of, &cache).map(drop).unwrap_err();
    refused(second, Kind::Busy, "another process is applying");
    let in_use = copy.check_abandonment(of).map(drop).unwrap_err();
    refused(in_use, Kind::Busy, "in use");
    refused(
        copy.abandon_reception(of).unwrap_err(),
        Kind::Busy,
        "in use",
    );
    first.segment(&copy, &bytes, "two").expect("applied");
    first.close().expect("closed");
    let mut second = copy.receiver(of, &cache).expect("a receiver");
    let again = second.segment(&copy, &bytes, "two").map(drop).unwrap_err();
    refused(again, Kind::Invalid, "a segment is missing");
    second.close().expect("closed");
    let removed = copy.remove_fileset(base).unwrap_err();
    refused(removed, Kind::Busy, "receiving changes since it");
    let two = receive_all(&copy, COPY, &part, "two");
    assert_same((&source, id(&source, "two")), (&copy, two), "two");
    copy.remove_fileset(base).expect("removed");
    assert_clean(&copy, "after");
}

#[test]
fn forged_records_are_refused_and_reach_nothing_else() {
    const DIR: u32 = libc::S_IFDIR;
    const FILE: u32 = libc::S_IFREG;
    let inode = |ino, kind, target| Record::Inode {
        ino,
        kind,
        rdev: 0,
        size: 0,
        target,
    };
    let (file, dir) = (inode(4, FILE, b""), inode(5, DIR, b""));
    let link = |dir, ino, name| Record::Link { dir, ino, name };
    let long = [b'x'; 256];
    let data = Record::Data {
        ino: 4,
        offset: u64::MAX,
        bytes: b"data",
    };
    let hole = |offset, length| Record::Hole {
        ino: 4,
        offset,
        length,
    };
    let xattr = |name, value| Record::Xattr {
        ino: 4,
        name,
        value,
    };
    let flags = Record::Attributes {
        ino: 4,
        set: send_proto::Attributes {
            flags: 1,
            ..Default::default()
        },
    };
    let bad: Vec<Vec<Record<'_>>> = vec![
        vec![file, link(1, 4, b"..")],
        vec![file, link(1, 4, b".")],
        vec![file, link(1, 4, b"a/b")],
        vec![file, link(1, 4, b"a\0b")],
        vec![file, link(1, 4, b"")],
        vec![file, link(1, 4, &long)],
        vec![file, link(3, 4, b"a")],
        vec![file, link(4, 4, b"a")],
        vec![file, link(1, 6, b"a")],
        vec![dir, link(1, 1, b"a")],
        vec![dir, link(5, 5, b"a")],
        vec![dir, inode(7, DIR, b""), link(5, 7, b"a"), link(7, 5, b"b")],
        vec![dir, file, link(5, 4, b"a")],
        vec![dir, link(1, 5, b"a"), link(1, 5, b"b")],
        vec![
            file,
            inode(6, FILE, b""),
            link(1, 4, b"a"),
            link(1, 6, b"a"),
        ],
        vec![inode(5, FILE, b"")],
        vec![inode(4, DIR, b"")],
        vec![inode(4, 0, b"")],
        vec![inode(4, FILE | 0o644, b"")],
        vec![inode(4, libc::S_IFLNK, b"")],
        vec![inode(4, FILE, b"target")],
        vec![inode(1 << 50, FILE, b"")],
        vec![inode(0, FILE, b"")],
        vec![inode(u64::MAX, DIR, b"")],
        vec![file, inode(4, libc::S_IFIFO, b"")],
        vec![file, data],
        vec![file, hole(1, 4096)],
        vec![file, hole(4096, u64::MAX)],
        vec![file, hole(0, 0)],
        vec![file, xattr(b"", b"")],
        vec![file, xattr(b"system.posix_acl_access", b"list")],
        vec![file, xattr(b"system.posix_acl_default", b"list")],
        vec![xattr(b"user.a", b"")],
        vec![file, flags],
        vec![Record::ClearXattrs { ino: 8 }],
    ];
    let header = Header {
        snapshot: send_proto::Id([7; 16]),
        next_ino: 100,
        ..Header::default()
    };
    let fs = open(&device(32));
    let main = fs.fileset_named(FIRST_FILESET).expect("it exists");
    let files = Files::new(&main, &cache()).expect("files");
    make(&files, ROOT, "mine", FileType::File);
    files.close().expect("closed");
    let before = whole(&fs, main.id());
    for records in bad {
        let why = refusal(&fs, COPY, &forged(&header, &records));
        assert!(why.contains("invalid stream"), "{records:?}: {why}");
        assert_clean(&fs, &why);
        fs.abandon_reception(id(&fs, COPY)).expect("abandoned");
        assert_eq!(whole(&fs, main.id()), before, "{records:?}");
    }
    let good = [file, dir, link(1, 5, b"dir"), link(5, 4, b"file")];
    // A feature of a later version that may be ignored.
    let header = Header {
        optional: 1 << 40,
        ..header
    };
    receive_all(&fs, COPY, &forged(&header, &good), "x");
    assert_clean(&fs, "good");
}

#[test]
fn forged_changes_of_a_snapshot_are_refused_and_undone() {
    const DIR: u32 = libc::S_IFDIR;
    let (source, disk) = prepared();
    let copy = open(&(disk as Arc<dyn BlockDevice>));
    let (of, one) = (
        copy.fileset_named(COPY).expect("it exists"),
        id(&copy, "one"),
    );
    let ino = |dir, name: &[u8]| of.lookup(dir, name).expect("it exists").ino;
    let (dir, kept) = (ino(ROOT, b"dir"), ino(ROOT, b"kept"));
    let (gone, soft) = (ino(dir, b"gone"), ino(ROOT, b"soft"));
    let next = of.record().expect("a record").next_ino;
    let new_dir = next << 1 | 1;
    let inode = |ino, kind, size| Record::Inode {
        ino,
        kind,
        rdev: 0,
        size,
        target: b"",
    };
    let link = |dir, ino, name| Record::Link { dir, ino, name };
    let unlink = |dir, name| Record::Unlink { dir, name };
    let data = |ino, offset| Record::Data {
        ino,
        offset,
        bytes: b"data",
    };
    let bad: Vec<Vec<Record<'_>>> = vec![
        vec![link(ROOT, dir, b"second")],
        vec![link(dir, ROOT, b"root")],
        vec![link(ROOT, gone, b"kept")],
        vec![link(kept, gone, b"below a file")],
        vec![unlink(ROOT, b"dir")],
        vec![
            inode(new_dir, DIR, 0),
            unlink(ROOT, b"dir"),
            link(dir, new_dir, b"down"),
            link(new_dir, dir, b"up"),
        ],
        vec![inode(kept, libc::S_IFIFO, 0)],
        vec![inode(soft, libc::S_IFLNK, 0)],
        vec![inode(new_dir + 2, DIR, 0)],
        vec![inode(kept, libc::S_IFREG, 100), data(kept, 100)],
        vec![data(dir, 0)],
        vec![Record::ClearXattrs { ino: next << 1 }],
    ];
    let header = Header {
        snapshot: send_proto::Id([7; 16]),
        base: source.identity(id(&source, "one")).expect("an identity"),
        next_ino: next + 1,
        ..Header::default()
    };
    let before = whole(&copy, one);
    for mut records in bad {
        // A change that is sound comes before.
        records.insert(0, unlink(dir, b"null"));
        let why = refusal(&copy, COPY, &forged(&header, &records));
        assert!(why.contains("invalid stream"), "{records:?}: {why}");
        assert_clean(&copy, &why);
        assert_eq!(whole(&copy, one), before, "{records:?}");
        copy.abandon_reception(of.id()).expect("abandoned");
        assert_eq!(whole(&copy, of.id()), before, "{records:?}");
        assert_clean(&copy, &why);
    }
    let good = [unlink(dir, b"null"), link(ROOT, gone, b"found")];
    receive_all(&copy, COPY, &forged(&header, &good), "x");
    assert_clean(&copy, "good");
}

#[test]
fn random_records_leave_a_clean_file_system() {
    let header = Header {
        snapshot: send_proto::Id([7; 16]),
        next_ino: 8,
        ..Header::default()
    };
    let mut random = Random::new(seed(4));
    let fs = open(&device(32));
    let mut complete = 0;
    for round in 0..amount("EVFS_FORGERIES", 40) {
        let names: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
        let mut records = Vec::new();
        for _ in 0..random.below(30) {
            let ino = 1 + random.below(14);
            let name = names[random.below(4) as usize];
            let kind = [libc::S_IFREG, libc::S_IFDIR][(ino & 1) as usize];
            records.push(match random.below(9) {
                0..=2 => Record::Inode {
                    ino,
                    kind,
                    rdev: 0,
                    size: if ino & 1 == 0 { 1 << 16 } else { 0 },
                    target: b"",
                },
                3..=5 => Record::Link {
                    dir: 1 + 2 * random.below(7),
                    ino,
                    name,
                },
                6 => Record::Unlink {
                    dir: 1 + 2 * random.below(7),
                    name,
                },
                7 => Record::Data {
                    ino,
                    offset: random.below(60_000),
                    bytes: b"some data",
                },
                _ => Record::Unwritten {
                    ino,
                    offset: random.below(20) << 12,
                    length: 1 << 13,
                },
            });
        }
        // So that many of them pass, an error ends only the rest.
        let mut good = Vec::new();
        for record in &records {
            good.push(*record);
            if let Outcome::Refused(why) = receive(&fs, COPY, &forged(&header, &good), "x") {
                assert_clean(&fs, &format!("EVFS_SEED, round {round}: {why}"));
                if !why.contains("not below the root") && !why.contains("no name") {
                    good.pop();
                }
            } else {
                complete += 1;
                assert_clean(&fs, &format!("round {round}"));
                fs.remove_fileset(id(&fs, "x")).expect("removed");
                fs.remove_fileset(id(&fs, COPY)).expect("removed");
                continue;
            }
            fs.abandon_reception(id(&fs, COPY)).expect("abandoned");
        }
    }
    assert!(complete > 0);
}
