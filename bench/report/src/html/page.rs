//! The page: verdicts, charts, tables, caveats, the machine, and the raw data.

use super::charts::figures;
use super::svg::escape;
use crate::accounts;
use crate::layers;
use crate::results::Results;
use crate::suite;
use crate::suite::{Shown, Suite};
use crate::table::{notes, title, verdicts};
use bench_core::figures::{number, ratio as ratio_text};
use bench_study::{Finding, Kind, Study, findings};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::slice;

/// Maximum bytes of raw data in a page.
const RAW_MAX: usize = 4 << 20;
/// Number of rows above which a table is collapsed.
const OPEN_ROWS: usize = 24;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}\
table{border-collapse:collapse;margin:1rem 0;font-size:13px}td,th{border:1px solid #ccc;padding:.2rem .5rem;text-align:left}\
td.n{text-align:right;font-variant-numeric:tabular-nums}.better{color:#1b7837}.worse{color:#b2182b}.verdict{font-size:1.1rem}\
.box{border:1px solid #ccc;border-left:4px solid #888;padding:.2rem 1rem;margin:1rem 0}svg{max-width:100%;height:auto}pre{overflow:auto}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#1a1a1a}td,th,.box{border-color:#555}.better{color:#7fbf7b}.worse{color:#ef8a62}}";

/// Renders the results as one HTML page.
pub fn page(results: &Results) -> String {
    let studies = &results.studies;
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>evfs bench</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<style>{STYLE}</style></head><body>\n<h1>Benchmark report</h1>\n"
    );
    // Verdicts about parts of a suite appear in its tables and in their own sections.
    for study in studies.iter().filter(|study| study.plan.part.is_none()) {
        verdict_lines(&mut out, study);
    }
    for shown in &results.suites {
        suite_section(&mut out, shown);
    }
    for study in studies {
        section(&mut out, study);
    }
    machine(&mut out, studies);
    raw(&mut out, results);
    out.push_str("</body></html>\n");
    out
}

/// Writes the tables of a report next to the measured values.
fn suite_section(out: &mut String, shown: &Shown) {
    let title = format!("{}: {}", shown.suite, shown.after);
    let _ = writeln!(out, "<h2>{}</h2>", escape(&title));
    for lines in shown.lines.chunk_by(|a, b| a.part == b.part) {
        let _ = writeln!(out, "<h3>{}</h3>\n<table><tr>", escape(&lines[0].part));
        for head in &suite::HEAD[1..] {
            let _ = write!(out, "<th>{head}</th>");
        }
        out.push_str("</tr>\n");
        for line in lines {
            out.push_str("<tr>");
            for cell in &suite::cells(line)[1..] {
                let _ = write!(out, "<td>{}</td>", escape(cell));
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</table>\n");
        let studies: BTreeSet<&str> = lines.iter().map(|line| line.study.as_str()).collect();
        let links: Vec<String> = studies
            .iter()
            .map(|key| format!("<a href=\"#{0}\">{0}</a>", escape(key)))
            .collect();
        let _ = writeln!(out, "<p>Charts and all values: {}.</p>", links.join(", "));
    }
}

/// Writes the verdicts of a study.
fn verdict_lines(out: &mut String, study: &Study) {
    let (key, (_, means)) = (escape(&study.key()), findings(study));
    for line in verdicts(study, &means) {
        let _ = writeln!(out, "<p class=\"verdict\">{key}: {}</p>", escape(&line));
    }
}

fn section(out: &mut String, study: &Study) {
    let (found, _) = findings(study);
    let (id, head) = (escape(&study.key()), escape(&title(study)));
    let _ = writeln!(out, "<h2 id=\"{id}\">{head}</h2>");
    if let Some(part) = Suite::part_of(&study.key()) {
        let _ = writeln!(out, "<p>{}.</p>", escape(part.title));
        verdict_lines(out, study);
    }
    let entry = study.sides.first().map(|side| side.job.entry());
    if let Some(entry) = entry {
        let text = format!("{}; after {}.", entry.what, entry.after);
        let _ = writeln!(out, "<p>{}</p>", escape(&text));
    }
    for (name, svg) in figures(slice::from_ref(study)) {
        let _ = writeln!(out, "<figure id=\"{}\">{svg}</figure>", escape(&name));
    }
    let folded = found.len() > OPEN_ROWS;
    if folded {
        let _ = writeln!(
            out,
            "<details><summary>All {} figures</summary>",
            found.len()
        );
    }
    table(out, study, &found);
    if folded {
        out.push_str("</details>\n");
    }
    by_layer(out, study);
    accounts(out, study);
    out.push_str("<div class=\"box\"><p>Notes and caveats:</p><ul>\n");
    for note in notes(study, &found) {
        let _ = writeln!(out, "<li>{}</li>", escape(&note));
    }
    out.push_str("</ul></div>\n");
}

/// Writes CPU by layer, if it was counted.
fn by_layer(out: &mut String, study: &Study) {
    let rows = layers::layer_rows(study);
    if rows.is_empty() {
        return;
    }
    out.push_str("<h3>CPU by layer</h3>\n<table><tr>");
    for head in layers::heads() {
        let _ = write!(out, "<th>{}</th>", escape(&head));
    }
    out.push_str("</tr>\n");
    for row in &rows {
        out.push_str("<tr>");
        for cell in layers::cells(row) {
            let _ = write!(out, "<td>{}</td>", escape(&cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table>\n");
}

/// Writes the machine resources used by runs, and service times.
fn accounts(out: &mut String, study: &Study) {
    for shown in accounts::shown(study) {
        let _ = writeln!(out, "<h3>{}</h3>\n<table>", shown.title);
        for (n, row) in shown.rows.iter().enumerate() {
            let tag = if n == 0 { "th" } else { "td" };
            out.push_str("<tr>");
            for cell in row {
                let _ = write!(out, "<{tag}>{}</{tag}>", escape(cell));
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</table>\n");
    }
}

fn table(out: &mut String, study: &Study, found: &[Finding]) {
    let one = study.sides.len() == 1;
    let base = study.sides.first().map_or("", |s| s.name.as_str());
    let heads: Vec<&str> = if one {
        vec!["phase", "figure", "median", "unit"]
    } else {
        vec![
            "phase",
            "figure",
            "side",
            base,
            "value",
            "unit",
            "change %",
            "gain %",
            "ratio",
            "pairs",
            "control",
            "judgement",
        ]
    };
    out.push_str("<table><tr>");
    for head in heads {
        let _ = write!(out, "<th>{}</th>", escape(head));
    }
    out.push_str("</tr>\n");
    for f in found {
        row(out, f, one);
    }
    out.push_str("</table>\n");
}

fn row(out: &mut String, f: &Finding, one: bool) {
    let show = |v: f64| if v.is_finite() { number(v) } else { "-".into() };
    let percent = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:+.1}"));
    let weight = if f.kind == Kind::Headline { "<b>" } else { "" };
    let _ = write!(
        out,
        "<tr><td>{}</td><td>{weight}{}</td>",
        escape(&f.phase),
        escape(&f.cell)
    );
    let unit = escape(&f.unit);
    if one {
        let _ = writeln!(
            out,
            "<td class=\"n\">{}</td><td>{unit}</td></tr>",
            show(f.value)
        );
        return;
    }
    let _ = write!(
        out,
        "<td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{unit}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>",
        escape(&f.side),
        show(f.base),
        show(f.value),
        percent(f.change()),
        percent(f.gain()),
    );
    let _ = writeln!(
        out,
        "<td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"{}\">{}</td></tr>",
        f.ratio.map_or("-".into(), |r| escape(&ratio_text(&r))),
        f.ratio.map_or(0, |r| r.n),
        f.control.map_or("-".into(), |c| format!("{:.3}", c.median)),
        f.judgement.name().replace(' ', "-"),
        f.judgement.name(),
    );
}

fn machine(out: &mut String, studies: &[Study]) {
    out.push_str("<h2>Machine and parameters</h2>\n");
    let sessions = studies.iter().flat_map(|s| s.sessions.first());
    if let Some(environment) = sessions.into_iter().next() {
        let json = serde_json::to_string_pretty(environment).expect("plain data has a JSON form");
        let _ = writeln!(
            out,
            "<details open><summary>Machine</summary><pre>{}</pre></details>",
            escape(&json)
        );
    }
    for study in studies {
        let json = serde_json::to_string_pretty(&(&study.sides, &study.plan))
            .expect("plain data has a JSON form");
        let _ = writeln!(
            out,
            "<details><summary>{}: sides and plan</summary><pre>{}</pre></details>",
            escape(&study.key()),
            escape(&json)
        );
    }
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
