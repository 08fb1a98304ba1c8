//! `evfs doctor`: findings, exit codes, and that it changes nothing.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tests::{HEADER_COPY, Ran, Sandbox};

/// Runs the program, and returns its exit code and its findings.
fn doctor(s: &Sandbox, args: &[&str]) -> (i32, Vec<Value>) {
    doctor_with(s, &[], args)
}

/// Same as [`doctor`], with variables in the environment.
fn doctor_with(s: &Sandbox, variables: &[(&str, &str)], args: &[&str]) -> (i32, Vec<Value>) {
    let mut command = s.evfs();
    command.args(["--json", "doctor"]).args(args);
    command.envs(variables.iter().copied());
    let ran = Ran::of(&mut command);
    let code = ran.status.code().unwrap();
    let report: Value =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {ran:?}"));
    (code, report["findings"].as_array().unwrap().clone())
}

/// Returns the severities of the findings with this identifier, worst first.
fn of<'a>(findings: &'a [Value], id: &str) -> Vec<&'a str> {
    let severities = ["error", "warning", "note", "ok"];
    let mut found: Vec<&str> = findings
        .iter()
        .filter(|finding| finding["id"] == id)
        .map(|finding| finding["severity"].as_str().unwrap())
        .collect();
    found.sort_by_key(|severity| severities.iter().position(|s| s == severity));
    found
}

/// Lists everything in a directory: kind, mode, owner, time of change and content of each file.
fn contents(dir: &Path) -> BTreeMap<PathBuf, (u32, u32, i64, i64, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let mut bytes = Vec::new();
        if meta.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        } else if !meta.file_type().is_socket() {
            bytes = fs::read(&path).unwrap();
        }
        let state = (
            meta.mode(),
            meta.uid(),
            meta.mtime(),
            meta.mtime_nsec(),
            bytes,
        );
        all.insert(path, state);
    }
    all
}

#[test]
fn it_changes_nothing() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.volume("b.img", "32M", &[]);
    let mut bytes = fs::read(s.path("b.img")).unwrap();
    bytes[5000] ^= 1;
    fs::write(s.path("b.img"), bytes).unwrap();
    fs::write(s.path("up.toml"), "[volume.b]\ndevice = \"b.img\"\n").unwrap();
    // Read-only: a writer renews its record in the image.
    s.attach(&["a.img", "--read-only"]);
    // A socket that a killed process has left.
    let listener = std::os::unix::net::UnixListener::bind(s.path("run/dead.control")).unwrap();
    drop(listener);
    let before = contents(&s.path(""));
    let (code, findings) = doctor(&s, &["--config", "up.toml"]);
    doctor(&s, &["a"]);
    s.run(&["doctor", "b.img"]).code(26);
    let after = contents(&s.path(""));
    assert_eq!(code, 26, "{findings:#?}");
    assert_eq!(of(&findings, "service.leftover"), ["note"]);
    let names = |all: &BTreeMap<PathBuf, _>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&before), names(&after));
    for (path, state) in &before {
        assert!(after.get(path) == Some(state), "{} changed", path.display());
    }
    s.detach("a");
}

#[test]
fn a_damaged_copy_of_the_header_is_an_error_with_a_command_that_repairs_it() {
    let s = Sandbox::new();
    let image = s.volume("a.img", "32M", &[]);
    let (_, findings) = doctor(&s, &["a.img"]);
    assert_eq!(of(&findings, "volume.header"), ["ok"]);
    let mut bytes = fs::read(&image).unwrap();
    bytes[HEADER_COPY + 5000] ^= 1;
    fs::write(&image, &bytes).unwrap();
    let (code, findings) = doctor(&s, &["a.img"]);
    assert_eq!(code, 26);
    let damaged = findings
        .iter()
        .find(|f| f["id"] == "volume.header")
        .unwrap();
    assert_eq!(damaged["severity"], "error");
    let command = damaged["command"].as_str().unwrap();
    s.run(&command.split(' ').skip(1).collect::<Vec<_>>()).ok();
    let (_, findings) = doctor(&s, &["a.img"]);
    assert_eq!(of(&findings, "volume.header"), ["ok"]);
    // Both copies: only a backup helps.
    bytes[5000] ^= 1;
    fs::write(&image, &bytes).unwrap();
    let (_, findings) = doctor(&s, &["a.img"]);
    assert_eq!(of(&findings, "volume.header"), ["error"]);
    // The magic, too: the trust store still knows the volume.
    fs::write(&image, vec![0; 32 << 20]).unwrap();
    let (_, findings) = doctor(&s, &["a.img"]);
    assert_eq!(of(&findings, "volume.trust"), ["error"]);
}

