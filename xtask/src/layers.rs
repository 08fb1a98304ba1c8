//! Checks dependencies between crates: a crate may use only crates of lower levels.

use crate::Outcome;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// The levels of the product, lowest first. A crate that is not listed is an error: its level has to
/// be decided.
const LEVELS: &[&[&str]] = &[
    &["secret", "block"],
    &[
        "luks2",
        "nbd-proto",
        "iscsi-proto",
        "rx-proto",
        "afs-proto",
        "xts",
        "keyring",
    ],
    &["path-file", "path-nbd", "path-iscsi", "rx"],
    &["crypt", "multipath", "evfs-cache"],
    &["fs"],
    &["export-nbd", "export-fuse", "afs-server"],
    &["evfs-stack"],
    &["evfs"],
];

/// The levels of the benchmarks, lowest first. These crates may use the product below the program.
const BENCH: &[&[&str]] = &[&["afs-client", "pathsim", "lab"]];

/// The program, and the crates of the benchmarks that it may use. No other crate of the product
/// uses any.
const PROGRAM: &str = "evfs";
const OPTIONAL: &[&str] = &["afs-client", "pathsim", "lab"];

/// Crates outside of the product: they may use any crate, and no crate may use them.
const BESIDE: &[&str] = &["tests", "xtask"];

/// Position of a crate: in the product or in the benchmarks, and its level there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Level {
    Product(usize),
    Bench(usize),
}

fn level(name: &str) -> Option<Level> {
    let within = |levels: &[&[&str]]| levels.iter().position(|level| level.contains(&name));
    let product = within(LEVELS).map(Level::Product);
    product.or_else(|| within(BENCH).map(Level::Bench))
}

/// Reports whether a crate of one level may use another crate.
fn may_use(name: &str, own: Level, to: &str) -> bool {
    match level(to) {
        Some(Level::Bench(_)) if name == PROGRAM => OPTIONAL.contains(&to),
        Some(theirs) => theirs < own && to != PROGRAM,
        None => false,
    }
}

/// Fails with the dependencies that do not point to a lower level.
pub fn check(root: &Path) -> Outcome {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    let metadata: Value = serde_json::from_slice(&output.stdout).map_err(|e| {
        format!(
            "cargo metadata: {e}: {}",
            String::from_utf8_lossy(&output.stderr)
        )
    })?;
    let packages = metadata["packages"]
        .as_array()
        .ok_or("cargo metadata lists no packages")?;
    let mut wrong: Vec<String> = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        if !BESIDE.contains(&name) {
            wrong.extend(upward(name, package));
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("\n"))
    }
}

fn upward(name: &str, package: &Value) -> Vec<String> {
    let Some(own) = level(name) else {
        return vec![format!(
            "crate `{name}` has no level; give it one in xtask/src/layers.rs"
        )];
    };
    let arrow = |dependency: &Value| {
        // Only crates of this workspace have a path. Tests may use any crate of the workspace.
        let to = dependency["name"]
            .as_str()
            .filter(|_| dependency["path"].is_string())?;
        let test_only = dependency["kind"] == "dev";
        let allowed = may_use(name, own, to) || test_only && level(to).is_some();
        (!allowed).then(|| format!("`{name}` ({own:?}) must not depend on `{to}`"))
    };
    package["dependencies"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(arrow)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_upward_or_level_arrow_is_found_and_a_downward_one_is_not() {
        let with =
            |to: &str| json!({ "dependencies": [{ "name": to, "path": "/x", "kind": null }] });
        assert!(upward("crypt", &with("luks2")).is_empty());
        assert_eq!(upward("crypt", &with("stack")).len(), 1);
        assert_eq!(upward("luks2", &with("xts")).len(), 1);
        assert_eq!(upward("luks2", &with("newcomer")).len(), 1);
        assert_eq!(upward("newcomer", &with("luks2")).len(), 1);
        assert!(upward("lab", &with("evfs-stack")).is_empty());
        assert_eq!(upward("lab", &with("evfs")).len(), 1);
        assert_eq!(upward("evfs-stack", &with("lab")).len(), 1);
    }
}
