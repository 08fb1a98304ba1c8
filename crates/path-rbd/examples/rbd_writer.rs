//! Takes the exclusive lock of an image, and overwrites its first blocks until a write fails.
//!
//! Usage: `rbd_writer ADDRESS BLOCKS BYTE`. Prints the number of its client once it has overwritten
//! all blocks, and the error of the first write that fails.

use block::{Buf, Op, Queue, Request, Wait};
use lunpath::Lunpath;
use path_rbd::{Options, RbdPath};
use std::io::Write;
use std::time::Duration;

/// Size of a block in bytes.
const BLOCK: usize = 4096;
/// Writes in flight.
const DEPTH: u64 = 32;

fn main() {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().expect("ADDRESS BLOCKS BYTE");
    let (address, blocks, byte) = (next(), next(), next());
    let blocks: u64 = blocks.parse().expect("a number of blocks");
    let byte: u8 = byte.parse().expect("a byte");
    let path = RbdPath::parse(&address, Options::default()).expect("an address");
    let connection = path.connect(Duration::from_secs(60)).expect("the cluster");
    let key = connection.fence_key().expect("a client that can be fenced");
    let mut queue = connection.open().expect("a queue");
    let submit = |queue: &mut dyn Queue, number: u64| {
        let mut buf = Buf::zeroed(BLOCK);
        buf.fill(byte);
        let op = Op::Write {
            offset: number % blocks * BLOCK as u64,
            bufs: buf.into(),
            fua: false,
        };
        queue.submit(Request { tag: number, op }).expect("room");
    };
    for number in 0..DEPTH {
        submit(&mut *queue, number);
    }
    let (mut sent, mut ended) = (DEPTH, 0);
    let mut done = Vec::new();
    loop {
        queue.reap(Wait::Block, &mut done).expect("completions");
        for completion in done.drain(..) {
            if let Err(error) = completion.result {
                println!("{error}");
                return;
            }
            ended += 1;
            if ended == blocks {
                println!("{key}");
                std::io::stdout().flush().expect("the reader waits");
            }
            submit(&mut *queue, sent);
            sent += 1;
        }
    }
}
