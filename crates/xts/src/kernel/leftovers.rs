//! Tests that search for round keys and tweaks after a call: in the registers, and on the stack
//! below the caller, which another thread reads through `/proc/self/mem` while the caller spins.
//!
//! Each test has a control that skips the clearing and must find something; otherwise the search
//! itself does not work.

use super::keys::RoundKeys;
use super::{Engine, Units};
use crate::{Direction, Kernel};
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes of stack searched below the caller: more than any kernel uses.
const DEPTH: usize = 128 * 1024;

const UNITS: Units = Units {
    first_iv: 0x1234_5678,
    iv_step: 1,
    bytes: 512,
};

fn key() -> Vec<u8> {
    (0..64).map(|at: u8| at.wrapping_mul(73) ^ 0x5A).collect()
}

/// Collects the halves of all round keys and of the tweaks of each sector: values that the compiler
/// could spill from a register of any width.
fn secrets(sectors: usize) -> HashSet<[u8; 8]> {
    let keys = RoundKeys::new(&key());
    let mut found: Vec<u8> = keys.bytes().to_vec();
    for sector in 0..sectors {
        let tweak = first_tweak(UNITS.iv(sector));
        let mut next = tweak;
        for _ in 0..UNITS.bytes / 16 {
            found.extend(next.to_le_bytes());
            next = (next << 1) ^ (0x87 & 0u128.wrapping_sub(next >> 127));
        }
    }
    found.as_chunks::<8>().0.iter().copied().collect()
}

fn first_tweak(iv: u128) -> u128 {
    use aes::cipher::{BlockCipherEncrypt, KeyInit};
    let cipher = aes::Aes256::new_from_slice(&key()[32..]).expect("32 bytes");
    let mut block = aes::Block::from(iv.to_le_bytes());
    cipher.encrypt_block(&mut block);
    u128::from_le_bytes(block.0)
}

fn count(secrets: &HashSet<[u8; 8]>, memory: &[u8]) -> usize {
    memory
        .windows(8)
        .filter(|window| secrets.contains(*window))
        .count()
}

/// Counts the secrets on the stack of a thread after `work`.
fn on_stack(secrets: &HashSet<[u8; 8]>, work: impl FnOnce() + Send) -> usize {
    let (at, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            secret::burn_stack();
            let marker = 0u8;
            work();
            at.store(&raw const marker as usize, Ordering::Release);
            while !done.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
        });
        while at.load(Ordering::Acquire) == 0 {
            std::hint::spin_loop();
        }
        let top = at.load(Ordering::Acquire);
        let mut stack = vec![0; DEPTH];
        let memory = File::open("/proc/self/mem").expect("own memory");
        let read = memory.read_exact_at(&mut stack, (top - DEPTH) as u64);
        done.store(true, Ordering::Release);
        read.expect("a thread's stack is larger than the search");
        count(secrets, &stack)
    })
}

/// Stores the current vector registers.
#[inline(never)]
fn registers(into: &mut [u8; 2048]) {
    macro_rules! save {
        ($move:literal $register:literal $stride:literal: $($n:literal)*) => {
            // SAFETY: stores 16 or 32 registers of 16 or 64 bytes into 2048 bytes.
            unsafe {
                std::arch::asm!(
                    $(concat!($move, " [{to} + ", $n, "*", $stride, "], ", $register, $n)),*,
                    to = in(reg) into.as_mut_ptr(),
                    options(nostack, preserves_flags),
                );
            }
        };
    }
    if is_x86_feature_detected!("avx512f") {
        save!("vmovdqu64" "zmm" "64": 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15
            16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
    } else {
        save!("movdqu" "xmm" "16": 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    }
}

fn in_registers(secrets: &HashSet<[u8; 8]>, work: impl FnOnce()) -> usize {
    let mut saved = [0; 2048];
    work();
    registers(&mut saved);
    count(secrets, &saved)
}

#[test]
fn no_round_key_or_tweak_stays_on_the_stack() {
    let secrets = secrets(20);
    let mut without_clearing = 0;
    for kernel in Kernel::available() {
        let engine = Engine::new(kernel, &key());
        for way in [Direction::Encrypt, Direction::Decrypt] {
            let mut data = vec![0x11; 20 * 512];
            without_clearing += on_stack(&secrets, || engine.work(way, UNITS, None, &mut data));
            let found = on_stack(&secrets, || engine.run(way, UNITS, None, &mut data));
            assert_eq!(found, 0, "{kernel}, {way:?}");
        }
    }
    assert!(without_clearing > 0, "the search finds what is there");
}

#[test]
fn no_round_key_stays_on_the_stack_after_expansion() {
    let secrets = secrets(0);
    let key = key();
    let mut without_clearing = 0;
    for kernel in Kernel::available() {
        without_clearing += on_stack(&secrets, || drop(Engine::expand(kernel, &key)));
        let found = on_stack(&secrets, || drop(Engine::new(kernel, &key)));
        assert_eq!(found, 0, "{kernel}");
    }
    assert!(without_clearing > 0, "the search finds what is there");
}

#[test]
fn no_round_key_or_tweak_stays_in_vector_registers() {
    let secrets = secrets(20);
    let mut without_clearing = 0;
    for kernel in Kernel::available() {
        let engine = Engine::new(kernel, &key());
        for way in [Direction::Encrypt, Direction::Decrypt] {
            let mut data = vec![0x11; 20 * 512];
            without_clearing += in_registers(&secrets, || engine.work(way, UNITS, None, &mut data));
            let found = in_registers(&secrets, || engine.run(way, UNITS, None, &mut data));
            assert_eq!(found, 0, "{kernel}, {way:?}");
        }
    }
    assert!(without_clearing > 0, "the search finds what is there");
}
