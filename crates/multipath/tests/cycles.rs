//! Paths are lost and restored hundreds of times, under a load that verifies every byte.

mod common;

use common::*;
use multipath::PathState;
use std::sync::Arc;
use std::time::Instant;
use tempfile::TempDir;

const CYCLES: usize = 500;
/// Number of cycles between kills of the server itself.
const KILL_EVERY: usize = 25;

#[test]
fn five_hundred_times_a_path_is_lost_and_no_byte_is() {
    let dir = TempDir::new().unwrap();
    let mut servers = [0, 1].map(|port| Server::new(dir.path(), "disk", port, WWID));
    let sims = [proxy(&servers[0]), proxy(&servers[1])];
    let paths = sims.iter().map(through).collect();
    let lun = Arc::new(open(paths, |a| {
        a.quiesce_secs = 1;
        a.flap_penalty_secs = 0;
    }));
    let began = Instant::now();
    let loads = [1, 2].map(|writer| {
        let blocks = writer * 1300..writer * 1300 + 1200;
        Load::on(Arc::clone(&lun) as _, blocks, writer)
    });
    let carried = |path: usize| {
        let path = &lun.status().paths[path];
        path.reads + path.writes
    };
    for cycle in 0..CYCLES {
        let path = cycle % 2;
        let before = carried(path);
        // A path that never carried I/O has nothing to lose.
        until("it carries I/O", || carried(path) > before);
        let killed = cycle % KILL_EVERY == KILL_EVERY - 1;
        if killed {
            servers[path].kill();
        } else {
            sims[path].run("refuse").unwrap();
            sims[path].run("rst").unwrap();
        }
        until("it failed", || states(&lun)[path] == PathState::Failed);
        let other = carried(1 - path);
        until("the other carries on", || carried(1 - path) > other);
        if killed {
            servers[path].start();
        } else {
            sims[path].run("pass").unwrap();
        }
        until("it is back", || states(&lun)[path] == PathState::Active);
    }
    let requests: u64 = loads.map(Load::end).iter().sum();
    let took = began.elapsed();
    println!("{CYCLES} cycles and {requests} requests in {took:?}");
    assert!(requests > 10 * CYCLES as u64, "{requests}");
    let lost: u64 = lun.status().paths.iter().map(|p| p.offline_events).sum();
    assert!(lost >= CYCLES as u64, "{lost}");
}
