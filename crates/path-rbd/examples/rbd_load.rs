//! Reads or writes an image in sequence through the path, and prints the CPU time that it took.
//!
//! Usage: `rbd_load ADDRESS read|write BLOCK_BYTES DEPTH TOTAL_BYTES clear|encrypted`. With
//! `encrypted`, the thread also runs the cipher of a volume over all data, as `crypt` does: from the
//! buffers of the caller to others before a write, in place after a read.
//!
//! Prints `CPU_SECONDS_PER_GIB SECONDS`: the time of the process, and of the wall.

use block::{Buf, Op, Request, Wait};
use lunpath::Lunpath;
use path_rbd::{Options, RbdPath};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};
use xts::{SectorSize, Tweak, Xts};

/// Size in bytes of the unit in which tweaks count.
const UNIT: u64 = 512;

fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, direction, block, depth, total, cipher] = &args[..] else {
        panic!("ADDRESS read|write BLOCK_BYTES DEPTH TOTAL_BYTES clear|encrypted");
    };
    let number = |text: &str| -> u64 { text.parse().expect("a number") };
    let (block, depth, total) = (number(block), number(depth), number(total));
    let writes = direction == "write";
    let xts = (cipher == "encrypted").then(|| {
        let key: Vec<u8> = (0..64).collect();
        Xts::new(&key, SectorSize::B4096).expect("a key")
    });
    let path = RbdPath::parse(address, Options::default()).expect("an address");
    let connection = path.connect(Duration::from_secs(60)).expect("the cluster");
    let size = connection.info().size;
    let mut queue = connection.open().expect("a queue");
    let plain = vec![0x5a; block as usize];
    let mut spare: Vec<Buf> = (0..depth).map(|_| Buf::zeroed(block as usize)).collect();
    let (started, before) = (Instant::now(), cpu());
    let (mut next, mut ended) = (0, 0);
    let mut done = Vec::new();
    while ended < total {
        while next < total
            && let Some(mut buf) = spare.pop()
        {
            let offset = next % size;
            next += block;
            if let (true, Some(xts)) = (writes, &xts) {
                xts.encrypt_to(Tweak::new(offset / UNIT), &plain, &mut buf);
            }
            let bufs = buf.into();
            let op = if writes {
                let fua = false;
                Op::Write { offset, bufs, fua }
            } else {
                Op::Read { offset, bufs }
            };
            queue.submit(Request { tag: offset, op }).expect("room");
        }
        queue.reap(Wait::Block, &mut done).expect("completions");
        for completion in done.drain(..) {
            completion.result.expect("no error");
            let (Op::Read { bufs, .. } | Op::Write { bufs, .. }) = completion.op else {
                unreachable!("only reads and writes are submitted")
            };
            let mut buf = bufs.into_first().expect("its buffer");
            if let (false, Some(xts)) = (writes, &xts) {
                xts.decrypt(Tweak::new(completion.tag / UNIT), &mut buf);
            }
            spare.push(buf);
            ended += block;
        }
    }
    let gib = total as f64 / f64::from(1 << 30);
    let (used, took) = ((cpu() - before) / gib, started.elapsed().as_secs_f64());
    println!("{used:.3} {took:.2}");
}
