//! Output of a process in the background: its log, and the report of a failed HUP in its status.
//! Also the refusal of places that cannot be exported to.

use nbd_client::Client;
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;
use tests::{Ran, Sandbox, needs_root, signal, wait_until};

fn volumes(s: &Sandbox) -> Vec<Value> {
    s.json(&["status"])["volumes"].as_array().unwrap().clone()
}

fn pid_of(s: &Sandbox, name: &str) -> i32 {
    let all = volumes(s);
    let one = all.iter().find(|v| v["name"] == name).expect("attached");
    one["pid"].as_i64().unwrap() as i32
}

/// Returns the warning of the volume that `up` serves under this name.
fn warning_of(s: &Sandbox, name: &str) -> String {
    let all = volumes(s);
    let one = all.iter().find(|v| v["name"] == name).expect("attached");
    one["warning"].as_str().unwrap_or_default().to_owned()
}

/// A failed HUP is in the log chosen for the background, and in the status until one succeeds.
#[test]
fn a_hup_that_fails_is_told() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let up = |text: &str| fs::write(s.path("up.toml"), text).unwrap();
    let good = "[volume.a]\ndevice = \"a.img\"\n";
    up(good);
    let log = fs::File::create(s.path("log")).unwrap();
    let mut command = s.evfs();
    command.args(["--log", "info", "up", "up.toml", "--background"]);
    let started = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    assert!(started.status().unwrap().success());
    let pid = pid_of(&s, "a");
    for (bad, why) in [
        ("x=[", "configuration not reloaded"),
        (
            "[volume.a]\ndevice = \"a.img\"\n[volume.b]\ndevice = \"none.img\"\n",
            "[volume.b] cannot be served",
        ),
    ] {
        up(bad);
        signal(pid, libc::SIGHUP);
        wait_until("the status says so", || warning_of(&s, "a").contains(why));
        assert!(warning_of(&s, "a").contains("the last HUP failed"));
        assert!(s.run(&["status"]).ok().stdout.contains(why));
        let said = fs::read_to_string(s.path("log")).unwrap();
        assert!(said.contains(why), "{said}");
    }
    up(good);
    signal(pid, libc::SIGHUP);
    wait_until("it is over", || !warning_of(&s, "a").contains("HUP"));
    s.run(&["down"]).ok();
}

/// The reader of the output of a command in the background waits for the end of that command, not
/// for that of the server.
#[test]
fn a_pipe_is_not_kept_open_by_the_background() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    // Reads to the end of both pipes.
    s.run(&["attach", "a.img", "--background"]).ok();
    s.detach("a");
    let mut shell = Command::new("bash");
    s.environment(&mut shell);
    let line = format!(
        "{} attach a.img --background 2>&1 | cat; exit ${{PIPESTATUS[0]}}",
        tests::program().display()
    );
    Ran::patiently(shell.args(["-c", &line]), Duration::from_secs(60)).ok();
    s.detach("a");
}

/// Detaching the only table ends the process, so the status advises to start it again.
#[test]
fn the_advice_for_the_only_table_works() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    fs::write(s.path("up.toml"), "[volume.a]\ndevice = \"a.img\"\n").unwrap();
    s.run(&["up", "up.toml", "--background"]).ok();
    let changed = "[volume.a]\ndevice = \"a.img\"\nread-only = true\n";
    fs::write(s.path("up.toml"), changed).unwrap();
    signal(pid_of(&s, "a"), libc::SIGHUP);
    let advice = format!("`evfs detach a; evfs up {}`", s.path("up.toml").display());
    wait_until("the status advises", || {
        warning_of(&s, "a").contains(&advice)
    });
    s.detach("a");
    s.run(&["up", "up.toml", "--background"]).ok();
    assert_eq!(volumes(&s)[0]["read_only"], true);
    s.run(&["down"]).ok();
}

/// Obstacles to an export are reported, with the usual exit codes.
#[test]
fn places_that_cannot_be_exported_to_are_refused() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    fs::write(s.path("file"), "kept").unwrap();
    let absent = "none/x.sock";
    let long = s.path(&"x".repeat(107 - s.path("").as_os_str().len() + 1));
    let fits = s.path(&"x".repeat(107 - s.path("").as_os_str().len()));
    for (export, at, code, word) in [
        ("--nbd-unix", "file", 2, "not a socket"),
        ("--nbd-unix", absent, 10, "none"),
        ("--nbd-unix", long.to_str().unwrap(), 2, "too long"),
        ("--fuse", "none", 10, "cannot mount at none"),
        ("--nbd", "0.0.0.0:0", 2, "--tls-cert"),
    ] {
        let ran = s.run(&["attach", "a.img", export, at, "--background"]);
        assert!(ran.stderr.contains(word), "{ran:?}");
        ran.code(code);
    }
    assert_eq!(fs::read_to_string(s.path("file")).unwrap(), "kept");
    assert!(!s.path("none").exists());
    s.attach(&["a.img", "--nbd-unix", fits.to_str().unwrap()]);
    Client::connect(&fits, "a").unwrap();
    let status = &volumes(&s)[0];
    assert_eq!(
        (&status["direct"], &status["cached"]),
        (&false.into(), &true.into())
    );
    s.detach("a");
    let help = s.run(&["--help"]).ok().stdout;
    let codes = help.split("Exit codes:").nth(1).unwrap();
    let table = include_str!("../../docs/guide/exit-codes.md");
    for line in table.lines().filter(|line| line.starts_with("| ")) {
        let code = line[2..].split(' ').next().unwrap();
        let listed = |word: &str| word.trim_matches(|c: char| !c.is_ascii_digit()) == code;
        if code.parse::<u8>().is_ok_and(|code| code < 128) {
            assert!(codes.split_whitespace().any(listed), "{code} in {codes}");
        }
    }
}

mod needs_root {
    use super::*;

    /// Without a suitable standard error, the background process logs to the system log.
    #[test]
    fn the_background_logs_to_the_system_log() {
        needs_root("a /run of its own");
        let s = Sandbox::new();
        s.volume("a.img", "32M", &[]);
        let socket = std::os::unix::net::UnixDatagram::bind(s.path("log.sock")).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        // Covers the system log of this machine, which usually is a link into /run.
        let line = format!(
            "mount -t tmpfs none /run; mkdir -p /run/systemd/journal; \
             ln -s {log} /run/systemd/journal/dev-log; \
             if [ -e /dev/log ] && [ ! -L /dev/log ]; then mount --bind {log} /dev/log; fi; \
             {program} --log info attach a.img --background",
            log = s.path("log.sock").display(),
            program = tests::program().display()
        );
        let mut apart = Command::new("unshare");
        s.environment(&mut apart);
        Ran::of(apart.args(["-m", "bash", "-ec", &line])).ok();
        signal(pid_of(&s, "a"), libc::SIGHUP);
        let mut said = [0; 4096];
        let len = socket.recv(&mut said).expect("a line of the log");
        let said = String::from_utf8_lossy(&said[..len]).into_owned();
        // Facility daemon, severity informational.
        assert!(said.starts_with("<30>evfs["), "{said}");
        s.detach("a");
    }
}
