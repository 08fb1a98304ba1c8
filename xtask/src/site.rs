//! The site: all pages of `docs/`, built with mdBook into `target/site`.
//!
//! mdBook does not report links that lead nowhere. [`crate::links`] checks those of the pages, and
//! [`build`] those that mdBook has written.

use crate::links::{DOCS, targets};
use crate::{Outcome, run, setup};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Table of contents.
const SUMMARY: &str = "SUMMARY.md";

/// Builds the site and checks its links.
///
/// # Errors
/// mdBook cannot be installed or fails, or a link is broken.
pub fn build(root: &Path) -> Outcome {
    let mdbook = setup::mdbook()?;
    let site = root.join("target/site");
    match std::fs::remove_dir_all(&site) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(format!("{}: {e}", site.display()));
        }
        _ => {}
    }
    run(Command::new(mdbook)
        .arg("build")
        .arg(root.join(DOCS))
        .arg("--dest-dir")
        .arg(&site))?;
    let pages = pages(&site);
    let mut wrong = Vec::new();
    for page in &pages {
        let html = std::fs::read_to_string(page).map_err(|e| format!("{page:?}: {e}"))?;
        wrong.extend(broken(page, &html));
    }
    match (wrong.as_slice(), pages.len()) {
        ([], 0) => Err(format!("{} has no pages", site.display())),
        ([], count) => {
            println!("{count} pages: {}", site.join("index.html").display());
            Ok(())
        }
        (wrong, _) => Err(wrong.join("\n")),
    }
}

/// Compares the table of contents with the pages of `docs/`: it lists each of them once.
///
/// # Errors
/// The table cannot be read.
pub fn unlisted(root: &Path, pages: &[PathBuf]) -> Result<Vec<String>, String> {
    let docs = root.join(DOCS);
    let summary = docs.join(SUMMARY);
    let text = std::fs::read_to_string(&summary).map_err(|e| format!("{summary:?}: {e}"))?;
    let listed = targets(&text);
    let pages = pages
        .iter()
        .filter_map(|page| page.strip_prefix(&docs).ok());
    let pages = pages.filter(|page| *page != Path::new(SUMMARY));
    let wrong = pages.filter_map(|page| {
        let times = listed.iter().filter(|path| Path::new(path) == page).count();
        let page = page.display();
        (times != 1)
            .then(|| format!("{DOCS}/{SUMMARY}: lists {page} {times} times instead of once"))
    });
    Ok(wrong.collect())
}

/// Returns the links of an HTML page that lead to no file.
fn broken(page: &Path, html: &str) -> Vec<String> {
    let dir = page.parent().unwrap_or(page);
    let mut wrong = Vec::new();
    for attribute in [" href=\"", " src=\""] {
        let values = html.split(attribute).skip(1);
        for value in values.filter_map(|rest| rest.split('"').next()) {
            let path = value.split(['#', '?']).next().unwrap_or_default();
            let is_local = !path.is_empty() && !path.contains(':');
            if is_local && !dir.join(path).exists() {
                wrong.push(format!("{}: {value} leads to no file", page.display()));
            }
        }
    }
    wrong
}

/// Collects the HTML pages below a directory.
fn pages(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(pages(&path));
        } else if path.extension().is_some_and(|e| e == "html") {
            found.push(path);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_listed_once() {
        let dir = tempfile::tempdir().unwrap();
        let docs = dir.path().join(DOCS);
        std::fs::create_dir_all(docs.join("guide")).unwrap();
        let text = "# Summary\n\n- [A](guide/a.md)\n- [B](b.md)\n- [B](b.md)\n";
        std::fs::write(docs.join(SUMMARY), text).unwrap();
        let pages = ["guide/a.md", "b.md", "c.md", SUMMARY].map(|page| docs.join(page));
        let wrong = unlisted(dir.path(), &pages).unwrap();
        let said = ["lists b.md 2 times", "lists c.md 0 times"];
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong.iter().zip(said).all(|(w, s)| w.contains(s)));
    }

    #[test]
    fn links_of_html_that_lead_nowhere_are_found() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.html"), "").unwrap();
        let html = "<a href=\"a.html#x\"> <a href=\"#y\"> <a href=\"https://x.org\"> \
                    <a href=\"README.html\"> <img src=\"none.png\"> <a href=\"\">";
        let wrong = broken(&dir.path().join("b.html"), html);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
    }
}
