//! Faults of the network between the client and the servers.

use crate::common::target::{self, Tgtd};
use crate::common::*;
use crate::{Pair, carried, goes_on};
use block::{BlockDevice, ErrorKind, Op};
use multipath::{Event, PathState};
use path_iscsi::{DigestPolicy, Options};
use pathsim::Pathsim;
use std::sync::Arc;
use std::time::{Duration, Instant};

mod needs_peer {
    use super::*;

    #[test]
    fn a_silent_path_is_suspected_soon_and_the_other_carries_on() {
        let pair = Pair::new();
        let lun = pair.lun(|_| ());
        let load = Load::start(Arc::clone(&lun) as _, 256, 1);
        goes_on(&lun, 1, 200);
        pair.sims[1].run("hole").unwrap();
        let began = Instant::now();
        until("it is suspect", || states(&lun)[1] == PathState::Suspect);
        let took = began.elapsed();
        goes_on(&lun, 0, 200);
        let status = lun.status();
        let silent = |e: &&Event| e.path == status.paths[1].name && e.what.starts_with("suspect");
        let event = status.log.iter().rfind(silent).unwrap();
        println!(
            "suspected after {took:?}; {} I/Os moved, the longest took {} us",
            event.moved, event.stall_us
        );
        assert!(event.moved > 0);
        // Long before the connection would have been closed.
        let give_up = u64::from(lun.attributes().path_fail_secs) * 1_000_000;
        assert!((1..give_up).contains(&event.stall_us), "{event:?}");
        assert_eq!(lun.status().health, "limited");
        pair.sims[1].run("pass").unwrap();
        until("it is back", || states(&lun)[1] == PathState::Active);
        goes_on(&lun, 1, 50);
        assert!(load.end() > 500);
    }

    #[test]
    fn a_reset_and_a_killed_server_cost_no_error() {
        let mut pair = Pair::new();
        let lun = pair.lun(|_| ());
        let load = Load::start(Arc::clone(&lun) as _, 256, 2);
        goes_on(&lun, 1, 50);
        pair.sims[1].run("rst").unwrap();
        until("it was lost", || lun.status().paths[1].offline_events == 1);
        until("it is back", || states(&lun)[1] == PathState::Active);
        goes_on(&lun, 1, 50);
        pair.servers[0].kill();
        until("it failed", || states(&lun)[0] == PathState::Failed);
        goes_on(&lun, 1, 200);
        pair.servers[0].start();
        until("it is back", || states(&lun)[0] == PathState::Active);
        goes_on(&lun, 0, 50);
        assert!(load.end() > 500);
    }

    #[test]
    fn a_refused_and_a_slow_connect_delay_no_other() {
        let pair = Pair::new();
        let lun = pair.lun(patient);
        let load = Load::start(Arc::clone(&lun) as _, 256, 3);
        goes_on(&lun, 1, 50);
        for fault in ["refuse", "accept-delay=3000"] {
            pair.sims[1].run(fault).unwrap();
            pair.sims[1].run("rst").unwrap();
            until("it failed", || states(&lun)[1] == PathState::Failed);
            goes_on(&lun, 0, 200);
            assert_ne!(states(&lun)[1], PathState::Active, "{fault}");
            assert_eq!(lun.status().paths[0].suspect_events, 0, "{fault}");
            if fault == "refuse" {
                pair.sims[1].run("pass").unwrap();
            }
            // A slow connection is established without help.
            until("it is back", || states(&lun)[1] == PathState::Active);
            pair.sims[1].run("pass").unwrap();
            goes_on(&lun, 1, 50);
        }
        assert!(load.end() > 500);
    }

