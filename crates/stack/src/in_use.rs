//! The in-use record: a heartbeat on the device that tells other machines that this one has it open
//! for writing.
//!
//! A [`crate::claim`] is visible on one machine only. Different machines share only the device
//! itself, so a writer maintains a record of 4 KiB there, with a random owner ID and a counter that
//! it increments every few seconds, like the multi-mount protection of ext4.
//! `docs/format/in-use.md` describes the layout.
//!
//! **Invariant:** a record that changes is never taken over. A process that finds the record of
//! another owner in place of its own does no more I/O. One that has not verified its own record for
//! [`FRESH`] intervals writes nothing before it has verified it again. A process that takes over a
//! stale record first watches it for [`DEAD`] intervals, which is longer.
//!
//! Reading and renewing the record are two operations, and a process may be stopped between them
//! while another machine takes the device over. Its renewal then replaces the record of the new
//! owner:
//!
//! ```text
//!   old owner    read own ──stopped────────────────────────── renew
//!   new owner                watch DEAD ──── write ── settle FRESH ──── in use
//! ```
//!
//! A renewal within the settle time ends the takeover. A later one is [`Shared::too_late`] for the
//! old owner, which does no more I/O; the new owner restores its record.

use crate::ownership::{OwnRecord, Ownership};
use crate::{Error, Result};
use block::{
    BlockDevice, Blocking, Buf, BufPool, Completion, DeviceInfo, ErrorKind, Op, Queue, Request,
    Wait,
};
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// Size of a record, and of the block reserved for it, in bytes.
pub(crate) const BYTES: usize = 4096;
const MAGIC: [u8; 8] = *b"EVFSUSE\x1a";
const VERSION: u16 = 1;
const HOST_BYTES: usize = 64;
/// Intervals for which a verification of this process's record stays valid.
const FRESH: u32 = 2;
/// Intervals after which an unchanged record is stale.
const DEAD: u32 = 4;
/// Valid range of an interval; other values in a record are clamped.
const INTERVAL_MS: std::ops::RangeInclusive<u32> = 100..=60_000;
/// Delay between writing a record and checking for another machine that wrote at the same time.
const SETTLE: Duration = Duration::from_millis(100);
/// Limit for the wait for a silent device when a use ends.
const LAST_WORD: Duration = Duration::from_secs(3);

/// Contents of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    in_use: bool,
    interval_ms: u32,
    /// Random ID of this use.
    owner: [u8; 16],
    count: u64,
    /// Boot ID of the machine and network namespace: the scope in which claims are visible.
    boot: [u8; 16],
    namespace: u64,
    pid: u32,
    /// Epoch of the last owner in a cluster; 0 if there was none.
    epoch: u64,
    host: String,
}

