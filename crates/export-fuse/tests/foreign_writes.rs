//! A mounted FAT file system that programs change.

mod common;

use block::{Access, BlockDevice, Blocking};
use block_testing::Mem;
use cache::{Cache, Config};
use common::unmount;
use export_fuse::{Mount, MountConfig};
use foreign::Files;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use test_support::installed;

/// Creates a FAT file system of this size in KiB.
fn made(kib: u64) -> Arc<dyn BlockDevice> {
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("image");
    let file = fs::File::create(&image).expect("created");
    file.set_len(kib << 10).expect("longer");
    let ran = Command::new(installed("mkfs.vfat"))
        .args(["-F", "16", "-s", "1"])
        .arg(&image)
        .output();
    assert!(ran.expect("it runs").status.success());
    let bytes = fs::read(&image).expect("read");
    let device = Mem::new(bytes.len() as u64, 512);
    Blocking::open(&device)
        .expect("a queue")
        .write_at(0, &bytes)
        .expect("written");
    Arc::new(device)
}

/// Mounts the device, runs `work` on the directory, unmounts, and checks the image.
fn mounted<T>(device: &Arc<dyn BlockDevice>, work: impl FnOnce(&Path) -> T) -> T {
    let dir = tempfile::tempdir().expect("a directory");
    let cache = Cache::new(Config::new(64 << 20)).expect("a cache");
    let files = Files::open_with(Arc::clone(device), &cache, Access::ReadWrite).expect("it opens");
    let config = MountConfig::new(dir.path().to_owned());
    let mount = Mount::start_foreign(config, Arc::clone(&files)).expect("it mounts");
    let done = work(dir.path());
    unmount(mount);
    files.close().expect("it closes");
    let mut bytes = vec![0; device.info().size as usize];
    Blocking::open(&**device)
        .expect("a queue")
        .read_at(0, &mut bytes)
        .expect("read");
    let image = tempfile::NamedTempFile::new().expect("a file");
    fs::write(image.path(), &bytes).expect("written");
    let ran = Command::new(installed("fsck.vfat"))
        .arg("-n")
        .arg(image.path())
        .output();
    let ran = ran.expect("it runs");
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{text}");
    done
}

fn errno<T: std::fmt::Debug>(done: std::io::Result<T>) -> i32 {
    done.expect_err("refused").raw_os_error().expect("an errno")
}

#[test]
fn files_are_created_changed_and_removed() {
    let device = made(8 << 10);
    let large: Vec<u8> = (0..300_000u32).map(|n| (n ^ n >> 7) as u8).collect();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_234_567_890);
    mounted(&device, |dir| {
        fs::write(dir.join("A long name, with signs.text"), &large).expect("written");
        fs::create_dir_all(dir.join("a/b")).expect("created");
        fs::write(dir.join("a/b/inner"), "inner").expect("written");
        fs::rename(dir.join("a/b/inner"), dir.join("moved")).expect("renamed");
        fs::rename(dir.join("a/b"), dir.join("c")).expect("renamed");
        fs::remove_dir(dir.join("a")).expect("removed");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(dir.join("file"));
        let mut file = file.expect("opened");
        file.write_all_at(b"end", 10_000).expect("written");
        file.set_len(10_001).expect("shorter");
        file.seek(SeekFrom::Start(9_999)).expect("at");
        let mut rest = Vec::new();
        file.read_to_end(&mut rest).expect("read");
        assert_eq!(rest, b"\0e");
        file.sync_all().expect("durable");
        file.set_modified(time).expect("changed");
        fs::set_permissions(dir.join("moved"), Permissions::from_mode(0o555)).expect("changed");
        let mut log = OpenOptions::new()
            .append(true)
            .create(true)
            .open(dir.join("log"))
            .expect("opened");
        for n in 0..100 {
            writeln!(log, "line {n}").expect("written");
        }
        // A replacing rename, as an editor saves a file.
        fs::write(dir.join("log.new"), "saved").expect("written");
        fs::rename(dir.join("log.new"), dir.join("log")).expect("renamed");
        assert_eq!(fs::read(dir.join("log")).expect("read"), b"saved");
    });
    mounted(&device, |dir| {
        let text = dir.join("A long name, with signs.text");
        assert!(fs::read(text).expect("read") == large);
        assert_eq!(fs::read(dir.join("moved")).expect("read"), b"inner");
        let mode = fs::metadata(dir.join("moved")).expect("attributes").mode();
        assert_eq!(mode & 0o777, 0o555);
        let file = fs::metadata(dir.join("file")).expect("attributes");
        assert_eq!(
            (file.len(), file.modified().expect("a time")),
            (10_001, time)
        );
        assert_eq!(fs::read(dir.join("log")).expect("read"), b"saved");
        let mut names: Vec<_> = fs::read_dir(dir)
            .expect("entries")
            .map(|e| e.expect("one").file_name())
            .collect();
        names.sort();
        assert_eq!(
            names,
            ["A long name, with signs.text", "c", "file", "log", "moved"]
        );
    });
}

