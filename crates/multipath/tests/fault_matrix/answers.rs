//! Responses of servers: errors, read-only exports, private caches.

use crate::common::target::Tgtd;
use crate::common::*;
use crate::goes_on;
use block::{BlockDevice, Blocking, ErrorKind};
use multipath::{Lun, PathState};
use path_iscsi::Options;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Two servers of one disk. Each returns errors while its trigger file exists.
struct Failing {
    servers: [Server; 2],
    dir: TempDir,
}

impl Failing {
    fn new(error: &str) -> Failing {
        Failing::of(error, &["error-pread-rate=100%", "error-pwrite-rate=100%"])
    }

    fn of(error: &str, rates: &[&str]) -> Failing {
        let dir = TempDir::new().unwrap();
        let servers = [0, 1].map(|port| {
            let file = format!(
                "error-file={}",
                dir.path().join(format!("on{port}")).display()
            );
            let error = format!("error={error}");
            let mut extra = vec!["--filter=error", "--", &error, &file];
            extra.extend(rates);
            Server::nbdkit(dir.path(), "disk", port, &extra)
        });
        Failing { servers, dir }
    }

    fn set(&self, port: usize, fails: bool) {
        let file = self.dir.path().join(format!("on{port}"));
        if fails {
            std::fs::write(file, "").unwrap()
        } else {
            std::fs::remove_file(file).unwrap()
        }
    }

    fn lun(&self) -> Lun {
        lun(&[&self.servers[0], &self.servers[1]], |a| {
            a.quiesce_secs = 1;
        })
    }

    fn write(&self, lun: &Lun) -> block::Result<()> {
        Blocking::open(lun).unwrap().write_at(0, &[1; BLOCK])
    }
}

mod needs_peer {
    use super::*;

    #[test]
    fn an_error_of_one_path_is_asked_of_another_and_believed_of_both() {
        let failing = Failing::new("EIO");
        let lun = Arc::new(failing.lun());
        let load = Load::start(Arc::clone(&lun) as _, 128, 20);
        goes_on(&lun, 1, 50);
        failing.set(1, true);
        until("it says so", || lun.status().paths[1].failures > 20);
        goes_on(&lun, 0, 50);
        assert_eq!(lun.status().paths[1].offline_events, 0, "no failover");
        failing.set(1, false);
        goes_on(&lun, 1, 50);
        assert!(load.end() > 100);
        failing.set(0, true);
        failing.set(1, true);
        let error = failing.write(&lun).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    }

    #[test]
    fn no_space_is_no_fault_of_a_path() {
        let failing = Failing::new("ENOSPC");
        let lun = failing.lun();
        failing.set(0, true);
        failing.set(1, true);
        let error = failing.write(&lun).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        let paths = lun.status().paths;
        assert_eq!(paths.iter().map(|p| p.retried).sum::<u64>(), 0);
    }

    #[test]
    fn a_server_that_shuts_down_or_has_no_memory_is_no_error() {
        for (error, at_least) in [("ESHUTDOWN", 1), ("ENOMEM", 4)] {
            let mut failing = Failing::new(error);
            let lun = Arc::new(failing.lun());
            lun.set("flap_penalty_secs", "0").unwrap();
            let load = Load::start(Arc::clone(&lun) as _, 128, 21);
            goes_on(&lun, 1, 50);
            failing.set(1, true);
            until("it says so", || lun.status().paths[1].failures >= at_least);
            goes_on(&lun, 0, 50);
            failing.set(1, false);
            until("it is back", || {
                // A server that crashed on a reset with requests in flight is not the subject of this
                // test.
                failing.servers[1].revive();
                states(&lun)[1] == PathState::Active
            });
            goes_on(&lun, 1, 50);
            assert!(load.end() > 100);
        }
    }

    #[test]
    fn an_error_after_the_last_attempt_says_why_that_one_failed() {
        let failing = Failing::new("ESHUTDOWN");
        let lun = failing.lun();
        lun.set("max_retries", "2").unwrap();
        lun.set("flap_penalty_secs", "0").unwrap();
        failing.set(0, true);
        failing.set(1, true);
        let error = failing.write(&lun).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        let said = error.to_string();
        let (_, reason) = said.split_once("the last one failed: ").expect(&said);
        assert!(reason.contains("error 108"), "ESHUTDOWN: {said}");
    }

