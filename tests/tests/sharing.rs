//! Sharing a volume with a second person, moving a key to another machine, and the backups that
//! accumulate.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use tests::{Ran, Sandbox};

/// Returns the public key of a key pair.
fn public(s: &Sandbox, name: &str) -> String {
    let shown = s.json(&["key", "show", name]);
    shown["public"].as_str().unwrap().to_owned()
}

#[test]
fn a_new_key_names_the_file_to_send_and_the_public_half_is_exported() {
    let s = Sandbox::new();
    let made = s.run(&["key", "generate", "bob", "--no-passphrase"]).ok();
    let file = s.path("keys/bob.pub").display().to_string();
    assert!(made.stdout.contains(&file), "{}", made.stdout);
    assert_eq!(s.json(&["key", "show", "bob"])["public_file"], file);
    let public = public(&s, "bob");
    let printed = s.run(&["key", "export", "bob"]).ok().stdout;
    assert_eq!(printed.trim_end(), public);
    s.run(&["key", "export", "bob", "sent"]).ok();
    assert_eq!(fs::read_to_string(s.path("sent")).unwrap(), printed);
    s.run(&["key", "export", "bob", "sent"]).code(2);
    s.run(&["key", "export", "nobody"]).code(10);

    // The receiver has a file, a pipe, or the line itself.
    let t = Sandbox::new();
    let sent = s.path("sent").display().to_string();
    t.run(&["key", "import", &sent, "--name", "file"]).ok();
    let pipe = ["key", "import", "-", "--name", "pipe"];
    t.run_with_input(&pipe, printed.as_bytes()).ok();
    t.run(&["key", "import", &public, "--name", "line"]).ok();
    for name in ["file", "pipe", "line"] {
        assert_eq!(self::public(&t, name), public);
    }
    let torn = &public[..public.len() - 1];
    let ran = t.run(&["key", "import", torn, "--name", "torn"]);
    assert!(ran.stderr.contains("copy the whole line"), "{}", ran.stderr);
    assert_ne!(ran.status.code(), Some(0));
    let private = "AGE-SECRET-KEY-1QQQQ";
    let ran = t.run(&["key", "import", private, "--name", "x"]).code(2);
    assert!(!ran.stderr.contains(private), "{}", ran.stderr);
}

#[test]
fn a_public_key_is_accepted_wherever_the_name_of_a_key_pair_is() {
    let (s, away) = (Sandbox::new(), Sandbox::new());
    for name in ["alice", "safe"] {
        s.key(name);
    }
    away.key("bob");
    let (alice, safe, bob) = (
        public(&s, "alice"),
        public(&s, "safe"),
        public(&away, "bob"),
    );
    s.run(&[
        "volume",
        "create",
        "a.img",
        "--size",
        "32M",
        "--owner",
        &alice,
        "--recovery",
        &safe,
    ])
    .ok();
    s.run(&["volume", "key", "add", "a.img", "--user", &bob])
        .ok();
    let keys = s.json(&["volume", "key", "list", "a.img"]);
    let keys = keys["keys"].as_array().unwrap();
    let rows: Vec<(&str, &str, &str)> = keys
        .iter()
        .map(|key| {
            let text = |field: &str| key[field].as_str().unwrap();
            (text("role"), text("name"), text("public"))
        })
        .collect();
    // Keys that this user has under a name keep it.
    let expected = [
        ("owner", "alice", alice.as_str()),
        ("recovery", "safe", safe.as_str()),
        ("user", &bob[..12], bob.as_str()),
    ];
    assert_eq!(rows, expected);
    let image = s.path("a.img").display().to_string();
    away.run(&["volume", "key", "test", &image, "--key", "bob"])
        .ok();
    s.run(&["volume", "key", "remove", "a.img", &bob, "--yes"])
        .ok();
    away.run(&["volume", "key", "test", &image, "--key", "bob"])
        .code(12);
    s.run(&[
        "volume", "owner", "set", "a.img", &bob, "--key", "safe", "--yes",
    ])
    .ok();
    let shown = away.json(&["volume", "key", "test", &image, "--key", "bob"]);
    assert_eq!(shown["role"], "owner");
    let torn = ["volume", "key", "add", "a.img", "--user", &bob[..40]];
    let ran = s.run(&torn);
    assert!(ran.stderr.contains("copy the whole line"), "{}", ran.stderr);
    s.run(&["key", "generate", &bob, "--no-passphrase"]).code(2);
}

