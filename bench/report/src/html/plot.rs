//! Parts that several charts share: a chart with its values, a plot with axes, a legend, and the
//! runs of a study as columns of numbers.

use super::svg::{Drawing, LINE, MARGIN, WIDTH, side, steps};
use bench_core::figures::number;
use bench_core::record::{Phase, Record};
use bench_core::result::Run;
use bench_study::Study;

/// Left edge of plots, to the right of the labels of their axis.
pub(super) const LEFT: f64 = 48.0;
/// Space above a plot for the upper half of its topmost label.
const ABOVE: f64 = 8.0;

/// A chart, and the values that it draws: rows of text, of which the first is the header.
pub(super) struct Chart {
    pub(super) drawing: Drawing,
    pub(super) values: Vec<Vec<String>>,
}

/// The frame of a plot: its box and the maximum of its axis.
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
    most: f64,
}

impl Frame {
    /// Reserves a plot of `height` and draws its axis from 0 to a round value of `most` or more.
    pub(super) fn draw(d: &mut Drawing, height: f64, most: f64) -> Frame {
        let all = steps(most);
        let frame = Frame {
            left: LEFT,
            top: d.reserve(ABOVE + height) + ABOVE,
            width: WIDTH - LEFT - MARGIN,
            height,
            most: all.last().copied().unwrap_or(1.0),
        };
        for step in all {
            let y = frame.y(step);
            d.line("grid", (frame.left, y), (frame.left + frame.width, y));
            d.text("s", (frame.left - 6.0, y + 4.0), "end", &tick(step));
        }
        let bottom = frame.bottom();
        d.line("axis", (frame.left, frame.top), (frame.left, bottom));
        frame
    }

    /// Computes the position of a value.
    pub(super) fn y(&self, value: f64) -> f64 {
        self.top + self.height * (1.0 - value / self.most)
    }

    pub(super) fn bottom(&self) -> f64 {
        self.top + self.height
    }
}

/// Formats a label of an axis in at most five characters.
fn tick(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v >= 1e9 => format!("{}G", short(value / 1e9)),
        v if v >= 1e6 => format!("{}M", short(value / 1e6)),
        v if v >= 1e4 => format!("{}k", short(value / 1e3)),
        _ => short(value),
    }
}

/// Formats a round number without trailing zeros.
fn short(value: f64) -> String {
    let text = number(value);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Writes the line and the name of each side, one below the other.
pub(super) fn legend(d: &mut Drawing, study: &Study) {
    for (n, facts) in study.sides.iter().enumerate() {
        let y = d.reserve(0.0) + LINE / 2.0;
        let class = format!("line {} d{}", side(n), n % 4);
        d.path(&class, &[(MARGIN, y), (MARGIN + 24.0, y)]);
        d.paragraph(MARGIN + 32.0, &facts.name);
    }
}

/// Returns the first record of a study, which has the names of all phases and figures.
pub(super) fn first_record(study: &Study) -> Option<&Record> {
    Some(&study.runs.first()?.first()?.sample)
}

/// Lists the phases of a series with their indexes in the record.
pub(super) fn of_series<'a>(study: &'a Study, name: &str) -> Vec<(usize, &'a Phase)> {
    let phases = first_record(study)
        .into_iter()
        .flat_map(|r| r.phases.iter().enumerate());
    let own = |phase: &Phase| phase.point.as_ref().is_some_and(|p| p.series == name);
    phases.filter(|(_, phase)| own(phase)).collect()
}

/// Collects the values of a figure over the counted runs, sorted.
pub(super) fn sorted(runs: &[Run<Record>], value: &dyn Fn(&Record) -> Option<f64>) -> Vec<f64> {
    let counted = runs.iter().filter(|r| !r.warm_up);
    let mut values: Vec<f64> = counted
        .filter_map(|r| value(&r.sample))
        .filter(|v| v.is_finite())
        .collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// Turns a header into a row.
pub(super) fn head<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_an_axis_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (0.025, "0.025"),
            (0.5, "0.5"),
            (2.5, "2.5"),
            (20.0, "20"),
            (2500.0, "2500"),
            (12_500.0, "12.5k"),
            (100_000.0, "100k"),
            (2_000_000.0, "2M"),
            (3e9, "3G"),
        ] {
            assert_eq!(tick(value), text);
        }
    }
}
