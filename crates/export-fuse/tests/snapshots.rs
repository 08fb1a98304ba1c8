//! The directory `.snapshots` of a mounted fileset.
//!
//! Goal: snapshots can be read while the fileset is mounted and written, cannot be changed, appear
//! and vanish at once, and their files have inode numbers of their own. Method: system calls on a
//! mount, whose snapshots the test takes and removes.

mod common;

use block::BlockDevice;
use block_testing::Random;
use cache::{Cache, Config};
use common::file_handles::{drop_caches, handle_of, open};
use common::{c, check, device, unmount, wait_until};
use export_fuse::{Mount, MountConfig};
use fs::{FIRST_FILESET, Files, Fs, InodeFlags, Kind, Options, ROOT, Snapshots};
use std::collections::BTreeSet;
use std::fs as sys;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

/// The parts of a mount with snapshots.
struct Mounted<'a> {
    dir: &'a Path,
    fs: &'a Fs,
    files: &'a Arc<Files>,
}

impl Mounted<'_> {
    fn snapshot(&self, name: &str) {
        self.files.sync().expect("written back");
        let of = self.files.fileset().id();
        self.fs.snapshot(of, name).expect("a snapshot");
    }

    fn remove(&self, name: &str) -> fs::Result<()> {
        let id = self.fs.fileset_named(name)?.id();
        self.fs.remove_fileset(id)
    }
}

/// Mounts with the directory of snapshots, runs `work`, unmounts, and checks the file system.
fn mounted(device: &Arc<dyn BlockDevice>, work: impl FnOnce(&Mounted<'_>)) {
    let fs = Fs::open(Arc::clone(device), Options::default()).expect("it opens");
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    let cache = Cache::new(Config::new(8 << 20)).expect("a cache");
    let files = Files::new(&main, &cache).expect("files");
    let snapshots = Snapshots::new(&main, &cache);
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = MountConfig::new(folder.path().to_owned());
    config.snapshots = Some(Arc::clone(&snapshots));
    let mount = Mount::start(config, Arc::clone(&files)).expect("it mounts");
    work(&Mounted {
        dir: folder.path(),
        fs: &fs,
        files: &files,
    });
    unmount(mount);
    snapshots.close();
    files.close().expect("everything is written");
    drop((files, snapshots, main));
    let report = fs.check().expect("it can be checked");
    assert!(report.is_clean(), "{:#?}", report.problems);
    fs.close().expect("it closes");
}

fn names(dir: &Path) -> BTreeSet<String> {
    let listed = sys::read_dir(dir).expect("listed");
    let name = |entry: std::io::Result<sys::DirEntry>| {
        let name = entry.expect("an entry").file_name();
        name.into_string().expect("UTF-8")
    };
    listed.map(name).collect()
}

fn set(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|name| (*name).to_owned()).collect()
}

#[track_caller]
fn fails<T: std::fmt::Debug>(result: std::io::Result<T>, errno: i32) {
    let error = result.expect_err("it must fail");
    assert_eq!(error.raw_os_error(), Some(errno), "{error}");
}

#[test]
fn a_snapshot_is_read_while_the_fileset_is_written() {
    let device = device();
    mounted(&device, |m| {
        let mut random = Random::new(5);
        let old: Vec<u8> = (0..600_000).map(|_| random.next_u64() as u8).collect();
        sys::create_dir(m.dir.join("sub")).expect("made");
        let live = m.dir.join("sub/file");
        sys::write(&live, &old).expect("written");
        symlink("sub/file", m.dir.join("link")).expect("made");
        let name = c(Path::new("user.note"));
        let value = b"kept";
        // SAFETY: the pointers are to a C string and to four bytes.
        let done = unsafe {
            let value = value.as_ptr().cast();
            libc::setxattr(c(&live).as_ptr(), name.as_ptr(), value, 4, 0)
        };
        check(done).expect("set");
        m.snapshot("one");

        let past = m.dir.join(".snapshots/one");
        let mut open = sys::File::open(past.join("sub/file")).expect("open");
        let writer = sys::OpenOptions::new().write(true).open(&live);
        let writer = writer.expect("open");
        for _ in 0..200 {
            let at = random.below(600_000 - 5_000);
            writer.write_all_at(&[7; 5_000], at).expect("written");
            let mut part = [0; 5_000];
            open.read_exact_at(&mut part, at).expect("read");
            assert!(part == old[at as usize..at as usize + 5_000]);
        }
        writer.set_len(10).expect("cut");
        let mut all = Vec::new();
        open.read_to_end(&mut all).expect("read");
        assert!(all == old);
        assert_eq!(sys::read(past.join("link")).expect("read").len(), old.len());
        assert_eq!(sys::read(&live).expect("read").len(), 10);
        sys::remove_dir_all(m.dir.join("sub")).expect("removed");
        assert_eq!(names(&past), set(&["link", "sub"]));
        assert_eq!(names(&past.join("sub")), set(&["file"]));
        let mut read = [0u8; 16];
        // SAFETY: the pointers are to C strings and to 16 bytes.
        let len = unsafe {
            let out = read.as_mut_ptr().cast();
            libc::getxattr(c(&past.join("sub/file")).as_ptr(), name.as_ptr(), out, 16)
        };
        assert_eq!(check(len as i64), Ok(4));
        assert_eq!(&read[..4], value);
    });
}

