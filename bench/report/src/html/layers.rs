//! Chart of CPU by layer: a bar per phase and side, with a segment per layer.

use super::plot::Chart;
use super::svg::{Drawing, LINE, MARGIN, WIDTH};
use crate::label::{readable, title};
use crate::layers::{cells, heads, layer_rows};
use bench_core::figures::number;
use bench_study::Study;
use layer_cpu::Layer;

/// Maximum number of bars in the chart.
const BARS_MAX: usize = 60;
/// Colors of CPU that no layer claims, and of the layers from top to bottom.
const COLORS: [&str; 6] = [
    "#999999", "#8c6bb1", "#41ab5d", "#4292c6", "#e6550d", "#d9a441",
];
const BAR: f64 = 14.0;
/// Number of names in a line of the legend.
const PER_LINE: usize = 3;

/// Draws the bars that have the unit of the first phase; `None` if layers were not counted.
pub(super) fn by_layer(study: &Study) -> Option<Chart> {
    let mut rows = layer_rows(study);
    let unit = rows.first()?.unit.clone();
    rows.retain(|row| row.unit == unit);
    rows.truncate(BARS_MAX);
    let pieces: Vec<[f64; 6]> = rows
        .iter()
        .map(|row| {
            let [a, b, c, d, e] = row.layers;
            [row.rest, a, b, c, d, e]
        })
        .collect();
    let sum = |pieces: &[f64; 6]| pieces.iter().sum::<f64>();
    let most = pieces.iter().map(sum).fold(0.0, f64::max);
    let heading = format!("{}: CPU by layer, {unit}", title(study));
    let described = format!(
        "CPU of each layer in {unit}, a bar for each phase and side; the table with the values of \
         this figure has the same numbers."
    );
    let mut d = Drawing::new(&heading, &described);
    let names: Vec<&str> = std::iter::once("rest")
        .chain(Layer::ALL.map(Layer::name))
        .collect();
    legend(&mut d, &names);
    let scale = (WIDTH - 2.0 * MARGIN) / most.max(f64::MIN_POSITIVE);
    for (row, pieces) in rows.iter().zip(&pieces) {
        let label = format!("{}, {}", row.side, readable(&row.phase));
        d.paragraph(MARGIN, &format!("{label}: {} {unit}", number(sum(pieces))));
        let top = d.reserve(BAR + 6.0);
        let mut x = MARGIN;
        for (n, value) in pieces.iter().enumerate().filter(|(_, v)| **v > 0.0) {
            let words = format!("{label}, {}: {} {unit}", names[n], number(*value));
            let style = format!("fill:{}", COLORS[n]);
            let place = (x, top, value * scale, BAR);
            d.rect("piece", place, &words, &style);
            x += value * scale;
        }
    }
    let mut values = vec![heads()];
    values.extend(rows.iter().map(cells));
    Some(Chart { drawing: d, values })
}

/// Writes the color and the name of each layer.
fn legend(d: &mut Drawing, names: &[&str]) {
    let column = (WIDTH - 2.0 * MARGIN) / PER_LINE as f64;
    for (line, part) in names.chunks(PER_LINE).enumerate() {
        let top = d.reserve(LINE);
        for (n, name) in part.iter().enumerate() {
            let x = MARGIN + column * n as f64;
            let style = format!("fill:{}", COLORS[line * PER_LINE + n]);
            d.rect("piece", (x, top + 2.0, 10.0, 10.0), name, &style);
            d.text("s", (x + 16.0, top + 11.0), "start", name);
        }
    }
}
