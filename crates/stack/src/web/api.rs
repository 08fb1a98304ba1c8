//! The data of the page, as JSON: answers of the services to the control requests that the commands
//! send as well. All requests for one document share a deadline, so services that do not answer
//! delay it by [`ANSWER_TIME`] at most, and each other not at all.

use crate::control::{
    self, CacheRequest, CellRequest, ControlRequest, FsRequest, LunRequest, concurrently,
    send_query_until, silent_status,
};
use crate::{Error, Result, unix_time};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time limit for all answers of services that a document needs.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// Sends a request to the service with a name.
type Ask<'a> = dyn Fn(&str, &ControlRequest) -> Result<Value> + Sync + 'a;

/// Collects the status and the counters of all services, and the caches of their processes.
pub(super) fn overview(run_dir: &Path) -> Value {
    let end = Instant::now() + ANSWER_TIME;
    overview_of(control::names(run_dir), &|name, request| {
        send_query_until(run_dir, name, request, end)
    })
}

/// Collects everything about one service.
pub(super) fn service(run_dir: &Path, name: &str) -> Value {
    let end = Instant::now() + ANSWER_TIME;
    service_of(name, &|name, request| {
        send_query_until(run_dir, name, request, end)
    })
}

fn overview_of(names: Vec<String>, ask: &Ask<'_>) -> Value {
    // Processes whose cache was requested already, by another of their services.
    let asked = Mutex::new(BTreeSet::new());
    let answers = concurrently(names, |name| -> Result<(Value, Option<Value>)> {
        let status = counted(name, ask)?;
        let pid = status["pid"].as_u64().filter(|_| status["cached"] == true);
        let is_first = |pid: &u64| {
            let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.insert(*pid)
        };
        let request = ControlRequest::Cache(CacheRequest::Show { files: false });
        let cache = pid.filter(is_first).map(|_| ask(name, &request));
        Ok((status, cache.and_then(Result::ok)))
    });
    let (mut volumes, mut caches) = (Vec::new(), Vec::new());
    for (name, answer) in answers {
        match answer {
            Ok((status, cache)) => {
                volumes.push(status);
                caches.extend(cache);
            }
            // It has ended since, or was killed.
            Err(Error::NotFound(_)) => {}
            Err(error) => volumes.push(silent_status(&name, &error)),
        }
    }
    json!({
        "version": crate::VERSION,
        "time_ms": now_ms(),
        "volumes": volumes,
        "caches": with_services(caches, &volumes),
    })
}

fn service_of(name: &str, ask: &Ask<'_>) -> Value {
    let status = match counted(name, ask) {
        Ok(status) => status,
        Err(error) => {
            let silent = silent_status(name, &error);
            return json!({ "time_ms": now_ms(), "volume": silent });
        }
    };
    let has = |key: &str| status[key].is_string();
    let mut requests = Vec::new();
    if has("lun") {
        requests.push(("lun", ControlRequest::Lun(LunRequest::Show)));
    }
    if has("fileset") || has("cell") {
        requests.push(("usage", ControlRequest::Files(FsRequest::Usage)));
    }
    if has("cell") {
        let status = CellRequest::Status { clients: true };
        requests.push(("cell", ControlRequest::Cell(status)));
        requests.push(("cell_volumes", ControlRequest::Cell(CellRequest::List)));
    }
    let mut shown = json!({ "time_ms": now_ms(), "volume": status });
    // A request that waits for the device must not use up the time of the others.
    let answers = concurrently(requests, |(_, request)| ask(name, request));
    for ((key, _), answer) in answers {
        shown[key] = answer.unwrap_or_else(|error| json!({ "error": error.chain() }));
    }
    shown
}

/// Reads the status of a service, with its counters as `stats`; null while it is detached.
fn counted(name: &str, ask: &Ask<'_>) -> Result<Value> {
    let mut status = ask(name, &ControlRequest::Status)?;
    let stats = ask(name, &ControlRequest::Stats);
    status["stats"] = stats.unwrap_or(Value::Null);
    Ok(status)
}

