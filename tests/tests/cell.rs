//! Cells from outside: `evfs cell` and `evfs serve`, on all kinds of devices, as any user.

use serde_json::Value;
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use tests::cell::{address, create_cell};
use tests::targets::{free_port, image, nbdkit_that_fails};
use tests::{Killed, NOBODY, Ran, Sandbox, needs_root, peer, program, wait_until};

/// Returns a sandbox with a cell in a file, and its address.
fn cell() -> (Sandbox, String) {
    let s = Sandbox::new();
    let at = create_cell(&s);
    (s, at)
}

fn serve(s: &Sandbox, more: &[&str]) -> Value {
    let mut args = vec!["serve", "cell.img", "--background"];
    args.extend(more);
    s.json(&args)
}

/// Reports whether our file server answers at an address.
fn answers(at: &str) -> bool {
    let said = peer("rxdebug", &[at, "7000", "-version"]);
    said.contains("EVFS")
}

fn volumes(value: &Value) -> Vec<&str> {
    let all = value["volumes"].as_array().expect("volumes").iter();
    all.map(|v| v["name"].as_str().expect("a name")).collect()
}

fn is_clean(s: &Sandbox, device: &str) {
    assert_eq!(s.json(&["fsck", device])["clean"], true);
}

#[test]
fn init_makes_a_cell_of_any_device_and_keeps_what_is_there() {
    let s = Sandbox::new();
    // A file that is created.
    let made = s.json(&["cell", "init", "a.example", "new.img", "--size", "64M"]);
    assert_eq!(
        (&made["formatted"], &made["encrypted"]),
        (&true.into(), &false.into())
    );
    assert_eq!(volumes(&made), ["root.afs", "root.cell"]);
    let lines = made["cellservdb"].as_str().unwrap();
    assert!(
        lines.starts_with(">a.example ") && lines.contains("\n127.0.0.1 "),
        "{lines}"
    );
    for (way, command) in [
        ("kafs", "%a.example:root.cell."),
        ("afsd_fuse", "afsd.fuse -dynroot"),
    ] {
        assert!(made[way].as_str().unwrap().contains(command), "{made}");
    }
    is_clean(&s, "new.img");
    // An encrypted volume.
    s.volume("secret.img", "64M", &[]);
    let made = s.json(&["cell", "init", "b.example", "secret.img"]);
    assert_eq!(
        (&made["formatted"], &made["encrypted"]),
        (&true.into(), &true.into())
    );
    // An empty file.
    fs::File::create(s.path("empty.img"))
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    s.run(&["cell", "init", "c.example", "empty.img"]).ok();
    // An EVFS file system keeps its filesets, which become volumes.
    s.run(&["format", "old.img", "--size", "64M"]).ok();
    s.run(&["fileset", "create", "old.img", "root.cell"]).ok();
    let made = s.json(&["cell", "init", "d.example", "old.img"]);
    assert_eq!(made["formatted"], false);
    assert_eq!(volumes(&made), ["main", "root.afs", "root.cell"]);
    // A second init changes the addresses, but not the name.
    let at = address().to_string();
    s.run(&["cell", "init", "d.example", "old.img", "--listen", &at])
        .ok();
    let status = s.json(&["cell", "status", "old.img"]);
    let status = &status["cells"][0];
    assert_eq!(
        (&status["cell"], &status["listen"][0]),
        (&"d.example".into(), &at.into())
    );
    let ran = s.run(&["cell", "init", "e.example", "old.img"]).code(2);
    assert!(ran.stderr.contains("d.example"), "{}", ran.stderr);
}

/// An address that is not loopback.
const OUTER: &str = "10.88.0.1";

#[test]
fn a_dry_run_asks_the_server_of_a_cell_and_changes_nothing() {
    let (s, _) = cell();
    serve(&s, &[]);
    let listed = || s.json(&["cell", "volume", "list", "cell"]);
    let before = listed();
    for (args, code) in [
        (&["create", "cell", "new", "--mount", "/new"][..], 0),
        (&["create", "cell", "new", "--mount", "/none/new"], 10),
        (&["create", "cell", "new.readonly"], 2),
        (&["create", "cell", "root.cell"], 2),
        (&["mount", "cell", "root.afs", "/afs"], 0),
        (&["clone", "cell", "root.cell"], 0),
        (&["quota", "cell", "none", "1M"], 10),
        (&["remove", "cell", "root.cell", "--force"], 2),
    ] {
        let dry = [&["cell", "volume"], args, &["--dry-run"]].concat();
        s.run(&dry).code(code);
        assert_eq!(listed(), before, "{args:?}");
    }
    s.detach("cell");
}

