//! Tests of the client with members that a test controls.

use super::*;
use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Instant;

#[test]
fn answers_of_the_gateway_are_read_with_their_omissions() {
    let kv = json!({"key": encode("a/b"), "mod_revision": "12", "lease": "7587"});
    let read = pair(&kv).unwrap().unwrap();
    assert_eq!(
        (read.key.as_str(), read.revision, read.lease),
        ("a/b", 12, 7587)
    );
    assert!(read.value.is_empty());
    assert!(pair(&json!({"key": "not base64"})).is_err());
    assert_eq!(pair(&json!({"key": BASE64.encode([0xff])})).unwrap(), None);
    assert_eq!(range_end("/evfs/"), encode("/evfs0"));
}

#[test]
fn unusable_addresses_are_refused_with_the_setting_to_change() {
    let refused = |urls: &[&str]| {
        let urls = urls.iter().map(ToString::to_string).collect();
        let endpoints = Endpoints {
            urls,
            ..Endpoints::default()
        };
        Etcd::new(&endpoints).err().unwrap().to_string()
    };
    assert!(refused(&[]).contains("cluster.etcd"));
    assert!(refused(&["10.0.0.1:2379"]).contains("http://"));
    assert!(refused(&["https://a:2379"]).contains("cluster.tls-ca"));
    let user = refused(&["http://root:secret@a:2379"]);
    assert!(user.contains("user") && !user.contains("secret"), "{user}");
}

#[test]
fn members_that_do_not_answer_cost_the_time_of_one() {
    let listen = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = |at: &std::net::TcpListener| format!("http://{}", at.local_addr().unwrap());
    let silent: Vec<_> = (0..4).map(|_| listen()).collect();
    let member = listen();
    let mut urls: Vec<String> = silent.iter().map(url).collect();
    urls.push(url(&member));
    let endpoints = Endpoints {
        urls: urls.clone(),
        ..Endpoints::default()
    };
    let etcd = Etcd::new(&endpoints).unwrap();
    let began = std::time::Instant::now();
    let answers = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (client, _) = member.accept().unwrap();
            let mut lines = BufReader::new(&client).lines().map_while(Result::ok);
            lines
                .find(String::is_empty)
                .expect("the end of the headers");
            let body = r#"{"version":"3.5.1"}"#;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            (&client).write_all((head + body).as_bytes()).unwrap();
        });
        etcd.versions(WITHIN)
    });
    let took = began.elapsed();
    assert!((WITHIN..4 * WITHIN).contains(&took), "{took:?}");
    let found: Vec<&String> = answers.iter().map(|(url, _)| url).collect();
    assert_eq!(found, urls.iter().collect::<Vec<_>>());
    let versions = answers.iter().map(|(_, answer)| answer.as_ref().ok());
    let versions: Vec<_> = versions.map(|version| version.cloned()).collect();
    let expected = [None, None, None, None, Some("3.5.1".to_owned())];
    assert_eq!(versions, expected);
}

/// A member of etcd on the loopback interface, as far as these tests need one.
struct Fake {
    url: String,
    shared: Arc<Shared>,
    threads: Option<JoinHandle<()>>,
}

struct Shared {
    does: AtomicUsize,
    /// Requests that it got.
    requests: AtomicUsize,
    watches: AtomicUsize,
}

const ANSWERS: usize = 0;
const HANGS: usize = 1;
/// It is another server.
const IS_NO_ETCD: usize = 4;
/// It has no leader: it opens watches, and does nothing else.
const IS_CUT_OFF: usize = 2;
const ENDS: usize = 3;

impl Fake {
    fn start(does: usize) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            does: does.into(),
            requests: 0.into(),
            watches: 0.into(),
        });
        let all = Arc::clone(&shared);
        let accept = move || {
            std::thread::scope(|scope| {
                for stream in listener.incoming() {
                    if all.does.load(Relaxed) == ENDS {
                        return;
                    }
                    scope.spawn(|| all.serve(stream.unwrap()));
                }
            });
        };
        Fake {
            url,
            shared,
            threads: Some(std::thread::spawn(accept)),
        }
    }

    fn now(&self, does: usize) {
        self.shared.does.store(does, Relaxed);
    }

    fn requests(&self) -> usize {
        self.shared.requests.load(Relaxed)
    }

    fn watches(&self) -> usize {
        self.shared.watches.load(Relaxed)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.now(ENDS);
        let address = self.url.trim_start_matches("http://");
        drop(TcpStream::connect(address));
        let ended = self.threads.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|result| result.is_ok()) || std::thread::panicking());
    }
}

