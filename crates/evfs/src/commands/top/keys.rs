//! Keys, from the bytes that a terminal sends.

/// A key of the keyboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Char(char),
    /// A letter together with Ctrl.
    Ctrl(char),
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Tab,
    BackTab,
    Enter,
    Escape,
}

const ESC: u8 = 0x1b;

/// Longest escape sequence, in bytes; a longer one is discarded.
const SEQUENCE_MAX: usize = 32;

/// Decoder of keys. An escape sequence may arrive in several parts.
#[derive(Debug, Default)]
pub struct Decoder {
    rest: Vec<u8>,
}

impl Decoder {
    /// Decodes bytes as they arrive. Unknown sequences are discarded.
    pub fn decode(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.rest.extend_from_slice(bytes);
        let mut keys = Vec::new();
        let mut at = 0;
        while at < self.rest.len() {
            let Some((key, len)) = first(&self.rest[at..]) else {
                break;
            };
            keys.extend(key);
            at += len;
        }
        self.rest.drain(..at);
        keys
    }

    /// Decides that an incomplete sequence does not continue: Escape was pressed alone.
    pub fn flush(&mut self) -> Option<Key> {
        let rest = std::mem::take(&mut self.rest);
        (rest == [ESC]).then_some(Key::Escape)
    }

    /// Reports whether a sequence is incomplete.
    pub fn is_waiting(&self) -> bool {
        !self.rest.is_empty()
    }
}

/// Decodes the first key, and its length; `None` if it is incomplete.
fn first(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    let (first, rest) = bytes.split_first()?;
    match *first {
        ESC => after_escape(rest).map(|(key, len)| (key, len + 1)),
        b'\t' => Some((Some(Key::Tab), 1)),
        b'\r' | b'\n' => Some((Some(Key::Enter), 1)),
        byte @ 1..=26 => Some((Some(Key::Ctrl(char::from(byte - 1 + b'a'))), 1)),
        byte if byte.is_ascii_graphic() || byte == b' ' => {
            Some((Some(Key::Char(char::from(byte))), 1))
        }
        // The other keys are not used: control characters, and letters beyond ASCII.
        _ => Some((None, 1)),
    }
}

/// Decodes what follows an escape character, and its length.
fn after_escape(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    match bytes {
        [] => None,
        [b'[' | b'O'] => None,
        [b'[' | b'O', rest @ ..] => {
            let is_final = |byte: &u8| (0x40..=0x7e).contains(byte);
            match rest.iter().position(is_final) {
                Some(end) => Some((of_sequence(&rest[..end], rest[end]), end + 2)),
                None if rest.len() > SEQUENCE_MAX => Some((None, rest.len() + 1)),
                None => None,
            }
        }
        // A key together with Alt, or Escape before another sequence.
        [ESC, ..] => Some((Some(Key::Escape), 0)),
        _ => Some((None, 1)),
    }
}

fn of_sequence(parameters: &[u8], last: u8) -> Option<Key> {
    // `1;5A` is the same key with Ctrl.
    let number = parameters.split(|byte| *byte == b';').next();
    Some(match (last, number.unwrap_or_default()) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'C', _) => Key::Right,
        (b'D', _) => Key::Left,
        (b'H', _) | (b'~', b"1" | b"7") => Key::Home,
        (b'F', _) | (b'~', b"4" | b"8") => Key::End,
        (b'~', b"5") => Key::PageUp,
        (b'~', b"6") => Key::PageDown,
        (b'Z', _) => Key::BackTab,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8]) -> Vec<Key> {
        Decoder::default().decode(bytes)
    }

    #[test]
    fn keys_are_decoded_in_both_modes_of_a_terminal() {
        assert_eq!(decoded(b"q?"), [Key::Char('q'), Key::Char('?')]);
        assert_eq!(decoded(b"\x1b[A\x1bOB"), [Key::Up, Key::Down]);
        assert_eq!(decoded(b"\x1b[5~\x1b[6~"), [Key::PageUp, Key::PageDown]);
        assert_eq!(decoded(b"\x1b[1;5C\x1b[D"), [Key::Right, Key::Left]);
        assert_eq!(decoded(b"\x1b[H\x1b[4~"), [Key::Home, Key::End]);
        assert_eq!(decoded(b"\t\x1b[Z"), [Key::Tab, Key::BackTab]);
        assert_eq!(decoded(b"\x03\x1a"), [Key::Ctrl('c'), Key::Ctrl('z')]);
        assert_eq!(decoded(b"\r \x7f\x00"), [Key::Enter, Key::Char(' ')]);
        assert!(decoded("ö".as_bytes()).is_empty());
        assert_eq!(decoded(b"\x1b[200~x"), [Key::Char('x')]);
    }

    #[test]
    fn a_sequence_may_arrive_in_parts() {
        for cut in 1..4 {
            let mut decoder = Decoder::default();
            let bytes = b"\x1b[5~";
            assert!(decoder.decode(&bytes[..cut]).is_empty());
            assert!(decoder.is_waiting());
            assert_eq!(decoder.decode(&bytes[cut..]), [Key::PageUp]);
            assert!(!decoder.is_waiting());
        }
    }

    #[test]
    fn escape_alone_is_a_key_once_nothing_follows() {
        let mut decoder = Decoder::default();
        assert!(decoder.decode(b"\x1b").is_empty());
        assert_eq!(decoder.flush(), Some(Key::Escape));
        assert!(!decoder.is_waiting());
        assert_eq!(decoded(b"\x1b\x1b[A"), [Key::Escape, Key::Up]);
        let mut decoder = Decoder::default();
        assert!(decoder.decode(b"\x1b[").is_empty());
        assert_eq!(decoder.flush(), None);
    }

    #[test]
    fn noise_neither_panics_nor_is_kept() {
        let mut decoder = Decoder::default();
        let mut state = 1_u32;
        for _ in 0..10_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            decoder.decode(&[(state >> 24) as u8]);
            assert!(decoder.rest.len() <= SEQUENCE_MAX + 4);
        }
        decoder.decode(b"\x1b[");
        decoder.decode(&[b'1'; 1000]);
        assert!(!decoder.is_waiting());
    }
}
