//! Flags of files and directories, as chattr(1) sets them: who may, and what they forbid, also to
//! another client of the files.

mod common;

use common::{c, check, configured, device, in_another_process, mounted, shared, store};
use export_fuse::MountConfig;
use fs::{Allocate, InodeFlags, Kind, New, Rename, SetAttr, SetXattr, WritePosition};
use std::ffi::CString;
use std::fs::{self as sys, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use test_support::installed;

const NOBODY: u32 = 65_534;

fn chattr(change: &str, path: &Path) {
    let mut chattr = Command::new(installed("chattr"));
    let done = chattr.arg(change).arg(path).output().expect("it starts");
    assert!(done.status.success(), "{change}: {done:?}");
}

/// Returns the letters of the flags that are set.
fn lsattr(path: &Path) -> String {
    let mut lsattr = Command::new(installed("lsattr"));
    let done = lsattr.arg("-d").arg(path).output().expect("it starts");
    assert!(done.status.success(), "{done:?}");
    let line = String::from_utf8(done.stdout).expect("text");
    let flags = line.split(' ').next().expect("a column");
    flags.replace('-', "")
}

fn errno(result: io::Result<()>) -> i32 {
    let error = result.expect_err("it is refused");
    error.raw_os_error().expect("an errno")
}

#[track_caller]
fn refused<T>(result: io::Result<T>) {
    assert_eq!(errno(result.map(drop)), libc::EPERM);
}

fn set_xattr(path: &Path) -> io::Result<()> {
    let (path, name) = (c(path), CString::new("user.a").expect("no zero in it"));
    // SAFETY: both strings end with a zero, and the value has one byte.
    let set = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), c"1".as_ptr().cast(), 1, 0) };
    check(set).map(drop).map_err(io::Error::from_raw_os_error)
}

fn allocate(file: &File, mode: i32) -> io::Result<()> {
    // SAFETY: a call on an open descriptor.
    let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, 8192) };
    check(done).map(drop).map_err(io::Error::from_raw_os_error)
}

/// Makes an open file immutable, without chattr(1).
fn set_immutable(fd: i32) -> bool {
    // SAFETY: the address of a number; the descriptor may be any.
    unsafe { libc::ioctl(fd, libc::FS_IOC_SETFLAGS, &InodeFlags::IMMUTABLE.0) == 0 }
}

fn rename_as_whiteout(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to, here) = (c(from), c(to), libc::AT_FDCWD);
    // SAFETY: both strings end with a zero.
    let renamed = unsafe {
        libc::renameat2(
            here,
            from.as_ptr(),
            here,
            to.as_ptr(),
            libc::RENAME_WHITEOUT,
        )
    };
    check(renamed)
        .map(drop)
        .map_err(io::Error::from_raw_os_error)
}

