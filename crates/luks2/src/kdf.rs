//! Key derivation: from a passphrase to the key of a keyslot area.
//!
//! The costs stated in a header are checked against [`KdfLimits`] before any memory is allocated: a
//! header is untrusted data, and must not determine how long this machine computes.

use crate::error::{Error, ErrorKind, Result};
use crate::hash::Hash;
use argon2::{Algorithm, Argon2, Params, Version};
use secret::SecretBytes;
use std::time::Duration;

/// Length in bytes of every salt in a header (`LUKS_SALTSIZE`).
pub(crate) const SALT_LEN: usize = 32;

/// Lowest number of Argon2 passes that calibration chooses, as in `cryptsetup`.
const TIME_MIN: u32 = 4;

/// Memory with which calibration starts, and the least it chooses unless the caller allows less.
const MEMORY_START_KIB: u32 = 64 * 1024;

/// Lowest number of PBKDF2 iterations that calibration chooses, as in `cryptsetup`.
const ITERATIONS_MIN: u32 = 1000;

/// Hints in errors: the settings that raise the limits.
const MEMORY_SETTING: &str =
    "; if you trust it, raise the setting kdf.memory-max-kib (EVFS_KDF_MEMORY_MAX_KIB)";
pub(crate) const WORK_SETTING: &str =
    "; if you trust it, raise the setting kdf.work-max-gib (EVFS_KDF_WORK_MAX_GIB)";

/// Estimates the work of PBKDF2, in the unit of [`Kdf::work_kib`].
pub(crate) fn pbkdf2_work_kib(iterations: u32) -> u64 {
    u64::from(iterations / 2)
}

/// A key derivation function with its costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kdf {
    /// Argon2id (RFC 9106), the default of `cryptsetup`.
    Argon2id(Argon2Cost),
    Argon2i(Argon2Cost),
    /// PBKDF2 with HMAC.
    Pbkdf2 {
        /// Hash of the HMAC.
        hash: Hash,
        /// Number of iterations.
        iterations: u32,
    },
}

/// Costs of Argon2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argon2Cost {
    /// Passes over the memory.
    pub time: u32,
    pub memory_kib: u32,
    /// Number of lanes, each computed by a thread.
    pub cpus: u32,
}

/// Limits on the costs that a header may state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KdfLimits {
    /// Memory of Argon2 in KiB. Default 4 GiB, the most that `cryptsetup` writes.
    pub memory_kib_max: u32,
    /// [`Kdf::work_kib`] of all keyslots that are tried for one passphrase, each with the digest.
    /// Default 64 GiB, a few minutes on one core.
    pub work_kib_max: u64,
    /// Lanes of Argon2. Default 4, the most that `cryptsetup` writes.
    pub cpus_max: u32,
    /// Iterations of PBKDF2. Default 100 million, about a minute on one core.
    pub iterations_max: u32,
}

impl Default for KdfLimits {
    fn default() -> KdfLimits {
        KdfLimits {
            memory_kib_max: 4 * 1024 * 1024,
            work_kib_max: 64 * 1024 * 1024,
            cpus_max: 4,
            iterations_max: 100_000_000,
        }
    }
}

