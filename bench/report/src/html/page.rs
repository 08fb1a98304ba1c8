//! The page: the answer, the machine, charts, tables, caveats, and the raw data.

use super::charts::of_study;
use super::svg::escape;
use super::tables::write_table;
use crate::answer::{self, SuiteCounts};
use crate::label::{readable, title};
use crate::layers;
use crate::notes::notes;
use crate::results::Results;
use crate::suite::{self, Shown, Suite};
use crate::{accounts, setup};
use bench_core::figures::{change, change_interval, number};
use bench_study::{Finding, Kind, Study, findings};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Maximum bytes of raw data in a page.
const RAW_MAX: usize = 4 << 20;
/// Number of rows above which a table is collapsed.
const OPEN_ROWS: usize = 24;
/// Number of studies above which their list is collapsed.
const OPEN_STUDIES: usize = 8;

const STYLE: &str = include_str!("page.css");

/// Renders the results as one HTML page.
pub fn page(results: &Results) -> String {
    let studies = &results.studies;
    let about = studies.first().map_or_else(String::new, title);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>Benchmark report: {}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <style>\n{STYLE}</style></head><body>\n",
        escape(&about)
    );
    header(&mut out, results);
    out.push_str("<main>\n");
    summary(&mut out, results);
    contents(&mut out, studies);
    for shown in &results.suites {
        suite_section(&mut out, shown);
    }
    for study in studies {
        section(&mut out, study);
    }
    machine(&mut out, studies);
    raw(&mut out, results);
    out.push_str("</main></body></html>\n");
    out
}

/// Writes the answer, when and where it was measured, and what speaks against it.
fn header(out: &mut String, results: &Results) {
    let _ = writeln!(
        out,
        "<header><p class=\"kind\">Benchmark report</p>\n<h1 id=\"answer\">{}</h1>",
        escape(&results.answer)
    );
    for line in answer::facts(&results.studies) {
        let _ = writeln!(out, "<p class=\"facts\">{}</p>", escape(&line));
    }
    for caution in answer::cautions(&results.studies) {
        let _ = writeln!(out, "<p class=\"caution\">{}</p>", escape(&caution));
    }
    out.push_str("</header>\n");
}

/// Writes the values of the answer.
fn summary(out: &mut String, results: &Results) {
    out.push_str("<section id=\"summary\">\n");
    let mut compared = vec![answer::HEAD.map(str::to_owned).to_vec()];
    let alone = |study: &&Study| study.plan.part.is_none() && study.sides.len() > 1;
    for study in results.studies.iter().filter(alone) {
        let (found, means) = findings(study);
        let rows = answer::compared(study, &found, &means);
        compared.extend(rows.iter().map(answer::Compared::cells));
    }
    write_table(
        out,
        "Change: median of the paired runs, which disturbances of the machine hardly affect. It \
         differs from the ratio of two medians.",
        &compared,
    );
    let head = ["workload", "phase", "figure", "median", "unit", "runs"];
    let mut single = vec![head.map(str::to_owned).to_vec()];
    single.extend(answer::single_rows(&results.studies));
    write_table(out, "Medians of all counted runs.", &single);
    let head = ["report", "lines", "measured", "in the published direction"];
    let mut suites = vec![head.map(str::to_owned).to_vec()];
    suites.extend(results.suites.iter().map(|shown| {
        let counts = SuiteCounts::of(shown);
        vec![
            format!("{}: {}", shown.suite, shown.after),
            counts.lines.to_string(),
            counts.measured.to_string(),
            format!("{} of {}", counts.alike, counts.published),
        ]
    }));
    write_table(
        out,
        "Published reports: only lines with a published change have a direction.",
        &suites,
    );
    out.push_str("</section>\n");
}

/// Writes links to the studies, if there are several.
fn contents(out: &mut String, studies: &[Study]) {
    if studies.len() < 2 {
        return;
    }
    let open = if studies.len() <= OPEN_STUDIES {
        " open"
    } else {
        ""
    };
    let _ = writeln!(
        out,
        "<nav aria-label=\"Contents\"><details{open}><summary>{} studies</summary><ul>",
        studies.len()
    );
    for study in studies {
        let _ = writeln!(
            out,
            "<li><a href=\"#{}\">{}</a></li>",
            escape(&study.key()),
            escape(&title(study))
        );
    }
    out.push_str("</ul></details></nav>\n");
}

/// Writes the tables of a report next to the measured values.
fn suite_section(out: &mut String, shown: &Shown) {
    let title = format!("{}: {}", shown.suite, shown.after);
    let _ = writeln!(out, "<h2>{}</h2>", escape(&title));
    for lines in shown.lines.chunk_by(|a, b| a.part == b.part) {
        let _ = writeln!(out, "<h3>{}</h3>", escape(&lines[0].part));
        let mut rows = vec![suite::HEAD[1..].iter().map(|&h| h.to_owned()).collect()];
        rows.extend(lines.iter().map(|line| suite::cells(line).split_off(1)));
        write_table(out, "", &rows);
        let studies: BTreeSet<&str> = lines.iter().map(|line| line.study.as_str()).collect();
        let links: Vec<String> = studies
            .iter()
            .map(|key| format!("<a href=\"#{0}\">{0}</a>", escape(key)))
            .collect();
        let _ = writeln!(out, "<p>Charts and all values: {}.</p>", links.join(", "));
    }
}

