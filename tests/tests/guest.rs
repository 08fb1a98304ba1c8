//! Tests that need another kernel: its NBD client on a volume, and a machine with NUMA nodes.
//!
//! `tests/guest/boot.sh` boots the guests, which reach the host's loopback at 10.0.2.2.

use serde_json::{Value, json};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use tests::kept::Killer;
use tests::{Ran, Random, Sandbox, installed, peer};

/// Size of the volume, in bytes; the guest creates a file system on half of it.
const SIZE: usize = 32 << 20;

/// Runs `tests/guest/SCRIPT` in a guest that has `programs` in its /bin, and returns its output.
#[track_caller]
fn guest<S: AsRef<OsStr>>(options: &[S], script: &str, programs: &[&Path]) -> String {
    let mut boot = tests::guest::boot();
    boot.args(options).arg(tests::guest::scripts().join(script));
    Ran::of(boot.args(programs)).ok().stdout
}

fn sha256(file: &Path) -> String {
    let printed = peer("sha256sum", &[file]);
    printed.split(' ').next().unwrap_or_default().to_owned()
}

/// Returns the bytes of storage that a file occupies.
fn allocated(file: &Path) -> u64 {
    fs::metadata(file).unwrap().blocks() * 512
}

/// Attaches `a.img` over NBD and returns the URI, its port and name, and the process that keeps the
/// server.
fn attach(s: &Sandbox) -> (String, String, String, u32) {
    let status = s.attach(&[
        "a.img",
        "--nbd",
        "127.0.0.1:0",
        "--threads",
        "2",
        "--allow-discards",
        "--survive",
    ]);
    let server = fs::read_to_string(format!("/proc/{}/status", status["pid"])).unwrap();
    let keeper = server.lines().find_map(|line| line.strip_prefix("PPid:"));
    let keeper = keeper.expect("a parent").trim().parse().unwrap();
    let uri = status["exports"][0]["at"].as_str().unwrap().to_owned();
    let (port, name) = uri
        .strip_prefix("nbd://127.0.0.1:")
        .and_then(|rest| rest.split_once('/'))
        .unwrap_or_else(|| panic!("{uri}"));
    let (port, name) = (port.to_owned(), name.to_owned());
    (uri, port, name, keeper)
}

#[test]
fn the_kernels_nbd_client_and_the_host_see_the_same_bytes_of_a_volume_whose_server_is_killed() {
    let s = Sandbox::new();
    let mut random = Random::from_environment();
    let text = |file: &Path| file.to_str().unwrap().to_owned();
    let image = s.volume("a.img", "48M", &[]);
    let share = s.path("share");
    fs::create_dir_all(share.join("files")).unwrap();
    let mut manifest = String::new();
    for (number, size) in [0, 1, 4095, 4096, 100_001, (4 << 20) + 512]
        .into_iter()
        .enumerate()
    {
        let file = share.join(format!("files/{number}"));
        fs::write(&file, random.bytes(size)).unwrap();
        manifest += &format!("{}  {number}\n", sha256(&file));
    }
    fs::write(share.join("manifest"), &manifest).unwrap();
    let before = random.bytes(SIZE);
    let (_, second_half) = before.split_at(SIZE / 2);
    fs::write(s.path("before"), &before).unwrap();
    fs::write(s.path("second_half"), second_half).unwrap();

    let (uri, port, name, keeper) = attach(&s);
    peer("nbdcopy", &["--flush", &text(&s.path("before")), &uri]);
    let full = allocated(&image);
    fs::write(share.join("address"), format!("{port} {name}\n")).unwrap();
    // The kernel does not notice that the server is killed.
    let killer = Killer::start(keeper, Duration::from_secs(1));
    let printed = guest(
        &[
            "--modules",
            "crc32c_generic ext4 nbd",
            "--share",
            &text(&share),
        ],
        "nbd.sh",
        &[
            &installed("nbd-client"),
            &installed("mkfs.ext4"),
            &installed("e2fsck"),
        ],
    );
    eprintln!("{} kills", killer.stop());
    s.detach("a");
    let said: HashMap<&str, &str> = printed
        .lines()
        .filter_map(|line| line.split_once(' '))
        .collect();
    assert_eq!(said["sectors"], (SIZE / 512).to_string());
    assert_eq!(said["connections_1"], "1");
    assert_eq!(said["connections_2"], "2");
    assert_eq!(said["write_cache"], "write back");
    assert_eq!(said["fua"], "1");
    let host_wrote = sha256(&s.path("second_half"));
    assert_eq!(said["host_wrote"], host_wrote, "host to guest");
    let files = manifest.lines().count().to_string();
    assert_eq!(said["verified"], files, "guest to guest");
    // At least the deleted data was trimmed.
    let kept = allocated(&image);
    assert!(kept + (4 << 20) < full, "trimmed: {full} to {kept}");

    // Attached again, read from the disk.
    let (uri, ..) = attach(&s);
    let after = s.path("after");
    fs::write(&after, []).unwrap();
    peer("nbdcopy", &[&uri, &text(&after)]);
    s.detach("a");
    assert_eq!(said["device"], sha256(&after), "guest to host");
    assert!(
        fs::read(&after).unwrap()[SIZE / 2..] == *second_half,
        "what the guest did not write"
    );
    peer("e2fsck", &["-f", "-n", &text(&after)]);
    let out = s.path("out");
    fs::create_dir(&out).unwrap();
    let dump = format!("rdump / {}", text(&out));
    peer("debugfs", &["-R", &dump, &text(&after)]);
    for line in manifest.lines() {
        let (sum, name) = line.split_once("  ").unwrap();
        assert_eq!(sha256(&out.join("files").join(name)), sum, "{name}");
    }
    assert_eq!(
        fs::read_to_string(out.join("note")).unwrap(),
        "written in the second session\n"
    );
    assert!(!out.join("ballast").exists());
}

#[test]
fn a_machine_with_two_numa_nodes_has_two_cells_and_pages_on_both() {
    let printed = guest(
        &["--numa", "2", "--cpus", "3"],
        "topology.sh",
        &[
            Path::new(env!("CARGO_BIN_EXE_topology")),
            Path::new(env!("CARGO_BIN_EXE_placement")),
        ],
    );
    let cells = json!([
        {"cell": 0, "cpus": [0, 2], "distances": [10, 20]},
        {"cell": 1, "cpus": [1], "distances": [20, 10]},
    ]);
    let seen: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {printed}")))
        .collect();
    let expected: Vec<Value> = [0, 1, 0]
        .iter()
        .map(|current| json!({"cells": cells, "current": current}))
        .collect();
    let (topology, placement) = seen.split_at(3);
    assert_eq!(topology, expected, "by processor 0, 1 and 2");
    let asked_and_got = [
        json!({"asked": 0, "lies": {"0": 1024}}),
        json!({"asked": 1, "lies": {"1": 1024}}),
    ];
    assert_eq!(placement, asked_and_got, "pages of the cache");
}
