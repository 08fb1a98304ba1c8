//! Operations that destroy data or lock out a user ask first, and keep a backup.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use tests::terminal::Terminal;
use tests::{Ran, Random, Sandbox, peer, wait_until};

/// Runs the program at a terminal where `typed` is typed; returns its exit code and its output.
fn at_a_terminal(s: &Sandbox, args: &[&str], typed: &str) -> (i32, String) {
    let mut command = s.evfs();
    command.args(args);
    let mut terminal = Terminal::start(command);
    terminal.type_text(typed);
    let (status, said) = terminal.end();
    (status.code().unwrap(), said)
}

fn undo(s: &Sandbox, args: &[&str]) -> Vec<u8> {
    let made = s.json(args);
    let file = made["undo"].as_str().unwrap();
    let mode = fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    fs::read(file).unwrap()
}

#[test]
fn no_file_with_something_in_it_is_overwritten_unasked() {
    let s = Sandbox::new();
    s.key("owner");
    let mut film = Random::from_environment().bytes(20 << 20);
    film[0] |= 1;
    // Archives keep their directory at the end; a database may begin with a magic string.
    let mut archive = vec![0; 96 << 20];
    let end = archive.len() - 30;
    archive[end..end + 4].copy_from_slice(b"PK\x05\x06");
    let mut database = vec![0; 20 << 20];
    database[..16].copy_from_slice(b"SQLite format 3\0");
    for (name, content) in [
        ("film.mp4", &film),
        ("a.zip", &archive),
        ("a.db", &database),
    ] {
        fs::write(s.path(name), content).unwrap();
        let create = ["volume", "create", name, "--owner", "owner"];
        let format = ["format", name];
        for refused in [&create[..], &format] {
            let ran = s.run(refused).code(2);
            let words = ["is not empty", "--force"];
            let said = |word: &&str| ran.stderr.contains(word);
            assert!(words.iter().all(said), "{}", ran.stderr);
            let now = fs::read(s.path(name)).unwrap();
            assert!(now == *content, "a refused command changed {name}");
        }
        let kept = undo(&s, &[&format[..], &["--force"]].concat());
        assert!(kept == content[..kept.len()], "{name}");
        fs::write(s.path(name), content).unwrap();
        let kept = undo(&s, &[&create[..], &["--force"]].concat());
        assert_eq!(kept.len(), 16 << 20);
        assert!(kept == content[..kept.len()], "{name}");
        let after = fs::read(s.path(name)).unwrap();
        assert!(
            after[kept.len()..] == content[kept.len()..],
            "more was overwritten than was kept"
        );
    }
    // A huge sparse file is scanned without delay.
    let holes = File::create(s.path("holes.img")).unwrap();
    holes.set_len(1 << 42).unwrap();
    s.run(&["volume", "create", "holes.img", "--owner", "owner"])
        .ok();
}

#[test]
fn data_behind_the_last_whole_block_of_a_file_is_seen() {
    let s = Sandbox::new();
    s.key("owner");
    for size in [(32 << 20) + 1, (32 << 20) + 511, (96 << 20) + 4095] {
        let image = File::create(s.path("a.img")).unwrap();
        image.set_len(size).unwrap();
        image.write_all_at(b"!", size - 1).unwrap();
        for refused in [
            &["volume", "create", "a.img", "--owner", "owner"][..],
            &["format", "a.img"],
        ] {
            let ran = s.run(refused).code(2);
            assert!(ran.stderr.contains("is not empty"), "{}", ran.stderr);
        }
        // Trailing zeros are not data either.
        image.write_all_at(b"\0", size - 1).unwrap();
        s.run(&["format", "a.img"]).ok();
    }
}

#[test]
fn without_a_terminal_what_destroys_needs_yes_or_force() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.key("bob");
    s.run(&["volume", "key", "add", "a.img", "--user", "bob"])
        .ok();
    s.run(&["volume", "header", "backup", "a.img", "h"]).ok();
    let before = fs::read(s.path("a.img")).unwrap();
    let all: &[&[&str]] = &[
        &["volume", "header", "restore", "a.img", "h"],
        &["volume", "repair", "a.img", "--reseal"],
        &["volume", "key", "remove", "a.img", "bob"],
        &["volume", "owner", "set", "a.img", "bob"],
        &["volume", "erase", "a.img"],
        &["key", "remove", "bob"],
    ];
    for args in all {
        let ran = s.run(args).code(2);
        assert!(ran.stderr.contains("--yes"), "{}", ran.stderr);
    }
    assert!(fs::read(s.path("a.img")).unwrap() == before);
    for args in all {
        // With the authorized key: the owner, who is bob from the fourth command on.
        s.run(&[args, &["--yes"][..]].concat()).ok();
    }
}

