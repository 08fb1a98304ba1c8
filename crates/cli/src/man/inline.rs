//! Marks of Markdown inside of a paragraph, as fonts of roff.

use clap_mangen::roff::{Inline, bold, italic, roman};

/// Parses code, emphasis and links. A link is replaced by its text.
pub(super) fn inlines(text: &str) -> Vec<Inline> {
    let mut parts = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let found = match first {
            '`' => between(rest, "`", "`").map(|(code, rest)| (bold(code), rest)),
            '*' => between(rest, "**", "**")
                .map(|(strong, rest)| (bold(strong), rest))
                .or_else(|| between(rest, "*", "*").map(|(word, rest)| (italic(word), rest))),
            '[' => link(rest).map(|(text, rest)| (roman(text), rest)),
            _ => None,
        };
        match found {
            Some((part, after)) => {
                if !plain.is_empty() {
                    parts.push(roman(std::mem::take(&mut plain)));
                }
                parts.push(part);
                rest = after;
            }
            None => {
                plain.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    if !plain.is_empty() {
        parts.push(roman(plain));
    }
    parts
}

/// Splits a text that begins with `open` into the part before the next `close`, which must not be
/// empty or begin with a space, and the part behind it.
fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<(&'a str, &'a str)> {
    let (inner, rest) = text.strip_prefix(open)?.split_once(close)?;
    let is_marked = !inner.is_empty() && !inner.starts_with(' ');
    is_marked.then_some((inner, rest))
}

/// Splits a text that begins with a link into the text of the link and the part behind it.
fn link(text: &str) -> Option<(String, &str)> {
    let (shown, rest) = between(text, "[", "](")?;
    let (_, rest) = rest.split_once(')')?;
    Some((shown.replace(['`', '*'], ""), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_become_fonts() {
        let parts = inlines("a `b-c` **d** *e* 2 * 3 [the `f`](g.md), `h");
        let wanted = [
            roman("a "),
            bold("b-c"),
            roman(" "),
            bold("d"),
            roman(" "),
            italic("e"),
            roman(" 2 * 3 "),
            roman("the f"),
            roman(", `h"),
        ];
        assert_eq!(parts, wanted);
    }
}
