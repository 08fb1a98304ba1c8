//! Tests of the engine: the requests of a run, observed at the device.

mod devices;

use bench_core::{Error, Spec, Target, Workload, run};
use bench_load::{Extent, Job};
use bench_study::StudyPlan;
use bench_study::journal::Journal;
use bench_study::{Side, study};
use block::ErrorKind;
use devices::{Memory, Shared};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const SIZE: usize = 4 << 20;

fn memory(shared: Shared) -> Memory {
    Memory::new(SIZE, shared)
}

fn spec(workload: Workload) -> Spec {
    Spec {
        workload,
        threads: 3,
        bytes_per_thread: None,
        ..Spec::default()
    }
}

#[test]
fn every_record_is_touched_once_a_pass_and_random_orders_repeat() {
    for workload in Workload::ALL {
        for depth in [1, 4] {
            let orders: Vec<Vec<(u64, usize)>> = (0..2)
                .map(|_| {
                    let device = memory(Shared {
                        keep_log: true,
                        ..Shared::default()
                    });
                    let spec = Spec {
                        threads: 1,
                        depth,
                        ..spec(workload)
                    };
                    let sample = run(&device, &spec).unwrap();
                    let records = SIZE / 65536;
                    assert_eq!(
                        (sample.bytes, sample.requests),
                        (SIZE as u64, records as u64)
                    );
                    let log = device.shared.log.lock().unwrap();
                    let timed = log[depth as usize..].to_vec();
                    assert_eq!(timed.len(), records);
                    let offsets: HashSet<u64> = timed.iter().map(|(o, _)| *o).collect();
                    assert_eq!(offsets.len(), records, "{workload}: every record once");
                    assert!(timed.iter().all(|(_, len)| *len == 65536));
                    assert_eq!(workload.random(), !timed.is_sorted(), "{workload}");
                    timed
                })
                .collect();
            assert_eq!(
                orders[0], orders[1],
                "{workload}: the same order in every run"
            );
        }
    }
}

#[test]
fn threads_and_passes_multiply_the_work_and_each_thread_flushes_its_writes() {
    let device = memory(Shared::default());
    let spec = Spec {
        passes: 3,
        bytes_per_thread: Some(256 << 10),
        ..spec(Workload::RandWrite)
    };
    let sample = run(&device, &spec).unwrap();
    assert_eq!(sample.bytes, 3 * 3 * (256 << 10));
    assert_eq!(sample.flushes, 3);
    assert_eq!(device.shared.flushes.load(Relaxed), 3);
    // Three more writes are the warm-up.
    assert_eq!(device.shared.writes.load(Relaxed), 3 * 3 * 4 + 3);
    assert!(sample.first_done_ns <= sample.wall_ns);
    assert!(sample.latency.p50_ns <= sample.latency.p99_ns);
    assert!(sample.latency.p99_ns <= sample.latency.max_ns);
}

#[test]
fn written_data_has_no_two_equal_blocks_and_does_not_compress() {
    let device = memory(Shared::default());
    run(&device, &spec(Workload::SeqWrite)).unwrap();
    let bytes = device.shared.bytes.lock().unwrap();
    let used = SIZE / 3 / 65536 * 65536 * 3;
    let blocks: HashSet<&[u8]> = bytes[..used].chunks(4096).collect();
    assert_eq!(blocks.len(), used / 4096);
    // Entropy per byte, of at most 8 bits.
    let mut counts = [0u32; 256];
    bytes[..used].iter().for_each(|b| counts[*b as usize] += 1);
    let entropy: f64 = counts
        .iter()
        .map(|&n| f64::from(n) / used as f64)
        .map(|p| if p > 0.0 { -p * p.log2() } else { 0.0 })
        .sum();
    assert!(entropy > 7.99, "{entropy}");
}

#[test]
fn a_failing_request_ends_the_run_with_its_error_whichever_it_is() {
    for fail_at in 1..=40 {
        let device = memory(Shared {
            fail_at,
            ..Shared::default()
        });
        match run(&device, &spec(Workload::SeqWrite)) {
            Err(Error::Device { source, .. }) => assert_eq!(source.kind(), ErrorKind::Media),
            other => panic!("request {fail_at}: {other:?}"),
        }
    }
}

#[test]
fn more_in_flight_than_a_queue_takes_is_refused() {
    let spec = Spec {
        depth: 9,
        ..spec(Workload::SeqRead)
    };
    let error = run(&memory(Shared::default()), &spec)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("exceeds the queue's capacity of 8"),
        "{error}"
    );
}

#[test]
fn verification_finds_a_record_that_is_not_what_was_written() {
    let device = memory(Shared::default());
    run(&device, &spec(Workload::SeqWrite)).unwrap();
    let read = Spec {
        verify: true,
        ..spec(Workload::RandRead)
    };
    run(&device, &read).unwrap();
    let at = 5 * 65536;
    device.shared.bytes.lock().unwrap()[at] ^= 1;
    match run(&device, &read) {
        Err(Error::Verify { offset, .. }) => assert_eq!(offset, at as u64),
        other => panic!("{other:?}"),
    }
}

