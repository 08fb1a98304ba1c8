//! A mount is not the only client of its files: programs see the changes of other clients, and all
//! clients see direct I/O.

mod common;

use block_testing::Random;
use common::{c, check, configured, device, mounted, shared, unmount, wait_until};
use export_fuse::{Mount, MountConfig};
use fs::{Allocate, FileType, Files, Ino, New, ROOT, Rename, SetAttr, WritePosition};
use fuse_mount::fuse_proto::abi;
use std::fs::{self as sys, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const NEW: New = New::of_root(FileType::File, 0o644);

/// A file mapped into memory.
struct Mapped {
    at: *mut u8,
    len: usize,
}

impl Mapped {
    fn new(file: &File, len: usize) -> Mapped {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let fd = file.as_raw_fd();
        // SAFETY: creates a new mapping of a file.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED, "no mapping");
        let at = at.cast();
        Mapped { at, len }
    }

    fn load(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: the byte is within the mapping, and the file is at least as long.
        unsafe { self.at.add(at).read_volatile() }
    }

    fn copy(&self, range: std::ops::Range<usize>) -> Vec<u8> {
        range.map(|at| self.load(at)).collect()
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: the byte is within the mapping, and the file is at least as long.
            unsafe { self.at.add(at + i).write_volatile(*byte) };
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is not used again.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

fn open(path: &Path, flags: i32) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags);
    options.open(path).expect("open")
}

fn ino_of(files: &Files, name: &str) -> Ino {
    files.lookup(ROOT, name.as_bytes()).expect("there").ino
}

#[test]
fn content_that_another_client_changes_is_seen_by_those_who_have_the_file_open_and_mapped() {
    shared(&device(), |dir, files| {
        let path = dir.join("file");
        sys::write(&path, vec![1; 100_000]).expect("written");
        let program = open(&path, 0);
        let mapped = Mapped::new(&program, 100_000);
        assert_eq!(mapped.copy(0..100_000), vec![1; 100_000]);

        let other = files.open(ino_of(files, "file")).expect("open");
        let mut lane = files.lane().expect("a lane");
        lane.write(&other, WritePosition::Offset(50_000), &[2; 10])
            .expect("written");
        wait_until("the mapping shows the change", || mapped.load(50_000) == 2);
        let mut read = [0; 12];
        program.read_exact_at(&mut read, 49_999).expect("readable");
        assert_eq!(read, [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]);

        lane.allocate(&other, 10..5000, Allocate::Punch)
            .expect("punched");
        wait_until("the mapping shows the hole", || mapped.load(10) == 0);
        assert_eq!(mapped.copy(4_998..5_002), [0, 0, 1, 1]);

        lane.write(&other, WritePosition::End, &[3; 1000])
            .expect("written");
        wait_until("the size has changed", || {
            program.metadata().expect("there").len() == 101_000
        });
        program
            .read_exact_at(&mut read, 100_990 - 2)
            .expect("readable");
        assert_eq!(read, [3; 12]);

        let set = SetAttr {
            size: Some(60_000),
            ..SetAttr::default()
        };
        lane.set_attr(other.ino(), &set).expect("cut");
        wait_until("the size has changed", || {
            program.metadata().expect("there").len() == 60_000
        });
        assert_eq!(program.read_at(&mut read, 59_995).expect("readable"), 5);
    });
}

#[test]
fn names_and_attributes_that_another_client_changes_are_seen() {
    shared(&device(), |dir, files| {
        let exists = |name: &str| dir.join(name).symlink_metadata().is_ok();
        assert!(!exists("new"));
        let ino = files.create(ROOT, b"new", &NEW).expect("made").ino;
        wait_until("what was missing is there", || exists("new"));
        let held = open(&dir.join("new"), 0);

        let set = SetAttr {
            permissions: Some(0o600),
            ..SetAttr::default()
        };
        files
            .lane()
            .expect("a lane")
            .set_attr(ino, &set)
            .expect("set");
        wait_until("the mode has changed", || {
            held.metadata().expect("there").mode() & 0o777 == 0o600
        });
        files.link(ino, ROOT, b"second").expect("linked");
        wait_until("there are two links", || {
            held.metadata().expect("there").nlink() == 2
        });
        files
            .rename((ROOT, b"new"), (ROOT, b"renamed"), Rename::Replace)
            .expect("renamed");
        wait_until("the old name has gone", || !exists("new"));
        wait_until("the new name is there", || exists("renamed"));
        files.unlink(ROOT, b"second").expect("removed");
        wait_until("the name has gone", || !exists("second"));
        files.unlink(ROOT, b"renamed").expect("removed");
        wait_until("the file has no name", || {
            held.metadata().expect("there").nlink() == 0
        });
        let names = sys::read_dir(dir).expect("listed");
        assert_eq!(names.count(), 0);
    });
}

/// Lists the names in a directory by a stream that stays open.
struct Stream(*mut libc::DIR);

impl Stream {
    fn open(dir: &Path) -> Stream {
        // SAFETY: the path ends with zero.
        let stream = unsafe { libc::opendir(c(dir).as_ptr()) };
        assert!(!stream.is_null(), "no listing");
        Stream(stream)
    }

    /// Counts the entries from the beginning on, except for the directory and its parent.
    fn count(&mut self) -> usize {
        // SAFETY: the stream is open, and no entry is used after the next one was read.
        unsafe {
            libc::rewinddir(self.0);
            let next = || libc::readdir(self.0);
            let entries = std::iter::from_fn(|| Some(next()).filter(|entry| !entry.is_null()));
            let names = entries.map(|entry| (*entry).d_name[0] as u8);
            names.filter(|first| *first != b'.').count()
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is open, and is not used again.
        unsafe { libc::closedir(self.0) };
    }
}

#[test]
fn a_listing_follows_all_clients_whether_the_kernel_caches_it_or_not() {
    for without in [0, abi::FUSE_NO_OPENDIR_SUPPORT] {
        let set = |config: &mut MountConfig| config.without = without;
        configured(&device(), set, |dir, files| {
            let sub = dir.join("sub");
            sys::create_dir(&sub).expect("made");
            let ino = ino_of(files, "sub");
            for i in 0..300 {
                File::create(sub.join(format!("{i}"))).expect("made");
            }
            let count = || sys::read_dir(&sub).expect("listed").count();
            let mut stream = Stream::open(&sub);
            for _ in 0..3 {
                assert_eq!((count(), stream.count()), (300, 300));
            }
            // This mount's own changes show immediately.
            sys::remove_file(sub.join("0")).expect("removed");
            assert_eq!((count(), stream.count()), (299, 299));
            files.create(ino, b"other", &NEW).expect("made");
            wait_until("the new name is listed", || count() == 300);
            wait_until("the open listing has it", || stream.count() == 300);
            for i in 1..300 {
                let name = format!("{i}");
                files.unlink(ino, name.as_bytes()).expect("removed");
            }
            wait_until("the names have gone", || stream.count() == 1);
            assert_eq!(count(), 1);
            // A directory that another client removes is empty for those that have it open.
            files.unlink(ino, b"other").expect("removed");
            files.rmdir(ROOT, b"sub").expect("removed");
            wait_until("the directory has gone", || !sub.exists());
            wait_until("nothing is listed", || stream.count() == 0);
        });
    }
}

#[test]
fn two_mounts_of_the_same_files_show_the_same() {
    shared(&device(), |dir, files| {
        let folder = tempfile::tempdir().expect("a folder");
        let config = MountConfig::new(folder.path().to_owned());
        let second = Mount::start(config, Arc::clone(files)).expect("it mounts");
        let (here, there) = (dir.join("file"), folder.path().join("file"));
        assert!(!there.exists());
        sys::write(&here, "one").expect("written");
        wait_until("the file is there", || there.exists());
        assert_eq!(sys::read(&there).expect("readable"), b"one");
        for round in 0..50 {
            let (from, to) = match round % 2 {
                0 => (&there, &here),
                _ => (&here, &there),
            };
            let text = format!("round {round}, and more than before");
            sys::write(from, &text).expect("written");
            wait_until("the text has arrived", || {
                sys::read(to).expect("readable") == text.as_bytes()
            });
        }
        unmount(second);
    });
}

#[test]
fn programs_and_another_client_append_without_losing_a_record() {
    shared(&device(), |dir, files| {
        let path = dir.join("log");
        File::create(&path).expect("made");
        let ino = ino_of(files, "log");
        let programs = AtomicUsize::new(2);
        let others: usize = std::thread::scope(|scope| {
            for thread in 1..=2u8 {
                let (path, programs) = (&path, &programs);
                scope.spawn(move || {
                    let mut file = OpenOptions::new();
                    // The second program also opens the file for reading.
                    let file = file.append(true).read(thread == 2).open(path);
                    let mut file = file.expect("open");
                    for _ in 0..200 {
                        file.write_all(&[thread; 1000]).expect("written");
                    }
                    programs.fetch_sub(1, Ordering::Relaxed);
                });
            }
            let programs = &programs;
            let others = [3u8, 4].map(|thread| {
                scope.spawn(move || {
                    let file = files.open(ino).expect("open");
                    let mut lane = files.lane().expect("a lane");
                    let mut records = 0;
                    // Continue while programs write, so that each of their records may be torn, but
                    // stop before the device is full if they are slow.
                    while records < 200 || records < 20_000 && programs.load(Ordering::Relaxed) > 0
                    {
                        lane.write(&file, WritePosition::End, &[thread; 1000])
                            .expect("written");
                        records += 1;
                    }
                    records
                })
            });
            others
                .map(|other| other.join().expect("no panic"))
                .iter()
                .sum()
        });
        let len = (400 + others) * 1000;
        wait_until("the size has arrived", || {
            path.metadata().expect("there").len() == len as u64
        });
        let count = |all: &[u8], of: u8| all.iter().filter(|byte| **byte == of).count();
        wait_until("every record is there", || {
            let all = sys::read(&path).expect("readable");
            let by_others = count(&all, 3) + count(&all, 4);
            [count(&all, 1), count(&all, 2), by_others] == [200_000, 200_000, others * 1000]
        });
        let all = sys::read(&path).expect("readable");
        assert!(all.chunks(1000).all(|r| r.iter().all(|b| *b == r[0])));
        let appended = open(&path, libc::O_APPEND);
        assert!(Mapped::new(&appended, len).copy(0..len) == all);
    });
}

/// Returns page-aligned memory.
fn aligned(memory: &mut [u8], len: usize) -> &mut [u8] {
    let skip = memory.as_ptr().align_offset(4096);
    &mut memory[skip..skip + len]
}

#[test]
fn direct_cached_and_mapped_access_of_one_file_agree() {
    const LEN: usize = 1 << 20;
    mounted(&device(), |dir| {
        let path = dir.join("file");
        sys::write(&path, vec![0; LEN]).expect("written");
        let (cached, direct) = (open(&path, 0), open(&path, libc::O_DIRECT));
        let mapped = Mapped::new(&cached, LEN);
        let (mut model, mut memory) = (vec![0; LEN], vec![0; LEN / 4 + 4096]);
        let mut random = Random::new(11);
        for round in 0..3000 {
            let blocks = 1 + random.below(12) as usize;
            let at = 4096 * random.below((LEN / 4096 - blocks) as u64) as usize;
            let range = at..at + 4096 * blocks;
            let buf = aligned(&mut memory, range.len());
            let what = random.below(7);
            match what {
                0..=2 => random.fill(buf),
                _ => buf.fill(0xee),
            }
            match what {
                0 => direct.write_all_at(buf, at as u64).expect("written"),
                1 => cached.write_all_at(buf, at as u64).expect("written"),
                2 => mapped.store(at, buf),
                3 => direct.read_exact_at(buf, at as u64).expect("readable"),
                4 => cached.read_exact_at(buf, at as u64).expect("readable"),
                5 => buf.copy_from_slice(&mapped.copy(range.clone())),
                _ => {
                    let (mode, fd) = (
                        libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                        cached.as_raw_fd(),
                    );
                    // SAFETY: a call on an open descriptor.
                    check(unsafe { libc::fallocate(fd, mode, at as i64, range.len() as i64) })
                        .expect("punched");
                    buf.fill(0);
                }
            }
            match what {
                3..=5 => assert!(*buf == model[range], "round {round}, read by way {what}"),
                _ => model[range].copy_from_slice(buf),
            }
        }
        drop(mapped);
        let (start, mut end) = (LEN as u64 - 4096, vec![0; 3 * 4096]);
        let buf = aligned(&mut end, 8192);
        assert_eq!(direct.read_at(buf, start).expect("readable"), 4096);
        assert!(buf[..4096] == model[start as usize..]);
    });
    let device = device();
    let all: Vec<u8> = (0..LEN).map(|i| (i / 4096) as u8).collect();
    shared(&device, |dir, files| {
        let mut memory = vec![0; LEN + 4096];
        let buf = aligned(&mut memory, LEN);
        buf.copy_from_slice(&all);
        sys::write(dir.join("file"), "").expect("made");
        let direct = open(&dir.join("file"), libc::O_DIRECT);
        direct.write_all_at(buf, 0).expect("written");
        let read = direct.read_at(buf, 0).expect("readable");
        assert_eq!(read, LEN);
        let cached = files.volume().files();
        let bytes: u64 = cached.iter().map(|file| file.resident_bytes).sum();
        assert_eq!(bytes, 0, "what went past the cache is not in it");
    });
    mounted(&device, |dir| {
        assert!(sys::read(dir.join("file")).expect("readable") == all);
        let path = c(&dir.join("file"));
        // SAFETY: a call with a zero-terminated path.
        check(unsafe { libc::truncate(path.as_ptr(), 10) }).expect("cut");
    });
}
