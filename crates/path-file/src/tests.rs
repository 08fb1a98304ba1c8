//! Tests of file devices, in the temporary directory, on tmpfs and on a loop device.

use crate::{Direct, Engine, FileDevice, Holder, Lock, Options, Sharing};
use block::{BlockDevice, Blocking, Buf, BufPool, ErrorKind, Op, Request, Wait};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: u64 = 8 << 20;

fn options(engine: Engine) -> Options {
    Options {
        engine,
        ..Options::default()
    }
}

/// Runs a test on a new file on a disk for each engine, and on tmpfs, where O_DIRECT may be
/// refused.
fn each(mut test: impl FnMut(&str, Arc<FileDevice>)) {
    for (folder, engine) in [
        (std::env::temp_dir(), Engine::IoUring),
        (std::env::temp_dir(), Engine::Psync),
        (Path::new("/dev/shm").to_owned(), Engine::IoUring),
    ] {
        let dir = tempfile::tempdir_in(folder).unwrap();
        let device = FileDevice::create(&dir.path().join("disk"), SIZE, &options(engine)).unwrap();
        test(&format!("{engine:?} in {:?}", dir.path()), device);
    }
}

#[test]
fn a_file_that_is_enlarged_is_larger_for_open_queues() {
    each(|name, device| {
        let mut queue = Blocking::open(&*device).unwrap();
        device.enlarge(2 * SIZE + 100).unwrap();
        assert_eq!(device.info().size, SIZE, "{name}");
        assert!(queue.write_at(SIZE, &[1; 4096]).is_err(), "{name}");
        assert_eq!(device.storage_size().unwrap(), 2 * SIZE, "{name}");
        assert_eq!(device.update_size().unwrap(), 2 * SIZE, "{name}");
        queue.write_at(2 * SIZE - 4096, &[1; 4096]).unwrap();
        assert!(queue.write_at(2 * SIZE, &[1; 4096]).is_err(), "{name}");
        let refused = device.enlarge(2 * SIZE).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{name}");
        assert!(device.shorten(2 * SIZE + 200).is_err(), "{name}");
        device.shorten(SIZE).unwrap();
        let file = std::fs::metadata(device.path()).unwrap();
        assert_eq!(file.len(), SIZE, "{name}");
        let smaller = device.update_size().unwrap_err().to_string();
        assert!(smaller.contains("become smaller"), "{name}: {smaller}");
    });
}

#[test]
fn what_is_written_is_read_in_pieces_of_any_shape() {
    each(|name, device| {
        let block = device.info().logical_block_size as usize;
        let mut queue = device.queue().unwrap();
        let pool = BufPool::new(256 * 1024, 8);
        queue.register(&pool);
        let pattern = |i: usize| (i % 251) as u8;
        let mut first = pool.take(64 * 1024).unwrap();
        let mut second = Buf::zeroed(3 * block);
        (0..first.len()).for_each(|i| first[i] = pattern(i));
        let at = first.len();
        (0..second.len()).for_each(|i| second[i] = pattern(at + i));
        let total = at + 3 * block;
        let op = Op::Write {
            offset: block as u64,
            bufs: vec![first, second].into(),
            fua: true,
        };
        let mut done = Vec::new();
        queue.submit(Request { tag: 7, op }).unwrap();
        assert_eq!(queue.reap(Wait::Block, &mut done).unwrap(), 1, "{name}");
        let written = done.pop().unwrap();
        assert_eq!((written.tag, written.result.is_ok()), (7, true), "{name}");
        drop(written);
        let op = Op::Read {
            offset: block as u64,
            bufs: pool.take(total).unwrap().into(),
        };
        queue.submit(Request { tag: 8, op }).unwrap();
        queue.reap(Wait::Block, &mut done).unwrap();
        let Op::Read { bufs, .. } = done.pop().unwrap().op else {
            panic!("{name}")
        };
        assert!(
            bufs.as_slice()[0]
                .iter()
                .enumerate()
                .all(|(i, b)| *b == pattern(i)),
            "{name}"
        );
    });
}

#[test]
fn zeroes_and_discards_touch_their_range_and_no_neighbour() {
    each(|name, device| {
        let mut device = Blocking::open(&device).unwrap();
        for unmap in [false, true] {
            device.write_at(0, &vec![0xaa; 1 << 20]).unwrap();
            for (offset, len, fua) in [(8192, 65536, false), (131072, 4096, true)] {
                device
                    .run(Op::WriteZeroes {
                        offset,
                        len,
                        fua,
                        unmap,
                    })
                    .unwrap();
            }
            let mut all = vec![0; 1 << 20];
            device.read_at(0, &mut all).unwrap();
            for (i, byte) in all.iter().enumerate() {
                let zero = (8192..73728).contains(&i) || (131072..135168).contains(&i);
                assert_eq!(
                    *byte,
                    if zero { 0 } else { 0xaa },
                    "{name}: byte {i}, unmap {unmap}"
                );
            }
            if device.info().discard {
                device.discard(16384, 8192).unwrap();
                device.read_at(0, &mut all).unwrap();
                assert_eq!((all[8191], all[135168]), (0xaa, 0xaa), "{name}");
            }
            device.flush().unwrap();
        }
    });
}

