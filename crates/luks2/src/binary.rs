//! The binary header: the first 4,096 bytes of each of the two copies.
//!
//! The module `at` defines the layout (LUKS2 specification, 2.1); no other code contains an offset.
//! All integers are big-endian. The checksum covers these 4,096 bytes, with its own field as zeros,
//! and the whole JSON area after them with its padding.

use crate::error::{Error, Result, quoted};
use crate::hash::Hash;
use std::fmt;

/// Length of a binary header in bytes.
pub(crate) const BINARY_LEN: usize = 4096;

/// Length in bytes of the smallest copy (binary header and JSON area).
pub const HEADER_SIZE_MIN: u64 = 0x4000;

/// Length in bytes of the largest copy (binary header and JSON area).
pub const HEADER_SIZE_MAX: u64 = 0x40_0000;

const MAGIC_PRIMARY: [u8; 6] = *b"LUKS\xba\xbe";
const MAGIC_SECONDARY: [u8; 6] = *b"SKUL\xba\xbe";

/// Offsets of the fields. Each field ends where the next begins, except before the padding.
mod at {
    pub(super) const MAGIC: usize = 0; // 6 bytes
    pub(super) const VERSION: usize = 6; // u16
    pub(super) const HDR_SIZE: usize = 8; // u64
    pub(super) const SEQID: usize = 16; // u64
    pub(super) const LABEL: usize = 24; // 48 bytes, zero-terminated
    pub(super) const CHECKSUM_ALG: usize = 72; // 32 bytes, zero-terminated
    pub(super) const SALT: usize = 104; // 64 bytes
    pub(super) const UUID: usize = 168; // 40 bytes, zero-terminated
    pub(super) const SUBSYSTEM: usize = 208; // 48 bytes, zero-terminated
    pub(super) const HDR_OFFSET: usize = 256; // u64
    pub(super) const CHECKSUM: usize = 448; // 64 bytes, after 184 of padding
}

const LABEL_LEN: usize = 48;
const UUID_LEN: usize = 40;
const ALG_LEN: usize = 32;
const SALT_LEN: usize = 64;
const CHECKSUM_LEN: usize = 64;

/// One of the two copies of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Copy {
    /// At the start of the device.
    Primary,
    /// Right after the primary.
    Secondary,
}

impl Copy {
    pub(crate) fn other(self) -> Copy {
        match self {
            Copy::Primary => Copy::Secondary,
            Copy::Secondary => Copy::Primary,
        }
    }

    fn magic(self) -> [u8; 6] {
        match self {
            Copy::Primary => MAGIC_PRIMARY,
            Copy::Secondary => MAGIC_SECONDARY,
        }
    }
}

impl fmt::Display for Copy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Copy::Primary => "primary",
            Copy::Secondary => "secondary",
        })
    }
}

/// Lists the possible offsets of a secondary copy: 16 KiB doubled up to 4 MiB (LUKS2
/// specification, 2.2).
pub fn secondary_offsets() -> impl Iterator<Item = u64> {
    (0..9).map(|n| HEADER_SIZE_MIN << n)
}

pub(crate) fn is_header_size(size: u64) -> bool {
    secondary_offsets().any(|offset| offset == size)
}

/// The fields of a binary header that both copies share, and the two salts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BinaryHeader {
    pub(crate) hdr_size: u64,
    pub(crate) seqid: u64,
    /// Kept as bytes: the program that wrote it may not have used UTF-8.
    pub(crate) label: Vec<u8>,
    pub(crate) subsystem: Vec<u8>,
    pub(crate) uuid: String,
    pub(crate) checksum_alg: Hash,
    pub(crate) salt: Salts,
}

/// The salts of the two copies. They make the copies differ in every block of the checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Salts {
    pub(crate) primary: [u8; SALT_LEN],
    pub(crate) secondary: [u8; SALT_LEN],
}

impl Salts {
    pub(crate) fn get_mut(&mut self, copy: Copy) -> &mut [u8; SALT_LEN] {
        match copy {
            Copy::Primary => &mut self.primary,
            Copy::Secondary => &mut self.secondary,
        }
    }

    pub(crate) fn get(&self, copy: Copy) -> &[u8; SALT_LEN] {
        match copy {
            Copy::Primary => &self.primary,
            Copy::Secondary => &self.secondary,
        }
    }
}

