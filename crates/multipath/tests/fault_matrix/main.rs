//! The fault matrix: one test per kind of path failure, over real servers. The fault is injected by
//! a proxy, by the server itself, or by a signal.

#[path = "../common/mod.rs"]
mod common;

mod access;
mod answers;
mod array;
mod clock;
mod durability;
mod identity;
mod network;
mod scale;
mod scan;
mod table;

use common::*;
use multipath::{Attributes, Lun};
use pathsim::Pathsim;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Two servers of one disk, each behind a proxy.
struct Pair {
    sims: [Pathsim; 2],
    servers: [Server; 2],
    _dir: TempDir,
}

impl Pair {
    fn new() -> Pair {
        let dir = TempDir::new().unwrap();
        let servers = [0, 1].map(|port| Server::new(dir.path(), "disk", port, WWID));
        Pair {
            sims: [proxy(&servers[0]), proxy(&servers[1])],
            servers,
            _dir: dir,
        }
    }

    fn lun(&self, change: impl Fn(&mut Attributes)) -> Arc<Lun> {
        let paths = self.sims.iter().map(through).collect();
        Arc::new(open(paths, |a| {
            a.quiesce_secs = 1;
            change(a);
        }))
    }

    fn both(&self, command: &str) {
        self.sims.iter().for_each(|s| s.run(command).unwrap());
    }
}

/// Returns the number of I/Os that a path has carried.
fn carried(lun: &Lun, path: usize) -> u64 {
    let path = &lun.status().paths[path];
    path.reads + path.writes
}

/// Waits until the path has carried `more` I/Os.
fn goes_on(lun: &Lun, path: usize, more: u64) {
    let before = carried(lun, path);
    let end = Instant::now() + WITHIN;
    while carried(lun, path) < before + more {
        let status = lun.status();
        assert!(
            Instant::now() < end,
            "path {path} does not carry on: {status:#?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
