//! Tables that fit into a given width: less important columns are left out, and long names are cut.

use super::format;
use std::cmp::Ordering;

/// Characters between two columns.
const GAP: usize = 2;

/// Width down to which a long name is cut before a column is left out.
const NAME_WIDTH: usize = 16;

/// Least width of a name that is cut.
const NAME_WIDTH_MIN: usize = 6;

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    pub title: &'static str,
    pub kind: Kind,
    /// Importance: columns with the highest rank are left out first, those with rank 0 never.
    pub rank: u8,
}

/// Kind of the values of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Aligned to the left, never cut.
    Word,
    /// Aligned to the left; the end is cut.
    Name,
    /// Aligned to the left; the beginning is cut.
    Path,
    /// Aligned to the right, never cut.
    Number,
}

/// A value, as it is shown and as it is sorted.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    pub text: String,
    value: Value,
}

#[derive(Debug, Clone, PartialEq)]
enum Value {
    Text,
    Number(f64),
    Absent,
}

impl Cell {
    /// A text from outside.
    pub fn text(text: &str) -> Cell {
        let value = if text.is_empty() {
            Value::Absent
        } else {
            Value::Text
        };
        Cell {
            text: format::plain(text),
            value,
        }
    }

    /// A number; absent ones come last, however the table is sorted.
    pub fn number(value: Option<f64>, format: impl FnOnce(f64) -> String) -> Cell {
        Cell {
            text: format::or_absent(value, format),
            value: value.map_or(Value::Absent, Value::Number),
        }
    }

    fn compare(&self, other: &Cell, descending: bool) -> Ordering {
        let order = match (&self.value, &other.value) {
            (Value::Absent, Value::Absent) => return Ordering::Equal,
            (Value::Absent, _) => return Ordering::Greater,
            (_, Value::Absent) => return Ordering::Less,
            (Value::Number(a), Value::Number(b)) => a.total_cmp(b),
            _ => self.text.cmp(&other.text),
        };
        if descending { order.reverse() } else { order }
    }
}

/// Emphasis of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Normal,
    /// A reserve is lost.
    Warning,
    /// Requests fail, or are not answered.
    Failure,
}

/// A row of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Identity of the row in successive samples.
    pub key: String,
    pub cells: Vec<Cell>,
    pub tone: Tone,
}

/// A table.
#[derive(Debug, Clone)]
pub struct Grid {
    pub columns: &'static [Column],
    pub rows: Vec<Row>,
}

/// A column that is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    pub column: usize,
    pub x: usize,
    pub width: usize,
}

impl Grid {
    /// Sorts the rows by a column; rows with equal values stay in the order of their keys.
    pub fn sort(&mut self, column: usize, descending: bool) {
        self.rows.sort_by(|a, b| {
            let order = match (a.cells.get(column), b.cells.get(column)) {
                (Some(one), Some(other)) => one.compare(other, descending),
                _ => Ordering::Equal,
            };
            order.then_with(|| a.key.cmp(&b.key))
        });
    }

    /// Selects columns for a width, and places them. Without a limit, all are shown as wide as
    /// their values.
    pub fn place(&self, limit: Option<usize>) -> Vec<Placed> {
        let natural: Vec<usize> = (0..self.columns.len()).map(|at| self.width(at)).collect();
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let is_cut = |at: usize| matches!(self.columns[at].kind, Kind::Name | Kind::Path);
        let least = |at: usize, name: usize| {
            let most = if is_cut(at) { name } else { usize::MAX };
            natural[at].min(most)
        };
        let total = |shown: &[usize], name: usize| -> usize {
            let widths = shown.iter().map(|at| least(*at, name));
            widths.sum::<usize>() + GAP * shown.len().saturating_sub(1)
        };
        let limit = limit.unwrap_or(usize::MAX);
        while total(&shown, NAME_WIDTH) > limit {
            let last = shown.iter().copied().enumerate();
            let last = last.max_by_key(|(_, at)| self.columns[*at].rank);
            match last {
                Some((place, at)) if self.columns[at].rank > 0 => shown.remove(place),
                _ => break,
            };
        }
        let mut name = NAME_WIDTH;
        while name > NAME_WIDTH_MIN && total(&shown, name) > limit {
            name -= 1;
        }
        let mut left = limit.saturating_sub(total(&shown, name));
        let mut x = 0;
        let placed = shown.into_iter().map(|column| {
            let width = least(column, name);
            let more = (natural[column] - width).min(left);
            left -= more;
            let place = Placed {
                column,
                x,
                width: width + more,
            };
            x += place.width + GAP;
            place
        });
        placed.collect()
    }

