//! What a program can count on when it maps a file, over the small cache of `small`.
//!
//! Poison is looked for with a system call, which fails with EFAULT where a load would be a SIGBUS;
//! the signals themselves are met by children.

mod small;

use block::{BlockDevice, ErrorDevice, ErrorKind, Failure, Mem, OpKind};
use cache::window::{Access, Config, Home, Mapping, PAGE_BYTES, Windows};
use small::{File, Options, PAGE};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

fn windows() -> Arc<Windows> {
    Windows::start(&Config::default()).unwrap()
}

/// A file over memory in which every page begins with its number.
fn file(options: Options) -> (Arc<File>, Arc<Mem>) {
    let pages = options.size.div_ceil(PAGE);
    let mem = Arc::new(Mem::new(pages * PAGE, 512));
    for page in 0..pages {
        mem.poke(page * PAGE, &page.to_ne_bytes());
    }
    let file = File::new(&windows(), Arc::clone(&mem) as _, options);
    (file, mem)
}

fn load(mapping: &Mapping, page: u64) -> u64 {
    assert!((page * PAGE) as usize + 8 <= mapping.len());
    // SAFETY: inside the mapping, and aligned.
    unsafe {
        mapping
            .as_ptr()
            .add((page * PAGE) as usize)
            .cast::<u64>()
            .read_volatile()
    }
}

fn store(mapping: &Mapping, page: u64, value: u64) {
    assert!((page * PAGE) as usize + 8 <= mapping.len());
    // SAFETY: as above.
    unsafe {
        mapping
            .as_ptr()
            .add((page * PAGE) as usize)
            .cast::<u64>()
            .write_volatile(value)
    }
}

fn on_device(mem: &Mem, page: u64) -> u64 {
    let mut bytes = [0; 8];
    mem.peek(page * PAGE, &mut bytes);
    u64::from_ne_bytes(bytes)
}

fn in_file(file: &File, page: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read(page * PAGE, &mut bytes).unwrap();
    u64::from_ne_bytes(bytes)
}

/// Evicts until `pages` have gone: the thread that served a fault holds its latch for a moment after
/// the page can be touched.
fn evict(file: &File, pages: usize) {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut gone = 0;
    while gone < pages {
        gone += file.evict(pages - gone);
        assert!(Instant::now() < deadline, "{gone} of {pages} pages evicted");
    }
}