impl Record {
    fn of_this_process(interval: Duration) -> Result<Record> {
        let mut owner = [0; 16];
        getrandom::fill(&mut owner).map_err(|e| Error::Failed(e.to_string()))?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = std::fs::metadata("/proc/self/ns/net").map_or(0, |m| m.ino());
        let host = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        Ok(Record {
            in_use: true,
            interval_ms: u32::try_from(interval.as_millis()).unwrap_or(u32::MAX),
            owner,
            count: 0,
            boot: of_hex(&boot),
            namespace,
            pid: std::process::id(),
            epoch: 0,
            host: printable(host.bytes()),
        })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BYTES);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(u16::from(self.in_use).to_le_bytes());
        out.extend(self.interval_ms.to_le_bytes());
        out.extend(self.owner);
        out.extend(self.count.to_le_bytes());
        out.extend(self.boot);
        out.extend(self.namespace.to_le_bytes());
        out.extend(self.pid.to_le_bytes());
        out.extend(self.epoch.to_le_bytes());
        out.extend([0; 4]);
        let host = self.host.as_bytes();
        out.extend(&host[..host.len().min(HOST_BYTES)]);
        out.resize(BYTES - 4, 0);
        out.extend(crc32c::crc32c(&out).to_le_bytes());
        out
    }

    /// Decodes a record. A damaged one counts as in use by an unknown owner.
    fn decode(bytes: &[u8]) -> Option<Record> {
        fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
            bytes[at..at + N]
                .try_into()
                .expect("a record has its length")
        }
        if bytes.len() != BYTES || bytes[..8] != MAGIC {
            return None;
        }
        let (content, checksum) = bytes.split_at(BYTES - 4);
        let whole = crc32c::crc32c(content).to_le_bytes() == checksum
            && u16::from_le_bytes(take(bytes, 8)) == VERSION;
        let interval_ms = u32::from_le_bytes(take(bytes, 12));
        let host = bytes[80..80 + HOST_BYTES].iter();
        Some(Record {
            in_use: !whole || u16::from_le_bytes(take(bytes, 10)) != 0,
            interval_ms: if whole {
                interval_ms.clamp(*INTERVAL_MS.start(), *INTERVAL_MS.end())
            } else {
                5000
            },
            owner: take(bytes, 16),
            count: u64::from_le_bytes(take(bytes, 32)),
            boot: if whole { take(bytes, 40) } else { [0; 16] },
            namespace: u64::from_le_bytes(take(bytes, 56)),
            pid: u32::from_le_bytes(take(bytes, 64)),
            epoch: if whole {
                u64::from_le_bytes(take(bytes, 68))
            } else {
                0
            },
            host: printable(host.copied().take_while(|b| *b != 0)),
        })
    }

    /// The time between two renewals.
    fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms.into())
    }

    /// Reports whether claims of the writer are visible to this process.
    fn is_near(&self, own: &Record) -> bool {
        self.boot != [0; 16] && self.boot == own.boot && self.namespace == own.namespace
    }
}

fn printable(bytes: impl Iterator<Item = u8>) -> String {
    let host: String = bytes
        .filter(u8::is_ascii_graphic)
        .take(HOST_BYTES)
        .map(char::from)
        .collect();
    if host.is_empty() {
        "unknown".into()
    } else {
        host
    }
}

fn of_hex(text: &str) -> [u8; 16] {
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}

/// Reads a clock that also advances while the machine is suspended, in milliseconds.
fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

fn read(device: &dyn BlockDevice, at: u64) -> block::Result<Vec<u8>> {
    let mut bytes = vec![0; BYTES];
    Blocking::open(device)?.read_at(at, &mut bytes)?;
    Ok(bytes)
}

fn write(device: &dyn BlockDevice, at: u64, record: &Record) -> block::Result<()> {
    let bufs = Buf::copy_of(&record.encode()).into();
    let fua = true;
    let op = Op::Write {
        offset: at,
        bufs,
        fua,
    };
    Blocking::open(device)?.run(op).map(drop)
}

/// Writes a record that marks the device as not in use.
///
/// # Errors
/// The write fails.
pub(crate) fn prepare(device: &dyn BlockDevice, at: u64) -> Result<()> {
    let mut record = Record::of_this_process(Duration::ZERO)?;
    record.in_use = false;
    Ok(write(device, at, &record)?)
}

/// Reports whether the device has a record.
pub(crate) fn is_there(device: &dyn BlockDevice, at: u64) -> bool {
    read(device, at).is_ok_and(|bytes| Record::decode(&bytes).is_some())
}

/// Waits until the device is known not to be in use on another machine.
///
/// # Errors
/// [`Error::Busy`] if another machine writes to it.
pub(crate) fn check(device: &dyn BlockDevice, at: u64, name: &str) -> Result<()> {
    if let Some(stale) = watch(device, at, name)? {
        let host = stale.host;
        tracing::warn!(name: "EVFS-0303", "{name} is no longer in use on machine {host}");
    }
    Ok(())
}