/// Returns a command for the program in a network namespace that has this address.
fn elsewhere(s: &Sandbox, args: &[&str]) -> Command {
    let up = format!("ip link set lo up; ip address add {OUTER}/32 dev lo; exec \"$@\"");
    let own = ["--user", "--map-root-user", "--net", "sh", "-ec", &up, "sh"];
    let mut command = Command::new("unshare");
    command.args(own).arg(program()).args(args);
    s.environment(&mut command);
    command
}

#[test]
fn access_lists_are_read_and_changed_served_or_not() {
    let (s, _) = cell();
    let get = || s.json(&["cell", "acl", "get", "cell.img", "root.cell"]);
    let set = |more: &[&str]| {
        let mut args = vec!["cell", "acl", "set", "cell.img", "root.cell", "/"];
        args.extend(more);
        s.json(&args)
    };
    for served in [false, true] {
        if served {
            serve(&s, &[]);
        }
        set(&["--clear", "system:anyuser", "read", "10.0.0.0/8", "write"]);
        let list = set(&["10.0.0.66", "all", "--negative"]);
        assert_eq!(list, get());
        let entries = |key: &str| -> Vec<(String, String)> {
            let text = |v: &Value| v.as_str().unwrap().to_owned();
            let all = list[key].as_array().unwrap().iter();
            all.map(|e| (text(&e["name"]), text(&e["rights"])))
                .collect()
        };
        let pair = |name: &str, rights: &str| (name.to_owned(), rights.to_owned());
        let positive = [pair("system:anyuser", "rl"), pair("10.0.0.0/8", "rlidwk")];
        assert_eq!(entries("positive"), positive);
        assert_eq!(entries("negative"), [pair("10.0.0.66", "rlidwka")]);
        let list = set(&["10.0.0.0/8", "none"]);
        assert_eq!(list["positive"].as_array().unwrap().len(), 1);
        let kept = get();
        for (code, more) in [
            (2, "root.cell / alice read"),
            (2, "root.cell / system:anyuser x"),
            (2, "root.cell / system:anyuser"),
            (2, "root.cell / system:anyuser read 10.0.0.1"),
            (10, "other / system:anyuser read"),
            (10, "root.cell /no/such system:anyuser read"),
        ] {
            let mut args = vec!["cell", "acl", "set", "cell.img"];
            args.extend(more.split(' '));
            s.run(&args).code(code);
        }
        assert_eq!(get(), kept);
    }
}

/// Starts a server in the foreground.
fn foreground(s: &Sandbox, at: &str) -> Killed {
    let mut command = s.evfs();
    command.args(["serve", "cell.img"]).stdout(Stdio::null());
    let child = Killed(command.spawn().unwrap());
    wait_until("it is served", || answers(at));
    child
}

/// Mounts the volume at the root of the cell at `mnt`.
fn mount_root_cell(s: &Sandbox) {
    fs::create_dir(s.path("mnt")).unwrap();
    let mount = ["mount", "cell.img", "mnt", "--background"];
    s.run(&[&mount[..], &["--fileset", "root.cell"]].concat())
        .ok();
}

mod needs_root {
    use super::*;

    #[test]
    fn a_record_that_makes_no_sense_is_said_to_be_so() {
        let (s, _) = cell();
        needs_root("trusted attributes of a mount");
        mount_root_cell(&s);
        let mnt = s.path("mnt");
        peer(
            "setfattr",
            &[
                "-n",
                "trusted.afs.cell",
                "-v",
                "evfs-cell 9",
                mnt.to_str().unwrap(),
            ],
        );
        s.run(&["unmount", "mnt"]).ok();
        for verb in [
            "serve cell.img",
            "cell status cell.img",
            "cell init test.local cell.img",
        ] {
            let ran = s.run(&verb.split(' ').collect::<Vec<_>>()).code(1);
            assert!(
                ran.stderr.contains("later version"),
                "{verb}: {}",
                ran.stderr
            );
        }
    }

