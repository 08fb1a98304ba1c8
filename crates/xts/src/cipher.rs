//! The public cipher: a key, a sector size and a kernel.

use crate::error::Error;
use crate::kernel::{Engine, Units};
use crate::self_test;
use crate::types::{Direction, Kernel, Tweak};

/// Sector sizes in use on LUKS2 volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SectorSize {
    /// 512 bytes: the default of `cryptsetup luksFormat` for a file.
    B512,
    /// 4096 bytes: its default for disks that report such blocks.
    B4096,
}

impl SectorSize {
    /// Returns the size in bytes.
    pub fn bytes(self) -> u32 {
        match self {
            SectorSize::B512 => 512,
            SectorSize::B4096 => 4096,
        }
    }

    /// Returns the tweak increment from sector to sector. plain64 counts units of 512 bytes for
    /// every sector size, because LUKS2 never sets dm-crypt's `iv_large_sectors`.
    fn units(self) -> u64 {
        u64::from(self.bytes() / 512)
    }
}

impl TryFrom<u32> for SectorSize {
    type Error = Error;

    fn try_from(bytes: u32) -> Result<SectorSize, Error> {
        match bytes {
            512 => Ok(SectorSize::B512),
            4096 => Ok(SectorSize::B4096),
            other => Err(Error::SectorSize(other)),
        }
    }
}

impl From<SectorSize> for u32 {
    fn from(sector: SectorSize) -> u32 {
        sector.bytes()
    }
}

/// AES-XTS with one key over sectors of one size. Can be shared by any number of threads.
///
/// All four operations take the tweak of the first sector. They panic if the length is not a whole
/// number of sectors or if the two lengths differ: that is a bug in the caller, and a partial sector
/// cannot be encrypted.
pub struct Xts {
    engine: Engine,
    sector: SectorSize,
    key_bits: u32,
}

impl Xts {
    /// Creates a cipher with the fastest supported kernel that passes its known-answer test.
    ///
    /// The key has 32 bytes for AES-128-XTS and 64 for AES-256-XTS. The caller zeroes its copy.
    pub fn new(key: &[u8], sector: SectorSize) -> Result<Xts, Error> {
        Xts::with_kernel(key, sector, Kernel::best())
    }

    /// Creates a cipher with the given kernel; fails if the CPU does not support it or if it fails
    /// its known-answer test.
    pub fn with_kernel(key: &[u8], sector: SectorSize, kernel: Kernel) -> Result<Xts, Error> {
        let key_bits = match key.len() {
            32 => 128,
            64 => 256,
            other => return Err(Error::KeyLength(other)),
        };
        let (data_key, tweak_key) = key.split_at(key.len() / 2);
        // No early exit: the time must not reveal where the halves differ.
        if data_key
            .iter()
            .zip(tweak_key)
            .fold(0, |diff, (a, b)| diff | (a ^ b))
            == 0
        {
            return Err(Error::EqualHalves);
        }
        if !kernel.is_available() {
            return Err(Error::KernelUnavailable(kernel));
        }
        if !self_test::passes(kernel) {
            return Err(Error::SelfTest(kernel));
        }
        Ok(Xts {
            engine: Engine::new(kernel, key),
            sector,
            key_bits,
        })
    }

    /// Returns the kernel in use.
    pub fn kernel(&self) -> Kernel {
        self.engine.kernel()
    }

    /// Returns the length of each of the two AES keys: 128 or 256 bits.
    pub fn key_bits(&self) -> u32 {
        self.key_bits
    }

    /// Returns the sector size.
    pub fn sector_size(&self) -> SectorSize {
        self.sector
    }

    /// Encrypts `data` in place.
    pub fn encrypt(&self, first: Tweak, data: &mut [u8]) {
        self.engine
            .run(Direction::Encrypt, self.units(first), None, data);
    }

