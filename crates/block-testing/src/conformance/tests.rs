//! Every device passes the suite, alone and stacked, and the suite detects faulty devices.

use super::*;
use crate::{
    Delay, DelayConfig, ErrorDevice, ErrorHandle, Mem, MemConfig, PowerCut, Rate, RateConfig,
};
use block::{BufPool, DeviceInfo, Result, Stats};
use std::os::fd::BorrowedFd;
use std::time::Duration;

fn mem() -> Arc<dyn BlockDevice> {
    Arc::new(Mem::new(16 << 20, 512))
}

fn small_delay(lower: Arc<dyn BlockDevice>) -> Delay {
    Delay::with(
        lower,
        DelayConfig {
            read: Duration::from_micros(50),
            write: Duration::from_micros(100),
            ..DelayConfig::default()
        },
    )
}

#[test]
fn mem_passes() {
    run(&mem);
    run_read_only(&|| Arc::new(Mem::new(SPAN, 512).read_only()));
}

#[test]
fn mem_passes_with_every_block_size_and_narrow_limits() {
    for block in [1024, 4096, 65536] {
        run(&|| Arc::new(Mem::new(16 << 20, block)));
    }
    for (capacity, max_transfer) in [(1, 4096), (3, 12_288), (5, 1 << 20)] {
        run(&|| {
            Arc::new(Mem::with(MemConfig {
                capacity,
                max_transfer,
                discard: capacity != 3,
                ..MemConfig::new(SPAN, 4096)
            }))
        });
    }
}

#[test]
fn error_passes_while_nothing_is_to_fail() {
    run(&|| Arc::new(ErrorDevice::new(mem()).0));
    run_read_only(&|| {
        let lower = Arc::new(Mem::new(SPAN, 4096).read_only());
        Arc::new(ErrorDevice::new(lower).0)
    });
}

#[test]
fn delay_passes() {
    run(&|| Arc::new(small_delay(mem())));
}

#[test]
fn rate_passes() {
    run(&|| Arc::new(Rate::new(mem(), Some(4 << 30), Some(1_000_000))));
    let config = RateConfig {
        bytes_per_s: Some(8 << 30),
        requests_per_s: None,
        burst: Duration::from_millis(1),
    };
    run(&|| Arc::new(Rate::with(mem(), config)));
}

#[test]
fn stats_passes() {
    run(&|| Arc::new(Stats::new(mem()).0));
}

#[test]
fn powercut_passes() {
    for block in [512, 4096] {
        run(&|| Arc::new(PowerCut::new(&Mem::new(SPAN, block))));
    }
}

/// Delay over stats over rate over error over `lower`.
fn tower(lower: Arc<dyn BlockDevice>) -> (Arc<dyn BlockDevice>, ErrorHandle) {
    let (error, handle) = ErrorDevice::new(lower);
    let rate = Rate::new(Arc::new(error), Some(16 << 30), None);
    let (stats, _) = Stats::new(Arc::new(rate));
    (Arc::new(small_delay(Arc::new(stats))), handle)
}

#[test]
fn stacked_devices_pass() {
    run(&|| tower(mem()).0);
    run(&|| tower(Arc::new(PowerCut::new(&Mem::new(SPAN, 4096)))).0);
    run_read_only(&|| tower(Arc::new(Mem::new(SPAN, 512).read_only())).0);
}

#[test]
fn failures_below_stay_where_they_belong() {
    run_with_errors(&|| {
        let (device, handle) = ErrorDevice::new(mem());
        (Arc::new(device), handle)
    });
    run_with_errors(&|| tower(mem()));
    run_with_errors(&|| {
        let config = MemConfig {
            capacity: 4,
            max_transfer: 16 << 10,
            ..MemConfig::new(SPAN, 4096)
        };
        tower(Arc::new(Mem::with(config)))
    });
}

#[test]
fn what_was_flushed_through_a_layer_survives_power_cuts() {
    let disk = Mem::new(SPAN, 512);
    run_with_power_cuts(&disk, &|lower| lower, 1, 300);
    run_with_power_cuts(&disk, &|lower| tower(lower).0, 2, 100);
}

/// A device with a deliberate fault.
struct Faulty {
    lower: Mem,
    info: DeviceInfo,
    fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    LosesACompletion,
    GivesOneTwice,
    ChangesTags,
    SwapsBuffers,
    TakesTooMany,
    ReadsStaleData,
    ZeroesANeighbour,
    IgnoresZeroes,
    ForgetsTheRange,
    ClearsDone,
    SwallowsErrors,
    IgnoresFlush,
}

impl BlockDevice for Faulty {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(FaultyQueue {
            lower: self.lower.queue()?,
            info: self.info.clone(),
            fault: self.fault,
            submitted: 0,
            excess: 0,
        }))
    }
}

