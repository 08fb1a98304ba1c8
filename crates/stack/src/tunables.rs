//! Settings of the file cache as text: `NAME=VALUE`, separated by white space.

use crate::text::did_you_mean;
use crate::{Error, Result};
use cache::tunables::{ErrorKind, TUNABLES, Tunables};

/// Parses `name=value` pairs separated by white space.
///
/// # Errors
/// A message about a word that is not such a pair.
pub fn parse_changes(text: &str) -> std::result::Result<Vec<(String, String)>, String> {
    text.split_whitespace().map(parse_change).collect()
}

/// Parses one `name=value` pair.
///
/// # Errors
/// A message, if it is not such a pair.
pub fn parse_change(word: &str) -> std::result::Result<(String, String), String> {
    match word.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err(format!("`{word}` is not NAME=VALUE")),
    }
}

/// Parses `cache.tunables` for a machine with `memory` bytes.
///
/// # Errors
/// [`Error::Config`] if they exceed the memory of this machine.
pub(crate) fn parse(text: &str, memory: u64) -> Result<Tunables> {
    parse_changes(text)
        .and_then(|changes| with(&Tunables::default(), &changes, memory))
        .map_err(|detail| Error::Config {
            place: "cache.tunables".into(),
            detail,
        })
}

/// Names the settings whose value means more bytes than in earlier versions: there, K, M and G
/// without a B were powers of 1000.
pub fn changed_sizes(changes: &[(String, String)]) -> Option<String> {
    let had_another_meaning = |value: &str| {
        let digits = value.strip_suffix(['K', 'M', 'G']).unwrap_or_default();
        !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
    };
    let changed = changes
        .iter()
        .filter(|(_, value)| had_another_meaning(value));
    let pairs: Vec<String> = changed
        .map(|(name, value)| format!("`{name}={value}`"))
        .collect();
    (!pairs.is_empty()).then(|| {
        format!(
            "K, M and G are powers of 1024 now, as everywhere else; earlier versions took them as \
             powers of 1000 in {}; write KiB, MiB or GiB to end this notice",
            pairs.join(", ")
        )
    })
}

/// Validates a list of settings, except for limits of the machine.
pub(crate) fn check(text: &str) -> std::result::Result<(), String> {
    let changes = parse_changes(text)?;
    // Sizes are validated later, against the memory of the machine that uses them.
    with(&Tunables::default(), &changes, u64::MAX / 2).map(drop)
}

/// Applies a list of settings to `tunables`, for a machine with `memory` bytes.
pub(crate) fn with(
    tunables: &Tunables,
    changes: &[(String, String)],
    memory: u64,
) -> std::result::Result<Tunables, String> {
    let pairs = changes.iter().map(|(n, v)| (n.as_str(), v.as_str()));
    match tunables.with(pairs, memory) {
        Ok((changed, _)) => Ok(changed),
        Err(e) if e.kind == ErrorKind::UnknownName => {
            let names = || TUNABLES.iter().map(|t| t.text);
            let unknown = changes.iter().find(|(n, _)| !names().any(|t| t == n));
            let hint = unknown.map(|(n, _)| did_you_mean(n, names()));
            Err(format!("{e}{}", hint.unwrap_or_default()))
        }
        Err(e) => Err(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_impossible_settings_are_refused() {
        let said = check("filecache_mx=10%").unwrap_err();
        assert!(said.contains("did you mean `filecache_max`?"), "{said}");
        assert!(check("filecache_max=95%").is_err());
        assert!(check("filecache_max").is_err());
        check("filecache_min=1% filecache_max=25%").unwrap();
        check("").unwrap();
    }

    #[test]
    fn only_sizes_with_a_single_letter_have_changed() {
        let changes = parse_changes("a=64M b=64MB c=5% d=64MiB e=1.5G f=10 g=2K").unwrap();
        let said = changed_sizes(&changes).unwrap();
        assert!(said.contains("in `a=64M`, `g=2K`;"), "{said}");
        assert_eq!(changed_sizes(&changes[1..6]), None);
    }
}
