//! The manual pages, and the completion of shells.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use tests::{Ran, Sandbox};

/// Names of all commands, read from the help: `[]` is the program, `["key", "list"]` a command.
fn verbs(s: &Sandbox, of: &[String], found: &mut Vec<Vec<String>>) {
    found.push(of.to_vec());
    let mut args = of.to_vec();
    args.push("--help".into());
    let help = s.run(&args).ok().stdout;
    let list = if of.is_empty() {
        // The commands are in groups.
        let (_, list) = help.split_once("Usage:").unwrap();
        list.split("\nOptions:\n").next().unwrap_or_default()
    } else {
        let list = help.split("\nCommands:\n").nth(1).unwrap_or_default();
        list.split("\n\n").next().unwrap_or_default()
    };
    for line in list.lines() {
        // Continued lines are indented further.
        let name = line.strip_prefix("  ").unwrap_or_default();
        let name = name.split(' ').next().unwrap_or_default();
        if !name.is_empty() && name != "help" {
            let mut inner = of.to_vec();
            inner.push(name.to_owned());
            verbs(s, &inner, found);
        }
    }
}

/// Returns the option that a line of the help describes.
fn option(line: &str) -> Option<&str> {
    let long = line.strip_prefix("      ").or_else(|| {
        let (short, long) = line.strip_prefix("  -")?.split_once(", ")?;
        (short.len() == 1).then_some(long)
    })?;
    let long = long.split([' ', '[', '=', '.']).next()?;
    long.starts_with("--").then_some(long)
}

/// Writes all pages to the directory `man`.
fn written(s: &Sandbox) -> Vec<PathBuf> {
    let value = s.json(&["man", "--dir", "man"]);
    let files = value["written"].as_array().unwrap();
    files
        .iter()
        .map(|file| s.path(file.as_str().unwrap()))
        .collect()
}

/// Returns the candidates for the last of the words.
fn candidates(s: &Sandbox, words: &[&str]) -> Vec<String> {
    let asked = ["__complete", "bash", "--", "evfs"];
    let ran = s.run(&[&asked[..], words].concat());
    ran.ok().stdout.lines().map(str::to_owned).collect()
}

#[test]
fn every_verb_has_a_page_with_all_of_its_options() {
    let s = Sandbox::new();
    let files: BTreeSet<PathBuf> = written(&s).into_iter().collect();
    let mut all = Vec::new();
    verbs(&s, &[], &mut all);
    assert!(all.len() > 50, "{all:?}");
    let mut wanted = BTreeSet::from([s.path("man/man5/evfs.toml.5"), s.path("man/man7/evfs.7")]);
    for verb in &all {
        let mut name = vec!["evfs".to_owned()];
        name.extend(verb.iter().cloned());
        let file = s.path(&format!("man/man1/{}.1", name.join("-")));
        let page = fs::read_to_string(&file).unwrap().replace("\\-", "-");
        for part in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"] {
            assert!(page.contains(&format!(".SH {part}\n")), "{verb:?}: {part}");
        }
        assert!(page.contains(&format!("\\fB{}\\fR", name.join(" "))));
        let mut help = verb.clone();
        help.push("--help".into());
        let help = s.run(&help).ok().stdout;
        for option in help.lines().filter_map(option) {
            let bold = format!("\\fB{option}\\fR");
            assert!(page.contains(&bold), "{verb:?}: {option}");
        }
        wanted.insert(file);
    }
    assert_eq!(files, wanted);
    for file in &files {
        let page = fs::read_to_string(file).unwrap();
        assert!(page.lines().count() > 20, "{}", file.display());
        assert!(page.contains(".SH \"SEE ALSO\"\n"), "{}", file.display());
    }
}

