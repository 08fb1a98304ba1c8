//! Operations that applications look for: what the mount has, and what the kernel does not pass to
//! it. The rows of the table in the guide (`docs/guide/filesystem.md`) are here: if a newer kernel
//! passes one of these calls on, its test fails, and EVFS can support it.

mod common;

use block::BlockDevice;
use block_testing::{Mem, MemConfig};
use common::{c, check, configured, device, in_another_process, mounted, store};
use export_fuse::MountConfig;
use fs::{Atime, Fs};
use std::fs::{self as sys, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::UNIX_EPOCH;
use test_support::installed;

const NOBODY: u32 = 65_534;

/// Numbers of ioctls, from <linux/fs.h> and <linux/fiemap.h>.
const FSGETXATTR: u64 = 0x801c_581f;
const FSSETXATTR: u64 = 0x401c_5820;
const GETVERSION: u64 = 0x8008_7601;
const GETFSLABEL: u64 = 0x8100_9431;
const SETFSLABEL: u64 = 0x4100_9432;
const GETFSUUID: u64 = 0x8011_1500;
const GETFSSYSFSPATH: u64 = 0x8081_1501;
const FIEMAP: u64 = 0xc020_660b;
const FICLONE: u64 = 0x4004_9409;
const FIBMAP: u64 = 1;

fn ioctl<T>(file: &File, number: u64, argument: &mut T) -> Result<i64, i32> {
    // SAFETY: an open descriptor, and a value with the size that each caller's number encodes.
    check(unsafe { libc::ioctl(file.as_raw_fd(), number as _, argument as *mut T) })
}

fn create(path: &Path) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true);
    options.open(path).expect("opened")
}

fn run(program: &str, arguments: &[&str], path: &Path) -> std::process::Output {
    let mut command = Command::new(installed(program));
    command
        .args(arguments)
        .arg(path)
        .output()
        .expect("it starts")
}

#[test]
fn calls_that_the_kernel_does_not_pass_to_a_server() {
    mounted(&device(), |dir| {
        let file = create(&dir.join("file"));
        file.write_all_at(&[1; 16_384], 0).expect("written");
        file.sync_all().expect("synced");
        let allocate = |mode: i32| {
            // SAFETY: a call on an open descriptor.
            check(unsafe { libc::fallocate(file.as_raw_fd(), mode, 4096, 4096) })
        };
        for mode in [
            libc::FALLOC_FL_COLLAPSE_RANGE,
            libc::FALLOC_FL_INSERT_RANGE,
            libc::FALLOC_FL_UNSHARE_RANGE,
        ] {
            assert_eq!(allocate(mode), Err(libc::EOPNOTSUPP), "{mode:#x}");
        }
        assert_eq!(ioctl(&file, FIEMAP, &mut [0u64; 16]), Err(libc::EOPNOTSUPP));
        assert_eq!(ioctl(&file, GETFSUUID, &mut [0u8; 32]), Err(libc::ENOTTY));
        assert_eq!(
            ioctl(&file, GETFSSYSFSPATH, &mut [0u8; 256]),
            Err(libc::ENOTTY)
        );
        let target = create(&dir.join("target"));
        // SAFETY: open descriptors.
        let cloned = unsafe { libc::ioctl(target.as_raw_fd(), FICLONE as _, file.as_raw_fd()) };
        assert_eq!(check(cloned), Err(libc::EOPNOTSUPP));
        // A block number of 0 is a hole: there is no block device.
        let mut block = 0i32;
        assert_eq!(ioctl(&file, FIBMAP, &mut block).map(|_| block), Ok(0));
        // `statx` asks the server for attributes, and drops the answer.
        chattr("+d", &dir.join("file"));
        // SAFETY: a structure of numbers, for which zeros are valid.
        let mut statx: libc::statx = unsafe { std::mem::zeroed() };
        let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
        let (at, path) = (libc::AT_FDCWD, c(&dir.join("file")));
        // SAFETY: a zero-terminated string, and a structure for the answer.
        let asked = unsafe { libc::statx(at, path.as_ptr(), 0, mask, &raw mut statx) };
        check(asked).expect("answered");
        let flags = libc::STATX_ATTR_NODUMP as u64 | libc::STATX_ATTR_IMMUTABLE as u64;
        assert_eq!(statx.stx_attributes & flags, 0);
    });
}

fn chattr(change: &str, path: &Path) {
    let done = run("chattr", &[change], path);
    assert!(done.status.success(), "{change}: {done:?}");
}

#[test]
fn a_swap_file_is_refused() {
    for exclusive in [false, true] {
        let set = |config: &mut MountConfig| config.exclusive = exclusive;
        configured(&device(), set, |dir, _| {
            let path = dir.join("swap");
            let file = create(&path);
            file.write_all_at(&vec![0; 4 << 20], 0).expect("written");
            file.sync_all().expect("synced");
            drop(file);
            assert!(run("mkswap", &[], &path).status.success());
            let text = c(&path);
            // SAFETY: the string ends with a zero.
            let on = unsafe { libc::swapon(text.as_ptr(), 0) };
            assert_eq!(check(on), Err(libc::EINVAL));
            assert_eq!(sys::read(&path).expect("readable").len(), 4 << 20);
        });
    }
}

