//! Recovery keys: 256 random bits, as a text that a user prints or writes down and types once.
//!
//! ```text
//!   group        8 letters of 4 bits each, most significant bits first, and one check letter
//!   recovery key 8 groups, separated by hyphens: 79 characters
//! ```
//!
//! The letters are those of systemd's recovery keys ("modhex"), which are at the same place on
//! nearly every Latin keyboard. The check letter of a group makes a weighted sum over GF(16) zero:
//! of the number of the group, its letters, and the check letter itself. All weights differ, so a
//! wrong letter, two letters exchanged in a group, or two groups exchanged are always detected, and
//! the group is known.
//!
//! **Invariant:** the text, in lower case and with hyphens, is itself the secret of the keyslot. So
//! `cryptsetup` accepts a recovery key as a passphrase.

use secret::SecretBytes;
use std::fmt;

/// Letters of the values 0 to 15.
const ALPHABET: &[u8; 16] = b"cbdefghijklnrtuv";
/// Number of groups.
const GROUPS: usize = 8;
/// Letters of a group that hold the key.
const DATA_LETTERS: usize = 8;
/// Letters of a group, with the check letter.
const GROUP_LETTERS: usize = DATA_LETTERS + 1;
/// Bytes of the key.
const KEY_BYTES: usize = GROUPS * DATA_LETTERS / 2;
/// Bytes of the text.
const TEXT_BYTES: usize = GROUPS * (GROUP_LETTERS + 1) - 1;
/// Longest typed text that may be a recovery key, in bytes: with separators of several characters.
const TYPED_BYTES_MAX: usize = 3 * TEXT_BYTES;

/// 256 random bits, as their text.
pub struct RecoveryKey {
    text: SecretBytes,
}

/// Result of reading a secret as a recovery key.
pub enum Typed {
    /// It is one: every check letter is right.
    Key(RecoveryKey),
    /// It resembles one, and has mistakes.
    Mistyped(Mistake),
    /// It does not resemble one.
    Other,
}

/// Place of typing mistakes in a recovery key. Reveals no letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mistake {
    /// Numbers of the wrong groups, counted from 1.
    Groups(Vec<usize>),
    /// The number of letters, or of groups, is wrong.
    Length {
        /// Number of letters typed.
        letters: usize,
    },
}

impl RecoveryKey {
    /// Generates a key from the kernel's random numbers.
    pub fn generate() -> RecoveryKey {
        let key = RecoveryKey::of(&SecretBytes::random(KEY_BYTES));
        // The values of its letters.
        secret::burn_stack();
        key
    }

    /// Returns the text to print.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.text).expect("letters and hyphens are ASCII")
    }

    /// Returns the text as the secret of a keyslot.
    pub fn secret(&self) -> &SecretBytes {
        &self.text
    }

    fn of(key: &[u8]) -> RecoveryKey {
        let mut text = empty_text();
        for (number, bytes) in key.chunks(DATA_LETTERS / 2).enumerate() {
            let mut values = [0; GROUP_LETTERS];
            for (pair, byte) in values.chunks_mut(2).zip(bytes) {
                pair.copy_from_slice(&[byte >> 4, byte & 15]);
            }
            values[DATA_LETTERS] = check(number, &values[..DATA_LETTERS]);
            for (to, value) in group_of(&mut text, number).iter_mut().zip(values) {
                *to = ALPHABET[usize::from(value)];
            }
        }
        RecoveryKey { text }
    }
}

