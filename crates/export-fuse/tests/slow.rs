//! A slow device delays the requests that need it, and no others.

mod common;

use block::{BlockDevice, Completion, DeviceInfo, Op, Queue, Request, Wait};
use block_testing::Delay;
use cache::{Cache, Config};
use common::{configured, device, mounted, wait_until};
use fs::{FIRST_FILESET, FileType, Files, Fs, New, Options, ROOT, WritePosition};
use std::cell::Cell;
use std::fs as sys;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// A device whose queues do not take reads while it is closed. Queues that were opened before it
/// was closed first are not affected.
struct Gate {
    device: Arc<dyn BlockDevice>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    applies: AtomicBool,
    closed: Mutex<bool>,
    changed: Condvar,
    waiting: AtomicUsize,
}

impl State {
    fn set(&self, closed: bool) {
        *self.closed.lock().expect("no panic") = closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        self.waiting.fetch_add(1, SeqCst);
        let closed = self.closed.lock().expect("no panic");
        let passed = self.changed.wait_while(closed, |closed| *closed);
        drop(passed.expect("no panic"));
    }
}

impl BlockDevice for Gate {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn queue(&self) -> block::Result<Box<dyn Queue>> {
        let queue = self.device.queue()?;
        if !self.state.applies.load(SeqCst) {
            return Ok(queue);
        }
        let state = Arc::clone(&self.state);
        Ok(Box::new(Gated { queue, state }))
    }
}

struct Gated {
    queue: Box<dyn Queue>,
    state: Arc<State>,
}

impl Queue for Gated {
    fn info(&self) -> &DeviceInfo {
        self.queue.info()
    }

    fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn submit(&mut self, request: Request) -> Result<(), Request> {
        if matches!(request.op, Op::Read { .. }) {
            self.state.pass();
        }
        self.queue.submit(request)
    }

    fn kick(&mut self) -> block::Result<()> {
        self.queue.kick()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Completion>) -> block::Result<usize> {
        self.queue.reap(wait, done)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.queue.wait_fd()
    }
}

/// Opens the gate even if an assertion fails, so that no thread waits indefinitely.
struct Opens<'a>(&'a State);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

#[test]
fn reads_of_a_disk_that_hangs_hold_up_no_lookup() {
    const THREADS: usize = 4;
    let device = device();
    mounted(&device, |dir| {
        for i in 0..THREADS {
            sys::write(dir.join(format!("{i}")), vec![i as u8; 50_000]).expect("written");
        }
    });
    let state = Arc::new(State::default());
    let gate: Arc<dyn BlockDevice> = Arc::new(Gate {
        device,
        state: Arc::clone(&state),
    });
    let set = |config: &mut export_fuse::MountConfig| config.threads = THREADS;
    configured(&gate, set, |dir, _| {
        state.applies.store(true, SeqCst);
        state.set(true);
        std::thread::scope(|scope| {
            let opens = Opens(&state);
            let read = |i: usize| move || sys::read(dir.join(format!("{i}")));
            let mut readers = Vec::new();
            for i in 0..THREADS - 1 {
                readers.push(scope.spawn(read(i)));
                wait_until("it waits for the disk", || state.waiting.load(SeqCst) > i);
            }
            let quick = scope.spawn(move || {
                let missing = |i: &u32| !dir.join(format!("missing {i}")).exists();
                let count = (0..100).filter(missing).count();
                sys::create_dir(dir.join("new")).expect("made");
                count
            });
            wait_until("others are served", || quick.is_finished());
            assert_eq!(quick.join().expect("no panic"), 100);
            assert!(readers.iter().all(|reader| !reader.is_finished()));
            drop(opens);
            for (i, reader) in readers.into_iter().enumerate() {
                let data = reader.join().expect("no panic").expect("readable");
                assert!(data == vec![i as u8; 50_000]);
            }
        });
        let last = THREADS - 1;
        assert!(sys::read(dir.join(format!("{last}"))).is_ok());
    });
}

thread_local! {
    static ANNOUNCED: Cell<usize> = const { Cell::new(0) };
}

#[test]
fn operations_that_wait_for_the_disk_announce_it_and_those_in_memory_do_not() {
    let time = Duration::from_millis(2);
    let device: Arc<dyn BlockDevice> = Arc::new(Delay::new(device(), time, time));
    let fs = Fs::open(device, Options::default()).expect("it opens");
    let main = fs.fileset_named(FIRST_FILESET).expect("the first fileset");
    let cache = Cache::new(Config::new(8 << 20)).expect("a cache");
    let files = Files::new(&main, &cache).expect("files");
    let mut lane = files.lane().expect("a lane");
    block::before_sleep(|| ANNOUNCED.set(ANNOUNCED.get() + 1));
    let new = New::of_root(FileType::File, 0o644);
    // The first change waits for the journal.
    files.create(ROOT, b"first", &new).expect("made");

    ANNOUNCED.set(0);
    let ino = files.create(ROOT, b"file", &new).expect("made").ino;
    let handle = files.open(ino).expect("open");
    let mut data = vec![5; 100_000];
    let at = WritePosition::End;
    lane.write(&handle, at, &data).expect("written");
    lane.read(&handle, 0, &mut data).expect("read");
    files.lookup(ROOT, b"file").expect("there");
    assert_eq!(ANNOUNCED.take(), 0, "everything is in memory");

    lane.sync(&handle).expect("synced");
    assert!(ANNOUNCED.take() > 0, "a sync waits");
    cache.drop_pages().expect("dropped");
    ANNOUNCED.set(0);
    lane.read(&handle, 0, &mut data).expect("read");
    assert!(ANNOUNCED.take() > 0, "a read waits");
    assert!(data.iter().all(|byte| *byte == 5));
    files.create(ROOT, b"second", &new).expect("made");
    ANNOUNCED.set(0);
    files.sync_names().expect("synced");
    assert!(ANNOUNCED.take() > 0, "a sync of names waits");
    drop((lane, handle));
    files.close().expect("everything is written");
}
