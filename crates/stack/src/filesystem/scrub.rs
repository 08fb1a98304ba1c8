//! Scrub: file data compared with its checksums, by the serving process of a file system in use, or
//! directly on the device.
//!
//! The command makes one short request after the other. So the service needs no job of its own, the
//! rate is that of the command, and a file system can be unmounted at any time.

use super::{Progress, Target, WholeOperation, mounted_as, open_unmounted, request};
use crate::control::FsRequest;
use crate::text::json_of;
use crate::{Error, Result};
use ::fs::{BLOCK_BYTES, Damage, Fs, ScrubPosition};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Bytes that one request reads at most.
const STEP_BYTES: u64 = 16 << 20;
/// Requests in a second at a low rate, at least.
const STEPS_PER_SECOND: u64 = 4;
/// Damaged places that are listed; further ones are only counted.
const LISTED_MAX: usize = 1000;

/// Answer to a request.
#[derive(Debug, Serialize, Deserialize)]
struct Step {
    next: Option<String>,
    blocks: u64,
    unverified: u64,
    /// Blocks in use by files.
    total: u64,
    damage: Vec<Damage>,
}

/// Start and speed of a scrub.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScrubOptions<'a> {
    /// Position to start at, as printed by an earlier scrub that was interrupted.
    pub from: Option<&'a str>,
    /// Bytes to read in a second, at most; not zero.
    pub rate: Option<u64>,
}

/// Result of a scrub.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Scrubbed {
    /// Bytes of file data that were read.
    pub read_bytes: u64,
    /// Bytes of file data without checksums, which could not be verified.
    pub unverified_bytes: u64,
    /// Bytes that do not match their checksums or cannot be read.
    pub damaged_bytes: u64,
    /// Damaged places of files; at most 1000.
    pub damage: Vec<Damage>,
    /// Number of all damaged places, including unlisted ones.
    pub damage_count: u64,
}

impl Scrubbed {
    fn add(&mut self, step: Step) {
        self.read_bytes += step.blocks * BLOCK_BYTES;
        self.unverified_bytes += step.unverified * BLOCK_BYTES;
        self.damage_count += step.damage.len() as u64;
        for damage in step.damage {
            self.damaged_bytes += damage.bytes;
            if self.damage.len() < LISTED_MAX {
                self.damage.push(damage);
            }
        }
    }
}

/// Computes the bytes of one step at a rate.
pub(crate) fn step_bytes(rate: Option<u64>) -> u64 {
    let per_step = rate.map(|rate| rate / STEPS_PER_SECOND);
    per_step.map_or(STEP_BYTES, |bytes| bytes.clamp(BLOCK_BYTES, STEP_BYTES))
}

/// Makes one step of a scrub.
pub(super) fn execute(fs: &Fs, from: Option<&str>, bytes: u64) -> Result<Value> {
    let failed = || Error::files("cannot scrub the file system");
    let from = from.map_or(Ok(ScrubPosition::START), str::parse);
    let from = from.map_err(failed())?;
    let step = fs.scrub(from, bytes.min(STEP_BYTES)).map_err(failed())?;
    let filesets = fs.filesets();
    let own = filesets.iter().filter(|(_, record)| record.origin == 0);
    Ok(json_of(&Step {
        next: step.next.map(|next| next.to_string()),
        blocks: step.blocks,
        unverified: step.unverified,
        total: own.map(|(_, record)| record.used_blocks).sum(),
        damage: step.damage,
    }))
}

/// Reads all file data and compares it with its checksums; the file system may be in use.
///
/// # Errors
/// The file system cannot be opened or read, or it was unmounted during the scrub; the message names
/// the position to continue at. Damaged data is in the result.
pub fn scrub(
    target: &Target<'_>,
    options: ScrubOptions<'_>,
    progress: Progress<'_>,
) -> Result<Scrubbed> {
    if mounted_as(target.path, target.settings).is_some() {
        let ask = |from: Option<&str>, bytes| {
            let from = from.map(str::to_owned);
            request(target, &FsRequest::Scrub { from, bytes })
        };
        return all_steps(options, &ask, progress);
    }
    let (fs, failed) = open_unmounted(target, WholeOperation::Scrub)?;
    let ask = |from: Option<&str>, bytes| execute(&fs, from, bytes);
    let done = all_steps(options, &ask, progress)?;
    fs.close().map_err(failed())?;
    Ok(done)
}