#[test]
fn an_immutable_file_does_not_change_in_any_way() {
    let device = device();
    shared(&device, |dir, files| {
        let (path, other) = (dir.join("file"), dir.join("other"));
        sys::write(&path, "content").expect("written");
        sys::write(&other, "other").expect("written");
        let mut options = OpenOptions::new();
        let writer = options.read(true).write(true).open(&path).expect("opened");
        // A program that has mapped the file before can store to it, and is notified of the refusal.
        let text = c(&path);
        in_another_process(|| {
            store(&text, 0, b'C', |fd, map| {
                // SAFETY: an open descriptor, and a mapping of a page.
                unsafe {
                    let set = set_immutable(fd);
                    map.write_volatile(b'!');
                    set && libc::msync(map.cast(), 4096, libc::MS_SYNC) == -1
                }
            })
        });
        assert_eq!(lsattr(&path), "i");
        let fails: [(&str, &dyn Fn() -> io::Result<()>); 19] = [
            ("open", &|| {
                File::options().write(true).open(&path).map(drop)
            }),
            ("append", &|| {
                File::options().append(true).open(&path).map(drop)
            }),
            ("create", &|| File::create(&path).map(drop)),
            ("write", &|| writer.write_all_at(b"x", 0)),
            ("write at the end", &|| writer.write_all_at(b"x", 7)),
            ("truncate", &|| writer.set_len(0)),
            ("grow", &|| writer.set_len(100)),
            ("fallocate", &|| allocate(&writer, 0)),
            ("keep", &|| allocate(&writer, libc::FALLOC_FL_KEEP_SIZE)),
            ("punch", &|| {
                allocate(
                    &writer,
                    libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                )
            }),
            ("unlink", &|| sys::remove_file(&path)),
            ("rename", &|| sys::rename(&path, dir.join("new"))),
            ("whiteout", &|| rename_as_whiteout(&path, &dir.join("new"))),
            ("replace", &|| sys::rename(&other, &path)),
            ("link", &|| sys::hard_link(&path, dir.join("new"))),
            ("chmod", &|| {
                sys::set_permissions(&path, PermissionsExt::from_mode(0o600))
            }),
            ("chown", &|| std::os::unix::fs::chown(&path, Some(1), None)),
            ("setxattr", &|| set_xattr(&path)),
            ("utimes", &|| {
                let times = sys::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
                File::open(&path)?.set_times(times)
            }),
        ];
        for (what, call) in fails {
            match call() {
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{what}"),
                Ok(()) => panic!("{what} succeeded"),
            }
        }
        common::wait_until("the kernel drops what it could not write", || {
            sys::read(&path).expect("readable") == b"Content"
        });
        drop(writer);
        let attr = files.lookup(fs::ROOT, b"file").expect("there");
        assert_eq!((attr.inode.size, attr.inode.links), (7, 1));

        // The same for another client, such as a file server.
        let handle = files.open(attr.ino).expect("opened");
        let mut lane = files.lane().expect("a lane");
        let root = fs::ROOT;
        let set = SetAttr {
            permissions: Some(0),
            ..SetAttr::default()
        };
        let new = New::of_root(fs::FileType::File, 0o600);
        let results = [
            lane.write(&handle, WritePosition::End, b"x").map(drop),
            lane.set_attr(attr.ino, &set).map(drop),
            lane.allocate(&handle, 0..10, Allocate::Grow).map(drop),
            files.unlink(root, b"file").map(drop),
            files
                .rename((root, b"file"), (root, b"new"), Rename::Replace)
                .map(drop),
            files
                .rename((root, b"file"), (root, b"other"), Rename::Exchange)
                .map(drop),
            files.link(attr.ino, root, b"new").map(drop),
            files.set_xattr(attr.ino, b"user.a", b"1", SetXattr::Any),
        ];
        for (number, result) in results.into_iter().enumerate() {
            let error = result.expect_err("it is refused");
            assert_eq!(error.kind(), Kind::NotPermitted, "{number}: {error}");
        }
        drop(handle);

        // A directory keeps its entries, and its files can be written.
        let (sub, inside) = (dir.join("sub"), dir.join("sub/inside"));
        sys::create_dir(&sub).expect("made");
        sys::write(&inside, "1").expect("written");
        chattr("+i", &sub);
        refused(File::create(sub.join("new")));
        refused(sys::create_dir(sub.join("new")));
        refused(std::os::unix::fs::symlink("a", sub.join("new")));
        refused(sys::remove_file(&inside));
        refused(sys::rename(&inside, dir.join("out")));
        refused(sys::rename(&other, sub.join("in")));
        refused(sys::hard_link(&other, sub.join("in")));
        refused(sys::remove_dir(&sub));
        let mut unnamed = File::options();
        unnamed.write(true).custom_flags(libc::O_TMPFILE);
        refused(unnamed.open(&sub));
        sys::write(&inside, "2").expect("written");
        let ino = files.lookup(root, b"sub").expect("there").ino;
        let made = files.create(ino, b"new", &new).expect_err("it is refused");
        assert_eq!(made.kind(), Kind::NotPermitted);
    });
    mounted(&device, |dir| {
        let path = dir.join("file");
        assert_eq!(lsattr(&path), "i", "it outlives the mount");
        assert_eq!(sys::read(&path).expect("readable"), b"Content");
        chattr("-i", &path);
        chattr("-i", &dir.join("sub"));
        sys::write(&path, "new").expect("written");
        sys::remove_dir_all(dir.join("sub")).expect("removed");
    });
}