#[test]
fn keys_and_backups_are_judged() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let judged = || {
        let (_, findings) = doctor(&s, &["a.img"]);
        let ids = [
            "volume.keys",
            "volume.recovery",
            "volume.backup",
            "volume.kdf",
        ];
        ids.map(|id| of(&findings, id).first().map(|s| (*s).to_owned()))
    };
    let is = |expected: [&str; 4]| {
        let expected = expected.map(|s| (!s.is_empty()).then(|| s.to_owned()));
        assert_eq!(judged(), expected);
    };
    is(["warning", "note", "warning", ""]);
    // The command that the finding names.
    let (_, findings) = doctor(&s, &["a.img"]);
    let backup = findings
        .iter()
        .find(|f| f["id"] == "volume.backup")
        .unwrap();
    let command = backup["command"].as_str().unwrap();
    s.run(&command.split(' ').skip(1).collect::<Vec<_>>()).ok();
    is(["warning", "note", "note", ""]);
    s.key("safe");
    s.run(&["volume", "key", "add", "a.img", "--recovery", "safe"])
        .ok();
    is(["ok", "ok", "warning", ""]);
    // The sandbox has a cheap key derivation.
    let add = [
        "volume",
        "key",
        "add",
        "a.img",
        "--new-passphrase-fd",
        "0",
        "--key",
        "owner",
    ];
    s.run_with_input(&add, b"words\n").ok();
    is(["ok", "ok", "warning", "warning"]);
}

#[test]
fn an_old_header_and_an_exchanged_volume_are_errors() {
    let s = Sandbox::new();
    let image = s.volume("a.img", "32M", &[]);
    let old = fs::read(&image).unwrap();
    s.key("user");
    s.run(&["volume", "key", "add", "a.img", "--user", "user"])
        .ok();
    let (_, findings) = doctor(&s, &["a.img"]);
    assert_eq!(of(&findings, "volume.trust"), ["ok"]);
    fs::write(&image, old).unwrap();
    let (code, findings) = doctor(&s, &["a.img"]);
    assert_eq!((code, of(&findings, "volume.trust")), (26, vec!["error"]));
    let other = s.volume("b.img", "32M", &[]);
    fs::copy(other, &image).unwrap();
    let (_, findings) = doctor(&s, &["a.img"]);
    assert_eq!(of(&findings, "volume.trust"), ["error"]);
    // Without names, the volumes of the trust store are checked.
    let (_, findings) = doctor(&s, &[]);
    assert_eq!(of(&findings, "volume.trust"), ["error", "ok"]);
    fs::remove_file(&image).unwrap();
    let (_, findings) = doctor(&s, &[]);
    assert_eq!(of(&findings, "volume.missing"), ["note"]);
}

#[test]
fn a_broken_configuration_is_reported_instead_of_stopping_the_check() {
    let s = Sandbox::new();
    let file = s.path("evfs.toml");
    fs::write(&file, "threads = 0\nthreds = 1\n").unwrap();
    let mut command = s.evfs();
    command
        .env("EVFS_CONFIG", &file)
        .env("EVFS_THREDS", "1")
        .args(["--json", "doctor"]);
    let ran = Ran::of(&mut command).code(26);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(of(findings, "config.value"), ["error"]);
    assert_eq!(of(findings, "config.unknown-key"), ["error"]);
    assert_eq!(of(findings, "config.variable"), ["warning"]);
    // All other commands refuse it.
    let mut status = s.evfs();
    Ran::of(status.env("EVFS_CONFIG", &file).arg("status")).code(2);
    fs::write(s.path("up.toml"), "[volume.a]\ndevise = \"a.img\"\n").unwrap();
    let (code, findings) = doctor(&s, &["--config", "up.toml"]);
    assert_eq!((code, of(&findings, "config.tables")), (26, vec!["error"]));
}

