//! LUNs from outside: encrypted volumes over several paths to real servers, whose paths are killed,
//! silenced and restored under load; and the commands that show and change them.

use pathsim::Pathsim;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;
use tests::targets::{IQN, Tgtd, WWID, free_port, image, nbdkit, proxy, qemu_nbd};
use tests::{Killed, Ran, Sandbox, needs_root, peer, wait_until};

/// Size of an image, in bytes.
const SIZE: u64 = 320 << 20;

/// A mounted file system, unmounted on drop.
struct Mounted(PathBuf);

impl Mounted {
    fn new(s: &Sandbox, device: &str) -> Mounted {
        let dir = s.path("mnt");
        let _ = std::fs::create_dir(&dir);
        peer("mount", &[Path::new(device), &dir]);
        Mounted(dir)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Returns a command for a load of a few seconds that verifies its writes.
fn fio(folder: &Path) -> Command {
    let mut fio = Command::new("fio");
    fio.args(["--name=load", "--rw=randrw", "--bs=4k", "--size=48M"])
        .args(["--iodepth=8", "--ioengine=libaio", "--direct=1"])
        .args([
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_backlog=512",
        ])
        .args(["--time_based", "--runtime=4", "--aux-path=/tmp"])
        .arg(format!("--directory={}", folder.display()));
    fio
}

/// Creates a volume on `device`, attaches it as a loop device, creates a file system on it, and
/// changes files there, with checksums, while `faults` runs. Then attaches it again and verifies
/// everything.
fn volume_under_faults(s: &Sandbox, device: &str, faults: impl FnOnce(&Sandbox)) {
    s.key("owner");
    for value in ["flap_penalty_secs=1", "quiesce_secs=1"] {
        s.run(&["lun", "save", "disk1", value, "--scope", "global"])
            .ok();
    }
    s.run(&["volume", "create", device, "--owner", "owner"])
        .ok();
    let attached = s.attach(&["disk1", "--loop", "--direct"]);
    let at = attached["exports"].as_array().unwrap().iter();
    let at = at.clone().find(|e| e["kind"] == "loop").unwrap()["at"]
        .as_str()
        .unwrap();
    peer("mkfs.ext4", &["-q", at]);
    let mounted = Mounted::new(s, at);
    let tree = Command::new("cp")
        .args(["-a", "/usr/include"])
        .arg(&mounted.0)
        .status();
    assert!(tree.unwrap().success());
    // Runs one load after the other until the faults are over.
    let over = Arc::new(AtomicBool::new(false));
    let (stop, folder) = (Arc::clone(&over), mounted.0.clone());
    let load = std::thread::spawn(move || {
        while !stop.load(Relaxed) {
            let ran = Ran::of(&mut fio(&folder));
            assert!(ran.status.success(), "{}{}", ran.stdout, ran.stderr);
        }
    });
    faults(s);
    over.store(true, Relaxed);
    load.join().unwrap();
    drop(mounted);
    s.detach("disk1");
    // A separate attach.
    let attached = s.attach(&["disk1", "--loop"]);
    let at = attached["exports"].as_array().unwrap().iter();
    let at = at.clone().find(|e| e["kind"] == "loop").unwrap()["at"]
        .as_str()
        .unwrap();
    peer("e2fsck", &["-fn", at]);
    let mounted = Mounted::new(s, at);
    let copy = mounted.0.join("include");
    let flags = Path::new("--recursive");
    let links = Path::new("--no-dereference");
    peer("diff", &[flags, links, Path::new("/usr/include"), &copy]);
    drop(mounted);
    s.detach("disk1");
}

/// Returns the state of each path in `lun show`.
fn states(s: &Sandbox) -> Vec<String> {
    let lun = s.json(&["lun", "show", "disk1"]);
    let paths = lun["paths"].as_array().unwrap().iter();
    paths
        .map(|p| p["state"].as_str().unwrap().to_owned())
        .collect()
}

/// Returns the reason why a path carries no I/O.
fn why(s: &Sandbox, path: usize) -> String {
    let lun = s.json(&["lun", "show", "disk1"]);
    lun["paths"][path]["why"].as_str().unwrap_or("").to_owned()
}

fn becomes(s: &Sandbox, path: usize, wanted: &[&str]) {
    wait_until(&format!("path {path} is one of {wanted:?}"), || {
        wanted.contains(&states(s)[path].as_str())
    });
}

/// Silences, cuts and restores each path in turn.
fn each_in_turn(s: &Sandbox, sims: &[Pathsim; 2]) {
    for round in 0..2 {
        for (index, sim) in sims.iter().enumerate() {
            sim.run("hole").unwrap();
            becomes(s, index, &["suspect", "failed"]);
            sim.run("pass").unwrap();
            becomes(s, index, &["active"]);
            sim.run("refuse").unwrap();
            sim.run("rst").unwrap();
            becomes(s, index, &["failed", "recovering"]);
            if round == 1 {
                wait_until("it was tried again", || why(s, index).contains("refused"));
            }
            sim.run("pass").unwrap();
            becomes(s, index, &["active"]);
        }
    }
}

#[test]
fn a_volume_on_two_portals_of_tgtd_loses_paths_and_nothing_else() {
    needs_root("an encrypted volume on iSCSI with a loop device");
    let s = Sandbox::new();
    let disk = image(&s, "disk", SIZE);
    let tgtd = Tgtd::start(&disk, None);
    let [(a, a_port), (b, b_port)] = tgtd.ports.map(proxy);
    let uri = |port| format!("iscsi://127.0.0.1:{port}/{IQN}/1");
    let device = format!("{}+{}", uri(a_port), uri(b_port));
    let sims = [a, b];
    volume_under_faults(&s, &device, |s| each_in_turn(s, &sims));
}

#[test]
fn a_volume_on_two_nbd_servers_survives_their_deaths() {
    needs_root("an encrypted volume on NBD servers with a loop device");
    let s = Sandbox::new();
    let disk = image(&s, "disk", SIZE);
    let ports = [free_port(), free_port()];
    let start = |index: usize| match index {
        0 => qemu_nbd(&disk, ports[0]),
        _ => nbdkit(&disk, ports[1]),
    };
    let mut servers: Vec<Option<Killed>> = vec![Some(start(0)), Some(start(1))];
    let uri = |port| format!("nbd://127.0.0.1:{port}/e");
    let device = format!("{}+{}", uri(ports[0]), uri(ports[1]));
    volume_under_faults(&s, &device, |s| {
        for index in [0, 1, 0, 1] {
            servers[index] = None;
            becomes(s, index, &["failed", "recovering"]);
            servers[index] = Some(start(index));
            becomes(s, index, &["active"]);
            let pid = servers[index].as_ref().unwrap().0.id().to_string();
            peer("kill", &["-s", "STOP", &pid]);
            becomes(s, index, &["suspect", "failed"]);
            peer("kill", &["-s", "CONT", &pid]);
            becomes(s, index, &["active"]);
        }
    });
}

#[test]
fn all_paths_may_be_gone_for_longer_than_an_attempt_may_take() {
    needs_root("an encrypted volume without any path for a while");
    let s = Sandbox::new();
    let disk = image(&s, "disk", SIZE);
    let port = free_port();
    let _server = qemu_nbd(&disk, port);
    let [(a, a_port), (b, b_port)] = [port, port].map(proxy);
    let uri = |port| format!("nbd://127.0.0.1:{port}/e");
    let device = format!("{}+{}", uri(a_port), uri(b_port));
    for value in ["path_fail_secs=1", "esd_secs=2"] {
        s.run(&["lun", "save", "disk1", value, "--scope", "global"])
            .ok();
    }
    volume_under_faults(&s, &device, |s| {
        for sim in [&a, &b] {
            sim.run("hole").unwrap();
        }
        becomes(s, 0, &["failed"]);
        becomes(s, 1, &["failed"]);
        let lun = s.json(&["lun", "show", "disk1"]);
        assert_eq!(lun["health"], "offline", "{lun}");
        // `status` shows it, too.
        let status = s.json(&["status"]);
        let state = &status["volumes"][0]["lun_state"];
        assert_eq!(state["health"], "offline", "{status}");
        let reason = state["paths"][0]["why"].as_str();
        assert!(reason.is_some_and(|why| !why.is_empty()), "{status}");
        let text = s.run(&["status"]).ok().stdout;
        assert!(text.contains("lun   disk1  offline"), "{text}");
        assert_eq!(status["volumes"][0]["health"]["state"], "failing");
        s.run(&["status", "--check"]).code(26);
        // Longer than the time limits of a silent connection and of an attempt, of I/O or to
        // connect.
        for path in 0..2 {
            wait_until("it was tried in vain", || {
                why(s, path).contains("did not answer in time")
            });
        }
        let longest = 1000 * (setting(s, "path_fail_secs") + setting(s, "esd_secs"));
        wait_until("I/O has waited for longer", || {
            let waits = s.json(&["lun", "waiting", "disk1"]);
            let mut waits = waits["waiting"].as_array().unwrap().iter();
            waits.any(|io| io["age_ms"].as_u64().unwrap() > longest)
        });
        for sim in [&a, &b] {
            sim.run("pass").unwrap();
        }
        becomes(s, 0, &["active"]);
        becomes(s, 1, &["active"]);
    });
}

/// Returns the current value of an attribute.
fn setting(s: &Sandbox, name: &str) -> u64 {
    let got = s.json(&["lun", "get", "disk1", name]);
    let value = got["attributes"][0]["current"].as_str().unwrap();
    value.parse().unwrap()
}

/// Attaches a volume over two proxies as `disk1`, with data that was written and not flushed.
fn unflushed(s: &Sandbox) -> (Killed, [Pathsim; 2]) {
    let disk = image(s, "disk", 64 << 20);
    let port = free_port();
    let server = nbdkit(&disk, port);
    let [(a, a_port), (b, b_port)] = [port, port].map(proxy);
    let uri = |port| format!("nbd://127.0.0.1:{port}/e");
    let device = format!("{}+{}", uri(a_port), uri(b_port));
    s.key("owner");
    s.run(&["volume", "create", &device, "--owner", "owner"])
        .ok();
    let attached = s.attach(&["disk1", "--nbd-unix", "x.sock"]);
    let nbd = attached["exports"][0]["at"].as_str().unwrap();
    // It aborts without a flush.
    let write = ["-f", "raw", "-c", "write -P 7 0 4M", "-c", "abort", nbd];
    let wrote = Ran::of(Command::new("qemu-io").args(write));
    assert_eq!(wrote.status.signal(), Some(libc::SIGABRT), "{wrote:?}");
    (server, [a, b])
}

/// Detaches `disk1` by force, and returns the output of `status` until the detach ended.
fn forced(s: &Sandbox) -> Vec<serde_json::Value> {
    let mut detach = s.evfs();
    detach.args(["detach", "disk1", "--force"]);
    detach.stdout(Stdio::null()).stderr(Stdio::null());
    let mut detach = Killed(detach.spawn().unwrap());
    let mut shown = Vec::new();
    wait_until("it is detached", || {
        let status = s.json(&["status"]);
        shown.extend(status["volumes"].as_array().unwrap().iter().cloned());
        detach.0.try_wait().unwrap().is_some()
    });
    let code = detach.0.wait().unwrap().code();
    assert_eq!(code, Some(30), "data are lost, and it says so");
    shown
}

#[test]
fn a_volume_whose_paths_are_all_cut_is_detached_by_force() {
    let s = Sandbox::new();
    let (_server, sims) = unflushed(&s);
    for sim in &sims {
        sim.run("refuse").unwrap();
        sim.run("rst").unwrap();
    }
    forced(&s);
}

#[test]
fn a_volume_whose_paths_are_silent_shows_them_while_it_is_detached() {
    let s = Sandbox::new();
    let (_server, sims) = unflushed(&s);
    for sim in &sims {
        sim.run("hole").unwrap();
    }
    let shown = forced(&s);
    let ending: Vec<_> = shown
        .iter()
        .filter(|volume| volume["state"] == "detaching")
        .collect();
    assert!(!ending.is_empty(), "{shown:?}");
    for volume in ending {
        assert_eq!(
            volume["lun_state"]["paths"].as_array().map(Vec::len),
            Some(2),
            "{volume}"
        );
    }
}

#[test]
fn two_targets_that_call_themselves_the_same_are_not_merged() {
    let s = Sandbox::new();
    let (one, other) = (image(&s, "one", SIZE), image(&s, "other", SIZE));
    let (a, b) = (Tgtd::start(&one, None), Tgtd::start(&other, None));
    let uri = |tgtd: &Tgtd, n: usize| format!("iscsi://127.0.0.1:{}/{IQN}/1", tgtd.ports[n]);
    s.key("owner");
    // A scan assigns different names: the ID that both report proves nothing.
    let found = s.json(&["lun", "scan", &uri(&a, 0), &uri(&b, 0)]);
    let names: Vec<_> = found["found"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| &f["lun"])
        .collect();
    assert_eq!(names, ["disk1", "disk2"], "{found}");
    assert_eq!(
        found["found"][0]["wwid"], found["found"][1]["wwid"],
        "{found}"
    );
    // When forced together they are tried, and refused: none of our data reaches the other disk.
    let paths = format!("{}+{}+{}", uri(&a, 1), uri(&b, 1), uri(&a, 0));
    s.run(&["volume", "create", &uri(&a, 0), "--owner", "owner"])
        .ok();
    s.run(&["path", "add", "disk1", &uri(&a, 1)]).ok();
    s.run(&["path", "add", "disk1", &uri(&b, 1)]).ok();
    let attached = s.attach(&["disk1", "--nbd-unix", "x.sock"]);
    let nbd = attached["exports"][0]["at"].as_str().unwrap();
    assert_eq!(states(&s), ["active", "active", "auth_failed"], "{paths}");
    peer(
        "qemu-io",
        &["-f", "raw", "-c", "write -P 7 0 32M", "-c", "flush", nbd],
    );
    peer(
        "qemu-io",
        &["-f", "raw", "-r", "-c", "read -P 7 0 32M", nbd],
    );
    let shown = s.json(&["lun", "show", "disk1"]);
    let writes = |n: usize| shown["paths"][n]["writes"].as_u64().unwrap();
    assert!(writes(0) > 0 && writes(1) > 0, "{shown}");
    assert_eq!(writes(2) + shown["paths"][2]["reads"].as_u64().unwrap(), 0);
    s.detach("disk1");
    let untouched = std::fs::read(&other).unwrap();
    assert!(
        untouched.iter().all(|b| *b == 0),
        "the other disk is as it was"
    );
}

#[test]
fn names_attributes_and_paths_outlive_the_process() {
    let s = Sandbox::new();
    let disk = image(&s, "disk", 64 << 20);
    let ports = [free_port(), free_port(), free_port()];
    let _servers: Vec<_> = ports.iter().map(|p| qemu_nbd(&disk, *p)).collect();
    let uri = |n: usize| format!("nbd://127.0.0.1:{}/e", ports[n]);
    let scan = s.json(&["lun", "scan", &uri(0), &uri(1), "nbd://127.0.0.1:1/none"]);
    assert_eq!(scan["found"][0]["lun"], "disk1");
    assert_eq!(scan["found"][1]["lun"], "disk1");
    assert!(
        scan["found"][2]["error"]
            .as_str()
            .unwrap()
            .contains("cannot connect")
    );
    let list = s.json(&["lun", "list"]);
    assert_eq!(list["luns"][0]["wwid"], WWID);
    let map = s.run(&["lun", "list", "--map"]).ok().stdout;
    assert!(map.contains("c0t0d1") && map.contains(&uri(1)), "{map}");

    s.run(&["lun", "save", "disk1", "max_q_depth=5"]).ok();
    s.run(&["lun", "save", "disk1", "max_q_depth=7", "--scope", "global"])
        .ok();
    s.run(&[
        "lun",
        "save",
        "disk1",
        "load_bal_policy=round_robin",
        "--scope",
        "transport:nbd",
    ])
    .ok();
    s.run(&["lun", "set", "disk1", "max_q_depth=9"]).code(10);
    s.run(&["lun", "save", "disk1", "max_q_depth=none"]).code(2);
    s.run(&["lun", "save", "disk1", "colour=red"]).code(2);
    s.run(&["lun", "save", "disk1", "max_q_depth=7", "--scope", "moon"])
        .code(2);
    s.run(&["lun", "get", "disk1", "colour"]).code(10);
    s.run(&["lun", "show", "disk9"]).code(10);
    s.run(&["attach", "disk9"]).code(10);

    s.key("owner");
    s.run(&["volume", "create", "disk1", "--owner", "owner"])
        .ok();
    s.run(&["volume", "create", "disk1", "--owner", "owner"])
        .code(2);
    s.run(&["volume", "info", "disk1"]).ok();
    s.run(&["volume", "check", &uri(0)]).ok();
    let attached = s.attach(&["disk1"]);
    assert_eq!(attached["lun"], "disk1");
    s.run(&["attach", "c1t0d1", "--name", "again"]).code(11);
    let value = |name: &str| {
        let got = s.json(&["lun", "get", "disk1", name]);
        let row = &got["attributes"][0];
        [&row["current"], &row["saved"], &row["origin"]].map(|v| v.as_str().unwrap().to_owned())
    };
    assert_eq!(value("max_q_depth"), ["5", "5", "lun"]);
    assert_eq!(
        value("load_bal_policy"),
        ["round_robin", "round_robin", "transport:nbd"]
    );
    s.run(&["lun", "set", "disk1", "max_q_depth=9"]).ok();
    assert_eq!(value("max_q_depth"), ["9", "5", "lun"]);
    s.run(&["path", "add", "disk1", &uri(2)]).ok();
    becomes(&s, 2, &["active"]);
    s.run(&["path", "disable", "disk1", "c0t0d1"]).ok();
    becomes(&s, 0, &["disabled"]);
    s.run(&["path", "remove", "disk1", &uri(1)]).ok();
    s.run(&["path", "disable", "disk1", &uri(2)]).code(11);
    s.run(&["path", "remove", "disk1", &uri(1)]).code(10);
    for command in ["show", "stats", "list"] {
        let text = s
            .run(&["lun", command, "disk1"][..if command == "list" { 2 } else { 3 }])
            .ok()
            .stdout;
        for line in text.lines().filter(|l| !l.contains("nbd://")) {
            assert!(line.chars().count() <= 80, "{command}: {line}");
        }
    }
    s.run(&["lun", "stats", "disk1", "--clear"]).ok();
    // The process is killed; afterwards saved values, and only those, are present.
    let pid = s.json(&["status"])["volumes"][0]["pid"].to_string();
    peer("kill", &["-s", "KILL", &pid]);
    wait_until("it has ended", || {
        !Path::new(&format!("/proc/{pid}")).exists()
    });
    let attached = s.attach(&["disk1"]);
    assert_eq!(attached["lun"], "disk1");
    assert_eq!(value("max_q_depth"), ["5", "5", "lun"]);
    assert_eq!(states(&s), ["disabled", "active"]);
    s.run(&["path", "enable", "disk1", "c0t0d1"]).ok();
    becomes(&s, 0, &["active"]);
    s.detach("disk1");
}

#[test]
fn a_lun_is_forgotten_when_it_is_closed_and_on_request() {
    let s = Sandbox::new();
    let disk = image(&s, "disk", SIZE);
    let port = free_port();
    let _server = nbdkit(&disk, port);
    let uri = format!("nbd://127.0.0.1:{port}/e");
    s.key("owner");
    s.run(&["volume", "create", &uri, "--owner", "owner"]).ok();
    s.attach(&["disk1", "--name", "d"]);
    s.run(&["lun", "forget", "disk1", "--yes"]).code(11);
    s.detach("d");
    s.run(&["lun", "forget", "disk1"]).code(2);
    let said = s.json(&["lun", "forget", "disk1", "--yes"]);
    assert_eq!(said["paths"][0], uri.as_str(), "{said}");
    s.run(&["lun", "show", "disk1"]).code(10);
    s.run(&["lun", "forget", "disk1", "--yes"]).code(10);
    // The disk itself is unchanged.
    s.attach(&[&uri, "--name", "d"]);
    s.detach("d");
}

/// Creates a volume on `disk1`, over a server that answers and a socket without a listener.
fn with_a_dead_path(s: &Sandbox) -> Killed {
    let disk = image(s, "disk", 64 << 20);
    let port = free_port();
    let server = nbdkit(&disk, port);
    s.key("owner");
    let uri = format!("nbd://127.0.0.1:{port}/e");
    s.run(&["volume", "create", &uri, "--owner", "owner"]).ok();
    let none = format!("nbd+unix:///e?socket={}", s.path("none.sock").display());
    let added = s.run(&["path", "add", "disk1", &none]).ok().stdout;
    let wanted = format!("disk1: path 2 {none}: FAILED ");
    assert!(added.starts_with(&wanted), "{added}");
    server
}

#[test]
fn a_detach_is_answered_when_the_lun_is_free() {
    let s = Sandbox::new();
    let _server = with_a_dead_path(&s);
    s.attach(&["disk1"]);
    s.detach("disk1");
    // Without waiting: once the detach is reported, the LUN must be free.
    let folders = ["run", "state"].map(|folder| std::fs::read_dir(s.path(folder)).unwrap());
    let mut locks = 0;
    for entry in folders.into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().ends_with("disk1.open") {
            let lock = std::fs::File::open(entry.path()).unwrap();
            lock.try_lock().expect("the lock of the LUN is free");
            locks += 1;
        }
    }
    assert_eq!(locks, 1);
    s.attach(&["disk1"]);
    s.detach("disk1");
}

#[test]
fn a_dead_path_is_tried_now_and_then_and_an_attach_and_a_detach_go_on() {
    let s = Sandbox::new();
    let disk = image(&s, "disk", 64 << 20);
    let ports = [free_port(), free_port()];
    let _server = nbdkit(&disk, ports[0]);
    // It accepts connections, but its server does not exist.
    let (dead, at) = proxy(ports[1]);
    let uri = |port| format!("nbd://127.0.0.1:{port}/e");
    s.key("owner");
    s.run(&["volume", "create", &uri(ports[0]), "--owner", "owner"])
        .ok();
    s.run(&["path", "add", "disk1", &uri(at)]).ok();
    let (began, before) = (Instant::now(), dead.stats().connections);
    s.attach(&["disk1"]);
    becomes(&s, 1, &["failed"]);
    assert!(!why(&s, 1).is_empty());
    s.detach("disk1");
    // The pauses between attempts grow to a second, independent of the number of queues.
    let tried = dead.stats().connections - before;
    let most = 12 + began.elapsed().as_secs();
    assert!((1..=most).contains(&tried), "{tried} attempts, not {most}");
    s.attach(&["disk1"]);
    let _back = nbdkit(&disk, ports[1]);
    becomes(&s, 1, &["active"]);
    s.detach("disk1");
}

#[test]
fn a_lun_that_is_open_is_not_forgotten_from_another_run_directory() {
    let s = Sandbox::new();
    let disk = image(&s, "disk", 64 << 20);
    let port = free_port();
    let _server = nbdkit(&disk, port);
    s.key("owner");
    let uri = format!("nbd://127.0.0.1:{port}/e");
    s.run(&["volume", "create", &uri, "--owner", "owner"]).ok();
    s.attach(&["disk1"]);
    let mut elsewhere = s.evfs();
    elsewhere.env("EVFS_RUN_DIR", s.path("other"));
    let refused = Ran::of(elsewhere.args(["lun", "forget", "disk1", "--yes"])).code(11);
    assert!(refused.stderr.contains("disk1 is in use"), "{refused:?}");
    s.run(&["lun", "show", "disk1"]).ok();
    s.detach("disk1");
    s.run(&["lun", "forget", "disk1", "--yes"]).ok();
}

#[test]
fn only_what_can_be_a_path_is_added_and_what_was_done_is_said() {
    let s = Sandbox::new();
    let _server = with_a_dead_path(&s);
    std::fs::write(s.path("small"), "text").unwrap();
    for (path, code) in [
        ("disk1", 2),
        ("c0t0d1", 2),
        ("run", 2),
        ("small", 2),
        ("missing", 10),
    ] {
        let refused = s.run(&["path", "add", "disk1", path]).code(code);
        assert!(refused.stderr.contains(path), "{refused:?}");
    }
    let said = |args: &[&str]| s.run(args).ok().stdout.trim_end().to_owned();
    let full = s.path("disk");
    let full = full.canonicalize().unwrap();
    let full = full.to_str().unwrap();
    let added = said(&["path", "add", "disk1", "disk"]);
    assert!(
        added.starts_with(&format!("disk1: path 3 {full}: ")),
        "{added}"
    );
    let disabled = said(&["path", "disable", "disk1", "disk"]);
    assert_eq!(disabled, format!("disk1: path 3 {full}: DISABLED"));
    assert!(said(&["path", "enable", "disk1", full]).contains("path 3"));
    let removed = said(&["path", "remove", "disk1", "disk"]);
    assert_eq!(removed, format!("disk1: path {full}: removed"));
    let saved = said(&["lun", "save", "disk1", "max_q_depth=5"]);
    assert!(
        saved.starts_with("disk1: max_q_depth=5 is saved"),
        "{saved}"
    );
    s.attach(&["disk1"]);
    let set = said(&["lun", "set", "disk1", "max_q_depth=6"]);
    assert!(set.starts_with("disk1: max_q_depth=6 until"), "{set}");
    s.detach("disk1");
    let asked = s.run(&["lun", "forget", "disk1"]).code(2).stderr;
    assert!(asked.contains("this forgets disk1"), "{asked}");
}