#[test]
fn names_are_the_same_in_any_case_also_after_a_change() {
    mounted(&made(8 << 10), |dir| {
        assert!(!dir.join("FOO").exists());
        fs::write(dir.join("foo"), "1").expect("written");
        assert_eq!(fs::read(dir.join("FOO")).expect("read"), b"1");
        let again = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(dir.join("Foo"));
        assert_eq!(
            again.expect_err("it exists").kind(),
            ErrorKind::AlreadyExists
        );
        fs::remove_file(dir.join("FOO")).expect("removed");
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        // The kernel is notified of the other spelling in the background.
        while dir.join("foo").exists() {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
        fs::write(dir.join("Foo"), "2").expect("written");
        fs::write(dir.join("bar"), "3").expect("written");
        fs::rename(dir.join("bar"), dir.join("FOO")).expect("renamed");
        assert_eq!(fs::read(dir.join("foo")).expect("read"), b"3");
        let names: Vec<_> = fs::read_dir(dir)
            .expect("entries")
            .map(|e| e.expect("one").file_name())
            .collect();
        assert_eq!(names, ["Foo"]);
    });
}

#[test]
fn what_the_format_does_not_have_fails_as_in_the_kernel() {
    mounted(&made(8 << 10), |dir| {
        let file = dir.join("file");
        fs::write(&file, "x").expect("written");
        assert_eq!(errno(symlink("file", dir.join("link"))), libc::EPERM);
        assert_eq!(errno(fs::hard_link(&file, dir.join("link"))), libc::EPERM);
        let special = rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.join("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        );
        assert_eq!(special, Err(rustix::io::Errno::PERM));
        let mode = |mode| fs::set_permissions(&file, Permissions::from_mode(mode));
        assert_eq!(errno(mode(0o4755)), libc::EPERM);
        mode(0o700).expect("ignored");
        assert_eq!(
            fs::metadata(&file).expect("attributes").mode() & 0o7777,
            0o755
        );
        assert_eq!(errno(chown(&file, Some(12), None)), libc::EPERM);
        let owner = fs::metadata(&file).expect("attributes").uid();
        chown(&file, Some(owner), None).expect("the same owner");
        let flags = rustix::fs::XattrFlags::empty();
        let set = rustix::fs::setxattr(&file, "user.a", b"1", flags);
        assert_eq!(set, Err(rustix::io::Errno::OPNOTSUPP));
        assert_eq!(errno(fs::write(dir.join("a:b"), "")), libc::EINVAL);
        assert_eq!(errno(fs::write(dir.join("end "), "")), libc::EINVAL);
        let long = OpenOptions::new().write(true).open(&file).expect("opened");
        assert_eq!(errno(long.write_all_at(b"x", u32::MAX.into())), libc::EFBIG);
        fs::create_dir(dir.join("dir")).expect("created");
        fs::write(dir.join("dir/inner"), "").expect("written");
        assert_eq!(errno(fs::remove_dir(dir.join("dir"))), libc::ENOTEMPTY);
        assert_eq!(
            errno(fs::rename(dir.join("dir"), dir.join("dir/self"))),
            libc::EINVAL
        );
    });
}

#[test]
fn an_open_file_outlives_its_name_and_its_space_is_free_afterwards() {
    mounted(&made(8 << 10), |dir| {
        let free = || rustix::fs::statvfs(dir).expect("space").f_bfree;
        let before = free();
        let path = dir.join("temporary");
        let options = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let file = options.expect("opened");
        let data = vec![7; 500_000];
        file.write_all_at(&data, 0).expect("written");
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "another").expect("written");
        file.write_all_at(b"more", 500_000).expect("written");
        let mut found = vec![0; 500_004];
        file.read_exact_at(&mut found, 0).expect("read");
        assert!(found[..500_000] == data && &found[500_000..] == b"more");
        assert!(free() + 900 < before);
        drop(file);
        fs::remove_file(&path).expect("removed");
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while free() < before {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_full_device_is_an_error_of_the_write() {
    mounted(&made(3 << 10), |dir| {
        let error = fs::write(dir.join("large"), vec![1; 4 << 20]).expect_err("it is full");
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        let free = rustix::fs::statvfs(dir).expect("space").f_bfree;
        assert!(free * 512 < 4096, "{free} clusters are free");
        fs::remove_file(dir.join("large")).expect("removed");
        fs::write(dir.join("small"), vec![2; 1 << 20]).expect("written");
    });
}