#[test]
fn modes_that_let_others_in_are_errors() {
    let s = Sandbox::new();
    s.key("owner");
    let (_, findings) = doctor(&s, &[]);
    assert_eq!(of(&findings, "config.secret-file"), ["ok"]);
    let set_mode = |name: &str, mode| {
        fs::set_permissions(s.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode("keys/owner.key", 0o644);
    set_mode("keys", 0o777);
    let (code, findings) = doctor(&s, &[]);
    assert_eq!(code, 26);
    assert_eq!(of(&findings, "config.secret-file"), ["error"]);
    assert_eq!(of(&findings, "config.directory")[0], "error");
    set_mode("keys", 0o700);
}

#[test]
fn services_are_compared_with_this_version() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.attach(&["a.img"]);
    let (_, findings) = doctor(&s, &["a"]);
    assert_eq!(of(&findings, "service.version"), ["ok"]);
    assert_eq!(of(&findings, "volume.header"), ["ok"]);
    let status = s.json(&["status"]);
    assert_eq!(
        status["volumes"][0]["version"],
        env!("CARGO_PKG_VERSION"),
        "{status}"
    );
    s.detach("a");
}

#[test]
fn the_text_is_grouped_and_ends_with_a_verdict() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let ran = s.run(&["doctor", "a.img"]);
    assert!(matches!(ran.status.code(), Some(26 | 27)), "{ran:?}");
    let places = ["Machine", "Configuration", "Volumes", "Free space"]
        .map(|heading| ran.stdout.lines().position(|line| line == heading));
    assert!(places.iter().all(Option::is_some), "{}", ran.stdout);
    assert!(places.is_sorted());
    assert!(ran.stdout.contains("[volume.keys]"), "{}", ran.stdout);
    assert!(ran.stdout.contains("$ evfs volume key add a.img"));
    let verdict = ran.stdout.lines().last().unwrap();
    assert!(verdict.contains("warning") && verdict.contains(" ok, "));
    let problems = s.run(&["doctor", "a.img", "--problems"]).stdout;
    assert!(!problems.contains("\n  ok "), "{problems}");
    assert_eq!(problems.lines().last(), Some(verdict));
    s.run(&["doctor", "nothing"]).code(10);
    let help = s.run(&["doctor", "--help"]).ok().stdout;
    assert!(help.contains("Examples:") && help.contains("changes"));
}

