//! Workloads on a cell in memory: the server's counters compared with calculated values.

use super::*;
use crate::{BenchDevice, StackKind};
use bench_core::Target;
use bench_load::Job;
use bench_load::workload::{clientload, nfsbasic};
use stack::{ProcessCache, Settings};

fn cell() -> AfsCell {
    let settings = Settings::load().unwrap();
    let bench = BenchDevice::in_memory(256 << 20);
    let built = bench.build(StackKind::Encrypted(256)).unwrap();
    let cache = ProcessCache::with(&settings, "").unwrap();
    let own = OwnCell::new(&built.device, "afs-test", &settings, &cache).unwrap();
    AfsCell::new("afs-test", own)
}

/// Returns the number of calls of a procedure.
fn called(cell: &AfsCell, procedure: &str) -> u64 {
    let called = cell.own.stats().called;
    let found = called.iter().find(|called| called.procedure == procedure);
    found.map_or(0, |found| found.calls)
}

#[test]
fn each_client_fetches_the_file_once_each_time() {
    let cell = cell();
    let config = clientload::Config {
        clients: 15,
        ..clientload::Config::default()
    };
    let clients = cell.clients(15).unwrap();
    let all: Vec<&dyn Files> = clients.iter().map(|client| &**client).collect();
    let file = config.file;
    for round in 1..=2 {
        let before = cell.own.stats().counts;
        let outcome = clientload::run(&all, &config).unwrap();
        assert!(outcome.flushed);
        assert_eq!((outcome.secs.len(), outcome.bytes), (15, 15 * file));
        let counts = cell.own.stats().counts;
        // Each client reads the directory, which has changed, in one page; the first one already
        // has its own change.
        let pages = if round == 1 { 15 } else { 14 };
        let fetched = counts.fetched_bytes - before.fetched_bytes;
        assert_eq!(fetched, 15 * file + pages * 2048, "round {round}");
        assert_eq!(counts.fetched_data - before.fetched_data, 15 + pages);
        assert_eq!(counts.stored_bytes - before.stored_bytes, file);
    }
    assert_eq!(cell.own.stats().clients, 15);
}

#[test]
fn the_basic_tests_make_the_calls_that_their_counts_say() {
    let cell = cell();
    let files = cell.client(0).unwrap();
    let config = nfsbasic::Config::default();
    let outcomes = nfsbasic::run(&*files, &config).unwrap();
    assert!(
        outcomes.iter().all(|o| o.operations.is_some()),
        "{outcomes:?}"
    );
    // Test 1 creates 155 files; then 10, 1, 200, 10 are created for tests 4 to 7.
    assert_eq!(called(&cell, "CreateFile"), 155 + 10 + 1 + 200 + 10);
    // In addition to these 62 directories, one around them and one for test 6.
    assert_eq!(called(&cell, "MakeDir"), 62 + 2);
    assert_eq!(called(&cell, "RemoveDir"), 62 + 2);
    assert_eq!(called(&cell, "StoreStatus"), 1000);
    assert_eq!(called(&cell, "Rename"), 100);
    assert_eq!(called(&cell, "Link"), 100);
    assert_eq!(called(&cell, "Symlink"), 200);
    assert_eq!(called(&cell, "GetVolumeStatus"), 1500);
    // A megabyte is sent when the file is closed; except the first time, the file is truncated
    // before.
    assert_eq!(called(&cell, "StoreData64"), 10 + 9);
    assert_eq!(cell.own.stats().counts.stored_bytes, 10 << 20);
    assert_eq!(cell.own.stats().counts.aborts, 0);
}

#[test]
fn files_are_what_a_workload_expects() {
    let cell = cell();
    let files = cell.client(0).unwrap();
    let other = cell.client(1).unwrap();
    let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n * 7) as u8).collect();
    let file = files.open("a", Open::CREATE).unwrap();
    for (n, part) in data.chunks(700_001).enumerate() {
        file.write_at(n as u64 * 700_001, part).unwrap();
    }
    assert_eq!(file.size().unwrap(), data.len() as u64);
    drop(file);
    let end = files.open("a", Open::APPEND).unwrap();
    end.write_at(0, b"one").unwrap();
    end.write_at(0, b"two").unwrap();
    drop(end);
    // Other clients see the data that a client has closed.
    let mut found = vec![0; data.len() + 100];
    let seen = other.open("a", Open::READ).unwrap();
    let mut at = 0;
    loop {
        let got = seen.read_at(at as u64, &mut found[at..]).unwrap();
        if got == 0 {
            break;
        }
        at += got;
    }
    assert_eq!(at, data.len() + 6);
    assert!(found[..data.len()] == data && found[data.len()..at] == *b"onetwo");
    other.mkdir("d").unwrap();
    let error = files.open("d", Open::READ).err().unwrap();
    assert_eq!(error.raw_os_error(), Some(libc::EISDIR));
    assert_eq!(
        files.unlink("none").unwrap_err().kind(),
        ErrorKind::NotFound
    );
    files.rename("a", "d/b").unwrap();
    assert_eq!(other.stat("d/b").unwrap().size, data.len() as u64 + 6);
    let across = files.link("d/b", "c").unwrap_err();
    assert_eq!(across.raw_os_error(), Some(libc::EXDEV));
    assert_eq!(
        files.rmdir("d").unwrap_err().kind(),
        ErrorKind::DirectoryNotEmpty
    );
}

#[test]
fn the_servers_cpu_is_a_figure_of_its_own() {
    let cell = Arc::new(cell());
    let mut target = Target::files("afs-test", cell.client(0).unwrap());
    target.server = Some(cell);
    let mut job = Job::named("clientload", bench_load::Extent::Quick).unwrap();
    job.set("file", "4M").unwrap();
    let record = job.run(&target, 1).unwrap();
    let phase = &record.phases[0];
    let value = |cell: &str| record.value(&phase.name, cell).unwrap();
    assert!(value("server CPU") > 0.0);
    assert!(value("server CPU, most in 0.1 s") > 0.0);
    // It is part of the CPU time of the whole process.
    let server = value("server CPU") / 100.0 * phase.wall_ns as f64;
    assert!(server <= phase.cpu.total_ns as f64, "{phase:?}");
    assert_eq!(phase.cells.last().unwrap().name, "CPU");
    assert!(value("client 15") > 0.0 && value("client 1") <= value("last client"));
}
