//! Style rules that no other tool checks.

use crate::Outcome;
use std::path::{Path, PathBuf};

/// Longest permitted source file, in lines; a longer one should be split.
const LINES_MAX: usize = 800;

/// Markers of unfinished work, concatenated here so that this file does not contain them.
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("#[ig", "nore]"),
    concat!("todo", "!("),
    concat!("unimpl", "emented!("),
];

/// Fails with a list of all violations and their locations.
pub fn check(root: &Path) -> Outcome {
    let mut wrong = Vec::new();
    for top in [
        "benches/cache/src",
        "crates",
        "fuzz/fuzz_targets",
        "tests",
        "xtask",
    ] {
        for file in sources(&root.join(top)) {
            let text = std::fs::read_to_string(&file).map_err(|e| format!("{file:?}: {e}"))?;
            let name = file
                .strip_prefix(root)
                .unwrap_or(&file)
                .display()
                .to_string();
            wrong.extend(
                broken(&text)
                    .into_iter()
                    .map(|rule| format!("{name}: {rule}")),
            );
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("\n"))
    }
}

fn broken(text: &str) -> Vec<String> {
    let mut rules = Vec::new();
    let lines = text.lines().count();
    if lines > LINES_MAX {
        rules.push(format!("{lines} lines; at most {LINES_MAX}"));
    }
    let first = text
        .lines()
        .find(|line| !line.starts_with("#!["))
        .unwrap_or_default();
    if !first.starts_with("//!") {
        rules.push("does not begin with what it is (//!)".into());
    }
    for (number, line) in text.lines().enumerate() {
        if line.ends_with(' ') || line.contains('\t') {
            rules.push(format!("line {}: a tab, or a space at the end", number + 1));
        }
        if let Some(word) = UNFINISHED.iter().find(|word| line.contains(**word)) {
            rules.push(format!("line {}: {word}", number + 1));
        }
    }
    rules
}

/// Returns all Rust sources under `dir`, sorted.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(dir) else {
        return found;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_is_found_and_clean_text_is_not() {
        assert!(broken("//! What it is.\n\nfn main() {}\n").is_empty());
        assert_eq!(broken("fn main() {}\n").len(), 1);
        assert_eq!(broken("//! x\nlet a = 1; \n").len(), 1);
        assert_eq!(broken(&format!("//! x\n// {}\n", UNFINISHED[0])).len(), 1);
        assert_eq!(
            broken(&format!("//! x\n{}", "\n".repeat(LINES_MAX))).len(),
            1
        );
    }
}
