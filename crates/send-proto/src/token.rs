//! The token with which a sender continues an interrupted stream, as text.

use crate::fields::In;
use crate::header::Resume;
use crate::record::Position;
use crate::segment::Digest;
use crate::{Error, Result};

/// Start of the text.
const PREFIX: &str = "evfs1-";

/// Token of a receiver: the stream, and the segments of it that the receiver has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// Identity of the stream.
    pub stream: Digest,
    /// Point at which it continues.
    pub resume: Resume,
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut bytes = self.stream.0.to_vec();
        bytes.extend(self.resume.segments.to_le_bytes());
        self.resume.position.encode(&mut bytes);
        bytes.extend(self.resume.digest.0);
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        f.write_str(PREFIX)?;
        bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::str::FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Token> {
        let digits = text.trim().strip_prefix(PREFIX).ok_or(Error::Token)?;
        let pair = |pair: &[u8]| {
            let text = std::str::from_utf8(pair).ok()?;
            let is_digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
            u8::from_str_radix(text, 16)
                .ok()
                .filter(|_| is_digits && text.len() == 2)
        };
        let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(pair).collect();
        let bytes = bytes.ok_or(Error::Token)?;
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or(Error::Token)?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
            return Err(Error::Token);
        }
        let mut fields = In(body);
        let mut read = || {
            let stream = Digest(fields.array()?);
            let resume = Resume {
                segments: fields.u64()?,
                position: Position::decode(&mut fields)?,
                digest: Digest(fields.array()?),
            };
            fields.end()?;
            Ok(Token { stream, resume })
        };
        let token = read().map_err(|_: Error| Error::Token)?;
        let sound = token.resume.segments > 0 && !token.resume.position.is_end();
        sound.then_some(token).ok_or(Error::Token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_and_a_changed_one_is_refused() {
        let token = Token {
            stream: Digest([1; 32]),
            resume: Resume {
                segments: 3,
                position: Position {
                    phase: 2,
                    object: 5,
                    step: 6,
                },
                digest: Digest([7; 32]),
            },
        };
        let text = token.to_string();
        assert_eq!(text.parse(), Ok(token));
        assert_eq!(format!(" {text}\n").parse(), Ok(token));
        for at in 0..text.len() {
            let mut other = text.clone().into_bytes();
            other[at] = if other[at] == b'0' { b'1' } else { b'0' };
            let other = String::from_utf8(other).unwrap();
            assert_eq!(other.parse::<Token>(), Err(Error::Token));
            assert_eq!(text[..at].parse::<Token>(), Err(Error::Token));
        }
        assert_eq!("evfs1-+1".parse::<Token>(), Err(Error::Token));
    }
}
