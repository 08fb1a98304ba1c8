//! The serving process: signals, its control socket, and its end when the underlying disk fails.

use nbd_client::Client;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tests::cell::address;
use tests::{Killed, NOBODY, Ran, Sandbox, as_user, needs_root, peer, signal, wait_until};

const MIB: usize = 1 << 20;

/// Attaches in the foreground and waits until the export answers.
fn attach_here(s: &Sandbox, more: &[&str]) -> (Killed, Client) {
    let mut command = s.evfs();
    command.args(["attach", "a.img"]).args(more);
    let child = command.stdout(Stdio::null()).spawn().unwrap();
    (Killed(child), client(s))
}

fn client(s: &Sandbox) -> Client {
    let mut client = None;
    wait_until("the volume answers", || {
        client = Client::connect(&s.path("run/a.nbd"), "a").ok();
        client.is_some()
    });
    client.unwrap()
}

fn volumes(s: &Sandbox) -> Vec<Value> {
    s.json(&["status"])["volumes"].as_array().unwrap().clone()
}

fn names(s: &Sandbox) -> Vec<String> {
    let name = |v: &Value| v["name"].as_str().unwrap().to_owned();
    volumes(s).iter().map(name).collect()
}

fn pid_of(s: &Sandbox, name: &str) -> i32 {
    let all = volumes(s);
    let one = all.iter().find(|v| v["name"] == name).expect("attached");
    one["pid"].as_i64().unwrap() as i32
}

fn kill_9(pid: i32) {
    signal(pid, libc::SIGKILL);
    wait_until("it is dead", || {
        !Path::new(&format!("/proc/{pid}/fd")).exists()
    });
}

#[track_caller]
fn must_hold(s: &Sandbox, byte: u8) {
    s.attach(&["a.img"]);
    let mut read = vec![0; MIB];
    client(s).read_at(0, &mut read).unwrap();
    assert!(
        read.iter().all(|b| *b == byte),
        "what was acknowledged is lost"
    );
    s.detach("a");
}

#[test]
fn signals_that_ask_for_an_end_flush_first() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let asked = [
        libc::SIGQUIT,
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGXCPU,
        libc::SIGPWR,
    ];
    for (byte, number) in (1..).zip(asked) {
        let (mut child, mut client) = attach_here(&s, &[]);
        client.write_at(0, &[byte; MIB]).unwrap();
        child.signal(number);
        assert_eq!(child.0.wait().unwrap().code(), Some(128 + number));
        must_hold(&s, byte);
    }
}

#[test]
fn term_flushes_however_often_it_arrives() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let (mut child, mut client) = attach_here(&s, &[]);
    client.write_at(0, &[3; MIB]).unwrap();
    let mut ended = None;
    while ended.is_none() {
        child.signal(libc::SIGTERM);
        ended = child.0.try_wait().unwrap();
    }
    assert_eq!(ended.unwrap().code(), Some(143));
    must_hold(&s, 3);
}

#[test]
fn signals_that_mean_nothing_change_nothing() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let (mut child, mut client) = attach_here(&s, &[]);
    client.write_at(0, &[9; MIB]).unwrap();
    let meaningless = [
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGPIPE,
        libc::SIGALRM,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGIO,
        libc::SIGXFSZ,
        libc::SIGRTMIN(),
    ];
    for number in meaningless {
        child.signal(number);
        client.read_at(0, &mut [0; 4096]).unwrap();
        assert_eq!(
            child.0.try_wait().unwrap(),
            None,
            "signal {number} ended it"
        );
    }
    child.signal(libc::SIGTERM);
    child.0.wait().unwrap();
    must_hold(&s, 9);
}

/// HUP makes a service flush and continue; then the process is killed.
#[test]
fn hup_flushes_and_goes_on() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let pid = s.attach(&["a.img"])["pid"].as_i64().unwrap() as i32;
    let mut client = client(&s);
    client.write_at(0, &[5; MIB]).unwrap();
    signal(pid, libc::SIGHUP);
    wait_until("everything is below", || {
        s.json(&["cache", "show"])["caches"][0]["stats"]["dirty_bytes"] == 0
    });
    client.read_at(0, &mut [0; 4096]).unwrap();
    kill_9(pid);
    must_hold(&s, 5);
}

