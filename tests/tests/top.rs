//! `evfs top` from outside: at a terminal, through a pipe, and as JSON.

use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use tests::terminal::Terminal;
use tests::{Ran, Sandbox, wait_until};

/// Begin and end of full-screen mode.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";
const SHOW_CURSOR: &str = "\x1b[?25h";

/// Starts `evfs top` at a terminal of 80 by 24.
fn at_a_terminal(s: &Sandbox, args: &[&str]) -> Terminal {
    let mut command = s.evfs();
    command.arg("top").args(args);
    plain(&mut command);
    let terminal = Terminal::start(command);
    terminal.resize(80, 24);
    terminal
}

/// Sets an environment in which the output is ASCII.
fn plain(command: &mut Command) {
    command
        .env("TERM", "xterm")
        .env("LC_ALL", "C")
        .env_remove("NO_COLOR")
        .env_remove("COLUMNS");
}

/// Reads and writes until it is dropped.
struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    /// Repeats `work`, which gets the number of the repetition.
    fn start(mut work: impl FnMut(u64) + Send + 'static) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            for round in 0.. {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                work(round);
            }
        });
        Load {
            stop,
            thread: Some(thread),
        }
    }

    /// Reads and writes an attached volume through its NBD export.
    fn on_volume(s: &Sandbox, name: &str) -> Load {
        let at = s.path(&format!("run/{name}.nbd"));
        let mut client = nbd_client::Client::connect(&at, name).unwrap();
        let mut block = vec![7; 64 << 10];
        Load::start(move |round| {
            let offset = round % 64 * (64 << 10);
            client.write_at(offset, &block).unwrap();
            client.read_at(offset, &mut block).unwrap();
        })
    }

    /// Writes and reads a file.
    fn on_file(file: PathBuf) -> Load {
        let block = vec![7; 256 << 10];
        Load::start(move |_| {
            std::fs::write(&file, &block).unwrap();
            assert_eq!(std::fs::read(&file).unwrap().len(), block.len());
        })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let ended = self.thread.take().expect("it is dropped once").join();
        assert!(ended.is_ok() || std::thread::panicking(), "the load failed");
    }
}

/// Attaches the new volume `a`.
fn attached() -> Sandbox {
    let s = Sandbox::new();
    s.volume("a.img", "64M", &[]);
    s.attach(&["a.img"]);
    s
}

/// Returns the line of a service in the table of a screen.
fn row<'a>(lines: &'a [String], name: &str) -> Option<&'a String> {
    let mut lines = lines.iter().skip(3);
    lines.find(|line| line.split_whitespace().next() == Some(name))
}

fn has(lines: &[String], text: &str) -> bool {
    lines.iter().any(|line| line.contains(text))
}

/// Checks that the terminal has left full-screen mode, and has its former settings.
#[track_caller]
fn is_restored(terminal: &mut Terminal) {
    terminal.wait_for(LEAVE);
    terminal.wait_for(SHOW_CURSOR);
    wait_until("the terminal has its settings again", || terminal.echoes());
}