    #[test]
    fn a_stream_that_ends_one_way_is_a_lost_path() {
        let pair = Pair::new();
        let lun = pair.lun(|_| ());
        let load = Load::start(Arc::clone(&lun) as _, 256, 4);
        for (path, way) in [(1, "up"), (0, "down")] {
            goes_on(&lun, path, 50);
            let before = lun.status().paths[path].offline_events;
            pair.sims[path].run(&format!("half-close={way}")).unwrap();
            until("it was lost", || {
                lun.status().paths[path].offline_events > before
            });
            goes_on(&lun, 1 - path, 50);
            until("it is back", || states(&lun)[path] == PathState::Active);
        }
        assert!(load.end() > 100);
    }

    #[test]
    fn a_slow_path_gets_less_where_the_policy_looks_and_is_not_failed() {
        let pair = Pair::new();
        let lun = pair.lun(patient);
        let load = Load::start(Arc::clone(&lun) as _, 256, 5);
        pair.sims[0].run("delay=3").unwrap();
        pair.sims[1].run("delay=30").unwrap();
        let share = |policy: &str| {
            lun.set("load_bal_policy", policy).unwrap();
            let both = || [carried(&lun, 0), carried(&lun, 1)];
            let after = |more: u64| {
                let before = both();
                until("they carry on", || {
                    both().iter().sum::<u64>() > before.iter().sum::<u64>() + more
                });
                before
            };
            // Lets I/O in flight complete, and the policy learn.
            after(150);
            let before = after(300);
            let done = [carried(&lun, 0) - before[0], carried(&lun, 1) - before[1]];
            println!("{policy}: {done:?}");
            done[1] as f64 / (done[0] + done[1]) as f64
        };
        let blind = share("round_robin");
        assert!((0.4..0.6).contains(&blind), "{blind}");
        for policy in ["least_cmd_load", "predicted_finish"] {
            let seeing = share(policy);
            assert!(seeing < 0.3, "{policy}: {seeing}");
        }
        let paths = lun.status().paths;
        assert!(
            paths
                .iter()
                .all(|p| p.offline_events + p.suspect_events == 0)
        );
        assert!(load.end() > 200);
    }

    #[test]
    fn a_delay_on_all_paths_is_no_reason_to_run_about() {
        let pair = Pair::new();
        let lun = pair.lun(|_| ());
        let load = Load::start(Arc::clone(&lun) as _, 256, 6);
        goes_on(&lun, 1, 200);
        let before = lun.status();
        pair.both("delay=400");
        // By now all I/O in flight has been late twice.
        goes_on(&lun, 0, 16);
        goes_on(&lun, 1, 16);
        pair.both("pass");
        let after = lun.status();
        let events =
            |s: &multipath::LunStatus| s.paths.iter().map(|p| p.suspect_events).sum::<u64>();
        let lost = after.paths.iter().map(|p| p.offline_events).sum::<u64>();
        let suspected = events(&after) - events(&before);
        println!("suspected {suspected} times");
        assert!(suspected <= 6, "{suspected}");
        assert_eq!(lost, 0);
        goes_on(&lun, 0, 50);
        until("online", || lun.status().health == "online");
        assert!(load.end() > 200);
    }

    #[test]
    fn a_path_that_flaps_is_used_later_each_time() {
        let pair = Pair::new();
        let lun = pair.lun(|a| a.flap_penalty_secs = 2);
        let load = Load::start(Arc::clone(&lun) as _, 256, 7);
        for (path, fault, gone) in [
            (1, "hole", PathState::Suspect),
            (0, "refuse", PathState::Failed),
        ] {
            let mut took: Vec<Duration> = Vec::new();
            // Losses decay over time, and a machine that stalls spreads them out; so the loop runs
            // until they were close enough together to count. A stall may also make a path suspect
            // before the fault does, and its penalty then starts at that point: the longest wait
            // counts, not the last.
            let later = |took: &[Duration]| {
                let (shortest, longest) = (took.iter().min(), took.iter().max());
                longest > shortest.map(|s| *s + Duration::from_secs(1)).as_ref()
            };
            while took.len() < 25 && !later(&took) {
                goes_on(&lun, path, 20);
                pair.sims[path].run(fault).unwrap();
                if fault == "refuse" {
                    pair.sims[path].run("rst").unwrap();
                }
                until("it is gone", || states(&lun)[path] == gone);
                pair.sims[path].run("pass").unwrap();
                let began = Instant::now();
                until("it is back", || states(&lun)[path] == PathState::Active);
                took.push(began.elapsed());
            }
            println!("{fault}: back after {took:?}");
            assert!(later(&took), "{took:?}");
            goes_on(&lun, 1 - path, 20);
        }
        assert!(load.end() > 200);
    }