/// The terminal of a process in the foreground is closed, as at the end of an ssh session.
#[test]
fn a_terminal_that_goes_away_stops_in_order() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let mut script = Command::new("script");
    s.environment(&mut script);
    let line = format!("{} attach a.img", tests::program().display());
    script.args(["-qec", &line, "/dev/null"]);
    let terminal = script.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut terminal = Killed(terminal.unwrap());
    client(&s).write_at(0, &[7; MIB]).unwrap();
    let pid = pid_of(&s, "a");
    terminal.0.kill().unwrap();
    terminal.0.wait().unwrap();
    wait_until("it has ended", || {
        !Path::new(&format!("/proc/{pid}/fd")).exists()
    });
    assert!(
        !s.path("run/a.control").exists(),
        "it did not stop in order"
    );
    must_hold(&s, 7);
}

/// The reader of the log has closed its pipe: a write to the log must not panic.
#[test]
fn a_log_that_cannot_be_written_stops_nothing() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let mut command = s.evfs();
    command.args(["--log", "info", "attach", "a.img"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = Killed(child.unwrap());
    let mut client = client(&s);
    client.write_at(0, &[4; MIB]).unwrap();
    drop(child.0.stderr.take());
    // It logs that it stops.
    child.signal(libc::SIGTERM);
    assert_eq!(child.0.wait().unwrap().code(), Some(143));
    must_hold(&s, 4);
}

// From <linux/capability.h>.
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_NET_BIND_SERVICE: u32 = 10;
const CAP_NET_ADMIN: u32 = 12;
const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_CHROOT: u32 = 18;
const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_RESOURCE: u32 = 24;

/// Capabilities that every server keeps if it has them.
const EACH_KEEPS: [u32; 3] = [CAP_DAC_OVERRIDE, CAP_IPC_LOCK, CAP_SYS_RESOURCE];
/// Further capabilities that a server with mounts keeps.
const MOUNTS_KEEP: [u32; 3] = [CAP_SYS_ADMIN, CAP_SYS_CHROOT, CAP_SYS_PTRACE];

/// Returns a line of the status of a thread, without its title.
fn line_of(status: &str, title: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(title));
    line.expect("the kernel says it").trim().to_owned()
}

/// Fails unless all threads of the server `name` have dropped all other capabilities, cannot gain
/// privileges, and have a system call filter.
#[track_caller]
fn must_be_confined(s: &Sandbox, name: &str, kept: &[u32]) {
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let set = |status: &str, title: &str| u64::from_str_radix(&line_of(status, title), 16).unwrap();
    let kept = kept.iter().fold(0, |all, number| all | 1 << number) & set(&own, "CapPrm:");
    let pid = pid_of(s, name);
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut looked_at = 0;
    for thread in threads.flatten() {
        // It may have ended.
        let Ok(status) = fs::read_to_string(thread.path().join("status")) else {
            continue;
        };
        looked_at += 1;
        assert_eq!(line_of(&status, "NoNewPrivs:"), "1", "{name}: {status}");
        assert_eq!(line_of(&status, "Seccomp:"), "2", "{name}: {status}");
        for title in ["CapEff:", "CapPrm:"] {
            assert_eq!(set(&status, title), kept, "{name}: {title} {status}");
        }
        for title in ["CapInh:", "CapAmb:"] {
            assert_eq!(set(&status, title), 0, "{name}: {title} {status}");
        }
        if set(&own, "CapEff:") != 0 {
            assert_eq!(set(&status, "CapBnd:"), 0, "{name}: {status}");
        }
    }
    assert!(looked_at > 1, "{name} has {looked_at} threads");
}