    /// The width of a column whose values are not cut, with room for the mark of the sorted
    /// column.
    fn width(&self, column: usize) -> usize {
        let texts = self.rows.iter().filter_map(|row| row.cells.get(column));
        let widths = texts.map(|cell| cell.text.chars().count());
        let title = self.columns[column].title.chars().count() + 1;
        widths.fold(title, usize::max)
    }

    /// Aligns a text in a column, and cuts it.
    pub fn fit(&self, place: Placed, text: &str) -> String {
        let width = place.width;
        let length = text.chars().count();
        match self.columns[place.column].kind {
            Kind::Number => format!("{text:>width$}"),
            Kind::Path if length > width => {
                let left_out = length - width.saturating_sub(2);
                let kept: String = text.chars().skip(left_out).collect();
                format!("..{kept}")
            }
            Kind::Name if length > width => {
                let kept: String = text.chars().take(width.saturating_sub(2)).collect();
                format!("{kept}..")
            }
            Kind::Word | Kind::Name | Kind::Path => text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[
        Column {
            title: "NAME",
            kind: Kind::Name,
            rank: 0,
        },
        Column {
            title: "READ",
            kind: Kind::Number,
            rank: 0,
        },
        Column {
            title: "SIZE",
            kind: Kind::Number,
            rank: 2,
        },
        Column {
            title: "FILE",
            kind: Kind::Path,
            rank: 1,
        },
    ];

    fn row(name: &str, read: Option<f64>, file: &str) -> Row {
        Row {
            key: name.into(),
            cells: vec![
                Cell::text(name),
                Cell::number(read, format::rate),
                Cell::number(Some(1.0), format::rate),
                Cell::text(file),
            ],
            tone: Tone::Normal,
        }
    }

    fn grid() -> Grid {
        Grid {
            columns: COLUMNS,
            rows: vec![
                row("b", Some(10.0), "a/long/way/to/a/file/with/a/name"),
                row("a-name-that-is-rather-long", None, "x"),
                row("c", Some(2.0), "y"),
            ],
        }
    }

    #[test]
    fn columns_are_left_out_by_rank_and_names_are_cut() {
        let grid = grid();
        let shown = |limit| -> Vec<usize> {
            let placed = grid.place(Some(limit));
            placed.iter().map(|place| place.column).collect()
        };
        assert_eq!(shown(80), [0, 1, 2, 3]);
        assert_eq!(shown(48), [0, 1, 2, 3]);
        assert_eq!(shown(47), [0, 1, 3]);
        assert_eq!(shown(30), [0, 1]);
        assert_eq!(shown(1), [0, 1]);
        for limit in [13, 20, 30, 48, 60, 80, 200] {
            let last = *grid.place(Some(limit)).last().unwrap();
            assert!(last.x + last.width <= limit, "{limit}: {last:?}");
        }
        // Without a limit, nothing is cut.
        let placed = grid.place(None);
        let widths: Vec<usize> = placed.iter().map(|place| place.width).collect();
        assert_eq!(widths, [26, 5, 5, 32]);
    }

    #[test]
    fn a_name_loses_its_end_and_a_path_its_beginning() {
        let grid = grid();
        let place = |column| Placed {
            column,
            x: 0,
            width: 8,
        };
        assert_eq!(grid.fit(place(0), "a-long-name"), "a-long..");
        assert_eq!(grid.fit(place(3), "a/long/name"), "..g/name");
        assert_eq!(grid.fit(place(1), "12"), "      12");
        assert_eq!(grid.fit(place(0), "short"), "short");
    }

    #[test]
    fn absent_values_are_last_in_both_directions() {
        let mut grid = grid();
        let keys = |grid: &Grid| -> Vec<String> {
            let keys = grid.rows.iter().map(|row| row.key[..1].to_owned());
            keys.collect()
        };
        grid.sort(1, true);
        assert_eq!(keys(&grid), ["b", "c", "a"]);
        grid.sort(1, false);
        assert_eq!(keys(&grid), ["c", "b", "a"]);
        grid.sort(0, false);
        assert_eq!(keys(&grid), ["a", "b", "c"]);
        grid.sort(2, false);
        assert_eq!(keys(&grid), ["a", "b", "c"]);
        // A column that does not exist changes nothing but the order of keys.
        grid.sort(99, true);
        assert_eq!(keys(&grid), ["a", "b", "c"]);
    }
}
