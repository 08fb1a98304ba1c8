//! A sample as text, for pipes and logs.

use super::format::plain;
use super::grid::Grid;
use super::views::View;
use stack::watch::Sample;
use std::fmt::Write as _;

/// Formats all tables that have rows. Lines are as long as their values, or at most `width`.
pub fn of(sample: &Sample, width: Option<usize>) -> String {
    let mut text = String::new();
    for view in View::ALL {
        let grid = view.grid(sample, view.first_sort());
        if grid.rows.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{}", view.title());
        add(&mut text, &grid, width);
        text.push('\n');
    }
    for service in &sample.services {
        if let Some(error) = &service.error {
            let (name, why) = (plain(&service.name), plain(error));
            let _ = writeln!(text, "{name}: {why}");
        }
    }
    if text.is_empty() {
        text.push_str(View::Services.nothing());
    }
    text
}

fn add(text: &mut String, grid: &Grid, width: Option<usize>) {
    let placed = grid.place(width);
    let mut add_line = |cell: &dyn Fn(usize) -> String| {
        let mut line = String::new();
        for place in &placed {
            let missing = place.x.saturating_sub(line.chars().count());
            line.push_str(&" ".repeat(missing));
            line.push_str(&grid.fit(*place, &cell(place.column)));
        }
        line.truncate(line.trim_end().len());
        let _ = writeln!(text, "{line}");
    };
    add_line(&|column| grid.columns[column].title.to_owned());
    for row in &grid.rows {
        let cell = |column: usize| row.cells.get(column).map(|cell| cell.text.clone());
        add_line(&|column| cell(column).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stack::watch::ServiceSample;

    fn sample() -> Sample {
        let disk = ServiceSample {
            name: "disk".into(),
            kind: "volume",
            state: "ok".into(),
            device: "/srv/disk.img".into(),
            dirty_bytes: Some(8192),
            uptime_seconds: Some(61),
            ..ServiceSample::default()
        };
        let silent = ServiceSample {
            name: "b".into(),
            kind: "-",
            state: "not answering".into(),
            error: Some("it is stopped".into()),
            ..ServiceSample::default()
        };
        Sample {
            services: vec![disk, silent],
            ..Sample::default()
        }
    }

    #[test]
    fn a_sample_has_a_table_for_each_view_with_rows() {
        let expected = "\
Services
NAME   KIND    STATE           READ/s  WRITE/s  OPS/s   P50   P99   ERR/s    DIRTY   USED   UPTIME  DEVICE
b      -       not answering       -         -       -     -     -       -        -      -        -
disk   volume  ok                  -         -       -     -     -       -  8.0 KiB      -    1 min  /srv/disk.img

b: it is stopped
";
        let text = of(&sample(), None);
        let words = |text: &str| -> Vec<Vec<String>> {
            let lines = text.lines();
            let words = lines.map(|l| l.split_whitespace().map(str::to_owned).collect());
            words.collect()
        };
        assert_eq!(words(&text), words(expected), "{text}");
        let empty = of(&Sample::default(), None);
        assert_eq!(empty, "nothing is attached, mounted or served");
    }

    #[test]
    fn lines_fit_into_a_width() {
        let text = of(&sample(), Some(50));
        assert!(text.lines().all(|line| line.len() <= 50), "{text}");
        assert!(text.contains("STATE") && !text.contains("DEVICE"), "{text}");
        let columns: Vec<usize> = text
            .lines()
            .filter_map(|line| line.find("STATE").or(line.find("not answering")))
            .collect();
        assert_eq!(columns[0], columns[1], "{text}");
    }
}
