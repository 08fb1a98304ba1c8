//! Independent checks of the benchmark's results: system calls by `strace`, the report by a
//! browser.

use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tests::{Ran, Sandbox, program};

/// Counts the system calls of a command with its threads and children, by name.
fn calls(s: &Sandbox, args: &[&str]) -> HashMap<String, u64> {
    let table = s.path("strace.txt");
    let mut strace = Command::new("strace");
    s.environment(&mut strace);
    strace
        .args(["-f", "-c", "-o"])
        .arg(&table)
        .arg(program())
        .args(args);
    Ran::of(&mut strace).ok();
    let text = fs::read_to_string(&table).unwrap();
    // `% time  seconds  usecs/call  calls  [errors]  name`
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let count = fields.get(3)?.parse().ok()?;
        Some(((*fields.last()?).to_owned(), count))
    };
    text.lines().filter_map(row).collect()
}

#[test]
fn the_counts_of_the_basic_tests_are_those_that_the_kernel_sees() {
    let s = Sandbox::new();
    fs::create_dir(s.path("here")).unwrap();
    let args = [
        "bench", "run", "nfsbasic", "--target", "here", "--quick", "--runs", "1", "--set",
        "scale=1",
    ];
    let seen = calls(&s, &args);
    let count = |prefix: &str| -> u64 {
        let named = seen.iter().filter(|(name, _)| name.starts_with(prefix));
        named.map(|(_, n)| n).sum()
    };
    // A block is two runs. The rest of the program makes none of these calls.
    for (call, each) in [
        ("rename", 100),
        ("linkat", 100),
        ("symlinkat", 200),
        ("readlinkat", 200),
        ("fchmodat", 1000),
        ("fstatfs", 1500),
        ("pwrite64", 1280),
    ] {
        assert_eq!(count(call), 2 * each, "{call}: {seen:?}");
    }
}

/// A script at the end of a copy of a page that reports the drawn size of each figure, and the
/// resources that the page has requested.
const PROBE: &str = "<script>
const size = s => { const b = s.getBoundingClientRect(); return [b.width, b.height]; };
const marks = s => s.querySelectorAll('path,polyline,rect,circle,line').length;
const probe = {
  figures: [...document.querySelectorAll('figure svg')].map(s => [...size(s), marks(s), s.querySelectorAll('text').length]),
  tables: document.querySelectorAll('table').length,
  asked: performance.getEntriesByType('resource').map(e => e.name),
  studies: (() => { try { return JSON.parse(document.getElementById('result').textContent).studies.length; } catch { return null; } })(),
};
const out = document.createElement('pre');
out.id = 'probe';
out.textContent = 'PROBE' + JSON.stringify(probe) + 'EBORP';
document.body.append(out);
</script>";

/// Runs the browser on a page, without a network.
fn browser(s: &Sandbox, more: &[String], page: &Path) -> Ran {
    let mut command = Command::new("chromium-headless-shell");
    command.current_dir(s.path("."));
    // The browser has no sandbox as root; it opens only our own page.
    command.args([
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ]);
    command.arg("--host-resolver-rules=MAP * ~NOTFOUND");
    command.arg(format!("--user-data-dir={}", s.path("browser").display()));
    command.args(more).arg(format!("file://{}", page.display()));
    Ran::of(&mut command)
}

/// Returns the browser's view of a report, in which all `figures` must be drawn and which must
/// request no resource.
fn drawn(s: &Sandbox, report: &Path, figures: usize) -> Value {
    let probed = s.path("out/probed.html");
    let html = fs::read_to_string(report).unwrap();
    fs::write(&probed, html.replace("</body>", &format!("{PROBE}</body>"))).unwrap();
    let dom = browser(s, &["--dump-dom".into()], &probed).ok().stdout;
    let json = dom
        .split_once("PROBE{")
        .and_then(|(_, rest)| rest.split_once("}EBORP"));
    let json = json
        .map(|(json, _)| format!("{{{json}}}"))
        .unwrap_or_else(|| panic!("the script has not run: {dom}"));
    let probe: Value = serde_json::from_str(
        &json
            .replace("&amp;", "&")
            .replace("&lt;", "<")
            .replace("&gt;", ">"),
    )
    .unwrap();
    let drawn = probe["figures"].as_array().unwrap();
    assert_eq!(drawn.len(), figures, "as many as there are files");
    for figure in drawn {
        let of = |n: usize| figure[n].as_f64().unwrap();
        assert!(of(0) > 200.0 && of(1) > 60.0, "a figure is {figure} large");
        assert!(
            of(2) > 3.0 && of(3) > 3.0,
            "a figure has {figure} marks and texts"
        );
    }
    assert!(
        probe["asked"].as_array().unwrap().is_empty(),
        "{}",
        probe["asked"]
    );
    probe
}

