//! The counters of a service for observers: those of its device, its LUN, its cache, its files and
//! its cell.
//!
//! **Invariant:** nothing here adds work to a request. Counters that exist anyway are read, without
//! a lock that a request takes; names of files are searched for only if the observer does not know
//! them, and only in directories that are read quickly.

use super::Tree;
use super::scrape::word_of;
use crate::cache::ProcessCache;
use crate::control::WatchRequest;
use crate::device::OpenLun;
use crate::watch::{
    CacheCounters, CellCounters, ClientCounters, FileCounters, IoCounters, PathCounters,
};
use ::cache::FileActivity;
use afs_server::{Client, ClientState, Server};
use block::StatsHandle;
use std::collections::BTreeSet;

/// Paths of files to search for in one request, at most.
const NAMES_MAX: usize = 16;

/// Entries of a directory that is searched for the name of a file, at most.
const ENTRIES_MAX: u64 = 4096;

/// Reads the counters of the device under a service.
pub(super) fn of_io(stats: &StatsHandle) -> Vec<IoCounters> {
    let all = stats.histograms().into_iter();
    all.map(|read| IoCounters {
        op: read.kind.to_string(),
        requests: read.stats.requests,
        bytes: read.stats.bytes,
        errors: read.stats.errors,
        total_ns: read.stats.total_ns,
        latencies: read.latencies,
    })
    .collect()
}

/// Reads the state and the counters of the paths of a LUN.
pub(super) fn of_lun(lun: &OpenLun) -> Vec<PathCounters> {
    let status = lun.lun().status();
    let paths = status.paths.into_iter();
    paths
        .map(|path| PathCounters {
            lun: status.name.clone(),
            path: path.name,
            state: word_of(path.state).to_owned(),
            why: path.why,
            in_flight: path.in_flight,
            waiting: status.waiting,
            reads: path.reads,
            writes: path.writes,
            bytes_read: path.bytes_read,
            bytes_written: path.bytes_written,
            errors: path.failures,
            retries: path.retried,
            losses: path.offline_events,
            latencies: path.latencies,
        })
        .collect()
}

/// Reads the counters of the cache of this process, if it has one.
pub(super) fn of_cache(cache: &ProcessCache) -> Option<CacheCounters> {
    let stats = cache.stats()?;
    let counts = &stats.counts;
    Some(CacheCounters {
        pid: std::process::id(),
        hits: counts.hits,
        misses: counts.misses,
        joins: counts.joins,
        writes: counts.writes,
        read_ahead: counts.read_ahead,
        read_ahead_wasted: counts.read_ahead_wasted,
        evicted: counts.evicted(),
        throttled_ms: counts.throttled_ms,
        used_bytes: stats.used_bytes,
        max_bytes: stats.max_bytes,
        dirty_bytes: stats.dirty_bytes,
        oldest_dirty_ms: stats.oldest_dirty_ms,
    })
}

/// Reads the counters of a cell, with at most `clients` of its clients.
pub(super) fn of_cell(server: &Server, clients: usize) -> CellCounters {
    let stats = server.stats();
    let counts = &stats.counts;
    let called = stats.called.iter();
    let called = called.map(|called| (called.procedure.to_owned(), called.calls));
    let recent = server.recent_clients(clients);
    CellCounters {
        calls: counts.calls,
        errors: counts.aborts,
        breaks: counts.breaks,
        fetched_bytes: counts.fetched_bytes,
        stored_bytes: counts.stored_bytes,
        clients: stats.clients,
        active_clients: stats.active_clients,
        promises: stats.promises,
        procedures: called.collect(),
        recent: recent.iter().map(of_client).collect(),
    }
}

fn of_client(client: &Client) -> ClientCounters {
    ClientCounters {
        address: client.address.to_string(),
        state: word_of_client(client.state).to_owned(),
        promises: client.promises,
        heard_seconds_ago: client.silent_seconds,
    }
}

/// Names the state of a client as `evfs cell status` does.
pub(super) fn word_of_client(state: ClientState) -> &'static str {
    match state {
        ClientState::Up => "up",
        ClientState::New => "new",
        ClientState::Silent => "dead",
    }
}

