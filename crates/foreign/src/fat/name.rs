//! Names: eight and three characters, and long ones in the entries before.

/// Characters of code page 437 from 128 on.
const UPPER: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";

/// Flags of lower case in a short name.
const LOWER_BASE: u8 = 8;
const LOWER_EXTENSION: u8 = 0x10;

/// Most parts of a long name.
const PARTS_MAX: u8 = 20;

/// Decodes a short name.
pub(super) fn short_name(raw: &[u8; 32]) -> Vec<u8> {
    let decode = |bytes: &[u8], lower: bool| -> String {
        let end = bytes
            .iter()
            .rposition(|b| *b != b' ')
            .map_or(0, |last| last + 1);
        let chars = bytes[..end].iter().map(|b| match *b {
            ascii @ 0..128 => char::from(ascii),
            upper => UPPER.chars().nth(usize::from(upper - 128)).unwrap_or('_'),
        });
        let text: String = chars.collect();
        if lower { text.to_lowercase() } else { text }
    };
    let mut base = [0; 8];
    base.copy_from_slice(&raw[..8]);
    if base[0] == 5 {
        // The first byte 0xe5 would mark a deleted entry.
        base[0] = 0xe5;
    }
    let mut name = decode(&base, raw[12] & LOWER_BASE != 0);
    let extension = decode(&raw[8..11], raw[12] & LOWER_EXTENSION != 0);
    if !extension.is_empty() {
        name.push('.');
        name.push_str(&extension);
    }
    name.into_bytes()
}

/// Computes the number that binds the entries of a long name to a short one.
pub(super) fn checksum(short: &[u8]) -> u8 {
    short
        .iter()
        .fold(0u8, |sum, b| sum.rotate_right(1).wrapping_add(*b))
}

/// Long name whose parts are read, the last one first.
#[derive(Default)]
pub(super) struct LongName {
    /// Units of UTF-16, with those of the first part at the end.
    parts: Vec<[u16; 13]>,
    /// Number of the next part; 0 when the name is complete.
    next: u8,
    sum: u8,
}

impl LongName {
    /// Adds an entry with a part.
    pub fn add(&mut self, raw: &[u8; 32]) {
        let (order, sum) = (raw[0], raw[13]);
        if order & 0x40 != 0 {
            *self = LongName {
                parts: Vec::new(),
                next: order & 0x3f,
                sum,
            };
        }
        if self.next == 0 || self.next > PARTS_MAX || order & 0x3f != self.next || sum != self.sum {
            *self = LongName::default();
            return;
        }
        let places = [1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30];
        self.parts
            .push(places.map(|at| u16::from_le_bytes([raw[at], raw[at + 1]])));
        self.next -= 1;
    }

    /// Returns the name, if it is complete and belongs to the entry that follows it.
    pub fn finish(self, short: &[u8; 32]) -> Option<Vec<u8>> {
        if self.parts.is_empty() || self.next != 0 || checksum(&short[..11]) != self.sum {
            return None;
        }
        let units = self
            .parts
            .iter()
            .rev()
            .flatten()
            .copied()
            .take_while(|unit| *unit != 0);
        let chars = char::decode_utf16(units);
        let name: String = chars
            .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
            .collect();
        Some(name.into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_have_their_case_and_their_code_page() {
        let mut raw = [0; 32];
        raw[..11].copy_from_slice(b"README  TXT");
        assert_eq!(short_name(&raw), b"README.TXT");
        raw[12] = LOWER_BASE | LOWER_EXTENSION;
        assert_eq!(short_name(&raw), b"readme.txt");
        raw[..11].copy_from_slice(b"\x05\x81      \x20  ");
        raw[12] = 0;
        assert_eq!(short_name(&raw), "σü".as_bytes());
        assert_eq!(UPPER.chars().count(), 128);
    }
}
