//! Monitoring from outside: the state of services, their metrics, and the log.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tests::cell::create_cell;
use tests::targets::free_port;
use tests::web::exchange;
use tests::{NOBODY, Ran, Sandbox, as_user, needs_root, root, signal, wait_until};

/// Request for the metrics.
const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Files that name metrics.
const DASHBOARD: &str = include_str!("../../dist/grafana/evfs.json");
const RULES: &str = include_str!("../../dist/prometheus/evfs.rules.yml");

fn volume(s: &Sandbox, name: &str) -> Value {
    s.json(&["status", name])["volumes"][0].clone()
}

/// Runs the program with an address for metrics.
fn with_metrics(s: &Sandbox, listen: &str, args: &[&str]) -> Value {
    let mut command = s.evfs();
    command.arg("--json").args(args);
    let ran = Ran::of(command.env("EVFS_METRICS_LISTEN", listen)).ok();
    serde_json::from_str(&ran.stdout).unwrap()
}

/// Waits for metrics in which `wanted` occurs.
fn scrape(socket: &Path, wanted: &str) -> String {
    let mut text = String::new();
    wait_until(&format!("the metrics contain {wanted}"), || {
        let answer = UnixStream::connect(socket).map(|stream| exchange(stream, GET));
        let answer = answer.unwrap_or_default();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        body.clone_into(&mut text);
        text.contains(wanted)
    });
    text
}

/// Returns the value of the series with these labels.
fn value(metrics: &str, series: &str) -> f64 {
    let prefix = format!("{series} ");
    let line = metrics.lines().find(|line| line.starts_with(&prefix));
    let line = line.unwrap_or_else(|| panic!("no {series} in {metrics}"));
    line[prefix.len()..].parse().unwrap()
}

/// Checks the syntax of all lines, and returns the names of the families.
fn families(metrics: &str) -> BTreeSet<String> {
    let mut families = BTreeSet::new();
    let mut series = BTreeSet::new();
    let mut current = String::new();
    for line in metrics.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(families.insert(name.to_owned()), "{name} twice");
            current = name.to_owned();
        } else if !line.starts_with("# HELP ") {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(name.starts_with(&current), "{line} is not of {current}");
            assert!(series.insert(name.to_owned()), "{name} twice");
        }
    }
    families
}

/// Lists the metrics that a dashboard or a rule names.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
    let words = text.split(|c| !is_part(c));
    let names = words.filter(|word| word.starts_with("evfs_"));
    let families = names.map(|name| {
        let ends = ["_bucket", "_sum", "_count"];
        let end = ends.iter().find_map(|end| name.strip_suffix(end));
        end.unwrap_or(name).to_owned()
    });
    families.collect()
}

/// Creates and serves a cell in `cell.img`.
fn serve_cell(s: &Sandbox, listen: &str) -> Value {
    create_cell(s);
    with_metrics(s, listen, &["serve", "cell.img", "--background"])
}

#[test]
fn status_has_a_state_for_each_service_and_an_exit_code_for_scripts() {
    let s = Sandbox::new();
    s.run(&["status", "--check"]).ok();
    s.run(&["status", "a"]).code(10);
    s.volume("a.img", "32M", &[]);
    s.volume("b.img", "32M", &[]);
    s.attach(&["a.img"]);
    s.attach(&["b.img", "--read-only", "--direct"]);
    let text = s.run(&["status"]).ok().stdout;
    let heading: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
    let columns = ["NAME", "STATE", "SIZE", "USED", "DIRTY", "UPTIME", "DEVICE"];
    assert_eq!(heading, columns, "{text}");
    let line = text.lines().find(|line| line.starts_with("a ")).unwrap();
    assert!(line.contains(" ok ") && line.ends_with("a.img"), "{text}");
    assert!(text.contains("role owner"), "{text}");
    let a = volume(&s, "a");
    assert_eq!(a["health"]["state"], "ok", "{a}");
    assert_eq!(a["health"]["errors"], 0, "{a}");
    assert_eq!(a["role"], "owner", "{a}");
    assert!(a["uptime_seconds"].is_u64(), "{a}");
    assert!(a["write_back"]["dirty_bytes"].is_u64(), "{a}");
    // Refused writes that were asked for are no fault.
    let b = volume(&s, "b");
    assert_eq!(
        (&b["read_only"], &b["health"]["state"]),
        (&true.into(), &"ok".into())
    );
    s.run(&["status", "--check"]).ok();
    // By its device, and by the place of an export.
    let at = a["exports"][0]["at"].as_str().unwrap();
    for name in ["a.img", s.path("a.img").to_str().unwrap(), at] {
        let shown = s.run(&["status", name]).ok().stdout;
        assert!(shown.contains("\na ") && !shown.contains("\nb "), "{shown}");
        assert!(shown.contains("    log   "), "{shown}");
    }
    s.detach("a");
    s.detach("b");
}

