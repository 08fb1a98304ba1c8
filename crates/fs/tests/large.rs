//! Large numbers of everything. `EVFS_ENTRIES` is the number of entries in one directory; the
//! example `many` of this crate measures the costs.

mod common;

use block::BlockDevice;
use block_testing::Mem;
use common::client::Client;
use common::{amount, assert_clean, format, open};
use fs::{FIRST_FILESET, FileType, New, Options, ROOT};
use std::sync::Arc;
use std::time::Instant;

const NEW: New = New::of_root(FileType::File, 0o644);

#[test]
fn a_directory_holds_very_many_entries_and_lists_each_once() {
    let entries = amount("EVFS_ENTRIES", 100_000) as u64;
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(4 << 30, 4096));
    format(&device);
    let fs = fs::Fs::open(common::keyed(&device), Options::default()).expect("it opens");
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    let name = |i: u64| format!("entry {i}").into_bytes();
    let start = Instant::now();
    for i in 0..entries {
        main.create(ROOT, &name(i), &NEW).expect("created");
    }
    println!("{entries} created after {:?}", start.elapsed());
    fs.commit().expect("committed");
    println!("committed after {:?}", start.elapsed());
    for i in (0..entries).step_by(97) {
        main.lookup(ROOT, &name(i)).expect("there");
    }
    assert!(main.lookup(ROOT, &name(entries)).is_err());
    let mut seen = vec![false; entries as usize];
    let (mut after, mut more) = (2, true);
    while more {
        more = false;
        let mut left = 1000;
        main.read_dir(ROOT, after, |entry| {
            let text = std::str::from_utf8(entry.name).expect("text");
            let number: usize = text["entry ".len()..].parse().expect("a number");
            assert!(
                !std::mem::replace(&mut seen[number], true),
                "{text} comes twice"
            );
            after = entry.cookie;
            left -= 1;
            more = left == 0;
            Ok(!more)
        })
        .expect("it lists");
    }
    assert!(seen.iter().all(|seen| *seen));
    println!("listed after {:?}", start.elapsed());
    drop(main);
    fs.close().expect("closed");
    let fs = fs::Fs::open(common::keyed(&device), Options::default()).expect("it opens");
    println!("opened again after {:?}", start.elapsed());
    assert_clean(&fs, "very many entries");
    println!("checked after {:?}", start.elapsed());
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    for i in 0..entries {
        main.unlink(ROOT, &name(i)).expect("removed");
    }
    assert_eq!(main.attr(ROOT).expect("there").inode.entries, 0);
    println!("removed after {:?}", start.elapsed());
    drop(main);
    fs.close().expect("closed");
}

#[test]
fn a_file_written_in_small_pieces_ends_in_few_extents() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(256 << 20, 4096));
    format(&device);
    let fs = open(&device);
    let mut client = Client::new(fs.fileset_named(FIRST_FILESET).expect("there"));
    let mut random = block_testing::Random::new(1);
    let files: Vec<u64> = (0..4)
        .map(|i| {
            client
                .fileset
                .create(ROOT, &[b'a' + i], &NEW)
                .expect("made")
                .ino
        })
        .collect();
    for round in 0..512u64 {
        for ino in &files {
            client
                .write(*ino, round * 8192, &[round as u8; 8192])
                .expect("written");
        }
        if round % 128 == 127 {
            client.write_all_out(&mut random).expect("written out");
        }
    }
    client.sync(&mut random).expect("synced");
    let report = fs.check().expect("checked");
    assert!(report.is_clean());
    assert_eq!(report.data_blocks, 4 * 1024);
    assert!(report.extents <= 4 * 8, "{} extents", report.extents);
}

#[test]
fn files_reach_sixteen_tebibytes_and_no_further() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(64 << 20, 4096));
    format(&device);
    let fs = open(&device);
    let mut client = Client::new(fs.fileset_named(FIRST_FILESET).expect("there"));
    let mut random = block_testing::Random::new(1);
    let ino = client.create(b"large");
    let end = fs::FILE_SIZE_MAX;
    client
        .write(ino, end - 10, b"0123456789")
        .expect("the last bytes");
    assert_eq!(client.write(ino, end - 1, b"01"), Err(libc::EFBIG));
    assert_eq!(client.truncate(ino, end + 1), Err(libc::EFBIG));
    client.sync(&mut random).expect("synced");
    let back = client.read(ino, end - 5000, 5000).expect("readable");
    assert_eq!(back[..4990], [0; 4990]);
    assert_eq!(back[4990..], *b"0123456789");
    let data = client
        .fileset
        .seek(ino, 0, fs::Seek::Data)
        .expect("some data");
    assert_eq!(data, end - 4096);
    assert_eq!(
        client
            .fileset
            .seek(ino, data, fs::Seek::Hole)
            .expect("the end"),
        end
    );
    client.truncate(ino, 1).expect("cut");
    assert_eq!(client.fileset.attr(ino).expect("there").inode.blocks, 0);
    assert_clean(&fs, "large");
}
