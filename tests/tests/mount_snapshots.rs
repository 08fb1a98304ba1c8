//! Snapshots of a mounted file system, from outside: reading, listing, comparing, holding, rolling
//! back.

use std::fs;
use std::path::PathBuf;
use tests::{Sandbox, needs_root, wait_until};

/// A sandbox with a mounted file system.
struct Place {
    s: Sandbox,
    at: PathBuf,
}

impl Place {
    fn new() -> Place {
        let s = Sandbox::new();
        s.run(&["format", "disk.img", "--size", "64M"]).ok();
        let at = s.path("mnt");
        fs::create_dir(&at).unwrap();
        s.run(&["mount", "disk.img", "mnt", "--background"]).ok();
        Place { s, at }
    }

    fn lines(&self, args: &[&str]) -> Vec<String> {
        let shown = self.s.run(args).ok().stdout;
        shown.lines().map(str::to_owned).collect()
    }

    fn fileset(&self, name: &str) -> serde_json::Value {
        let listed = self.s.json(&["fileset", "list", "disk.img"]);
        let mut all = listed["filesets"].as_array().unwrap().iter();
        let found = all.rfind(|one| one["name"] == name);
        found.cloned().unwrap_or_default()
    }

    fn is_clean(&self) {
        let checked = self.s.json(&["fsck", "disk.img"]);
        assert_eq!(checked["clean"], true, "{checked}");
    }
}

#[test]
fn a_snapshot_is_read_compared_and_restored() {
    needs_root("reading the snapshots of a mount");
    let p = Place::new();
    let write = |name: &str, content: &[u8]| fs::write(p.at.join(name), content).unwrap();
    write("report", b"first");
    write("large", &[1; 3 << 20]);
    write("moved", b"moved");
    p.s.run(&["fileset", "snapshot", "mnt", "main", "draft"])
        .ok();
    write("report", b"second");
    write("new", b"new");
    fs::remove_file(p.at.join("large")).unwrap();
    fs::create_dir(p.at.join("dir")).unwrap();
    fs::rename(p.at.join("moved"), p.at.join("dir/here")).unwrap();
    let past = p.at.join(".snapshots/draft");
    assert_eq!(fs::read(past.join("report")).unwrap(), b"first");
    assert_eq!(fs::read(past.join("large")).unwrap(), [1; 3 << 20]);
    assert!(fs::write(past.join("report"), b"x").is_err());
    // An entry keeps the directory open.
    let mut shown = fs::read_dir(&p.at).unwrap().flatten();
    assert!(shown.all(|entry| entry.file_name() != ".snapshots"));
    drop(shown);

    let diff = ["fileset", "diff", "mnt", "draft", "main"];
    let changes = [
        "+ /dir/",
        "R /moved -> /dir/here",
        "- /large",
        "+ /new",
        "M /report",
    ];
    assert_eq!(p.lines(&diff), changes);
    let all = p.s.json(&diff);
    assert_eq!(all["differences"][1]["from"], "moved", "{all}");
    let own = p.fileset("draft");
    assert_eq!(own["snapshot_of"], "main");
    assert_eq!(
        own["own_bytes"].as_u64().unwrap(),
        (3 << 20) + 4096,
        "{own}"
    );
    assert!(p.fileset("main")["own_bytes"].is_null());

    p.s.run(&["fileset", "clone", "mnt", "draft", "trial"]).ok();
    assert_eq!(p.fileset("trial")["used_inodes"], 4, "{own}");

    let rollback = ["fileset", "rollback", "mnt", "main", "draft", "--yes"];
    p.s.run(&rollback).code(11);
    p.s.run(&["unmount", "mnt"]).ok();
    p.s.run(&["fileset", "rollback", "disk.img", "main", "draft"])
        .code(2);
    let later = ["--keep", "later", "--yes"];
    let rollback = [
        &["fileset", "rollback", "disk.img", "main", "draft"][..],
        &later,
    ]
    .concat();
    p.s.run(&[&rollback[..], &["--dry-run"]].concat()).ok();
    assert!(p.fileset("later").is_null());
    let done = p.s.json(&rollback);
    assert_eq!(
        (&done["snapshot"], &done["kept"]),
        (&"draft".into(), &"later".into())
    );
    p.is_clean();
    assert_eq!(
        p.lines(&["fileset", "diff", "disk.img", "draft", "main"]),
        [""; 0]
    );
    assert_eq!(
        p.lines(&["fileset", "diff", "disk.img", "draft", "later"]),
        changes
    );

    p.s.run(&["mount", "disk.img", "mnt", "--background"]).ok();
    assert_eq!(fs::read(p.at.join("report")).unwrap(), b"first");
    assert_eq!(fs::read(p.at.join("large")).unwrap(), [1; 3 << 20]);
    let later = p.at.join(".snapshots/later");
    assert_eq!(fs::read(later.join("dir/here")).unwrap(), b"moved");
    p.s.run(&["unmount", "mnt"]).ok();
    // Rolling back to the state before undoes it.
    p.s.run(&[
        "fileset",
        "rollback",
        "disk.img",
        "main",
        "later",
        "--no-keep",
        "--yes",
    ])
    .ok();
    p.s.run(&["mount", "disk.img", "mnt", "--no-snapshots", "--background"])
        .ok();
    assert_eq!(fs::read(p.at.join("report")).unwrap(), b"second");
    assert!(!p.at.join(".snapshots").exists());
    p.s.run(&["unmount", "mnt"]).ok();
    p.is_clean();

    p.s.run(&[
        "mount",
        "disk.img",
        "mnt",
        "--fileset",
        "trial",
        "--background",
    ])
    .ok();
    write("report", b"of the clone");
    assert_eq!(fs::read(p.at.join("large")).unwrap(), [1; 3 << 20]);
    p.s.run(&["unmount", "mnt"]).ok();
    assert_eq!(
        p.lines(&["fileset", "diff", "disk.img", "draft", "later"]),
        changes
    );
    p.is_clean();
}

