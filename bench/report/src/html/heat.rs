//! A table of file and record sizes, colored by gain or, with one side, by value.

use super::plot::{Chart, LEFT, head};
use super::svg::{Drawing, LINE, MARGIN, WIDTH, small_width};
use crate::label::{on_axis, readable, size, title};
use bench_core::figures::{number, signed};
use bench_core::record::Point;
use bench_study::{Finding, Kind, Study};

/// Height of a row, and the largest width of a column.
const ROW: f64 = 22.0;
const COLUMN: f64 = 52.0;

/// Draws one series of a study: a table for each further side, or for the only one.
pub(super) fn heat(study: &Study, found: &[Finding], name: &str) -> Option<Chart> {
    let places: Vec<(&Finding, &Point)> = found
        .iter()
        .filter(|f| f.kind == Kind::Headline)
        .filter_map(|f| Some((f, f.point.as_ref().filter(|p| p.series == name)?)))
        .collect();
    let grid = Grid {
        xs: ascending(places.iter().map(|(_, p)| p.x)),
        ys: ascending(places.iter().filter_map(|(_, p)| p.y)),
        most: places.iter().map(|(f, _)| f.value).fold(0.0, f64::max),
    };
    let first = places.first()?;
    let one = study.sides.len() == 1;
    let heading = format!("{}: {}", title(study), readable(name));
    let what = if one {
        first.0.unit.clone()
    } else {
        "gain in %".to_owned()
    };
    let described = format!(
        "{what} by size of file and record; the table with the values of this figure has the same \
         numbers."
    );
    let mut d = Drawing::new(&heading, &described);
    let mut values = vec![head(["side", "file", "record", &what, "verdict"])];
    for facts in study.sides.iter().skip(usize::from(!one)) {
        let own = places.iter().filter(|(f, _)| f.side == facts.name);
        let own: Vec<(&Finding, &Point)> = own.copied().collect();
        d.paragraph(MARGIN, &format!("{}: {what}", facts.name));
        grid.draw(&mut d, &own);
        values.extend(own.iter().map(|(f, p)| {
            vec![
                facts.name.clone(),
                size(p.y.unwrap_or(0.0) as u64),
                size(p.x as u64),
                f.gain().map_or_else(|| number(f.value), signed),
                f.judgement.name().to_owned(),
            ]
        }));
    }
    d.paragraph(
        MARGIN,
        "Rows: size of the file; columns: size of a record (K: KiB, M: MiB).",
    );
    Some(Chart { drawing: d, values })
}

/// Sorts positions and removes duplicates.
fn ascending(places: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut all: Vec<f64> = places.collect();
    all.sort_unstable_by(f64::total_cmp);
    all.dedup();
    all
}

/// Positions of the columns and rows, and the largest value.
struct Grid {
    xs: Vec<f64>,
    ys: Vec<f64>,
    most: f64,
}

impl Grid {
    /// Draws the cells of one side with the labels of rows and columns.
    fn draw(&self, d: &mut Drawing, own: &[(&Finding, &Point)]) {
        let width = ((WIDTH - LEFT - MARGIN) / self.xs.len().max(1) as f64).min(COLUMN);
        let top = d.reserve(ROW * self.ys.len() as f64);
        for (row, y) in self.ys.iter().enumerate() {
            let at = (LEFT - 6.0, top + ROW * (row as f64 + 0.7));
            d.text("s", at, "end", &on_axis(*y));
        }
        for (f, p) in own {
            let column = self.xs.iter().position(|x| *x == p.x);
            let row = self.ys.iter().position(|y| Some(*y) == p.y);
            let Some((column, row)) = column.zip(row) else {
                continue;
            };
            let (text, color) = match f.gain() {
                Some(gain) => (format!("{gain:+.0}"), gain_color(gain)),
                None => (number(f.value), value_color(f.value / self.most)),
            };
            let (x, y) = (LEFT + width * column as f64, top + ROW * row as f64);
            let words = format!("{}: {text}, {}", readable(&f.phase), f.judgement.name());
            d.rect("", (x, y, width - 1.0, ROW - 1.0), &words, &color);
            // Narrow cells have their color alone; the table beneath has their values.
            if small_width(&text) <= width - 2.0 {
                d.text("s", (x + width / 2.0, y + ROW * 0.7), "middle", &text);
            }
        }
        let label = |(n, x): (usize, &f64)| (LEFT + width * (n as f64 + 0.5), on_axis(*x));
        let labels: Vec<(f64, String)> = self.xs.iter().enumerate().map(label).collect();
        let y = d.reserve(LINE + 6.0) + 12.0;
        d.labels(y, &labels);
    }
}

/// Chooses green for gains and red for losses, at full strength for a factor of two. Even then the
/// text on it has enough contrast.
fn gain_color(gain: f64) -> String {
    let strength = ((gain / 100.0 + 1.0).max(0.01).ln().abs() / std::f64::consts::LN_2).min(1.0);
    let color = if gain >= 0.0 {
        "27 120 55"
    } else {
        "178 24 43"
    };
    format!("fill:rgb({color} / {:.2})", 0.55 * strength)
}

/// Chooses a shade of blue for a fraction of the largest value.
fn value_color(part: f64) -> String {
    let part = if part.is_finite() { part } else { 0.0 };
    format!("fill:rgb(33 102 172 / {:.2})", 0.5 * part)
}
