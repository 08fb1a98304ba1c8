//! The charts of a result: which there are, their names, and their values.

use super::forest::forest;
use super::heat::heat;
use super::layers::by_layer;
use super::lines::lines;
use super::order::order;
use super::plot::{Chart, first_record, of_series};
use bench_study::{Finding, Study, findings};

/// Maximum number of charts of series in a study.
const SERIES_MAX: usize = 60;

/// A finished chart, and the values that it draws.
pub struct Figure {
    /// Name of its file without the extension, unique in a result.
    pub name: String,
    /// The chart as a self-contained SVG document.
    pub svg: String,
    /// Rows of text; the first is the header.
    pub values: Vec<Vec<String>>,
}

/// Draws all charts of the studies.
pub fn figures(studies: &[Study]) -> Vec<Figure> {
    let of = |study: &Study| of_study(study, &findings(study).0);
    studies.iter().flat_map(of).collect()
}

/// Draws the charts of one study.
pub(super) fn of_study(study: &Study, found: &[Finding]) -> Vec<Figure> {
    let mut all: Vec<(String, Option<Chart>)> = vec![("ratios".into(), forest(study, found))];
    for name in series(study).into_iter().take(SERIES_MAX) {
        let chart = if is_table(study, &name) {
            heat(study, found, &name)
        } else {
            Some(lines(study, &name))
        };
        all.push((name, chart));
    }
    all.push(("layers".into(), by_layer(study)));
    all.push(("runs".into(), order(study)));
    let finished = |(kind, chart): (String, Option<Chart>)| {
        let Chart { drawing, values } = chart?;
        let name = format!("{}-{}", study.key(), file_name(&kind));
        Some(Figure {
            svg: drawing.finish(&name),
            name,
            values,
        })
    };
    all.into_iter().filter_map(finished).collect()
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

/// Reports whether the phases of a series have positions on two axes.
fn is_table(study: &Study, name: &str) -> bool {
    let phases = of_series(study, name);
    let two = |point: &bench_core::Point| point.y.is_some();
    phases
        .iter()
        .any(|(_, phase)| phase.point.as_ref().is_some_and(two))
}
