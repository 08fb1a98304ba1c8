//! Studies from their sides to the HTML page: on directories and devices, with known speeds, and
//! with a killed process.

mod sides;

use bench_core::Target;
use bench_load::{CATALOGUE, Job, Needs};
use bench_report::{Results, write};
use bench_study::{Journal, Judgement, Kind, Side, StudyPlan, findings, journal_path, study};
use block::BlockDevice;
use block_testing::{Mem, Rate};
use sides::{job, long_sides, short, whole};
use std::ops::ControlFlow;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Returns small parameters, with which all workloads together take seconds.
fn tiny(name: &str) -> Job {
    let set: &[(&str, &str)] = match name {
        "seqrand" => &[("threads", "1,2"), ("file", "256k")],
        "sweep" => &[("files", "64k,128k"), ("records", "16k,64k")],
        "mailmix" => &[("number", "20"), ("transactions", "20")],
        "micro" => &[("millis", "1")],
        "devmix" => &[("requests", "64")],
        "scriptmix" => &[("users", "1,2"), ("lines", "20")],
        "mounts" => &[("times", "2"), ("files", "2")],
        "packets" => &[("exchanges", "20")],
        "dhrystone" => &[("millis", "1")],
        "build" => &[("files", "2")],
        "fio" => &[("size", "16M")],
        "coherence" => &[("passes", "1"), ("pages", "8")],
        "sendfile" => &[("file", "1M")],
        _ => &[],
    };
    job(name, set)
}

#[test]
fn every_workload_runs_and_leaves_its_folder_empty() {
    run_workloads(|name| name != "build");
}

/// Runs the workloads of these names.
fn run_workloads(wanted: impl Fn(&str) -> bool) {
    for entry in CATALOGUE.iter().filter(|entry| wanted(entry.name)) {
        let dir = tempfile::tempdir().unwrap();
        let mut job = tiny(entry.name);
        let target = match entry.needs {
            Needs::Device => Target::device("mem", Arc::new(Mem::new(8 << 20, 512))),
            Needs::Machine => Target::machine(),
            _ => Target::folder(dir.path()).unwrap(),
        };
        if entry.name == "mounts" {
            // Mounting needs privileges, so the command fails and the error must name it.
            job.set("mount", "no-such-mount-program").unwrap();
            let error = job.run(&target, 1).unwrap_err().to_string();
            assert!(error.contains("no-such-mount-program"), "{error}");
            continue;
        }
        job.prepare(&target).unwrap();
        let record = job
            .run(&target, 2)
            .unwrap_or_else(|e| panic!("{}: {e}", entry.name));
        assert!(!record.phases.is_empty(), "{}", entry.name);
        for phase in &record.phases {
            for headline in &phase.cells[..phase.headlines()] {
                let value = headline.value();
                assert!(
                    value.is_finite() && value > 0.0,
                    "{}: {phase:?}",
                    entry.name
                );
            }
            assert!(
                phase.cells.last().unwrap().name.contains("CPU"),
                "{}",
                entry.name
            );
        }
        let headlines: usize = record.phases.iter().map(|phase| phase.headlines()).sum();
        let tests = match entry.name {
            "nfsbasic" => 10,
            "micro" => 6,
            "coherence" => 2,
            _ => 1,
        };
        assert!(headlines >= tests, "{}: {headlines}", entry.name);
        let units: Vec<&str> = record.phases[0]
            .cells
            .iter()
            .map(|c| c.unit.as_str())
            .collect();
        assert!(units.contains(&entry.unit), "{}: {units:?}", entry.name);
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            0,
            "{}",
            entry.name
        );
    }
}

#[test]
fn what_a_killed_run_left_is_gone_before_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let left = dir.path().join("evfs-bench.work/tree/more");
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(dir.path().join("mine"), "kept").unwrap();
    let target = Target::folder(dir.path()).unwrap();
    tiny("nfsbasic").run(&target, 1).unwrap();
    let names = std::fs::read_dir(dir.path()).unwrap().flatten();
    let names: Vec<_> = names.map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["mine"]);
}

#[test]
fn a_workload_refuses_a_target_that_it_cannot_use() {
    let device = Target::device("mem", Arc::new(Mem::new(1 << 20, 512)));
    let error = tiny("mailmix").run(&device, 1).unwrap_err().to_string();
    assert!(
        error.contains("needs a directory; mem is not one"),
        "{error}"
    );
    let error = tiny("devmix")
        .run(&Target::machine(), 1)
        .unwrap_err()
        .to_string();
    assert!(error.contains("needs a device"), "{error}");
}

