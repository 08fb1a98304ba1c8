//! The web page: access to its server, and its data.

use serde_json::Value;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;
use tests::targets::free_port;
use tests::web::{exchange, invitation, with_web};
use tests::{NOBODY, Ran, Random, Sandbox, as_user, needs_root, wait_until};

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let limit = Some(Duration::from_secs(60));
    stream.set_read_timeout(limit).unwrap();
    stream
}

/// Sends a request with these headers, which end with a line break each, and a body.
fn send(port: u16, line: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    let text = format!(
        "{line} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    exchange(connect(port), text.as_bytes())
}

fn status(answer: &str) -> &str {
    answer
        .get(9..12)
        .unwrap_or_else(|| panic!("no status: {answer}"))
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

/// Returns the token in the address of the page.
fn token(s: &Sandbox) -> String {
    let url = invitation(s)["url"].as_str().unwrap().to_owned();
    url.split_once("/login#").unwrap().1.to_owned()
}

/// Logs in, and returns the header with the cookie.
fn log_in(s: &Sandbox, port: u16) -> String {
    let answer = send(port, "POST /login", "", &token(s));
    assert_eq!(status(&answer), "200", "{answer}");
    let set = answer.lines().find_map(|l| l.strip_prefix("Set-Cookie: "));
    let cookie = set.unwrap().split(';').next().unwrap();
    format!("Cookie: {cookie}\r\n")
}

#[test]
fn the_browser_of_the_desktop_gets_a_private_file_and_no_token_in_its_arguments() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let port = free_port();
    with_web(&s, &format!("127.0.0.1:{port}"), &["attach", "a.img"]);
    invitation(&s);
    fs::create_dir(s.path("bin")).unwrap();
    let browser = s.path("bin/xdg-open");
    let script = "#!/bin/sh\nwhile read -r line; do echo \"$line\"; done < \"$1\" > shown\necho \"$*\" > arguments\n";
    fs::write(&browser, script).unwrap();
    fs::set_permissions(&browser, fs::Permissions::from_mode(0o755)).unwrap();
    let open = |path: &str| {
        let mut command = s.evfs();
        Ran::of(command.args(["web", "--open"]).env("PATH", s.path(path)))
    };
    let ran = open("bin").ok();
    let token = token(&s);
    let file = s.path("run/.web.login.html");
    let arguments = fs::read_to_string(s.path("arguments")).unwrap();
    assert_eq!(arguments.trim_end(), file.display().to_string());
    assert!(!arguments.contains(&token) && !ran.stdout.contains(&token));
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let shown = fs::read_to_string(s.path("shown")).unwrap();
    let address = format!("url=http://127.0.0.1:{port}/login#{token}\"");
    assert!(shown.contains(&address), "{shown}");
    // It is removed with the token, and with the server.
    log_in(&s, port);
    assert!(!file.exists());
    open("bin").ok();
    assert!(file.exists());
    s.detach("a");
    wait_until("the file is removed", || !file.exists());
}

#[test]
fn without_a_program_to_open_the_page_the_error_says_what_to_do() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    with_web(&s, "web.sock", &["attach", "a.img"]);
    invitation(&s);
    let open = |more: &[&str]| {
        let mut command = s.evfs();
        let command = command.args(["web", "--open"]).args(more);
        Ran::of(command.env("PATH", s.path("run")))
    };
    let ran = open(&[]).code(2);
    assert!(ran.stderr.contains("--port"), "{}", ran.stderr);
    let ran = open(&["--port", "8000"]).code(1);
    let words = ["xdg-open", ".web.login.html", "manually"];
    let said = |word: &&str| ran.stderr.contains(word);
    assert!(words.iter().all(said), "{}", ran.stderr);
    s.detach("a");
}

