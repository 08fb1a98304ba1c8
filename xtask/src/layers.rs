//! Checks dependencies between crates: a crate may use only crates of lower levels.

use crate::Outcome;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// The levels, lowest first. A crate that is not listed is an error: its level has to be decided.
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
    &["export-nbd", "export-fuse", "afs-server", "afs-client"],
    &["evfs-stack"],
    &["lab", "pathsim"],
    &["evfs"],
];

/// Crates outside of the product: they may use any crate, and no crate may use them.
const BESIDE: &[&str] = &["tests", "xtask"];

fn level(name: &str) -> Option<usize> {
    LEVELS.iter().position(|level| level.contains(&name))
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
        match level(to) {
            Some(theirs) if theirs < own || test_only => None,
            _ => Some(format!("`{name}` (level {own}) must not depend on `{to}`")),
        }
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
    }
}
