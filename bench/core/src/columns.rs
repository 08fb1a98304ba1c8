//! Tables of text.

use std::fmt::Write as _;

/// Formats a Markdown table with aligned source. A name can neither begin another cell nor send
/// control characters to the terminal.
pub fn align(rows: &[Vec<String>]) -> String {
    let plain = |cell: &String| {
        let one = |c: char| if c.is_control() { '?' } else { c };
        cell.replace('|', "\\|").chars().map(one).collect()
    };
    let plain = |row: &Vec<String>| row.iter().map(plain).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(plain).collect();
    let columns = rows.first().map_or(0, Vec::len);
    let width = |c: usize| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for (index, row) in rows.iter().enumerate() {
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(out, "| {cell:<width$} ");
        }
        out.push_str("|\n");
        if index == 0 {
            for width in &widths {
                let _ = write!(out, "|{}", "-".repeat(width + 2));
            }
            out.push_str("|\n");
        }
    }
    out
}
