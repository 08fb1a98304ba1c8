//! Runs every command in the README and the guide, in order, page by page.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tests::{Ran, Sandbox, needs_root, program, root};

/// Commands that run elsewhere: the first in the quickstart's own test, the second is the one that
/// runs this test.
const RUN_ELSEWHERE: [&str; 2] = ["cargo run --release -- quickstart", "cargo xtask check"];

#[test]
fn every_command_of_the_readme_and_the_guide_works() {
    let root = root();
    let mut pages = vec![root.join("README.md")];
    let guide = fs::read_dir(root.join("docs/guide"))
        .unwrap()
        .flatten()
        .map(|e| e.path());
    pages.extend(guide.filter(|p| p.extension().is_some_and(|e| e == "md")));
    pages.sort();
    let mut run = 0;
    for page in &pages {
        run += run_page(page);
    }
    assert!(run > 30, "only {run} commands were found in {pages:?}");
}

/// Runs the `sh` blocks of a page in one directory; those marked `root` need root.
fn run_page(page: &PathBuf) -> usize {
    let s = Sandbox::new();
    let text = fs::read_to_string(page).unwrap();
    let mut script = String::from("set -eo pipefail\n");
    let mut count = 0;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```sh") else {
            continue;
        };
        if kind.trim() == "root" {
            needs_root("a block of the guide that makes a loop device");
        }
        for line in lines.by_ref().take_while(|line| !line.starts_with("```")) {
            let command = line.split("   #").next().unwrap_or_default().trim();
            if !command.is_empty() && !RUN_ELSEWHERE.contains(&command) {
                script += &format!("echo '+' {}\n{command}\n", quoted(command));
                count += 1;
            }
        }
    }
    let mut bash = Command::new("bash");
    s.environment(&mut bash);
    let path = std::env::var("PATH").unwrap_or_default();
    let own = program().parent().unwrap().display().to_string();
    bash.env("PATH", format!("{own}:{path}:/usr/sbin:/sbin"))
        .arg("-c")
        .arg(script);
    let ran = Ran::of(&mut bash);
    assert!(
        ran.status.success(),
        "{}\n{}\n{}",
        page.display(),
        ran.stdout,
        ran.stderr
    );
    count
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
