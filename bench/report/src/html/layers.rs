//! Chart of CPU by layer: a bar per phase and side, with a segment per layer.

use super::svg::{Drawing, steps};
use crate::layers::layer_rows;
use crate::table::title;
use bench_core::figures::number;
use bench_study::Study;
use layer_cpu::Layer;

/// Maximum number of bars in the chart.
const BARS_MAX: usize = 60;
/// Colors of CPU that no layer claims, and of the layers from top to bottom.
const COLOURS: [&str; 6] = [
    "#999999", "#8c6bb1", "#41ab5d", "#4292c6", "#e6550d", "#d9a441",
];
const LEFT: f64 = 300.0;
const WIDTH: f64 = 500.0;

/// Draws the bars that have the unit of the first phase; `None` if layers were not counted.
pub(super) fn by_layer(study: &Study) -> Option<String> {
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
    let most = pieces.iter().map(|p| p.iter().sum()).fold(0.0, f64::max);
    let axis = steps(most);
    let most = *axis.last()?;
    let height = 90.0 + 18.0 * rows.len() as f64;
    let heading = format!("{}: CPU by layer, {unit}", title(study));
    let mut d = Drawing::new(820.0, height, &heading);
    d.text("", (10.0, 18.0), "start", &heading);
    let names: Vec<&str> = std::iter::once("rest")
        .chain(Layer::ALL.map(Layer::name))
        .collect();
    for (n, name) in names.iter().enumerate() {
        let x = 60.0 + 110.0 * n as f64;
        let style = format!("fill:{}", COLOURS[n]);
        d.rect("piece", (x, 28.0, 10.0, 10.0), name, &style);
        d.text("s", (x + 16.0, 37.0), "start", name);
    }
    let x = |value: f64| LEFT + WIDTH * value / most;
    let bottom = 56.0 + 18.0 * rows.len() as f64;
    for step in axis {
        d.line("grid", (x(step), 50.0), (x(step), bottom));
        let words = match step {
            0.0 => "0".to_owned(),
            step => number(step),
        };
        d.text("s", (x(step), bottom + 14.0), "middle", &words);
    }
    for (n, (row, pieces)) in rows.iter().zip(&pieces).enumerate() {
        let y = 54.0 + 18.0 * n as f64;
        let label = format!("{} · {}", row.phase, row.side);
        d.text("s", (LEFT - 6.0, y + 10.0), "end", &label);
        let mut from = 0.0;
        for (piece, value) in pieces.iter().enumerate().filter(|(_, v)| **v > 0.0) {
            let words = format!("{label}, {}: {} {unit}", names[piece], number(*value));
            let style = format!("fill:{}", COLOURS[piece]);
            let place = (x(from), y, x(from + value) - x(from), 13.0);
            d.rect("piece", place, &words, &style);
            from += value;
        }
    }
    Some(d.finish())
}
