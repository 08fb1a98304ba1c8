//! Checksums that a device computes while it encrypts.
//!
//! Goal: they are those that the file system computes itself, whatever the lengths of requests and
//! buffers, and a difference is noticed. Method: a device above the one that encrypts counts the
//! blocks whose checksums come back, or takes the question away.

mod common;

use block::{
    BlockDevice, BufPool, Completion, DeviceInfo, Op, Queue, Request, SUM_BLOCK_BYTES, Wait,
};
use block_testing::{Mem, Random};
use common::client::Client;
use common::{assert_clean, format_with, open, seed};
use crypt::{CryptDevice, DataSegment};
use fs::{DataChecksums, Fs};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use xts::{SectorSize, Tweak, Xts};

const BLOCK: u64 = SUM_BLOCK_BYTES as u64;
/// One more than the blocks of two groups.
const BLOCKS_MAX: u64 = 33;

/// Device that counts the blocks that were transferred with checksums, or passes no question on.
struct Probe {
    lower: Arc<dyn BlockDevice>,
    counted: Arc<AtomicU64>,
    passes: bool,
}

struct ProbeQueue {
    lower: Box<dyn Queue>,
    counted: Arc<AtomicU64>,
    passes: bool,
}

impl BlockDevice for Probe {
    fn info(&self) -> &DeviceInfo {
        self.lower.info()
    }

    fn queue(&self) -> block::Result<Box<dyn Queue>> {
        Ok(Box::new(ProbeQueue {
            lower: self.lower.queue()?,
            counted: Arc::clone(&self.counted),
            passes: self.passes,
        }))
    }
}

impl Queue for ProbeQueue {
    fn info(&self) -> &DeviceInfo {
        self.lower.info()
    }

    fn capacity(&self) -> usize {
        self.lower.capacity()
    }

    fn in_flight(&self) -> usize {
        self.lower.in_flight()
    }

    fn submit(&mut self, mut request: Request) -> Result<(), Request> {
        if let Op::Read { bufs, .. } | Op::Write { bufs, .. } = &mut request.op
            && !self.passes
        {
            bufs.take_sums();
        }
        self.lower.submit(request)
    }

    fn kick(&mut self) -> block::Result<()> {
        self.lower.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> block::Result<usize> {
        let before = done.len();
        let reaped = self.lower.reap(wait, done)?;
        for done in &done[before..] {
            if let Op::Read { bufs, .. } | Op::Write { bufs, .. } = &done.op
                && bufs.summer().is_some()
                && !bufs.is_asking()
            {
                self.counted
                    .fetch_add(bufs.total_len() as u64 / BLOCK, Relaxed);
            }
        }
        Ok(reaped)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.lower.wait_fd()
    }

    fn register(&mut self, pool: &BufPool) {
        self.lower.register(pool);
    }
}

/// A device that encrypts, below a probe. The data begins 4 KiB behind the start of `mem`.
fn probed(mem: &Arc<Mem>, passes: bool) -> (Arc<dyn BlockDevice>, Arc<AtomicU64>) {
    let key: Vec<u8> = (0..64).collect();
    let segment = DataSegment {
        offset: BLOCK,
        size: None,
        iv_tweak: Tweak::new(0),
    };
    let xts = Xts::new(&key, SectorSize::B4096).expect("a key");
    let lower: Arc<dyn BlockDevice> = mem.clone();
    let crypt = CryptDevice::new(lower, xts, segment, crypt::Options::default());
    let counted = Arc::new(AtomicU64::new(0));
    let probe = Probe {
        lower: Arc::new(crypt.expect("a device")),
        counted: Arc::clone(&counted),
        passes,
    };
    (Arc::new(probe), counted)
}

fn content(blocks: u64) -> Vec<u8> {
    let mut content = vec![0; (blocks * BLOCK) as usize];
    Random::new(blocks).fill(&mut content);
    content
}

/// Reads the file of each length as a whole; `None` is an error.
fn read_all(fs: &Fs) -> Vec<Option<Vec<u8>>> {
    let mut client = Client::of_first(fs);
    let mut read = |blocks: u64| {
        let name = format!("{blocks}");
        let ino = client.fileset.lookup(fs::ROOT, name.as_bytes());
        let ino = ino.expect("there").ino;
        let read = client.read(ino, 0, blocks * BLOCK);
        read.map_err(|errno| assert_eq!(errno, libc::EIO)).ok()
    };
    (1..=BLOCKS_MAX).map(&mut read).collect()
}

fn checksums_of_a_device(checksums: DataChecksums) {
    let mem = Arc::new(Mem::new(24 << 20, 512));
    let (device, counted) = probed(&mem, true);
    format_with(&device, checksums);
    let fs = open(&device);
    let mut client = Client::of_first(&fs);
    let mut random = Random::new(seed(1));
    for blocks in 1..=BLOCKS_MAX {
        let ino = client.create(format!("{blocks}").as_bytes());
        client.write(ino, 0, &content(blocks)).expect("written");
        client.fsync(ino, &mut random).expect("synced");
    }
    drop(client);
    let total = (1..=BLOCKS_MAX).sum::<u64>();
    assert_eq!(counted.swap(0, Relaxed), total, "all that was written");
    let expected: Vec<_> = (1..=BLOCKS_MAX).map(|n| Some(content(n))).collect();
    assert!(read_all(&fs) == expected);
    assert_eq!(counted.load(Relaxed), total, "all that was read");
    assert_eq!(assert_clean(&fs, "computed by the device"), 0);
    fs.close().expect("closed");

    // Without the device's help, the same checksums.
    let (deaf, counted) = probed(&mem, false);
    let fs = open(&deaf);
    assert!(read_all(&fs) == expected);
    assert_eq!((counted.load(Relaxed), fs.checksum_mismatches()), (0, 0));
    fs.close().expect("closed");

    // A bit of each block of the device that may hold data.
    let fs = open(&device);
    let superblock = fs.superblock();
    let in_metadata = |block: u64| {
        let mut segments = superblock.segments.iter();
        segments.any(|s| (s.start..s.start + u64::from(s.blocks)).contains(&block))
    };
    let first = superblock.journal_start + superblock.journal_blocks;
    let blocks = first..superblock.device_blocks;
    for block in blocks.filter(|block| !in_metadata(*block)) {
        let mut data = [0; SUM_BLOCK_BYTES];
        // The segment of data begins one block later.
        mem.peek((block + 1) * BLOCK, &mut data);
        data[random.below(BLOCK) as usize] ^= 1 << random.below(8);
        mem.poke((block + 1) * BLOCK, &data);
    }
    assert!(read_all(&fs).iter().all(Option::is_none));
    assert!(fs.checksum_mismatches() > 0);
}

#[test]
fn a_device_that_encrypts_computes_the_crcs_of_all_it_transfers() {
    checksums_of_a_device(DataChecksums::Yes);
}

#[test]
fn a_device_that_encrypts_computes_the_keyed_checksums_of_all_it_transfers() {
    checksums_of_a_device(DataChecksums::Keyed);
}