#[test]
fn a_file_cut_off_behind_our_back_is_an_error_and_not_zeros() {
    each(|name, device| {
        std::fs::OpenOptions::new()
            .write(true)
            .open(device.path())
            .unwrap()
            .set_len(4096)
            .unwrap();
        let error = Blocking::open(&device)
            .unwrap()
            .read_at(SIZE / 2, &mut [0; 4096])
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Media, "{name}: {error}");
    });
}

#[test]
fn a_second_opening_for_writing_is_busy_and_readers_share() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let writer = FileDevice::create(&path, SIZE, &Options::default()).unwrap();
    assert_eq!(
        FileDevice::open(&path, &Options::default())
            .unwrap_err()
            .kind(),
        ErrorKind::Busy
    );
    let reading = Options {
        read_only: true,
        lock: Lock::Shared,
        ..Options::default()
    };
    assert_eq!(
        FileDevice::open(&path, &reading).unwrap_err().kind(),
        ErrorKind::Busy
    );
    // The header can still be read, and its lock is a separate one.
    let looking = Options {
        read_only: true,
        lock: Lock::None,
        ..Options::default()
    };
    let _guard = FileDevice::open(&path, &looking)
        .unwrap()
        .header_lock(Sharing::Exclusive)
        .unwrap();
    drop(writer);
    let plain = Options {
        read_only: true,
        ..Options::default()
    };
    let _a = FileDevice::open(&path, &plain).unwrap();
    let _b = FileDevice::open(&path, &reading).unwrap();
    assert_eq!(
        FileDevice::open(&path, &Options::default())
            .unwrap_err()
            .kind(),
        ErrorKind::Busy
    );
}

#[test]
fn dropping_a_queue_with_requests_in_flight_gives_every_buffer_back() {
    each(|name, device| {
        let pool = BufPool::new(65536, 32);
        let mut queue = device.queue().unwrap();
        queue.register(&pool);
        for i in 0..32 {
            let bufs = pool.take(65536).unwrap().into();
            let op = if i % 2 == 0 {
                Op::Read {
                    offset: i * 65536,
                    bufs,
                }
            } else {
                Op::Write {
                    offset: i * 65536,
                    bufs,
                    fua: i % 4 == 1,
                }
            };
            queue.submit(Request { tag: i, op }).unwrap();
        }
        queue.kick().unwrap();
        drop(queue);
        let back: Vec<_> = std::iter::from_fn(|| pool.take(65536)).collect();
        assert_eq!(back.len(), 32, "{name}");
    });
}

mod needs_root {
    use super::*;

    #[test]
    fn a_full_file_system_is_no_space_and_what_was_written_stays() {
        test_support::needs_root("a small tmpfs");
        let dir = tempfile::tempdir().unwrap();
        let small = |args: &[&str]| {
            assert!(
                std::process::Command::new(args[0])
                    .args(&args[1..])
                    .arg(dir.path())
                    .status()
                    .unwrap()
                    .success()
            );
        };
        small(&["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs"]);
        let result = std::panic::catch_unwind(|| {
            let device =
                FileDevice::create(&dir.path().join("disk"), SIZE, &Options::default()).unwrap();
            let mut device = Blocking::open(&device).unwrap();
            device.write_at(0, &[1; 65536]).unwrap();
            assert_eq!(
                device
                    .write_at(65536, &vec![2; 4 << 20])
                    .unwrap_err()
                    .kind(),
                ErrorKind::NoSpace
            );
            let mut back = vec![0; 65536];
            device.read_at(0, &mut back).unwrap();
            assert!(back.iter().all(|b| *b == 1));
        });
        small(&["umount", "-l"]);
        result.unwrap();
    }
}

