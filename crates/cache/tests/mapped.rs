//! Mapped files in the real cache: one set of pages for sessions and for programs, on a device that
//! can fail, in a cache that can be small.
//!
//! Poison is detected with a system call, which fails with EFAULT where a load would raise SIGBUS;
//! the signals themselves are tested in child processes.

#[path = "common/bench.rs"]
mod bench;
mod common;
#[path = "common/touch.rs"]
mod touch;

use bench::{Bench, FILE, all, number, until};
use block::{Buf, ErrorKind, OpKind};
use block_testing::Failure;
use cache::{Access, Config, Mapping};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use touch::{PAGE, is_poisoned, kernel_stores, load, load_bytes, slice, store, store_bytes};

#[test]
fn loads_see_the_device_and_a_flush_writes_what_was_stored() {
    let bench = Bench::calm(8);
    let (_, open) = bench.open();
    let mapping = all(&open);
    for page in 0..8 {
        assert_eq!(load(&mapping, page), page);
    }
    assert_eq!(open.vnode().dirty_pages(), 0, "a load makes nothing dirty");
    store(&mapping, 3, 333);
    assert_eq!(open.vnode().dirty_pages(), 1);
    assert_eq!(bench.below(3), 3);
    mapping.flush(0..mapping.len()).unwrap();
    assert_eq!((bench.below(3), open.vnode().dirty_pages()), (333, 0));
    store(&mapping, 3, 334);
    assert_eq!(open.vnode().dirty_pages(), 1, "a store after a flush shows");
    mapping.flush(0..PAGE as usize).unwrap();
    assert_eq!(bench.below(3), 333, "it lies outside of what was flushed");
}

#[test]
fn sessions_and_two_mappings_share_the_bytes() {
    let bench = Bench::calm(8);
    let (mut session, mut open) = bench.open();
    assert_eq!(number(&mut session, &mut open, 2), 2, "it is in the pool");
    let one = all(&open);
    let two = open.map(2 * PAGE..6 * PAGE, Access::Store).unwrap();
    store(&one, 2, 20);
    assert_eq!(load(&two, 0), 20);
    assert_eq!(number(&mut session, &mut open, 2), 20);
    session
        .write(&mut open, 2 * PAGE, &21u64.to_ne_bytes())
        .unwrap();
    assert_eq!((load(&one, 2), load(&two, 0)), (21, 21));
    session.flush(&mut open).unwrap();
    assert_eq!(bench.below(2), 21);
    store(&two, 0, 22);
    assert_eq!(
        open.vnode().dirty_pages(),
        1,
        "each reports its first store"
    );
    assert_eq!(load(&one, 2), 22);
    store(&one, 3, 30);
    drop((one, two));
    assert_eq!(number(&mut session, &mut open, 3), 30);
    session.flush(&mut open).unwrap();
    assert_eq!((bench.below(2), bench.below(3)), (22, 30));
}

#[test]
fn pages_that_were_evicted_come_back_with_what_was_stored() {
    let bench = Bench::calm(64);
    let (mut session, mut open) = bench.open();
    let mapping = all(&open);
    for round in 1..4 {
        for page in 0..64 {
            assert_eq!(load(&mapping, page), page + (round - 1) * 1000);
            store(&mapping, page, page + round * 1000);
        }
        // Dirty pages stay, or are written back first.
        bench.cache.shrink(0);
        session.flush(&mut open).unwrap();
        bench.evict();
    }
    assert!(bench.cache.stats().mapped_evicted >= 3 * 64);
    assert_eq!(load(&mapping, 5), 3005);
    assert_eq!(number(&mut session, &mut open, 6), 3006);
}

