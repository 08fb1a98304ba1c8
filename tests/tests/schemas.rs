//! The schemas of JSON documents: they are published, and every command prints what they describe.
//!
//! The helpers of all tests check each document that they obtain; here, most commands print theirs.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use tests::{Ran, Sandbox, schemas, web};

/// Documents that other tests obtain, with the binaries of those tests.
const ELSEWHERE: &[(&str, &str)] = &[
    ("bench-diff", "lab"),
    ("cluster-change", "schemas, with etcd"),
    ("cluster-init", "schemas, with etcd"),
    ("cluster-status", "schemas, with etcd"),
    ("evfs-lab-result", "lab_paths"),
    ("plan", "lab_targets"),
    ("progress", "progress"),
    ("quickstart", "quickstart"),
    ("unmount", "schemas, with fusermount3"),
];

/// Reads the schemas in a directory, by the name of the file.
fn schemas_in(directory: &Path) -> BTreeMap<String, String> {
    let files = fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let files = files.map(|file| file.unwrap().path());
    let read = |file: std::path::PathBuf| {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, fs::read_to_string(&file).unwrap())
    };
    files.map(read).collect()
}

/// A sandbox, and the names of the documents that commands have printed in it.
struct Printed {
    s: Sandbox,
    names: BTreeSet<String>,
}

impl Printed {
    /// Runs a command, which must succeed, and records its document.
    #[track_caller]
    fn json(&mut self, args: &[&str]) -> Value {
        let document = self.s.json(args);
        self.record(&document);
        document
    }

    /// Runs a command with any exit code, and records its document.
    #[track_caller]
    fn any(&mut self, args: &[&str]) {
        let ran = Ran::of(self.s.evfs().arg("--json").args(args));
        self.record(&serde_json::from_str(&ran.stdout).unwrap());
    }

    fn record(&mut self, document: &Value) {
        let form = document["schema"].as_str().unwrap();
        let name = form.rsplit('/').nth(1).unwrap();
        self.names.insert(name.to_owned());
    }
}

#[test]
fn the_published_schemas_are_those_of_the_program() {
    let s = Sandbox::new();
    let written = s.json(&["schema", "--dir", "schemas"]);
    let own = schemas_in(&s.path("schemas"));
    assert_eq!(written["written"].as_array().unwrap().len(), own.len());
    let published = schemas_in(&schemas::directory());
    for (name, schema) in &own {
        assert_eq!(
            published.get(name),
            Some(schema),
            "docs/schemas/{name}.json is not as the program writes it: cargo xtask schemas"
        );
    }
    let names = |all: &BTreeMap<String, String>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&published), names(&own), "cargo xtask schemas");
}

#[test]
fn every_schema_describes_each_of_its_keys() {
    for (name, schema) in schemas_in(&schemas::directory()) {
        let schema: Value = serde_json::from_str(&schema).unwrap();
        assert!(schema["description"].is_string(), "{name}");
        let forms = schema["$defs"].as_object().into_iter().flatten();
        for form in forms.map(|(_, form)| form).chain([&schema]) {
            assert!(form["description"].is_string(), "{name}: {form:#}");
            for (key, form) in form["properties"].as_object().into_iter().flatten() {
                assert!(form["description"].is_string(), "{name}: {key}");
            }
        }
    }
}

#[test]
fn a_schema_is_found_by_the_name_that_a_document_has() {
    let s = Sandbox::new();
    let form = s.json(&["status"])["schema"].as_str().unwrap().to_owned();
    assert_eq!(form, "evfs/status/1");
    let by_form = s.run(&["schema", &form]).ok().stdout;
    assert_eq!(by_form, s.run(&["schema", "status"]).ok().stdout);
    let listed = s.run(&["schema"]).ok().stdout;
    assert!(
        listed.contains("volume key change, volume key test"),
        "{listed}"
    );
    let ran = s.run(&["schema", "nothing"]).code(10);
    assert!(ran.stderr.contains("`evfs schema` lists all"), "{ran:?}");
}