/// Does the same as [`check`], and returns the stale record of another machine, if there is one.
fn watch(device: &dyn BlockDevice, at: u64, name: &str) -> Result<Option<Record>> {
    let own = Record::of_this_process(Duration::ZERO)?;
    let first = read(device, at)?;
    let Some(found) = Record::decode(&first).filter(|r| r.in_use && !r.is_near(&own)) else {
        return Ok(None);
    };
    let interval = found.interval();
    tracing::warn!(
        name: "EVFS-0302",
        "{name} was not closed by process {} on machine {}; waiting {:.0?} to check whether it is \
         still in use there",
        found.pid,
        found.host,
        interval * DEAD
    );
    let until = now_ms() + u64::from(found.interval_ms) * u64::from(DEAD);
    while now_ms() < until {
        std::thread::sleep(interval / 2);
        let bytes = read(device, at)?;
        if bytes == first {
            continue;
        }
        return match Record::decode(&bytes) {
            Some(now) if now.in_use => Err(Error::Busy(format!(
                "cannot open {name}: it is open for writing on machine {} (process {}); detach it \
                 there first",
                now.host, now.pid
            ))),
            _ => Ok(None),
        };
    }
    Ok(Some(found))
}

/// Protection of a device against writers on other machines, as `evfs status` shows it.
#[derive(Debug, Clone)]
pub enum InUseRecord {
    /// None: the device has no room for a record.
    Impossible,
    /// None, because this process only reads.
    Reader,
    /// The record of this process.
    Record {
        /// Whether another machine has taken the device over.
        lost: Arc<AtomicBool>,
    },
}

impl InUseRecord {
    /// Names the state in one word.
    pub fn word(&self) -> &'static str {
        match self {
            InUseRecord::Impossible => "impossible",
            InUseRecord::Reader => "reader",
            InUseRecord::Record { lost } if lost.load(Ordering::SeqCst) => "lost",
            InUseRecord::Record { .. } => "kept",
        }
    }
}

impl serde::Serialize for InUseRecord {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.serialize_str(self.word())
    }
}

/// Use of a device by this process, which maintains its record.
pub(crate) struct InUse {
    shared: Arc<Shared>,
    stop: Option<Sender<()>>,
    stopped: Mutex<Receiver<()>>,
}

struct Shared {
    device: Arc<dyn BlockDevice>,
    at: u64,
    interval_ms: u64,
    /// Record of this process as last written; the lock is held during a verification.
    record: Mutex<Record>,
    /// Time of the last successful verification, in milliseconds.
    seen: AtomicU64,
    lost: Arc<AtomicBool>,
    /// Owner whose stale record this one replaced.
    replaced: OnceLock<[u8; 16]>,
    others: Others,
}

/// Whether another machine can write to the device while it is in use here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    /// It can; the record is all that keeps it from that.
    CanWrite,
    /// The storage refuses requests of all but one owner. So an own renewal that is late, because
    /// the storage did not answer for some time, never replaces the record of another owner.
    AreRefused,
}

