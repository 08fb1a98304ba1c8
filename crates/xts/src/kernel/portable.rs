//! The reference kernel: the `aes` crate in batches, in safe code.
//!
//! The `aes` crate is constant-time on every CPU and uses the AES instructions it supports, but
//! reaches its full speed only with many blocks per call. So the first tweaks of many units are
//! encrypted together, and data passes through a scratch buffer of [`BATCH`] blocks, which keeps
//! intermediate results out of the caller's memory.

use super::Units;
use super::place::Placed;
use crate::Direction;
use aes::cipher::consts::U16;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, BlockSizeUser, KeyInit};
use aes::{Aes128, Aes256, Block};

/// Blocks per batch: four sectors of 512 bytes. Half of it costs a tenth of the speed; twice as
/// many gain little and leave more stack to clear.
const BATCH: usize = 128;

/// Units whose first tweaks are encrypted together. The widest backend of `aes` takes 64 blocks in
/// one step, but these are a small part of the work.
const STARTS: usize = 16;

/// The data cipher and the tweak cipher.
pub(crate) struct Pair<C> {
    data: C,
    tweak: C,
}

/// Expanded keys of either length.
pub(crate) enum Ciphers {
    Aes128(Placed<Pair<Aes128>>),
    Aes256(Placed<Pair<Aes256>>),
}

impl Ciphers {
    /// Expands `key`: the data key, then the tweak key (IEEE 1619 section 5.1: Key1 | Key2).
    pub(crate) fn new(key: &[u8]) -> Ciphers {
        match key.len() {
            32 => Ciphers::Aes128(Placed::new(|| Pair::new(key))),
            _ => Ciphers::Aes256(Placed::new(|| Pair::new(key))),
        }
    }

    pub(crate) fn run(&self, way: Direction, units: Units, src: Option<&[u8]>, dst: &mut [u8]) {
        match self {
            Ciphers::Aes128(pair) => run(pair, way, units, src, dst),
            Ciphers::Aes256(pair) => run(pair, way, units, src, dst),
        }
    }
}

impl<C: KeyInit> Pair<C> {
    fn new(key: &[u8]) -> Pair<C> {
        let (data, tweak) = key.split_at(key.len() / 2);
        let cipher = |half| C::new_from_slice(half).expect("half an XTS key is an AES key");
        Pair {
            data: cipher(data),
            tweak: cipher(tweak),
        }
    }
}

/// A 128-bit block cipher in both directions.
trait Cipher: BlockCipherEncrypt + BlockCipherDecrypt + BlockSizeUser<BlockSize = U16> {}
impl<C: BlockCipherEncrypt + BlockCipherDecrypt + BlockSizeUser<BlockSize = U16>> Cipher for C {}

fn run<C: Cipher>(
    pair: &Pair<C>,
    way: Direction,
    units: Units,
    src: Option<&[u8]>,
    dst: &mut [u8],
) {
    let blocks = dst.len() / 16;
    let mut stream = Tweaks::new(&pair.tweak, units);
    let mut tweaks = [0u128; BATCH];
    let mut scratch = [Block::default(); BATCH];
    for first in (0..blocks).step_by(BATCH) {
        let count = BATCH.min(blocks - first);
        let range = first * 16..(first + count) * 16;
        stream.fill(&mut tweaks[..count]);
        let from = src.map_or(&dst[range.clone()], |src| &src[range.clone()]);
        for ((slot, from), tweak) in scratch.iter_mut().zip(from.as_chunks().0).zip(&tweaks) {
            slot.0 = (u128::from_le_bytes(*from) ^ tweak).to_le_bytes();
        }
        match way {
            Direction::Encrypt => pair.data.encrypt_blocks(&mut scratch[..count]),
            Direction::Decrypt => pair.data.decrypt_blocks(&mut scratch[..count]),
        }
        for ((to, slot), tweak) in dst[range]
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(&scratch)
            .zip(&tweaks)
        {
            *to = (u128::from_le_bytes(slot.0) ^ tweak).to_le_bytes();
        }
    }
}

