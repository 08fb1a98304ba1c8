//! Progress of long commands: a bar at a terminal, or lines on standard error.

use serde_json::Value;
use tests::terminal::Terminal;
use tests::{Ran, Sandbox, schemas};

/// Commands that show progress, with the first word of its lines.
fn commands(s: &Sandbox) -> Vec<(Vec<String>, &'static str)> {
    s.run(&["format", "disk.img", "--size", "32M"]).ok();
    // Nothing answers there, which is a result as well.
    let absent = format!("nbd+unix:///e?socket={}", s.path("none.sock").display());
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let bench = ["bench", "run", "dhrystone", "--quick", "--runs", "2"];
    vec![
        (words(&["fsck", "disk.img"]), "checked"),
        (words(&["defrag", "disk.img"]), "defragmented"),
        (words(&["lun", "scan", &absent]), "scanned"),
        (words(&bench), "dhrystone"),
    ]
}

fn run(s: &Sandbox, global: &[&str], args: &[String]) -> Ran {
    Ran::of(s.evfs().args(global).args(args)).ok()
}

#[test]
fn progress_is_printed_as_lines_on_request_and_not_otherwise() {
    let s = Sandbox::new();
    for (args, what) in commands(&s) {
        let line = format!("{what}: ");
        for silent in [
            &[][..],
            &["--progress=auto"],
            &["--progress", "never"],
            &["--quiet"],
        ] {
            let ran = run(&s, silent, &args);
            assert!(!ran.stderr.contains(" % ("), "{silent:?} {args:?}: {ran:?}");
        }
        for always in [&["--progress=always"][..], &["--progress=always", "-q"]] {
            let ran = run(&s, always, &args);
            let lines = ran.stderr.lines().filter(|l| l.starts_with(&line));
            let mut lines = lines.peekable();
            assert!(lines.peek().is_some(), "{args:?}: {ran:?}");
            assert!(lines.all(|l| l.contains(" % (")), "{args:?}: {ran:?}");
            assert!(!ran.stderr.contains('\u{1b}'), "{args:?}: {ran:?}");
        }
    }
}

#[test]
fn with_json_each_line_of_progress_is_a_document() {
    let s = Sandbox::new();
    for (args, what) in commands(&s) {
        let ran = run(&s, &["--json"], &args);
        assert!(!ran.stderr.contains("evfs/progress/1"), "{ran:?}");
        let ran = run(&s, &["--json", "--progress=always"], &args);
        let lines = ran.stderr.lines();
        let documents = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let of_progress: Vec<Value> = documents
            .filter(|document| document["schema"] == "evfs/progress/1")
            .collect();
        assert!(!of_progress.is_empty(), "{args:?}: {ran:?}");
        for document in of_progress {
            assert_eq!(schemas::problems(&document), [""; 0]);
            assert_eq!(document["what"], what);
        }
    }
}

#[test]
fn at_a_terminal_progress_is_a_bar_unless_it_is_refused() {
    let s = Sandbox::new();
    for (args, what) in commands(&s) {
        let shown = |global: &[&str]| {
            let mut command = s.evfs();
            command.args(global).args(&args);
            // Without these, a terminal that cannot move its cursor is assumed.
            command.env("TERM", "xterm").env_remove("NO_COLOR");
            let (status, said) = Terminal::start(command).end();
            assert!(status.success(), "{said}");
            said.contains(&format!("{what:<12} ["))
        };
        assert!(shown(&[]), "{args:?}");
        assert!(!shown(&["--progress=never"]), "{args:?}");
        assert!(!shown(&["--progress=always"]), "{args:?}");
    }
}

#[test]
fn another_value_is_refused_with_those_that_exist() {
    let s = Sandbox::new();
    let ran = s.run(&["--progress=often", "status"]).code(2);
    assert!(ran.stderr.contains("auto, always, never"), "{}", ran.stderr);
}
