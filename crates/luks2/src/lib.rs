//! LUKS2 headers and keyslots: a reader and writer that does no I/O.
//!
//! ```text
//!   0          hdr_size     2*hdr_size                     segment offset            end of device
//!   ├──────────┼────────────┼───────────────────────────────┼─────────────────────────────┤
//!   │ primary  │ secondary  │ keyslots area: key material,  │ data                        │
//!   │ copy     │ copy       │ split and encrypted           │                             │
//!   ├────┬─────┴────────────┴───────────────────────────────┴─────────────────────────────┘
//!   │4096│ JSON, zero-padded: keyslots, tokens, segments, digests, config
//! ```
//!
//! The caller transfers the bytes, this crate interprets them:
//!
//! 1. read [`Header::bytes_wanted`] bytes from the start of the device and pass them to
//!    [`Header::open`], which returns the newer intact copy and the state of both;
//! 2. read the area of a keyslot ([`Header::keyslot_area`]) and pass it to
//!    [`Header::open_keyslot`] with a passphrase, which returns the volume key;
//! 3. change the header ([`Header::add_keyslot`], [`Header::add_token`], ...), then carry out the
//!    [`Plan`] of [`Header::update`], step by step, in order.
//!
//! **Invariant:** at every boundary between two steps of a plan, and for every part of a step that
//! reached the disk, one copy of the header is intact, and the key material of every keyslot it
//! names is in place.
//!
//! # Example
//!
//! A header on an image in memory. A real keyslot uses [`Kdf::calibrate`].
//!
//! ```
//! use luks2::{FormatOptions, Hash, Header, Kdf, KdfLimits, Priority, generate_volume_key};
//!
//! let mut image = vec![0; 32 << 20];
//! let options = FormatOptions::new(image.len() as u64);
//! let volume_key = generate_volume_key(options.key_bits)?;
//! let mut header = Header::format(&options, &volume_key)?;
//! let kdf = Kdf::Pbkdf2 { hash: Hash::Sha256, iterations: 1000 };
//! let slot = header.add_keyslot(&volume_key, b"passphrase", &kdf, None, Priority::Normal)?;
//! header.update()?.apply(&mut image)?; // a device carries out the steps of the plan instead
//!
//! let header = Header::open(&image, image.len() as u64)?.header;
//! let area = header.keyslot_area(slot)?;
//! let area = &image[area.offset as usize..][..area.len as usize];
//! let limits = KdfLimits::default();
//! assert!(header.open_keyslot(slot, b"passphrase", area, &limits)? == volume_key);
//! assert!(header.open_keyslot(slot, b"wrong", area, &limits).is_err());
//! # Ok::<(), luks2::Error>(())
//! ```
//!
//! Out of scope: files, devices, locks, clocks (calibration takes one as an argument); the cipher
//! of the data; LUKS1. Reencryption, integrity, detached headers and every cipher other than
//! `aes-xts-plain64` are refused by name. Input is assumed to be hostile: it never causes a panic,
//! and the costs that a header states are limited before they are incurred.
//!
//! The format is that of the *LUKS2 On-Disk Format Specification* 1.1.4, and that of `cryptsetup`
//! where it is stricter or the specification is silent.

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

/// Largest prefix of the device that reading a header can need: two copies of 4 MiB.
pub const PREFIX_BYTES_MAX: u64 = 2 * HEADER_SIZE_MAX;