impl Shared {
    /// Serves the requests of one connection.
    fn serve(&self, stream: TcpStream) {
        stream.set_read_timeout(Some(SHORT)).unwrap();
        let mut lines = BufReader::new(&stream);
        while self.does.load(Relaxed) != ENDS {
            if matches!(lines.fill_buf(), Err(e) if e.kind() == ErrorKind::WouldBlock) {
                continue;
            }
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if lines.read_line(&mut head).unwrap_or(0) == 0 {
                    return;
                }
            }
            let head = head.to_lowercase();
            let length = head.split("content-length: ").nth(1).unwrap();
            let length = length.split("\r\n").next().unwrap().parse().unwrap();
            std::io::copy(&mut (&mut lines).take(length), &mut std::io::sink()).unwrap();
            let is_watch = head.contains("/v3/watch");
            self.requests.fetch_add(1, Relaxed);
            self.watches.fetch_add(usize::from(is_watch), Relaxed);
            while self.does.load(Relaxed) == HANGS {
                std::thread::sleep(SHORT);
            }
            let status = match self.does.load(Relaxed) {
                IS_CUT_OFF if !is_watch => "503 Service Unavailable",
                IS_NO_ETCD => "404 Not Found",
                _ => "200 OK",
            };
            let body = r#"{"result": {"TTL": "3"}, "header": {"revision": "7"}}"#;
            let length = body.len() + 1;
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}\n");
            if (&stream).write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

const SHORT: Duration = Duration::from_millis(10);
const WITHIN: Duration = Duration::from_millis(800);
const LONG: Duration = Duration::from_secs(60);

fn client(members: &[&Fake]) -> Etcd {
    let urls = members.iter().map(|member| member.url.clone()).collect();
    Etcd::new(&Endpoints {
        urls,
        ..Endpoints::default()
    })
    .unwrap()
}

#[test]
fn a_member_that_hangs_is_left_out_and_probed_until_it_answers() {
    let members = [HANGS, ANSWERS, ANSWERS].map(Fake::start);
    let etcd = client(&members.each_ref());
    assert_eq!(etcd.list("a", WITHIN).unwrap().1, 7, "another one answers");
    assert_eq!(members[0].requests(), 1);
    let (began, mut probes) = (Instant::now(), 0);
    while began.elapsed() < 4 * WITHIN {
        assert_eq!(etcd.list("a", WITHIN).unwrap().1, 7);
        etcd.watch("a", &mut 1, SHORT, &mut |_| true).unwrap();
        probes += usize::from(etcd.renew(1, WITHIN / 4).is_err());
        std::thread::sleep(SHORT);
    }
    // The pauses are at least 250, 500, 1000 and 2000 ms.
    assert!((1..=3).contains(&probes), "{probes} renewals failed");
    assert_eq!(members[0].requests(), 1 + probes);
    members[0].now(ANSWERS);
    let known = members[0].requests();
    while members[0].requests() < known + 10 {
        assert!(etcd.renew(1, WITHIN).unwrap());
        assert!(began.elapsed() < LONG);
        std::thread::sleep(SHORT);
    }
}

#[test]
fn a_member_without_a_leader_gets_no_watches_after_it_failed_a_renewal() {
    let members = [IS_CUT_OFF, ANSWERS].map(Fake::start);
    let etcd = client(&members.each_ref());
    let renewed = [etcd.renew(1, WITHIN), etcd.renew(1, WITHIN)];
    assert_eq!(renewed.iter().filter(|result| result.is_err()).count(), 1);
    for _ in 0..10 {
        etcd.watch("a", &mut 1, WITHIN, &mut |_| true).unwrap();
    }
    assert_eq!(
        [0, 1].map(|member: usize| members[member].watches()),
        [0, 10]
    );
}

#[test]
fn members_that_are_all_left_out_are_asked_all_the_same() {
    let members = [IS_CUT_OFF, IS_CUT_OFF].map(Fake::start);
    let etcd = client(&members.each_ref());
    for _ in 0..5 {
        let error = etcd.list("a", WITHIN).unwrap_err();
        assert!(matches!(error, Error::Silent(_)), "{error}");
    }
    assert_eq!(members.each_ref().map(Fake::requests), [5, 5]);
    members[1].now(ANSWERS);
    assert_eq!(etcd.list("a", WITHIN).unwrap().1, 7);
}

#[test]
fn a_server_that_is_no_etcd_keeps_no_request_from_the_members() {
    let members = [IS_NO_ETCD, ANSWERS].map(Fake::start);
    let etcd = client(&members.each_ref());
    for _ in 0..5 {
        assert_eq!(etcd.list("a", WITHIN).unwrap().1, 7);
        etcd.transact(&[], &[], "a", WITHIN).unwrap();
    }
    assert_eq!(members[0].requests(), 1);
}
