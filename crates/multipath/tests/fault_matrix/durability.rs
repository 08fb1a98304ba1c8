//! Flush guarantees: shared caches, private caches, and servers without flush.

use crate::common::*;
use crate::{carried, goes_on};
use block::{BlockDevice, ErrorKind, Op, Request};
use multipath::{Lun, PathState};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Starts two servers of one disk, each with a private write-back cache.
fn caches(dir: &TempDir) -> [Server; 2] {
    let extra = ["--filter=cache", "--", "cache=writeback"];
    [0, 1].map(|port| Server::nbdkit(dir.path(), "disk", port, &extra))
}

fn flush(tag: u64) -> Request {
    let op = Op::Flush;
    Request { tag, op }
}

/// Starts a server that supports neither FLUSH nor FUA.
fn flushless(dir: &TempDir, port: usize) -> Server {
    Server::with(Program::Flushless, dir.path(), "disk", port, WWID, &[])
}

/// Starts a server of the same disk that supports both and logs its requests.
fn flushing(dir: &TempDir, port: usize) -> (Server, std::path::PathBuf) {
    let log = dir.path().join("log");
    let file = format!("logfile={}", log.display());
    let extra = ["--filter=log", "--", &file];
    (Server::nbdkit(dir.path(), "disk", port, &extra), log)
}

fn flushes(log: &Path) -> usize {
    let text = std::fs::read_to_string(log).unwrap();
    text.lines()
        .filter(|line| line.contains(" Flush id="))
        .count()
}

fn durable(tag: u64, block: u64, bytes: &[u8]) -> Request {
    let mut request = write(tag, block, bytes);
    if let Op::Write { fua, .. } = &mut request.op {
        *fua = true;
    }
    request
}

mod needs_peer {
    use super::*;

    #[test]
    fn a_path_without_fua_writes_durably_all_the_same() {
        let dir = TempDir::new().unwrap();
        let a = Server::new(dir.path(), "disk", 0, WWID);
        let extra = ["--filter=fua"];
        let b = Server::nbdkit(dir.path(), "disk", 1, &extra);
        let lun = Arc::new(lun(&[&a, &b], |_| ()));
        let load = Load::start(Arc::clone(&lun) as _, 128, 24);
        goes_on(&lun, 0, 100);
        goes_on(&lun, 1, 100);
        assert!(load.end() > 100);
    }

    #[test]
    fn a_flush_reaches_every_cache_that_took_writes() {
        let dir = TempDir::new().unwrap();
        let [a, b] = caches(&dir);
        let lun = lun(&[&a, &b], |a| {
            a.shared_cache = false;
            a.set("load_bal_policy", "round_robin").unwrap();
        });
        let mut queue = lun.queue().unwrap();
        until("both are up", || {
            queue.kick().unwrap();
            states(&lun) == [PathState::Active; 2]
        });
        // Far apart, because a cache writes back whole blocks of its own size.
        let blocks = (0..8).map(|n| n * 128);
        for block in blocks.clone() {
            queue
                .submit(write(block, block, &stamp(block, 1, 0)))
                .unwrap();
            answer(&mut *queue).result.unwrap();
        }
        assert!(carried(&lun, 0) > 0 && carried(&lun, 1) > 0);
        let landed = || blocks.clone().filter(|n| a.on_disk(*n) == stamp(*n, 1, 0));
        assert_eq!(landed().count(), 0, "they are in the caches");
        queue.submit(flush(99)).unwrap();
        answer(&mut *queue).result.unwrap();
        assert_eq!(landed().count(), 8);
    }