    #[test]
    fn an_ordinary_user_needs_no_root() {
        needs_root("becoming another user");
        let home = tempfile::tempdir().unwrap();
        let copy = home.path().join("evfs");
        fs::copy(program(), &copy).unwrap();
        std::os::unix::fs::chown(home.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        let at = address().to_string();
        let run = |args: &[&str]| {
            let mut command = Command::new(&copy);
            command
                .env_clear()
                .env("HOME", home.path())
                .env("EVFS_RUN_DIR", home.path().join("run"))
                .current_dir(home.path())
                .uid(NOBODY)
                .gid(NOBODY);
            Ran::of(command.args(args)).ok()
        };
        run(&[
            "cell",
            "init",
            "a.example",
            "cell.img",
            "--size",
            "64M",
            "--listen",
            &at,
        ]);
        run(&["serve", "cell.img", "--background"]);
        assert!(answers(&at));
        run(&["cell", "volume", "create", "cell", "v", "--mount", "/v"]);
        run(&["detach", "cell"]);
        assert!(Path::new(&home.path().join("cell.img")).exists());
    }
}

mod needs_peer {
    use super::*;

    #[test]
    fn init_refuses_what_it_would_destroy_and_names_that_are_none() {
        let s = Sandbox::new();
        let image = s.path("ext4.img");
        fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        Ran::of(Command::new("/sbin/mkfs.ext4").arg("-qF").arg(&image)).ok();
        let before = fs::read(&image).unwrap();
        let ran = s.run(&["cell", "init", "a.example", "ext4.img"]).code(2);
        assert!(
            ran.stderr.contains("ext4") && ran.stderr.contains("evfs format --force"),
            "{}",
            ran.stderr
        );
        assert_eq!(fs::read(&image).unwrap(), before, "it was touched");
        for bad in [
            "",
            ".",
            "A.example",
            "a b",
            "a/b",
            "-a",
            "a..b",
            "10.0.0.1",
            &"a".repeat(64),
        ] {
            s.run(&["cell", "init", "--size", "64M", "--", bad, "no.img"])
                .code(2);
            assert!(!s.path("no.img").exists(), "made for {bad}");
        }
        s.run(&["cell", "init", "a.example", "missing.img"])
            .code(10);
        s.run(&["cell", "init", "a.example", "small.img", "--size", "1M"])
            .code(2);
        assert!(!s.path("small.img").exists(), "what failed was left");
        s.run(&[
            "cell",
            "init",
            "a.example",
            "x.img",
            "--size",
            "64M",
            "--listen",
            "0.0.0.0",
        ])
        .code(0);
        let wrong: [&[&str]; 4] = [
            &["--listen", "::1"],
            &["--listen", "example.org"],
            &["--listen", "127.0.0.1", "--listen", "127.0.0.1"],
            &["--size", "64M"],
        ];
        for more in wrong {
            let mut args = vec!["cell", "init", "a.example", "x.img"];
            args.extend(more);
            s.run(&args).code(2);
        }
    }

    #[test]
    fn serve_says_what_it_serves_and_every_verb_works_on_it() {
        let (s, at) = cell();
        let status = serve(&s, &[]);
        assert_eq!(
            (&status["cell"], &status["exports"][0]["at"]),
            (&"test.local".into(), &at.as_str().into())
        );
        assert_eq!(status["warning"], Value::Null, "loopback needs none");
        assert!(answers(&at));
        let shown = s.json(&["cell", "status", "cell", "--clients"]);
        let shown = &shown["cells"][0];
        assert_eq!(
            (&shown["served"], &shown["anonymous_write"]),
            (&true.into(), &false.into())
        );
        assert!(shown["clients"].as_array().unwrap().is_empty(), "{shown}");
        assert!(
            shown["stats"]["files"]["datagrams_in"].as_u64() > Some(0),
            "{shown}"
        );
        // The same by its device, and without a name.
        assert_eq!(
            s.json(&["cell", "status", "cell.img"])["cells"][0]["pid"],
            shown["pid"]
        );
        assert_eq!(s.json(&["cell", "status"])["cells"][0]["pid"], shown["pid"]);
        for verb in [
            "status",
            "stats cell",
            "cache show --files",
            "cache flush cell",
            "cache drop cell",
            "df cell.img",
            "cell status --clients",
        ] {
            s.run(&verb.split(' ').collect::<Vec<_>>()).ok();
        }
        // Filesets that are created while it is served become volumes at once.
        let made = s.run(&["fileset", "create", "cell.img", "more"]).ok();
        for said in [
            "Clients of the cell test.local may read",
            "evfs cell acl set",
        ] {
            assert!(made.stdout.contains(said), "{}", made.stdout);
        }
        assert!(volumes(&s.json(&["cell", "volume", "list", "cell"])).contains(&"more"));
        s.run(&["fileset", "snapshot", "cell.img", "more", "more.backup"])
            .ok();
        assert!(volumes(&s.json(&["cell", "volume", "list", "cell"])).contains(&"more.backup"));
        s.run(&["fileset", "remove", "cell.img", "more"]).code(11);
        // A served device is in use.
        for verb in [
            "mount cell.img run",
            "serve cell.img",
            "fsck cell.img",
            "cell init test.local cell.img",
        ] {
            let ran = s.run(&verb.split(' ').collect::<Vec<_>>()).code(11);
            assert!(ran.stderr.contains("evfs detach"), "{verb}: {}", ran.stderr);
        }
        s.run(&["detach", "cell"]).ok();
        assert!(!s.path("run/cell.control").exists());
        is_clean(&s, "cell.img");
        s.run(&["cell", "status"]).code(10);
        s.run(&["cell", "status", "cell"]).code(10);
    }