struct FaultyQueue {
    lower: Box<dyn Queue>,
    info: DeviceInfo,
    fault: Fault,
    submitted: u64,
    excess: usize,
}

impl Queue for FaultyQueue {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn capacity(&self) -> usize {
        self.lower.capacity() - usize::from(self.fault == Fault::TakesTooMany)
    }

    fn in_flight(&self) -> usize {
        self.lower.in_flight() + self.excess
    }

    fn submit(&mut self, mut request: Request) -> std::result::Result<(), Request> {
        self.submitted += 1;
        match (self.fault, &mut request.op) {
            (Fault::ZeroesANeighbour, Op::WriteZeroes { offset, len, .. })
                if *len > 0 && *offset > 0 && *offset + *len < self.info.size =>
            {
                *len += u64::from(self.info.logical_block_size);
            }
            (Fault::IgnoresFlush, op @ Op::Flush) => {
                *op = Op::Read {
                    offset: 0,
                    bufs: Vec::new().into(),
                };
            }
            (Fault::IgnoresZeroes, op @ Op::WriteZeroes { unmap: true, .. }) => *op = Op::Flush,
            _ => {}
        }
        self.lower.submit(request)
    }

    fn kick(&mut self) -> Result<()> {
        self.lower.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        if self.fault == Fault::ClearsDone {
            done.clear();
        }
        let had = done.len();
        let mut count = self.lower.reap(wait, done)?;
        let odd = self.submitted.is_multiple_of(50);
        for completion in &mut done[had..] {
            match (self.fault, &mut completion.op) {
                (Fault::ChangesTags, _) if odd => completion.tag += 1,
                (Fault::SwapsBuffers, Op::Read { bufs, .. }) if odd => {
                    let lens: Vec<usize> = bufs.iter().map(|b| b.len()).collect();
                    let new: Vec<Buf> = lens.into_iter().map(Buf::zeroed).collect();
                    *bufs = new.into();
                }
                (Fault::ReadsStaleData, Op::Read { bufs, .. }) if odd => {
                    bufs.iter_mut().for_each(|b| b.fill(0xee));
                }
                (Fault::ForgetsTheRange, _) => {
                    let kind = completion.result.as_ref().err().map(|e| e.kind());
                    if let Some(kind) = kind {
                        completion.result = Err(block::Error::new(kind, "faulty", ""));
                    }
                }
                (Fault::SwallowsErrors, _) => completion.result = Ok(()),
                _ => {}
            }
        }
        if self.fault == Fault::LosesACompletion && odd && count > 0 {
            drop(done.pop());
            count -= 1;
            self.excess += 1;
        }
        if self.fault == Fault::GivesOneTwice && odd && count > 0 {
            let tag = done[had].tag;
            done.push(Completion {
                tag,
                op: Op::Flush,
                result: Ok(()),
            });
            count += 1;
        }
        Ok(count)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn register(&mut self, pool: &BufPool) {
        self.lower.register(pool);
    }
}

fn faulty(fault: Fault) -> Arc<dyn BlockDevice> {
    let lower = Mem::new(SPAN, 512);
    let info = lower.info().clone();
    Arc::new(Faulty { lower, info, fault })
}

#[test]
fn the_suite_finds_devices_that_are_wrong() {
    for fault in [
        Fault::LosesACompletion,
        Fault::GivesOneTwice,
        Fault::ChangesTags,
        Fault::SwapsBuffers,
        Fault::TakesTooMany,
        Fault::ReadsStaleData,
        Fault::ZeroesANeighbour,
        Fault::IgnoresZeroes,
        Fault::ForgetsTheRange,
        Fault::ClearsDone,
        Fault::SwallowsErrors,
    ] {
        let found = std::panic::catch_unwind(|| run(&|| faulty(fault)));
        assert!(found.is_err(), "{fault:?} was not found");
    }
}

/// A layer that completes flushes and FUA itself.
struct NoFlush(Arc<dyn BlockDevice>);

impl BlockDevice for NoFlush {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(FaultyQueue {
            lower: self.0.queue()?,
            info: self.0.info().clone(),
            fault: Fault::IgnoresFlush,
            submitted: 0,
            excess: 0,
        }))
    }
}

#[test]
fn the_suite_finds_a_layer_that_does_not_pass_flushes_on() {
    let layer = |lower: Arc<dyn BlockDevice>| Arc::new(NoFlush(lower)) as Arc<dyn BlockDevice>;
    let disk = Mem::new(SPAN, 512);
    let found = std::panic::catch_unwind(|| run_with_power_cuts(&disk, &layer, 1, 50));
    assert!(found.is_err(), "a lost flush was not found");
}
