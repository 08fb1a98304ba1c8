//! Passphrases: volumes that belong to one, labels, changes, tests, recovery keys, and the
//! questions at a terminal.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;
use tests::terminal::Terminal;
use tests::{Ran, Sandbox};

const FIRST: &str = "correct horse battery staple";
const SECOND: &str = "another phrase altogether";

/// Creates the volume `a.img`, which belongs to the passphrase [`FIRST`] with the label `laptop`.
/// The files `first` and `second` hold the two passphrases.
fn volume(s: &Sandbox) -> PathBuf {
    fs::write(s.path("first"), FIRST).unwrap();
    fs::write(s.path("second"), SECOND).unwrap();
    s.passphrase_volume("a.img", FIRST, &[]);
    s.path("a.img")
}

fn keys(s: &Sandbox) -> Vec<serde_json::Value> {
    let listed = s.json(&["volume", "key", "list", "a.img"]);
    listed["keys"].as_array().unwrap().clone()
}

fn test_key(s: &Sandbox, file: &str) -> Ran {
    s.run(&["volume", "key", "test", "a.img", "--key-file", file])
}

fn at_a_terminal(s: &Sandbox, args: &[&str]) -> Terminal {
    let mut command = s.evfs();
    command.args(args);
    Terminal::start(command)
}

/// Waits for a question, which must find the echo turned off, and answers it.
#[track_caller]
fn answer(terminal: &mut Terminal, question: &str, text: &str) {
    terminal.wait_for(question);
    assert!(!terminal.echoes(), "the answer to `{question}` is shown");
    terminal.type_text(&format!("{text}\n"));
}

#[test]
fn a_passphrase_alone_owns_a_volume() {
    let s = Sandbox::new();
    volume(&s);
    let all = keys(&s);
    assert_eq!(all.len(), 1);
    for (member, value) in [("role", "owner"), ("label", "laptop"), ("kdf", "argon2id")] {
        assert_eq!(all[0][member], value);
    }
    let listed = s.run(&["volume", "key", "list", "a.img"]).ok().stdout;
    assert!(
        listed.contains("owner     passphrase or key file `laptop`"),
        "{listed}"
    );
    s.attach(&["a.img", "--key-file", "first"]);
    s.detach("a");
    s.run(&["attach", "a.img", "--key-file", "second"]).code(12);
    // It may do what an owner may, and its header is sealed like any other.
    s.key("bob");
    let add = ["volume", "key", "add", "a.img", "--user", "bob"];
    s.run(&[&add[..], &["--unlock-key-file", "first"]].concat())
        .ok();
    s.attach(&["a.img", "--key", "bob"]);
    s.detach("a");
    let info = s.json(&["volume", "info", "a.img"]);
    assert_eq!(info["sealed"], true);
    // By its label, as a key pair by its name.
    let remove = ["volume", "key", "remove", "a.img", "laptop", "--yes"];
    let ran = s.run(&[&remove[..], &["--unlock-key-file", "first"]].concat());
    assert!(ran.stderr.contains("only owner"), "{}", ran.stderr);
}

#[test]
fn an_owner_is_a_key_pair_or_a_passphrase_and_not_both_or_neither() {
    let s = Sandbox::new();
    s.key("owner");
    let create = ["volume", "create", "a.img", "--size", "32M"];
    let all: [&[&str]; 7] = [
        &[],
        &["--owner", "owner", "--passphrase"],
        &["--owner", "owner", "--passphrase-fd", "0"],
        &["--owner", "owner", "--key-label", "x"],
        &["--passphrase-fd", "0", "--key-label", ""],
        &["--passphrase-fd", "0"],
        // There is no terminal to ask at.
        &["--passphrase"],
    ];
    for wrong in all {
        let mut command = s.evfs();
        command.args(create).args(wrong);
        tests::terminal::without(&mut command);
        Ran::of(&mut command).code(2);
        assert!(!s.path("a.img").exists(), "{wrong:?}");
    }
}

