//! Links between the pages: every relative link leads to a file, and every anchor to a heading.
//!
//! Links to other sites are not followed. A page of `docs/` links to nothing outside of it, because
//! the site contains only what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// Directory of the pages of the site.
pub const DOCS: &str = "docs";

/// Anchors and links of a page.
#[derive(Debug, Default)]
struct Page {
    anchors: BTreeSet<String>,
    /// Targets, each with the number of its line.
    links: Vec<(usize, String)>,
}

/// Returns the broken links of pages, each with its location.
///
/// # Errors
/// A page cannot be read.
pub fn broken(root: &Path, pages: &[PathBuf]) -> Result<Vec<String>, String> {
    let mut parsed = BTreeMap::new();
    for file in pages {
        let text = std::fs::read_to_string(file).map_err(|e| format!("{file:?}: {e}"))?;
        parsed.insert(normal(file), parse(&text));
    }
    let mut wrong = Vec::new();
    for (file, page) in &parsed {
        let shown = file.strip_prefix(root).unwrap_or(file).display();
        for (line, target) in &page.links {
            if let Some(why) = fault(root, file, target, &parsed) {
                wrong.push(format!("{shown}: line {line}: the link {target} {why}"));
            }
        }
    }
    Ok(wrong)
}

/// Returns the targets of all links in a text.
pub fn targets(text: &str) -> Vec<String> {
    let links = parse(text).links.into_iter();
    links.map(|(_, target)| target).collect()
}

/// Explains why a link of a page is broken, if it is.
fn fault(
    root: &Path,
    file: &Path,
    target: &str,
    pages: &BTreeMap<PathBuf, Page>,
) -> Option<&'static str> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let dir = file.parent().unwrap_or(root);
    let to = if path.is_empty() {
        file.to_owned()
    } else {
        normal(&dir.join(path))
    };
    let docs = root.join(DOCS);
    if !to.exists() {
        return Some("leads to no file");
    }
    if file.starts_with(&docs) && !to.starts_with(&docs) {
        return Some("leads out of the site");
    }
    let page = pages.get(&to)?;
    let is_missing = !anchor.is_empty() && !page.anchors.contains(anchor);
    is_missing.then_some("leads to no heading")
}

/// Removes `.` and `..` from a path, without following links.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                normal.pop();
            }
            part => normal.push(part),
        }
    }
    normal
}

fn parse(text: &str) -> Page {
    let mut page = Page::default();
    let mut in_block = false;
    // Length of the run of backticks that began a code span; zero outside of one.
    let mut span = 0;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
            span = 0;
            continue;
        }
        if in_block {
            continue;
        }
        if line.trim().is_empty() || line.starts_with(['|', '#', '-']) {
            span = 0;
        }
        if let Some(heading) = heading(line) {
            page.add_anchor(&heading);
        }
        let plain = without_code(line, &mut span);
        let found = plain.split("](").skip(1);
        let found = found.filter_map(|rest| rest.split([')', ' ']).next());
        page.links
            .extend(found.map(|target| (number + 1, target.to_owned())));
    }
    page
}

impl Page {
    /// Adds the anchor of a heading; repeated ones are numbered.
    fn add_anchor(&mut self, heading: &str) {
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let slug: String = heading.chars().filter(kept).collect();
        let slug = slug.to_lowercase().replace(' ', "-");
        let mut numbered = (0..).map(|n| match n {
            0 => slug.clone(),
            n => format!("{slug}-{n}"),
        });
        let free = numbered.find(|slug| !self.anchors.contains(slug));
        self.anchors.extend(free);
    }
}

/// Returns the text of a heading, without the targets of links in it.
fn heading(line: &str) -> Option<String> {
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    let text = text
        .strip_prefix(' ')
        .filter(|_| (1..=6).contains(&level))?;
    let mut parts = text.split("](");
    let mut heading = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        heading += part.split_once(')').map_or("", |(_, rest)| rest);
    }
    Some(heading.trim().to_owned())
}

/// Removes code spans from a line. `span` is the length of the run of backticks that began the
/// current one, and zero outside of one.
fn without_code(line: &str, span: &mut usize) -> String {
    let mut plain = String::new();
    let mut rest = line;
    while let Some(at) = rest.find('`') {
        if *span == 0 {
            plain.push_str(&rest[..at]);
        }
        let run = rest[at..].bytes().take_while(|b| *b == b'`').count();
        match *span {
            0 => *span = run,
            open if open == run => *span = 0,
            _ => {}
        }
        rest = &rest[at + run..];
    }
    if *span == 0 {
        plain.push_str(rest);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_anchors_are_found_outside_of_code() {
        let page = parse(
            "# One `two`: [three](x.md)!\n\n[a](b.md) `[c](d)` and `[e](f)\n[g](h)` [i](j#k)\n\n\
             ```text\n[l](m)\n# No heading\n```\n## Again\n## Again\n| [n](o \"title\") |\n",
        );
        let anchors: Vec<&str> = page.anchors.iter().map(String::as_str).collect();
        assert_eq!(anchors, ["again", "again-1", "one-two-three"]);
        let links: Vec<&str> = page.links.iter().map(|(_, t)| t.as_str()).collect();
        assert_eq!(links, ["x.md", "b.md", "j#k", "o"]);
        assert_eq!(page.links[1].0, 3);
    }

    #[test]
    fn a_link_to_a_missing_file_or_heading_or_out_of_the_site_is_broken() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir(root.join("docs")).unwrap();
        let write = |name: &str, text: &str| {
            let file = root.join(name);
            std::fs::write(&file, text).unwrap();
            file
        };
        let pages = [
            write("README.md", "[1](docs/a.md#top) [2](docs/a.md#none)\n"),
            write(
                "docs/a.md",
                "# Top\n\n[3](#top) [4](b.md) [5](../README.md) [6](https://x.org/y)\n",
            ),
        ];
        let wrong = broken(root, &pages).unwrap();
        let said = ["a.md#none leads to no heading", "b.md leads to no file"];
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        for (wrong, said) in wrong.iter().zip(said) {
            assert!(wrong.ends_with(said), "{wrong}");
        }
        assert!(wrong[2].ends_with("README.md leads out of the site"));
    }
}