/// Returns a device limited to `mib` MiB/s.
fn limited(mib: f64) -> Target {
    let lower: Arc<dyn BlockDevice> = Arc::new(Mem::new(8 << 20, 512));
    let bytes = (mib * 1_048_576.0) as u64;
    Target::device(
        format!("{mib} MiB/s"),
        Arc::new(Rate::new(lower, Some(bytes), None)),
    )
}

/// Otherwise a side with its own files would be used twice as much as the other.
#[test]
fn the_control_runs_on_what_was_made_again_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let set = [
        ("patterns", "seq-read"),
        ("blocks", "64k"),
        ("requests", "16"),
    ];
    let mut first = Side::new("first", limited(32.0), job("devmix", &set));
    first.again = Some(limited(8.0));
    let second = Side::new("second", limited(32.0), job("devmix", &set));
    let done = whole(dir.path(), &[first, second], &short());
    let [first, second, control] = &done.runs[..] else {
        panic!("{} sides", done.runs.len());
    };
    let least = |runs: &[bench_core::Run<bench_core::Record>]| {
        runs.iter().map(|r| r.sample.wall_ns()).min()
    };
    assert!(least(control) > least(first).map(|wall| 2 * wall));
    assert!(least(control) > least(second).map(|wall| 2 * wall));
}

/// Measures a device of 8 MiB/s and one that is 5 % slower.
///
/// Sixteen requests of 64 KiB in flight take an eighth of a second at this speed: unless the
/// machine delays a thread for longer than that, the device is the bottleneck and not the machine.
#[test]
fn a_known_speed_is_measured_within_two_percent_and_five_percent_less_is_found() {
    const FAST: f64 = 8.0;
    let dir = tempfile::tempdir().unwrap();
    let set = [
        ("patterns", "seq-read"),
        ("blocks", "64k"),
        ("depths", "16"),
        ("requests", "64"),
    ];
    let sides = [
        Side::new("fast", limited(FAST), job("devmix", &set)),
        Side::new("slow", limited(FAST * 0.95), job("devmix", &set)),
    ];
    let plan = StudyPlan {
        pairs: 6,
        max_pairs: 12,
        ..StudyPlan::default()
    };
    let done = whole(dir.path(), &sides, &plan);
    let (found, _) = findings(&done);
    let rate = found.iter().find(|f| f.unit == "MiB/s").unwrap();
    // The best run of each side, because a disturbance never makes a run faster.
    let best = |runs: &[bench_core::Run<bench_core::Record>]| {
        let values = runs
            .iter()
            .map(|run| run.sample.value(&rate.phase, &rate.cell));
        values.flatten().fold(0.0, f64::max)
    };
    for (runs, known) in done.runs.iter().zip([FAST, FAST * 0.95]) {
        let measured = best(runs);
        assert!(
            (0.98..1.02).contains(&(measured / known)),
            "{measured} MiB/s of {known}"
        );
    }
    let headline = found.iter().find(|f| f.kind == Kind::Headline).unwrap();
    assert_eq!(headline.judgement, Judgement::Worse, "{headline:?}");
}

