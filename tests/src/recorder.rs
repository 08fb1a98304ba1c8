//! Clients of an NBD export that moves between servers. They record all that they see, for
//! [`History::check`].

use crate::{PATIENCE, Random};
use nbd_client::Client;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use test_support::history::{Action, Crash, History, Operation, Time, Value};

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Bytes of a piece, which names the write: its block, a mark, its value. It is no longer than what
/// a cipher encrypts at once, so that concurrent writes mix whole pieces.
const PIECE: usize = 16;
/// First bytes of a piece of content.
const MARK: u32 = 0x6576_6673;
/// Transmission flag of an export whose flush covers the writes of all connections.
const CAN_MULTI_CONN: u16 = 1 << 8;
/// Pause before a thread tries the next server.
const PAUSE: Duration = Duration::from_millis(20);

/// What the threads do.
#[derive(Debug, Clone)]
pub struct Load {
    /// Servers of which any may serve the export. Each thread tries them in turn.
    pub servers: Vec<SocketAddr>,
    /// Name of the export.
    pub export: String,
    /// Number of threads, each with a connection of its own.
    pub threads: u16,
    /// Number of blocks, from the begin of the export. All threads use all blocks.
    pub blocks: u32,
    /// Time after which a connection without an answer is given up.
    pub within: Duration,
    /// Pause of a thread between two operations.
    pub pause: Duration,
}

/// Threads at work. They end with it.
pub struct Recorder {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Vec<Operation>>>,
    /// What the recorder itself did before the threads, and crashes.
    history: History,
}

struct Shared {
    load: Load,
    began: Instant,
    acknowledged: AtomicUsize,
    /// Nanoseconds of the longest acknowledged operation.
    longest: AtomicU64,
    is_ended: AtomicBool,
}

impl Recorder {
    /// Writes all blocks and flushes, then starts the threads.
    ///
    /// # Panics
    /// No server serves the export for some minutes.
    pub fn start(load: Load, random: &mut Random) -> Recorder {
        let threads = load.threads;
        let shared = Arc::new(Shared {
            load,
            began: Instant::now(),
            acknowledged: AtomicUsize::new(0),
            longest: AtomicU64::new(0),
            is_ended: AtomicBool::new(false),
        });
        let mut first = Worker::new(shared.clone(), threads, random.below(u64::MAX));
        for block in 0..shared.load.blocks {
            first.insist(|worker| worker.write(block));
        }
        first.insist(Worker::flush);
        let workers = (0..threads).map(|thread| {
            let worker = Worker::new(shared.clone(), thread, random.below(u64::MAX));
            std::thread::spawn(|| worker.run())
        });
        let threads = workers.collect();
        let history = History {
            operations: first.operations,
            crashes: Vec::new(),
        };
        Recorder {
            shared,
            threads,
            history,
        }
    }

    /// Calls a function that ends the owner of the export and returns when another one, or the same
    /// one again, serves it, and records a crash that happens meantime.
    pub fn crash<T>(&mut self, take_over: impl FnOnce(&Recorder) -> T) -> T {
        let from = self.shared.now();
        let result = take_over(self);
        let until = self.shared.now();
        self.history.crashes.push(Crash { from, until });
        result
    }

