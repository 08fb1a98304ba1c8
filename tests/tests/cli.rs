//! The command line: exit codes, refusals, JSON, and the behavior that a new user encounters.

use std::fs;
use std::os::unix::process::CommandExt;
use tests::{Ran, Sandbox};

const HEADER: usize = 16 * 1024;

#[test]
fn exit_2_for_usage_and_a_configuration_that_makes_no_sense() {
    let s = Sandbox::new();
    s.run(&["no-such-verb"]).code(2);
    s.run(&["attach"]).code(2);
    s.run(&["key", "generate", "x", "--passphrase-fd", "77"])
        .code(2);
    let mut bad = s.evfs();
    let ran = Ran::of(bad.env("EVFS_THREADS", "many").args(["config", "show"])).code(2);
    assert!(ran.stderr.contains("EVFS_THREADS"), "{}", ran.stderr);
    fs::write(
        s.path("up.toml"),
        "[volume.x]\ndevice = \"d\"\nread-olny = true\n",
    )
    .unwrap();
    let ran = s.run(&["up", "up.toml"]).code(2);
    assert!(
        ran.stderr.contains("did you mean `read-only`"),
        "{}",
        ran.stderr
    );
}

/// A real `cargo install` builds everything again, so this test reads its selection: cargo installs
/// every program of a package, with the default features.
#[test]
fn the_command_in_the_readme_installs_one_program_with_all_commands() {
    let root = tests::root();
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let (_, command) = readme
        .split_once("`cargo install --profile dist --locked --path ")
        .unwrap();
    let (package, _) = command.split_once('`').unwrap();
    let manifest = root.join(package).join("Cargo.toml");
    let manifest = manifest.to_str().unwrap();
    let args = ["metadata", "--format-version=1", "--no-deps", "--offline"];
    let said = tests::peer(
        env!("CARGO"),
        &[&args[..], &["--manifest-path", manifest]].concat(),
    );
    let metadata: serde_json::Value = serde_json::from_str(&said).unwrap();
    let mut packages = metadata["packages"].as_array().unwrap().iter();
    let package = packages.find(|p| p["manifest_path"] == manifest).unwrap();
    let targets = package["targets"].as_array().unwrap().iter();
    let programs: Vec<_> = targets
        .filter(|t| t["kind"] == serde_json::json!(["bin"]))
        .map(|t| (&t["name"], t["required-features"].is_null()))
        .collect();
    assert_eq!(programs, [(&serde_json::json!("evfs"), true)]);
    assert_eq!(package["features"]["default"], serde_json::json!(["bench"]));
}

#[test]
fn exit_10_for_what_is_not_there() {
    let s = Sandbox::new();
    s.run(&["key", "show", "nobody"]).code(10);
    s.run(&["key", "remove", "nobody"]).code(10);
    s.run(&["detach", "nothing"]).code(10);
    s.run(&["stats", "nothing"]).code(10);
    s.run(&["volume", "info", "missing.img"]).code(10);
    s.run(&["attach", "missing.img"]).code(10);
    let image = s.volume("a.img", "32M", &[]);
    s.run(&["volume", "key", "remove", image.to_str().unwrap(), "7"])
        .code(10);
    s.run(&[
        "volume", "create", "b.img", "--size", "32M", "--owner", "nobody",
    ])
    .code(10);
    assert!(
        !s.path("b.img").exists(),
        "a file was made for a volume that was not"
    );
}

