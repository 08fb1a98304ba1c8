//! The names of things on the command line: NAME, DEVICE and DIR, sizes, aliases, former spellings,
//! and the amount of output.

use std::fs;
use std::process::Stdio;
use tests::{Sandbox, wait_until};

/// Verbs that query or change a service or its volume, as arguments of which `@` is the handle, with
/// their exit codes.
const OF_A_VOLUME: &[(&[&str], i32)] = &[
    (&["status", "@"], 0),
    (&["stats", "@"], 0),
    (&["sync", "@"], 0),
    (&["cache", "flush", "@"], 0),
    (&["cache", "drop", "@"], 0),
    (&["cache", "advise", "@", "read_ahead=no"], 0),
    (&["volume", "info", "@"], 0),
    (&["volume", "check", "@"], 0),
    (&["volume", "repair", "@"], 0),
    (&["grow", "@"], 0),
    (&["volume", "trust", "@"], 0),
    (&["volume", "key", "list", "@"], 0),
    (&["volume", "key", "test", "@"], 0),
    (&["volume", "key", "add", "@", "--user", "bob"], 0),
    (&["volume", "key", "remove", "@", "bob", "--yes"], 0),
    // Impossible while it is in use, which proves that the device was found.
    (&["volume", "erase", "@", "--yes"], 11),
    (&["attach", "@", "--name", "second"], 11),
];

fn with_handle<'a>(args: &[&'a str], handle: &'a str) -> Vec<&'a str> {
    let replaced = args
        .iter()
        .map(|arg| if *arg == "@" { handle } else { *arg });
    replaced.collect()
}

/// Runs all verbs with each handle, and `doctor`, whose code depends on the machine.
fn each_handle(s: &Sandbox, verbs: &[(&[&str], i32)], handles: &[&str]) {
    for handle in handles {
        for (args, code) in verbs {
            s.run(&with_handle(args, handle)).code(*code);
        }
        let ran = s.run(&["doctor", handle, "--problems"]);
        assert_ne!(ran.status.code(), Some(10), "{ran:?}");
    }
}

/// Creates the volume `disk.img`, whose user is bob, and attaches it.
fn attached() -> Sandbox {
    let s = Sandbox::new();
    s.key("bob");
    s.volume("disk.img", "32M", &[]);
    s.attach(&["disk.img"]);
    s
}

#[test]
fn every_verb_takes_the_name_and_the_device_of_an_attached_volume() {
    let s = attached();
    each_handle(&s, OF_A_VOLUME, &["disk", "disk.img"]);
    let status = s.json(&["status"]);
    let export = status["volumes"][0]["exports"][0]["at"].as_str().unwrap();
    s.run(&["stats", export]).ok();
    s.run(&["detach", "disk.img"]).ok();
    s.run(&["stats", "disk"]).code(10);
}

#[test]
fn what_was_resolved_is_said_if_it_is_not_what_was_typed() {
    let s = attached();
    let note = |args: &[&str]| {
        let ran = s.run(args).ok();
        let mut lines = ran.stderr.lines().map(str::to_owned);
        lines.find(|line| line.starts_with("note: "))
    };
    let image = fs::canonicalize(s.path("disk.img")).unwrap();
    let is_image = format!("note: disk is {}", image.display());
    assert_eq!(note(&["volume", "info", "disk"]), Some(is_image));
    let is_service = "note: disk.img is served as `disk`";
    assert_eq!(note(&["stats", "disk.img"]).as_deref(), Some(is_service));
    for args in [
        &["volume", "info", "disk.img"][..],
        &["stats", "disk"],
        &["--quiet", "volume", "info", "disk"],
        &["--json", "stats", "disk.img"],
    ] {
        assert_eq!(note(args), None, "{args:?}");
    }
    s.detach("disk");
}

