//! Metadata of files through a mount: extended attributes, access lists, times, kinds.

mod common;

use common::{c, check, configured, device, in_another_process, mounted};
use fs::Atime;
use std::fs::{self as sys, File};
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use test_support::needs_root;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// Entries of access lists, from <linux/posix_acl.h>, and the unprivileged user of the tests.
const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const MASK: u16 = 16;
const OTHER: u16 = 32;
const NOBODY: u32 = 65_534;
const UNNAMED: u32 = u32::MAX;

fn name(text: &str) -> std::ffi::CString {
    c(Path::new(text))
}

fn set(path: &Path, attribute: &str, value: &[u8], flags: i32) -> Result<(), i32> {
    let (path, attribute) = (c(path), name(attribute));
    let (from, len) = (value.as_ptr().cast(), value.len());
    // SAFETY: both strings end with a zero, and `len` is the length of the value.
    let set = unsafe { libc::setxattr(path.as_ptr(), attribute.as_ptr(), from, len, flags) };
    check(set).map(drop)
}

fn get(path: &Path, attribute: &str) -> Result<Vec<u8>, i32> {
    let (path, attribute, mut value) = (c(path), name(attribute), vec![0; 70_000]);
    let (to, len) = (value.as_mut_ptr().cast(), value.len());
    // SAFETY: both strings end with a zero, and the buffer has `len` bytes.
    let got = unsafe { libc::getxattr(path.as_ptr(), attribute.as_ptr(), to, len) };
    value.truncate(check(got as i64)? as usize);
    Ok(value)
}

fn names(path: &Path) -> Vec<String> {
    let (path, mut list) = (c(path), vec![0u8; 4096]);
    // SAFETY: the string ends with a zero, and the buffer has the stated length.
    let got = unsafe { libc::listxattr(path.as_ptr(), list.as_mut_ptr().cast(), list.len()) };
    list.truncate(check(got as i64).expect("listed") as usize);
    let text = String::from_utf8(list).expect("text");
    let mut names: Vec<String> = text.split_terminator('\0').map(str::to_owned).collect();
    names.sort();
    names
}

fn remove(path: &Path, attribute: &str) -> Result<(), i32> {
    let (path, attribute) = (c(path), name(attribute));
    // SAFETY: both strings end with a zero.
    check(unsafe { libc::removexattr(path.as_ptr(), attribute.as_ptr()) }).map(drop)
}

fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permission, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permission.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Checks whether a process of an unprivileged user may read a file.
fn nobody_reads(path: &Path) -> bool {
    let path = c(path);
    let mut may = false;
    let shared = &mut may;
    // The child answers by its exit code; both answers are valid.
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        in_another_process(|| {
            // SAFETY: system calls of a single-threaded process, and a zero-terminated string.
            unsafe {
                let down = libc::setgroups(0, std::ptr::null()) == 0
                    && libc::setresgid(NOBODY, NOBODY, NOBODY) == 0
                    && libc::setresuid(NOBODY, NOBODY, NOBODY) == 0;
                down && libc::open(path.as_ptr(), libc::O_RDONLY) >= 0
            }
        });
    }));
    *shared = refused.is_ok();
    may
}

#[test]
fn names_of_attributes_are_those_of_other_file_systems_and_root_alone_sees_trusted_ones() {
    needs_root("trusted attributes");
    mounted(&device(), |dir| {
        let path = dir.join("file");
        sys::write(&path, "x").expect("written");
        for (wrong, error) in [
            ("system.foo", libc::EOPNOTSUPP),
            ("bogus.x", libc::EOPNOTSUPP),
            ("user.", libc::EINVAL),
        ] {
            assert_eq!(set(&path, wrong, b"1", 0), Err(error), "{wrong}");
            assert_eq!(get(&path, wrong), Err(error), "{wrong}");
            assert_eq!(remove(&path, wrong), Err(error), "{wrong}");
        }
        set(&path, "user.a", b"1", 0).expect("set");
        set(&path, "trusted.t", b"1", 0).expect("set");
        assert_eq!(names(&path), ["trusted.t", "user.a"]);
        let path = c(&path);
        in_another_process(|| {
            let mut list = [0u8; 64];
            // SAFETY: system calls of a single-threaded process, a zero-terminated string, and a
            // buffer of the stated length.
            let len = unsafe {
                libc::setresuid(NOBODY, NOBODY, NOBODY);
                libc::listxattr(path.as_ptr(), list.as_mut_ptr().cast(), list.len())
            };
            list[..len.max(0) as usize] == *b"user.a\0"
        });
    });
}