#[test]
fn a_number_never_takes_the_keyslot_of_another_key() {
    let s = Sandbox::new();
    s.key("safe");
    s.volume("a.img", "32M", &["--recovery", "safe"]);
    let ran = s.run(&["key", "generate", "1", "--no-passphrase"]).code(2);
    assert!(ran.stderr.contains("keyslot"), "{}", ran.stderr);
    let public = s.path("keys/safe.pub");
    let public = public.to_str().unwrap();
    s.run(&["key", "import", public, "--name", "12"]).code(2);
    // An earlier EVFS allowed such names: safe is in keyslot 1, and `1` will be in keyslot 2.
    s.key("one");
    for half in ["key", "pub"] {
        let from = s.path(&format!("keys/one.{half}"));
        fs::rename(from, s.path(&format!("keys/1.{half}"))).unwrap();
    }
    let remove = |which: &[&str]| {
        let mut args = vec![
            "volume", "key", "remove", "a.img", "--key", "owner", "--yes",
        ];
        args.extend(which);
        s.run(&args)
    };
    let slots = || {
        let listed = s.json(&["volume", "key", "list", "a.img"]);
        let keys = listed["keys"].as_array().unwrap().clone();
        let slots = keys.iter().map(|k| k["keyslot"].as_u64().unwrap());
        slots.collect::<Vec<_>>()
    };
    let ran = remove(&["1"]).code(2);
    assert!(ran.stderr.contains("no keyslot there"), "{}", ran.stderr);
    s.run(&["volume", "key", "add", "a.img", "--user", "1"])
        .ok();
    let ran = remove(&["1"]).code(2);
    for word in ["--key-slot 1", "--key-slot 2"] {
        assert!(ran.stderr.contains(word), "{word}: {}", ran.stderr);
    }
    assert_eq!(slots(), [0, 1, 2]);
    remove(&["--key-slot", "7"]).code(10);
    // The former spelling.
    remove(&["--key-slot", "2"]).ok();
    assert_eq!(slots(), [0, 1]);
    let ran = s.run(&["key", "remove", "1", "--yes"]).ok();
    remove(&["1"]).ok();
    assert_eq!(slots(), [0]);
    // The printed command imports the key again.
    let mut said = ran.stdout.split('`');
    let import = said.nth(1).unwrap().strip_prefix("evfs ").unwrap();
    s.run(&import.split(' ').collect::<Vec<_>>()).ok();
    s.run(&["key", "show", "key1"]).ok();
}

#[test]
fn exit_11_for_a_volume_that_is_attached() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.attach(&["a.img"]);
    s.run(&["attach", "a.img", "--name", "other"]).code(11);
    s.run(&["volume", "erase", "a.img"]).code(11);
    s.volume("b.img", "32M", &[]);
    s.run(&["attach", "b.img", "--name", "a"]).code(11);
    s.detach("a");
    s.attach(&["a.img", "--read-only"]);
    s.detach("a");
}

#[test]
fn exit_12_for_a_wrong_key() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.key("stranger");
    s.run(&["attach", "a.img", "--key", "stranger"]).code(12);
    fs::write(s.path("wrong"), "wrong").unwrap();
    s.run(&["attach", "a.img", "--key-file", "wrong"]).code(12);
    s.run_with_input(&["attach", "a.img", "--passphrase-fd", "0"], b"wrong\n")
        .code(12);
}

#[test]
fn exit_13_for_a_right_key_whose_role_refuses() {
    let s = Sandbox::new();
    for name in ["user", "safe", "new"] {
        s.key(name);
    }
    s.volume("a.img", "32M", &["--recovery", "safe"]);
    s.run(&["volume", "key", "add", "a.img", "--user", "user"])
        .ok();
    s.run(&[
        "volume", "key", "add", "a.img", "--user", "new", "--key", "user",
    ])
    .code(13);
    s.run(&["volume", "owner", "set", "a.img", "user", "--key", "user"])
        .code(13);
    s.run(&["volume", "erase", "a.img", "--key", "user"])
        .code(13);
    s.run(&["volume", "key", "remove", "a.img", "user", "--key", "safe"])
        .code(13);
    s.run(&["attach", "a.img", "--key", "safe"]).code(13);
    // Purpose of a recovery key: a new owner with all rights, while the old owner loses them.
    s.run(&[
        "volume", "owner", "set", "a.img", "new", "--key", "safe", "--yes",
    ])
    .ok();
    s.run(&["volume", "key", "remove", "a.img", "user", "--key", "owner"])
        .code(12);
    s.run(&[
        "volume", "key", "remove", "a.img", "user", "--key", "new", "--yes",
    ])
    .ok();
    s.run(&["attach", "a.img", "--key", "user"]).code(12);
}