/// Generator of the tweaks of consecutive blocks across all units.
struct Tweaks<'a, C> {
    cipher: &'a C,
    units: Units,
    /// Encrypted initial values of [`STARTS`] units, from a multiple of [`STARTS`] on.
    starts: [Block; STARTS],
    unit: usize,
    blocks_left_in_unit: usize,
    tweak: u128,
}

impl<'a, C: Cipher> Tweaks<'a, C> {
    fn new(cipher: &'a C, units: Units) -> Self {
        let starts = [Block::default(); STARTS];
        Tweaks {
            cipher,
            units,
            starts,
            unit: 0,
            blocks_left_in_unit: 0,
            tweak: 0,
        }
    }

    /// Fills `room` with the tweaks of the next blocks.
    fn fill(&mut self, mut room: &mut [u128]) {
        while !room.is_empty() {
            if self.blocks_left_in_unit == 0 {
                self.begin_unit();
            }
            let count = room.len().min(self.blocks_left_in_unit);
            let (now, later) = room.split_at_mut(count);
            self.tweak = powers(self.tweak, now);
            self.blocks_left_in_unit -= count;
            room = later;
        }
    }

    fn begin_unit(&mut self) {
        let index = self.unit % STARTS;
        if index == 0 {
            for (ahead, start) in self.starts.iter_mut().enumerate() {
                start.0 = self.units.iv(self.unit + ahead).to_le_bytes();
            }
            self.cipher.encrypt_blocks(&mut self.starts);
        }
        self.tweak = u128::from_le_bytes(self.starts[index].0);
        self.unit += 1;
        self.blocks_left_in_unit = self.units.bytes / 16;
    }
}

/// Fills `room` with `tweak` times x^0, x^1 and so on; returns the tweak that follows.
///
/// From the ninth on, each is computed from the one eight positions earlier: repeated doubling
/// would be one long dependency chain and take longer than the cipher.
pub(super) fn powers(tweak: u128, room: &mut [u128]) -> u128 {
    let mut next = tweak;
    for slot in room.iter_mut().take(8) {
        *slot = next;
        next = double(next);
    }
    for index in 8..room.len() {
        room[index] = times_x8(room[index - 8]);
    }
    room.last().map_or(tweak, |last| double(*last))
}

/// Multiplies by x in GF(2^128) modulo x^128 + x^7 + x^2 + x + 1 (IEEE 1619 section 5.2).
fn double(tweak: u128) -> u128 {
    (tweak << 1) ^ (0x87 & 0u128.wrapping_sub(tweak >> 127))
}

/// Multiplies by x^8: the byte shifted out at the top is multiplied by the polynomial and added.
fn times_x8(tweak: u128) -> u128 {
    let top = (tweak >> 120) as u64;
    (tweak << 8) ^ u128::from(top ^ (top << 1) ^ (top << 2) ^ (top << 7))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_doublings_are_one_step_by_x8() {
        for tweak in [1, 0x87, 1 << 127, u128::MAX, 0x0123_4567_89AB_CDEF << 61] {
            let doubled = (0..8).fold(tweak, |tweak, _| double(tweak));
            assert_eq!(times_x8(tweak), doubled, "{tweak:032x}");
        }
    }

    #[test]
    fn powers_are_repeated_doublings_for_any_count() {
        let start = 0xF0E1_D2C3_B4A5_9687_7869_5A4B_3C2D_1E0F;
        for count in 0..40 {
            let mut room = vec![0; count];
            let next = powers(start, &mut room);
            let mut right = start;
            for (index, tweak) in room.into_iter().enumerate() {
                assert_eq!(tweak, right, "number {index} of {count}");
                right = double(right);
            }
            assert_eq!(next, right, "after {count}");
        }
    }
}
