//! Guarantees for a program that has a mapping: its range, neighboring memory, system calls,
//! signals and children, and leases for other processes.

#[path = "common/bench.rs"]
mod bench;
mod common;
#[path = "common/touch.rs"]
mod touch;

use bench::{Bench, OTHER, all, number, until};
use block::{Buf, ErrorKind};
use cache::window::{self, covers};
use cache::{Access, Config};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use touch::{PAGE, kernel_loads, kernel_stores, load, slice, store};

#[test]
fn wrong_ranges_and_accesses_are_refused() {
    let bench = Bench::calm(4);
    let (_, open) = bench.open();
    for bytes in [0..0, 1..PAGE, 0..1 << 60] {
        let error = open.map(bytes, Access::Read).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let mapping = open.map(0..4 * PAGE, Access::Read).unwrap();
    let refused = |result: block::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Invalid);
    };
    refused(mapping.prefault(0..1, Access::Store));
    refused(mapping.copy_in(0, b"x"));
    refused(mapping.lease(0..1, Access::Store).map(drop));
    refused(mapping.copy_out(0, slice(&mapping, 0, 8)));
    assert_eq!(load(&mapping, 3), 3);
}

#[test]
fn a_leased_page_stays_and_another_process_shares_it() {
    let bench = Bench::calm(8);
    let (mut session, mut open) = bench.open();
    let mapping = all(&open);
    (0..8).for_each(|page| store(&mapping, page, page + 100));
    let range = 2 * PAGE as usize..4 * PAGE as usize;
    let lease = mapping.lease(range, Access::Store).unwrap();
    assert_eq!(lease.bytes(), 2 * PAGE..4 * PAGE);
    session.flush(&mut open).unwrap();
    until("the others leave", || bench.cache.shrink(0) <= 2 * PAGE);
    let (seen, fd) = (mapped_by_child(&lease, 3, 333), lease.fd());
    assert_eq!(seen, 103, "what the child has found");
    assert_eq!(load(&mapping, 3), 333);
    assert_eq!(number(&mut session, &mut open, 3), 333);
    session.flush(&mut open).unwrap();
    assert_eq!(bench.below(3), 333);
    assert_eq!(open.vnode().dirty_pages(), 2, "it may store at any time");
    let mut data = Buf::zeroed(PAGE as usize);
    data.fill(1);
    let busy = session.write_direct(&mut open, 3 * PAGE, data.into());
    assert_eq!(busy.unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(bench.volume.close().unwrap_err().kind(), ErrorKind::Busy);
    drop(mapping);
    assert_eq!(
        mapped_by_child(&lease, 2, 222),
        102,
        "it outlives the mapping"
    );
    let _ = fd;
    drop(lease);
    session.flush(&mut open).unwrap();
    assert_eq!((bench.below(2), open.vnode().dirty_pages()), (222, 0));
    bench.evict();
}

/// Makes a child map the leased file, load the first number of a page, and store another.
fn mapped_by_child(lease: &cache::Lease, page: u64, value: u64) -> u64 {
    use std::os::fd::AsRawFd;
    let (fd, at) = (lease.fd().as_raw_fd(), page * PAGE);
    let (reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the child makes only system calls, on memory that it has mapped itself, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            let (read_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            let null = std::ptr::null_mut();
            let mapped = libc::mmap(null, PAGE as usize, read_write, shared, fd, at as i64);
            if mapped == libc::MAP_FAILED {
                libc::_exit(1);
            }
            let number = mapped.cast::<u64>();
            let seen = number.read_volatile();
            number.write_volatile(value);
            let sent = libc::write(writer.as_raw_fd(), (&raw const seen).cast(), 8);
            libc::_exit(i32::from(sent != 8));
        }
    }
    drop(writer);
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child could not map it");
    let mut seen = [0; 8];
    std::io::Read::read_exact(&mut &reader, &mut seen).unwrap();
    u64::from_ne_bytes(seen)
}

#[test]
fn a_lease_for_reading_follows_what_is_written_and_cannot_be_written_through() {
    let bench = Bench::calm(4);
    let (mut session, mut open) = bench.open();
    let mapping = open.map(0..4 * PAGE, Access::Read).unwrap();
    let lease = mapping.lease(PAGE as usize..2 * PAGE as usize, Access::Read);
    let lease = lease.unwrap();
    session.write(&mut open, PAGE, &[5; 8]).unwrap();
    let mut page = [0; 8];
    assert_eq!(rustix::io::pread(lease.fd(), &mut page, PAGE), Ok(8));
    assert_eq!(page, [5; 8]);
    assert!(rustix::io::pwrite(lease.fd(), b"x", PAGE).is_err());
    assert!(rustix::fs::ftruncate(lease.fd(), 0).is_err());
    session.flush(&mut open).unwrap();
    assert_eq!(open.vnode().dirty_pages(), 0, "nobody else stores");
    until("the rest leaves", || bench.cache.shrink(0) <= PAGE);
    assert_eq!(open.vnode().stats().mapped_bytes, PAGE);
    drop(lease);
    bench.evict();
}

#[test]
fn touching_poison_is_a_sigbus() {
    for (touch, signal) in [
        ("error", Some(libc::SIGBUS)),
        ("end", Some(libc::SIGBUS)),
        ("good", None),
    ] {
        let status = Command::new(test_support::example("touch_page"))
            .arg(touch)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert_eq!(status.unwrap().signal(), signal, "{touch}");
    }
}

#[test]
fn without_privilege_system_calls_need_a_prefault() {
    let bench = Bench::new(
        4,
        Config {
            windows: window::Config {
                user_faults_only: true,
                ..window::Config::default()
            },
            ..Config::new(1 << 20)
        },
    );
    let (_, open) = bench.open();
    let mapping = all(&open);
    assert!(kernel_loads(&mapping, PAGE, &mut [0]).is_err());
    assert_eq!(load(&mapping, 1), 1);
    kernel_loads(&mapping, PAGE, &mut [0]).unwrap();
    mapping.prefault(0..mapping.len(), Access::Store).unwrap();
    kernel_stores(&mapping, 2 * PAGE, &[5]).unwrap();
}

#[test]
fn no_more_threads_than_make_sense_serve_faults() {
    for threads in [0, 257] {
        let mut config = Config::new(1 << 20);
        config.windows.threads = threads;
        let bench = Bench::new(4, config);
        let (_, open) = bench.open();
        let error = open.map(0..PAGE, Access::Read).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}

#[test]
fn a_mapping_is_covered_and_its_neighbourhood_is_not() {
    let bench = Bench::calm(4);
    let (_, open) = bench.open();
    let mapping = all(&open);
    let (at, len) = (mapping.as_ptr(), mapping.len());
    assert!(covers(at, 1) && covers(at.wrapping_add(len - 1), 1));
    assert!(covers(at.wrapping_sub(1), 2));
    assert!(!covers(at, 0) && !covers([0; 4].as_ptr(), 4));
}

#[test]
fn copies_in_and_out_cross_pages_at_any_offset() {
    let bench = Bench::calm(4);
    let (mut session, mut open) = bench.open();
    let mapping = open.map(PAGE..4 * PAGE - 100, Access::Store).unwrap();
    assert_eq!(mapping.len(), 3 * PAGE as usize - 100);
    let data: Vec<u8> = (0..9000u32).map(|i| (i * 7) as u8).collect();
    mapping.copy_in(2000, &data).unwrap();
    let mut back = vec![0; 9000];
    mapping.copy_out(2000, &mut back).unwrap();
    assert!(back == data);
    session.read(&mut open, PAGE + 2000, &mut back).unwrap();
    assert!(back == data);
    assert_eq!(open.vnode().dirty_pages(), 3);
    let past = mapping.copy_in(3200, &data).unwrap_err();
    assert_eq!(past.kind(), ErrorKind::Invalid);
}

#[test]
fn mappings_come_and_go_while_others_store() {
    let bench = Bench::new(64, Config::new(1 << 20));
    let (threads, rounds) = (4, 200);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let bench = &bench;
            scope.spawn(move || {
                let (mut session, mut open) = bench.open();
                for round in 0..rounds {
                    let first = (thread + round) % 64;
                    let mapping = open.map(first * PAGE..64 * PAGE, Access::Store).unwrap();
                    for page in (first..64).filter(|page| page % threads == thread) {
                        let before = load(&mapping, page - first);
                        store(&mapping, page - first, before + 1000);
                    }
                    if round % 16 == 0 {
                        session.flush(&mut open).unwrap();
                        bench.cache.shrink(0);
                    }
                }
            });
        }
    });
    let (mut session, mut open) = bench.open();
    for page in 0..64 {
        let maps_it = |round: &u64| (page % threads + round) % 64 <= page;
        let count = (0..rounds).filter(maps_it).count() as u64;
        let found = number(&mut session, &mut open, page);
        assert_eq!(found, page + 1000 * count, "page {page}");
    }
}

