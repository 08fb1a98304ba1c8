//! Names as readers see them: sizes with binary units. Stored names keep plain bytes, so that
//! results of different versions can be compared.

use bench_study::Study;

const UNITS: &[(&str, u64)] = &[
    ("B", 1),
    ("bytes", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

/// Returns the name of the workload and its sides.
pub fn title(study: &Study) -> String {
    let names: Vec<&str> = study.sides.iter().map(|s| s.name.as_str()).collect();
    match names.split_first() {
        Some((first, [])) => format!("{} on {first}", study.key()),
        Some((first, others)) => {
            format!("{}: {} against {first}", study.key(), others.join(", "))
        }
        None => study.key(),
    }
}

/// Rewrites the sizes in a name with the largest unit in which they are whole numbers:
/// `65536 bytes` becomes `64 KiB`.
pub fn readable(name: &str) -> String {
    let words: Vec<&str> = name.split(' ').collect();
    let mut shown: Vec<String> = Vec::with_capacity(words.len());
    let mut n = 0;
    while n < words.len() {
        let size = words.get(n + 1).and_then(|unit| size_of(words[n], unit));
        n += if size.is_some() { 2 } else { 1 };
        shown.push(size.unwrap_or_else(|| words[n - 1].to_owned()));
    }
    shown.join(" ")
}

/// Rewrites a number, or several with slashes between them, and its unit, which may end with
/// punctuation. `None` if the words are not a size.
fn size_of(numbers: &str, unit: &str) -> Option<String> {
    let plain = unit.trim_end_matches([',', ':', ';', ')']);
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == plain)?;
    let bytes = |number: &str| number.parse::<u64>().ok()?.checked_mul(*factor);
    let sizes: Vec<u64> = numbers.split('/').map(bytes).collect::<Option<_>>()?;
    let text: Vec<String> = sizes.into_iter().map(size).collect();
    Some(text.join("/") + &unit[plain.len()..])
}

/// Formats a size with the largest unit in which it is a whole number.
pub(crate) fn size(bytes: u64) -> String {
    let fits = |(_, factor): &&(&str, u64)| bytes >= *factor && bytes.is_multiple_of(*factor);
    match UNITS[2..].iter().rev().find(fits) {
        Some((unit, factor)) => format!("{} {unit}", bytes / factor),
        None => format!("{bytes} bytes"),
    }
}

/// Formats a value on an axis: whole numbers, large ones with the letter of a binary unit.
pub(crate) fn on_axis(value: f64) -> String {
    let n = value as u64;
    let short = size(n);
    match short.split_once(' ') {
        Some((number, unit)) if unit != "bytes" => format!("{number}{}", &unit[..1]),
        _ => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_names_have_units() {
        for (stored, shown) in [
            (
                "seq-read, 65536 bytes, 1 thread, depth 1",
                "seq-read, 64 KiB, 1 thread, depth 1",
            ),
            (
                "rand-read, mixed 4096/8192 bytes",
                "rand-read, mixed 4 KiB/8 KiB",
            ),
            (
                "1526 bytes over veth, in fragments",
                "1526 bytes over veth, in fragments",
            ),
            ("write, 65536 KiB by 64 KiB", "write, 64 MiB by 64 KiB"),
            ("seq-read 65536 B", "seq-read 64 KiB"),
            ("create bytes", "create bytes"),
            ("0 bytes", "0 bytes"),
            ("write, 2 threads", "write, 2 threads"),
            ("", ""),
        ] {
            assert_eq!(readable(stored), shown);
        }
    }

    #[test]
    fn an_axis_has_short_numbers() {
        for (value, shown) in [
            (0.0, "0"),
            (10.0, "10"),
            (1000.0, "1000"),
            (4096.0, "4K"),
            (16_777_216.0, "16M"),
            (1_073_741_824.0, "1G"),
        ] {
            assert_eq!(on_axis(value), shown);
        }
    }
}