/// Runs `evfs top` through a pipe, and returns the documents that it prints.
fn documents(s: &Sandbox, args: &[&str]) -> Vec<Value> {
    let mut command = s.evfs();
    command.args(["--json", "top"]).args(args);
    let ran = Ran::of(&mut command).ok();
    let lines = ran.stdout.lines();
    lines.map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[test]
fn a_volume_under_load_has_figures_and_q_restores_the_terminal() {
    let s = attached();
    let load = Load::on_volume(&s, "a");
    let mut terminal = at_a_terminal(&s, &["--interval", "0.2"]);
    terminal.wait_for(ENTER);
    let lines = terminal.wait_for_screen("the volume with figures", |lines| {
        row(lines, "a").is_some_and(|row| row.matches("iB").count() >= 2)
    });
    assert!(!terminal.echoes(), "keys are not shown");
    assert!(lines[0].starts_with("evfs top  1 service"), "{lines:#?}");
    assert!(lines[1].starts_with("[1 Services]"), "{lines:#?}");
    assert!(lines[2].contains("P99"), "{lines:#?}");
    let row = row(&lines, "a").unwrap();
    assert!(row.contains(" ok "), "{row}");
    assert!(row.contains(" us") || row.contains(" ms"), "{row}");
    // The details of the selected row: curves, and latencies of each kind of request.
    terminal.wait_for_screen("details", |lines| {
        has(lines, "a: volume on a.img") && has(lines, "mean") && has(lines, "read    ")
    });
    for (key, view, text) in [
        ("\t", "[2 Paths]", "no service is on a LUN"),
        ("\t", "[3 Cache]", "process "),
        ("4", "[4 Files]", "of a"),
        ("\x1b[C", "[5 Clients]", "no client has called a cell"),
        ("\x1b[Z", "[4 Files]", "of a"),
        ("1", "[1 Services]", "a: volume on a.img"),
        ("?", "[1 Services]", "q, Ctrl-C"),
        ("\x1b", "[1 Services]", "a: volume on a.img"),
        ("S", "by DEVICE", "a: volume on a.img"),
        ("p", "PAUSED", "a: volume on a.img"),
    ] {
        terminal.type_text(key);
        // A frame may be half drawn: Escape has closed the help once the help is gone.
        let help = key == "?";
        terminal.wait_for_screen(view, |lines| {
            has(lines, view) && has(lines, text) && has(lines, "q, Ctrl-C") == help
        });
    }
    terminal.type_text("q");
    is_restored(&mut terminal);
    let (status, said) = terminal.end();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(!said.contains("48;5;"), "no background is set: {said}");
    drop(load);
    s.detach("a");
}

#[test]
fn signals_and_ctrl_c_restore_the_terminal() {
    let s = attached();
    for (signal, code) in [
        (libc::SIGTERM, 143),
        (libc::SIGINT, 130),
        (libc::SIGQUIT, 131),
    ] {
        let mut terminal = at_a_terminal(&s, &[]);
        terminal.wait_for_screen("the volume", |lines| row(lines, "a").is_some());
        terminal.signal(signal);
        is_restored(&mut terminal);
        let (status, said) = terminal.end();
        assert_eq!(status.code(), Some(code), "{said}");
    }
    let mut terminal = at_a_terminal(&s, &[]);
    terminal.wait_for_screen("the volume", |lines| row(lines, "a").is_some());
    terminal.type_text("\x03");
    is_restored(&mut terminal);
    assert_eq!(terminal.end().0.code(), Some(130));
    s.detach("a");
}

#[test]
fn an_error_restores_the_terminal_and_is_printed_after_that() {
    use std::os::unix::fs::PermissionsExt;
    let s = attached();
    let mut terminal = at_a_terminal(&s, &["--interval", "0.1"]);
    terminal.wait_for_screen("the volume", |lines| row(lines, "a").is_some());
    let mode = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(s.path("run"), mode).unwrap();
    };
    // Another user could now replace the sockets.
    mode(0o777);
    is_restored(&mut terminal);
    terminal.wait_for("evfs: ");
    let (status, said) = terminal.end();
    mode(0o700);
    assert_ne!(status.code(), Some(0), "{said}");
    s.detach("a");
}

#[test]
fn the_screen_follows_the_size_of_the_terminal() {
    let s = attached();
    let mut terminal = at_a_terminal(&s, &["--interval", "0.2"]);
    terminal.wait_for_screen("80 columns", |lines| {
        has(lines, "STATE") && !has(lines, "UPTIME") && lines[23].starts_with("q quit")
    });
    terminal.resize(140, 40);
    terminal.wait_for_screen("140 columns", |lines| {
        has(lines, "DEVICE") && lines[39].starts_with("q quit")
    });
    terminal.resize(40, 10);
    terminal.wait_for_screen("40 columns", |lines| {
        lines[9].starts_with("q quit") && lines.iter().all(|line| line.len() <= 40)
    });
    terminal.type_text("q");
    assert_eq!(terminal.end().0.code(), Some(0));
    s.detach("a");
}

