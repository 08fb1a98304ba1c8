//! Every promise of the guide names the test that holds it, and that test exists.
//!
//! `docs/guide/security.md` and `docs/guide/durability.md` state promises in list items and table rows
//! below headings that contain the word "promise". Each ends with `(test: FILE::NAME)`: NAME is a test
//! function in FILE.rs, in a directory FILE, or in the crate FILE.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The pages that state promises.
const PAGES: [&str; 2] = ["security.md", "durability.md"];

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

#[test]
fn every_promise_of_the_guide_names_a_test_that_exists() {
    let tests = tests_by_file();
    let mut wrong = Vec::new();
    for page in PAGES {
        let text = fs::read_to_string(repository().join("docs/guide").join(page)).unwrap();
        let promises = promises(&text);
        assert!(promises.len() >= 8, "{page}: only {promises:?}");
        for promise in promises {
            let named = named_tests(&promise);
            if named.is_empty() {
                wrong.push(format!("{page}: no test is named: {promise}"));
            }
            for (file, name) in named {
                if !tests.get(&file).is_some_and(|names| names.contains(&name)) {
                    wrong.push(format!("{page}: there is no test {file}::{name}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The list items and table rows in the sections of promises, each on one line.
fn promises(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let (mut promising, mut level, mut table_row) = (false, 0, 0);
    let mut open = false;
    for line in text.lines() {
        let depth = line.bytes().take_while(|b| *b == b'#').count();
        if depth > 0 {
            // A heading below one of promises stays among them.
            if !promising || depth <= level {
                promising = line.to_lowercase().contains("promise");
                level = depth;
            }
            open = false;
            continue;
        }
        if !promising {
            continue;
        }
        table_row = if line.starts_with('|') {
            table_row + 1
        } else {
            0
        };
        if line.starts_with("- ") || table_row > 2 {
            found.push(line.to_owned());
            open = table_row == 0;
        } else if open && line.starts_with("  ") {
            let last = found.last_mut().expect("an item is open");
            *last += " ";
            *last += line.trim();
        } else {
            open = false;
        }
    }
    found
}

/// The tests that a promise names, as file and function.
fn named_tests(promise: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for part in promise.split("(test: ").skip(1) {
        let inside = part.split(')').next().unwrap_or_default();
        for one in inside.split(',') {
            if let Some((file, name)) = one.trim().trim_matches('`').split_once("::") {
                found.push((file.to_owned(), name.to_owned()));
            }
        }
    }
    found
}

/// The names of all test functions, by the file, the directory or the crate that they are in.
fn tests_by_file() -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for top in ["crates", "tests"] {
        for file in sources(&repository().join(top)) {
            let text = fs::read_to_string(&file).unwrap();
            let names = test_functions(&text);
            let relative = file.strip_prefix(repository()).unwrap().with_extension("");
            for part in relative.iter().filter_map(|part| part.to_str()) {
                all.entry(part.to_owned())
                    .or_default()
                    .extend(names.iter().cloned());
            }
        }
    }
    all
}

/// The functions that follow a test attribute.
fn test_functions(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("#[test]") {
            is_test = true;
        } else if let Some(rest) = line.strip_prefix("fn ") {
            if is_test {
                found.extend(rest.split('(').next().map(str::to_owned));
            }
            is_test = false;
        }
    }
    found
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().flatten();
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.path()) {
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found
}

#[test]
fn a_promise_without_a_test_and_a_test_that_is_none_are_found() {
    let page = "# A\n- no promise\n## What is promised\n- kept (test: a::b)\n- broken\n  over two lines\n\
                | x | y |\n|---|---|\n| row | (test: c::d, e::f) |\n### Below\n- deep (test: g::h)\n## Else\n- free\n";
    let found = promises(page);
    assert_eq!(found.len(), 4, "{found:?}");
    assert_eq!(found[1], "- broken over two lines");
    assert!(named_tests(&found[1]).is_empty());
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(named_tests(&found[2]), [pair("c", "d"), pair("e", "f")]);
    let source = "#[test]\nfn one() {\n}\nfn two() {}\n";
    assert_eq!(test_functions(source), ["one"]);
    let all = tests_by_file();
    let own = "a_promise_without_a_test_and_a_test_that_is_none_are_found";
    assert!(all["promises"].contains(own));
}