/// Has the kernel read a byte of a mapped page, as write(2) does.
fn kernel_loads(mapping: &Mapping, page: u64) -> io::Result<()> {
    let (_reader, writer) = io::pipe().unwrap();
    // SAFETY: the kernel checks the address; the byte goes into a pipe with room for it.
    let got = unsafe {
        let at = mapping.as_ptr().add((page * PAGE) as usize);
        libc::write(writer.as_raw_fd(), at.cast(), 1)
    };
    match got {
        1 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the kernel store a byte, as read(2) does.
fn kernel_stores(mapping: &Mapping, page: u64, value: u8) -> io::Result<()> {
    let (reader, mut writer) = io::pipe().unwrap();
    io::Write::write_all(&mut writer, &[value]).unwrap();
    // SAFETY: as above; the page is the mapping's.
    let got = unsafe {
        let at = mapping.as_ptr().add((page * PAGE) as usize);
        libc::read(reader.as_raw_fd(), at.cast(), 1)
    };
    match got {
        1 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn is_poisoned(mapping: &Mapping, page: u64) -> bool {
    let errno = kernel_loads(mapping, page)
        .err()
        .and_then(|e| e.raw_os_error());
    assert!(matches!(errno, None | Some(libc::EFAULT)), "{errno:?}");
    errno.is_some()
}

#[test]
fn loads_see_the_device_and_a_flush_writes_what_was_stored() {
    let (file, mem) = file(Options::new(8));
    let mapping = file.all();
    for page in 0..8 {
        assert_eq!(load(&mapping, page), page);
        assert!(!file.is_dirty(page), "a load makes nothing dirty");
    }
    store(&mapping, 3, 333);
    assert!(file.is_dirty(3) && !file.is_dirty(4));
    assert_eq!(on_device(&mem, 3), 3);
    mapping.flush(0..mapping.len()).unwrap();
    assert_eq!(on_device(&mem, 3), 333);
    assert!(!file.is_dirty(3));
    store(&mapping, 3, 334);
    assert!(file.is_dirty(3), "a store after a flush is noticed");
}

#[test]
fn reads_writes_and_two_mappings_share_the_bytes() {
    let (file, mem) = file(Options::new(8));
    let (a, b) = (file.all(), file.map(2 * PAGE..6 * PAGE, Access::Store));
    assert_eq!(in_file(&file, 2), 2, "the page is in the pool first");
    store(&a, 2, 20);
    assert_eq!((load(&b, 0), in_file(&file, 2)), (20, 20));
    file.write(2 * PAGE, &21u64.to_ne_bytes()).unwrap();
    assert_eq!((load(&a, 2), load(&b, 0)), (21, 21));
    a.flush(0..a.len()).unwrap();
    store(&b, 0, 22);
    assert!(file.is_dirty(2), "each mapping reports its own first store");
    assert_eq!((load(&a, 2), in_file(&file, 2)), (22, 22));
    drop(b);
    assert_eq!(file.unmapped.load(Relaxed), 1);
    store(&a, 3, 30);
    drop(a);
    assert!(file.is_dirty(3) && in_file(&file, 3) == 30);
    evict(&file, 2);
    file.drain_pool().unwrap();
    assert_eq!((on_device(&mem, 2), on_device(&mem, 3)), (22, 30));
}

#[test]
fn copies_in_and_out_cross_pages_at_any_offset() {
    let (file, _) = file(Options::new(4));
    let mapping = file.map(PAGE..4 * PAGE - 100, Access::Store);
    assert_eq!(mapping.len(), 3 * PAGE_BYTES - 100);
    let data: Vec<u8> = (0..9000u32).map(|i| (i * 7) as u8).collect();
    mapping.copy_in(2000, &data).unwrap();
    let mut back = vec![0; 9000];
    mapping.copy_out(2000, &mut back).unwrap();
    assert!(back == data);
    file.read(PAGE + 2000, &mut back).unwrap();
    assert!(back == data);
    assert!(file.is_dirty(1) && file.is_dirty(3) && !file.is_dirty(0));
    let past = mapping.copy_in(3200, &data).unwrap_err();
    assert_eq!(past.kind(), ErrorKind::Invalid);
}

#[test]
fn a_page_that_is_only_revoked_comes_back_as_it_was() {
    let (file, _) = file(Options::new(2));
    let mapping = file.all();
    store(&mapping, 0, 50);
    file.sweep();
    assert_eq!((load(&mapping, 0), load(&mapping, 1)), (50, 1));
    assert!(file.is_dirty(0) && !file.is_dirty(1));
    file.sweep();
    store(&mapping, 1, 51);
    assert!(file.is_dirty(1));
}

#[test]
fn mappings_come_and_go_while_others_store() {
    let mut options = Options::new(64);
    (options.mapped_max, options.frames) = (16, 8);
    let (file, _) = file(options);
    let threads = 4;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let file = &file;
            scope.spawn(move || {
                for round in 0..200 {
                    let first = (thread + round) % 64;
                    let mapping = file.map(first * PAGE..64 * PAGE, Access::Store);
                    for page in first..64 {
                        if page % threads == thread {
                            let before = load(&mapping, page - first);
                            store(&mapping, page - first, before + 1000);
                        }
                    }
                }
            });
        }
    });
    let rounds = |page: u64| {
        let maps_it = |round: &u64| (page % threads + round) % 64 <= page;
        (0..200).filter(maps_it).count() as u64
    };
    for page in 0..64 {
        assert_eq!(
            in_file(&file, page),
            page + 1000 * rounds(page),
            "page {page}"
        );
    }
}

#[test]
fn wrong_ranges_and_accesses_are_refused() {
    let (file, _) = file(Options::new(4));
    for bytes in [0..0, 1..PAGE, 0..1 << 60, (1 << 60)..(1 << 60) + 1] {
        let error = file.try_map(bytes, Access::Read).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let mapping = file.map(0..4 * PAGE, Access::Read);
    let refused = |result: block::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Invalid);
    };
    refused(mapping.prefault(0..mapping.len() + 1, Access::Read));
    refused(mapping.prefault(0..1, Access::Store));
    refused(mapping.copy_in(0, b"x"));
    refused(mapping.lease(0..1, Access::Store).map(drop));
    // SAFETY: the bytes are only compared by address, and rejected.
    let own = unsafe { std::slice::from_raw_parts_mut(mapping.as_ptr(), 8) };
    refused(mapping.copy_out(0, own));
    for threads in [0, 257] {
        let config = Config {
            threads,
            ..Config::default()
        };
        assert!(Windows::start(&config).is_err());
    }
}

