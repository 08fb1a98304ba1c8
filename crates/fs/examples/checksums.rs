//! Cost of the checksums of file data: CPU time of this thread for reads and writes of an encrypted
//! file system in memory, without them, with them, and with keyed ones, in turn.
//!
//! `cargo run --release -p evfs-fs --example checksums`

use block::{BlockDevice, Buf, Completion, Op, Request, Wait};
use block_testing::{Keyed, Mem};
use crypt::{CryptDevice, DataSegment};
use fs::{
    DataChecksums, FIRST_FILESET, FileId, FileRequest, FileType, Fs, FsPager, New, Options, Pager,
    PagerQueue, ROOT, Stamp,
};
use std::sync::Arc;
use xts::{SectorSize, Tweak, Xts};

const FILE_BYTES: u64 = 256 << 20;
const ROUNDS: usize = 9;
const SIDES: [DataChecksums; 3] = [DataChecksums::No, DataChecksums::Yes, DataChecksums::Keyed];

/// A device that encrypts with AES-256, as a new volume does.
fn encrypted() -> Arc<dyn BlockDevice> {
    let key: Vec<u8> = (0..64).collect();
    let segment = DataSegment {
        offset: 0,
        size: None,
        iv_tweak: Tweak::new(0),
    };
    let crypt = CryptDevice::new(
        Arc::new(Mem::new(3 * FILE_BYTES, 512)),
        Xts::new(&key, SectorSize::B4096).expect("a key"),
        segment,
        crypt::Options::default(),
    );
    Arc::new(Keyed::new(Arc::new(crypt.expect("a device")), 1))
}

struct Side {
    fs: Fs,
    pager: FsPager,
    queue: Box<PagerQueue>,
    ino: u64,
}

impl Side {
    fn new(checksums: DataChecksums) -> Side {
        let device = encrypted();
        Fs::format_with(Arc::clone(&device), "", checksums).expect("formatted");
        let fs = Fs::open(device, Options::default()).expect("open");
        let fileset = fs.fileset_named(FIRST_FILESET).expect("there");
        let new = New::of_root(FileType::File, 0o644);
        let ino = fileset.create(ROOT, b"file", &new).expect("made").ino;
        let pager = FsPager::new(&fileset).expect("a pager");
        let queue = pager.queue().expect("a queue");
        fileset
            .prepare_write(ino, 0..FILE_BYTES, Stamp::Change)
            .expect("there is room");
        let mut side = Side {
            fs,
            pager,
            queue,
            ino,
        };
        side.write(1 << 20, (0..FILE_BYTES >> 20).collect());
        side.fs.commit().expect("committed");
        side
    }

    fn run(&mut self, op: Op) -> Op {
        let request = Request { tag: 1, op };
        let file = FileId(self.ino);
        self.queue
            .submit(FileRequest { file, request })
            .expect("room");
        let mut done: Vec<Completion> = Vec::new();
        while done.is_empty() {
            self.queue.reap(Wait::Block, &mut done).expect("reaped");
        }
        let done = done.remove(0);
        done.result.expect("it succeeds");
        done.op
    }

    fn write(&mut self, len: usize, places: Vec<u64>) {
        for place in places {
            let offset = place * len as u64;
            let range = offset..offset + len as u64;
            self.pager
                .will_write(FileId(self.ino), range)
                .expect("room");
            let bufs = Buf::copy_of(&vec![place as u8; len]).into();
            self.run(Op::Write {
                offset,
                bufs,
                fua: false,
            });
        }
    }

    fn read(&mut self, len: usize, places: Vec<u64>) {
        let mut bufs = Some(Buf::zeroed(len).into());
        for place in places {
            let offset = place * len as u64;
            let op = Op::Read {
                offset,
                bufs: bufs.take().expect("returned"),
            };
            match self.run(op) {
                Op::Read { bufs: back, .. } => bufs = Some(back),
                _ => unreachable!("a read comes back as a read"),
            }
        }
    }
}

/// CPU time of this thread in microseconds.
fn cpu() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn main() {
    let mut sides = SIDES.map(Side::new);
    println!("microseconds of CPU: none; CRC; keyed");
    for (name, len, random) in [
        ("read 64 KiB in order", 64 << 10, false),
        ("read 4 KiB at random", 4 << 10, true),
        ("write 64 KiB in order", 64 << 10, false),
        ("write 4 KiB at random", 4 << 10, true),
    ] {
        let count = FILE_BYTES / len as u64;
        let many = count.min(8192);
        let (mut best, mut commits) = ([f64::MAX; SIDES.len()], [f64::MAX; SIDES.len()]);
        for round in 0..ROUNDS as u64 {
            for (side, (best, commit)) in sides.iter_mut().zip(best.iter_mut().zip(&mut commits)) {
                let place = |i: u64| {
                    if random {
                        (i * 40_503 + round * 977) % count
                    } else {
                        i
                    }
                };
                let places = (0..many).map(place).collect();
                let begun = cpu();
                if name.starts_with("read") {
                    side.read(len, places);
                } else {
                    side.write(len, places);
                }
                *best = best.min((cpu() - begun) / many as f64);
                let begun = cpu();
                side.fs.commit().expect("committed");
                *commit = commit.min((cpu() - begun) / many as f64);
            }
        }
        let more = |side: usize| (best[side] / best[0] - 1.0) * 100.0;
        println!(
            "{name}: {:.2}; {:.2} ({:+.0} %); {:.2} ({:+.0} %); commit {commits:.2?}",
            best[0],
            best[1],
            more(1),
            best[2],
            more(2)
        );
    }
}
