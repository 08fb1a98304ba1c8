//! A client of etcd's HTTP/JSON gateway (`/v3/...`, etcd 3.4 and later).
//!
//! The gateway writes 64-bit numbers as strings, bytes in base64, and leaves out fields that are
//! zero or false.

use crate::members::Members;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use retry::Deadline;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

/// Longest answer that is read, in bytes: 100,000 records of ordinary length.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Limit for the connection to a member, and for the resolution of its name before that.
const CONNECT_WITHIN: Duration = Duration::from_millis(500);
/// Why etcd did not carry out a request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address is unusable.
    #[error("{0}")]
    Config(String),
    /// No member answered.
    #[error("no member of etcd answers: {0}")]
    Silent(String),
    /// It refused the request.
    #[error("etcd refuses the request: {0}")]
    Refused(String),
    /// Its answer has another structure.
    #[error("etcd answers something else than expected: {0}")]
    Answer(String),
}

/// Addresses and certificates of the members.
#[derive(Debug, Clone, Default)]
pub struct Endpoints {
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    pub urls: Vec<String>,
    /// Certificates of the authority that signed those of the members, PEM.
    pub ca: Option<PathBuf>,
    /// Certificate of this client, and its private key, PEM.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    pub key: String,
    pub value: Vec<u8>,
    /// Revision of the last change of this key.
    pub revision: u64,
    /// Lease that keeps the key; 0 for none.
    pub lease: u64,
}

/// A condition of a transaction.
#[derive(Debug, Clone)]
pub enum Compare {
    /// The last change of the key has this revision; 0: there is no such key.
    Revision(String, u64),
    /// The key has this lease.
    Lease(String, u64),
    /// The key does not exist, or does not have this lease.
    NotLease(String, u64),
}

/// A change of a transaction.
#[derive(Debug, Clone)]
pub enum Change {
    /// Store a value, which a lease keeps; 0 for none.
    Put(String, Vec<u8>, u64),
    /// Remove a key.
    Delete(String),
}

/// The result of a transaction.
#[derive(Debug)]
pub struct Outcome {
    /// All conditions held, and the changes were made.
    pub succeeded: bool,
    /// Revision of the store after it.
    pub revision: u64,
    /// Otherwise, the key that was asked for, if it exists.
    pub found: Option<Pair>,
}

/// A change that a watch reports.
#[derive(Debug, Clone)]
pub enum Event {
    Put(Pair),
    Deleted { key: String, revision: u64 },
}

/// A client of all members of a cluster. A renewal probes a member that did not answer.
pub struct Etcd {
    urls: Vec<String>,
    members: Members,
    agent: Agent,
}

impl Etcd {
    /// Creates a client. Does not connect.
    ///
    /// # Errors
    /// An address is no URL, a file cannot be read, or `https` is used without an authority.
    pub fn new(endpoints: &Endpoints) -> Result<Etcd, Error> {
        let wrong = |why: String| Err(Error::Config(why));
        if endpoints.urls.is_empty() {
            return wrong("no address of etcd is configured; set cluster.etcd".into());
        }
        let mut urls = Vec::new();
        let mut is_tls = false;
        for text in &endpoints.urls {
            match url::Url::parse(text) {
                Ok(url) if !url.username().is_empty() || url.password().is_some() => {
                    let host = url.host_str().unwrap_or_default();
                    return wrong(format!(
                        "the address of {host} has a user; use certificates"
                    ));
                }
                Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => {
                    is_tls |= url.scheme() == "https";
                    urls.push(text.trim_end_matches('/').to_owned());
                }
                _ => return wrong(format!("{text} is not of the form http://HOST:PORT")),
            }
        }
        if is_tls && endpoints.ca.is_none() {
            return wrong(
                "https needs the certificate of the authority; set cluster.tls-ca".into(),
            );
        }
        if !is_tls && (endpoints.ca.is_some() || endpoints.client.is_some()) {
            return wrong("certificates need https:// in cluster.etcd".into());
        }
        let tls = tls(endpoints)?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_resolve(Some(CONNECT_WITHIN))
            .timeout_connect(Some(CONNECT_WITHIN))
            .max_idle_connections_per_host(16)
            .proxy(None)
            .tls_config(tls)
            .build();
        Ok(Etcd {
            members: Members::new(urls.len()),
            urls,
            agent: config.into(),
        })
    }

