//! Tables for a terminal.

use std::fmt::Write as _;

/// A column: the side to which its cells are aligned, and its minimum width in characters.
#[derive(Debug, Clone, Copy)]
pub enum Column {
    Left(usize),
    Right(usize),
}

/// Formats each row as a line. Columns are as wide as their widest cells, and a space separates
/// them. No line ends with blanks.
pub fn lines<R: AsRef<[String]>>(columns: &[Column], rows: &[R]) -> Vec<String> {
    let mut columns = columns.to_vec();
    for row in rows {
        for (column, cell) in columns.iter_mut().zip(row.as_ref()) {
            let (Column::Left(width) | Column::Right(width)) = column;
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |row: &R| line(&columns, row.as_ref());
    rows.iter().map(line).collect()
}

/// Like [`lines`], as one text.
pub fn text<R: AsRef<[String]>>(columns: &[Column], rows: &[R]) -> String {
    let mut text = String::new();
    for line in lines(columns, rows) {
        text += &line;
        text.push('\n');
    }
    text
}

fn line(columns: &[Column], row: &[String]) -> String {
    let mut line = String::new();
    for (column, cell) in columns.iter().zip(row) {
        let _ = match *column {
            Column::Left(width) => write!(line, "{cell:<width$} "),
            Column::Right(width) => write!(line, "{cell:>width$} "),
        };
    }
    line.truncate(line.trim_end().len());
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use Column::{Left, Right};

    #[test]
    fn columns_are_as_wide_as_their_widest_cells() {
        let rows = [
            ["LUN", "PATHS", "WWID"],
            ["é", "12", "naa.1"],
            ["a-long-name", "1234567", ""],
        ];
        let rows = rows.map(|row| row.map(str::to_owned));
        let text = text(&[Left(4), Right(5), Left(0)], &rows);
        let expected = "\
LUN           PATHS WWID
é                12 naa.1
a-long-name 1234567
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_table_without_rows_has_no_lines() {
        assert!(lines::<[String; 1]>(&[Left(4)], &[]).is_empty());
    }
}