    #[test]
    fn a_path_that_takes_connections_and_no_writes_is_left_alone_longer_each_time() {
        // The view of a fenced client of a storage cluster: all is well until it writes.
        for error in ["ESHUTDOWN", "EIO"] {
            let mut failing = Failing::of(error, &["error-pwrite-rate=100%"]);
            let lun = Arc::new(failing.lun());
            // One thread's connection stays up while that of another is lost.
            let loads =
                [0, 1].map(|n| Load::on(Arc::clone(&lun) as _, n * 600..n * 600 + 500, 40 + n));
            goes_on(&lun, 1, 50);
            let before = lun.status();
            failing.set(1, true);
            until("the other carries on for a while", || {
                failing.servers[1].revive();
                lun.status().paths[0].writes > before.paths[0].writes + 3000
            });
            let now = lun.status();
            let made = now.paths[1].online_events - before.paths[1].online_events;
            assert!(made < 20, "{error}: connected {made} times");
            let refused = now.paths[1].failures - before.paths[1].failures;
            assert!((1..200).contains(&refused), "{error}: {refused} refused");
            failing.set(1, false);
            until("it carries I/O again", || {
                failing.servers[1].revive();
                lun.status().paths[1].writes > now.paths[1].writes + 20
            });
            for load in loads {
                assert!(load.end() > 100);
            }
        }
    }

    #[test]
    fn a_unit_attention_reaches_no_caller() {
        let tgtd = Tgtd::start();
        let paths = [0, 1].map(|portal| Arc::new(tgtd.path(portal, Options::default())) as _);
        let lun = Arc::new(open(paths.into(), |_| ()));
        let load = Load::start(Arc::clone(&lun) as _, 128, 22);
        goes_on(&lun, 1, 50);
        let second = tgtd.image.with_extension("second");
        std::fs::write(&second, vec![0; 1 << 20]).unwrap();
        // Added and removed units are reported to every session (REPORTED LUNS DATA HAS CHANGED).
        for _ in 0..5 {
            let unit = "--mode logicalunit --tid 1 --lun 2";
            tgtd.admin(&format!("--op new {unit} -b {}", second.display()));
            goes_on(&lun, 0, 20);
            tgtd.admin(&format!("--op delete {unit}"));
            goes_on(&lun, 1, 20);
        }
        assert!(load.end() > 100);
        let lost = |p: &multipath::PathStatus| p.offline_events + p.failures;
        assert_eq!(lun.status().paths.iter().map(lost).sum::<u64>(), 0);
    }

    #[test]
    fn writes_avoid_a_read_only_path_and_end_when_no_other_is_left() {
        let dir = TempDir::new().unwrap();
        let mut a = Server::new(dir.path(), "disk", 0, WWID);
        let b = Server::with(Program::QemuNbd, dir.path(), "disk", 1, WWID, &["-r"]);
        let lun = Arc::new(lun(&[&a, &b], |a| {
            a.quiesce_secs = 0;
            a.transient_secs = 1;
        }));
        assert!(!lun.info().read_only);
        let load = Load::start(Arc::clone(&lun) as _, 128, 23);
        goes_on(&lun, 1, 50);
        goes_on(&lun, 0, 50);
        assert_eq!(lun.status().paths[1].writes, 0);
        assert!(lun.status().paths[1].reads > 0);
        assert!(load.end() > 100);
        let mut queue = lun.queue().unwrap();
        a.kill();
        let began = Instant::now();
        queue.submit(write(1, 0, &stamp(0, 1, 0))).unwrap();
        queue.submit(read(2, 0)).unwrap();
        let reads = answer(&mut *queue);
        assert_eq!(reads.tag, 2, "it is read all the same");
        reads.result.unwrap();
        let error = answer(&mut *queue).result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PathLost, "{error}");
        assert!(began.elapsed() >= Duration::from_secs(1), "it waited");
        // None of that matters once the path is restored.
        a.start();
        until("it is back", || {
            queue.kick().unwrap();
            states(&lun)[0] == PathState::Active
        });
        queue.submit(write(3, 0, &stamp(0, 2, 0))).unwrap();
        answer(&mut *queue).result.unwrap();
    }
}
