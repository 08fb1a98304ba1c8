//! Checks the structure of the code against ARCHITECTURE.md: a crate may use only crates of lower
//! levels, the modules of a crate use each other without cycles, and each dependency has a reason.
//!
//! The tables of that page are the lists that this check reads.

use crate::{Outcome, cargo_in, modules};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Page with the tables of crates and dependencies.
const PAGE: &str = "ARCHITECTURE.md";

/// Directory of the benchmarks. The product does not use them, except for [`PROGRAM`].
const BENCHMARKS: &str = "bench";

/// The program. It may use one crate of the benchmarks, which can be left out of a build.
const PROGRAM: &str = "evfs";

/// Crate of test devices. In the product, only tests use it.
const TEST_DEVICES: &str = "block-testing";

/// Crates outside of the product: they may use any crate, and no crate may use them.
const BESIDE: &[&str] = &["tests", "xtask"];

/// Levels of the crates by directory name, lowest first.
type Levels = BTreeMap<String, u32>;

/// A crate of this workspace.
#[derive(Debug, Default)]
struct Package {
    /// Name of its directory, which is the name that ARCHITECTURE.md uses.
    name: String,
    is_benchmark: bool,
    /// Crates of this workspace that it depends on.
    uses: Vec<Use>,
    /// Crates from elsewhere that it depends on.
    external: Vec<String>,
    /// Root files of its library and programs.
    roots: Vec<PathBuf>,
}

/// A dependency on a crate of this workspace.
#[derive(Debug, Default)]
struct Use {
    /// Directory of the crate.
    name: String,
    is_benchmark: bool,
    is_for_tests: bool,
    is_optional: bool,
}

/// Fails with the dependencies that do not point to a lower level, the cycles between modules, and
/// the differences between the tables and the manifests.
pub fn check(root: &Path) -> Outcome {
    let page = std::fs::read_to_string(root.join(PAGE)).map_err(|e| format!("{PAGE}: {e}"))?;
    let levels = levels(&page);
    let packages = packages(root)?;
    let mut wrong = Vec::new();
    for package in &packages {
        if !BESIDE.contains(&package.name.as_str()) {
            wrong.extend(upward(package, &levels));
        }
        for file in &package.roots {
            let name = &package.name;
            let found = modules::cycles(file)?;
            wrong.extend(found.iter().map(|cycle| format!("`{name}`: {cycle}")));
        }
    }
    let exists = |name: &String| packages.iter().any(|package| package.name == *name);
    let unknown = levels.keys().filter(|name| !exists(name));
    wrong.extend(unknown.map(|name| format!("{PAGE} lists `{name}`, which does not exist")));
    wrong.extend(unexplained(&packages, &reasons(&page)));
    let exists = |name: &str| {
        ["crates", BENCHMARKS]
            .iter()
            .any(|top| root.join(top).join(name).exists())
    };
    let gone = sources(&page).into_iter().filter(|name| !exists(name));
    wrong.extend(gone.map(|name| format!("{PAGE} names `{name}`, which does not exist")));
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("\n"))
    }
}

/// Reads the table of crates: rows that begin with a level and a name.
fn levels(page: &str) -> Levels {
    let row = |line: &str| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let level = cells.next()?.parse().ok()?;
        let name = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
        Some((name.to_owned(), level))
    };
    page.lines().filter_map(row).collect()
}

/// Reads the names in the first column of the table of dependencies.
fn reasons(page: &str) -> BTreeSet<String> {
    let section = page.split("\n## ").find(|s| s.starts_with("Dependencies"));
    let rows = section.unwrap_or_default().lines();
    let names = rows.filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    names
        .flat_map(|cell| cell.split(", "))
        .map(|name| name.trim_matches('`').to_owned())
        .collect()
}

/// Returns the source files that the page names, with the directory of their crate.
fn sources(page: &str) -> Vec<&str> {
    let quoted = page.split('`').skip(1).step_by(2);
    quoted
        .filter(|name| name.contains("/src/") && name.ends_with(".rs"))
        .collect()
}

/// Reads the manifests.
fn packages(root: &Path) -> Result<Vec<Package>, String> {
    let metadata = metadata(root)?;
    let packages = metadata["packages"].as_array();
    let packages = packages.ok_or("cargo metadata lists no packages")?;
    Ok(packages.iter().map(package).collect())
}