#[test]
fn an_append_only_file_grows_at_its_end_only() {
    for exclusive in [false, true] {
        let set = |config: &mut MountConfig| config.exclusive = exclusive;
        configured(&device(), set, |dir, files| {
            let path = dir.join("log");
            let mut append = OpenOptions::new();
            append.append(true).create(true);
            let mut before = append.open(&path).expect("opened");
            let writer = File::options()
                .read(true)
                .write(true)
                .open(&path)
                .expect("opened");
            before.write_all(b"one ").expect("written");
            chattr("+a", &path);
            assert_eq!(lsattr(&path), "a");
            assert_eq!(sys::read(&path).expect("readable"), b"one ");
            let mut log = append.open(&path).expect("opened");
            log.write_all(b"two ").expect("appended");
            before
                .write_all(b"three ")
                .expect("an open file can still append");
            before.sync_all().expect("synced");
            log.write_all(b"four").expect("appended");
            log.sync_all().expect("synced");
            assert_eq!(sys::read(&path).expect("readable"), b"one two three four");
            refused(File::options().write(true).open(&path));
            refused(
                File::options()
                    .append(true)
                    .custom_flags(libc::O_TRUNC)
                    .open(&path),
            );
            refused(writer.set_len(1));
            refused(sys::remove_file(&path));
            refused(sys::rename(&path, dir.join("new")));
            refused(sys::hard_link(&path, dir.join("new")));
            refused(sys::set_permissions(
                &path,
                PermissionsExt::from_mode(0o600),
            ));
            refused(set_xattr(&path));
            refused(allocate(&writer, libc::FALLOC_FL_ZERO_RANGE));
            allocate(&log, libc::FALLOC_FL_KEEP_SIZE).expect("room for more");
            let text = c(&path);
            in_another_process(|| {
                let flags = libc::O_RDWR | libc::O_APPEND;
                let both = libc::PROT_READ | libc::PROT_WRITE;
                // SAFETY: system calls with a zero-terminated string.
                unsafe {
                    let fd = libc::open(text.as_ptr(), flags);
                    let null = std::ptr::null_mut();
                    // A store could change what is there.
                    fd >= 0
                        && libc::mmap(null, 4096, both, libc::MAP_SHARED, fd, 0) == libc::MAP_FAILED
                }
            });
            // The kernel may hold the write back, but it does not reach the file.
            let over = writer
                .write_all_at(b"X", 0)
                .and_then(|()| writer.sync_all());
            over.expect_err("it is refused");
            common::wait_until("the kernel drops what it could not write", || {
                sys::read(&path).expect("readable") == b"one two three four"
            });
            drop((before, log, writer));
            let attr = files.lookup(fs::ROOT, b"log").expect("there");
            let (handle, mut lane) = (files.open(attr.ino), files.lane().expect("a lane"));
            let mut read = [0; 64];
            let handle = handle.expect("opened");
            let len = lane.read(&handle, 0, &mut read).expect("readable");
            assert_eq!(&read[..len], b"one two three four");
            let over = lane.write(&handle, WritePosition::Offset(0), b"X");
            assert_eq!(over.expect_err("refused").kind(), Kind::NotPermitted);
            lane.write(&handle, WritePosition::End, b"!")
                .expect("appended");

            let sub = dir.join("sub");
            sys::create_dir(&sub).expect("made");
            chattr("+a", &sub);
            sys::write(sub.join("new"), "1").expect("made");
            sys::write(sub.join("new"), "2").expect("written");
            sys::write(dir.join("x"), "x").expect("written");
            sys::rename(dir.join("x"), sub.join("x")).expect("a new name");
            refused(sys::remove_file(sub.join("new")));
            refused(sys::rename(sub.join("new"), sub.join("other")));
            refused(sys::rename(sub.join("new"), sub.join("x")));
            chattr("-a", &sub);
            chattr("-a", &path);
        });
    }
}