#[test]
fn a_mapping_is_covered_and_its_neighbourhood_is_not() {
    let windows = windows();
    let file = File::new(&windows, Arc::new(Mem::new(4 * PAGE, 512)), Options::new(4));
    let mapping = file.all();
    let (at, len) = (mapping.as_ptr(), mapping.len());
    assert!(windows.covers(at, 1) && windows.covers(at.wrapping_add(len - 1), 1));
    assert!(windows.covers(at.wrapping_sub(1), 2));
    assert!(!windows.covers(at, 0) && !windows.covers(at.wrapping_add(len), 1));
    assert!(!windows.covers(at.wrapping_sub(8), 8));
    drop(mapping);
    assert!(!windows.covers(at, 1));
}

#[test]
fn a_file_larger_than_mapped_max_keeps_every_store() {
    let mut options = Options::new(1000);
    (options.mapped_max, options.frames) = (100, 50);
    let (file, mem) = file(options);
    let mapping = file.all();
    for round in 1..=3 {
        for page in 0..1000 {
            let expected = if round == 1 {
                page
            } else {
                page + (round - 1) * 10_000
            };
            assert_eq!(load(&mapping, page), expected);
            store(&mapping, page, page + round * 10_000);
        }
    }
    // One page may be on its way in while the limit is looked at, for each thread that serves faults.
    assert!(file.resident_most() <= 104, "{}", file.resident_most());
    assert!(file.evictions.load(Relaxed) >= 2_800);
    drop(mapping);
    file.flush(0..1000 * PAGE).unwrap();
    assert!((0..1000).all(|page| on_device(&mem, page) == page + 30_000));
}

#[test]
fn more_pages_than_mappings_a_process_may_have() {
    let pages = 70_000;
    let mut options = Options::new(pages);
    (options.mapped_max, options.frames, options.cluster) = (2048, 0, 16);
    let (file, _) = file(options);
    let mapping = file.all();
    for page in (0..pages).step_by(3) {
        assert_eq!(load(&mapping, page), page);
        if page % 2 == 0 {
            store(&mapping, page, !page);
        }
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let own = maps.lines().filter(|l| l.contains("cache-window")).count();
    assert!(own < 1000, "{own} mappings of the kernel");
    for page in (0..pages).step_by(3) {
        assert_eq!(
            load(&mapping, page),
            if page % 2 == 0 { !page } else { page }
        );
    }
}

#[test]
fn many_windows_share_the_threads() {
    let windows = windows();
    let files: Vec<_> = (0..300u64)
        .map(|n| {
            let mem = Mem::new(4 * PAGE, 512);
            mem.poke(0, &n.to_ne_bytes());
            File::new(&windows, Arc::new(mem), Options::new(4))
        })
        .collect();
    let mappings: Vec<_> = files.iter().map(|file| file.all()).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let mappings = &mappings;
            scope.spawn(move || {
                for (n, mapping) in mappings.iter().enumerate() {
                    assert_eq!(load(mapping, 0), n as u64);
                    if n % 4 == thread {
                        store(mapping, 1 + n as u64 % 3, !(n as u64));
                    }
                }
            });
        }
    });
    for (n, file) in files.iter().enumerate() {
        assert_eq!(in_file(file, 1 + n as u64 % 3), !(n as u64));
    }
    assert!(windows.served().faults >= 600 && windows.served().failed == 0);
}

#[test]
fn a_page_that_cannot_be_loaded_is_an_error_or_poison_until_it_can() {
    let (device, fails) = ErrorDevice::new(Arc::new(Mem::holding(&[7; 8 * PAGE_BYTES], 512)));
    let file = File::new(&windows(), Arc::new(device), Options::new(8));
    let mapping = file.all();
    let failure = Failure::every(1, ErrorKind::Media).of(OpKind::Read);
    fails.set(Some(failure.within(2 * PAGE, 2 * PAGE)));
    let error = mapping
        .prefault(0..mapping.len(), Access::Read)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Media);
    assert!(mapping.copy_out(2 * PAGE_BYTES, &mut [0]).is_err());
    assert!(is_poisoned(&mapping, 2) && is_poisoned(&mapping, 3));
    assert!(!is_poisoned(&mapping, 1) && !is_poisoned(&mapping, 4));
    fails.set(None);
    assert!(is_poisoned(&mapping, 2), "nobody has tried again");
    mapping
        .prefault(2 * PAGE_BYTES..2 * PAGE_BYTES + 1, Access::Read)
        .unwrap();
    assert!(!is_poisoned(&mapping, 2) && is_poisoned(&mapping, 3));
    file.window.heal();
    assert!(!is_poisoned(&mapping, 3));
    assert_eq!(load(&mapping, 3), u64::from_ne_bytes([7; 8]));
}

