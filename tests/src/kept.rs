//! Servers of mounts and volumes with `--survive`, each a child of its keeper.

use crate::{Random, signal, wait_until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Finds the process that serves for a keeper.
pub fn server_of(keeper: u32) -> Option<i32> {
    let children = format!("/proc/{keeper}/task/{keeper}/children");
    let children = std::fs::read_to_string(children).ok()?;
    // A thread of an earlier one may be left.
    children.split_whitespace().last()?.parse().ok()
}

/// Opens a memory file of a keeper.
pub fn memory_of(keeper: u32, name: &str) -> File {
    let all = std::fs::read_dir(format!("/proc/{keeper}/fd")).expect("a process of this user");
    let wanted = format!("/memfd:{name} (deleted)");
    let is_it = |path: &PathBuf| std::fs::read_link(path).is_ok_and(|to| to == Path::new(&wanted));
    let path = all.flatten().map(|entry| entry.path()).find(is_it);
    let path = path.unwrap_or_else(|| panic!("the keeper has no {name}"));
    let mut open = File::options();
    open.read(true)
        .write(true)
        .open(path)
        .expect("root may open it")
}

/// Kills the server of a keeper some time after it was started, and waits until it has died.
#[track_caller]
pub fn kill_the_server(keeper: u32, after: Duration) {
    wait_until("a server runs", || server_of(keeper).is_some());
    std::thread::sleep(after);
    let server = server_of(keeper).expect("only the test kills it");
    signal(server, libc::SIGKILL);
    wait_until("the server has died", || server_of(keeper) != Some(server));
}

/// Kills the servers of a keeper at random moments, until it is stopped or dropped.
pub struct Killer {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl Killer {
    /// Begins to kill, on average once in `every`.
    pub fn start(keeper: u32, every: Duration) -> Killer {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let mut random = Random::from_environment();
        let run = move || {
            let mut kills = 0;
            loop {
                let after = Duration::from_millis(random.below(2 * every.as_millis() as u64 + 1));
                let next = Instant::now() + after;
                while Instant::now() < next && !over.load(Relaxed) {
                    std::thread::sleep(after.min(Duration::from_millis(5)));
                }
                if over.load(Relaxed) {
                    return kills;
                }
                // None runs between two of them.
                if let Some(server) = server_of(keeper) {
                    signal(server, libc::SIGKILL);
                    kills += 1;
                }
            }
        };
        Killer {
            is_over,
            thread: Some(std::thread::spawn(run)),
        }
    }

    /// Stops, and returns the number of kills.
    pub fn stop(mut self) -> u64 {
        self.end()
    }

    fn end(&mut self) -> u64 {
        self.is_over.store(true, Relaxed);
        let kills = self.thread.take().map(JoinHandle::join);
        kills.transpose().expect("it does not panic").unwrap_or(0)
    }
}

impl Drop for Killer {
    fn drop(&mut self) {
        self.end();
    }
}

/// Kills a keeper, unless it has ended, and waits until its server has stopped in order. A server that
/// does not stop is killed.
pub fn end(keeper: &mut Child) {
    if let Ok(Some(_)) = keeper.try_wait() {
        return;
    }
    // While it is stopped, it starts no other server, and the ID of its server stays in use.
    signal(keeper.id() as i32, libc::SIGSTOP);
    let server = server_of(keeper.id()).and_then(Pid::from_raw);
    let server = server.and_then(|server| pidfd_open(server, PidfdFlags::empty()).ok());
    let _ = keeper.kill();
    let _ = keeper.wait();
    let Some(server) = server else { return };
    let patience = Timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    let ended = poll(&mut [PollFd::new(&server, PollFlags::IN)], Some(&patience));
    if ended != Ok(1) {
        let _ = pidfd_send_signal(&server, Signal::KILL);
    }
}
