//! A huge device that is sparsely used takes memory in proportion to its use. Alone in its program,
//! because it queries the memory of the process.

mod common;

use block::{Completion, Op, Queue, Request, Result, Wait};
use block_testing::Random;
use cache::{Cache, Config, FileId, FileRequest, Pager, PagerInfo, PagerQueue};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

const SIZE: u64 = 10 << 40;

/// A file of 10 TiB that holds zeros.
struct Nothing(PagerInfo);

struct NothingQueue(PagerInfo, Vec<Completion>);

impl Pager for Nothing {
    fn info(&self) -> &PagerInfo {
        &self.0
    }

    fn queue(&self) -> Result<Box<PagerQueue>> {
        Ok(Box::new(NothingQueue(self.0.clone(), Vec::new())))
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
            bufs.iter_mut().for_each(|b| b.fill(0));
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

/// Returns the resident memory of the process in bytes, including the pool.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn memory_of_the_process_follows_the_pages_in_use() {
    let before = resident();
    // Room for much more than will be used: reserved address space takes no memory.
    let cache = Cache::new(Config {
        reserve_bytes: 64 << 30,
        min_bytes: 1 << 20,
        ..Config::new(1 << 30)
    });
    let cache = cache.unwrap();
    let info = PagerInfo {
        name: "nothing".into(),
        block_size: 512,
        optimal_io_size: 65536,
        max_transfer: 1 << 20,
        numa_node: None,
        read_only: false,
        discard: false,
        flushes_all: false,
    };
    let volume = cache.volume(Arc::new(Nothing(info))).unwrap();
    let vnode = volume.vnode(FileId(0), SIZE);
    let mut session = volume.session().unwrap();
    let mut open = volume.open(&vnode);
    let mut random = Random::new(1);
    let idle = resident() - before;
    println!("a cache without pages: {} KiB", idle >> 10);
    assert!(idle <= 8 << 20, "{idle} bytes before the first page");
    for pages in [1024u64, 4096, 16384] {
        while cache.stats().used_bytes < pages * 4096 {
            let at = random.below(SIZE - 8);
            session.read(&mut open, at, &mut [1; 8]).unwrap();
        }
        let took = resident() - before - idle;
        let stats = cache.stats();
        println!(
            "{pages} pages: {} KiB, index {} KiB",
            took >> 10,
            stats.index_bytes >> 10
        );
        // A page, a leaf of its own and its slot in the index, the policy's part, and a chunk and a
        // half that is not full.
        assert!(
            took <= pages * (4096 + 576 + 512) + (3 << 20),
            "{took} bytes: {stats:?}"
        );
    }
    // With little room, pages all over the device are loaded and evicted, including dirty ones.
    const ROOM: u64 = 4 << 20;
    cache.set_max_bytes(ROOM);
    for round in 0..50_000u64 {
        let at = random.below(SIZE - 8);
        let mut out = [1; 8];
        session.read(&mut open, at, &mut out).unwrap();
        assert_eq!(out, [0; 8]);
        if round % 16 == 0 {
            session.write(&mut open, at, &[2; 8]).unwrap();
        }
    }
    common::until("memory goes back", || cache.stats().resident_bytes <= ROOM);
    let stats = cache.stats();
    // Leaves are kept for reuse, so the index never shrinks.
    assert!(stats.index_bytes <= 2 * 16384 * 576, "{stats:?}");
    assert!(
        vnode.stats().leaves as u64 <= ROOM / 4096,
        "{:?}",
        vnode.stats()
    );
    assert!(resident() - before - idle <= ROOM + stats.index_bytes + (16 << 20));
}
