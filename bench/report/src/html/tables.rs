//! Tables of the page. Each cell repeats the header of its column, which the page shows where it is
//! too narrow for columns.

use super::svg::escape;
use std::fmt::Write;

/// Writes a table from rows of text, of which the first is the header, and the first cell of each
/// is its name. Without a further row, writes nothing.
pub(super) fn write_table(out: &mut String, caption: &str, rows: &[Vec<String>]) {
    let Some((head, rows)) = rows.split_first().filter(|(_, rows)| !rows.is_empty()) else {
        return;
    };
    out.push_str("<table>");
    if !caption.is_empty() {
        let _ = write!(out, "<caption>{}</caption>", escape(caption));
    }
    out.push_str("<thead><tr>");
    for name in head {
        let _ = write!(out, "<th scope=\"col\">{}</th>", escape(name));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for (n, (name, cell)) in head.iter().zip(row).enumerate() {
            let _ = match n {
                0 => write!(out, "<th scope=\"row\">{}</th>", escape(cell)),
                _ => write!(
                    out,
                    "<td{} data-h=\"{}\">{}</td>",
                    class(cell),
                    escape(name),
                    escape(cell)
                ),
            };
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table>\n");
}

/// Chooses the class of a cell: verdicts have colors, numbers are aligned to the right.
fn class(cell: &str) -> &'static str {
    let numeric = |word: &str| {
        let digits = |c: char| c.is_ascii_digit() || "+-.,%/".contains(c);
        word == "to" || word.chars().all(digits)
    };
    match cell {
        "better" => " class=\"better\"",
        "worse" => " class=\"worse\"",
        _ if cell.split(' ').all(numeric) => " class=\"n\"",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_name_their_columns_and_are_escaped() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let mut out = String::new();
        let rows = [
            row(["what", "a \"b\"", "verdict"]),
            row(["<x>", "+1.0 %", "worse"]),
        ];
        write_table(&mut out, "caption", &rows);
        for part in [
            "<caption>caption</caption>",
            "<th scope=\"row\">&lt;x&gt;</th>",
            "<td class=\"n\" data-h=\"a &quot;b&quot;\">+1.0 %</td>",
            "<td class=\"worse\" data-h=\"verdict\">worse</td>",
        ] {
            assert!(out.contains(part), "{part}: {out}");
        }
        let mut none = String::new();
        write_table(&mut none, "caption", &rows[..1]);
        assert_eq!(none, "");
    }

    #[test]
    fn numbers_are_told_from_words() {
        for (cell, wanted) in [
            ("12.5", " class=\"n\""),
            ("-18.9 % to -3.3 %", " class=\"n\""),
            ("-", " class=\"n\""),
            ("no interval", ""),
            ("64 KiB", ""),
            ("no difference (within 5 %)", ""),
            ("better", " class=\"better\""),
        ] {
            assert_eq!(class(cell), wanted, "{cell}");
        }
    }
}
