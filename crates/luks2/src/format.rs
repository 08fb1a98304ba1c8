//! Creation of a new header with the default layout of `cryptsetup luksFormat`.

use crate::Header;
use crate::binary::{self, BINARY_LEN, BinaryHeader, HEADER_SIZE_MIN, Salts, check_label};
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::header::{OnDisk, fill_random, random_salt};
use crate::json::{Json, Object};
use crate::kdf::SALT_LEN;
use crate::metadata::{KEYSLOTS_SIZE_MAX, Metadata, area_len, digest_json};
use crate::open::check_device;
use secret::SecretBytes;

/// Parameters of a new volume.
#[derive(Debug, Clone)]
pub struct FormatOptions {
    /// Size of the device in bytes.
    pub device_size: u64,
    /// 128 (AES-128-XTS, a volume key of 32 bytes) or 256 (AES-256-XTS, 64 bytes). Default 256.
    pub key_bits: u32,
    /// Encryption sector, 512 or 4096 bytes. Default 4096.
    pub sector_size: u32,
    /// Label, up to 47 bytes. Default empty.
    pub label: String,
    /// Subsystem label, up to 47 bytes. Default empty.
    pub subsystem: String,
    /// UUID; random if `None`.
    pub uuid: Option<String>,
    /// Length of each copy of the header in bytes: 16 KiB doubled up to 4 MiB. Default 16 KiB.
    pub header_size: u64,
    /// Offset of the data, a multiple of 4,096. Default 16 MiB, as in `cryptsetup`.
    pub data_offset: u64,
    /// Bytes before the data kept free of keyslots, a multiple of 4,096. Default 0, as in
    /// `cryptsetup`.
    pub reserved: u64,
    /// PBKDF2 iterations of the digest. The volume key is random, so few are sufficient.
    pub digest_iterations: u32,
}

impl FormatOptions {
    /// Creates the defaults for a device of `device_size` bytes.
    pub fn new(device_size: u64) -> FormatOptions {
        FormatOptions {
            device_size,
            key_bits: 256,
            sector_size: 4096,
            label: String::new(),
            subsystem: String::new(),
            uuid: None,
            header_size: HEADER_SIZE_MIN,
            data_offset: 16 * 1024 * 1024,
            reserved: 0,
            digest_iterations: 100_000,
        }
    }

    /// Computes the length of the volume key in bytes: XTS takes two AES keys.
    pub fn volume_key_len(&self) -> usize {
        match self.key_bits {
            128 => 32,
            _ => 64,
        }
    }

    fn check(&self) -> Result<()> {
        let argument = |ok: bool, message: &str| {
            if ok {
                Ok(())
            } else {
                Err(Error::argument(message))
            }
        };
        argument(
            matches!(self.key_bits, 128 | 256),
            "the key length must be 128 or 256 bits",
        )?;
        argument(
            matches!(self.sector_size, 512 | 4096),
            "the sector size must be 512 or 4096",
        )?;
        argument(
            binary::is_header_size(self.header_size),
            "the header size must be 16 KiB times a power of two, up to 4 MiB",
        )?;
        argument(
            self.data_offset.is_multiple_of(4096) && self.reserved.is_multiple_of(4096),
            "the data offset must be a multiple of 4096",
        )?;
        argument(
            self.digest_iterations >= 1000,
            "a digest needs at least 1000 iterations",
        )?;
        let key_len = u32::try_from(self.volume_key_len()).unwrap_or(u32::MAX);
        let smallest = 2 * self.header_size + area_len(key_len);
        argument(
            self.data_offset.saturating_sub(self.reserved) >= smallest,
            "the data offset leaves no room for a keyslot",
        )?;
        check_label("label", &self.label)?;
        check_label("subsystem", &self.subsystem)?;
        let uuid_fits = self.uuid.as_ref().is_none_or(|uuid| is_uuid(uuid));
        argument(uuid_fits, "a UUID must be 8-4-4-4-12 hexadecimal digits")
    }

    fn keyslots_size(&self) -> u64 {
        self.data_offset
            .saturating_sub(2 * self.header_size + self.reserved)
            .min(KEYSLOTS_SIZE_MAX)
    }
}

