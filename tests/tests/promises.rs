//! Every promise of the guide names the test that verifies it, and that test exists.
//!
//! A promise is a list item, or a row of a table whose last column is `tests`, on the pages about
//! security and durability. It contains `(test: PLACE::NAME)`, or several of them separated by
//! commas: NAME is a test function and PLACE its file in `tests/tests`, or `CRATE/FILE`. Text after
//! `Not promised:`, or in a section about trusted components, is no promise.

use std::fs;
use std::path::{Path, PathBuf};
use tests::root;

/// The pages with promises.
const PAGES: [&str; 2] = ["security.md", "durability.md"];

#[test]
fn every_promise_of_the_guide_names_a_test_that_exists() {
    let tests = all_tests();
    let guide = root().join("docs/guide");
    let mut wrong = Vec::new();
    for page in PAGES {
        let text = fs::read_to_string(guide.join(page)).unwrap();
        let promises = promises(&text);
        assert!(promises.len() >= 10, "{page}: only {promises:#?}");
        let without = promises.iter().filter(|p| named_tests(p).is_empty());
        wrong.extend(without.map(|p| format!("{page}: names no test: {p}")));
    }
    for page in fs::read_dir(guide).unwrap().flatten() {
        let text = fs::read_to_string(page.path()).unwrap();
        for (place, name) in named_tests(&text) {
            if !exists(&tests, &place, &name) {
                let page = page.path();
                wrong.push(format!("{page:?}: there is no test {place}::{name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the promises of a page, each on one line.
fn promises(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let (mut counts, mut rows_count, mut item_is_open) = (true, false, false);
    let mut before = "";
    for line in text.lines() {
        if line.starts_with('#') {
            counts = !line.contains("trusted");
        } else if line.starts_with("Not promised") {
            counts = false;
        }
        let row = line.starts_with('|');
        if row && !before.starts_with('|') {
            rows_count = line.trim_end_matches(['|', ' ']).ends_with("tests");
        }
        let item = line.starts_with("- ");
        let is_body = row && rows_count && before.starts_with('|') && !line.starts_with("|--");
        if counts && (item || is_body) {
            found.push(line.to_owned());
        } else if counts && item_is_open && line.starts_with("  ") {
            let last = found.last_mut().expect("an item is open");
            *last = format!("{last} {}", line.trim());
        }
        item_is_open = item || (item_is_open && line.starts_with("  "));
        before = line;
    }
    found
}

/// Returns the tests that a text names, as place and name.
fn named_tests(text: &str) -> Vec<(String, String)> {
    let lists = text
        .split("(test: ")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    lists
        .flat_map(|list| list.split(','))
        .filter_map(|one| one.trim().rsplit_once("::"))
        .map(|(place, name)| (place.to_owned(), name.to_owned()))
        .collect()
}

/// Source files and the names of their test functions.
type Tests = Vec<(PathBuf, Vec<String>)>;

fn exists(tests: &Tests, place: &str, name: &str) -> bool {
    let in_place = |file: &Path| {
        place
            .split('/')
            .all(|part| file.iter().any(|f| f.to_str() == Some(part)))
    };
    tests
        .iter()
        .any(|(file, names)| in_place(file) && names.iter().any(|n| n == name))
}

fn all_tests() -> Tests {
    let mut files = Vec::new();
    for top in ["crates", "bench", "tests"] {
        sources(&root().join(top), &mut files);
    }
    let read = |file: PathBuf| {
        let names = test_functions(&fs::read_to_string(&file).unwrap());
        let file = file.strip_prefix(root()).unwrap().with_extension("");
        (file, names)
    };
    files.into_iter().map(read).collect()
}

/// Returns the functions that follow a test attribute.
fn test_functions(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim_start) {
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

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn a_promise_without_a_test_and_a_test_that_is_none_are_found() {
    let page = "# A page\n## What is trusted\n- the kernel\n## Disks\n- kept (test: a::b)\n- broken\n  over two lines\n\
                | x | tests |\n|---|---|\n| row | (test: c/x::d, e::f) |\n\n| x | other |\n|---|---|\n| row | free |\n\
                Not promised:\n- free\n## More\n- deep (test: g::h)\n";
    let found = promises(page);
    assert_eq!(found.len(), 4, "{found:#?}");
    assert_eq!(found[1], "- broken over two lines");
    assert!(named_tests(&found[1]).is_empty());
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(named_tests(&found[2]), [pair("c/x", "d"), pair("e", "f")]);
    assert_eq!(
        test_functions("#[test]\nfn one() {\n}\nfn two() {}\n"),
        ["one"]
    );
    let tests = all_tests();
    let own = "a_promise_without_a_test_and_a_test_that_is_none_are_found";
    assert!(exists(&tests, "promises", own));
    assert!(!exists(&tests, "docs_run", own) && !exists(&tests, "promises", "sources"));
}