#[test]
fn what_the_kernel_holds_back_is_written_before_a_file_becomes_immutable() {
    for exclusive in [false, true] {
        let set = |config: &mut MountConfig| config.exclusive = exclusive;
        configured(&device(), set, |dir, files| {
            let path = dir.join("file");
            let mut options = File::options();
            options.read(true).write(true).create(true);
            let file = options.open(&path).expect("opened");
            file.write_all_at(&[1; 100_000], 0).expect("written");
            let text = c(&path);
            in_another_process(|| store(&text, 0, 2, |fd, _| set_immutable(fd)));
            let attr = files.lookup(fs::ROOT, b"file").expect("there");
            assert_eq!(attr.inode.size, 100_000);
            let handle = files.open(attr.ino).expect("opened");
            let mut first = [0; 2];
            let mut lane = files.lane().expect("a lane");
            lane.read(&handle, 0, &mut first).expect("readable");
            assert_eq!(first, [2, 1]);
            drop((file, handle, lane));
            assert_eq!(sys::read(&path).expect("readable").len(), 100_000);
            chattr("-i", &path);
        });
    }
}

#[test]
fn only_the_owner_sets_flags_and_only_root_those_that_forbid() {
    mounted(&device(), |dir| {
        sys::set_permissions(dir, PermissionsExt::from_mode(0o777)).expect("set");
        let (theirs, ours) = (dir.join("theirs"), dir.join("ours"));
        for path in [&theirs, &ours] {
            sys::write(path, "x").expect("written");
            sys::set_permissions(path, PermissionsExt::from_mode(0o666)).expect("set");
        }
        std::os::unix::fs::chown(&theirs, Some(NOBODY), None).expect("given away");
        let may = |path: &Path, flags: i32| {
            let path = c(path);
            let allowed = std::panic::catch_unwind(|| {
                in_another_process(|| {
                    // SAFETY: system calls of a single-threaded process with a zero-terminated
                    // string and the address of a number.
                    unsafe {
                        libc::setresgid(NOBODY, NOBODY, NOBODY) == 0
                            && libc::setresuid(NOBODY, NOBODY, NOBODY) == 0
                            && {
                                let fd = libc::open(path.as_ptr(), libc::O_RDONLY);
                                libc::ioctl(fd, libc::FS_IOC_SETFLAGS, &flags) == 0
                            }
                    }
                });
            });
            allowed.is_ok()
        };
        let of = |flags: InodeFlags| flags.0 as i32;
        assert!(may(
            &theirs,
            of(InodeFlags::NO_DUMP.with(InodeFlags::NO_ACCESS_TIME))
        ));
        assert_eq!(lsattr(&theirs), "dA");
        assert!(!may(&theirs, of(InodeFlags::IMMUTABLE)));
        assert!(!may(&theirs, of(InodeFlags::APPEND_ONLY)));
        assert!(!may(&ours, of(InodeFlags::NO_DUMP)));
        chattr("+i", &theirs);
        assert!(!may(&theirs, 0), "nor may they take it away");
        assert_eq!(lsattr(&theirs), "idA");
        // FS_SYNC_FL, which EVFS does not have.
        let fd = File::open(&ours).expect("opened");
        // SAFETY: an open descriptor and the address of a number.
        let set = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FS_IOC_SETFLAGS, &8) };
        assert_eq!(check(set), Err(libc::EOPNOTSUPP));
        chattr("-i", &theirs);
    });
}

#[test]
fn reading_a_file_with_the_flag_leaves_its_access_time() {
    mounted(&device(), |dir| {
        for (flag, stays) in [("+A", true), ("-A", false)] {
            let path = dir.join(flag);
            sys::write(&path, "x").expect("written");
            let long_ago = std::time::SystemTime::UNIX_EPOCH;
            let times = sys::FileTimes::new().set_accessed(long_ago);
            let file = File::options().write(true).open(&path).expect("opened");
            file.set_times(times).expect("set");
            chattr(flag, &path);
            sys::read(&path).expect("readable");
            let mut direct = File::options();
            direct.read(true).custom_flags(libc::O_DIRECT);
            let mut page = vec![0u8; 8192];
            let start = page.as_ptr().align_offset(4096);
            let direct = direct.open(&path).expect("opened");
            direct
                .read_at(&mut page[start..start + 4096], 0)
                .expect("read");
            assert_eq!(path.metadata().expect("there").atime() == 0, stays);
        }
    });
}