/// All threads of a server have only the capabilities and system calls that they need, and cannot
/// gain privileges by executing programs.
#[test]
fn a_server_gives_up_what_it_does_not_need() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.attach(&["a.img"]);
    must_be_confined(&s, "a", &EACH_KEEPS);
    s.detach("a");
    s.attach(&["a.img", "--nbd", "127.0.0.1:0", "--direct"]);
    must_be_confined(&s, "a", &EACH_KEEPS);
    s.detach("a");
    let at = address().to_string();
    s.run(&[
        "cell",
        "init",
        "test.local",
        "cell.img",
        "--size",
        "64M",
        "--listen",
        &at,
    ])
    .ok();
    s.run(&["serve", "cell.img", "--background"]).ok();
    must_be_confined(&s, "cell", &[&EACH_KEEPS[..], &[CAP_NET_ADMIN]].concat());
    s.detach("cell");
    fs::write(s.path("up.toml"), "[volume.a]\ndevice = \"a.img\"\n").unwrap();
    s.run(&["up", "up.toml", "--background"]).ok();
    must_be_confined(&s, "a", &EACH_KEEPS);
    s.run(&["down"]).ok();
    let mut free = s.evfs();
    free.env("EVFS_SANDBOX", "false");
    Ran::of(free.args(["attach", "a.img", "--background"])).ok();
    let status = fs::read_to_string(format!("/proc/{}/status", pid_of(&s, "a"))).unwrap();
    assert_eq!(line_of(&status, "Seccomp:"), "0", "{status}");
    s.detach("a");
}

/// A HUP that needs privileges dropped at the start of `up` fails for that table only; the others
/// continue.
#[test]
fn up_says_what_it_gave_up() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.volume("b.img", "32M", &[]);
    let with = |more: &str| {
        let text = format!("[volume.a]\ndevice = \"a.img\"\n{more}");
        fs::write(s.path("up.toml"), text).unwrap();
    };
    with("");
    let log = fs::File::create(s.path("log")).unwrap();
    let mut up = s.evfs();
    up.args(["up", "up.toml"]).stdout(Stdio::null()).stderr(log);
    let up = Killed(up.spawn().unwrap());
    wait_until("it serves", || names(&s) == ["a"]);
    fs::create_dir(s.path("folder")).unwrap();
    with("[volume.b]\ndevice = \"b.img\"\nfuse = \"folder\"\n");
    up.signal(libc::SIGHUP);
    wait_until("it says why not", || {
        let said = fs::read_to_string(s.path("log")).unwrap();
        said.contains("started without FUSE mounts")
    });
    assert_eq!(names(&s), ["a"]);
    with("[volume.b]\ndevice = \"b.img\"\n");
    up.signal(libc::SIGHUP);
    wait_until("b is served", || names(&s) == ["a", "b"]);
    must_be_confined(&s, "b", &EACH_KEEPS);
    s.run(&["down"]).ok();
}

/// A client that sends its request one byte at a time delays neither other requests nor TERM.
#[test]
fn a_slow_control_client_delays_no_other() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let (mut child, _client) = attach_here(&s, &[]);
    let (asks, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                let Ok(mut slow) = UnixStream::connect(s.path("run/a.control")) else {
                    break;
                };
                while !stop.load(Ordering::SeqCst) && slow.write_all(b"{").is_ok() {
                    asks.store(true, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(200));
                }
            }
        });
        let asked = std::panic::catch_unwind(|| {
            wait_until("somebody asks slowly", || asks.load(Ordering::SeqCst));
            assert_eq!(names(&s), ["a"]);
        });
        child.signal(libc::SIGTERM);
        let mut code = None;
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_until("TERM has ended it", || {
                code = child.0.try_wait().unwrap().and_then(|status| status.code());
                code.is_some()
            });
        }));
        stop.store(true, Ordering::SeqCst);
        asked.unwrap();
        ended.unwrap();
        assert_eq!(code, Some(143));
    });
}

/// A process that does not answer is named, and the others are shown.
#[test]
fn status_shows_who_does_not_answer() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.volume("b.img", "32M", &[]);
    let stopped = s.attach(&["a.img"])["pid"].as_i64().unwrap() as i32;
    s.attach(&["b.img"]);
    signal(stopped, libc::SIGSTOP);
    let shown = Ran::patiently(s.evfs().args(["--json", "status"]), Duration::from_secs(60));
    let detached = Ran::patiently(s.evfs().args(["detach", "a"]), Duration::from_secs(60));
    signal(stopped, libc::SIGCONT);
    let shown: Value = serde_json::from_str(&shown.ok().stdout).unwrap();
    assert_eq!(shown["volumes"][0]["state"], "not answering", "{shown}");
    assert_eq!(shown["volumes"][1]["name"], "b", "{shown}");
    assert!(shown["volumes"][1]["state"].is_null(), "{shown}");
    let detached = detached.code(11);
    assert!(detached.stderr.contains("not answering"), "{detached:?}");
    s.detach("a");
    s.detach("b");
}

