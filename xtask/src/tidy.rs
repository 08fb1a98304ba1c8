//! Style rules that no other tool checks, and links between pages.

use crate::{Outcome, links, site};
use std::path::{Path, PathBuf};

/// Longest permitted source file, in lines; a longer one should be split.
const LINES_MAX: usize = 800;

/// Markers of unfinished work, concatenated here so that this file does not contain them.
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("todo", "!("),
    concat!("unimpl", "emented!("),
];

/// Phrases that comments and pages avoid (`docs/STYLE.md`), in lower case and as whole words.
const AVOIDED: &[&str] = &[
    "somebody",
    "anybody",
    "nobody",
    "everybody",
    "whoever",
    "so many",
    "so much",
    "for ever",
    "meanwhile",
    "anew",
    "brings",
    "brought",
    "encipher",
    "enciphers",
    "enciphered",
    "enciphering",
    "decipher",
    "deciphers",
    "deciphered",
    "deciphering",
];

/// Page that lists the avoided phrases.
const STYLE_GUIDE: &str = "docs/STYLE.md";

/// Longest line of prose in a page, in characters. Lines with a link or a test's name, and those of
/// tables, may be longer.
const PROSE_COLUMNS_MAX: usize = 100;

/// Fails with a list of all violations and their locations.
pub fn check(root: &Path) -> Outcome {
    let mut wrong = Vec::new();
    for top in [
        "bench",
        "benches/cache/src",
        "crates",
        "fuzz/fuzz_targets",
        "tests",
        "xtask",
    ] {
        for file in files(&root.join(top), "rs") {
            wrong.extend(violations(root, &file, broken)?);
        }
    }
    let mut pages = files(&root.join("docs"), "md");
    let at_the_root = [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
    ];
    pages.extend(at_the_root.map(|page| root.join(page)));
    for page in pages.iter().filter(|page| **page != root.join(STYLE_GUIDE)) {
        wrong.extend(violations(root, page, broken_prose)?);
    }
    wrong.extend(links::broken(root, &pages)?);
    wrong.extend(site::unlisted(root, &pages)?);
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("\n"))
    }
}

/// Returns the violations in a file, each with the name of the file.
fn violations(
    root: &Path,
    file: &Path,
    rules: fn(&str) -> Vec<String>,
) -> Result<Vec<String>, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{file:?}: {e}"))?;
    let name = file.strip_prefix(root).unwrap_or(file).display();
    let named = |rule| format!("{name}: {rule}");
    Ok(rules(&text).into_iter().map(named).collect())
}

/// Returns the avoided phrase that a line contains, if any.
fn avoided(line: &str) -> Option<&'static str> {
    let line = line.to_lowercase();
    let is_whole = |at: usize, phrase: &str| {
        let before = line[..at].chars().next_back();
        let after = line[at + phrase.len()..].chars().next();
        [before, after]
            .iter()
            .flatten()
            .all(|c| !c.is_alphanumeric() && *c != '_')
    };
    let contains = |phrase: &&str| {
        line.match_indices(*phrase)
            .any(|(at, _)| is_whole(at, phrase))
    };
    AVOIDED.iter().copied().find(|phrase| contains(phrase))
}

/// Returns the rules that a page of Markdown violates outside of its code blocks.
fn broken_prose(text: &str) -> Vec<String> {
    let mut rules = Vec::new();
    let mut in_code = false;
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            in_code = !in_code;
        }
        if in_code || line.starts_with("    ") {
            continue;
        }
        if let Some(phrase) = avoided(line) {
            rules.push(format!(
                "line {}: \"{phrase}\"; see {STYLE_GUIDE}",
                number + 1
            ));
        }
        let may_be_long = line.starts_with('|') || line.contains("](") || line.contains("(test");
        if line.chars().count() > PROSE_COLUMNS_MAX && !may_be_long {
            rules.push(format!(
                "line {}: longer than {PROSE_COLUMNS_MAX}",
                number + 1
            ));
        }
    }
    rules
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
    let all: Vec<&str> = text.lines().collect();
    for (number, line) in all.iter().enumerate() {
        let line = *line;
        let is_doc = |at: usize| {
            all.get(at)
                .is_some_and(|l| l.trim_start().starts_with("///"))
        };
        let alone = is_doc(number) && !is_doc(number + 1) && !(number > 0 && is_doc(number - 1));
        let after = all.iter().skip(number + 1);
        let item = after.copied().find(|l| !l.trim_start().starts_with("#["));
        if alone && repeats_name(line, item.unwrap_or_default()) {
            rules.push(format!("line {}: the comment repeats the name", number + 1));
        }
        if line.ends_with(' ') || line.contains('\t') {
            rules.push(format!("line {}: a tab, or a space at the end", number + 1));
        }
        let comment = line.trim_start().starts_with("//");
        if let Some(phrase) = Some(line).filter(|_| comment).and_then(avoided) {
            rules.push(format!(
                "line {}: \"{phrase}\"; see {STYLE_GUIDE}",
                number + 1
            ));
        }
        if let Some(word) = UNFINISHED.iter().find(|word| line.contains(**word)) {
            rules.push(format!("line {}: {word}", number + 1));
        }
        if is_fence_of_ignored_example(line) {
            rules.push(format!("line {}: {IGNORED}", number + 1));
        }
    }
    if ignores_a_test(text) {
        rules.push(IGNORED.into());
    }
    rules
}

/// Rule on tests that are compiled and not run.
const IGNORED: &str = "an ignored test; make it run, or an example, or a command";

