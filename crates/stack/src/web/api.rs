//! The data of the page, as JSON: answers of the services to the control requests that the commands
//! send as well. A service that does not answer delays the others by the time limit at most.

use crate::control::{
    self, CacheRequest, CellRequest, ControlRequest, FsRequest, LunRequest, send_query_within,
    silent_status,
};
use crate::{Error, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time limit for each answer of a service.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// Collects the status and the counters of all services, and the caches of their processes.
pub(super) fn overview(run_dir: &Path) -> Value {
    let answers = concurrently(control::names(run_dir), |name| counted(run_dir, name));
    let mut volumes = Vec::new();
    for (name, answer) in answers {
        match answer {
            Ok(status) => volumes.push(status),
            // It has ended since, or was killed.
            Err(Error::NotFound(_)) => {}
            Err(error) => volumes.push(silent_status(&name, &error)),
        }
    }
    let caches = caches(run_dir, &volumes);
    json!({
        "version": crate::VERSION,
        "time_ms": now_ms(),
        "volumes": volumes,
        "caches": caches,
    })
}

/// Collects everything about one service.
pub(super) fn service(run_dir: &Path, name: &str) -> Value {
    let status = match counted(run_dir, name) {
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
    for (key, request) in requests {
        let answer = ask(run_dir, name, &request);
        shown[key] = answer.unwrap_or_else(|error| json!({ "error": error.chain() }));
    }
    shown
}

/// Reads the status of a service, with its counters as `stats`; null while it is detached.
fn counted(run_dir: &Path, name: &str) -> Result<Value> {
    let mut status = ask(run_dir, name, &ControlRequest::Status)?;
    let stats = ask(run_dir, name, &ControlRequest::Stats);
    status["stats"] = stats.unwrap_or(Value::Null);
    Ok(status)
}

/// Reads the cache of each process that has one, with the names of its services.
fn caches(run_dir: &Path, volumes: &[Value]) -> Vec<Value> {
    let mut by_process: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for volume in volumes.iter().filter(|volume| volume["cached"] == true) {
        if let (Some(pid), Some(name)) = (volume["pid"].as_u64(), volume["name"].as_str()) {
            by_process.entry(pid).or_default().push(name);
        }
    }
    let first = by_process.values().filter_map(|names| names.first());
    let first = first.map(|name| (*name).to_owned()).collect();
    let request = ControlRequest::Cache(CacheRequest::Show { files: false });
    let answers = concurrently(first, |name| ask(run_dir, name, &request));
    let with_services = |(_, answer): (String, Result<Value>)| {
        let mut cache = answer.ok()?;
        let pid = cache["pid"].as_u64()?;
        cache["services"] = json!(by_process.get(&pid)?);
        Some(cache)
    };
    answers.into_iter().filter_map(with_services).collect()
}

fn ask(run_dir: &Path, name: &str, request: &ControlRequest) -> Result<Value> {
    send_query_within(run_dir, name, request, ANSWER_TIME)
}

/// Calls a function for each name on a thread of its own.
fn concurrently<T: Send>(names: Vec<String>, get: impl Fn(&str) -> T + Sync) -> Vec<(String, T)> {
    let get = &get;
    std::thread::scope(|scope| {
        let start = |name: String| scope.spawn(move || (get(&name), name));
        let started: Vec<_> = names.into_iter().map(start).collect();
        let answers = started.into_iter().filter_map(|thread| thread.join().ok());
        answers.map(|(answer, name)| (name, answer)).collect()
    })
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
