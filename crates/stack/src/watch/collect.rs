//! Collects readings: one request to each service for each sample, all of them concurrently.
//!
//! A service that does not answer delays no other: after a grace period the sample is complete
//! without it. Its request stays pending until the time limit of the control protocol, and no
//! second one is sent before that. A late answer is part of the next sample.

use super::difference::Interval;
use super::reading::Reading;
use super::sample::{CacheSample, Sample, ServiceSample};
use crate::control::{self, ControlRequest, WatchRequest};
use crate::paths::is_trusted;
use crate::{Error, Result, unix_time};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Files to report for each respect in which they can lead.
const FILES_MAX: usize = 16;

/// Clients of each cell to report.
const CLIENTS_MAX: usize = 64;

/// Number of samples after which paths of files are requested again, because files are renamed.
const NAMES_KEPT: u64 = 10;

/// Observer of all services of a directory.
pub struct Watcher {
    run_dir: PathBuf,
    services: BTreeMap<String, Watched>,
    samples: u64,
    answers: Receiver<Answer>,
    sender: Sender<Answer>,
}

/// An answer of the service with this name, and the time of its arrival.
struct Answer {
    name: String,
    at: Instant,
    reading: Result<Reading>,
}

/// Knowledge about a service.
#[derive(Default)]
struct Watched {
    /// Time of the request that is not answered yet.
    pending: Option<Instant>,
    /// Answer that is part of no sample yet.
    fresh: Option<(Instant, Result<Reading>)>,
    /// Reading of the last sample with one.
    last: Option<(Instant, Reading)>,
    /// Paths of files, by tree and number.
    paths: BTreeMap<(String, u64), String>,
}

impl Watcher {
    /// Creates an observer that has not sent a request yet.
    pub fn new(run_dir: &Path) -> Watcher {
        let (sender, answers) = channel();
        Watcher {
            run_dir: run_dir.to_owned(),
            services: BTreeMap::new(),
            samples: 0,
            answers,
            sender,
        }
    }

    /// Queries all services, waits at most `grace` for their answers, and compares them with those
    /// of the last sample. The first sample has no rates.
    ///
    /// # Errors
    /// The directory is not safe.
    pub fn sample(&mut self, grace: Duration) -> Result<Sample> {
        is_trusted(&self.run_dir)?;
        let names = control::names(&self.run_dir);
        while let Ok(answer) = self.answers.try_recv() {
            self.note(answer);
        }
        self.services.retain(|name, _| names.contains(name));
        for name in names {
            self.ask(name);
        }
        self.samples += 1;
        self.wait(Instant::now() + grace);
        Ok(self.compare(Instant::now()))
    }

    /// Sends a request to a service, unless one is pending.
    fn ask(&mut self, name: String) {
        let watched = self.services.entry(name.clone()).or_default();
        if watched.pending.is_some() {
            return;
        }
        let is_due = self.samples.is_multiple_of(NAMES_KEPT);
        let known = watched.paths.keys().filter(|_| !is_due);
        let request = ControlRequest::Watch(WatchRequest {
            files: FILES_MAX,
            clients: CLIENTS_MAX,
            known: known.cloned().collect(),
        });
        let (run_dir, sender) = (self.run_dir.clone(), self.sender.clone());
        let ask = move || {
            let reading = read(&run_dir, &name, &request);
            let at = Instant::now();
            // The observer may have ended.
            let _ = sender.send(Answer { name, at, reading });
        };
        let thread = std::thread::Builder::new().name("evfs-watch".into());
        match thread.spawn(ask) {
            Ok(_) => watched.pending = Some(Instant::now()),
            Err(error) => {
                let why = Error::Failed(format!("cannot start a thread: {error}"));
                watched.fresh = Some((Instant::now(), Err(why)));
            }
        }
    }