#[test]
fn a_test_of_a_key_names_its_keyslot_and_role_and_changes_nothing() {
    let s = Sandbox::new();
    let image = volume(&s);
    s.run(&[
        "volume",
        "key",
        "add",
        "a.img",
        "--new-key-file",
        "second",
        "--label",
        "phone",
        "--unlock-key-file",
        "first",
    ])
    .ok();
    fs::write(s.path("third"), "a third one").unwrap();
    let before = fs::read(&image).unwrap();
    let mut command = s.evfs();
    command.env("EVFS_TRUST_STORE", s.path("elsewhere/trust.json"));
    command.args(["volume", "key", "test", "a.img", "--key-file", "second"]);
    let said = Ran::of(&mut command).ok().stdout;
    assert!(
        said.contains("keyslot 1 (owner, ") && said.contains("`phone`"),
        "{said}"
    );
    assert!(!s.path("elsewhere").exists(), "the test was recorded");
    let shown = s.json(&["volume", "key", "test", "a.img", "--key-file", "first"]);
    assert_eq!(shown["keyslot"], 0);
    assert_eq!(shown["role"], "owner");
    let wrong = test_key(&s, "third").code(12);
    assert!(wrong.stderr.contains("wrong key"), "{}", wrong.stderr);
    let only = |slot: &str, file: &str| {
        let test = ["volume", "key", "test", "a.img", "--key-slot", slot];
        s.run(&[&test[..], &["--key-file", file]].concat())
    };
    only("0", "first").ok();
    let wrong = only("1", "first").code(12);
    assert!(wrong.stderr.contains("keyslot 1"), "{}", wrong.stderr);
    only("7", "first").code(10);
    s.attach(&["a.img", "--key-file", "first", "--key-slot", "0"]);
    // Also while it is attached.
    test_key(&s, "second").ok();
    s.detach("a");
    s.run(&["attach", "a.img", "--key-file", "first", "--key-slot", "1"])
        .code(12);
    let after = fs::read(&image).unwrap();
    assert!(before[..2 * tests::HEADER_COPY] == after[..2 * tests::HEADER_COPY]);
}

#[test]
fn a_changed_passphrase_keeps_its_keyslot_role_and_label() {
    let s = Sandbox::new();
    let image = volume(&s);
    let before = fs::read(&image).unwrap();
    let change = [
        "volume",
        "key",
        "change",
        "a.img",
        "--unlock-key-file",
        "first",
    ];
    let mut changed = s.json(&[&change[..], &["--new-key-file", "second"]].concat());
    assert_eq!(changed["label"], "laptop");
    changed.as_object_mut().unwrap().remove("schema");
    test_key(&s, "first").code(12);
    test_key(&s, "second").ok();
    assert_eq!(keys(&s)[0], changed);
    // With another label, from a descriptor.
    fs::write(s.path("third"), "a third one").unwrap();
    let change = [
        "volume",
        "key",
        "change",
        "a.img",
        "--unlock-key-file",
        "second",
        "--label",
        "desk",
        "--new-passphrase-fd",
        "0",
    ];
    s.run_with_input(&change, b"a third one\n").ok();
    let shown = s.json(&["volume", "key", "test", "a.img", "--key-file", "third"]);
    assert_eq!(shown["keyslot"], 0);
    assert_eq!(shown["label"], "desk");
    s.run(&["volume", "check", "a.img"]).ok();
    s.attach(&["a.img", "--key-file", "third"]);
    s.detach("a");
    // The old secret opens the header from before, which this machine refuses.
    fs::write(&image, before).unwrap();
    s.run(&["attach", "a.img", "--key-file", "first"]).code(14);
    test_key(&s, "first").code(14);
}

