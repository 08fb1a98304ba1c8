//! The text format of Prometheus, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use super::families::FAMILIES;
use super::samples::{Sample, Samples};
use std::fmt::Write as _;

/// Media type of the format.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Formats all families, also those without samples, so that a dashboard finds every name.
pub(crate) fn text(samples: &Samples) -> String {
    let mut text = String::new();
    for family in FAMILIES {
        let (name, kind) = (family.name, family.kind.word());
        let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", family.help);
        for sample in samples.of(family) {
            add(&mut text, name, sample);
        }
    }
    text
}

fn add(text: &mut String, name: &str, sample: &Sample) {
    let _ = write!(text, "{name}{}", sample.suffix);
    for (at, (label, value)) in sample.labels.iter().enumerate() {
        let separator = if at == 0 { '{' } else { ',' };
        let _ = write!(text, "{separator}{label}=\"{}\"", escaped(value));
    }
    if !sample.labels.is_empty() {
        text.push('}');
    }
    let _ = writeln!(text, " {}", sample.value);
}

/// Escapes the value of a label.
fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::families::{DIRTY, IO_ERRORS};
    use super::*;

    #[test]
    fn each_sample_is_a_line_after_help_and_type() {
        let mut samples = Samples::default();
        samples.count(
            IO_ERRORS,
            &[("volume", "a\\b\"c\nd"), ("op", "read")],
            1 << 50,
        );
        samples.add(DIRTY, &[], 0.25);
        let text = text(&samples);
        let expected = "\
# TYPE evfs_io_errors_total counter
evfs_io_errors_total{volume=\"a\\\\b\\\"c\\nd\",op=\"read\"} 1125899906842624
";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("\nevfs_dirty_bytes 0.25\n"), "{text}");
        for family in FAMILIES {
            let head = format!("# HELP {0} {1}\n# TYPE {0} ", family.name, family.help);
            assert_eq!(text.matches(&head).count(), 1, "{head}");
        }
        assert!(text.ends_with('\n'));
    }
}