/// Returns what Cargo reports of the packages of the workspace.
pub fn metadata(root: &Path) -> Result<Value, String> {
    let output = cargo_in(root)
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    serde_json::from_slice(&output.stdout).map_err(|e| {
        format!(
            "cargo metadata: {e}: {}",
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

fn package(metadata: &Value) -> Package {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let manifest = PathBuf::from(text(&metadata["manifest_path"]));
    let (name, is_benchmark) = place(manifest.parent().unwrap_or(Path::new("")));
    let mut package = Package {
        name,
        is_benchmark,
        ..Package::default()
    };
    for dependency in metadata["dependencies"].as_array().into_iter().flatten() {
        let Some(path) = dependency["path"].as_str() else {
            package.external.push(text(&dependency["name"]));
            continue;
        };
        let (name, is_benchmark) = place(Path::new(path));
        package.uses.push(Use {
            name,
            is_benchmark,
            is_for_tests: dependency["kind"] == "dev",
            is_optional: dependency["optional"] == true,
        });
    }
    for target in metadata["targets"].as_array().into_iter().flatten() {
        let kinds = target["kind"].as_array().into_iter().flatten();
        if kinds.clone().any(|kind| kind == "lib" || kind == "bin") {
            package.roots.push(PathBuf::from(text(&target["src_path"])));
        }
    }
    package
}

/// Returns the name of a crate's directory, and whether it is one of the benchmarks.
fn place(directory: &Path) -> (String, bool) {
    let name = directory.file_name().unwrap_or_default();
    let above = directory.parent().and_then(Path::file_name);
    let is_benchmark = above.is_some_and(|above| above == BENCHMARKS);
    (name.to_string_lossy().into_owned(), is_benchmark)
}

/// Returns the dependencies of a crate that do not point to a lower level.
fn upward(package: &Package, levels: &Levels) -> Vec<String> {
    let name = &package.name;
    let Some(own) = levels.get(name) else {
        return vec![format!(
            "crate `{name}` has no level; add it to the table in {PAGE}"
        )];
    };
    let mut wrong = Vec::new();
    for used in package.uses.iter().filter(|used| !used.is_for_tests) {
        let is_lower = match (package.is_benchmark, used.is_benchmark) {
            (true, false) => used.name != PROGRAM,
            (false, true) => name == PROGRAM && used.is_optional,
            (false, false) if used.name == TEST_DEVICES => false,
            _ => levels.get(&used.name).is_some_and(|theirs| theirs < own),
        };
        if !is_lower {
            let to = &used.name;
            wrong.push(format!("`{name}` (level {own}) must not depend on `{to}`"));
        }
    }
    let benchmarks = package.uses.iter().filter(|used| used.is_benchmark);
    if name == PROGRAM && benchmarks.filter(|used| !used.is_for_tests).count() > 1 {
        wrong.push(format!(
            "`{name}` depends on more than one crate of {BENCHMARKS}/"
        ));
    }
    wrong
}

/// Returns the dependencies without a row in the table, and the rows without a dependency.
fn unexplained(packages: &[Package], reasons: &BTreeSet<String>) -> Vec<String> {
    let used: BTreeSet<String> = packages.iter().flat_map(|p| p.external.clone()).collect();
    let without = used.difference(reasons);
    let without = without.map(|name| format!("`{name}` has no reason in {PAGE}"));
    let stale = reasons.difference(&used);
    let stale = stale.map(|name| format!("{PAGE} gives a reason for `{name}`, which is not used"));
    without.chain(stale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, to: Use) -> Package {
        Package {
            name: name.into(),
            uses: vec![to],
            external: vec!["serde".into()],
            ..Package::default()
        }
    }

    fn on(name: &str) -> Use {
        Use {
            name: name.into(),
            ..Use::default()
        }
    }

    const LEVELS: &str = "| level | crate |\n|---|---|\n| 1 | `luks2` | x |\n| 1 | `xts` | x |\n\
         | 3 | `crypt` | x |\n| 6 | `stack` | x |\n| 7 | `evfs` | x |\n| 0 | `core` | x |\n";

    #[test]
    fn an_upward_or_level_arrow_is_found_and_a_downward_one_is_not() {
        let levels = levels(LEVELS);
        let upward = |name, to| upward(&with(name, on(to)), &levels).len();
        assert_eq!(upward("crypt", "luks2"), 0);
        assert_eq!(upward("crypt", "stack"), 1);
        assert_eq!(upward("luks2", "xts"), 1);
        assert_eq!(upward("luks2", "newcomer"), 1);
        assert_eq!(upward("newcomer", "luks2"), 1);
        let for_tests = Use {
            is_for_tests: true,
            ..on("stack")
        };
        assert_eq!(super::upward(&with("crypt", for_tests), &levels).len(), 0);
    }

    #[test]
    fn test_devices_are_for_tests_and_benchmarks() {
        let levels = levels("| 1 | `block-testing` | x |\n| 3 | `crypt` | x |\n");
        let mut crypt = with("crypt", on("block-testing"));
        assert_eq!(upward(&crypt, &levels).len(), 1);
        crypt.is_benchmark = true;
        assert_eq!(upward(&crypt, &levels).len(), 0);
        crypt.is_benchmark = false;
        crypt.uses[0].is_for_tests = true;
        assert_eq!(upward(&crypt, &levels).len(), 0);
    }

    #[test]
    fn the_program_alone_may_use_one_optional_crate_of_the_benchmarks() {
        let levels = levels(LEVELS);
        let core = |is_optional| Use {
            is_benchmark: true,
            is_optional,
            ..on("core")
        };
        let upward = |package: &Package| upward(package, &levels).len();
        assert_eq!(upward(&with("stack", core(true))), 1);
        assert_eq!(upward(&with("evfs", core(false))), 1);
        let mut program = with("evfs", core(true));
        assert_eq!(upward(&program), 0);
        program.uses.push(core(true));
        assert_eq!(upward(&program), 1);
        let mut benchmark = with("core", on("stack"));
        benchmark.is_benchmark = true;
        assert_eq!(upward(&benchmark), 0);
        benchmark.uses = vec![on("evfs")];
        assert_eq!(upward(&benchmark), 1);
    }

    #[test]
    fn source_files_of_the_page_are_found() {
        let page = "From `crypt/src/queue.rs` to `session/write.rs`, not src/a.rs, by `fs::Lane`.";
        assert_eq!(sources(page), ["crypt/src/queue.rs"]);
    }

    #[test]
    fn dependencies_and_reasons_agree() {
        let page = "# A\n\n## Dependencies, and why\n\n| crate | reason |\n|---|---|\n\
                    | `serde`, `toml` | x |\n\n## B\n\n| `other` | x |\n";
        let packages = [with("a", on("b"))];
        let found = unexplained(&packages, &reasons(page));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("`toml`"), "{found:?}");
        assert_eq!(unexplained(&packages, &BTreeSet::new()).len(), 1);
    }
}