#[test]
fn at_a_terminal_the_name_is_typed() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.run(&["format", "a.img"]).ok();
    let erase = ["volume", "erase", "a.img"];
    let (code, said) = at_a_terminal(&s, &erase, "yes\n");
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("Type `a.img`") && said.contains("nothing was done"),
        "{said}"
    );
    let (code, said) = at_a_terminal(&s, &["format", "a.img"], "a.img\n");
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("is not empty"), "{said}");
    let (code, said) = at_a_terminal(&s, &erase, "a.img\n");
    assert_eq!(code, 0, "{said}");
    let ran = s.run(&["attach", "a.img"]).code(12);
    assert!(
        ran.stderr.contains("erased") && ran.stderr.contains("header restore"),
        "{}",
        ran.stderr
    );
}

#[test]
fn every_question_is_answered_with_the_name_of_its_object() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    for name in ["bob", "carol"] {
        s.key(name);
        s.run(&["volume", "key", "add", "a.img", "--user", name])
            .ok();
    }
    s.run(&["volume", "header", "backup", "a.img", "h"]).ok();
    let dir = s.json(&["volume", "header", "list"])["dir"].clone();
    let restore = ["volume", "header", "restore", "a.img", "h"];
    let all: &[(&[&str], &str)] = &[
        (&restore, "a.img"),
        (&restore, "a.img"),
        (&["volume", "header", "prune"], dir.as_str().unwrap()),
        (&["volume", "repair", "a.img", "--reseal"], "a.img"),
        (&["volume", "key", "remove", "a.img", "bob"], "bob"),
        // A number could be mistaken; the name shows which key has the keyslot.
        (
            &["volume", "key", "remove", "a.img", "--key-slot", "2"],
            "carol",
        ),
        (&["volume", "owner", "set", "a.img", "bob"], "a.img"),
        (&["key", "remove", "carol"], "carol"),
    ];
    for (args, name) in all {
        let before = fs::read(s.path("a.img")).unwrap();
        for wrong in ["yes\n", "\n"] {
            let (code, said) = at_a_terminal(&s, args, wrong);
            assert_eq!(code, 1, "{args:?}: {said}");
            assert!(said.contains(&format!("Type `{name}`")), "{said}");
            assert!(said.contains("nothing was done"), "{said}");
        }
        assert!(
            fs::read(s.path("a.img")).unwrap() == before,
            "{args:?} changed the volume"
        );
        let (code, said) = at_a_terminal(&s, args, &format!("{name}\n"));
        assert_eq!(code, 0, "{args:?}: {said}");
    }
}