    #[test]
    fn a_cache_that_is_lost_before_a_flush_fails_it_once() {
        let dir = TempDir::new().unwrap();
        let [a, mut b] = caches(&dir);
        let lun = lun(&[&a, &b], |a| {
            a.shared_cache = false;
            a.quiesce_secs = 0;
            a.set("load_bal_policy", "preferred_path").unwrap();
            a.preferred_path = "c1t0d0".into();
        });
        let mut queue = lun.queue().unwrap();
        until("both are up", || {
            queue.kick().unwrap();
            states(&lun) == [PathState::Active; 2]
        });
        queue.submit(write(1, 640, &stamp(640, 1, 0))).unwrap();
        answer(&mut *queue).result.unwrap();
        b.kill();
        until("it failed", || {
            queue.kick().unwrap();
            reap(&mut *queue, Duration::from_millis(5));
            states(&lun)[1] == PathState::Failed
        });
        queue.submit(flush(2)).unwrap();
        let error = answer(&mut *queue).result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Media, "{error}");
        assert!(error.to_string().contains("shared_cache"), "{error}");
        queue.submit(write(3, 640, &stamp(640, 2, 0))).unwrap();
        answer(&mut *queue).result.unwrap();
        queue.submit(flush(4)).unwrap();
        answer(&mut *queue).result.unwrap();
        assert!(a.on_disk(640) == stamp(640, 2, 0));
    }

    #[test]
    fn a_flush_waits_for_a_cache_that_another_thread_still_reaches() {
        let dir = TempDir::new().unwrap();
        let servers = caches(&dir);
        let sims = [proxy(&servers[0]), proxy(&servers[1])];
        let lun = open(sims.iter().map(through).collect(), |a| {
            a.shared_cache = false;
            a.quiesce_secs = 0;
            a.set("load_bal_policy", "preferred_path").unwrap();
            a.preferred_path = "c1t0d0".into();
        });
        // An idle thread, which does not notice the state of its connections.
        let mut idle = lun.queue().unwrap();
        let mut queue = lun.queue().unwrap();
        until("both are up", || {
            idle.kick().unwrap();
            queue.kick().unwrap();
            lun.status().paths.iter().all(|p| p.online_events == 2)
        });
        queue.submit(write(1, 640, &stamp(640, 1, 0))).unwrap();
        answer(&mut *queue).result.unwrap();
        sims[1].run("refuse").unwrap();
        sims[1].run("rst").unwrap();
        until("this thread's connection is lost", || {
            reap(&mut *queue, Duration::from_millis(5));
            lun.status().paths[1].offline_events == 1
        });
        queue.submit(flush(2)).unwrap();
        let early = reap(&mut *queue, Duration::from_millis(300));
        assert!(
            early.is_empty(),
            "the write is in a cache that nobody flushed"
        );
        sims[1].run("pass").unwrap();
        answer(&mut *queue).result.unwrap();
        assert!(servers[0].on_disk(640) == stamp(640, 1, 0));
    }

    #[test]
    fn servers_without_flush_have_nothing_to_flush() {
        let dir = TempDir::new().unwrap();
        let servers = [0, 1].map(|port| flushless(&dir, port));
        let lun = Arc::new(lun(&[&servers[0], &servers[1]], patient));
        // Every write is as durable as it can be once it is acknowledged.
        assert!(!lun.info().volatile_write_cache);
        let load = Load::start(Arc::clone(&lun) as _, 32, 25);
        goes_on(&lun, 0, 20);
        goes_on(&lun, 1, 20);
        assert!(load.end() > 40);
        let mut queue = lun.queue().unwrap();
        queue.submit(durable(1, 100, &stamp(100, 1, 0))).unwrap();
        answer(&mut *queue).result.unwrap();
        assert!(servers[0].on_disk(100) == stamp(100, 1, 0));
        queue.submit(flush(2)).unwrap();
        answer(&mut *queue).result.unwrap();
    }

    #[test]
    fn a_path_without_flush_takes_no_writes_beside_one_that_has_it() {
        let dir = TempDir::new().unwrap();
        let (mut a, log) = flushing(&dir, 0);
        let b = flushless(&dir, 1);
        let lun = Arc::new(lun(&[&a, &b], |a| {
            patient(a);
            a.quiesce_secs = 0;
            a.transient_secs = 1;
        }));
        assert!(lun.info().volatile_write_cache);
        let load = Load::start(Arc::clone(&lun) as _, 32, 26);
        goes_on(&lun, 0, 50);
        goes_on(&lun, 1, 20);
        assert!(load.end() > 40);
        let writes = |lun: &Lun| lun.status().paths[1].writes;
        assert_eq!(writes(&lun), 0);
        let mut queue = lun.queue().unwrap();
        let before = flushes(&log);
        queue.submit(write(1, 100, &stamp(100, 1, 0))).unwrap();
        answer(&mut *queue).result.unwrap();
        queue.submit(flush(2)).unwrap();
        answer(&mut *queue).result.unwrap();
        assert_eq!(flushes(&log), before + 1, "who has it was asked");
        a.kill();
        queue.submit(durable(3, 100, &stamp(100, 2, 0))).unwrap();
        queue.submit(read(4, 100)).unwrap();
        let first = answer(&mut *queue);
        assert_eq!(first.tag, 4, "it is read all the same");
        first.result.unwrap();
        let error = answer(&mut *queue).result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PathLost, "{error}");
        assert_eq!(writes(&lun), 0);
        assert!(b.on_disk(100) == stamp(100, 1, 0));
        a.start();
        until("it is back", || {
            reap(&mut *queue, Duration::from_millis(5));
            states(&lun)[0] == PathState::Active
        });
        queue.submit(durable(5, 100, &stamp(100, 3, 0))).unwrap();
        answer(&mut *queue).result.unwrap();
        assert!(b.on_disk(100) == stamp(100, 3, 0));
    }

    #[test]
    fn a_cache_that_the_lun_did_not_promise_gets_no_writes() {
        let dir = TempDir::new().unwrap();
        let (mut a, _log) = flushing(&dir, 0);
        let b = flushless(&dir, 1);
        a.kill();
        // The LUN promised its users that no flush is needed.
        let lun = Arc::new(lun(&[&a, &b], patient));
        assert!(!lun.info().volatile_write_cache);
        let load = Load::start(Arc::clone(&lun) as _, 32, 27);
        goes_on(&lun, 1, 20);
        a.start();
        goes_on(&lun, 0, 20);
        goes_on(&lun, 1, 20);
        assert!(load.end() > 40);
        let status = lun.status();
        assert_eq!(status.paths[0].writes, 0);
        assert!(status.log.iter().any(|e| e.what.contains("no writes")));
    }
}