/// A directory that other users can write to could contain another user's socket.
#[test]
fn a_directory_that_others_may_write_to_is_not_believed() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.attach(&["a.img"]);
    let open = |mode| {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(s.path("run"), mode).unwrap();
    };
    open(0o777);
    for verb in [
        &["status"][..],
        &["detach", "a"],
        &["down"],
        &["stats", "a"],
    ] {
        let ran = s.run(verb);
        assert!(ran.stderr.contains("not safe to use"), "{ran:?}");
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    }
    open(0o700);
    s.detach("a");
}

/// A name belongs to the process that holds its lock; leftovers of a killed process do not block
/// it.
#[test]
fn a_name_belongs_to_one_process() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let lock = fs::File::create(s.path("run/a.lock")).unwrap();
    // SAFETY: a lock on our own descriptor.
    assert_eq!(unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) }, 0);
    let refused = s.run(&["attach", "a.img", "--background"]).code(11);
    assert!(refused.stderr.contains("already attached"), "{refused:?}");
    drop(lock);
    let pid = s.attach(&["a.img"])["pid"].as_i64().unwrap() as i32;
    kill_9(pid);
    assert!(s.path("run/a.control").exists());
    assert_eq!(names(&s), [""; 0]);
    s.attach(&["a.img"]);
    s.detach("a");
    assert!(!s.path("run/a.lock").exists() && !s.path("run/a.control").exists());
}

/// Unmounts even if the test fails halfway.
struct Unmounted(String);

impl Drop for Unmounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// HUP makes a running `up` match its configuration, as far as possible.
#[test]
fn hup_reads_the_configuration_again() {
    let s = Sandbox::new();
    for image in ["a.img", "b.img", "c.img"] {
        s.volume(image, "32M", &[]);
    }
    let write = |name: &str, text: &str| fs::write(s.path(name), text).unwrap();
    write(
        "settings.toml",
        "[cache]\ntunables = \"filecache_max=20%\"\n",
    );
    write(
        "up.toml",
        "[volume.a]\ndevice = \"a.img\"\n[volume.b]\ndevice = \"b.img\"\n",
    );
    let mut up = s.evfs();
    up.env("EVFS_CONFIG", s.path("settings.toml"));
    Ran::of(up.args(["up", "up.toml", "--background"])).ok();
    let pid = pid_of(&s, "a");
    write(
        "settings.toml",
        "[cache]\ntunables = \"filecache_max=10%\"\n",
    );
    write(
        "up.toml",
        "[volume.b]\ndevice = \"b.img\"\nread-only = true\n[volume.c]\ndevice = \"c.img\"\n",
    );
    signal(pid, libc::SIGHUP);
    wait_until("a is detached, and c attached", || names(&s) == ["b", "c"]);
    let b = |s: &Sandbox| volumes(s)[0].clone();
    wait_until("b says that it has changed", || {
        b(&s)["warning"]
            .as_str()
            .is_some_and(|w| w.contains("has changed"))
    });
    assert_eq!(b(&s)["read_only"], false);
    let settings = s.json(&["cache", "show"])["caches"][0]["settings"].clone();
    let max = |row: &&Value| row["name"] == "filecache_max";
    let max = settings.as_array().unwrap().iter().find(max).unwrap();
    assert_eq!(max["value"], "10%", "{settings}");
    s.detach("b");
    signal(pid, libc::SIGHUP);
    wait_until("b is read-only", || {
        names(&s) == ["b", "c"] && b(&s)["read_only"] == true
    });
    // An invalid configuration changes nothing.
    write("up.toml", "[volume.b]\nrubbish = 1\n");
    signal(pid, libc::SIGHUP);
    s.run(&["down"]).ok();
    assert_eq!(names(&s), [""; 0]);
}