/// Adds the names of the services of its process to each cache, and sorts them by process.
fn with_services(caches: Vec<Value>, volumes: &[Value]) -> Vec<Value> {
    let mut by_process: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for volume in volumes.iter().filter(|volume| volume["cached"] == true) {
        if let (Some(pid), Some(name)) = (volume["pid"].as_u64(), volume["name"].as_str()) {
            by_process.entry(pid).or_default().push(name);
        }
    }
    let mut shown = BTreeMap::new();
    for mut cache in caches {
        if let Some(pid) = cache["pid"].as_u64()
            && let Some(names) = by_process.get(&pid)
        {
            cache["services"] = json!(names);
            shown.insert(pid, cache);
        }
    }
    shown.into_values().collect()
}

fn now_ms() -> u64 {
    unix_time::now().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::sync::Condvar;

    #[test]
    fn a_directory_without_services_has_an_empty_overview() {
        let dir = tempfile::tempdir().unwrap();
        let overview = overview(dir.path());
        assert_eq!(overview["volumes"], json!([]));
        assert_eq!(overview["caches"], json!([]));
        assert!(overview["time_ms"].as_u64() > Some(0));
        let silent = service(dir.path(), "disk");
        assert_eq!(silent["volume"]["state"], "not answering");
    }

    /// Waits until all of `count` threads have called; returns false if they do not within a minute.
    struct Meeting {
        count: usize,
        met: Mutex<usize>,
        changed: Condvar,
    }

    impl Meeting {
        fn of(count: usize) -> Meeting {
            Meeting {
                count,
                met: Mutex::new(0),
                changed: Condvar::new(),
            }
        }

        fn join(&self) -> bool {
            let mut met = self.met.lock().unwrap();
            *met += 1;
            self.changed.notify_all();
            let limit = Duration::from_secs(60);
            let is_missing = |met: &mut usize| *met < self.count;
            let waited = self.changed.wait_timeout_while(met, limit, is_missing);
            !waited.unwrap().1.timed_out()
        }
    }

    #[test]
    fn the_requests_about_a_service_are_sent_at_the_same_time() {
        let meeting = Meeting::of(4);
        let page = service_of("disk", &|_, request| match request {
            ControlRequest::Status => Ok(json!({ "lun": "l", "cell": "c" })),
            ControlRequest::Stats => Ok(json!({})),
            _ => {
                if meeting.join() {
                    Ok(json!("met"))
                } else {
                    Err(Error::Busy("the other requests were not sent".into()))
                }
            }
        });
        for key in ["lun", "usage", "cell", "cell_volumes"] {
            assert_eq!(page[key], "met", "{key}: {page}");
        }
    }

    #[test]
    fn the_cache_of_a_process_is_read_once_and_waits_for_no_other_service() {
        let is_read = Meeting::of(2);
        let names = ["a", "b", "silent"].map(str::to_owned).to_vec();
        let overview = overview_of(names, &|name, request| match (name, request) {
            // Does not answer before the cache was read.
            ("silent", _) => {
                is_read.join();
                Err(Error::Busy("stopped".into()))
            }
            (_, ControlRequest::Cache(_)) => {
                if is_read.join() {
                    Ok(json!({ "pid": 7 }))
                } else {
                    Err(Error::Busy("it had to wait".into()))
                }
            }
            _ => Ok(json!({ "name": name, "pid": 7, "cached": true })),
        });
        let cache = json!({ "pid": 7, "services": ["a", "b"] });
        assert_eq!(overview["caches"], json!([cache]), "{overview}");
        assert_eq!(overview["volumes"][2]["state"], "not answering");
    }

    /// A service that accepts connections and does not answer.
    #[test]
    fn a_deadline_that_has_passed_ends_every_request() {
        let dir = tempfile::tempdir().unwrap();
        let _silent = UnixListener::bind(control::socket_path(dir.path(), "disk")).unwrap();
        let past = Instant::now();
        let answer = send_query_until(dir.path(), "disk", &ControlRequest::Status, past);
        assert!(matches!(answer, Err(Error::Busy(_))), "{answer:?}");
    }
}