#[test]
fn an_empty_passphrase_is_refused_wherever_a_new_one_is_read() {
    let s = Sandbox::new();
    let image = volume(&s);
    let before = fs::read(&image).unwrap();
    let unlock = ["--unlock-key-file", "first"];
    let of_volume = |command: &[&'static str]| {
        let new = ["a.img", "--new-passphrase-fd", "0"];
        [&["volume"], command, &new, &unlock].concat()
    };
    for args in [
        vec!["key", "generate", "alice", "--passphrase-fd", "0"],
        vec![
            "volume",
            "create",
            "b.img",
            "--size",
            "32M",
            "--passphrase-fd",
            "0",
        ],
        of_volume(&["key", "add"]),
        of_volume(&["key", "change"]),
        of_volume(&["owner", "set"]),
    ] {
        let ran = s.run_with_input(&args, b"\n").code(2);
        let said = ran.stderr.contains("protects nothing");
        assert!(said, "{args:?}: {}", ran.stderr);
    }
    assert!(!s.path("keys/alice.key").exists() && !s.path("b.img").exists());
    assert!(fs::read(&image).unwrap() == before, "the volume changed");
}

#[test]
fn a_user_changes_the_own_passphrase_and_an_owner_every_one() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    for name in ["first", "second", "third"] {
        fs::write(s.path(name), format!("the {name} phrase")).unwrap();
    }
    for name in ["first", "second"] {
        s.run(&["volume", "key", "add", "a.img", "--new-key-file", name])
            .ok();
    }
    let change = |more: &[&str]| {
        let change = [
            "volume",
            "key",
            "change",
            "a.img",
            "--new-key-file",
            "third",
        ];
        s.run(&[&change[..], more].concat())
    };
    let by_user = ["--unlock-key-file", "first"];
    change(&[&by_user[..], &["--key-slot", "2"]].concat()).code(13);
    test_key(&s, "second").ok();
    change(&by_user).ok();
    test_key(&s, "first").code(12);
    test_key(&s, "third").ok();
    // The owner's key pair is found without an option, and has no passphrase of its own here.
    change(&["--key-slot", "2"]).ok();
    test_key(&s, "second").code(12);
    let ran = change(&["--key-slot", "0"]).code(1);
    assert!(ran.stderr.contains("key pair owner"), "{}", ran.stderr);
    change(&["--key-slot", "9"]).code(10);
}

#[test]
fn a_recovery_key_is_shown_once_and_sets_a_new_owner() {
    let s = Sandbox::new();
    volume(&s);
    let added = s.json(&[
        "volume",
        "key",
        "add",
        "a.img",
        "--recovery",
        "--label",
        "safe",
        "--unlock-key-file",
        "first",
    ]);
    let key = added["recovery_key"].as_str().unwrap().to_owned();
    let groups: Vec<&str> = key.split('-').collect();
    assert!(
        groups.len() == 8 && groups.iter().all(|group| group.len() == 9),
        "8 groups of 9"
    );
    assert_eq!(added["role"], "recovery");
    assert_eq!(added["label"], "safe");
    let listed = s.run(&["volume", "key", "list", "a.img"]).ok().stdout;
    assert!(
        listed.contains("recovery  recovery key `safe` (pbkdf2)"),
        "{listed}"
    );
    assert!(!listed.contains(groups[0]), "it is shown again");
    fs::write(s.path("recovery"), key.to_uppercase().replace('-', " ")).unwrap();
    let shown = s.json(&["volume", "key", "test", "a.img", "--key-file", "recovery"]);
    assert_eq!(shown["role"], "recovery");
    assert_eq!(shown["keyslot"], 1);
    s.run(&["attach", "a.img", "--key-file", "recovery"])
        .code(13);

    let letter = if groups[4].ends_with('c') { 'b' } else { 'c' };
    let wrong = format!("{}{letter}", &groups[4][..8]);
    let mistyped = [&groups[..4], &[wrong.as_str()], &groups[5..]].concat();
    fs::write(s.path("mistyped"), mistyped.join("-")).unwrap();
    let ran = test_key(&s, "mistyped").code(12);
    assert!(
        ran.stderr.contains("group 5 of the recovery key"),
        "{}",
        ran.stderr
    );
    assert!(
        !ran.stderr.contains(groups[0]),
        "letters of the key are shown"
    );

    let set = [
        "volume",
        "owner",
        "set",
        "a.img",
        "--passphrase-fd",
        "0",
        "--label",
        "new",
        "--yes",
        "--unlock-key-file",
        "recovery",
    ];
    let set = s.run_with_input(&set, SECOND.as_bytes()).ok();
    assert!(
        set.stdout.contains("removed keyslot 0 (owner, "),
        "{}",
        set.stdout
    );
    test_key(&s, "first").code(12);
    let shown = s.json(&["volume", "key", "test", "a.img", "--key-file", "second"]);
    assert_eq!(shown["role"], "owner");
    assert_eq!(shown["label"], "new");
    test_key(&s, "recovery").ok();
}

