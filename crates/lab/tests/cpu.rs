//! CPU accounting against devices that burn a known amount. One test in this program, because CPU is
//! counted for the whole process.

mod devices;

use devices::{Memory, Shared};
use lab::{Arm, Plan, Spec, Verdict, Workload, compare, run};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

fn burner(burn_ns: u64) -> Memory {
    let shared = Shared {
        burn_ns,
        ..Shared::default()
    };
    Memory::new(8 << 20, shared)
}

fn spec(threads: u32) -> Spec {
    Spec {
        workload: Workload::RandRead,
        block: 4096,
        threads,
        bytes_per_thread: Some(256 << 10),
        passes: 4,
        ..Spec::default()
    }
}

#[test]
fn cpu_is_counted_exactly_and_a_tenth_more_of_it_is_found() {
    known_cpu_is_counted_within_two_percent();
    a_tenth_more_cpu_is_found();
}

fn known_cpu_is_counted_within_two_percent() {
    for threads in [1, 4] {
        let device = burner(500_000);
        let sample = run(&device, &spec(threads)).unwrap();
        // One request a thread is the warm-up.
        let burned = device.shared.burned_ns.load(Relaxed);
        let timed = burned * sample.requests / (sample.requests + u64::from(threads));
        let ratio = sample.cpu.total_ns as f64 / timed as f64;
        assert!(
            (0.98..1.02).contains(&ratio),
            "{threads} threads: {ratio} of {timed} ns"
        );
    }
}

fn a_tenth_more_cpu_is_found() {
    let arm = |name: &str, burn_ns| Arm::new(name, Arc::new(burner(burn_ns)));
    let plan = Plan {
        pairs: 12,
        max_pairs: 12,
        min_wall: Duration::from_millis(30),
        ..Plan::default()
    };
    let comparison = compare(
        &arm("a", 200_000),
        &[arm("tenth", 220_000), arm("none", 200_000)],
        &spec(1),
        &plan,
        &mut |_| ControlFlow::Continue(()),
    )
    .unwrap();
    let [tenth, none] = &comparison.versus[..] else {
        panic!("two other arms were compared");
    };
    assert_eq!(tenth.cpu_verdict, Verdict::Higher, "{tenth:?}");
    let cpu = tenth.cpu.unwrap().median;
    assert!((1.07..1.13).contains(&cpu), "{cpu}");
    assert_eq!(none.cpu_verdict, Verdict::Same, "{none:?}");
}