/// Writes one study: its answer, charts, values, notes and setup.
fn section(out: &mut String, study: &Study) {
    let (found, means) = findings(study);
    let (id, head) = (escape(&study.key()), escape(&title(study)));
    let _ = writeln!(out, "<section>\n<h2 id=\"{id}\">{head}</h2>");
    if let Some(part) = Suite::part_of(&study.key()) {
        let _ = writeln!(out, "<p>{}.</p>", escape(part.title));
    }
    for line in answer::lines(study, &found, &means) {
        let _ = writeln!(out, "<p>{}</p>", escape(&line));
    }
    let entry = study.sides.first().map(|side| side.job.entry());
    if let Some(entry) = entry {
        let text = format!("{}; after {}.", entry.what, entry.after);
        let _ = writeln!(out, "<p class=\"facts\">{}</p>", escape(&text));
    }
    out.push_str("<div class=\"figures\">\n");
    for figure in of_study(study, &found) {
        let _ = write!(
            out,
            "<figure id=\"{}\">{}<figcaption><details><summary>Values of this figure</summary>",
            escape(&figure.name),
            figure.svg
        );
        write_table(out, "", &figure.values);
        out.push_str("</details></figcaption></figure>\n");
    }
    out.push_str("</div>\n");
    folded(out, found.len(), |out| {
        write_table(out, "", &rows(study, &found));
    });
    by_layer(out, study);
    for shown in accounts::shown(study) {
        let _ = writeln!(out, "<h3>{}</h3>", escape(shown.title));
        write_table(out, "", &shown.readable());
    }
    out.push_str("<div class=\"box\"><p>Notes and caveats:</p><ul>\n");
    for note in notes(study, &found) {
        let _ = writeln!(out, "<li>{}</li>", escape(&note));
    }
    out.push_str("</ul></div>\n<details><summary>Sides and plan</summary>\n");
    write_table(out, "Sides", &setup::sides(study));
    write_table(out, "Plan", &setup::plan(study));
    out.push_str("</details>\n</section>\n");
}

/// Writes a table of all figures, collapsed if it is long.
fn folded(out: &mut String, figures: usize, table: impl FnOnce(&mut String)) {
    out.push_str("<h3>All figures</h3>\n");
    if figures > OPEN_ROWS {
        let _ = writeln!(out, "<details><summary>{figures} figures</summary>");
        table(out);
        out.push_str("</details>\n");
    } else {
        table(out);
    }
}

/// Writes CPU by layer, if it was counted.
fn by_layer(out: &mut String, study: &Study) {
    let rows = layers::layer_rows(study);
    if rows.is_empty() {
        return;
    }
    out.push_str("<h3>CPU by layer</h3>\n");
    let mut lines = vec![layers::heads()];
    lines.extend(rows.iter().map(layers::cells));
    write_table(out, "", &lines);
}

/// Builds the rows of all figures of a study.
fn rows(study: &Study, found: &[Finding]) -> Vec<Vec<String>> {
    let one = study.sides.len() == 1;
    let base = study.sides.first().map_or("", |s| s.name.as_str());
    let head: &[&str] = if one {
        &["phase", "figure", "median", "unit", "role"]
    } else {
        &[
            "phase",
            "figure",
            "side",
            base,
            "value",
            "unit",
            "change",
            "95 % interval",
            "pairs",
            "control",
            "verdict",
            "role",
        ]
    };
    let mut rows: Vec<Vec<String>> = vec![head.iter().map(|&name| name.to_owned()).collect()];
    rows.extend(found.iter().map(|f| row(f, one)));
    rows
}

fn row(f: &Finding, one: bool) -> Vec<String> {
    let dash = || "-".to_owned();
    let show = |v: f64| if v.is_finite() { number(v) } else { dash() };
    let role = match f.kind {
        Kind::Headline => "headline",
        Kind::Cpu => "CPU",
        Kind::Further => "further",
    };
    let mut cells = vec![readable(&f.phase), readable(&f.cell)];
    if one {
        cells.extend([show(f.value), f.unit.clone()]);
    } else {
        cells.extend([
            f.side.clone(),
            show(f.base),
            show(f.value),
            f.unit.clone(),
            f.ratio.map_or_else(dash, |r| change(r.median)),
            f.ratio.map_or_else(dash, |r| change_interval(&r)),
            f.ratio.map_or(0, |r| r.n).to_string(),
            f.control.map_or_else(dash, |c| change(c.median)),
            f.judgement.name().to_owned(),
        ]);
    }
    cells.push(role.to_owned());
    cells
}

/// Writes the properties of each machine.
fn machine(out: &mut String, studies: &[Study]) {
    out.push_str("<section>\n<h2>Machine</h2>\n");
    let mut seen = BTreeSet::new();
    for session in studies.iter().flat_map(|study| &study.sessions) {
        if seen.insert(session.line()) {
            write_table(out, "", &setup::machine(session));
        }
    }
    out.push_str("</section>\n");
}

/// Embeds the contents of `result.json` for programs, unless it is too long for a page.
fn raw(out: &mut String, results: &Results) {
    let json = serde_json::to_string(results).expect("plain data has a JSON form");
    if json.len() > RAW_MAX {
        out.push_str("<p>The raw data is in result.json next to this page.</p>\n");
        return;
    }
    // No tag may end this element and no comment may hide its end; JSON allows an escape for `<`.
    let json = json.replace('<', "\\u003c");
    let _ = writeln!(
        out,
        "<script type=\"application/json\" id=\"result\">{json}</script>"
    );
}
