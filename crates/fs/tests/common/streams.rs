//! Streams of snapshots, made and received as the program does, and trees compared.

use super::client::Client;
use super::{format, open};
use block::BlockDevice;
use block_testing::Mem;
use cache::{Cache, Config};
use fs::{
    Attr, FIRST_FILESET, FileType, Files, Fileset, Fs, InodeFlags, New, ROOT, Received, Rename,
    Seek, Sender, SetXattr, TreeId, WritePosition,
};
use send_proto::{Decoder, Event, Header, Position, Record, Segment, SegmentBuilder, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub const COPY: &str = "copy";

pub fn device(mib: u64) -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(mib << 20, 4096));
    format(&device);
    device
}

pub fn cache() -> Arc<Cache> {
    Cache::new(Config::new(8 << 20)).expect("a cache")
}

pub fn id(fs: &Fs, name: &str) -> TreeId {
    fs.fileset_named(name).expect("it exists").id()
}

pub fn make(files: &Arc<Files>, dir: u64, name: &str, kind: FileType) -> u64 {
    let new = New::of_root(kind, 0o644);
    let made = files.create(dir, name.as_bytes(), &new);
    made.expect("created").ino
}

pub fn write(files: &Arc<Files>, ino: u64, offset: u64, data: &[u8]) {
    let (file, mut lane) = (
        files.open(ino).expect("open"),
        files.lane().expect("a lane"),
    );
    let at = WritePosition::Offset(offset);
    lane.write(&file, at, data).expect("written");
}

/// Source with the snapshots `one` and `two`, and a device that has received `one`.
pub fn prepared() -> (Fs, Arc<Mem>) {
    let source = open(&device(64));
    let main = source.fileset_named(FIRST_FILESET).expect("it exists");
    let files = Files::new(&main, &cache()).expect("files");
    let dir = make(&files, ROOT, "dir", FileType::Directory);
    let kept = make(&files, ROOT, "kept", FileType::File);
    let gone = make(&files, dir, "gone", FileType::File);
    write(&files, kept, 0, &[1; 3 << 20]);
    write(&files, gone, 100_000, &[2; 1000]);
    files.link(kept, dir, b"link").expect("linked");
    files
        .symlink(ROOT, b"soft", b"dir/link", 3, 4)
        .expect("linked");
    let access: &[u8] = &[
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 7, 0, 5, 0, 0, 0, 4, 0, 4, 0, 255, 255,
        255, 255, 16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255, 255,
    ];
    let list = b"system.posix_acl_access";
    files
        .set_xattr(kept, list, access, SetXattr::Any)
        .expect("a list");
    let device = New {
        rdev: 0x0103,
        ..New::of_root(FileType::CharDevice, 0o600)
    };
    files.create(dir, b"null", &device).expect("created");
    files.sync().expect("synced");
    source.snapshot(main.id(), "one").expect("a snapshot");

    write(&files, kept, 1 << 20, &[3; 10_000]);
    files.unlink(dir, b"gone").expect("removed");
    let moved = make(&files, ROOT, "new", FileType::Directory);
    files
        .rename((ROOT, b"dir"), (moved, b"below"), Rename::Replace)
        .expect("renamed");
    let fixed = make(&files, moved, "fixed", FileType::File);
    write(&files, fixed, 0, b"fixed");
    files
        .set_flags(fixed, InodeFlags::IMMUTABLE)
        .expect("immutable");
    files.sync().expect("synced");
    source.snapshot(main.id(), "two").expect("a snapshot");
    files.close().expect("closed");

    let disk = Arc::new(Mem::new(64 << 20, 4096));
    let target: Arc<dyn BlockDevice> = Arc::clone(&disk) as _;
    format(&target);
    let copy = open(&target);
    let one = receive_all(&copy, COPY, &stream(&source, "one", None, None), "one");
    assert_same((&source, id(&source, "one")), (&copy, one), "one");
    copy.close().expect("closed");
    (source, disk)
}

/// Length of the header of a stream.
pub fn header_len(stream: &[u8]) -> usize {
    u32::from_le_bytes(stream[12..16].try_into().expect("four bytes")) as usize
}

/// Makes the stream of a snapshot, from a token on.
pub fn stream(fs: &Fs, snapshot: &str, since: Option<&str>, token: Option<&Token>) -> Vec<u8> {
    stream_of(fs, (snapshot, since), token, usize::MAX)
}

