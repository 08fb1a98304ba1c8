//! `evfs plan`, and `evfs bench` on stacks that have files: their measurements, their cleanup, and
//! their error messages.

use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use tests::mounts::{Disk, On};
use tests::{Ran, Random, Sandbox, needs_root, wait_until};

/// Returns bytes that neither a cipher nor zeros would produce.
fn noise(len: usize) -> Vec<u8> {
    Random::new(1).bytes(len)
}

/// Lists the mount points under a directory.
fn mounts_below(folder: &Path) -> Vec<String> {
    let below = format!("{}/", folder.to_str().unwrap());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    points
        .filter(|point| point.starts_with(&below))
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_plan_prices_both_ciphers_and_changes_no_byte() {
    let s = Sandbox::new();
    let before = noise(32 << 20);
    fs::write(s.path("disk.img"), &before).unwrap();
    let written = fs::metadata(s.path("disk.img"))
        .unwrap()
        .modified()
        .unwrap();
    fs::create_dir(s.path("scratch")).unwrap();
    for (kind, scratch) in [("mail", false), ("media", true)] {
        let mut args = vec!["plan", "disk.img", "--workload", kind, "--seconds", "0.02"];
        if scratch {
            args.extend(["--scratch", "scratch"]);
        }
        let plan = s.json(&args);
        let prices = plan["prices"].as_array().unwrap();
        let sides: Vec<&str> = prices.iter().map(|p| p["side"].as_str().unwrap()).collect();
        assert_eq!(sides, ["encrypted-128", "encrypted-256"]);
        for price in prices {
            for half in ["reads", "writes"] {
                assert!(
                    price[half]["clear_mib_s"].as_f64().unwrap() > 0.0,
                    "{price}"
                );
                assert!(price[half]["clear_cpu_s_gib"].as_f64().unwrap() > 0.0);
            }
            // In memory only the copy and the cipher take time, so encryption has a cost.
            if !scratch {
                assert!(
                    price["writes"]["cpu_more_s_gib"].as_f64().unwrap() > 0.0,
                    "{price}"
                );
            }
        }
    }
    let text = s.run(&["plan", "disk.img", "--seconds", "0.02"]).ok();
    for word in [
        "only read",
        "CPU seconds",
        "encrypted-256 instead of encrypted-128",
    ] {
        assert!(text.stdout.contains(word), "{word}: {}", text.stdout);
    }
    let verdict = text.stdout.lines().next().unwrap_or_default();
    assert!(
        verdict.starts_with("Encrypting disk.img with 256 bits ") && verdict.ends_with('.'),
        "{verdict}"
    );
    assert_eq!(fs::read(s.path("disk.img")).unwrap(), before);
    assert_eq!(
        fs::metadata(s.path("disk.img"))
            .unwrap()
            .modified()
            .unwrap(),
        written
    );
    assert_eq!(fs::read_dir(s.path("scratch")).unwrap().count(), 0);

    let unknown = s.run(&["plan", "disk.img", "--workload", "games"]).code(2);
    assert!(unknown.stderr.contains("database"), "{}", unknown.stderr);
    s.run(&["plan", "nowhere.img"]).code(10);
}

#[test]
fn a_rival_that_is_not_installed_is_named() {
    let s = Sandbox::new();
    fs::create_dir(s.path("here")).unwrap();
    let rival = "\
name = 'rival'
folder = 'here'
before = 'exec evfs-no-such-rival here'
";
    fs::write(s.path("rival.toml"), rival).unwrap();
    let args = [
        "bench",
        "compare",
        "here",
        "rival.toml",
        "--workload",
        "nfsbasic",
        "--quick",
        "--runs",
        "2",
    ];
    let ran = s.run(&args).code(1);
    assert!(ran.stderr.contains("evfs-no-such-rival"), "{}", ran.stderr);
    let missing = ["bench", "compare", "here", "gone", "--workload", "nfsbasic"];
    let ran = s.run(&missing).code(2);
    assert!(ran.stderr.contains("unknown side `gone`"), "{}", ran.stderr);
}

#[test]
fn results_that_cannot_be_compared_are_told_from_those_that_became_worse() {
    let s = Sandbox::new();
    let measured = |out: &str, millis: &str| {
        let millis = format!("millis={millis}");
        let args = [
            "bench",
            "run",
            "dhrystone",
            "--quick",
            "--runs",
            "2",
            "--set",
            &millis,
            "--out",
            out,
        ];
        s.run(&args).ok();
    };
    measured("old", "5");
    measured("other", "6");
    s.run(&["bench", "diff", "old", "old"]).ok();
    let other = s.run(&["bench", "diff", "old", "other"]).code(2);
    assert!(
        other.stderr.contains("parameters or repetitions differ"),
        "{}",
        other.stderr
    );
    s.run(&[
        "bench",
        "run",
        "packets",
        "--quick",
        "--runs",
        "2",
        "--set",
        "exchanges=10",
        "--out",
        "packets",
    ])
    .ok();
    let none = s.run(&["bench", "diff", "old", "packets"]).code(2);
    assert!(none.stderr.contains("in common"), "{}", none.stderr);
    s.run(&["bench", "diff", "old", "nowhere"]).code(10);
}

mod needs_root {
    use super::*;

    #[test]
    fn file_systems_over_stacks_are_compared_layer_by_layer_and_leave_nothing() {
        needs_root("mounting in the process that measures");
        let s = Sandbox::new();
        for name in ["below", "tmp"] {
            fs::create_dir(s.path(name)).unwrap();
        }
        let run = |args: &[&str]| Ran::of(s.evfs().args(args).env("TMPDIR", s.path("tmp"))).ok();
        let args = [
            "bench",
            "compare",
            "fs-clear",
            "fs-encrypted-256",
            "--workload",
            "seqrand",
            "--device",
            "below",
            "--size",
            "1G",
            "--quick",
            "--runs",
            "2",
            "--set",
            "threads=2",
            "--set",
            "file=2M",
            "--set",
            "with_sync=true",
            "--layers",
            "--out",
            "out",
        ];
        let ran = run(&args);
        assert!(ran.stdout.contains("CPU by layer"), "{}", ran.stdout);
        let result: Value =
            serde_json::from_slice(&fs::read(s.path("out/result.json")).unwrap()).unwrap();
        let layers = |side: usize, name: &str| -> u64 {
            let runs = result["studies"][0]["runs"][side].as_array().unwrap();
            let phases = runs
                .iter()
                .flat_map(|run| run["sample"]["phases"].as_array().unwrap());
            phases
                .map(|phase| phase["layers"][name].as_u64().unwrap())
                .sum()
        };
        // Background work of the encrypted side is visible in the runs of the other one, and small.
        let (clear, encrypted) = (layers(0, "crypt"), layers(1, "crypt"));
        assert!(
            encrypted > 0 && 10 * clear < encrypted,
            "{clear} {encrypted}"
        );
        for side in [0, 1] {
            for name in ["protocol", "fs", "cache", "path"] {
                assert!(layers(side, name) > 0, "{name} of side {side}");
            }
        }
        let page = fs::read_to_string(s.path("out/report.html")).unwrap();
        assert!(page.contains("CPU by layer"));
        assert!(s.path("out/figures/seqrand-layers.svg").exists());

        let mounting = [
            "bench",
            "run",
            "mounts",
            "--target",
            "fs-encrypted-128",
            "--device",
            "below",
        ];
        let more = [
            "--size", "1G", "--quick", "--set", "times=3", "--set", "files=5",
        ];
        let ran = run(&[&mounting[..], &more[..]].concat());
        assert!(ran.stdout.contains("unmount, p95"), "{}", ran.stdout);
        for name in ["below", "tmp"] {
            assert_eq!(fs::read_dir(s.path(name)).unwrap().count(), 0, "{name}");
        }
        assert_eq!(mounts_below(&s.path("tmp")), Vec::<String>::new());
    }

    #[test]
    fn what_a_killed_benchmark_leaves_mounted_ends_with_it_or_with_the_next_one() {
        needs_root("mounting in the process that measures");
        let s = Sandbox::new();
        for name in ["below", "tmp", "other"] {
            fs::create_dir(s.path(name)).unwrap();
        }
        let args = [
            "bench",
            "compare",
            "fs-clear",
            "loop-ext4",
            "--workload",
            "seqrand",
            "--device",
            "below",
            "--size",
            "256M",
            "--quick",
            "--set",
            "threads=20",
            "--set",
            "file=256k",
            "--set",
            "record=4k",
        ];
        let of_kind = |kind: &str| {
            let all = mounts_below(&s.path("tmp"));
            all.iter().filter(|point| point.contains(kind)).count()
        };
        for with_its_guard in [false, true] {
            let out = format!("out-{with_its_guard}");
            let mut command = s.evfs();
            command
                .args([&args[..], &["--runs", "100", "--out", &out]].concat())
                .env("TMPDIR", s.path("tmp"))
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let mut child = command.spawn().unwrap();
            let journal = s.path(&out).join("seqrand.jsonl");
            wait_until("a few runs", || {
                fs::read_to_string(&journal).is_ok_and(|text| text.lines().count() > 4)
            });
            // Its own mounts: that of the side and that of its control.
            wait_until("all is mounted", || mounts_below(&s.path("tmp")).len() == 3);
            let pid = child.id().to_string();
            if with_its_guard {
                let pattern = format!("bench guard {pid}$");
                tests::peer("pkill", &["-9", "-f", &pattern]);
            }
            child.kill().unwrap();
            if !with_its_guard {
                // Threads that wait for answers of threads that are dead keep the process from exiting.
                wait_until("the process is gone", || {
                    child.try_wait().unwrap().is_some()
                });
                wait_until("its mounts are gone", || {
                    of_kind(&format!("evfs-bench-{pid}-")) == 0
                });
            }
            // The file under the kernel's file system, which may just have been unmounted.
            assert_eq!(fs::read_dir(s.path("below")).unwrap().count(), 1);

            let next = [&args[..], &["--runs", "2"]].concat();
            Ran::of(s.evfs().args(next).env("TMPDIR", s.path("other"))).ok();
            wait_until("the process is gone", || {
                child.try_wait().unwrap().is_some()
            });
            for name in ["tmp", "other"] {
                assert_eq!(mounts_below(&s.path(name)), Vec::<String>::new());
                assert_eq!(fs::read_dir(s.path(name)).unwrap().count(), 0, "{name}");
            }
            assert_eq!(fs::read_dir(s.path("below")).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_full_file_system_ends_a_comparison_with_its_words_and_keeps_what_was_run() {
        needs_root("mounting in the process that measures");
        let s = Sandbox::new();
        for name in ["roomy", "narrow"] {
            fs::create_dir(s.path(name)).unwrap();
        }
        // A kernel file system with room for 4 MiB.
        let narrow = s.path("narrow");
        let mount = ["-t", "tmpfs", "-o", "size=4m", "evfs-bench-test"];
        let mounted = Command::new("mount")
            .args(mount)
            .arg(&narrow)
            .status()
            .unwrap();
        assert!(mounted.success());
        let args = [
            "bench",
            "compare",
            "roomy",
            "narrow",
            "--workload",
            "seqrand",
            "--quick",
            "--runs",
            "2",
            "--set",
            "threads=1",
            "--set",
            "file=8M",
            "--out",
            "out",
        ];
        let ran = s.run(&args);
        let unmounted = Command::new("umount").arg(&narrow).status().unwrap();
        assert!(unmounted.success());
        let ran = ran.code(1);
        assert!(ran.stderr.contains("No space left"), "{}", ran.stderr);
        assert!(ran.stderr.contains("free space there"), "{}", ran.stderr);
        let again = s.run(&["bench", "report", "out"]).ok();
        assert!(
            again.stdout.contains("INCOMPLETE, a run failed"),
            "{}",
            again.stdout
        );
        assert!(again.stdout.contains("No space left"), "{}", again.stdout);
    }
}

mod needs_peer {
    use super::*;

    #[test]
    fn a_target_that_fails_in_the_middle_is_said_and_what_was_run_stays() {
        let s = Sandbox::new();
        fs::create_dir(s.path("sound")).unwrap();
        let disk = Disk::new(&s, On::Clear, "64M");
        let mounted = disk.mount(&[]);
        let frail = mounted.dir().to_str().unwrap();
        let args = ["bench", "compare", "sound", frail, "--workload", "mailmix"];
        let more = ["--quick", "--runs", "1000", "--out", "out"];
        let mut child = s
            .evfs()
            .args(args)
            .args(more)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let journal = s.path("out/mailmix.jsonl");
        let lines = || fs::read_to_string(&journal).map_or(0, |text| text.lines().count());
        wait_until("a few runs", || lines() >= 8);
        // The server behind the mount dies.
        let pid = mounted.pid().to_string();
        let killed = Command::new("kill").args(["-9", &pid]).status().unwrap();
        assert!(killed.success());
        assert_eq!(child.wait().unwrap().code(), Some(1));
        let mut said = String::new();
        child.stderr.unwrap().read_to_string(&mut said).unwrap();
        // The call during which it died fails with another error than later ones.
        let ways = ["not connected", "connection abort"];
        assert!(
            said.contains(frail) && ways.iter().any(|way| said.contains(way)),
            "{said}"
        );
        drop(mounted);
        let kept = s.run(&["bench", "report", "out"]).ok().stdout;
        assert!(kept.contains("INCOMPLETE, a run failed"), "{kept}");
        assert!(kept.contains("transactions"), "{kept}");
    }
}
