//! The report of a benchmark as its readers see it: in a browser, in wide and narrow windows, in the
//! light and the dark color scheme.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tests::{Ran, Sandbox};

/// Widths of the windows: a desktop and a telephone.
const WIDTHS: [u32; 2] = [1280, 420];
/// Smallest size of text in a narrow window, in pixels.
const TEXT_MIN: f64 = 10.0;
/// Smallest contrast of text, by WCAG 2.1, level AA.
const CONTRAST_MIN: f64 = 4.5;

/// A script at the end of a copy of a page that reports what the browser has laid out: texts that
/// leave their boxes or touch each other, sizes of text, and contrasts.
const PROBE: &str = r#"<script>
const faults = [];
const say = (what, e) => faults.push(what + ': ' + (e.textContent || e.id || e.tagName).slice(0, 60));
const shown = e => e.getClientRects().length > 0 && !e.closest('thead, script, style, title, desc');
let smallest = Infinity;
document.querySelectorAll('details').forEach(d => d.open = true);
for (const svg of document.querySelectorAll('figure svg')) {
  const box = svg.viewBox.baseVal, scale = svg.getScreenCTM().a, texts = [];
  for (const t of svg.querySelectorAll('text')) {
    const b = t.getBBox();
    if (b.width === 0) continue;
    if (b.x < -0.5 || b.y < -0.5 || b.x + b.width > box.width + 0.5 || b.y + b.height > box.height + 0.5)
      say('outside its figure', t);
    smallest = Math.min(smallest, parseFloat(getComputedStyle(t).fontSize) * scale);
    for (const o of texts)
      if (b.x < o.b.x + o.b.width - 0.5 && o.b.x < b.x + b.width - 0.5 &&
          b.y < o.b.y + o.b.height - 0.5 && o.b.y < b.y + b.height - 0.5)
        say('touches "' + o.t.textContent + '"', t);
    texts.push({ b, t });
  }
  if (!svg.querySelector(':scope > title') || !svg.querySelector(':scope > desc')) say('without words', svg);
  if (!svg.closest('figure').querySelector('table td')) say('without a table', svg);
}
for (const e of document.querySelectorAll('h1,h2,h3,p,li,td,th,caption,summary')) {
  if (!shown(e)) continue;
  if (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline') say('wider than its box', e);
  smallest = Math.min(smallest, parseFloat(getComputedStyle(e).fontSize));
}
const channel = c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const light = rgb => { const [r, g, b] = rgb.match(/[\d.]+/g).map(c => channel(c / 255)); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((m, n) => n - m); return (x + 0.05) / (y + 0.05); };
const paper = getComputedStyle(document.body).backgroundColor;
const contrasts = [...document.querySelectorAll('h1,p,td,th,a,summary,caption')].filter(shown).map(e => contrast(getComputedStyle(e).color, paper));
const text = id => document.getElementById(id).textContent;
const probe = {
  faults, smallest, paper,
  contrast: Math.min(...contrasts),
  width: innerWidth,
  scrolls: document.documentElement.scrollWidth > innerWidth,
  figures: document.querySelectorAll('figure').length,
  answer: text('answer'),
  summary: [...document.querySelectorAll('#summary td, #summary th')].map(e => e.textContent).join(' | '),
  facts: [...document.querySelectorAll('.facts')].map(e => e.textContent).join(' | '),
  asked: performance.getEntriesByType('resource').map(e => e.name),
};
const out = document.createElement('pre');
out.textContent = 'PROBE' + JSON.stringify(probe) + 'EBORP';
document.body.replaceChildren(out);
</script>"#;

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
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ]);
    command.arg(format!("--user-data-dir={}", s.path("browser").display()));
    command.args(more).arg(format!("file://{}", page.display()));
    Ran::of(&mut command)
}

fn window(width: u32, is_dark: bool) -> Vec<String> {
    let scheme = if is_dark { 0 } else { 1 };
    vec![
        format!("--window-size={width},900"),
        format!("--blink-settings=preferredColorScheme={scheme}"),
    ]
}

/// Lays a report out in a window, and returns the report of the probe.
fn laid_out(s: &Sandbox, report: &Path, width: u32, is_dark: bool) -> Value {
    let probed = s.path("probed.html");
    let html = fs::read_to_string(report).unwrap();
    fs::write(&probed, html.replace("</body>", &format!("{PROBE}</body>"))).unwrap();
    let mut options = window(width, is_dark);
    options.push("--dump-dom".into());
    let dom = browser(s, &options, &probed).ok().stdout;
    let json = dom
        .split_once("PROBE{")
        .and_then(|(_, rest)| rest.split_once("}EBORP"));
    let (json, _) = json.unwrap_or_else(|| panic!("the script has not run: {dom}"));
    let json = format!("{{{json}}}").replace("&lt;", "<");
    let json = json.replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&json).unwrap_or_else(|e| panic!("{e}: {json}"))
}

/// Checks a report in all windows. `figures` is the number of files with figures.
fn check(s: &Sandbox, report: &Path, figures: usize, name: &str) {
    let mut papers = Vec::new();
    for width in WIDTHS {
        for is_dark in [false, true] {
            let seen = laid_out(s, report, width, is_dark);
            let place = format!("{name}, {width} pixels, dark: {is_dark}: {seen}");
            assert_eq!(seen["width"], width, "{place}");
            assert_eq!(seen["faults"].as_array().unwrap().len(), 0, "{place}");
            assert_eq!(seen["scrolls"], false, "{place}");
            assert!(seen["smallest"].as_f64().unwrap() >= TEXT_MIN, "{place}");
            assert!(
                seen["contrast"].as_f64().unwrap() >= CONTRAST_MIN,
                "{place}"
            );
            assert_eq!(seen["figures"], figures, "{place}");
            assert!(seen["asked"].as_array().unwrap().is_empty(), "{place}");
            answers(&seen);
            papers.push((is_dark, seen["paper"].as_str().unwrap().to_owned()));
            picture(s, report, width, is_dark, name);
        }
    }
    papers.sort();
    papers.dedup();
    assert_eq!(papers.len(), 2, "the color scheme is followed: {papers:?}");
}

