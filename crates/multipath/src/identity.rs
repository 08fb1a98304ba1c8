//! Decides whether two paths lead to the same LUN, by the target's description and by content.
//!
//! World-wide IDs are unreliable: two default `tgtd` targets share one, and some vendors fill
//! theirs with zeros. An ID that several LUNs could have proves nothing without comparing blocks,
//! and the comparison proves only that the content is equal *now*: two copies of one disk are
//! equal. The proof is a *nonce*: random bytes, written through one path and read through the
//! other.
//!
//! Other processes and hosts may prove paths of the same LUN in the same block. Therefore a missing
//! nonce by itself refutes nothing: the path that wrote it must show it before and after the other
//! path shows different data, several times. Anything less is inconclusive and is tried again.

use block::{Buf, Error, ErrorKind, Op, Queue, Request, Result, Wait};
use lunpath::Identity;
use retry::{Backoff, Jitter, random_seed};
use std::time::{Duration, Instant};

/// Number of samples compared between two paths.
const SAMPLES: usize = 32;
/// Size in bytes of a sample and of a nonce.
const SAMPLE_BYTES: usize = 4096;
/// Maximum number of comparisons of a sample that differs. Each reads the first path, the second
/// path and the first path again, because another client may be writing to the block.
const TRIES: usize = 20;
/// First bytes of a nonce.
const NONCE_MAGIC: &[u8; 16] = b"EVFS LUN NONCE 1";
/// Consecutive differences after which two paths are considered to lead to different storage.
const REFUTATIONS: u32 = 3;
/// Pauses after another client overwrote a nonce.
const OVERWRITTEN: Backoff = Backoff::new(
    Duration::from_millis(8),
    Duration::from_millis(256),
    Jitter::Full,
);
/// Tag of the requests of a proof, of which each queue has at most one in flight.
pub const PROBE: u64 = 0;

/// Permitted method of proving that two paths lead to the same LUN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// Compare blocks. Sufficient if no other LUN has the same world-wide ID.
    Compare,
    /// Write a nonce of 4 KiB at an otherwise unused offset.
    Nonce {
        /// Byte offset of the nonce, a multiple of 4096.
        offset: u64,
    },
}

/// Checks whether several LUNs could have this `wwid`: it is absent, all zeros, or made of small
/// numbers only, as `tgtd` derives it from the target and unit numbers.
pub fn is_generic(wwid: Option<&str>) -> bool {
    let Some((kind, id)) = wwid.and_then(|w| w.split_once('.')) else {
        // An ID without a type prefix was chosen by the administrator.
        return wwid.is_none_or(|w| w.trim_matches('0').is_empty());
    };
    match kind {
        "naa" | "eui" | "uuid" => {
            let digits = id.bytes().filter(u8::is_ascii_hexdigit);
            digits.skip(1).filter(|d| *d != b'0').count() < 6
        }
        // For example `IET     00010001`: vendor, target number, unit number.
        _ => id
            .split_whitespace()
            .last()
            .is_none_or(|last| last.len() <= 8),
    }
}

/// Determines how `found` contradicts `wanted`; `None` if both may describe the same LUN.
pub fn differs(wanted: &Identity, found: &Identity) -> Option<String> {
    let text = |s: &Option<String>| s.clone().unwrap_or_else(|| "none".into());
    if wanted.wwid != found.wwid {
        let (w, f) = (text(&wanted.wwid), text(&found.wwid));
        return Some(format!("world-wide ID is {f}, not {w}"));
    }
    if wanted.serial != found.serial {
        let (w, f) = (text(&wanted.serial), text(&found.serial));
        return Some(format!("serial number is {f}, not {w}"));
    }
    if wanted.logical_block_size != found.logical_block_size {
        let (w, f) = (wanted.logical_block_size, found.logical_block_size);
        return Some(format!("block size is {f} bytes, not {w}"));
    }
    if found.size < wanted.size {
        return Some(format!(
            "size is {} bytes, less than {}",
            found.size, wanted.size
        ));
    }
    None
}