#[test]
fn a_key_that_is_removed_is_kept_and_comes_back() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.attach(&["a.img"]);
    let ran = s.run(&["key", "remove", "owner"]).code(2);
    assert!(
        ran.stderr.contains("a.img") && ran.stderr.contains("is lost"),
        "the only key of a volume: {}",
        ran.stderr
    );
    s.detach("a");
    // Also while it is not attached, and only once even if several records of it exist.
    fs::copy(s.path("a.img"), s.path("copy.img")).unwrap();
    s.run(&["fsck", "copy.img"]);
    let ran = s.run(&["key", "remove", "owner"]).code(2);
    let told = ran.stderr.matches("No other key").count();
    assert!(ran.stderr.contains("a.img") && told == 1, "{}", ran.stderr);
    // A volume that cannot be read any more is not named, nor is one that another key opens.
    fs::remove_file(s.path("copy.img")).unwrap();
    s.key("second");
    s.run(&["volume", "key", "add", "a.img", "--user", "second"])
        .ok();
    let ran = s.run(&["key", "remove", "owner"]).code(2);
    assert!(!ran.stderr.contains("is lost"), "{}", ran.stderr);
    s.run(&["volume", "key", "remove", "a.img", "second", "--yes"])
        .ok();
    s.run(&["key", "remove", "second", "--yes"]).ok();
    let before = fs::read(s.path("keys/owner.key")).unwrap();
    let removed = s.json(&["key", "remove", "owner", "--yes"]);
    let kept = Path::new(removed["undo"].as_str().unwrap());
    assert_eq!(fs::read(kept).unwrap(), before);
    let mode = fs::metadata(kept).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    s.run(&["attach", "a.img"]).code(12);
    s.run(&["key", "import", kept.to_str().unwrap(), "--name", "owner"])
        .ok();
    s.attach(&["a.img"]);
    s.detach("a");
    // A key with a passphrase can be restored as well, and no message advises to remove the
    // existing one.
    let generate = ["key", "generate", "locked", "--passphrase-fd", "0"];
    s.run_with_input(&generate, b"phrase\n").ok();
    let ran: Ran = s.run_with_input(&generate, b"phrase\n").code(2);
    assert!(
        ran.stderr.contains("another name") && !ran.stderr.contains("remove"),
        "{}",
        ran.stderr
    );
    let removed = s.json(&["key", "remove", "locked", "--yes"]);
    let kept = removed["undo"].as_str().unwrap();
    s.run(&["key", "import", kept, "--name", "locked"]).ok();
    // Creating a volume without a recovery key prints a warning.
    let create = [
        "volume", "create", "b.img", "--size", "32M", "--owner", "owner",
    ];
    let ran = s.run(&create).ok();
    assert!(ran.stderr.contains("--recovery"), "{}", ran.stderr);
}

#[test]
fn a_new_key_comes_with_advice_to_add_a_second_one() {
    let s = Sandbox::new();
    let generate = ["key", "generate", "alice", "--no-passphrase"];
    let said = s.run(&generate).ok().stderr;
    let words = ["this key is lost", "keep a copy", "--recovery"];
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
    let said = Ran::of(
        s.evfs()
            .args(["--json", "key", "generate", "bob", "--no-passphrase"]),
    )
    .ok();
    assert_eq!(said.stderr, "", "a program has no use for it");
}

#[test]
fn the_keys_that_would_be_sealed_are_named_first() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let before = fs::read(s.path("a.img")).unwrap();
    let reseal = ["volume", "repair", "a.img", "--reseal"];
    let (code, said) = at_a_terminal(&s, &reseal, "no\n");
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("keyslot 0 (owner, key pair owner)"), "{said}");
    assert!(fs::read(s.path("a.img")).unwrap() == before);
    let (code, said) = at_a_terminal(&s, &reseal, "a.img\n");
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("sealed the header"), "{said}");
}

#[test]
fn a_new_owner_is_said_to_take_the_keyslot_of_the_old_one() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.key("new");
    let set = ["volume", "owner", "set", "a.img", "new"];
    let ran = s.run(&set).code(2);
    assert!(ran.stderr.contains("key pair owner"), "{}", ran.stderr);
    let made = s.json(&[&set[..], &["--yes"]].concat());
    assert_eq!(made["removed"][0]["name"], "owner");
}

mod needs_peer {
    use super::*;
    use nbd_client::Client;
    use tests::targets::{free_port, image, nbdkit_that_fails};