#[test]
fn services_that_start_and_end_while_it_runs_come_and_go() {
    let s = attached();
    let mut terminal = at_a_terminal(&s, &["--interval", "0.2"]);
    terminal.wait_for_screen("one service", |lines| row(lines, "a").is_some());
    s.volume("b.img", "32M", &[]);
    s.attach(&["b.img"]);
    terminal.wait_for_screen("two services", |lines| {
        has(lines, "2 services") && row(lines, "b").is_some()
    });
    s.detach("a");
    terminal.wait_for_screen("the second", |lines| {
        has(lines, "1 service") && row(lines, "a").is_none() && row(lines, "b").is_some()
    });
    s.detach("b");
    terminal.wait_for_screen("nothing", |lines| has(lines, "nothing is attached"));
    terminal.type_text("q");
    assert_eq!(terminal.end().0.code(), Some(0));
}

#[test]
fn one_sample_is_printed_as_text_within_the_width() {
    let s = attached();
    let load = Load::on_volume(&s, "a");
    let text = s.run(&["top", "--once", "--interval", "0.5"]).ok().stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "Services", "{text}");
    assert!(lines[1].starts_with("NAME"), "{text}");
    assert!(lines[1].contains("DEVICE"), "{text}");
    let row = lines[2];
    assert!(row.starts_with("a ") && row.contains("iB"), "{text}");
    assert!(
        text.contains("\nCache\n") && text.contains("\nFiles\n"),
        "{text}"
    );
    assert!(!text.contains('\x1b'), "{text}");
    drop(load);
    let mut command = s.evfs();
    command.args(["top", "--once"]).env("COLUMNS", "60");
    let narrow = Ran::of(&mut command).ok().stdout;
    assert!(
        narrow.lines().all(|line| line.chars().count() <= 60),
        "{narrow}"
    );
    let twice = s.run(&["top", "--count", "2", "--interval", "0.1"]).ok();
    assert_eq!(twice.stdout.matches("Services\n").count(), 2);
    s.detach("a");
    let nothing = s.run(&["top", "--once", "--interval", "0.1"]).ok();
    assert!(
        nothing.stdout.contains("nothing is attached"),
        "{nothing:?}"
    );
}

#[test]
fn each_interval_is_a_json_document() {
    let s = attached();
    let load = Load::on_volume(&s, "a");
    let documents = documents(&s, &["--interval", "0.5", "--count", "2"]);
    assert_eq!(documents.len(), 2);
    for (number, document) in documents.iter().enumerate() {
        let service = &document["services"][0];
        assert_eq!(
            (&service["name"], &service["state"]),
            (&"a".into(), &"ok".into())
        );
        let seconds = service["interval_seconds"].as_f64().unwrap();
        assert!(seconds > 0.1, "{service}");
        for op in ["read", "write"] {
            let rates = &service["io"][op];
            assert!(
                rates["requests_per_second"].as_f64() > Some(0.0),
                "{service}"
            );
            let bytes = rates["bytes_per_second"].as_f64().unwrap();
            let requests = rates["requests_per_second"].as_f64().unwrap();
            assert!(bytes / requests > 4096.0, "{service}");
            let [p50, p99] = ["p50_ns", "p99_ns"].map(|key| rates[key].as_u64().unwrap());
            assert!(0 < p50 && p50 <= p99, "{service}");
        }
        let cache = &document["caches"][0];
        assert_eq!(cache["services"][0], "a", "{cache}");
        assert!(cache["hit_ratio"].as_f64() > Some(0.5), "{cache}");
        let file = &document["files"][0];
        assert_eq!(
            (&file["service"], &file["tree"]),
            (&"a".into(), &"a".into())
        );
        // A file has rates from the second reading that it is in.
        if number > 0 {
            assert!(file["writes_per_second"].as_f64() > Some(0.0), "{file}");
        }
    }
    let times = documents.iter().map(|d| d["time"].as_f64().unwrap());
    assert!(times.is_sorted());
    drop(load);
    s.detach("a");
}