#[test]
fn a_word_with_two_meanings_is_refused() {
    let s = attached();
    fs::write(s.path("disk"), vec![1; 1 << 20]).unwrap();
    for args in [
        &["volume", "info", "disk"][..],
        &["volume", "erase", "disk", "--force"],
        &["fsck", "disk"],
        &["format", "disk", "--force"],
    ] {
        let ran = s.run(args).code(2);
        let words = ["ambiguous", "./disk", "disk.img"];
        let said = |word: &&str| ran.stderr.contains(word);
        assert!(words.iter().all(said), "{}", ran.stderr);
    }
    assert_eq!(fs::read(s.path("disk")).unwrap(), vec![1; 1 << 20]);
    s.run(&["volume", "info", "./disk"]).code(10);
    // Nothing serves the file, so these can only mean the service.
    s.run(&["stats", "disk"]).ok();
    // If both are the same thing, there is no question.
    fs::remove_file(s.path("disk")).unwrap();
    s.run(&["detach", "disk"]).ok();
    fs::rename(s.path("disk.img"), s.path("disk")).unwrap();
    s.attach(&["disk"]);
    s.run(&["volume", "info", "disk"]).ok();
    s.run(&["detach", "disk"]).ok();
}

#[test]
fn two_services_on_one_device_are_told_apart_by_name() {
    let s = Sandbox::new();
    s.volume("disk.img", "32M", &[]);
    s.attach(&["disk.img", "--read-only"]);
    s.attach(&["disk.img", "--read-only", "--name", "other"]);
    let ran = s.run(&["detach", "disk.img"]).code(2);
    let both = ran.stderr.contains("`disk`") && ran.stderr.contains("`other`");
    assert!(both, "{}", ran.stderr);
    s.detach("other");
    s.run(&["detach", "disk.img"]).ok();
}

#[test]
fn what_leads_nowhere_is_said_with_a_hint() {
    let s = attached();
    let ran = s.run(&["detach", "dosk"]).code(10);
    assert!(
        ran.stderr.contains("did you mean `disk`?"),
        "{}",
        ran.stderr
    );
    fs::create_dir(s.path("empty")).unwrap();
    for verb in ["df", "fsck", "detach", "unmount", "stats"] {
        let ran = s.run(&[verb, "empty"]).code(10);
        assert!(ran.stderr.contains("evfs status"), "{}", ran.stderr);
    }
    let ran = s.run(&["unmount", "disk"]).code(2);
    assert!(ran.stderr.contains("evfs detach disk"), "{}", ran.stderr);
    s.detach("disk");
}

#[test]
fn a_command_that_creates_a_file_takes_a_path() {
    let s = attached();
    s.run(&["format", "disk", "--size", "32M"]).ok();
    assert!(s.path("disk").is_file());
    s.run(&["detach", "disk"]).ok();
}

#[test]
fn sizes_mean_the_same_everywhere() {
    let s = Sandbox::new();
    for (n, size) in [
        "64M", "64MB", "64MiB", "64m", "65536K", "0.0625G", "67108864",
    ]
    .iter()
    .enumerate()
    {
        let name = format!("{n}.img");
        s.run(&["format", &name, "--size", size]).ok();
        assert_eq!(
            fs::metadata(s.path(&name)).unwrap().len(),
            64 << 20,
            "{size}"
        );
    }
    s.run(&["format", "x.img", "--size", "64X"]).code(2);
    let quota = |size: &str| {
        s.run(&["fileset", "quota", "0.img", "main", size]).ok();
        let listed = s.json(&["fileset", "list", "0.img"]);
        listed["filesets"][0]["quota_bytes"].as_u64()
    };
    for size in ["1.5M", "1536KB"] {
        assert_eq!(quota(size), Some(3 << 19), "{size}");
    }
    assert_eq!(quota("0"), None);
    s.volume("v.img", "32M", &[]);
    s.attach(&["v.img"]);
    let read_ahead = |size: &str| {
        let change = format!("read_ahead_max={size}");
        let ran = s.run(&["cache", "set", &change]).ok();
        let shown = s.json(&["cache", "show"]);
        let settings = shown["caches"][0]["settings"].as_array().unwrap().clone();
        let mut rows = settings.into_iter();
        let row = rows.find(|row| row["name"] == "read_ahead_max").unwrap();
        (row["value"].as_str().unwrap().to_owned(), ran.stderr)
    };
    for size in ["4MB", "4MiB", "4.0m"] {
        assert_eq!(
            read_ahead(size),
            ("4MiB".to_owned(), String::new()),
            "{size}"
        );
    }
    // Earlier versions took this as 4,000,000 bytes.
    let (value, said) = read_ahead("4M");
    assert_eq!(value, "4MiB");
    assert!(said.contains("powers of 1000"), "{said}");
    s.detach("v");
}