/// Runs a study without a control, so that both sides run equally often, on two devices.
fn study_of(devices: [Memory; 2], set: &[(&str, &str)]) -> bench_core::Result<bench_study::Study> {
    let mut job = Job::named("devmix", Extent::Quick).unwrap();
    for (name, value) in [("blocks", "64k"), ("depths", "4"), ("requests", "64")] {
        job.set(name, value).unwrap();
    }
    set.iter()
        .for_each(|(name, value)| job.set(name, value).unwrap());
    let sides = devices.map(|device| {
        let name = device.info.name.clone();
        let target = Target::device(name.clone(), Arc::new(device));
        Side::new(name, target, job.clone())
    });
    let plan = StudyPlan {
        pairs: 2,
        max_pairs: 2,
        control: false,
        ..StudyPlan::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(&dir.path().join("journal")).unwrap();
    study(&sides, &plan, &mut journal, &mut |_| {
        ControlFlow::Continue(())
    })
}

fn named(name: &str, shared: Shared) -> Memory {
    let mut device = memory(shared);
    device.info.name = name.to_owned();
    device
}

#[test]
fn both_sides_of_a_study_are_asked_for_the_same_in_the_same_order() {
    let devices = ["a", "b"].map(|name| {
        let shared = Shared {
            keep_log: true,
            ..Shared::default()
        };
        named(name, shared)
    });
    let logs = [0, 1].map(|n: usize| Arc::clone(&devices[n].shared));
    let set = [("patterns", "rand-read,rand-write"), ("verify", "true")];
    let done = study_of(devices, &set).unwrap();
    assert_eq!(done.runs.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4]);
    let [a, b] = logs.map(|shared| shared.log.lock().unwrap().clone());
    assert!(a == b && a.len() > 8 * 64, "{} and {}", a.len(), b.len());
}

#[test]
fn a_side_that_gives_back_something_else_ends_a_study_that_verifies() {
    let spoilt = || {
        // One side loses data on the way to the device.
        let forgetful = Shared {
            forget_writes: true,
            ..Shared::default()
        };
        [
            named("sound", Shared::default()),
            named("forgetful", forgetful),
        ]
    };
    let set = |verify| [("patterns", "seq-read"), ("verify", verify)];
    assert!(study_of(spoilt(), &set("false")).is_ok());
    match study_of(spoilt(), &set("true")) {
        Err(Error::Verify { arm, .. }) => assert_eq!(arm, "forgetful"),
        other => panic!("{other:?}"),
    }
    let odd = [
        ("patterns", "seq-read"),
        ("verify", "true"),
        ("blocks", "6k"),
    ];
    let refused = study_of(spoilt(), &odd).unwrap_err().to_string();
    assert!(refused.contains("4096"), "{refused}");
}

#[test]
fn a_stall_shows_in_every_request_that_it_held_up() {
    let stall = Duration::from_millis(400);
    let device = || {
        memory(Shared {
            stall: Some((100, stall)),
            ..Shared::default()
        })
    };
    let spec = |rate| Spec {
        workload: Workload::RandRead,
        block: 4096,
        bytes_per_thread: Some(1000 * 4096),
        rate,
        ..Spec::default()
    };
    // Closed loop: only one of a thousand requests is affected.
    let closed = run(&device(), &spec(None)).unwrap();
    assert!(closed.latency.max_ns >= 400_000_000 && closed.schedule.is_none());
    // A thousand per second: four hundred were due during the stall and waited 200 ms on average.
    let open = run(&device(), &spec(Some(1000))).unwrap();
    let kept = open.schedule.unwrap();
    assert!(kept.held_up >= 390, "{kept:?}");
    assert!(open.latency.p99_ns >= 350_000_000, "{:?}", open.latency);
    assert!(open.latency.mean_ns >= 60_000_000, "{:?}", open.latency);
    assert!(open.latency.mean_ns > kept.service.mean_ns, "{open:?}");
    // The last is due 999 ms after the first.
    assert!(open.wall_ns >= 999_000_000, "{}", open.wall_ns);
}

#[test]
fn threads_of_a_schedule_take_turns_and_requests_keep_their_number() {
    let device = memory(Shared::default());
    let spec = Spec {
        threads: 3,
        depth: 4,
        bytes_per_thread: Some(20 * 65536),
        rate: Some(600),
        ..spec(Workload::SeqWrite)
    };
    let sample = run(&device, &spec).unwrap();
    assert_eq!((sample.requests, sample.flushes), (60, 3));
    assert!(sample.wall_ns >= 95_000_000, "{}", sample.wall_ns);
    let none = Spec {
        rate: Some(0),
        ..spec
    };
    assert!(run(&device, &none).is_err());
}
