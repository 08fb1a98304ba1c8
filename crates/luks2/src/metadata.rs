//! The JSON metadata: keyslots, tokens, segments, digests, config.
//!
//! The document is authoritative and kept in full; the typed view is read from it again after every
//! change. So unknown fields survive, and everything that is written is accepted by the reader.
//!
//! **Invariant:** the view matches the document, and the document has passed every check below.
//!
//! The checks that `cryptsetup` makes too come first; if one fails, the error is
//! [`crate::ErrorKind::Damaged`], and the other copy may still be intact. Our own checks follow:
//! [`crate::ErrorKind::Unsupported`] and [`crate::ErrorKind::Refused`] are verdicts about an intact
//! header, and no reason to fall back to an older copy.

mod config;
mod digest;
mod field;
mod keyslot;
mod segment;
mod token;

pub use config::Config;
pub use digest::Digest;
pub use keyslot::{Keyslot, Luks2Keyslot, Priority, Range};
pub use segment::Segment;
pub use token::Token;

pub(crate) use config::KEYSLOTS_SIZE_MAX;
pub(crate) use digest::digest_json;
pub(crate) use field::Fields;
pub(crate) use keyslot::{NewKeyslot, area_len, keyslot_json, material_len};

use crate::binary::BINARY_LEN;
use crate::error::{Error, Result, quoted};
use crate::json::{self, Json, Object};
use std::collections::BTreeMap;

/// Maximum number of keyslots of a volume (`LUKS2_KEYSLOTS_MAX`).
pub const KEYSLOTS_MAX: u32 = 32;
/// Maximum number of tokens of a volume (`LUKS2_TOKENS_MAX`).
pub const TOKENS_MAX: u32 = 32;
/// Maximum number of segments of a volume (`LUKS2_SEGMENT_MAX`).
pub const SEGMENTS_MAX: u32 = 32;
/// Maximum number of digests of a volume (`LUKS2_DIGEST_MAX`).
pub const DIGESTS_MAX: u32 = 8;

/// The metadata of a volume.
#[derive(Debug, Clone, PartialEq)]
pub struct Metadata {
    document: Object,
    keyslots: BTreeMap<u32, Keyslot>,
    tokens: BTreeMap<u32, Token>,
    segment_id: u32,
    segment: Segment,
    digest_id: u32,
    digests: BTreeMap<u32, Digest>,
    config: Config,
}

impl Metadata {
    /// Parses a JSON area: text, then zeros to the end.
    pub(crate) fn from_area(area: &[u8]) -> Result<Metadata> {
        // LUKS2 specification, 3: the area begins with '{' and is zero-padded after the object.
        if area.first() != Some(&b'{') {
            return Err(Error::damaged(
                "the JSON area does not begin with an object",
            ));
        }
        let end = area
            .iter()
            .position(|b| *b == 0)
            .ok_or_else(|| Error::damaged("the JSON area is not zero-terminated"))?;
        let (text, padding) = area.split_at(end);
        if padding.iter().any(|b| *b != 0) {
            return Err(Error::damaged(
                "the padding after the JSON object is not zero",
            ));
        }
        let text = std::str::from_utf8(text)
            .map_err(|_| Error::refused("the JSON area is not valid UTF-8"))?;
        let json_size = area.len() as u64;
        Metadata::from_json(text, json_size)
    }