/// Checks whether a text has an attribute `ignore`, alone or in a `cfg_attr`, in any spelling.
fn ignores_a_test(text: &str) -> bool {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let attributes = text.split("#[").skip(1);
    attributes.into_iter().any(|rest| {
        let is_ignore = |part: &str| {
            let name = part.split(['=', ']', ')', '"']).next();
            name == Some("ignore")
        };
        let condition = rest.strip_prefix("cfg_attr(");
        let attribute = condition.map(|rest| rest.split("#[").next().unwrap_or_default());
        match attribute {
            None => is_ignore(rest),
            Some(rest) => {
                let end = rest.find(")]").unwrap_or(rest.len());
                rest[..end].split(',').skip(1).any(is_ignore)
            }
        }
    })
}

/// Checks whether a line begins an example in the documentation that is not compiled.
fn is_fence_of_ignored_example(line: &str) -> bool {
    let comment = line
        .trim_start()
        .trim_start_matches(['/', '!'])
        .trim_start();
    let words = comment.strip_prefix("```").unwrap_or_default();
    words
        .split([',', ' '])
        .any(|word| word.starts_with("ignore"))
}

/// Words that add nothing to a name.
const FILLERS: &[&str] = &[
    "the", "a", "an", "of", "its", "this", "that", "is", "in", "for", "to", "it",
];

/// Checks whether a one-line doc comment only repeats the name of the item on the next line.
fn repeats_name(doc: &str, item: &str) -> bool {
    let Some(text) = doc.trim().strip_prefix("/// ") else {
        return false;
    };
    let keyword = |word: &str| {
        let keywords = "pub pub(crate) pub(super) const async unsafe fn struct enum trait type mod";
        keywords.split(' ').any(|keyword| keyword == word)
    };
    let mut words = item.split_whitespace().skip_while(|word| keyword(word));
    let name = words.next().unwrap_or_default();
    let name = name
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .next();
    let name = split_name(name.unwrap_or_default());
    let plain = |word: &str| {
        word.trim_matches(|c: char| !c.is_alphanumeric())
            .to_lowercase()
    };
    let mut said = text.split_whitespace().map(plain).filter(|word| {
        let filler = FILLERS.iter().any(|filler| filler == word);
        !filler && !word.is_empty()
    });
    !name.is_empty() && said.all(|word| name.contains(&word))
}

/// Splits an identifier into its words, in lower case.
fn split_name(name: &str) -> Vec<String> {
    let mut words = Vec::new();
    for part in name.split('_').filter(|part| !part.is_empty()) {
        let mut word = String::new();
        for c in part.chars() {
            if c.is_uppercase() && !word.is_empty() {
                words.push(std::mem::take(&mut word));
            }
            word.extend(c.to_lowercase());
        }
        words.push(word);
    }
    words
}

/// Collects all files below `dir` with an extension, sorted.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(dir) else {
        return found;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
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
        assert_eq!(broken("//! x\n// Nobody waits.\n").len(), 1);
        assert!(broken("//! x\n// renewed manew keeps_nobody_out\n").is_empty());
        assert_eq!(
            broken("//! x\n/// Its block size.\npub block_size: u32,\n").len(),
            1
        );
        assert_eq!(
            broken("//! x\n/// The read path.\npub struct ReadPath;\n").len(),
            1
        );
        assert!(broken("//! x\n/// Block size in bytes.\npub block_size: u32,\n").is_empty());
        assert!(broken("//! x\n/// The read\n/// path.\nstruct ReadPath;\n").is_empty());
        assert_eq!(broken("fn main() {}\n").len(), 1);
        assert_eq!(broken("//! x\nlet a = 1; \n").len(), 1);
        assert_eq!(broken(&format!("//! x\n// {}\n", UNFINISHED[0])).len(), 1);
        assert_eq!(
            broken(&format!("//! x\n{}", "\n".repeat(LINES_MAX))).len(),
            1
        );
    }

    #[test]
    fn ignored_tests_are_found_in_every_spelling() {
        let ignored = [
            "#[IG]",
            "#[IG = \"slow\"]",
            "#[ IG ]",
            "#[test]\n# [\n    IG\n]",
            "#[cfg_attr(miri, IG)]",
            "#[cfg_attr(all(unix, miri), IG = \"slow\", allow(unused))]",
            "#[cfg_attr(miri, allow(unused), IG)]",
            "#[cfg_attr(\n    miri,\n    IG\n)]",
            "/// ```IG",
            "//! ```rust,IG",
        ];
        for text in ignored {
            let text = format!("//! x\n{}\nfn main() {{}}\n", text.replace("IG", "ignore"));
            assert_eq!(broken(&text).len(), 1, "{text}");
        }
        for text in [
            "#[cfg_attr(miri, allow(dead_code))]\nfn f(a: u8, ignore: u8) {}",
            "/// ```\n/// ignore(1);\n/// ```\nfn g() {}",
            "#[test]\nfn ignore() {}",
        ] {
            assert!(broken(&format!("//! x\n{text}\n")).is_empty(), "{text}");
        }
    }

    #[test]
    fn prose_is_checked_outside_of_code_blocks() {
        assert!(broken_prose("Plain.\n```text\nsomebody\n```\n").is_empty());
        assert_eq!(
            broken_prose("Somebody waits.\n"),
            ["line 1: \"somebody\"; see docs/STYLE.md"]
        );
        assert_eq!(broken_prose(&"x".repeat(101)).len(), 1);
        assert!(broken_prose(&format!("| {} |", "x".repeat(101))).is_empty());
    }
}
