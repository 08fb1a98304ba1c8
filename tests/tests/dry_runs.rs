//! `--dry-run`: every command that changes a disk has it, and it changes nothing.

use block_testing::Mem;
use export_nbd::{Config, Export, Listen, Server};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use tests::Sandbox;
use tests::sparse::Content;

/// Bytes before the end of a header copy.
const HEADER: u64 = 16 * 1024;

/// Commands that change a disk, each with arguments for the objects of [`objects`]. The second
/// list is added when the command is executed for real, in this order.
const CASES: &[(&str, &[&str], &[&str])] = &[
    (
        "volume create",
        &["new.img", "--size", "32M", "--owner", "owner"],
        &[],
    ),
    ("volume header restore", &["volume.img", "h"], &["--yes"]),
    ("volume repair", &["damaged.img"], &[]),
    ("volume key add", &["volume.img", "--user", "carol"], &[]),
    (
        "volume key change",
        &[
            "volume.img",
            "--unlock-key-file",
            "secret",
            "--new-key-file",
            "other",
        ],
        &[],
    ),
    ("volume key remove", &["volume.img", "bob"], &["--yes"]),
    ("volume owner set", &["volume.img", "bob"], &["--yes"]),
    ("volume trust", &["volume.img", "--reset"], &[]),
    ("volume erase", &["volume.img"], &["--yes"]),
    ("format", &["blank.img"], &[]),
    ("fsck", &["files.img", "--repair"], &[]),
    ("defrag", &["files.img"], &[]),
    ("defrag", &["files.img", "--recompress"], &[]),
    ("grow", &["files.img", "--size", "48M"], &[]),
    ("shrink", &["files.img", "--size=20M"], &["--yes"]),
    ("upgrade", &["files.img"], &[]),
    (
        "fileset create",
        &["files.img", "new", "--quota", "1M"],
        &[],
    ),
    ("fileset quota", &["files.img", "home", "1M"], &[]),
    (
        "fileset quota",
        &["files.img", "home", "1M", "--user", "1000"],
        &[],
    ),
    ("fileset compression", &["files.img", "home", "lz4"], &[]),
    ("fileset snapshot", &["files.img", "home", "monday"], &[]),
    ("fileset rename", &["files.img", "old", "people"], &[]),
    ("fileset remove", &["files.img", "spare"], &[]),
    ("fileset clone", &["files.img", "then", "trial"], &[]),
    ("fileset hold", &["files.img", "then"], &[]),
    ("fileset release", &["files.img", "then"], &[]),
    (
        "fileset rollback",
        &["files.img", "main", "then"],
        &["--yes"],
    ),
    (
        "fileset send",
        &["files.img", "then", "--output", "sent"],
        &[],
    ),
    (
        "fileset receive",
        &["files.img", "copy", "--as", "now", "--input", "stream"],
        &[],
    ),
    ("cell init", &["example.org", "more.img"], &[]),
    (
        "cell acl set",
        &["cell.img", "projects", "/", "10.0.0.7", "all"],
        &[],
    ),
    (
        "cell volume create",
        &["cell.img", "new", "--mount", "/new"],
        &[],
    ),
    (
        "cell volume mount",
        &["cell.img", "projects", "/elsewhere"],
        &[],
    ),
    ("cell volume clone", &["cell.img", "projects"], &[]),
    ("cell volume quota", &["cell.img", "projects", "1M"], &[]),
    ("cell volume remove", &["cell.img", "projects"], &[]),
];

/// Commands that find nothing to do in an undamaged file system, but may write to it.
const MAY_CHANGE_NOTHING: [&str; 3] = ["fsck", "defrag", "upgrade"];

/// Creates a disk of each kind.
fn objects() -> Sandbox {
    let s = Sandbox::new();
    for name in ["bob", "carol"] {
        s.key(name);
    }
    for (name, text) in [("secret", "first"), ("other", "second")] {
        fs::write(s.path(name), text).unwrap();
    }
    s.volume("volume.img", "32M", &[]);
    let add = ["volume", "key", "add", "volume.img"];
    s.run(&[&add[..], &["--user", "bob"]].concat()).ok();
    s.run(&[&add[..], &["--new-key-file", "secret"]].concat())
        .ok();
    s.run(&["volume", "header", "backup", "volume.img", "h"])
        .ok();
    s.volume("damaged.img", "32M", &[]);
    let damaged = fs::File::options()
        .write(true)
        .open(s.path("damaged.img"))
        .unwrap();
    damaged.write_all_at(b"damage", HEADER + 5000).unwrap();
    let blank = fs::File::create(s.path("blank.img")).unwrap();
    blank.set_len(32 << 20).unwrap();
    for image in ["files.img", "more.img"] {
        s.run(&["format", image, "--size", "32M"]).ok();
    }
    for fileset in ["home", "old", "spare"] {
        s.run(&["fileset", "create", "files.img", fileset]).ok();
    }
    s.run(&["fileset", "snapshot", "files.img", "main", "then"])
        .ok();
    let send = ["fileset", "send", "files.img", "then"];
    s.run(&[&send[..], &["--output", "stream"]].concat()).ok();
    s.run(&["cell", "init", "example.org", "cell.img", "--size", "32M"])
        .ok();
    s.run(&["cell", "volume", "create", "cell.img", "projects"])
        .ok();
    s
}