    /// Parses the JSON text of an area of `json_size` bytes.
    pub(crate) fn from_json(text: &str, json_size: u64) -> Result<Metadata> {
        let (value, len) = json::parse(text)?;
        let rest = text.get(len..).unwrap_or_default();
        if !rest
            .bytes()
            .all(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r'))
        {
            return Err(Error::damaged("trailing text after the JSON object"));
        }
        let Json::Object(document) = value else {
            return Err(Error::damaged("the JSON is not an object"));
        };
        Metadata::from_document(document, json_size)
    }

    /// Reads the typed view from a document and checks it.
    pub(crate) fn from_document(document: Object, json_size: u64) -> Result<Metadata> {
        let root = Fields::new("header", &document);
        let config = Config::read(&root.object("config")?, json_size)?;
        let keyslots = read_section(&root, "keyslots", KEYSLOTS_MAX, Keyslot::read)?;
        let tokens = read_section(&root, "tokens", TOKENS_MAX, Token::read)?;
        let digests = read_section(&root, "digests", DIGESTS_MAX, Digest::read)?;
        let segments = read_section(&root, "segments", SEGMENTS_MAX, Segment::read)?;
        keyslot::check_areas(&keyslots, &config)?;
        check_references(&keyslots, &tokens, &digests, &segments)?;
        segment::check_offsets(&segments, &config)?;
        let (segment_id, segment) = segment::the_one(segments)?;
        let digest_id = digest::of_segment(&digests, segment_id)?;
        keyslot::check_key_sizes(&keyslots, &digests, digest_id)?;
        Ok(Metadata {
            document,
            keyslots,
            tokens,
            segment_id,
            segment,
            digest_id,
            digests,
            config,
        })
    }

    /// Maps numbers to keyslots.
    pub fn keyslots(&self) -> &BTreeMap<u32, Keyslot> {
        &self.keyslots
    }

    /// Maps numbers to tokens.
    pub fn tokens(&self) -> &BTreeMap<u32, Token> {
        &self.tokens
    }

    /// Returns the only data segment.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Returns the number of the data segment, nearly always 0.
    pub fn segment_id(&self) -> u32 {
        self.segment_id
    }

    /// Maps numbers to digests.
    pub fn digests(&self) -> &BTreeMap<u32, Digest> {
        &self.digests
    }

    /// Returns the digest that the volume key must match, and its number.
    pub fn volume_digest(&self) -> (u32, Option<&Digest>) {
        (self.digest_id, self.digests.get(&self.digest_id))
    }

    /// Returns the `config` section.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Encodes the document as compact JSON text.
    pub fn to_json(&self) -> String {
        self.document.encode()
    }

    pub(crate) fn document(&self) -> &Object {
        &self.document
    }

    /// Computes the length of one copy of the header in bytes.
    pub(crate) fn hdr_size(&self) -> u64 {
        self.config.json_size() + BINARY_LEN as u64
    }

    /// Computes the range for keyslot areas: from the end of both copies to the end of the keyslots
    /// area.
    pub(crate) fn keyslots_range(&self) -> Range {
        Range {
            offset: 2 * self.hdr_size(),
            len: self.config.keyslots_size(),
        }
    }
}

/// Reads a section of numbered objects.
fn read_section<T>(
    root: &Fields<'_>,
    name: &str,
    max: u32,
    read: impl Fn(&Fields<'_>) -> Result<T>,
) -> Result<BTreeMap<u32, T>> {
    let section = root.object(name)?;
    let mut entries = BTreeMap::new();
    for (key, _) in section.inner().iter() {
        if !key.bytes().all(|b| b.is_ascii_digit()) {
            return Err(Error::damaged(format!(
                "{name}: {} is not a number",
                quoted(key)
            )));
        }
        let number = key
            .parse()
            .ok()
            .filter(|n: &u32| *n < max && n.to_string() == key);
        let number = number.ok_or_else(|| {
            Error::refused(format!(
                "{name}: {} is out of range (0 to {})",
                quoted(key),
                max - 1
            ))
        })?;
        entries.insert(number, read(&section.object(key)?)?);
    }
    Ok(entries)
}

/// Checks that every reference to a keyslot or segment names an existing one, and that every
/// keyslot of type `luks2` belongs to exactly one digest.
fn check_references<S>(
    keyslots: &BTreeMap<u32, Keyslot>,
    tokens: &BTreeMap<u32, Token>,
    digests: &BTreeMap<u32, Digest>,
    segments: &BTreeMap<u32, S>,
) -> Result<()> {
    let missing = |what: &str, id: &u32, part: &str, n: &u32| {
        Error::damaged(format!(
            "{what} {id} refers to {part} {n}, which does not exist"
        ))
    };
    for (id, token) in tokens {
        if let Some(n) = token.keyslots().iter().find(|n| !keyslots.contains_key(n)) {
            return Err(missing("token", id, "keyslot", n));
        }
    }
    for (id, digest) in digests {
        if let Some(n) = digest.keyslots().iter().find(|n| !keyslots.contains_key(n)) {
            return Err(missing("digest", id, "keyslot", n));
        }
        if let Some(n) = digest.segments().iter().find(|n| !segments.contains_key(n)) {
            return Err(missing("digest", id, "segment", n));
        }
    }
    for (id, _) in keyslots.iter().filter(|(_, k)| k.is_luks2()) {
        let owners = digests
            .values()
            .filter(|d| d.keyslots().contains(id))
            .count();
        if owners != 1 {
            return Err(Error::damaged(format!(
                "keyslot {id} has {owners} digests, expected 1"
            )));
        }
    }
    Ok(())
}
