//! Throughput of a kernel on this machine, for `evfs bench machine` and stored benchmark results.
//!
//! Uses the CPU clock of the thread instead of wall time, which varies far more on a shared
//! machine.

use crate::cipher::{SectorSize, Xts};
use crate::types::{Direction, Kernel, Tweak};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Measures the bytes that `kernel` encrypts per second of CPU time, in place, in requests of
/// `request_bytes`.
///
/// Runs for about `duration` of CPU time. `key_bits` is 128 or 256.
///
/// # Panics
/// If the CPU does not support the kernel, for any other `key_bits`, or if `request_bytes` is not
/// a whole number of sectors.
pub fn measure(
    kernel: Kernel,
    key_bits: u32,
    sector: SectorSize,
    request_bytes: usize,
    duration: Duration,
) -> f64 {
    measure_direction(
        Direction::Encrypt,
        kernel,
        key_bits,
        sector,
        request_bytes,
        duration,
    )
}

/// Measures like [`measure`], in the given direction.
///
/// # Panics
/// As [`measure`].
pub fn measure_direction(
    direction: Direction,
    kernel: Kernel,
    key_bits: u32,
    sector: SectorSize,
    request_bytes: usize,
    duration: Duration,
) -> f64 {
    let key: Vec<u8> = (0..64).collect();
    assert!(
        key_bits == 128 || key_bits == 256,
        "key_bits is 128 or 256, not {key_bits}"
    );
    let key = &key[..key_bits as usize / 4];
    let xts = Xts::with_kernel(key, sector, kernel).expect("the kernel is usable here");
    let mut data = vec![0x5A; request_bytes];
    let mut tweak = Tweak::ZERO;
    let mut one = || {
        match direction {
            Direction::Encrypt => xts.encrypt(tweak, &mut data),
            Direction::Decrypt => xts.decrypt(tweak, &mut data),
        }
        tweak = tweak.after(request_bytes as u64);
    };
    one(); // warms the CPU cache with the data and the keys
    // Reading the thread clock is a system call; once per 4 MiB its cost is negligible.
    let batch = ((4 << 20) / request_bytes.max(1)).max(1);
    let (mut requests, mut spent) = (0u64, Duration::ZERO);
    let start = thread_cpu();
    while spent < duration {
        for _ in 0..batch {
            one();
        }
        requests += batch as u64;
        spent = thread_cpu().saturating_sub(start);
    }
    requests as f64 * request_bytes as f64 / spent.max(Duration::from_nanos(1)).as_secs_f64()
}

/// Reads the CPU clock of this thread.
fn thread_cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        now.tv_sec.unsigned_abs(),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_a_positive_finite_figure_for_every_kernel_both_ways() {
        for kernel in Kernel::available() {
            for direction in [Direction::Encrypt, Direction::Decrypt] {
                let short = Duration::from_millis(1);
                let speed =
                    measure_direction(direction, kernel, 256, SectorSize::B512, 4096, short);
                assert!(speed.is_finite() && speed > 0.0, "{kernel}: {speed}");
            }
        }
    }
}
