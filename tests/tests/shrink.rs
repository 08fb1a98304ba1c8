//! `evfs shrink`: file systems, volumes and image files.

use serde_json::{Value, json};
use std::fs;
use std::process::Stdio;
use tests::{Random, Sandbox, wait_until};

const MIB: u64 = 1 << 20;

/// Length of the header of a volume.
const HEADER: u64 = 16 * MIB;

fn sizes(before: u64, after: u64) -> Value {
    json!({ "before": before, "after": after })
}

#[test]
fn a_file_system_its_volume_and_its_file_shrink_in_one_command() {
    let s = Sandbox::new();
    s.volume("disk.img", "96M", &[]);
    s.run(&["format", "disk.img"]).ok();
    s.run(&["fileset", "create", "disk.img", "home", "--quota", "1M"])
        .ok();
    s.run(&["fileset", "snapshot", "disk.img", "main", "then"])
        .ok();
    let filesets = || s.json(&["df", "disk.img"])["filesets"].clone();
    let length = || fs::metadata(s.path("disk.img")).unwrap().len();
    let before = filesets();
    let minimum = s.json(&["shrink", "disk.img", "--minimum"]);
    assert_eq!(minimum["device"], sizes(96 * MIB, 96 * MIB));
    let smallest = minimum["minimum_bytes"].as_u64().unwrap();
    assert!(
        (HEADER + 8 * MIB..40 * MIB).contains(&smallest),
        "{smallest}"
    );
    let size = smallest.next_multiple_of(MIB);
    let text = size.to_string();
    let shrink = ["shrink", "disk.img", "--size", &text];
    let asked = s.run(&shrink).code(2).stderr;
    assert!(asked.contains("--yes"), "{asked}");
    let planned = s.json(&[&shrink[..], &["--dry-run"]].concat());
    assert_eq!(length(), 96 * MIB);
    let too_small = (smallest - 4096).to_string();
    let too_small = ["shrink", "disk.img", "--size", &too_small, "--yes"];
    let refused = s.run(&too_small).code(2).stderr;
    assert!(refused.contains(&smallest.to_string()), "{refused}");
    let done = s.json(&[&shrink[..], &["--yes"]].concat());
    assert_eq!(done["device"], sizes(96 * MIB, size));
    let data = sizes(96 * MIB - HEADER, size - HEADER);
    assert_eq!([&done["volume"], &done["file_system"]], [&data, &data]);
    for layer in ["device", "volume", "file_system"] {
        assert_eq!(done[layer], planned[layer]);
    }
    assert_eq!(length(), size);
    let again = s.json(&[&shrink[..], &["--yes"]].concat());
    assert_eq!(again["device"], sizes(size, size));
    assert_eq!(filesets(), before);
    s.run(&["fsck", "disk.img", "--data"]).ok();
    s.run(&["volume", "check", "disk.img"]).ok();
    s.run(&["grow", "disk.img", "--size", "64M"]).ok();
    s.run(&["fsck", "disk.img", "--data"]).ok();
    let text = s.run(&[
        "shrink",
        "disk.img",
        "--size",
        "48M",
        "--yes",
        "--keep-file",
    ]);
    let text = text.ok().stdout;
    assert!(text.contains("file system: 48 MiB -> 32 MiB"), "{text}");
    assert!(text.contains("device: 64 MiB\n"), "{text}");
    assert_eq!(length(), 64 * MIB);
    // The file system is small already.
    s.run(&["shrink", "disk.img", "--size", "56M", "--yes"])
        .ok();
    assert_eq!(length(), 56 * MIB);
    s.run(&["fsck", "disk.img", "--data"]).ok();
}

/// A process that is killed has lost nothing that it wrote, so the file system is clean, and the
/// command can be repeated.
#[test]
fn a_killed_shrink_loses_nothing_and_is_completed() {
    let s = Sandbox::new();
    s.run(&["format", "disk.img", "--size", "16M"]).ok();
    let mut random = Random::from_environment();
    let length = || fs::metadata(s.path("disk.img")).unwrap().len();
    let mut unfinished = 0;
    for _ in 0..12 {
        s.run(&["grow", "disk.img", "--size", "64M"]).ok();
        let mut command = s.evfs();
        command.args(["shrink", "disk.img", "--size", "16M", "--yes"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let killed_after = std::time::Duration::from_micros(random.below(60_000));
        std::thread::sleep(killed_after);
        let _ = child.kill();
        child.wait().unwrap();
        // Its lock is released shortly after its end.
        wait_until("the device is free", || {
            let ran = s.run(&["fsck", "disk.img", "--data"]);
            let is_free = ran.status.code() != Some(11);
            if is_free {
                ran.ok();
            }
            is_free
        });
        if length() != 16 * MIB {
            unfinished += 1;
            s.run(&["shrink", "disk.img", "--size", "16M", "--yes"])
                .ok();
        }
        assert_eq!(length(), 16 * MIB);
        s.run(&["fsck", "disk.img", "--data"]).ok();
        assert_eq!(s.json(&["df", "disk.img"])["size_bytes"], 16 * MIB);
    }
    eprintln!("{unfinished} of 12 were interrupted");
}