    /// Receives answers until none is pending, or until `end`.
    fn wait(&mut self, end: Instant) {
        while self.services.values().any(|s| s.pending.is_some()) {
            let left = end.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left) {
                Ok(answer) => self.note(answer),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn note(&mut self, answer: Answer) {
        // It may belong to a service that has ended since.
        if let Some(watched) = self.services.get_mut(&answer.name) {
            watched.pending = None;
            watched.fresh = Some((answer.at, answer.reading));
        }
    }

    /// Builds the sample from the answers.
    fn compare(&mut self, now: Instant) -> Sample {
        let mut sample = Sample {
            time: unix_time::now().as_secs_f64(),
            ..Sample::default()
        };
        for (name, watched) in &mut self.services {
            match watched.fresh.take() {
                Some((at, Ok(mut reading))) => {
                    watched.name_files(&mut reading);
                    watched.add_to(&mut sample, name, at, &reading);
                    watched.last = Some((at, reading));
                }
                // It has ended since, or was killed.
                Some((_, Err(Error::NotFound(_)))) => watched.last = None,
                Some((_, Err(error))) => {
                    let silent = watched.silent(name, error.chain());
                    sample.services.push(silent);
                }
                None => {
                    let since = watched.pending.unwrap_or(now);
                    let waited = now.saturating_duration_since(since).as_secs_f64();
                    let why = format!(
                        "no answer for {waited:.1} s: its process is stopped, or waits for a device"
                    );
                    sample.services.push(watched.silent(name, why));
                }
            }
        }
        sample
    }
}

impl Watched {
    /// Adds the state and the rates of a service to a sample.
    fn add_to(&self, sample: &mut Sample, name: &str, at: Instant, reading: &Reading) {
        let before = self.last.as_ref().map(|(before_at, before)| {
            let seconds = at.saturating_duration_since(*before_at).as_secs_f64();
            (before, seconds)
        });
        let interval = Interval::new(before, reading);
        sample.services.push(interval.service(name));
        sample.paths.extend(interval.paths(name));
        sample.files.extend(interval.files(name));
        sample.cells.extend(interval.cell(name));
        sample.clients.extend(interval.clients(name));
        if let Some(cache) = interval.cache() {
            add_cache(&mut sample.caches, cache, name);
        }
    }

    /// Describes a service without an answer, with its last known properties.
    fn silent(&self, name: &str, why: String) -> ServiceSample {
        let known = self.last.as_ref();
        let known = known.map(|(_, reading)| Interval::new(None, reading).service(name));
        let known = known.unwrap_or_else(|| ServiceSample {
            name: name.to_owned(),
            kind: "-",
            ..ServiceSample::default()
        });
        ServiceSample {
            state: "not answering".to_owned(),
            reasons: Vec::new(),
            error: Some(why),
            lease_ms: None,
            uptime_seconds: None,
            dirty_bytes: None,
            oldest_dirty_ms: None,
            available_bytes: None,
            filesystem_bytes: None,
            ..known
        }
    }

    /// Adds known paths to the files of a reading, and remembers those of all its files.
    fn name_files(&mut self, reading: &mut Reading) {
        let mut paths = BTreeMap::new();
        for file in &mut reading.files {
            let key = (file.tree.clone(), file.file);
            if file.path.is_none() {
                file.path = self.paths.get(&key).cloned();
            }
            if let Some(path) = &file.path {
                paths.insert(key, path.clone());
            }
        }
        self.paths = paths;
    }
}

/// Sends a request and decodes the answer.
fn read(run_dir: &Path, name: &str, request: &ControlRequest) -> Result<Reading> {
    let answer = control::send_query(run_dir, name, request)?;
    serde_json::from_value(answer).map_err(|error| {
        Error::Failed(format!(
            "cannot read the counters of `{name}`: {error}; its process runs another version, so \
             start it again"
        ))
    })
}

/// Adds the cache of a service's process. Services of one process report the same cache.
fn add_cache(caches: &mut Vec<CacheSample>, cache: CacheSample, service: &str) {
    let known = caches.iter().position(|known| known.pid == cache.pid);
    let at = known.unwrap_or_else(|| {
        caches.push(cache.clone());
        caches.len() - 1
    });
    let known = &mut caches[at];
    // A service that has just started has no earlier reading, but another one of the process may.
    if known.reads_per_second.is_none() && cache.reads_per_second.is_some() {
        let services = std::mem::take(&mut known.services);
        *known = CacheSample { services, ..cache };
    }
    known.services.push(service.to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Listener;
    use crate::watch::reading::{CacheCounters, FileCounters, IoCounters};
    use serde_json::json;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    /// A service whose answers a test writes.
    struct Fake {
        answer: Arc<Mutex<Option<Reading>>>,
        asked: Arc<Mutex<Vec<WatchRequest>>>,
        ends: Arc<AtomicBool>,
        thread: Option<std::thread::JoinHandle<()>>,
    }

    impl Fake {
        /// Starts a service; without an answer, it accepts requests and stays silent.
        fn start(run_dir: &Path, name: &str, answer: Option<Reading>) -> Fake {
            let listener = Listener::bind(run_dir, name).unwrap();
            let answer = Arc::new(Mutex::new(answer));
            let asked = Arc::new(Mutex::new(Vec::new()));
            let ends = Arc::new(AtomicBool::new(false));
            let thread = {
                let (answer, asked, ends) = (answer.clone(), asked.clone(), ends.clone());
                move || {
                    let mut waiting = Vec::new();
                    while !ends.load(Ordering::SeqCst) {
                        let Ok(Some(stream)) = listener.accept() else {
                            std::thread::sleep(Duration::from_millis(1));
                            continue;
                        };
                        let reading = answer.lock().unwrap().clone();
                        let Some(reading) = reading else {
                            waiting.push(stream);
                            continue;
                        };
                        let (request, reply) = control::PendingReply::to(stream).unwrap();
                        if let ControlRequest::Watch(request) = request {
                            asked.lock().unwrap().push(request);
                        }
                        reply.send(Ok(serde_json::to_value(reading).unwrap()));
                    }
                }
            };
            Fake {
                answer,
                asked,
                ends,
                thread: Some(std::thread::spawn(thread)),
            }
        }

        fn answers(&self, reading: Reading) {
            *self.answer.lock().unwrap() = Some(reading);
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            self.ends.store(true, Ordering::SeqCst);
            self.thread.take().unwrap().join().unwrap();
        }
    }

    fn run_dir() -> tempfile::TempDir {
        // Only its owner may write to it.
        tempfile::tempdir().unwrap()
    }

    fn reading(since: u64, reads: u64) -> Reading {
        Reading {
            status: json!({ "pid": 7, "since": since, "health": { "state": "ok" } }),
            io: vec![IoCounters {
                op: "read".into(),
                requests: reads,
                latencies: vec![(1000, reads)],
                ..IoCounters::default()
            }],
            cache: Some(CacheCounters {
                pid: 7,
                hits: reads,
                ..CacheCounters::default()
            }),
            ..Reading::default()
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn rates_appear_with_the_second_sample_and_end_with_a_restart() {
        let dir = run_dir();
        let service = Fake::start(dir.path(), "disk", Some(reading(1, 10)));
        let mut watcher = Watcher::new(dir.path());
        let first = watcher.sample(LONG).unwrap();
        assert_eq!(first.services[0].interval_seconds, None);
        service.answers(reading(1, 30));
        let second = watcher.sample(LONG).unwrap();
        let seconds = second.services[0].interval_seconds.unwrap();
        let rate = second.services[0].io["read"].requests_per_second;
        assert!((rate * seconds - 20.0).abs() < 1e-6, "{rate} {seconds}");
        service.answers(reading(2, 50));
        let third = watcher.sample(LONG).unwrap();
        assert_eq!(third.services[0].interval_seconds, None);
        assert!(third.services[0].io.is_empty());
    }

    #[test]
    fn services_come_and_go() {
        let dir = run_dir();
        let mut watcher = Watcher::new(&dir.path().join("absent"));
        assert!(watcher.sample(LONG).unwrap().services.is_empty());
        let mut watcher = Watcher::new(dir.path());
        let a = Fake::start(dir.path(), "a", Some(reading(1, 10)));
        let names = |watcher: &mut Watcher| {
            let sample = watcher.sample(LONG).unwrap();
            let names = sample.services.into_iter().map(|s| s.name);
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(&mut watcher), ["a"]);
        let b = Fake::start(dir.path(), "b", Some(reading(1, 10)));
        assert_eq!(names(&mut watcher), ["a", "b"]);
        drop(a);
        assert_eq!(names(&mut watcher), ["b"]);
        // The same name again is another run, even with larger counters.
        let _a = Fake::start(dir.path(), "a", Some(reading(2, 99)));
        let sample = watcher.sample(LONG).unwrap();
        assert_eq!(sample.services[0].interval_seconds, None);
        assert!(sample.services[1].interval_seconds.is_some());
        drop(b);
    }

    #[test]
    fn a_silent_service_delays_no_other_and_its_late_answer_counts() {
        let dir = run_dir();
        let _silent = Fake::start(dir.path(), "silent", None);
        let _works = Fake::start(dir.path(), "works", Some(reading(1, 10)));
        let mut watcher = Watcher::new(dir.path());
        let began = Instant::now();
        let sample = loop {
            let sample = watcher.sample(Duration::from_millis(50)).unwrap();
            let works = &sample.services[1];
            if works.interval_seconds.is_some() {
                break sample;
            }
            assert!(began.elapsed() < LONG, "{sample:?}");
        };
        let silent = &sample.services[0];
        assert_eq!((&*silent.state, silent.kind), ("not answering", "-"));
        assert!(silent.error.is_some(), "{silent:?}");
        // Only one request is pending at a time.
        assert!(watcher.services["silent"].pending.is_some() || began.elapsed().as_secs() >= 2);
    }

    #[test]
    fn a_process_has_one_cache_with_all_its_services() {
        let dir = run_dir();
        let a = Fake::start(dir.path(), "a", Some(reading(1, 10)));
        let mut watcher = Watcher::new(dir.path());
        watcher.sample(LONG).unwrap();
        let _b = Fake::start(dir.path(), "b", Some(reading(1, 20)));
        a.answers(reading(1, 20));
        let sample = watcher.sample(LONG).unwrap();
        assert_eq!(sample.caches.len(), 1);
        assert_eq!(sample.caches[0].services, ["a", "b"]);
        assert_eq!(sample.caches[0].hit_ratio, Some(1.0));
        // The order of the services does not matter.
        let mut caches = Vec::new();
        let new = CacheSample::default();
        let old = CacheSample {
            reads_per_second: Some(1.0),
            ..CacheSample::default()
        };
        add_cache(&mut caches, new, "a");
        add_cache(&mut caches, old, "b");
        assert_eq!(caches[0].reads_per_second, Some(1.0));
        assert_eq!(caches[0].services, ["a", "b"]);
    }

    #[test]
    fn the_path_of_a_file_is_requested_once() {
        let dir = run_dir();
        let with = |path: Option<&str>| Reading {
            files: vec![FileCounters {
                tree: "main".into(),
                file: 12,
                path: path.map(str::to_owned),
                ..FileCounters::default()
            }],
            ..reading(1, 10)
        };
        let service = Fake::start(dir.path(), "m", Some(with(Some("dir/file"))));
        let mut watcher = Watcher::new(dir.path());
        watcher.sample(LONG).unwrap();
        service.answers(with(None));
        let sample = watcher.sample(LONG).unwrap();
        assert_eq!(sample.files[0].path.as_deref(), Some("dir/file"));
        let asked = service.asked.lock().unwrap();
        assert!(asked[0].known.is_empty());
        assert_eq!(asked[1].known, [("main".to_owned(), 12)]);
    }
}