#[test]
fn exit_20_21_26_for_damage_of_one_copy_of_both_and_for_a_check() {
    let s = Sandbox::new();
    let image = s.volume("a.img", "32M", &[]);
    s.key("user");
    s.run(&["volume", "check", "a.img"]).ok();
    let whole = fs::read(&image).unwrap();
    for copy in [0, 1] {
        let mut bytes = whole.clone();
        bytes[copy * HEADER + 5000] ^= 1;
        fs::write(&image, &bytes).unwrap();
        let ran = s.run(&["volume", "check", "a.img"]).code(26);
        let mends = "`evfs volume repair a.img`";
        assert!(ran.stdout.contains(mends), "{}", ran.stdout);
        s.run(&["volume", "key", "add", "a.img", "--user", "user"])
            .code(20);
        // An attach warns as well: the next damage may be to the other copy.
        let which = ["primary copy", "secondary copy"][copy];
        let ran = s.run(&["attach", "a.img", "--background"]).ok();
        let warned = |text: &str| text.contains(which) && text.contains(mends);
        assert!(warned(&ran.stderr), "{}", ran.stderr);
        let status = s.run(&["status"]).ok().stdout;
        assert!(status.contains("warning") && warned(&status), "{status}");
        let status = s.json(&["status"]);
        assert!(warned(&status.to_string()), "{status}");
        s.detach("a");
        s.run(&["volume", "repair", "a.img"]).ok();
        s.run(&["volume", "check", "a.img"]).ok();
    }
    let mut bytes = whole.clone();
    bytes[5000] ^= 1;
    bytes[HEADER + 5000] ^= 1;
    fs::write(&image, &bytes).unwrap();
    s.run(&["volume", "info", "a.img"]).code(21);
    s.run(&["attach", "a.img"]).code(21);
    s.run(&["volume", "repair", "a.img"]).code(21);
}

#[test]
fn a_check_advises_a_repair_only_where_one_does_something() {
    let s = Sandbox::new();
    let image = s.volume("a.img", "32M", &[]);
    s.run(&["volume", "header", "backup", "a.img", "h"]).ok();
    let short = fs::read(&image).unwrap();
    fs::write(s.path("short.img"), &short[..12 << 20]).unwrap();
    s.run(&["volume", "erase", "a.img", "--force"]).ok();
    for what in ["h", "short.img", "a.img"] {
        let ran = s.run(&["volume", "check", what]).code(26);
        assert!(!ran.stdout.contains("repair"), "{what}: {}", ran.stdout);
    }
}

#[test]
fn a_name_of_a_lun_and_of_a_file_is_refused() {
    let s = Sandbox::new();
    s.volume("a.img", "64M", &[]);
    s.attach(&["a.img"]);
    let lun = format!("nbd+unix:///a?socket={}", s.path("run/a.nbd").display());
    let create = ["volume", "create", &lun, "--owner", "owner", "--force"];
    s.run(&create).ok();
    s.volume("b.img", "32M", &[]);
    let erase = |what: &str| s.run(&["volume", "erase", what, "--force"]);
    fs::rename(s.path("b.img"), s.path("disk1")).unwrap();
    for args in [&["volume", "info", "disk1"][..], &["attach", "disk1"]] {
        let ran = s.run(args).code(2);
        assert!(ran.stderr.contains("use ./disk1"), "{}", ran.stderr);
    }
    erase("disk1").code(2);
    erase("./disk1").ok();
    fs::remove_file(s.path("disk1")).unwrap();
    erase("disk1").ok();
}

#[test]
fn the_first_term_ends_a_service_that_waits_for_its_key() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let made = std::process::Command::new("mkfifo")
        .arg(s.path("fifo"))
        .status();
    assert!(made.unwrap().success());
    let attach = ["attach", "a.img", "--key-file", "fifo"];
    for args in [&attach[..], &["up", "fifo"]] {
        let mut child = tests::Killed(s.evfs().args(args).spawn().unwrap());
        let status = format!("/proc/{}/status", child.0.id());
        tests::wait_until("it has taken the signals over", || {
            let status = fs::read_to_string(&status).unwrap();
            let caught = status.lines().find_map(|l| l.strip_prefix("SigCgt:"));
            let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
            caught & 1 << (libc::SIGXFSZ - 1) != 0
        });
        child.signal(libc::SIGTERM);
        tests::wait_until("it ends", || child.0.try_wait().unwrap().is_some());
        let code = child.0.wait().unwrap().code();
        assert_eq!(code, Some(143), "{args:?}");
    }
    s.attach(&["a.img"]);
    s.detach("a");
}