#[test]
fn a_snapshot_in_use_or_held_is_not_removed() {
    needs_root("reading the snapshots of a mount");
    let p = Place::new();
    fs::write(p.at.join("file"), b"old").unwrap();
    p.s.run(&["fileset", "snapshot", "mnt", "main", "one"]).ok();
    let remove = ["fileset", "remove", "mnt", "one", "--force"];
    let open = fs::File::open(p.at.join(".snapshots/one/file")).unwrap();
    let refused = p.s.run(&remove).code(11);
    assert!(refused.stderr.contains("open"), "{}", refused.stderr);
    drop(open);
    p.s.run(&["fileset", "hold", "mnt", "one"]).ok();
    assert_eq!(p.fileset("one")["held"], true);
    let refused = p.s.run(&remove).code(11);
    assert!(refused.stderr.contains("held"), "{}", refused.stderr);
    p.s.run(&["fileset", "hold", "mnt", "main"]).code(2);
    p.s.run(&["fileset", "release", "mnt", "one"]).ok();
    p.s.run(&remove).ok();
    assert!(!p.at.join(".snapshots/one").exists());
    p.s.run(&["unmount", "mnt"]).ok();
    p.is_clean();
}

#[test]
fn a_mounted_fileset_is_not_removed_under_a_new_name() {
    needs_root("mounting");
    let p = Place::new();
    p.s.run(&["unmount", "mnt"]).ok();
    p.s.run(&["fileset", "create", "disk.img", "work"]).ok();
    let mount = ["mount", "disk.img", "mnt", "--fileset", "work"];
    p.s.run(&[&mount[..], &["--background"]].concat()).ok();
    fs::write(p.at.join("file"), b"content").unwrap();
    p.s.run(&["fileset", "rename", "mnt", "work", "play"]).ok();
    let remove = ["fileset", "remove", "mnt", "play", "--force"];
    p.s.run(&remove).code(11);
    p.s.run(&[&remove[..], &["--dry-run"]].concat()).code(11);
    assert_eq!(fs::read(p.at.join("file")).unwrap(), b"content");
    p.s.run(&["unmount", "mnt"]).ok();
    p.s.run(&["fileset", "remove", "disk.img", "play", "--force"])
        .ok();
    assert!(p.fileset("play").is_null());
    p.is_clean();
}