#[test]
fn mapped_pages_are_counted_beside_the_limit_and_within_it_when_unmapped() {
    const PAGES: u64 = 1024;
    let bench = Bench::new(PAGES, Config::new(1 << 20));
    let (mut session, mut open) = bench.open();
    let mapping = all(&open);
    for page in 0..PAGES {
        assert_eq!(load(&mapping, page), page);
        if page % 3 == 0 {
            store(&mapping, page, page + 7);
        }
    }
    let stats = bench.cache.stats();
    assert_eq!(stats.mapped_bytes, PAGES * PAGE);
    assert!(stats.used_bytes <= 1 << 20, "{stats:?}");
    drop(mapping);
    until("they go back", || bench.cache.stats().mapped_bytes == 0);
    assert!(bench.cache.stats().used_bytes <= 1 << 20);
    let expected = |page| if page % 3 == 0 { page + 7 } else { page };
    for page in 0..PAGES {
        assert_eq!(number(&mut session, &mut open, page), expected(page));
    }
    session.flush(&mut open).unwrap();
    assert!((0..PAGES).all(|page| bench.below(page) == expected(page)));
}

#[test]
fn mapped_pages_above_their_own_limit_leave_and_come_back() {
    let bench = Bench::calm(1024);
    let (_, open) = bench.open();
    let mapping = all(&open);
    for page in 0..1024 {
        assert_eq!(load(&mapping, page), page);
    }
    let mapped = || bench.cache.stats().mapped_bytes;
    assert_eq!(mapped(), 1024 * PAGE);
    let change = [("mapped_max", "1MB")];
    let (tunables, _) = bench.cache.tunables().with(change, 1 << 40).unwrap();
    bench.cache.set(&tunables).unwrap();
    until("pages leave", || mapped() <= 256 * PAGE);
    for page in 0..1024 {
        assert_eq!(load(&mapping, page), page);
    }
}

#[test]
fn a_flush_writes_more_mapped_pages_than_there_are_frames() {
    const PAGES: u64 = 2048;
    let bench = Bench::new(PAGES, Config::new(1 << 20));
    let (mut session, mut open) = bench.open();
    let mapping = all(&open);
    for round in 1..3 {
        for page in 0..PAGES {
            store(&mapping, page, page + round);
        }
        session.flush(&mut open).unwrap();
        assert_eq!(open.vnode().dirty_pages(), 0);
        assert!((0..PAGES).all(|page| bench.below(page) == page + round));
    }
}

#[test]
fn part_of_a_file_that_is_mapped_no_more_goes_back() {
    let bench = Bench::calm(64);
    let (_, open) = bench.open();
    let (one, two) = (
        open.map(0..64 * PAGE, Access::Read).unwrap(),
        open.map(16 * PAGE..32 * PAGE, Access::Read).unwrap(),
    );
    assert_eq!((0..64).map(|page| load(&one, page)).max(), Some(63));
    assert_eq!((0..16).map(|page| load(&two, page)).max(), Some(31));
    drop(one);
    until("the rest goes", || {
        bench.cache.stats().mapped_bytes == 16 * PAGE
    });
    assert_eq!(open.vnode().stats().mapped_bytes, 16 * PAGE);
    let misses = bench.cache.stats().counts.misses;
    let one = open.map(0..64 * PAGE, Access::Read).unwrap();
    assert_eq!((0..64).map(|page| load(&one, page)).max(), Some(63));
    let again = bench.cache.stats().counts.misses;
    assert_eq!(again, misses, "they went to the pool and not away");
}