/// Goal: an endless file is refused, and not read until memory is exhausted.
#[test]
fn files_that_are_read_whole_have_a_limit() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let cases: [(&str, &[&str]); 5] = [
        ("EVFS_CONFIG", &["config", "show"]),
        ("EVFS_TRUST_STORE", &["volume", "trust"]),
        ("EVFS_LUN_REGISTRY", &["lun", "list"]),
        ("EVFS_NONE", &["up", "/dev/zero"]),
        (
            "EVFS_NONE",
            &["volume", "header", "restore", "a.img", "/dev/zero", "--yes"],
        ),
    ];
    for (variable, args) in cases {
        let mut command = s.evfs();
        if variable != "EVFS_NONE" {
            command.env(variable, "/dev/zero");
        }
        // SAFETY: the call only reduces the memory limit of the child.
        unsafe {
            command.pre_exec(|| {
                let limit = libc::rlimit {
                    rlim_cur: 2 << 30,
                    rlim_max: 2 << 30,
                };
                match libc::setrlimit(libc::RLIMIT_AS, &limit) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let ran = Ran::of(command.args(args));
        assert!(ran.stderr.contains("it has more than"), "{args:?}: {ran:?}");
    }
}

#[test]
fn exit_130_and_143_for_signals_after_an_orderly_stop() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let child = s
            .evfs()
            .args(["attach", "a.img"])
            .stdout(std::process::Stdio::null())
            .spawn();
        let mut child = child.unwrap();
        tests::wait_until("the volume is attached", || {
            s.path("run/a.control").exists()
        });
        tests::signal(child.id() as i32, signal);
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert!(!s.path("run/a.control").exists() && !s.path("run/a.nbd").exists());
    }
}

#[test]
fn erase_is_undone_by_the_backup_it_leaves() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let erased = s.json(&["volume", "erase", "a.img", "--yes"]);
    s.run(&["attach", "a.img", "--key", "owner"]).code(12);
    s.run(&[
        "volume",
        "header",
        "restore",
        "a.img",
        erased["undo"].as_str().unwrap(),
        "--yes",
    ])
    .ok();
    s.attach(&["a.img"]);
    s.detach("a");
}

#[test]
fn a_header_backup_of_another_volume_is_refused_unless_forced() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.volume("b.img", "32M", &[]);
    s.run(&["volume", "header", "backup", "a.img", "a.header"])
        .ok();
    s.run(&["volume", "header", "backup", "a.img", "a.header"])
        .code(2);
    s.run(&["volume", "header", "restore", "b.img", "a.header"])
        .code(2);
    fs::write(s.path("rubbish"), vec![7; 1 << 20]).unwrap();
    assert_ne!(
        s.run(&["volume", "header", "restore", "a.img", "rubbish", "--yes"])
            .status
            .code(),
        Some(0)
    );
    s.attach(&["b.img"]);
    s.detach("b");
}

#[test]
fn every_verb_has_help_and_the_main_ones_have_examples() {
    let s = Sandbox::new();
    let verbs: &[&[&str]] = &[
        &[],
        &["quickstart"],
        &["key"],
        &["key", "generate"],
        &["key", "import"],
        &["volume"],
        &["volume", "create"],
        &["volume", "key", "add"],
        &["volume", "header", "backup"],
        &["attach"],
        &["detach"],
        &["status"],
        &["explain"],
        &["web"],
        &["stats"],
        &["top"],
        &["up"],
        &["down"],
        &["config", "show"],
        &["doctor"],
        &["bench", "compare"],
        &["bench", "machine"],
        // Former names.
        &["benchmark"],
        &["lab", "compare"],
    ];
    for verb in verbs {
        let mut args = verb.to_vec();
        args.push("--help");
        let help = s.run(&args).ok().stdout;
        assert!(help.contains("Usage:"), "{verb:?}");
    }
    for verb in [
        &["quickstart"][..],
        &["key", "generate"],
        &["volume", "create"],
        &["attach"],
        &["bench", "compare"],
    ] {
        let mut args = verb.to_vec();
        args.push("--help");
        assert!(s.run(&args).ok().stdout.contains("Examples:"), "{verb:?}");
    }
}

