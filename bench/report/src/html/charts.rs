//! Charts: lines above bars, ratios with intervals, color tables, and runs in order.

use super::layers::by_layer;
use super::svg::{Drawing, side, steps};
use crate::table::title;
use bench_core::figures::number;
use bench_core::record::{Better, Phase, PhaseFigure, Record};
use bench_core::result::Run;
use bench_study::{Finding, Judgement, Kind, Study, findings};

/// Maximum number of ratios in one chart.
const FOREST_MAX: usize = 60;
/// Maximum number of characters of a ratio's label, so that it fits next to the plot.
const LABEL_MAX: usize = 52;
/// Maximum number of line charts, one per series.
const SERIES_MAX: usize = 60;

/// Draws all charts of the studies; returns pairs of file name and SVG.
pub fn figures(studies: &[Study]) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for study in studies {
        let (found, _) = findings(study);
        let mut add = |kind: &str, svg: String| {
            all.push((format!("{}-{}", study.key(), file_name(kind)), svg));
        };
        if let Some(svg) = forest(study, &found) {
            add("ratios", svg);
        }
        for series in series(study).into_iter().take(SERIES_MAX) {
            if table_of(study, &series) {
                if let Some(svg) = colours(study, &found, &series) {
                    add(&series, svg);
                }
            } else {
                add(&series, lines(study, &series))
            }
        }
        if let Some(svg) = by_layer(study) {
            add("layers", svg);
        }
        if let Some(svg) = order(study) {
            add("runs", svg);
        }
    }
    all
}

fn file_name(text: &str) -> String {
    let keep = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let name: String = text.chars().map(keep).collect();
    let parts: Vec<&str> = name.split('-').filter(|p| !p.is_empty()).collect();
    parts.join("-")
}

/// Lists the names of a study's series in order.
fn series(study: &Study) -> Vec<String> {
    let mut names = Vec::new();
    for phase in first_record(study).into_iter().flat_map(|r| &r.phases) {
        if let Some(point) = &phase.point
            && !names.contains(&point.series)
        {
            names.push(point.series.clone());
        }
    }
    names
}

fn first_record(study: &Study) -> Option<&Record> {
    Some(&study.runs.first()?.first()?.sample)
}

/// Lists the phases of a series with their indexes in the record.
fn of_series<'a>(study: &'a Study, name: &str) -> Vec<(usize, &'a Phase)> {
    let phases = first_record(study)
        .into_iter()
        .flat_map(|r| r.phases.iter().enumerate());
    let own = |phase: &Phase| phase.point.as_ref().is_some_and(|p| p.series == name);
    phases.filter(|(_, phase)| own(phase)).collect()
}

fn table_of(study: &Study, name: &str) -> bool {
    let two = |phase: &Phase| phase.point.as_ref().is_some_and(|p| p.y.is_some());
    of_series(study, name).iter().any(|(_, phase)| two(phase))
}

