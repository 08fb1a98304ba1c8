//! Background write-back: in time, despite failures, and with correct error reports.

mod common;

use block::{Buf, ErrorKind, OpKind};
use block_testing::{Delay, ErrorDevice, ErrorHandle, Failure, Mem, PowerCut, Random, Tear};
use cache::{Cache, Config, DirtyData, FileId, Volume};
use common::{Parts, until};
use std::sync::Arc;
use std::time::Duration;

const SPAN: u64 = 4 << 20;
const FILE: FileId = FileId(0);

fn config(bytes: u64) -> Config {
    Config {
        tick: Duration::from_millis(5),
        retry: Duration::from_millis(1),
        sync_interval: Duration::from_millis(20),
        frame_timeout: Duration::from_millis(300),
        ..Config::new(bytes)
    }
}

struct Bench {
    cache: Arc<Cache>,
    volume: Arc<Volume>,
    disk: Arc<Mem>,
    errors: ErrorHandle,
}

fn bench(bytes: u64) -> Bench {
    let disk = Arc::new(Mem::new(2 * SPAN, 512));
    let (device, errors) = ErrorDevice::new(disk.clone());
    let cache = Cache::new(config(bytes)).unwrap();
    let volume = cache.volume(Arc::new(Parts::new(Arc::new(device), SPAN)));
    Bench {
        volume: volume.unwrap(),
        cache,
        disk,
        errors,
    }
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    Random::new(seed).fill(&mut data);
    data
}

#[test]
fn old_changes_survive_a_power_cut_without_a_flush() {
    let cut = Arc::new(PowerCut::new(&Mem::new(2 * SPAN, 512)));
    let cache = Cache::new(config(8 << 20)).unwrap();
    let volume = cache
        .volume(Arc::new(Parts::new(cut.clone(), SPAN)))
        .unwrap();
    let mut session = volume.session().unwrap();
    let mut open = volume.open(&volume.vnode(FILE, 0));
    let data = content(1, 300_000);
    for (at, part) in data.chunks(7777).enumerate() {
        session.write(&mut open, at as u64 * 7777, part).unwrap();
    }
    until("everything is on stable storage", || {
        let mut left = vec![0; data.len()];
        cut.crash(cut.events(), Tear::Drop).peek(0, &mut left);
        left == data
    });
    assert!(session.flush(&mut open).is_ok());
}

#[test]
fn dirty_data_is_counted_until_it_is_written_back() {
    let bench = bench(8 << 20);
    let mut session = bench.volume.session().unwrap();
    let mut open = bench.volume.open(&bench.volume.vnode(FILE, 0));
    assert_eq!(bench.volume.dirty(), DirtyData::default());
    let failure = Failure::every(1, ErrorKind::Media).of(OpKind::Write);
    bench.errors.set(Some(failure));
    session.write(&mut open, 0, &[1; 3 * 4096]).unwrap();
    until("the age of the dirty pages grows", || {
        bench.volume.dirty().oldest_ms > Some(20)
    });
    let files = bench.volume.files();
    let bytes: u64 = files.iter().map(|file| file.dirty_bytes).sum();
    assert_eq!((bytes, bench.volume.dirty().bytes), (3 * 4096, 3 * 4096));
    bench.errors.set(None);
    until("all pages are written back", || {
        bench.volume.dirty() == DirtyData::default()
    });
}

#[test]
fn files_lead_by_use_dirty_data_or_cached_data() {
    let disk = Arc::new(Mem::new(8 * SPAN, 512));
    let cache = Cache::new(Config::new(8 << 20)).unwrap();
    let volume = cache.volume(Arc::new(Parts::new(disk, SPAN))).unwrap();
    let mut session = volume.session().unwrap();
    let mut write = |file: u64, times: usize, pages: usize| {
        let mut open = volume.open(&volume.vnode(FileId(file), 0));
        for _ in 0..times {
            session.write(&mut open, 0, &vec![1; pages * 4096]).unwrap();
        }
        session.flush(&mut open).unwrap();
    };
    // Each page of the second file counts once, that of the third a hundred times.
    write(1, 1, 1);
    write(2, 1, 80);
    write(3, 100, 1);
    let files = |count| -> Vec<u64> {
        let leading = volume.leading_files(count);
        leading.iter().map(|leading| leading.file.0).collect()
    };
    assert!(files(0).is_empty());
    let mut one = files(1);
    one.sort_unstable();
    assert_eq!(one, [2, 3]);
    assert_eq!(files(3).len(), 3);
    let leading = volume.leading_files(1);
    let most = leading.iter().find(|leading| leading.file.0 == 3).unwrap();
    assert!(most.counts.accesses() >= 100, "{most:?}");
    let large = leading.iter().find(|leading| leading.file.0 == 2).unwrap();
    assert_eq!(large.cached_bytes, Some(80 * 4096));
    assert_eq!((large.size, large.dirty_bytes), (80 * 4096, 0));
}

