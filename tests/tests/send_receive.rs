//! Sending snapshots and receiving them, from outside: between two mounted file systems, through
//! files, encrypted and authenticated, with a receiving server that is killed.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use tests::mounts::{Disk, On};
use tests::{Ran, Sandbox, needs_root, wait_until};

/// Writes a tree with links, holes, an access list, attributes and a device node.
fn fill(at: &Path) {
    let script = r#"set -e
        cd "$1"
        mkdir -p dir/below
        head -c 3000000 /dev/urandom > dir/data
        ln dir/data dir/below/link
        ln -s ../data dir/below/soft
        truncate -s 50M sparse; printf end >> sparse
        mknod dir/null c 1 3
        mkfifo fifo
        printf x > listed; setfacl -m u:4321:rw listed; setfacl -d -m g:4321:rx dir
        setfattr -n user.note -v remember listed
        chown 1234:4321 fifo; chmod 4711 listed
        touch -d '2001-02-03 04:05:06.789012345' dir/data
        touch "dir/$(printf 'odd\n name')""#;
    let mut bash = Command::new("bash");
    Ran::of(bash.args(["-c", script, "-"]).arg(at)).ok();
}

/// Changes the tree of [`fill`].
fn change(at: &Path) {
    let script = r#"set -e
        cd "$1"
        printf changed | dd of=dir/data bs=1 seek=1000000 conv=notrunc status=none
        mv dir/below moved
        rm fifo
        setfacl -b listed
        setfattr -x user.note listed
        fallocate -p -o 0 -l 8192 sparse
        head -c 100000 /dev/urandom > moved/new"#;
    let mut bash = Command::new("bash");
    Ran::of(bash.args(["-c", script, "-"]).arg(at)).ok();
}

/// Compares two trees in names, links, attributes, times, content and holes.
fn assert_same(one: &Path, two: &Path) {
    let list = |at: &Path| {
        let script = r#"set -e
            cd "$1"
            find . -printf '%P|%y|%m|%U:%G|%n|%s|%b|%T@|%C@|%l\n' | sort
            find . -type f -print0 | sort -z | xargs -0 sha256sum
            find . ! -type l -print0 | sort -z | xargs -0 getfacl -n
            find . -print0 | sort -z | while IFS= read -r -d '' f; do
                getfattr -h -d -m - "$f" | sort
            done
            find . \( -type b -o -type c \) -exec stat -c '%n %t:%T' {} +"#;
        let mut bash = Command::new("bash");
        Ran::of(bash.args(["-c", script, "-"]).arg(at)).ok().stdout
    };
    assert_eq!(list(one), list(two));
}

fn format(s: &Sandbox, image: &str) {
    s.run(&["format", image, "--size", "96M"]).ok();
}

fn mounted(s: &Sandbox, image: &str, dir: &str) -> PathBuf {
    let at = s.path(dir);
    fs::create_dir_all(&at).unwrap();
    s.run(&["mount", image, dir, "--background"]).ok();
    at
}