#[test]
fn a_browser_without_a_network_draws_every_figure() {
    let s = Sandbox::new();
    for folder in ["one", "two"] {
        fs::create_dir(s.path(folder)).unwrap();
    }
    let compare = [
        "bench",
        "compare",
        "one",
        "two",
        "--workload",
        "seqrand",
        "--workload",
        "sweep",
    ];
    let small = [
        "--quick",
        "--runs",
        "6",
        "--no-control",
        "--out",
        "out",
        "--set",
        "threads=1,2",
        "--set",
        "file=256k",
    ];
    s.run(&[&compare[..], &small[..]].concat()).ok();
    let report = s.path("out/report.html");
    let figures = fs::read_dir(s.path("out/figures")).unwrap().count();
    assert!(figures >= 8, "{figures} figures");

    let probe = drawn(&s, &report, figures);
    assert_eq!(probe["studies"], 2);
    assert!(probe["tables"].as_u64().unwrap() >= 2);

    picture(&s, &report, "lab-report.png");
}

/// Takes a screenshot of a report, and keeps it if an environment variable names a directory.
fn picture(s: &Sandbox, report: &Path, name: &str) {
    let picture = s.path("out/report.png");
    let shot = format!("--screenshot={}", picture.display());
    browser(s, &[shot, "--window-size=1200,3000".into()], report).ok();
    let png = fs::read(&picture).unwrap();
    assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
    let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
    assert_eq!((number(16), number(20)), (1200, 3000));
    // An empty page compresses to a few thousand bytes.
    assert!(png.len() > 50_000, "a picture of {} bytes", png.len());
    if let Some(folder) = std::env::var_os("EVFS_TEST_PICTURES") {
        fs::copy(picture, PathBuf::from(folder).join(name)).unwrap();
    }
}

/// Runs all tables and figures of the reports as briefly as possible: their values are meaningless,
/// but they must exist.
#[test]
fn all_suites_run_by_themselves_and_each_table_and_figure_is_in_the_page() {
    let s = Sandbox::new();
    let suites = ["evfs-2006", "multipath-2007", "ufc-2007", "ifs-1990"];
    let short = ["--quick", "--runs", "1", "--max-runs", "1", "--out", "out"];
    let ran = s
        .run(&[&["bench", "run"], &suites[..], &short].concat())
        .ok();
    assert!(!ran.stdout.contains("not measured"), "{}", ran.stdout);
    let report = s.path("out/report.html");
    let page = fs::read_to_string(&report).unwrap();
    for title in [
        "Figures 8 to 10",
        "Figures 11 to 14",
        "Figures 15 to 17",
        "Figures 18 to 21",
        "Figures 22 to 25",
        "Figures 26 and 27",
        "Figure 28: PostMark",
        "Figure 2: one path a LUN",
        "Figure 3: two paths a LUN",
        "SDET",
        "Mount and unmount",
        "iozone scale, a file each",
        "iozone scale, one file for all",
        "PostMark",
        "iozone az, average",
        "iozone mmap, average",
        "Nastran",
        "Mixed mode application",
        "Table 1: packet pumping",
        "Table 2: Dhrystone",
        "Table 3: Ousterhout",
        "Table 4: kernel build",
        "Table 5: clientload",
        "Table 6: Connectathon basic tests",
    ] {
        assert!(page.contains(&format!("<h3>{title}")), "{title}");
    }
    // The copy in the page is truncated if it is large; the files next to it are complete.
    let result: Value =
        serde_json::from_str(&fs::read_to_string(s.path("out/result.json")).unwrap()).unwrap();
    let studies = result["studies"].as_array().unwrap().len();
    let figures = fs::read_dir(s.path("out/figures")).unwrap().count();
    assert!(studies >= 37 && figures >= studies, "{studies}, {figures}");
    drawn(&s, &report, figures);
    picture(&s, &report, "suites-report.png");
}