#[test]
fn a_stopped_process_is_shown_as_such_beside_the_rates_of_others() {
    let s = attached();
    s.volume("b.img", "32M", &[]);
    let stopped = s.attach(&["b.img"]);
    let pid = stopped["pid"].as_i64().unwrap() as i32;
    tests::signal(pid, libc::SIGSTOP);
    let documents = documents(&s, &["--interval", "0.3", "--count", "3"]);
    tests::signal(pid, libc::SIGCONT);
    let last = &documents[2]["services"];
    assert_eq!(
        (&last[0]["name"], &last[0]["state"]),
        (&"a".into(), &"ok".into())
    );
    assert!(last[0]["interval_seconds"].is_f64(), "{last}");
    assert_eq!(last[1]["state"], "not answering", "{last}");
    assert!(last[1]["error"].is_string(), "{last}");
    s.detach("a");
    s.detach("b");
}

#[test]
fn wrong_options_are_refused() {
    let s = Sandbox::new();
    for args in [
        &["top", "--interval", "0"][..],
        &["top", "--interval", "often"],
        &["top", "--count", "0"],
        &["top", "--once", "--count", "2"],
    ] {
        s.run(args).code(2);
    }
    // A terminal that cannot move its cursor gets text.
    let mut command = s.evfs();
    command.args(["top", "--count", "1", "--interval", "0.1"]);
    plain(&mut command);
    command.env("TERM", "dumb");
    let (status, said) = Terminal::start(command).end();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(
        said.contains("nothing is attached") && !said.contains('\x1b'),
        "{said}"
    );
}

mod needs_peer {
    use super::*;

    #[test]
    fn a_mount_under_load_has_figures_and_its_files_have_names() {
        let s = Sandbox::new();
        s.run(&["format", "disk.img", "--size", "96M"]).ok();
        std::fs::create_dir(s.path("mnt")).unwrap();
        s.run(&["mount", "disk.img", "mnt", "--background"]).ok();
        std::fs::create_dir(s.path("mnt/deep")).unwrap();
        let odd = s.path("mnt/deep/odd\x1b[31mname");
        let load = Load::on_file(odd);
        // Until the file is among the leading ones, and was written to in an interval.
        let mut found = None;
        wait_until("the file has a path and rates", || {
            let documents = documents(&s, &["--interval", "0.3", "--count", "1"]);
            let files = documents[0]["files"].as_array().unwrap();
            let is_it = |file: &&Value| {
                let path = file["path"].as_str().unwrap_or_default();
                path == "deep/odd\x1b[31mname" && file["writes_per_second"].as_f64() > Some(0.0)
            };
            found = files.iter().find(is_it).cloned();
            found.is_some()
        });
        let found = found.unwrap();
        assert_eq!(found["service"], "disk", "{found}");
        let text = s.run(&["top", "--once", "--interval", "0.3"]).ok().stdout;
        assert!(text.contains("deep/odd\\u{1b}[31mname"), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
        let mut terminal = at_a_terminal(&s, &["--interval", "0.2"]);
        terminal.wait_for_screen("the mount", |lines| {
            row(lines, "disk").is_some_and(|row| row.contains(" ok "))
        });
        terminal.type_text("4");
        terminal.wait_for_screen("the file", |lines| has(lines, "odd\\u{1b}[31mname"));
        terminal.type_text("q");
        is_restored(&mut terminal);
        assert_eq!(terminal.end().0.code(), Some(0));
        drop(load);
        s.run(&["unmount", "mnt"]).ok();
    }
}