#[test]
fn more_pages_than_mappings_a_process_may_have() {
    let pages = 70_000;
    let bench = Bench::new(pages, Config::new(8 << 20));
    let (_, open) = bench.open();
    let mapping = all(&open);
    for page in (0..pages).step_by(3) {
        assert_eq!(load(&mapping, page), page);
        if page % 5 == 0 {
            store(&mapping, page, !page);
        }
        if page % 21_000 == 0 {
            bench.cache.shrink(4 << 20);
        }
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let own = maps.lines().filter(|l| l.contains("cache-window")).count();
    assert!(own < 1000, "{own} mappings of the kernel");
    for page in (0..pages).step_by(30) {
        let expected = if page % 5 == 0 { !page } else { page };
        assert_eq!(load(&mapping, page), expected);
    }
}

#[test]
fn many_files_share_the_threads() {
    let bench = Bench::calm(4);
    let other = bench.volume.open(&bench.volume.vnode(OTHER, 4 * PAGE));
    let (_, open) = bench.open();
    let mappings: Vec<_> = (0..300)
        .map(|n| all(if n % 2 == 0 { &open } else { &other }))
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let mappings = &mappings;
            scope.spawn(move || {
                for (n, mapping) in mappings.iter().enumerate() {
                    assert_eq!(load(mapping, 1), 1);
                    if n % 4 == thread {
                        store(mapping, 2, n as u64 % 2 + 50);
                    }
                }
            });
        }
    });
    assert_eq!((load(&mappings[0], 2), load(&mappings[1], 2)), (50, 51));
}

#[test]
fn a_forked_child_does_not_have_the_mapping() {
    let bench = Bench::calm(2);
    let (_, open) = bench.open();
    let mapping = all(&open);
    store(&mapping, 0, 5);
    // SAFETY: the child only loads one byte and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the address is not mapped in the child; it must be killed by that.
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

mod needs_root {
    use super::*;
    use test_support::needs_root;

    #[test]
    fn system_calls_on_missing_pages_are_served() {
        needs_root("userfaultfd with page faults of the kernel");
        let bench = Bench::calm(4);
        let (mut session, open) = bench.open();
        let mut other = bench.volume.open(&bench.volume.vnode(OTHER, 4 * PAGE));
        let mapping = all(&open);
        kernel_loads(&mapping, 0, &mut [1]).unwrap();
        kernel_stores(&mapping, PAGE, &[200]).unwrap();
        assert_eq!(open.vnode().dirty_pages(), 1);
        // A mapped page of one file is written to the other file.
        let theirs = all(&other);
        session
            .write(&mut other, 0, slice(&mapping, PAGE, PAGE as usize))
            .unwrap();
        assert_eq!(load(&theirs, 0), 200);
    }
}
