//! The codes of events: warnings and errors on which an administrator acts.
//!
//! A code is the name of the event in its `tracing` macro, for example
//! `tracing::warn!(name: "EVFS-0101", ...)`. It stays the same when the words of the message
//! change, and is never used for anything else. The first two digits stand for the area.

/// An event with a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The code, `EVFS-` and four digits.
    pub code: &'static str,
    /// The page `docs/errors/CODE.md`.
    pub page: &'static str,
}

impl Known {
    /// Returns the meaning of the code in a few words.
    pub fn title(&self) -> &'static str {
        let first = self.page.lines().next().unwrap_or_default();
        first.split_once(": ").map_or("", |(_, title)| title)
    }
}

/// First letters of each code.
const PREFIX: &str = "EVFS-";

macro_rules! events {
    ($($number:literal)*) => {
        &[$(Known {
            code: concat!("EVFS-", $number),
            page: include_str!(concat!("../../../../docs/errors/EVFS-", $number, ".md")),
        }),*]
    };
}

/// All codes, in order.
pub const EVENTS: &[Known] = events! {
    // the file cache
    "0101" "0102" "0103" "0104" "0105" "0106" "0107" "0108"
    // file systems
    "0201" "0202" "0203" "0204" "0205" "0206" "0207" "0208" "0209"
    "0210" "0211"
    // devices shared by processes and machines
    "0301" "0302" "0303" "0304" "0305"
    // LUNs and paths
    "0401" "0402" "0403" "0404" "0405" "0406" "0407" "0408"
    "0409" "0410" "0411" "0412"
    // the NBD server
    "0501" "0502" "0503" "0504" "0505" "0506" "0507" "0508"
    // FUSE mounts and loop devices
    "0601" "0602" "0603" "0604" "0605" "0606" "0607"
    // cells
    "0701" "0702" "0703" "0704" "0705" "0706" "0707" "0708"
    // services and their control
    "0801" "0802" "0803" "0804" "0805" "0806" "0807" "0808"
    "0809" "0810" "0811" "0812" "0813" "0814" "0815" "0816"
    "0817" "0818" "0819"
    // metrics and the web page
    "0901" "0902"
    // clusters
    "1001" "1002" "1003" "1004" "1005" "1006" "1007" "1008"
    "1009" "1010"
};

/// Returns the code of an event, if its name is one.
pub fn of_event(name: &'static str) -> Option<&'static str> {
    name.starts_with(PREFIX).then_some(name)
}

/// Finds a code by its text, with or without `EVFS-` and leading zeros.
pub fn find(text: &str) -> Option<&'static Known> {
    let upper = text.to_ascii_uppercase();
    let number: u16 = upper.strip_prefix(PREFIX).unwrap_or(&upper).parse().ok()?;
    let code = format!("{PREFIX}{number:04}");
    EVENTS.iter().find(|known| known.code == code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    /// Collects the sources of the product, except tests.
    fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs")
                && path.components().any(|c| c.as_os_str() == "src")
                && !path.ends_with("evfs/src/log/entry.rs")
                && !path.ends_with("evfs/src/log/journal.rs")
            {
                found.push(path);
            }
        }
    }

    /// Lists the warnings and errors in the sources: the place, and the code if it has one.
    fn reported() -> Vec<(String, Option<String>)> {
        let mut files = Vec::new();
        sources(&root().join("crates"), &mut files);
        let mut found = Vec::new();
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            for macro_name in [
                concat!("tracing::", "warn!("),
                concat!("tracing::", "error!("),
            ] {
                for (at, _) in text.match_indices(macro_name) {
                    let rest = text[at + macro_name.len()..].trim_start();
                    let named = rest.strip_prefix("name: \"");
                    let code = named.and_then(|rest| rest.split('"').next());
                    let line = text[..at].lines().count();
                    let place = format!("{}:{line}", file.display());
                    found.push((place, code.map(str::to_owned)));
                }
            }
        }
        found
    }

    #[test]
    fn every_warning_and_error_has_a_code_and_every_code_is_used() {
        let reported = reported();
        assert!(reported.len() > 60, "{} found", reported.len());
        let known: BTreeSet<&str> = EVENTS.iter().map(|event| event.code).collect();
        let mut used = BTreeSet::new();
        for (place, code) in &reported {
            let code = code
                .as_deref()
                .unwrap_or_else(|| panic!("{place}: no code"));
            assert!(known.contains(code), "{place}: {code} is not in the table");
            used.insert(code);
        }
        assert_eq!(used, known);
    }

    #[test]
    fn every_code_has_a_page_and_every_page_has_a_code() {
        let mut pages = BTreeSet::new();
        for entry in fs::read_dir(root().join("docs/errors")).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            pages.insert(name.strip_suffix(".md").unwrap().to_owned());
        }
        assert!(pages.remove("README"));
        let codes: BTreeSet<String> = EVENTS.iter().map(|event| event.code.into()).collect();
        assert_eq!(pages, codes);
        for event in EVENTS {
            let first = format!("# {}: {}\n", event.code, event.title());
            assert!(event.page.starts_with(&first), "{}", event.code);
            let parts = [
                "\n## What happened\n\n",
                "\n## Why\n\n",
                "\n## What to do\n\n",
            ];
            let at = parts.map(|part| event.page.find(part));
            assert!(
                at.is_sorted() && at.iter().all(Option::is_some),
                "{}",
                event.code
            );
        }
    }

    #[test]
    fn the_index_lists_every_page_with_its_title() {
        let index = fs::read_to_string(root().join("docs/errors/README.md")).unwrap();
        let listed: Vec<&str> = index
            .lines()
            .filter(|line| line.starts_with("| [EVFS-"))
            .collect();
        let expected: Vec<String> = EVENTS
            .iter()
            .map(|e| format!("| [{0}]({0}.md) | {1} |", e.code, e.title()))
            .collect();
        assert_eq!(listed, expected);
    }

    #[test]
    fn a_code_is_found_in_any_spelling() {
        for text in ["EVFS-0101", "evfs-101", "0101", "101"] {
            assert_eq!(
                find(text).map(|event| event.code),
                Some("EVFS-0101"),
                "{text}"
            );
        }
        for text in ["", "EVFS-", "EVFS-9999", "x", "-1"] {
            assert_eq!(find(text), None, "{text}");
        }
    }
}
