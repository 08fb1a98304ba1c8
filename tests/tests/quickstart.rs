//! Runs the first command of the README to its end: as root, and as an ordinary user.

use std::os::unix::process::CommandExt;
use std::process::Command;
use tests::{NOBODY, Ran, Sandbox, needs_root, program};

#[track_caller]
fn tour(command: &mut Command, store: &str) {
    let ran = Ran::of(command.args(["--json", "quickstart", "--size", "96M"])).ok();
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["store"], store, "{report}");
    assert_eq!(report["verified"], true);
    assert!(report["files"].as_u64().unwrap() > 20, "{report}");
    // A user who may open /dev/fuse and has fusermount3 can mount.
    assert_eq!(report["mounted"]["files"], report["files"], "{report}");
    let cost = report["cost"].as_array().unwrap();
    assert!(
        cost.iter()
            .all(|c| c["throughput_of_clear"].as_f64().is_some_and(|r| r > 0.0)),
        "{report}"
    );
}

#[test]
fn quickstart_runs_to_the_end() {
    let s = Sandbox::new();
    needs_root("quickstart with a file system on a loop device");
    tour(&mut s.evfs(), "ext4 on a loop device");
    let image = s.path("try/quickstart.img");
    let told = Ran::of(
        s.evfs()
            .args(["quickstart", "--size", "96M", "--dir"])
            .arg(s.path("try")),
    )
    .ok();
    assert!(told.stderr.contains("--size 96M"), "{}", told.stderr);
    for part in ["95 % interval", "\nnext: evfs "] {
        assert!(told.stdout.contains(part), "{part}: {}", told.stdout);
    }
    assert!(image.exists(), "--dir keeps what was made");
    Ran::of(s.evfs().args(["quickstart", "--dir"]).arg(s.path("try"))).code(2);
}

#[test]
fn quickstart_runs_to_the_end_for_an_ordinary_user() {
    needs_root("becoming another user");
    let home = tempfile::tempdir().unwrap();
    // The program is copied to a directory from which that user may run it.
    let copy = home.path().join("evfs");
    std::fs::copy(program(), &copy).unwrap();
    std::os::unix::fs::chown(home.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let mut command = Command::new(&copy);
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", home.path())
        .env("TMPDIR", home.path())
        .current_dir(home.path())
        .uid(NOBODY)
        .gid(NOBODY);
    tour(&mut command, "archive over NBD");
    let left: Vec<_> = std::fs::read_dir(home.path())
        .unwrap()
        .flatten()
        .map(|e| e.file_name())
        .collect();
    assert_eq!(left, ["evfs"], "the temporary folder was left behind");
}
