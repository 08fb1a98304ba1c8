//! Checks `nfsbasic` against the counts that the original suite prints.

use bench_core::files::HostDirectory;
use bench_load::workload::nfsbasic::{Config, run};

#[test]
fn the_counts_are_those_of_1990() {
    let dir = tempfile::tempdir().unwrap();
    let outcomes = run(
        &HostDirectory::open(dir.path()).unwrap(),
        &Config::default(),
    )
    .unwrap();
    let lines: Vec<String> = outcomes
        .iter()
        .map(|o| format!("{} {}", o.test, o.what))
        .collect();
    assert_eq!(
        lines,
        [
            "1 created 155 files 62 directories 5 levels deep",
            "2 removed 155 files 62 directories 5 levels deep",
            "3 500 getcwd and stat calls",
            "4 1000 chmods and stats on 10 files",
            "5a wrote 1048576 byte file 10 times",
            "5b read 1048576 byte file 10 times",
            "6 20500 entries read, 200 files",
            "7 200 renames and links on 10 files",
            "8 400 symlinks and readlinks on 10 files",
            "9 1500 statfs calls",
        ]
    );
    assert_eq!(outcomes[4].bytes, 10 << 20);
    assert!(
        outcomes
            .iter()
            .all(|o| o.secs > 0.0 && o.operations.is_some())
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_wrong_answer_ends_the_test_with_its_words() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("tree")).unwrap();
    let error = run(
        &HostDirectory::open(dir.path()).unwrap(),
        &Config::default(),
    )
    .unwrap_err();
    assert!(error.to_string().contains("mkdir tree"), "{error}");
}