/// Reads the counters of the files that lead in use, dirty data or cached data, and finds the paths
/// of some that the observer does not know.
pub(super) fn of_files(trees: &[Tree], wanted: &WatchRequest) -> Vec<FileCounters> {
    let files = trees.iter().flat_map(|tree| {
        let leading = tree.pages.leading_files(wanted.files);
        leading.into_iter().map(move |file| (tree, file))
    });
    let known: BTreeSet<(&str, u64)> = wanted
        .known
        .iter()
        .map(|(tree, file)| (tree.as_str(), *file))
        .collect();
    let mut names_left = NAMES_MAX;
    let files = leading(files.collect(), wanted.files).into_iter();
    files
        .map(|(tree, file)| {
            let mut counters = of_file(tree, &file);
            let is_known = known.contains(&(tree.name.as_str(), file.file.0));
            if let Some(fileset) = tree.fileset.as_ref().filter(|_| !is_known)
                && names_left > 0
            {
                names_left -= 1;
                counters.path = fileset.path_of(file.file.0, ENTRIES_MAX);
            }
            counters
        })
        .collect()
}

fn of_file(tree: &Tree, file: &FileActivity) -> FileCounters {
    FileCounters {
        tree: tree.name.clone(),
        file: file.file.0,
        path: None,
        size: file.size,
        hits: file.counts.hits,
        misses: file.counts.misses,
        joins: file.counts.joins,
        writes: file.counts.writes,
        cached_bytes: file.cached_bytes,
        dirty_bytes: file.dirty_bytes,
        oldest_dirty_ms: file.oldest_dirty_ms,
    }
}

/// Keeps those files of several trees that lead in at least one respect, at most `count` for each,
/// the most used first.
fn leading<T>(mut files: Vec<(T, FileActivity)>, count: usize) -> Vec<(T, FileActivity)> {
    type Respect = fn(&FileActivity) -> u64;
    let respects: [Respect; 3] = [
        |file| file.dirty_bytes,
        |file| file.cached_bytes.unwrap_or(u64::MAX),
        |file| file.counts.accesses(),
    ];
    let mut bounds = [0; 3];
    for (bound, respect) in bounds.iter_mut().zip(respects) {
        let mut values: Vec<u64> = files.iter().map(|(_, file)| respect(file)).collect();
        values.sort_unstable_by(|a, b| b.cmp(a));
        let left_out = values.get(count);
        *bound = left_out.map_or(0, |value| value.saturating_add(1));
    }
    let leads = |file: &FileActivity| {
        let mut all = bounds.iter().zip(respects);
        all.any(|(bound, respect)| respect(file) >= *bound)
    };
    files.retain(|(_, file)| leads(file));
    files.sort_by_key(|(_, file)| std::cmp::Reverse(file.counts.accesses()));
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::cache::{Counts, FileId};

    fn file(number: u64, accesses: u64, cached: Option<u64>, dirty: u64) -> ((), FileActivity) {
        let file = FileActivity {
            file: FileId(number),
            size: 0,
            metadata: false,
            counts: Counts {
                hits: accesses,
                ..Counts::default()
            },
            cached_bytes: cached,
            dirty_bytes: dirty,
            oldest_dirty_ms: None,
        };
        ((), file)
    }

    #[test]
    fn files_of_all_trees_are_ranked_together() {
        let files = || {
            vec![
                file(1, 5, Some(5), 0),
                file(2, 100, Some(6), 0),
                file(3, 7, Some(900), 0),
                file(4, 1, Some(1), 40),
                file(5, 2, Some(2), 0),
            ]
        };
        let numbers = |count| -> Vec<u64> {
            let leading = leading(files(), count);
            leading.iter().map(|(_, file)| file.file.0).collect()
        };
        assert_eq!(numbers(1), [2, 3, 4]);
        assert_eq!(numbers(9), [2, 3, 1, 5, 4]);
        // A file that is too large to be counted is one of the largest.
        let large = vec![file(1, 0, None, 0), file(2, 1, Some(4), 1)];
        assert_eq!(leading(large, 1).len(), 2);
    }
}