#[test]
fn reading_leaves_the_time_of_the_last_reading_where_that_is_wanted() {
    for atime in [Atime::Relatime, Atime::None] {
        configured(
            &device(),
            |config| config.atime = atime,
            |dir, _| {
                let path = dir.join("file");
                sys::write(&path, "x").expect("written");
                let long_ago = UNIX_EPOCH + Duration::from_secs(1_000_000);
                let times = sys::FileTimes::new().set_accessed(long_ago);
                File::options()
                    .write(true)
                    .open(&path)
                    .expect("opened")
                    .set_times(times)
                    .expect("set");
                // Bypasses the pages that the kernel has cached, reads of which the server never
                // sees.
                let direct = File::options()
                    .read(true)
                    .custom_flags(libc::O_DIRECT)
                    .open(&path);
                let mut page = vec![0u8; 8192];
                let start = page.as_ptr().align_offset(4096);
                let page = &mut page[start..start + 4096];
                assert_eq!(direct.expect("opened").read(page).expect("read"), 1);
                let accessed = sys::metadata(&path)
                    .expect("there")
                    .accessed()
                    .expect("a time");
                assert_eq!(accessed == long_ago, atime == Atime::None, "{atime:?}");
                sys::read_dir(dir).expect("listed").for_each(drop);
            },
        );
    }
}

#[test]
fn extended_attributes_are_kept_by_name_listed_and_removed() {
    needs_root("trusted attributes");
    mounted(&device(), |dir| {
        let path = dir.join("file");
        sys::write(&path, "x").expect("written");
        set(&path, "user.one", b"1", libc::XATTR_CREATE).expect("set");
        set(&path, "user.large", &[7; 65_536], 0).expect("set");
        set(&path, "user.empty", b"", 0).expect("set");
        assert_eq!(
            set(&path, "user.one", b"2", libc::XATTR_CREATE),
            Err(libc::EEXIST)
        );
        assert_eq!(
            set(&path, "user.two", b"2", libc::XATTR_REPLACE),
            Err(libc::ENODATA)
        );
        set(&path, "user.one", b"longer", libc::XATTR_REPLACE).expect("set");
        assert_eq!(get(&path, "user.one").expect("there"), b"longer");
        assert_eq!(get(&path, "user.large").expect("there"), [7; 65_536]);
        assert_eq!(get(&path, "user.empty").expect("there"), b"");
        set(&path, "trusted.t", b"t", 0).expect("set");
        set(&path, "security.s", b"s", 0).expect("set");
        assert_eq!(get(&path, "trusted.t").expect("there"), b"t");
        assert_eq!(get(&path, "security.s").expect("there"), b"s");
        let all = [
            "security.s",
            "trusted.t",
            "user.empty",
            "user.large",
            "user.one",
        ];
        assert_eq!(names(&path), all);
        remove(&path, "user.large").expect("removed");
        assert_eq!(remove(&path, "user.large"), Err(libc::ENODATA));
        assert_eq!(get(&path, "user.large"), Err(libc::ENODATA));
        let moved = dir.join("moved");
        sys::rename(&path, &moved).expect("renamed");
        assert_eq!(get(&moved, "user.one").expect("there"), b"longer");
    });
}

