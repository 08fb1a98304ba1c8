//! Lines of the sides over an axis, with bars of the cores in use beneath, as in the original
//! reports.

use super::plot::{Chart, Frame, head, legend, of_series, sorted};
use super::svg::{Drawing, MARGIN, side};
use crate::label::{on_axis, readable, title};
use bench_core::figures::number;
use bench_core::record::{Phase, Record};
use bench_study::Study;

const PLOT: f64 = 180.0;
const BARS: f64 = 90.0;

/// Draws one series of a study: the median of every side at each point, and the range of its runs.
pub(super) fn lines(study: &Study, name: &str) -> Chart {
    let phases = of_series(study, name);
    let series = Series { study, phases };
    let heading = format!("{}: {}", title(study), readable(name));
    let (unit, axis) = series.names();
    let described = format!(
        "Median {unit} of each side by {axis}, with the range of all runs, and the CPU cores in \
         use; the table with the values of this figure has the same numbers."
    );
    let mut d = Drawing::new(&heading, &described);
    legend(&mut d, study);
    d.paragraph(MARGIN, &format!("{unit}; whiskers: range of all runs"));
    let plot = Frame::draw(
        &mut d,
        PLOT,
        series.most(&|side, phase| series.values(side, phase).last().copied()),
    );
    d.reserve(12.0);
    d.paragraph(MARGIN, "CPU cores in use");
    let bars = Frame::draw(
        &mut d,
        BARS,
        series.most(&|side, phase| series.cores(side, phase)),
    );
    for s in 0..study.sides.len() {
        series.draw_side(&mut d, s, (&plot, &bars));
    }
    let slot = plot.width / series.phases.len() as f64;
    let label = |(n, (_, phase)): (usize, &(usize, &Phase))| {
        let x = phase.point.as_ref().map_or(0.0, |p| p.x);
        (plot.left + slot * (n as f64 + 0.5), on_axis(x))
    };
    let labels: Vec<(f64, String)> = series.phases.iter().enumerate().map(label).collect();
    let y = d.reserve(22.0) + 17.0;
    d.labels(y, &labels);
    d.paragraph(MARGIN, axis);
    let values = series.rows();
    Chart { drawing: d, values }
}

/// The phases of one series, with their indexes in a record.
struct Series<'a> {
    study: &'a Study,
    phases: Vec<(usize, &'a Phase)>,
}

impl Series<'_> {
    /// Returns the unit of the values and the name of the axis.
    fn names(&self) -> (&str, &str) {
        let first = self.phases.first().map(|(_, phase)| *phase);
        let unit = first.and_then(|p| p.cells.first());
        let axis = first.and_then(|p| p.point.as_ref());
        (
            unit.map_or("", |c| c.unit.as_str()),
            axis.map_or("", |p| p.axis.as_str()),
        )
    }

    /// Returns the sorted values of a phase's first figure.
    fn values(&self, side: usize, phase: usize) -> Vec<f64> {
        let value = |r: &Record| Some(r.phases.get(phase)?.cells.first()?.value());
        sorted(&self.study.runs[side], &value)
    }

    /// Computes the median number of cores in use.
    fn cores(&self, side: usize, phase: usize) -> Option<f64> {
        let cores = |r: &Record| Some(r.phases.get(phase)?.cores());
        bench_core::median(&sorted(&self.study.runs[side], &cores))
    }

    /// Finds the largest value of all sides and phases.
    fn most(&self, of: &dyn Fn(usize, usize) -> Option<f64>) -> f64 {
        let sides = 0..self.study.sides.len();
        let all = sides.flat_map(|s| self.phases.iter().map(move |(index, _)| (s, *index)));
        all.filter_map(|(s, phase)| of(s, phase))
            .fold(0.0, f64::max)
    }

    /// Draws the line and the bars of side `s`.
    fn draw_side(&self, d: &mut Drawing, s: usize, (plot, bars): (&Frame, &Frame)) {
        let (unit, _) = self.names();
        let sides = self.study.sides.len() as f64;
        let slot = plot.width / self.phases.len() as f64;
        let shift = (s as f64 - (sides - 1.0) / 2.0) * (slot / sides).min(5.0);
        let side_name = &self.study.sides[s].name;
        let class = side(s);
        let mut path = Vec::new();
        for (n, (index, phase)) in self.phases.iter().enumerate() {
            let middle = plot.left + slot * (n as f64 + 0.5);
            let all = self.values(s, *index);
            let Some(value) = bench_core::median(&all) else {
                continue;
            };
            let at = (middle + shift, plot.y(value));
            path.push(at);
            let (low, high) = (plot.y(all[0]), plot.y(all[all.len() - 1]));
            d.line(&format!("whisk {class}"), (at.0, low), (at.0, high));
            let of = format!("{side_name}, {}", readable(&phase.name));
            let words = format!("{of}: {} {unit}", number(value));
            d.dot(&format!("mark {class}"), at, &words);
            let cores = self.cores(s, *index).unwrap_or(0.0);
            let width = (slot * 0.7 / sides).min(40.0);
            let left = middle + width * (s as f64 - sides / 2.0);
            let y = bars.y(cores);
            let place = (left, y, (width - 1.0).max(1.0), bars.bottom() - y);
            let words = format!("{of}: {} cores", number(cores));
            d.rect(&format!("bar {class}"), place, &words, "");
        }
        d.path(&format!("line {class} d{}", s % 4), &path);
    }

    /// Lists the values that the chart draws.
    fn rows(&self) -> Vec<Vec<String>> {
        let (unit, axis) = self.names();
        let mut rows = vec![head([axis, "side", unit, "least", "most", "cores"])];
        let shown = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), number);
        for (index, phase) in &self.phases {
            for (s, facts) in self.study.sides.iter().enumerate() {
                let all = self.values(s, *index);
                rows.push(vec![
                    on_axis(phase.point.as_ref().map_or(0.0, |p| p.x)),
                    facts.name.clone(),
                    shown(bench_core::median(&all)),
                    shown(all.first().copied()),
                    shown(all.last().copied()),
                    shown(self.cores(s, *index)),
                ]);
            }
        }
        rows
    }
}
