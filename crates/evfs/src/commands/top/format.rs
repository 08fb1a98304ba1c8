//! Short forms of values for cells, and curves of one line.

use cli::output;

/// Shown for a value that is not available.
pub const ABSENT: &str = "-";

/// Formats a number of events per second in at most 6 characters.
pub fn rate(value: f64) -> String {
    match value.max(0.0) {
        value if value < 0.05 => "0".into(),
        value if value < 9.95 => format!("{value:.1}"),
        value if value < 99_999.5 => format!("{value:.0}"),
        value if value < 999_500.0 => format!("{:.0}k", value / 1e3),
        value if value < 99.95e6 => format!("{:.1}M", value / 1e6),
        value => format!("{:.0}M", value / 1e6),
    }
}

/// Formats a time in nanoseconds in at most 7 characters.
pub fn time(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let digits = usize::from(value < 99.95);
    format!("{value:.digits$} {unit}")
}

/// Formats a share from 0 to 1 as percent.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Formats a value, or shows that it is absent.
pub fn or_absent<T>(value: Option<T>, format: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| ABSENT.to_owned(), format)
}

/// Escapes a name from outside for one line: control characters, line breaks, and characters that
/// change the direction of the text after them.
pub fn plain(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut shown = String::with_capacity(text.len());
    for c in output::printable(text).chars() {
        if c == '\n' || turns(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Characters of curves, the lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbols([char; 8]);

impl Symbols {
    /// Blocks of eight heights.
    pub const BLOCKS: Symbols = Symbols(['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']);
    /// For terminals that show only ASCII.
    pub const ASCII: Symbols = Symbols(['_', '.', '-', '=', '+', '*', '#', '@']);

    /// Selects characters for a locale, which is named like `en_US.UTF-8`.
    pub fn of_locale(name: &str) -> Symbols {
        let name = name.to_ascii_lowercase().replace('-', "");
        if name.contains("utf8") {
            Symbols::BLOCKS
        } else {
            Symbols::ASCII
        }
    }

    /// Draws values as a curve with a character for each, aligned to the right; a gap for absent
    /// values. `top` is the value of the highest character.
    pub fn curve(&self, values: &[Option<f64>], width: usize, top: f64) -> String {
        let shown = &values[values.len().saturating_sub(width)..];
        let mut curve = " ".repeat(width - shown.len());
        curve.extend(shown.iter().map(|value| match value {
            None => ' ',
            Some(value) => self.0[level(*value, top)],
        }));
        curve
    }
}

/// Maps a value to one of eight levels; only zero has the lowest.
fn level(value: f64, top: f64) -> usize {
    if value <= 0.0 || top <= 0.0 {
        return 0;
    }
    // A conversion to an integer limits values that are out of range.
    1 + ((value / top * 7.0) as usize).min(6)
}

/// Returns the largest value, at least `least`.
pub fn largest(values: &[Option<f64>], least: f64) -> f64 {
    values.iter().flatten().copied().fold(least, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fit_into_their_columns() {
        for (value, text) in [
            (0.0, "0"),
            (0.5, "0.5"),
            (12.3, "12"),
            (12_345.0, "12345"),
            (123_456.0, "123k"),
            (1_260_000.0, "1.3M"),
        ] {
            assert_eq!(rate(value), text);
        }
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1500, "1.5 us"),
            (123_456, "123 us"),
            (2_000_000, "2.0 ms"),
            (17_000_000_000, "17.0 s"),
        ] {
            assert_eq!(time(ns), text);
        }
        for power in 0..60 {
            let value = (1_u64 << power) as f64 * 0.9999;
            assert!(rate(value.min(1e9)).chars().count() <= 6, "{value}");
            assert!(time(1 << power.min(43)).chars().count() <= 7, "{power}");
        }
        assert_eq!(percent(0.995), "99.5 %");
    }

    #[test]
    fn names_cannot_change_the_screen() {
        assert_eq!(plain("a\x1b[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(plain("exe\u{202e}gpj"), "exe\\u{202e}gpj");
        assert_eq!(plain("größe"), "größe");
    }

    #[test]
    fn a_curve_shows_zeros_gaps_and_the_largest_value() {
        let values = [Some(0.0), None, Some(0.1), Some(50.0), Some(100.0)];
        let curve = |width| Symbols::ASCII.curve(&values, width, 100.0);
        assert_eq!(curve(5), "_ .+@");
        assert_eq!(curve(7), "  _ .+@");
        assert_eq!(curve(2), "+@");
        assert_eq!(curve(0), "");
        assert_eq!(Symbols::BLOCKS.curve(&values, 5, 100.0), "▁ ▂▅█");
        assert_eq!(Symbols::ASCII.curve(&[Some(f64::MAX)], 1, 0.5), "@");
        assert_eq!(Symbols::of_locale("de_DE.utf8"), Symbols::BLOCKS);
        assert_eq!(Symbols::of_locale("C"), Symbols::ASCII);
        assert_eq!(largest(&values, 1.0), 100.0);
        assert_eq!(largest(&[None], 1.0), 1.0);
    }
}