#[test]
fn a_file_system_shows_how_full_it_is() {
    let s = Sandbox::new();
    serve_cell(&s, "");
    let cell = volume(&s, "cell");
    let space = &cell["space"];
    let [size, free, available] = ["size_bytes", "free_bytes", "available_bytes"].map(|key| {
        space[key]
            .as_u64()
            .unwrap_or_else(|| panic!("{key} in {cell}"))
    });
    assert!(
        size == 64 << 20 && available <= free && free < size,
        "{space}"
    );
    let text = s.run(&["status", "cell"]).ok().stdout;
    let line = text.lines().find(|line| line.starts_with("cell ")).unwrap();
    assert!(line.contains(" % "), "{text}");
    s.detach("cell");
}

/// The volume is on a LUN with one path, to the export of another volume whose process is killed.
#[test]
fn a_lun_whose_paths_fail_is_failing_in_the_status_and_in_the_metrics() {
    let s = Sandbox::new();
    s.volume("outer.img", "96M", &[]);
    let outer = s.attach(&["outer.img"]);
    let uri = outer["exports"][0]["at"].as_str().unwrap();
    // Without data, the outer volume decrypts to noise, which is not empty.
    s.run(&["volume", "create", uri, "--owner", "owner", "--force"])
        .ok();
    let attach = ["attach", uri, "--name", "inner", "--background"];
    with_metrics(&s, "m.sock", &attach);
    let socket = s.path("run/m.sock");
    let metrics = scrape(&socket, "state=\"active\"");
    assert!(
        metrics.contains("evfs_path_requests_total{volume=\"inner\","),
        "{metrics}"
    );
    let inner = volume(&s, "inner");
    assert_eq!(inner["health"]["paths"], 1, "{inner}");
    assert_eq!(inner["health"]["paths_failed"], 0, "{inner}");
    s.run(&["status", "inner", "--check"]).ok();
    let pid = outer["pid"].as_i64().unwrap() as i32;
    tests::signal(pid, libc::SIGKILL);
    wait_until("the service is failing", || {
        volume(&s, "inner")["health"]["state"] == "failing"
    });
    let text = s.run(&["status", "inner", "--check"]).code(26).stdout;
    assert!(text.contains("1 of 1 paths failed"), "{text}");
    assert!(text.contains("no path of the LUN works"), "{text}");
    let failing = "evfs_service_state{volume=\"inner\",state=\"failing\"} 1";
    let metrics = scrape(&socket, failing);
    assert!(!metrics.contains("state=\"active\""), "{metrics}");
    let _ = s.run(&["detach", "inner", "--force"]);
}