    /// Returns the addresses of the members.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Notes the result of a request that only a member with a leader can carry out.
    fn note(&self, member: usize, error: Option<&Error>) {
        match error {
            None | Some(Error::Refused(_)) => self.members.answered(member),
            Some(Error::Silent(_)) => self.members.is_silent(member),
            Some(Error::Config(_) | Error::Answer(_)) => {}
        }
    }

    /// Sends a request to the members in order until one answers.
    fn post(&self, path: &str, body: &Value, within: Duration) -> Result<Value, Error> {
        let deadline = Deadline::after(self.members.now(), within);
        let mut order = self.members.in_order().into_iter();
        let mut last = None;
        while let Some(member) = order.next() {
            let share = deadline.share(self.members.now(), order.len() == 0);
            if share.is_zero() {
                break;
            }
            let answer = self.post_to(member, path, body, share);
            self.note(member, answer.as_ref().err());
            match answer {
                Ok(answer) => {
                    self.members.prefer(member);
                    return Ok(answer);
                }
                Err(Error::Silent(why)) => last = Some(why),
                Err(other) => return Err(other),
            }
        }
        Err(Error::Silent(last.unwrap_or_default()))
    }

    fn post_to(
        &self,
        member: usize,
        path: &str,
        body: &Value,
        within: Duration,
    ) -> Result<Value, Error> {
        let url = &self.urls[member];
        let silent = |why: ureq::Error| Error::Silent(format!("{url}: {why}"));
        let request = self.agent.post(format!("{url}{path}"));
        let request = request.config().timeout_global(Some(within)).build();
        let mut response = request
            .header("content-type", "application/json")
            .send(body.to_string().as_bytes())
            .map_err(silent)?;
        let status = response.status();
        let answer = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let answer = answer.read_to_vec().map_err(silent)?;
        let text = || String::from_utf8_lossy(&answer[..answer.len().min(300)]).into_owned();
        if !status.is_success() {
            let why = format!("{url}: {status}: {}", text());
            // 503: no leader at present. Another member may know one.
            return Err(match status.as_u16() {
                500..=599 => Error::Silent(why),
                _ => Error::Refused(why),
            });
        }
        serde_json::from_slice(&answer)
            .map_err(|e| Error::Answer(format!("{url}: {e}: {}", text())))
    }

    /// Grants a lease. Returns its number, and the time that it was given.
    ///
    /// # Errors
    /// No member answers, or etcd refuses.
    pub fn grant(&self, ttl: Duration, within: Duration) -> Result<(u64, Duration), Error> {
        let ask = json!({"TTL": ttl.as_secs().max(1).to_string()});
        let answer = self.post("/v3/lease/grant", &ask, within)?;
        let (lease, secs) = (number(&answer["ID"]), number(&answer["TTL"]));
        if lease == 0 || secs == 0 {
            return Err(Error::Answer(answer.to_string()));
        }
        Ok((lease, Duration::from_secs(secs)))
    }

    /// Renews a lease through the next member in turn, so that one that hangs does not matter for
    /// long. Returns whether the lease exists.
    ///
    /// # Errors
    /// This member does not answer.
    pub fn renew(&self, lease: u64, within: Duration) -> Result<bool, Error> {
        let member = self.members.in_turn(true);
        let ask = json!({"ID": lease.to_string()});
        let answer = self.post_to(member, "/v3/lease/keepalive", &ask, within);
        let answer = answer.and_then(|answer| match answer.get("result") {
            Some(result) => Ok(number(&result["TTL"]) > 0),
            // A member without a leader answers with an error and the status 200.
            None => Err(Error::Silent(answer.to_string())),
        });
        self.note(member, answer.as_ref().err());
        answer
    }

    /// Ends a lease, and removes its keys.
    ///
    /// # Errors
    /// No member answers.
    pub fn revoke(&self, lease: u64, within: Duration) -> Result<(), Error> {
        let ask = json!({"ID": lease.to_string()});
        self.post("/v3/lease/revoke", &ask, within).map(drop)
    }

    /// Reads all keys that begin with `prefix`, and the revision of the store.
    ///
    /// # Errors
    /// No member answers.
    pub fn list(&self, prefix: &str, within: Duration) -> Result<(Vec<Pair>, u64), Error> {
        let ask = json!({"key": encode(prefix), "range_end": range_end(prefix)});
        let answer = self.post("/v3/kv/range", &ask, within)?;
        let revision = number(&answer["header"]["revision"]);
        Ok((pairs(&answer["kvs"])?, revision))
    }

