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
/// Most keys in one answer.
const KEYS_MAX: usize = 10_000;
/// Most requests in a transaction: a member refuses more than 128 unless it is told otherwise.
const RANGES_MAX: usize = 100;
/// Limit for the connection to a member, and for the resolution of its name before that.
const CONNECT_WITHIN: Duration = Duration::from_millis(500);
/// Limit for the beginning of a watch.
const OPENED_WITHIN: Duration = Duration::from_secs(2);

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

/// Keys to read.
#[derive(Debug, Clone)]
pub enum Keys {
    One(String),
    /// All that begin with this.
    Prefix(String),
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
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::Silent("there was no time left".into())))
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
            // 503: no leader at present. 429: too many requests. Without a code: no etcd.
            let known: Option<Value> = serde_json::from_slice(&answer).ok();
            let is_etcd = known.is_some_and(|answer| answer.get("code").is_some());
            return Err(match status.as_u16() {
                400..=428 | 430..=499 if is_etcd => Error::Refused(why),
                _ => Error::Silent(why),
            });
        }
        serde_json::from_slice(&answer)
            .map_err(|e| Error::Silent(format!("{url} is no etcd: {e}: {}", text())))
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
        let member = self.members.next_to_renew();
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
        let mut ask = Keys::Prefix(prefix.into()).json();
        ask["limit"] = KEYS_MAX.into();
        let mut all: Vec<Pair> = Vec::new();
        let mut read_at = 0;
        let deadline = Deadline::after(self.members.now(), within);
        loop {
            let left = deadline.left(self.members.now());
            let answer = self.post("/v3/kv/range", &ask, left)?;
            if read_at == 0 {
                read_at = number(&answer["header"]["revision"]);
                ask["revision"] = read_at.to_string().into();
            }
            let page = answer["kvs"].as_array().and_then(|page| page.last());
            let last = page.and_then(|kv| kv["key"].as_str()).unwrap_or_default();
            let last = BASE64.decode(last);
            all.append(&mut pairs(&answer["kvs"])?);
            let Some(mut next) = last.ok().filter(|_| answer["more"] == true) else {
                return Ok((all, read_at));
            };
            // The first key after it.
            next.push(0);
            ask["key"] = BASE64.encode(next).into();
        }
    }

    /// Reads keys as they all were at one time, and the revision of the store at that time.
    ///
    /// # Errors
    /// No member answers.
    pub fn read(&self, keys: &[Keys], within: Duration) -> Result<(Vec<Pair>, u64), Error> {
        let mut all = Vec::new();
        let mut read_at = 0;
        let deadline = Deadline::after(self.members.now(), within);
        for some in keys.chunks(RANGES_MAX) {
            let range = |keys: &Keys| {
                let mut range = keys.json();
                if read_at != 0 {
                    range["revision"] = read_at.to_string().into();
                }
                json!({"request_range": range})
            };
            let ranges: Vec<Value> = some.iter().map(range).collect();
            let left = deadline.left(self.members.now());
            let answer = self.post("/v3/kv/txn", &json!({"success": ranges}), left)?;
            if read_at == 0 {
                read_at = number(&answer["header"]["revision"]);
            }
            for response in answer["responses"].as_array().into_iter().flatten() {
                all.append(&mut pairs(&response["response_range"]["kvs"])?);
            }
        }
        Ok((all, read_at))
    }

    /// Reads one key.
    ///
    /// # Errors
    /// No member answers.
    pub fn get(&self, key: &str, within: Duration) -> Result<Option<Pair>, Error> {
        let ask = Keys::One(key.into()).json();
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

    /// Passes changes of keys that begin with `prefix` on, from the revision `from` on, until the
    /// member ends the stream or `within` is over, and sets `from` to the revision after the last
    /// one. Asks the members in turn, so that one that is cut off hides changes for a limited time
    /// only: it opens streams all the same.
    ///
    /// A stream has one watch: the gateway may discard what follows the first request of a body.
    ///
    /// # Errors
    /// The stream cannot be opened; [`Error::Refused`]: changes from that revision on are no longer
    /// stored.
    pub fn watch(
        &self,
        prefix: &str,
        from: &mut u64,
        within: Duration,
        each: &mut dyn FnMut(Event) -> bool,
    ) -> Result<(), Error> {
        let member = self.members.next_to_watch();
        let url = &self.urls[member];
        let silent = |why: String| Error::Silent(format!("{url}: {why}"));
        let mut watch = Keys::Prefix(prefix.into()).json();
        watch["start_revision"] = from.to_string().into();
        let create = json!({"create_request": watch});
        let request = self.agent.post(format!("{url}/v3/watch"));
        let request = request
            .config()
            .timeout_recv_response(Some(within.min(OPENED_WITHIN)))
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
            let mut last = None;
            for event in result["events"].as_array().into_iter().flatten() {
                let Some(pair) = pair(&event["kv"])? else {
                    continue;
                };
                last = Some(pair.revision);
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
            // All changes of one revision are in one answer.
            *from = last.map_or(*from, |last| last + 1);
        }
    }

    /// Asks all members for their versions at the same time, and waits at most `within`. For status
    /// displays.
    pub fn versions(&self, within: Duration) -> Vec<(String, Result<String, Error>)> {
        let ask = move |member: usize| {
            let answer = self.post_to(member, "/v3/maintenance/status", &json!({}), within)?;
            match answer["version"].as_str() {
                Some(version) => Ok(version.to_owned()),
                None => Err(Error::Answer(answer.to_string())),
            }
        };
        std::thread::scope(|scope| {
            let start = |member| scope.spawn(move || ask(member));
            let asked: Vec<_> = (0..self.urls.len()).map(start).collect();
            let lost = |_| Err(Error::Silent("a thread ended unexpectedly".into()));
            let answers = asked.into_iter().map(|one| one.join().unwrap_or_else(lost));
            self.urls.iter().cloned().zip(answers).collect()
        })
    }
}

impl Keys {
    fn json(&self) -> Value {
        match self {
            Keys::One(key) => json!({"key": encode(key)}),
            Keys::Prefix(prefix) => json!({
                "key": encode(prefix), "range_end": range_end(prefix),
            }),
        }
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

/// The first key after all that begin with `prefix`.
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
mod tests;