#[test]
fn increments_go_from_mount_to_mount() {
    needs_root("device nodes");
    let s = Sandbox::new();
    format(&s, "one.img");
    format(&s, "two.img");
    let (one, two) = (mounted(&s, "one.img", "one"), mounted(&s, "two.img", "two"));
    fill(&one);
    s.run(&["fileset", "snapshot", "one", "main", "monday"])
        .ok();
    let counted = s.json(&["fileset", "send", "one", "monday", "--dry-run"]);
    assert!(
        counted["data_bytes"].as_u64().unwrap() > 3_000_000,
        "{counted}"
    );
    assert!(counted["stream_bytes"].is_null(), "{counted}");
    // A pipe, as between machines.
    let program = tests::program();
    let pipe = |send: &str, receive: &str| {
        let mut bash = Command::new("bash");
        s.environment(&mut bash);
        let line = format!(
            "set -o pipefail; '{0}' fileset send {send} | '{0}' fileset receive {receive}",
            program.display()
        );
        Ran::of(bash.args(["-c", &line]))
    };
    pipe("one monday", "two copy").ok();
    change(&one);
    s.run(&["fileset", "snapshot", "one", "main", "tuesday"])
        .ok();
    let file = ["--output", "tuesday.evfs"];
    let send = ["fileset", "send", "one", "tuesday", "--since", "monday"];
    let sent = s.json(&[&send[..], &file].concat());
    let bytes = sent["stream_bytes"].as_u64().unwrap();
    assert!(bytes < 1_000_000, "{sent}");
    assert_eq!(fs::metadata(s.path("tuesday.evfs")).unwrap().len(), bytes);
    s.run(&[&send[..], &file].concat()).code(2);
    let receive = [
        "fileset",
        "receive",
        "two",
        "copy",
        "--input",
        "tuesday.evfs",
    ];
    s.run(&[&receive[..], &["--dry-run"]].concat()).ok();
    assert!(!fileset_names(&s, "two").contains(&"tuesday".to_owned()));
    let received = s.json(&receive);
    assert_eq!(received["snapshot"], "tuesday", "{received}");
    assert_eq!(received["already"], false, "{received}");
    let listed = s.json(&["fileset", "list", "one"]);
    let all = listed["filesets"].as_array().unwrap();
    let sent = all.iter().find(|one| one["name"] == "tuesday").unwrap();
    assert_eq!(received["taken"], sent["created"], "{received}");
    drop(two);
    s.run(&["unmount", "two"]).ok();
    let copy = s.path("copy");
    fs::create_dir(&copy).unwrap();
    s.run(&[
        "mount",
        "two.img",
        "copy",
        "--fileset",
        "copy",
        "--background",
    ])
    .ok();
    assert_same(
        &one.join(".snapshots/monday"),
        &copy.join(".snapshots/monday"),
    );
    assert_same(
        &one.join(".snapshots/tuesday"),
        &copy.join(".snapshots/tuesday"),
    );
    assert_same(&one, &copy);
    // A change at the receiver: the next increment would undo it.
    fs::write(copy.join("mine"), b"mine").unwrap();
    s.run(&["fileset", "snapshot", "one", "main", "wednesday"])
        .ok();
    let next = "one wednesday --since tuesday";
    let refused = pipe(next, "copy copy");
    assert_ne!(refused.status.code(), Some(0));
    assert!(
        refused.stderr.contains("has changed since `tuesday`"),
        "{refused:?}"
    );
    for dir in ["one", "copy"] {
        s.run(&["unmount", dir]).ok();
    }
    for image in ["one.img", "two.img"] {
        s.run(&["fsck", image]).ok();
    }
}

