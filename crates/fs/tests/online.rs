//! A check and a defragmentation of a file system in use.
//!
//! Goal: a check finds nothing in a sound file system, whatever others do at the same time; and
//! neither their changes nor the room for them suffer. A defragmentation changes no byte that others
//! read or write.

mod common;

use block::BlockDevice;
use block_testing::{Mem, Random};
use common::client::{Client, Portion};
use common::{amount, assert_clean, format, format_with, open, options, seed};
use fs::{Compression, DataChecksums, FIRST_FILESET, Fs, Ino, Kind, Pace, ROOT, Recompress};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Ends the work of others, also if a test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn check(fs: &Fs, rate: Option<u64>) -> fs::Result<fs::Checked> {
    fs.check_online(&Arc::new(Pace::new(rate)), &mut |_, _| {})
}

/// Changes files at random until `over`, and compares them with a model then. Returns the number of
/// changes.
fn change(fs: &Fs, seed: u64, over: &AtomicBool) -> u64 {
    let mut random = Random::new(seed);
    let mut client = Client::of_first(fs);
    let main = client.fileset.id();
    let mut files: BTreeMap<Vec<u8>, (Ino, Vec<u8>)> = BTreeMap::new();
    let mut snapshots = 0;
    let mut steps = 0;
    while !over.load(Relaxed) {
        steps += 1;
        let name = format!("file {}", random.below(40)).into_bytes();
        match random.below(20) {
            0..=9 => {
                let (ino, content) = files
                    .entry(name.clone())
                    .or_insert_with(|| (client.create(&name), Vec::new()));
                let at = random.below(60_000) as usize;
                let mut data = vec![0; 1 + random.below(9000) as usize];
                match random.below(2) {
                    0 => random.fill(&mut data),
                    _ => data.fill(steps as u8),
                }
                client.write(*ino, at as u64, &data).expect("written");
                content.resize(content.len().max(at + data.len()), 0);
                content[at..at + data.len()].copy_from_slice(&data);
                if random.below(2) == 0 {
                    client
                        .write_out(*ino, &mut random, Portion::Some)
                        .expect("written out");
                }
            }
            10 | 11 => {
                if let Some((ino, content)) = files.get_mut(&name) {
                    let size = random.below(70_000);
                    client.truncate(*ino, size).expect("cut");
                    content.resize(size as usize, 0);
                }
            }
            12 | 13 => {
                if let Some((ino, _)) = files.remove(&name) {
                    client.forget(ino);
                    client.fileset.unlink(ROOT, &name).expect("removed");
                }
            }
            14 => fs.commit().expect("committed"),
            15 => client.sync(&mut random).expect("synced"),
            16 if snapshots < 4 => {
                let name = format!("snapshot {steps}");
                fs.snapshot(main, &name).expect("a snapshot");
                snapshots += 1;
            }
            17 if snapshots > 0 => {
                let all = fs.filesets();
                let (id, _) = all.iter().find(|(_, r)| r.origin != 0).expect("there");
                fs.remove_fileset(*id).expect("removed");
                snapshots -= 1;
            }
            _ => {}
        }
    }
    client.sync(&mut random).expect("synced");
    for (name, (ino, content)) in &files {
        let found = client.read(*ino, 0, u64::MAX / 2).expect("readable");
        assert!(found == *content, "{}", String::from_utf8_lossy(name));
    }
    steps
}

#[test]
fn a_sound_file_system_is_clean_whatever_others_do() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(128 << 20, 512));
    format(&device);
    let fs = Fs::open(
        common::keyed(&device),
        fs::Options {
            commit_interval: Duration::from_millis(3),
            ..options()
        },
    )
    .expect("it opens");
    let main = fs.fileset_named(FIRST_FILESET).expect("there").id();
    fs.set_compression(main, Some(Compression::Lz4))
        .expect("set");
    let over = AtomicBool::new(false);
    let checks = amount("EVFS_CHECKS", 40);
    let steps = std::thread::scope(|scope| {
        let writer = scope.spawn(|| change(&fs, seed(1), &over));
        let ends = Over(&over);
        let mut inodes = 0;
        let late = Instant::now() + Duration::from_secs(120);
        for done in 0.. {
            // The writer may need a while to begin.
            if done >= checks && (inodes > 20 || Instant::now() > late) {
                break;
            }
            let found = check(&fs, None).expect("it can be checked").report;
            assert!(found.is_clean(), "{:#?}", found.problems);
            inodes = inodes.max(found.inodes);
        }
        drop(ends);
        assert!(inodes > 20);
        writer.join().expect("no panic")
    });
    assert!(steps > 100, "{steps}");
    assert_clean(&fs, "afterwards");
    fs.close().expect("closed");
    assert_clean(&open(&device), "opened again");
}

