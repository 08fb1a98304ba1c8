//! A wall clock that jumps. No timeout may depend on it.

use crate::common::alone::alone;
use crate::common::*;
use crate::{Pair, goes_on};
use block::{BlockDevice, ErrorKind};
use multipath::PathState;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

/// C source of a library to preload into a process in which successive reads of the wall clock are
/// thirty years apart.
const JUMPING: &str = r#"
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long jump(void)
{
    static _Atomic unsigned calls;
    return (calls++ % 2 ? 15 : -15) * 365 * 86400L;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        now->tv_sec += jump();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (to)
        *to = exact.tv_sec;
    return exact.tv_sec;
}
"#;

fn jumping(dir: &Path) -> PathBuf {
    let (source, library) = (dir.join("jumping.c"), dir.join("jumping.so"));
    std::fs::write(&source, JUMPING).unwrap();
    let mut command = Command::new(test_support::installed("cc"));
    command.args(["-shared", "-fPIC", "-O1", "-o"]);
    let compiled = command.arg(&library).arg(&source).status();
    assert!(compiled.unwrap().success());
    library
}

/// Identifiers that only code displaying the time of day needs.
const WALL: &[&str] = &[
    "SystemTime",
    "UNIX_EPOCH",
    "Realtime",
    "REALTIME",
    "gettimeofday",
];

#[test]
fn only_the_log_looks_at_the_wall_clock() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    let mut files = 0;
    for name in [
        "block",
        "iscsi-proto",
        "nbd-proto",
        "multipath",
        "path-file",
        "path-iscsi",
        "path-nbd",
    ] {
        let mut folders = vec![crates.join(name).join("src")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                files += 1;
                let text = std::fs::read_to_string(&path).unwrap();
                let lines = text
                    .lines()
                    .filter(|line| WALL.iter().any(|w| line.contains(w)));
                found.extend(lines.map(|line| (path.clone(), line.trim().to_owned())));
            }
        }
    }
    assert!(files > 50, "{files}");
    let log = crates.join("multipath/src/log.rs");
    assert!(found.iter().all(|(path, _)| *path == log), "{found:#?}");
    let looks = found
        .iter()
        .filter(|(_, line)| line.contains("SystemTime::now()"));
    assert_eq!(looks.count(), 1, "{found:#?}");
}

mod needs_peer {
    use super::*;

    #[test]
    fn a_wall_clock_that_jumps_changes_nothing() {
        let dir = TempDir::new().unwrap();
        let prepare = |command: &mut Command| {
            command.env("LD_PRELOAD", jumping(dir.path()));
        };
        if !alone(
            "clock::needs_peer::a_wall_clock_that_jumps_changes_nothing",
            prepare,
        ) {
            return;
        }
        let far = |a: SystemTime, b: SystemTime| {
            let apart = a.duration_since(b).unwrap_or_else(|e| e.duration());
            apart > Duration::from_secs(86_400 * 365)
        };
        assert!(far(SystemTime::now(), SystemTime::now()), "the clock jumps");
        let pair = Pair::new();
        let lun = pair.lun(|a| {
            a.quiesce_secs = 2;
            a.transient_secs = 1;
            a.path_fail_secs = 2;
            a.set("load_bal_policy", "preferred_path").unwrap();
            a.preferred_path = "c1t0d0".into();
        });
        // Paths fall silent, are lost, and are restored.
        let load = Load::on(Arc::clone(&lun) as _, 100..200, 70);
        goes_on(&lun, 1, 100);
        for (fault, state) in [("hole", PathState::Suspect), ("rst", PathState::Failed)] {
            if fault == "rst" {
                pair.sims[1].run("refuse").unwrap();
            }
            pair.sims[1].run(fault).unwrap();
            until("it is gone", || states(&lun)[1] == state);
            goes_on(&lun, 0, 100);
            pair.sims[1].run("pass").unwrap();
            goes_on(&lun, 1, 100);
        }
        assert!(load.end() > 300);
        // A write that may still arrive delays a later one for two seconds.
        let mut queue = lun.queue().unwrap();
        until("both are up", || {
            queue.kick().unwrap();
            states(&lun) == [PathState::Active; 2]
        });
        pair.sims[1].run("hole").unwrap();
        queue.submit(write(1, 9, &stamp(9, 1, 0))).unwrap();
        answer(&mut *queue).result.unwrap();
        let began = Instant::now();
        queue.submit(write(2, 9, &stamp(9, 2, 0))).unwrap();
        answer(&mut *queue).result.unwrap();
        assert!(began.elapsed() > Duration::from_secs(1), "it was held");
        assert!(pair.servers[0].on_disk(9) == stamp(9, 2, 0));
        // I/O waits for a path as long as configured, and no longer.
        pair.both("refuse");
        pair.both("rst");
        until("both are gone", || {
            reap(&mut *queue, Duration::from_millis(5));
            states(&lun) == [PathState::Failed; 2]
        });
        let began = Instant::now();
        queue.submit(read(3, 9)).unwrap();
        let error = answer(&mut *queue).result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PathLost, "{error}");
        assert!(began.elapsed() < WITHIN);
        let log = lun.status().log;
        let at = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        let jumped = log
            .windows(2)
            .any(|two| far(at(two[0].at_ms), at(two[1].at_ms)));
        assert!(jumped, "the log shows the wall clock as it was");
    }
}