/// Linux 6.11 and later.
fn tells_discards_from_zeroing() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|n| n.parse::<u32>());
    let mut next = || numbers.next().unwrap().unwrap();
    (next(), next()) >= (6, 11)
}

/// An incomplete request gets an answer, too.
#[test]
fn half_a_question_is_refused() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.attach(&["a.img"]);
    let mut stream = UnixStream::connect(s.path("run/a.control")).unwrap();
    stream.write_all(b"{\"det").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("does not know the request"), "{answer}");
    s.detach("a");
}

mod needs_root {
    use super::*;

    /// The same for a server with mounts, which only root can make without a helper.
    #[test]
    fn a_server_with_mounts_gives_up_what_it_does_not_need() {
        needs_root("to mount without fusermount3");
        let s = Sandbox::new();
        s.volume("a.img", "32M", &[]);
        s.run(&["format", "m.img", "--size", "128M"]).ok();
        for dir in ["folder", "mnt"] {
            fs::create_dir(s.path(dir)).unwrap();
        }
        let kept = [&EACH_KEEPS[..], &MOUNTS_KEEP].concat();
        for how in [&["--loop"][..], &["--fuse", "folder"]] {
            s.attach(&[&["a.img"], how].concat());
            must_be_confined(&s, "a", &kept);
            s.detach("a");
        }
        s.run(&["mount", "m.img", "mnt", "--background"]).ok();
        must_be_confined(&s, "m", &kept);
        s.run(&["unmount", "mnt"]).ok();
        let up = "[volume.a]\ndevice = \"a.img\"\nloop = true\n[mount.m]\ndevice = \"m.img\"\nat = \"mnt\"\n";
        fs::write(s.path("up.toml"), up).unwrap();
        s.run(&["up", "up.toml", "--background"]).ok();
        must_be_confined(&s, "a", &kept);
        s.run(&["down"]).ok();
        // A privileged port, in another network namespace where no other program has it.
        let attach = format!(
            "ip link set lo up; {} attach a.img --nbd 127.0.0.1:809 --background",
            tests::program().display()
        );
        let mut apart = Command::new("unshare");
        s.environment(&mut apart);
        Ran::of(apart.args(["-n", "sh", "-ec", &attach])).ok();
        must_be_confined(
            &s,
            "a",
            &[&EACH_KEEPS[..], &[CAP_NET_BIND_SERVICE]].concat(),
        );
        s.detach("a");
    }

    /// The server gets the user ID of a client from the kernel.
    #[test]
    fn another_user_is_not_answered() {
        needs_root("a thread of another user");
        let s = Sandbox::new();
        s.volume("a.img", "32M", &[]);
        s.attach(&["a.img"]);
        for (path, mode) in [("", 0o755), ("run", 0o755), ("run/a.control", 0o777)] {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(s.path(path), mode).unwrap();
        }
        let ask = |uid: u32| {
            let socket = s.path("run/a.control");
            as_user(uid, move || {
                let mut stream = UnixStream::connect(socket).unwrap();
                let _ = stream.write_all(b"\"status\"\n");
                let mut answer = String::new();
                let _ = stream.read_to_string(&mut answer);
                answer
            })
        };
        assert!(ask(0).contains("\"name\":\"a\""));
        assert_eq!(ask(NOBODY), "");
        s.detach("a");
    }

