//! Reading a header and choosing between its two copies.
//!
//! The rules are those of `cryptsetup`. The secondary copy lies at the offset that the primary
//! states or, if no primary is intact, at the first of the nine possible offsets that holds an
//! intact secondary. Of two intact copies the one with the higher sequence id is used; if the ids
//! are equal, the primary.
//!
//! One rule is our own: an intact copy that uses an unsupported or refused feature still counts as
//! intact. If it is the newer one, the header is refused. Falling back to (or "repairing" from) an
//! older copy would undo a change by another program.

use crate::Header;
use crate::binary::{self, BINARY_LEN, BinaryHeader, Copy, HEADER_SIZE_MIN, secondary_offsets};
use crate::error::{Error, ErrorKind, Result};
use crate::metadata::Metadata;
use crate::{PREFIX_BYTES_MAX, header::OnDisk};

/// A header as read from the device, and the state of both copies.
#[derive(Debug)]
pub struct Opened {
    pub header: Header,
    /// State of the copy at the start of the device.
    pub primary: CopyState,
    /// State of the copy after it.
    pub secondary: CopyState,
}

/// State of one copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyState {
    /// Intact and current.
    Valid {
        /// Sequence id of the copy.
        seqid: u64,
    },
    /// Intact, but older than the other: an update was interrupted.
    Stale {
        /// Sequence id of the copy.
        seqid: u64,
    },
    /// Intact and with the same sequence id as the other, but with different content.
    Differs {
        /// Sequence id of the copy.
        seqid: u64,
    },
    /// Damaged, for the reason given by the error.
    Damaged(Error),
}

impl CopyState {
    /// Reports whether the copy needs no repair.
    pub fn is_valid(&self) -> bool {
        matches!(self, CopyState::Valid { .. })
    }
}

impl std::fmt::Display for CopyState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CopyState::Valid { seqid } => write!(f, "valid, sequence {seqid}"),
            CopyState::Stale { seqid } => write!(f, "older than the other copy, sequence {seqid}"),
            CopyState::Differs { seqid } => {
                write!(f, "differs from the other copy, sequence {seqid}")
            }
            CopyState::Damaged(reason) => write!(f, "damaged: {reason}"),
        }
    }
}

impl Opened {
    /// Reports whether a copy must be rewritten from the other; see [`Header::repair`].
    pub fn needs_repair(&self) -> bool {
        !self.primary.is_valid() || !self.secondary.is_valid()
    }
}

/// A copy with a correct checksum and well-formed JSON.
struct ValidCopy<'a> {
    binary: BinaryHeader,
    json_area: &'a [u8],
    /// An error here is a verdict about an intact copy, not damage.
    metadata: Result<Metadata>,
}

impl Header {
    /// Returns the number of bytes from the start of the device that [`Header::open`] needs, given
    /// at most the first 4,096 of them: two copies of the stated size, or 8 MiB if the primary is
    /// not sane and the secondary must be searched for. Never more than `device_size`.
    pub fn bytes_wanted(first: &[u8], device_size: u64) -> u64 {
        let stated = binary::stated_size(first, Copy::Primary, 0);
        stated
            .map_or(PREFIX_BYTES_MAX, |size| 2 * size)
            .min(device_size)
    }

    /// Reads the header of a device of `device_size` bytes from `prefix`, its first bytes: at
    /// least [`Header::bytes_wanted`], or the whole device.
    ///
    /// If the primary copy states a size but is not intact, the secondary is searched for as well,
    /// and `prefix` may be too short for that. The error is then [`ErrorKind::NeedMore`];
    /// [`crate::PREFIX_BYTES_MAX`] bytes (or the whole device) are enough in every case.
    ///
    /// # Errors
    /// [`ErrorKind::NotLuks`]; [`ErrorKind::Damaged`] if no copy is intact;
    /// [`ErrorKind::Unsupported`] and [`ErrorKind::Refused`] for features of the newer intact copy;
    /// [`ErrorKind::DeviceTooSmall`] if header or data extend beyond the device.
    pub fn open(prefix: &[u8], device_size: u64) -> Result<Opened> {
        let primary = find(prefix, device_size, Copy::Primary, 0);
        let secondary = match &primary {
            Ok(found) => find(prefix, device_size, Copy::Secondary, found.binary.hdr_size),
            Err(e) if whole_but_unsound(prefix, e) => {
                let size = binary::stated_size(prefix, Copy::Primary, 0)?;
                find(prefix, device_size, Copy::Secondary, size)
            }
            Err(_) => search_secondary(prefix, device_size),
        };
        choose(primary, secondary, prefix, device_size)
    }
}

