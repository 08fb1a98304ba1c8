//! The test targets that the profile [`PLAIN`] runs, so that those that it leaves out as a whole are
//! not even built.

use super::PLAIN;
use crate::layers::metadata;
use std::collections::BTreeSet;
use std::path::Path;

/// Reads the filter of the profile [`PLAIN`].
///
/// # Errors
/// The profile is not in `.config/nextest.toml`.
pub fn filter(root: &Path) -> Result<String, String> {
    let path = root.join(".config/nextest.toml");
    let config = std::fs::read_to_string(&path);
    let config = config.map_err(|e| format!("{}: {e}", path.display()))?;
    let (filter, _) = config
        .split_once(&format!("[profile.{PLAIN}]\ndefault-filter = '''\n"))
        .and_then(|(_, rest)| rest.split_once("'''"))
        .ok_or_else(|| format!("{}: no filter of the profile {PLAIN}", path.display()))?;
    Ok(filter.trim().to_owned())
}

/// Test targets of the workspace.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Names of the integration tests to build. A name selects those of all packages.
    run: BTreeSet<String>,
    /// Targets that are not run, as `package::target`.
    pub left_out: BTreeSet<String>,
}

impl Selection {
    /// Selects what the profile [`PLAIN`] runs.
    ///
    /// # Errors
    /// The profile is not in `.config/nextest.toml`, or Cargo fails.
    pub fn plain(root: &Path) -> Result<Selection, String> {
        let filter = filter(root)?;
        let mut selection = Selection::default();
        for package in metadata(root)?["packages"].as_array().into_iter().flatten() {
            for target in package["targets"].as_array().into_iter().flatten() {
                // Cargo refuses the name of a target that needs a feature.
                if target["kind"][0] == "test"
                    && target["required-features"].is_null()
                    && let (Some(package), Some(name)) =
                        (package["name"].as_str(), target["name"].as_str())
                {
                    selection.add(&filter, package, name);
                }
            }
        }
        Ok(selection)
    }

    fn add(&mut self, filter: &str, package: &str, target: &str) {
        if filter.lines().any(|line| names(line, package, target)) {
            self.left_out.insert(format!("{package}::{target}"));
        } else {
            self.run.insert(target.to_owned());
        }
    }

    /// Returns the arguments of Cargo that select the tests.
    pub fn args(&self) -> Vec<&str> {
        let tests = self.run.iter().flat_map(|name| ["--test", name]);
        ["--lib", "--bins"].into_iter().chain(tests).collect()
    }
}

/// Reports whether a line of a filter names a test target: `package(P) & kind(test)`, or
/// `package(P) & binary(B)`, where B is a name, `/^(A|B)/` or `/^(A|B)$/`. Another line names none.
fn names(line: &str, package: &str, target: &str) -> bool {
    let line = line.trim().trim_start_matches("| ");
    let rest = line.strip_prefix("(package(").and_then(|rest| {
        let (of, rest) = rest.split_once(") & ")?;
        (of == package).then_some(rest)
    });
    let Some(what) = rest.and_then(|rest| rest.strip_suffix("))")) else {
        return false;
    };
    let Some(pattern) = what.strip_prefix("binary(") else {
        return what == "kind(test";
    };
    let Some(alternatives) = pattern.strip_prefix("/^(") else {
        return pattern == target;
    };
    if let Some(whole) = alternatives.strip_suffix(")$/") {
        whole.split('|').any(|name| name == target)
    } else if let Some(starts) = alternatives.strip_suffix(")/") {
        starts.split('|').any(|start| target.starts_with(start))
    } else {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILTER: &str = "
        not (
            test(/needs_root::/)
            | (package(fuse) & kind(test))
            | (package(nbd) & binary(servers))
            | (package(tests) & binary(/^(afs_|lab)/))
            | (package(tests) & binary(/^(luns|posix)$/))
        )";

    #[test]
    fn suites_that_a_filter_leaves_out_are_not_selected() {
        let mut selection = Selection::default();
        for (package, target) in [
            ("fuse", "names"),
            ("nbd", "servers"),
            ("nbd", "names"),
            ("tests", "afs_clients"),
            ("tests", "luns"),
            ("tests", "luns_more"),
            ("other", "posix"),
        ] {
            selection.add(FILTER, package, target);
        }
        assert_eq!(
            selection.args(),
            [
                "--lib",
                "--bins",
                "--test",
                "luns_more",
                "--test",
                "names",
                "--test",
                "posix"
            ]
        );
        let left_out: Vec<_> = selection.left_out.iter().collect();
        assert_eq!(
            left_out,
            [
                "fuse::names",
                "nbd::servers",
                "tests::afs_clients",
                "tests::luns"
            ]
        );
    }

    #[test]
    fn the_profile_leaves_suites_out_and_selects_others() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let selection = Selection::plain(root).unwrap();
        assert!(selection.left_out.contains("tests::posix"), "{selection:?}");
        assert!(selection.run.contains("powercut"), "{selection:?}");
    }
}
