//! A disk that outlives the process that uses it, and a pager on it.

use block::{Completion, Error, ErrorKind, Op, Queue, Request, Result, Wait};
use block_testing::Random;
use cache::{FileId, FileRequest, Pager, PagerInfo, PagerQueue, Tree};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use survival::Memory;

pub const PAGE: usize = 4096;
const PAGE_WORDS: usize = PAGE / 8;
pub const FILES: usize = 4;
pub const FILE_PAGES: usize = 128;

/// Words of [`Disk`]: what is known of each file, the operations that each writer has completed, and
/// whether the writers have begun; then the pages.
pub const KNOWN: usize = 0;
pub const DONE: usize = FILES;
pub const BEGUN: usize = 2 * FILES;
/// Number of writes that the pager was given.
pub const WRITES: usize = 2 * FILES + 1;
pub const STORED: usize = 64;

/// A disk that outlives the process: files, their sizes, and the progress of the writers.
pub struct Disk {
    memory: Memory,
    /// Held while the pages of a file change.
    changing: [Mutex<()>; FILES],
}

/// What a file system would have recorded about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// Number of files that were removed from this place.
    pub removed: u64,
    pub size: u64,
}

impl Known {
    pub fn file(self, place: usize) -> FileId {
        FileId(self.removed * FILES as u64 + place as u64)
    }
}

impl Disk {
    pub fn create() -> Disk {
        let words = STORED + FILES * FILE_PAGES * PAGE_WORDS;
        Disk {
            memory: Memory::create("evfs-test", words).unwrap(),
            changing: Default::default(),
        }
    }

    pub fn word(&self, index: usize) -> &AtomicU64 {
        &self.memory.words()[index]
    }

    fn change(&self, place: usize) -> MutexGuard<'_, ()> {
        self.changing[place].lock().unwrap()
    }

    pub fn known(&self, place: usize) -> Known {
        let word = self.word(KNOWN + place).load(SeqCst);
        Known {
            removed: word >> 32,
            size: word & u64::from(u32::MAX),
        }
    }

    pub fn set_known(&self, place: usize, known: Known) {
        let word = known.removed << 32 | known.size;
        self.word(KNOWN + place).store(word, SeqCst);
    }

    /// Records a smaller size, or a new file, and frees the blocks behind the end.
    pub fn cut(&self, place: usize, known: Known) {
        let _changing = self.change(place);
        self.set_known(place, known);
        let keep = known.size as usize;
        for page in keep / PAGE..FILE_PAGES {
            let mut bytes = self.page(place, page);
            bytes[keep.saturating_sub(page * PAGE).min(PAGE)..].fill(0);
            self.set_page(place, page, &bytes);
        }
    }

    pub fn page(&self, place: usize, page: usize) -> [u8; PAGE] {
        let mut bytes = [0; PAGE];
        let first = STORED + (place * FILE_PAGES + page) * PAGE_WORDS;
        for (part, index) in bytes.chunks_exact_mut(8).zip(first..) {
            part.copy_from_slice(&self.word(index).load(SeqCst).to_ne_bytes());
        }
        bytes
    }

    fn set_page(&self, place: usize, page: usize, bytes: &[u8]) {
        let first = STORED + (place * FILE_PAGES + page) * PAGE_WORDS;
        for (part, index) in bytes.chunks_exact(8).zip(first..) {
            let word = u64::from_ne_bytes(part.try_into().unwrap());
            self.word(index).store(word, SeqCst);
        }
    }

    fn serve(&self, file: FileId, op: &mut Op) {
        let place = file.0 as usize % FILES;
        let _changing = self.change(place);
        let known = self.known(place);
        let exists = known.file(place) == file;
        match op {
            Op::Read { offset, bufs } => {
                let parts = bufs.iter_mut().flat_map(|buf| buf.chunks_exact_mut(PAGE));
                for (page, part) in (*offset as usize / PAGE..).zip(parts) {
                    let bytes = if exists && page < FILE_PAGES {
                        self.page(place, page)
                    } else {
                        [0; PAGE]
                    };
                    part.copy_from_slice(&bytes);
                }
            }
            Op::Write { offset, bufs, .. } if exists => {
                let parts = bufs.iter().flat_map(|buf| buf.chunks_exact(PAGE));
                for (page, part) in (*offset as usize / PAGE..).zip(parts) {
                    let mut bytes: [u8; PAGE] = part.try_into().unwrap();
                    let keep = (known.size as usize).saturating_sub(page * PAGE).min(PAGE);
                    bytes[keep..].fill(0);
                    if keep > 0 {
                        self.set_page(place, page, &bytes);
                    }
                }
            }
            _ => {}
        }
    }
}