/// Checks whether the primary failed although its checksum matches; its size is then trustworthy.
fn whole_but_unsound(prefix: &[u8], error: &Error) -> bool {
    error.kind() == ErrorKind::Damaged
        && binary::stated_size(prefix, Copy::Primary, 0)
            .ok()
            .and_then(|size| prefix.get(..usize::try_from(size).ok()?))
            .is_some_and(|bytes| binary::read(bytes, Copy::Primary).is_ok())
}

/// Reads the copy at `offset`.
fn find(prefix: &[u8], device_size: u64, copy: Copy, offset: u64) -> Result<ValidCopy<'_>> {
    let binary = slice(prefix, device_size, offset, BINARY_LEN as u64)?;
    let size = binary::stated_size(binary, copy, offset)?;
    let bytes = slice(prefix, device_size, offset, size)?;
    let binary = binary::read(bytes, copy)?;
    let json_area = bytes.get(BINARY_LEN..).unwrap_or_default();
    match Metadata::from_area(json_area) {
        Err(e) if e.kind() == ErrorKind::Damaged => Err(e),
        metadata => Ok(ValidCopy {
            binary,
            json_area,
            metadata,
        }),
    }
}

/// Takes `len` bytes at `offset`. Distinguishes the end of the device from a short `prefix`.
fn slice(prefix: &[u8], device_size: u64, offset: u64, len: u64) -> Result<&[u8]> {
    let end = offset.saturating_add(len);
    if end > device_size {
        return Err(Error::damaged("extends beyond the end of the device"));
    }
    let range = usize::try_from(offset).ok().zip(usize::try_from(end).ok());
    range
        .and_then(|(from, to)| prefix.get(from..to))
        .ok_or_else(|| {
            Error::new(
                ErrorKind::NeedMore,
                format!(
                    "the header needs the first {end} bytes of the device, but {} were read",
                    prefix.len()
                ),
            )
        })
}

fn search_secondary(prefix: &[u8], device_size: u64) -> Result<ValidCopy<'_>> {
    let mut best = Error::damaged("no secondary copy at any valid offset");
    for offset in secondary_offsets() {
        match find(prefix, device_size, Copy::Secondary, offset) {
            Ok(found) => return Ok(found),
            // The copy may lie in the part that the caller has not read; this is not damage.
            Err(e) if e.kind() == ErrorKind::NeedMore => return Err(e),
            Err(e) => {
                let at = usize::try_from(offset).ok().and_then(|at| prefix.get(at..));
                if at.is_some_and(|bytes| binary::has_magic(bytes, Copy::Secondary)) {
                    best = e;
                }
            }
        }
    }
    Err(best)
}

fn choose(
    primary: Result<ValidCopy<'_>>,
    secondary: Result<ValidCopy<'_>>,
    prefix: &[u8],
    device_size: u64,
) -> Result<Opened> {
    let (chosen, other, copy) = match (primary, secondary) {
        (Err(e), _) | (_, Err(e)) if e.kind() == ErrorKind::NeedMore => return Err(e),
        (Err(p), Err(s)) => return Err(no_copy(prefix, p, s)),
        (Ok(p), Ok(s)) if s.binary.seqid > p.binary.seqid => (s, Ok(p), Copy::Secondary),
        (Ok(p), s) => (p, s, Copy::Primary),
        (Err(p), Ok(s)) => (s, Err(p), Copy::Secondary),
    };
    let seqid = chosen.binary.seqid;
    let state = match &other {
        Err(reason) => CopyState::Damaged(reason.clone()),
        Ok(o) if o.binary.seqid < seqid => CopyState::Stale {
            seqid: o.binary.seqid,
        },
        Ok(o) if !same_content(&chosen, o) => CopyState::Differs { seqid },
        Ok(_) => CopyState::Valid { seqid },
    };
    let metadata = chosen.metadata?;
    check_device(&metadata, device_size)?;
    let mut binary = chosen.binary;
    let salt = other.ok().map(|o| *o.binary.salt.get(copy.other()));
    *binary.salt.get_mut(copy.other()) = match salt {
        Some(salt) => salt,
        None => crate::header::random_salt()?,
    };
    let repair = (!state.is_valid()).then(|| copy.other());
    let on_disk = OnDisk::new(&binary, &metadata, json_text(chosen.json_area), repair);
    let header = Header::from_parts(binary, metadata, on_disk);
    let valid = CopyState::Valid { seqid };
    Ok(match copy {
        Copy::Primary => Opened {
            header,
            primary: valid,
            secondary: state,
        },
        Copy::Secondary => Opened {
            header,
            primary: state,
            secondary: valid,
        },
    })
}

