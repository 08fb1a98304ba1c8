//! `evfs bench --env guest`: the same work inside and outside, leftovers of a killed benchmark, and
//! the errors where no guest can run.
//!
//! The kernels are those that `tests/guest/boot.sh` downloads, unpacked and not installed.

use serde_json::Value;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tests::{PATIENCE, Ran, Sandbox, installed, wait_until};

/// Serializes the tests, which run emulated machines.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Parts of a kernel package that a guest of the benchmark may need.
const PARTS: &[&str] = &[
    "./boot/vmlinuz-*",
    "*/modules.builtin",
    "*/kernel/drivers/block",
    "*/kernel/drivers/char",
    "*/kernel/drivers/virtio",
    "*/kernel/fs/9p",
    "*/kernel/fs/fscache",
    "*/kernel/fs/fuse",
    "*/kernel/fs/netfs",
    "*/kernel/net/9p",
];

/// Returns the kernel of a Debian package.
fn kernel(package: &str) -> PathBuf {
    let guests = tests::guest::cache();
    let mut fetch = tests::guest::boot();
    Ran::of(fetch.args(["--fetch", "--kernel", package])).ok();
    let unpacked = guests.join(package).join("unpacked");
    if !unpacked.exists() {
        let new = tempfile::tempdir_in(&guests).unwrap();
        let script = r#"dpkg-deb --fsys-tarfile "$1" | { shift; tar -x --wildcards -C "$@" 2> /dev/null || :; }"#;
        let mut unpack = Command::new("bash");
        unpack.args(["-eo", "pipefail", "-c", script, "unpack"]);
        unpack.arg(guests.join(package).join("kernel.deb"));
        Ran::of(unpack.arg(new.path()).args(PARTS)).ok();
        // Another test may have been faster.
        let _ = fs::rename(new.path(), &unpacked);
    }
    let mut images = fs::read_dir(unpacked.join("boot")).unwrap().flatten();
    images.next().expect("the package has a kernel").path()
}

/// Adds the options for guests to a command.
fn in_guest<'a>(args: &[&'a str], kernel: &'a Path) -> Vec<&'a str> {
    let mut all = args.to_vec();
    all.extend(["--quick", "--env", "guest", "--guest-accel", "tcg"]);
    all.extend(["--guest-memory", "512M", "--guest-kernel"]);
    all.push(kernel.to_str().unwrap());
    all
}

fn studies(s: &Sandbox, out: &str) -> Vec<Value> {
    let file = s.path(out).join("result.json");
    let result: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    result["studies"].as_array().unwrap().clone()
}

/// Returns the counts of a side's first run: names of figures, which include the result, and
/// amounts of work.
fn counts(study: &Value, side: usize) -> Vec<(String, f64)> {
    let phases = study["runs"][side][0]["sample"]["phases"].as_array();
    let cells = phases.unwrap().iter().flat_map(|phase| {
        let cells = phase["cells"].as_array().unwrap().iter();
        cells.map(|cell| {
            (
                cell["name"].as_str().unwrap().to_owned(),
                cell["amount"].as_f64().unwrap(),
            )
        })
    });
    cells.collect()
}

/// Counts QEMU processes that have `path` among their arguments.
fn machines_with(path: &Path) -> usize {
    let needle = path.as_os_str().as_bytes();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let ours = |line: &Vec<u8>| {
        line.starts_with(b"qemu-system") && line.windows(needle.len()).any(|part| part == needle)
    };
    lines.filter(ours).count()
}