#[test]
fn a_volume_can_be_created_with_a_recovery_key() {
    let s = Sandbox::new();
    let create = [
        "volume",
        "create",
        "a.img",
        "--size",
        "32M",
        "--passphrase-fd",
        "0",
        "--recovery",
    ];
    let ran = s.run_with_input(&create, b"sesame\n").ok();
    let is_key = |line: &&str| line.len() == 79 && line.split('-').count() == 8;
    let key = ran.stdout.lines().find(is_key).unwrap();
    assert!(ran.stderr.contains("not shown again"), "{}", ran.stderr);
    fs::write(s.path("recovery"), key).unwrap();
    test_key(&s, "recovery").ok();
    // A key pair and a recovery key; the name comes after its option, as before.
    s.key("owner");
    s.key("safe");
    let create = [
        "volume", "create", "b.img", "--size", "32M", "--owner", "owner",
    ];
    let made = s.json(&[&create[..], &["--recovery", "safe", "--recovery"]].concat());
    let roles = made["keys"].as_array().unwrap().iter();
    let roles: Vec<&str> = roles.map(|key| key["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["owner", "recovery", "recovery"]);
    assert_eq!(made["keys"][1]["name"], "safe");
    assert!(made["recovery_key"].is_string());
}

#[test]
fn two_keys_of_one_name_are_told_apart() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let mut prints = Vec::new();
    for _ in 0..2 {
        s.key("bob");
        let shown = s.json(&["key", "show", "bob"]);
        prints.push(shown["fingerprint"].as_str().unwrap().to_owned());
        s.run(&["volume", "key", "add", "a.img", "--user", "bob"])
            .ok();
        s.run(&["key", "remove", "bob", "--yes"]).ok();
    }
    assert_ne!(prints[0], prints[1]);
    let listed = s.run(&["volume", "key", "list", "a.img"]).ok().stdout;
    for print in &prints {
        let line = format!("user      key pair bob {print} (");
        assert!(listed.contains(&line), "{line}: {listed}");
    }
}

#[test]
fn a_typed_passphrase_has_three_tries_and_is_never_shown() {
    let s = Sandbox::new();
    volume(&s);
    let test = ["volume", "key", "test", "a.img", "--passphrase"];
    let mut terminal = at_a_terminal(&s, &test);
    answer(&mut terminal, "Passphrase for a.img: ", "wrong one");
    answer(
        &mut terminal,
        "try 2 of 3\r\nPassphrase for a.img: ",
        "wrong two",
    );
    answer(&mut terminal, "try 3 of 3\r\nPassphrase for a.img: ", FIRST);
    let (status, said) = terminal.end();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("keyslot 0 (owner"), "{said}");
    assert!(
        !said.contains("wrong one") && !said.contains(FIRST),
        "{said}"
    );

    let mut terminal = at_a_terminal(&s, &test);
    for _ in 0..3 {
        answer(&mut terminal, "Passphrase for a.img: ", "wrong");
    }
    let (status, said) = terminal.end();
    assert_eq!(status.code(), Some(12), "{said}");
    assert_eq!(said.matches("Passphrase for").count(), 3, "{said}");

    // The same for the passphrase of a key pair, which is found without an option.
    let generate = ["key", "generate", "locked", "--passphrase-fd", "0"];
    s.run_with_input(&generate, b"phrase\n").ok();
    let add = ["volume", "key", "add", "a.img", "--user", "locked"];
    s.run(&[&add[..], &["--unlock-key-file", "first"]].concat())
        .ok();
    let mut terminal = at_a_terminal(&s, &["volume", "key", "test", "a.img"]);
    answer(&mut terminal, "Passphrase for the key `locked`: ", "wrong");
    answer(
        &mut terminal,
        "try 2 of 3\r\nPassphrase for the key `locked`: ",
        "phrase",
    );
    let (status, said) = terminal.end();
    assert_eq!(status.code(), Some(0), "{said}");
}