#[test]
fn the_directory_is_hidden_and_nothing_in_it_can_be_changed() {
    let device = device();
    mounted(&device, |m| {
        sys::write(m.dir.join("file"), b"old").expect("written");
        m.snapshot("one");
        assert_eq!(names(m.dir), set(&["file"]));
        let all = m.dir.join(".snapshots");
        assert_eq!(names(&all), set(&["one"]));
        let past = all.join("one");
        let file = past.join("file");
        let rofs = libc::EROFS;
        fails(sys::write(&file, b"new"), rofs);
        fails(sys::write(past.join("new"), b"new"), rofs);
        fails(sys::create_dir(past.join("dir")), rofs);
        fails(sys::create_dir(all.join("two")), rofs);
        fails(sys::remove_file(&file), rofs);
        fails(sys::remove_dir(&past), rofs);
        fails(sys::remove_dir(&all), rofs);
        fails(sys::rename(&past, all.join("two")), rofs);
        fails(sys::rename(&all, m.dir.join("other")), rofs);
        fails(sys::rename(m.dir.join("file"), &all), libc::EISDIR);
        fails(
            sys::rename(m.dir.join("file"), past.join("new")),
            libc::EXDEV,
        );
        fails(sys::rename(&file, m.dir.join("new")), rofs);
        fails(sys::hard_link(&file, m.dir.join("new")), libc::EXDEV);
        fails(sys::create_dir(&all), libc::EEXIST);
        let open = sys::File::open(&file).expect("open");
        fails(open.set_permissions(PermissionsExt::from_mode(0o777)), rofs);
        assert_eq!(sys::read(&file).expect("read"), b"old");
        sys::copy(&file, m.dir.join("restored")).expect("copied");
        assert_eq!(sys::read(m.dir.join("restored")).expect("read"), b"old");
        fails(sys::metadata(all.join("none")), libc::ENOENT);
        fails(sys::metadata(past.join("none")), libc::ENOENT);
    });
}

#[test]
fn inode_numbers_are_unique_and_the_same_for_each_mount() {
    let device = device();
    let mut seen: Vec<(String, u64)> = Vec::new();
    for round in 0..2 {
        mounted(&device, |m| {
            if round == 0 {
                sys::create_dir(m.dir.join("dir")).expect("made");
                sys::write(m.dir.join("dir/file"), b"a").expect("written");
                m.snapshot("one");
                m.snapshot("two");
            }
            let mut all = Vec::new();
            for top in ["", ".snapshots", ".snapshots/one", ".snapshots/two"] {
                for below in ["", "dir", "dir/file"] {
                    let path = format!("{top}/{below}");
                    let path = path.trim_matches('/').to_owned();
                    if let Ok(meta) = sys::symlink_metadata(m.dir.join(&path)) {
                        all.push((path, meta.ino()));
                    }
                }
            }
            let numbers: BTreeSet<u64> = all.iter().map(|(_, ino)| *ino).collect();
            assert_eq!((numbers.len(), all.len()), (10, 10), "{all:?}");
            for entry in sys::read_dir(m.dir.join(".snapshots/two/dir")).expect("listed") {
                let entry = std::os::unix::fs::DirEntryExt::ino(&entry.expect("an entry"));
                assert!(all.contains(&(".snapshots/two/dir/file".into(), entry)));
            }
            if round == 0 {
                seen = all;
            } else {
                assert_eq!(seen, all);
            }
        });
    }
}

#[test]
fn a_new_snapshot_appears_and_a_removed_one_vanishes() {
    let device = device();
    mounted(&device, |m| {
        let all = m.dir.join(".snapshots");
        assert_eq!(names(&all), set(&[]));
        fails(sys::metadata(all.join("one")), libc::ENOENT);
        sys::write(m.dir.join("file"), b"old").expect("written");
        m.snapshot("one");
        assert_eq!(sys::read(all.join("one/file")).expect("read"), b"old");
        let listing = sys::File::open(&all).expect("open");
        wait_until("it is listed", || names(&all) == set(&["one"]));
        m.snapshot("two");
        // The descriptor needs no lookup, so the kernel must have dropped its list.
        let own = std::os::fd::AsRawFd::as_raw_fd(&listing);
        let own = Path::new("/proc/self/fd").join(own.to_string());
        wait_until("both are listed", || names(&own) == set(&["one", "two"]));

        let open = sys::File::open(all.join("one/file")).expect("open");
        let error = m.remove("one").expect_err("a file is open");
        assert_eq!(error.kind(), Kind::Busy, "{error}");
        assert_eq!(sys::read(all.join("one/file")).expect("read"), b"old");
        drop(open);
        let inside = sys::File::open(all.join("one")).expect("open");
        // The kernel closes files in its own time.
        wait_until("it is removed", || m.remove("one").is_ok());
        fails(sys::metadata(all.join("one")), libc::ENOENT);
        fails(sys::read(all.join("one/file")), libc::ENOENT);
        let own = std::os::fd::AsRawFd::as_raw_fd(&inside);
        let own = Path::new("/proc/self/fd").join(own.to_string());
        fails(sys::read(own.join("file")), libc::ESTALE);
        wait_until("one is listed", || names(&all) == set(&["two"]));

        let two = m.fs.fileset_named("two").expect("it exists").id();
        m.fs.rename_fileset(two, "three").expect("renamed");
        fails(sys::metadata(all.join("two")), libc::ENOENT);
        assert_eq!(sys::read(all.join("three/file")).expect("read"), b"old");
    });
}

