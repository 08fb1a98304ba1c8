//! The crates that the program consists of, from cargo's own resolution of its dependencies.

use super::{build, failed, output};
use crate::cargo_in;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// One crate.
#[derive(Debug)]
pub struct Material {
    pub name: String,
    pub version: String,
    /// Expression of SPDX, if the crate has one.
    pub license: Option<String>,
    /// SHA-256 of its archive. `None`: it belongs to this workspace.
    pub checksum: Option<String>,
    /// Directory of its sources.
    pub directory: PathBuf,
    /// Whether its code is in the program. Otherwise it only takes part in the build.
    pub is_linked: bool,
    /// Identifiers of the crates that it depends on.
    pub uses: BTreeSet<String>,
}

/// All crates of the program, by their identifiers `NAME@VERSION`.
#[derive(Debug)]
pub struct Materials {
    /// Identifier of the program.
    pub program: String,
    pub all: BTreeMap<String, Material>,
}

impl Materials {
    /// Asks cargo for the crates of the program in the sources in `root`.
    pub fn of(root: &Path) -> Result<Materials, String> {
        let tree = |edges: &str| {
            let mut tree = cargo_in(root);
            tree.args(["tree", "--locked", "--package", "evfs", "--edges", edges]);
            output(tree.args(["--prefix", "depth", "--format", "{p}"]))
        };
        let (program, uses) = graph(&tree("normal,build")?)?;
        let (_, linked) = graph(&tree("normal,no-proc-macro")?)?;
        let mut metadata = cargo_in(root);
        metadata.args(["metadata", "--locked", "--format-version=1"]);
        let metadata = output(metadata.args(["--filter-platform", &build::host()?]))?;
        let metadata: Value = serde_json::from_str(&metadata)
            .map_err(|e| format!("cargo metadata does not print JSON: {e}"))?;
        let lock = root.join("Cargo.lock");
        let lock = std::fs::read_to_string(&lock).map_err(|e| failed("cannot read", &lock, &e))?;
        let checksums = checksums(&lock);
        let mut all = BTreeMap::new();
        for package in metadata["packages"].as_array().into_iter().flatten() {
            let mut material = material(package);
            let id = format!("{}@{}", material.name, material.version);
            let Some(uses) = uses.get(&id) else {
                continue;
            };
            material.uses = uses.clone();
            material.is_linked = linked.contains_key(&id);
            material.checksum = checksums.get(&id).cloned();
            all.insert(id, material);
        }
        match uses.keys().find(|id| !all.contains_key(*id)) {
            Some(id) => Err(format!("cargo metadata does not describe {id}")),
            None => Ok(Materials { program, all }),
        }
    }

    /// Returns the version of the program.
    pub fn version(&self) -> &str {
        self.program.rsplit('@').next().unwrap_or_default()
    }
}

/// Reads a package of cargo's metadata.
fn material(package: &Value) -> Material {
    let text = |name: &str| package[name].as_str().map(str::to_owned);
    let manifest = PathBuf::from(text("manifest_path").unwrap_or_default());
    // Old crates separate alternatives by a slash.
    let license = text("license").map(|license| license.replace('/', " OR "));
    Material {
        name: text("name").unwrap_or_default(),
        version: text("version").unwrap_or_default(),
        license,
        checksum: None,
        directory: manifest.parent().unwrap_or(Path::new("/")).to_owned(),
        is_linked: false,
        uses: BTreeSet::new(),
    }
}

/// Identifiers of crates, with those that each depends on.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Reads a tree that cargo prints with the depth before each crate: returns the first crate, and
/// the dependencies of all. Cargo lists the dependencies of a crate once.
fn graph(tree: &str) -> Result<(String, Graph), String> {
    let mut graph = Graph::new();
    let mut path: Vec<String> = Vec::new();
    for line in tree.lines() {
        let (depth, id) = entry(line).ok_or_else(|| format!("cargo tree: `{line}` is no crate"))?;
        path.truncate(depth);
        if let Some(user) = path.last() {
            graph.entry(user.clone()).or_default().insert(id.clone());
        }
        graph.entry(id.clone()).or_default();
        path.push(id);
    }
    path.truncate(1);
    let program = path.pop().ok_or("cargo tree prints nothing")?;
    Ok((program, graph))
}

/// Reads a line such as `2serde v1.0.0 (proc-macro)`.
fn entry(line: &str) -> Option<(usize, String)> {
    let (depth, package) = line.split_at(line.find(|c: char| !c.is_ascii_digit())?);
    let mut words = package.split(' ');
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    Some((depth.parse().ok()?, format!("{name}@{version}")))
}

/// Reads the checksums of all crates in Cargo.lock.
fn checksums(lock: &str) -> BTreeMap<String, String> {
    let packages = lock.split("[[package]]").skip(1);
    let checksum = |package: &str| {
        let value = |name: &str| {
            let lines = package.lines().filter_map(|line| line.split_once(" = "));
            let mut values = lines.filter(|(key, _)| *key == name);
            values
                .next()
                .map(|(_, value)| value.trim_matches('"').to_owned())
        };
        let id = format!("{}@{}", value("name")?, value("version")?);
        Some((id, value("checksum")?))
    };
    packages.filter_map(checksum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_becomes_a_graph() {
        let tree =
            "0evfs v0.1.0 (/x)\n1a v1.0.0\n2b v2.0.0 (proc-macro)\n1b v2.0.0 (*)\n1c v3.0.0\n";
        let (program, graph) = graph(tree).unwrap();
        assert_eq!(program, "evfs@0.1.0");
        let uses = |id: &str| graph[id].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(uses("evfs@0.1.0"), ["a@1.0.0", "b@2.0.0", "c@3.0.0"]);
        assert_eq!(
            (uses("a@1.0.0"), uses("b@2.0.0")),
            (vec!["b@2.0.0"], vec![])
        );
        assert!(super::graph("").is_err());
        assert!(super::graph("[build-dependencies]\n").is_err());
    }

    #[test]
    fn checksums_are_those_of_the_lock_file() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\
                    checksum = \"12\"\n\n[[package]]\nname = \"evfs\"\nversion = \"0.1.0\"\n\
                    dependencies = [\n \"a\",\n]\n";
        let checksums = checksums(lock);
        assert_eq!(checksums.len(), 1);
        assert_eq!(checksums["a@1.0.0"], "12");
    }

    #[test]
    fn licenses_are_expressions() {
        let package = serde_json::json!({
            "name": "a", "version": "1.0.0", "license": "MIT/Apache-2.0",
            "manifest_path": "/r/a-1.0.0/Cargo.toml",
        });
        let material = material(&package);
        assert_eq!(material.license.as_deref(), Some("MIT OR Apache-2.0"));
        assert_eq!(material.directory, Path::new("/r/a-1.0.0"));
    }
}
