//! A server that a test has started, and kills.

use crate::server::{NAME, Spec};
use block_testing::Random;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Time that nothing takes.
pub const LONG: Duration = Duration::from_secs(60);

/// A keeper and its server; ends with this value.
pub struct Served {
    spec: Spec,
    keeper: Child,
    said: Receiver<String>,
}

impl Served {
    /// Starts it.
    pub fn start(spec: Spec) -> Served {
        let mut keeper = Command::new(std::env::current_exe().expect("this program"))
            .args(spec.args())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let lines = BufReader::new(keeper.stdout.take().expect("piped")).lines();
        let (say, said) = channel();
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .try_for_each(|line| say.send(line))
        });
        Served { spec, keeper, said }
    }

    /// Starts it, and waits until it serves.
    pub fn serving(spec: Spec) -> (Served, PathBuf) {
        let served = Served::start(spec);
        let loop_device = served.serves(0);
        (served, loop_device)
    }

    /// Waits until the server of this generation serves; returns the path of the loop device.
    pub fn serves(&self, generation: u32) -> PathBuf {
        self.said("serving", generation).into()
    }

    /// Waits until the server of this generation says this; returns the rest of the line.
    pub fn said(&self, what: &str, generation: u32) -> String {
        let what = format!("{what} {generation}");
        let until = Instant::now() + LONG;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.said.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("no server says `{what}`"));
            if let Some(rest) = line.strip_prefix(&what) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Returns the path of the file.
    pub fn file(&self) -> PathBuf {
        self.spec.dir.join(NAME)
    }

    /// Lists the loop devices over the file.
    pub fn loop_devices(&self) -> Vec<PathBuf> {
        let file = format!("{}\n", self.file().display());
        let devices = fs::read_dir("/sys/block").expect("sysfs").flatten();
        let is_over = |device: &fs::DirEntry| {
            let backing = fs::read_to_string(device.path().join("loop/backing_file"));
            backing.is_ok_and(|backing| backing == file)
        };
        let devices = devices.filter(is_over);
        let paths = devices.map(|device| Path::new("/dev").join(device.file_name()));
        paths.collect()
    }

    /// Returns the process that serves.
    fn server(&self) -> Option<Pid> {
        let keeper = self.keeper.id();
        let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).ok()?;
        // A thread of an earlier one may be left.
        Pid::from_raw(children.split_whitespace().last()?.parse().ok()?)
    }

    /// Kills the server some time after there is one.
    pub fn kill_after(&self, time: Duration) {
        self.until("there is a server", || self.server().is_some());
        std::thread::sleep(time);
        let server = self.server().expect("only this test kills it");
        kill_process(server, Signal::KILL).expect("a process");
        self.until("the server has died", || self.server() != Some(server));
    }

    /// Waits for a change.
    pub fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < LONG, "never: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends it in order.
    pub fn stop(mut self) {
        drop(self.keeper.stdin.take());
        let ended = self.keeper.wait().expect("it ends");
        assert_eq!(ended.code(), Some(0));
        assert!(!self.file().exists() && self.loop_devices().is_empty());
    }

    /// Lets it end in order, and kills some servers that are about to.
    pub fn stop_with_kills(mut self, random: &mut Random) {
        drop(self.keeper.stdin.take());
        for _ in 0..random.below(4) {
            std::thread::sleep(Duration::from_micros(random.below(20_000)));
            if let Some(server) = self.server() {
                let _ = kill_process(server, Signal::KILL);
            }
        }
        let ended = self.keeper.wait().expect("it ends");
        assert_eq!(ended.code(), Some(0));
        assert!(!self.file().exists());
        self.until("the loop device ends", || self.loop_devices().is_empty());
    }

    /// Ends it with errors for its users.
    pub fn abort(&self) {
        let keeper = Pid::from_child(&self.keeper);
        let server = self.server();
        let _ = kill_process(keeper, Signal::KILL);
        if let Some(server) = server {
            let _ = kill_process(server, Signal::KILL);
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if self.keeper.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.abort();
        }
        let _ = self.keeper.wait();
        // Its server is dead, or about to be.
        let is_mounted = || {
            fuse_mount::mounts()
                .iter()
                .any(|at| at.point == self.spec.dir)
        };
        let begun = Instant::now();
        while is_mounted() && begun.elapsed() < LONG {
            let _ = export_file::clear_dead(&self.spec.dir);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