fn all_steps(
    options: ScrubOptions<'_>,
    ask: &dyn Fn(Option<&str>, u64) -> Result<Value>,
    progress: Progress<'_>,
) -> Result<Scrubbed> {
    let begun = Instant::now();
    let bytes = step_bytes(options.rate);
    let mut done = Scrubbed::default();
    let mut from = options.from.map(str::to_owned);
    loop {
        let step = ask(from.as_deref(), bytes).and_then(|value| {
            let invalid = |e| Error::Failed(format!("invalid answer of the service: {e}"));
            serde_json::from_value::<Step>(value).map_err(invalid)
        });
        let made_step = from.as_deref() != options.from;
        let step = step.map_err(|error| match &from {
            Some(from) if made_step => stopped_at(from, &error),
            _ => error,
        })?;
        let total = step.total * BLOCK_BYTES;
        let next = step.next.clone();
        done.add(step);
        progress(done.read_bytes.min(total), total);
        let Some(next) = next else {
            return Ok(done);
        };
        from = Some(next);
        if let Some(rate) = options.rate.filter(|rate| *rate > 0) {
            let due = Duration::from_secs_f64(done.read_bytes as f64 / rate as f64);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    }
}

/// Adds the position to an error after the first step.
fn stopped_at(from: &str, error: &Error) -> Error {
    Error::Failed(format!(
        "the scrub stopped: {error}; --from {from} continues it"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::cell::Cell;

    #[test]
    fn a_scrub_makes_steps_up_to_the_end_and_says_where_it_stopped() {
        let asked = Cell::new(0);
        let fails_at = Cell::new(usize::MAX);
        let ask = |from: Option<&str>, bytes: u64| {
            let number = asked.replace(asked.get() + 1);
            assert_eq!(from, [None, Some("a"), Some("b")][number]);
            assert_eq!(bytes, STEP_BYTES);
            if number == fails_at.get() {
                return Err(Error::Busy("unmounted".into()));
            }
            let next = [Some("a"), Some("b"), None][number];
            Ok(json!({
                "next": next,
                "blocks": 3, "unverified": 1, "total": 9, "damage": [],
            }))
        };
        let mut seen = Vec::new();
        let options = ScrubOptions::default();
        let done = all_steps(options, &ask, &mut |done, of| seen.push((done, of))).unwrap();
        assert_eq!(
            (done.read_bytes, done.unverified_bytes),
            (9 * 4096, 3 * 4096)
        );
        assert_eq!(seen.last(), Some(&(9 * 4096, 9 * 4096)));
        asked.set(0);
        fails_at.set(2);
        let error = all_steps(options, &ask, &mut |_, _| {}).unwrap_err();
        assert!(error.to_string().contains("--from b"), "{error}");
        asked.set(0);
        fails_at.set(0);
        let error = all_steps(options, &ask, &mut |_, _| {}).unwrap_err();
        assert!(!error.to_string().contains("--from"), "{error}");
    }

    #[test]
    fn a_rate_limits_the_size_of_the_steps_and_the_bytes_in_the_time_that_passes() {
        let begun = Instant::now();
        let ask = |from: Option<&str>, bytes: u64| {
            assert_eq!(bytes, 1 << 18);
            let next = if from.is_none() {
                json!("a")
            } else {
                json!(null)
            };
            Ok(json!({
                "next": next, "blocks": 64, "unverified": 0, "total": 128, "damage": [],
            }))
        };
        let options = ScrubOptions {
            rate: Some(1 << 20),
            from: None,
        };
        all_steps(options, &ask, &mut |_, _| {}).unwrap();
        // Between the two steps, the first one has to have lasted as long as its bytes may take.
        assert!(begun.elapsed() >= Duration::from_millis(250));
    }
}