#[test]
fn a_store_that_finds_no_space_fails_and_leaves_the_page_clean() {
    let (file, mem) = file(Options::new(4));
    let mapping = file.all();
    assert_eq!(load(&mapping, 1), 1);
    file.full.store(true, Relaxed);
    let error = mapping.prefault(0..1, Access::Store).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let errno = kernel_stores(&mapping, 1, 9).unwrap_err().raw_os_error();
    assert_eq!(errno, Some(libc::EFAULT));
    assert!(!file.is_dirty(1));
    file.full.store(false, Relaxed);
    mapping.prefault(0..mapping.len(), Access::Read).unwrap();
    kernel_stores(&mapping, 1, 9).unwrap();
    mapping.flush(0..mapping.len()).unwrap();
    assert_eq!(on_device(&mem, 1), 9);
}

#[test]
fn system_calls_on_missing_pages_are_served() {
    let (file, mem) = file(Options::new(4));
    let mapping = file.all();
    kernel_loads(&mapping, 0).unwrap();
    kernel_stores(&mapping, 1, 200).unwrap();
    kernel_stores(&mapping, 0, 201).unwrap();
    assert!(file.is_dirty(0) && file.is_dirty(1));
    evict(&file, 2);
    file.drain_pool().unwrap();
    assert_eq!((on_device(&mem, 0), on_device(&mem, 1)), (201, 200));
}

#[test]
fn without_privilege_system_calls_need_a_prefault() {
    let config = Config {
        user_faults_only: true,
        ..Config::default()
    };
    let windows = Windows::start(&config).unwrap();
    assert!(!windows.kernel_faults());
    let file = File::new(&windows, Arc::new(Mem::new(4 * PAGE, 512)), Options::new(4));
    let mapping = file.all();
    assert!(kernel_loads(&mapping, 1).is_err());
    assert_eq!(load(&mapping, 1), 0);
    kernel_loads(&mapping, 1).unwrap();
    mapping.prefault(0..mapping.len(), Access::Store).unwrap();
    kernel_stores(&mapping, 2, 5).unwrap();
}

