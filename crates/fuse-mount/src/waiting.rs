//! The decision to poll for the next request before a thread sleeps.
//!
//! To wake a sleeping thread costs several times what a request does, so the leader first asks for
//! a request repeatedly, and yields the CPU in between. It does so only while the machine runs no
//! more tasks than it has CPUs: otherwise polling takes time from the very tasks that would send
//! the request. The window grows while requests arrive soon after the thread fell asleep, and
//! shrinks to nothing while they do not, as in the kernel's `haltpoll`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Longest time to poll.
const WINDOW_MAX_NS: u32 = 50_000;
/// First window after none.
const WINDOW_MIN_NS: u32 = 10_000;
/// Time for which a reading of the load is valid.
const LOAD_VALID: Duration = Duration::from_millis(64);

/// State that the threads of a session share. Races are harmless: each value alone is sensible.
pub(crate) struct Waiting {
    window_ns: AtomicU32,
    started: Instant,
    /// Time at which a leader last began to wait, in nanoseconds since `started`.
    waits_since: AtomicU64,
    load: Load,
}

/// Number of running tasks on the machine, as read a short time ago.
struct Load {
    file: Option<File>,
    started: Instant,
    /// Time of the last reading, in milliseconds since `started`, plus 1.
    read_at: AtomicU64,
    running: AtomicU32,
    cpus: u32,
}

impl Waiting {
    pub fn new() -> Waiting {
        // SAFETY: sysconf only returns a number.
        let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        Waiting {
            window_ns: AtomicU32::new(WINDOW_MAX_NS),
            started: Instant::now(),
            waits_since: AtomicU64::new(0),
            load: Load {
                file: File::open("/proc/loadavg").ok(),
                started: Instant::now(),
                read_at: AtomicU64::new(0),
                running: AtomicU32::new(u32::MAX),
                cpus: u32::try_from(cpus).unwrap_or(1),
            },
        }
    }

    /// Reports whether an only leader polled when the load was last read.
    pub fn may_poll(&self) -> bool {
        self.window_ns.load(Relaxed) > 0 && self.load.running.load(Relaxed) <= self.load.cpus
    }

    /// Notes that a leader waits. Returns the time for which an only leader polls, which may be zero.
    pub fn window(&self, now: Instant) -> Duration {
        self.waits_since.store(self.nanos(now), Relaxed);
        match self.window_ns.load(Relaxed) {
            0 => Duration::ZERO,
            _ if self.load.running(now) > self.load.cpus => Duration::ZERO,
            window => Duration::from_nanos(window.into()),
        }
    }

    fn nanos(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_nanos() as u64
    }

    /// Reports whether the machine has a CPU for another thread.
    pub fn has_idle_cpu(&self, now: Instant) -> bool {
        self.load.running(now) < self.load.cpus
    }

    /// Adapts the window after a leader has slept until a request came. The wait counts from the
    /// time at which the last leader began to wait, as that one would have polled.
    pub fn slept(&self, now: Instant) {
        let waited = self
            .nanos(now)
            .saturating_sub(self.waits_since.load(Relaxed));
        let window = self.window_ns.load(Relaxed);
        let adapted = adapted(window, Duration::from_nanos(waited));
        self.window_ns.store(adapted, Relaxed);
    }
}

/// Computes the window after a wait that was longer than the old one.
fn adapted(window: u32, waited: Duration) -> u32 {
    if waited > Duration::from_nanos(WINDOW_MAX_NS.into()) {
        match window / 2 {
            half if half < WINDOW_MIN_NS => 0,
            half => half,
        }
    } else {
        (window * 2).clamp(WINDOW_MIN_NS, WINDOW_MAX_NS)
    }
}

impl Load {
    fn running(&self, now: Instant) -> u32 {
        let ms = now.saturating_duration_since(self.started).as_millis() as u64 + 1;
        let read_at = self.read_at.load(Relaxed);
        let is_valid = read_at > 0 && ms - read_at.min(ms) < LOAD_VALID.as_millis() as u64;
        // One thread reads.
        let reads = !is_valid
            && self
                .read_at
                .compare_exchange(read_at, ms, Relaxed, Relaxed)
                .is_ok();
        if reads {
            let mut text = [0; 128];
            let file = self.file.as_ref();
            let len = file.and_then(|file| file.read_at(&mut text, 0).ok());
            let running = running_tasks(&text[..len.unwrap_or(0)]);
            self.running.store(running.unwrap_or(u32::MAX), Relaxed);
        }
        self.running.load(Relaxed)
    }
}

/// Parses the number of running tasks out of `/proc/loadavg`.
fn running_tasks(text: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(text).ok()?;
    text.split(' ').nth(3)?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_shrinks_to_nothing_and_grows_again() {
        let (soon, late) = (Duration::from_micros(30), Duration::from_micros(51));
        let after = |start, waits: &[Duration]| waits.iter().fold(start, |w, t| adapted(w, *t));
        assert_eq!(after(50_000, &[late]), 25_000);
        assert_eq!(after(50_000, &[late; 3]), 0);
        assert_eq!(after(0, &[late]), 0);
        assert_eq!(after(0, &[soon]), 10_000);
        assert_eq!(after(0, &[soon; 4]), 50_000);
    }

    #[test]
    fn a_wait_counts_from_the_last_leader_that_began_to_wait() {
        let waiting = Waiting::new();
        let at = |us| waiting.started + Duration::from_micros(us);
        waiting.window_ns.store(20_000, Relaxed);
        waiting.window(at(100));
        waiting.window(at(190));
        waiting.slept(at(200));
        assert_eq!(waiting.window_ns.load(Relaxed), 40_000);
        waiting.slept(at(300));
        assert_eq!(waiting.window_ns.load(Relaxed), 20_000);
    }

    #[test]
    fn the_load_is_read_at_intervals_and_a_machine_without_one_does_not_poll() {
        assert_eq!(running_tasks(b"2.22 0.91 0.35 7/128 13893\n"), Some(7));
        assert_eq!(running_tasks(b""), None);
        assert_eq!(running_tasks(b"rubbish"), None);
        let waiting = Waiting::new();
        let now = Instant::now();
        let running = waiting.load.running(now);
        assert!(running > 0 && running < u32::MAX, "this task runs");
        waiting.load.running.store(0, Relaxed);
        assert_eq!(waiting.load.running(now), 0, "it was read just now");
        assert!(waiting.has_idle_cpu(now) && waiting.window(now) > Duration::ZERO);
        assert!(waiting.load.running(now + LOAD_VALID) > 0);
        let blind = Load {
            file: None,
            ..Waiting::new().load
        };
        let blind = Waiting {
            load: blind,
            ..Waiting::new()
        };
        assert_eq!(blind.window(now), Duration::ZERO);
        assert!(!blind.has_idle_cpu(now));
    }
}
