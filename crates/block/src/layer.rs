//! Which layer a thread works in, and what CPU each layer of this process has taken.
//!
//! ```text
//!   thread:  protocol ──► fs ──► cache ──► crypt ──► path ──► crypt ──► cache ──► ...
//!                      │      │        each turn: what the clock went on belongs to the layer that is left
//! ```
//!
//! **Invariant:** a nanosecond is counted once, for the innermost layer; what nobody has claimed is in no counter,
//! so that the rest of the process is the whole less their sum.
//!
//! A layer says [`within`] where others call it. Until somebody asks for figures with [`count`], that is two
//! stores to memory of the thread; afterwards the thread's clock is read at both ends, a few hundred
//! nanoseconds, and more in virtual machines (`examples/layer.rs` measures it).
//!
//! Absent on purpose: time spent waiting, which the clock of a thread leaves out, and work of kernel threads.

use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A layer of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layer {
    /// Requests of clients as bytes: FUSE, NBD, AFS.
    Protocol,
    /// Files and directories.
    Fs,
    /// Pages in memory.
    Cache,
    /// The cipher.
    Crypt,
    /// What reaches a disk, its paths and the choice among them.
    Path,
}

impl Layer {
    /// All of them, from the top down; their places are those of [`spent`].
    pub const ALL: [Layer; 5] = [
        Layer::Protocol,
        Layer::Fs,
        Layer::Cache,
        Layer::Crypt,
        Layer::Path,
    ];

    /// Its name in reports.
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

/// Where a thread is.
#[derive(Clone, Copy)]
struct Here {
    layer: Option<Layer>,
    /// The thread's clock when it came there; `None` until it is first read.
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

/// The thread is in a layer until this goes.
#[must_use = "the layer is left when this is dropped"]
pub struct Within(Option<Layer>);

impl Drop for Within {
    fn drop(&mut self) {
        go(self.0);
    }
}

/// Enters a layer.
pub fn within(layer: Layer) -> Within {
    Within(go(Some(layer)))
}

/// Says where this thread is when it is within nothing else: a thread of a protocol's server, of a cache's
/// background.
pub fn home(layer: Layer) {
    go(Some(layer));
}

/// Goes to a layer; gives the one that was left.
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

/// Begins to count, for the rest of this process.
pub fn count() {
    COUNTING.store(true, Relaxed);
}

/// Nanoseconds of CPU of each layer since [`count`], in the order of [`Layer::ALL`]; `None` where nobody asked
/// for them. What a thread does in a layer is in it from when it leaves that layer.
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
            // Nothing was read before it was asked for.
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
            // Leaves the protocol, so that what it took is in the counter.
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
