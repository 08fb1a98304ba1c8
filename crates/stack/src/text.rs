//! Text forms of values, for arguments, messages and JSON.

use serde::Serialize;
use std::path::PathBuf;

/// Suggests the most similar of `known` (`; did you mean ...?`), or nothing if none is similar.
pub(crate) fn did_you_mean<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    let near = known
        .map(|k| (strsim::damerau_levenshtein(word, k), k))
        .min();
    match near {
        Some((distance, k)) if distance <= 3 => format!("; did you mean `{k}`?"),
        _ => String::new(),
    }
}

/// Serializes a path as a JSON string; bytes that are not UTF-8 are replaced.
pub(crate) fn path_as_text<S: serde::Serializer>(
    path: &Option<PathBuf>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    let text = path.as_ref().map(|path| path.display().to_string());
    text.serialize(serializer)
}

/// Formats a UUID (RFC 9562, section 4).
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [0..8, 8..12, 12..16, 16..20, 20..32]
        .map(|part| hex[part].to_owned())
        .join("-")
}