    #[test]
    fn what_listens_beyond_this_machine_is_warned_of() {
        let (s, _) = cell();
        let at = address().to_string();
        // Listening at all addresses needs an address to announce, and no further listening address.
        let all = Ipv4Addr::UNSPECIFIED.to_string();
        s.run(&["serve", "cell.img", "--listen", &all]).code(2);
        let both = s
            .run(&["serve", "cell.img", "--listen", &all, "--listen", &at])
            .code(2);
        assert!(both.stderr.contains("alone"), "{}", both.stderr);
        for (more, word) in [
            (vec![], Some("can read the data")),
            (
                vec!["--anonymous-write"],
                Some("can read and change the data"),
            ),
            (
                vec!["--anonymous-write", "--allow", "10.0.0.0/8"],
                Some("forged"),
            ),
            (vec!["--allow", "10.0.0.0/8"], None),
        ] {
            let mut args = vec!["serve", "cell.img", "--background", "--listen", OUTER];
            args.extend(more);
            let ran = Ran::of(&mut elsewhere(&s, &args)).ok();
            assert_eq!(
                ran.stderr.contains("warning: "),
                word.is_some(),
                "{}",
                ran.stderr
            );
            assert!(
                ran.stderr.contains(word.unwrap_or_default()),
                "{}",
                ran.stderr
            );
            s.detach("cell");
        }
    }

    #[test]
    fn ports_that_are_taken_are_named_and_so_is_who_has_them() {
        let (s, at) = cell();
        let other = address().to_string();
        s.run(&[
            "cell",
            "init",
            "other.local",
            "other.img",
            "--size",
            "64M",
            "--listen",
            &other,
        ])
        .ok();
        serve(&s, &[]);
        let ran = s
            .run(&["serve", "other.img", "--listen", &other, "--listen", &at])
            .code(11);
        assert!(
            ran.stderr.contains("`cell` is served there"),
            "{}",
            ran.stderr
        );
        // Taken by another program.
        let third: Ipv4Addr = address();
        let _taken = UdpSocket::bind((third, 7000)).unwrap();
        let third = third.to_string();
        let ran = s.run(&["serve", "other.img", "--listen", &third]).code(11);
        for word in ["7000", third.as_str(), "ss -ulpn", "--listen"] {
            assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
        }
        // An address of another machine (TEST-NET-1).
        let ran = s
            .run(&["serve", "other.img", "--listen", "192.0.2.1"])
            .code(10);
        assert!(ran.stderr.contains("--announce"), "{}", ran.stderr);
        // The failed attempts hold no resource.
        s.run(&["serve", "other.img", "--background"]).ok();
        assert!(answers(&at) && answers(&other));
        let shown = s.json(&["cell", "status"]);
        assert_eq!(shown["cells"].as_array().unwrap().len(), 2);
    }