#[test]
fn a_browser_needs_a_token_that_works_once() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let port = free_port();
    let log = fs::File::create(s.path("log")).unwrap();
    let mut command = s.evfs();
    command.args(["--log", "trace", "attach", "a.img", "--background"]);
    command.env("EVFS_WEB_LISTEN", format!("127.0.0.1:{port}"));
    let started = command.stdin(Stdio::null()).stdout(Stdio::null());
    assert!(started.stderr(log).status().unwrap().success());
    let page = invitation(&s);
    assert_eq!(page["address"], format!("127.0.0.1:{port}"), "{page}");
    let mode = fs::metadata(s.path("run/.web.token")).unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    for (line, expected) in [
        ("GET /", "403"),
        ("GET /main.js", "403"),
        ("GET /api/overview", "403"),
        ("GET /api/service/a", "403"),
        ("HEAD /", "403"),
        ("GET /login", "200"),
        ("GET /style.css", "200"),
        ("GET /metrics", "404"),
        ("GET /../../etc/passwd", "404"),
        ("POST /", "405"),
        ("POST /api/overview", "405"),
        ("PUT /login", "405"),
        ("DELETE /api/service/a", "405"),
    ] {
        let answer = send(port, line, "", "");
        assert_eq!(status(&answer), expected, "{line}: {answer}");
        assert!(!answer.contains("a.img"), "{line}: {answer}");
    }
    let token = token(&s);
    let wrong = "0".repeat(64);
    assert_eq!(status(&send(port, "POST /login", "", &wrong)), "403");
    let foreign = "Origin: http://evil.example\r\n";
    assert_eq!(status(&send(port, "POST /login", foreign, &token)), "403");
    let cookie = log_in(&s, port);
    assert_eq!(status(&send(port, "POST /login", "", &token)), "403");
    let overview = send(port, "GET /api/overview", &cookie, "");
    assert_eq!(status(&overview), "200", "{overview}");
    let page = send(port, "GET /", &cookie, "");
    assert!(page.contains("<main"), "{page}");
    let log = fs::read_to_string(s.path("log")).unwrap();
    assert!(!log.contains(&token), "{log}");
    assert!(!log.contains(cookie.split_once('=').unwrap().1.trim_end()));
    s.detach("a");
    wait_until("the token is removed", || {
        !s.path("run/.web.token").exists()
    });
}

#[test]
fn a_page_that_was_led_here_by_another_name_is_refused() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let port = free_port();
    with_web(&s, &format!("127.0.0.1:{port}"), &["attach", "a.img"]);
    let cookie = log_in(&s, port);
    let get = |host: &str| {
        let text = format!("GET /api/overview HTTP/1.1\r\n{host}{cookie}\r\n");
        exchange(connect(port), text.as_bytes())
    };
    assert_eq!(status(&get(&format!("Host: 127.0.0.1:{port}\r\n"))), "200");
    for host in [
        "",
        "Host: evil.example\r\n",
        "Host: evil.example:80\r\n",
        "Host: 127.0.0.1.evil.example\r\n",
        "Host: 192.0.2.1\r\n",
    ] {
        let answer = get(host);
        assert_eq!(status(&answer), "421", "{host}: {answer}");
        assert!(!answer.contains("a.img"), "{answer}");
    }
    s.detach("a");
}

#[test]
fn every_answer_forbids_scripts_of_others_storing_and_embedding() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let port = free_port();
    with_web(&s, &format!("127.0.0.1:{port}"), &["attach", "a.img"]);
    let cookie = log_in(&s, port);
    for (line, headers) in [
        ("GET /", &*cookie),
        ("GET /", ""),
        ("GET /main.js", &*cookie),
        ("GET /api/overview", &*cookie),
        ("GET /nothing", ""),
        ("POST /", ""),
        ("nonsense", ""),
    ] {
        let answer = send(port, line, headers, "");
        for header in [
            "Content-Security-Policy: default-src 'self';",
            "frame-ancestors 'none'",
            "X-Content-Type-Options: nosniff\r\n",
            "Cache-Control: no-store\r\n",
            "X-Frame-Options: DENY\r\n",
            "Cross-Origin-Resource-Policy: same-origin\r\n",
        ] {
            assert!(answer.contains(header), "{line}, {header}: {answer}");
        }
        assert!(!answer.contains("Access-Control"), "{answer}");
        assert!(!answer.contains("unsafe-"), "{answer}");
    }
    s.detach("a");
}