#[test]
fn what_is_cut_off_is_poison_and_what_is_added_zeros() {
    let bench = Bench::calm(12);
    let (mut session, mut open) = bench.open();
    session.truncate(&mut open, 10 * PAGE).unwrap();
    bench.pager.forget_from(FILE, 10 * PAGE);
    let mapping = open.map(0..12 * PAGE, Access::Store).unwrap();
    for page in 0..10 {
        store(&mapping, page, u64::MAX);
    }
    assert!(is_poisoned(&mapping, 10) && is_poisoned(&mapping, 11));
    session.truncate(&mut open, 4 * PAGE + 4).unwrap();
    bench.pager.forget_from(FILE, 4 * PAGE + 4);
    assert_eq!(
        load(&mapping, 4).to_ne_bytes(),
        [255, 255, 255, 255, 0, 0, 0, 0]
    );
    for page in 5..12 {
        assert!(is_poisoned(&mapping, page), "page {page}");
    }
    let error = mapping.copy_out(5 * PAGE as usize, &mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    session.truncate(&mut open, 8 * PAGE).unwrap();
    for page in 5..8 {
        assert_eq!(load(&mapping, page), 0, "what was cut does not come back");
    }
    assert!(is_poisoned(&mapping, 8));
    session.write(&mut open, 8 * PAGE, &[9; 8]).unwrap();
    assert_eq!(load(&mapping, 8), u64::from_ne_bytes([9; 8]));
    assert!(is_poisoned(&mapping, 9));
    session.truncate(&mut open, 0).unwrap();
    assert!(is_poisoned(&mapping, 0));
}

#[test]
fn what_is_stored_behind_the_end_is_no_part_of_the_file() {
    let bench = Bench::calm(4);
    let (mut session, mut open) = bench.open();
    session.truncate(&mut open, 100).unwrap();
    bench.pager.forget_from(FILE, 0);
    let mapping = open.map(0..PAGE, Access::Store).unwrap();
    let pollute = || store_bytes(&mapping, 100, &[0xee; 1000]);
    pollute();
    session.flush(&mut open).unwrap();
    let mut page = [0xaa; PAGE as usize];
    bench.disk.peek(0, &mut page);
    assert!(page[100..].iter().all(|byte| *byte == 0), "it went below");
    session.truncate(&mut open, 200).unwrap();
    pollute_from(&mapping, 200);
    session.write(&mut open, 300, &[1; 50]).unwrap();
    pollute_from(&mapping, 350);
    session.write(&mut open, 350, &[2; 50]).unwrap();
    pollute_from(&mapping, 400);
    session.write(&mut open, 2 * PAGE, &[3; 10]).unwrap();
    let mut back = vec![0xaa; 2 * PAGE as usize];
    session.read(&mut open, 0, &mut back).unwrap();
    let mut expected = vec![0; 2 * PAGE as usize];
    expected[300..350].fill(1);
    expected[350..400].fill(2);
    assert!(back[100..] == expected[100..]);
}

#[test]
fn what_is_stored_behind_the_end_does_not_come_back_with_the_page() {
    let bench = Bench::calm(4);
    let (mut session, mut open) = bench.open();
    session.truncate(&mut open, 100).unwrap();
    bench.pager.forget_from(FILE, 0);
    let mapping = open.map(0..PAGE, Access::Store).unwrap();
    pollute_from(&mapping, 100);
    drop(mapping);
    until("it is back in the pool", || {
        bench.cache.stats().mapped_bytes == 0
    });
    session.truncate(&mut open, PAGE).unwrap();
    let mut back = [0xaa; 1000];
    session.read(&mut open, 100, &mut back).unwrap();
    assert_eq!(back, [0; 1000]);
}

fn pollute_from(mapping: &Mapping, at: u64) {
    store_bytes(mapping, at, &[0xee; 1000]);
}

#[test]
fn truncates_under_threads_that_touch_leave_no_old_bytes() {
    let bench = Bench::calm(32);
    let (mut session, mut open) = bench.open();
    bench.pager.forget_from(FILE, 0);
    let mapping = all(&open);
    std::thread::scope(|scope| {
        // Stores by the kernel fail where the file has been truncated; stores of our own would
        // raise SIGBUS.
        let touch = scope.spawn(|| {
            for n in 0..4000u64 {
                let _cut = kernel_stores(&mapping, n % 32 * PAGE, &[255]);
            }
        });
        while !touch.is_finished() {
            session.truncate(&mut open, 3 * PAGE).unwrap();
            bench.pager.forget_from(FILE, 3 * PAGE);
            session.truncate(&mut open, 32 * PAGE).unwrap();
        }
    });
    session.truncate(&mut open, 3 * PAGE).unwrap();
    bench.pager.forget_from(FILE, 3 * PAGE);
    session.truncate(&mut open, 32 * PAGE).unwrap();
    assert!((3..32).all(|page| load(&mapping, page) == 0));
}

#[test]
fn a_failed_write_behind_keeps_what_was_stored_and_is_told_to_the_mapping_once() {
    let bench = Bench::calm(4);
    let (mut session, mut open) = bench.open();
    let mapping = all(&open);
    let failure = Failure::every(1, ErrorKind::Media).of(OpKind::Write);
    bench.errors.set(Some(failure));
    store(&mapping, 1, 11);
    assert!(session.flush(&mut open).is_err());
    bench.errors.set(None);
    store(&mapping, 2, 12);
    assert!(mapping.flush(0..mapping.len()).is_err(), "it was not told");
    mapping.flush(0..mapping.len()).unwrap();
    assert_eq!((bench.below(1), bench.below(2)), (11, 12));
}

#[test]
fn a_session_may_write_from_a_mapping_and_read_into_one() {
    let bench = Bench::calm(8);
    let (mut session, mut open) = bench.open();
    let mapping = all(&open);
    // The page being written is also the source, and faults during the write.
    bench.evict();
    session
        .write(&mut open, 0, slice(&mapping, 0, 100))
        .unwrap();
    bench.evict_dirty(&mut session, &mut open);
    session
        .write(
            &mut open,
            PAGE + 50,
            slice(&mapping, 3 * PAGE, 2 * PAGE as usize),
        )
        .unwrap();
    let mut back = [0; 8];
    load_bytes(&mapping, PAGE + 50, &mut back);
    assert_eq!(back, 3u64.to_ne_bytes());
    bench.evict_dirty(&mut session, &mut open);
    let into = slice(&mapping, 6 * PAGE, PAGE as usize);
    assert_eq!(
        session.read(&mut open, 5 * PAGE, into).unwrap(),
        PAGE as usize
    );
    assert_eq!(load(&mapping, 6), 5);
    bench.evict_dirty(&mut session, &mut open);
    let same = slice(&mapping, 5 * PAGE, PAGE as usize);
    assert_eq!(
        session.read(&mut open, 5 * PAGE, same).unwrap(),
        PAGE as usize
    );
    assert_eq!(
        (load(&mapping, 5), number(&mut session, &mut open, 6)),
        (5, 5)
    );
}

#[test]
fn direct_requests_see_stores_and_loads_see_direct_requests() {
    let bench = Bench::calm(8);
    let (mut session, mut open) = bench.open();
    let mapping = all(&open);
    store(&mapping, 1, 100);
    let page = || Buf::zeroed(PAGE as usize);
    let bufs = session.read_direct(&mut open, PAGE, page().into()).unwrap();
    assert_eq!(bufs.as_slice()[0][..8], 100u64.to_ne_bytes());
    store(&mapping, 1, 101);
    let mut data = page();
    data.fill(7);
    session.write_direct(&mut open, PAGE, data.into()).unwrap();
    assert_eq!(load(&mapping, 1), u64::from_ne_bytes([7; 8]));
    session.punch(&mut open, PAGE..2 * PAGE).unwrap();
    assert_eq!((load(&mapping, 1), load(&mapping, 2)), (0, 2));
    bench.disk.poke(2 * PAGE, &22u64.to_ne_bytes());
    session.invalidate(&mut open, 0..8 * PAGE).unwrap();
    assert_eq!(load(&mapping, 2), 22);
}

#[test]
fn a_page_that_is_held_keeps_its_bytes_and_a_mapped_one_cannot_be_held() {
    let bench = Bench::calm(4);
    let (mut session, mut open) = bench.open();
    let mut other = bench.volume.open(open.vnode());
    let held = session.page(&mut other, 1).unwrap();
    let mapping = all(&open);
    store(&mapping, 1, 50);
    assert_eq!(held[..8], 1u64.to_ne_bytes());
    assert_eq!(number(&mut session, &mut open, 1), 50);
    let refused = session.page(&mut open, 1).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    drop(held);
    drop(mapping);
    until("it is back in the pool", || {
        session.page(&mut open, 1).is_ok()
    });
    assert_eq!(
        session.page(&mut open, 1).unwrap()[..8],
        50u64.to_ne_bytes()
    );
}

#[test]
fn a_file_that_is_not_to_be_cached_is_mapped_and_held_all_the_same() {
    let bench = Bench::calm(4);
    let (mut session, mut open) = bench.open();
    let mut attributes = open.vnode().attributes();
    attributes.no_cache = true;
    open.vnode().set_attributes(attributes);
    assert_eq!(session.page(&mut open, 0).unwrap()[..8], 0u64.to_ne_bytes());
    let mapping = all(&open);
    assert_eq!((load(&mapping, 1), load(&mapping, 3)), (1, 3));
}

#[test]
fn a_removed_file_is_poison() {
    let bench = Bench::calm(4);
    let (_, open) = bench.open();
    let mapping = all(&open);
    store(&mapping, 1, 50);
    bench.volume.forget(FILE);
    assert!((0..4).all(|page| is_poisoned(&mapping, page)));
    let error = mapping.copy_out(0, &mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    drop(mapping);
    let stats = bench.cache.stats();
    assert_eq!((stats.mapped_bytes, stats.dirty_bytes), (0, 0));
    assert_eq!(bench.below(1), 1, "nothing is written");
}

#[test]
fn a_volume_is_not_closed_under_a_mapping_and_then_writes_what_was_stored() {
    let bench = Bench::calm(4);
    let (session, open) = bench.open();
    drop(session);
    let mapping = all(&open);
    store(&mapping, 2, 60);
    let error = bench.volume.close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert_eq!(load(&mapping, 2), 60);
    drop(mapping);
    bench.volume.close().unwrap();
    assert_eq!(bench.below(2), 60);
    let stats = bench.cache.stats();
    assert_eq!((stats.mapped_bytes, stats.used_bytes), (0, 0));
}

#[test]
fn a_volume_that_goes_under_a_mapping_writes_what_was_stored_and_leaves_poison() {
    let bench = Bench::calm(4);
    let (session, open) = bench.open();
    drop(session);
    let mapping = all(&open);
    store(&mapping, 2, 60);
    let Bench { volume, disk, .. } = bench;
    drop(volume);
    assert!(is_poisoned(&mapping, 2));
    let mut below = [0; 8];
    disk.peek(2 * PAGE, &mut below);
    assert_eq!(below, 60u64.to_ne_bytes());
}

#[test]
fn nothing_keeps_the_device_once_everything_is_dropped() {
    let bench = Bench::calm(4);
    let (session, open) = bench.open();
    let mapping = all(&open);
    store(&mapping, 0, 1);
    assert_eq!(load(&mapping, 3), 3);
    let disk = Arc::clone(&bench.disk);
    drop((session, open, bench));
    assert!(Arc::strong_count(&disk) > 1, "the mapping does, until then");
    drop(mapping);
    // The thread that served the last fault may hold a reference a moment longer.
    until("all is gone", || Arc::strong_count(&disk) == 1);
}

/// Stops other threads even when an assertion fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn sessions_read_and_write_pages_while_they_move_in_and_out() {
    let bench = Bench::new(32, Config::new(1 << 20));
    let (mut session, mut open) = bench.open();
    let (rounds, stop) = (300, AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (bench, stop) = (&bench, &stop);
            scope.spawn(move || count_by_session(bench, thread, stop));
        }
        let _stop = Stop(&stop);
        for round in 0..rounds {
            let first = round % 16;
            let mapping = open.map(first * PAGE..32 * PAGE, Access::Store).unwrap();
            for page in first..32 {
                let at = (page - first) * PAGE + 8;
                let mut bytes = [0; 8];
                load_bytes(&mapping, at, &mut bytes);
                let next = u64::from_ne_bytes(bytes) + 1;
                store_bytes(&mapping, at, &next.to_ne_bytes());
            }
        }
    });
    for page in 0..32 {
        let mut bytes = [0; 8];
        session
            .read(&mut open, page * PAGE + 8, &mut bytes)
            .unwrap();
        let maps_it = |round: &u64| round % 16 <= page;
        let count = (0..rounds).filter(maps_it).count() as u64;
        assert_eq!(u64::from_ne_bytes(bytes), count, "page {page}");
    }
}

