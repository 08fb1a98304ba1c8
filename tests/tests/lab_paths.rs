//! `evfs bench` on sides that have paths: two paths double the rate, reads return the data written,
//! and nothing is left behind.

use serde_json::Value;
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tests::Sandbox;
use tests::targets::{IQN, Tgtd, WWID, image};

/// Many small reads at once, for which the path limit is the bottleneck.
const LOAD: &[&str] = &[
    "--quick",
    "--size",
    "16M",
    "--set",
    "patterns=rand-read",
    "--set",
    "blocks=4k",
    "--set",
    "depths=32",
    "--set",
    "threads=4",
];

fn with<'a>(first: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    first.iter().chain(LOAD).chain(more).copied().collect()
}

/// Returns the first phase of each counted run of a side.
fn phases(study: &Value, side: usize) -> Vec<&Value> {
    let runs = study["runs"][side].as_array().unwrap();
    let counted = runs.iter().filter(|run| run["warm_up"] == false);
    counted.map(|run| &run["sample"]["phases"][0]).collect()
}

fn iops(phase: &Value) -> f64 {
    let cell = &phase["cells"][0];
    cell["amount"].as_f64().unwrap() / cell["spent"].as_f64().unwrap()
}

#[test]
fn two_paths_give_twice_as_much_in_equal_parts() {
    let s = Sandbox::new();
    let compare = ["bench", "compare", "paths-1", "paths-2-round-robin"];
    let more = [
        "--workload",
        "devmix",
        "--set",
        "requests=3000",
        "--runs",
        "6",
    ];
    let value = s.json(&with(&compare, &more));
    let study = &value["studies"][0];
    let (one, two) = (phases(study, 0), phases(study, 1));
    let mut ratios: Vec<f64> = one
        .iter()
        .zip(&two)
        .map(|(a, b)| iops(b) / iops(a))
        .collect();
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    assert!((1.8..2.2).contains(&median), "{ratios:?}");
    for phase in two {
        let paths = phase["paths"].as_array().unwrap();
        let bytes: Vec<u64> = paths.iter().map(|p| p["bytes"].as_u64().unwrap()).collect();
        assert_eq!(bytes.len(), 2);
        let all: u64 = bytes.iter().sum();
        assert!(all.abs_diff(3000 * 4096) <= 30 * 4096, "{bytes:?}");
        assert!(bytes[0].abs_diff(bytes[1]) <= 30 * 4096, "{bytes:?}");
    }
    let text = s.run(&with(
        &compare,
        &[
            "--workload",
            "devmix",
            "--set",
            "requests=500",
            "--runs",
            "1",
        ],
    ));
    let text = text.ok().stdout;
    assert!(
        text.contains("Paths of paths-2-round-robin: c0t0d0 "),
        "{text}"
    );
    assert!(
        text.contains("round_robin") && text.contains("10.0 MiB/s"),
        "{text}"
    );
}

#[test]
fn what_is_read_over_encrypted_paths_is_what_was_written() {
    let s = Sandbox::new();
    fs::write(
        s.path("side.toml"),
        "name = \"two\"\npaths = 2\npolicy = \"round_robin\"\npath_rate = [\"40M\", \"20M\"]\npath_delay = \"1ms\"\nencrypt = 256\n",
    )
    .unwrap();
    let verified = [
        "--set",
        "verify=true",
        "--set",
        "requests=500",
        "--runs",
        "1",
    ];
    for side in ["side.toml", "paths-2,path_rate=0,encrypt=128"] {
        let value = s.json(&with(
            &["bench", "run", "devmix", "--target", side],
            &verified,
        ));
        let study = &value["studies"][0];
        let facts = &study["sides"][0]["facts"];
        assert!(facts["cipher"].as_str().unwrap().contains("xts"), "{facts}");
        assert!(
            facts["note"].as_str().unwrap().contains("2 paths"),
            "{facts}"
        );
        assert!(!phases(study, 0).is_empty());
    }
    for (side, word) in [
        ("paths-2-fastest", "round_robin"),
        ("paths-2,path_rate=quick", "path_rate"),
        ("clear,path_rate=1M", "needs a side with paths"),
        ("paths-2,encrypt=192", "128 or 256"),
    ] {
        let refused = s
            .run(&with(&["bench", "run", "devmix", "--target", side], &[]))
            .code(2);
        assert!(refused.stderr.contains(word), "{}", refused.stderr);
    }
}

#[test]
fn a_killed_benchmark_leaves_no_socket_and_no_file() {
    let s = Sandbox::new();
    fs::create_dir(s.path("tmp")).unwrap();
    let args = [
        "bench",
        "compare",
        "paths-1",
        "paths-2",
        "--workload",
        "devmix",
        "--out",
        "out",
    ];
    let mut command = s.evfs();
    command
        .args(with(&args, &["--runs", "100"]))
        .env("TMPDIR", s.path("tmp"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // It is measuring once the first run is in the journal.
    let until = Instant::now() + Duration::from_secs(60);
    let journal = s.path("out/devmix.jsonl");
    while fs::read_to_string(&journal).map_or(0, |text| text.lines().count()) < 2 {
        assert!(Instant::now() < until, "no run ends");
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let left: Vec<_> = fs::read_dir(s.path("tmp")).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

mod needs_peer {
    use super::*;

    #[test]
    fn encryption_is_priced_on_a_lun_of_an_iscsi_target_whose_paths_are_counted() {
        let s = Sandbox::new();
        let disk = image(&s, "disk", 64 << 20);
        let tgtd = Tgtd::start(&disk, Some(&format!("scsi_id={WWID}")));
        let uri = |port| format!("iscsi://127.0.0.1:{port}/{IQN}/1");
        let lun = tgtd.ports.map(uri).join("+");
        let work = [
            "--quick",
            "--size",
            "16M",
            "--set",
            "patterns=rand-write,rand-read",
            "--set",
            "blocks=4k",
            "--set",
            "requests=400",
            "--runs",
            "2",
            "--workload",
            "devmix",
            "--no-control",
        ];
        let on_it = [
            "bench",
            "compare",
            "clear",
            "encrypted-256",
            "--device",
            &lun,
        ];
        let all: Vec<&str> = on_it.iter().chain(&work).copied().collect();
        let value = s.json(&all);
        let study = &value["studies"][0];
        for (side, runs) in study["sides"].as_array().unwrap().iter().zip(0..) {
            let note = side["facts"]["note"].as_str().unwrap_or_default();
            assert!(note.contains("disk1, paths: 2, "), "{side}");
            for phase in phases(study, runs) {
                let paths = phase["paths"].as_array().unwrap();
                let bytes: u64 = paths.iter().map(|p| p["bytes"].as_u64().unwrap()).sum();
                assert_eq!((paths.len(), bytes), (2, 400 * 4096), "{phase}");
            }
        }
        // The LUN can also be given by its name, and for a side alone.
        let alone = [
            "bench",
            "run",
            "devmix",
            "--force",
            "--target",
            "device:disk1",
        ];
        let alone: Vec<&str> = alone.iter().chain(&work[..9]).copied().collect();
        s.run(&alone).ok();
        // A guest cannot reach the LUN.
        let guest = [&all[..], &["--env", "guest", "--force"]].concat();
        let refused = s.run(&guest).code(2);
        assert!(
            refused.stderr.contains("which a guest cannot reach"),
            "{}",
            refused.stderr
        );
    }
}