/// Reads all files of the sandbox, except those of running services.
fn contents(s: &Sandbox) -> BTreeMap<String, Content> {
    let mut found = BTreeMap::new();
    let mut directories = vec![s.path("")];
    while let Some(dir) = directories.pop() {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if path == s.path("run") {
                continue;
            }
            if path.is_dir() {
                directories.push(path);
            } else if path.is_file() {
                let name = path.display().to_string();
                found.insert(name, Content::read(&path));
            }
        }
    }
    found
}

/// Names the files that differ.
fn differences(one: &BTreeMap<String, Content>, other: &BTreeMap<String, Content>) -> Vec<String> {
    let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let differ = |name: &&String| one.get(*name) != other.get(*name);
    names.into_iter().filter(differ).cloned().collect()
}

fn command<'a>(name: &'a str, args: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    let name: Vec<&str> = name.split(' ').collect();
    [&name[..], args, more].concat()
}

#[test]
fn every_command_with_a_dry_run_is_tried_here() {
    let s = Sandbox::new();
    let written = s.json(&["man", "--dir", "man"]);
    let files = written["written"].as_array().unwrap().iter();
    let mut documented = BTreeSet::new();
    for file in files.map(|file| s.path(file.as_str().unwrap())) {
        let page = fs::read_to_string(&file).unwrap().replace("\\-", "-");
        if page.contains("\\fB--dry-run\\fR") {
            let name = Path::new(file.file_stem().unwrap()).display().to_string();
            // evfs(1) and evfs(7) describe the option, too.
            let name = name
                .strip_prefix("evfs-")
                .map(|name| name.replace('-', " "));
            documented.extend(name);
        }
    }
    let tried: BTreeSet<String> = CASES.iter().map(|case| case.0.to_owned()).collect();
    assert_eq!(documented, tried);
}

#[test]
fn a_dry_run_succeeds_and_leaves_every_file_as_it_is() {
    let s = objects();
    let before = contents(&s);
    for (name, args, _) in CASES {
        let dry = command(name, args, &["--dry-run"]);
        let ran = s.run(&dry).ok();
        assert!(
            ran.stdout.starts_with("dry run, "),
            "{name}: {}",
            ran.stdout
        );
        let value = s.json(&dry);
        assert_eq!(value["dry_run"], Value::Bool(true), "{name}");
        let changed = differences(&before, &contents(&s));
        assert!(changed.is_empty(), "{name} changed {changed:?}");
    }
}

/// Exports a copy of each image under its name. They have no IDs, so each is a LUN of its own.
fn serve(s: &Sandbox, images: &[&str]) -> Server {
    let export = |name: &&str| Export {
        name: (*name).to_owned(),
        description: String::new(),
        device: Arc::new(Mem::holding(&fs::read(s.path(name)).unwrap(), 512)),
        read_only: false,
    };
    let config = Config {
        listen: vec![Listen::Unix(s.path("images.sock"))],
        ..Config::default()
    };
    Server::start(config, images.iter().map(export).collect()).unwrap()
}

#[test]
fn a_dry_run_on_an_unknown_address_does_not_register_a_lun() {
    let s = objects();
    fs::write(s.path("known.img"), [0; 1 << 20]).unwrap();
    let mut images = vec!["known.img"];
    let device = |word: &'static str| match word {
        "new.img" => "blank.img",
        other => other,
    };
    let words = CASES.iter().flat_map(|(_, args, _)| args.iter());
    images.extend(words.map(|w| device(w)).filter(|w| w.ends_with(".img")));
    images.sort_unstable();
    images.dedup();
    let _server = serve(&s, &images);
    let socket = s.path("images.sock");
    let address = |name: &str| format!("nbd+unix:///{name}?socket={}", socket.display());
    let registry = s.path("state/luns.json");
    let all_dry = || {
        let before = contents(&s);
        for (name, args, _) in CASES {
            // The size of an existing device is not given.
            let args: Vec<String> = args
                .iter()
                .filter(|arg| !["--size", "32M", "48M"].contains(arg))
                .map(|arg| match device(arg) {
                    image if image.ends_with(".img") => address(image),
                    other => other.to_owned(),
                })
                .collect();
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let ran = s.run(&command(name, &args, &["--dry-run"])).ok();
            let is_dry = ran.stdout.starts_with("dry run, ");
            assert!(is_dry, "{name}: {}", ran.stdout);
            let changed = differences(&before, &contents(&s));
            assert!(changed.is_empty(), "{name} changed {changed:?}");
        }
    };
    assert!(!registry.exists());
    all_dry();
    assert!(!registry.exists());
    s.run(&["lun", "scan", &address("known.img")]).ok();
    let known = fs::read(&registry).unwrap();
    all_dry();
    assert_eq!(fs::read(&registry).unwrap(), known);
    // Without the option, the same address becomes a LUN.
    s.run(&["format", &address("blank.img")]).ok();
    assert_ne!(fs::read(&registry).unwrap(), known);
}