    fn names(s: &Sandbox) -> Vec<String> {
        let status = s.json(&["status"]);
        let all = status["volumes"].as_array().unwrap().iter();
        all.map(|v| v["name"].as_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn a_forced_detach_asks_at_a_terminal_if_there_is_something_to_lose() {
        let s = Sandbox::new();
        let port = free_port();
        let (disk, broken) = (image(&s, "disk", 64 << 20), s.path("broken"));
        let _server = nbdkit_that_fails(&disk, port, &broken);
        let uri = format!("nbd://127.0.0.1:{port}/e");
        s.run(&["lun", "scan", &uri]).ok();
        s.key("owner");
        s.run(&["volume", "create", "disk1", "--owner", "owner"])
            .ok();
        let attach = || s.attach(&["disk1", "--name", "a"]);
        let force = ["detach", "a", "--force"];
        // Nothing is lost: there is no question.
        attach();
        let (code, said) = at_a_terminal(&s, &force, "");
        assert_eq!(code, 0, "{said}");
        assert!(!said.contains("Type"), "{said}");
        for more in [&[][..], &["--yes"]] {
            attach();
            let mut client = Client::connect(&s.path("run/a.nbd"), "a").unwrap();
            client.write_at(0, &[b'A'; 4096]).unwrap();
            File::create(&broken).unwrap();
            assert!(client.flush().is_err());
            wait_until("the status reports the failure", || {
                s.json(&["status"])["volumes"][0]["health"]["state"] == "failing"
            });
            if more.is_empty() {
                let (code, said) = at_a_terminal(&s, &force, "yes\n");
                assert_eq!(code, 1, "{said}");
                for words in ["Type `a`", "loses data", "nothing was done"] {
                    assert!(said.contains(words), "{words}: {said}");
                }
                assert_eq!(names(&s), ["a"]);
            }
            let typed = if more.is_empty() { "a\n" } else { "" };
            let (code, said) = at_a_terminal(&s, &[&force, more].concat(), typed);
            assert_eq!(code, 30, "{said}");
            assert_eq!(said.contains("Type"), more.is_empty(), "{said}");
            assert_eq!(names(&s), [""; 0]);
            fs::remove_file(&broken).unwrap();
        }
    }

    #[test]
    fn down_and_unmount_by_force_ask_for_each_service_in_use_before_any_is_detached() {
        let s = Sandbox::new();
        for image in ["a.img", "b.img"] {
            s.run(&["format", image, "--size", "32M"]).ok();
            fs::create_dir(s.path(&image.replace(".img", ""))).unwrap();
        }
        let up = "[mount.a]\ndevice = \"a.img\"\nat = \"a\"\n[mount.b]\ndevice = \"b.img\"\nat = \"b\"\n";
        fs::write(s.path("up.toml"), up).unwrap();
        let down = ["down", "--force"];
        s.run(&["up", "up.toml", "--background"]).ok();
        let open = File::create(s.path("b/file")).unwrap();
        let (code, said) = at_a_terminal(&s, &down, "a\n");
        assert_eq!(code, 1, "{said}");
        assert!(
            said.contains("Type `b`") && !said.contains("Type `a`"),
            "{said}"
        );
        assert_eq!(names(&s), ["a", "b"]);
        let (code, said) = at_a_terminal(&s, &["unmount", "b", "--force"], "no\n");
        assert_eq!(code, 1, "{said}");
        assert_eq!(names(&s), ["a", "b"]);
        let (code, said) = at_a_terminal(&s, &down, "b\n");
        assert_eq!(code, 0, "{said}");
        assert_eq!(names(&s), [""; 0]);
        drop(open);
        // Without a terminal, as in scripts, there is no question, but a note.
        s.run(&["up", "up.toml", "--background"]).ok();
        let open = File::open(s.path("b")).unwrap();
        let ran = s.run(&down).ok();
        assert_eq!(ran.stderr.matches("--yes").count(), 1, "{}", ran.stderr);
        assert_eq!(names(&s), [""; 0]);
        drop(open);
    }

    #[test]
    fn what_lies_on_a_volume_is_seen_through_its_key() {
        let s = Sandbox::new();
        s.volume("a.img", "64M", &[]);
        // Sectors that were never written are not data, although they decrypt to noise.
        s.run(&["format", "a.img"]).ok();
        s.run(&["format", "a.img"]).code(2);
        let raw = fs::read(s.path("a.img")).unwrap();
        let kept = undo(&s, &["format", "a.img", "--force"]);
        assert!(
            kept == raw[..kept.len()],
            "the backup is not as it lay on the disk"
        );
        // Text written to the block device is data, with any beginning.
        s.volume("b.img", "64M", &[]);
        let attached = s.attach(&["b.img"]);
        let uri = attached["exports"][0]["at"].as_str().unwrap();
        fs::write(
            s.path("text"),
            b"some words, again and again. ".repeat(4096),
        )
        .unwrap();
        let text = s.path("text");
        peer("nbdcopy", &[text.to_str().unwrap(), uri]);
        s.detach("b");
        let ran = s.run(&["format", "b.img"]).code(2);
        assert!(ran.stderr.contains("unknown kind"), "{}", ran.stderr);
    }
}