/// Checks whether `bytes`, read at the offset of `copy`, begin with its magic.
pub(crate) fn has_magic(bytes: &[u8], copy: Copy) -> bool {
    bytes.starts_with(&copy.magic())
}

/// Checks whether `bytes` contain the name of a checksum algorithm at its offset in the header.
pub(crate) fn names_checksum(bytes: &[u8]) -> bool {
    let name = bytes.get(at::CHECKSUM_ALG..).unwrap_or_default();
    name.starts_with(b"sha256\0")
}

/// Reads the version of the header in `bytes`, if they begin with a primary magic.
pub(crate) fn version(bytes: &[u8]) -> Option<u16> {
    if !has_magic(bytes, Copy::Primary) {
        return None;
    }
    array(bytes, at::VERSION).map(u16::from_be_bytes)
}

/// Reads the sequence id; does not check the other fields.
pub(crate) fn seqid(bytes: &[u8]) -> Option<u64> {
    array(bytes, at::SEQID).map(u64::from_be_bytes)
}

/// Reads the UUID; does not check the other fields.
pub(crate) fn uuid(bytes: &[u8]) -> Option<String> {
    text::<UUID_LEN>(bytes, at::UUID).map(|text| lossy(&text))
}

/// Reads the size of `copy` as stated in its binary header, if that passes the checks possible
/// without the rest: the number of bytes to read before the checksum can be checked.
///
/// # Errors
/// [`crate::ErrorKind::Damaged`], naming the wrong field.
pub(crate) fn stated_size(binary: &[u8], copy: Copy, offset: u64) -> Result<u64> {
    if !has_magic(binary, copy) {
        return Err(Error::damaged("no LUKS magic"));
    }
    let short = || Error::damaged("shorter than a binary header");
    let version = array(binary, at::VERSION)
        .map(u16::from_be_bytes)
        .ok_or_else(short)?;
    if version != 2 {
        return Err(Error::damaged(format!("version {version}, not 2")));
    }
    // hdr_offset must be the actual offset, or this is a copy of a copy.
    let stated = array(binary, at::HDR_OFFSET)
        .map(u64::from_be_bytes)
        .ok_or_else(short)?;
    if stated != offset {
        return Err(Error::damaged(format!(
            "states offset {stated} but lies at {offset}"
        )));
    }
    let size = array(binary, at::HDR_SIZE)
        .map(u64::from_be_bytes)
        .ok_or_else(short)?;
    if !is_header_size(size) {
        return Err(Error::damaged(format!(
            "states the invalid header size {size}"
        )));
    }
    if copy == Copy::Secondary && size != offset {
        return Err(Error::damaged(format!(
            "states size {size} but lies at {offset}"
        )));
    }
    Ok(size)
}

/// Reads the copy in `bytes`, whose length is the stated one, and checks its checksum. The salt of
/// the other copy is left zero.
pub(crate) fn read(bytes: &[u8], copy: Copy) -> Result<BinaryHeader> {
    let short = || Error::damaged("shorter than its stated size");
    let alg = text::<ALG_LEN>(bytes, at::CHECKSUM_ALG).ok_or_else(short)?;
    let checksum_alg = Hash::from_name(&lossy(&alg)).map_err(|e| e.within("checksum algorithm"))?;
    let stated: [u8; CHECKSUM_LEN] = array(bytes, at::CHECKSUM).ok_or_else(short)?;
    let computed = checksum(checksum_alg, bytes).ok_or_else(short)?;
    let len = checksum_alg.len();
    if stated.get(..len) != computed.get(..len) {
        return Err(Error::damaged("checksum mismatch"));
    }
    let mut salt = Salts {
        primary: [0; SALT_LEN],
        secondary: [0; SALT_LEN],
    };
    *salt.get_mut(copy) = array(bytes, at::SALT).ok_or_else(short)?;
    let uuid = uuid(bytes).ok_or_else(short)?;
    if uuid.chars().any(|c| !c.is_ascii_graphic()) {
        return Err(Error::refused(format!(
            "the UUID {} is not plain text",
            quoted(&uuid)
        )));
    }
    Ok(BinaryHeader {
        hdr_size: array(bytes, at::HDR_SIZE)
            .map(u64::from_be_bytes)
            .ok_or_else(short)?,
        seqid: array(bytes, at::SEQID)
            .map(u64::from_be_bytes)
            .ok_or_else(short)?,
        label: text::<LABEL_LEN>(bytes, at::LABEL).ok_or_else(short)?,
        subsystem: text::<LABEL_LEN>(bytes, at::SUBSYSTEM).ok_or_else(short)?,
        uuid,
        checksum_alg,
        salt,
    })
}

