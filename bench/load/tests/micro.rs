//! Checks that `micro` measures every row and leaves nothing behind.

use bench_core::files::HostDirectory;
use bench_load::workload::micro::run;
use std::time::Duration;

#[test]
fn every_row_is_done_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let folder = HostDirectory::open(dir.path()).unwrap();
    let rows = run(&folder, Duration::from_millis(30)).unwrap();
    let row = |what: &str| rows.iter().find(|r| r.what.starts_with(what)).unwrap();
    assert!(
        rows.iter()
            .all(|r| r.count > 0 && r.wall_us > 0.0 && r.cpu_us > 0.0),
        "{rows:?}"
    );
    // A file of 10 MiB always costs more than one of 1 KiB, and a context switch more than a call.
    assert!(row("create-delete 10 MiB").cpu_us > 10.0 * row("create-delete 1 KiB").cpu_us);
    assert!(row("round trip, one").cpu_us > row("system call").cpu_us);
    // A zero duration means one repetition of each, not none.
    let least = run(&folder, Duration::ZERO).unwrap();
    assert!(least.iter().all(|r| r.count > 0 && r.wall_us.is_finite()));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
