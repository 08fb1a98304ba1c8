//! Measures what it costs to list dirty pages for a successor of the process.
//!
//! ```text
//!   survival_cost [rounds]
//! ```
//!
//! Prints the CPU time of a write of 4 KiB into the cache, with and without a table: to pages that are
//! absent, resident and clean, or dirty already. Both caches take turns, and each figure is the median
//! of the rounds.

use block::{Completion, Op, Queue, Request, Result, Wait};
use cache::{Cache, Config, FileId, FileRequest, Pager, PagerInfo, PagerQueue, Tree, Volume};
use rustix::time::{ClockId, clock_gettime};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use survival::Pages;

const PAGE: u64 = 4096;
/// Pages written in a round.
const PAGES: u64 = 8192;
const IDENTITY: [u8; 16] = [1; 16];

/// A pager that stores nothing.
struct Nothing(PagerInfo);

struct NothingQueue(PagerInfo, Vec<Completion>);

impl Pager for Nothing {
    fn info(&self) -> &PagerInfo {
        &self.0
    }

    fn queue(&self) -> Result<Box<PagerQueue>> {
        Ok(Box::new(NothingQueue(self.0.clone(), Vec::new())))
    }

    fn tree(&self) -> Option<Tree> {
        Some(Tree {
            file_system: IDENTITY,
            number: 1,
        })
    }
}

impl Queue<FileRequest, PagerInfo> for NothingQueue {
    fn info(&self) -> &PagerInfo {
        &self.0
    }

    fn capacity(&self) -> usize {
        64
    }

    fn in_flight(&self) -> usize {
        self.1.len()
    }

    fn submit(&mut self, request: FileRequest) -> std::result::Result<(), FileRequest> {
        let Request { tag, mut op } = request.request;
        if let Op::Read { bufs, .. } = &mut op {
            bufs.iter_mut().for_each(|buf| buf.fill(0));
        }
        let result = Ok(());
        self.1.push(Completion { tag, op, result });
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        Ok(())
    }

    fn reap(&mut self, _: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        let count = self.1.len();
        done.append(&mut self.1);
        Ok(count)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// State of the pages that are written to.
#[derive(Debug, Clone, Copy)]
enum Before {
    Absent,
    Clean,
    Dirty,
}

fn volume(lists: bool) -> (Arc<Cache>, Arc<Volume>) {
    let long = Duration::from_secs(3600);
    let mut config = Config {
        sync_interval: long,
        tick: long,
        dirty_background_percent: 80,
        dirty_throttle_percent: 80,
        ..Config::new(256 << 20)
    };
    if lists {
        let pages = Pages::create(config.frames(), IDENTITY).expect("a table");
        config.surviving = Some(pages);
    }
    let cache = Cache::new(config).expect("a cache");
    let info = PagerInfo {
        name: "nothing".into(),
        block_size: 4096,
        optimal_io_size: 1 << 20,
        max_transfer: 1 << 20,
        numa_node: None,
        read_only: false,
        discard: true,
        flushes_all: true,
    };
    let volume = cache.volume(Arc::new(Nothing(info))).expect("a volume");
    (cache, volume)
}

/// Returns the CPU time of a write in nanoseconds.
fn round(volume: &Volume, before: Before) -> f64 {
    let file = FileId(1);
    volume.forget(file);
    let mut session = volume.session().expect("a session");
    let mut open = volume.open(&volume.vnode(file, 0));
    let data = [7; PAGE as usize];
    let mut write_all = |session: &mut cache::Session| {
        for page in 0..PAGES {
            session
                .write(&mut open, page * PAGE, &data)
                .expect("written");
        }
    };
    if !matches!(before, Before::Absent) {
        write_all(&mut session);
    }
    if matches!(before, Before::Clean) {
        volume.write_out().expect("written");
    }
    let now = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
    };
    let began = now();
    write_all(&mut session);
    (now() - began) / PAGES as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let rounds = std::env::args().nth(1);
    let rounds = rounds.map_or(101, |n| n.parse().expect("a number of rounds"));
    let (without, with) = (volume(false), volume(true));
    for before in [Before::Absent, Before::Clean, Before::Dirty] {
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            old.push(round(&without.1, before));
            new.push(round(&with.1, before));
        }
        let (old, new) = (median(old), median(new));
        let more = (new / old - 1.0) * 100.0;
        println!("{before:?}: {old:.0} ns without a table, {new:.0} ns with one, {more:+.1} %");
    }
}