/// Generates a volume key of 128 or 256 bits of strength: 32 or 64 random bytes whose halves differ
/// (FIPS 140 implementation guidance for XTS; equal halves would weaken it).
///
/// # Errors
/// [`crate::ErrorKind::InvalidArgument`] for other lengths.
pub fn generate_volume_key(key_bits: u32) -> Result<SecretBytes> {
    let len = match key_bits {
        128 => 32,
        256 => 64,
        _ => return Err(Error::argument("the key length must be 128 or 256 bits")),
    };
    let key = SecretBytes::random(len);
    let (data, tweak) = key.split_at(len / 2);
    if data == tweak {
        return Err(Error::refused("the random number generator repeats itself"));
    }
    Ok(key)
}

impl Header {
    /// Creates a header for `volume_key`, without keyslots. Add at least one, then carry out the
    /// plan of [`Header::update`]; until then nothing is on the disk.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidArgument`] for options that are not valid and a key of the wrong
    /// length; [`crate::ErrorKind::DeviceTooSmall`].
    pub fn format(options: &FormatOptions, volume_key: &SecretBytes) -> Result<Header> {
        options.check()?;
        if volume_key.len() != options.volume_key_len() {
            return Err(Error::argument(
                "the volume key does not have the selected length",
            ));
        }
        let mut salt = [0; SALT_LEN];
        fill_random(&mut salt)?;
        let digest = digest_json(volume_key, options.digest_iterations, &[0], &salt);
        let json_size = options.header_size - BINARY_LEN as u64;
        let document = document(options, digest, json_size);
        let metadata = Metadata::from_document(document, json_size)?;
        check_device(&metadata, options.device_size)?;
        let uuid = options.uuid.as_ref().map(|uuid| uuid.to_ascii_lowercase());
        let binary = BinaryHeader {
            hdr_size: options.header_size,
            seqid: 0, // the first update sets it to 1
            label: options.label.clone().into(),
            subsystem: options.subsystem.clone().into(),
            uuid: uuid.map_or_else(random_uuid, Ok)?,
            checksum_alg: Hash::Sha256,
            salt: Salts {
                primary: random_salt()?,
                secondary: random_salt()?,
            },
        };
        let on_disk = OnDisk::fresh(&binary);
        Ok(Header::from_parts(binary, metadata, on_disk))
    }
}

/// Builds the document, with keys in the order in which `cryptsetup` writes them.
fn document(options: &FormatOptions, digest: Object, json_size: u64) -> Object {
    let segment = Object::new()
        .with("type", Json::string("crypt"))
        .with("offset", Json::u64(options.data_offset))
        .with("size", Json::string("dynamic"))
        .with("iv_tweak", Json::u64(0))
        .with("encryption", Json::string("aes-xts-plain64"))
        .with("sector_size", Json::u32(options.sector_size));
    let config = Object::new()
        .with("json_size", Json::u64(json_size))
        .with("keyslots_size", Json::u64(options.keyslots_size()));
    let zero = |object: Object| Json::Object(Object::new().with("0", Json::Object(object)));
    Object::new()
        .with("keyslots", Json::Object(Object::new()))
        .with("tokens", Json::Object(Object::new()))
        .with("segments", zero(segment))
        .with("digests", zero(digest))
        .with("config", Json::Object(config))
}

/// Generates a UUID of version 4 and variant 0b10 (RFC 9562, 5.4).
fn random_uuid() -> Result<String> {
    let mut bytes = [0; 16];
    fill_random(&mut bytes)?;
    let version = 0xffff_ffff_ffff_0fff_ffff_ffff_ffff_ffff;
    let variant = 0xffff_ffff_ffff_ffff_3fff_ffff_ffff_ffff;
    let bits = u128::from_be_bytes(bytes) & version & variant | (0x4 << 76) | (0x8 << 60);
    let hex = format!("{bits:032x}");
    let mut uuid = String::with_capacity(36);
    for (i, digit) in hex.chars().enumerate() {
        if matches!(i, 8 | 12 | 16 | 20) {
            uuid.push('-');
        }
        uuid.push(digit);
    }
    Ok(uuid)
}

fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    groups.iter().map(|g| g.len()).eq([8, 4, 4, 4, 12])
        && groups.concat().bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Kdf, Priority};

    const SIZE: u64 = 17 << 20;

    fn kind(change: impl FnOnce(&mut FormatOptions)) -> ErrorKind {
        let mut options = FormatOptions::new(SIZE);
        change(&mut options);
        let key = SecretBytes::random(options.volume_key_len());
        Header::format(&options, &key)
            .expect_err("options that make no sense")
            .kind()
    }

    #[test]
    fn refuses_options_that_make_no_sense() {
        for (change, expected) in [
            (
                (|o| o.key_bits = 192) as fn(&mut FormatOptions),
                ErrorKind::InvalidArgument,
            ),
            (|o| o.sector_size = 1024, ErrorKind::InvalidArgument),
            (|o| o.header_size = 0x5000, ErrorKind::InvalidArgument),
            (|o| o.header_size = 8 << 20, ErrorKind::InvalidArgument),
            (
                |o| o.data_offset = (16 << 20) + 512,
                ErrorKind::InvalidArgument,
            ),
            (|o| o.data_offset = 0x8000, ErrorKind::InvalidArgument),
            (|o| o.digest_iterations = 999, ErrorKind::InvalidArgument),
            (|o| o.label = "x".repeat(48), ErrorKind::InvalidArgument),
            (
                |o| o.label = "x\u{1b}[2J".into(),
                ErrorKind::InvalidArgument,
            ),
            (|o| o.subsystem = "x".repeat(48), ErrorKind::InvalidArgument),
            (|o| o.uuid = Some("x".into()), ErrorKind::InvalidArgument),
            (|o| o.device_size = 16 << 20, ErrorKind::DeviceTooSmall),
            (
                |o| o.device_size = (16 << 20) + 4095,
                ErrorKind::DeviceTooSmall,
            ),
        ] {
            assert_eq!(kind(change), expected);
        }
        let short = Header::format(&FormatOptions::new(SIZE), &SecretBytes::random(32));
        assert_eq!(
            short.expect_err("a key of 128 bits").kind(),
            ErrorKind::InvalidArgument
        );
    }

    #[test]
    fn a_full_keyslots_area_is_no_space_and_nothing_changes() {
        let mut options = FormatOptions::new(SIZE);
        options.data_offset = 2 * options.header_size + 2 * area_len(64);
        let key = generate_volume_key(256).expect("random bytes");
        let mut header = Header::format(&options, &key).expect("room for two");
        let kdf = Kdf::Pbkdf2 {
            hash: Hash::Sha256,
            iterations: 1,
        };
        for _ in 0..2 {
            header
                .add_keyslot(&key, b"pw", &kdf, None, Priority::Normal)
                .expect("room");
        }
        let before = header.metadata().clone();
        let full = header.add_keyslot(&key, b"pw", &kdf, None, Priority::Normal);
        assert_eq!(full.expect_err("full").kind(), ErrorKind::NoSpace);
        assert_eq!(*header.metadata(), before);
    }

    #[test]
    fn a_full_json_area_is_no_space_and_nothing_changes() {
        let key = generate_volume_key(256).expect("random bytes");
        let mut header = Header::format(&FormatOptions::new(SIZE), &key).expect("sound");
        let token = |n: usize| {
            let text = format!(r#"{{"type":"t","keyslots":[],"x":"{}"}}"#, "x".repeat(n));
            crate::Token::from_json(&text).expect("a token")
        };
        let before = header.metadata().clone();
        let full = header.add_token(None, &token(12_288));
        assert_eq!(full.expect_err("too long").kind(), ErrorKind::NoSpace);
        assert_eq!(*header.metadata(), before);
        // Fill the area to the last byte: one zero stays at the end.
        header.add_token(None, &token(0)).expect("room");
        let room = 12_288 - 1 - header.metadata().to_json().len();
        assert!(header.replace_token(0, &token(room + 1)).is_err());
        header.replace_token(0, &token(room)).expect("exactly");
        let mut image = vec![0; SIZE as usize];
        header
            .update()
            .expect("a plan")
            .apply(&mut image)
            .expect("long enough");
        let again = Header::open(&image, SIZE).expect("what was written").header;
        assert_eq!(again.metadata(), header.metadata());
    }

    #[test]
    fn random_uuids_have_their_version_and_variant() {
        let uuid = random_uuid().expect("random bytes");
        assert!(is_uuid(&uuid), "{uuid}");
        assert_eq!(uuid.as_bytes()[14], b'4', "{uuid}");
        assert!(b"89ab".contains(&uuid.as_bytes()[19]), "{uuid}");
        assert_ne!(random_uuid(), Ok(uuid));
    }
}