/// Same as [`stream`], with segments of about the given number of bytes.
pub fn stream_of(
    fs: &Fs,
    (snapshot, since): (&str, Option<&str>),
    token: Option<&Token>,
    segment_bytes: usize,
) -> Vec<u8> {
    let (cache, since) = (cache(), since.map(|name| id(fs, name)));
    let mut sender = fs
        .sender(id(fs, snapshot), since, &cache)
        .expect("a sender");
    sender.set_segment_bytes(segment_bytes);
    let mut header = sender.header().clone();
    let mut at = Sender::start(&header);
    if let Some(token) = token {
        assert_eq!(token.stream, header.stream_id());
        (at, header.resume) = (token.resume, Some(token.resume));
    }
    let mut bytes = header.encode();
    while !at.position.is_end() {
        let (segment, after) = sender.segment(&at).expect("a segment");
        bytes.extend(segment);
        at = after;
    }
    bytes
}

/// Outcome of the bytes of a stream.
#[derive(Debug)]
pub enum Outcome {
    Complete(TreeId),
    Unfinished,
    Refused(String),
}

/// Passes bytes of a stream to a fileset, as the program does.
pub fn receive(fs: &Fs, fileset: &str, bytes: &[u8], name: &str) -> Outcome {
    let cache = cache();
    let mut decoder = Decoder::default();
    let mut receiver = None;
    let mut reception = None;
    let refused = |error: &dyn std::fmt::Display| Outcome::Refused(error.to_string());
    let mut outcome = Outcome::Unfinished;
    'stream: for piece in bytes.chunks(10_000) {
        decoder.feed(piece);
        loop {
            let event = match decoder.next_event() {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => {
                    outcome = refused(&error);
                    break 'stream;
                }
            };
            match event {
                Event::Header(header) => match fs.begin_reception(fileset, &header) {
                    Ok(begun) => {
                        receiver = Some(fs.receiver(begun.fileset, &cache).expect("a receiver"));
                        reception = Some(begun);
                    }
                    Err(error) => {
                        outcome = refused(&error);
                        break 'stream;
                    }
                },
                Event::Segment { number, bytes, .. } => {
                    let (Some(receiver), Some(now)) = (&mut receiver, &mut reception) else {
                        panic!("a segment before the header");
                    };
                    if number < now.token.resume.segments {
                        continue;
                    }
                    match receiver.segment(fs, &bytes, name) {
                        Ok(Received::Part(after)) => *now = after,
                        Ok(Received::Complete(id)) => outcome = Outcome::Complete(id),
                        Err(error) => {
                            outcome = refused(&error);
                            break 'stream;
                        }
                    }
                }
            }
        }
    }
    if let Some(receiver) = receiver {
        receiver.close().expect("closed");
    }
    outcome
}

pub fn receive_all(fs: &Fs, fileset: &str, bytes: &[u8], name: &str) -> TreeId {
    match receive(fs, fileset, bytes, name) {
        Outcome::Complete(id) => id,
        other => panic!("{other:?}"),
    }
}

/// Error of a stream that must be refused.
pub fn refusal(fs: &Fs, fileset: &str, bytes: &[u8]) -> String {
    match receive(fs, fileset, bytes, "x") {
        Outcome::Refused(why) => why,
        other => panic!("{other:?}"),
    }
}