#[test]
fn every_command_prints_a_document_in_its_published_form() {
    let mut p = Printed {
        s: Sandbox::new(),
        names: BTreeSet::new(),
    };
    of_the_program(&mut p);
    of_keys_and_volumes(&mut p);
    of_services(&mut p);
    of_file_systems(&mut p);
    of_cells(&mut p);
    of_luns(&mut p);
    let elsewhere = ELSEWHERE.iter().map(|(name, _)| (*name).to_owned());
    p.names.extend(elsewhere);
    let published: BTreeSet<String> = schemas_in(&schemas::directory()).into_keys().collect();
    assert_eq!(p.names, published);
}

fn of_the_program(p: &mut Printed) {
    p.json(&["config", "show"]);
    p.any(&["doctor"]);
    p.json(&["explain"]);
    p.json(&["explain", "EVFS-0101"]);
    p.json(&["man", "evfs"]);
    p.json(&["man", "--dir", "man"]);
    p.json(&["completions", "bash"]);
    p.json(&["schema"]);
    p.json(&["schema", "status"]);
    p.any(&["detach", "nothing"]);
    p.any(&["no-such-command"]);
    p.json(&["bench", "list"]);
    p.json(&["bench", "list", "seqrand"]);
    p.json(&["bench", "machine", "--milliseconds", "1"]);
}

fn of_keys_and_volumes(p: &mut Printed) {
    for name in ["owner", "old", "next"] {
        p.json(&["key", "generate", name, "--no-passphrase"]);
    }
    p.json(&["key", "export", "owner"]);
    p.json(&["key", "export", "owner", "owner.pub"]);
    p.json(&["key", "remove", "old", "--yes"]);
    p.json(&["key", "list"]);
    p.json(&["key", "show", "owner"]);
    for image in ["a.img", "b.img"] {
        let create = [
            "volume", "create", image, "--owner", "owner", "--size", "32M",
        ];
        p.json(&create);
    }
    p.json(&["volume", "info", "a.img"]);
    p.json(&["volume", "check", "a.img"]);
    p.json(&["volume", "repair", "a.img"]);
    fs::write(p.s.path("secret"), "a key file").unwrap();
    p.json(&["volume", "key", "add", "a.img", "--new-key-file", "secret"]);
    p.json(&["volume", "key", "add", "a.img", "--recovery"]);
    p.json(&["volume", "key", "test", "a.img", "--key-file", "secret"]);
    p.json(&["volume", "key", "list", "a.img"]);
    let remove = [
        "volume",
        "key",
        "remove",
        "a.img",
        "--key-slot",
        "1",
        "--yes",
    ];
    p.json(&remove);
    p.json(&["volume", "trust"]);
    p.json(&["volume", "trust", "a.img"]);
    p.json(&["volume", "header", "backup", "a.img", "header"]);
    p.json(&["volume", "header", "restore", "a.img", "header", "--yes"]);
    p.json(&[
        "volume", "create", "e.img", "--owner", "owner", "--size", "32M",
    ]);
    p.json(&["volume", "owner", "set", "e.img", "next", "--yes"]);
    p.json(&["volume", "erase", "e.img", "--yes"]);
    p.json(&["volume", "header", "list"]);
    p.json(&["volume", "header", "prune", "--keep", "1", "--yes"]);
}

fn of_services(p: &mut Printed) {
    let attached = web::with_web(&p.s, "web.sock", &["attach", "a.img", "--survive"]);
    p.record(&attached);
    let page = web::invitation(&p.s);
    p.record(&page);
    p.json(&["status"]);
    p.json(&["stats", "a"]);
    p.json(&["sync", "a"]);
    p.json(&["restart", "a"]);
    p.json(&["top", "--once", "--interval", "0.1"]);
    p.json(&["cache", "show"]);
    p.json(&["cache", "show", "--files"]);
    p.json(&["cache", "set", "filecache_max=25%"]);
    p.json(&["cache", "flush"]);
    p.json(&["cache", "drop", "a"]);
    p.json(&["cache", "advise", "a", "read_ahead=no"]);
    p.json(&["detach", "a"]);
    p.json(&["volume", "trust", "a.img", "--reset"]);
    let tables = "[volume.a]\ndevice = \"a.img\"\n[volume.b]\ndevice = \"b.img\"\n";
    fs::write(p.s.path("up.toml"), tables).unwrap();
    let services = p.json(&["up", "up.toml", "--background"]);
    assert_eq!(services["volumes"].as_array().unwrap().len(), 2);
    p.json(&["down"]);
}