#[test]
fn a_failed_write_behind_is_kept_tried_again_and_told_to_every_opener_once() {
    let bench = bench(8 << 20);
    let mut session = bench.volume.session().unwrap();
    let vnode = bench.volume.vnode(FILE, 0);
    let (mut one, mut two) = (bench.volume.open(&vnode), bench.volume.open(&vnode));
    let failure = Failure::every(1, ErrorKind::Media).of(OpKind::Write);
    bench.errors.set(Some(failure));
    let data = content(2, 100_000);
    session.write(&mut one, 0, &data).unwrap();
    until("the background has tried three times", || {
        bench.errors.failed() >= 3
    });
    assert!(vnode.stats().dirty_bytes >= 100_000, "pages are kept");
    let mut back = vec![0; data.len()];
    assert_eq!(session.read(&mut two, 0, &mut back).unwrap(), data.len());
    assert!(back == data, "what is dirty is read");
    bench.errors.set(None);
    until("it was written in the end", || {
        vnode.stats().dirty_bytes == 0
    });
    for open in [&mut one, &mut two] {
        let error = session.flush(open).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Media);
        session.flush(open).unwrap();
    }
    session.flush(&mut bench.volume.open(&vnode)).unwrap();
    bench.disk.peek(0, &mut back);
    assert!(back == data);
}

#[test]
fn a_flush_that_fails_says_so_and_the_next_that_works_has_everything() {
    let bench = bench(8 << 20);
    let mut session = bench.volume.session().unwrap();
    let mut open = bench.volume.open(&bench.volume.vnode(FILE, 0));
    let data = content(3, 50_000);
    for (kind, round) in [(OpKind::Write, 0), (OpKind::Flush, 1)] {
        let at = round * 60_000;
        bench
            .errors
            .set(Some(Failure::every(1, ErrorKind::Media).of(kind)));
        session.write(&mut open, at, &data).unwrap();
        assert!(session.flush(&mut open).is_err(), "{kind} failed below");
        bench.errors.set(None);
        // The background thread may have failed since, which is reported as well; but at most once.
        if session.flush(&mut open).is_err() {
            session.flush(&mut open).unwrap();
        }
        let mut back = vec![0; data.len()];
        bench.disk.peek(at, &mut back);
        assert!(back == data);
    }
}

#[test]
fn a_full_device_is_told_to_the_writer_and_costs_nothing_that_was_accepted() {
    let bench = bench(1 << 20);
    let mut session = bench.volume.session().unwrap();
    let mut open = bench.volume.open(&bench.volume.vnode(FILE, 0));
    bench.errors.set(Some(
        Failure::every(1, ErrorKind::NoSpace).of(OpKind::Write),
    ));
    let data = content(4, SPAN as usize);
    let mut accepted = 0;
    let refused = data.chunks(4096).enumerate().find_map(|(index, part)| {
        let result = session.write(&mut open, index as u64 * 4096, part);
        accepted += usize::from(result.is_ok());
        result.err()
    });
    let error = refused.expect("a cache of 1 MiB does not hold 4 MiB");
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(accepted >= 64, "it took {accepted} pages");
    bench.errors.set(None);
    until("everything accepted was written", || {
        bench.cache.stats().dirty_bytes == 0
    });
    let mut back = vec![0; accepted * 4096];
    bench.disk.peek(0, &mut back);
    assert!(back == data[..back.len()]);
}

#[test]
fn writers_are_held_back_and_not_stopped() {
    let bench = bench(4 << 20);
    let mut session = bench.volume.session().unwrap();
    let mut open = bench.volume.open(&bench.volume.vnode(FILE, 0));
    let part = content(5, 64 << 10);
    for round in 0..400u64 {
        let at = round % 64 * (64 << 10);
        session.write(&mut open, at, &part).unwrap();
        let stats = bench.cache.stats();
        assert!(stats.used_bytes <= stats.max_bytes);
    }
    session.flush(&mut open).unwrap();
    assert_eq!(bench.cache.stats().dirty_bytes, 0);
}