/// Stream with the given records, in one segment of a sender that knows how to make digests.
pub fn forged(header: &Header, records: &[Record<'_>]) -> Vec<u8> {
    let mut segment = SegmentBuilder::new(0, header.stream_id());
    records
        .iter()
        .for_each(|record| assert!(segment.push(record)));
    let mut bytes = header.encode();
    bytes.extend(segment.finish(Position::END).0);
    bytes
}

/// Counts the names that a stream adds.
pub fn linked(stream: &[u8]) -> usize {
    let (mut decoder, mut count) = (Decoder::default(), 0);
    decoder.feed(stream);
    while let Some(event) = decoder.next_event().expect("a sound stream") {
        if let Event::Segment { bytes, .. } = event {
            let segment = Segment::parse(&bytes).expect("a segment");
            let records = segment.records().map(|record| record.expect("a record"));
            count += records
                .filter(|record| matches!(record, Record::Link { .. }))
                .count();
        }
    }
    count
}

/// Properties of an inode that both sides must have in common. Its space is not one of them: each
/// side has its own setting of compression.
fn properties(attr: &Attr) -> String {
    let inode = &attr.inode;
    format!(
        "{} {:o} links {} owner {}:{} rdev {} flags {:?} size {} entries {} times {:?}",
        attr.ino,
        inode.mode(),
        inode.links,
        inode.uid,
        inode.gid,
        inode.rdev,
        inode.flags,
        inode.size,
        inode.entries,
        (inode.accessed, inode.modified, inode.changed, inode.created),
    )
}

fn sum(bytes: &[u8]) -> u64 {
    let add = |sum: u64, byte: &u8| sum.wrapping_mul(0x0100_0000_01b3) ^ u64::from(*byte);
    bytes.iter().fold(7, add)
}

/// All of a tree as text, by path.
pub fn whole(fs: &Fs, tree: TreeId) -> BTreeMap<String, String> {
    let fileset = fs.fileset(tree).expect("it exists");
    let mut client = Client::new(fileset.clone());
    let mut all = BTreeMap::new();
    let mut below = vec![(ROOT, String::from("/"))];
    while let Some((ino, path)) = below.pop() {
        let attr = fileset.attr(ino).expect("an inode");
        let mut text = properties(&attr);
        let mut names = BTreeSet::new();
        fileset
            .xattrs(ino, |name| {
                names.insert(name.to_vec());
            })
            .expect("attributes");
        for name in names {
            let value = fileset.xattr(ino, &name).expect("a value");
            text += &format!(
                " {}={}:{:x}",
                String::from_utf8_lossy(&name),
                value.len(),
                sum(&value)
            );
        }
        match attr.inode.kind {
            FileType::Directory => {
                assert!(attr.inode.parent == ROOT || path.len() > 1);
                fileset
                    .read_dir(ino, 2, |entry| {
                        let name = String::from_utf8_lossy(entry.name);
                        below.push((entry.ino, format!("{path}{name}/")));
                        Ok(true)
                    })
                    .expect("listed");
            }
            FileType::Symlink => text += &format!(" -> {:?}", fileset.read_link(ino)),
            FileType::File => {
                let data = client.read(ino, 0, u64::MAX / 2).expect("readable");
                text += &format!(" content {} {:x} data", data.len(), sum(&data));
                let mut at = 0;
                while let Ok(from) = fileset.seek(ino, at, Seek::Data) {
                    at = fileset.seek(ino, from, Seek::Hole).expect("an end");
                    text += &format!(" {from}..{at}");
                }
            }
            _ => {}
        }
        all.insert(path, text);
    }
    all
}

/// Adds up the blocks of all files that have names.
fn blocks_of(fileset: &Fileset) -> u64 {
    let (mut seen, mut below, mut blocks) = (BTreeSet::new(), vec![ROOT], 0);
    while let Some(ino) = below.pop() {
        if !seen.insert(ino) {
            continue;
        }
        let inode = fileset.attr(ino).expect("an inode").inode;
        blocks += inode.blocks;
        if inode.kind == FileType::Directory {
            let listed = fileset.read_dir(ino, 2, |entry| {
                below.push(entry.ino);
                Ok(true)
            });
            listed.expect("listed");
        }
    }
    blocks
}

pub fn assert_same(one: (&Fs, TreeId), two: (&Fs, TreeId), context: &str) {
    let sides = [one, two];
    let (one, two) = (whole(one.0, one.1), whole(two.0, two.1));
    for (path, text) in &one {
        assert_eq!(Some(text), two.get(path), "{context}: {path}");
    }
    assert_eq!(one.len(), two.len(), "{context}");
    if !sides
        .iter()
        .any(|(fs, _)| fs.superblock().has_compression())
    {
        let blocks = sides.map(|(fs, tree)| blocks_of(&fs.fileset(tree).expect("it exists")));
        assert_eq!(blocks[0], blocks[1], "{context}: blocks");
        // A snapshot also has the files without a name that were in use, and these are not sent.
        let [used, received] = sides.map(|(fs, tree)| {
            let record = fs.fileset(tree).expect("it exists").record();
            record.expect("a record").used_blocks
        });
        assert_eq!(received, blocks[1], "{context}: blocks of the copy");
        assert!(used >= blocks[0], "{context}: blocks of the origin");
    }
}