#[test]
fn one_process_serves_the_metrics_of_all_and_another_takes_its_place() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let socket = s.path("run/m.sock");
    with_metrics(&s, "m.sock", &["attach", "a.img", "--background"]);
    scrape(&socket, "evfs_service_up{volume=\"a\"} 1");
    serve_cell(&s, "m.sock");
    let at = s.path("run/a.nbd");
    let mut client = nbd_client::Client::connect(&at, "a").unwrap();
    client.write_at(4096, &[7; 8192]).unwrap();
    client.flush().unwrap();
    let metrics = scrape(&socket, "evfs_service_up{volume=\"cell\"} 1");
    let families = families(&metrics);
    for text in [DASHBOARD, RULES] {
        let named = named(text);
        assert!(named.len() > 5, "{named:?}");
        let unknown: Vec<_> = named.difference(&families).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
    let writes = "{volume=\"a\",op=\"write\"}";
    wait_until("the write is counted", || {
        let metrics = scrape(&socket, "evfs_io_requests_total");
        value(&metrics, &format!("evfs_io_bytes_total{writes}")) >= 8192.0
    });
    let metrics = scrape(&socket, "evfs_io_requests_total");
    let requests = value(&metrics, &format!("evfs_io_requests_total{writes}"));
    let counted = value(&metrics, &format!("evfs_io_latency_seconds_count{writes}"));
    let last = "evfs_io_latency_seconds_bucket{volume=\"a\",op=\"write\",le=\"+Inf\"}";
    assert!(requests >= 1.0 && counted >= 1.0, "{requests} {counted}");
    assert_eq!(value(&metrics, last), counted);
    assert_eq!(
        value(&metrics, "evfs_volume_size_bytes{volume=\"a\"}"),
        16777216.0
    );
    assert_eq!(
        value(&metrics, "evfs_filesystem_size_bytes{volume=\"cell\"}"),
        67108864.0
    );
    assert!(
        metrics.contains("evfs_cache_writes_total{pid=\""),
        "{metrics}"
    );
    assert!(metrics.contains("evfs_build_info{version=\""), "{metrics}");
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    s.detach("a");
    // The process that ends may answer once more.
    wait_until("another one answers, without the volume", || {
        let metrics = scrape(&socket, "evfs_service_up{volume=\"cell\"} 1");
        !metrics.contains("volume=\"a\"")
    });
    s.detach("cell");
    wait_until("the last one removes it", || !socket.exists());
}

#[test]
fn a_process_that_is_stopped_is_down_in_the_metrics_of_another() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.volume("b.img", "32M", &[]);
    with_metrics(&s, "m.sock", &["attach", "a.img", "--background"]);
    let stopped = s.attach(&["b.img"])["pid"].as_i64().unwrap() as i32;
    scrape(&s.path("run/m.sock"), "evfs_service_up{volume=\"b\"} 1");
    signal(stopped, libc::SIGSTOP);
    let metrics = scrape(&s.path("run/m.sock"), "evfs_service_up{volume=\"b\"} 0");
    signal(stopped, libc::SIGCONT);
    assert_eq!(value(&metrics, "evfs_service_up{volume=\"a\"}"), 1.0);
    s.detach("a");
    s.detach("b");
}

#[test]
fn metrics_on_loopback_survive_garbage_and_stay_off_without_an_address() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    with_metrics(&s, &listen, &["attach", "a.img", "--background"]);
    let connect = || {
        let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        Some(stream)
    };
    let get = || connect().map(|stream| exchange(stream, GET));
    wait_until("the metrics are served", || {
        get().is_some_and(|answer| answer.contains("evfs_service_up{volume=\"a\"} 1"))
    });
    for garbage in [
        &b"\0\xff\x16\x03\x01\r\n\r\n"[..],
        b"\r\n\r\n",
        &[b'G'; 20_000],
    ] {
        let answer = exchange(connect().expect("it listens"), garbage);
        assert!(!answer.contains("evfs_service_up"), "{answer}");
    }
    wait_until("the metrics are served", || {
        get().is_some_and(|answer| answer.starts_with("HTTP/1.1 200 "))
    });
    s.detach("a");
    s.attach(&["a.img"]);
    assert!(connect().is_none(), "without the setting");
    s.detach("a");
    for refused in [
        "0.0.0.0:9464",
        "127.0.0.1:80",
        "/tmp/m.sock",
        "localhost:9464",
    ] {
        let mut command = s.evfs();
        command.env("EVFS_METRICS_LISTEN", refused).arg("status");
        let ran = Ran::of(&mut command).code(2);
        assert!(ran.stderr.contains("metrics.listen"), "{}", ran.stderr);
    }
}

