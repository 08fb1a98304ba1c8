//! Error messages, and exit codes of commands in unusual situations.

use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use tests::terminal::Terminal;
use tests::{Ran, Random, Sandbox, forge, peer};

const HEADER: usize = 16 * 1024;
const CHEAP: &[&str] = &["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];

/// Runs `cryptsetup`, with the passphrase `right` in the file `k`.
fn cryptsetup(s: &Sandbox, args: &[&str]) {
    fs::write(s.path("k"), "right").unwrap();
    fs::write(s.path("wrong"), "wrong").unwrap();
    let key = s.path("k");
    let all = [
        args,
        &["--batch-mode", "--key-file", key.to_str().unwrap()][..],
    ];
    peer("cryptsetup", &all.concat());
}

/// Creates a volume of 32 MiB with `cryptsetup luksFormat`.
fn foreign(s: &Sandbox, name: &str, more: &[&str]) -> String {
    let image = s.path(name);
    File::create(&image).unwrap().set_len(32 << 20).unwrap();
    let image = image.to_str().unwrap().to_owned();
    let args = ["luksFormat", "--type", "luks2", &image];
    cryptsetup(s, &[&args, more].concat());
    image
}

#[test]
fn keys_in_memory_that_may_be_swapped_are_said_to_be() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    assert_eq!(s.attach(&["a.img"])["keys_locked"], true);
    s.detach("a");
    let mut command = s.evfs();
    command.args(["attach", "a.img", "--background"]);
    // SAFETY: both calls only remove privileges from the child.
    unsafe {
        command.pre_exec(|| {
            const CAP_IPC_LOCK: libc::c_ulong = 14;
            libc::prctl(libc::PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0);
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            match libc::setrlimit(libc::RLIMIT_MEMLOCK, &none) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let ran = Ran::of(&mut command).ok();
    assert!(ran.stderr.contains("RLIMIT_MEMLOCK"), "{}", ran.stderr);
    let status = s.json(&["status"]);
    assert_eq!(status["volumes"][0]["keys_locked"], false);
    s.detach("a");
}

#[test]
fn a_header_backup_and_a_device_cut_short_can_be_looked_at() {
    let s = Sandbox::new();
    let image = s.volume("a.img", "32M", &[]);
    s.run(&["volume", "header", "backup", "a.img", "h"]).ok();
    let whole = s.json(&["volume", "info", "a.img"]);
    let cut = File::options().write(true).open(&image).unwrap();
    cut.set_len(9 << 20).unwrap();
    for name in ["h", "a.img"] {
        let seen = s.json(&["volume", "info", name]);
        assert_eq!(
            (&seen["uuid"], &seen["keys"]),
            (&whole["uuid"], &whole["keys"])
        );
        assert_eq!(seen["cut_short"], true);
        let ran = s.run(&["volume", "check", name]).code(26);
        assert!(ran.stdout.contains("truncated"), "{}", ran.stdout);
        s.run(&["attach", name]).code(1);
    }
}

#[test]
fn the_remains_of_a_header_are_told_from_what_never_was_one() {
    let s = Sandbox::new();
    let image = s.volume("a.img", "32M", &[]);
    let whole = fs::read(&image).unwrap();
    s.run(&["volume", "header", "backup", "a.img", "h"]).ok();
    // Either the magic is lost, or everything before the JSON.
    for lost in [6, 4096] {
        let mut bytes = whole.clone();
        for copy in [0, HEADER] {
            bytes[copy..copy + lost].fill(0x5a);
        }
        fs::write(&image, &bytes).unwrap();
        s.run(&["volume", "info", "a.img"]).code(21);
        s.run(&["attach", "a.img", "--key", "owner"]);
    }
    let restore = ["volume", "header", "restore", "a.img", "h"];
    let ran = s.run(&restore).code(2);
    assert!(!ran.stderr.contains("signature"), "{}", ran.stderr);
    assert!(ran.stderr.contains("not a LUKS volume"), "{}", ran.stderr);
    s.run(&[&restore[..], &["--force"]].concat()).ok();
    s.run(&["volume", "check", "a.img"]).ok();
    fs::write(s.path("b.img"), Random::from_environment().bytes(1 << 20)).unwrap();
    s.run(&["volume", "info", "b.img"]).code(10);
    // The damage of each copy is reported once.
    let mut bytes = whole;
    bytes[5000] ^= 1;
    fs::write(&image, &bytes).unwrap();
    let ran = s.run(&["volume", "check", "a.img"]).code(26);
    assert!(!ran.stdout.contains("damaged: damaged"), "{}", ran.stdout);
}

#[test]
fn what_is_there_already_ends_with_2() {
    let s = Sandbox::new();
    let size = ["--size", "32M"];
    s.volume("a.img", "32M", &[]);
    s.key("bob");
    s.run(&["volume", "header", "backup", "a.img", "h"]).ok();
    let add = ["volume", "key", "add", "a.img", "--user", "bob"];
    s.run(&add).ok();
    let create = ["volume", "create", "a.img", "--owner", "owner"];
    let all: &[&[&str]] = &[
        &["key", "generate", "bob", "--no-passphrase"],
        &["volume", "header", "backup", "a.img", "h"],
        &add,
        &[&create[..], &size].concat(),
        &create,
    ];
    for args in all {
        s.run(args).code(2);
    }
}

#[test]
fn a_file_too_small_for_a_volume_is_said_to_be() {
    let s = Sandbox::new();
    s.key("owner");
    let create = [
        "volume", "create", "a.img", "--owner", "owner", "--size", "1M",
    ];
    let ran = s.run(&create).code(2);
    assert!(
        ran.stderr.contains("17M") && !ran.stderr.contains("cut short"),
        "{}",
        ran.stderr
    );
    assert!(!s.path("a.img").exists());
}

#[test]
fn errors_of_the_system_are_said_once_and_in_words() {
    let s = Sandbox::new();
    let ran = s.run(&["volume", "info", "missing.img"]).code(10);
    assert!(
        ran.stderr.starts_with("evfs: missing.img: not found; "),
        "{}",
        ran.stderr
    );
    assert_eq!(ran.stderr.lines().count(), 1);
    for args in [
        &["key", "import", "missing", "--name", "x"][..],
        &["volume", "info", "/proc/self/mem"],
        &["up", "missing.toml"],
    ] {
        let ran = s.run(args);
        assert!(!ran.stderr.contains("os error"), "{}", ran.stderr);
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error_and_a_reader_that_leaves_is_none() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    for args in [
        &["volume", "info", "a.img"][..],
        &["--json", "status"],
        &["key", "list"],
        &["config", "show"],
        &["--help"],
        &["--version"],
    ] {
        let mut command = s.evfs();
        command.args(args).stdout(full()).stderr(Stdio::piped());
        let out = command.output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("standard output: No space left"), "{said}");
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let out = s.evfs().args(["config", "show"]).stdout(writer).output();
    let out = out.unwrap();
    assert_eq!(out.status.code(), Some(0));
    assert!(out.stderr.is_empty(), "{:?}", out.stderr);
}

#[test]
fn a_change_whose_report_cannot_be_written_is_said_to_be_made() {
    let s = Sandbox::new();
    s.key("owner");
    s.key("user");
    let unreported = |args: &[&str]| {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = s.evfs();
        command.args(args).stdout(full).stderr(Stdio::piped());
        let out = command.output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("standard output: No space left"), "{said}");
        said.contains("itself succeeded")
    };
    let create = [
        "volume", "create", "a.img", "--size", "32M", "--owner", "owner",
    ];
    let changes: &[&[&str]] = &[
        &["key", "generate", "new", "--no-passphrase"],
        &["--json", "key", "remove", "new", "--yes"],
        &create,
        &["volume", "key", "add", "a.img", "--user", "user"],
        &["volume", "key", "remove", "a.img", "user", "--yes"],
        &["volume", "header", "backup", "a.img", "h"],
        &["format", "a.img"],
        &["fileset", "create", "a.img", "set"],
        &["attach", "a.img", "--background"],
        &["detach", "a"],
    ];
    for args in changes {
        assert!(unreported(args), "{args:?}");
    }
    let looks: &[&[&str]] = &[
        &["volume", "info", "a.img"],
        &["fileset", "list", "a.img"],
        &["key", "show", "owner"],
        &["fsck", "a.img"],
    ];
    for args in looks {
        assert!(!unreported(args), "{args:?}");
    }
}

#[test]
fn a_command_line_that_makes_no_sense_is_json_too_when_asked_for() {
    let s = Sandbox::new();
    for args in [
        &["--json", "no-such-verb"][..],
        &["volume", "info", "--json"],
        &["attach", "x", "--json", "--colour"],
        &["--json"],
    ] {
        let ran = s.run(args).code(2);
        let value: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(value["code"], 2);
        let error = value["error"].as_str().unwrap();
        assert!(!error.is_empty() && !error.contains("Usage:"), "{error}");
    }
    let ran = s.run(&["--json", "attach", "--help"]).ok();
    assert!(ran.stdout.contains("Usage:"), "{}", ran.stdout);
}

#[test]
fn what_was_meant_by_a_wrong_use_is_named() {
    let s = Sandbox::new();
    fs::write(s.path("text.txt"), "some words\n".repeat(1000)).unwrap();
    s.run(&["format", "disk.img", "--size", "64M"]).ok();
    fs::write(s.path("up.toml"), "[volume.gone]\ndevice = \"gone.img\"\n").unwrap();
    for (args, code, word) in [
        (&["fsck", "text.txt"][..], 10, "no EVFS file system"),
        (&["up", "up.toml"], 10, "[volume.gone]"),
        (&["fileset", "create", "disk.img", "a/b"], 2, "no `/`"),
        (&["lun", "scan", "foo://bar"], 2, "iscsi://"),
        (&["volume", "info", "foo://bar"], 2, "iscsi://"),
        (&["key", "generate", "x"], 2, "--no-passphrase"),
    ] {
        let mut command = s.evfs();
        // Without the terminal of the tests, at which it could ask.
        // SAFETY: only the child leaves its session.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                Ok(())
            });
        }
        let ran = Ran::of(command.args(args)).code(code);
        assert!(ran.stderr.contains(word), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn names_that_are_not_utf8_are_shown_and_end_no_server() {
    use std::os::unix::ffi::OsStrExt;
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let strange = s.path("").join(std::ffi::OsStr::from_bytes(b"n\xff\xfe"));
    fs::create_dir(&strange).unwrap();
    let image = strange.join("fsv.img");
    fs::copy(s.path("a.img"), &image).unwrap();
    fs::remove_file(s.path("a.img")).unwrap();
    let run = |args: &[&std::ffi::OsStr]| Ran::of(s.evfs().args(args));
    let os = std::ffi::OsStr::new;
    run(&[os("unmount"), strange.as_os_str()]).code(10);
    let backup = strange.join("backup");
    let args = ["--json", "volume", "header", "backup"].map(os);
    run(&[&args[..], &[image.as_os_str(), backup.as_os_str()]].concat()).ok();
    let export = ["--background"].map(os);
    let attach = [&[os("attach"), image.as_os_str()], &export[..]].concat();
    run(&attach).ok();
    let status = s.json(&["status"]);
    assert_eq!(status["volumes"][0]["name"], "fsv");
    assert!(s.run(&["status"]).ok().stdout.contains("fsv"));
    s.detach("fsv");
}

#[test]
fn names_bring_no_control_characters_to_the_terminal() {
    let s = Sandbox::new();
    let ran = s.run(&["volume", "info", "no\x1b[2Jsuch\rfile"]).code(10);
    assert!(
        ran.stderr.contains("no\\u{1b}[2Jsuch\\rfile"),
        "{}",
        ran.stderr
    );
    assert!(!ran.stderr.contains(['\x1b', '\r']), "{}", ran.stderr);
    // The parser's errors quote arguments as well: words, options, and values.
    for args in [
        &["\x1b[31mword"][..],
        &["status", "--\x1b[31mword"],
        &[
            "volume",
            "create",
            "a",
            "--owner",
            "o",
            "--size",
            "\x1b[31mword",
        ],
        &["--json", "\x1b[31mword"],
    ] {
        let mut command = s.evfs();
        let ran = Ran::of(command.args(args).env("CLICOLOR_FORCE", "1")).code(2);
        assert!(ran.stderr.contains("\\u{1b}[31mword"), "{}", ran.stderr);
        assert!(!ran.stderr.contains('\x1b'), "{}", ran.stderr);
    }
}

#[test]
fn a_wrong_use_is_said_as_other_errors_are() {
    let s = Sandbox::new();
    for (args, said) in [
        (
            &["no-such-verb"][..],
            "unknown command `no-such-verb`; `evfs --help` shows the usage",
        ),
        (
            &["attac"],
            "unknown command `attac`; did you mean `attach`?",
        ),
        (
            &["attach"],
            "missing <DEVICE>; `evfs attach --help` shows the usage",
        ),
        (
            &["mount", "a", "b", "--fileet", "x"],
            "unknown option `--fileet`; did you mean `--fileset`?",
        ),
        (
            &["format", "a.img", "--size", "64X"],
            "--size <SIZE>: `64X` is not a size: unknown unit `X`; use K, M, G or T, which are \
             powers of 1024; `evfs format --help` shows the usage",
        ),
    ] {
        let ran = s.run(args).code(2);
        assert_eq!(ran.stderr, format!("evfs: {said}\n"));
    }
    // Without a command there is no error to report: the usage is printed.
    let ran = s.run::<&str>(&[]).code(2);
    assert!(ran.stderr.contains("Usage:"), "{}", ran.stderr);
}

mod needs_peer {
    use super::*;

    #[test]
    fn a_keyslot_that_cannot_be_used_here_is_no_wrong_key() {
        let s = Sandbox::new();
        let cipher = ["--keyslot-cipher", "aes-cbc-plain64"];
        let size = ["--keyslot-key-size", "256"];
        let image = foreign(&s, "a.img", &[CHEAP, &cipher, &size].concat());
        let ran = s.run(&["attach", "a.img", "--key-file", "k"]).code(1);
        assert!(ran.stderr.contains("aes-cbc-plain64"), "{}", ran.stderr);
        let keys = s.json(&["volume", "key", "list", "a.img"]);
        let kdf = keys["keys"][0]["kdf"].as_str().unwrap();
        assert!(kdf.contains("aes-cbc-plain64"), "{kdf}");
        // A keyslot of another key has no role.
        fs::write(s.path("other"), "other").unwrap();
        let other = s.path("other");
        let unbound = ["luksAddKey", "--unbound", "--key-size", "256", &image];
        let unbound = [&unbound[..], CHEAP, &[other.to_str().unwrap()]].concat();
        cryptsetup(&s, &unbound);
        let keys = s.json(&["volume", "key", "list", "a.img"]);
        assert_eq!(keys["keys"][1]["role"], "unbound");
    }

    #[test]
    fn what_trying_a_key_costs_has_limits_that_can_be_raised() {
        let s = Sandbox::new();
        let argon = ["--pbkdf", "argon2id", "--pbkdf-force-iterations", "4"];
        let memory = ["--pbkdf-memory", "65536", "--pbkdf-parallel", "1"];
        foreign(&s, "a.img", &[argon, memory].concat());
        let attach = |name: &str, key: &str, variable: &str, value: &str| {
            let mut command = s.evfs();
            command.args(["attach", name, "--key-file", key, "--background"]);
            Ran::of(command.env(variable, value))
        };
        let ran = attach("a.img", "k", "EVFS_KDF_MEMORY_MAX_KIB", "65535").code(1);
        let setting = "kdf.memory-max-kib";
        assert!(ran.stderr.contains(setting), "{}", ran.stderr);
        attach("a.img", "k", "EVFS_KDF_MEMORY_MAX_KIB", "65536").ok();
        s.detach("a");
        // The work of all keyslots counts together: each of these is within the limit.
        let half = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1500000"];
        let image = foreign(&s, "b.img", &half);
        fs::write(s.path("second"), "second").unwrap();
        let second = s.path("second");
        let add = ["luksAddKey", &image];
        let add = [&add[..], &half, &[second.to_str().unwrap()]].concat();
        cryptsetup(&s, &add);
        let ran = attach("b.img", "wrong", "EVFS_KDF_WORK_MAX_GIB", "1").code(1);
        assert!(ran.stderr.contains("kdf.work-max-gib"), "{}", ran.stderr);
        attach("b.img", "wrong", "EVFS_KDF_WORK_MAX_GIB", "2").code(12);
        // The digest that verifies a key counts for each keyslot.
        foreign(&s, "c.img", &half);
        forge(&s.path("c.img"), |json| {
            json["digests"]["0"]["iterations"] = 2_000_000.into();
        });
        let ran = attach("c.img", "wrong", "EVFS_KDF_WORK_MAX_GIB", "1").code(1);
        assert!(ran.stderr.contains("kdf.work-max-gib"), "{}", ran.stderr);
        attach("c.img", "wrong", "EVFS_KDF_WORK_MAX_GIB", "2").code(12);
        // So does each keyslot that claims to be of one key pair: its public key is no secret.
        s.volume("d.img", "32M", &[]);
        s.run(&["key", "generate", "bob", "--no-passphrase"]).ok();
        s.run(&["volume", "key", "add", "d.img", "--user", "bob"])
            .ok();
        forge(&s.path("d.img"), |json| {
            for keyslot in json["keyslots"].as_object_mut().unwrap().values_mut() {
                keyslot["kdf"]["iterations"] = 1_500_000.into();
            }
            let tokens = json["tokens"].as_object_mut().unwrap();
            let of_key = tokens.values_mut().filter(|t| t["type"] == "evfs-key");
            let mut of_key: Vec<_> = of_key.collect();
            of_key.sort_by_key(|token| token["role"] != "owner");
            for name in ["recipient", "envelope"] {
                of_key[1][name] = of_key[0][name].clone();
            }
        });
        let own = |most: &str| {
            let mut command = s.evfs();
            command.args(["attach", "d.img", "--key", "owner", "--background"]);
            Ran::of(command.env("EVFS_KDF_WORK_MAX_GIB", most))
        };
        let ran = own("1").code(1);
        assert!(ran.stderr.contains("kdf.work-max-gib"), "{}", ran.stderr);
        own("2").code(12);
    }
}

#[test]
fn progress_is_shown_at_a_terminal_and_nowhere_else() {
    let s = Sandbox::new();
    s.run(&["format", "a.img", "--size", "64M"]).ok();
    let at_terminal = |args: &[&str]| {
        let mut fsck = s.evfs();
        fsck.args(args).env("TERM", "xterm");
        let (status, shown) = Terminal::start(fsck).end();
        assert!(status.success(), "{shown}");
        shown
    };
    let shown = at_terminal(&["fsck", "a.img"]);
    assert!(shown.contains("checked") && shown.contains(" %"), "{shown}");
    for args in [["fsck", "a.img", "--quiet"], ["fsck", "a.img", "--json"]] {
        let shown = at_terminal(&args);
        assert!(!shown.contains(" %"), "{shown}");
    }
    let piped = s.run(&["fsck", "a.img"]).ok();
    assert_eq!(piped.stderr, "");
}
