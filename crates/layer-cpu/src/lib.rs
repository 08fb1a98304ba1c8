//! CPU time of each layer of this process, by a record of the layer in which each thread runs.
//!
//! ```text
//!   thread:  protocol ──► fs ──► cache ──► crypt ──► path ──► crypt ──► cache ──► ...
//!                      │      │        each arrow: the time since the last one is
//!                                      added to the layer that the thread leaves
//! ```
//!
//! **Invariant:** a nanosecond is counted once, for the innermost layer. Time outside of any layer
//! is in no counter, so the rest of the process is its total less the sum of the counters.
//!
//! A layer calls [`within`] at its entry points. Until [`count`] enables accounting, that costs two
//! stores to memory of the thread; afterwards it reads the thread's clock on entry and on exit,
//! which takes a few hundred nanoseconds, and more in virtual machines (`examples/cost.rs`
//! measures it).
//!
//! Deliberately absent: time spent waiting, which a thread's CPU clock does not include, and the
//! work of kernel threads.

use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A layer of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layer {
    /// Client protocols: FUSE, NBD, AFS.
    Protocol,
    /// Files and directories.
    Fs,
    /// Page cache.
    Cache,
    /// Encryption.
    Crypt,
    /// Disk I/O: paths and path selection.
    Path,
}

impl Layer {
    /// All layers from the top down, in the order of the counters that [`spent`] returns.
    pub const ALL: [Layer; 5] = [
        Layer::Protocol,
        Layer::Fs,
        Layer::Cache,
        Layer::Crypt,
        Layer::Path,
    ];

    /// Returns the name of the layer in reports.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Protocol => "protocol",
            Layer::Fs => "fs",
            Layer::Cache => "cache",
            Layer::Crypt => "crypt",
            Layer::Path => "path",
        }
    }
}

static COUNTING: AtomicBool = AtomicBool::new(false);
static SPENT: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];

/// The layer in which a thread runs.
#[derive(Clone, Copy)]
struct Here {
    layer: Option<Layer>,
    /// The thread's clock when it entered the layer; `None` if it has not been read.
    since: Option<u64>,
}

thread_local! {
    static HERE: Cell<Here> = const {
        Cell::new(Here {
            layer: None,
            since: None,
        })
    };
}

/// Guard that keeps the thread in a layer until it is dropped.
#[must_use = "the layer is left when this is dropped"]
pub struct LayerGuard(Option<Layer>);

impl Drop for LayerGuard {
    #[inline]
    fn drop(&mut self) {
        go(self.0);
    }
}

/// Enters a layer and returns a guard that leaves it again.
#[inline]
pub fn within(layer: Layer) -> LayerGuard {
    LayerGuard(go(Some(layer)))
}

/// Sets the layer of this thread for the time outside of any [`within`], for example for a thread
/// of a protocol server or a background thread of the cache.
pub fn home(layer: Layer) {
    go(Some(layer));
}

/// Switches the thread to another layer and returns the previous one.
#[inline]
fn go(to: Option<Layer>) -> Option<Layer> {
    HERE.with(|here| {
        let Here { layer, since } = here.get();
        let now = COUNTING.load(Relaxed).then(thread_ns);
        if let (Some(layer), Some(since), Some(now)) = (layer, since, now) {
            SPENT[layer as usize].fetch_add(now.saturating_sub(since), Relaxed);
        }
        here.set(Here {
            layer: to,
            since: now,
        });
        layer
    })
}

fn thread_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Enables accounting for the rest of this process.
pub fn count() {
    COUNTING.store(true, Relaxed);
}

/// Returns the nanoseconds of CPU time of each layer since [`count`], in the order of
/// [`Layer::ALL`]; `None` if accounting is not enabled. Time in a layer is added when the thread
/// leaves it.
pub fn spent() -> Option<[u64; 5]> {
    let counting = COUNTING.load(Relaxed);
    counting.then(|| SPENT.each_ref().map(|ns| ns.load(Relaxed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn burn(ns: u64) {
        let until = thread_ns() + ns;
        while thread_ns() < until {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn each_nanosecond_is_counted_once_for_the_innermost_layer() {
        const MS: u64 = 1_000_000;
        assert_eq!(spent(), None);
        let thread = std::thread::spawn(|| {
            home(Layer::Protocol);
            count();
            // The clock is not read before accounting is enabled.
            drop(within(Layer::Fs));
            burn(2 * MS);
            {
                let _cache = within(Layer::Cache);
                burn(3 * MS);
                let _crypt = within(Layer::Crypt);
                burn(5 * MS);
                drop(within(Layer::Path));
            }
            burn(MS);
            let before = thread_ns();
            // Leaves the protocol layer, so that its time is in the counter.
            let _fs = within(Layer::Fs);
            before
        });
        let all = thread.join().unwrap();
        let spent = spent().unwrap();
        let at_least = [3 * MS, 0, 3 * MS, 5 * MS, 0];
        for (layer, least) in at_least.into_iter().enumerate() {
            assert!(spent[layer] >= least, "{spent:?}");
        }
        assert!(spent.iter().sum::<u64>() <= all + MS, "{spent:?} of {all}");
    }
}
