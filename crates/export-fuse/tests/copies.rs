//! Copies of files through a mount, which share blocks.
//!
//! Goal: `cp` and copy_file_range(2) write no data to the disk, and the copy is what a program
//! would have read at that moment, also from pages that only the kernel had; it changes alone from
//! then on. Method: copies by `cp` and by the system call, with the bytes that reach the device
//! counted.

mod common;

use block::{BlockDevice, Stats};
use block_testing::{Mem, PowerCut, Random, Tear};
use cache::{Cache, Config};
use common::{c, check, configured, device, device_of, in_another_process, store, wait_until};
use export_fuse::{Mount, MountConfig};
use fs::{FIRST_FILESET, Files, Fs, InodeFlags, Options, Quota, ROOT, Snapshots};
use std::fs::{self as sys, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

fn open(path: &Path, flags: i32) -> File {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .custom_flags(flags);
    options.open(path).expect("open")
}

/// Calls copy_file_range(2) once.
fn copy_once(from: (&File, u64), to: (&File, u64), len: u64) -> Result<u64, i32> {
    let (mut at, mut to_at) = (from.1 as i64, to.1 as i64);
    let (one, two) = (from.0.as_raw_fd(), to.0.as_raw_fd());
    // SAFETY: open descriptors, and two offsets that live through the call.
    let done = unsafe { libc::copy_file_range(one, &mut at, two, &mut to_at, len as usize, 0) };
    check(done as i64).map(|bytes| bytes as u64)
}

fn copy(from: (&File, u64), to: (&File, u64), len: u64) {
    let mut done = 0;
    while done < len {
        let part = copy_once((from.0, from.1 + done), (to.0, to.1 + done), len - done);
        let part = part.expect("copied");
        assert!(part > 0, "{done} of {len} bytes");
        done += part;
    }
}

fn cp(from: &Path, to: &Path) {
    let status = Command::new("cp").arg(from).arg(to).status();
    assert!(status.expect("cp runs").success());
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    Random::new(seed).fill(&mut data);
    data
}

#[test]
fn cp_of_a_large_file_writes_no_data_and_the_copy_changes_alone() {
    const LEN: usize = 96 << 20;
    for exclusive in [false, true] {
        let (device, stats) = Stats::new(device_of(512));
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        let moved = || {
            let stats = stats.snapshot();
            (stats.read.bytes, stats.write.bytes)
        };
        let set = |config: &mut MountConfig| config.exclusive = exclusive;
        configured(&device, set, |dir, files| {
            let (one, two) = (dir.join("one"), dir.join("two"));
            // The end is within a block.
            let content = bytes(1, LEN + 100);
            sys::write(&one, &content).expect("written");
            File::open(&one).expect("open").sync_all().expect("synced");
            let before = moved();
            cp(&one, &two);
            let copied = open(&two, 0);
            copied.sync_all().expect("synced");
            let after = moved();
            assert!(after.0 - before.0 < 1 << 20, "{before:?} {after:?}");
            assert!(after.1 - before.1 < 1 << 20, "{before:?} {after:?}");
            assert!(sys::read(&two).expect("readable") == content);
            assert_eq!(
                copied.metadata().expect("there").len(),
                content.len() as u64
            );
            let blocks = |path: &Path| path.metadata().expect("there").blocks();
            assert_eq!(blocks(&two), blocks(&one));

            // Each side gets blocks of its own where it is written.
            let (mut first, mut second) = (content.clone(), content);
            for (path, expected, at) in [(&one, &mut first, 5000), (&two, &mut second, 80_000)] {
                let file = open(path, 0);
                file.write_all_at(&[7; 9000], at as u64).expect("written");
                expected[at..at + 9000].fill(7);
                file.sync_all().expect("synced");
            }
            assert!(sys::read(&one).expect("readable") == first);
            assert!(sys::read(&two).expect("readable") == second);
            // As another client sees them, too.
            let ino = files.lookup(ROOT, b"two").expect("there").ino;
            let (file, mut lane) = (
                files.open(ino).expect("open"),
                files.lane().expect("a lane"),
            );
            let mut read = vec![0; second.len()];
            lane.read(&file, 0, &mut read).expect("read");
            assert!(read == second);
        });
    }
}

#[test]
fn data_that_only_the_kernel_has_is_copied_and_cached_pages_of_the_target_are_not_kept() {
    for exclusive in [false, true] {
        let set = |config: &mut MountConfig| config.exclusive = exclusive;
        configured(&device(), set, |dir, _| {
            let mut expected = bytes(2, 1 << 20);
            let (one, two) = (open(&dir.join("one"), 0), open(&dir.join("two"), 0));
            one.write_all_at(&expected, 0).expect("written");
            two.write_all_at(&[9; 1 << 20], 0).expect("written");
            let (source, target) = (c(&dir.join("one")), c(&dir.join("two")));
            let mut read = vec![0; 1 << 20];
            two.read_exact_at(&mut read, 0).expect("cached");
            // Stores that no write(2) has announced: one to the source, one to the target.
            for at in [8192, 12_288] {
                in_another_process(|| {
                    store(&source, at, 5, |from, _| {
                        store(&target, at, 6, |to, _| {
                            let (mut at, mut to_at, mut left) = (0, 0, 1 << 20);
                            while left > 0 {
                                // SAFETY: open descriptors, and offsets of this function.
                                let done = unsafe {
                                    libc::copy_file_range(from, &mut at, to, &mut to_at, left, 0)
                                };
                                if done <= 0 {
                                    return false;
                                }
                                left -= done as usize;
                            }
                            true
                        })
                    })
                });
                expected[at as usize] = 5;
                two.read_exact_at(&mut read, 0).expect("readable");
                assert!(read == expected, "exclusive {exclusive}, {at}");
            }
            // Ranges around whole blocks, and one that fits no block.
            for (from, to, len) in [(100, 4196, 30_000), (5000, 123, 70_000), (0, 1 << 20, 5)] {
                copy((&one, from), (&two, to), len);
                let (from, to, len) = (from as usize, to as usize, len as usize);
                let part = sys::read(dir.join("one")).expect("readable")[from..from + len].to_vec();
                expected.resize(expected.len().max(to + len), 0);
                expected[to..to + len].copy_from_slice(&part);
                assert!(sys::read(dir.join("two")).expect("readable") == expected);
                let len = two.metadata().expect("there").len();
                assert_eq!(len, expected.len() as u64);
            }
        });
    }
}

#[test]
fn holes_stay_holes_and_times_change() {
    common::mounted(&device(), |dir| {
        let (one, two) = (open(&dir.join("one"), 0), open(&dir.join("two"), 0));
        one.write_all_at(&[1; 4096], 4 << 20).expect("written");
        one.set_len(8 << 20).expect("longer");
        two.write_all_at(&[2; 1 << 20], 0).expect("written");
        let set = sys::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
        two.set_times(set).expect("set");
        copy((&one, 0), (&two, 0), 8 << 20);
        let found = two.metadata().expect("there");
        assert_eq!((found.len(), found.blocks() / 8), (8 << 20, 1));
        assert!(found.mtime() > 0 && found.ctime() > 0);
        let mut expected = vec![0; 8 << 20];
        expected[4 << 20..(4 << 20) + 4096].fill(1);
        assert!(sys::read(dir.join("two")).expect("readable") == expected);
        // The kernel keeps a range from being copied over itself.
        assert_eq!(copy_once((&two, 0), (&two, 4096), 8192), Err(libc::EINVAL));
        copy((&two, 4 << 20), (&two, 0), 4096);
        expected[..4096].fill(1);
        assert!(sys::read(dir.join("two")).expect("readable") == expected);
    });
}

#[test]
fn a_copy_ends_at_the_limits_of_file_and_process() {
    common::shared(&device(), |dir, files| {
        let (one, two) = (open(&dir.join("one"), 0), open(&dir.join("two"), 0));
        one.write_all_at(&[1; 40_960], 0).expect("written");
        let fileset = files.fileset();
        let ino = two.metadata().expect("there").ino();
        fileset.set_flags(ino, InodeFlags::IMMUTABLE).expect("set");
        assert_eq!(copy_once((&one, 0), (&two, 0), 40_960), Err(libc::EPERM));
        fileset.set_flags(ino, InodeFlags::default()).expect("set");
        let (from, to) = (c(&dir.join("one")), c(&dir.join("two")));
        in_another_process(|| {
            // SAFETY: system calls of a single-threaded process with valid arguments.
            unsafe {
                let limit = libc::rlimit {
                    rlim_cur: 8192,
                    rlim_max: 8192,
                };
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
                let (from, to) = (
                    libc::open(from.as_ptr(), libc::O_RDONLY),
                    libc::open(to.as_ptr(), libc::O_WRONLY),
                );
                let (mut at, mut to_at) = (0, 0);
                let part = libc::copy_file_range(from, &mut at, to, &mut to_at, 40_960, 0);
                let none = libc::copy_file_range(from, &mut at, to, &mut to_at, 40_960, 0);
                (part, none) == (8192, -1) && *libc::__errno_location() == libc::EFBIG
            }
        });
        assert_eq!(two.metadata().expect("there").len(), 8192);
        assert_eq!(copy_once((&one, 40_960), (&two, 0), 4096), Ok(0));
    });
}

#[test]
fn a_copy_to_a_full_fileset_is_refused() {
    let device = device();
    let fs = Fs::open(Arc::clone(&device), Options::default()).expect("it opens");
    let id = fs.fileset_named(FIRST_FILESET).expect("there").id();
    let quota = Quota {
        blocks: 30,
        inodes: 0,
    };
    fs.set_quota(id, quota).expect("a limit");
    fs.close().expect("closed");
    common::mounted(&device, |dir| {
        let (one, two) = (open(&dir.join("one"), 0), open(&dir.join("two"), 0));
        one.write_all_at(&[1; 20 * 4096], 0).expect("written");
        let refused = copy_once((&one, 0), (&two, 0), 20 * 4096);
        assert_eq!(refused, Err(libc::EDQUOT));
        assert_eq!(two.metadata().expect("there").len(), 0);
        copy((&one, 0), (&two, 0), 5 * 4096);
    });
}

#[test]
fn a_client_that_has_the_target_cached_sees_the_copy_of_another() {
    common::shared(&device(), |dir, files| {
        let (one, two) = (open(&dir.join("one"), 0), open(&dir.join("two"), 0));
        one.write_all_at(&[1; 40_960], 0).expect("written");
        two.write_all_at(&[2; 8192], 0).expect("written");
        let mut read = [0; 8192];
        two.read_exact_at(&mut read, 0).expect("cached");
        let file = |name: &[u8]| {
            let ino = files.lookup(ROOT, name).expect("there").ino;
            files.open(ino).expect("open")
        };
        let (from, to) = (file(b"one"), file(b"two"));
        let mut lane = files.lane().expect("a lane");
        let copied = lane.copy((&from, 0), (&to, 0), 40_960).expect("copied");
        assert_eq!(copied, 40_960);
        wait_until("the program sees the copy", || {
            sys::read(dir.join("two")).expect("readable") == [1; 40_960]
        });
    });
}

#[test]
fn a_file_is_restored_from_a_snapshot_without_its_data_being_copied() {
    let (device, stats) = Stats::new(device());
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let fs = Fs::open(Arc::clone(&device), Options::default()).expect("it opens");
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    let cache = Cache::new(Config::new(8 << 20)).expect("a cache");
    let files = Files::new(&main, &cache).expect("files");
    let snapshots = Snapshots::new(&main, &cache);
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path();
    let mut config = MountConfig::new(dir.to_owned());
    config.snapshots = Some(Arc::clone(&snapshots));
    let mount = Mount::start(config, Arc::clone(&files)).expect("it mounts");

    let content = bytes(3, (32 << 20) + 100);
    sys::write(dir.join("file"), &content).expect("written");
    files.sync().expect("written back");
    fs.snapshot(main.id(), "then").expect("a snapshot");
    sys::write(dir.join("file"), b"overwritten").expect("written");
    files.sync().expect("written back");
    let before = stats.snapshot().write.bytes;
    let old = dir.join(".snapshots/then/file");
    cp(&old, &dir.join("file"));
    files.sync().expect("written back");
    assert!(stats.snapshot().write.bytes - before < 1 << 20);
    assert!(sys::read(dir.join("file")).expect("readable") == content);
    // A copy that fits no block is made by the kernel, and so are later ones.
    let (from, to) = (File::open(&old).expect("open"), open(&dir.join("part"), 0));
    copy((&from, 1), (&to, 0), 50_000);
    assert!(sys::read(dir.join("part")).expect("readable") == content[1..50_001]);
    let before = stats.snapshot().write.bytes;
    cp(&dir.join("file"), &dir.join("again"));
    files.sync().expect("written back");
    assert!(stats.snapshot().write.bytes - before < 1 << 20);

    // As documented, a copy with blocks of its own.
    let before = stats.snapshot().write.bytes;
    let own = ["--reflink=never", "file", "own"];
    let status = Command::new("cp").args(own).current_dir(dir).status();
    assert!(status.expect("cp runs").success());
    files.sync().expect("written back");
    assert!(stats.snapshot().write.bytes - before > 32 << 20);

    drop((from, to));
    common::unmount(mount);
    snapshots.close();
    files.close().expect("everything is written");
    let then = fs.fileset_named("then").expect("there").id();
    drop((files, snapshots, main));
    fs.remove_fileset(then).expect("removed");
    let report = fs.check().expect("it can be checked");
    assert!(report.is_clean(), "{:#?}", report.problems);
    assert!(report.shared_blocks >= 8192);
    fs.close().expect("it closes");
}

#[test]
fn a_copy_to_a_synchronous_file_is_durable_when_the_call_returns() {
    let mem = Mem::new(64 << 20, 4096);
    let cut = Arc::new(PowerCut::new(&mem));
    let device: Arc<dyn BlockDevice> = Arc::clone(&cut) as _;
    Fs::format(Arc::clone(&device), "").expect("formatted");
    let content = bytes(4, 100_000);
    common::mounted(&device, |dir| {
        let one = open(&dir.join("one"), 0);
        one.write_all_at(&content, 0).expect("written");
        let two = open(&dir.join("two"), libc::O_DSYNC);
        copy((&one, 0), (&two, 0), content.len() as u64);
        let image = cut.crash(cut.events(), Tear::Drop);
        let fs = Fs::open(Arc::new(image), Options::default()).expect("it opens");
        let main = fs.fileset_named(FIRST_FILESET).expect("there");
        let cache = Cache::new(Config::new(1 << 20)).expect("a cache");
        let files = Files::new(&main, &cache).expect("files");
        let ino = files.lookup(ROOT, b"two").expect("durable").ino;
        let file = files.open(ino).expect("open");
        let mut read = vec![0; content.len() + 1];
        let len = files.lane().expect("a lane").read(&file, 0, &mut read);
        assert!(read[..len.expect("readable")] == content);
        drop(file);
        files.close().expect("closed");
    });
}