#[test]
fn without_a_cluster_nothing_is_said_about_one_and_its_certificates_are_judged() {
    let s = Sandbox::new();
    let (_, findings) = doctor(&s, &[]);
    assert!(findings.iter().all(|f| f["area"] != "cluster"));
    for (name, mode) in [("ca", 0o644), ("cert", 0o644), ("key", 0o600)] {
        fs::write(s.path(name), "not PEM").unwrap();
        fs::set_permissions(s.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let path = |name: &str| s.path(name).to_str().unwrap().to_owned();
    let (ca, cert, key) = (path("ca"), path("cert"), path("key"));
    let all = [
        ("EVFS_CLUSTER_ETCD", "https://127.0.0.1:1"),
        ("EVFS_CLUSTER_TLS_CA", &ca),
        ("EVFS_CLUSTER_TLS_CERT", &cert),
        ("EVFS_CLUSTER_TLS_KEY", &key),
    ];
    let judged = |variables: &[(&str, &str)]| {
        let (_, findings) = doctor_with(&s, variables, &[]);
        // The files have no certificates in them, so etcd cannot be asked.
        assert_eq!(of(&findings, "cluster.member"), ["error"]);
        assert_eq!(of(&findings, "cluster.name"), ["note"]);
        let cluster = findings.iter().filter(|f| f["area"] == "cluster");
        for finding in cluster.filter(|f| f["severity"] == "error") {
            assert!(finding["remedy"].is_string(), "{finding}");
        }
        let found = of(&findings, "cluster.certificate");
        found.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(judged(&all), ["ok"; 3]);
    fs::set_permissions(s.path("key"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(judged(&all), ["error", "ok", "ok"]);
    fs::remove_file(s.path("ca")).unwrap();
    assert_eq!(judged(&all), ["error", "error", "ok"]);
    fs::remove_file(s.path("key")).unwrap();
    assert_eq!(judged(&all), ["error", "error", "ok"]);
    // A certificate without its key.
    assert_eq!(judged(&all[..3]), ["error", "error", "ok"]);
}

mod needs_peer {
    use super::*;
    use test_support::etcd::Etcd;
    use tests::Killed;
    use tests::targets::{free_port, nbdkit};

    #[test]
    fn a_machine_of_a_cluster_is_compared_with_etcd_and_its_interfaces() {
        let s = Sandbox::new();
        let mut etcd = Etcd::start(&std::env::temp_dir(), 3);
        let endpoints = etcd.endpoints().join(" ");
        let set = [
            ("EVFS_CLUSTER_ETCD", endpoints.as_str()),
            ("EVFS_CLUSTER_NAME", "m1"),
        ];
        s.volume("a.img", "32M", &[]);
        let tables = "[volume.a]\ndevice = \"a.img\"\naddress = \"127.0.0.99/32@lo\"\n\
                      [volume.b]\ndevice = \"b.img\"\naddress = \"10.0.0.9/24@none0\"\n\
                      [volume.c]\ndevice = \"c.img\"\n";
        fs::write(s.path("up.toml"), tables).unwrap();
        let evfs = |args: &[&str]| {
            let mut command = s.evfs();
            command.args(args).envs(set);
            command
        };
        Ran::of(&mut evfs(&["cluster", "init", "a", "--config", "up.toml"])).ok();
        let examine = || doctor_with(&s, &set, &["--config", "up.toml"]).1;
        let is = |findings: &[Value], id: &str, expected: &[&str]| {
            assert_eq!(of(findings, id), expected, "{id}: {findings:#?}");
        };
        let keys = || etcd.ctl(&["get", "--prefix", ""]);
        let before = keys();
        let findings = examine();
        assert_eq!(keys(), before, "a check changed something");
        is(&findings, "cluster.member", &["ok"; 3]);
        is(&findings, "cluster.majority", &["ok"]);
        is(&findings, "cluster.name", &["ok"]);
        is(&findings, "cluster.interface", &["error", "ok"]);
        is(&findings, "cluster.unit", &["warning", "note", "ok"]);
        is(&findings, "cluster.certificate", &[]);
        let warned = |f: &&Value| f["id"] == "cluster.unit" && f["severity"] == "warning";
        let absent = findings.iter().find(warned).unwrap();
        assert_eq!(absent["object"], "[volume.b]");
        assert_eq!(absent["command"], "evfs cluster init b");

        // The machine itself, and then another host with its name.
        let mut up = evfs(&["up", "up.toml", "--cluster", "--only", "c"]);
        let up = Killed(up.spawn().unwrap());
        let lives = || etcd.ctl(&["get", "--prefix", "/evfs/machine/"]);
        tests::wait_until("the machine lives", || !lives().is_empty());
        is(&examine(), "cluster.name", &["ok"]);
        drop(up);
        tests::wait_until("its lease has ended", || lives().is_empty());
        etcd.ctl(&["put", "/evfs/machine/m1", r#"{"host":"other"}"#]);
        etcd.ctl(&["put", "/evfs/unit/a", "unreadable"]);
        let findings = examine();
        is(&findings, "cluster.name", &["error"]);
        is(&findings, "cluster.unit", &["error", "warning", "note"]);

        etcd.kill(0);
        etcd.wait_until_healthy();
        let findings = examine();
        is(&findings, "cluster.member", &["warning", "ok", "ok"]);
        is(&findings, "cluster.majority", &["ok"]);
        etcd.kill(1);
        let findings = examine();
        is(&findings, "cluster.member", &["warning", "warning", "ok"]);
        is(&findings, "cluster.majority", &["error"]);
        is(&findings, "cluster.name", &["note"]);
        is(&findings, "cluster.unit", &["note"]);
        for finding in findings.iter().filter(|f| f["area"] == "cluster") {
            let is_problem = matches!(finding["severity"].as_str(), Some("warning" | "error"));
            assert!(!is_problem || finding["remedy"].is_string(), "{finding}");
        }
    }

    #[test]
    fn failed_and_single_paths_are_found() {
        let s = Sandbox::new();
        let image = s.volume("a.img", "32M", &[]);
        let port = free_port();
        let server = nbdkit(&image, port);
        s.run(&["lun", "scan", &format!("nbd://127.0.0.1:{port}/e")])
            .ok();
        let before = contents(&s.path("state"));
        let (_, findings) = doctor(&s, &["disk1"]);
        assert_eq!(of(&findings, "lun.paths"), ["ok"]);
        assert_eq!(of(&findings, "lun.redundancy"), ["warning"]);
        assert_eq!(of(&findings, "volume.header"), ["ok"]);
        drop(server);
        let (code, findings) = doctor(&s, &["disk1"]);
        assert_eq!((code, of(&findings, "lun.paths")), (26, vec!["error"]));
        assert_eq!(of(&findings, "volume.readable"), ["error"]);
        assert!(contents(&s.path("state")) == before, "the state changed");
    }
}