/// Collects the values of a figure over the counted runs, sorted.
fn sorted(runs: &[Run<Record>], value: &dyn Fn(&Record) -> Option<f64>) -> Vec<f64> {
    let counted = runs.iter().filter(|r| !r.warm_up);
    let mut values: Vec<f64> = counted
        .filter_map(|r| value(&r.sample))
        .filter(|v| v.is_finite())
        .collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

fn middle(values: &[f64]) -> Option<f64> {
    bench_core::median(values)
}

/// The frame of a plot: its box and the maximum of its axis.
struct Frame {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
    most: f64,
}

impl Frame {
    fn y(&self, value: f64) -> f64 {
        self.top + self.height * (1.0 - value / self.most)
    }

    fn draw(&self, d: &mut Drawing, unit: &str) {
        for step in steps(self.most) {
            let y = self.y(step);
            d.line("grid", (self.left, y), (self.left + self.width, y));
            d.text(
                "s",
                (self.left - 6.0, y + 3.0),
                "end",
                &number_or_zero(step),
            );
        }
        d.line(
            "axis",
            (self.left, self.top),
            (self.left, self.top + self.height),
        );
        d.text("s", (self.left, self.top - 6.0), "start", unit);
    }
}

fn number_or_zero(value: f64) -> String {
    if value == 0.0 {
        "0".into()
    } else {
        number(value)
    }
}

/// Draws one line per side over the axis of the series, with bars of the cores in use beneath, as
/// in the original reports.
fn lines(study: &Study, name: &str) -> String {
    let phases = of_series(study, name);
    let heading = format!("{}: {name}", title(study));
    let mut d = Drawing::new(640.0, 430.0, &heading);
    d.text("", (60.0, 18.0), "start", &heading);
    let sides = study.sides.len();
    legend(&mut d, study);
    let cell =
        |record: &Record, phase: usize| Some(record.phases.get(phase)?.cells.first()?.value());
    let cores = |record: &Record, phase: usize| Some(record.phases.get(phase)?.cores());
    let values = |side: usize, phase: usize| sorted(&study.runs[side], &|r| cell(r, phase));
    let used = |side: usize, phase: usize| {
        middle(&sorted(&study.runs[side], &|r| cores(r, phase))).unwrap_or(0.0)
    };
    let indices: Vec<usize> = phases.iter().map(|(index, _)| *index).collect();
    let top = |f: &dyn Fn(usize, usize) -> f64| {
        let all = (0..sides).flat_map(|s| indices.iter().map(move |p| (s, *p)));
        let most = all.map(|(s, p)| f(s, p)).fold(0.0, f64::max);
        *steps(most).last().unwrap_or(&1.0)
    };
    let plot = Frame {
        left: 60.0,
        top: 60.0,
        width: 560.0,
        height: 210.0,
        most: top(&|s, p| values(s, p).last().copied().unwrap_or(0.0)),
    };
    let bars = Frame {
        top: 310.0,
        height: 80.0,
        most: top(&used),
        ..plot
    };
    let first = phases.first().map(|(_, phase)| *phase);
    let unit = first
        .and_then(|p| p.cells.first())
        .map_or("", |c| c.unit.as_str());
    plot.draw(&mut d, unit);
    bars.draw(&mut d, "cores in use");
    let slot = plot.width / phases.len() as f64;
    for s in 0..sides {
        let mut path = Vec::new();
        for (n, (index, phase)) in phases.iter().enumerate() {
            let x =
                plot.left + slot * (n as f64 + 0.5) + 5.0 * (s as f64 - (sides as f64 - 1.0) / 2.0);
            let all = values(s, *index);
            let Some(value) = middle(&all) else { continue };
            let at = (x, plot.y(value));
            path.push(at);
            let (low, high) = (plot.y(all[0]), plot.y(all[all.len() - 1]));
            d.line(&format!("whisk {}", side(s)), (x, low), (x, high));
            let words = format!(
                "{}, {}: {} {unit}",
                study.sides[s].name,
                phase.name,
                number(value)
            );
            d.dot(&format!("mark {}", side(s)), at, &words);
            let width = (slot * 0.7 / sides as f64).min(40.0);
            let cores = used(s, *index);
            let left =
                plot.left + slot * (n as f64 + 0.5) + width * (s as f64 - sides as f64 / 2.0);
            let y = bars.y(cores);
            let words = format!(
                "{}, {}: {} cores",
                study.sides[s].name,
                phase.name,
                number(cores)
            );
            let place = (left, y, width - 2.0, bars.top + bars.height - y);
            d.rect(&format!("bar {}", side(s)), place, &words, "");
        }
        d.path(&format!("line {} d{}", side(s), s % 4), &path);
    }
    for (n, (_, phase)) in phases.iter().enumerate() {
        let x = phase.point.as_ref().map_or(0.0, |p| p.x);
        let at = (plot.left + slot * (n as f64 + 0.5), 405.0);
        d.text("s", at, "middle", &axis_number(x));
    }
    let axis = first
        .and_then(|p| p.point.as_ref())
        .map_or("", |p| p.axis.as_str());
    d.text(
        "s",
        (340.0, 422.0),
        "middle",
        &format!("{axis}; whiskers: range of all runs"),
    );
    d.finish()
}

/// Formats a value on an axis: whole numbers, large ones with a binary unit.
fn axis_number(value: f64) -> String {
    let n = value as u64;
    match n {
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{}M", n >> 20),
        n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{}k", n >> 10),
        n => n.to_string(),
    }
}

fn legend(d: &mut Drawing, study: &Study) {
    let mut x = 60.0;
    for (n, facts) in study.sides.iter().enumerate() {
        let class = side(n);
        d.path(
            &format!("line {class} d{}", n % 4),
            &[(x, 32.0), (x + 24.0, 32.0)],
        );
        d.text("s", (x + 30.0, 36.0), "start", &facts.name);
        x += 46.0 + 6.5 * facts.name.chars().count() as f64;
    }
}

/// Draws every headline and CPU ratio with its interval, the threshold as a band, and the control
/// next to each.
fn forest(study: &Study, found: &[Finding]) -> Option<String> {
    let mut shown: Vec<&Finding> = found
        .iter()
        .filter(|f| f.kind != Kind::Further && f.ratio.is_some())
        .collect();
    if shown.len() > FOREST_MAX {
        shown.retain(|f| f.kind == Kind::Headline);
    }
    if shown.is_empty() {
        return None;
    }
    shown.truncate(FOREST_MAX);
    let reach = |f: &&Finding| {
        let r = f.ratio.expect("only findings with a ratio are shown");
        let (low, high) = r.interval.map_or((r.min, r.max), |i| (i.low, i.high));
        low.ln().abs().max(high.ln().abs())
    };
    let most = shown.iter().map(reach).fold(0.1, f64::max).min(6.0) * 1.05;
    let height = 80.0 + 18.0 * shown.len() as f64;
    let heading = format!("{}: ratios", title(study));
    let mut d = Drawing::new(820.0, height, &heading);
    d.text("", (10.0, 18.0), "start", &heading);
    let x = |ratio: f64| 560.0 + 240.0 * (ratio.ln() / most).clamp(-1.0, 1.0);
    let theta = study.plan.theta;
    let (left, right) = (x(1.0 / (1.0 + theta)), x(1.0 + theta));
    let bottom = height - 32.0;
    d.rect(
        "band",
        (left, 40.0, right - left, bottom - 40.0),
        "differences within the threshold",
        "",
    );
    d.line("axis", (x(1.0), 40.0), (x(1.0), bottom));
    for (n, f) in shown.iter().enumerate() {
        let y = 52.0 + 18.0 * n as f64;
        let r = f.ratio.expect("only findings with a ratio are shown");
        let label = format!("{} · {} · {}", f.side, f.phase, f.cell);
        d.text("s", (312.0, y + 4.0), "end", &shorten(&label, LABEL_MAX));
        let class = match f.judgement {
            Judgement::Better => "good",
            Judgement::Worse => "bad",
            _ => "noise",
        };
        if let Some(i) = r.interval {
            d.line(&format!("whisk {class}"), (x(i.low), y), (x(i.high), y));
        }
        let words = format!(
            "{label}: {:.3}, {} pairs, {}",
            r.median,
            r.n,
            f.judgement.name()
        );
        d.dot(&format!("mark {class}"), (x(r.median), y), &words);
        if let Some(c) = f.control {
            d.dot(
                "open noise",
                (x(c.median), y),
                &format!("control: {:.3}", c.median),
            );
        }
    }
    for ratio in ticks(most) {
        d.text("s", (x(ratio), bottom + 14.0), "middle", &number(ratio));
    }
    let foot = "other / first; whiskers: 95 % confidence interval; open: control; green: better, \
                red: worse, gray: undecided or no difference";
    d.text("s", (810.0, height - 4.0), "end", foot);
    Some(d.finish())
}

/// Selects ratios to label on a logarithmic axis that extends by `most` to either side.
fn ticks(most: f64) -> Vec<f64> {
    let top = most.exp();
    let ends = [1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0];
    let fitting: Vec<f64> = ends.into_iter().filter(|t| *t <= top).collect();
    let mut all = vec![1.0];
    for t in fitting.iter().rev().take(1).chain(
        fitting
            .iter()
            .filter(|t| t.ln() < most * 0.6)
            .max_by(|a, b| a.total_cmp(b)),
    ) {
        all.extend([*t, 1.0 / t]);
    }
    all
}

/// Replaces the middle of a long text with an ellipsis: labels differ at their beginnings and ends.
fn shorten(text: &str, most: usize) -> String {
    let all = text.chars().count();
    if all <= most {
        return text.to_owned();
    }
    let (head, tail) = (most / 2, most - most / 2 - 1);
    let begin: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(all - tail).collect();
    format!("{begin}…{end}")
}

/// Draws a table of file and record sizes, colored by gain or, with one side, by value.
fn colours(study: &Study, found: &[Finding], name: &str) -> Option<String> {
    let own: Vec<&Finding> = found
        .iter()
        .filter(|f| f.kind == Kind::Headline && f.point.as_ref().is_some_and(|p| p.series == name))
        .collect();
    let mut xs: Vec<f64> = own
        .iter()
        .filter_map(|f| Some(f.point.as_ref()?.x))
        .collect();
    let mut ys: Vec<f64> = own.iter().filter_map(|f| f.point.as_ref()?.y).collect();
    for places in [&mut xs, &mut ys] {
        places.sort_unstable_by(f64::total_cmp);
        places.dedup();
    }
    let (w, h) = (52.0, 22.0);
    let sides = study.sides.len().saturating_sub(1).max(1);
    let band = 40.0 + h * ys.len() as f64;
    let size = (100.0 + w * xs.len() as f64, 60.0 + band * sides as f64);
    let heading = format!("{}: {name}", title(study));
    let mut d = Drawing::new(size.0.max(420.0), size.1, &heading);
    d.text("", (10.0, 18.0), "start", &heading);
    let most = own.iter().map(|f| f.value).fold(0.0, f64::max);
    for (s, facts) in study.sides.iter().rev().take(sides).rev().enumerate() {
        let top = 48.0 + band * s as f64;
        let what = match study.sides.len() {
            1 => own.first().map_or(String::new(), |f| f.unit.clone()),
            _ => format!("{}: gain in %", facts.name),
        };
        d.text("s", (80.0, top - 6.0), "start", &what);
        for (row, y) in ys.iter().enumerate() {
            d.text(
                "s",
                (74.0, top + h * (row as f64 + 0.65)),
                "end",
                &axis_number(*y),
            );
        }
        for f in own.iter().filter(|f| f.side == facts.name) {
            let p = f.point.as_ref()?;
            let column = xs.iter().position(|x| *x == p.x)?;
            let row = ys.iter().position(|y| Some(*y) == p.y)?;
            let (text, colour) = match f.gain() {
                Some(gain) => (format!("{gain:+.0}"), gain_colour(gain)),
                None => (
                    number(f.value),
                    format!("fill:rgb(33 102 172 / {:.2})", 0.8 * f.value / most),
                ),
            };
            let (x, y) = (80.0 + w * column as f64, top + h * row as f64);
            let words = format!("{}: {text}, {}", f.phase, f.judgement.name());
            d.rect("", (x, y, w - 1.0, h - 1.0), &words, &colour);
            d.text("s", (x + w / 2.0, y + h * 0.65), "middle", &text);
        }
        for (column, x) in xs.iter().enumerate() {
            let at = (
                80.0 + w * (column as f64 + 0.5),
                top + h * ys.len() as f64 + 14.0,
            );
            d.text("s", at, "middle", &axis_number(*x));
        }
    }
    d.text(
        "s",
        (10.0, size.1 - 6.0),
        "start",
        "rows: file size in bytes; columns: record size in bytes",
    );
    Some(d.finish())
}

/// Chooses green for gains and red for losses, at full strength for a factor of two.
fn gain_colour(gain: f64) -> String {
    let strength = ((gain / 100.0 + 1.0).max(0.01).ln().abs() / std::f64::consts::LN_2).min(1.0);
    let colour = if gain >= 0.0 {
        "27 120 55"
    } else {
        "178 24 43"
    };
    format!("fill:rgb({colour} / {:.2})", 0.75 * strength)
}

/// Draws the headline of every run in order of execution, which shows changes of the machine over
/// time.
fn order(study: &Study) -> Option<String> {
    let value = |r: &Run<Record>| {
        r.sample
            .phases
            .first()?
            .cells
            .first()
            .map(PhaseFigure::value)
    };
    let mut all: Vec<(usize, &Run<Record>, f64)> = Vec::new();
    for (arm, runs) in study.runs.iter().enumerate() {
        all.extend(runs.iter().filter_map(|r| Some((arm, r, value(r)?))));
    }
    all.retain(|(_, _, v)| v.is_finite());
    all.sort_by_key(|(_, run, _)| (run.block, run.position));
    if all.len() < 3 {
        return None;
    }
    let phase = first_record(study)?.phases.first()?;
    let cell = phase.cells.first()?;
    let heading = format!(
        "{}: runs in order of execution, {}",
        title(study),
        phase.name
    );
    let mut d = Drawing::new(640.0, 250.0, &heading);
    d.text("", (60.0, 18.0), "start", &heading);
    legend(&mut d, study);
    let most = all.iter().map(|(_, _, v)| *v).fold(0.0, f64::max);
    let plot = Frame {
        left: 60.0,
        top: 60.0,
        width: 560.0,
        height: 150.0,
        most: *steps(most).last()?,
    };
    plot.draw(&mut d, &cell.unit);
    for (n, (arm, run, value)) in all.iter().enumerate() {
        let x = plot.left + plot.width * (n as f64 + 0.5) / all.len() as f64;
        let control = *arm >= study.sides.len();
        let name = study.sides.get(*arm).map_or("control", |s| s.name.as_str());
        let (shape, tint) = match (control || run.warm_up, run.sample.tainted()) {
            (true, _) => ("open", if control { side(0) } else { side(*arm) }),
            (false, false) => ("mark", side(*arm)),
            (false, true) => ("mark", side(*arm)),
        };
        let beside = if run.sample.tainted() {
            ", with foreign load"
        } else {
            ""
        };
        let warm = if run.warm_up { ", warm-up" } else { "" };
        let words = format!("{name}: {} {}{warm}{beside}", number(*value), cell.unit);
        d.dot(&format!("{shape} {tint}"), (x, plot.y(*value)), &words);
        if run.sample.tainted() {
            d.text("s", (x, plot.top + plot.height + 14.0), "middle", "▲");
        }
    }
    let good = match cell.better {
        Better::Higher => "higher is better",
        Better::Lower => "lower is better",
    };
    let foot = format!("{good}; open: warm-up and control; ▲: foreign load");
    d.text("s", (620.0, 244.0), "end", &foot);
    Some(d.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_that_is_cut_keeps_its_side_and_its_figure() {
        let label =
            |side: &str| format!("{side} · seq-read 65536 B, depth 1, thread 1 · throughput");
        let cut = ["encrypted-128", "encrypted-256"].map(|side| shorten(&label(side), LABEL_MAX));
        for (cut, side) in cut.iter().zip(["encrypted-128 ", "encrypted-256 "]) {
            assert_eq!(cut.chars().count(), LABEL_MAX);
            assert!(
                cut.starts_with(side) && cut.ends_with("throughput"),
                "{cut}"
            );
        }
        assert_eq!(shorten("short", LABEL_MAX), "short");
    }
}