/// Proves or refutes that two connections lead to the same LUN. Returns `Ok(Some(why))` if they do
/// not. Blocks at most until `until`. After an error, a request tagged [`PROBE`] may be in flight.
///
/// # Errors
/// One of them did not answer, or other clients kept writing to the nonce block: the result is
/// unknown, and it is worth trying again later.
pub fn prove(
    reference: &mut dyn Queue,
    candidate: &mut dyn Queue,
    proof: Proof,
    until: Instant,
) -> Result<Option<String>> {
    let size = reference.info().size.min(candidate.info().size);
    let last = size.saturating_sub(SAMPLE_BYTES as u64) / SAMPLE_BYTES as u64;
    // The first block holds the label, if any; the others are chosen at random.
    for sample in 0..SAMPLES {
        let block = if sample == 0 {
            0
        } else {
            random_below(last + 1)?
        };
        let offset = block * SAMPLE_BYTES as u64;
        if !same(reference, candidate, offset, until)? {
            return Ok(Some(format!(
                "different content: the 4096 bytes at {offset} do not match the LUN"
            )));
        }
    }
    let Proof::Nonce { offset } = proof else {
        return Ok(None);
    };
    exchange(reference, candidate, offset, until)
}

/// Writes nonces through one path until the other path shows one or is refuted.
fn exchange(
    reference: &mut dyn Queue,
    candidate: &mut dyn Queue,
    offset: u64,
    until: Instant,
) -> Result<Option<String>> {
    let (mut refuted, mut disturbed) = (0, 0);
    while Instant::now() < until {
        let mut nonce = [0; SAMPLE_BYTES];
        fill_random(&mut nonce)?;
        nonce[..NONCE_MAGIC.len()].copy_from_slice(NONCE_MAGIC);
        let bufs = Buf::copy_of(&nonce).into();
        let fua = true;
        run(reference, Op::Write { offset, bufs, fua }, until)?;
        let before = read(reference, offset, until)?;
        if read(candidate, offset, until)? == nonce {
            return Ok(None);
        }
        // No other client can write these bytes. If they were present before and after, the other
        // path leads elsewhere.
        if before == nonce && read(reference, offset, until)? == nonce {
            refuted += 1;
            if refuted == REFUTATIONS {
                return Ok(Some(
                    "different storage: a write through a path of the LUN is not visible through \
                     this path"
                        .into(),
                ));
            }
            continue;
        }
        refuted = 0;
        std::thread::sleep(OVERWRITTEN.pause(disturbed, random_seed()));
        disturbed += 1;
    }
    let name = &candidate.info().name;
    let why = "other clients overwrote each nonce; the identity check is retried later";
    Err(Error::new(ErrorKind::TimedOut, name, why))
}

fn fill_random(bytes: &mut [u8]) -> Result<()> {
    let failed = |e: getrandom::Error| Error::new(ErrorKind::Io, "random numbers", e.to_string());
    getrandom::fill(bytes).map_err(failed)
}

/// Draws a number less than `bound`, which must not be zero.
fn random_below(bound: u64) -> Result<u64> {
    let mut bytes = [0; 8];
    fill_random(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes) % bound)
}

fn same(
    reference: &mut dyn Queue,
    candidate: &mut dyn Queue,
    offset: u64,
    until: Instant,
) -> Result<bool> {
    let mut differed = 0;
    for _ in 0..TRIES {
        let before = read(reference, offset, until)?;
        let there = read(candidate, offset, until)?;
        if before == there {
            return Ok(true);
        }
        // Equal bytes before and after may have differed in between, but hardly several times in a
        // row.
        if read(reference, offset, until)? == before {
            differed += 1;
            if differed == REFUTATIONS {
                return Ok(false);
            }
        }
    }
    // The block changes constantly, so this sample is inconclusive; the other samples decide.
    Ok(true)
}

fn read(queue: &mut dyn Queue, offset: u64, until: Instant) -> Result<Vec<u8>> {
    let bufs = Buf::zeroed(SAMPLE_BYTES).into();
    match run(queue, Op::Read { offset, bufs }, until)? {
        Op::Read { bufs, .. } => Ok(bufs.iter().flat_map(|b| b.iter().copied()).collect()),
        _ => Ok(Vec::new()),
    }
}