    /// Decrypts `data` in place.
    pub fn decrypt(&self, first: Tweak, data: &mut [u8]) {
        self.engine
            .run(Direction::Decrypt, self.units(first), None, data);
    }

    /// Encrypts `src` into `dst` in one pass. No plaintext is ever written to `dst`.
    pub fn encrypt_to(&self, first: Tweak, src: &[u8], dst: &mut [u8]) {
        self.engine
            .run(Direction::Encrypt, self.units(first), Some(src), dst);
    }

    /// Decrypts `src` into `dst` in one pass.
    pub fn decrypt_to(&self, first: Tweak, src: &[u8], dst: &mut [u8]) {
        self.engine
            .run(Direction::Decrypt, self.units(first), Some(src), dst);
    }

    fn units(&self, first: Tweak) -> Units {
        Units {
            first_iv: u128::from(first.unit()),
            iv_step: self.sector.units(),
            bytes: self.sector.bytes() as usize,
        }
    }
}

impl std::fmt::Debug for Xts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.sector.bytes();
        write!(
            f,
            "Xts(AES-{}, {bytes}-byte sectors, {})",
            self.key_bits,
            self.kernel()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(len: u8) -> Vec<u8> {
        (0..len).collect()
    }

    #[test]
    fn refuses_keys_of_other_lengths() {
        for len in [0, 16, 31, 33, 48, 63, 65, 128] {
            let refused = Xts::new(&key(len), SectorSize::B512).err();
            assert_eq!(refused, Some(Error::KeyLength(len.into())));
        }
    }

    #[test]
    fn refuses_equal_key_halves() {
        for half in [16, 32] {
            let key = key(half).repeat(2);
            assert_eq!(
                Xts::new(&key, SectorSize::B4096).err(),
                Some(Error::EqualHalves)
            );
        }
    }

    #[test]
    fn accepts_halves_that_differ_in_one_bit() {
        for bit in [0usize, 7, 64, 127] {
            let mut key = key(16).repeat(2);
            key[bit / 8] ^= 1 << (bit % 8);
            assert!(Xts::new(&key, SectorSize::B512).is_ok());
        }
    }

    #[test]
    fn sector_sizes_convert_and_others_are_refused() {
        for bytes in [512, 4096] {
            assert_eq!(SectorSize::try_from(bytes).map(u32::from), Ok(bytes));
        }
        for bytes in [0, 1, 511, 1024, 2048, 8192] {
            assert_eq!(SectorSize::try_from(bytes), Err(Error::SectorSize(bytes)));
        }
    }

    #[test]
    fn debug_shows_no_key() {
        let xts = Xts::with_kernel(&key(64), SectorSize::B512, Kernel::Portable).expect("good key");
        assert_eq!(
            format!("{xts:?}"),
            "Xts(AES-256, 512-byte sectors, portable)"
        );
    }

    #[test]
    #[should_panic(expected = "whole number of sectors")]
    fn part_of_a_sector_is_a_bug_of_the_caller() {
        let xts = Xts::new(&key(32), SectorSize::B4096).expect("good key");
        xts.encrypt(Tweak::ZERO, &mut [0; 512]);
    }

    #[test]
    #[should_panic(expected = "same length")]
    fn different_lengths_are_a_bug_of_the_caller() {
        let xts = Xts::new(&key(32), SectorSize::B512).expect("good key");
        xts.encrypt_to(Tweak::ZERO, &[0; 1024], &mut [0; 512]);
    }

    #[test]
    fn no_sectors_is_no_work() {
        for kernel in Kernel::available() {
            let xts = Xts::with_kernel(&key(32), SectorSize::B512, kernel).expect("good key");
            xts.encrypt(Tweak::new(u64::MAX), &mut []);
            xts.decrypt_to(Tweak::ZERO, &[], &mut []);
        }
    }

    #[test]
    fn is_shared_by_threads() {
        fn check<T: Send + Sync>() {}
        check::<Xts>();
    }
}
