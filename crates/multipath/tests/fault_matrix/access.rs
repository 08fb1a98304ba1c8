//! States reported by the ports of a target: access states, BUSY, TASK SET FULL.

use crate::array::{Array, Reply, Script, disk};
use crate::common::*;
use crate::{carried, goes_on};
use block::{BlockDevice, ErrorKind};
use disk::{NON_OPTIMIZED, OPTIMIZED, STANDBY, TRANSITIONING, UNAVAILABLE};
use multipath::{Lun, PathState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Asserts that no connection was lost, so that no write had to wait for a lost one.
fn unharmed(lun: &Lun) {
    let status = lun.status();
    assert_eq!(status.lost_writes, 0);
    assert!(status.paths.iter().all(|p| p.offline_events == 0));
}

#[test]
fn a_lun_moves_to_the_port_that_became_active() {
    let array = Array::new([OPTIMIZED, STANDBY]);
    let lun = array.lun(patient);
    let load = Load::start(Arc::clone(&lun) as _, 256, 50);
    goes_on(&lun, 0, 50);
    until("the second stands by", || {
        states(&lun) == [PathState::Active, PathState::Standby]
    });
    assert_eq!(lun.status().health, "online");
    assert_eq!(array.seen(1), 0);
    for (before, after) in [(0, 1), (1, 0), (0, 1)] {
        // The first change is reported by the target; the others must be found by queries.
        let (mut changing, mut changed) = ([TRANSITIONING; 2], [OPTIMIZED; 2]);
        array.disk.set_access(changing);
        until("I/O waits", || lun.status().waiting > 0);
        assert_eq!(lun.status().health, "offline");
        changing[after] = UNAVAILABLE;
        array.disk.set_access_quietly(changing);
        until("it is asked for", || {
            lun.status().paths[after].access == "unavailable"
        });
        changed[before] = STANDBY;
        array.disk.set_access_quietly(changed);
        goes_on(&lun, after, 50);
        until("the other stands by", || {
            states(&lun)[before] == PathState::Standby
        });
        assert_eq!(states(&lun)[after], PathState::Active);
        let still = array.seen(before);
        goes_on(&lun, after, 200);
        assert_eq!(
            array.seen(before),
            still,
            "a port that stands by is left alone"
        );
    }
    let log = lun.status().log;
    let says = |path: usize, what: &str| {
        let name = &lun.status().paths[path].name;
        log.iter().any(|e| e.path == *name && e.what.contains(what))
    };
    assert!(says(0, "standby") && says(0, "optimized") && says(1, "standby"));
    unharmed(&lun);
    assert!(load.end() > 500);
}

#[test]
fn a_port_that_is_slower_for_the_target_carries_only_where_no_other_does() {
    let array = Array::new([OPTIMIZED, NON_OPTIMIZED]);
    let lun = array.lun(patient);
    let load = Load::start(Arc::clone(&lun) as _, 256, 51);
    goes_on(&lun, 0, 100);
    assert_eq!(states(&lun), [PathState::Active, PathState::Standby]);
    // Reported with the next command.
    array.disk.set_access([NON_OPTIMIZED, OPTIMIZED]);
    goes_on(&lun, 1, 100);
    until("nothing is left on the first", || {
        lun.status().paths[0].in_flight == 0
    });
    let before = carried(&lun, 0);
    goes_on(&lun, 1, 200);
    assert_eq!(carried(&lun, 0), before);
    // Not reported: found by the periodic query.
    array.disk.set_access_quietly([OPTIMIZED, NON_OPTIMIZED]);
    goes_on(&lun, 0, 100);
    array.disk.set_access([STANDBY, NON_OPTIMIZED]);
    goes_on(&lun, 1, 100);
    unharmed(&lun);
    lun.set("alua_enabled", "false").unwrap();
    array.disk.set_access([OPTIMIZED, NON_OPTIMIZED]);
    goes_on(&lun, 0, 100);
    goes_on(&lun, 1, 100);
    assert!(load.end() > 500);
}

#[test]
fn a_transition_without_end_fails_what_waits_when_its_time_is_over() {
    let array = Array::new([OPTIMIZED, NON_OPTIMIZED]);
    let lun = array.lun(|a| {
        patient(a);
        a.transient_secs = 1;
    });
    let mut queue = lun.queue().unwrap();
    queue.submit(write(1, 0, &stamp(0, 1, 0))).unwrap();
    answer(&mut *queue).result.unwrap();
    array.disk.set_access([TRANSITIONING, STANDBY]);
    let began = Instant::now();
    queue.submit(write(2, 0, &stamp(0, 2, 0))).unwrap();
    let error = answer(&mut *queue).result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PathLost, "{error}");
    assert!(began.elapsed() >= Duration::from_secs(1), "it waited");
    assert!(
        array.disk.read(0, BLOCK) == stamp(0, 1, 0),
        "nothing was written"
    );
    array.disk.set_access([STANDBY, OPTIMIZED]);
    until("it is told", || {
        reap(&mut *queue, Duration::from_millis(5));
        states(&lun) == [PathState::Standby, PathState::Active]
    });
    queue.submit(write(3, 0, &stamp(0, 3, 0))).unwrap();
    answer(&mut *queue).result.unwrap();
    assert!(array.disk.read(0, BLOCK) == stamp(0, 3, 0));
    unharmed(&lun);
}