/// Reads a secret as a recovery key, in any case, with hyphens or white space or neither.
pub fn read(typed: &[u8]) -> Typed {
    let typed = typed.trim_ascii();
    if typed.len() > TYPED_BYTES_MAX {
        return Typed::Other;
    }
    let parts = typed.split(|b| *b == b'-' || b.is_ascii_whitespace());
    let parts: Vec<&[u8]> = parts.filter(|part| !part.is_empty()).collect();
    let is_separated = parts.len() > 1;
    let groups: Vec<&[u8]> = if is_separated {
        parts
    } else {
        parts.iter().flat_map(|p| p.chunks(GROUP_LETTERS)).collect()
    };
    let numbered = groups.iter().enumerate();
    let wrong = numbered.filter(|(number, group)| !is_right(*number, group));
    let wrong: Vec<usize> = wrong.map(|(number, _)| number + 1).collect();
    if groups.len() == GROUPS && wrong.is_empty() {
        let mut text = empty_text();
        for (number, group) in groups.iter().enumerate() {
            for (to, letter) in group_of(&mut text, number).iter_mut().zip(*group) {
                *to = letter.to_ascii_lowercase();
            }
        }
        return Typed::Key(RecoveryKey { text });
    }
    let letters: usize = groups.iter().map(|group| group.len()).sum();
    if !resembles(&groups, letters) {
        return Typed::Other;
    }
    let can_locate = is_separated || letters == GROUPS * GROUP_LETTERS;
    Typed::Mistyped(if groups.len() == GROUPS && can_locate {
        Mistake::Groups(wrong)
    } else {
        Mistake::Length { letters }
    })
}

/// Reports whether a text is probably a recovery key with mistakes. The result only selects the
/// words of an error, so it may be wrong about a passphrase.
fn resembles(groups: &[&[u8]], letters: usize) -> bool {
    let all = groups.iter().flat_map(|group| group.iter());
    let known = all.filter(|letter| value_of(**letter).is_some()).count();
    groups.len().abs_diff(GROUPS) <= 2
        && letters.abs_diff(GROUPS * GROUP_LETTERS) <= 2 * GROUP_LETTERS
        && known * 5 >= letters * 4
}

fn empty_text() -> SecretBytes {
    let mut text = SecretBytes::zeroed(TEXT_BYTES);
    text.fill(b'-');
    text
}

/// Returns the place of group `number`, counted from 0.
fn group_of(text: &mut [u8], number: usize) -> &mut [u8] {
    let at = number * (GROUP_LETTERS + 1);
    &mut text[at..at + GROUP_LETTERS]
}

/// Checks the letters and the check letter of group `number`, counted from 0.
fn is_right(number: usize, group: &[u8]) -> bool {
    let values: Option<Vec<u8>> = group.iter().map(|letter| value_of(*letter)).collect();
    match values.as_deref() {
        Some([data @ .., last]) => data.len() == DATA_LETTERS && check(number, data) == *last,
        _ => false,
    }
}

fn value_of(letter: u8) -> Option<u8> {
    let letter = letter.to_ascii_lowercase();
    let value = ALPHABET.iter().position(|known| *known == letter)?;
    u8::try_from(value).ok()
}

/// Computes the value of the check letter of group `number`.
fn check(number: usize, values: &[u8]) -> u8 {
    let number = (number % GROUPS) as u8;
    let sum = values
        .iter()
        .fold(number, |sum, value| times_a(sum) ^ value);
    times_a(sum)
}

