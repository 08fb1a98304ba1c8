//! Data transfer of one connection, with one thread per direction.

use crate::command::{Command, Direction};
use crate::{Address, Stats, TICK};
use block_testing::Random;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Maximum bytes per read, without and with a rate limit.
const CHUNK: usize = 256 * 1024;
const CHUNK_RATED: usize = 8 * 1024;
/// Number of undelivered bytes above which one direction of a connection stops reading.
const KEPT_MAX: usize = 64 << 20;
/// Maximum number of bytes recorded per connection.
const RECORD_MAX: usize = 64 << 20;

/// Active faults of the path.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    rate: Option<u64>,
    delay: Duration,
    jitter: Duration,
    hole: bool,
    hold: bool,
    pub(crate) refuse: bool,
    accept_delay: Duration,
    corrupt_every: u64,
    record: bool,
}

/// State shared by all connections.
pub(crate) struct Shared {
    upstream: Address,
    faults: Mutex<Faults>,
    /// Number of resets; a connection that started at a lower number is cut.
    pub(crate) resets: AtomicU64,
    half_up: AtomicU64,
    half_down: AtomicU64,
    corrupt_once: AtomicBool,
    recorded: Mutex<Vec<Vec<u8>>>,
    /// Time at which the rate-limited link becomes free, per direction.
    free: [Mutex<Instant>; 2],
    pub(crate) end: AtomicBool,
    connections: AtomicU64,
    delivered: [AtomicU64; 2],
    held: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Shared {
    pub(crate) fn new(upstream: Address) -> Shared {
        Shared {
            upstream,
            faults: Mutex::default(),
            resets: AtomicU64::new(0),
            half_up: AtomicU64::new(0),
            half_down: AtomicU64::new(0),
            corrupt_once: AtomicBool::new(false),
            recorded: Mutex::default(),
            free: [Mutex::new(Instant::now()), Mutex::new(Instant::now())],
            end: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            delivered: [AtomicU64::new(0), AtomicU64::new(0)],
            held: AtomicU64::new(0),
        }
    }

    pub(crate) fn faults(&self) -> Faults {
        *lock(&self.faults)
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            connections: self.connections.load(Relaxed),
            up: self.delivered[0].load(Relaxed),
            down: self.delivered[1].load(Relaxed),
            held: self.held.load(Relaxed),
        }
    }

    pub(crate) fn command(&self, command: Command) -> Result<(), String> {
        let mut faults = lock(&self.faults);
        match command {
            Command::Pass => *faults = Faults::default(),
            Command::Rate(bytes) => faults.rate = Some(bytes),
            Command::Delay(time) => faults.delay = time,
            Command::Jitter(time) => faults.jitter = time,
            Command::Hole => faults.hole = true,
            Command::Hold => faults.hold = true,
            Command::Refuse => faults.refuse = true,
            Command::AcceptDelay(time) => faults.accept_delay = time,
            Command::Corrupt(0) => self.corrupt_once.store(true, Relaxed),
            Command::Corrupt(every) => faults.corrupt_every = every,
            Command::Record => faults.record = true,
            Command::Rst => {
                self.resets.fetch_add(1, Relaxed);
            }
            Command::HalfClose(Direction::Up) => {
                self.half_up.fetch_add(1, Relaxed);
            }
            Command::HalfClose(Direction::Down) => {
                self.half_down.fetch_add(1, Relaxed);
            }
            Command::Replay => {
                drop(faults);
                return self.replay();
            }
        }
        Ok(())
    }

    /// Sends every recorded stream again, and reads answers until the connection is idle for 500
    /// ms.
    fn replay(&self) -> Result<(), String> {
        for stream in std::mem::take(&mut *lock(&self.recorded)) {
            let server = self.upstream.connect().map_err(|e| e.to_string())?;
            let (mut sent, mut quiet) = (0, Instant::now());
            let mut bytes = vec![0; CHUNK];
            while quiet.elapsed() < Duration::from_millis(500) {
                let mut wanted = PollFlags::IN;
                if sent < stream.len() {
                    wanted |= PollFlags::OUT;
                }
                let ready = poll(&server, wanted, TICK);
                if ready.contains(PollFlags::OUT) {
                    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                    sent += rustix::net::send(&server, &stream[sent..], flags).unwrap_or(0);
                    quiet = Instant::now();
                }
                if ready.intersects(PollFlags::IN | PollFlags::HUP) {
                    match rustix::net::recv(&server, &mut bytes[..], RecvFlags::DONTWAIT) {
                        Ok((0, _)) | Err(_) => break,
                        Ok(_) => quiet = Instant::now(),
                    }
                }
            }
        }
        Ok(())
    }
}

/// Serves one connection until it ends.
pub(crate) fn serve(shared: &Arc<Shared>, client: OwnedFd) {
    let born = shared.resets.load(Relaxed);
    shared.connections.fetch_add(1, Relaxed);
    std::thread::sleep(shared.faults().accept_delay);
    // A silent path accepts connections and stays silent on them.
    while shared.faults().hole && shared.resets.load(Relaxed) == born {
        std::thread::sleep(TICK);
    }
    let Ok(server) = shared.upstream.connect() else {
        return cut(&client);
    };
    let (client, server) = (Arc::new(client), Arc::new(server));
    let (s, c, v) = (Arc::clone(shared), Arc::clone(&client), Arc::clone(&server));
    let down = std::thread::Builder::new().spawn(move || pump(&s, &v, &c, Direction::Down, born));
    pump(shared, &client, &server, Direction::Up, born);
    if let Ok(down) = down {
        let _ = down.join();
    }
    if shared.resets.load(Relaxed) != born {
        cut(&client);
        cut(&server);
    }
}