    /// Reads one key.
    ///
    /// # Errors
    /// No member answers.
    pub fn get(&self, key: &str, within: Duration) -> Result<Option<Pair>, Error> {
        let ask = json!({"key": encode(key)});
        let answer = self.post("/v3/kv/range", &ask, within)?;
        Ok(pairs(&answer["kvs"])?.pop())
    }

    /// Makes changes if all conditions hold, and otherwise reads a key.
    ///
    /// # Errors
    /// It is unknown whether the changes were made.
    pub fn transact(
        &self,
        conditions: &[Compare],
        changes: &[Change],
        otherwise: &str,
        within: Duration,
    ) -> Result<Outcome, Error> {
        let conditions: Vec<Value> = conditions.iter().map(Compare::json).collect();
        let changes: Vec<Value> = changes.iter().map(Change::json).collect();
        let ask = json!({
            "compare": conditions,
            "success": changes,
            "failure": [{"request_range": {"key": encode(otherwise)}}],
        });
        // Sent once only: a repetition would fail if the first was carried out.
        let member = self.members.in_order()[0];
        let answer = self.post_to(member, "/v3/kv/txn", &ask, within);
        self.note(member, answer.as_ref().err());
        let answer = answer?;
        let succeeded = answer["succeeded"] == true;
        let found = match &answer["responses"][0]["response_range"] {
            Value::Object(range) if !succeeded => match range.get("kvs") {
                Some(list) => pairs(list)?.pop(),
                None => None,
            },
            _ => None,
        };
        Ok(Outcome {
            succeeded,
            revision: number(&answer["header"]["revision"]),
            found,
        })
    }

    /// Passes changes of keys that begin with `prefix` on, from `revision` on, until the member
    /// ends the stream or `within` is over. Asks the members in turn, so that one that is cut off
    /// hides changes for a limited time only: it opens streams all the same.
    ///
    /// # Errors
    /// The stream cannot be opened; [`Error::Refused`]: changes from that revision on are no longer
    /// stored.
    pub fn watch(
        &self,
        prefix: &str,
        revision: u64,
        within: Duration,
        each: &mut dyn FnMut(Event) -> bool,
    ) -> Result<(), Error> {
        let member = self.members.in_turn(false);
        let url = &self.urls[member];
        let silent = |why: String| Error::Silent(format!("{url}: {why}"));
        let create = json!({"create_request": {
            "key": encode(prefix),
            "range_end": range_end(prefix),
            "start_revision": revision.to_string(),
        }});
        let request = self.agent.post(format!("{url}/v3/watch"));
        let request = request
            .config()
            .timeout_recv_response(Some(within))
            .timeout_recv_body(Some(within))
            .build();
        let opened = request
            .header("content-type", "application/json")
            .send(create.to_string().as_bytes());
        let opened = match opened {
            Ok(response) if response.status().is_success() => Ok(response),
            Ok(response) => Err(silent(response.status().to_string())),
            Err(error) => Err(silent(error.to_string())),
        };
        let response = opened.inspect_err(|error| self.note(member, Some(error)))?;
        let mut lines = BufReader::new(response.into_body().into_reader());
        let mut line = Vec::new();
        loop {
            line.clear();
            let mut limited = (&mut lines).take(ANSWER_BYTES_MAX);
            match limited.read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => {}
            }
            let answer: Value = serde_json::from_slice(&line)
                .map_err(|e| Error::Answer(format!("{url}: watch: {e}")))?;
            let result = &answer["result"];
            if result["canceled"] == true {
                let why = format!("{url}: the watch was cancelled: {result}");
                return Err(Error::Refused(why));
            }
            for event in result["events"].as_array().into_iter().flatten() {
                let Some(pair) = pair(&event["kv"])? else {
                    continue;
                };
                let event = match event["type"].as_str() {
                    Some("DELETE") => Event::Deleted {
                        key: pair.key,
                        revision: pair.revision,
                    },
                    _ => Event::Put(pair),
                };
                if !each(event) {
                    return Ok(());
                }
            }
        }
    }

    /// Asks each member for its version. For status displays.
    pub fn versions(&self, within: Duration) -> Vec<(String, Result<String, Error>)> {
        let ask = |member: usize| {
            let answer = self.post_to(member, "/v3/maintenance/status", &json!({}), within)?;
            match answer["version"].as_str() {
                Some(version) => Ok(version.to_owned()),
                None => Err(Error::Answer(answer.to_string())),
            }
        };
        let all = 0..self.urls.len();
        all.map(|member| (self.urls[member].clone(), ask(member)))
            .collect()
    }
}

