//! Hits: 4 KiB copied, and 8 bytes read from a borrowed page.

use crate::Args;
use crate::peers::{self, Cached, Foyer, Moka, PAGE, word};
use crate::rounds::{Arm, in_threads, interleave, thread_ns};
use crate::table::Table;
use block::Buf;
use block_testing::{Mem, Random};
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes of resident pages that the hits are spread over.
const RESIDENT: usize = 256 << 20;
const PAGES: u64 = (RESIDENT / PAGE) as u64;
/// Operations of a variant in a round, in each thread.
const OPS: usize = 50_000;

/// All caches and memories that hold the pages.
struct Holders {
    cached: Cached,
    memory: Buf,
    kernel: File,
    foyer: Foyer,
    moka: Moka,
}

pub fn run(args: &Args) -> Vec<Table> {
    let holders = Holders {
        cached: Cached::over(
            Arc::new(Mem::new(RESIDENT as u64, 4096)),
            2 * RESIDENT as u64,
        ),
        memory: peers::memory(RESIDENT),
        kernel: peers::kernel_file(&args.dir, RESIDENT as u64),
        foyer: peers::foyer(2 * PAGES as usize, foyer_memory::S3FifoConfig::default()),
        moka: peers::moka(2 * PAGES as usize),
    };
    holders.cached.fill();
    for page in 0..PAGES {
        holders.foyer.insert(page, peers::a_page());
        holders.moka.insert(page, peers::a_page());
    }
    holders.moka.run_pending_tasks();
    let mut tables = Vec::new();
    for threads in [1, 2] {
        tables.push(borrowed(&holders, args.rounds, threads));
        tables.push(copied(&holders, args.rounds, threads));
    }
    tables
}

/// Order in which accesses choose their pages.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// Random: the CPU executes several accesses at once.
    Random,
    /// Random, and dependent on the result of the previous access.
    Chained,
    Sequential,
}

impl Order {
    const ALL: [Order; 3] = [Order::Random, Order::Chained, Order::Sequential];

    fn name(self) -> &'static str {
        match self {
            Order::Random => "random",
            Order::Chained => "random, each waits for the last",
            Order::Sequential => "sequential",
        }
    }
}

/// Measures the CPU time of [`OPS`] accesses, each of which returns 8 bytes of a page, in
/// nanoseconds per access.
fn cost(order: Order, seed: u64, begin: &dyn Fn(), mut act: impl FnMut(u64) -> u64) -> f64 {
    let mut random = Random::new(seed);
    let (mut given, mut next) = (0, seed % PAGES);
    begin();
    let started = thread_ns();
    for _ in 0..OPS {
        let page = match order {
            Order::Random => random.below(PAGES),
            Order::Chained => (random.next_u64() ^ given) % PAGES,
            Order::Sequential => {
                next = (next + 1) % PAGES;
                next
            }
        };
        given = act(page);
        black_box(given);
    }
    (thread_ns() - started) as f64 / OPS as f64
}

/// Creates a variant that runs `act` in threads; `make` prepares the state of a thread.
fn arm<'a, A: FnMut(u64) -> u64>(
    name: String,
    against: usize,
    threads: usize,
    order: Order,
    make: impl Fn() -> A + Sync + 'a,
) -> Arm<'a> {
    Arm::new(name, against, move |round| {
        in_threads(threads, |thread, begin| {
            let act = make();
            cost(order, round * 64 + thread as u64, begin, act)
        })
    })
}

fn borrowed(holders: &Holders, rounds: usize, threads: usize) -> Table {
    let Holders {
        cached,
        memory,
        foyer,
        moka,
        ..
    } = holders;
    let mut arms = Vec::new();
    for order in Order::ALL {
        let base = arms.len();
        let name = |what: &str| format!("{what}, {}", order.name());
        arms.push(arm(name("raw pointer"), base, threads, order, || {
            |page| word(&memory[page as usize * PAGE..])
        }));
        arms.push(arm(name("this cache"), base, threads, order, || {
            let (_, mut open) = cached.open();
            move |page| word(&open.page(page).expect("it is there"))
        }));
        arms.push(arm(name("foyer, S3-FIFO"), base, threads, order, || {
            |page| word(&foyer.get(&page).expect("it is there").value()[..])
        }));
        arms.push(arm(name("moka"), base, threads, order, || {
            |page| word(&moka.get(&page).expect("it is there")[..])
        }));
    }
    let costs = interleave(&mut arms, rounds);
    let title = format!("8 bytes of a borrowed page, {threads} thread(s)");
    Table::of_arms(title, "ns", &arms, &costs)
}

fn copied(holders: &Holders, rounds: usize, threads: usize) -> Table {
    let Holders {
        cached,
        memory,
        kernel,
        foyer,
        moka,
    } = holders;
    let mut arms = Vec::new();
    for order in Order::ALL {
        let base = arms.len();
        let name = |what: &str| format!("{what}, {}", order.name());
        // Aligned like the buffers of the data path: the relative alignment of source and
        // destination of a copy changes its cost by more than all differences measured here.
        let buffer = || Buf::zeroed(PAGE);
        arms.push(arm(name("memcpy"), base, threads, order, move || {
            let mut out = buffer();
            move |page| copy(&mut out, &memory[page as usize * PAGE..][..PAGE])
        }));
        arms.push(arm(name("this cache"), base, threads, order, move || {
            let ((mut session, mut open), mut out) = (cached.open(), buffer());
            move |page| {
                let at = page * PAGE as u64;
                session.read(&mut open, at, &mut out).expect("it is there");
                word(&out)
            }
        }));
        arms.push(arm(
            name("pread, kernel"),
            base,
            threads,
            order,
            move || {
                let mut out = buffer();
                move |page| {
                    let at = page * PAGE as u64;
                    kernel.read_exact_at(&mut out, at).expect("it is there");
                    word(&out)
                }
            },
        ));
        arms.push(arm(
            name("foyer, S3-FIFO"),
            base,
            threads,
            order,
            move || {
                let mut out = buffer();
                move |page| {
                    copy(
                        &mut out,
                        &foyer.get(&page).expect("it is there").value()[..],
                    )
                }
            },
        ));
        arms.push(arm(name("moka"), base, threads, order, move || {
            let mut out = buffer();
            move |page| copy(&mut out, &moka.get(&page).expect("it is there")[..])
        }));
    }
    let costs = interleave(&mut arms, rounds);
    let title = format!("4 KiB copied out, {threads} thread(s)");
    Table::of_arms(title, "ns", &arms, &costs)
}

#[inline]
fn copy(out: &mut [u8], page: &[u8]) -> u64 {
    out.copy_from_slice(black_box(page));
    word(black_box(out))
}