impl InUse {
    /// Writes the record and starts the thread that renews it.
    ///
    /// # Errors
    /// Those of [`check`]; a read or write fails.
    pub(crate) fn begin(
        device: Arc<dyn BlockDevice>,
        at: u64,
        name: &str,
        interval: Duration,
        ownership: Option<&dyn Ownership>,
        others: Others,
    ) -> Result<InUse> {
        let mut record = Record::of_this_process(interval)?;
        // Fences keep earlier owners out. Their record need not become stale.
        let is_fenced = ownership.map_or(Ok(false), Ownership::must_fence)?;
        let stale = if is_fenced {
            None
        } else {
            watch(&*device, at, name)?
        };
        let stored = Record::decode(&read(&*device, at)?).map_or(0, |found| found.epoch);
        record.epoch = ownership.map_or(Ok(stored), Ownership::epoch)?;
        if let Some(ownership) = ownership
            && stored > record.epoch
        {
            ownership.newer(stored);
            return Err(Error::Busy(format!(
                "cannot open {name}: it has a later owner in the cluster (epoch {stored})"
            )));
        }
        let settle = stale.as_ref().map_or(SETTLE, |stale| {
            let settle = SETTLE.max(stale.interval() * FRESH);
            tracing::warn!(
                name: "EVFS-0303",
                "{name} is no longer in use on machine {}; taking it over in {settle:.0?}",
                stale.host
            );
            settle
        });
        let owner = record.owner;
        let seen = now_ms();
        write(&*device, at, &record)?;
        let shared = Arc::new(Shared {
            device,
            at,
            interval_ms: interval.as_millis() as u64,
            record: Mutex::new(record),
            seen: AtomicU64::new(seen),
            lost: Arc::default(),
            replaced: OnceLock::new(),
            others,
        });
        let (stop, stops) = channel();
        let (ends, stopped) = channel();
        let beating = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("in-use".into())
            .spawn(move || {
                beating.beat(interval, &stops);
                drop(ends);
            })
            .map_err(|e| Error::Failed(format!("cannot start a thread: {e}")))?;
        let in_use = InUse {
            shared: Arc::clone(&shared),
            stop: Some(stop),
            stopped: Mutex::new(stopped),
        };
        std::thread::sleep(settle);
        let found = Record::decode(&read(&*shared.device, at)?);
        if shared.lost.load(Ordering::SeqCst) || found.is_none_or(|found| found.owner != owner) {
            return Err(Error::Busy(format!(
                "cannot open {name}: another machine is opening it or has it open; try again"
            )));
        }
        if let Some(stale) = stale {
            shared.replaced.get_or_init(|| stale.owner);
        }
        Ok(in_use)
    }

    /// Returns the place of the record, for connections that are made later.
    pub(crate) fn own_record(&self) -> OwnRecord {
        let owner = self.shared.lock().owner;
        OwnRecord {
            at: self.shared.at,
            len: BYTES,
            is_own: Box::new(move |bytes| {
                Record::decode(bytes).is_some_and(|found| found.owner == owner)
            }),
        }
    }

    pub(crate) fn record_state(&self) -> InUseRecord {
        let lost = Arc::clone(&self.shared.lost);
        InUseRecord::Record { lost }
    }

    /// Wraps `lower` in a queue that refuses requests once another machine has the device.
    pub(crate) fn queue(&self, lower: Box<dyn Queue>) -> Box<dyn Queue> {
        Box::new(Guarded {
            lower,
            shared: Arc::clone(&self.shared),
            refused: VecDeque::new(),
        })
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A silent device must not block its user: the record then becomes stale.
        let stopped = self.stopped.get_mut().expect("no panic under this lock");
        let _ = stopped.recv_timeout(LAST_WORD);
    }
}

