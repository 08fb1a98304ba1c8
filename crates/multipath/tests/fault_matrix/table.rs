//! Checks the table in `README.md` of this directory against the tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Returns the source file and the name of a test in the table.
fn place(named: &str) -> (PathBuf, &str) {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (file, test) = named.split_once("::").expect("file::test");
    let path = match file.strip_prefix("matrix/") {
        Some(file) => crates.join(format!("tests/fault_matrix/{file}.rs")),
        // Tests of the whole program.
        None if file.starts_with('/') => crates.join(format!("../../tests/tests{file}.rs")),
        None => crates.join(format!("tests/{file}.rs")),
    };
    (path, test)
}

/// Returns the names of the tests in a source file.
fn tests_in(path: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let lines: Vec<_> = text.lines().map(str::trim_start).collect();
    let name = |line: &str| {
        let rest = line.strip_prefix("fn ")?;
        Some(rest.split('(').next()?.to_owned())
    };
    let marked = lines.windows(2).filter(|two| two[0] == "#[test]");
    marked.filter_map(|two| name(two[1])).collect()
}

/// Returns the rows of the table as lists of columns.
fn rows() -> Vec<Vec<String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fault_matrix");
    let text = std::fs::read_to_string(folder.join("README.md")).unwrap();
    let lines = text.lines().filter(|line| line.starts_with("| "));
    let columns = |line: &str| {
        line.trim_matches('|')
            .split('|')
            .map(|c| c.trim().to_owned())
            .collect()
    };
    lines.skip(1).map(columns).collect()
}

#[test]
fn every_row_has_its_tests_and_every_test_its_row() {
    let mut named = BTreeSet::new();
    let rows = rows();
    assert!(rows.len() > 30, "{}", rows.len());
    for row in &rows {
        let [fault, expected, injection, tests] = &row[..] else {
            panic!("four columns: {row:?}");
        };
        assert!(!expected.is_empty() && !injection.is_empty(), "{fault}");
        let tests: Vec<_> = tests.split(", ").map(|t| t.trim_matches('`')).collect();
        for test in tests {
            let (path, name) = place(test);
            assert!(tests_in(&path).contains(name), "{fault}: no test `{test}`");
            named.insert(test.to_owned());
        }
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fault_matrix");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_stem().unwrap().to_str().unwrap();
        if path.extension().is_none_or(|e| e != "rs") || file == "table" {
            continue;
        }
        for test in tests_in(&path) {
            let test = format!("matrix/{file}::{test}");
            assert!(named.contains(&test), "`{test}` is in no row");
        }
    }
}