/// Makes the later close of the socket reset the connection.
fn cut(socket: &OwnedFd) {
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

fn poll(socket: &OwnedFd, wanted: PollFlags, time: Duration) -> PollFlags {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), wanted)];
    let time = Timespec::try_from(time).ok();
    match rustix::event::poll(&mut fds, time.as_ref()) {
        Ok(1..) => fds[0].revents(),
        _ => PollFlags::empty(),
    }
}

/// Data with the time when it is due; `None` is the end of the stream.
type Due = (Instant, Option<Vec<u8>>);

fn pump(shared: &Shared, from: &OwnedFd, to: &OwnedFd, direction: Direction, born: u64) {
    let way = direction as usize;
    let (half, mut random) = match direction {
        Direction::Up => (&shared.half_up, Random::new(born + 1)),
        Direction::Down => (&shared.half_down, Random::new(born + 2)),
    };
    let halves = half.load(Relaxed);
    let mut queue: VecDeque<Due> = VecDeque::new();
    let (mut kept, mut ended, mut until_flip) = (0, false, 0u64);
    let mut record = Vec::new();
    let mut bytes = vec![0; CHUNK];
    while shared.resets.load(Relaxed) == born {
        let faults = shared.faults();
        let now = Instant::now();
        if half.load(Relaxed) != halves {
            let _ = rustix::net::shutdown(to, Shutdown::Write);
            break;
        }
        let silent = faults.hole || (faults.hold && direction == Direction::Down);
        let stopped = silent || faults.hold;
        // Deliver data that is due.
        if !stopped
            && let Some((due, data)) = queue.front_mut()
            && *due <= now
        {
            let Some(data) = data else {
                let _ = rustix::net::shutdown(to, Shutdown::Write);
                break;
            };
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::send(to, data, flags) {
                Ok(sent) => {
                    shared.delivered[way].fetch_add(sent as u64, Relaxed);
                    shared.held.fetch_sub(sent as u64, Relaxed);
                    kept -= sent;
                    data.drain(..sent);
                    if data.is_empty() {
                        queue.pop_front();
                    }
                }
                Err(rustix::io::Errno::AGAIN) => {
                    poll(to, PollFlags::OUT, TICK);
                }
                // The receiver has disconnected; the other direction continues by itself.
                Err(_) => break,
            }
            continue;
        }
        if silent || ended || kept > KEPT_MAX {
            let due = queue.front().map(|d| d.0.saturating_duration_since(now));
            let wait = due.filter(|_| !stopped).unwrap_or(TICK);
            std::thread::sleep(wait.min(TICK));
            continue;
        }
        let wait = queue.front().map_or(TICK, |(due, _)| {
            due.saturating_duration_since(now).min(TICK)
        });
        if poll(from, PollFlags::IN, wait).is_empty() {
            continue;
        }
        // A fault applies from the moment of its command, not from the next iteration.
        let faults = shared.faults();
        if faults.hole {
            continue;
        }
        let most = if faults.rate.is_some() {
            CHUNK_RATED
        } else {
            CHUNK
        };
        let read = rustix::net::recv(from, &mut bytes[..most], RecvFlags::DONTWAIT);
        let data = match read {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => continue,
            Ok((0, _)) | Err(_) => None,
            Ok((read, _)) => Some(bytes[..read].to_vec()),
        };
        let now = Instant::now();
        let mut due = now + faults.delay;
        if !faults.jitter.is_zero() {
            due += Duration::from_nanos(random.below(faults.jitter.as_nanos() as u64 + 1));
        }
        if let (Some(data), Some(rate)) = (&data, faults.rate) {
            let mut free = lock(&shared.free[way]);
            let takes = Duration::from_secs_f64(data.len() as f64 / rate as f64);
            *free = (*free).max(now) + takes;
            due += free.saturating_duration_since(now);
        }
        if let Some((last, _)) = queue.back() {
            due = due.max(*last);
        }
        let Some(mut data) = data else {
            ended = true;
            queue.push_back((due, None));
            continue;
        };
        if direction == Direction::Down {
            corrupt(shared, &faults, &mut data, &mut until_flip);
        } else if faults.record && record.len() + data.len() <= RECORD_MAX {
            record.extend(&data);
        }
        kept += data.len();
        shared.held.fetch_add(data.len() as u64, Relaxed);
        queue.push_back((due, Some(data)));
    }
    shared.held.fetch_sub(kept as u64, Relaxed);
    if !record.is_empty() {
        lock(&shared.recorded).push(record);
    }
}

fn corrupt(shared: &Shared, faults: &Faults, data: &mut [u8], until_flip: &mut u64) {
    if shared.corrupt_once.swap(false, Relaxed) {
        let middle = data.len() / 2;
        data[middle] ^= 0x10;
    }
    if faults.corrupt_every == 0 {
        return;
    }
    for byte in data {
        *until_flip += 1;
        if *until_flip >= faults.corrupt_every {
            *until_flip = 0;
            *byte ^= 0x10;
        }
    }
}