    /// Goal: the status of a cell reports that it has become read-only, and why.
    #[test]
    fn a_cell_that_became_read_only_by_a_write_error_says_so() {
        let s = Sandbox::new();
        let at = address().to_string();
        let (disk, broken, port) = (image(&s, "disk", 64 << 20), s.path("broken"), free_port());
        let _nbdkit = nbdkit_that_fails(&disk, port, &broken);
        s.run(&["lun", "scan", &format!("nbd://127.0.0.1:{port}/e")])
            .ok();
        s.run(&["cell", "init", "test.local", "disk1", "--listen", &at])
            .ok();
        s.run(&["serve", "disk1", "--name", "cell", "--background"])
            .ok();
        let status = || s.json(&["cell", "status", "cell"])["cells"][0].clone();
        assert_eq!(status()["read_only"], false);
        fs::write(&broken, "").unwrap();
        wait_until("it is only read", || {
            s.run(&["cell", "volume", "create", "cell", "more"]);
            status()["read_only"] == true
        });
        let warning = status()["warning"].as_str().unwrap_or_default().to_owned();
        assert!(warning.contains("read-only after an error"), "{warning}");
        let shown = s.run(&["cell", "status", "cell"]).ok().stdout;
        let second = shown.lines().nth(1).unwrap_or_default();
        assert!(second.contains("READ-ONLY"), "{shown}");
        assert!(shown.contains(&warning), "{shown}");
        fs::remove_file(&broken).unwrap();
        s.run(&["detach", "cell", "--force"]);
    }

    #[test]
    fn several_addresses_are_served_and_others_announced() {
        let (s, _) = cell();
        let (a, b) = (address().to_string(), address().to_string());
        serve(
            &s,
            &[
                "--listen",
                &a,
                "--listen",
                &b,
                "--announce",
                "192.0.2.7",
                "--allow",
                "127.0.0.0/8",
            ],
        );
        assert!(answers(&a) && answers(&b));
        let shown = s.json(&["cell", "status", "cell"]);
        let shown = &shown["cells"][0];
        assert_eq!(shown["announced"][0], "192.0.2.7");
        assert_eq!(shown["allowed"][0], "127.0.0.0/8");
        assert!(
            shown["cellservdb"]
                .as_str()
                .unwrap()
                .contains("\n192.0.2.7 ")
        );
        for bad in [
            &["--listen", "x"][..],
            &["--announce", "::1"],
            &["--allow", "10.0.0.0/33"],
            &["--threads", "0"],
            &["--name", "a/b"],
        ] {
            let mut args = vec!["serve", "cell.img"];
            args.extend(bad);
            s.run(&args).code(2);
        }
    }

    #[test]
    fn volumes_are_made_limited_replicated_and_removed_served_or_not() {
        let (s, _) = cell();
        for served in [false, true] {
            if served {
                serve(&s, &["--anonymous-write"]);
            }
            let volume = |more: &str| {
                let (verb, rest) = more.split_once(' ').unwrap_or((more, ""));
                let mut args = vec!["cell", "volume", verb, "cell.img"];
                args.extend(rest.split(' ').filter(|word| !word.is_empty()));
                s.run(&args)
            };
            let listed = || {
                let value = s.json(&["cell", "volume", "list", "cell.img"]);
                volumes(&value)
                    .into_iter()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            };
            volume("create projects --quota 1M --mount /projects").ok();
            volume("create deep --mount /projects/deep").ok();
            volume("mount deep /again --rw").ok();
            volume("clone projects").ok();
            volume("clone projects").ok();
            volume("clone projects --backup").ok();
            let all = [
                "deep",
                "projects",
                "projects.backup",
                "projects.readonly",
                "root.afs",
                "root.cell",
            ];
            assert_eq!(listed(), all);
            volume("quota projects 2M").ok();
            let value = s.json(&["cell", "volume", "list", "cell.img"]);
            assert_eq!(value["volumes"][1]["quota_bytes"], 2 << 20);
            volume("quota projects 0").ok();
            for (code, wrong) in [
                (2, "create projects"),
                (2, "create 7"),
                (2, "create x.readonly"),
                (2, "create new --mount /projects"),
                (10, "create new --mount /no/such"),
                (2, "clone projects.readonly"),
                (10, "clone other"),
                (10, "quota other 1M"),
                (2, "quota projects x"),
                (2, "remove root.cell --force"),
                (10, "remove other"),
                // It contains the mount point.
                (2, "remove projects"),
            ] {
                volume(wrong).code(code);
            }
            assert_eq!(listed(), all);
            volume("remove projects --force").ok();
            volume("remove deep").ok();
            assert_eq!(listed(), ["root.afs", "root.cell"]);
            // The mount points remain; clients can remove them, or a user in a mount.
            let names = ["projects", "again"];
            if !served {
                mount_root_cell(&s);
                for name in names {
                    let link = fs::read_link(s.path("mnt").join(name)).unwrap();
                    assert!(
                        matches!(link.to_str(), Some("#projects." | "%deep.")),
                        "{link:?}"
                    );
                    fs::remove_file(s.path("mnt").join(name)).unwrap();
                }
                s.run(&["unmount", "mnt"]).ok();
            }
        }
        s.detach("cell");
        is_clean(&s, "cell.img");
    }