#[test]
fn many_snapshots_are_listed_and_read() {
    let device = device();
    mounted(&device, |m| {
        let mut all = BTreeSet::new();
        for round in 0..150 {
            let name = format!("{round}-{}", "x".repeat(100));
            sys::write(m.dir.join("file"), &name).expect("written");
            m.snapshot(&name);
            all.insert(name);
        }
        let dir = m.dir.join(".snapshots");
        wait_until("all are listed", || names(&dir) == all);
        for name in &all {
            let read = sys::read(dir.join(name).join("file")).expect("read");
            assert_eq!(String::from_utf8_lossy(&read), *name);
        }
    });
}

/// Flags of a file, as chattr(1) reads them.
fn flags(path: &Path) -> u32 {
    let file = sys::File::open(path).expect("open");
    let mut flags = 0u32;
    // SAFETY: the request writes four bytes.
    let read = unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut flags) };
    check(read).expect("read");
    flags
}

#[test]
fn a_snapshot_has_the_flags_of_its_time_and_they_stay() {
    let device = device();
    mounted(&device, |m| {
        let live = m.dir.join("file");
        sys::write(&live, b"old").expect("written");
        let ino = m.files.lookup(ROOT, b"file").expect("it exists").ino;
        m.files.set_flags(ino, InodeFlags::IMMUTABLE).expect("set");
        m.snapshot("one");
        m.files.set_flags(ino, InodeFlags::default()).expect("set");
        let past = m.dir.join(".snapshots/one/file");
        assert_eq!((flags(&past), flags(&live)), (InodeFlags::IMMUTABLE.0, 0));
        let file = sys::File::open(&past).expect("open");
        // SAFETY: the request reads four bytes.
        let set = unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &0u32) };
        assert_eq!(check(set), Err(libc::EROFS));
        assert_eq!(flags(&past), InodeFlags::IMMUTABLE.0);
        sys::write(&live, b"new").expect("written");
        assert_eq!(sys::read(&past).expect("read"), b"old");
    });
}

#[test]
fn handles_lead_to_files_of_snapshots_as_long_as_these_exist() {
    let device = device();
    let read = |mut file: sys::File| {
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read");
        text
    };
    let mut handles = Vec::new();
    mounted(&device, |m| {
        sys::create_dir(m.dir.join("sub")).expect("made");
        sys::write(m.dir.join("sub/file"), b"old").expect("written");
        m.snapshot("one");
        sys::write(m.dir.join("sub/file"), b"new").expect("written");
        let past = m.dir.join(".snapshots/one/sub");
        handles = vec![handle_of(&past.join("file")), handle_of(&past)];
        drop_caches();
        let file = open(m.dir, &handles[0], libc::O_RDONLY).expect("it exists");
        assert_eq!(read(file), "old");
    });
    // A new mount knows none of the nodes yet.
    mounted(&device, |m| {
        let file = open(m.dir, &handles[0], libc::O_RDONLY).expect("it exists");
        assert_eq!(read(file), "old");
        // Without its path, the kernel does not find the way from the root to a directory.
        sys::metadata(m.dir.join(".snapshots/one/sub")).expect("it exists");
        let dir = open(m.dir, &handles[1], libc::O_DIRECTORY).expect("it exists");
        let own = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string());
        assert_eq!(names(&own), set(&["file"]));
        drop(dir);
        wait_until("it is removed", || m.remove("one").is_ok());
        drop_caches();
        for handle in &handles {
            let opened = open(m.dir, handle, libc::O_RDONLY).map(drop);
            assert_eq!(opened, Err(libc::ESTALE));
        }
    });
}

#[test]
fn a_directory_of_this_name_is_not_hidden() {
    let device = device();
    common::mounted(&device, |dir| {
        fails(sys::metadata(dir.join(".snapshots")), libc::ENOENT);
        sys::create_dir(dir.join(".snapshots")).expect("made");
        sys::write(dir.join(".snapshots/own"), b"own").expect("written");
    });
    mounted(&device, |m| {
        let own = m.dir.join(".snapshots");
        m.snapshot("one");
        assert_eq!(names(m.dir), set(&[".snapshots"]));
        assert_eq!(names(&own), set(&["own"]));
        sys::remove_file(own.join("own")).expect("removed");
        sys::remove_dir(&own).expect("removed");
        wait_until("the snapshots are shown", || names(&own) == set(&["one"]));
        assert_eq!(
            sys::read(own.join("one/.snapshots/own")).expect("read"),
            b"own"
        );
    });
}