/// Runs a command that warns about an unsafe directory of control sockets, and fails for another
/// reason. Returns its standard error.
fn warned(s: &Sandbox, environment: &[(&str, &str)]) -> String {
    let run = s.path("run");
    let mode = |mode| fs::set_permissions(&run, fs::Permissions::from_mode(mode)).unwrap();
    fs::write(s.path("none.img"), [0; 4096]).unwrap();
    mode(0o777);
    let mut command = s.evfs();
    command
        .args(["df", "none.img"])
        .envs(environment.iter().copied());
    let ran = Ran::of(&mut command).code(10);
    mode(0o700);
    ran.stderr
}

#[test]
fn an_event_has_its_code_in_text_and_in_json() {
    let s = Sandbox::new();
    let text = warned(&s, &[("EVFS_LOG_FORMAT", "text")]);
    let line = text
        .lines()
        .find(|line| line.contains("EVFS-0802 "))
        .unwrap_or_default();
    assert!(line.contains(" WARN stack::"), "{text}");
    let json = warned(&s, &[("EVFS_LOG_FORMAT", "json")]);
    let line = json.lines().find(|line| line.starts_with('{')).unwrap();
    let event: Value = serde_json::from_str(line).unwrap();
    assert_eq!(event["event"], "EVFS-0802", "{json}");
    assert_eq!(event["level"], "WARN");
    let message = event["message"].as_str().unwrap();
    assert!(message.contains("not safe to use"), "{event}");
    let page = s.run(&["explain", "EVFS-0802"]).ok().stdout;
    assert!(page.contains("What to do"), "{page}");
    s.run(&["explain", "EVFS-9999"]).code(10);
    assert!(s.run(&["explain"]).ok().stdout.contains("EVFS-0802 "));
}

/// A socket in the place of journald.
fn journal(s: &Sandbox) -> (UnixDatagram, String) {
    let path = s.path("journal.sock");
    let _ = fs::remove_file(&path);
    let socket = UnixDatagram::bind(&path).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    (socket, path.to_str().unwrap().to_owned())
}

fn entry(journal: &UnixDatagram) -> String {
    let mut entry = vec![0; 1 << 16];
    let len = journal.recv(&mut entry).expect("an entry");
    String::from_utf8_lossy(&entry[..len]).into_owned()
}

#[test]
fn the_journal_receives_fields() {
    let s = Sandbox::new();
    let (socket, path) = journal(&s);
    let environment = [
        ("EVFS_LOG_JOURNAL_SOCKET", &*path),
        ("EVFS_LOG_FORMAT", "journal"),
    ];
    let said = warned(&s, &environment);
    assert!(!said.contains("EVFS-0802"), "{said}");
    let entry = entry(&socket);
    for field in [
        "PRIORITY=4\n",
        "SYSLOG_IDENTIFIER=evfs\n",
        "EVFS_EVENT=EVFS-0802\n",
        "MESSAGE=EVFS-0802 ",
    ] {
        assert!(entry.contains(field), "{field} in {entry}");
    }
    // Without a journal, the line is on standard error.
    drop(socket);
    fs::remove_file(s.path("journal.sock")).unwrap();
    assert!(warned(&s, &environment).contains("EVFS-0802"));
}

