//! Set-user-ID, set-group-ID and device nodes through a mount: when files lose these bits, and when
//! the mount honors them. Needs `/dev/fuse` and root.

mod common;

use common::{c, check, configured, device, in_another_process};
use std::ffi::CString;
use std::fs as sys;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use test_support::needs_root;

const NOBODY: u32 = 65_534;

/// Switches a forked child to an unprivileged user.
fn become_unprivileged(groups: &[u32]) -> bool {
    // SAFETY: system calls of a single-threaded process.
    unsafe {
        libc::setgroups(groups.len(), groups.as_ptr()) == 0
            && libc::setresgid(NOBODY, NOBODY, NOBODY) == 0
            && libc::setresuid(NOBODY, NOBODY, NOBODY) == 0
    }
}

/// Returns the mode cached by the kernel, without asking the server: the one that execve(2) uses.
fn kernel_mode(path: &CString) -> u32 {
    // SAFETY: all zeros are a valid value of this structure.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the string ends with a zero, and the structure is large enough.
    let got = unsafe {
        let flags = libc::AT_STATX_DONT_SYNC;
        libc::statx(
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            libc::STATX_MODE,
            &mut stat,
        )
    };
    check(got).expect("there");
    u32::from(stat.stx_mode) & 0o7777
}

/// A page with the alignment that O_DIRECT writes need.
#[repr(align(4096))]
struct Page([u8; 4096]);