/// A pager that answers late and sometimes fails.
pub struct Late {
    disk: Arc<Disk>,
    pub info: PagerInfo,
    tree: Option<Tree>,
    /// The longest time until an answer.
    pub latest: Duration,
}

impl Late {
    pub fn new(disk: &Arc<Disk>, tree: Option<Tree>) -> Late {
        Late {
            disk: Arc::clone(disk),
            info: PagerInfo {
                name: "late".into(),
                block_size: 4096,
                optimal_io_size: 4096,
                max_transfer: 1 << 20,
                numa_node: None,
                read_only: false,
                discard: true,
                flushes_all: true,
            },
            tree,
            latest: Duration::from_micros(1500),
        }
    }
}

impl Pager for Late {
    fn info(&self) -> &PagerInfo {
        &self.info
    }

    fn queue(&self) -> Result<Box<PagerQueue>> {
        Ok(Box::new(LateQueue {
            disk: Arc::clone(&self.disk),
            info: self.info.clone(),
            random: Random::new(std::process::id().into()),
            latest: self.latest,
            timer: timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK).unwrap(),
            requests: Vec::new(),
        }))
    }

    fn tree(&self) -> Option<Tree> {
        self.tree
    }
}

struct LateQueue {
    disk: Arc<Disk>,
    info: PagerInfo,
    random: Random,
    latest: Duration,
    /// Expires when the first request is due.
    timer: OwnedFd,
    requests: Vec<(Instant, FileRequest)>,
}

impl LateQueue {
    fn left(&self) -> Option<Duration> {
        let first = self.requests.iter().map(|(due, _)| *due).min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }

    fn set_timer(&self) {
        let left = self.left().map_or(0, |left| left.as_nanos().max(1) as i64);
        let at = |nanos: i64| Timespec {
            tv_sec: nanos / 1_000_000_000,
            tv_nsec: nanos % 1_000_000_000,
        };
        let timer = Itimerspec {
            it_interval: at(0),
            it_value: at(left),
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer).unwrap();
    }
}

impl Queue<FileRequest, PagerInfo> for LateQueue {
    fn info(&self) -> &PagerInfo {
        &self.info
    }

    fn capacity(&self) -> usize {
        64
    }

    fn in_flight(&self) -> usize {
        self.requests.len()
    }

    fn submit(&mut self, request: FileRequest) -> std::result::Result<(), FileRequest> {
        let late = self.random.below(self.latest.as_micros() as u64);
        let late = Duration::from_micros(late);
        let writes = matches!(request.request.op, Op::Write { .. });
        self.disk.word(WRITES).fetch_add(writes.into(), SeqCst);
        self.requests.push((Instant::now() + late, request));
        self.set_timer();
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        Ok(())
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> Result<usize> {
        if let Some(left) = self.left() {
            match wait {
                Wait::Poll => {}
                Wait::AtMost(time) => std::thread::sleep(left.min(time)),
                Wait::Block => std::thread::sleep(left),
            }
        }
        let now = Instant::now();
        let due = self.requests.extract_if(.., |(due, _)| *due <= now);
        let due: Vec<FileRequest> = due.map(|(_, request)| request).collect();
        let count = due.len();
        for FileRequest { file, request } in due {
            let Request { tag, mut op } = request;
            let fails = matches!(op, Op::Write { .. }) && self.random.below(8) == 0;
            let result = if fails {
                Err(Error::new(ErrorKind::Media, "late", "it fails sometimes"))
            } else {
                self.disk.serve(file, &mut op);
                Ok(())
            };
            done.push(Completion { tag, op, result });
        }
        self.set_timer();
        Ok(count)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.timer.as_fd())
    }
}