    /// Waits until this number of operations more are acknowledged, of those that the threads do.
    ///
    /// # Panics
    /// It takes longer than some minutes, or a thread has panicked.
    #[track_caller]
    pub fn wait_for(&self, operations: usize) {
        let wanted = self.acknowledged() + operations;
        let until = Instant::now() + PATIENCE;
        while self.acknowledged() < wanted {
            assert!(Instant::now() < until, "the export is not served");
            let ended = self.threads.iter().any(JoinHandle::is_finished);
            assert!(!ended, "a thread of the recorder has panicked");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the number of acknowledged operations.
    pub fn acknowledged(&self) -> usize {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// Returns the time of the longest acknowledged operation of the threads.
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.shared.longest.load(Ordering::Relaxed))
    }

    /// Ends the threads, reads all blocks, and returns what happened.
    ///
    /// # Panics
    /// No server serves the export for some minutes.
    pub fn finish(mut self) -> History {
        self.shared.is_ended.store(true, Ordering::Relaxed);
        let mut history = std::mem::take(&mut self.history);
        for thread in self.threads.drain(..) {
            let operations = thread.join();
            history
                .operations
                .extend(operations.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        let mut last = Worker::new(self.shared.clone(), self.shared.load.threads + 1, 0);
        for block in 0..self.shared.load.blocks {
            last.insist(|worker| worker.read(block));
        }
        history.operations.extend(last.operations);
        history
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.shared.is_ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn now(&self) -> Time {
        self.began.elapsed().as_nanos() as Time
    }
}

/// One thread with its connection.
struct Worker {
    shared: Arc<Shared>,
    thread: u16,
    random: Random,
    /// Number of writes so far.
    writes: u64,
    client: Option<Client>,
    /// Number of connections that were tried.
    tried: usize,
    operations: Vec<Operation>,
}

impl Worker {
    fn new(shared: Arc<Shared>, thread: u16, seed: u64) -> Worker {
        Worker {
            shared,
            thread,
            random: Random::new(seed),
            writes: 0,
            client: None,
            tried: usize::from(thread),
            operations: Vec::new(),
        }
    }

    fn run(mut self) -> Vec<Operation> {
        while !self.shared.is_ended.load(Ordering::Relaxed) {
            let block = self.random.below(self.shared.load.blocks.into()) as u32;
            let done = match self.random.below(20) {
                0 => self.flush(),
                1..10 => self.write(block),
                _ => self.read(block),
            };
            if done {
                self.shared.acknowledged.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(self.shared.load.pause);
            } else {
                std::thread::sleep(PAUSE);
            }
        }
        self.operations
    }

    /// Repeats an operation until it is acknowledged.
    fn insist(&mut self, mut operation: impl FnMut(&mut Worker) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !operation(self) {
            assert!(Instant::now() < until, "the export is not served");
            std::thread::sleep(PAUSE);
        }
    }

    fn write(&mut self, block: u32) -> bool {
        let value = Value::new(self.thread, self.writes + 1);
        let content = content(block, value);
        self.operate(|client| {
            let written = client.write_at(u64::from(block) * BLOCK as u64, &content);
            (Action::Write { block, value }, written)
        })
    }

    fn read(&mut self, block: u32) -> bool {
        self.operate(|client| {
            let mut content = [0; BLOCK];
            let read = client.read_at(u64::from(block) * BLOCK as u64, &mut content);
            let values = values(block, &content);
            (Action::Read { block, values }, read)
        })
    }

    fn flush(&mut self) -> bool {
        self.operate(|client| (Action::Flush, client.flush()))
    }

    /// Connects if there is no connection, calls `operation` and records it. Reports whether it was
    /// acknowledged; after an error there is no connection.
    fn operate(&mut self, operation: impl FnOnce(&mut Client) -> (Action, io::Result<()>)) -> bool {
        let Some(mut client) = self.client.take().or_else(|| self.connect()) else {
            return false;
        };
        let invoked = self.shared.now();
        let (action, result) = operation(&mut client);
        let completed = self.shared.now();
        self.writes += u64::from(matches!(action, Action::Write { .. }));
        self.operations.push(Operation {
            thread: self.thread,
            action,
            invoked,
            completed: result.is_ok().then_some(completed),
        });
        if result.is_ok() {
            let took = completed - invoked;
            self.shared.longest.fetch_max(took, Ordering::Relaxed);
            self.client = Some(client);
        }
        result.is_ok()
    }

    /// Connects to the next server, if it serves the export.
    fn connect(&mut self) -> Option<Client> {
        let load = &self.shared.load;
        let server = load.servers[self.tried % load.servers.len()];
        self.tried += 1;
        let client = Client::connect_tcp(server, &load.export, load.within).ok()?;
        assert!(
            client.flags() & CAN_MULTI_CONN != 0,
            "a flush does not cover the writes of other connections"
        );
        assert!(client.size() >= u64::from(load.blocks) * BLOCK as u64);
        Some(client)
    }
}

/// Returns a piece of the content of a block.
fn piece(block: u32, value: Value) -> [u8; PIECE] {
    let mut piece = [0; PIECE];
    piece[..4].copy_from_slice(&MARK.to_le_bytes());
    piece[4..8].copy_from_slice(&block.to_le_bytes());
    piece[8..].copy_from_slice(&value.0.to_le_bytes());
    piece
}

/// Returns the content of a block.
fn content(block: u32, value: Value) -> Vec<u8> {
    piece(block, value).repeat(BLOCK / PIECE)
}

/// Returns the value of each piece of a block, or one if they are all the same.
fn values(block: u32, content: &[u8]) -> Vec<Value> {
    let value = |read: &[u8]| {
        let value = Value(u64::from_le_bytes(read[8..].try_into().expect("8 bytes")));
        if *read == [0; PIECE] {
            Value::INITIAL
        } else if *read == piece(block, value) {
            value
        } else {
            Value::FOREIGN
        }
    };
    let first = value(&content[..PIECE]);
    if content
        .chunks(PIECE)
        .all(|piece| *piece == content[..PIECE])
    {
        return vec![first];
    }
    content.chunks(PIECE).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_name_their_writes_piece_by_piece() {
        let (one, two) = (Value::new(3, 1), Value::new(4, 9));
        let mut block = content(5, one);
        assert_eq!((block.len(), values(5, &block)), (BLOCK, vec![one]));
        assert_eq!(values(6, &block), [Value::FOREIGN]);
        assert_eq!(values(6, &[0; BLOCK]), [Value::INITIAL]);
        block[16..32].copy_from_slice(&content(5, two)[..16]);
        block[33] ^= 1;
        let pieces = values(5, &block);
        assert_eq!(
            (pieces.len(), &pieces[..4]),
            (256, &[one, two, Value::FOREIGN, one][..])
        );
    }
}