#[test]
fn behind_the_end_is_poison_until_the_file_grows() {
    let (file, _) = file(Options::new(10));
    let mapping = file.map(0..12 * PAGE, Access::Store);
    for page in 0..10 {
        store(&mapping, page, u64::MAX);
    }
    file.truncate(4 * PAGE + 4).unwrap();
    assert!(!is_poisoned(&mapping, 4));
    for page in 5..12 {
        assert!(is_poisoned(&mapping, page), "page {page}");
    }
    assert_eq!(
        load(&mapping, 4).to_ne_bytes(),
        [255, 255, 255, 255, 0, 0, 0, 0]
    );
    let error = mapping.copy_out(5 * PAGE_BYTES, &mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    file.truncate(8 * PAGE).unwrap();
    for page in 5..8 {
        assert_eq!(
            load(&mapping, page),
            0,
            "what was cut off does not come back"
        );
    }
    assert!(is_poisoned(&mapping, 8));
    file.truncate(0).unwrap();
    assert!(is_poisoned(&mapping, 0));
}

#[test]
fn truncates_under_threads_that_touch_leave_no_old_bytes() {
    let (file, _) = file(Options::new(32));
    let mapping = file.all();
    std::thread::scope(|scope| {
        // Stores by the kernel fail where the file has been cut; stores of our own would be killed.
        let touch = scope.spawn(|| {
            for n in 0..4000u64 {
                let _cut = kernel_stores(&mapping, n % 32, 255);
            }
        });
        while !touch.is_finished() {
            file.truncate(3 * PAGE).unwrap();
            file.truncate(32 * PAGE).unwrap();
        }
    });
    file.truncate(3 * PAGE).unwrap();
    file.truncate(32 * PAGE).unwrap();
    assert!((3..32).all(|page| load(&mapping, page) == 0));
}

#[test]
fn leased_pages_stay_and_other_processes_share_them() {
    let (file, mem) = file(Options::new(8));
    let mapping = file.all();
    for page in 0..8 {
        store(&mapping, page, page + 100);
    }
    let lease = mapping
        .lease(2 * PAGE_BYTES..4 * PAGE_BYTES, Access::Store)
        .unwrap();
    assert_eq!(lease.bytes(), 2 * PAGE..4 * PAGE);
    evict(&file, 6);
    assert_eq!(file.evict(8), 0);
    assert!(file.in_window(2) && file.in_window(3) && !file.in_window(4));
    other_process_stores(lease.fd(), 2 * PAGE, b'x');
    let shared = u64::from(b'x');
    assert_eq!(load(&mapping, 2), shared);
    mapping.flush(0..mapping.len()).unwrap();
    assert_eq!(on_device(&mem, 2), shared);
    assert!(file.is_dirty(2), "the other may store at any time");
    drop(lease);
    mapping.flush(0..mapping.len()).unwrap();
    assert!(!file.is_dirty(2));
    evict(&file, 2);
}

#[test]
fn a_lease_for_reading_cannot_be_written_through() {
    let (file, _) = file(Options::new(2));
    let mapping = file.map(0..2 * PAGE, Access::Read);
    let lease = mapping
        .lease(PAGE_BYTES..2 * PAGE_BYTES, Access::Read)
        .unwrap();
    let mut page = [0; PAGE_BYTES];
    assert_eq!(
        rustix::io::pread(lease.fd(), &mut page, PAGE),
        Ok(PAGE_BYTES)
    );
    assert_eq!(page[..8], 1u64.to_ne_bytes());
    assert!(rustix::io::pwrite(lease.fd(), b"x", PAGE).is_err());
    assert!(rustix::fs::ftruncate(lease.fd(), 0).is_err());
    assert_eq!(file.evict(2), 0);
    drop(mapping);
    assert_eq!(file.evict(2), 0, "a lease outlives its mapping");
    drop(lease);
    evict(&file, 1);
}

/// Has another process put one byte into the file behind `fd`.
fn other_process_stores(fd: BorrowedFd<'_>, at: u64, byte: u8) {
    let (reader, mut writer) = io::pipe().unwrap();
    io::Write::write_all(&mut writer, &[byte]).unwrap();
    drop(writer);
    let status = Command::new("dd")
        .args(["bs=1", &format!("seek={at}"), "conv=notrunc"])
        .stdin(reader)
        .stdout(fd.try_clone_to_owned().unwrap())
        .stderr(Stdio::null())
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn a_forked_child_does_not_have_the_mapping() {
    let (file, _) = file(Options::new(2));
    let mapping = file.all();
    store(&mapping, 0, 5);
    // SAFETY: the child only loads one byte and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the address is not mapped in the child; it is to die of that.
        unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            mapping.as_ptr().read_volatile();
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    let status = std::process::ExitStatus::from_raw(status);
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
    assert_eq!(load(&mapping, 0), 5);
}

/// What a child of [`touching_poison_is_a_sigbus`] does.
const TOUCH: &str = "EVFS_TEST_TOUCH";

#[test]
fn touching_poison_is_a_sigbus() {
    for (touch, signal) in [
        ("error", Some(libc::SIGBUS)),
        ("end", Some(libc::SIGBUS)),
        ("good", None),
    ] {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_child_touches", "--nocapture"])
            .env(TOUCH, touch)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert_eq!(status.unwrap().signal(), signal, "{touch}");
    }
}

#[test]
fn a_child_touches() {
    let Ok(touch) = std::env::var(TOUCH) else {
        return;
    };
    // No core of it.
    rustix::process::setrlimit(
        rustix::process::Resource::Core,
        rustix::process::Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    )
    .unwrap();
    let (device, fails) = ErrorDevice::new(Arc::new(Mem::new(2 * PAGE, 512)));
    let file = File::new(
        &windows(),
        Arc::new(device) as Arc<dyn BlockDevice>,
        Options::new(2),
    );
    let mapping = file.map(0..4 * PAGE, Access::Read);
    match &*touch {
        "error" => {
            fails.set(Some(Failure::every(1, ErrorKind::Io)));
            load(&mapping, 1);
        }
        "end" => _ = load(&mapping, 2),
        _ => assert_eq!(load(&mapping, 1), 0),
    }
}

#[test]
fn nothing_keeps_a_file_or_its_windows_once_it_is_unmapped() {
    let windows = windows();
    let file = File::new(&windows, Arc::new(Mem::new(PAGE, 512)), Options::new(1));
    let mapping = file.all();
    store(&mapping, 0, 1);
    let (of_windows, of_file) = (Arc::downgrade(&windows), Arc::downgrade(&file));
    drop((windows, file));
    assert!(of_windows.upgrade().is_some() && of_file.upgrade().is_some());
    drop(mapping);
    // The thread that served the store may hold them a moment longer.
    let deadline = Instant::now() + Duration::from_secs(30);
    while of_windows.upgrade().is_some() || of_file.upgrade().is_some() {
        assert!(Instant::now() < deadline, "something keeps them");
        std::thread::yield_now();
    }
}
