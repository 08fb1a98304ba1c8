use super::*;
use block::{ErrorKind, Failure, Mem, MemConfig, Random};

/// An engine over one device, run to the end after each request.
struct Bench {
    engine: Engine,
}

impl Bench {
    fn over(device: Arc<dyn BlockDevice>) -> Bench {
        Bench::sharing(0, device, &Arc::default())
    }

    fn sharing(worker: usize, device: Arc<dyn BlockDevice>, gate: &Arc<Gate>) -> Bench {
        let devices = [(device, Arc::clone(gate))];
        Bench {
            engine: Engine::open(worker, &devices, Arc::default()).unwrap(),
        }
    }

    fn payload(&mut self, data: &[u8]) -> Vec<Buf> {
        let landing = self.engine.landing().unwrap();
        for (buf, part) in landing.iter_mut().zip(data.chunks(BUF_BYTES)) {
            buf[..part.len()].copy_from_slice(part);
        }
        self.engine.landed(data.len())
    }

    fn run(&mut self) -> Outcome {
        let mut finished = Vec::new();
        while finished.is_empty() {
            self.engine.turn().unwrap();
            self.engine.take_finished(&mut finished);
        }
        assert_eq!(finished.len(), 1);
        finished.remove(0).outcome
    }

    fn write(&mut self, offset: u64, data: &[u8], durable: bool) -> Outcome {
        let content = Content::Bytes(self.payload(data));
        let range = (offset, data.len() as u64);
        self.engine.change(1, 0, range, content, durable);
        self.run()
    }

    fn zero(&mut self, offset: u64, len: u64) -> Outcome {
        let zeros = Content::Zeros { unmap: true };
        self.engine.change(1, 0, (offset, len), zeros, false);
        self.run()
    }

    fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        self.engine.landing().unwrap();
        self.engine.read(1, 0, offset, len);
        match self.run() {
            Outcome::Done => Vec::new(),
            Outcome::Data { parts, skip, len } => {
                let all: Vec<u8> = parts
                    .iter()
                    .flat_map(|(_, bufs)| bufs.iter())
                    .flat_map(|buf| buf.to_vec())
                    .collect();
                all[skip..skip + len].to_vec()
            }
            other => panic!("{other:?}"),
        }
    }
}

fn check_against_a_model(config: MemConfig, seed: u64) {
    println!("seed {seed}, {config:?}");
    let size = config.size as usize;
    let mut bench = Bench::over(Arc::new(Mem::with(config)));
    let mut model = vec![0u8; size];
    let mut random = Random::new(seed);
    for _ in 0..300 {
        let offset = random.below(size as u64);
        let longest = [10, 5000, TRANSFER_BYTES_MAX as u64][random.below(3) as usize];
        let len = (1 + random.below(longest)).min(size as u64 - offset) as usize;
        let range = offset as usize..offset as usize + len;
        match random.below(3) {
            0 => {
                let mut data = vec![0; len];
                random.fill(&mut data);
                let outcome = bench.write(offset, &data, random.below(2) == 0);
                assert!(matches!(outcome, Outcome::Written(n) if n as usize == len));
                model[range].copy_from_slice(&data);
            }
            1 => {
                assert!(matches!(bench.zero(offset, len as u64), Outcome::Done));
                model[range].fill(0);
            }
            _ => assert!(bench.read(offset, len as u32) == model[range]),
        }
    }
    for (index, part) in model.chunks(TRANSFER_BYTES_MAX).enumerate() {
        let at = (index * TRANSFER_BYTES_MAX) as u64;
        assert!(bench.read(at, TRANSFER_BYTES_MAX as u32) == part);
    }
    assert_eq!(bench.read(size as u64 - 3, 100).len(), 3);
    assert_eq!(bench.read(size as u64, 100).len(), 0);
    assert!(!bench.engine.is_busy());
    assert_eq!(bench.engine.pool.count(), BUFS);
}

#[test]
fn any_offset_and_length_agrees_with_a_plain_copy() {
    for (seed, block) in [(1, 512), (2, 4096)] {
        check_against_a_model(MemConfig::new(3 << 20, block), seed);
    }
}

#[test]
fn a_device_of_short_transfers_and_a_short_queue_is_served() {
    for (seed, block, max_transfer) in [(3, 512, 4096), (4, 4096, 4096), (5, 512, 192 * 1024)] {
        let config = MemConfig {
            max_transfer,
            capacity: 3,
            ..MemConfig::new(3 << 20, block)
        };
        check_against_a_model(config, seed);
    }
}

#[test]
fn a_failed_patch_leaves_the_gate_and_the_block_alone() {
    let mem = Arc::new(Mem::new(1 << 20, 4096));
    let (device, failing) = block::ErrorDevice::new(Arc::clone(&mem) as Arc<dyn BlockDevice>);
    failing.set(Some(Failure::nth(1, ErrorKind::Media)));
    let mut bench = Bench::over(Arc::new(device));
    assert!(matches!(bench.write(1, b"x", false), Outcome::Failed(_)));
    assert_eq!(mem.to_vec(), vec![0; 1 << 20]);
    assert!(matches!(bench.write(1, b"x", false), Outcome::Written(1)));
    assert_eq!(bench.read(0, 3), b"\0x\0");
}

#[test]
fn a_patch_of_another_thread_waits_and_is_told_when_it_may_go_in() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(1 << 20, 4096));
    let gate = Arc::default();
    let mut one = Bench::sharing(0, Arc::clone(&device), &gate);
    let mut two = Bench::sharing(1, device, &gate);
    let whole = one.payload(&[1; 4096]);
    one.engine
        .change(1, 0, (0, 4096), Content::Bytes(whole), false);
    let patch = two.payload(&[2; 3]);
    two.engine
        .change(2, 0, (10, 3), Content::Bytes(patch), false);
    assert!(!two.engine.turn().unwrap());
    assert!(matches!(one.run(), Outcome::Written(4096)));
    let granted = one.engine.take_granted();
    assert_eq!(granted.len(), 1);
    assert_eq!(granted[0].worker, 1);
    two.engine.enter(granted[0].slot);
    assert!(matches!(two.run(), Outcome::Written(3)));
    assert_eq!(one.read(9, 5), [1, 2, 2, 2, 1]);
}