fn of_file_systems(p: &mut Printed) {
    p.json(&["format", "c.img", "--size", "64M"]);
    p.json(&["df", "c.img"]);
    p.json(&["fsck", "c.img"]);
    p.json(&["fsck", "--online", "c.img"]);
    p.json(&["scrub", "c.img"]);
    p.json(&["defrag", "c.img"]);
    p.json(&["defrag", "c.img", "--recompress"]);
    p.json(&["grow", "c.img"]);
    p.json(&["shrink", "c.img", "--minimum"]);
    p.json(&["shrink", "c.img", "--size", "60M", "--yes"]);
    p.json(&["upgrade", "c.img"]);
    p.json(&["fileset", "create", "c.img", "home", "--quota", "8M"]);
    p.json(&["fileset", "quota", "c.img", "home", "--user", "1", "1M"]);
    p.json(&["fileset", "quota", "c.img", "home", "--report"]);
    p.json(&["fileset", "compression", "c.img", "home", "zstd"]);
    p.json(&["fileset", "snapshot", "c.img", "home", "monday"]);
    p.json(&["fileset", "list", "c.img"]);
    p.json(&["fileset", "diff", "c.img", "monday", "home"]);
    p.json(&["fileset", "clone", "c.img", "monday", "trial"]);
    p.json(&["fileset", "hold", "c.img", "monday"]);
    p.json(&["fileset", "release", "c.img", "monday"]);
    p.json(&["fileset", "rollback", "c.img", "home", "monday", "--yes"]);
    p.json(&["fileset", "send", "c.img", "monday", "--output", "stream"]);
    let receive = ["fileset", "receive", "c.img", "copy", "--as", "tuesday"];
    p.json(&[&receive[..], &["--input", "stream"]].concat());
    p.json(&["fileset", "receive", "c.img", "copy", "--status"]);
    p.json(&["fileset", "remove", "c.img", "monday"]);
}

fn of_cells(p: &mut Printed) {
    p.json(&["cell", "init", "a.example", "d.img", "--size", "64M"]);
    p.json(&["cell", "status", "d.img"]);
    p.json(&["cell", "acl", "get", "d.img", "root.cell"]);
    p.json(&["cell", "volume", "create", "d.img", "projects"]);
    p.json(&["cell", "volume", "list", "d.img"]);
    p.json(&["cell", "volume", "mount", "d.img", "projects", "/projects"]);
    p.json(&["cell", "volume", "remove", "d.img", "projects"]);
}

/// A file is a LUN with one path, if it is found by a scan.
fn of_luns(p: &mut Printed) {
    let disk = p.s.path("disk").display().to_string();
    let file = fs::File::create(&disk).unwrap();
    file.set_len(32 << 20).unwrap();
    p.json(&["lun", "scan", &disk]);
    p.json(&["volume", "create", "disk1", "--owner", "owner"]);
    // While it is not open, fewer keys are known.
    let closed = p.json(&["lun", "show", "disk1"]);
    assert_eq!(closed["open"], false);
    p.json(&["lun", "save", "disk1", "max_q_depth=7"]);
    p.json(&["attach", "disk1", "--direct", "--background"]);
    let open = p.json(&["lun", "show", "disk1"]);
    assert_eq!(open["open"], true);
    assert!(open["policy"].is_string(), "{open}");
    p.json(&["status"]);
    p.json(&["lun", "list"]);
    p.json(&["lun", "get", "disk1"]);
    p.json(&["lun", "set", "disk1", "max_q_depth=9"]);
    p.json(&["lun", "waiting", "disk1"]);
    p.json(&["path", "enable", "disk1", &disk]);
    let mut client = nbd_client::Client::connect(&p.s.path("run/disk1.nbd"), "disk1").unwrap();
    let mut block = [0; 4096];
    for number in 0..200 {
        client.read_at(number * 4096, &mut block).unwrap();
    }
    client.disconnect().unwrap();
    p.json(&["lun", "stats", "disk1"]);
    p.json(&["lun", "advise", "disk1"]);
    p.json(&["lun", "stats", "disk1", "--clear"]);
    p.json(&["detach", "disk1"]);
    p.json(&["lun", "forget", "disk1", "--yes"]);
}