#[test]
fn a_table_of_up_can_hide_the_snapshots() {
    needs_root("mounting");
    let s = Sandbox::new();
    s.run(&["format", "disk.img", "--size", "64M"]).ok();
    s.run(&["fileset", "snapshot", "disk.img", "main", "then"])
        .ok();
    fs::create_dir(s.path("mnt")).unwrap();
    let table = "[mount.data]\ndevice = \"disk.img\"\nat = \"mnt\"\n";
    for (more, shown) in [("", true), ("no-snapshots = true\n", false)] {
        fs::write(s.path("up.toml"), format!("{table}{more}")).unwrap();
        s.run(&["up", "up.toml", "--background"]).ok();
        assert_eq!(s.path("mnt/.snapshots/then").exists(), shown, "{more}");
        s.run(&["down"]).ok();
    }
}

#[test]
fn many_differences_arrive_in_parts() {
    needs_root("reading the snapshots of a mount");
    let p = Place::new();
    // Long paths, so that the differences exceed one message.
    let dir = vec!["d".repeat(250); 12].join("/");
    fs::create_dir_all(p.at.join(&dir)).unwrap();
    p.s.run(&["fileset", "snapshot", "mnt", "main", "empty"])
        .ok();
    let mut made: Vec<String> = Vec::new();
    for number in 0..2000 {
        let name = format!("{dir}/{number}-{}", "n".repeat(200));
        fs::write(p.at.join(&name), b"").unwrap();
        made.push(format!("+ /{name}"));
    }
    made.sort();
    assert_eq!(p.lines(&["fileset", "diff", "mnt", "empty", "main"]), made);
    let all = p.s.json(&["fileset", "diff", "mnt", "main", "empty"]);
    let all = all["differences"].as_array().unwrap();
    assert!(all.len() == 2000 && all.iter().all(|one| one["kind"] == "removed"));
    p.s.run(&["unmount", "mnt"]).ok();
}

#[test]
fn a_table_of_up_takes_snapshots_by_the_clock() {
    needs_root("reading the snapshots of a mount");
    let s = Sandbox::new();
    s.run(&["format", "disk.img", "--size", "64M"]).ok();
    fs::create_dir(s.path("mnt")).unwrap();
    let table =
        "[mount.data]\ndevice = \"disk.img\"\nat = \"mnt\"\nkeep-snapshots = { daily = 2 }\n";
    fs::write(s.path("up.toml"), table).unwrap();
    s.run(&["up", "up.toml", "--background"]).ok();
    let all = s.path("mnt/.snapshots");
    let names = || -> Vec<String> {
        let listed = fs::read_dir(&all).unwrap().flatten();
        listed
            .map(|one| one.file_name().into_string().unwrap())
            .collect()
    };
    wait_until("a snapshot is taken", || !names().is_empty());
    let taken = names();
    assert!(
        taken.iter().all(|name| name.starts_with("main-daily-2")),
        "{taken:?}"
    );
    s.run(&["down"]).ok();
    fs::write(s.path("up.toml"), format!("{table}read-only = true\n")).unwrap();
    let refused = s.run(&["up", "up.toml"]).code(2);
    assert!(
        refused.stderr.contains("omit keep-snapshots"),
        "{}",
        refused.stderr
    );
    let checked = s.json(&["fsck", "disk.img"]);
    assert_eq!(checked["clean"], true, "{checked}");
}