#[test]
fn a_label_of_selinux_is_kept_and_a_missing_one_is_not_supported() {
    needs_root("attributes of security modules");
    mounted(&device(), |dir| {
        let (file, label) = (dir.join("file"), "security.selinux");
        sys::write(&file, "x").expect("written");
        // Where SELinux runs, the kernel answers, with the label of the mount.
        let selinux = Path::new("/sys/fs/selinux/enforce").exists();
        match get(&file, label) {
            Ok(_) => assert!(selinux),
            Err(error) => assert_eq!(error, libc::EOPNOTSUPP),
        }
        assert_eq!(get(&file, "security.other"), Err(libc::ENODATA));
        if !selinux {
            set(&file, label, b"label", 0).expect("set");
            assert_eq!(get(&file, label).expect("read"), b"label");
        }
    });
}

#[test]
fn access_lists_decide_follow_the_mode_and_are_inherited() {
    needs_root("other users");
    mounted(&device(), |dir| {
        sys::set_permissions(dir, sys::Permissions::from_mode(0o755)).expect("set");
        let path = dir.join("file");
        sys::write(&path, "x").expect("written");
        sys::set_permissions(&path, sys::Permissions::from_mode(0o600)).expect("set");
        assert!(!nobody_reads(&path));
        let lets_nobody_in = list(&[
            (USER_OBJ, 6, UNNAMED),
            (USER, 4, NOBODY),
            (GROUP_OBJ, 0, UNNAMED),
            (MASK, 4, UNNAMED),
            (OTHER, 0, UNNAMED),
        ]);
        set(&path, ACCESS, &lets_nobody_in, 0).expect("set");
        assert!(nobody_reads(&path));
        let mode = || path.metadata().expect("there").mode() & 0o777;
        assert_eq!(mode(), 0o640, "the group's bits are the mask");
        sys::set_permissions(&path, sys::Permissions::from_mode(0o600)).expect("set");
        assert!(!nobody_reads(&path), "the mask went with the mode");

        let below = dir.join("below");
        sys::create_dir(&below).expect("made");
        set(&below, DEFAULT, &lets_nobody_in, 0).expect("set");
        assert_eq!(set(&path, DEFAULT, &lets_nobody_in, 0), Err(libc::EACCES));
        let (file, sub) = (below.join("file"), below.join("sub"));
        File::create(&file).expect("made");
        sys::create_dir(&sub).expect("made");
        assert!(nobody_reads(&file));
        assert_eq!(get(&sub, DEFAULT).expect("inherited"), lets_nobody_in);
        assert_eq!(get(&file, ACCESS).expect("inherited"), lets_nobody_in);
        assert_eq!(get(&file, DEFAULT), Err(libc::ENODATA));
        // umask(2) does not apply if the directory has a default list.
        assert_eq!(file.metadata().expect("there").mode() & 0o777, 0o640);
        remove(&below, DEFAULT).expect("removed");
        File::create(below.join("other")).expect("made");
        assert_eq!(get(&below.join("other"), ACCESS), Err(libc::ENODATA));
    });
}

#[test]
fn times_are_kept_to_the_nanosecond_and_before_1970() {
    let device = device();
    let (old, new) = (
        UNIX_EPOCH - Duration::new(100, 1),
        UNIX_EPOCH + Duration::new(4_000_000_000, 123_456_789),
    );
    mounted(&device, |dir| {
        let file = File::create(dir.join("file")).expect("made");
        let times = sys::FileTimes::new().set_accessed(old).set_modified(new);
        let before = SystemTime::now() - Duration::from_secs(1);
        file.set_times(times).expect("set");
        let meta = file.metadata().expect("there");
        let changed = UNIX_EPOCH + Duration::from_secs(meta.ctime() as u64);
        assert!(changed >= before, "the change of a time is a change");
        let modified = sys::FileTimes::new().set_modified(new);
        let other = File::create(dir.join("other")).expect("made");
        let accessed = other.metadata().expect("there").accessed().expect("known");
        other.set_times(modified).expect("set");
        let meta = other.metadata().expect("there");
        assert_eq!(meta.accessed().expect("known"), accessed, "UTIME_OMIT");
    });
    mounted(&device, |dir| {
        let meta = dir.join("file").metadata().expect("there");
        assert_eq!(meta.accessed().expect("known"), old);
        assert_eq!(meta.modified().expect("known"), new);
    });
}

