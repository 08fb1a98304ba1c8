//! Wrong uses of the program, as a user makes them: each is answered with its exit code, and with one
//! or two lines that state what failed, why, and what to do next.
//!
//! The tables are the test. A line of a table is a command line, its exit code, and words that the
//! answer must have, above all the name of the object. No use needs privileges or another program.

#[path = "wrong_uses/storage.rs"]
mod storage;

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use storage::{FILES, VOLUMES};
use tests::{Ran, Sandbox};

/// A command line, its exit code, and words of the answer.
type Use = (&'static str, i32, &'static [&'static str]);

/// Fewest wrong uses that the tables must have.
const USES_MIN: usize = 150;

const COMMANDS: &[Use] = &[
    ("no-such-verb", 2, &["no-such-verb"]),
    ("attac", 2, &["attac", "did you mean"]),
    ("key frobnicate", 2, &["frobnicate"]),
    ("volume frobnicate", 2, &["frobnicate"]),
    ("volume key frobnicate", 2, &["frobnicate"]),
    ("volume owner frobnicate", 2, &["frobnicate"]),
    ("volume header frobnicate", 2, &["frobnicate"]),
    ("cell frobnicate", 2, &["frobnicate"]),
    ("cell acl frobnicate", 2, &["frobnicate"]),
    ("cell volume frobnicate", 2, &["frobnicate"]),
    ("fileset frobnicate", 2, &["frobnicate"]),
    ("lun frobnicate", 2, &["frobnicate"]),
    ("path frobnicate", 2, &["frobnicate"]),
    ("cache frobnicate", 2, &["frobnicate"]),
    ("config frobnicate", 2, &["frobnicate"]),
    ("bench frobnicate", 2, &["frobnicate"]),
];

const MISSING: &[Use] = &[
    ("attach", 2, &["DEVICE", "evfs attach --help"]),
    ("detach", 2, &["NAME"]),
    ("format", 2, &["DEVICE"]),
    ("mount", 2, &["DEVICE", "DIR"]),
    ("mount disk.img", 2, &["DIR"]),
    ("unmount", 2, &["DIR"]),
    ("serve", 2, &["DEVICE"]),
    ("fsck", 2, &["DEVICE"]),
    ("scrub", 2, &["DEVICE"]),
    ("defrag", 2, &["DEVICE"]),
    ("grow", 2, &["DEVICE"]),
    ("shrink", 2, &["DEVICE"]),
    ("upgrade", 2, &["DEVICE"]),
    ("df", 2, &["DEVICE"]),
    ("stats", 2, &["NAME"]),
    ("plan", 2, &["DEVICE"]),
    ("completions", 2, &["SHELL"]),
    ("key generate", 2, &["NAME"]),
    ("key show", 2, &["NAME"]),
    ("key import text.txt", 2, &["--name"]),
    ("key export", 2, &["NAME"]),
    ("key remove", 2, &["NAME"]),
    ("volume create x.img", 2, &["--owner"]),
    ("volume info", 2, &["DEVICE"]),
    ("volume check", 2, &["DEVICE"]),
    ("volume repair", 2, &["DEVICE"]),
    ("volume erase", 2, &["DEVICE"]),
    ("volume key add", 2, &["DEVICE"]),
    ("volume key add a.img", 2, &["--user"]),
    ("volume key remove a.img", 2, &["WHICH"]),
    ("volume key list", 2, &["DEVICE"]),
    ("volume key test", 2, &["DEVICE"]),
    ("volume key change", 2, &["DEVICE"]),
    ("volume owner set", 2, &["DEVICE"]),
    ("volume owner set a.img", 2, &["NAME"]),
    ("volume header backup a.img", 2, &["FILE"]),
    ("volume header restore a.img", 2, &["FILE"]),
    ("volume trust --reset", 2, &["DEVICE"]),
    ("cell init", 2, &["NAME", "DEVICE"]),
    ("cell init example.org", 2, &["DEVICE"]),
    ("cell acl get disk.img", 2, &["VOLUME"]),
    ("cell acl set disk.img root.cell /", 2, &["RIGHTS"]),
    ("cell volume create disk.img", 2, &["NAME"]),
    ("cell volume quota disk.img home", 2, &["SIZE"]),
    ("fileset create disk.img", 2, &["NAME"]),
    ("fileset rename disk.img main", 2, &["TO"]),
    ("fileset snapshot disk.img main", 2, &["NAME"]),
    ("fileset remove disk.img", 2, &["NAME"]),
    ("lun show", 2, &["LUN"]),
    ("lun scan", 2, &["PLACES"]),
    ("lun set disk1", 2, &["ATTRIBUTE=VALUE"]),
    ("path add disk1", 2, &["PATH"]),
    ("path remove disk1", 2, &["PATH"]),
    ("cache set", 2, &["NAME=VALUE"]),
    ("cache advise disk", 2, &["NAME=VALUE"]),
    ("bench run", 2, &["WORKLOAD"]),
    ("bench diff one", 2, &["NEW"]),
    ("bench report", 2, &["RESULT"]),
    ("bench echo", 2, &["LISTEN"]),
];

const OPTIONS: &[Use] = &[
    ("status --frobnicate", 2, &["--frobnicate"]),
    ("attach a.img --frobnicate", 2, &["--frobnicate"]),
    ("mount a b --fileet x", 2, &["--fileet", "--fileset"]),
    ("sync --frobnicate", 2, &["--frobnicate"]),
    ("mount a b --sync-timeout x", 2, &["--sync-timeout"]),
    ("doctor --frobnicate", 2, &["--frobnicate"]),
    ("top --frobnicate", 2, &["--frobnicate"]),
    ("explain --frobnicate", 2, &["--frobnicate"]),
    ("man --frobnicate", 2, &["--frobnicate"]),
    ("completions bash --frobnicate", 2, &["--frobnicate"]),
    ("up --frobnicate", 2, &["--frobnicate"]),
    ("down --frobnicate", 2, &["--frobnicate"]),
    ("quickstart --frobnicate", 2, &["--frobnicate"]),
    ("config show --frobnicate", 2, &["--frobnicate"]),
    ("cache show --frobnicate", 2, &["--frobnicate"]),
    ("lun list --frobnicate", 2, &["--frobnicate"]),
    ("bench list --frobnicate", 2, &["--frobnicate"]),
    ("plan disk.img --frobnicate", 2, &["--frobnicate"]),
    ("explain EVFS-0101 EVFS-0102", 2, &["EVFS-0102"]),
    ("status --log", 2, &["--log"]),
    ("status --quiet --verbose", 2, &["--quiet", "--verbose"]),
    (
        "attach a.img --cached --direct",
        2,
        &["--cached", "--direct"],
    ),
    ("attach a.img --anonymous", 2, &["--nbd"]),
    ("attach a.img --tls-key k", 2, &["--tls-cert"]),
    ("attach a.img --key owner --key-file k", 2, &["--key-file"]),
    (
        "attach a.img --passphrase --key owner",
        2,
        &["--passphrase"],
    ),
    (
        "key generate x --passphrase-fd 3 --no-passphrase",
        2,
        &["--no-passphrase"],
    ),
    ("key export owner --no-passphrase", 2, &["--private"]),
    (
        "volume create x.img --owner owner --passphrase",
        2,
        &["--passphrase"],
    ),
    (
        "volume key remove a.img bob --key-slot 1",
        2,
        &["--key-slot"],
    ),
    ("lun stats disk1 --watch --clear", 2, &["--clear"]),
    ("man evfs-attach --dir x", 2, &["--dir"]),
    ("top --once --count 3", 2, &["--count"]),
];

const VALUES: &[Use] = &[
    ("status --log loud", 2, &["loud"]),
    ("volume create x.img --owner owner --size 64X", 2, &["64X"]),
    ("volume create x.img --owner owner --size ten", 2, &["ten"]),
    (
        "volume create x.img --owner owner --key-bits 192",
        2,
        &["192"],
    ),
    (
        "volume create x.img --owner owner --sector-size 1024",
        2,
        &["1024"],
    ),
    ("format x.img --size 99999999999T", 2, &["99999999999T"]),
    ("format x.img --size 1.5.5M", 2, &["1.5.5M"]),
    ("format x.img --root-owner alice", 2, &["alice"]),
    ("format x.img --root-mode 999", 2, &["999"]),
    ("mount disk.img dir --threads 0", 2, &["--threads", "0"]),
    ("mount disk.img dir --threads many", 2, &["many"]),
    ("mount disk.img dir --atime never", 2, &["never"]),
    ("attach a.img --threads 257", 2, &["257"]),
    ("attach a.img --nbd nowhere", 2, &["nowhere"]),
    ("attach a.img --key-slot first", 2, &["first"]),
    ("attach a.img --passphrase-fd stdin", 2, &["stdin"]),
    ("serve disk.img --listen nowhere", 2, &["nowhere"]),
    ("serve disk.img --allow 10.0.0.0/99", 2, &["10.0.0.0/99"]),
    ("serve disk.img --threads 5000", 2, &["5000"]),
    (
        "cell init example.org disk.img --listen nowhere",
        2,
        &["--listen", "nowhere"],
    ),
    ("cell volume create disk.img v --quota big", 2, &["big"]),
    ("fileset create disk.img home --quota big", 2, &["big"]),
    ("fileset create disk.img home --files many", 2, &["many"]),
    ("fileset quota disk.img main lots", 2, &["lots"]),
    ("fileset quota a.img b --user 1 --group 2", 2, &["--group"]),
    ("fileset quota disk.img main 5G --report", 2, &["--report"]),
    ("fileset compression x.img main gzip", 2, &["gzip"]),
    ("volume header prune --keep 0", 2, &["--keep", "0"]),
    ("cache set filecache_max", 2, &["filecache_max"]),
    ("lun set disk1 load_bal_policy", 2, &["load_bal_policy"]),
    ("top --interval soon", 2, &["soon"]),
    ("top --interval 0", 2, &["--interval"]),
    ("completions tcsh", 2, &["tcsh"]),
    ("plan disk.img --workload games", 2, &["games", "database"]),
    ("plan disk.img --seconds 9999", 2, &["9999"]),
    ("quickstart --size small", 2, &["small"]),
    ("quickstart --size 1M", 2, &["--size", "64M"]),
    ("bench run dhrystone --env busy", 2, &["busy"]),
    ("bench run dhrystone --threshold 200%", 2, &["200%"]),
    ("bench run dhrystone --budget soon", 2, &["soon"]),
    ("bench diff one two --threshold x", 2, &["--threshold", "x"]),
    ("bench echo nowhere", 2, &["nowhere"]),
];

const KEYS: &[Use] = &[
    ("key show nokey", 10, &["nokey", "evfs key list"]),
    ("key export nokey", 10, &["nokey"]),
    ("key remove nokey --yes", 10, &["nokey"]),
    ("key generate owner --no-passphrase", 2, &["owner"]),
    ("key generate ../x --no-passphrase", 2, &["../x"]),
    ("key generate .x --no-passphrase", 2, &[".x"]),
    ("key generate 7 --no-passphrase", 2, &["`7`"]),
    ("key generate fresh", 2, &["fresh", "--no-passphrase"]),
    ("key generate fresh --passphrase-fd 99", 2, &["99"]),
    ("key import missing.key --name x", 10, &["missing.key"]),
    ("key import text.txt --name x", 1, &["text.txt"]),
    ("key import text.txt --name owner", 2, &["owner"]),
    ("key import text.txt --name ../x", 2, &["../x"]),
    (
        "key import AGE-SECRET-KEY-1QQ --name x",
        2,
        &["private key"],
    ),
    ("key export owner text.txt", 2, &["text.txt"]),
    (
        "key export owner --private",
        2,
        &["owner", "--no-passphrase"],
    ),
    ("key remove owner", 2, &["owner", "--yes"]),
];

const SERVICES: &[Use] = &[
    ("detach nosuch", 10, &["nosuch", "evfs status"]),
    ("detach disk.img", 10, &["disk.img"]),
    ("stats nosuch", 10, &["nosuch"]),
    ("status nosuch", 10, &["nosuch"]),
    ("cache show", 10, &["evfs attach"]),
    ("cache flush", 10, &["evfs attach"]),
    ("cache flush nosuch", 10, &["nosuch"]),
    ("cache drop nosuch", 10, &["nosuch"]),
    ("cache advise nosuch read_ahead=no", 10, &["nosuch"]),
    ("cell status", 10, &["evfs serve"]),
    ("cell status missing.img", 10, &["missing.img"]),
    (
        "cell init example.org missing.img",
        10,
        &["missing.img", "--size"],
    ),
    ("cell volume list missing.img", 10, &["missing.img"]),
    ("cell acl get missing.img root.cell", 10, &["missing.img"]),
    ("cell acl set disk.img root.cell / a read b", 2, &["`b`"]),
    ("up missing.toml", 10, &["missing.toml"]),
    ("up bad.toml", 2, &["bad.toml", "line 2"]),
    ("up typo.toml", 2, &["typo.toml", "line 3", "`read-only`"]),
    ("up empty.toml", 2, &["empty.toml"]),
    ("up up.toml", 10, &["[volume.gone]", "gone.img"]),
    ("up up.toml --only nope", 10, &["nope"]),
    ("explain EVFS-9999", 10, &["EVFS-9999"]),
    ("explain nonsense", 10, &["nonsense"]),
    ("man evfs-nothing", 10, &["evfs-nothing"]),
    ("man --dir text.txt", 1, &["text.txt"]),
];

const LUNS: &[Use] = &[
    ("lun show nosuch", 10, &["nosuch", "evfs lun"]),
    ("lun get nosuch", 10, &["nosuch"]),
    ("lun stats nosuch", 10, &["nosuch"]),
    ("lun stats nosuch --clear", 10, &["nosuch"]),
    (
        "lun set nosuch load_bal_policy=round_robin",
        10,
        &["nosuch"],
    ),
    ("lun set nosuch load_bal_policy=fastest", 2, &["fastest"]),
    (
        "lun save nosuch load_bal_policy=round_robin",
        10,
        &["nosuch"],
    ),
    ("lun forget nosuch --yes", 10, &["nosuch"]),
    ("lun advise nosuch", 10, &["nosuch"]),
    ("lun waiting nosuch", 10, &["nosuch"]),
    ("lun scan foo://bar", 2, &["foo://bar", "iscsi://"]),
    ("path add nosuch x", 10, &["nosuch"]),
    ("path remove nosuch x", 10, &["nosuch"]),
    ("path enable nosuch x", 10, &["nosuch"]),
    ("path disable nosuch x", 10, &["nosuch"]),
    ("path replace-wwid nosuch x", 2, &["nosuch", "--yes"]),
];

const BENCH: &[Use] = &[
    ("plan missing.img", 10, &["missing.img"]),
    ("bench list nosuch", 2, &["nosuch", "seqrand"]),
    ("bench run nosuch", 2, &["nosuch", "seqrand"]),
    ("bench run dhrystone dhrystone", 2, &["dhrystone", "twice"]),
    ("bench run dhrystone --set millis", 2, &["`millis`"]),
    ("bench run dhrystone --set nosuch=1", 2, &["nosuch"]),
    (
        "bench run mailmix --postmark missing.pm",
        10,
        &["missing.pm"],
    ),
    ("bench run evfs-2006 --env idle", 2, &["evfs-2006", "--env"]),
    (
        "bench run evfs-2006 --target one",
        2,
        &["evfs-2006", "--suite"],
    ),
    ("bench compare one nosuch", 2, &["nosuch"]),
    ("bench compare one no/such", 10, &["no/such"]),
    (
        "bench compare one two --suite nosuch",
        2,
        &["nosuch", "evfs-2006"],
    ),
    ("bench compare one two --suite ifs-1990", 2, &["ifs-1990"]),
    ("bench compare one two --workload nosuch", 2, &["nosuch"]),
    ("bench report nosuch", 10, &["nosuch"]),
    ("bench report one", 1, &["one"]),
    ("bench diff nosuch one", 10, &["nosuch"]),
];

const TABLES: &[&[Use]] = &[
    COMMANDS, MISSING, OPTIONS, VALUES, KEYS, VOLUMES, FILES, SERVICES, LUNS, BENCH,
];

/// Prepares the objects that the command lines name.
fn prepared() -> Sandbox {
    let s = Sandbox::new();
    for key in ["bob", "carol", "spare"] {
        s.key(key);
    }
    s.volume("a.img", "32M", &[]);
    let add = ["volume", "key", "add", "a.img", "--user", "bob"];
    s.run(&[&add[..], &["--key", "owner"]].concat()).ok();
    s.run(&["volume", "header", "backup", "a.img", "h"]).ok();
    let create = ["volume", "create", "p.img", "--size", "32M"];
    s.run_with_input(
        &[&create[..], &["--passphrase-fd", "0"]].concat(),
        b"right\n",
    )
    .ok();
    s.run(&["format", "disk.img", "--size", "64M"]).ok();
    for dir in ["dir", "one", "two"] {
        fs::create_dir(s.path(dir)).unwrap();
    }
    for (name, text) in [
        ("text.txt", "some words\n".repeat(1000).as_str()),
        ("wrong", "wrong"),
        ("bad.toml", "[volume.x]\ndevice = 1\n"),
        (
            "typo.toml",
            "[volume.x]\ndevice = \"a.img\"\nread-olny = true\n",
        ),
        ("empty.toml", ""),
        ("up.toml", "[volume.gone]\ndevice = \"gone.img\"\n"),
    ] {
        fs::write(s.path(name), text).unwrap();
    }
    s
}

/// Builds a command without a terminal, at which it could ask.
fn without_terminal(s: &Sandbox, args: &[&str]) -> Command {
    let mut command = s.evfs();
    command.args(args);
    // SAFETY: only the child leaves its session.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
    command
}

/// Finds what is wrong with an answer; empty if nothing is.
fn faults(ran: &Ran, code: i32, words: &[&str]) -> Vec<String> {
    faults_of("evfs", ran, code, words)
}

/// Same as [`faults`], for a program with this name.
fn faults_of(program: &str, ran: &Ran, code: i32, words: &[&str]) -> Vec<String> {
    let beginning = format!("{program}: ");
    let mut faults = Vec::new();
    let mut check = |is_good: bool, fault: String| {
        if !is_good {
            faults.push(fault);
        }
    };
    let got = ran.status.code();
    check(got == Some(code), format!("exit code {got:?}, not {code}"));
    // Notes may precede the message.
    let mut all = ran.stderr.lines();
    let begin = all.position(|line| line.starts_with(&beginning));
    let lines: Vec<&str> = ran.stderr.lines().skip(begin.unwrap_or(0)).collect();
    let message = lines.join("\n");
    check(
        begin.is_some(),
        format!("no message that begins with `{beginning}`"),
    );
    check(lines.len() <= 2, format!("{} lines", lines.len()));
    for word in words {
        check(message.contains(word), format!("`{word}` is missing"));
    }
    let has_remedy = message.contains("; ") || message.contains("`evfs ");
    check(has_remedy, "no next step".into());
    for bad in [
        "(os error",
        "error:",
        "Error {",
        "Some(",
        "invalid digit",
        "address syntax",
        "..=",
        "as a value, use",
        "Os {",
        "kind:",
        "panicked",
        "\u{1b}",
        "invalid: invalid",
        "not found: not found",
        "not found: No such file",
        "permission denied: Permission denied",
        "cannot open: cannot open",
        ";;",
        "; ;",
        ": :",
        "  ",
        "!",
    ] {
        check(!message.contains(bad), format!("it contains `{bad}`"));
    }
    let clauses: Vec<&str> = message.split(": ").collect();
    let repeats = clauses.windows(2).any(|pair| pair[0] == pair[1]);
    check(!repeats, "a clause is repeated".into());
    let is_sentence = message.ends_with('.') && !message.ends_with("...");
    check(!is_sentence, "it ends with a period".into());
    check(ran.stdout.is_empty(), "it printed a result".into());
    faults
}

/// Finds what is wrong with the JSON of an answer.
fn faults_in_json(ran: &Ran, code: i32) -> Vec<String> {
    let mut documents = serde_json::Deserializer::from_str(&ran.stdout).into_iter::<Value>();
    let (first, second) = (documents.next(), documents.next());
    let (Some(Ok(document)), None) = (first, second) else {
        return vec![format!("not one JSON document: {}", ran.stdout)];
    };
    let error = document["error"].as_str().unwrap_or_default();
    let mut faults = Vec::new();
    if error.is_empty()
        || !ran
            .stderr
            .contains(error.lines().next().unwrap_or_default())
    {
        faults.push(format!(
            "the JSON says `{error}`, and stderr {}",
            ran.stderr
        ));
    }
    if document["code"] != code || ran.status.code() != Some(code) {
        faults.push(format!("the JSON has the code {}", document["code"]));
    }
    faults
}

fn run_table(table: &[Use]) {
    let s = prepared();
    let mut wrong = Vec::new();
    for (line, code, words) in table {
        let args: Vec<&str> = line.split(' ').collect();
        let ran = Ran::of(&mut without_terminal(&s, &args));
        let json = [&["--json"][..], &args[..]].concat();
        let as_json = Ran::of(&mut without_terminal(&s, &json));
        let mut found = faults(&ran, *code, words);
        found.extend(faults_in_json(&as_json, *code));
        if !found.is_empty() {
            let said = ran.stderr.trim_end();
            wrong.push(format!(
                "evfs {line}\n  {said}\n  - {}",
                found.join("\n  - ")
            ));
        }
    }
    let count = wrong.len();
    assert!(wrong.is_empty(), "{count} answers:\n{}", wrong.join("\n"));
}

#[test]
fn the_tables_have_many_different_uses_of_each_command() {
    let all: Vec<&str> = TABLES
        .iter()
        .copied()
        .flatten()
        .map(|(line, ..)| *line)
        .collect();
    let different: BTreeSet<&&str> = all.iter().collect();
    assert_eq!(different.len(), all.len(), "a use is there twice");
    assert!(all.len() >= USES_MIN, "{} uses", all.len());
    let verbs = "attach bench cache cell completions config defrag detach df doctor down explain \
        fileset format fsck grow key lun man mount path plan quickstart scrub serve shrink \
        stats status sync top unmount up upgrade volume";
    let verbs: Vec<&str> = verbs.split(' ').collect();
    for verb in verbs {
        let has = |line: &&&str| line.split(' ').next() == Some(verb);
        assert!(all.iter().any(|line| has(&line)), "{verb}");
    }
}

#[test]
fn unknown_commands_are_answered() {
    run_table(COMMANDS);
}

#[test]
fn missing_arguments_are_answered() {
    run_table(MISSING);
}

#[test]
fn wrong_options_are_answered() {
    run_table(OPTIONS);
}

#[test]
fn wrong_values_are_answered() {
    run_table(VALUES);
}

#[test]
fn wrong_uses_of_keys_are_answered() {
    run_table(KEYS);
}

#[test]
fn wrong_uses_of_volumes_are_answered() {
    run_table(VOLUMES);
}

#[test]
fn wrong_uses_of_file_systems_are_answered() {
    run_table(FILES);
}

#[test]
fn wrong_uses_of_services_are_answered() {
    run_table(SERVICES);
}

#[test]
fn wrong_uses_of_luns_are_answered() {
    run_table(LUNS);
}

#[test]
fn wrong_uses_of_benchmarks_are_answered() {
    run_table(BENCH);
}

#[test]
fn wrong_settings_are_answered() {
    let s = prepared();
    for (name, value) in [
        ("EVFS_THREADS", "many"),
        ("EVFS_KDF_TIME_MS", "soon"),
        ("EVFS_LOG", "loud"),
    ] {
        let mut command = without_terminal(&s, &["config", "show"]);
        let ran = Ran::of(command.env(name, value));
        let found = faults(&ran, 2, &[name, value]);
        assert!(
            found.is_empty(),
            "{name}={value}: {found:?}: {}",
            ran.stderr
        );
    }
}

/// The helpers of mount(8) and umount(8) have the codes of mount(8), and the same form of messages.
#[test]
fn wrong_uses_of_the_helpers_of_mount_are_answered() {
    let s = prepared();
    for (name, args, words) in [
        (
            "mount.evfs",
            &["disk.img", "dir", "-o", "strange"][..],
            "`strange`",
        ),
        ("mount.evfs", &["disk.img", "dir", "-o", "ro=1"], "`ro`"),
        ("mount.evfs", &["disk.img", "dir", "-o", "threads=0"], "`0`"),
        ("mount.evfs", &["disk.img", "dir", "-t", "ext4"], "`ext4`"),
        (
            "mount.evfs",
            &["disk.img", "dir", "-o", "key=a,keyfile=/b"],
            "`keyfile`",
        ),
        ("umount.evfs", &["dir", "-t", "ext4"], "`ext4`"),
        // Mistakes that the parser finds.
        ("mount.evfs", &[], "<DEVICE> and <DIR>"),
        ("mount.evfs", &["disk.img"], "<DIR>"),
        ("mount.evfs", &["disk.img", "dir", "more"], "`more`"),
        ("mount.evfs", &["disk.img", "dir", "-x"], "`-x`"),
        ("mount.evfs", &["disk.img", "dir", "--wrong"], "`--wrong`"),
        ("mount.evfs", &["disk.img", "dir", "-o"], "-o <OPTIONS>"),
        ("umount.evfs", &[], "<DIR>"),
        ("umount.evfs", &["dir", "-x"], "`-x`"),
    ] {
        let link = s.path(name);
        if !link.exists() {
            std::os::unix::fs::symlink(tests::program(), &link).unwrap();
        }
        let mut command = Command::new(link);
        s.environment(&mut command);
        let ran = Ran::of(command.args(args));
        let mut found = faults_of(name, &ran, 1, &[words]);
        if ran.stderr.lines().count() != 1 {
            found.push("not one line".into());
        }
        assert!(
            found.is_empty(),
            "{name} {args:?}: {found:?}: {}",
            ran.stderr
        );
    }
}