#[test]
fn a_result_has_its_tables_figures_and_a_page_without_an_address() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("<one>"), dir.path().join("two"));
    for path in [&one, &two] {
        std::fs::create_dir(path).unwrap();
    }
    let out = dir.path().join("out");
    std::fs::create_dir(&out).unwrap();
    let sides = |name: &str| {
        [
            Side::new("<b>one", Target::folder(&one).unwrap(), tiny(name)),
            Side::new("two", Target::folder(&two).unwrap(), tiny(name)),
        ]
    };
    let plan = StudyPlan {
        pairs: 6,
        max_pairs: 6,
        ..StudyPlan::default()
    };
    whole(&out, &sides("seqrand"), &plan);
    whole(&out, &sides("sweep"), &short());
    whole(
        &out,
        &[Side::new("one", Target::machine(), tiny("dhrystone"))],
        &short(),
    );
    let results = Results::read(&out).unwrap();
    assert_eq!(results.studies.len(), 3);
    write(&results, &out).unwrap();

    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    let seen = page
        .split("<script type=\"application/json\"")
        .next()
        .unwrap();
    for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
        let namespaced = seen.replace("http://www.w3.org/2000/svg", "");
        // Links lead to other places of the page.
        let namespaced = namespaced.replace("href=\"#", "");
        assert!(
            !namespaced.contains(outside),
            "the page refers to {outside}"
        );
    }
    assert!(!seen.contains("<b>one"), "a name is not escaped");
    assert!(seen.contains("&lt;b&gt;one") && seen.contains("Notes and caveats"));
    let figures = std::fs::read_dir(out.join("figures")).unwrap().count();
    // Six series, ratios and runs; twelve color tables, ratios and runs; runs.
    assert_eq!(seen.matches("<svg ").count(), figures);
    assert!(figures >= 6 + 2 + 12 + 2, "{figures}");
    assert_eq!(
        seen.matches("<figure ").count(),
        seen.matches("</figure>").count()
    );
    // Each figure describes itself, and has a table of its values.
    assert_eq!(seen.matches("<desc id=").count(), figures);
    let tables = "<summary>Values of this figure</summary><table>";
    assert_eq!(seen.matches(tables).count(), figures);
    let answer = &results.answer;
    for part in ["seqrand: ", "sweep: ", "dhrystone on one"] {
        assert!(answer.contains(part), "{part}: {answer}");
    }
    assert!(seen.contains("<h1 id=\"answer\">"), "the answer is missing");

    let csv = std::fs::read_to_string(out.join("cells.csv")).unwrap();
    let figures: usize = results.findings.iter().map(|f| f.figures.len()).sum();
    assert_eq!(csv.lines().count(), figures + 1);
    let text = std::fs::read_to_string(out.join("report.txt")).unwrap();
    assert!(text.contains("differ in: target") && text.contains("| write, 1 thread"));
    assert!(text.starts_with(&format!("{answer}\n")), "{text}");
    assert!(
        text.contains("\nMeasured 2") && text.contains(" UTC"),
        "{text}"
    );

    // The stored JSON yields the same results as the journals.
    let stored = Results::read(&out.join("result.json")).unwrap();
    assert!(stored == results);
    let other = std::fs::read_to_string(out.join("result.json")).unwrap();
    let other = other.replacen("evfs-lab-result/1", "evfs-lab-result/9", 1);
    std::fs::write(out.join("other.json"), other).unwrap();
    let refused = Results::read(&out.join("other.json"))
        .unwrap_err()
        .to_string();
    assert!(refused.contains("evfs-lab-result/9"), "{refused}");
}

#[test]
fn a_killed_process_leaves_a_result_that_can_be_taken_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(test_support::example("long_study"))
        .arg(dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let journal = journal_path(dir.path(), "dhrystone");
    let lines = || std::fs::read_to_string(&journal).map_or(0, |t| t.lines().count());
    let deadline = Instant::now() + Duration::from_secs(60);
    while lines() < 20 {
        assert!(Instant::now() < deadline, "it writes nothing down");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let kept = Results::read(dir.path()).unwrap();
    let runs: usize = kept.studies[0].runs.iter().map(Vec::len).sum();
    assert!(runs >= 15 && kept.studies[0].end.is_none(), "{runs} runs");
    write(&kept, dir.path()).unwrap();
    let text = std::fs::read_to_string(dir.path().join("report.txt")).unwrap();
    assert!(text.contains("INCOMPLETE"), "{text}");

    let plan = kept.studies[0].plan.clone();
    let mut journal = Journal::open(&journal).unwrap();
    let (mut replayed, mut made) = (0, 0);
    let on = study(&long_sides(), &plan, &mut journal, &mut |step| {
        if let bench_study::Step::Ran { replayed: old, .. } = step {
            *(if old { &mut replayed } else { &mut made }) += 1;
        }
        if made >= 6 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    let on = on.unwrap();
    assert_eq!((replayed, made), (runs, 6));
    assert_eq!(on.sessions.len(), 2);
    assert_eq!(on.runs.iter().map(Vec::len).sum::<usize>(), runs + 6);
}

mod needs_peer {
    use super::*;

    #[test]
    fn a_build_runs_and_leaves_its_folder_empty() {
        test_support::installed("make");
        run_workloads(|name| name == "build");
    }
}