#[test]
fn standard_error_that_is_the_journal_selects_the_journal() {
    let s = Sandbox::new();
    let (socket, path) = journal(&s);
    let (stream, _reader) = UnixStream::pair().unwrap();
    let file = fs::File::from(std::os::fd::OwnedFd::from(stream));
    let about = file.metadata().unwrap();
    let run = s.path("run");
    fs::write(s.path("none.img"), [0; 4096]).unwrap();
    fs::set_permissions(&run, fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = s.evfs();
    command
        .args(["df", "none.img"])
        .env("EVFS_LOG_JOURNAL_SOCKET", path)
        .env("JOURNAL_STREAM", format!("{}:{}", about.dev(), about.ino()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file);
    assert_eq!(command.status().unwrap().code(), Some(10));
    fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(entry(&socket).contains("EVFS_EVENT=EVFS-0802\n"));
}

#[test]
fn a_process_in_the_background_says_where_it_logs() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let (socket, path) = journal(&s);
    let mut command = s.evfs();
    command.args(["--log", "info", "attach", "a.img", "--background"]);
    let ran = Ran::of(command.env("EVFS_LOG_JOURNAL_SOCKET", path)).ok();
    let pid = volume(&s, "a")["pid"].to_string();
    let said = format!("log: the journal; `journalctl -t evfs _PID={pid}` shows it");
    assert!(ran.stderr.contains(&said), "{}", ran.stderr);
    let place = volume(&s, "a")["log"].clone();
    assert!(said.ends_with(place.as_str().unwrap()), "{place}");
    tests::signal(pid.parse().unwrap(), libc::SIGHUP);
    let mut flushed = entry(&socket);
    while !flushed.contains("HUP") {
        flushed = entry(&socket);
    }
    assert!(flushed.contains("PRIORITY=6\n"), "{flushed}");
    s.detach("a");
    // A file that it inherits.
    let log = fs::File::create(s.path("log")).unwrap();
    let mut command = s.evfs();
    command.args(["attach", "a.img", "--background"]);
    let started = command.stdin(Stdio::null()).stdout(Stdio::null());
    assert!(started.stderr(log).status().unwrap().success());
    let said = fs::read_to_string(s.path("log")).unwrap();
    let file = fs::canonicalize(s.path("log")).unwrap();
    assert!(said.contains(&format!("log: {}", file.display())), "{said}");
    s.detach("a");
}

mod needs_root {
    use super::*;

    #[test]
    fn metrics_on_loopback_are_refused_to_other_users() {
        needs_root("to connect as another user");
        let s = Sandbox::new();
        s.volume("a.img", "32M", &[]);
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        let log = fs::File::create(s.path("log")).unwrap();
        let mut command = s.evfs();
        command
            .args(["attach", "a.img", "--background"])
            .env("EVFS_METRICS_LISTEN", &listen)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        assert!(command.status().unwrap().success());
        let get = move |uid: u32| {
            as_user(uid, move || {
                let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
                Some(exchange(stream, GET))
            })
        };
        wait_until("root is served", || {
            get(0).is_some_and(|answer| answer.contains("evfs_service_up"))
        });
        assert_eq!(get(NOBODY).as_deref(), Some(""));
        wait_until("the log has the refusal", || {
            let said = fs::read_to_string(s.path("log")).unwrap();
            said.contains("EVFS-0902") && said.contains("user 65534")
        });
        s.detach("a");
    }
}

mod needs_peer {
    use super::*;

    #[test]
    fn promtool_accepts_the_metrics_and_the_rules() {
        let promtool = tests::installed("promtool");
        let rules = root().join("dist/prometheus/evfs.rules.yml");
        let mut check = std::process::Command::new(&promtool);
        Ran::of(check.args(["check", "rules"]).arg(rules)).ok();
        let s = Sandbox::new();
        s.volume("a.img", "32M", &[]);
        with_metrics(&s, "m.sock", &["attach", "a.img", "--background"]);
        serve_cell(&s, "m.sock");
        let metrics = scrape(&s.path("run/m.sock"), "evfs_service_up{volume=\"cell\"} 1");
        let mut check = std::process::Command::new(&promtool);
        Ran::with_input(check.args(["check", "metrics"]), metrics.as_bytes()).ok();
        s.detach("a");
        s.detach("cell");
    }
}