impl Kdf {
    /// Returns the name used in headers.
    pub fn name(&self) -> &'static str {
        match self {
            Kdf::Argon2id(_) => "argon2id",
            Kdf::Argon2i(_) => "argon2i",
            Kdf::Pbkdf2 { .. } => "pbkdf2",
        }
    }

    /// Estimates the work, as the KiB of memory that Argon2 passes over: passes times memory.
    /// For PBKDF2, half of the iterations, since one takes about half as long as a KiB.
    pub fn work_kib(&self) -> u64 {
        match *self {
            Kdf::Argon2id(cost) | Kdf::Argon2i(cost) => {
                u64::from(cost.time) * u64::from(cost.memory_kib)
            }
            Kdf::Pbkdf2 { iterations, .. } => pbkdf2_work_kib(iterations),
        }
    }

    /// Checks that the costs are valid and within `limits`.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`], naming the cost.
    pub fn check(&self, limits: &KdfLimits) -> Result<()> {
        let over = |what: &str, is: u64, max: u64, setting: &str| {
            Error::refused(format!(
                "{}: {what} is {is}, above the limit of {max}; the header may be forged{setting}",
                self.name()
            ))
        };
        let work = self.work_kib();
        if work > limits.work_kib_max {
            let what = "work in KiB (memory times passes)";
            return Err(over(what, work, limits.work_kib_max, WORK_SETTING));
        }
        match *self {
            Kdf::Argon2id(cost) | Kdf::Argon2i(cost) => {
                let Argon2Cost {
                    memory_kib, cpus, ..
                } = cost;
                if cpus > limits.cpus_max {
                    return Err(over(
                        "number of lanes",
                        cpus.into(),
                        limits.cpus_max.into(),
                        "",
                    ));
                }
                if memory_kib > limits.memory_kib_max {
                    let max = limits.memory_kib_max.into();
                    let asked = memory_kib.into();
                    return Err(over("memory in KiB", asked, max, MEMORY_SETTING));
                }
                self.params(0).map(drop)
            }
            Kdf::Pbkdf2 { iterations, .. } if iterations > limits.iterations_max => Err(over(
                "number of iterations",
                iterations.into(),
                limits.iterations_max.into(),
                "",
            )),
            Kdf::Pbkdf2 { iterations: 0, .. } => {
                Err(Error::refused("pbkdf2: the iteration count is 0"))
            }
            Kdf::Pbkdf2 { .. } => Ok(()),
        }
    }

    /// Builds the parameters of Argon2 for `len` bytes of output (0: any); for PBKDF2, meaningless
    /// defaults.
    fn params(&self, len: usize) -> Result<Params> {
        match *self {
            Kdf::Argon2id(cost) | Kdf::Argon2i(cost) => {
                // RFC 9106, 3.1: memory is at least 8 KiB per lane. Checked here, because `Params`
                // multiplies before it compares.
                if u64::from(cost.memory_kib) < 8 * u64::from(cost.cpus) {
                    return Err(Error::refused("argon2: less than 8 KiB of memory per lane"));
                }
                Params::new(
                    cost.memory_kib,
                    cost.time,
                    cost.cpus,
                    (len > 0).then_some(len),
                )
                .map_err(|e| Error::refused(format!("invalid costs of {}: {e}", self.name())))
            }
            Kdf::Pbkdf2 { .. } => Ok(Params::default()),
        }
    }

    /// Derives `len` bytes from `passphrase`. The caller has checked the costs.
    pub(crate) fn derive(&self, passphrase: &[u8], salt: &[u8], len: usize) -> Result<SecretBytes> {
        let algorithm = match *self {
            Kdf::Pbkdf2 { hash, iterations } => {
                return Ok(hash.pbkdf2(passphrase, salt, iterations, len));
            }
            Kdf::Argon2id(_) => Algorithm::Argon2id,
            Kdf::Argon2i(_) => Algorithm::Argon2i,
        };
        let argon2 = Argon2::new(algorithm, Version::V0x13, self.params(len)?);
        let mut key = SecretBytes::zeroed(len);
        argon2
            .hash_password_into(passphrase, salt, &mut key)
            .map_err(|e| match e {
                argon2::Error::OutOfMemory => Error::new(
                    ErrorKind::OutOfMemory,
                    "not enough memory for the key derivation of this keyslot; free some, or use a \
                     keyslot with a lower memory cost",
                ),
                other => Error::refused(format!("{}: {other}", self.name())),
            })?;
        Ok(key)
    }

    /// Chooses Argon2id costs that take about `target` on this machine, measured by `clock` (time
    /// since any fixed point; must be monotonic).
    ///
    /// Increases memory first, up to `memory_kib_max`, then passes; as in `cryptsetup`, at least 4
    /// passes. Uses `cpus` lanes, at most 4.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] if `memory_kib_max` cannot be allocated.
    pub fn calibrate(
        clock: &dyn Fn() -> Duration,
        target: Duration,
        memory_kib_max: u32,
        cpus: u32,
    ) -> Result<Kdf> {
        let cpus = cpus.clamp(1, 4);
        let memory_kib_max = memory_kib_max.clamp(8 * cpus, 4 * 1024 * 1024);
        let memory_kib_min = memory_kib_max.min(MEMORY_START_KIB);
        let mut cost = Argon2Cost {
            time: TIME_MIN,
            memory_kib: memory_kib_min,
            cpus,
        };
        // Cost is nearly proportional to time x memory; three rounds converge to within a few
        // percent. Each round takes longer than the previous one, so the last one counts most.
        for _ in 0..3 {
            let took = measure(clock, &Kdf::Argon2id(cost))?;
            let scale = ratio(target, took);
            let work = f64::from(cost.time) * f64::from(cost.memory_kib) * scale;
            let memory =
                (work / f64::from(TIME_MIN)).clamp(memory_kib_min.into(), memory_kib_max.into());
            cost.memory_kib = to_u32(memory).clamp(memory_kib_min, memory_kib_max);
            cost.time = to_u32(work / memory).max(TIME_MIN);
            if (0.9..1.1).contains(&scale) {
                break;
            }
        }
        Ok(Kdf::Argon2id(cost))
    }

    /// Chooses a number of PBKDF2 iterations that takes about `target` on this machine.
    ///
    /// # Errors
    /// None in practice; the type is that of [`Kdf::calibrate`].
    pub fn calibrate_pbkdf2(
        clock: &dyn Fn() -> Duration,
        target: Duration,
        hash: Hash,
    ) -> Result<Kdf> {
        let mut iterations = 10_000;
        for _ in 0..3 {
            let took = measure(clock, &Kdf::Pbkdf2 { hash, iterations })?;
            let scale = ratio(target, took);
            iterations = to_u32(f64::from(iterations) * scale).max(ITERATIONS_MIN);
            if (0.9..1.1).contains(&scale) {
                break;
            }
        }
        Ok(Kdf::Pbkdf2 { hash, iterations })
    }
}