/// A dry run would prove little if the commands changed nothing anyway.
#[test]
fn the_same_commands_change_files_without_the_option() {
    let s = objects();
    for (name, args, more) in CASES {
        let before = contents(&s);
        s.run(&command(name, args, more)).ok();
        let is_changed = !differences(&before, &contents(&s)).is_empty();
        assert!(is_changed || MAY_CHANGE_NOTHING.contains(name), "{name}");
    }
}

#[test]
fn a_dry_run_fails_where_the_command_would() {
    let s = objects();
    let before = contents(&s);
    for (args, code) in [
        // Something is there.
        (&["format", "files.img"][..], 2),
        (&["volume", "create", "files.img", "--owner", "owner"], 2),
        (
            &[
                "volume", "create", "new.img", "--size", "1M", "--owner", "owner",
            ],
            2,
        ),
        (&["fileset", "create", "files.img", "home"], 2),
        (
            &[
                "fileset",
                "receive",
                "files.img",
                "copy",
                "--input",
                "stream",
            ],
            2,
        ),
        (&["cell", "init", "example.net", "cell.img"], 2),
        // Something is not there.
        (&["volume", "key", "remove", "volume.img", "nobody"], 10),
        (&["fileset", "remove", "files.img", "none"], 10),
        (&["fileset", "receive", "files.img", "none", "--abort"], 10),
        (&["fileset", "receive", "files.img", "home", "--abort"], 10),
        (&["cell", "volume", "quota", "cell.img", "none", "1M"], 10),
        (&["volume", "erase", "missing.img"], 10),
        // The key does not open it, or may not do this.
        (&["volume", "erase", "volume.img", "--key", "carol"], 12),
        (
            &[
                "volume",
                "key",
                "add",
                "volume.img",
                "--user",
                "carol",
                "--key",
                "bob",
            ],
            13,
        ),
    ] {
        let dry = [args, &["--dry-run"]].concat();
        s.run(&dry).code(code);
        let changed = differences(&before, &contents(&s));
        assert!(changed.is_empty(), "{args:?} changed {changed:?}");
    }
    s.attach(&["volume.img"]);
    s.run(&["volume", "erase", "volume.img", "--dry-run"])
        .code(11);
    s.detach("volume");
}

#[test]
fn force_is_tried_without_overwriting_anything() {
    let s = objects();
    let before = contents(&s);
    for args in [
        &["format", "volume.img", "--force"][..],
        &[
            "volume",
            "create",
            "files.img",
            "--owner",
            "owner",
            "--force",
        ],
        &["volume", "erase", "volume.img", "--force"],
    ] {
        s.run(&[args, &["--dry-run"]].concat()).ok();
        let changed = differences(&before, &contents(&s));
        assert!(changed.is_empty(), "{args:?} changed {changed:?}");
    }
}

#[test]
fn a_recovery_key_that_opens_nothing_is_not_printed() {
    let s = objects();
    let add = ["volume", "key", "add", "volume.img", "--recovery"];
    let real = s.json(&add);
    assert!(real["recovery_key"].is_string());
    let dry = s.json(&[&add[..], &["--dry-run"]].concat());
    assert!(dry["recovery_key"].is_null(), "{dry}");
}

mod needs_peer {
    use super::*;

    #[test]
    fn a_mounted_file_system_is_only_queried() {
        let s = objects();
        fs::create_dir(s.path("mnt")).unwrap();
        s.run(&["mount", "files.img", "mnt", "--background"]).ok();
        let listed = || s.json(&["fileset", "list", "mnt"]);
        let before = listed();
        for (args, code) in [
            (&["create", "mnt", "new"][..], 0),
            (&["create", "mnt", "home"], 2),
            (&["create", "mnt", "a/b"], 2),
            (&["rename", "mnt", "home", "people"], 0),
            (&["quota", "mnt", "home", "1M"], 0),
            (&["snapshot", "mnt", "main", "monday"], 0),
            (&["remove", "mnt", "home"], 0),
            (&["hold", "mnt", "then"], 0),
            (&["rollback", "mnt", "main", "then", "--yes"], 11),
            (&["remove", "mnt", "main"], 11),
            (&["remove", "mnt", "none"], 10),
        ] {
            let dry = [&["fileset"][..], args, &["--dry-run"]].concat();
            s.run(&dry).code(code);
            assert_eq!(listed(), before, "{args:?}");
        }
        s.run(&["unmount", "mnt"]).ok();
    }
}