/// Counts in a slot of its own in each page, and evicts pages.
fn count_by_session(bench: &Bench, thread: u64, stop: &AtomicBool) {
    let (mut session, mut open) = bench.open();
    let mut written = [0u64; 32];
    while !stop.load(Relaxed) {
        for (page, written) in (0..).zip(&mut written) {
            let at = page * PAGE + 16 + thread * 8;
            let mut bytes = [0; 8];
            session.read(&mut open, at, &mut bytes).unwrap();
            assert_eq!(u64::from_ne_bytes(bytes), *written, "page {page}");
            *written += 1;
            session
                .write(&mut open, at, &written.to_ne_bytes())
                .unwrap();
        }
        if thread == 0 {
            bench.cache.shrink(0);
        }
    }
}

mod needs_root {
    use super::*;
    use test_support::needs_root;

    #[test]
    fn appends_under_threads_that_touch_leave_no_poison() {
        needs_root("userfaultfd with page faults of the kernel");
        let bench = Bench::calm(64);
        let (mut session, mut open) = bench.open();
        session.truncate(&mut open, 0).unwrap();
        bench.pager.forget_from(FILE, 0);
        let mapping = open.map(0..64 * PAGE, Access::Store).unwrap();
        for round in 0..20 {
            std::thread::scope(|scope| {
                let touch =
                    scope.spawn(|| (0..64).filter(|page| !is_poisoned(&mapping, *page)).count());
                let data = [round; 1000];
                for at in (0..64 * PAGE).step_by(data.len()) {
                    let rest = data.len().min((64 * PAGE - at) as usize);
                    session.write(&mut open, at, &data[..rest]).unwrap();
                }
                touch.join().unwrap();
            });
            for page in 0..64 {
                assert!(!is_poisoned(&mapping, page), "page {page} of round {round}");
            }
            session.truncate(&mut open, 0).unwrap();
            bench.pager.forget_from(FILE, 0);
        }
    }