#[test]
fn the_data_is_that_of_the_commands() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let port = free_port();
    with_web(&s, &format!("127.0.0.1:{port}"), &["attach", "a.img"]);
    let at = s.path("run/a.nbd");
    let mut client = nbd_client::Client::connect(&at, "a").unwrap();
    client.write_at(4096, &[7; 8192]).unwrap();
    client.flush().unwrap();
    let cookie = log_in(&s, port);
    let get = |path: &str| -> Value {
        let answer = send(port, &format!("GET {path}"), &cookie, "");
        serde_json::from_str(body(&answer)).unwrap_or_else(|e| panic!("{e}: {answer}"))
    };
    let overview = get("/api/overview");
    let mut shown = overview["volumes"][0].clone();
    let stats = shown.as_object_mut().unwrap().remove("stats").unwrap();
    assert_eq!(stats["write"]["bytes"], 8192, "{stats}");
    let mut status = s.json(&["status", "a"])["volumes"][0].clone();
    // These change from one moment to the next.
    for value in [&mut shown, &mut status] {
        value["uptime_seconds"] = Value::Null;
        value["write_back"]["oldest_dirty_ms"] = Value::Null;
    }
    assert_eq!(shown, status);
    assert_eq!(overview["caches"][0]["services"][0], "a", "{overview}");
    let service = get("/api/service/a");
    assert_eq!(service["volume"]["name"], "a", "{service}");
    assert!(service["lun"].is_null() && service["cell"].is_null());
    let missing = send(port, "GET /api/service/b", &cookie, "");
    assert!(missing.starts_with("HTTP/1.1 404 "), "{missing}");
    s.detach("a");
}

#[test]
fn slow_clients_do_not_keep_others_out() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let port = free_port();
    with_web(&s, &format!("127.0.0.1:{port}"), &["attach", "a.img"]);
    let cookie = log_in(&s, port);
    let mut slow: Vec<TcpStream> = Vec::new();
    for number in 0..60 {
        let mut stream = connect(port);
        if number % 2 == 0 {
            stream.write_all(b"GET / HTTP/1.1\r\nX: ").unwrap();
        }
        slow.push(stream);
    }
    for _ in 0..10 {
        wait_until("the page is served", || {
            let answer = send(port, "GET /api/overview", &cookie, "");
            answer.starts_with("HTTP/1.1 200 ")
        });
    }
    drop(slow);
    s.detach("a");
}

#[test]
fn garbage_never_ends_the_server() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let port = free_port();
    let pid = with_web(&s, &format!("127.0.0.1:{port}"), &["attach", "a.img"])["pid"].clone();
    let cookie = log_in(&s, port);
    for garbage in [
        &b"\0\xff\x16\x03\x01\r\n\r\n"[..],
        b"\r\n\r\n",
        b"GET",
        b"GET / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST /login HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n",
        b"POST /login HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: [\r\nCookie: =;=;==\r\n\r\n",
        b"GET /api/service/%2e%2e HTTP/1.1\r\nHost: localhost\r\n\r\n",
        &[b'G'; 20_000],
    ] {
        let mut stream = connect(port);
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let answer = exchange(stream, b"");
        assert!(!answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    let random = &mut Random::from_environment();
    let whole = format!(
        "POST /login?x HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{cookie}Content-Length: 5\r\n\r\nhello"
    );
    for _ in 0..300 {
        let mut bytes = whole.clone().into_bytes();
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.below(256) as u8;
        }
        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
        let mut stream = connect(port);
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        exchange(stream, b"");
    }
    let overview = send(port, "GET /api/overview", &cookie, "");
    let overview: Value = serde_json::from_str(body(&overview)).unwrap();
    assert_eq!(overview["volumes"][0]["pid"], pid);
    s.detach("a");
}

