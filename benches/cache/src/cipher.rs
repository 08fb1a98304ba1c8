//! Cached reads over an unencrypted and an encrypted device: cached pages are plaintext in both
//! cases.

use crate::Args;
use crate::peers::Cached;
use crate::rounds::{Arm, interleave, thread_ns};
use crate::table::Table;
use block::{BlockDevice, Buf};
use block_testing::{Mem, Random};
use crypt::{CryptDevice, DataSegment, Options};
use secret::SecretBytes;
use std::sync::Arc;
use xts::{SectorSize, Tweak, Xts};

const SIZE: u64 = 64 << 20;
/// Bytes that a variant reads in a round.
const BYTES: u64 = 256 << 20;

/// Returns a device that encrypts `lower` with AES-XTS and a random key.
pub fn enciphered(lower: Arc<dyn BlockDevice>, bits: usize) -> Arc<dyn BlockDevice> {
    let key = SecretBytes::random(bits / 4);
    let xts = Xts::new(&key, SectorSize::B4096).expect("a kernel works");
    let segment = DataSegment {
        offset: 0,
        size: None,
        iv_tweak: Tweak::ZERO,
    };
    let device = CryptDevice::new(lower, xts, segment, Options::default());
    Arc::new(device.expect("it fits"))
}

pub fn run(args: &Args) -> Vec<Table> {
    let memory = || -> Arc<dyn BlockDevice> { Arc::new(Mem::new(SIZE, 4096)) };
    let over = |device| {
        let cached = Cached::over(device, 2 * SIZE);
        cached.fill();
        cached
    };
    // Two unencrypted ones: their difference is the resolution of the measurement.
    let caches = [
        ("clear", over(memory())),
        ("clear again", over(memory())),
        ("AES-128", over(enciphered(memory(), 128))),
        ("AES-256", over(enciphered(memory(), 256))),
    ];
    let mut arms = Vec::new();
    for (kind, len, random) in [
        ("64 KiB sequential", 64 << 10, false),
        ("64 KiB random", 64 << 10, true),
        ("4 KiB sequential", 4 << 10, false),
        ("4 KiB random", 4 << 10, true),
    ] {
        let base = arms.len();
        for (name, cached) in &caches {
            let run = move |round| read(cached, len, random, round);
            arms.push(Arm::new(format!("{kind}, {name}"), base, run));
        }
    }
    let costs = interleave(&mut arms, args.rounds);
    vec![Table::of_arms(
        "cached reads, by what lies below, 1 thread",
        "CPU ms/GiB",
        &arms,
        &costs,
    )]
}

/// Measures the CPU time of reads in milliseconds per GiB.
fn read(cached: &Cached, len: usize, random: bool, round: u64) -> f64 {
    let (mut session, mut open) = cached.open();
    let mut out = Buf::zeroed(len);
    let (mut choose, records) = (Random::new(round), SIZE / len as u64);
    let started = thread_ns();
    for record in 0..BYTES / len as u64 {
        let record = match random {
            true => choose.below(records),
            false => record % records,
        };
        let at = record * len as u64;
        session
            .read(&mut open, at, &mut out)
            .expect("nothing fails here");
    }
    (thread_ns() - started) as f64 / 1e6 / (BYTES as f64 / (1 << 30) as f64)
}
