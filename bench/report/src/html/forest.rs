//! Changes with their intervals, one row per figure, with the threshold as a band and the control
//! beside each.

use super::plot::{Chart, head};
use super::svg::{Drawing, MARGIN, WIDTH};
use crate::label::{readable, title};
use bench_core::Ratio;
use bench_core::figures::{change, change_interval};
use bench_study::{Finding, Judgement, Kind, Study};

/// Maximum number of changes in one chart.
const ROWS_MAX: usize = 40;
/// Height of a row's track, and the space beneath it.
const TRACK: f64 = 14.0;
const GAP: f64 = 8.0;
/// Distance from the middle of a track to either end of its axis.
const REACH: f64 = WIDTH / 2.0 - 2.0 * MARGIN;

/// Draws every headline and CPU change; only headlines if they are too many.
pub(super) fn forest(study: &Study, found: &[Finding]) -> Option<Chart> {
    let with_ratio = |f: &&Finding| f.kind != Kind::Further && f.ratio.is_some();
    let mut shown: Vec<(&Finding, Ratio)> = found
        .iter()
        .filter(with_ratio)
        .filter_map(|f| Some((f, f.ratio?)))
        .collect();
    let all = shown.len();
    if all > ROWS_MAX {
        shown.retain(|(f, _)| f.kind == Kind::Headline);
    }
    shown.truncate(ROWS_MAX);
    if shown.is_empty() {
        return None;
    }
    let base = study.sides.first().map_or("", |s| s.name.as_str());
    let heading = format!("{}: changes", title(study));
    let described = format!(
        "Change of each figure from {base} with its 95 % interval; the table with the values of \
         this figure has the same numbers."
    );
    let mut d = Drawing::new(&heading, &described);
    let axis = Axis::of(&shown, study.plan.theta);
    let mut values = vec![head([
        "figure",
        "change",
        "95 % interval",
        "verdict",
        "control",
    ])];
    for (f, r) in &shown {
        let name = name_of(study, f);
        row(&mut d, &axis, f, r, &name);
        values.push(vec![
            name,
            change(r.median),
            change_interval(r),
            f.judgement.name().to_owned(),
            f.control.map_or("-".into(), |c| change(c.median)),
        ]);
    }
    let y = d.reserve(16.0) + 11.0;
    d.labels(y, &axis.ticks());
    d.reserve(4.0);
    let percent = study.plan.theta * 100.0;
    d.paragraph(
        MARGIN,
        &format!(
            "Change from {base}. Dot: median of the pairs; line: 95 % interval; ring: the control; \
             gray band: differences of up to {percent:.0} %, which do not matter. Green is \
             better, red is worse, gray is undecided or no difference."
        ),
    );
    if shown.len() < all {
        let words = format!(
            "{} of {all} changes are shown; the table has all.",
            shown.len()
        );
        d.paragraph(MARGIN, &words);
    }
    Some(Chart { drawing: d, values })
}

/// Names a figure in full; with two sides, the other side is in the heading.
fn name_of(study: &Study, f: &Finding) -> String {
    let figure = format!("{}: {}", readable(&f.phase), readable(&f.cell));
    match study.sides.len() {
        2 => figure,
        _ => format!("{}, {figure}", f.side),
    }
}

