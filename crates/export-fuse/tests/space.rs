//! Allocation of space through a mount: holes, preallocation, sizes at the limit.

mod common;

use common::{c, check, configured, device, in_another_process, mounted, store};
use std::fs::{self as sys, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

fn create(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options.open(path).expect("open")
}

fn seek(file: &File, from: i64, whence: i32) -> Result<i64, i32> {
    // SAFETY: a call on an open descriptor.
    check(unsafe { libc::lseek(file.as_raw_fd(), from, whence) })
}

fn allocate(file: &File, mode: i32, range: std::ops::Range<i64>) -> Result<i64, i32> {
    let len = range.end - range.start;
    // SAFETY: a call on an open descriptor.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, range.start, len) })
}

fn blocks(file: &File) -> u64 {
    file.metadata().expect("there").blocks() / 8
}

#[test]
fn holes_are_found_also_where_pages_wait_to_be_written() {
    mounted(&device(), |dir| {
        let file = create(&dir.join("file"));
        file.write_all_at(&[1; 4096], 1 << 20).expect("written");
        file.set_len(4 << 20).expect("longer");
        for synced in [false, true] {
            if synced {
                file.sync_all().expect("synced");
            }
            assert_eq!(seek(&file, 0, libc::SEEK_DATA), Ok(1 << 20));
            assert_eq!(seek(&file, 0, libc::SEEK_HOLE), Ok(0));
            assert_eq!(seek(&file, 1 << 20, libc::SEEK_HOLE), Ok((1 << 20) + 4096));
            assert_eq!(seek(&file, 2 << 20, libc::SEEK_DATA), Err(libc::ENXIO));
            assert_eq!(seek(&file, 4 << 20, libc::SEEK_HOLE), Err(libc::ENXIO));
        }
    });
}

#[test]
fn data_that_only_the_kernel_has_is_found_at_once() {
    for exclusive in [false, true] {
        configured(
            &device(),
            |config| config.exclusive = exclusive,
            |dir, _| {
                let file = create(&dir.join("file"));
                file.write_all_at(&[1; 4096], 1 << 20).expect("written");
                file.set_len(8 << 20).expect("longer");
                assert_eq!(seek(&file, 0, libc::SEEK_DATA), Ok(1 << 20));
                let after = (1 << 20) + 4096;
                assert_eq!(seek(&file, after, libc::SEEK_DATA), Err(libc::ENXIO));
                let path = c(&dir.join("file"));
                for at in [after, 2 << 20, 0] {
                    in_another_process(|| {
                        store(&path, at, 5, |fd, map| {
                            // SAFETY: an open descriptor and a mapping of a page.
                            unsafe {
                                let data = libc::lseek(fd, at, libc::SEEK_DATA);
                                map.write_volatile(6);
                                let hole = libc::lseek(fd, at, libc::SEEK_HOLE);
                                (data, hole) == (at, at + 4096)
                            }
                        })
                    });
                    let mut byte = [0];
                    file.read_exact_at(&mut byte, at as u64).expect("readable");
                    assert_eq!(byte, [6], "no store is lost");
                }
                assert_eq!(seek(&file, 0, libc::SEEK_HOLE), Ok(4096));
                assert_eq!(seek(&file, 4096, libc::SEEK_DATA), Ok(1 << 20));
                assert_eq!(seek(&file, 1 << 20, libc::SEEK_HOLE), Ok(after + 4096));
                assert_eq!(seek(&file, 3 << 20, libc::SEEK_DATA), Err(libc::ENXIO));
                // Beyond the end that the server knows.
                let end = 16 << 20;
                file.write_all_at(&[2; 4096], end as u64).expect("written");
                assert_eq!(seek(&file, 9 << 20, libc::SEEK_DATA), Ok(end));
                assert_eq!(seek(&file, end, libc::SEEK_HOLE), Ok(end + 4096));
                assert_eq!(seek(&file, end + 4096, libc::SEEK_HOLE), Err(libc::ENXIO));
            },
        );
    }
}

#[test]
fn fallocate_keeps_space_punches_and_zeroes_in_its_five_ways() {
    use libc::{FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_KEEP_SIZE as KEEP, FALLOC_FL_PUNCH_HOLE};
    use libc::{FALLOC_FL_INSERT_RANGE, FALLOC_FL_ZERO_RANGE as ZERO};
    mounted(&device(), |dir| {
        let path = dir.join("file");
        let file = create(&path);
        let len = || file.metadata().expect("there").len();
        allocate(&file, KEEP, 0..40_960).expect("allocated");
        assert_eq!((len(), blocks(&file)), (0, 10));
        allocate(&file, 0, 0..81_920).expect("allocated");
        assert_eq!((len(), blocks(&file)), (81_920, 20));
        file.write_all_at(&vec![9; 81_920], 0).expect("written");
        allocate(&file, FALLOC_FL_PUNCH_HOLE | KEEP, 1000..20_000).expect("punched");
        allocate(&file, ZERO, 30_000..50_000).expect("zeroed");
        allocate(&file, ZERO | KEEP, 81_000..90_000).expect("zeroed");
        file.sync_all().expect("synced");
        let mut expected = vec![9; 81_920];
        for zeros in [1000..20_000, 30_000..50_000, 81_000..81_920] {
            expected[zeros].fill(0);
        }
        assert!(sys::read(&path).expect("readable") == expected);
        // Blocks 1, 2 and 3 lie fully in the hole; the last request extended into two more.
        assert_eq!((len(), blocks(&file)), (81_920, 20 - 3 + 2));
        allocate(&file, ZERO, 100_000..110_000).expect("zeroed");
        assert_eq!(len(), 110_000);
        for mode in [FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE] {
            assert_eq!(allocate(&file, mode, 0..4096), Err(libc::EOPNOTSUPP));
        }
        assert_eq!(allocate(&file, 0, 0..0), Err(libc::EINVAL));
    });
}

#[test]
fn a_file_reaches_16_tib_and_no_further() {
    const END: u64 = 16 << 40;
    mounted(&device(), |dir| {
        let file = create(&dir.join("file"));
        file.set_len(END).expect("as long as can be");
        file.write_all_at(b"the end", END - 7).expect("written");
        let mut read = [0; 10];
        assert_eq!(file.read_at(&mut read, END - 7).expect("readable"), 7);
        assert_eq!(&read[..7], b"the end");
        let refused = |e: std::io::Error| e.raw_os_error();
        assert_eq!(
            file.set_len(END + 1).map_err(refused),
            Err(Some(libc::EFBIG))
        );
        assert_eq!(
            file.write_at(b"x", END).map_err(refused),
            Err(Some(libc::EFBIG))
        );
        assert_eq!(file.metadata().expect("there").len(), END);
        assert!(blocks(&file) <= 2);
        assert_eq!(seek(&file, 0, libc::SEEK_DATA), Ok(END as i64 - 4096));
    });
}

#[test]
fn bytes_are_copied_from_file_to_file() {
    mounted(&device(), |dir| {
        let from = create(&dir.join("from"));
        let content: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
        from.write_all_at(&content, 0).expect("written");
        let to = create(&dir.join("to"));
        let (mut in_at, mut out_at, mut left) = (1000i64, 5000i64, 150_000);
        while left > 0 {
            let (i, o) = (from.as_raw_fd(), to.as_raw_fd());
            // SAFETY: open descriptors, and two offsets that live through the call.
            let done = unsafe { libc::copy_file_range(i, &mut in_at, o, &mut out_at, left, 0) };
            left -= check(done as i64).expect("copied") as usize;
        }
        let copy = sys::read(dir.join("to")).expect("readable");
        assert_eq!(copy.len(), 155_000);
        assert!(copy[5000..] == content[1000..151_000]);
        assert!(copy[..5000].iter().all(|byte| *byte == 0));
    });
}

#[test]
fn statfs_shows_space_that_goes_and_comes_back() {
    mounted(&device(), |dir| {
        let path = c(dir);
        let stat = || {
            // SAFETY: zeros are a valid statvfs, which the call fills; the path ends with a zero.
            unsafe {
                let mut stat: libc::statvfs = std::mem::zeroed();
                assert_eq!(libc::statvfs(path.as_ptr(), &mut stat), 0);
                stat
            }
        };
        let before = stat();
        assert_eq!((before.f_bsize, before.f_namemax), (4096, 255));
        assert!(before.f_blocks <= 65_536 && before.f_bfree <= before.f_blocks);
        sys::write(dir.join("file"), vec![1; 32 << 20]).expect("written");
        let between = stat();
        // One of 17 blocks is reserved for the metadata that names the others.
        assert!(between.f_bavail + 8192 / 17 * 16 <= before.f_bavail);
        assert!(between.f_files >= 2);
        sys::remove_file(dir.join("file")).expect("removed");
        common::wait_until("the space is free again", || {
            File::open(dir).expect("open").sync_all().expect("synced");
            stat().f_bavail + 64 >= before.f_bavail
        });
    });
}