    #[test]
    fn all_paths_silent_for_a_while_cost_time_only() {
        let pair = Pair::new();
        let lun = pair.lun(|a| {
            a.path_fail_secs = 1;
            a.flap_penalty_secs = 0;
        });
        let load = Load::start(Arc::clone(&lun) as _, 256, 8);
        goes_on(&lun, 1, 50);
        let before = pair.sims.each_ref().map(|s| s.stats().connections);
        pair.both("hole");
        until("both are given up", || {
            states(&lun) == [PathState::Failed; 2]
        });
        assert_eq!(lun.status().health, "offline");
        until("both are tried again", || {
            let tried = |(s, before): (&Pathsim, u64)| s.stats().connections > before;
            pair.sims.iter().zip(before).all(tried)
        });
        pair.both("pass");
        until("online", || lun.status().health == "online");
        goes_on(&lun, 0, 50);
        assert!(load.end() > 100);
    }

    #[test]
    fn all_paths_silent_indefinitely_end_in_an_error_and_everything_can_be_closed() {
        let pair = Pair::new();
        let lun = pair.lun(|a| {
            a.path_fail_secs = 1;
            a.transient_secs = 1;
        });
        let mut queue = lun.queue().unwrap();
        pair.both("hole");
        let began = Instant::now();
        queue.submit(read(1, 0)).unwrap();
        queue.submit(write(2, 9, &stamp(9, 1, 0))).unwrap();
        for _ in 0..2 {
            let mut done = reap(&mut *queue, WITHIN);
            while let Some(one) = done.pop() {
                let error = one.result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PathLost, "{error}");
            }
            if queue.in_flight() == 0 {
                break;
            }
        }
        assert_eq!(queue.in_flight(), 0);
        queue.submit(read(3, 0)).unwrap();
        queue.kick().unwrap();
        drop(queue);
        drop(lun);
        assert!(began.elapsed() < WITHIN);
    }

    #[test]
    fn a_late_answer_to_a_read_touches_no_buffer() {
        let pair = Pair::new();
        let lun = pair.lun(|a| {
            a.set("load_bal_policy", "preferred_path").unwrap();
            a.preferred_path = "c1t0d0".into();
        });
        let mut queue = lun.queue().unwrap();
        queue.submit(write(1, 5, &stamp(5, 1, 0))).unwrap();
        answer(&mut *queue).result.unwrap();
        until("it is not suspect", || {
            reap(&mut *queue, Duration::from_millis(5));
            states(&lun)[1] == PathState::Active
        });
        pair.sims[1].run("delay=700").unwrap();
        queue.submit(read(2, 5)).unwrap();
        let first = answer(&mut *queue);
        first.result.unwrap();
        let Op::Read { mut bufs, .. } = first.op else {
            panic!("a read comes back");
        };
        assert!(bufs.as_slice()[0][..] == stamp(5, 1, 0)[..]);
        // The caller reuses the memory immediately.
        bufs.iter_mut().for_each(|b| b.fill(0x5a));
        until("the answer came late", || {
            reap(&mut *queue, Duration::from_millis(5));
            lun.status().paths[1].late_answers > 0
        });
        assert!(bufs.as_slice()[0].iter().all(|b| *b == 0x5a));
        pair.sims[1].run("pass").unwrap();
        until("it is back", || {
            reap(&mut *queue, Duration::from_millis(5));
            states(&lun)[1] == PathState::Active
        });
        queue.submit(read(3, 5)).unwrap();
        answer(&mut *queue).result.unwrap();
    }

    #[test]
    fn a_corrupt_byte_under_a_digest_is_a_lost_path_and_right_data() {
        let tgtd = Tgtd::start();
        for name in ["HeaderDigest", "DataDigest"] {
            tgtd.admin(&format!(
                "--op update --mode target --tid 1 -n {name} -v CRC32C"
            ));
        }
        let sims = [tgtd.proxy(0), tgtd.proxy(1)];
        let options = || Options {
            header_digest: DigestPolicy::Require,
            data_digest: DigestPolicy::Require,
            ..Options::default()
        };
        let path = |sim| Arc::new(target::path(port_of(sim), options())) as _;
        let lun = Arc::new(open(sims.iter().map(path).collect(), |a| {
            a.quiesce_secs = 1;
            a.flap_penalty_secs = 0;
        }));
        let load = Load::start(Arc::clone(&lun) as _, 64, 9);
        for round in 0..6 {
            let at = round % 2;
            goes_on(&lun, at, 20);
            let before = lun.status().paths[at].offline_events;
            sims[at].run("corrupt=once").unwrap();
            until("it was lost", || {
                lun.status().paths[at].offline_events > before
            });
            until("it is back", || states(&lun)[at] == PathState::Active);
        }
        assert!(load.end() > 100);
    }

    #[test]
    fn a_corrupt_header_without_a_digest_is_a_lost_path() {
        let pair = Pair::new();
        let lun = pair.lun(|a| {
            patient(a);
            a.set("load_bal_policy", "preferred_path").unwrap();
            a.preferred_path = "c1t0d0".into();
        });
        let mut queue = lun.queue().unwrap();
        queue.submit(write(1, 3, &stamp(3, 1, 0))).unwrap();
        answer(&mut *queue).result.unwrap();
        assert_eq!(carried(&lun, 1), 1);
        pair.sims[1].run("corrupt=once").unwrap();
        // The reply to a write consists of a header only.
        queue.submit(write(2, 4, &stamp(4, 1, 0))).unwrap();
        answer(&mut *queue).result.unwrap();
        let status = lun.status();
        assert_eq!(status.paths[1].offline_events, 1);
        assert_eq!(carried(&lun, 0), 1);
        assert!(pair.servers[0].on_disk(4) == stamp(4, 1, 0));
    }

    #[test]
    fn a_thread_that_was_not_running_suspects_no_path() {
        let pair = Pair::new();
        // Enough for a machine that stalls by itself.
        let lun = pair.lun(|a| a.silence_ms = 800);
        let silence = Duration::from_millis(lun.attributes().silence_ms.into());
        let mut queue = lun.queue().unwrap();
        // An active path may not have been adopted by this queue yet: completed I/O proves that it was.
        until("both carry", || {
            queue.submit(read(0, 0)).unwrap();
            queue.submit(read(1, 1)).unwrap();
            while queue.in_flight() > 0 {
                reap(&mut *queue, WITHIN);
            }
            lun.status().paths.iter().all(|p| p.reads > 0)
        });
        let before = [carried(&lun, 0), carried(&lun, 1)];
        // One path answers while the thread is not listening, the other after that: the delay applies
        // in both directions.
        pair.sims[1].run("delay=650").unwrap();
        for _ in 0..3 {
            for tag in 0..16 {
                queue.submit(read(tag, tag)).unwrap();
            }
            queue.kick().unwrap();
            let began = Instant::now();
            until("any silence would count", || began.elapsed() > silence);
            let mut count = 0;
            // The rest of the delay is shorter than any silence that counts.
            while count < 16 {
                count += reap(&mut *queue, WITHIN).len();
            }
        }
        let paths = lun.status().paths;
        for (path, before) in before.into_iter().enumerate() {
            assert!(carried(&lun, path) > before + 10, "path {path}: {paths:?}");
        }
        assert!(
            paths
                .iter()
                .all(|p| p.suspect_events + p.offline_events == 0)
        );
    }
}