/// Draws the name, the value and the track of one figure.
fn row(d: &mut Drawing, axis: &Axis, f: &Finding, r: &Ratio, name: &str) {
    d.paragraph(MARGIN, name);
    let words = format!(
        "{} ({}), {}",
        change(r.median),
        change_interval(r),
        f.judgement.name()
    );
    d.paragraph(MARGIN, &words);
    let class = match f.judgement {
        Judgement::Better => "good",
        Judgement::Worse => "bad",
        _ => "noise",
    };
    let top = d.reserve(TRACK + GAP);
    let y = top + TRACK / 2.0;
    let (left, right) = (axis.x(0.0), axis.x(f64::INFINITY));
    d.rect("track", (left, top, right - left, TRACK), name, "");
    let (low, high) = axis.band();
    let band = (low, top, high - low, TRACK);
    d.rect("band", band, "differences within the threshold", "");
    d.line("axis", (axis.x(1.0), top), (axis.x(1.0), top + TRACK));
    if let Some(i) = r.interval {
        let line = format!("whisk {class}");
        d.line(&line, (axis.x(i.low), y), (axis.x(i.high), y));
    }
    let words = format!("{name}: {words}, {} pairs", r.n);
    d.dot(&format!("mark {class}"), (axis.x(r.median), y), &words);
    if let Some(c) = f.control {
        let words = format!("control: {}", change(c.median));
        d.dot("open noise", (axis.x(c.median), y), &words);
    }
}

/// A logarithmic axis of ratios with 1 in the middle.
struct Axis {
    /// Logarithm of the ratio at the right end.
    most: f64,
    theta: f64,
}

impl Axis {
    /// Chooses an axis on which all intervals fit, up to a factor of about 400.
    fn of(shown: &[(&Finding, Ratio)], theta: f64) -> Axis {
        let reach = |(_, r): &(&Finding, Ratio)| {
            let (low, high) = r.interval.map_or((r.min, r.max), |i| (i.low, i.high));
            low.ln().abs().max(high.ln().abs())
        };
        let most = shown.iter().map(reach).fold(0.1, f64::max).min(6.0) * 1.05;
        Axis { most, theta }
    }

    /// Returns the position of a ratio; those beyond an end are drawn at it.
    fn x(&self, ratio: f64) -> f64 {
        WIDTH / 2.0 + REACH * (ratio.ln() / self.most).clamp(-1.0, 1.0)
    }

    /// Returns the ends of the band of differences that do not matter.
    fn band(&self) -> (f64, f64) {
        (self.x(1.0 / (1.0 + self.theta)), self.x(1.0 + self.theta))
    }

    /// Selects at most five ratios to label, in ascending order, as changes in percent.
    fn ticks(&self) -> Vec<(f64, String)> {
        let ends: [f64; 11] = [
            1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 300.0,
        ];
        let last = |most: f64| ends.into_iter().rfind(|end| end.ln() <= most);
        let (outer, inner) = (last(self.most), last(self.most * 0.6));
        let mut all = vec![1.0];
        for end in inner.into_iter().chain(outer.filter(|o| Some(*o) != inner)) {
            all.insert(0, 1.0 / end);
            all.push(end);
        }
        let label = |ratio: f64| match ratio {
            1.0 => "0 %".to_owned(),
            ratio => format!("{:+.0} %", (ratio - 1.0) * 100.0),
        };
        let labels = all.into_iter().map(|ratio| (self.x(ratio), label(ratio)));
        labels.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_ascending_labels_on_both_sides() {
        for most in [0.105, 0.3, 0.7, 2.0, 6.3] {
            let axis = Axis { most, theta: 0.05 };
            let ticks = axis.ticks();
            let center = ticks.len() / 2;
            assert!((3..=5).contains(&ticks.len()), "{ticks:?}");
            assert_eq!(ticks[center].1, "0 %");
            assert!(
                ticks.windows(2).all(|pair| pair[0].0 < pair[1].0),
                "{ticks:?}"
            );
            assert!(ticks[0].1.starts_with('-') && ticks[ticks.len() - 1].1.starts_with('+'));
        }
    }

    #[test]
    fn ratios_beyond_the_axis_are_drawn_at_its_end() {
        let axis = Axis {
            most: 0.1,
            theta: 0.05,
        };
        let (left, right) = (axis.x(0.0), axis.x(f64::INFINITY));
        assert!(left >= MARGIN && right <= WIDTH - MARGIN);
        assert_eq!((axis.x(0.5), axis.x(2.0)), (left, right));
        assert_eq!(axis.x(1.0), WIDTH / 2.0);
    }
}
