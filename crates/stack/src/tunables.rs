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
}