#[test]
fn the_pages_name_every_setting_and_exit_code_and_depend_on_no_machine() {
    let s = Sandbox::new();
    let page = |name: &str| s.json(&["man", name])["text"].as_str().unwrap().to_owned();
    let (settings, program) = (page("evfs.toml"), page("evfs").replace("\\-", "-"));
    let shown = s.json(&["config", "show"]);
    for (key, row) in shown.as_object().unwrap() {
        let key = key.replace('-', "\\-");
        let entry = settings.split(&format!(".TP\n\\fB{key}\\fR\n")).nth(1);
        let entry = entry.and_then(|rest| rest.lines().next()).unwrap();
        let variable = row["env"].as_str().unwrap();
        assert!(entry.contains(&format!("\\fB{variable}\\fR")), "{entry}");
        assert!(program.contains(&format!(".TP\n\\fB{variable}\\fR\n")));
    }
    let table = include_str!("../../docs/guide/exit-codes.md");
    let codes = table.lines().filter_map(|line| line.strip_prefix("| "));
    let codes = codes.filter_map(|row| row.split(" |").next());
    for code in codes.filter(|code| *code != "code") {
        assert!(
            program.contains(&format!(".TP\n\\fB{code}\\fR\n")),
            "{code}"
        );
    }
    let mut elsewhere = s.evfs();
    elsewhere.args(["--json", "man", "evfs.toml.5"]);
    elsewhere.env("EVFS_THREADS", "3").env("HOME", "/nowhere");
    let value: Value = serde_json::from_str(&Ran::of(&mut elsewhere).ok().stdout).unwrap();
    assert_eq!(
        (&value["page"], &value["text"]),
        (&"evfs.toml.5".into(), &settings.into())
    );
    let ran = s.run(&["man", "evfs-nothing"]).code(10);
    assert!(ran.stderr.contains("evfs-nothing"), "{}", ran.stderr);
}

#[test]
fn names_of_keys_volumes_and_files_complete() {
    let s = Sandbox::new();
    s.key("alice");
    s.key("bob");
    assert_eq!(candidates(&s, &["key", "show", ""]), ["alice", "bob"]);
    assert_eq!(candidates(&s, &["attach", "--key", "al"]), ["alice"]);
    assert_eq!(candidates(&s, &["attach", "--key=b"]), ["--key=bob"]);
    s.volume("disk.img", "32M", &[]);
    assert_eq!(candidates(&s, &["attach", "di"]), ["disk.img"]);
    assert!(
        candidates(&s, &["detach", ""])
            .iter()
            .all(|c| c.starts_with('-'))
    );
    s.attach(&["disk.img"]);
    assert_eq!(candidates(&s, &["detach", ""]), ["disk"]);
    assert_eq!(candidates(&s, &["cache", "advise", "d"]), ["disk"]);
    s.detach("disk");
    // A name that a shell would split, or that would be two candidates.
    fs::write(s.path("dis\nk"), "").unwrap();
    assert_eq!(candidates(&s, &["attach", "di"]), ["disk.img"]);
    let verbs = candidates(&s, &["volume", ""]);
    assert!(verbs.contains(&"create".into()), "{verbs:?}");
}

mod needs_peer {
    use super::*;
    use std::path::Path;
    use std::process::Command;
    use tests::{installed, peer, program};

    /// Runs a shell with the program under test in its path.
    fn shell(s: &Sandbox, shell: &str, args: &[&str]) -> String {
        let mut command = Command::new(installed(shell));
        s.environment(&mut command);
        let path = std::env::var("PATH").unwrap_or_default();
        let own = program().parent().unwrap().display().to_string();
        command.env("PATH", format!("{own}:{path}")).args(args);
        Ran::of(&mut command).ok().stdout
    }