#[test]
fn words_from_other_programs_are_aliases() {
    let s = Sandbox::new();
    s.run(&["key", "create", "alice", "--no-passphrase"]).ok();
    assert!(s.run(&["key", "ls"]).ok().stdout.contains("alice"));
    s.run(&["key", "rm", "alice", "--yes"]).ok();
    s.run(&["mkfs", "disk.img", "--size", "32M"]).ok();
    s.run(&["fileset", "create", "disk.img", "a"]).ok();
    s.run(&["fileset", "ls", "disk.img"]).ok();
    s.run(&["fileset", "delete", "disk.img", "a"]).ok();
    s.run(&["umount", "disk.img"]).code(10);
}

#[test]
fn former_spellings_work_with_a_notice() {
    let s = Sandbox::new();
    s.volume("disk.img", "32M", &[]);
    fs::write(s.path("secret"), "words").unwrap();
    let add = ["volume", "key", "add", "disk.img", "--key-file", "secret"];
    let ran = s.run(&add).ok();
    let words = ["`--key-file`", "`--new-key-file`"];
    let said = |word: &&str| ran.stderr.contains(word);
    assert!(words.iter().all(said), "{}", ran.stderr);
    assert_eq!(ran.stderr.matches("former spelling").count(), 1);
    fs::write(s.path("other"), "more words").unwrap();
    let other = [
        "-q",
        "volume",
        "key",
        "add",
        "disk.img",
        "--key-file",
        "other",
    ];
    assert_eq!(s.run(&other).ok().stderr, "");
    s.run(&["attach", "disk.img", "--key-file", "secret", "--background"])
        .ok();
    s.detach("disk");
    s.run(&["format", "fs.img", "--size", "32M"]).ok();
    let old = s.run(&["fileset", "quota", "fs.img", "main", "--bytes", "1M"]);
    assert!(old.ok().stderr.contains("SIZE after NAME"));
    let new = s.run(&["fileset", "quota", "fs.img", "main", "1M"]).ok();
    assert_eq!(new.stderr, "");
}

#[test]
fn quiet_omits_notes_and_verbose_adds_the_log() {
    let s = Sandbox::new();
    let generate = |name: &str, more: &[&str]| {
        let args = ["key", "generate", name, "--no-passphrase"];
        s.run(&[&args[..], more].concat()).ok().stderr
    };
    assert!(generate("a", &[]).contains("keep a copy"));
    assert_eq!(generate("b", &["--quiet"]), "");
    s.run(&["-q", "-v", "status"]).code(2);
    s.run(&["-v", "--log", "debug", "status"]).code(2);
    s.volume("disk.img", "32M", &[]);
    let logs_its_end = |more: &[&str]| {
        let mut command = s.evfs();
        command.args(more).args(["attach", "disk.img"]);
        command.env("EVFS_LOG_FORMAT", "text").stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        wait_until("it is attached", || {
            s.run(&["status", "disk"]).status.success()
        });
        // SAFETY: a signal to our own child.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        let out = child.wait_with_output().unwrap();
        String::from_utf8_lossy(&out.stderr).contains("stopping")
    };
    assert!(!logs_its_end(&[]));
    assert!(logs_its_end(&["-v"]));
    // Errors and questions are never omitted.
    let ran = s.run(&["-q", "volume", "erase", "disk.img"]).code(2);
    assert!(ran.stderr.contains("--yes"), "{}", ran.stderr);
}