fn run(queue: &mut dyn Queue, op: Op, until: Instant) -> Result<Op> {
    let full = |_| Error::new(ErrorKind::Busy, "probe", "the queue is full");
    queue.submit(Request { tag: PROBE, op }).map_err(full)?;
    let mut done = Vec::new();
    while done.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let name = &queue.info().name;
            let why = "no answer during the identity check";
            return Err(Error::new(ErrorKind::TimedOut, name, why));
        }
        queue.reap(Wait::AtMost(left), &mut done)?;
    }
    let completion = done.remove(0);
    completion.result.map(|()| completion.op)
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::BlockDevice;
    use block_testing::{Mem, MemConfig, Random};
    use lunpath::Access;

    fn mem(seed: u64) -> Mem {
        let mem = Mem::with(MemConfig::new(4 << 20, 512));
        let mut bytes = vec![0; 4 << 20];
        Random::new(seed).fill(&mut bytes);
        mem.poke(0, &bytes);
        mem
    }

    fn proves(a: &Mem, b: &Mem, proof: Proof) -> Option<String> {
        let (mut a, mut b) = (a.queue().unwrap(), b.queue().unwrap());
        let until = Instant::now() + Duration::from_secs(10);
        prove(&mut *a, &mut *b, proof, until).unwrap()
    }

    #[test]
    fn two_ways_to_one_disk_are_one_and_a_copy_is_found_out_by_a_nonce() {
        let nonce = Proof::Nonce { offset: 1 << 20 };
        let disk = mem(1);
        assert_eq!(proves(&disk, &disk, nonce), None);
        let copy = disk.fork();
        assert_eq!(proves(&disk, &copy, Proof::Compare), None);
        assert!(
            proves(&disk, &copy, nonce)
                .unwrap()
                .contains("different storage")
        );
        assert!(
            proves(&disk, &mem(2), Proof::Compare)
                .unwrap()
                .contains("different content")
        );
    }

    #[test]
    fn proofs_at_the_same_time_disturb_each_other_and_refute_nothing() {
        let nonce = Proof::Nonce { offset: 1 << 20 };
        let disk = mem(3);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        assert_eq!(proves(&disk, &disk, nonce), None);
                    }
                });
            }
            // At the same time, a copy that holds an old nonce is refuted.
            let copy = disk.fork();
            for _ in 0..5 {
                assert!(proves(&disk, &copy, nonce).is_some());
            }
        });
    }

    #[test]
    fn ids_that_many_could_have_are_told_from_others() {
        for generic in [
            None,
            Some("naa.60000000000000000e00000000010001"),
            Some("t10.IET     00010001"),
            Some("eui.0000000000000000"),
            Some("000"),
        ] {
            assert!(is_generic(generic), "{generic:?}");
        }
        for own in [
            Some("naa.5000c500a1b2c3d4"),
            Some("naa.600508b1001c3a4f8e21d77c90ab12ef"),
            Some("t10.ATA     WDC WD40 WD-WX11D3"),
            Some("my-disk"),
        ] {
            assert!(!is_generic(own), "{own:?}");
        }
    }

    #[test]
    fn a_description_that_changed_is_refused() {
        let wanted = Identity {
            wwid: Some("naa.1".into()),
            serial: Some("s".into()),
            vendor: String::new(),
            product: String::new(),
            size: 100,
            logical_block_size: 512,
            read_only: false,
            access: Access::Optimized,
        };
        let with = |change: fn(&mut Identity)| {
            let mut found = wanted.clone();
            change(&mut found);
            differs(&wanted, &found)
        };
        assert_eq!(with(|_| ()), None);
        assert_eq!(with(|i| i.size = 200), None);
        assert!(with(|i| i.size = 50).unwrap().contains("less than"));
        assert!(with(|i| i.wwid = None).unwrap().contains("none, not naa.1"));
        assert!(
            with(|i| i.serial = Some("t".into()))
                .unwrap()
                .contains("serial")
        );
        assert!(
            with(|i| i.logical_block_size = 4096)
                .unwrap()
                .contains("4096")
        );
    }
}