fn measure(clock: &dyn Fn() -> Duration, kdf: &Kdf) -> Result<Duration> {
    let from = clock();
    kdf.derive(b"passphrase to measure with", &[7; SALT_LEN], 64)?;
    Ok(clock().saturating_sub(from))
}

/// Divides `target` by `took`, limited to a factor of 64: a first measurement too short for
/// the clock must not make the second take minutes.
fn ratio(target: Duration, took: Duration) -> f64 {
    (target.as_secs_f64() / took.as_secs_f64().max(1e-6)).clamp(1.0 / 64.0, 64.0)
}

/// Rounds to the nearest `u32`; `as` saturates for floats, as intended.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn to_u32(value: f64) -> u32 {
    value.round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// RFC 6070 (SHA-1) and the widely used SHA-256 counterpart.
    #[test]
    fn derives_the_pbkdf2_vectors() {
        let key = Hash::Sha1.pbkdf2(b"password", b"salt", 4096, 20);
        assert_eq!(hex(&key), "4b007901b765489abead49d926f721d065a429c1");
        let key = Hash::Sha256.pbkdf2(b"password", b"salt", 4096, 32);
        assert_eq!(
            hex(&key),
            "c5e478d59288c841aa530db6845c4c8d962893a001ce4e11a4963873aa98134a"
        );
    }

    fn argon2id(time: u32, memory_kib: u32, cpus: u32) -> Kdf {
        Kdf::Argon2id(Argon2Cost {
            time,
            memory_kib,
            cpus,
        })
    }

    #[test]
    fn refuses_costs_beyond_the_limits_before_computing() {
        let limits = KdfLimits::default();
        for kdf in [
            argon2id(4, u32::MAX, 1),
            argon2id(u32::MAX, 1024, 1),
            argon2id(4, 1024, 5),
            argon2id(4, 1024, u32::MAX),
            argon2id(0, 1024, 1),
            argon2id(4, 1024, 0),
            argon2id(4, 7, 1),
            argon2id(4, 0, 1),
            Kdf::Pbkdf2 {
                hash: Hash::Sha256,
                iterations: u32::MAX,
            },
            Kdf::Pbkdf2 {
                hash: Hash::Sha256,
                iterations: 0,
            },
        ] {
            let error = kdf.check(&limits).expect_err("beyond the limits");
            assert_eq!(error.kind(), ErrorKind::Refused, "{kdf:?}");
        }
        let forged = argon2id(17, 4 * 1024 * 1024, 4).check(&limits);
        assert!(forged.unwrap_err().to_string().contains("kdf.work-max-gib"));
        argon2id(4, 1024 * 1024, 4)
            .check(&limits)
            .expect("the default of cryptsetup");
        let low = KdfLimits {
            memory_kib_max: 1024,
            ..limits
        };
        let over = argon2id(4, 1025, 1).check(&low).unwrap_err();
        assert!(over.to_string().contains("kdf.memory-max-kib"), "{over}");
    }

    /// The clock is a function of the work done, so the test does not depend on the machine.
    #[test]
    fn calibration_never_goes_below_the_floors_and_stays_in_memory() {
        let now = Cell::new(Duration::ZERO);
        let slow = || {
            now.set(now.get() + Duration::from_secs(10));
            now.get()
        };
        let kdf = Kdf::calibrate(&slow, Duration::from_millis(10), 64, 1).expect("64 KiB");
        assert_eq!(kdf, argon2id(4, 64, 1));
        let fast = || {
            now.set(now.get() + Duration::from_millis(1));
            now.get()
        };
        let kdf = Kdf::calibrate(&fast, Duration::from_millis(4), 256, 9).expect("256 KiB");
        let Kdf::Argon2id(cost) = kdf else {
            panic!("{kdf:?}")
        };
        assert_eq!((cost.memory_kib, cost.cpus), (256, 4));
        assert!(cost.time > 4, "{cost:?}");
        let kdf = Kdf::calibrate_pbkdf2(&slow, Duration::from_millis(1), Hash::Sha256);
        assert_eq!(
            kdf,
            Ok(Kdf::Pbkdf2 {
                hash: Hash::Sha256,
                iterations: 1000
            })
        );
    }
}