#[test]
fn a_removed_file_gives_its_pages_back_at_once_and_writes_nothing() {
    let bench = bench(8 << 20);
    let mut session = bench.volume.session().unwrap();
    let mut open = bench.volume.open(&bench.volume.vnode(FILE, 0));
    bench
        .errors
        .set(Some(Failure::every(1, ErrorKind::Media).of(OpKind::Write)));
    session.write(&mut open, 0, &content(6, 1 << 20)).unwrap();
    bench.volume.forget(FILE);
    until("no page is left", || bench.cache.stats().used_bytes == 0);
    assert_eq!(bench.cache.stats().dirty_bytes, 0);
    let error = session.write(&mut open, 0, &[1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    bench.errors.set(None);
    assert!(bench.disk.to_vec().iter().all(|b| *b == 0));
}

#[test]
fn a_volume_that_cannot_be_written_out_is_not_closed() {
    let bench = bench(8 << 20);
    let mut session = bench.volume.session().unwrap();
    let mut open = bench.volume.open(&bench.volume.vnode(FILE, 0));
    bench.errors.set(Some(Failure::every(1, ErrorKind::Media)));
    session.write(&mut open, 0, &[7; 5000]).unwrap();
    assert!(bench.volume.close().is_err());
    bench.errors.set(None);
    until("it closes", || bench.volume.close().is_ok());
    assert_eq!(bench.cache.stats().used_bytes, 0);
    let mut back = [0; 5000];
    bench.disk.peek(0, &mut back);
    assert_eq!(back, [7; 5000]);
}

#[test]
fn many_files_are_written_out_together_and_one_that_cannot_be_does_not_keep_the_others() {
    const FILES: u64 = 200;
    let disk = Arc::new(Mem::new(FILES * 8192, 512));
    let (device, errors) = ErrorDevice::new(disk.clone());
    let slow = Config {
        sync_interval: Duration::from_secs(3600),
        ..config(8 << 20)
    };
    let cache = Cache::new(slow).unwrap();
    let volume = cache.volume(Arc::new(Parts::new(Arc::new(device), 8192)));
    let volume = volume.unwrap();
    let mut session = volume.session().unwrap();
    let contents: Vec<Vec<u8>> = (0..FILES).map(|file| content(file, 5000)).collect();
    for (file, data) in (0..).zip(&contents) {
        let mut open = volume.open(&volume.vnode(FileId(file), 0));
        session.write(&mut open, 0, data).unwrap();
    }
    errors.set(Some(Failure::every(3, ErrorKind::Media).of(OpKind::Write)));
    assert!(volume.write_out().is_err());
    let dirty = |stats: &cache::FileStats| stats.dirty_bytes > 0;
    let left = volume.files().iter().filter(|file| dirty(file)).count();
    assert!((1..FILES as usize / 2).contains(&left), "{left} files left");
    errors.set(None);
    volume.write_out().unwrap();
    assert!(!volume.files().iter().any(dirty));
    for (file, data) in (0..).zip(&contents) {
        let mut back = vec![0; data.len()];
        disk.peek(file * 8192, &mut back);
        assert!(back == *data, "file {file}");
    }
}

/// The device reports a failed write late: until then the write is in flight, and only a sync that
/// waits for it learns that it has to write the page itself.
#[test]
fn a_sync_waits_for_write_back_that_is_in_flight() {
    const FILES: u64 = 20;
    let disk = Arc::new(Mem::new(FILES * 8192, 512));
    let (failing, errors) = ErrorDevice::new(disk.clone());
    let late = Duration::from_millis(300);
    let slow = Delay::new(Arc::new(failing), Duration::ZERO, late);
    let patient = Config {
        retry: Duration::from_secs(3600),
        ..config(8 << 20)
    };
    let cache = Cache::new(patient).unwrap();
    let volume = cache.volume(Arc::new(Parts::new(Arc::new(slow), 8192)));
    let volume = volume.unwrap();
    let mut session = volume.session().unwrap();
    errors.set(Some(Failure::every(1, ErrorKind::Media).of(OpKind::Write)));
    let data = content(9, 5000);
    for file in 0..FILES {
        let mut open = volume.open(&volume.vnode(FileId(file), 0));
        session.write(&mut open, 0, &data).unwrap();
    }
    until("the background has sent a write", || errors.failed() > 0);
    errors.set(None);
    volume.write_out().unwrap();
    assert_eq!(volume.dirty(), DirtyData::default());
    for file in 0..FILES {
        let mut back = vec![0; data.len()];
        disk.peek(file * 8192, &mut back);
        assert!(back == data, "file {file}");
    }
}

/// A sync promises that data is stable, and each open file tells its errors: a sync does not take
/// them away, whether the background or the sync wrote the pages in the end.
#[test]
fn a_sync_leaves_the_error_of_a_file_that_is_clean_again_to_its_flush() {
    let bench = bench(8 << 20);
    let mut session = bench.volume.session().unwrap();
    let vnode = bench.volume.vnode(FILE, 0);
    let mut open = bench.volume.open(&vnode);
    let data = content(10, 50_000);
    let failure = Failure::every(1, ErrorKind::Media).of(OpKind::Write);
    bench.errors.set(Some(failure));
    session.write(&mut open, 0, &data).unwrap();
    until("the background has failed", || {
        bench.volume.held_back().is_some()
    });
    assert!(bench.volume.write_out().is_err(), "a page is not written");
    bench.errors.set(None);
    until("the pages are clean", || vnode.stats().dirty_bytes == 0);
    bench.volume.write_out().unwrap();
    let mut back = vec![0; data.len()];
    bench.disk.peek(0, &mut back);
    assert!(back == data);
    let error = session.flush(&mut open).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Media);
    session.flush(&mut open).unwrap();
}

/// More files are dirty than a sync is to find: the oldest are written back although they are not
/// due, and the rest is not.
#[test]
fn the_oldest_of_many_dirty_files_are_written_back_early() {
    const FILES: u64 = 18_000;
    let disk = Arc::new(Mem::new(FILES * 4096, 512));
    let patient = Config {
        sync_interval: Duration::from_secs(3600),
        dirty_background_percent: 50,
        dirty_throttle_percent: 60,
        ..config(512 << 20)
    };
    let cache = Cache::new(patient).unwrap();
    let volume = cache.volume(Arc::new(Parts::new(disk.clone(), 4096)));
    let volume = volume.unwrap();
    let mut session = volume.session().unwrap();
    for file in 0..FILES {
        let mut open = volume.open(&volume.vnode(FileId(file), 0));
        session.write(&mut open, 0, &[7; 100]).unwrap();
    }
    let dirty = || volume.dirty().bytes / 4096;
    until("the excess is written back", || dirty() <= 16_384);
    let written = |file: u64| {
        let mut back = [0; 100];
        disk.peek(file * 4096, &mut back);
        back == [7; 100]
    };
    assert!((0..1000).all(written));
    assert!(dirty() > 16_384 - 256, "{} files are dirty", dirty());
    volume.write_out().unwrap();
    assert!((0..FILES).all(written));
}

/// Checks a direct read that waits while background write-back of the page fails: the device then
/// holds old data, which the read must not return.
#[test]
fn a_direct_read_does_not_pass_by_what_the_background_could_not_write() {
    let (failing, errors) = ErrorDevice::new(Arc::new(Mem::new(2 * SPAN, 512)));
    let slow = Delay::new(Arc::new(failing), Duration::ZERO, Duration::from_millis(20));
    let cache = Cache::new(Config {
        tick: Duration::from_millis(1),
        sync_interval: Duration::from_millis(1),
        ..config(8 << 20)
    })
    .unwrap();
    let volume = cache
        .volume(Arc::new(Parts::new(Arc::new(slow), SPAN)))
        .unwrap();
    let mut session = volume.session().unwrap();
    let mut open = volume.open(&volume.vnode(FILE, 4096));
    errors.set(Some(Failure::every(2, ErrorKind::Media).of(OpKind::Write)));
    for round in 0..60 {
        let data = content(round, 4096);
        while session.write(&mut open, 0, &data).is_err() {}
        std::thread::sleep(Duration::from_millis(round % 6));
        let buf = Buf::zeroed(4096).into();
        if let Ok(bufs) = session.read_direct(&mut open, 0, buf) {
            assert!(bufs.iter().flat_map(|b| b.iter()).eq(&data), "{round}");
        }
    }
    assert!(errors.failed() > 0);
}
