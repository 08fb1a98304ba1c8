//! The first figure of every run in the order of execution, which shows changes of the machine over
//! time.

use super::plot::{Chart, Frame, LEFT, first_record, head, legend};
use super::svg::{Drawing, MARGIN, side};
use crate::label::{readable, title};
use bench_core::figures::number;
use bench_core::record::{Better, PhaseFigure, Record};
use bench_core::result::Run;
use bench_study::Study;

/// Height of the plot, and of the row of marks of foreign load beneath it.
const PLOT: f64 = 150.0;
const MARKS: f64 = 16.0;

/// A run with the number of its arm and its first figure.
type Point<'a> = (usize, &'a Run<Record>, f64);

/// Draws the runs; `None` if they are too few.
pub(super) fn order(study: &Study) -> Option<Chart> {
    let all = points(study);
    if all.len() < 3 {
        return None;
    }
    let phase = first_record(study)?.phases.first()?;
    let cell = phase.cells.first()?;
    let heading = format!(
        "{}: runs in order of execution, {}",
        title(study),
        readable(&phase.name)
    );
    let good = match cell.better {
        Better::Higher => "higher is better",
        Better::Lower => "lower is better",
    };
    let described = format!(
        "{} {} of every run in order of execution, {good}; the table with the values of this \
         figure has the same numbers.",
        cell.name, cell.unit
    );
    let mut d = Drawing::new(&heading, &described);
    legend(&mut d, study);
    d.paragraph(MARGIN, &format!("{}; {good}", cell.unit));
    let most = all.iter().map(|(_, _, v)| *v).fold(0.0, f64::max);
    let plot = Frame::draw(&mut d, PLOT, most);
    d.reserve(MARKS);
    let mut values = vec![head(["run", "side", &cell.unit, "remarks"])];
    for (n, (arm, run, value)) in all.iter().enumerate() {
        let x = LEFT + plot.width * (n as f64 + 0.5) / all.len() as f64;
        let control = *arm >= study.sides.len();
        let name = study.sides.get(*arm).map_or("control", |s| s.name.as_str());
        let open = control || run.warm_up;
        let shape = if open { "open" } else { "mark" };
        let tint = side(if control { 0 } else { *arm });
        let remarks = remarks(run);
        let words = format!("{name}: {} {} {remarks}", number(*value), cell.unit);
        d.dot(
            &format!("{shape} {tint}"),
            (x, plot.y(*value)),
            words.trim_end(),
        );
        if run.sample.tainted() {
            let y = plot.bottom() + 4.0;
            let triangle = [(x, y), (x - 4.0, y + 8.0), (x + 4.0, y + 8.0)];
            d.path("mark noise", &triangle);
        }
        values.push(vec![
            (n + 1).to_string(),
            name.to_owned(),
            number(*value),
            remarks,
        ]);
    }
    d.paragraph(
        MARGIN,
        "From left to right: all runs in their order. Rings: warm-up and control; triangles: \
         foreign load.",
    );
    Some(Chart { drawing: d, values })
}

/// Collects the first figure of all runs in order of execution.
fn points(study: &Study) -> Vec<Point<'_>> {
    let value = |r: &Run<Record>| {
        let phase = r.sample.phases.first()?;
        phase.cells.first().map(PhaseFigure::value)
    };
    let mut all: Vec<Point<'_>> = Vec::new();
    for (arm, runs) in study.runs.iter().enumerate() {
        all.extend(runs.iter().filter_map(|r| Some((arm, r, value(r)?))));
    }
    all.retain(|(_, _, v)| v.is_finite());
    all.sort_by_key(|(_, run, _)| (run.block, run.position));
    all
}

/// Names the properties of a run that distinguish it from a counted one on an idle machine.
fn remarks(run: &Run<Record>) -> String {
    let all = [
        (run.warm_up, "warm-up"),
        (run.sample.tainted(), "foreign load"),
    ];
    let named = all.into_iter().filter(|(is, _)| *is);
    let named: Vec<&str> = named.map(|(_, name)| name).collect();
    named.join(", ")
}
