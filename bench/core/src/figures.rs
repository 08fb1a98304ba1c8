//! Formatting of numbers for output.
//!
//! **Invariant:** a ratio is always printed with its interval or the words "no interval".

use crate::stats::Ratio;

/// Formats a ratio as `0.970 [0.950, 0.990]`, or the median, the range and the words "no interval".
pub fn ratio(r: &Ratio) -> String {
    match r.interval {
        Some(i) => format!("{:.3} [{:.3}, {:.3}]", r.median, i.low, i.high),
        None => format!(
            "{:.3} (range {:.3} to {:.3}, no interval)",
            r.median, r.min, r.max
        ),
    }
}

/// Formats the change that a ratio stands for, in percent: `-3.0 %`.
pub fn change(ratio: f64) -> String {
    signed((ratio - 1.0) * 100.0)
}

/// Formats the interval of a change in percent, `-5.0 % to -1.0 %`, or the words "no interval".
pub fn change_interval(r: &Ratio) -> String {
    match r.interval {
        Some(i) => format!("{} to {}", change(i.low), change(i.high)),
        None => "no interval".into(),
    }
}

/// Formats a percentage with its sign; zero has none but `+`.
pub fn signed(percent: f64) -> String {
    // Adding zero turns a negative zero into a positive one.
    let rounded = (percent * 10.0).round() / 10.0 + 0.0;
    format!("{rounded:+.1} %")
}

/// Formats `value` with three significant figures, or all digits of the integer part.
pub fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Interval;

    #[test]
    fn a_ratio_has_its_interval_or_says_that_it_has_none() {
        let sure = Ratio {
            n: 10,
            unusable: 0,
            median: 0.84,
            min: 0.81,
            max: 0.87,
            interval: Some(Interval {
                low: 0.81,
                high: 0.87,
                confidence: 0.979,
                rank_low: 2,
                rank_high: 9,
            }),
        };
        assert_eq!(ratio(&sure), "0.840 [0.810, 0.870]");
        let few = Ratio {
            interval: None,
            n: 3,
            ..sure
        };
        assert_eq!(ratio(&few), "0.840 (range 0.810 to 0.870, no interval)");
    }

    #[test]
    fn a_change_has_a_sign_and_its_interval() {
        assert_eq!(change(0.97), "-3.0 %");
        assert_eq!(change(0.9999), "+0.0 %");
        let mut r = Ratio {
            n: 10,
            unusable: 0,
            median: 0.97,
            min: 0.9,
            max: 1.1,
            interval: Some(Interval {
                low: 0.95,
                high: 1.01,
                confidence: 0.979,
                rank_low: 2,
                rank_high: 9,
            }),
        };
        assert_eq!(change_interval(&r), "-5.0 % to +1.0 %");
        r.interval = None;
        assert_eq!(change_interval(&r), "no interval");
    }

    #[test]
    fn numbers_keep_three_figures() {
        for (value, text) in [
            (12_345.6, "12346"),
            (45.67, "45.7"),
            (1.234, "1.23"),
            (0.1234, "0.123"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