    /// A full underlying disk: acknowledged data is kept until space is available, or dropped by
    /// an explicit command.
    #[test]
    fn a_full_disk_keeps_the_export_and_force_says_what_is_lost() {
        needs_root("a small tmpfs");
        let s = Sandbox::new();
        let small = s.path("small");
        fs::create_dir(&small).unwrap();
        let at = small.to_str().unwrap();
        peer("mount", &["-t", "tmpfs", "-o", "size=20M", "none", at]);
        let _mounted = Unmounted(at.to_owned());
        s.volume("small/a.img", "64M", &[]);
        let fill = || {
            s.attach(&["small/a.img"]);
            let mut client = client(&s);
            for n in 0..30 {
                client.write_at((n * MIB) as u64, &[6; MIB]).unwrap();
            }
            client
        };
        let mut still = fill();
        let refused = s.run(&["detach", "a"]).code(1);
        assert!(refused.stderr.contains("pace"), "{refused:?}");
        // The connection still works, and returns the data it has written.
        let mut read = vec![0; MIB];
        still.read_at(29 * MIB as u64, &mut read).unwrap();
        assert_eq!(read, [6; MIB]);
        client(&s);
        // The status reports the failing write-back, until it has succeeded.
        let write_back = || s.json(&["status"])["volumes"][0]["write_back"].clone();
        let waits = write_back();
        assert_eq!(waits["state"], "failing", "{waits}");
        assert!(waits["dirty_bytes"].as_u64() > Some(0), "{waits}");
        assert!(
            waits["error"].as_str().unwrap().contains("no space"),
            "{waits}"
        );
        let said = s.run(&["status"]).ok().stdout;
        assert!(
            said.contains("in memory only") && said.contains("free space"),
            "{said}"
        );
        peer("mount", &["-o", "remount,size=100M", at]);
        wait_until("it is written out", || write_back()["state"] == "ok");
        let said = s.run(&["status"]).ok().stdout;
        assert!(!said.contains("in memory only"), "{said}");
        s.detach("a");
        s.attach(&["small/a.img"]);
        client(&s).read_at(29 * MIB as u64, &mut read).unwrap();
        assert_eq!(read, [6; MIB]);
        s.detach("a");

        for by_signal in [false, true] {
            fs::remove_file(s.path("small/a.img")).unwrap();
            let shrink = ["-o", "remount,size=20M", at];
            // The kernel frees the removed image once the process that used it has ended completely.
            wait_until("the disk is small again", || {
                Ran::of(Command::new("mount").args(shrink)).status.success()
            });
            s.volume("small/a.img", "64M", &[]);
            drop(fill());
            if by_signal {
                let pid = pid_of(&s, "a");
                signal(pid, libc::SIGTERM);
                let gone = || !Path::new(&format!("/proc/{pid}/fd")).exists();
                wait_until("TERM has ended it", gone);
            } else {
                let forced = s.run(&["detach", "a", "--force"]).code(30);
                assert!(
                    forced.stderr.contains("acknowledged but unflushed bytes"),
                    "{forced:?}"
                );
            }
            assert_eq!(names(&s), [""; 0]);
        }
    }

    /// A dead mount and a loop device that a killed process has left do not block later commands.
    #[test]
    fn what_a_killed_process_left_is_cleared() {
        needs_root("a loop device");
        let s = Sandbox::new();
        s.volume("a.img", "32M", &[]);
        fs::create_dir(s.path("folder")).unwrap();
        let folder = s.path("folder").to_str().unwrap().to_owned();
        let loops = || {
            let devices = fs::read_dir("/sys/block").unwrap().flatten();
            let files = devices.map(|d| fs::read_to_string(d.path().join("loop/backing_file")));
            let ours = |file: &String| file.contains(s.path("").to_str().unwrap());
            files.flatten().filter(ours).count()
        };
        for how in [
            &["--loop"][..],
            &["--fuse", &folder],
            &["--loop", "--fuse", &folder],
        ] {
            let args = [&["a.img"], how].concat();
            let pid = s.attach(&args)["pid"].as_i64().unwrap() as i32;
            kill_9(pid);
            s.attach(&args);
            s.detach("a");
            wait_until("no loop device is left", || loops() == 0);
            let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
            assert!(!mounts.contains(s.path("").to_str().unwrap()), "{mounts}");
            assert!(!s.path("run/a.fuse").exists());
        }
    }