#[test]
fn a_private_key_moves_to_another_machine_under_a_passphrase() {
    let (s, away) = (Sandbox::new(), Sandbox::new());
    s.volume("a.img", "32M", &[]);
    let image = s.path("a.img").display().to_string();
    let export = ["key", "export", "owner", "sent", "--private"];
    // Without a terminal no passphrase can be asked for, and none is invented.
    let ran = s.run(&export).code(2);
    assert!(ran.stderr.contains("--passphrase-fd"), "{}", ran.stderr);
    assert!(!s.path("sent").exists());
    s.run_with_input(
        &[&export[..], &["--passphrase-fd", "0"]].concat(),
        b"sesame",
    )
    .ok();
    let sent = fs::read_to_string(s.path("sent")).unwrap();
    assert!(sent.contains("ENCRYPTED") && !sent.contains("SECRET"));
    let mode = fs::metadata(s.path("sent")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let from = s.path("sent").display().to_string();
    let import = ["key", "import", &from, "--name", "me"];
    let ran = away.run(&import).code(2);
    assert!(ran.stderr.contains("--passphrase-fd"), "{}", ran.stderr);
    let with = [&import[..], &["--passphrase-fd", "0"]].concat();
    away.run_with_input(&with, b"wrong").code(12);
    away.run_with_input(&with, b"sesame").ok();
    assert_eq!(public(&away, "me"), public(&s, "owner"));
    let test = ["volume", "key", "test", &image, "--key", "me"];
    away.run_with_input(&[&test[..], &["--passphrase-fd", "0"]].concat(), b"sesame")
        .ok();

    // A protected key keeps its passphrase, and passes through a pipe.
    let pipe = away.run(&["key", "export", "me", "--private"]).ok().stdout;
    assert!(pipe.contains("ENCRYPTED"));
    let other = ["key", "export", "me", "--private", "--passphrase-fd", "0"];
    away.run_with_input(&other, b"other").code(2);
    fs::write(away.path("phrase"), "sesame").unwrap();
    let mut import = std::process::Command::new("bash");
    s.environment(&mut import);
    let phrase = away.path("phrase").display().to_string();
    import.env("PROGRAM", tests::program()).args([
        "-c",
        "exec \"$PROGRAM\" key import - --name again --passphrase-fd 3 3< \"$0\"",
        &phrase,
    ]);
    Ran::with_input(&mut import, pipe.as_bytes()).ok();
    assert_eq!(public(&s, "again"), public(&s, "owner"));

    // A key in the clear leaves only into a file, and on request.
    let clear = ["key", "export", "owner", "--private", "--no-passphrase"];
    s.run(&clear).code(2);
    s.run(&[&clear[..], &["clear"]].concat()).ok();
    let key = fs::read(s.path("keys/owner.key")).unwrap();
    assert!(fs::read(s.path("clear")).unwrap() == key);
}

#[test]
fn old_backups_are_listed_and_deleted_on_confirmation_except_the_newest_of_each_volume() {
    let s = Sandbox::new();
    for image in ["a.img", "b.img"] {
        s.volume(image, "32M", &[]);
    }
    let empty = s.json(&["volume", "header", "list"]);
    assert_eq!(empty["backups"].as_array().unwrap().len(), 0);
    s.run(&["volume", "header", "backup", "a.img", "mine"]).ok();
    let restore = ["volume", "header", "restore", "a.img", "mine", "--yes"];
    let undo = |args: &[&str]| s.json(args)["undo"].as_str().unwrap().to_owned();
    let first = undo(&restore);
    let second = undo(&restore);
    let erased = undo(&["volume", "erase", "b.img", "--yes"]);
    s.key("gone");
    let key = undo(&["key", "remove", "gone", "--yes"]);

    let listed = s.json(&["volume", "header", "list"]);
    let rows = listed["backups"].as_array().unwrap();
    let newest = |file: &str| {
        let row = rows.iter().find(|row| row["file"] == file);
        row.unwrap()["newest"].as_bool().unwrap()
    };
    assert_eq!(rows.len(), 3);
    assert!(newest(&second) && newest(&erased) && !newest(&first));
    assert!(rows.iter().all(|row| row["uuid"].is_string()));
    let text = s.run(&["volume", "header", "list"]).ok().stdout;
    assert_eq!(text.matches("newest").count(), 2, "{text}");

    let ran = s.run(&["volume", "header", "prune"]).code(2);
    assert!(ran.stderr.contains("--yes"), "{}", ran.stderr);
    let exists = |file: &str| std::path::Path::new(file).exists();
    assert!(exists(&first));
    s.run(&["volume", "header", "prune", "--keep", "2", "--yes"])
        .ok();
    assert!(exists(&first));
    let pruned = s.json(&["volume", "header", "prune", "--yes"]);
    assert_eq!(pruned["removed"].as_array().unwrap().len(), 1);
    assert!(!exists(&first));
    assert!(
        [&second, &erased, &key]
            .into_iter()
            .all(|file| exists(file))
    );
    assert!(s.path("mine").exists());
    // Nothing is left to confirm.
    s.run(&["volume", "header", "prune"]).ok();
    s.run(&["volume", "header", "restore", "b.img", &erased, "--yes"])
        .ok();
}

#[test]
fn a_wrong_owner_or_mode_of_a_new_file_system_is_refused_before_anything_is_created() {
    let s = Sandbox::new();
    for (option, value) in [
        ("--root-owner", "alice"),
        ("--root-owner", "1:"),
        ("--root-owner", "4294967295"),
        ("--root-mode", "8"),
        ("--root-mode", "17777"),
    ] {
        s.run(&["format", "a.img", "--size", "64M", option, value])
            .code(2);
        assert!(!s.path("a.img").exists());
    }
}

mod needs_root {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_root_directory_has_the_owner_and_the_mode_of_the_format() {
        tests::needs_root("a mount that other users may write to");
        let s = Sandbox::new();
        fs::create_dir(s.path("mnt")).unwrap();
        for (options, owner, mode) in [
            (&[][..], (0, 0), 0o755),
            (&["--root-owner", "65534"][..], (65534, 0), 0o755),
            (
                &["--root-owner", "0:100", "--root-mode", "2775"][..],
                (0, 100),
                0o2775,
            ),
        ] {
            let format = ["format", "a.img", "--size", "64M"];
            s.run(&[&format[..], options].concat()).ok();
            s.run(&["mount", "a.img", "mnt", "--background"]).ok();
            let root = fs::metadata(s.path("mnt")).unwrap();
            assert_eq!((root.uid(), root.gid()), owner);
            assert_eq!(root.mode() & 0o7777, mode);
            s.run(&["unmount", "mnt"]).ok();
            fs::remove_file(s.path("a.img")).unwrap();
        }
    }
}