#[test]
fn the_help_lists_commands_by_subject() {
    let s = Sandbox::new();
    let help = s.run(&["--help"]).ok().stdout;
    for title in ["Keys and volumes:", "File systems:", "Running services:"] {
        assert!(help.contains(&format!("\n{title}\n")), "{title}: {help}");
    }
    assert!(help.contains("[aliases: umount]"), "{help}");
    for option in ["--json", "--quiet", "--progress", "--verbose", "--log"] {
        assert!(help.contains(option), "{option}");
    }
    let help = s.run(&["df", "--help"]).ok().stdout;
    let (own, global) = help.split_once("\nGlobal options:\n").unwrap();
    assert!(own.contains("--key-file") && global.contains("--log"));
}

mod needs_peer {
    use super::*;

    /// Verbs for a mounted file system.
    const OF_A_MOUNT: &[(&[&str], i32)] = &[
        (&["df", "@"], 0),
        (&["fileset", "list", "@"], 0),
        (&["fileset", "create", "@", "home"], 0),
        (&["fileset", "quota", "@", "home", "1M"], 0),
        (&["fileset", "snapshot", "@", "home", "monday"], 0),
        (&["fileset", "diff", "@", "monday", "home"], 0),
        (&["fileset", "clone", "@", "monday", "trial"], 0),
        (&["fileset", "remove", "@", "trial"], 0),
        (&["fileset", "hold", "@", "monday"], 0),
        (&["fileset", "release", "@", "monday"], 0),
        (&["fileset", "remove", "@", "monday"], 0),
        (&["fileset", "rename", "@", "home", "people"], 0),
        (&["fileset", "remove", "@", "people"], 0),
        (&["status", "@"], 0),
        (&["stats", "@"], 0),
        (&["cache", "flush", "@"], 0),
        (&["cache", "drop", "@"], 0),
        (
            &["cache", "advise", "@", "--file", "file", "no_cache=yes"],
            0,
        ),
        (&["scrub", "@"], 0),
        (&["grow", "@"], 0),
        (&["shrink", "@", "--minimum"], 11),
        (&["fsck", "@"], 11),
        (&["fsck", "--online", "@"], 0),
        (&["defrag", "@"], 0),
        (&["upgrade", "@"], 11),
        (&["format", "@", "--force"], 11),
        (&["cell", "init", "example.org", "@"], 11),
        (&["serve", "@"], 11),
        (&["mount", "@", "other"], 11),
    ];

    fn mount(s: &Sandbox) {
        s.run(&["mount", "disk.img", "mnt", "--background"]).ok();
    }

    #[test]
    fn every_verb_takes_the_name_the_device_and_the_directory_of_a_mount() {
        let s = Sandbox::new();
        s.run(&["format", "disk.img", "--size", "64M"]).ok();
        for dir in ["mnt", "other"] {
            fs::create_dir(s.path(dir)).unwrap();
        }
        mount(&s);
        fs::write(s.path("mnt/file"), "text").unwrap();
        each_handle(&s, OF_A_MOUNT, &["disk", "disk.img", "mnt"]);
        let uuids =
            ["disk", "disk.img", "mnt"].map(|handle| s.json(&["df", handle])["uuid"].clone());
        assert!(uuids.iter().all(|uuid| *uuid == uuids[0]), "{uuids:?}");
        let is_mounted = || s.json(&["status"])["volumes"] != serde_json::json!([]);
        for verb in ["unmount", "detach", "umount"] {
            for handle in ["disk", "disk.img", "mnt", "./mnt"] {
                s.run(&[verb, handle]).ok();
                assert!(!is_mounted(), "{verb} {handle}");
                mount(&s);
            }
        }
        s.run(&["unmount", "mnt"]).ok();
    }

    #[test]
    fn a_directory_without_a_mount_does_not_hide_a_name() {
        let s = Sandbox::new();
        s.run(&["format", "disk.img", "--size", "64M"]).ok();
        for dir in ["mnt", "disk"] {
            fs::create_dir(s.path(dir)).unwrap();
        }
        mount(&s);
        let ran = s.run(&["df", "disk"]).ok();
        assert!(ran.stderr.contains("note: disk is "), "{}", ran.stderr);
        s.run(&["unmount", "disk"]).ok();
        assert!(s.path("disk").is_dir());
    }
}
