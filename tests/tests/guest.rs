//! What only another kernel can show: its NBD client on a volume, and a machine with NUMA cells.
//!
//! `tests/guest/boot.sh` boots a guest by emulation; the host's loopback is 10.0.2.2 there.

use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tests::{Ran, Random, Sandbox, peer, program};

/// Runs `tests/guest/SCRIPT` in a guest that has `files` in its /bin, and gives what it printed.
#[track_caller]
fn guest(script: &str, files: &[&Path]) -> String {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
    let target = program();
    let target = target.ancestors().nth(2).expect("target/PROFILE/evfs");
    let ran = Ran::of(
        Command::new(scripts.join("boot.sh"))
            .arg(target.join("guest"))
            .arg(scripts.join(script))
            .args(files),
    );
    eprint!("{}", ran.stderr);
    ran.ok().stdout
}

/// A program of this machine.
fn installed(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(name))
        .find(|file| file.exists())
        .unwrap_or_else(|| panic!("{name} is missing; `cargo xtask setup` installs it"))
}

fn sha256<S: AsRef<OsStr>>(file: S) -> String {
    let printed = peer("sha256sum", &[file]);
    printed.split(' ').next().unwrap_or_default().to_owned()
}

#[test]
fn the_kernels_nbd_client_and_the_host_see_the_same_bytes_of_a_volume() {
    let s = Sandbox::new();
    let mut random = Random::from_environment();
    let file = |name: &str| s.path(name).to_str().unwrap().to_owned();
    let size: usize = 64 << 20;
    s.volume("a.img", "80M", &[]);
    fs::write(s.path("before"), random.bytes(size)).unwrap();
    fs::write(s.path("data"), random.bytes(8 << 20)).unwrap();
    let half = fs::read(s.path("before")).unwrap()[size / 2..].to_vec();
    fs::write(s.path("half"), &half).unwrap();

    let status = s.attach(&["a.img", "--nbd", "127.0.0.1:0", "--threads", "2"]);
    let uri = status["exports"][0]["at"].as_str().unwrap().to_owned();
    let (port, name) = uri
        .strip_prefix("nbd://127.0.0.1:")
        .and_then(|rest| rest.split_once('/'))
        .unwrap_or_else(|| panic!("{uri}"));
    peer("nbdcopy", &["--flush", &file("before"), &uri]);
    fs::write(s.path("address"), format!("10.0.2.2 {port} {name}\n")).unwrap();
    let printed = guest(
        "nbd.sh",
        &[
            &s.path("address"),
            &s.path("data"),
            &installed("nbd-client"),
            &installed("mkfs.ext4"),
        ],
    );
    s.detach("a");
    let said = |fact: &str| {
        let mut lines = printed.lines().filter_map(|line| line.split_once(' '));
        let found = lines.find(|(name, _)| *name == fact);
        found
            .unwrap_or_else(|| panic!("{fact}: {printed}"))
            .1
            .to_owned()
    };
    assert_eq!(said("sectors"), (size / 512).to_string());
    assert_eq!(said("block_size"), "4096");
    assert_eq!(said("write_cache"), "write back");
    assert_eq!(said("fua"), "1");
    assert_eq!(said("host_wrote"), sha256(s.path("half")), "host to guest");
    assert_eq!(said("file"), sha256(s.path("data")), "guest to guest");

    // Attached again, from the disk.
    let status = s.attach(&["a.img", "--nbd", "127.0.0.1:0"]);
    let uri = status["exports"][0]["at"].as_str().unwrap().to_owned();
    fs::write(s.path("after"), []).unwrap();
    peer("nbdcopy", &[&uri, &file("after")]);
    s.detach("a");
    assert_eq!(said("device"), sha256(s.path("after")), "guest to host");
    assert!(
        fs::read(s.path("after")).unwrap()[size / 2..] == half,
        "what the guest did not write"
    );
    peer("e2fsck", &["-f", "-n", &file("after")]);
    peer(
        "debugfs",
        &["-R", &format!("dump /data {}", file("out")), &file("after")],
    );
    assert_eq!(sha256(s.path("out")), sha256(s.path("data")), "the file");
    assert_eq!(
        peer("debugfs", &["-R", "cat /folder/note", &file("after")]),
        "changed by the guest\n"
    );
}

#[test]
fn a_machine_with_two_numa_nodes_has_two_cells() {
    let printed = guest("topology.sh", &[Path::new(env!("CARGO_BIN_EXE_topology"))]);
    let cells = json!([
        {"cell": 0, "cpus": [0, 2], "distances": [10, 30]},
        {"cell": 1, "cpus": [1], "distances": [30, 10]},
    ]);
    let seen: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {printed}")))
        .collect();
    let expected: Vec<Value> = [0, 1, 0]
        .iter()
        .map(|current| json!({"cells": cells, "current": current}))
        .collect();
    assert_eq!(seen, expected, "by processor 0, 1 and 2");
}