/// Multiplies by a generator of GF(16), whose polynomial is x^4 + x + 1. Its first nine powers, the
/// weights of a group, all differ.
fn times_a(value: u8) -> u8 {
    let reduction = if value & 8 == 0 { 0 } else { 0b1_0011 };
    (value << 1) ^ reduction
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mistake::Groups(groups) => match groups.as_slice() {
                [one] => write!(f, "group {one} of the recovery key is mistyped"),
                many => {
                    let many: Vec<String> = many.iter().map(usize::to_string).collect();
                    write!(
                        f,
                        "groups {} of the recovery key are mistyped",
                        many.join(", ")
                    )
                }
            },
            Mistake::Length { letters } => write!(
                f,
                "a recovery key has {GROUPS} groups of {GROUP_LETTERS} letters, {} in all, and \
                 {letters} were typed",
                GROUPS * GROUP_LETTERS
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> RecoveryKey {
        let key: Vec<u8> = (0..KEY_BYTES as u8)
            .map(|n| n.wrapping_mul(37) ^ 0x5a)
            .collect();
        RecoveryKey::of(&key)
    }

    fn is_same(typed: &str) -> bool {
        matches!(read(typed.as_bytes()), Typed::Key(key) if key.secret() == example().secret())
    }

    fn mistake(typed: &[u8]) -> Option<Mistake> {
        match read(typed) {
            Typed::Mistyped(mistake) => Some(mistake),
            _ => None,
        }
    }

    #[test]
    fn a_key_has_the_documented_form_and_no_two_are_alike() {
        let zeros = RecoveryKey::of(&[0; KEY_BYTES]);
        // The check letters are the numbers of the groups, times the ninth power of the generator.
        let expected =
            "ccccccccc-ccccccccl-cccccccci-cccccccct-ccccccccu-ccccccccf-cccccccck-cccccccce";
        assert_eq!(zeros.text(), expected);
        let key = example();
        let groups: Vec<&str> = key.text().split('-').collect();
        assert_eq!(groups.len(), 8);
        assert!(groups.iter().all(|group| group.len() == 9));
        assert!(RecoveryKey::generate().secret() != RecoveryKey::generate().secret());
    }

    #[test]
    fn a_key_is_read_in_any_case_and_with_any_separators() {
        let text = example().text().to_owned();
        assert!(is_same(&text));
        assert!(is_same(&text.to_uppercase()));
        assert!(is_same(&text.replace('-', " ")));
        assert!(is_same(&text.replace('-', "")));
        assert!(is_same(&format!("  {}\n", text.replace('-', " - "))));
    }

    #[test]
    fn every_wrong_letter_and_every_exchange_is_located() {
        let text = example().text().as_bytes().to_vec();
        let letters = (0..text.len()).filter(|at| text[*at] != b'-');
        for at in letters {
            let group = at / (GROUP_LETTERS + 1);
            for letter in ALPHABET.iter().filter(|letter| **letter != text[at]) {
                let mut typed = text.clone();
                typed[at] = *letter;
                assert_eq!(mistake(&typed), Some(Mistake::Groups(vec![group + 1])));
            }
            let end = group * (GROUP_LETTERS + 1) + GROUP_LETTERS;
            for other in (at + 1..end).filter(|other| text[*other] != text[at]) {
                let mut typed = text.clone();
                typed.swap(at, other);
                assert_eq!(mistake(&typed), Some(Mistake::Groups(vec![group + 1])));
            }
        }
        let groups: Vec<&[u8]> = text.split(|b| *b == b'-').collect();
        for first in 0..GROUPS {
            for second in first + 1..GROUPS {
                let mut exchanged = groups.clone();
                exchanged.swap(first, second);
                let expected = Mistake::Groups(vec![first + 1, second + 1]);
                assert_eq!(mistake(&exchanged.join(&b'-')), Some(expected));
            }
        }
    }

    #[test]
    fn a_letter_too_few_is_located_by_its_separators() {
        let mut typed = example().text().as_bytes().to_vec();
        typed.remove(23);
        assert_eq!(mistake(&typed), Some(Mistake::Groups(vec![3])));
        typed.retain(|b| *b != b'-');
        assert_eq!(mistake(&typed), Some(Mistake::Length { letters: 71 }));
        let text = example().text().to_owned();
        let (_, seven) = text.split_once('-').unwrap();
        let said = mistake(seven.as_bytes()).unwrap();
        assert_eq!(said, Mistake::Length { letters: 63 });
        assert!(said.to_string().contains("72 in all"), "{said}");
    }

    #[test]
    fn a_passphrase_is_no_recovery_key() {
        let hyphens = "-".repeat(500);
        for typed in [
            "",
            "sesame",
            "correct horse battery staple",
            "a passphrase of many words is as long as that but not made of those letters at all ok",
            hyphens.as_str(),
        ] {
            assert!(matches!(read(typed.as_bytes()), Typed::Other), "{typed}");
        }
        assert!(matches!(read(&[0xff; 79]), Typed::Other));
    }
}
