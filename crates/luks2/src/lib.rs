//! LUKS2: headers and keyslots, read and written, without any input or output.
//!
//! ```text
//!   0          hdr_size     2*hdr_size                     segment offset            end of device
//!   ├──────────┼────────────┼───────────────────────────────┼─────────────────────────────┤
//!   │ primary  │ secondary  │ keyslots area: key material,  │ data                        │
//!   │ copy     │ copy       │ split and enciphered          │                             │
//!   ├────┬─────┴────────────┴───────────────────────────────┴─────────────────────────────┘
//!   │4096│ JSON, zero-padded: keyslots, tokens, segments, digests, config
//! ```
//!
//! The caller moves bytes, this crate decides what they mean:
//!
//! 1. read [`Header::bytes_wanted`] bytes from the start of the device, give them to
//!    [`Header::open`], get the newer whole copy and the state of both;
//! 2. read the area of a keyslot ([`Header::keyslot_area`]), give it to [`Header::open_keyslot`]
//!    with a passphrase, get the volume key;
//! 3. change the header ([`Header::add_keyslot`], [`Header::add_token`], ...), then carry out the
//!    [`Plan`] of [`Header::update`], step by step, in order.
//!
//! **Invariant:** at every boundary between two steps of a plan, and for every part of a step that
//! reached the disk, one copy of the header is whole, and every keyslot it names has its key
//! material in place.
//!
//! Absent on purpose: files, devices, locks, clocks (measuring takes one as an argument); the
//! cipher of the data; LUKS1; reencryption, integrity, detached headers and every cipher but
//! `aes-xts-plain64`, all of which are refused by name. Bytes from outside are hostile: nothing
//! here panics on them, and what a header may cost is limited before it is spent.
//!
//! The format is that of the *LUKS2 On-Disk Format Specification* 1.1.4, and of `cryptsetup` where
//! it is stricter or the specification is silent.

#![deny(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap
)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        clippy::cast_possible_truncation
    )
)]
#![forbid(unsafe_code)]

mod af;
mod area;
mod backup;
mod binary;
mod canonical;
mod error;
mod format;
mod hash;
mod header;
mod json;
mod kdf;
mod keyslots;
mod metadata;
mod open;
mod plan;

pub use backup::Backup;
pub use binary::{Copy, HEADER_SIZE_MAX, HEADER_SIZE_MIN, fix_checksum, secondary_offsets};
pub use error::{Error, ErrorKind, Result};
pub use format::{FormatOptions, generate_volume_key};
pub use hash::Hash;
pub use header::Header;
pub use kdf::{Argon2Cost, Kdf, KdfLimits};
pub use metadata::{
    Config, DIGESTS_MAX, Digest, KEYSLOTS_MAX, Keyslot, Luks2Keyslot, Metadata, Priority, Range,
    SEGMENTS_MAX, Segment, TOKENS_MAX, Token,
};
pub use open::{CopyState, Opened};
pub use plan::{Plan, Step};

/// Most bytes from the start of a device that reading a header can take: two copies of 4 MiB.
pub const PREFIX_BYTES_MAX: u64 = 2 * HEADER_SIZE_MAX;