#[test]
fn one_process_serves_all_and_another_takes_its_place_with_another_token() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    s.volume("b.img", "32M", &[]);
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let first = with_web(&s, &listen, &["attach", "a.img"])["pid"].clone();
    let cookie = log_in(&s, port);
    let second = with_web(&s, &listen, &["attach", "b.img"])["pid"].clone();
    wait_until("both are shown", || {
        let answer = send(port, "GET /api/overview", &cookie, "");
        let overview: Value = serde_json::from_str(body(&answer)).unwrap_or_default();
        overview["volumes"]
            .as_array()
            .is_some_and(|all| all.len() == 2)
    });
    assert_eq!(invitation(&s)["pid"], first);
    let old = token(&s);
    tests::signal(first.as_i64().unwrap() as i32, libc::SIGKILL);
    wait_until("the other process serves it", || {
        invitation(&s)["pid"] == second
    });
    assert_eq!(status(&send(port, "GET /", &cookie, "")), "403");
    assert_eq!(status(&send(port, "POST /login", "", &old)), "403");
    let overview = send(port, "GET /api/overview", &log_in(&s, port), "");
    assert_eq!(status(&overview), "200", "{overview}");
    s.detach("b");
}

#[test]
fn a_socket_serves_the_page_and_the_metrics_for_a_forwarded_port() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let mut command = s.evfs();
    command
        .args(["attach", "a.img", "--background"])
        .env("EVFS_WEB_LISTEN", "w.sock")
        .env("EVFS_METRICS_LISTEN", "w.sock");
    Ran::of(&mut command).ok();
    let page = invitation(&s);
    let socket = s.path("run/w.sock");
    assert_eq!(page["socket"], socket.to_str().unwrap(), "{page}");
    let ran = s.run(&["web"]).ok();
    assert!(ran.stderr.contains("ssh -L 9465:"), "{}", ran.stderr);
    let url = s.run(&["web", "--port", "8000"]).ok().stdout;
    let token = url.trim().strip_prefix("http://127.0.0.1:8000/login#");
    let token = token.unwrap();
    let request = |line: &str, more: &str| {
        let stream = UnixStream::connect(&socket).unwrap();
        let text = format!("{line} HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n{more}");
        exchange(stream, text.as_bytes())
    };
    let more = format!("Content-Length: {}\r\n\r\n{token}", token.len());
    let answer = request("POST /login", &more);
    assert!(answer.contains("\r\nSet-Cookie: evfs-8000="), "{answer}");
    let metrics = request("GET /metrics", "\r\n");
    assert!(metrics.contains("evfs_service_up"), "{metrics}");
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    s.detach("a");
}

#[test]
fn without_an_address_there_is_no_page_and_the_command_says_why() {
    let s = Sandbox::new();
    let ran = s.run(&["web"]).code(10);
    assert!(
        ran.stderr.contains("`web.listen` is empty"),
        "{}",
        ran.stderr
    );
    let mut command = s.evfs();
    command.env("EVFS_WEB_LISTEN", "127.0.0.1:9465").arg("web");
    let ran = Ran::of(&mut command).code(10);
    assert!(ran.stderr.contains("no service runs"), "{}", ran.stderr);
    s.volume("a.img", "32M", &[]);
    s.attach(&["a.img"]);
    s.run(&["web"]).code(10);
    assert!(!s.path("run/.web.token").exists());
    s.detach("a");
    // As a killed process leaves it.
    fs::write(s.path("run/.web.token"), "{}").unwrap();
    s.run(&["web"]).code(10);
    assert!(!s.path("run/.web.token").exists());
    for refused in ["0.0.0.0:9465", "127.0.0.1:80", "/tmp/w.sock"] {
        let mut command = s.evfs();
        command.env("EVFS_WEB_LISTEN", refused).arg("status");
        let ran = Ran::of(&mut command).code(2);
        assert!(ran.stderr.contains("web.listen"), "{}", ran.stderr);
    }
}

mod needs_root {
    use super::*;

    #[test]
    fn the_page_is_refused_to_other_users() {
        needs_root("to connect as another user");
        let s = Sandbox::new();
        s.volume("a.img", "32M", &[]);
        let port = free_port();
        with_web(&s, &format!("127.0.0.1:{port}"), &["attach", "a.img"]);
        invitation(&s);
        let get = |uid: u32| as_user(uid, move || send(port, "GET /login", "", ""));
        assert_eq!(status(&get(0)), "200");
        assert_eq!(get(NOBODY), "");
        s.detach("a");
    }
}