#[test]
fn errors_are_json_too_when_asked_for() {
    let s = Sandbox::new();
    let ran = s.run(&["--json", "detach", "nothing"]).code(10);
    let value: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(value["code"], 10);
    assert!(value["error"].as_str().unwrap().contains("nothing"));
}

#[test]
fn up_attaches_all_of_a_file_and_down_only_those() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.volume("b.img", "32M", &[]);
    s.volume("c.img", "32M", &[]);
    fs::write(
        s.path("up.toml"),
        "[volume.a]\ndevice = \"a.img\"\n[volume.b]\ndevice = \"b.img\"\nread-only = true\n",
    )
    .unwrap();
    s.attach(&["c.img"]);
    s.run(&["up", "up.toml", "--background"]).ok();
    let names = || -> Vec<String> {
        let value = s.json(&["status"]);
        let volumes = value["volumes"].as_array().unwrap();
        volumes
            .iter()
            .map(|v| v["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(), ["a", "b", "c"]);
    s.run(&["down"]).ok();
    assert_eq!(names(), ["c"]);
    s.detach("c");
}

#[test]
fn a_file_of_rubbish_or_too_short_is_refused_with_a_sentence() {
    let s = Sandbox::new();
    let mut random = tests::Random::from_environment();
    for len in [0usize, 1, 511, 4096, 40_000] {
        fs::write(s.path("x.img"), random.bytes(len)).unwrap();
        for verb in ["info", "check", "repair"] {
            let ran = s.run(&["volume", verb, "x.img"]);
            assert!(
                matches!(ran.status.code(), Some(1..=21)),
                "{verb} of {len} bytes: {ran:?}"
            );
            assert!(
                ran.stderr.starts_with("evfs: ") && !ran.stderr.contains("panicked"),
                "{ran:?}"
            );
        }
    }
    s.run(&["volume", "info", "/dev/null"]).code(1);
    s.run(&["volume", "info", "."]).code(10);
}

mod needs_peer {
    use super::*;

    #[test]
    fn create_refuses_a_known_signature_and_force_keeps_what_it_overwrites() {
        let s = Sandbox::new();
        let image = s.path("a.img");
        fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        tests::peer("mkfs.ext4", &["-q", image.to_str().unwrap()]);
        s.key("owner");
        let before = fs::read(&image).unwrap();
        let ran = s
            .run(&["volume", "create", "a.img", "--owner", "owner"])
            .code(2);
        assert!(
            ran.stderr.contains("ext") && ran.stderr.contains("--force"),
            "{}",
            ran.stderr
        );
        assert!(
            fs::read(&image).unwrap() == before,
            "a refused command changed the device"
        );
        let made = s.json(&["volume", "create", "a.img", "--owner", "owner", "--force"]);
        let undo = fs::read(made["undo"].as_str().unwrap()).unwrap();
        let after = fs::read(&image).unwrap();
        assert!(
            undo == before[..undo.len()],
            "the backup is not what was there"
        );
        assert!(
            after[undo.len()..] == before[undo.len()..],
            "more was overwritten than was kept"
        );
    }

    #[test]
    fn passphrases_and_key_files_open_and_ssh_keys_enrol() {
        let s = Sandbox::new();
        s.volume("a.img", "32M", &[]);
        s.run_with_input(
            &["volume", "key", "add", "a.img", "--new-passphrase-fd", "0"],
            b"open sesame\n",
        )
        .ok();
        let mut key_file = vec![0u8; 4096];
        key_file[17] = 10;
        fs::write(s.path("k"), &key_file).unwrap();
        s.run(&["volume", "key", "add", "a.img", "--new-key-file", "k"])
            .ok();
        let ssh = s.path("id");
        tests::peer(
            "ssh-keygen",
            &["-q", "-t", "ed25519", "-N", "", "-f", ssh.to_str().unwrap()],
        );
        s.run(&["key", "import", "id", "--name", "me"]).ok();
        s.run(&["volume", "key", "add", "a.img", "--user", "me"])
            .ok();
        let ran = s.run_with_input(
            &["attach", "a.img", "--passphrase-fd", "0", "--background"],
            b"open sesame\n",
        );
        ran.ok();
        s.detach("a");
        s.attach(&["a.img", "--key-file", "k"]);
        s.detach("a");
        s.attach(&["a.img", "--key", "me"]);
        s.detach("a");
    }
}