/// Checks that each figure in the answer is in the first table, and that date, machine and units are
/// named.
fn answers(seen: &Value) {
    let (answer, summary) = (
        seen["answer"].as_str().unwrap(),
        seen["summary"].as_str().unwrap(),
    );
    assert!(answer.ends_with('.') && answer.len() < 1500, "{answer}");
    let words: Vec<&str> = answer.split([' ', '(', ')', ',', ';']).collect();
    for pair in words.windows(2) {
        let number = pair[0].trim_start_matches(['+', '-']);
        let is_figure = number.contains('.') && number.parse::<f64>().is_ok();
        if is_figure && pair[1] == "%" {
            let percent = format!("{number} %");
            assert!(summary.contains(&percent), "{percent}: {answer}: {summary}");
        }
    }
    let facts = seen["facts"].as_str().unwrap();
    for part in ["Measured ", " UTC", "Linux ", " CPUs", " memory", "evfs "] {
        assert!(facts.contains(part), "{part}: {facts}");
    }
}

/// Takes a screenshot, and keeps it if an environment variable names a directory.
fn picture(s: &Sandbox, report: &Path, width: u32, is_dark: bool, name: &str) {
    let Some(folder) = std::env::var_os("EVFS_TEST_PICTURES") else {
        return;
    };
    let scheme = if is_dark { "dark" } else { "light" };
    let file = PathBuf::from(folder).join(format!("{name}-{width}-{scheme}.png"));
    let mut options = window(width, is_dark);
    options.push(format!("--screenshot={}", file.display()));
    browser(s, &options, report).ok();
    assert_eq!(&fs::read(file).unwrap()[..8], b"\x89PNG\r\n\x1a\n");
}

fn figures(s: &Sandbox, folder: &str) -> usize {
    fs::read_dir(s.path(folder).join("figures"))
        .unwrap()
        .count()
}

#[test]
fn a_comparison_is_understood_in_wide_and_narrow_windows() {
    let s = Sandbox::new();
    let compare = ["bench", "compare", "clear", "encrypted", "--size", "8M"];
    let work = ["--workload", "seq-read", "--workload", "rand-write"];
    let short = ["--block", "64k", "--runs", "6", "--max-runs", "6"];
    let rest = ["--seconds", "0.02", "--out", "out"];
    let ran = s.run(&[&compare[..], &work, &short, &rest].concat()).ok();
    let (answer, text) = ran.stdout.split_once('\n').unwrap();
    for part in [
        "encrypted-128",
        "encrypted-256",
        "clear",
        "CPU for the same work",
    ] {
        assert!(answer.contains(part), "{part}: {answer}");
    }
    for part in ["\nMeasured 2", " UTC on ", "64 KiB", "95 % interval"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("65536"), "{text}");
    let report = s.path("out/report.html");
    let page = fs::read_to_string(&report).unwrap();
    let (page, _) = page.split_once("<script").unwrap();
    // Names are complete: each side and each request size.
    for part in [
        "encrypted-128, rand-write, 64 KiB",
        "encrypted-256, rand-write, 64 KiB",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("65536 bytes") && !page.contains('…'));
    check(&s, &report, figures(&s, "out"), "compare");
}

#[test]
fn series_tables_and_single_runs_fit_their_windows() {
    let s = Sandbox::new();
    for folder in ["one", "two"] {
        fs::create_dir(s.path(folder)).unwrap();
    }
    let compare = ["bench", "compare", "one", "two", "--workload", "seqrand"];
    let short = ["--quick", "--runs", "2", "--out", "out"];
    let sets = ["--set", "threads=1,2,4", "--set", "file=256k"];
    let sweep = ["--workload", "sweep", "--set", "records=4k,64k"];
    s.run(&[&compare[..], &sweep, &short, &sets].concat()).ok();
    let single = ["bench", "run", "dhrystone", "--set", "millis=5"];
    s.run(&[&single[..], &short].concat()).ok();
    s.run(&["bench", "report", "out"]).ok();
    check(&s, &s.path("out/report.html"), figures(&s, "out"), "series");
}

/// A reproduced report has the same page.
#[test]
fn a_reproduced_report_is_understood_in_wide_and_narrow_windows() {
    let s = Sandbox::new();
    for folder in ["one", "two"] {
        fs::create_dir(s.path(folder)).unwrap();
    }
    let compare = ["bench", "compare", "one", "two", "--suite", "evfs-2006"];
    let short = ["--quick", "--runs", "2", "--out", "out"];
    let sets = ["threads=1,2", "file=256k", "number=20", "transactions=20"];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", *set]).collect();
    let ran = s.run(&[&compare[..], &short, &sets].concat()).ok();
    let first = ran.stdout.lines().next().unwrap();
    assert!(
        first.contains("evfs-2006: ") && first.contains("lines of the published report"),
        "{first}"
    );
    check(&s, &s.path("out/report.html"), figures(&s, "out"), "suite");
}