/// Returns a script that replies with a status while the switch is on.
fn while_on(on: &Arc<AtomicBool>, status: u8, qualifier: u16) -> Script {
    let on = Arc::clone(on);
    Box::new(move |_| {
        if on.load(SeqCst) {
            Reply::Status(status, qualifier, &[])
        } else {
            Reply::Good
        }
    })
}

#[test]
fn a_busy_port_is_left_alone_as_long_as_it_asks_and_the_other_carries_on() {
    let on = Arc::new(AtomicBool::new(false));
    // BUSY, with a retry delay of 600 ms.
    let scripts = [
        Box::new(|_: &_| Reply::Good) as Script,
        while_on(&on, 0x08, 6),
    ];
    let array = Array::with([OPTIMIZED; 2], [None, None], scripts);
    let lun = array.lun(patient);
    let load = Load::start(Arc::clone(&lun) as _, 256, 52);
    goes_on(&lun, 1, 100);
    on.store(true, SeqCst);
    until("it says so", || lun.status().paths[1].busy > 0);
    let (began, seen, other) = (Instant::now(), array.seen(1), carried(&lun, 0));
    for _ in 0..2 {
        until("it is left alone", || lun.status().paths[1].in_flight == 0);
        let left = array.seen(1);
        until("it is asked again", || array.seen(1) > left);
    }
    let sent = array.seen(1) - seen;
    // Commands in flight at the start, plus at each end of a delay at most the depth of the load:
    // 16.
    let ends = began.elapsed().as_millis() as usize / 600 + 1;
    let done = carried(&lun, 0) - other;
    println!("{sent} commands to the busy port, {done} through the other");
    assert!(sent <= 16 + 16 * ends, "{sent}");
    assert!(done > 100, "{done}");
    on.store(false, SeqCst);
    goes_on(&lun, 1, 100);
    let paths = lun.status().paths;
    assert!(paths.iter().all(|p| p.suspect_events == 0));
    unharmed(&lun);
    assert!(load.end() > 500);
}

#[test]
fn ports_that_are_all_busy_for_a_while_cost_time_only() {
    let on = Arc::new(AtomicBool::new(false));
    let scripts = [while_on(&on, 0x08, 0), while_on(&on, 0x28, 0)];
    let array = Array::with([OPTIMIZED; 2], [None, None], scripts);
    let lun = array.lun(|a| {
        patient(a);
        // A "not now" response is not a failed attempt.
        a.max_retries = 2;
    });
    let load = Load::start(Arc::clone(&lun) as _, 256, 53);
    goes_on(&lun, 0, 50);
    goes_on(&lun, 1, 50);
    on.store(true, SeqCst);
    until("both say so", || {
        lun.status().paths.iter().all(|p| p.busy > 40)
    });
    on.store(false, SeqCst);
    goes_on(&lun, 0, 50);
    goes_on(&lun, 1, 50);
    unharmed(&lun);
    assert!(load.end() > 200);
}

#[test]
fn a_full_queue_gets_as_much_as_it_takes_and_the_other_the_rest() {
    let good = || Box::new(|_: &_| Reply::Good) as Script;
    // The second port takes two commands at a time, of 3 ms each.
    let tasks = [None, Some((2, Duration::from_millis(3)))];
    let array = Array::with([OPTIMIZED; 2], tasks, [good(), good()]);
    let lun = array.lun(|a| {
        patient(a);
        // Round robin, as long as the path has room.
        a.set("load_bal_policy", "round_robin").unwrap();
    });
    let load = Load::start(Arc::clone(&lun) as _, 256, 54);
    until("its queue was full", || array.full(1) > 0);
    goes_on(&lun, 1, 50);
    let before = (array.full(1), carried(&lun, 0), carried(&lun, 1));
    goes_on(&lun, 1, 200);
    let full = array.full(1) - before.0;
    let done = (carried(&lun, 0) - before.1, carried(&lun, 1) - before.2);
    println!("{done:?} done, full {full} times");
    assert!((full as u64) < done.1 / 4, "one try in 64 finds out");
    assert!(done.0 > 2 * done.1, "the other does not wait for it");
    unharmed(&lun);
    assert!(load.end() > 500);
}