    #[test]
    fn a_signal_ends_it_in_order_and_a_kill_leaves_nothing_to_be_done() {
        let (s, at) = cell();
        for n in 0..3 {
            let mut server = foreground(&s, &at);
            let name = format!("v{n}");
            s.run(&[
                "cell",
                "volume",
                "create",
                "cell",
                &name,
                "--mount",
                &format!("/{name}"),
            ])
            .ok();
            server.signal(libc::SIGKILL);
            server.0.wait().unwrap();
        }
        let mut server = foreground(&s, &at);
        let listed = s.json(&["cell", "volume", "list", "cell"]);
        assert_eq!(
            volumes(&listed),
            ["root.afs", "root.cell", "v0", "v1", "v2"]
        );
        server.signal(libc::SIGTERM);
        assert_eq!(server.0.wait().unwrap().code(), Some(143));
        assert!(!s.path("run/cell.control").exists());
        is_clean(&s, "cell.img");
    }

    #[test]
    fn an_encrypted_cell_takes_keys_as_volumes_do() {
        let s = Sandbox::new();
        let at = address().to_string();
        s.volume("secret.img", "64M", &[]);
        s.key("stranger");
        s.run(&[
            "cell",
            "init",
            "a.example",
            "secret.img",
            "--key",
            "stranger",
        ])
        .code(12);
        s.run(&["cell", "init", "a.example", "secret.img", "--key", "nobody"])
            .code(10);
        s.run(&["cell", "init", "a.example", "secret.img", "--listen", &at])
            .ok();
        s.run(&["serve", "secret.img", "--key", "stranger"])
            .code(12);
        s.run(&["cell", "volume", "list", "secret.img", "--key", "stranger"])
            .code(12);
        s.run(&["serve", "secret.img", "--background", "--key", "owner"])
            .ok();
        assert!(answers(&at));
        assert!(s.json(&["status"])["volumes"][0]["key_bits"].is_number());
        s.detach("secret");
        // An unencrypted cell accepts no key, and a device that is not a cell is not served.
        s.run(&["format", "clear.img", "--size", "64M"]).ok();
        s.run(&["serve", "clear.img", "--key", "owner"]).code(2);
        let ran = s.run(&["serve", "clear.img"]).code(10);
        assert!(ran.stderr.contains("evfs cell init"), "{}", ran.stderr);
        s.run(&["serve", "missing.img"]).code(10);
    }

    #[test]
    fn up_serves_what_a_table_names() {
        let (s, at) = cell();
        let table = format!(
            "[serve.campus]\ndevice = \"cell.img\"\nlisten = [\"{at}\"]\nallow = [\"127.0.0.0/8\"]\nanonymous-write = true\nthreads = 8\n"
        );
        fs::write(s.path("evfs.toml"), &table).unwrap();
        s.run(&["up", "evfs.toml", "--background"]).ok();
        assert!(answers(&at));
        let shown = s.json(&["cell", "status", "campus"]);
        let shown = &shown["cells"][0];
        assert_eq!(
            (&shown["threads"], &shown["anonymous_write"]),
            (&8.into(), &true.into())
        );
        s.run(&["down"]).ok();
        for wrong in ["allow = [\"x\"]", "listen = [\"x\"]", "at = \"/mnt\""] {
            fs::write(
                s.path("bad.toml"),
                format!("[serve.x]\ndevice = \"cell.img\"\n{wrong}\n"),
            )
            .unwrap();
            s.run(&["up", "bad.toml"]).code(2);
        }
    }
}