#[test]
fn the_time_of_creation_is_known_and_does_not_change() {
    common::shared(&device(), |dir, files| {
        let path = dir.join("file");
        sys::write(&path, "x").expect("written");
        let made = files
            .lookup(fs::ROOT, b"file")
            .expect("there")
            .inode
            .created;
        let made = UNIX_EPOCH + Duration::new(made.seconds as u64, made.nanos);
        let times = sys::FileTimes::new().set_modified(UNIX_EPOCH);
        let file = File::options().write(true).open(&path).expect("opened");
        file.set_times(times).expect("set");
        let meta = path.metadata().expect("there");
        assert_eq!(meta.modified().expect("a time"), UNIX_EPOCH);
        match meta.created() {
            Ok(created) => assert_eq!(created, made),
            // Linux asks FUSE servers for it since 6.6.
            Err(error) => assert!(common::kernel_before(6, 6), "{error}"),
        }
    });
}

#[test]
fn devices_fifos_and_sockets_are_what_they_were_made() {
    needs_root("device nodes");
    configured(
        &device(),
        |config| config.dev = true,
        |dir, _| {
            let fifo = dir.join("fifo");
            let path = c(&fifo);
            // SAFETY: the string ends with a zero.
            check(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }).expect("made");
            assert!(fifo.metadata().expect("there").file_type().is_fifo());
            std::thread::scope(|scope| {
                scope.spawn(|| sys::write(&fifo, "through the fifo").expect("written"));
                assert_eq!(
                    sys::read(&fifo).expect("readable"),
                    b"through the fifo".to_vec()
                );
            });
            let socket = dir.join("socket");
            let listener = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
            std::os::unix::net::UnixStream::connect(&socket).expect("somebody listens");
            drop(listener);
            assert!(socket.metadata().expect("there").file_type().is_socket());
            let (null, path) = (dir.join("null"), c(&dir.join("null")));
            let number = libc::makedev(1, 3);
            // SAFETY: the string ends with a zero.
            check(unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, number) })
                .expect("made");
            assert_eq!(null.metadata().expect("there").rdev(), number);
            sys::write(&null, "nothing").expect("written");
            assert_eq!(sys::read(&null).expect("readable"), b"");
        },
    );
}

#[test]
fn a_write_takes_the_privileges_of_a_file_away() {
    needs_root("other users");
    mounted(&device(), |dir| {
        let path = dir.join("program");
        sys::write(&path, "x").expect("written");
        // An empty version 2 capability of <linux/capability.h>.
        let capability = [&0x0200_0000u32.to_le_bytes()[..], &[0; 16]].concat();
        set(&path, "security.capability", &capability, 0).expect("set");
        sys::write(&path, "y").expect("written");
        assert_eq!(get(&path, "security.capability"), Err(libc::ENODATA));

        sys::set_permissions(&path, sys::Permissions::from_mode(0o6777)).expect("set");
        let text = c(&path);
        in_another_process(|| {
            // SAFETY: system calls of a single-threaded process, and a zero-terminated string.
            unsafe {
                libc::setresuid(NOBODY, NOBODY, NOBODY) == 0 && {
                    let fd = libc::open(text.as_ptr(), libc::O_WRONLY);
                    libc::write(fd, b"z".as_ptr().cast(), 1) == 1
                }
            }
        });
        assert_eq!(path.metadata().expect("there").mode() & 0o7777, 0o777);
    });
}
