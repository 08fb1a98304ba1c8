//! Shrinks the cache towards `filecache_min` when the system is short of memory.
//!
//! The kernel reports stalls for memory through pressure files
//! (`Documentation/accounting/psi.rst`): after a threshold is written to the file, it becomes ready
//! whenever the threshold is crossed. The file of the process's own cgroup is preferred, because a
//! limit there takes effect before that of the machine.

use crate::machine;
use crate::stats::CacheStats;
use crate::volume::Cache;
use block::Waker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// Threshold: tasks stalled for memory during a tenth of two seconds. Two seconds is the shortest
/// window that the kernel allows unprivileged processes.
const TRIGGER: &[u8] = b"some 200000 2000000\0";
/// Percentage of the pages that is kept at each step, down to `filecache_min`.
const KEEP_PERCENT: u64 = 75;
/// Pause between two steps of shrinking, so that the kernel can determine whether the first was
/// enough.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000_000,
};

/// A thread that watches memory pressure until this is dropped.
pub struct PressureWatch {
    stop: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl PressureWatch {
    /// Watches the pressure file of the process's cgroup, or that of the machine. Once pages take
    /// no more than `filecache_min`, they are not evicted further.
    ///
    /// # Errors
    /// Neither file exists, or this process may watch neither.
    pub fn start(cache: &Arc<Cache>) -> Result<PressureWatch> {
        let mut failure = Error::new(
            ErrorKind::NotFound,
            "the system has no memory pressure file",
        );
        for file in machine::pressure_files() {
            match armed(&file) {
                Ok(fd) => return PressureWatch::on(cache, fd, PollFlags::PRI),
                Err(e) => failure = Error::new(e.kind(), format!("{}: {e}", file.display())),
            }
        }
        Err(failure)
    }

    /// Shrinks the cache by a step each time `fd` reports `events`.
    fn on(cache: &Arc<Cache>, fd: OwnedFd, events: PollFlags) -> Result<PressureWatch> {
        let stop = Arc::new(Waker::new()?);
        let watch = Watch {
            cache: Arc::downgrade(cache),
            stop: Arc::clone(&stop),
            pressure: fd,
            events,
        };
        let thread = std::thread::Builder::new().name("pressure".into());
        let thread = Some(thread.spawn(move || watch.run())?);
        Ok(PressureWatch { stop, thread })
    }
}

impl Drop for PressureWatch {
    fn drop(&mut self) {
        self.stop.wake();
        if let Some(thread) = self.thread.take() {
            // The panic message has been printed, and there is no state to restore.
            let _ = thread.join();
        }
    }
}

/// State of the thread.
struct Watch {
    cache: Weak<Cache>,
    stop: Arc<Waker>,
    pressure: OwnedFd,
    events: PollFlags,
}

impl Watch {
    fn run(self) {
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(self.pressure.as_fd(), self.events),
                PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
            let [pressure, stopped] = fds.map(|fd| fd.revents());
            // An error means that the cgroup was removed; its file then reports it permanently.
            let over = stopped.contains(PollFlags::IN) || pressure.contains(PollFlags::ERR);
            let Some(cache) = self.cache.upgrade().filter(|_| !over) else {
                return;
            };
            if pressure.intersects(self.events) {
                let used = cache.shrink(target(&cache.stats()));
                tracing::info!(
                    bytes = used,
                    "the system is short of memory: pages were evicted"
                );
            }
            drop(cache);
            let mut only_stop = [PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN)];
            if poll(&mut only_stop, Some(&PAUSE)).is_ok_and(|n| n > 0) {
                return;
            }
        }
    }
}

/// Computes the bytes in pages, in frames and in windows, that a step keeps.
fn target(stats: &CacheStats) -> u64 {
    (stats.used_bytes + stats.mapped_bytes) / 100 * KEEP_PERCENT
}

fn armed(file: &Path) -> Result<OwnedFd> {
    let mut file = File::options().read(true).write(true).open(file)?;
    file.write_all(TRIGGER)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CachedDevice, Config};
    use block::Blocking;
    use block_testing::Mem;
    use rustix::event::{EventfdFlags, eventfd};
    use std::time::{Duration, Instant};

    #[test]
    fn pages_go_down_to_the_minimum_and_no_further() {
        let config = Config {
            min_bytes: 2 << 20,
            ..Config::new(8 << 20)
        };
        let cache = Cache::new(config).unwrap();
        let device = CachedDevice::new(&cache, Arc::new(Mem::new(6 << 20, 4096))).unwrap();
        let mut blocking = Blocking::open(&device).unwrap();
        blocking.read_at(0, &mut vec![0; 6 << 20]).unwrap();
        let before = cache.stats().used_bytes;
        assert!(before >= 6 << 20, "{before}");
        let pressure = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let signal = pressure.try_clone().unwrap();
        let watch = PressureWatch::on(&cache, pressure, PollFlags::IN).unwrap();
        // The counter is never read, so the pressure persists.
        rustix::io::write(&signal, &1u64.to_ne_bytes()).unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        while cache.stats().used_bytes > (2 << 20) + (64 << 10) {
            assert!(Instant::now() < end, "{:?}", cache.stats());
            std::thread::sleep(Duration::from_millis(20));
        }
        let stats = cache.stats();
        assert!(stats.used_bytes >= 2 << 20);
        assert!(stats.counts.evicted_pressure > 0 && stats.counts.evicted_limit == 0);
        drop(watch);
        assert_eq!(cache.stats().max_bytes, 8 << 20, "the limit is as it was");
    }

    #[test]
    fn a_step_keeps_a_share_of_mapped_pages_too() {
        let cache = Cache::new(Config::new(8 << 20)).unwrap();
        let stats = CacheStats {
            used_bytes: 1000,
            mapped_bytes: 3000,
            ..cache.stats()
        };
        assert_eq!(target(&stats), 3000);
    }

    #[test]
    fn the_real_file_can_be_watched_or_says_why_not() {
        let cache = Cache::new(Config::new(1 << 20)).unwrap();
        match PressureWatch::start(&cache) {
            Ok(watch) => drop(watch),
            Err(e) => assert!(!e.to_string().is_empty()),
        }
    }
}