impl BinaryHeader {
    /// Encodes `copy` with `json` in its JSON area. `json` must leave room for a zero after it.
    pub(crate) fn write(&self, copy: Copy, json: &str) -> Vec<u8> {
        let len = usize::try_from(self.hdr_size).unwrap_or_default();
        assert!(
            json.len() < len.saturating_sub(BINARY_LEN),
            "JSON was measured before"
        );
        let offset = self.offset(copy);
        let mut bytes = vec![0; len];
        for (at, field) in [
            (at::MAGIC, &copy.magic()[..]),
            (at::VERSION, &2u16.to_be_bytes()),
            (at::HDR_SIZE, &self.hdr_size.to_be_bytes()),
            (at::SEQID, &self.seqid.to_be_bytes()),
            (at::LABEL, truncated(&self.label, LABEL_LEN)),
            (at::CHECKSUM_ALG, self.checksum_alg.name().as_bytes()),
            (at::SALT, self.salt.get(copy)),
            (at::UUID, truncated(self.uuid.as_bytes(), UUID_LEN)),
            (at::SUBSYSTEM, truncated(&self.subsystem, LABEL_LEN)),
            (at::HDR_OFFSET, &offset.to_be_bytes()),
            (BINARY_LEN, json.as_bytes()),
        ] {
            put(&mut bytes, at, field);
        }
        if let Some(checksum) = checksum(self.checksum_alg, &bytes) {
            put(&mut bytes, at::CHECKSUM, &checksum);
        }
        bytes
    }

    /// Returns the offset of `copy` on the device.
    pub(crate) fn offset(&self, copy: Copy) -> u64 {
        match copy {
            Copy::Primary => 0,
            Copy::Secondary => self.hdr_size,
        }
    }

    /// Computes the length of each JSON area in bytes.
    pub(crate) fn json_area_len(&self) -> u64 {
        self.hdr_size.saturating_sub(BINARY_LEN as u64)
    }
}

/// Recomputes the checksum of the copy in `bytes` in place. For programs that construct headers
/// deliberately, such as fuzzers; [`crate::Header::update`] never needs it.
///
/// Does nothing if `bytes` are too short or name an unknown checksum algorithm.
pub fn fix_checksum(bytes: &mut [u8]) {
    let alg = text::<ALG_LEN>(bytes, at::CHECKSUM_ALG);
    let alg = alg.and_then(|alg| Hash::from_name(&lossy(&alg)).ok());
    if let Some(checksum) = alg.and_then(|alg| checksum(alg, bytes)) {
        put(bytes, at::CHECKSUM, &checksum);
    }
}

/// Computes the checksum of a copy, zero-padded to its field; `None` if `bytes` are too short.
fn checksum(alg: Hash, bytes: &[u8]) -> Option<[u8; CHECKSUM_LEN]> {
    let before = bytes.get(..at::CHECKSUM)?;
    let after = bytes.get(at::CHECKSUM + CHECKSUM_LEN..)?;
    let mut out = [0; CHECKSUM_LEN];
    alg.digest_into(
        &[before, &[0; CHECKSUM_LEN], after],
        out.get_mut(..alg.len())?,
    );
    Some(out)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Reads a zero-terminated text field of `N` bytes; the last byte is never part of the text.
fn text<const N: usize>(bytes: &[u8], at: usize) -> Option<Vec<u8>> {
    let field: [u8; N] = array(bytes, at)?;
    let text = field.split(|b| *b == 0).next().unwrap_or_default();
    text.get(..text.len().min(N - 1)).map(<[u8]>::to_vec)
}

pub(crate) fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(field) {
        *to = *from;
    }
}

/// Truncates `text` to `len - 1` bytes, so that the field ends with a zero.
fn truncated(text: &[u8], len: usize) -> &[u8] {
    text.get(..text.len().min(len - 1)).unwrap_or_default()
}