    /// Prints the candidates of bash for a command line, given as its words and as a whole.
    const TRY: &str = r#"
set -u
source <(evfs completions bash)
complete -p evfs
try() {
    COMP_LINE=$1 COMP_POINT=${#1}
    shift
    COMP_WORDS=("$@") COMP_CWORD=$(( $# - 1 ))
    local current=${!#}
    if [[ $current == "=" ]]; then
        current=
    fi
    _evfs evfs "$current" ""
    printf '%s|' "${COMPREPLY[@]}"
    echo
}
try 'evfs vol' evfs vol
try 'evfs volume create --own' evfs volume create --own
try 'evfs key show al' evfs key show al
try 'evfs attach --key=al' evfs attach --key = al
try 'evfs attach --key=' evfs attach --key =
try 'evfs cache set filecache_ma' evfs cache set filecache_ma
try 'evfs attach a;' evfs attach 'a;'
try 'evfs attach x' evfs attach x
"#;

    #[test]
    fn bash_completes_a_verb_an_option_a_key_and_a_file() {
        let s = Sandbox::new();
        s.key("alice");
        s.key("bob");
        fs::write(s.path("x;touch made"), "").unwrap();
        let said = shell(&s, "bash", &["--norc", "-c", TRY]);
        let mut lines = said.lines();
        let registered = lines.next().unwrap();
        assert!(registered.contains("-F _evfs evfs"), "{registered}");
        let wanted = [
            "volume|",
            "--owner|",
            "alice|",
            "alice|",
            "alice|bob|",
            "filecache_max=|",
            "|",
            "x\\;touch\\ made|",
        ];
        assert_eq!(lines.collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn zsh_and_fish_parse_their_scripts_and_fish_completes() {
        let s = Sandbox::new();
        s.key("alice");
        for name in ["zsh", "fish"] {
            let script = s.path(name);
            fs::write(&script, s.run(&["completions", name]).ok().stdout).unwrap();
            shell(&s, name, &["-n", script.to_str().unwrap()]);
        }
        let zsh = s.run(&["completions", "zsh"]).ok().stdout;
        assert!(zsh.starts_with("#compdef evfs\n"));
        let ask = "source fish; complete -C 'evfs vol'; complete -C 'evfs key show al'";
        let said = shell(&s, "fish", &["--no-config", "-c", ask]);
        let names = said.lines().map(|line| line.split('\t').next().unwrap());
        assert_eq!(names.collect::<Vec<_>>(), ["volume", "alice"]);
    }

    #[test]
    fn filesets_of_a_mount_complete_without_the_key() {
        let s = Sandbox::new();
        s.volume("disk.img", "64M", &[]);
        s.run(&["format", "disk.img"]).ok();
        s.run(&["fileset", "create", "disk.img", "home"]).ok();
        s.run(&["fileset", "create", "disk.img", "ho me"]).ok();
        let fileset = ["mount", "disk.img", "mnt", "--fileset", "ho"];
        assert_eq!(candidates(&s, &fileset), [""; 0]);
        fs::create_dir(s.path("mnt")).unwrap();
        s.run(&["mount", "disk.img", "mnt", "--background"]).ok();
        assert_eq!(candidates(&s, &fileset), ["home"]);
        s.run(&["unmount", "mnt"]).ok();
    }

    #[test]
    fn groff_and_man_accept_every_page_without_a_warning() {
        let s = Sandbox::new();
        let run = |program: &str, args: &[&str], file: &Path| {
            let mut command = Command::new(installed(program));
            let ran = Ran::of(command.args(args).arg(file).env("LC_ALL", "C.UTF-8")).ok();
            assert_eq!(ran.stderr, "", "{}", file.display());
        };
        for file in written(&s) {
            let groff = ["-man", "-ww", "-z", "-K", "utf8", "-T", "utf8"];
            run("groff", &groff, &file);
            let man = ["--warnings", "-E", "UTF-8", "-Tutf8", "-Z", "-l"];
            run("man", &man, &file);
        }
        let pages = s.path("man");
        let pages = pages.to_str().unwrap();
        for (page, words) in [
            ("evfs-volume-create", "evfs volume create"),
            ("evfs.toml", "kdf.time-ms"),
        ] {
            let shown = peer("man", &["-M", pages, "-P", "cat", page]);
            assert!(shown.contains(words), "{page}: {shown}");
        }
        let shown = peer("man", &["-M", pages, "-P", "cat", "7", "evfs"]);
        assert!(shown.contains("keyslots"), "{shown}");
    }
}