#[test]
fn a_secret_from_a_descriptor_is_tried_once_and_not_shown_by_a_terminal() {
    let s = Sandbox::new();
    volume(&s);
    let test = ["volume", "key", "test", "a.img", "--passphrase-fd", "0"];
    let mut terminal = at_a_terminal(&s, &test);
    answer(&mut terminal, "Passphrase: ", "wrong");
    let (status, said) = terminal.end();
    assert_eq!(status.code(), Some(12), "{said}");
    assert_eq!(said.matches("Passphrase: ").count(), 1, "{said}");
    // A new one is typed twice.
    let add = [
        "volume",
        "key",
        "add",
        "a.img",
        "--new-passphrase-fd",
        "0",
        "--unlock-key-file",
        "first",
    ];
    let mut terminal = at_a_terminal(&s, &add);
    answer(&mut terminal, "New passphrase: ", SECOND);
    answer(&mut terminal, "New passphrase, again: ", SECOND);
    let (status, said) = terminal.end();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(!said.contains(SECOND), "{said}");
    test_key(&s, "second").ok();
    // A key file is read as it is, so a terminal would show it.
    let terminal = at_a_terminal(&s, &["attach", "a.img", "--key-file", "-"]);
    let (status, said) = terminal.end();
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("--passphrase-fd 0"), "{said}");
}

#[test]
fn a_new_passphrase_is_asked_for_twice() {
    let s = Sandbox::new();
    let create = ["volume", "create", "a.img", "--size", "32M", "--passphrase"];
    let mut terminal = at_a_terminal(&s, &create);
    answer(&mut terminal, "New passphrase for a.img: ", FIRST);
    answer(&mut terminal, "New passphrase for a.img, again: ", SECOND);
    let (status, said) = terminal.end();
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(
        said.contains("do not match") && !s.path("a.img").exists(),
        "{said}"
    );
    let mut terminal = at_a_terminal(&s, &create);
    // The first characters are removed again: by one key, by word, and all of them.
    let edited = format!("x\u{7f}one two\u{17}\u{15}{FIRST}");
    answer(&mut terminal, "New passphrase for a.img: ", &edited);
    answer(&mut terminal, "New passphrase for a.img, again: ", FIRST);
    let (status, said) = terminal.end();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(!said.contains(FIRST), "{said}");
    let mut terminal = at_a_terminal(&s, &["volume", "key", "change", "a.img"]);
    answer(&mut terminal, "Passphrase for a.img: ", FIRST);
    answer(&mut terminal, "New passphrase for keyslot 0: ", SECOND);
    answer(
        &mut terminal,
        "New passphrase for keyslot 0, again: ",
        SECOND,
    );
    let (status, said) = terminal.end();
    assert_eq!(status.code(), Some(0), "{said}");
    fs::write(s.path("second"), SECOND).unwrap();
    test_key(&s, "second").ok();
}

/// A shell survives the program at its terminal, and then shows the settings of the terminal.
#[test]
fn the_terminal_has_its_echo_again_also_after_ctrl_c() {
    let s = Sandbox::new();
    volume(&s);
    let program = tests::program();
    let line = format!(
        "{} volume key test a.img --passphrase; echo \"code $?\"; stty -a",
        program.display()
    );
    let code_of_int = format!("code {}", 128 + libc::SIGINT);
    for (typed, code) in [("\u{3}", code_of_int.as_str()), ("\u{4}", "code 1")] {
        let mut command = Command::new("bash");
        s.environment(&mut command);
        command.args(["-c", &line]);
        let mut terminal = Terminal::start(command);
        terminal.wait_for("Passphrase for a.img: ");
        assert!(!terminal.echoes());
        terminal.type_text(typed);
        terminal.wait_for(code);
        let (status, said) = terminal.end();
        assert_eq!(status.signal(), None, "{said}");
        let settings = said.split(code).nth(1).unwrap();
        let settings: Vec<&str> = settings.split_whitespace().collect();
        for set in ["echo", "icanon", "isig"] {
            assert!(settings.contains(&set), "{typed:?} {set}: {said}");
        }
    }
}

