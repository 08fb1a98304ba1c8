//! CPU accounting, tested with devices that use a known amount of CPU time. A single test in this
//! program, because CPU time is counted for the whole process.

mod devices;

use bench_core::{Spec, Target, Workload, run};
use bench_load::{Extent, Job};
use bench_study::StudyPlan;
use bench_study::journal::Journal;
use bench_study::{Finding, Judgement, Kind, findings};
use bench_study::{Side, study};
use devices::{Memory, Shared};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

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
        passes: 1,
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
        // Long requests: the overhead of other work on the machine is small in comparison.
        let device = burner(4_000_000);
        let sample = run(&device, &spec(threads)).unwrap();
        // One request per thread is the warm-up.
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
    let mut job = Job::named("devmix", Extent::Quick).unwrap();
    let set = [
        ("patterns", "rand-read"),
        ("blocks", "4k"),
        ("depths", "1"),
        ("requests", "256"),
        ("span", "1M"),
    ];
    for (name, value) in set {
        job.set(name, value).unwrap();
    }
    let side = |name: &str, burn_ns| {
        let target = Target::device(name, Arc::new(burner(burn_ns)));
        Side::new(name, target, job.clone())
    };
    let sides = [
        side("a", 200_000),
        side("tenth", 220_000),
        side("none", 200_000),
    ];
    let plan = StudyPlan {
        pairs: 12,
        max_pairs: 12,
        ..StudyPlan::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(&dir.path().join("journal")).unwrap();
    let done = study(&sides, &plan, &mut journal, &mut |_| {
        ControlFlow::Continue(())
    });
    let (found, _) = findings(&done.unwrap());
    let cpu = |side: &str| {
        let of = |f: &&Finding| f.side == side && f.kind == Kind::Cpu;
        found.iter().find(of).unwrap()
    };
    let (tenth, none) = (cpu("tenth"), cpu("none"));
    assert_eq!(tenth.judgement, Judgement::Worse, "{tenth:?}");
    let ratio = tenth.ratio.unwrap().median;
    assert!((1.07..1.13).contains(&ratio), "{ratio}");
    assert_eq!(none.judgement, Judgement::Same, "{none:?}");
}