impl Shared {
    fn beat(&self, interval: Duration, stops: &Receiver<()>) {
        while let Err(RecvTimeoutError::Timeout) = stops.recv_timeout(interval) {
            let mut record = self.lock();
            if let Err(error) = self.verify(&mut record) {
                let name = &self.device.info().name;
                tracing::warn!(
                    name: "EVFS-0304",
                    "{name}: cannot renew its in-use record: {error}"
                );
            }
            if self.lost.load(Ordering::SeqCst) {
                return;
            }
        }
        // After that time the record may be taken over at any moment: it is left to become stale.
        if !self.is_over(DEAD, self.seen.load(Ordering::SeqCst)) {
            let mut record = self.lock();
            record.in_use = false;
            let _ = self.verify(&mut record);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().expect("no panic under this lock")
    }

    /// Verifies that the record is still that of this process, and renews it.
    fn verify(&self, record: &mut Record) -> block::Result<()> {
        let mut began = now_ms();
        let mut found = Record::decode(&read(&*self.device, self.at)?);
        // After a long outage, what was read may be old.
        if self.is_over(FRESH, began) {
            began = now_ms();
            found = Record::decode(&read(&*self.device, self.at)?);
        }
        let is_own = found.as_ref().is_some_and(|r| r.owner == record.owner);
        if !is_own && !self.restores(found.as_ref()) {
            let by = found.map_or("another machine".into(), |r| format!("machine {}", r.host));
            self.lose(&format!(
                "was taken over by {by} while this process did not respond"
            ));
            return Ok(());
        }
        record.count += 1;
        let written = write(&*self.device, self.at, record);
        if self.too_late(began) {
            self.lose(
                "may have been taken over by another machine, because its in-use record \
                       could not be renewed in time",
            );
        }
        written?;
        self.seen.store(began, Ordering::SeqCst);
        Ok(())
    }

    /// Reports whether the record found is a late renewal of the owner that this process replaced.
    fn restores(&self, found: Option<&Record>) -> bool {
        let is_late = found.is_some_and(|found| self.replaced.get() == Some(&found.owner));
        // After that time another machine may have taken the device over from this one.
        is_late && !self.is_over(DEAD, self.seen.load(Ordering::SeqCst))
    }

    /// Reports whether a renewal that ends now, of a record that was read at `began`, may have
    /// replaced the record of another machine.
    fn too_late(&self, began: u64) -> bool {
        self.others == Others::CanWrite
            && self.is_over(FRESH, began)
            && self.is_over(DEAD, self.seen.load(Ordering::SeqCst))
    }

    /// Reports whether more than `intervals` have passed since `time`.
    fn is_over(&self, intervals: u32, time: u64) -> bool {
        now_ms().saturating_sub(time) > self.interval_ms * u64::from(intervals)
    }

    /// Refuses all further I/O.
    fn lose(&self, why: &str) {
        self.lost.store(true, Ordering::SeqCst);
        let name = &self.device.info().name;
        tracing::error!(
            name: "EVFS-0305",
            "{name} {why}; further I/O is refused; detach it with --force"
        );
    }

    /// Decides whether to refuse an operation, and returns the reason.
    fn refuses(&self, op: &Op) -> Option<&'static str> {
        const LOST: &str = "another machine has taken over the device";
        const SILENT: &str = "cannot renew the in-use record of the device";
        if self.lost.load(Ordering::SeqCst) {
            return Some(LOST);
        }
        let fresh = || !self.is_over(FRESH, self.seen.load(Ordering::SeqCst));
        if op.changes_data() && !fresh() {
            let mut record = self.lock();
            // Another thread may have verified it in the meantime.
            if !fresh() && self.verify(&mut record).is_err() {
                return Some(SILENT);
            }
        }
        self.lost.load(Ordering::SeqCst).then_some(LOST)
    }
}

/// Queue returned by [`InUse::queue`].
struct Guarded {
    lower: Box<dyn Queue>,
    shared: Arc<Shared>,
    /// Completions of refused requests. They need no wakeup: a caller polls once before it sleeps
    /// on the lower queue's descriptor, and gets them then.
    refused: VecDeque<Completion>,
}

impl Queue for Guarded {
    fn info(&self) -> &DeviceInfo {
        self.lower.info()
    }

    fn capacity(&self) -> usize {
        self.lower.capacity()
    }

    fn in_flight(&self) -> usize {
        self.lower.in_flight() + self.refused.len()
    }

    fn room(&self) -> usize {
        self.lower.room().saturating_sub(self.refused.len())
    }

    fn submit(&mut self, request: Request) -> std::result::Result<(), Request> {
        if self.in_flight() >= self.capacity() {
            return Err(request);
        }
        let Some(why) = self.shared.refuses(&request.op) else {
            return self.lower.submit(request);
        };
        let Request { tag, op } = request;
        let error = block::Error::new(ErrorKind::Io, &self.info().name, why).in_op(&op);
        let result = Err(error);
        self.refused.push_back(Completion { tag, op, result });
        Ok(())
    }

    fn kick(&mut self) -> block::Result<()> {
        self.lower.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> block::Result<usize> {
        let own = self.refused.len();
        done.extend(self.refused.drain(..));
        let wait = if own > 0 { Wait::Poll } else { wait };
        Ok(own + self.lower.reap(wait, done)?)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.lower.wait_fd()
    }

    fn holds_answers(&self) -> bool {
        !self.refused.is_empty() || self.lower.holds_answers()
    }

    fn register(&mut self, pool: &BufPool) {
        self.lower.register(pool);
    }
}

#[cfg(test)]
mod tests;