#[test]
fn what_is_no_disk_is_refused() {
    for path in ["/dev/null", "/"] {
        let error = FileDevice::open(Path::new(path), &Options::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{path}: {error}");
    }
    let error = FileDevice::open(Path::new("/no/such/file"), &Options::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn direct_is_used_on_a_disk_and_said_where_it_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let cached = Options {
        direct: Direct::Never,
        ..Options::default()
    };
    let device = FileDevice::create(&dir.path().join("disk"), SIZE, &cached).unwrap();
    assert!(!device.direct() && device.why_not_direct().is_some());
}

#[test]
fn files_on_a_disk_pass_the_conformance_suite() {
    for (folder, engine) in [
        (std::env::temp_dir(), Engine::IoUring),
        (std::env::temp_dir(), Engine::Psync),
        (Path::new("/dev/shm").to_owned(), Engine::IoUring),
    ] {
        let dir = tempfile::tempdir_in(folder).unwrap();
        let count = std::cell::Cell::new(0);
        block_testing::conformance::run(&|| {
            count.set(count.get() + 1);
            let path = dir.path().join(format!("disk{}", count.get()));
            FileDevice::create(&path, 16 << 20, &options(engine)).unwrap()
        });
    }
}

/// Kills a process with the file open, whose lock the kernel may hold for a moment.
#[test]
fn the_lock_of_a_killed_process_is_not_in_the_way() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    drop(FileDevice::create(&path, SIZE, &Options::default()).unwrap());
    for _ in 0..5 {
        // SAFETY: the child only opens, reads, and stops; it never returns into the test.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            if let Ok(device) = FileDevice::open(&path, &Options::default()) {
                let _ = Blocking::open(&device).and_then(|mut d| d.read_at(0, &mut [0; 4096]));
                // SAFETY: stops this process until it is killed.
                unsafe { libc::raise(libc::SIGSTOP) };
            }
            // SAFETY: ends the child without running the test harness's exit handlers.
            unsafe { libc::_exit(1) };
        }
        let mut status = 0;
        // SAFETY: the process is our child, and `status` has room for its status.
        unsafe {
            libc::waitpid(pid, &mut status, libc::WUNTRACED);
            assert!(
                libc::WIFSTOPPED(status),
                "the child could not open the file"
            );
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, &mut status, 0);
        }
        FileDevice::open(&path, &Options::default()).unwrap();
    }
}

/// Opens a file for a process that another one may continue; returns it with the descriptor that has
/// the lock.
fn with_lock_apart(path: &Path) -> (Arc<FileDevice>, Arc<OwnedFd>) {
    let options = Options {
        holder: Holder::Apart,
        ..Options::default()
    };
    let device = FileDevice::open(path, &options).unwrap();
    let holder = device.lock_holder().unwrap().try_clone_to_owned();
    (device, Arc::new(holder.unwrap()))
}

fn continued(path: &Path, holder: &Arc<OwnedFd>) -> block::Result<Arc<FileDevice>> {
    let options = Options {
        holder: Holder::Predecessor(Arc::clone(holder)),
        ..Options::default()
    };
    FileDevice::open(path, &options)
}

#[test]
fn a_lock_that_is_handed_on_is_never_free_and_waits_for_the_last_request() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    drop(FileDevice::create(&path, SIZE, &Options::default()).unwrap());
    let (first, holder) = with_lock_apart(&path);
    let is_busy = || {
        let opened = FileDevice::open(&path, &Options::default());
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::Busy);
        let reader = Options {
            read_only: true,
            lock: Lock::Shared,
            ..Options::default()
        };
        let opened = FileDevice::open(&path, &reader);
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::Busy);
    };
    is_busy();
    // A queue stands for the rings of a killed process, which the kernel has not torn down yet.
    let ring = first.queue().unwrap();
    drop(first);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            let second = continued(&path, &holder).unwrap();
            drop(second);
            begun.elapsed()
        });
        std::thread::sleep(Duration::from_millis(300));
        drop(ring);
        let opened_after = second.join().unwrap();
        assert!(
            opened_after >= Duration::from_millis(300),
            "a request may be under way"
        );
    });
    // Between two processes, only the descriptor keeps others out.
    is_busy();
    // It is the same file, also if another one has its name by now.
    std::fs::rename(&path, dir.path().join("renamed")).unwrap();
    drop(FileDevice::create(&path, 2 * SIZE, &Options::default()).unwrap());
    let third = continued(&path, &holder).unwrap();
    assert_eq!(third.info().size, SIZE);
    drop((third, holder));
    FileDevice::open(&dir.path().join("renamed"), &Options::default()).unwrap();
}

#[test]
fn a_device_that_ends_in_order_is_free_although_a_successor_could_continue() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    drop(FileDevice::create(&path, SIZE, &Options::default()).unwrap());
    let (first, _holder) = with_lock_apart(&path);
    first.end_in_order();
    drop(first);
    FileDevice::open(&path, &Options::default()).unwrap();
}

#[test]
fn the_header_lock_is_on_the_file_that_is_open_whatever_has_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, other) = (dir.path().join("disk"), dir.path().join("other"));
    let device = FileDevice::create(&disk, SIZE, &Options::default()).unwrap();
    let opened = std::fs::File::open(&disk).unwrap();
    std::fs::write(&other, b"another file").unwrap();
    std::fs::rename(&other, &disk).unwrap();
    let guard = device.header_lock(Sharing::Exclusive).unwrap();
    assert!(opened.try_lock().is_err(), "the open file is not locked");
    let renamed = std::fs::File::open(&disk).unwrap();
    renamed.try_lock().expect("nobody locks the other file");
    drop(guard);
    opened.try_lock().expect("the lock is given up");
}