/// Extracts the JSON text before the padding.
fn json_text(area: &[u8]) -> String {
    let text = area.split(|b| *b == 0).next().unwrap_or_default();
    binary::lossy(text)
}

/// Checks whether two copies with the same sequence id are equal except for their salts.
fn same_content(a: &ValidCopy<'_>, b: &ValidCopy<'_>) -> bool {
    let salt = &a.binary.salt;
    BinaryHeader {
        salt: salt.clone(),
        ..b.binary.clone()
    } == a.binary
        && a.json_area == b.json_area
}

/// Checks that header, keyslots area and data lie within the device.
pub(crate) fn check_device(metadata: &Metadata, device_size: u64) -> Result<()> {
    let end = metadata.keyslots_range().end();
    if end > device_size {
        return Err(Error::new(
            ErrorKind::DeviceTooSmall,
            format!(
                "the device has {device_size} bytes, but its LUKS2 header takes {end}; was the \
                 device or file cut short?"
            ),
        ));
    }
    metadata.segment().data_len(device_size).map(drop)
}

/// Builds the error for two lost copies; distinguishes damage from a device without any header.
fn no_copy(prefix: &[u8], primary: Error, secondary: Error) -> Error {
    if binary::version(prefix) == Some(1) {
        return Error::unsupported(
            "a LUKS header of version 1 is not supported; convert it with `cryptsetup convert \
             --type luks2`",
        );
    }
    let magic = |offset: u64, copy| {
        let bytes = usize::try_from(offset).ok().and_then(|at| prefix.get(at..));
        bytes.is_some_and(|bytes| binary::has_magic(bytes, copy))
    };
    let was = magic(0, Copy::Primary)
        || secondary_offsets().any(|offset| magic(offset, Copy::Secondary))
        || std::iter::once(0)
            .chain(secondary_offsets())
            .any(|offset| has_remains(prefix, offset));
    if !was {
        return Error::new(
            ErrorKind::NotLuks,
            "no LUKS2 header found, and no remains of one; if this was a volume, both copies of \
             its header were overwritten: restore a header backup",
        );
    }
    // An unknown checksum algorithm in both copies means a newer writer, not damage.
    if primary.kind() == secondary.kind() && primary.kind() != ErrorKind::Damaged {
        return primary;
    }
    Error::damaged(format!(
        "both copies of the LUKS2 header are damaged (primary: {primary}; secondary: {secondary}); \
         restore a header backup if there is one"
    ))
}

/// Checks for remains of a copy without magic at `offset`: the name of its checksum algorithm, or
/// parts of its JSON.
fn has_remains(prefix: &[u8], offset: u64) -> bool {
    let copy = usize::try_from(offset).ok().and_then(|at| prefix.get(at..));
    let Some(copy) = copy else { return false };
    let has = |text: &[u8], word: &[u8]| text.windows(word.len()).any(|w| w == word);
    let json = copy.get(BINARY_LEN..).unwrap_or_default();
    let json = json.get(..BINARY_LEN).unwrap_or(json);
    binary::names_checksum(copy) || (has(json, b"\"keyslots\"") && has(json, b"\"kdf\""))
}

const _: () = assert!(HEADER_SIZE_MIN > BINARY_LEN as u64);