/// Like [`wait_until`], with a longer limit for two emulated machines on a busy host.
fn wait_long(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn journal_runs(path: &Path) -> usize {
    let text = fs::read_to_string(path).unwrap_or_default();
    let runs = text.lines().filter(|line| line.starts_with("{\"run\""));
    runs.count()
}

#[test]
fn the_same_is_counted_in_a_guest_as_outside() {
    let _one = alone();
    let s = Sandbox::new();
    let kernel = kernel("linux-image-amd64");
    let inside = |args: &[&str]| s.run(&in_guest(args, &kernel)).ok();
    fs::create_dir(s.path("here")).unwrap();
    // A stack with files is created in the guest, on its disk; a directory is shared with it.
    let basic = [
        "bench",
        "run",
        "nfsbasic",
        "--runs",
        "1",
        "--target",
        "files-encrypted-256",
    ];
    let both = ["--size", "64M", "--env", "idle", "--out", "basic"];
    let told = inside(&[&basic[..], &both].concat()).stdout;
    for words in [
        "Linux 6.1.",
        "QEMU (tcg)",
        "EMULATED PROCESSORS",
        "environment idle / guest",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let small = ["number=20", "transactions=20"].map(|set| ["--set", set]);
    let mail = [
        "bench", "run", "mailmix", "packets", "--runs", "1", "--target", "here",
    ];
    let sets = ["--set", "exchanges=20", "--env", "idle", "--out", "mail"];
    // A guest has no tools to create another link.
    let link = ["--set", "link=loopback"];
    inside(&[&mail[..], &sets, &link, small.as_flattened()].concat());
    assert_eq!(fs::read_dir(s.path("here")).unwrap().count(), 0);
    for study in studies(&s, "basic").iter().chain(&studies(&s, "mail")) {
        let sides = study["sides"].as_array().unwrap();
        let names: Vec<&str> = sides.iter().map(|s| s["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["idle", "guest"]);
        let (outside, inside) = (counts(study, 0), counts(study, 1));
        assert!(outside.len() > 3, "{study}");
        for (a, b) in outside.iter().zip(&inside) {
            assert_eq!(a.0, b.0);
            // Measured seconds are not a count.
            if a.1.fract() == 0.0 {
                assert_eq!(a.1, b.1, "{}", a.0);
            }
        }
        assert_eq!(outside.len(), inside.len());
        assert!(study["runs"][0][0]["sample"]["outside"].is_null());
        let beneath = &study["runs"][1][0]["sample"]["outside"];
        assert!(beneath["cpu_ns"].as_u64().unwrap() > 0, "{beneath}");
    }
}

#[test]
fn a_killed_benchmark_leaves_no_guest_and_goes_on() {
    let _one = alone();
    let s = Sandbox::new();
    let kernel = kernel("linux-image-amd64");
    let disk = s.path("disk.img");
    let file = fs::File::create(&disk).unwrap();
    file.set_len(8 << 20).unwrap();
    let sides = [
        "bench",
        "compare",
        "clear",
        "encrypted-256",
        "--workload",
        "devmix",
        "--device",
    ];
    let small = [
        "--size",
        "8M",
        "--set",
        "requests=64",
        "--set",
        "blocks=4k",
        "--set",
        "depths=1",
    ];
    let rest = ["disk.img", "--force", "--runs", "1000", "--out", "out"];
    let args = in_guest(&[&sides[..], &rest, &small].concat(), &kernel);
    let journal = s.path("out/devmix.guest.jsonl");
    let start = || {
        let mut lab = s.evfs();
        lab.args(&args).stdout(Stdio::null()).stderr(Stdio::null());
        lab.spawn().unwrap()
    };
    let mut lab = start();
    wait_long("a few runs in two guests", || journal_runs(&journal) >= 4);
    assert_eq!(machines_with(&disk), 2, "one for each side, kept");
    lab.kill().unwrap();
    lab.wait().unwrap();
    wait_until("no guest is there", || machines_with(&disk) == 0);

    let kept = journal_runs(&journal);
    let mut lab = start();
    wait_long("more runs", || journal_runs(&journal) > kept + 2);
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&lab),
        rustix::process::Signal::INT,
    )
    .unwrap();
    assert_eq!(lab.wait().unwrap().code(), Some(130));
    assert_eq!(machines_with(&disk), 0, "all ended with the command");
    let study = &studies(&s, "out")[0];
    assert_eq!(study["sessions"].as_array().unwrap().len(), 2);
    let done = |side| {
        counts(study, side)
            .into_iter()
            .map(|(name, _)| name)
            .collect::<Vec<_>>()
    };
    assert_eq!(done(0), done(1));
    assert!(counts(study, 0).contains(&("requests".into(), 64.0)));
    for side in study["sides"].as_array().unwrap() {
        assert_eq!(side["surroundings"], "guest");
        assert_eq!(side["facts"]["guest"]["accelerator"], "tcg");
        assert_eq!(side["facts"]["guest"]["memory_mib"], 512);
    }
    // The guests' writes are on the host's disk; one of the sides has encrypted its data.
    assert!(fs::read(&disk).unwrap().iter().any(|byte| *byte != 0));
}

#[test]
fn a_newer_kernel_whose_modules_are_compressed_will_do() {
    let _one = alone();
    let s = Sandbox::new();
    let kernel = kernel("linux-image-6.12-amd64");
    let args = [
        "bench",
        "run",
        "packets",
        "micro",
        "--runs",
        "1",
        "--set",
        "exchanges=20",
        "--set",
        "millis=5",
    ];
    let told = s.run(&in_guest(&args, &kernel)).ok().stdout;
    assert!(told.contains("Linux 6.12."), "{told}");
}

#[test]
fn what_keeps_a_side_out_of_a_guest_is_said() {
    let s = Sandbox::new();
    fs::create_dir(s.path("here")).unwrap();
    let refused = |args: &[&str], words: &str| {
        let ran = s.run(args).code(2);
        assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
    };
    let side = "name = 'x'\nfolder = 'here'\nenvironment = 'guest'\n";
    for (line, words) in [
        ("before = 'true'\n", "a command before each run"),
        ("daemons = [1]\n", "daemons"),
    ] {
        fs::write(s.path("x.toml"), format!("{side}{line}")).unwrap();
        refused(&["bench", "run", "nfsbasic", "--target", "x.toml"], words);
    }
    let packets = [
        "bench",
        "run",
        "packets",
        "--env",
        "guest",
        "--guest-kernel",
    ];
    refused(&[&packets[..], &["nowhere"]].concat(), "linux-image-amd64");
    fs::write(s.path("vmlinuz-1"), "no kernel").unwrap();
    refused(&[&packets[..], &["vmlinuz-1"]].concat(), "has no modules");
    fs::create_dir(s.path("modules")).unwrap();
    refused(
        &[&packets[..], &["vmlinuz-1"]].concat(),
        "no module virtio_pci",
    );
    refused(&["bench", "agent"], "--env guest");

    // Everything is available except QEMU.
    let builtin =
        ["virtio_pci", "virtio_console", "fuse"].map(|name| format!("kernel/{name}.ko\n"));
    fs::write(s.path("modules/modules.builtin"), builtin.concat()).unwrap();
    fs::create_dir(s.path("few")).unwrap();
    for name in ["cat", "ldd", "bash"] {
        std::os::unix::fs::symlink(installed(name), s.path("few").join(name)).unwrap();
    }
    let mut few = s.evfs();
    few.env("PATH", s.path("few"))
        .args(packets)
        .arg("vmlinuz-1");
    let ran = Ran::patiently(&mut few, Duration::from_secs(60)).code(2);
    assert!(ran.stderr.contains("qemu-system-x86"), "{}", ran.stderr);

    // A file that is not a kernel does not boot; the message includes the last output of QEMU.
    let tcg = ["vmlinuz-1", "--guest-accel", "tcg"];
    let ran = s.run(&[&packets[..], &tcg].concat()).code(1);
    assert!(ran.stderr.contains("the guest"), "{}", ran.stderr);
}