    /// Discards free space if the kernel distinguishes them from zeroing, and never allocate any;
    /// zeroed ranges read as zeros.
    #[test]
    fn discards_of_a_loop_device_free_space_and_zeroing_gives_zeros() {
        needs_root("a loop device");
        let s = Sandbox::new();
        let image = s.volume("a.img", "200M", &[]);
        let used = || {
            let file = fs::File::open(&image).unwrap();
            file.sync_all().unwrap();
            file.metadata().unwrap().blocks() * 512
        };
        let empty = used();
        let with = &["--loop", "--allow-discards"][..];
        // An attach without discards takes them from no later one.
        for (how, passes) in [(with, true), (&["--loop"], false), (with, true)] {
            let status = s.attach(&[&["a.img"], how].concat());
            let exports = status["exports"].as_array().unwrap();
            let device = exports.iter().find(|e| e["kind"] == "loop").unwrap();
            let device = device["at"].as_str().unwrap();
            let queue = Path::new("/sys/block").join(device.strip_prefix("/dev/").unwrap());
            let limit = fs::read_to_string(queue.join("queue/discard_max_bytes")).unwrap();
            // A kernel that does not distinguish discards from zeroing gets no discard support.
            let warned = !status["warning"].is_null();
            assert_eq!(warned, passes && !tells_discards_from_zeroing(), "{status}");
            let passes = passes && !warned;
            assert_eq!(limit.trim() != "0", passes, "{status}");
            let before = used();
            let _ = Ran::of(Command::new("blkdiscard").arg(device));
            assert!(used() <= before + MIB as u64, "a discard took space");
            let ones = vec![1; 64 * MIB];
            let mut file = fs::File::options()
                .read(true)
                .write(true)
                .open(device)
                .unwrap();
            file.write_all(&ones).unwrap();
            file.sync_all().unwrap();
            let full = used();
            assert!(full > empty + 60 * MIB as u64);
            // A file system may zero a range, and permit that its blocks are freed.
            for mode in [libc::FALLOC_FL_ZERO_RANGE, libc::FALLOC_FL_PUNCH_HOLE] {
                file.write_all_at(&ones[..6 * MIB], 0).unwrap();
                file.sync_all().unwrap();
                let mode = mode | libc::FALLOC_FL_KEEP_SIZE;
                // SAFETY: our own descriptor, and plain numbers.
                let zeroed =
                    unsafe { libc::fallocate(file.as_raw_fd(), mode, MIB as i64, 4 * MIB as i64) };
                if zeroed != 0 {
                    // A refused request has no effect to verify.
                    assert_eq!(mode & libc::FALLOC_FL_ZERO_RANGE, 0);
                    continue;
                }
                let mut read = vec![9; 6 * MIB];
                peer("blockdev", &["--flushbufs", device]);
                file.read_exact_at(&mut read, 0).unwrap();
                assert!(read[MIB..5 * MIB].iter().all(|b| *b == 0), "mode {mode}");
                assert!(read[..MIB].iter().chain(&read[5 * MIB..]).all(|b| *b == 1));
            }
            drop(file);
            let _ = Ran::of(Command::new("blkdiscard").arg(device));
            s.detach("a");
            if passes {
                assert!(used() < full - 60 * MIB as u64, "a discard freed nothing")
            } else {
                assert!(used() > empty + 60 * MIB as u64)
            }
        }
    }
}

mod needs_peer {
    use super::*;

    #[test]
    fn down_detaches_all_or_none() {
        let s = Sandbox::new();
        for image in ["a.img", "b.img", "c.img"] {
            s.volume(image, "32M", &[]);
        }
        let up = "[volume.a]\ndevice = \"a.img\"\n[volume.b]\ndevice = \"b.img\"\nfuse = \"folder\"\n\
                  [volume.c]\ndevice = \"c.img\"\n";
        fs::write(s.path("up.toml"), up).unwrap();
        fs::create_dir(s.path("folder")).unwrap();
        s.run(&["up", "up.toml", "--background"]).ok();
        let open = fs::File::open(s.path("folder/b")).unwrap();
        let refused = s.run(&["down"]).code(11);
        assert!(
            refused.stderr.contains("nothing was detached"),
            "{refused:?}"
        );
        assert_eq!(names(&s), ["a", "b", "c"]);
        drop(open);
        s.run(&["down"]).ok();
        assert_eq!(names(&s), [""; 0]);
        s.run(&["up", "up.toml", "--background"]).ok();
        let open = fs::File::open(s.path("folder/b")).unwrap();
        s.run(&["down", "--force"]).ok();
        assert_eq!(names(&s), [""; 0]);
        drop(open);
    }
}