#[test]
fn the_project_of_a_file_is_its_fileset_and_cannot_be_changed() {
    mounted(&device(), |dir| {
        let path = dir.join("file");
        let file = create(&path);
        chattr("+d", &path);
        // `struct fsxattr`: flags, extent size, extents, project, extent size for copies, padding.
        let mut xattr = [0u32; 7];
        ioctl(&file, FSGETXATTR, &mut xattr).expect("answered");
        assert_eq!((xattr[0], xattr[1], xattr[3]), (0x80, 0, 1));
        ioctl(&file, FSSETXATTR, &mut [0x40, 0, 0, 1, 0, 0, 0]).expect("set");
        ioctl(&file, FSGETXATTR, &mut xattr).expect("answered");
        assert_eq!(xattr[0], 0x40);
        for wrong in [
            [0, 0, 0, 2, 0, 0, 0],
            [1, 0, 0, 1, 0, 0, 0],
            [0x800, 4096, 0, 1, 0, 0, 0],
        ] {
            let mut wrong: [u32; 7] = wrong;
            assert_eq!(
                ioctl(&file, FSSETXATTR, &mut wrong),
                Err(libc::EOPNOTSUPP),
                "{wrong:?}"
            );
        }
        let mut generation = 0u64;
        ioctl(&file, GETVERSION, &mut generation).expect("answered");
        assert_ne!(generation, 0);
        let root = File::open(dir).expect("opened");
        ioctl(&root, FSGETXATTR, &mut xattr).expect("a directory has one, too");
        assert_eq!(xattr[3], 1);
    });
}

#[test]
fn the_label_is_read_by_all_and_set_by_root() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(64 << 20, 4096));
    Fs::format(Arc::clone(&device), "before").expect("it formats");
    let label = |dir: &Path| {
        let (root, mut label) = (File::open(dir).expect("opened"), [1u8; 256]);
        ioctl(&root, GETFSLABEL, &mut label).expect("answered");
        let text = label.split(|byte| *byte == 0).next().expect("a first part");
        String::from_utf8(text.to_vec()).expect("text")
    };
    let set = |dir: &Path, text: &str| {
        let (root, mut label) = (File::open(dir).expect("opened"), [0u8; 256]);
        label[..text.len()].copy_from_slice(text.as_bytes());
        ioctl(&root, SETFSLABEL, &mut label).map(drop)
    };
    mounted(&device, |dir| {
        assert_eq!(label(dir), "before");
        set(dir, "größer").expect("set");
        assert_eq!(label(dir), "größer");
        assert_eq!(set(dir, &"x".repeat(65)), Err(libc::EINVAL));
        assert_eq!(set(dir, "a\nb"), Err(libc::EINVAL));
        let root = c(dir);
        in_another_process(|| {
            let label = [b'x'; 256];
            // SAFETY: system calls of a single-threaded process, with a zero-terminated string
            // and a buffer of the encoded length.
            unsafe {
                libc::setresuid(NOBODY, NOBODY, NOBODY) == 0 && {
                    let fd = libc::open(root.as_ptr(), libc::O_RDONLY);
                    libc::ioctl(fd, SETFSLABEL as _, &label) == -1
                        && *libc::__errno_location() == libc::EPERM
                }
            }
        });
    });
    mounted(&device, |dir| assert_eq!(label(dir), "größer"));
}

#[test]
fn fstrim_passes_free_space_to_a_disk_that_takes_it() {
    for discard in [true, false] {
        let mem = Mem::with(MemConfig {
            discard,
            ..MemConfig::new(64 << 20, 4096)
        });
        let device: Arc<dyn BlockDevice> = Arc::new(mem);
        Fs::format(Arc::clone(&device), "").expect("it formats");
        mounted(&device, |dir| {
            sys::write(dir.join("kept"), vec![7; 8 << 20]).expect("written");
            sys::write(dir.join("file"), vec![8; 8 << 20]).expect("written");
            File::open(dir).expect("opened").sync_all().expect("synced");
            sys::remove_file(dir.join("file")).expect("removed");
            let done = run("fstrim", &["-v"], dir);
            let said = String::from_utf8_lossy(&done.stdout).into_owned();
            assert_eq!(done.status.success(), discard, "{done:?}");
            if discard {
                let bytes = said
                    .split(['(', ' '])
                    .find_map(|word| word.parse::<u64>().ok());
                assert!(bytes.is_some_and(|bytes| bytes > 0), "{said}");
            } else {
                let said = String::from_utf8_lossy(&done.stderr).into_owned();
                assert!(said.contains("not supported"), "{said}");
            }
            assert_eq!(
                sys::read(dir.join("kept")).expect("readable"),
                vec![7; 8 << 20]
            );
        });
        mounted(&device, |dir| {
            assert_eq!(
                sys::read(dir.join("kept")).expect("readable"),
                vec![7; 8 << 20]
            );
        });
    }
}

#[test]
fn with_strict_access_times_each_read_counts_and_mappings_work() {
    let strict = |config: &mut MountConfig| config.atime = Atime::Strict;
    configured(&device(), strict, |dir, _| {
        let path = dir.join("file");
        sys::write(&path, vec![3; 10_000]).expect("written");
        let accessed = |path: &Path| path.metadata().expect("there").atime();
        let reset = || {
            let times = sys::FileTimes::new().set_accessed(UNIX_EPOCH);
            let file = File::options().write(true).open(&path).expect("opened");
            file.set_times(times).expect("set");
        };
        if common::kernel_before(6, 6) {
            return;
        }
        for _ in 0..3 {
            sys::read(&path).expect("readable");
            reset();
            assert_eq!(accessed(&path), 0);
            sys::read(&path).expect("readable");
            assert_ne!(
                accessed(&path),
                0,
                "the kernel has not answered from its cache"
            );
        }
        let text = c(&path);
        in_another_process(|| {
            store(&text, 0, 4, |_, map| {
                // SAFETY: the mapping has a page, of a file that is longer.
                unsafe { map.add(1).read_volatile() == 3 }
            })
        });
        let file = create(&path);
        let mut first = [0; 2];
        file.read_exact_at(&mut first, 0).expect("readable");
        assert_eq!(first, [4, 3]);
    });
}