fn fileset_names(s: &Sandbox, device: &str) -> Vec<String> {
    let listed = s.json(&["fileset", "list", device]);
    let all = listed["filesets"].as_array().unwrap().iter();
    all.map(|one| one["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn an_interrupted_stream_continues_with_a_token_or_from_its_start() {
    needs_root("device nodes");
    let s = Sandbox::new();
    format(&s, "one.img");
    format(&s, "two.img");
    let one = mounted(&s, "one.img", "one");
    fill(&one);
    s.run(&["fileset", "snapshot", "one", "main", "monday"])
        .ok();
    s.run(&["fileset", "send", "one", "monday", "--output", "all"])
        .ok();
    let all = fs::read(s.path("all")).unwrap();
    let receive = ["fileset", "receive", "two.img", "copy"];
    let part = s
        .run_with_input(&receive, &all[..all.len() - 100_000])
        .code(1);
    assert!(part.stderr.contains("ended early"), "{part:?}");
    let status = s.json(&[&receive[..], &["--status"]].concat());
    assert_eq!(status["receiving"], true, "{status}");
    let token = status["token"].as_str().unwrap();
    fs::create_dir(s.path("none")).unwrap();
    let mount = ["mount", "two.img", "none", "--fileset", "copy"];
    s.run(&mount).code(11);
    s.run(&["fsck", "two.img"]).ok();
    let send = ["fileset", "send", "one", "monday", "--output", "rest"];
    s.run(&[&send[..], &["--resume", "evfs1-00"]].concat())
        .code(2);
    s.run(&[&send[..], &["--resume", token]].concat()).ok();
    let rest = fs::read(s.path("rest")).unwrap();
    assert!(
        rest.len() < all.len() / 2,
        "{} of {}",
        rest.len(),
        all.len()
    );
    // To another fileset, it is the rest of nothing.
    let other = ["fileset", "receive", "two.img", "other"];
    s.run_with_input(&other, &rest).code(2);
    s.run_with_input(&receive, &rest).ok();
    s.run_with_input(&receive, &rest).ok();
    // The name of the snapshot is in use, which is found out before anything changes.
    s.run_with_input(&other, &all).code(2);
    assert!(!fileset_names(&s, "two.img").contains(&"other".to_owned()));
    // Again, from the start of the stream, and abandoned once.
    let again = [&other[..], &["--as", "monday2"]].concat();
    s.run_with_input(&again, &all[..all.len() - 100_000])
        .code(1);
    s.run(&[&other[..], &["--abort"]].concat()).ok();
    assert!(!fileset_names(&s, "two.img").contains(&"other".to_owned()));
    s.run_with_input(&again, &all[..all.len() - 100_000])
        .code(1);
    // The end is checked before the snapshot is visible.
    let longer = [&all[..], b"x"].concat();
    s.run_with_input(&again, &longer).code(1);
    assert!(!fileset_names(&s, "two.img").contains(&"monday2".to_owned()));
    s.run_with_input(&again, &all).ok();
    let two = s.path("two");
    fs::create_dir(&two).unwrap();
    for fileset in ["copy", "other"] {
        s.run(&[
            "mount",
            "two.img",
            "two",
            "--fileset",
            fileset,
            "--background",
        ])
        .ok();
        assert_same(&one, &two);
        s.run(&["unmount", "two"]).ok();
    }
    s.run(&["unmount", "one"]).ok();
    s.run(&["fsck", "two.img"]).ok();
}

#[test]
fn a_killed_server_leaves_the_state_before_and_the_stream_continues() {
    needs_root("device nodes");
    let s = Sandbox::new();
    format(&s, "one.img");
    let one = mounted(&s, "one.img", "one");
    fill(&one);
    s.run(&["fileset", "snapshot", "one", "main", "monday"])
        .ok();
    s.run(&["fileset", "send", "one", "monday", "--output", "monday"])
        .ok();
    fs::write(one.join("large"), vec![7; 20 << 20]).unwrap();
    change(&one);
    s.run(&["fileset", "snapshot", "one", "main", "tuesday"])
        .ok();
    let send = ["fileset", "send", "one", "tuesday", "--since", "monday"];
    s.run(&[&send[..], &["--output", "tuesday"]].concat()).ok();

    let disk = Disk::new(&s, On::Encrypted, "128M");
    let receive = ["fileset", "receive", disk.device(), "copy"];
    let input = |name: &'static str| [&receive[..], &["--input", name]].concat();
    s.run(&input("monday")).ok();
    let mut tries = 0;
    let copied = s.path("copied");
    fs::create_dir(&copied).unwrap();
    let mount = ["mount", disk.device(), "copied", "--background"];
    let mount = [&mount[..], &["--fileset", "copy"]].concat();
    loop {
        let server = disk.mount(&[]);
        let mut client = s.evfs();
        let mut client = client.args(input("tuesday")).spawn().unwrap();
        // Killed as soon as some of it has arrived, later from try to try.
        let segments = || {
            let status = s.run(&[&receive[..], &["--status", "--json"]].concat());
            let status: serde_json::Value =
                serde_json::from_str(&status.stdout).unwrap_or_default();
            status["segments"].as_u64().unwrap_or(0)
        };
        let wanted = 7 * (tries + 1);
        let mut ended = None;
        wait_until("a part has arrived", || {
            ended = client.try_wait().unwrap();
            ended.is_some() || segments() >= wanted
        });
        if ended.is_some_and(|status| status.success()) {
            server.unmount(&s);
            break;
        }
        server.kill();
        assert!(!client.wait().unwrap().success());
        tries += 1;
        disk.check();
        // The fileset is as before.
        s.run(&mount).ok();
        assert_same(&one.join(".snapshots/monday"), &copied);
        s.run(&["unmount", "copied"]).ok();
    }
    assert!(tries > 0, "the server was never killed");
    s.run(&mount).ok();
    assert_same(&one, &copied);
    for dir in ["copied", "one"] {
        s.run(&["unmount", dir]).ok();
    }
    disk.check();
}

/// Creates a key for authentication codes.
fn auth_key(s: &Sandbox, name: &str, byte: u8) {
    let mut options = fs::File::options();
    let file = options.write(true).create_new(true).mode(0o600);
    let mut file = file.open(s.path(name)).unwrap();
    file.write_all(&[byte; 32]).unwrap();
}

#[test]
fn a_stream_without_a_whole_segment_or_with_a_wrong_end_changes_nothing() {
    let s = Sandbox::new();
    format(&s, "one.img");
    format(&s, "two.img");
    s.run(&["fileset", "snapshot", "one.img", "main", "monday"])
        .ok();
    auth_key(&s, "key", 1);
    let send = ["fileset", "send", "one.img", "monday", "--auth-key", "key"];
    s.run(&[&send[..], &["--output", "all"]].concat()).ok();
    let all = fs::read(s.path("all")).unwrap();
    let header = u32::from_le_bytes(all[12..16].try_into().unwrap()) as usize;
    let receive = ["fileset", "receive", "two.img", "copy", "--auth-key", "key"];
    for len in [header, header + 1, all.len() - 1] {
        let part = s.run_with_input(&receive, &all[..len]).code(1);
        assert!(part.stderr.contains("nothing was changed"), "{part:?}");
        assert_eq!(fileset_names(&s, "two.img"), ["main"], "{len}");
    }
    let longer = [&all[..], b"x"].concat();
    let refused = s.run_with_input(&receive, &longer).code(1);
    assert!(refused.stderr.contains("follow its end"), "{refused:?}");
    assert_eq!(fileset_names(&s, "two.img"), ["main"]);
    s.run_with_input(&receive, &all).ok();
}

#[test]
fn a_stream_that_was_received_is_received_again_without_a_change() {
    let s = Sandbox::new();
    format(&s, "one.img");
    format(&s, "two.img");
    let snapshot = |name| {
        s.run(&["fileset", "snapshot", "one.img", "main", name])
            .ok()
    };
    for name in ["monday", "tuesday"] {
        snapshot(name);
        let send = ["fileset", "send", "one.img", name, "--output", name];
        s.run(&send).ok();
    }
    fn receive<'a>(input: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let base = ["fileset", "receive", "two.img", "copy", "--input", input];
        [&base[..], more].concat()
    }
    let received = s.json(&receive("monday", &["--as", "first"]));
    assert!(received["taken"].is_i64(), "{received}");
    for more in [&["--as", "second"][..], &["--dry-run"]] {
        let again = s.json(&receive("monday", more));
        assert_eq!(again["snapshot"], "first", "{again}");
        assert_eq!(again["already"], true, "{again}");
        assert!(again["taken"].is_null(), "{again}");
    }
    let again = s.run(&receive("monday", &[])).ok();
    assert!(again.stdout.contains("already received as"), "{again:?}");
    assert_eq!(fileset_names(&s, "two.img"), ["main", "copy", "first"]);
    // A name is no identity.
    s.run(&receive("tuesday", &["--as", "first"])).code(2);
}

#[test]
fn a_stream_is_read_with_its_keys_only() {
    let s = Sandbox::new();
    format(&s, "one.img");
    format(&s, "two.img");
    s.run(&["fileset", "snapshot", "one.img", "main", "monday"])
        .ok();
    for (name, byte) in [("key", 1), ("other", 2)] {
        auth_key(&s, name, byte);
    }
    s.run(&["key", "generate", "backup", "--no-passphrase"])
        .ok();
    s.run(&["key", "generate", "stranger", "--no-passphrase"])
        .ok();
    for name in ["backup", "stranger"] {
        let private = ["--private", "--no-passphrase"];
        let file = format!("{name}.key");
        s.run(&[&["key", "export", name, &file][..], &private].concat())
            .ok();
    }
    let send = ["fileset", "send", "one.img", "monday"];
    let to = ["--recipient", "backup", "--auth-key", "key"];
    s.run(&[&send[..], &to, &["--output", "stream"]].concat())
        .ok();
    s.run(&[&send[..], &["--output", "clear"]].concat()).ok();
    assert!(fs::read(s.path("stream")).unwrap().starts_with(b"age-"));
    let receive = |more: &[&str]| {
        let base = ["fileset", "receive", "two.img", "copy"];
        s.run(&[&base[..], more].concat())
    };
    let (stream, own) = (["--input", "stream"], ["--identity", "backup.key"]);
    receive(&stream).code(2);
    let stranger = ["--identity", "stranger.key"];
    let refused = receive(&[&stream[..], &stranger, &["--auth-key", "key"]].concat());
    assert_ne!(refused.status.code(), Some(0));
    receive(&[&stream[..], &own].concat()).code(2);
    receive(&[&stream[..], &own, &["--auth-key", "other"]].concat()).code(14);
    receive(&["--input", "clear", "--auth-key", "key"]).code(14);
    receive(&["--input", "clear", "--identity", "backup.key"]).code(14);
    assert_eq!(
        fileset_names(&s, "two.img"),
        ["main"],
        "nothing was received"
    );
    receive(&[&stream[..], &own, &["--auth-key", "key"]].concat()).ok();
    assert_eq!(fileset_names(&s, "two.img"), ["main", "copy", "monday"]);
    // A key that others can read, and one that is too short.
    let open = fs::Permissions::from_mode(0o644);
    fs::set_permissions(s.path("key"), open).unwrap();
    let refused = receive(&[&stream[..], &own, &["--auth-key", "key"]].concat()).code(1);
    assert!(refused.stderr.contains("by other users"), "{refused:?}");
    let closed = fs::Permissions::from_mode(0o600);
    fs::set_permissions(s.path("key"), closed).unwrap();
    fs::write(s.path("other"), "short").unwrap();
    receive(&[&stream[..], &own, &["--auth-key", "other"]].concat()).code(2);
    // Damage of the encrypted bytes.
    let mut bytes = fs::read(s.path("stream")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(s.path("damaged"), bytes).unwrap();
    let base = [
        "fileset", "receive", "two.img", "second", "--input", "damaged",
    ];
    let refused = s.run(&[&base[..], &own, &["--auth-key", "key"]].concat());
    assert_ne!(refused.status.code(), Some(0));
    assert_eq!(fileset_names(&s, "two.img"), ["main", "copy", "monday"]);
}