#[test]
fn a_check_that_would_take_the_room_of_others_ends() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(12 << 20, 512));
    format(&device);
    let fs = open(&device);
    let mut client = Client::of_first(&fs);
    let ino = client.create(b"large");
    let mut random = Random::new(1);
    let most = fs.usage().available / 4 * 3 * 4096;
    client.write(ino, 0, &vec![7; most as usize]).expect("room");
    client.sync(&mut random).expect("synced");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let commits = scope.spawn(|| {
            let main = fs.fileset_named(FIRST_FILESET).expect("there");
            let mut commits = 0;
            while !over.load(Relaxed) {
                let set = fs::SetAttr {
                    uid: Some(commits),
                    ..fs::SetAttr::default()
                };
                main.set_attr(ino, &set).expect("changed");
                fs.commit().expect("there is room for a commit");
                commits += 1;
            }
            commits
        });
        let ends = Over(&over);
        // This would take minutes.
        let refused = check(&fs, Some(100)).expect_err("it ends");
        assert_eq!(refused.kind(), Kind::Busy);
        assert!(refused.to_string().contains("--rate"), "{refused}");
        drop(ends);
        assert!(commits.join().expect("no panic") > 1);
    });
    assert!(fs.read_only_because().is_none());
    assert!(check(&fs, None).expect("checked").report.is_clean());
    client.create(b"more");
    assert_clean(&fs, "afterwards");
}

#[test]
fn one_check_at_a_time_and_others_are_refused() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(32 << 20, 512));
    format(&device);
    let fs = open(&device);
    let mut refused = None;
    let first = fs.check_online(&Arc::new(Pace::new(None)), &mut |_, _| {
        let second = check(&fs, None).expect_err("another one is in progress");
        refused = Some(second.kind());
    });
    assert!(first.expect("checked").report.is_clean());
    assert_eq!(refused, Some(Kind::Busy));
}

#[test]
fn files_are_defragmented_while_others_change_them() {
    for checksums in [DataChecksums::Yes, DataChecksums::No] {
        let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(128 << 20, 512));
        format_with(&device, checksums);
        let fs = Fs::open(
            common::keyed(&device),
            fs::Options {
                commit_interval: Duration::from_millis(20),
                ..options()
            },
        )
        .expect("it opens");
        let main = fs.fileset_named(FIRST_FILESET).expect("there").id();
        let method = (checksums == DataChecksums::Yes).then_some(Compression::Lz4);
        fs.set_compression(main, method).expect("set");
        let over = AtomicBool::new(false);
        let rounds = amount("EVFS_CHECKS", 60);
        let (moved, recompressed) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| change(&fs, seed(2), &over));
            let ends = Over(&over);
            let methods = [Some(Compression::Zstd), None, Some(Compression::Lz4)];
            let (mut moved, mut recompressed, mut done_rounds) = (0, 0, 0);
            let late = Instant::now() + Duration::from_secs(120);
            // The writer may need a while to scatter files.
            let is_enough = |moved, recompressed| {
                moved >= 200 && (recompressed > 0 || method.is_none()) || Instant::now() >= late
            };
            while done_rounds < rounds || !is_enough(moved, recompressed) {
                done_rounds += 1;
                let recompress = [Recompress::No, Recompress::Yes][done_rounds % 2];
                if let (Some(_), Recompress::Yes) = (method, recompress) {
                    let next = methods[done_rounds / 2 % methods.len()];
                    fs.set_compression(main, next).expect("set");
                }
                let pace = Pace::new(None);
                let done = fs.defrag((main, ROOT), recompress, &pace, &mut |_, _| {});
                let done = done.expect("it defrags");
                moved += done.moved_blocks;
                recompressed += done.recompressed;
            }
            drop(ends);
            writer
                .join()
                .expect("the content of all files is as written");
            (moved, recompressed)
        });
        assert!(moved >= 200, "{checksums:?}");
        assert_eq!(recompressed > 0, method.is_some(), "{checksums:?}");
        assert_clean(&fs, "afterwards");
        fs.close().expect("closed");
        assert_clean(&open(&device), "opened again");
    }
}

#[test]
fn a_defragmentation_that_is_stopped_is_an_error() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(32 << 20, 512));
    format(&device);
    let fs = open(&device);
    let main = fs.fileset_named(FIRST_FILESET).expect("there").id();
    let pace = Pace::new(Some(1 << 20));
    pace.stop();
    let stopped = fs.defrag((main, ROOT), Recompress::No, &pace, &mut |_, _| {});
    assert_eq!(stopped.expect_err("it was stopped").kind(), Kind::Busy);
}