#[test]
fn a_recovery_key_is_drawn_only_on_request_and_only_for_people() {
    let s = Sandbox::new();
    volume(&s);
    let add = ["volume", "key", "add", "a.img", "--recovery"];
    let add = [&add[..], &["--unlock-key-file", "first"]].concat();
    assert!(!s.run(&add).ok().stdout.contains('█'));
    let drawn = s.run(&[&add[..], &["--qr"]].concat()).ok().stdout;
    assert!(drawn.contains('█') && !drawn.contains('\x1b'), "{drawn}");
    // At a terminal the code has colors of its own.
    let mut terminal = at_a_terminal(&s, &[&add[..], &["--qr"]].concat());
    terminal.wait_for("recovery key");
    let (status, said) = terminal.end();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("\x1b[40;37;1m█"), "{said}");
    let used = keys(&s).len();
    s.run(&[&["--json"][..], &add[..], &["--qr"]].concat())
        .code(2);
    s.key("safe");
    let pair = [
        "volume",
        "key",
        "add",
        "a.img",
        "--recovery",
        "safe",
        "--qr",
    ];
    s.run(&pair).code(2);
    s.run(&["volume", "key", "add", "a.img", "--user", "safe", "--qr"])
        .code(2);
    assert_eq!(keys(&s).len(), used, "a refused command changed the volume");
}

mod needs_peer {
    use super::*;
    use tests::{installed, peer};

    /// Pixels of a module in a picture.
    const SCALE: usize = 6;

    /// Makes a picture (PGM) of a code that was drawn with characters.
    fn picture(drawn: &[&str]) -> Vec<u8> {
        let mut rows: Vec<Vec<u8>> = Vec::new();
        for line in drawn {
            let of = |light: [char; 2]| -> Vec<u8> {
                let pixels = line
                    .chars()
                    .map(|c| if light.contains(&c) { 255 } else { 0 });
                pixels.flat_map(|pixel| [pixel; SCALE]).collect()
            };
            for row in [of(['█', '▀']), of(['█', '▄'])] {
                rows.extend(std::iter::repeat_n(row, SCALE));
            }
        }
        let head = format!("P5 {} {} 255\n", rows[0].len(), rows.len());
        [head.into_bytes(), rows.concat()].concat()
    }

    #[test]
    fn the_drawn_code_is_the_recovery_key() {
        let s = Sandbox::new();
        installed("zbarimg");
        let create = ["volume", "create", "a.img", "--size", "32M"];
        let more = ["--passphrase-fd", "0", "--recovery", "--qr"];
        let ran = s.run_with_input(&[&create[..], &more].concat(), b"sesame\n");
        let said = ran.ok().stdout;
        let is_key = |line: &&str| line.len() == 79 && line.split('-').count() == 8;
        let key = said.lines().find(is_key).unwrap();
        let drawn: Vec<&str> = said
            .lines()
            .filter(|line| line.contains(['█', '▀']))
            .collect();
        assert!(drawn.len() < 24, "it does not fit a terminal of 24 lines");
        assert!(drawn.iter().all(|line| line.chars().count() <= 80));
        fs::write(s.path("code.pgm"), picture(&drawn)).unwrap();
        let file = s.path("code.pgm").display().to_string();
        let read = peer("zbarimg", &["--quiet", "--raw", file.as_str()]);
        assert_eq!(read.trim_end(), key);
        fs::write(s.path("typed"), read).unwrap();
        test_key(&s, "typed").ok();
    }
}
