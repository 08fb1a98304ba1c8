//! Progress of long commands: a bar at a terminal, or lines on standard error.

use serde_json::Value;
use tests::terminal::Terminal;
use tests::{Ran, Sandbox, schemas};

/// A command that shows progress, with the first word of its lines, and its exit code.
struct Case {
    args: Vec<String>,
    what: &'static str,
    code: i32,
}

fn commands(s: &Sandbox) -> Vec<Case> {
    s.run(&["format", "disk.img", "--size", "32M"]).ok();
    // Nothing answers there, which is a result as well.
    let absent = format!("nbd+unix:///e?socket={}", s.path("none.sock").display());
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let bench = ["bench", "run", "dhrystone", "--quick", "--runs", "2"];
    let case = |args, what, code| Case { args, what, code };
    vec![
        case(words(&["fsck", "disk.img"]), "checked", 0),
        case(words(&["fsck", "--online", "disk.img"]), "checked", 0),
        case(words(&["scrub", "disk.img"]), "scrubbed", 0),
        case(words(&["defrag", "disk.img"]), "defragmented", 0),
        case(words(&["upgrade", "disk.img"]), "upgraded", 0),
        case(words(&["lun", "scan", &absent]), "scanned", 10),
        case(words(&bench), "dhrystone", 0),
    ]
}

impl Case {
    fn run(&self, s: &Sandbox, global: &[&str]) -> Ran {
        let ran = Ran::of(s.evfs().args(global).args(&self.args)).code(self.code);
        assert!(!ran.stdout.contains("(os error"), "{ran:?}");
        ran
    }
}

#[test]
fn progress_is_printed_as_lines_on_request_and_not_otherwise() {
    let s = Sandbox::new();
    for case in commands(&s) {
        let (args, line) = (&case.args, format!("{}: ", case.what));
        for silent in [
            &[][..],
            &["--progress=auto"],
            &["--progress", "never"],
            &["--quiet"],
        ] {
            let ran = case.run(&s, silent);
            assert!(!ran.stderr.contains(" % ("), "{silent:?} {args:?}: {ran:?}");
        }
        for always in [&["--progress=always"][..], &["--progress=always", "-q"]] {
            let ran = case.run(&s, always);
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
    for case in commands(&s) {
        let args = &case.args;
        let ran = case.run(&s, &["--json"]);
        assert!(!ran.stderr.contains("evfs/progress/1"), "{ran:?}");
        let ran = case.run(&s, &["--json", "--progress=always"]);
        let lines = ran.stderr.lines();
        let documents = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let of_progress: Vec<Value> = documents
            .filter(|document| document["schema"] == "evfs/progress/1")
            .collect();
        assert!(!of_progress.is_empty(), "{args:?}: {ran:?}");
        for document in of_progress {
            assert_eq!(schemas::problems(&document), [""; 0]);
            assert_eq!(document["what"], case.what);
        }
    }
}

#[test]
fn at_a_terminal_progress_is_a_bar_unless_it_is_refused() {
    let s = Sandbox::new();
    for Case { args, what, code } in commands(&s) {
        let shown = |global: &[&str]| {
            let mut command = s.evfs();
            command.args(global).args(&args);
            // Without these, a terminal that cannot move its cursor is assumed.
            command.env("TERM", "xterm").env_remove("NO_COLOR");
            let (status, said) = Terminal::start(command).end();
            assert_eq!(status.code(), Some(code), "{said}");
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