mod needs_peer {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};
    use test_support::etcd::Etcd;
    use tests::installed;

    #[test]
    fn commands_of_a_cluster_print_documents_in_their_published_form() {
        let s = Sandbox::new();
        let etcd = Etcd::start(&std::env::temp_dir(), 1);
        fs::write(s.path("up.toml"), "[volume.a]\ndevice = \"a.img\"\n").unwrap();
        for (form, args) in [
            ("evfs/cluster-init/1", &["init", "--config", "up.toml"][..]),
            ("evfs/cluster-change/1", &["drain"]),
            ("evfs/cluster-status/1", &["status"]),
        ] {
            let mut command = s.evfs();
            command.args(["--json", "cluster"]).args(args);
            command.env("EVFS_CLUSTER_ETCD", etcd.endpoints().join(" "));
            // It is compared with its schema, like each document.
            let ran = Ran::of(&mut command).ok();
            let document: Value = serde_json::from_str(&ran.stdout).unwrap();
            assert_eq!(document["schema"], form);
        }
    }

    /// Validates the document in a file, or each schema in a directory, by `python3-jsonschema`.
    const VALIDATE: &str = "
import json, pathlib, sys
from jsonschema import Draft202012Validator as Validator
schemas = {}
for file in pathlib.Path(sys.argv[1]).glob('*.json'):
    schemas[file.stem] = json.loads(file.read_text())
    Validator.check_schema(schemas[file.stem])
for line in sys.stdin:
    document = json.loads(line)
    schema = schemas[document['schema'].split('/')[-2]]
    print(len(list(Validator(schema).iter_errors(document))))
print(len(schemas))
";

    /// Runs the validator of others, and returns the number of problems of each document.
    fn validated(documents: &[Value]) -> Vec<usize> {
        let mut python = Command::new(installed("python3"))
            .args(["-c", VALIDATE])
            .arg(schemas::directory())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = python.stdin.take().unwrap();
        for document in documents {
            writeln!(stdin, "{document}").unwrap();
        }
        drop(stdin);
        let output = python.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "needs python3-jsonschema: {said}");
        let numbers = String::from_utf8(output.stdout).unwrap();
        let mut numbers: Vec<usize> = numbers.lines().map(|n| n.parse().unwrap()).collect();
        let count = numbers.pop().unwrap();
        assert_eq!(count, schemas_in(&schemas::directory()).len());
        numbers
    }

    #[test]
    fn another_validator_accepts_the_schemas_and_judges_documents_alike() {
        let s = Sandbox::new();
        s.volume("a.img", "32M", &[]);
        s.attach(&["a.img"]);
        let status = s.json(&["status"]);
        let info = s.json(&["volume", "info", "a.img"]);
        let caches = s.json(&["cache", "show", "--files"]);
        s.detach("a");
        let mut documents = vec![status.clone(), info.clone(), caches];
        let mut changed = |document: &Value, change: &dyn Fn(&mut Value)| {
            let mut document = document.clone();
            change(&mut document);
            documents.push(document);
        };
        changed(&info, &|info| info["new"] = 1.into());
        changed(&info, &|info| info["size"] = "32M".into());
        changed(&info, &|info| info["keys"][0]["keyslot"] = Value::Null);
        changed(&info, &|info| {
            info.as_object_mut().unwrap().remove("uuid");
        });
        changed(&status, &|status| status["schema"] = "evfs/status/0".into());
        changed(&status, &|status| status["volumes"][0]["pid"] = (-1).into());
        let theirs: Vec<bool> = validated(&documents).iter().map(|n| *n == 0).collect();
        let ours = documents
            .iter()
            .map(|document| schemas::problems(document).is_empty());
        let ours: Vec<bool> = ours.collect();
        assert_eq!(ours, theirs);
        assert_eq!(
            theirs.iter().filter(|valid| **valid).count(),
            3,
            "{theirs:?}"
        );
    }

    #[test]
    fn a_mount_is_unmounted_with_a_document() {
        let s = Sandbox::new();
        installed("fusermount3");
        s.json(&["format", "a.img", "--size", "64M"]);
        let at = s.path("mnt");
        fs::create_dir(&at).unwrap();
        let at = at.to_str().unwrap();
        let mounted = s.json(&["mount", "a.img", at, "--background"]);
        assert_eq!(mounted["fileset"], "main");
        s.json(&["status"]);
        let unmounted = s.json(&["unmount", at]);
        assert_eq!(unmounted["unmounted"], at);
    }
}