/// Checks that `text` is valid as a label or subsystem.
pub(crate) fn check_label(what: &str, text: &str) -> Result<()> {
    if text.len() >= LABEL_LEN {
        return Err(Error::argument(format!(
            "the {what} is longer than {} bytes",
            LABEL_LEN - 1
        )));
    }
    if text.chars().any(char::is_control) {
        return Err(Error::argument(format!(
            "the {what} contains a control character"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers created by cryptsetup 2.6.1 with `fuzz/make-seeds.sh`.
    const GOLDEN: &[(&str, &[u8])] = &[
        (
            "argon2id-512",
            include_bytes!("../../../fuzz/corpus/luks2_header/argon2id-512"),
        ),
        (
            "argon2i-256",
            include_bytes!("../../../fuzz/corpus/luks2_header/argon2i-256"),
        ),
        (
            "pbkdf2-sha1",
            include_bytes!("../../../fuzz/corpus/luks2_header/pbkdf2-sha1"),
        ),
        (
            "metadata-32k",
            include_bytes!("../../../fuzz/corpus/luks2_header/metadata-32k"),
        ),
        (
            "many",
            include_bytes!("../../../fuzz/corpus/luks2_header/many"),
        ),
    ];

    /// Reads each copy that cryptsetup wrote and encodes it again; all bytes must be the same.
    #[test]
    fn copies_of_cryptsetup_come_out_as_they_went_in() {
        for (name, image) in GOLDEN {
            let half = image.len() / 2;
            for (copy, offset) in [(Copy::Primary, 0), (Copy::Secondary, half)] {
                let bytes = &image[offset..offset + half];
                assert_eq!(
                    stated_size(bytes, copy, offset as u64),
                    Ok(half as u64),
                    "{name}"
                );
                let header = read(bytes, copy).expect(name);
                let metadata = crate::Metadata::from_area(&bytes[BINARY_LEN..]).expect(name);
                assert!(
                    header.write(copy, &metadata.to_json()) == bytes,
                    "{name}: {copy}"
                );
            }
        }
    }

    /// Checks the fields of a primary copy byte by byte.
    #[test]
    fn the_layout_is_that_of_the_specification() {
        let (_, image) = GOLDEN[0];
        let header = read(&image[..0x4000], Copy::Primary).expect("golden");
        let dump: &[(usize, &[u8], &str)] = &[
            (0, b"LUKS\xba\xbe", "magic"),
            (6, &[0, 2], "version 2"),
            (8, &[0, 0, 0, 0, 0, 0, 0x40, 0], "hdr_size 16 KiB"),
            (16, &header.seqid.to_be_bytes(), "seqid"),
            (24, b"seed\0\0", "label"),
            (72, b"sha256\0\0", "checksum algorithm"),
            (104, &header.salt.primary, "salt"),
            (168, header.uuid.as_bytes(), "UUID"),
            (208, &[0; 48], "subsystem"),
            (256, &[0; 8], "hdr_offset"),
            (264, &[0; 184], "padding"),
            (480, &[0; 32], "rest of the checksum field"),
            (512, &[0; 3584], "padding to 4096"),
            (4096, b"{\"keyslots\":{\"0\":{", "JSON"),
            (0x4000, b"SKUL\xba\xbe", "magic of the secondary"),
            (0x4000 + 256, &[0, 0, 0, 0, 0, 0, 0x40, 0], "its hdr_offset"),
        ];
        for (at, bytes, what) in dump {
            assert_eq!(image[*at..at + bytes.len()], **bytes, "{what} at {at}");
        }
        assert_eq!((header.label, header.uuid.len()), (b"seed".to_vec(), 36));
    }

    /// A label that is not UTF-8 is written back unchanged.
    #[test]
    fn labels_are_bytes() {
        let mut bytes = GOLDEN[0].1[..0x4000].to_vec();
        bytes[24..72].fill(0xff);
        fix_checksum(&mut bytes);
        let header = read(&bytes, Copy::Primary).expect("sound");
        assert_eq!(header.label, [0xff; 47]);
        let json = lossy(bytes[BINARY_LEN..].split(|b| *b == 0).next().expect("text"));
        let again = header.write(Copy::Primary, &json);
        assert_eq!(again[24..71], bytes[24..71]);
        assert_eq!(again[71], 0, "the field ends with a zero");
    }
}