/// A way to change the content of a file: its name, flags to open the file with, and the change.
type Way = (&'static str, i32, fn(i32, i32) -> bool);

const WAYS: [Way; 9] = [
    ("write", 0, |fd, _| write(fd, 1)),
    ("synchronous write", libc::O_SYNC, |fd, _| write(fd, 1)),
    ("append", libc::O_APPEND, |fd, _| write(fd, 1)),
    ("direct write", libc::O_DIRECT, |fd, _| write(fd, 4096)),
    ("truncation", 0, |fd, _| {
        // SAFETY: a call on an open descriptor.
        unsafe { libc::ftruncate(fd, 5) == 0 }
    }),
    ("truncating open", libc::O_TRUNC, |_, _| true),
    ("allocation", 0, |fd, _| {
        // SAFETY: a call on an open descriptor.
        unsafe { libc::fallocate(fd, 0, 0, 100_000) == 0 }
    }),
    ("hole", 0, |fd, _| {
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a call on an open descriptor.
        unsafe { libc::fallocate(fd, punch, 0, 4096) == 0 }
    }),
    ("copied range", 0, |fd, from| {
        let none = std::ptr::null_mut();
        // SAFETY: a call on open descriptors.
        unsafe { libc::copy_file_range(from, none, fd, none, 100, 0) == 100 }
    }),
];

fn write(fd: i32, len: usize) -> bool {
    static PAGE: Page = Page([b'x'; 4096]);
    // SAFETY: the page has at least `len` bytes.
    unsafe { libc::write(fd, PAGE.0.as_ptr().cast(), len) == len as isize }
}

fn changes_take_them(exclusive: bool) {
    let set = |config: &mut export_fuse::MountConfig| {
        (config.suid, config.exclusive) = (true, exclusive);
    };
    configured(&device(), set, |dir, _| {
        let source = dir.join("source");
        sys::write(&source, [b's'; 200]).expect("written");
        let from = c(&source);
        for (what, flags, change) in WAYS {
            for owner in [0, NOBODY] {
                let file = dir.join("file");
                sys::write(&file, [b'o'; 8192]).expect("written");
                chown(&file, Some(owner), Some(NOBODY)).expect("given");
                sys::set_permissions(&file, sys::Permissions::from_mode(0o6775)).expect("set");
                let path = c(&file);
                assert_eq!(kernel_mode(&path), 0o6775);
                in_another_process(|| {
                    // SAFETY: system calls of a single-threaded process, and zero-terminated
                    // strings.
                    let (fd, from) = unsafe {
                        let from = libc::open(from.as_ptr(), libc::O_RDONLY);
                        if !become_unprivileged(&[]) {
                            return false;
                        }
                        (libc::open(path.as_ptr(), libc::O_WRONLY | flags), from)
                    };
                    // SAFETY: this process owns the descriptor.
                    fd >= 0 && change(fd, from) && unsafe { libc::close(fd) == 0 }
                });
                assert_eq!(kernel_mode(&path), 0o775, "{what} of a file of {owner}");
                let mode = file.metadata().expect("there").permissions().mode();
                assert_eq!(mode & 0o7777, 0o775, "{what} of a file of {owner}");
                sys::remove_file(&file).expect("removed");
            }
        }
    });
}

#[test]
fn a_change_of_content_clears_set_ids_before_the_file_can_be_run() {
    needs_root("files of other users");
    changes_take_them(false);
}

#[test]
fn so_it_does_where_the_kernel_holds_back_what_is_written() {
    needs_root("files of other users");
    changes_take_them(true);
}

#[test]
fn root_keeps_set_ids_when_it_writes() {
    needs_root("files of other users");
    configured(
        &device(),
        |_| (),
        |dir, _| {
            let file = dir.join("file");
            sys::write(&file, "old").expect("written");
            sys::set_permissions(&file, sys::Permissions::from_mode(0o4755)).expect("set");
            sys::write(&file, "new").expect("written");
            assert_eq!(kernel_mode(&c(&file)), 0o4755);
        },
    );
}

/// Sets an access list with a named user as an unprivileged user in `groups`; returns the new mode.
fn mode_after_acl(path: &Path, groups: &[u32]) -> u32 {
    let entries: [(u16, u16, u32); 5] = [
        (1, 7, u32::MAX),
        (2, 7, 1),
        (4, 7, u32::MAX),
        (16, 7, u32::MAX),
        (32, 7, u32::MAX),
    ];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permission, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(permission.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    let path = c(path);
    in_another_process(|| {
        let (from, len) = (list.as_ptr().cast(), list.len());
        // SAFETY: the strings end with a zero, and `len` is the length of the value.
        become_unprivileged(groups)
            && unsafe {
                let name = c"system.posix_acl_access";
                libc::setxattr(path.as_ptr(), name.as_ptr(), from, len, 0) == 0
            }
    });
    kernel_mode_now(&path)
}

fn kernel_mode_now(path: &CString) -> u32 {
    let path = Path::new(path.to_str().expect("text"));
    path.metadata().expect("there").permissions().mode() & 0o7777
}

#[test]
fn an_access_list_takes_set_group_id_from_a_file_of_a_group_that_its_owner_is_not_in() {
    needs_root("files of other users");
    configured(
        &device(),
        |_| (),
        |dir, _| {
            let (file, folder) = (dir.join("file"), dir.join("folder"));
            sys::write(&file, "").expect("written");
            sys::create_dir(&folder).expect("made");
            for path in [&file, &folder] {
                for (groups, mode) in [(&[][..], 0o777), (&[7][..], 0o2777)] {
                    chown(path, Some(NOBODY), Some(7)).expect("given");
                    sys::set_permissions(path, sys::Permissions::from_mode(0o2755)).expect("set");
                    assert_eq!(mode_after_acl(path, groups), mode, "{groups:?}");
                }
            }
        },
    );
}

/// Returns the flags of the mount that a directory is on.
fn flags(dir: &Path) -> u64 {
    // SAFETY: all zeros are a valid value of this structure.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    let path = c(dir);
    // SAFETY: the string ends with a zero, and the structure is large enough.
    check(unsafe { libc::statvfs(path.as_ptr(), &mut stat) }).expect("statvfs");
    stat.f_flag
}

#[test]
fn set_ids_and_devices_count_only_where_they_were_asked_for() {
    needs_root("files of other users");
    for asked in [false, true] {
        let set =
            |config: &mut export_fuse::MountConfig| (config.suid, config.dev) = (asked, asked);
        configured(&device(), set, |dir, _| {
            let both = libc::ST_NOSUID | libc::ST_NODEV;
            assert_eq!(flags(dir) & both, if asked { 0 } else { both });
            let null = dir.join("null");
            let path = c(&null);
            let number = libc::makedev(1, 3);
            // SAFETY: the string ends with a zero.
            check(unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, number) })
                .expect("made");
            let opened = sys::File::open(&null);
            assert_eq!(opened.is_ok(), asked, "{opened:?}");
        });
    }
}