    #[test]
    fn a_page_that_cannot_be_loaded_is_an_error_or_poison_until_it_can() {
        needs_root("userfaultfd with page faults of the kernel");
        let bench = Bench::calm(64);
        let (_, open) = bench.open();
        let mapping = all(&open);
        let failure = Failure::every(1, ErrorKind::Media).of(OpKind::Read);
        let fails = &bench.errors;
        fails.set(Some(failure.within(2 * PAGE, 2 * PAGE)));
        let error = mapping
            .prefault(0..mapping.len(), Access::Read)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Media);
        assert!(mapping.copy_out(2 * PAGE as usize, &mut [0]).is_err());
        assert!(is_poisoned(&mapping, 2) && is_poisoned(&mapping, 3));
        for page in [0, 1, 4, 15, 63] {
            assert!(!is_poisoned(&mapping, page), "a neighbour, page {page}");
        }
        fails.set(None);
        assert!(is_poisoned(&mapping, 2), "nobody has tried again");
        let third = 2 * PAGE as usize..3 * PAGE as usize;
        mapping.prefault(third, Access::Read).unwrap();
        assert_eq!(load(&mapping, 2), 2);
        mapping.prefault(0..mapping.len(), Access::Read).unwrap();
        assert_eq!(load(&mapping, 3), 3);
    }

    #[test]
    fn a_store_that_finds_no_space_fails_and_leaves_the_page_clean() {
        needs_root("userfaultfd with page faults of the kernel");
        let bench = Bench::calm(4);
        let (mut session, mut open) = bench.open();
        let mapping = all(&open);
        assert_eq!(load(&mapping, 1), 1);
        bench.pager.full.store(true, Relaxed);
        let error = mapping.prefault(0..1, Access::Store).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        let failed = kernel_stores(&mapping, PAGE, &[9]).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(libc::EFAULT));
        assert_eq!(open.vnode().dirty_pages(), 0);
        assert_eq!(number(&mut session, &mut open, 1), 1);
        bench.pager.full.store(false, Relaxed);
        mapping.prefault(0..mapping.len(), Access::Read).unwrap();
        kernel_stores(&mapping, PAGE, &[9]).unwrap();
        session.flush(&mut open).unwrap();
        assert_eq!(bench.below(1), 9);
    }
}
