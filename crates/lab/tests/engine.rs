//! What a run asks of a device, seen from the device.

mod devices;

use block::{BlockDevice, ErrorKind};
use devices::{Memory, Shared};
use lab::{Arm, Error, Plan, Spec, Workload, compare, run};
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
    // Entropy of single bytes, of 8 bits at most.
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
    assert!(error.contains("a queue that takes 8"), "{error}");
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

fn quick_plan() -> Plan {
    Plan {
        pairs: 6,
        max_pairs: 6,
        min_wall: Duration::ZERO,
        ..Plan::default()
    }
}

fn arm(name: &str, device: Memory) -> Arm {
    Arm::new(name, Arc::new(device))
}

#[test]
fn arms_of_unequal_size_do_the_same_work() {
    let logged = || Shared {
        keep_log: true,
        ..Shared::default()
    };
    let (a, b) = (
        Memory::new(SIZE, logged()),
        Memory::new(SIZE - 65536, logged()),
    );
    let logs = [Arc::clone(&a.shared), Arc::clone(&b.shared)];
    let spec = Spec {
        threads: 1,
        ..spec(Workload::RandRead)
    };
    let c = compare(
        &arm("a", a),
        &[arm("b", b)],
        &spec,
        &quick_plan(),
        &mut |_| ControlFlow::Continue(()),
    )
    .unwrap();
    assert_eq!(c.spec.span, Some(SIZE as u64 - 65536));
    assert_eq!(*logs[0].log.lock().unwrap(), *logs[1].log.lock().unwrap());
    assert!(c.spec.verify, "reads are checked against what was prepared");
    assert_eq!(c.arms[0].runs.len(), 8);
    assert_eq!(c.versus[0].pairs, 6);
    let table = lab::table(&[c]);
    assert!(
        table.contains("| rand-read") && table.contains("6 ("),
        "{table}"
    );
}

#[test]
fn shared_bytes_are_not_verified_and_separate_ones_are() {
    // Two arms over one memory: what one writes the other does read back here, so to tell, the
    // memory is spoilt after the preparation.
    let device = memory(Shared::default());
    let spoil = Arc::clone(&device.shared);
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let arms = [Arm::new("a", Arc::clone(&device)), Arm::new("b", device)];
    let attempt = |shared| {
        compare(
            &arms[0],
            &arms[1..],
            &spec(Workload::SeqRead),
            &Plan {
                shared,
                ..quick_plan()
            },
            &mut |step| {
                if let lab::Progress::Calibrated { .. } = step {
                    spoil.bytes.lock().unwrap()[0] ^= 1;
                }
                ControlFlow::Continue(())
            },
        )
    };
    assert!(attempt(true).is_ok());
    assert!(matches!(attempt(false), Err(Error::Verify { .. })));
}

#[test]
fn refuses_plans_that_answer_nothing() {
    let device = || memory(Shared::default());
    let refuse = |a: &Arm, b: &[Arm], plan: Plan| {
        compare(a, b, &spec(Workload::SeqRead), &plan, &mut |_| {
            ControlFlow::Continue(())
        })
        .unwrap_err()
        .to_string()
    };
    let a = arm("a", device());
    assert!(refuse(&a, &[], quick_plan()).contains("two arms"));
    assert!(refuse(&a, &[arm("a", device())], quick_plan()).contains("same name"));
    for plan in [
        Plan {
            pairs: 0,
            ..quick_plan()
        },
        Plan {
            theta: 0.0,
            ..quick_plan()
        },
        Plan {
            theta: f64::NAN,
            ..quick_plan()
        },
    ] {
        let text = refuse(&a, &[arm("b", device())], plan);
        assert!(
            text.contains("pair") || text.contains("threshold"),
            "{text}"
        );
    }
}
