//! Random reads of 4 KiB, or of the given size, from a LUN with a queue depth of 32. Prints
//! requests per second and the CPU time of this process per request.
//!
//! ```text
//!   cargo run --release -p evfs-path-iscsi --example randread -- iscsi://HOST:PORT/TARGET/LUN [SECONDS [BYTES]]
//! ```

use block::{Buf, Completion, Op, Request, Wait};
use block_testing::Random;
use lunpath::Lunpath;
use path_iscsi::{IscsiPath, Options};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

const DEPTH: u64 = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let uri = arguments.next().ok_or("randread URI [SECONDS [BYTES]]")?;
    let seconds: u64 = arguments.next().map_or(Ok(5), |s| s.parse())?;
    let bytes: usize = arguments.next().map_or(Ok(4096), |s| s.parse())?;
    let path = IscsiPath::parse(&uri, Options::default())?;
    let mut queue = path.connect(Duration::from_secs(10))?.open()?;
    let blocks = queue.info().size / bytes as u64;
    let mut random = Random::new(1);
    let mut place = || random.below(blocks) * bytes as u64;
    for tag in 0..DEPTH {
        let op = Op::Read {
            offset: place(),
            bufs: Buf::zeroed(bytes).into(),
        };
        queue
            .submit(Request { tag, op })
            .map_err(|_| "the queue is full")?;
    }
    let (started, cpu_before) = (Instant::now(), cpu_time());
    let (mut done, mut count) = (Vec::<Completion>::new(), 0u64);
    while started.elapsed() < Duration::from_secs(seconds) {
        queue.reap(Wait::Block, &mut done)?;
        for Completion {
            tag,
            mut op,
            result,
        } in done.drain(..)
        {
            result?;
            count += 1;
            if let Op::Read { offset, .. } = &mut op {
                *offset = place();
            }
            queue
                .submit(Request { tag, op })
                .map_err(|_| "the queue is full")?;
        }
    }
    let (time, cpu) = (started.elapsed().as_secs_f64(), cpu_time() - cpu_before);
    let n = count as f64;
    println!(
        "{:.0} IOPS, {:.2} us of processor time each, {:.0} IOPS per core",
        n / time,
        cpu * 1e6 / n,
        n / cpu
    );
    Ok(())
}

/// Returns the CPU time of this process in seconds.
fn cpu_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