impl Compare {
    fn json(&self) -> Value {
        let lease = |key: &String, result: &str, lease: &u64| {
            json!({
                "key": encode(key), "target": "LEASE", "result": result, "lease": lease.to_string(),
            })
        };
        match self {
            Compare::Revision(key, revision) => json!({
                "key": encode(key), "target": "MOD", "result": "EQUAL",
                "mod_revision": revision.to_string(),
            }),
            Compare::Lease(key, id) => lease(key, "EQUAL", id),
            Compare::NotLease(key, id) => lease(key, "NOT_EQUAL", id),
        }
    }
}

impl Change {
    fn json(&self) -> Value {
        match self {
            Change::Put(key, value, lease) => json!({"request_put": {
                "key": encode(key), "value": BASE64.encode(value), "lease": lease.to_string(),
            }}),
            Change::Delete(key) => json!({"request_delete_range": {"key": encode(key)}}),
        }
    }
}

fn tls(endpoints: &Endpoints) -> Result<TlsConfig, Error> {
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|e| Error::Config(format!("{}: {e}", path.display())))
    };
    let certificates = |path: &PathBuf| {
        let pem = read(path)?;
        let all = ureq::tls::parse_pem(&pem).filter_map(|item| match item {
            Ok(ureq::tls::PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        });
        let all: Vec<Certificate<'static>> = all.collect();
        if all.is_empty() {
            let why = format!("{}: there is no certificate in it", path.display());
            return Err(Error::Config(why));
        }
        Ok(all)
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = TlsConfig::builder().unversioned_rustls_crypto_provider(provider);
    if let Some(path) = &endpoints.ca {
        config = config.root_certs(RootCerts::Specific(Arc::new(certificates(path)?)));
    }
    if let Some((certificate, key)) = &endpoints.client {
        let pem = read(key)?;
        let unusable = |e: ureq::Error| Error::Config(format!("{}: {e}", key.display()));
        let private = PrivateKey::from_pem(&pem).map_err(unusable)?;
        let client = ClientCert::new_with_certs(&certificates(certificate)?, private);
        config = config.client_cert(Some(client));
    }
    Ok(config.build())
}

fn encode(text: &str) -> String {
    BASE64.encode(text)
}

/// Returns the first key after all that begin with `prefix`.
fn range_end(prefix: &str) -> String {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        // The last byte of a text in UTF-8 is less than 0xc0.
        *last += 1;
    }
    BASE64.encode(end)
}

/// Reads a number, which the gateway writes as a string; 0 if it is left out.
fn number(value: &Value) -> u64 {
    let text = value.as_str().and_then(|text| text.parse().ok());
    text.or(value.as_u64()).unwrap_or(0)
}

fn pairs(list: &Value) -> Result<Vec<Pair>, Error> {
    let all = list.as_array().into_iter().flatten();
    all.filter_map(|value| pair(value).transpose()).collect()
}

/// Reads a key with its value; none if the key is not UTF-8, which no key of a cluster is.
fn pair(value: &Value) -> Result<Option<Pair>, Error> {
    let wrong = || Error::Answer(format!("a key: {value}"));
    let bytes = |name: &str| {
        let text = value[name].as_str().unwrap_or_default();
        BASE64.decode(text).map_err(|_| wrong())
    };
    let Ok(key) = String::from_utf8(bytes("key")?) else {
        return Ok(None);
    };
    Ok(Some(Pair {
        key,
        value: bytes("value")?,
        revision: number(&value["mod_revision"]),
        lease: number(&value["lease"]),
    }))
}

#[cfg(test)]
mod tests {
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
                    _ => "200 OK",
                };
                let body = r#"{"result": {"TTL": "3"}, "header": {"revision": "7"}}"#;
                let length = body.len() + 1;
                let answer =
                    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}\n");
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
            etcd.watch("a", 1, SHORT, &mut |_| true).unwrap();
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
            etcd.watch("a", 1, WITHIN, &mut |_| true).unwrap();
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
}
